# SPDX-License-Identifier: Apache-2.0
"""One consumer group: members, progress in each partition, and the link to the dry run of a reset."""

from __future__ import annotations

import shlex
from typing import Final

from tidemark.client.aio import Groups
from tidemark.client.aio.groups import GroupMember, GroupPartition
from tidemark.console.page import Asked, View
from tidemark.console.pages.paging import named, one_of, part_of
from tidemark.console.pages.reset_offsets import KINDS

_SORTS: Final = ("partition", "lag")
_ASSIGNED_MAX: Final = 20
"""Partitions of a member that the page names."""


async def load(asked: Asked) -> View:
    """The page `/groups/{group}?sort=ORDER&page=NUMBER`."""
    name = named(asked.path["group"], "the group")
    (found,) = await asked.need("group", lambda groups: groups.describe_groups([name]), Groups, key=name)
    sort = one_of(asked.query, "sort", _SORTS)
    rows = sorted(found.partitions, key=lambda one: one.partition)
    if sort == "lag":
        rows.sort(key=lambda one: -one.lag)
    part = part_of(rows, asked.query)
    data = {
        "group": found.group,
        "protocol": found.protocol,
        "state": found.state,
        "group_epoch": found.group_epoch,
        "assignor": found.assignor,
        "coordinator_id": found.coordinator_id,
        "lag": found.lag,
        "partitions_of_unknown_lag": found.partitions_of_unknown_lag,
        "members": [_member(one) for one in found.members],
        "partitions": [_partition(one) for one in part.rows],
        "sort": sort,
        "sorts": list(_SORTS),
        "topics": sorted({one.partition.topic for one in found.partitions}),
        "starts": list(KINDS),
        **part.facts(),
    }
    return View(f"Group {found.group}", f"tidemark group describe {shlex.quote(found.group)}", data)


def _member(one: GroupMember) -> dict[str, object]:
    return {
        "member_id": one.member_id,
        "instance_id": one.instance_id,
        "client_id": one.client_id,
        "host": one.host,
        "member_epoch": one.member_epoch,
        "state": one.state,
        "topics": list(one.topics),
        "assigned_count": len(one.assigned),
        "assigned": [_place(where.topic, where.partition) for where in one.assigned[:_ASSIGNED_MAX]],
    }


def _partition(one: GroupPartition) -> dict[str, object]:
    return {
        **_place(one.partition.topic, one.partition.partition),
        "member_id": one.member_id,
        "committed": _known(one.committed),
        "committed_at_ms": one.committed_at_ms,
        "log_start_offset": _known(one.log_start_offset),
        "high_watermark": _known(one.high_watermark),
        "lag": _known(one.lag),
        "error": None if one.error is None else one.error.message,
        "pending": [pending._asdict() for pending in one.pending],
    }


def _place(topic: str, partition: int) -> dict[str, object]:
    return {"topic": topic, "partition": partition}


def _known(number: int) -> int | None:
    """The number; None for -1, which means an unknown number."""
    return None if number < 0 else number
