# SPDX-License-Identifier: Apache-2.0
"""Reassignments during failures, lost answers and deletions: they end with old or new replicas."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidemark.core.controller import effects as fx
from tidemark.core.controller import events as ev
from tidemark.model import NO_LEADER, BrokerEpoch, BrokerId, IsrEntry, TopicPartition, VersionedState

from tests.unit.core.controller.worlds.reassignment_world import P, a_world, answers, goes_on_to, is_whole, isr, node

# -- faults -------------------------------------------------------------------------------------------------------


def test_each_kind_of_answer_may_be_lost_once() -> None:
    for kind in (
        fx.WriteTopic,
        fx.WriteStates,
        fx.FinishReassignments,
        fx.SendStopReplica,
        fx.SendLeaderAndIsr,
        fx.SendUpdateMetadata,
    ):
        for nth in range(4):
            world = a_world(1, 2, 3)
            world.move(P, 4, 5, 3)
            seen = 0
            for _ in range(300):
                if not world.pending:
                    world.catch_up()
                if not world.pending:
                    world.passes(1000)
                if not world.pending:
                    break
                effect = world.pending.pop(0)
                world.answer(effect, lost=isinstance(effect, kind) and seen == nth)
                seen += isinstance(effect, kind)
            world.settle(catching_up=True)
            assert node(world) == ([4, 5, 3], [], [], None), f"{kind.__name__} {nth}"
            is_whole(world)


def test_a_reassignment_waits_for_a_failed_target() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 5, 3)
    world.settle()
    world.down(5)
    world.settle(catching_up=True)
    assert node(world)[3] == [1, 2, 3]
    assert isr(world) == [1, 2, 3, 4]
    assert world.state("orders").leader == 1
    world.up(5)
    world.settle(catching_up=True)
    assert node(world) == ([4, 5, 3], [], [], None)
    is_whole(world)


def test_a_reassignment_with_a_failed_target_can_be_cancelled() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 5, 3)
    world.settle()
    world.down(5)
    world.settle(catching_up=True)
    world.cancel(P)
    world.settle(catching_up=True)
    assert node(world) == ([1, 2, 3], [], [], None)
    assert isr(world) == [1, 2, 3]


def test_a_queued_reassignment_waits_for_a_failed_target() -> None:
    world = a_world(1, 2, 3, moves_per_broker_max=1)
    world.make_topic("more", (1, 2, 3))
    world.topics_seen()
    world.settle()
    world.move(P, 4, 2, 3)
    other = TopicPartition("more", 0)
    world.move(other, 5, 2, 3)  # broker 1 copies for one of them at a time
    world.settle()
    assert world.topics["more"].original == {}
    world.down(5)
    world.settle(catching_up=True)
    assert node(world) == ([4, 2, 3], [], [], None)
    assert world.topics["more"].original == {}
    assert other in world.asked.moves
    world.up(5)
    world.settle(catching_up=True)
    assert world.topics["more"].partitions[0] == (5, 2, 3)
    assert not world.asked.moves


def test_a_leader_failure_does_not_stop_a_reassignment() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 5, 3)
    world.settle()
    world.down(1)
    world.settle()
    assert world.state("orders").leader in (2, 3)
    world.settle(catching_up=True)
    assert node(world) == ([4, 5, 3], [], [], None)
    world.up(1)
    world.settle(catching_up=True)
    is_whole(world)


def test_a_removed_broker_that_restarts_after_step_7_is_not_waited_for() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 5, 3)
    world.settle()
    world.leader_writes(P, 1, 2, 3, 4, 5)
    world.happens(ev.IsrChangesReported((P,)))
    world.answer(goes_on_to(world, fx.WriteStates))
    stop = goes_on_to(world, fx.SendStopReplica)
    assert isinstance(stop, fx.SendStopReplica)
    world.register(int(stop.broker))
    world.brokers_seen()
    world.fail(stop)
    world.settle(catching_up=True)
    assert node(world) == ([4, 5, 3], [], [], None)
    is_whole(world)


def test_no_removed_replica_is_elected_when_all_targets_fail_after_step_7() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 5)
    world.settle()
    world.leader_writes(P, 1, 2, 3, 4, 5)
    world.happens(ev.IsrChangesReported((P,)))
    world.answer(goes_on_to(world, fx.WriteStates))
    world.down(4, 5)
    world.settle(catching_up=True)
    assert world.state("orders").leader == NO_LEADER
    world.up(4, 5)
    world.settle(catching_up=True)
    assert node(world) == ([4, 5], [], [], None)
    is_whole(world)


# -- topics that go ------------------------------------------------------------------------------------------------


def test_deleting_a_topic_ends_its_reassignments() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 5, 3)
    world.settle()
    world.delete("orders")
    world.settle()
    assert not world.topics
    assert not world.asked.moves
    assert not world.states
    assert all(P not in knows.commands for knows in world.brokers.values())
    for broker in (1, 2, 3, 4, 5):
        assert P in world.brokers[broker].stopped, f"broker {broker} keeps its replica"


@pytest.mark.parametrize("count", range(0, 40, 3))
def test_a_topic_can_be_deleted_at_any_point_of_a_reassignment(count: int) -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 5, 3)
    answers(world, count)
    world.delete("orders")
    world.settle()
    assert not world.topics
    assert not world.asked.moves
    assert not world.states
    assert all(P not in knows.commands for knows in world.brokers.values())


def test_a_topic_created_again_ends_with_whole_replica_lists() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 5, 3)
    world.settle()
    del world.states[P]
    world.topic("orders", (2, 3))
    world.asked_seen()
    world.settle(catching_up=True)
    assert not world.asked.moves
    assert node(world)[1:] == ([], [], None)
    assert sorted(world.topics["orders"].partitions[0]) == isr(world)


def test_an_isr_with_an_unassigned_replica_is_corrected_before_replicas_are_stopped() -> None:
    """No log is deleted while a leader counts on its replica, with any cause of such an ISR."""
    world = a_world(1, 2, 3)
    world.move(P, 1, 2)
    settling = goes_on_to(world, fx.WriteStates)
    world.answer(settling)
    state, version = world.states[P]
    entry = IsrEntry(world.brokers[3].registration.broker_id, world.epochs[3].broker_epoch)  # type: ignore[index]
    world.states[P] = VersionedState(replace(state, isr=(*state.isr, entry)), version + 1)
    world.happens(ev.IsrChangesReported((P,)))
    for _ in range(100):
        for stop in world.waiting(fx.SendStopReplica):
            assert stop.broker not in world.state("orders").isr_ids
        if not world.pending:
            break
        world.answer(world.pending.pop(0))
    world.settle(catching_up=True)
    assert isr(world) == [1, 2]
    is_whole(world)


def test_a_cancel_during_the_write_of_step_1_reverts_once_that_is_written() -> None:
    for lost in (True, False):
        world = a_world(1, 2, 3)
        world.move(P, 4, 5, 3)
        step_1 = world.take(fx.WriteTopic)
        world.cancel(P)
        assert not world.waiting(fx.FinishReassignments), "step 1 may be written"
        world.answer(step_1, lost=lost)
        world.settle(catching_up=True)
        assert node(world) == ([1, 2, 3], [], [], None)
        is_whole(world)


def test_a_failed_command_is_not_retried_at_a_removed_replica() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 5, 3)
    world.answer(world.take(fx.WriteTopic))
    late = next(one for one in world.waiting(fx.SendLeaderAndIsr) if one.broker == 2)
    world.pending.remove(late)
    world.settle(catching_up=True)
    assert isr(world) == [3, 4, 5]
    world.fail(late)
    world.settle(catching_up=True)
    assert node(world) == ([4, 5, 3], [], [], None)
    is_whole(world)


def test_the_end_of_a_throttle_is_sent_even_during_a_read_of_the_partition() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 2, 3, throttle_bytes_per_s=1000)
    world.settle()
    world.leader_writes(P, 1, 2, 3, 4)
    world.happens(ev.IsrChangesReported((P,)))
    step_10 = goes_on_to(world, fx.WriteTopic)
    world.happens(ev.IsrChangesReported((P,)))  # the controller is reading the state
    world.answer(step_10)
    world.settle(catching_up=True)
    is_whole(world)


# -- failure detection (rule C6) -----------------------------------------------------------------------------------


def test_a_suspected_target_does_not_become_the_only_replica() -> None:
    world = a_world(1, 2, m=2)
    world.move(P, 3)
    world.settle()
    world.now_ms += 60_000
    world.happens(ev.BrokerSuspected(BrokerId(3), BrokerEpoch(0)))
    world.leader_writes(P, 1, 3)
    world.happens(ev.IsrChangesReported((P,)))
    world.settle()
    assert node(world)[3] == [1, 2], "the reassignment waits for broker 3 or the end of its session"
    assert isr(world) == [1, 3], "below min ISR failure detection removes no replica"
    world.happens(ev.BrokerTrusted(BrokerId(3), BrokerEpoch(0)))
    world.now_ms += 60_000
    world.happens(ev.BrokerTrusted(BrokerId(3), BrokerEpoch(0)))
    world.settle(catching_up=True)
    assert isr(world) == [3]
    is_whole(world)
