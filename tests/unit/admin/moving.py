# SPDX-License-Identifier: Apache-2.0
"""A fake ZooKeeper with brokers and topics; tests of the admin service write what a controller would write."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from tidemark.admin.replica_sizes import OnBrokers
from tidemark.model import (
    BrokerEpoch,
    BrokerId,
    BrokerRegistration,
    IsrEntry,
    LeaderAndIsr,
    LeaderEpoch,
    Offset,
    ReplicaIdentity,
    TopicDescription,
    TopicPartition,
)
from tidemark.ports import ControllerTerm, StateWrite
from tidemark.rpc.log_dirs import ReplicaOnDisk

from tests.fakes.metadata_store import FakeMetadataStore, FakeZooKeeper


def ids(*brokers: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(broker) for broker in brokers)


class Sizes:
    """The sizes that live brokers report."""

    def __init__(self) -> None:
        self.of_replicas: dict[tuple[int, TopicPartition], tuple[int, float]] = {}

    def say(self, broker: int, partition: TopicPartition, size_bytes: int, bytes_in_per_s: float = 0.0) -> None:
        self.of_replicas[broker, partition] = (size_bytes, bytes_in_per_s)

    async def of(
        self, partitions: Collection[TopicPartition], brokers: Mapping[BrokerId, BrokerRegistration]
    ) -> OnBrokers:
        return {
            broker: {
                partition: _replica(partition, *said)
                for (on, partition), said in self.of_replicas.items()
                if on == broker and partition in partitions
            }
            for broker in brokers
        }


def _replica(partition: TopicPartition, size_bytes: int, bytes_in_per_s: float) -> ReplicaOnDisk:
    zero = Offset(0)
    identity = ReplicaIdentity("id", "i")
    return ReplicaOnDisk(
        partition, identity, size_bytes, zero, zero, zero, leader=True, offset_lag=0, bytes_in_per_s=bytes_in_per_s,
        offline=False,
    )  # fmt: skip


class Cluster:
    """Brokers 0 to n - 1 with a session each, and a store for the service under test."""

    def __init__(self) -> None:
        self.ensemble = FakeZooKeeper()
        self.store = self.ensemble.store()
        self.brokers: dict[int, FakeMetadataStore] = {}
        self.term: ControllerTerm | None = None

    async def start(self, brokers: int = 3, *, controller: bool = True) -> None:
        await self.store.start()
        for broker in range(brokers):
            await self.start_broker(broker)
        if controller:
            self.term = await self.store.elect_controller(BrokerId(100), "localhost:9193")

    async def start_broker(self, broker: int) -> None:
        store = self.ensemble.store()
        await store.start()
        registration = BrokerRegistration(
            BrokerId(broker), "localhost", 9192, directory_ids=(f"d{broker}",), boot_id="b"
        )
        await store.register_broker(registration, clean=True, locked_directory_ids=frozenset({f"d{broker}"}))
        self.brokers[broker] = store

    async def kill_broker(self, broker: int) -> None:
        await self.brokers.pop(broker).stop()

    async def topic(self, name: str, *assigned: tuple[int, ...]) -> TopicDescription:
        """Create a topic with all replicas in sync and the first as leader."""
        partitions = {index: ids(*replicas) for index, replicas in enumerate(assigned)}
        topic = await self.store.create_topic(
            TopicDescription(name, f"{name}-id", partitions, {index: f"{name}{index}" for index in partitions})
        )
        for index, replicas in enumerate(assigned):
            await self.lead(topic, index, replicas[0], *replicas)
        return topic

    async def lead(self, topic: TopicDescription, index: int, leader: int, *isr: int, min_isr: int = 1) -> None:
        """Write a leaderAndISR znode as the controller does."""
        assert self.term is not None
        partition = TopicPartition(topic.topic, index)
        found = (await self.store.states([partition])).get(partition)
        entries = tuple(IsrEntry(BrokerId(member), BrokerEpoch(0)) for member in isr)
        state = LeaderAndIsr(BrokerId(leader), LeaderEpoch(0), entries, min_isr=min_isr)
        identity = ReplicaIdentity(topic.topic_id, topic.incarnations[index])
        version = -1 if found is None else found.version
        await self.store.write_states(self.term, [StateWrite(partition, identity, state, version)])

    async def rewrite(self, topic: TopicDescription) -> TopicDescription:
        """Write a topic's znode as the controller does."""
        assert self.term is not None
        current = (await self.store.topics([topic.topic]))[topic.topic]
        written = await self.store.write_topic(self.term, replace(topic, version=current.version))
        assert written is not None
        return written
