# SPDX-License-Identifier: Apache-2.0
"""Automatic preferred leader election, if too many partitions have other leaders."""

from __future__ import annotations

from tidemark.core.controller import effects as fx
from tidemark.core.controller import events as ev
from tidemark.model import BrokerId, TopicPartition

from tests.unit.core.controller.worlds.controller_world import World

INTERVAL_MS = 300_000


def a_world(partitions: int = 4, *, percent: int = 10, interval_ms: int = INTERVAL_MS) -> World:
    """Partitions that prefer brokers 0 and 1 in turn."""
    world = World(leader_rebalance_interval_ms=interval_ms, leader_imbalance_percent=percent)
    for broker in range(3):
        world.register(broker)
    world.make_topic("orders", *[((0, 1, 2), (1, 2, 0))[index % 2] for index in range(partitions)], m="2")
    world.elected()
    world.asked_seen(resumed=True)
    answers(world)
    return world


def answers(world: World) -> None:
    """Answer the pending effects; the clock does not advance."""
    while world.pending:
        world.answer(world.pending.pop(0))


def is_away_for_a_moment(world: World, broker: int) -> None:
    world.down(broker)
    answers(world)
    world.up(broker)
    answers(world)
    world.catch_up()
    answers(world)


def leaders(world: World) -> list[int]:
    return [int(world.state("orders", index).leader) for index in range(len(world.topics["orders"].partitions))]


def test_after_the_interval_a_returned_broker_leads_its_preferred_partitions() -> None:
    world = a_world()
    is_away_for_a_moment(world, 0)
    assert leaders(world) == [1, 1, 1, 1]
    world.passes(INTERVAL_MS - 1)
    answers(world)
    assert leaders(world) == [1, 1, 1, 1]
    world.passes(INTERVAL_MS)
    answers(world)
    assert leaders(world) == [0, 1, 0, 1]


def test_an_interval_of_zero_leaves_leaders_where_they_are() -> None:
    world = a_world(interval_ms=0)
    is_away_for_a_moment(world, 0)
    world.settle()
    assert leaders(world) == [1, 1, 1, 1]


def test_leaders_are_moved_only_above_the_threshold() -> None:
    for percent, expected in ((50, [1, 1, 0, 1]), (49, [0, 1, 0, 1])):
        world = a_world(percent=percent)
        world.passes(INTERVAL_MS)
        first, epoch = TopicPartition("orders", 0), world.epochs[BrokerId(0)].broker_epoch
        world.happens(ev.LeadershipResigned(BrokerId(0), epoch, first, world.state("orders").leader_epoch))
        answers(world)
        assert leaders(world) == [1, 1, 0, 1]
        world.passes(INTERVAL_MS)
        answers(world)
        assert leaders(world) == expected, f"{percent} percent"


def test_a_preferred_replica_that_is_not_in_sync_is_not_elected() -> None:
    world = a_world()
    world.down(0)
    answers(world)
    world.up(0)
    answers(world)
    world.settle()
    assert leaders(world) == [1, 1, 1, 1]


def test_a_replica_that_caught_up_since_the_last_check_leads_after_the_next() -> None:
    """No leader was elected in between, but the check skipped the replica."""
    world = a_world()
    world.down(0)
    answers(world)
    world.up(0)
    answers(world)
    world.passes(INTERVAL_MS)
    answers(world)
    world.passes(INTERVAL_MS)
    answers(world)
    world.catch_up()
    answers(world)
    world.passes(INTERVAL_MS)
    answers(world)
    assert leaders(world) == [0, 1, 0, 1]


def test_a_replica_offline_at_one_check_leads_after_the_next_once_online() -> None:
    world = a_world()
    world.down(0)
    answers(world)
    for _ in range(3):
        world.passes(INTERVAL_MS)
        answers(world)
    world.up(0)
    answers(world)
    world.catch_up()
    answers(world)
    world.passes(INTERVAL_MS)
    answers(world)
    assert leaders(world) == [0, 1, 0, 1]


def test_a_broker_in_controlled_shutdown_is_not_elected() -> None:
    world = a_world()
    is_away_for_a_moment(world, 0)
    world.happens(ev.ControlledShutdownRequested(BrokerId(0), world.epochs[BrokerId(0)].broker_epoch))
    answers(world)
    world.passes(INTERVAL_MS)
    world.passes(INTERVAL_MS)
    answers(world)
    assert leaders(world) == [1, 1, 1, 1]


def test_when_all_is_balanced_nothing_is_written() -> None:
    world = a_world()
    for _ in range(3):
        world.passes(INTERVAL_MS)
        assert not world.waiting(fx.WriteStates)


def test_after_a_reassignment_the_new_preferred_replica_leads() -> None:
    world = a_world(2)
    world.move(TopicPartition("orders", 0), 2, 1, 0)
    answers(world)
    assert leaders(world)[0] == 0
    for _ in range(2):
        world.passes(INTERVAL_MS)
        answers(world)
    assert leaders(world)[0] == 2


def test_a_deleted_topic_is_not_rebalanced() -> None:
    world = a_world()
    is_away_for_a_moment(world, 0)
    world.passes(INTERVAL_MS)
    world.delete("orders")
    world.settle()
    assert not world.states
