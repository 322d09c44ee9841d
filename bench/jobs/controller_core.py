# SPDX-License-Identifier: Apache-2.0
"""The controller's core alone: 200,000 partitions with three replicas on 100 brokers, and one broker fails.

A separate program, so that its memory is that of the core and its state. Prints seconds (median of ROUNDS failures,
from the event until every write was returned) and resident MB.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterable

from tidemark.core.config import ControllerConfig
from tidemark.core.controller.controller import ControllerCore
from tidemark.core.controller.effects import ControllerEffect, SendLeaderAndIsr, WriteStates
from tidemark.core.controller.events import (
    BrokersChanged,
    BrokerTrusted,
    ControlAnswered,
    ControllerEvent,
    Elected,
    MoreToDo,
    StatesWritten,
)
from tidemark.core.controller.partition_state import TopicPolicy
from tidemark.core.planning.placement import assign_replicas
from tidemark.model import (
    BrokerEpoch,
    BrokerEpochRecord,
    BrokerId,
    BrokerRegistration,
    ControllerEpoch,
    IsrEntry,
    LeaderAndIsr,
    LeaderEpoch,
    TopicDescription,
    TopicPartition,
    VersionedState,
)

from bench.measuring.watching import usage

BROKERS = 100
TOPICS = 200
TOPIC_PARTITIONS = 1000
REPLICATION_FACTOR = 3
ROUNDS = 5


class World:
    """The state of ZooKeeper, and brokers that answer commands immediately.

    The brokers do not answer UpdateMetadata: one process cannot hold the metadata of a hundred brokers.
    """

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.brokers = {
            BrokerId(broker): BrokerRegistration(BrokerId(broker), f"broker-{broker}", 9192, BrokerEpoch(1))
            for broker in range(BROKERS)
        }
        self.epochs = {broker: BrokerEpochRecord(BrokerEpoch(1)) for broker in self.brokers}
        config = ControllerConfig(BrokerId(100), ControllerEpoch(1), "bench")
        self.core = ControllerCore(config, lambda configs: TopicPolicy(2, unclean_allowed=False))
        placed = assign_replicas(
            dict.fromkeys(self.brokers, ""), partitions=TOPIC_PARTITIONS, replication_factor=REPLICATION_FACTOR
        )
        topics = {}
        states = {}
        for number in range(TOPICS):
            name = f"topic-{number}"
            incarnations = {index: f"{number:016x}{index:016x}" for index in range(TOPIC_PARTITIONS)}
            topics[name] = TopicDescription(name, f"{number:032x}", dict(enumerate(placed)), incarnations)
            for index, replicas in enumerate(placed):
                isr = tuple(IsrEntry(broker, BrokerEpoch(1)) for broker in replicas)
                state = LeaderAndIsr(replicas[0], LeaderEpoch(1), isr, min_isr=2, controller_epoch=ControllerEpoch(1))
                states[TopicPartition(name, index)] = VersionedState(state, 1)
        self.settle(self.handle(Elected(self.brokers, self.epochs, topics, states, frozenset())))
        for broker in self.brokers:  # an inherited broker is elected after its first answer
            self.settle(self.handle(BrokerTrusted(broker, BrokerEpoch(1))))

    def settle(self, effects: Iterable[ControllerEffect]) -> int:
        """Answer effects until there are none; returns the number of written states."""
        written = 0
        waiting = list(effects)
        while waiting:
            answers = [answer for effect in waiting if (answer := _answer(effect)) is not None]
            written += sum(len(effect.changes) for effect in waiting if isinstance(effect, WriteStates))
            waiting = [effect for answer in answers for effect in self.handle(answer)]
        return written

    def handle(self, event: ControllerEvent) -> list[ControllerEffect]:
        """Run all turns of the work without a pause."""
        effects = self.core.handle(event, self.now_ms)
        while self.core.has_more:
            effects = [*effects, *self.core.handle(MoreToDo(), self.now_ms)]
        return effects

    def fail(self, broker: BrokerId) -> float:
        """Seconds to decide; afterwards the broker is back with another broker epoch."""
        others = {one: registration for one, registration in self.brokers.items() if one != broker}
        began_s = time.perf_counter()
        effects = self.handle(BrokersChanged(others, self.epochs))
        took_s = time.perf_counter() - began_s
        written = self.settle(effects)
        expected = TOPICS * TOPIC_PARTITIONS * REPLICATION_FACTOR // BROKERS
        if written != expected:
            raise RuntimeError(f"{written} states were written, not {expected}")
        return took_s


def _answer(effect: ControllerEffect) -> StatesWritten | ControlAnswered | None:
    if isinstance(effect, WriteStates):
        return StatesWritten({change.partition: change.expected_version + 1 for change in effect.changes}, ())
    if isinstance(effect, SendLeaderAndIsr):
        return ControlAnswered(effect.broker, effect.request_id, None)
    return None


def main() -> int:
    world = World()
    # Distant brokers, no two of which share a partition.
    times_s = []
    for number in range(ROUNDS):
        failing = BrokerId(number * BROKERS // ROUNDS)
        times_s.append(world.fail(failing))
        world.settle(world.handle(BrokersChanged(world.brokers, world.epochs)))
    print(statistics.median(times_s), usage(os.getpid()).rss_mb)
    return 0


if __name__ == "__main__":
    sys.exit(main())
