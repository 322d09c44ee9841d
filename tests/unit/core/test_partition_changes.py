"""Partitions added to a topic and removed from it (seed 001 H, rule C7), by requests in ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tidemark.core import controller_effects as fx
from tidemark.core import controller_events as ev
from tidemark.model import ErrorCode, Offset, Refusal, TidemarkError, TopicPartition

from tests.unit.core.controller_world import EMPTY, World

P0, P1, P2, P3, P4 = (TopicPartition("orders", index) for index in range(5))


def a_world(count: int = 3, **configs: str) -> World:
    """A topic on brokers 0, 1 and 2, everybody told."""
    world = World()
    for broker in range(5):
        world.register(broker)
    world.make_topic("orders", *[(0, 1, 2)] * count, **configs)
    world.elected()
    world.asked_seen(resumed=True)
    world.settle()
    return world


def partitions(world: World) -> list[int]:
    return sorted(world.topics["orders"].partitions)


def codes(world: World) -> list[ErrorCode]:
    return [one.error.code for one in world.asked.refusals]


def holds_records(world: World, partition: TopicPartition) -> None:
    for broker in range(5):
        world.logs[broker, partition] = EMPTY._replace(log_end_offset=Offset(7))


def is_whole(world: World) -> None:
    """At rest no request is left, no seal, and everybody knows exactly the partitions that there are."""
    assert not world.asked.added
    assert not world.asked.removed
    named = {TopicPartition("orders", index) for index in partitions(world)}
    assert set(world.states) == named
    assert not any(found.state.sealed for found in world.states.values())
    for broker, knows in world.brokers.items():
        assert set(knows.commands) == {
            one for one in named if broker in world.topics["orders"].partitions[one.partition]
        }, f"broker {broker}"
        assert set(knows.view.topics["orders"].partitions) == {one.partition for one in named}
        for one, told in knows.commands.items():
            assert told.identity.incarnation == world.topics["orders"].incarnations[one.partition]
            assert not told.state.sealed


def answers(world: World, count: int) -> bool:
    """Answer so many effects; False: there were not so many."""
    for _ in range(count):
        if not world.pending:
            world.passes(1000)
        if not world.pending:
            return False
        world.answer(world.pending.pop(0))
    return True


# -- added ---------------------------------------------------------------------------------------------------------


def test_added_partitions_get_leaders_and_everybody_hears_of_them() -> None:
    world = a_world()
    world.add({P3: (3, 4), P4: (4, 0)})
    world.settle()
    assert world.topics["orders"].partitions[3] == (3, 4)
    assert world.state("orders", 4).leader == 4
    assert not world.asked.refusals
    is_whole(world)


def test_partitions_are_added_though_their_requests_are_seen_one_by_one() -> None:
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


def test_of_two_that_follow_on_each_other_the_second_falls_with_the_first() -> None:
    world = a_world()
    world.add({P3: (99,), P4: (1, 2)})
    world.settle()
    assert codes(world) == [ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.INVALID_PARTITIONS]
    assert partitions(world) == [0, 1, 2]
    is_whole(world)


def test_what_cannot_be_understood_is_refused_and_removed() -> None:
    world = a_world()
    world.asked.malformed.append(
        Refusal("partitions_add", TopicPartition("orders", -1), TidemarkError(ErrorCode.INVALID_REQUEST, "what?"))
    )
    world.asked_seen()
    world.settle()
    assert not world.asked.malformed
    assert codes(world) == [ErrorCode.INVALID_REQUEST]


def test_a_topic_that_goes_takes_what_was_to_be_added_with_it() -> None:
    world = a_world()
    world.add({P3: (3, 4)})
    world.delete("orders")
    world.settle()
    assert not world.topics
    assert not world.asked.added


def test_what_was_to_be_added_to_a_topic_is_not_added_to_the_next_of_its_name() -> None:
    world = a_world()
    world.add({P3: (3, 4)})
    world.states.clear()
    world.topic("orders", (1, 2))
    world.settle()
    assert partitions(world) == [0]
    assert not world.asked.added


# -- removed -------------------------------------------------------------------------------------------------------


def test_a_partition_is_sealed_asked_dropped_deleted_and_forgotten_in_this_order() -> None:
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


def test_one_that_holds_records_is_refused_and_unsealed() -> None:
    world = a_world()
    holds_records(world, P2)
    world.remove(P2)
    world.settle()
    assert codes(world) == [ErrorCode.PARTITION_NOT_EMPTY]
    assert partitions(world) == [0, 1, 2]
    is_whole(world)


def test_if_one_holds_records_none_of_them_goes() -> None:
    world = a_world()
    holds_records(world, P1)
    world.remove(P1, P2)
    world.settle()
    assert codes(world) == [ErrorCode.PARTITION_NOT_EMPTY] * 2
    assert partitions(world) == [0, 1, 2]
    is_whole(world)


def test_who_insists_removes_what_holds_records() -> None:
    world = a_world()
    holds_records(world, P2)
    world.remove(P2, force=True)
    world.settle()
    assert partitions(world) == [0, 1]
    is_whole(world)


def test_after_a_refusal_it_may_be_asked_again_with_force() -> None:
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


def test_one_that_is_being_moved_is_not_removed() -> None:
    world = a_world()
    world.move(P2, 3, 4)
    world.settle()
    world.remove(P2)
    world.settle()
    assert codes(world) == [ErrorCode.REASSIGNMENT_IN_PROGRESS]
    world.settle(catching_up=True)
    assert world.topics["orders"].partitions[2] == (3, 4)
    is_whole(world)


@pytest.mark.parametrize("count", range(0, 30, 2))
def test_moved_and_removed_at_once_one_of_both_wins_and_both_end(count: int) -> None:
    world = a_world()
    world.remove(P2)
    answers(world, count)
    world.move(P2, 3, 4)
    world.settle(catching_up=True)
    topic = world.topics["orders"]
    assert topic.partitions.get(2) in (None, (3, 4), (0, 1, 2))
    assert set(topic.original) | set(topic.adding) | set(topic.removing) == set()
    assert not world.asked.moves
    is_whole(world)


@pytest.mark.parametrize("count", range(0, 30, 2))
def test_removed_while_a_move_begins_one_of_both_wins_and_both_end(count: int) -> None:
    world = a_world()
    world.move(P2, 3, 4)
    answers(world, count)
    world.remove(P2)
    world.settle(catching_up=True)
    topic = world.topics["orders"]
    assert topic.partitions.get(2) in (None, (3, 4), (0, 1, 2))
    assert set(topic.original) | set(topic.adding) | set(topic.removing) == set()
    assert not world.asked.moves
    is_whole(world)


def test_a_sealed_leader_that_dies_is_followed_by_one_that_is_sealed_and_asked() -> None:
    world = a_world()
    world.remove(P2)
    while not world.waiting(fx.DescribeReplicas):
        world.answer(world.pending.pop(0))
    world.down(0)
    world.settle()
    assert partitions(world) == [0, 1]
    assert not world.asked.refusals
    assert set(world.states) == {P0, P1}


def test_a_sealed_partition_without_a_leader_waits_and_goes_when_it_has_one() -> None:
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


def test_with_force_it_goes_though_nobody_leads_it() -> None:
    world = a_world()
    world.down(0, 1, 2)
    world.settle()
    world.remove(P2, force=True)
    world.settle()
    assert partitions(world) == [0, 1]
    world.up(0, 1, 2)
    world.settle(catching_up=True)
    is_whole(world)


def test_a_request_that_is_taken_back_takes_the_seal_off() -> None:
    world = a_world()
    world.remove(P2)
    while not world.waiting(fx.DescribeReplicas):
        world.answer(world.pending.pop(0))
    world.asked.removed.clear()
    world.asked_seen()
    world.settle()
    assert partitions(world) == [0, 1, 2]
    is_whole(world)


def test_a_leader_that_never_says_whether_it_is_empty_ends_in_a_refusal() -> None:
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


def test_added_again_it_is_another_incarnation() -> None:
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


def test_a_partition_removed_and_added_while_a_broker_was_away_never_meets_its_old_data() -> None:
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


def test_adding_waits_for_nothing_but_is_refused_while_partitions_are_being_removed() -> None:
    world = a_world()
    world.remove(P2)
    world.add({P3: (3,)})
    world.settle()
    assert codes(world) == [ErrorCode.INVALID_REQUEST]
    assert partitions(world) == [0, 1]
    is_whole(world)


# -- trouble -------------------------------------------------------------------------------------------------------


def _adds(world: World) -> None:
    world.add({P3: (3, 4), P4: (4, 0)})


def _removes(world: World) -> None:
    world.remove(P1, P2)


def _is_refused(world: World) -> None:
    holds_records(world, P1)
    world.remove(P1, P2)


@pytest.mark.parametrize(("ask", "end"), [(_adds, 5), (_removes, 1), (_is_refused, 3)])
def test_a_controller_that_dies_at_any_point_leaves_what_the_next_one_ends(
    ask: Callable[[World], None], end: int
) -> None:
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


def test_a_topic_deleted_while_it_loses_partitions_takes_the_request_with_it() -> None:
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


# -- settings ------------------------------------------------------------------------------------------------------


def test_a_higher_min_isr_is_written_and_told() -> None:
    world = a_world(1, m="1")
    world.configure("orders", m="3")
    world.settle()
    assert world.state("orders").min_isr == 3
    assert world.brokers[0].commands[P0].state.min_isr == 3


def test_a_lower_min_isr_empties_the_elr_in_the_same_write() -> None:
    """Rule T3."""
    world = a_world(1, m="3")
    world.leader_writes(P0, 0, 1)
    world.happens(ev.IsrChangesReported((P0,)))
    world.settle()
    assert world.state("orders").elr
    world.configure("orders", m="2")
    world.settle()
    assert (world.state("orders").min_isr, world.state("orders").elr) == (2, ())


def test_a_lower_min_isr_keeps_the_elr_of_a_partition_that_nobody_leads() -> None:
    """Rule T3: with leader -1 it stays, and who is in it may lead."""
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
    assert world.core._ctx.records[P0].policy.min_insync_replicas == 1
    world.settle()
    assert world.state("orders").min_isr == 1
    assert world.state("orders", 1).min_isr == 1
