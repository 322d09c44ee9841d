# SPDX-License-Identifier: Apache-2.0
"""Partitions added to a topic and removed from it (rule C7), by requests in ZooKeeper."""

from __future__ import annotations

import pytest
from tidemark.core.controller import effects as fx
from tidemark.model import ErrorCode, Refusal, TidemarkError, TopicPartition

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

# -- added ---------------------------------------------------------------------------------------------------------


def test_added_partitions_get_leaders_and_are_sent_to_all_brokers() -> None:
    world = a_world()
    world.add({P3: (3, 4), P4: (4, 0)})
    world.settle()
    assert world.topics["orders"].partitions[3] == (3, 4)
    assert world.state("orders", 4).leader == 4
    assert not world.asked.refusals
    is_whole(world)


def test_partitions_are_added_although_their_requests_are_read_one_by_one() -> None:
    world = a_world()
    world.add({P3: (3, 4)})
    world.add({P4: (4, 3)})
    world.settle()
    assert partitions(world) == [0, 1, 2, 3, 4]
    is_whole(world)


@pytest.mark.parametrize(
    ("added", "code"),
    [
        ({TopicPartition("nowhere", 0): (1,)}, ErrorCode.UNKNOWN_TOPIC),
        ({P4: (1, 2)}, ErrorCode.INVALID_PARTITIONS),
        ({P1: (3, 4)}, ErrorCode.INVALID_PARTITIONS),
        ({P3: ()}, ErrorCode.EMPTY_REPLICAS),
        ({P3: (1, 1)}, ErrorCode.DUPLICATE_REPLICA),
        ({P3: (1, 99)}, ErrorCode.BROKER_NOT_AVAILABLE),
    ],
)
def test_a_bad_addition_is_refused_by_its_code_and_changes_nothing(
    added: dict[TopicPartition, tuple[int, ...]], code: ErrorCode
) -> None:
    world = a_world()
    before = dict(world.topics), dict(world.states)
    world.add(added)
    world.settle()
    assert codes(world) == [code]
    assert (dict(world.topics), dict(world.states)) == before
    is_whole(world)


def test_a_refused_addition_refuses_the_one_that_follows_it() -> None:
    world = a_world()
    world.add({P3: (99,), P4: (1, 2)})
    world.settle()
    assert codes(world) == [ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.INVALID_PARTITIONS]
    assert partitions(world) == [0, 1, 2]
    is_whole(world)


def test_a_malformed_request_is_refused_and_removed() -> None:
    world = a_world()
    world.asked.malformed.append(
        Refusal("partitions_add", TopicPartition("orders", -1), TidemarkError(ErrorCode.INVALID_REQUEST, "malformed"))
    )
    world.asked_seen()
    world.settle()
    assert not world.asked.malformed
    assert codes(world) == [ErrorCode.INVALID_REQUEST]


def test_a_deleted_topic_ends_its_additions() -> None:
    world = a_world()
    world.add({P3: (3, 4)})
    world.delete("orders")
    world.settle()
    assert not world.topics
    assert not world.asked.added


def test_an_addition_to_a_deleted_topic_is_not_applied_to_the_next_of_its_name() -> None:
    world = a_world()
    world.add({P3: (3, 4)})
    world.states.clear()
    world.topic("orders", (1, 2))
    world.settle()
    assert partitions(world) == [0]
    assert not world.asked.added


# -- removed -------------------------------------------------------------------------------------------------------


def test_a_partition_is_sealed_asked_dropped_and_deleted_in_this_order() -> None:
    world = a_world()
    epoch = world.state("orders", 2).leader_epoch
    world.remove(P2)
    (seal,) = world.take(fx.WriteStates).changes
    assert (seal.state.sealed, seal.state.leader_epoch) == (True, epoch + 1)
    world.pending.insert(0, fx.WriteStates((seal,)))
    seen = []
    for _ in range(100):
        if not world.pending:
            break
        effect = world.pending.pop(0)
        if P2 in getattr(effect, "partitions", ()) or not isinstance(effect, fx.SendUpdateMetadata):
            seen.append(type(effect).__name__)
        world.answer(effect)
    kinds = list(dict.fromkeys(seen))
    assert kinds == [
        "WriteStates",
        "SendLeaderAndIsr",
        "DescribeReplicas",
        "WriteTopic",
        "DeletePartitions",
        "SendStopReplica",
        "FinishPartitionRequests",
    ]
    world.settle()
    assert partitions(world) == [0, 1]
    assert all(P2 in world.brokers[broker].stopped for broker in (0, 1, 2))
    assert not world.asked.refusals
    is_whole(world)


def test_a_partition_with_records_is_refused_and_unsealed() -> None:
    world = a_world()
    holds_records(world, P2)
    world.remove(P2)
    world.settle()
    assert codes(world) == [ErrorCode.PARTITION_NOT_EMPTY]
    assert partitions(world) == [0, 1, 2]
    is_whole(world)


def test_if_one_partition_has_records_none_is_removed() -> None:
    world = a_world()
    holds_records(world, P1)
    world.remove(P1, P2)
    world.settle()
    assert codes(world) == [ErrorCode.PARTITION_NOT_EMPTY] * 2
    assert partitions(world) == [0, 1, 2]
    is_whole(world)


def test_force_removes_a_partition_with_records() -> None:
    world = a_world()
    holds_records(world, P2)
    world.remove(P2, force=True)
    world.settle()
    assert partitions(world) == [0, 1]
    is_whole(world)


def test_after_a_refusal_the_removal_can_be_forced() -> None:
    world = a_world()
    holds_records(world, P2)
    world.remove(P2)
    world.settle()
    world.remove(P2, force=True)
    world.settle()
    assert partitions(world) == [0, 1]
    is_whole(world)


@pytest.mark.parametrize(
    ("removed", "code"),
    [
        ([TopicPartition("nowhere", 0)], ErrorCode.UNKNOWN_TOPIC),
        ([P4], ErrorCode.UNKNOWN_PARTITION),
        ([P1], ErrorCode.NOT_HIGHEST_PARTITION),
        ([P0, P2], ErrorCode.NOT_HIGHEST_PARTITION),
        ([P0, P1, P2], ErrorCode.INVALID_PARTITIONS),
    ],
)
def test_a_bad_removal_is_refused_by_its_code_and_changes_nothing(
    removed: list[TopicPartition], code: ErrorCode
) -> None:
    world = a_world()
    before = dict(world.topics), dict(world.states)
    world.remove(*removed)
    world.settle()
    assert codes(world) == [code] * len(removed)
    assert (dict(world.topics), dict(world.states)) == before
    is_whole(world)


def test_a_partition_that_is_being_reassigned_is_not_removed() -> None:
    world = a_world()
    world.move(P2, 3, 4)
    world.settle()
    world.remove(P2)
    world.settle()
    assert codes(world) == [ErrorCode.REASSIGNMENT_IN_PROGRESS]
    world.settle(catching_up=True)
    assert world.topics["orders"].partitions[2] == (3, 4)
    is_whole(world)


@pytest.mark.parametrize("removal_first", [True, False])
@pytest.mark.parametrize("count", range(0, 30, 2))
def test_a_reassignment_and_a_removal_at_once_both_end_and_one_succeeds(count: int, removal_first: bool) -> None:
    world = a_world()
    steps = [lambda: world.remove(P2), lambda: world.move(P2, 3, 4)]
    first, second = steps if removal_first else reversed(steps)
    first()
    answers(world, count)
    second()
    world.settle(catching_up=True)
    topic = world.topics["orders"]
    assert topic.partitions.get(2) in (None, (3, 4), (0, 1, 2))
    assert set(topic.original) | set(topic.adding) | set(topic.removing) == set()
    assert not world.asked.moves
    is_whole(world)


def test_the_successor_of_a_failed_sealed_leader_is_sealed_and_asked() -> None:
    world = a_world()
    world.remove(P2)
    while not world.waiting(fx.DescribeReplicas):
        world.answer(world.pending.pop(0))
    world.down(0)
    world.settle()
    assert partitions(world) == [0, 1]
    assert not world.asked.refusals
    assert set(world.states) == {P0, P1}


def test_a_sealed_partition_without_a_leader_is_removed_once_it_has_one() -> None:
    world = a_world()
    world.remove(P2)
    while not world.waiting(fx.DescribeReplicas):
        world.answer(world.pending.pop(0))
    world.down(0, 1, 2)
    world.settle()
    assert partitions(world) == [0, 1, 2]
    world.up(0, 1, 2)
    world.settle(catching_up=True)
    assert partitions(world) == [0, 1]
    is_whole(world)


def test_force_removes_a_partition_without_a_leader() -> None:
    world = a_world()
    world.down(0, 1, 2)
    world.settle()
    world.remove(P2, force=True)
    world.settle()
    assert partitions(world) == [0, 1]
    world.up(0, 1, 2)
    world.settle(catching_up=True)
    is_whole(world)


def test_force_ends_a_removal_that_waits_for_a_leader() -> None:
    world = a_world()
    world.down(0, 1, 2)
    world.settle()
    world.remove(P2)
    world.settle()
    assert partitions(world) == [0, 1, 2]
    world.remove(P2, force=True)
    world.settle()
    assert partitions(world) == [0, 1]
    assert not world.asked.refusals


def test_a_withdrawn_request_removes_the_seal() -> None:
    world = a_world()
    world.remove(P2)
    while not world.waiting(fx.DescribeReplicas):
        world.answer(world.pending.pop(0))
    world.asked.removed.clear()
    world.asked_seen()
    world.settle()
    assert partitions(world) == [0, 1, 2]
    is_whole(world)


def test_a_removal_is_refused_if_the_leader_never_reports() -> None:
    world = a_world()
    world.remove(P2)
    for _ in range(400):
        if world.pending:
            effect = world.pending.pop(0)
            world.answer(effect, lost=isinstance(effect, fx.DescribeReplicas))
        else:
            world.passes(500)
        if world.asked.refusals:
            break
    world.settle()
    assert codes(world) == [ErrorCode.REQUEST_TIMED_OUT]
    is_whole(world)


def test_a_partition_added_again_has_another_incarnation() -> None:
    world = a_world()
    seen = {world.topics["orders"].incarnations[2]}
    for _ in range(3):
        world.remove(P2)
        world.settle()
        world.add({P2: (0, 1, 2)})
        world.settle()
        is_whole(world)
        seen.add(world.topics["orders"].incarnations[2])
    assert len(seen) == 4


def test_a_partition_removed_and_added_during_a_brokers_absence_gets_no_old_data() -> None:
    world = a_world()
    world.down(2)
    world.settle()
    world.remove(P2)
    world.settle()
    world.add({P2: (0, 1)})
    world.settle()
    world.up(2)
    world.settle(catching_up=True)
    assert partitions(world) == [0, 1, 2]
    is_whole(world)


def test_an_addition_is_refused_during_a_removal() -> None:
    world = a_world()
    world.remove(P2)
    world.add({P3: (3,)})
    world.settle()
    assert codes(world) == [ErrorCode.INVALID_REQUEST]
    assert partitions(world) == [0, 1]
    is_whole(world)


def test_a_removal_is_refused_during_an_addition() -> None:
    world = a_world()
    world.add({P3: (3,)})
    world.remove(P2)
    world.settle()
    assert codes(world) == [ErrorCode.INVALID_REQUEST]
    assert partitions(world) == [0, 1, 2, 3]
    is_whole(world)


def test_a_further_removal_waits_for_the_deletion_of_nodes() -> None:
    world = a_world()
    world.remove(P2)
    while not world.waiting(fx.DeletePartitions):
        world.answer(world.pending.pop(0))
    world.remove(P1)
    world.settle()
    assert partitions(world) == [0]
    assert not world.asked.refusals
    is_whole(world)


def test_the_next_controller_adds_no_partition_that_the_last_one_was_removing() -> None:
    world = a_world()
    world.remove(P2)
    while not world.waiting(fx.DeletePartitions):
        world.answer(world.pending.pop(0))
    world.asked.added[P2] = world.topics["orders"].partitions[1]
    world.fails_over()
    world.settle()
    assert codes(world) == [ErrorCode.INVALID_REQUEST]
    assert partitions(world) == [0, 1]
    is_whole(world)


def test_the_next_controller_deletes_removed_partitions_before_it_removes_more() -> None:
    world = a_world()
    world.remove(P2)
    while not world.waiting(fx.DeletePartitions):
        world.answer(world.pending.pop(0))
    world.asked.removed[P1] = False
    world.fails_over()
    world.settle()
    assert partitions(world) == [0]
    assert not world.asked.refusals
    is_whole(world)


def test_the_next_controller_ends_a_removal_of_a_deleted_topic() -> None:
    world = a_world()
    world.remove(P2)
    world.delete("orders")
    while world.topics:
        world.answer(world.pending.pop(0))
    world.fails_over()
    world.settle()
    assert not world.asked.removed
    assert not world.asked.refusals
