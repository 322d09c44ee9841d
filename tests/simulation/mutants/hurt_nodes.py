# SPDX-License-Identifier: Apache-2.0
"""Defects in the handling of a leaderAndISR node that was damaged, deleted or set back manually (rule Z4)."""

from __future__ import annotations

from typing import Any

from tidemark.controller.lost_states import LostStates
from tidemark.core.controller.partition_state import PartitionState

from tests.simulation.recipes import HURT, SET_BACK


def believes_older_nodes(monkeypatch: Any) -> None:
    """A node of an earlier leader epoch counts, although replicas know a later one."""
    monkeypatch.setattr(PartitionState, "found_older", lambda self, error: False)
    monkeypatch.setattr(PartitionState, "is_older", lambda self, found: False)


def leaves_hurt_nodes(monkeypatch: Any) -> None:
    """The controller never writes a node again that was damaged manually."""
    write = LostStates._write

    async def first_only(self: LostStates, chosen: Any, topics: Any, versions: Any, *others: Any) -> bool:
        new = {one: written for one, written in chosen.items() if written.how.startswith("new")}
        return await write(self, new, topics, versions, *others)

    monkeypatch.setattr(LostStates, "_write", first_only)


RULES = {
    believes_older_nodes: ("Z4", SET_BACK),
    leaves_hurt_nodes: ("Z4", HURT),
}
"""Each defect with the rule it breaks and the kind of world that shows it."""
