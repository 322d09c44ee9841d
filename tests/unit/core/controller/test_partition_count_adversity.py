# SPDX-License-Identifier: Apache-2.0
"""Partitions added and removed, and settings changed, while controllers fail over and answers are lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tidemark.core.controller import effects as fx
from tidemark.core.controller import events as ev
from tidemark.model import ErrorCode, Refusal, TidemarkError

from tests.unit.core.controller.worlds.controller_world import World
from tests.unit.core.controller.worlds.partition_count_world import (
    P0,
    P1,
    P2,
    P3,
    P4,
    a_world,
    answers,
    codes,
    holds_records,
    is_whole,
    partitions,
)

# -- faults --------------------------------------------------------------------------------------------------------


def _adds(world: World) -> None:
    world.add({P3: (3, 4), P4: (4, 0)})


def _removes(world: World) -> None:
    world.remove(P1, P2)


def _is_refused(world: World) -> None:
    holds_records(world, P1)
    world.remove(P1, P2)


@pytest.mark.parametrize(("ask", "end"), [(_adds, 5), (_removes, 1), (_is_refused, 3)])
def test_the_next_controller_ends_requests_after_a_failure_at_any_point(ask: Callable[[World], None], end: int) -> None:
    for carried_out in (True, False):
        for cut in range(100):
            world = a_world()
            ask(world)
            if not answers(world, cut):
                break
            if world.pending and carried_out:
                world.answer(world.pending.pop(0))
            world.fails_over()
            world.settle(catching_up=True)
            assert partitions(world) == list(range(end)), f"after {cut} answers"
            is_whole(world)
            assert set(codes(world)) <= ({ErrorCode.PARTITION_NOT_EMPTY} if ask is _is_refused else set())
        assert cut > 5


@pytest.mark.parametrize(("ask", "end"), [(_adds, 5), (_removes, 1), (_is_refused, 3)])
@pytest.mark.parametrize(
    "kind",
    [
        fx.WriteTopic,
        fx.WriteStates,
        fx.DeletePartitions,
        fx.FinishPartitionRequests,
        fx.DescribeReplicas,
        fx.SendStopReplica,
        fx.SendLeaderAndIsr,
    ],
)
def test_each_answer_may_be_lost(ask: Callable[[World], None], end: int, kind: type) -> None:
    for nth in range(4):
        world = a_world()
        ask(world)
        seen = 0
        for _ in range(300):
            if not world.pending:
                world.passes(1000)
            if not world.pending:
                break
            effect = world.pending.pop(0)
            world.answer(effect, lost=isinstance(effect, kind) and seen == nth)
            seen += isinstance(effect, kind)
        world.settle(catching_up=True)
        assert partitions(world) == list(range(end)), f"{kind.__name__} {nth}"
        is_whole(world)
        assert set(codes(world)) <= ({ErrorCode.PARTITION_NOT_EMPTY} if ask is _is_refused else set())


def test_a_topic_deleted_during_a_removal_ends_the_request() -> None:
    for cut in range(40):
        world = a_world()
        world.remove(P2)
        if not answers(world, cut):
            break
        world.delete("orders")
        world.settle()
        assert not world.topics
        assert not world.states
        assert not world.asked.removed
        assert not any(knows.commands for knows in world.brokers.values())


@pytest.mark.parametrize("failovers", [0, 1])
def test_an_addition_waits_until_the_request_of_an_earlier_removal_has_left_zookeeper(failovers: int) -> None:
    """Otherwise the next controller would apply the earlier request to the added partition, and remove it."""
    world = a_world()
    world.remove(P2, force=True)
    while not world.waiting(fx.FinishPartitionRequests):
        world.answer(world.pending.pop(0))
    finish = world.take(fx.FinishPartitionRequests)
    world.add({P2: (3, 4)})
    world.settle()
    assert partitions(world) == [0, 1]
    world.pending.append(finish)
    for _ in range(failovers):
        world.fails_over()
    world.settle(catching_up=True)
    assert (partitions(world), codes(world)) in (([0, 1, 2], []), ([0, 1], [ErrorCode.INVALID_REQUEST]))
    is_whole(world)


@pytest.mark.parametrize("failovers", [0, 1])
def test_a_forced_removal_that_replaces_a_refused_one_is_carried_out(failovers: int) -> None:
    world = a_world()
    holds_records(world, P2)
    world.remove(P2)
    while not world.waiting(fx.FinishPartitionRequests):
        world.answer(world.pending.pop(0))
    finish = world.take(fx.FinishPartitionRequests)
    world.remove(P2, force=True)
    world.pending.append(finish)
    for _ in range(failovers):
        world.fails_over()
    world.settle(catching_up=True)
    assert partitions(world) == [0, 1]
    is_whole(world)


@pytest.mark.parametrize("failovers", [0, 1, 2])
def test_a_removal_waits_until_the_request_of_an_earlier_addition_has_left_zookeeper(failovers: int) -> None:
    """Otherwise the next controller would apply the earlier request again, and add the partition again."""
    world = a_world()
    world.add({P3: (0, 1, 2)})
    while not world.waiting(fx.FinishPartitionRequests):
        world.answer(world.pending.pop(0))
    finish = world.take(fx.FinishPartitionRequests)
    world.remove(P3)
    world.settle()
    assert partitions(world) == [0, 1, 2, 3]
    world.pending.append(finish)
    for _ in range(failovers):
        world.fails_over()
    world.settle(catching_up=True)
    assert partitions(world) == [0, 1, 2]
    assert not world.asked.refusals
    is_whole(world)


def test_a_larger_removal_ends_though_a_smaller_one_is_being_written() -> None:
    """The request about P2 is answered when its replica is deleted."""
    world = a_world()
    world.remove(P2)
    while not world.waiting(fx.WriteTopic):
        world.answer(world.pending.pop(0))
    write = world.take(fx.WriteTopic)
    world.remove(P1)
    world.answer(write)
    for question in world.waiting(fx.DescribeReplicas):
        world.pending.remove(question)
        world.answer(question, lost=True)
    world.settle()
    assert partitions(world) == [0]
    assert not world.asked.refusals
    is_whole(world)


# -- settings ------------------------------------------------------------------------------------------------------


def test_a_higher_min_isr_is_written_and_sent() -> None:
    world = a_world(1, m="1")
    world.configure("orders", m="3")
    world.settle()
    assert world.state("orders").min_isr == 3
    assert world.brokers[0].commands[P0].state.min_isr == 3


def test_a_lower_min_isr_empties_the_elr_in_the_same_write() -> None:
    """Rule T3: the partition has a leader."""
    world = a_world(1, m="3")
    world.leader_writes(P0, 0, 1)
    world.happens(ev.IsrChangesReported((P0,)))
    world.settle()
    assert world.state("orders").elr
    world.configure("orders", m="2")
    world.settle()
    assert (world.state("orders").min_isr, world.state("orders").elr) == (2, ())


def test_a_lower_min_isr_keeps_the_elr_of_a_partition_without_a_leader() -> None:
    """Rule T3: with leader -1 the ELR stays, and its members may be elected."""
    world = a_world(1, m="3")
    world.down(0, 1, 2)
    world.settle()
    assert {one.broker_id for one in world.state("orders").elr} == {0, 1, 2}
    world.configure("orders", m="1")
    world.settle()
    assert {one.broker_id for one in world.state("orders").elr} == {0, 1, 2}
    world.up(1)
    world.settle()
    assert world.state("orders").leader == 1


def test_settings_changed_while_the_topic_is_written_are_not_undone_by_the_answer() -> None:
    world = a_world(1, m="2")
    world.add({P1: (3, 4)})
    write = world.take(fx.WriteTopic)
    world.configure("orders", m="1")
    world.happens(world._write_topic(write, False))
    assert world.core._ctx.partitions[P0].policy.min_insync_replicas == 1
    world.settle()
    assert world.state("orders").min_isr == 1
    assert world.state("orders", 1).min_isr == 1


def test_a_new_controller_begins_no_reassignment_of_a_partition_that_is_being_removed() -> None:
    """A new controller reads removals after reassignments: a reassignment that waits for a removal does not begin."""
    world = a_world()
    world.remove(P2)
    while not world.states[P2].state.sealed:
        world.answer(world.pending.pop(0))
    world.move(P2, 3, 1, 2)
    world.fails_over()
    world.settle(catching_up=True)
    assert partitions(world) == [0, 1]
    assert codes(world) == [ErrorCode.UNKNOWN_PARTITION], "the reassignment is refused, not the removal"
    is_whole(world)


def test_a_removal_ends_though_its_partition_is_written_into_a_reassignment_by_hand() -> None:
    """The next controller could not read a topic with a reassignment of a partition that it lacks."""
    world = a_world()
    world.remove(P2, force=True)
    topic = world.topics["orders"]
    world.topics["orders"] = replace(
        topic, adding={2: (4,)}, removing={2: (0,)}, original={2: topic.partitions[2]}, version=topic.version + 1
    )
    world.topics_seen()
    world.settle(catching_up=True)
    assert partitions(world) == [0, 1]
    after = world.topics["orders"]
    assert (after.adding, after.removing, after.original) == ({}, {}, {})


def test_malformed_requests_that_are_read_repeatedly_are_refused_once() -> None:
    """Regression: the refusals of other requests were displaced."""
    world = a_world()
    malformed = TidemarkError(ErrorCode.INVALID_REQUEST, "malformed", {"path": "/admin/partitions_add/orders/x"})
    for _ in range(2):
        world.asked.malformed = [Refusal("partitions_add", P4, malformed), Refusal("reassign", None, malformed)]
        for _ in range(3):
            world.asked_seen()
        world.settle()
        assert not world.asked.malformed
    assert [one.kind for one in world.asked.refusals] == ["reassign", "partitions_add"] * 2
