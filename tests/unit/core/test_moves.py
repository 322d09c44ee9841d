"""Moves of replicas (seed 002, rule M1): the twelve steps, what is refused, going back, and every kind of trouble."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidemark.core import controller_effects as fx
from tidemark.core import controller_events as ev
from tidemark.core.reassignment import ReplicaState, status
from tidemark.model import NO_LEADER, ErrorCode, IsrEntry, Move, Refusal, TidemarkError, TopicPartition, VersionedState

from tests.unit.core.controller_world import World

P = TopicPartition("orders", 0)


def a_world(*replicas: int, m: int = 2, brokers: int = 6, **settings: int) -> World:
    """One partition on these brokers, everybody told, everybody in sync."""
    world = World(**settings)
    for broker in range(brokers):
        world.register(broker)
    world.make_topic("orders", replicas or (1, 2, 3), m=str(m))
    world.elected()
    world.asked_seen(resumed=True)
    world.settle()
    return world


def node(world: World) -> tuple[list[int], list[int], list[int], list[int] | None]:
    """AR, adding, removing, original."""
    topic = world.topics["orders"]
    original = topic.original.get(0)
    adding, removing = topic.adding.get(0, ()), topic.removing.get(0, ())
    return list(topic.partitions[0]), list(adding), list(removing), None if original is None else list(original)


def replica_states(world: World) -> dict[int, str]:
    found = status(world.topics["orders"], 0, world.state("orders"))
    assert found is not None
    return {int(broker): str(state) for broker, state in found.replicas.items()}


def isr(world: World) -> list[int]:
    return sorted(world.state("orders").isr_ids)


def goes_on_to(world: World, kind: type) -> fx.ControllerEffect:
    """Answer what comes before the first effect of this kind, and give it, unanswered."""
    for _ in range(200):
        for effect in world.pending:
            if isinstance(effect, kind):
                world.pending.remove(effect)
                return effect
        if world.pending:
            world.answer(world.pending.pop(0))
        else:
            world.passes(1000)
    raise AssertionError(f"no {kind.__name__} comes")


def copies(world: World) -> None:
    """Everybody who is assigned catches up, as far as the commands have got."""
    while world.pending and not isinstance(world.pending[0], fx.WriteTopic):
        world.answer(world.pending.pop(0))
    world.catch_up()


# -- the twelve steps --------------------------------------------------------------------------------------------


def test_a_move_goes_through_the_twelve_steps_in_their_order() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 5, 3)
    step_1 = goes_on_to(world, fx.WriteTopic)
    assert node(world) == ([1, 2, 3], [], [], None)
    world.answer(step_1)
    assert node(world) == ([4, 5, 3, 1, 2], [4, 5], [1, 2], [1, 2, 3])
    world.settle()  # 2: everybody is told
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
    assert not world.waiting(fx.SendStopReplica)  # the new leader has not been told
    assert replica_states(world) == {4: "online", 5: "online", 3: "online", 1: "offline", 2: "offline"}
    stop = goes_on_to(world, fx.SendStopReplica)  # 8, 9
    assert world.brokers[4].commands[P].assigned_replicas == (4, 5, 3)
    assert not world.waiting(fx.WriteTopic)
    world.answer(stop)
    step_10 = goes_on_to(world, fx.WriteTopic)
    assert P in world.brokers[1].stopped
    assert P in world.brokers[2].stopped
    assert not world.waiting(fx.FinishMoves)
    world.answer(step_10)
    assert node(world) == ([4, 5, 3], [], [], None)
    assert P in world.asked.moves
    world.answer(goes_on_to(world, fx.FinishMoves))  # 11
    assert not world.asked.moves
    world.settle()  # 12
    _is_whole(world)
    assert not world.asked.refusals


def test_a_leader_that_stays_is_told_in_a_new_epoch_so_that_nobody_else_can_come_back() -> None:
    """Seed 002's step 7. In the old epoch a leader that had not been told yet could take 3 in after the write."""
    world = a_world(1, 2, 3)
    before = world.state("orders").leader_epoch
    world.move(P, 1, 2, 4)
    world.settle(catching_up=True)
    assert world.state("orders").leader == 1
    assert world.state("orders").leader_epoch > before
    assert isr(world) == [1, 2, 4]


def test_nothing_to_do_ends_at_once() -> None:
    world = a_world(1, 2, 3)
    before = dict(world.states), dict(world.topics)
    world.move(P, 1, 2, 3)
    world.settle()
    assert (dict(world.states), dict(world.topics)) == before
    assert not world.asked.moves
    assert not world.asked.refusals


def test_another_order_changes_the_list_and_moves_nobody() -> None:
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
    assert world.state("orders").min_isr == 1, "during the move it is that of the original replicas"
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


def test_settling_with_a_lower_min_isr_forgets_who_was_eligible() -> None:
    """Rule T3: there is a leader, and as many in sync as now are enough."""
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


def test_settings_changed_during_a_move_count_by_the_original_then_by_the_target() -> None:
    world = a_world(1, 2, m=2)
    world.move(P, 1, 2, 3)
    world.settle()
    world.configure("orders", m="3")
    world.settle()
    assert world.state("orders").min_isr == 2
    world.settle(catching_up=True)
    assert world.state("orders").min_isr == 3


# -- going back ---------------------------------------------------------------------------------------------------


def test_cancelled_before_its_turn_came_nothing_was_ever_changed() -> None:
    world = a_world(1, 2, 3, moves_per_broker_max=0)
    before = dict(world.topics)
    world.move(P, 4, 5, 6 - 1)
    world.asked.refusals.clear()
    world.move(P, 4, 5, 3)
    world.cancel(P)
    world.settle()
    assert dict(world.topics) == before
    assert not world.asked.moves


def test_cancelled_while_it_copies_the_original_list_comes_back_in_its_order() -> None:
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


def test_cancelled_when_some_have_caught_up_they_are_dropped_and_stopped() -> None:
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


def test_cancelled_after_the_settling_it_comes_too_late_and_ends_at_the_target() -> None:
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


def test_whenever_it_is_cancelled_it_ends_with_the_old_list_or_with_the_new_one() -> None:
    ends = set()
    for cut in range(60):
        world = a_world(3, 1, 2)
        world.move(P, 4, 5, 1, throttle_bytes_per_s=1000)
        if not _answers(world, cut) or P not in world.asked.moves:
            break
        world.cancel(P)
        world.settle(catching_up=True)
        assert node(world) in (([3, 1, 2], [], [], None), ([4, 5, 1], [], [], None)), f"after {cut} answers"
        _is_whole(world)
        ends.add(node(world)[0][0])
    assert ends == {3, 4}


def test_going_back_does_not_drop_the_only_replica_that_is_in_sync() -> None:
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


# -- trouble ------------------------------------------------------------------------------------------------------


def _answers(world: World, count: int) -> bool:
    """Answer so many effects, everybody catching up in between; False: there were not so many."""
    for _ in range(count):
        if not world.pending:
            world.catch_up()
        if not world.pending:
            world.passes(1000)
        if not world.pending:
            return False
        world.answer(world.pending.pop(0))
    return True


def _is_whole(world: World) -> None:
    """At rest nothing of a move is left, and exactly those assigned are in sync and hold a replica."""
    assigned = world.topics["orders"].partitions[0]
    assert node(world)[1:] == ([], [], None)
    assert not world.asked.moves
    assert isr(world) == sorted(assigned)
    for broker, knows in world.brokers.items():
        told = knows.commands.get(P)
        assert (told is not None) == (broker in assigned), f"broker {broker}"
        if told is not None:
            assert told.assigned_replicas == assigned
            assert not told.throttle_bytes_per_s
        assert knows.view.topics["orders"].partitions[0].assigned_replicas == assigned


@pytest.mark.parametrize("target", [(4, 5, 3), (3, 2, 1), (2,), (1, 2, 3, 4), (1, 4)])
def test_a_controller_that_dies_at_any_point_leaves_a_move_that_the_next_one_ends(target: tuple[int, ...]) -> None:
    for carried_out in (True, False):
        for cut in range(100):
            world = a_world(1, 2, 3)
            world.move(P, *target, throttle_bytes_per_s=1000)
            if not _answers(world, cut):
                break
            if world.pending and carried_out:
                world.answer(world.pending.pop(0), lost=not isinstance(world.pending[:1], fx.ReadStates))
            world.fails_over()
            world.settle(catching_up=True)
            assert node(world) == (list(target), [], [], None), f"after {cut} answers"
            _is_whole(world)
            assert not world.asked.refusals
        assert cut > 5


@pytest.mark.parametrize("cancelled_after", range(0, 16, 3))
def test_a_controller_that_dies_while_a_move_goes_back_leaves_old_or_new(cancelled_after: int) -> None:
    for cut in range(60):
        world = a_world(1, 2, 3)
        world.move(P, 4, 5, 3)
        _answers(world, cancelled_after)
        if P not in world.asked.moves:
            return
        world.cancel(P)
        if not _answers(world, cut):
            break
        world.fails_over()
        world.settle(catching_up=True)
        assert node(world) in (([1, 2, 3], [], [], None), ([4, 5, 3], [], [], None)), f"after {cut} answers"
        _is_whole(world)


def test_every_answer_may_be_lost() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 5, 3, throttle_bytes_per_s=1000)
    lost = set()
    for _ in range(400):
        world.catch_up()
        if not world.pending:
            world.passes(1000)
            if not world.pending:
                break
        effect = world.pending.pop(0)
        key = (type(effect).__name__, len(lost))
        world.answer(
            effect, lost=not isinstance(effect, fx.ReadStates) and world.now_ms % 2000 == 0 and key not in lost
        )
        lost.add(key)
        world.passes(1000)
    world.settle(catching_up=True)
    assert node(world) == ([4, 5, 3], [], [], None)
    _is_whole(world)


def test_each_kind_of_answer_may_be_lost_once() -> None:
    for kind in (
        fx.WriteTopic,
        fx.WriteStates,
        fx.FinishMoves,
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
            _is_whole(world)


def test_a_target_that_dies_while_it_copies_holds_the_move_until_it_is_back() -> None:
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
    _is_whole(world)


def test_a_target_that_dies_while_it_copies_does_not_keep_people_from_going_back() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 5, 3)
    world.settle()
    world.down(5)
    world.settle(catching_up=True)
    world.cancel(P)
    world.settle(catching_up=True)
    assert node(world) == ([1, 2, 3], [], [], None)
    assert isr(world) == [1, 2, 3]


def test_a_target_that_dies_before_its_turn_waits_in_the_queue_until_it_is_back() -> None:
    world = a_world(1, 2, 3, moves_per_broker_max=1)
    world.make_topic("more", (1, 2, 3))
    world.topics_seen()
    world.settle()
    world.move(P, 4, 2, 3)
    other = TopicPartition("more", 0)
    world.move(other, 5, 2, 3)  # broker 1 gives out for one of them at a time
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


def test_a_leader_that_dies_is_followed_by_one_in_sync_and_the_move_goes_on() -> None:
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
    _is_whole(world)


def test_a_removed_broker_that_bounces_after_the_settling_is_not_waited_for_and_keeps_nothing() -> None:
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
    _is_whole(world)


def test_all_of_the_target_die_after_the_settling_and_nobody_removed_comes_back_in() -> None:
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
    _is_whole(world)


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("replicas", "fields", "code"),
    [
        ((), {}, ErrorCode.EMPTY_REPLICAS),
        ((4, 4), {}, ErrorCode.DUPLICATE_REPLICA),
        ((4, 99), {}, ErrorCode.BROKER_NOT_AVAILABLE),
        ((4, 5), {"log_dirs": ("any",)}, ErrorCode.LOG_DIRS_MISMATCH),
        ((4,), {"log_dirs": ("/data",)}, ErrorCode.LOG_DIR_NOT_FOUND),
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
def test_a_move_of_what_is_not_there_is_refused_once(partition: TopicPartition, code: ErrorCode) -> None:
    world = a_world(1, 2, 3)
    world.move(partition, 4)
    world.settle()
    assert [one.error.code for one in world.asked.refusals] == [code]
    assert not world.asked.moves


def test_what_cannot_be_understood_is_removed_and_said_why() -> None:
    world = a_world(1, 2, 3)
    world.asked.malformed.append(
        Refusal("reassign", None, TidemarkError(ErrorCode.UNSUPPORTED_VERSION, "it is of version 3"))
    )
    world.move(P, 4, 2, 3)
    world.settle(catching_up=True)
    assert not world.asked.malformed
    assert [one.error.code for one in world.asked.refusals] == [ErrorCode.UNSUPPORTED_VERSION]
    assert node(world) == ([4, 2, 3], [], [], None), "the rest of the node counts"


def test_another_target_for_what_is_being_moved_is_refused_and_the_move_goes_on() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 5, 3)
    world.settle()
    world.move(P, 2, 1)  # by hand, over the entry
    world.settle()
    assert [one.error.code for one in world.asked.refusals] == [ErrorCode.REASSIGNMENT_IN_PROGRESS]
    world.settle(catching_up=True)
    assert node(world) == ([4, 5, 3], [], [], None)
    _is_whole(world)


def test_an_entry_that_somebody_deletes_does_not_stop_what_has_begun() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 5, 3, throttle_bytes_per_s=1000)
    world.settle()
    del world.asked.moves[P]
    world.asked_seen()
    world.settle(catching_up=True)
    assert node(world) == ([4, 5, 3], [], [], None)
    _is_whole(world)


def test_an_entry_that_somebody_deletes_before_its_turn_is_forgotten() -> None:
    world = a_world(1, 2, 3, moves_per_broker_max=0)
    world.move(P, 4, 5, 3)
    world.settle()
    del world.asked.moves[P]
    world.asked_seen()
    world.settle(catching_up=True)
    assert node(world) == ([1, 2, 3], [], [], None)


def test_one_moved_back_right_after_its_end_moves_once_more() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 2, 3)
    world.settle(catching_up=True)
    world.move(P, 1, 2, 3)
    world.settle(catching_up=True)
    assert node(world) == ([1, 2, 3], [], [], None)
    _is_whole(world)


def test_the_same_asked_again_before_the_first_is_out_of_the_node_ends_too() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 2, 3)
    for _ in range(200):
        if world.waiting(fx.FinishMoves):
            break
        if world.pending:
            world.answer(world.pending.pop(0))
        else:
            world.catch_up()
    world.asked_seen()
    world.settle(catching_up=True)
    assert not world.asked.moves
    assert not world.asked.refusals


# -- topics that go ------------------------------------------------------------------------------------------------


def test_a_topic_that_is_deleted_while_it_is_moved_takes_the_move_with_it() -> None:
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


@pytest.mark.parametrize("answers", range(0, 40, 3))
def test_a_topic_may_be_deleted_at_any_point_of_a_move(answers: int) -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 5, 3)
    _answers(world, answers)
    world.delete("orders")
    world.settle()
    assert not world.topics
    assert not world.asked.moves
    assert not world.states
    assert all(P not in knows.commands for knows in world.brokers.values())


def test_a_topic_that_is_made_anew_is_not_moved_by_what_was_asked_of_the_old_one() -> None:
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


# -- many moves, throttles -----------------------------------------------------------------------------------------


def test_only_so_many_moves_at_a_time_use_a_broker_and_all_end() -> None:
    world = World(moves_per_broker_max=2)
    for broker in range(6):
        world.register(broker)
    world.make_topic("many", *[(0, 1)] * 12, m="1")
    world.elected()
    world.asked_seen(resumed=True)
    world.settle()
    for index in range(12):
        partition = TopicPartition("many", index)
        world.asked.moves[partition] = Move(partition, (2 + index % 4, 1))  # type: ignore[arg-type]
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


def test_a_throttle_is_told_changed_and_gone_with_its_move() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 2, 3, throttle_bytes_per_s=1000)
    world.settle()
    assert {world.brokers[one].commands[P].throttle_bytes_per_s for one in (1, 2, 3, 4)} == {1000}
    world.move(P, 4, 2, 3, throttle_bytes_per_s=5000)
    world.settle()
    assert {world.brokers[one].commands[P].throttle_bytes_per_s for one in (1, 2, 3, 4)} == {5000}
    world.settle(catching_up=True)
    assert {world.brokers[one].commands[P].throttle_bytes_per_s for one in (2, 3, 4)} == {0}
    _is_whole(world)


def test_a_throttle_goes_when_its_move_is_cancelled() -> None:
    world = a_world(1, 2, 3)
    world.move(P, 4, 2, 3, throttle_bytes_per_s=1000)
    world.settle()
    world.cancel(P)
    world.settle(catching_up=True)
    assert {world.brokers[one].commands[P].throttle_bytes_per_s for one in (1, 2, 3)} == {0}
    _is_whole(world)


def test_a_node_in_which_the_isr_holds_somebody_not_assigned_is_put_right_before_anybody_is_stopped() -> None:
    """Whatever brought it about: nobody's log is deleted while leaders count on it."""
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
    _is_whole(world)
