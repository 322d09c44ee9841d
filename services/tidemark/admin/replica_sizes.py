# SPDX-License-Identifier: Apache-2.0
"""What replicas hold and what comes in, as their brokers say: for plans, throttles and progress."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Final, Protocol

from tidemark.model import BrokerId, BrokerRegistration, TidemarkError, TopicPartition
from tidemark.rpc.log_dirs import ReplicaOnDisk, describe_log_dirs

_DEADLINE_S: Final = 3.0
_NAMED_MAX: Final = 5_000
"""Beyond that, asking for everything is the smaller request."""

OnBrokers = Mapping[BrokerId, Mapping[TopicPartition, ReplicaOnDisk]]


class ReplicaSizes(Protocol):
    """Knows what lies on brokers; those that do not answer in time are left out."""

    async def of(
        self, partitions: Collection[TopicPartition], brokers: Mapping[BrokerId, BrokerRegistration]
    ) -> OnBrokers:
        """The replicas of these partitions on these brokers."""


class FromBrokers:
    """Asks the brokers."""

    async def of(
        self, partitions: Collection[TopicPartition], brokers: Mapping[BrokerId, BrokerRegistration]
    ) -> OnBrokers:
        """The replicas of these partitions on these brokers; one whose log failed is left out."""
        if not partitions:
            return {}
        wanted = frozenset(partitions)
        answers = await asyncio.gather(*(self._of_one(broker, wanted) for broker in brokers.values()))
        return {broker: found for broker, found in zip(brokers, answers, strict=True) if found is not None}

    async def _of_one(
        self, broker: BrokerRegistration, wanted: frozenset[TopicPartition]
    ) -> Mapping[TopicPartition, ReplicaOnDisk] | None:
        named = wanted if len(wanted) <= _NAMED_MAX else ()
        try:
            directories = await describe_log_dirs(
                f"{broker.host}:{broker.port}", partitions=named, deadline_s=_DEADLINE_S
            )
        except TidemarkError:
            return None
        return {
            replica.partition: replica
            for directory in directories
            for replica in directory.replicas
            if not replica.offline and not replica.future and replica.partition in wanted
        }


def inbound_bytes_per_s(partition: TopicPartition, leader: BrokerId, found: OnBrokers) -> float | None:
    """What producers append to the partition, as its leader says; None: it did not."""
    replica = found.get(leader, {}).get(partition)
    return None if replica is None else replica.bytes_in_per_s


def sizes_of(partition: TopicPartition, found: OnBrokers) -> dict[BrokerId, int]:
    """Bytes of each replica of the partition that a broker told of."""
    return {broker: on[partition].size_bytes for broker, on in found.items() if partition in on}
