# SPDX-License-Identifier: Apache-2.0
"""Figures of the controller's core: counts, and the reasons why elections removed replicas from ISRs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tidemark.core.controller import effects as fx
from tidemark.core.controller import events as ev
from tidemark.core.controller import partition_counts
from tidemark.model import BrokerEpoch, BrokerId, TopicPartition

from tests.unit.core.controller.worlds.controller_world import World

P = TopicPartition("t", 0)


def world_of(*assignments: tuple[int, ...]) -> World:
    """Brokers 0 to 3, and a topic whose replicas are in sync."""
    world = World()
    world.elected()
    world.up(0, 1, 2, 3)
    world.topic("t", *assignments)
    world.settle()
    world.core.take_left_isrs()
    return world


def fails(world: World) -> None:
    world.down(1)


def bounces(world: World) -> None:
    world.up(1)


def is_suspected(world: World) -> None:
    world.happens(ev.BrokerSuspected(BrokerId(1), BrokerEpoch(0)))


def shuts_down(world: World) -> None:
    world.happens(ev.ControlledShutdownRequested(BrokerId(1), BrokerEpoch(0)))


def loses_its_log(world: World) -> None:
    world.happens(ev.ReplicaFailed(BrokerId(1), BrokerEpoch(0), P, world.states[P].state.leader_epoch))


def moves(world: World) -> None:
    world.move(P, 0, 2)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (fails, "broker_failed"),
        (bounces, "broker_failed"),
        (is_suspected, "suspected"),
        (shuts_down, "shutdown"),
        (loses_its_log, "replica_failed"),
        (moves, "reassigned"),
    ],
)
def test_a_replica_removed_from_an_isr_is_counted_by_reason_once_written(
    what: Callable[[World], None], reason: str
) -> None:
    world = world_of((0, 1, 2))
    what(world)
    world.settle()
    assert 1 not in world.states[P].state.isr_ids or what is bounces
    assert dict(world.core.take_left_isrs()) == {reason: 1}
    assert dict(world.core.take_left_isrs()) == {}, "counted once"


def test_a_command_has_the_reasons_of_the_isr_change_until_a_leader_writes() -> None:
    world = world_of((0, 1, 2))
    world.down(0)
    sent = set()
    while world.pending:
        effect = world.pending.pop(0)
        if isinstance(effect, fx.SendLeaderAndIsr):
            sent |= {(effect.broker, one.isr_reasons) for part in effect.commands for one in part.partitions}
        world.answer(effect)
    state = world.core._ctx.partitions[P]
    assert state.isr_reasons == ((0, "broker_failed"),)
    assert sent == {(1, state.isr_reasons), (2, state.isr_reasons)}
    world.leader_writes(P, 1)
    world.happens(ev.IsrChangesReported((P,)))
    world.settle()
    assert state.isr_reasons == ()


def test_no_replica_is_counted_while_the_write_is_in_flight() -> None:
    world = world_of((0, 1, 2))
    world.down(1)
    assert dict(world.core.take_left_isrs()) == {}


def test_partitions_are_counted_by_leader() -> None:
    world = world_of((0, 1), (1, 0), (2,))
    counts = world.core.counts()
    assert (counts["topics"], counts["partitions"]) == (1, 3)
    assert (counts["offline_partitions"], counts["not_preferred_leaders"]) == (0, 0)
    world.down(0, 2)
    world.settle()
    counts = world.core.counts()
    assert (counts["offline_partitions"], counts["not_preferred_leaders"]) == (1, 1)
    assert counts["live_brokers"] == 2


def test_many_partitions_are_counted_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_counts, "PARTITIONS_A_CALL", 1)
    world = world_of((0, 1), (1, 0), (2,))
    assert world.core.counts()["offline_partitions"] == 0
    world.down(0, 2)
    world.settle()
    assert [world.core.counts()["offline_partitions"] for _ in range(4)] == [0, 0, 0, 1]


def test_reassignments_are_counted_with_their_remaining_replicas() -> None:
    world = world_of((0, 1))
    world.move(P, 2, 3)
    world.settle()
    counts = world.core.counts()
    assert (counts["moves"], counts["replicas_to_move"]) == (1, 2)
    world.leader_writes(P, 0, 1, 2)
    world.happens(ev.IsrChangesReported((P,)))
    world.settle()
    assert world.core.counts()["replicas_to_move"] == 1
    world.settle(catching_up=True)
    counts = world.core.counts()
    assert (counts["moves"], counts["replicas_to_move"]) == (0, 0)
