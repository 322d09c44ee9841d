# SPDX-License-Identifier: Apache-2.0
"""Known defects of reassignments (rules M1, M2, F4), for `mutants`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tidemark.broker.replication.control_epochs import ControlEpochs
from tidemark.core.controller import reassignments
from tidemark.core.controller.context import ControllerContext
from tidemark.core.controller.leader_election import Decision
from tidemark.core.controller.reassignment import Reassignment
from tidemark.core.controller.reassignments import Reassignments
from tidemark.core.reassignment.topic_draft import TopicDraft
from tidemark.core.replication.controller_commands import ControllerCommands
from tidemark.model import NO_LEADER, IsrEntry, LeaderAndIsr

from tests.simulation.recipes import MOVES

LATE_MOVES = replace(MOVES, name="late-moves", repeated_calls=0.4, late_calls=0.4)
MOVES_AND_CANCELS = replace(
    MOVES,
    name="moves-and-cancels",
    weights={"reassign": 8, "cancel": 8, "crash": 3, "cut": 3, "slow_disk": 2, "controller_crash": 1},
)
CANCELS_WHILE_AWAY = replace(
    MOVES, name="cancels-while-away", min_isr=1, weights={"reassign": 4, "cancel": 5, "crash_all": 2, "crash": 6}
)


def _as_if_in_sync(facts: Any, brokers: Any, target: Any) -> Decision | None:
    isr = tuple(IsrEntry(one, brokers.live[one]) for one in target if one in brokers.live)
    if not isr:
        return None
    epoch = facts.state.leader_epoch + 1
    state = replace(facts.state, leader=isr[0].broker_id, leader_epoch=epoch, isr=isr, elr=())
    return Decision(state, {isr[0].broker_id: isr[0].broker_epoch})


def settles_in_the_old_epoch(monkeypatch: Any) -> None:
    """The leader stays in its epoch; its ISR change in flight adds a removed replica to the ISR again."""
    monkeypatch.setattr(Reassignment, "is_fenced", lambda self, leader_epoch: True)


def settles_before_all_are_in_sync(monkeypatch: Any) -> None:
    """An added replica counts as in sync from the start."""

    def settle(facts: Any, brokers: Any, target: Any, min_isr: int, **_: bool) -> Decision | None:
        return _as_if_in_sync(facts, brokers, target)

    monkeypatch.setattr(Reassignment, "is_in_sync", lambda self, state: state.leader != NO_LEADER)
    monkeypatch.setattr(reassignments, "settle", settle)


def stops_before_it_settles(monkeypatch: Any) -> None:
    """Replicas to be removed are deleted immediately, in sync or not."""

    def next_step(self: Reassignments, record: Any, facts: Any, brokers: Any) -> Decision | None:
        one = self._by_partition.get(record.partition)
        if one is not None and one.named_in_node and not one.committed and record.state is not None:
            self._ctx.stop_replicas(record, set(one.removing) - {record.state.leader})
        return original(self, record, facts, brokers)

    original = Reassignments.next
    monkeypatch.setattr(Reassignments, "next", next_step)


def a_cancelled_move_drops_the_replica_in_sync(monkeypatch: Any) -> None:
    """A cancellation checks nothing: it removes added replicas, though no other one is in sync."""

    def is_in_sync(self: Reassignment, state: LeaderAndIsr) -> bool:
        return self.target == self.original or in_sync(self, state)

    def settle(facts: Any, brokers: Any, target: Any, min_isr: int, *, fences: bool) -> Decision | None:
        return original(facts, brokers, target, min_isr, fences=fences) or _as_if_in_sync(facts, brokers, target)

    in_sync, original = Reassignment.is_in_sync, reassignments.settle
    monkeypatch.setattr(Reassignment, "is_in_sync", is_in_sync)
    monkeypatch.setattr(reassignments, "settle", settle)


def ends_the_node_before_the_isr(monkeypatch: Any) -> None:
    """The topic's node names only the target replicas from the start."""
    add = TopicDraft.add

    def complete(self: TopicDraft, index: int, target: Any) -> None:
        add(self, index, target)
        self.complete(index, target)

    monkeypatch.setattr(TopicDraft, "add", complete)


def forgets_the_throttle(monkeypatch: Any) -> None:
    """The throttle stays after the end of a reassignment."""
    original = Reassignments._throttle

    def throttle(self: Reassignments, one: Reassignment) -> None:
        if one.entry is not None and one.entry.throttle_bytes_per_s:
            original(self, one)

    monkeypatch.setattr(Reassignments, "_throttle", throttle)


def keeps_removed_replicas(monkeypatch: Any) -> None:
    """No removed replica gets StopReplica."""
    monkeypatch.setattr(ControllerContext, "stop_replicas", lambda self, record, brokers: set())


def obeys_commands_in_any_order(monkeypatch: Any) -> None:
    """A late command starts a stopped replica again."""
    monkeypatch.setattr(ControlEpochs, "_check_order", lambda self, sequence: None)
    monkeypatch.setattr(ControllerCommands, "_overtaken", lambda self, command: None)
