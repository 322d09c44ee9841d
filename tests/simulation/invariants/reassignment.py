# SPDX-License-Identifier: Apache-2.0
"""Conditions of reassignments and moves, at peace above all (rules M1, M2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.model import TopicPartition

from tests.simulation.invariants.moment import Moment
from tests.simulation.invariants.replication import Invariant

if TYPE_CHECKING:
    from tests.simulation.world import World


class ReplicaSet(Invariant):
    """The replicas of a partition are the old or the requested ones; during a reassignment both (rule M1)."""

    name = "REPLICA-SET"

    def __init__(self) -> None:
        self._looked_at = -1

    def check(self, world: World, moment: Moment) -> None:
        topic = world.topic()
        if self._looked_at == topic.version:
            return
        self._looked_at = topic.version
        self.require(sorted(topic.partitions) == list(range(len(topic.partitions))), f"a hole in {topic}")
        for index, assigned in topic.partitions.items():
            asked = world.asked_lists[TopicPartition(topic.topic, index)]
            removing = topic.removing.get(index, ())
            target = tuple(broker for broker in assigned if broker not in removing)
            original = topic.original.get(index, target)
            self.require(target in asked and original in asked, f"{topic.topic}-{index} has {assigned}: {topic}")
            self.require(index in topic.original or not removing, f"a move without its original: {topic}")

    def at_the_end(self, world: World) -> None:
        topic = world.topic()
        self.require(not topic.original, f"the reassignment never ends: {topic}")
        for broker, machine in world.machines.items():
            here = {one for one, assigned in topic.partitions.items() if broker in assigned}
            held = {one.partition for one in machine.logs if one.topic == topic.topic}
            self.require(held == here, f"broker {broker} holds {held} of {topic.partitions}")


class ThrottleGone(Invariant):
    """At peace nothing is throttled (rule M2)."""

    name = "THROTTLE-GONE"

    def at_the_end(self, world: World) -> None:
        for process in world.brokers.values():
            throttles = process.throttles()
            self.require(not throttles, f"broker {process.broker_id} has {throttles}, in bytes a second")


class Led(Invariant):
    """At peace a live replica that is in sync leads every partition, if any replica is eligible."""

    name = "LED"

    def at_the_end(self, world: World) -> None:
        topic = world.topic()
        for index, assigned in topic.partitions.items():
            partition = TopicPartition(topic.topic, index)
            found = world.state(partition)
            leader = None if found is None else found.state.leader
            led = leader in assigned and leader in world.brokers
            self.require(led or world.waits_for_people(partition), f"{partition} of {assigned}: {found}")
