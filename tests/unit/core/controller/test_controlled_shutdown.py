# SPDX-License-Identifier: Apache-2.0
"""Controlled shutdown: a broker is released once other replicas lead its partitions."""

from __future__ import annotations

from tidemark.core.controller import effects as fx
from tidemark.core.controller import events as ev
from tidemark.model import BrokerEpoch, BrokerId, TopicPartition

from tests.unit.core.controller.worlds.controller_world import World


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


def test_controlled_shutdown_moves_leadership_and_leaves_isrs_that_keep_min_isr() -> None:
    world = a_world((0, 1, 2), (1, 2, 0), (2, 0, 1))
    wants_to_go(world, 0)
    world.settle()
    assert [world.state("orders", index).leader for index in range(3)] == [1, 1, 2]
    assert [isr(world, index) for index in range(3)] == [{1, 2}] * 3
    assert world.released == [(0, 0)]
    assert all(world.state("orders", index).min_isr == 2 for index in range(3))


def test_a_broker_is_released_after_the_new_leaders_acknowledged() -> None:
    world = a_world((0, 1, 2))
    wants_to_go(world, 0)
    while world.pending:
        effect = world.pending.pop(0)
        if isinstance(effect, fx.ReleaseBroker):
            for broker in (1, 2):
                assert world.brokers[BrokerId(broker)].commands[TopicPartition("orders", 0)].state.leader == 1
        world.answer(effect)
    assert world.released == [(0, 0)]


def test_release_waits_for_an_unresponsive_new_leader() -> None:
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


def test_a_broker_needed_for_min_isr_stays_in_the_isr_and_is_released() -> None:
    world = a_world((0, 1, 2), m=3)
    wants_to_go(world, 0)
    world.settle()
    assert world.state("orders").leader == 1
    assert isr(world) == {0, 1, 2}
    assert world.released == [(0, 0)]


def test_a_single_replica_leads_until_its_broker_stops() -> None:
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


def test_no_leader_adds_a_broker_in_controlled_shutdown_to_its_isr() -> None:
    world = a_world((0, 1, 2))
    wants_to_go(world, 0)
    world.settle()
    assert world.brokers[BrokerId(1)].suspected == {0}
    assert world.brokers[BrokerId(2)].suspected == {0}


def test_two_brokers_in_controlled_shutdown_leave_leadership_to_the_third() -> None:
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


def test_all_brokers_in_controlled_shutdown_are_released_and_the_last_still_leads() -> None:
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


def test_a_repeated_request_gets_a_repeated_release() -> None:
    world = a_world((0, 1, 2))
    wants_to_go(world, 0)
    world.settle()
    wants_to_go(world, 0)
    world.settle()
    assert world.released == [(0, 0), (0, 0)]


def test_a_broker_that_registers_again_can_lead_again() -> None:
    world = a_world((0, 1, 2))
    wants_to_go(world, 0)
    world.settle()
    world.down(0)
    world.settle()
    world.up(0)
    world.settle(catching_up=True)
    assert isr(world) == {0, 1, 2}
    assert world.brokers[BrokerId(1)].suspected == frozenset()
    world.happens(ev.ControlledShutdownRequested(BrokerId(0), BrokerEpoch(0)))  # late, of its earlier registration
    world.settle()
    assert isr(world) == {0, 1, 2}
    assert len(world.released) == 1


def test_a_broker_that_registers_again_before_its_session_ended_can_lead_again() -> None:
    world = a_world((0, 1, 2))
    wants_to_go(world, 0)
    world.settle()
    world.register(0)
    world.brokers_seen()
    world.settle(catching_up=True)
    assert isr(world) == {0, 1, 2}
    assert world.core.suspected == frozenset()


def test_a_new_controller_learns_of_the_shutdown_by_the_next_heartbeat() -> None:
    world = a_world((0, 1, 2))
    wants_to_go(world, 0)
    world.answer(world.pending.pop(0))
    world.fails_over()
    assert not world.released
    wants_to_go(world, 0)
    world.settle()
    assert world.released == [(0, 0)]
    assert world.state("orders").leader == 1


def test_release_waits_for_writes_with_an_unknown_outcome() -> None:
    world = a_world((0, 1, 2))
    wants_to_go(world, 0)
    world.answer(world.take(fx.WriteStates), lost=True)
    assert not world.waiting(fx.ReleaseBroker)
    world.settle()
    assert world.released == [(0, 0)]
    assert world.state("orders").leader == 1


def test_a_reassignment_to_a_broker_in_controlled_shutdown_waits_for_its_return() -> None:
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


def test_a_reassignment_away_from_a_broker_in_controlled_shutdown_completes() -> None:
    world = a_world((0, 1, 2))
    partition = TopicPartition("orders", 0)
    world.move(partition, 3, 1, 2)
    world.settle()
    wants_to_go(world, 0)
    world.settle(catching_up=True)
    assert world.topics["orders"].partitions[0] == (3, 1, 2)
    assert isr(world) == {1, 2, 3}
    assert (0, 0) in world.released
