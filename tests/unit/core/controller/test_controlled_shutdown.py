# SPDX-License-Identifier: Apache-2.0
"""Controlled shutdown: a broker that wants to go is let go once nobody needs it."""

from __future__ import annotations

from tidemark.core.controller import effects as fx
from tidemark.core.controller import events as ev
from tidemark.model import BrokerEpoch, BrokerId, TopicPartition

from tests.unit.core.controller.controller_world import World


def a_world(*assignments: tuple[int, ...], m: int = 2) -> World:
    world = World()
    for broker in range(4):
        world.register(broker)
    world.make_topic("orders", *assignments, m=str(m))
    world.elected()
    world.asked_seen(resumed=True)
    world.settle()
    return world


def wants_to_go(world: World, broker: int) -> None:
    epoch = world.brokers[BrokerId(broker)].registration.broker_epoch
    world.happens(ev.ControlledShutdownRequested(BrokerId(broker), epoch))


def isr(world: World, index: int = 0) -> set[int]:
    return set(world.state("orders", index).isr_ids)


def test_who_wants_to_go_leads_nothing_and_is_in_no_isr_that_can_do_without_it() -> None:
    world = a_world((0, 1, 2), (1, 2, 0), (2, 0, 1))
    wants_to_go(world, 0)
    world.settle()
    assert [world.state("orders", index).leader for index in range(3)] == [1, 1, 2]
    assert [isr(world, index) for index in range(3)] == [{1, 2}] * 3
    assert world.released == [(0, 0)]
    assert all(world.state("orders", index).min_isr == 2 for index in range(3))


def test_it_is_let_go_only_when_the_new_leaders_have_been_told() -> None:
    world = a_world((0, 1, 2))
    wants_to_go(world, 0)
    while world.pending:
        effect = world.pending.pop(0)
        if isinstance(effect, fx.ReleaseBroker):
            for broker in (1, 2):
                assert world.brokers[BrokerId(broker)].commands[TopicPartition("orders", 0)].state.leader == 1
        world.answer(effect)
    assert world.released == [(0, 0)]


def test_a_new_leader_that_does_not_answer_is_waited_for() -> None:
    world = a_world((0, 1, 2))
    wants_to_go(world, 0)
    for _ in range(20):
        for effect in list(world.pending):
            world.pending.remove(effect)
            if isinstance(effect, fx.SendLeaderAndIsr) and effect.broker == 1:
                world.fail(effect)
            else:
                world.answer(effect)
        world.passes(500)
    assert not world.released
    world.settle()
    assert world.released == [(0, 0)]


def test_an_isr_that_would_fall_below_m_keeps_it_and_it_is_let_go_all_the_same() -> None:
    world = a_world((0, 1, 2), m=3)
    wants_to_go(world, 0)
    world.settle()
    assert world.state("orders").leader == 1
    assert isr(world) == {0, 1, 2}
    assert world.released == [(0, 0)]


def test_the_only_replica_goes_on_leading_until_it_goes() -> None:
    world = a_world((0,), (0, 1), m=1)
    wants_to_go(world, 0)
    world.settle()
    assert world.state("orders", 0).leader == 0
    assert world.state("orders", 1).leader == 1
    assert world.released == [(0, 0)]
    world.down(0)
    world.settle()
    world.up(0)
    world.settle()
    assert world.state("orders", 0).leader == 0
    assert world.state("orders", 0).lineage == 0


def test_nobody_takes_it_in_again_while_it_is_there() -> None:
    world = a_world((0, 1, 2))
    wants_to_go(world, 0)
    world.settle()
    assert world.brokers[BrokerId(1)].suspected == {0}
    assert world.brokers[BrokerId(2)].suspected == {0}


def test_two_that_want_to_go_at_once_leave_the_leadership_to_the_third() -> None:
    world = a_world((0, 1, 2), (1, 2, 0), (2, 0, 1))
    wants_to_go(world, 0)
    wants_to_go(world, 1)
    world.settle()
    assert [world.state("orders", index).leader for index in range(3)] == [2, 2, 2]
    assert sorted(world.released) == [(0, 0), (1, 0)]
    world.down(0, 1)
    world.settle()
    assert [world.state("orders", index).leader for index in range(3)] == [2, 2, 2]
    assert {one.broker_id for one in world.state("orders").elr} <= {0, 1}


def test_all_that_want_to_go_are_let_go_and_the_last_goes_on_leading() -> None:
    world = a_world((0, 1, 2))
    for broker in (0, 1, 2):
        wants_to_go(world, broker)
    world.settle()
    assert sorted(broker for broker, _ in world.released) == [0, 1, 2]
    assert world.state("orders").leader in (0, 1, 2)
    for broker in (0, 1, 2):
        world.down(broker)
        world.settle()
    world.up(0, 1, 2)
    world.settle(catching_up=True)
    assert world.state("orders").leader in (0, 1, 2)
    assert world.state("orders").lineage == 0
    assert isr(world) == {0, 1, 2}


def test_it_hears_again_if_it_still_asks() -> None:
    world = a_world((0, 1, 2))
    wants_to_go(world, 0)
    world.settle()
    wants_to_go(world, 0)
    world.settle()
    assert world.released == [(0, 0), (0, 0)]


def test_one_that_comes_back_is_as_any_other() -> None:
    world = a_world((0, 1, 2))
    wants_to_go(world, 0)
    world.settle()
    world.down(0)
    world.settle()
    world.up(0)
    world.settle(catching_up=True)
    assert isr(world) == {0, 1, 2}
    assert world.brokers[BrokerId(1)].suspected == frozenset()
    world.happens(ev.ControlledShutdownRequested(BrokerId(0), BrokerEpoch(0)))  # late, of its earlier life
    world.settle()
    assert isr(world) == {0, 1, 2}
    assert len(world.released) == 1


def test_one_that_registers_anew_before_it_was_seen_to_go_is_as_any_other() -> None:
    world = a_world((0, 1, 2))
    wants_to_go(world, 0)
    world.settle()
    world.register(0)
    world.brokers_seen()
    world.settle(catching_up=True)
    assert isr(world) == {0, 1, 2}
    assert world.core.suspected == frozenset()


def test_a_new_controller_hears_of_it_by_the_next_heartbeat() -> None:
    world = a_world((0, 1, 2))
    wants_to_go(world, 0)
    world.answer(world.pending.pop(0))
    world.fails_over()
    assert not world.released
    wants_to_go(world, 0)
    world.settle()
    assert world.released == [(0, 0)]
    assert world.state("orders").leader == 1


def test_writes_that_are_lost_hold_it_back_until_they_are_known() -> None:
    world = a_world((0, 1, 2))
    wants_to_go(world, 0)
    world.answer(world.take(fx.WriteStates), lost=True)
    assert not world.waiting(fx.ReleaseBroker)
    world.settle()
    assert world.released == [(0, 0)]
    assert world.state("orders").leader == 1


def test_a_move_to_one_that_goes_waits_and_ends_when_it_is_back() -> None:
    world = a_world((0, 1, 2))
    partition = TopicPartition("orders", 0)
    world.move(partition, 0, 1, 3)
    world.settle()
    wants_to_go(world, 3)
    world.settle()
    assert world.released == [(3, 0)]
    world.down(3)
    world.settle(catching_up=True)
    assert world.topics["orders"].original
    world.up(3)
    world.settle(catching_up=True)
    assert world.topics["orders"].partitions[0] == (0, 1, 3)
    assert isr(world) == {0, 1, 3}


def test_a_move_away_from_one_that_goes_is_settled_on_those_who_stay() -> None:
    world = a_world((0, 1, 2))
    partition = TopicPartition("orders", 0)
    world.move(partition, 3, 1, 2)
    world.settle()
    wants_to_go(world, 0)
    world.settle(catching_up=True)
    assert world.topics["orders"].partitions[0] == (3, 1, 2)
    assert isr(world) == {1, 2, 3}
    assert (0, 0) in world.released
