# SPDX-License-Identifier: Apache-2.0
"""The consumer groups: searched by id, filtered by state, in pages; total lag of the groups on the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tidemark.client.aio import Groups
from tidemark.client.aio.groups import GroupDescription, GroupListing
from tidemark.console.page import Asked, View
from tidemark.console.pages.paging import one_of, part_of, searched
from tidemark.console.queries.group_lags import describe_each

_STATES: Final = ("all", "STABLE", "RECONCILING", "ASSIGNING", "EMPTY")
_ORDERS: Final = ("name", "members")


async def load(asked: Asked) -> View:
    """The page `/groups?q=TEXT&state=STATE&sort=ORDER&page=NUMBER`."""
    listed, missing = await asked.need("groups", lambda groups: groups.list_groups(), Groups)
    text = searched(asked.query)
    state, sort = one_of(asked.query, "state", _STATES), one_of(asked.query, "sort", _ORDERS)
    found = [one for one in listed if text.lower() in one.group.lower() and state in ("all", one.state)]
    if sort == "members":
        found.sort(key=lambda one: (-one.members, one.group))
    part = part_of(found, asked.query)
    described = await _described(asked, [one.group for one in part.rows])
    data = {
        "groups": [_facts(one, described.get(one.group)) for one in part.rows],
        "missing": [error.message for error in missing],
        "q": text,
        "state": state,
        "states": list(_STATES),
        "sort": sort,
        "sorts": list(_ORDERS),
        "group_count": len(listed),
        **part.facts(),
    }
    return View("Consumer groups", "tidemark group list", data)


async def _described(asked: Asked, names: Sequence[str]) -> Mapping[str, GroupDescription]:
    if not names:
        return {}
    answer = await asked.see("group_lags", lambda groups: describe_each(groups, names), Groups, key=tuple(names))
    return answer.value or {}


def _facts(one: GroupListing, described: GroupDescription | None) -> dict[str, object]:
    return {
        "group": one.group,
        "state": one.state,
        "members": one.members,
        "coordinator_id": one.coordinator_id,
        "lag": None if described is None else described.lag,
        "partitions_of_unknown_lag": None if described is None else described.partitions_of_unknown_lag,
    }
