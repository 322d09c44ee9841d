# SPDX-License-Identifier: Apache-2.0
"""States that come late or once more: a node that was not understood, and one that was deleted and put back by hand."""

from __future__ import annotations

from tidemark.core.controller import events as ev
from tidemark.model import NO_LEADER, BrokerId, LeaderAndIsr, LeaderEpoch, TopicPartition, VersionedState

from tests.unit.core.controller.controller_world import World

HURT = TopicPartition("hurt", 0)


def a_world() -> World:
    world = World()
    for broker in range(3):
        world.register(broker)
    world.make_topic("hurt", (0, 1, 2), m="1")
    return world


def test_replicas_are_told_of_a_state_that_is_understood_at_last_though_nobody_leads() -> None:
    world = a_world()
    hidden = frozenset({HURT})
    brokers, epochs = world.registrations(), dict(world.epochs)
    world.happens(ev.Elected(brokers, epochs, world.topics, {}, frozenset(), unreadable_states=hidden))
    while world.pending:
        world.answer(world.pending.pop(0))
    assert all(HURT not in knows.commands for knows in world.brokers.values())

    world.states[HURT] = VersionedState(LeaderAndIsr(NO_LEADER, LeaderEpoch(7), ()), 0)
    world.passes(10_000)
    world.settle()
    for broker in range(3):
        told = world.brokers[BrokerId(broker)].commands[HURT].state
        assert (told.leader, told.leader_epoch) == (NO_LEADER, 7)


def test_a_state_that_was_deleted_and_put_back_is_led_again_in_a_new_epoch() -> None:
    world = a_world()
    world.elected()
    world.settle()
    world.down(0)
    world.settle()
    before = world.states[HURT]
    assert before.version > 0
    world.states[HURT] = VersionedState(before.state, 0)  # as it was, but ZooKeeper counts from 0 again
    world.up(0)
    world.down(2)
    world.settle()
    after = world.states[HURT]
    assert after.state.leader_epoch > before.state.leader_epoch, "its leader knows a higher version in the old one"
    assert 2 not in after.state.isr_ids
    assert world.core.counts()["partitions"] == 1
