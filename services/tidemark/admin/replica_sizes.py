# SPDX-License-Identifier: Apache-2.0
"""Sizes and inbound rates of replicas, as their brokers report them: for plans, throttles and progress."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

from tidemark.model import BrokerId, BrokerRegistration, TidemarkError, TopicPartition
from tidemark.ports import Clock
from tidemark.rpc.log_dirs import ReplicaOnDisk, describe_log_dirs
from tidemark.rpc.receiver import receiver_headers
from tidemark.runtime.shared_calls import SharedCalls
from tidemark.zookeeper.store import MetadataStore

_DEADLINE_S: Final = 3.0
_NAMED_MAX: Final = 5_000
"""Largest number of partitions that a request names; for more, a request for all partitions is smaller."""

AGE_MAX_MS: Final = 500
"""Largest age of a broker's answer that serves another caller: half the default interval between updates of a watch."""

OfBroker = Mapping[TopicPartition, ReplicaOnDisk]
OnBrokers = Mapping[BrokerId, OfBroker]


class ReplicaSizes:
    """Sends DescribeLogDirs to the brokers. Concurrent callers share a call, whose answer serves for AGE_MAX_MS.

    Args:
        store: has the id of the cluster, whose brokers alone accept the calls.
        clock: measures the age of answers.
    """

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._calls: SharedCalls[tuple[str, frozenset[TopicPartition]], OfBroker | None] = SharedCalls(
            AGE_MAX_MS, clock
        )

    async def of(
        self, partitions: Collection[TopicPartition], brokers: Mapping[BrokerId, BrokerRegistration]
    ) -> OnBrokers:
        """Return the replicas of these partitions on these brokers, without offline replicas and late brokers."""
        if not partitions:
            return {}
        wanted = frozenset(partitions)
        answers = await asyncio.gather(*(self._of_one(broker, wanted) for broker in brokers.values()))
        return {broker: found for broker, found in zip(brokers, answers, strict=True) if found is not None}

    async def _of_one(self, broker: BrokerRegistration, wanted: frozenset[TopicPartition]) -> OfBroker | None:
        address = broker.address
        return await self._calls.result((address, wanted), lambda: self._ask(broker.broker_id, address, wanted))

    async def _ask(self, broker: BrokerId, address: str, wanted: frozenset[TopicPartition]) -> OfBroker | None:
        named = wanted if len(wanted) <= _NAMED_MAX else ()
        try:
            headers = receiver_headers(await self._store.cluster_id(), broker)
            directories = await describe_log_dirs(address, partitions=named, deadline_s=_DEADLINE_S, headers=headers)
        except TidemarkError:
            return None
        return {
            replica.partition: replica
            for directory in directories
            for replica in directory.replicas
            if not replica.offline and not replica.future and replica.partition in wanted
        }


def inbound_bytes_per_s(partition: TopicPartition, leader: BrokerId, found: OnBrokers) -> float | None:
    """Return the rate of appends to the partition that its leader reported; None without a report."""
    replica = found.get(leader, {}).get(partition)
    return None if replica is None else replica.bytes_in_per_s


def sizes_of(partition: TopicPartition, found: OnBrokers) -> dict[BrokerId, int]:
    """Return the bytes of each reported replica of the partition, by broker."""
    return {broker: on[partition].size_bytes for broker, on in found.items() if partition in on}
