# SPDX-License-Identifier: Apache-2.0
"""The coordinator of a key (group, transactional id): the leader of the key's partition of an internal topic.

Any broker answers, from its metadata. The first lookup creates the topic (docs/groups.md, step G1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from tidemark.broker.coordination.internal_topic import InternalTopic
from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView
from tidemark.core.internal_topics import partition_of
from tidemark.model import NO_LEADER, BrokerId, BrokerRegistration, ErrorCode, LeaderEpoch, TidemarkError, host_port
from tidemark.rpc.security.callers import address_for_caller
from tidemark.runtime.clock import timeout

_FIRST_USE_S: Final = 3.0


class Coordinator(NamedTuple):
    """The coordinator of a key, and the partition of the key, which that broker leads."""

    partition: int
    broker: BrokerRegistration
    leader_epoch: LeaderEpoch


class CoordinatorLookup:
    """Finds coordinators.

    Args:
        noun: the word for a key in errors, such as "group".
        coordinates: whether this broker leads a partition under its lease now; its metadata may be outdated.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        metadata: MetadataCache,
        topic: InternalTopic,
        noun: str,
        coordinates: Callable[[int], bool],
    ) -> None:
        self._broker_id = broker_id
        self.metadata = metadata
        self._topic = topic
        self._noun = noun
        self._coordinates = coordinates

    def index_of(self, key: str) -> int:
        """The partition of a key; raises COORDINATOR_NOT_AVAILABLE if the topic does not exist."""
        partition_count = self._partition_count()
        if partition_count is None:
            raise _not_available(f"{self._topic.name} does not exist yet: find the coordinator first")
        return partition_of(key, partition_count)

    def elsewhere(self, key: str) -> TidemarkError:
        """NOT_COORDINATOR with {"coordinator", "host", "port", "partition"}, for a key that another broker coordinates.

        Raises:
            TidemarkError: COORDINATOR_NOT_AVAILABLE.
        """
        where = self.located(key)
        address = address_for_caller(where.broker)
        return TidemarkError(
            ErrorCode.NOT_COORDINATOR,
            f"the {self._noun} {key!r} is coordinated by broker {where.broker.broker_id}, "
            f"{host_port(address.host, address.port)}",
            {
                "coordinator": str(where.broker.broker_id),
                "host": address.host,
                "port": str(address.port),
                "partition": str(where.partition),
            },
        )

    async def find(self, key: str) -> Coordinator:
        """The coordinator of a key; creates the topic first if there is none.

        Raises:
            TidemarkError: COORDINATOR_NOT_AVAILABLE.
        """
        if self._partition_count() is None and self.metadata.view.complete:
            try:
                async with timeout(_FIRST_USE_S):
                    await self._topic.ensure()
            except TimeoutError:
                raise _not_available(
                    f"{self._topic.name} is not created yet: ZooKeeper does not answer; retry"
                ) from None
            await self.wait_for(lambda view: self._is_led(view, key), _FIRST_USE_S)
        return self.located(key)

    def located(self, key: str) -> Coordinator:
        """Like `find`, without waiting and without creating the topic."""
        view, name = self.metadata.view, self._topic.name
        partition_count = self._partition_count()
        if partition_count is None:
            raise _not_available(f"{name} is being created; retry")
        index = partition_of(key, partition_count)
        partition: PartitionView | None = view.topics[name].partitions.get(index)
        broker = None if partition is None else view.brokers.get(partition.leader)
        if partition is None or partition.leader == NO_LEADER or broker is None:
            raise _not_available(f"{name}-{index}, which has the {self._noun}, has no leader now; retry")
        if broker.broker_id == self._broker_id and not self._coordinates(index):
            raise _not_available(f"this broker gains or has lost the leadership of {name}-{index}: retry")
        return Coordinator(index, broker, partition.leader_epoch)

    def missing(self) -> list[int]:
        """The partitions that no broker coordinates now, as far as this broker knows: without a leader, or this broker
        leads them according to its metadata and does not coordinate them.
        """
        view = self.metadata.view
        topic = view.topics.get(self._topic.name)
        return [
            index
            for index, partition in sorted({} if topic is None else topic.partitions.items())
            if partition.leader not in view.brokers
            or (partition.leader == self._broker_id and not self._coordinates(index))
        ]

    async def wait_for(self, holds: Callable[[ClusterView], bool], timeout_s: float) -> bool:
        """Wait until the condition holds for this broker's metadata; False when the time has passed."""
        if holds(self.metadata.view):
            return True
        try:
            async with timeout(timeout_s):
                async for _ in self.metadata.watch((self._topic.name,)):
                    if holds(self.metadata.view):
                        return True
        except TimeoutError:
            pass
        return holds(self.metadata.view)

    def _partition_count(self) -> int | None:
        topic = self.metadata.view.topics.get(self._topic.name)
        return None if topic is None or topic.error is not None else count_of(topic) or None

    def _is_led(self, view: ClusterView, key: str) -> bool:
        partition_count = self._partition_count()
        if partition_count is None:
            return False
        partition = view.topics[self._topic.name].partitions.get(partition_of(key, partition_count))
        return partition is not None and partition.leader in view.brokers


def count_of(topic: TopicView) -> int:
    """Number of partitions of the internal topic."""
    return topic.partition_count or len(topic.partitions)


def _not_available(sentence: str) -> TidemarkError:
    return TidemarkError(ErrorCode.COORDINATOR_NOT_AVAILABLE, sentence)
