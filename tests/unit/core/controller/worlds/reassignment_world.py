# SPDX-License-Identifier: Apache-2.0
"""One partition that is reassigned in a `World`, and its checks."""

from __future__ import annotations

from tidemark.core.controller import effects as fx
from tidemark.core.reassignment.status import status
from tidemark.model import TopicPartition

from tests.unit.core.controller.worlds.controller_world import World

P = TopicPartition("orders", 0)


def a_world(*replicas: int, m: int = 2, brokers: int = 6, **settings: int) -> World:
    """One partition on these brokers, all of which were sent everything and are in sync."""
    world = World(**settings)
    for broker in range(brokers):
        world.register(broker)
    world.make_topic("orders", replicas or (1, 2, 3), m=str(m))
    world.elected()
    world.asked_seen(resumed=True)
    world.settle()
    return world


def node(world: World) -> tuple[list[int], list[int], list[int], list[int] | None]:
    """AR, adding, removing and original replicas in the topic's node."""
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
    """Answer the effects before the first effect of this kind; return that effect without an answer."""
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


def answers(world: World, count: int) -> bool:
    """Answer this many effects, with replicas catching up in between; False: there were fewer."""
    for _ in range(count):
        if not world.pending:
            world.catch_up()
        if not world.pending:
            world.passes(1000)
        if not world.pending:
            return False
        world.answer(world.pending.pop(0))
    return True


def is_whole(world: World) -> None:
    """At rest no part of a reassignment is left, and exactly the assigned brokers are in sync and hold a replica."""
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
