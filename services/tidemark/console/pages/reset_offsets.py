# SPDX-License-Identifier: Apache-2.0
"""Resets the offsets of a consumer group without members: first the dry run by partition, then the change."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tidemark.client.aio import Groups
from tidemark.client.consuming.offset_lookup import Start
from tidemark.client.group.offset_reset import OffsetChange, refusal_of, start_of
from tidemark.client.outputs.record_format import parse_start
from tidemark.console.page import Asked, Done, Refused, View
from tidemark.console.pages.dry_run import CHANGED, is_confirmed, named_partition, parameters, plan_id, without_plan
from tidemark.console.pages.paging import Part, part_of
from tidemark.model import TidemarkError, TopicPartition

KINDS: Final = ("earliest", "latest", "offset", "timestamp")
_MOVING: Final = ("earliest", "latest")
"""Starts that are looked up again at the change: records arrive and are deleted between dry run and change."""
_PLAN_S: Final = 15.0


class _Reset(NamedTuple):
    """A requested reset; `to`: its start as the command states it."""

    group: str
    topics: Sequence[str]
    partitions: Sequence[TopicPartition]
    start: Start
    to: str


async def load(asked: Asked) -> View | Done:
    """The page `/reset-offsets/{group}?topic=TOPIC&partition=P&to=WHERE&value=VALUE`; POST carries the reset out."""
    given = parameters(asked)
    reset = await _reset(asked, given)
    try:
        changes = await _plan(asked, reset)
    except Refused as refused:
        if refused.status != 409:
            raise
        return _view(asked, given, reset, (), refused.sentence)
    plan = _plan_id(reset, changes)
    if is_confirmed(asked, plan) and changes:
        return Done(await _carry_out(asked, reset, changes))
    notice = CHANGED if asked.changes else "" if changes else "The group reads no partition: there is nothing to reset."
    return _view(asked, given, reset, changes, notice, plan if changes else "")


async def _reset(asked: Asked, given: Mapping[str, str]) -> _Reset:
    group, (topic, partition) = asked.path["group"], named_partition(given)
    to = given.get("to") or KINDS[0]
    if to in ("offset", "timestamp"):  # the form has a separate field for this value
        to = f"{to}:{given.get('value', '')}"
    try:
        start = start_of(parse_start(to))
    except (ValueError, TidemarkError) as error:
        raise Refused(400, f"{error}.") from None
    if partition is not None:
        return _Reset(group, (), (TopicPartition(topic, partition),), start, to)
    return _Reset(group, (topic,) if topic else await _topics(asked, group), (), start, to)


async def _topics(asked: Asked, group: str) -> list[str]:
    """All topics that the group reads."""
    (found,) = await asked.read("group", lambda groups: groups.describe_groups([group]), Groups, patience_s=_PLAN_S)
    return sorted({one.partition.topic for one in found.partitions})


async def _plan(asked: Asked, reset: _Reset) -> list[OffsetChange]:
    return await asked.read(
        "reset_plan",
        lambda groups: groups.plan_reset(reset.group, reset.start, topics=reset.topics, partitions=reset.partitions),
        Groups,
        patience_s=_PLAN_S,
    )


def _plan_id(reset: _Reset, changes: Sequence[OffsetChange]) -> str:
    moving = reset.to in _MOVING
    facts = [(*one[:2], -1 if moving else one.offset, one.topic_id, one.incarnation) for one in changes]
    return plan_id(reset.group, reset.to, *facts)


async def _carry_out(asked: Asked, reset: _Reset, changes: Sequence[OffsetChange]) -> View:
    refused = await asked.change("set_offsets", lambda groups: groups.set_offsets(reset.group, changes), Groups)
    error = refusal_of(refused, len(changes))
    if error is not None:
        raise Refused(409, error.message[0].upper() + error.message[1:], error=error)
    data = {**_facts(reset, changes, part_of(changes, {}, size=len(changes))), "changed": True}
    command = f"tidemark group describe {shlex.quote(reset.group)}"
    return View(f"The offsets of group {reset.group} are set", command, data)


def _view(
    asked: Asked,
    given: Mapping[str, str],
    reset: _Reset,
    changes: Sequence[OffsetChange],
    notice: str,
    plan: str = "",
) -> View:
    """The dry run; without a plan `notice` states why the reset is refused."""
    data = {
        **_facts(reset, changes, part_of(changes, without_plan(given))),
        "changed": False,
        "notice": notice,
        "plan": plan,
        "may_change": asked.may_change,
        "fields": {name: given.get(name, "") for name in ("topic", "partition", "to", "value")},
        "moving": reset.to in _MOVING,
    }
    title, command = f"Reset the offsets of group {reset.group}", f"{_command(reset)} --dry-run"
    return View(title, command, data, 409 if notice else 200)


def _facts(reset: _Reset, changes: Sequence[OffsetChange], part: Part[OffsetChange]) -> dict[str, object]:
    rows = [
        {**one.partition._asdict(), "before": None if one.before < 0 else one.before, "offset": one.offset}
        for one in part.rows
    ]
    return {
        "group": reset.group,
        "to": reset.to,
        "command": _command(reset),
        "partitions": rows,
        "unchanged": sum(one.before == one.offset for one in changes),
        **part.facts(),
    }


def _command(reset: _Reset) -> str:
    named = [*reset.topics, *(f"{one.topic}:{one.partition}" for one in reset.partitions)]
    topics = " ".join(f"--topic {name}" for name in named)
    return f"tidemark group reset-offsets {shlex.quote(reset.group)} {topics} --to {shlex.quote(reset.to)}"
