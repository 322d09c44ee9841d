# SPDX-License-Identifier: Apache-2.0
"""Defects in elections after a crash of all replicas, where one log has lost its tail (rule T7)."""

from __future__ import annotations

from typing import Any

from tidemark.core.controller import leader_election
from tidemark.core.replication.replica_log import ReplicaLog

from tests.simulation.plan import Recipe
from tests.simulation.recipes import SHORTENED, TORN


def takes_a_cut_tail_for_a_torn_write(monkeypatch: Any) -> None:
    """A log whose tail was cut off at the start counts as complete."""
    opened = ReplicaLog.__init__

    def init(self: ReplicaLog, *arguments: Any) -> None:
        opened(self, *arguments)
        if self.cut:
            self.end_damage(self.log_end_offset)

    monkeypatch.setattr(ReplicaLog, "__init__", init)


def elects_the_first_to_come_back(monkeypatch: Any) -> None:
    """After a crash of several eligible replicas, the first live one leads; the controller compares no logs."""

    def first(partition: Any, brokers: Any, elr: Any) -> Any:
        eligible = {entry.broker_id for entry in leader_election.candidates(partition, elr)}
        return leader_election._first(partition.assigned, eligible, brokers)

    monkeypatch.setattr(leader_election, "_leader_from_elr", first)


RULES: dict[Any, tuple[str, Recipe]] = {
    takes_a_cut_tail_for_a_torn_write: ("T7", TORN),
    elects_the_first_to_come_back: ("T7", SHORTENED),
}
