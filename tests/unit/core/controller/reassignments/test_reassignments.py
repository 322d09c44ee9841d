# SPDX-License-Identifier: Apache-2.0
"""Reassignments (rule M1): the twelve steps, min ISR, cancelling, refusals."""

from __future__ import annotations

import pytest
from tidemark.core.controller import effects as fx
from tidemark.core.controller import events as ev
from tidemark.core.reassignment.status import ReplicaState
from tidemark.model import NO_LEADER, ErrorCode, PartitionReassignment, Refusal, TidemarkError, TopicPartition

from tests.unit.core.controller.worlds.controller_world import World
from tests.unit.core.controller.worlds.reassignment_world import (
    P,
    a_world,
    answers,
    goes_on_to,
    is_whole,
    isr,
    node,
    replica_states,
)

# -- the twelve steps --------------------------------------------------------------------------------------------


def test_a_reassignment_takes_the_twelve_steps_in_their_order() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 5, 3)
    step_1 = goes_on_to(world, fx.WriteTopic)
    assert node(world) == ([1, 2, 3], [], [], None)
    world.answer(step_1)
    assert node(world) == ([4, 5, 3, 1, 2], [4, 5], [1, 2], [1, 2, 3])
    world.settle()  # 2: the controller sends it to all of AR
    for broker in (1, 2, 3, 4, 5):
        told = world.brokers[broker].commands[P]
        assert (told.assigned_replicas, told.adding_replicas, told.removing_replicas) == (
            (4, 5, 3, 1, 2),
            (4, 5),
            (1, 2),
        )
    assert replica_states(world) == {4: "new", 5: "new", 3: "online", 1: "online", 2: "online"}  # 3
    assert not world.pending  # 4: waits
    world.leader_writes(P, 1, 2, 3, 4)
    world.happens(ev.IsrChangesReported((P,)))
    world.settle()
    assert replica_states(world)[4] == ReplicaState.ONLINE
    assert isr(world) == [1, 2, 3, 4]
    assert node(world)[3] == [1, 2, 3]
    world.leader_writes(P, 1, 2, 3, 4, 5)
    world.happens(ev.IsrChangesReported((P,)))
    step_7 = goes_on_to(world, fx.WriteStates)  # 5, 6, 7 in one write
    assert isinstance(step_7, fx.WriteStates)
    assert sorted(step_7.changes[0].state.isr_ids) == [3, 4, 5]
    assert step_7.changes[0].state.leader == 4
    assert not world.waiting(fx.SendStopReplica)
    world.answer(step_7)
    assert not world.waiting(fx.SendStopReplica)  # the new leader has not acknowledged
    assert replica_states(world) == {4: "online", 5: "online", 3: "online", 1: "offline", 2: "offline"}
    stop = goes_on_to(world, fx.SendStopReplica)  # 8, 9
    assert world.brokers[4].commands[P].assigned_replicas == (4, 5, 3)
    assert not world.waiting(fx.WriteTopic)
    world.answer(stop)
    step_10 = goes_on_to(world, fx.WriteTopic)
    assert P in world.brokers[1].stopped
    assert P in world.brokers[2].stopped
    assert not world.waiting(fx.FinishReassignments)
    world.answer(step_10)
    assert node(world) == ([4, 5, 3], [], [], None)
    assert P in world.asked.moves
    world.answer(goes_on_to(world, fx.FinishReassignments))  # 11
    assert not world.asked.moves
    world.settle()  # 12
    is_whole(world)
    assert not world.asked.refusals


def test_step_7_begins_a_new_epoch_even_where_the_leader_stays() -> None:
    """In the old epoch, a leader without the last command could add 3 after the write."""
    world = a_world(1, 2, 3)
    before = world.state("orders").leader_epoch
    world.move(P, 1, 2, 4)
    world.settle(catching_up=True)
    assert world.state("orders").leader == 1
    assert world.state("orders").leader_epoch > before
    assert isr(world) == [1, 2, 4]


def test_an_entry_with_the_present_replicas_ends_at_once() -> None:
    world = a_world(1, 2, 3)
    before = dict(world.states), dict(world.topics)
    world.move(P, 1, 2, 3)
    world.settle()
    assert (dict(world.states), dict(world.topics)) == before
    assert not world.asked.moves
    assert not world.asked.refusals


def test_another_order_changes_the_list_and_copies_nothing() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 3, 2, 1)
    world.settle()
    assert node(world) == ([3, 2, 1], [], [], None)
    assert world.state("orders").leader == 1
    assert not world.asked.moves
    assert all(P not in knows.stopped for knows in world.brokers.values())
    assert world.brokers[2].commands[P].assigned_replicas == (3, 2, 1)


# -- how many replicas are enough (rules R4, T3) -----------------------------------------------------------------


def test_with_more_replicas_min_isr_rises_only_when_they_are_in_sync() -> None:
    world = a_world(1, m=3)
    assert world.state("orders").min_isr == 1
    world.move(P, 1, 2, 3)
    world.settle()
    assert world.state("orders").min_isr == 1, "during the reassignment it is that of the original replicas"
    world.settle(catching_up=True)
    assert isr(world) == [1, 2, 3]
    assert world.state("orders").min_isr == 3
    assert node(world) == ([1, 2, 3], [], [], None)


def test_with_fewer_replicas_min_isr_falls_in_the_write_that_drops_them() -> None:
    world = a_world(1, 2, 3, m=3)
    world.move(P, 2)
    settling = goes_on_to(world, fx.WriteStates)
    assert isinstance(settling, fx.WriteStates)
    state = settling.changes[0].state
    assert (list(state.isr_ids), state.min_isr, state.leader) == ([2], 1, 2)
    world.answer(settling)
    world.settle()
    assert node(world) == ([2], [], [], None)
    assert world.state("orders").min_isr == 1


def test_step_7_with_a_lower_min_isr_empties_the_elr() -> None:
    """Rule T3: the partition has a leader, and at least min ISR replicas are in sync."""
    world = a_world(1, 2, 3, m=3)
    world.leader_writes(P, 1, 2)
    world.happens(ev.IsrChangesReported((P,)))
    world.settle()
    assert [one.broker_id for one in world.state("orders").elr] == [3]
    world.move(P, 1, 2)
    world.settle()
    state = world.state("orders")
    assert (sorted(state.isr_ids), state.min_isr, state.elr) == ([1, 2], 2, ())
    assert node(world) == ([1, 2], [], [], None)


def test_settings_changed_during_a_reassignment_apply_to_the_original_then_to_the_target() -> None:
    world = a_world(1, 2, m=2)
    world.move(P, 1, 2, 3)
    world.settle()
    world.configure("orders", m="3")
    world.settle()
    assert world.state("orders").min_isr == 2
    world.settle(catching_up=True)
    assert world.state("orders").min_isr == 3


# -- going back ---------------------------------------------------------------------------------------------------


def test_cancelling_a_queued_reassignment_changes_nothing() -> None:
    world = a_world(1, 2, 3, moves_per_broker_max=0)
    before = dict(world.topics)
    world.move(P, 4, 5, 6 - 1)
    world.asked.refusals.clear()
    world.move(P, 4, 5, 3)
    world.cancel(P)
    world.settle()
    assert dict(world.topics) == before
    assert not world.asked.moves


def test_cancelling_while_copying_restores_the_original_list_in_its_order() -> None:
    world = a_world(3, 1, 2)
    world.move(P, 4, 5, 1)
    world.settle()
    world.cancel(P)
    world.settle(catching_up=True)
    assert node(world) == ([3, 1, 2], [], [], None)
    assert isr(world) == [1, 2, 3]
    assert not world.asked.moves
    assert P in world.brokers[4].stopped
    assert P in world.brokers[5].stopped
    assert not world.asked.refusals


def test_cancelling_drops_and_stops_added_replicas_that_are_in_sync() -> None:
    world = a_world(3, 1, 2)
    world.move(P, 4, 5, 1)
    world.settle()
    world.leader_writes(P, 3, 1, 2, 4)
    world.happens(ev.IsrChangesReported((P,)))
    world.settle()
    world.cancel(P)
    world.settle()
    assert node(world) == ([3, 1, 2], [], [], None)
    assert isr(world) == [1, 2, 3]
    assert P in world.brokers[4].stopped


def test_a_cancel_after_step_7_is_too_late() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 5, 3)
    world.settle()
    world.leader_writes(P, 1, 2, 3, 4, 5)
    world.happens(ev.IsrChangesReported((P,)))
    world.answer(goes_on_to(world, fx.WriteStates))
    world.cancel(P)
    world.settle(catching_up=True)
    assert node(world) == ([4, 5, 3], [], [], None)
    assert not world.asked.moves


def test_a_cancel_at_any_point_ends_with_the_old_list_or_the_new_one() -> None:
    ends = set()
    for cut in range(60):
        world = a_world(3, 1, 2)
        world.move(P, 4, 5, 1, throttle_bytes_per_s=1000)
        if not answers(world, cut) or P not in world.asked.moves:
            break
        world.cancel(P)
        world.settle(catching_up=True)
        assert node(world) in (([3, 1, 2], [], [], None), ([4, 5, 1], [], [], None)), f"after {cut} answers"
        is_whole(world)
        ends.add(node(world)[0][0])
    assert ends == {3, 4}


def test_cancelling_does_not_drop_the_only_in_sync_replica() -> None:
    world = a_world(1, 2, m=1)
    world.move(P, 3, 4)
    world.settle()
    world.leader_writes(P, 1, 2, 3, 4)
    world.happens(ev.IsrChangesReported((P,)))
    world.down(1, 2)  # before it settles: 3 leads now
    world.cancel(P)
    world.settle()
    assert world.state("orders").leader in (3, 4)
    assert not any(P in world.brokers[one].stopped for one in (3, 4))
    world.up(1, 2)
    world.settle(catching_up=True)
    assert node(world) in (([1, 2], [], [], None), ([3, 4], [], [], None))
    assert world.state("orders").leader != NO_LEADER


# -- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("replicas", "fields", "code"),
    [
        ((), {}, ErrorCode.EMPTY_REPLICAS),
        ((4, 4), {}, ErrorCode.DUPLICATE_REPLICA),
        ((4, 99), {}, ErrorCode.BROKER_NOT_AVAILABLE),
        ((4, 5), {"log_dirs": ("any",)}, ErrorCode.LOG_DIRS_MISMATCH),
        ((4,), {"log_dirs": ("",)}, ErrorCode.LOG_DIR_NOT_FOUND),
    ],
)
def test_a_bad_entry_is_refused_by_its_code_and_changes_nothing(
    replicas: tuple[int, ...], fields: dict[str, tuple[str, ...]], code: ErrorCode
) -> None:
    world = a_world(1, 2, 3)
    before = dict(world.states), dict(world.topics)
    world.move(P, *replicas, request_id="mine", **fields)
    world.settle()
    assert (dict(world.states), dict(world.topics)) == before
    assert not world.asked.moves
    (refusal,) = world.asked.refusals
    assert (refusal.partition, refusal.error.code, refusal.request_id) == (P, code, "mine")


@pytest.mark.parametrize(
    ("partition", "code"),
    [
        (TopicPartition("nowhere", 0), ErrorCode.UNKNOWN_TOPIC),
        (TopicPartition("orders", 7), ErrorCode.UNKNOWN_PARTITION),
    ],
)
def test_a_reassignment_of_an_unknown_partition_is_refused_once(partition: TopicPartition, code: ErrorCode) -> None:
    world = a_world(1, 2, 3)
    world.move(partition, 4)
    world.settle()
    assert [one.error.code for one in world.asked.refusals] == [code]
    assert not world.asked.moves


def test_a_malformed_entry_is_removed_and_its_refusal_kept() -> None:
    world = a_world(1, 2, 3)
    world.asked.malformed.append(
        Refusal("reassign", None, TidemarkError(ErrorCode.UNSUPPORTED_VERSION, "it is of version 3"))
    )
    world.move(P, 4, 2, 3)
    world.settle(catching_up=True)
    assert not world.asked.malformed
    assert [one.error.code for one in world.asked.refusals] == [ErrorCode.UNSUPPORTED_VERSION]
    assert node(world) == ([4, 2, 3], [], [], None), "the rest of the node counts"


def test_another_target_during_a_reassignment_is_refused() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 5, 3)
    world.settle()
    world.move(P, 2, 1)  # a manual edit, over the entry
    world.settle()
    assert [one.error.code for one in world.asked.refusals] == [ErrorCode.REASSIGNMENT_IN_PROGRESS]
    world.settle(catching_up=True)
    assert node(world) == ([4, 5, 3], [], [], None)
    is_whole(world)


def test_deleting_an_entry_by_hand_does_not_stop_its_reassignment() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 5, 3, throttle_bytes_per_s=1000)
    world.settle()
    del world.asked.moves[P]
    world.asked_seen()
    world.settle(catching_up=True)
    assert node(world) == ([4, 5, 3], [], [], None)
    is_whole(world)


def test_deleting_a_queued_entry_by_hand_ends_it() -> None:
    world = a_world(1, 2, 3, moves_per_broker_max=0)
    world.move(P, 4, 5, 3)
    world.settle()
    del world.asked.moves[P]
    world.asked_seen()
    world.settle(catching_up=True)
    assert node(world) == ([1, 2, 3], [], [], None)


def test_a_partition_can_be_reassigned_back_right_after() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 2, 3)
    world.settle(catching_up=True)
    world.move(P, 1, 2, 3)
    world.settle(catching_up=True)
    assert node(world) == ([1, 2, 3], [], [], None)
    is_whole(world)


def test_an_entry_repeated_before_it_left_the_node_ends_too() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 2, 3)
    for _ in range(200):
        if world.waiting(fx.FinishReassignments):
            break
        if world.pending:
            world.answer(world.pending.pop(0))
        else:
            world.catch_up()
    world.asked_seen()
    world.settle(catching_up=True)
    assert not world.asked.moves
    assert not world.asked.refusals


# -- many moves, throttles -----------------------------------------------------------------------------------------


def test_each_broker_copies_for_a_limited_number_of_reassignments() -> None:
    world = World(moves_per_broker_max=2)
    for broker in range(6):
        world.register(broker)
    world.make_topic("many", *[(0, 1)] * 12, m="1")
    world.elected()
    world.asked_seen(resumed=True)
    world.settle()
    for index in range(12):
        partition = TopicPartition("many", index)
        world.asked.moves[partition] = PartitionReassignment(partition, (2 + index % 4, 1))  # type: ignore[arg-type]
    world.asked_seen()
    rounds = 0
    while world.asked.moves:
        world.settle()
        under_way = world.topics["many"].original
        assert len(under_way) <= 2, "broker 0 gives out for two at a time"
        rounds += 1
        world.catch_up()
    assert rounds >= 6
    world.settle(catching_up=True)
    assert [world.topics["many"].partitions[one] for one in range(12)] == [(2 + one % 4, 1) for one in range(12)]


def test_a_throttle_is_sent_changed_and_removed_with_its_reassignment() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 2, 3, throttle_bytes_per_s=1000)
    world.settle()
    assert {world.brokers[one].commands[P].throttle_bytes_per_s for one in (1, 2, 3, 4)} == {1000}
    world.move(P, 4, 2, 3, throttle_bytes_per_s=5000)
    world.settle()
    assert {world.brokers[one].commands[P].throttle_bytes_per_s for one in (1, 2, 3, 4)} == {5000}
    world.settle(catching_up=True)
    assert {world.brokers[one].commands[P].throttle_bytes_per_s for one in (2, 3, 4)} == {0}
    is_whole(world)


def test_a_throttle_is_removed_when_its_reassignment_is_cancelled() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 2, 3, throttle_bytes_per_s=1000)
    world.settle()
    world.cancel(P)
    world.settle(catching_up=True)
    assert {world.brokers[one].commands[P].throttle_bytes_per_s for one in (1, 2, 3)} == {0}
    is_whole(world)
