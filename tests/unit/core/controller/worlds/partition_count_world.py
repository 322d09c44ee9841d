# SPDX-License-Identifier: Apache-2.0
"""A topic that gains and loses partitions in a `World`, and its checks."""

from __future__ import annotations

from tidemark.model import ErrorCode, Offset, TopicPartition

from tests.unit.core.controller.worlds.controller_world import EMPTY, World

P0, P1, P2, P3, P4 = (TopicPartition("orders", index) for index in range(5))


def a_world(count: int = 3, **configs: str) -> World:
    """A topic on brokers 0, 1 and 2, all of which were sent everything."""
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
    """At rest no request or seal is left, and every broker knows the present partitions."""
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
    """Answer this number of effects; False: there were fewer."""
    for _ in range(count):
        if not world.pending:
            world.passes(1000)
        if not world.pending:
            return False
        world.answer(world.pending.pop(0))
    return True
