# SPDX-License-Identifier: Apache-2.0
"""The group coordinators of this broker, and the lookup of others (docs/groups.md, step G1).

The leader of a partition of `__consumer_offsets` coordinates exactly the groups of that partition.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from itertools import count
from typing import Final, NamedTuple

from tidemark.broker.groups.coordinator_shard import CoordinatorShard
from tidemark.broker.groups.metrics import GroupMetrics
from tidemark.broker.groups.offsets_log import OffsetsLog, OffsetsLogs
from tidemark.broker.groups.offsets_topic import OffsetsTopic
from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView
from tidemark.core.groups.assignors import ASSIGNORS
from tidemark.core.groups.coordinator import check_group_id
from tidemark.core.groups.coordinator_partition import OFFSETS_TOPIC, partition_of_group
from tidemark.core.groups.group import Group
from tidemark.core.groups.heartbeat import Situation
from tidemark.core.groups.settings import GroupSettings
from tidemark.core.groups.state import GroupState, TopicFacts
from tidemark.core.replication.effects import LeadershipChanged
from tidemark.model import NO_LEADER, BrokerId, BrokerRegistration, ErrorCode, LeaderEpoch, TidemarkError
from tidemark.rpc.security.callers import address_for_caller
from tidemark.runtime.configuration import BrokerSettings

_SWEEP_S: Final = 0.5
_SUSPENDED_MS: Final = 1000
_SWEEPS_A_COUNT: Final = 10
_FIRST_USE_S: Final = 3.0
_TOPIC_CHANGES_S: Final = 0.1


class Coordinator(NamedTuple):
    """The coordinator of a group, with the partition that it leads."""

    partition: int
    broker: BrokerRegistration
    leader_epoch: LeaderEpoch


class GroupCoordinators:
    """The shards of this broker, and their periodic tasks.

    Args:
        broker_id: id of this broker.
        fail: called with an unexpected error.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        settings: BrokerSettings,
        logs: OffsetsLogs,
        metadata: MetadataCache,
        topic: OffsetsTopic,
        metrics: GroupMetrics,
        fail: Callable[[BaseException], None],
    ) -> None:
        self.broker_id = broker_id
        self.settings = group_settings(settings)
        self.metrics = metrics
        self.metadata = metadata
        self._write_timeout_s = settings.offsets_commit_timeout_ms / 1000
        self._expire_s = settings.offsets_retention_check_interval_ms / 1000
        self._logs = logs
        self._topic = topic
        self._fail = fail
        self._shards: dict[int, CoordinatorShard] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start the periodic tasks."""
        for name, work in (("sweep", self._sweep), ("expire", self._expire), ("topics", self._follow_topics)):
            self._tasks.append(asyncio.create_task(self._guarded(work), name=f"groups: {name}"))

    def stop(self) -> None:
        """Stop coordinating; waiting requests are refused with NOT_COORDINATOR."""
        for task in self._tasks:
            task.cancel()
        for shard in self._shards.values():
            shard.close()
        self._shards.clear()

    def on_leadership(self, effect: LeadershipChanged) -> None:
        """Load or close the shard of a partition whose leadership changed."""
        if effect.partition.topic != OFFSETS_TOPIC:
            return
        index = effect.partition.partition
        shard = self._shards.pop(index, None)
        if shard is not None:
            shard.close()
        view = self._logs.queries.replica(effect.partition) if effect.leading else None
        if view is not None:
            log = OffsetsLog(self._logs, effect.partition, view.leader_epoch)
            self._shards[index] = CoordinatorShard(log, self.situation, self._write_timeout_s, self.metrics)

    def situation(self) -> Situation:
        """The facts that requests are checked against, as of now."""
        clock = self._logs.clock
        view = self.metadata.view
        topics = KnownTopics(view) if view.complete else None
        return Situation(topics, self.settings, clock.now_ms(), clock.wall_us() // 1000, view.hidden_topics)

    @property
    def shards(self) -> Collection[CoordinatorShard]:
        """The shards of this broker."""
        return self._shards.values()

    def shard_of(self, group_id: str) -> CoordinatorShard:
        """The shard of a group that this broker coordinates.

        Raises:
            TidemarkError: INVALID_GROUP_ID; NOT_COORDINATOR with {"coordinator", "host", "port", "partition"} when
                they are known; COORDINATOR_NOT_AVAILABLE.
        """
        check_group_id(group_id)
        partition_count = self._partition_count()
        if partition_count is None:
            raise _not_available(f"{OFFSETS_TOPIC} does not exist yet: find the coordinator first")
        index = partition_of_group(group_id, partition_count)
        shard = self._shards.get(index)
        if shard is not None:
            return shard
        where = self._located(group_id)
        address = address_for_caller(where.broker)
        raise TidemarkError(
            ErrorCode.NOT_COORDINATOR,
            f"the group {group_id!r} is coordinated by broker {where.broker.broker_id}, {address.host}:{address.port}",
            {
                "coordinator": str(where.broker.broker_id),
                "host": address.host,
                "port": str(address.port),
                "partition": str(where.partition),
            },
        )

    async def find(self, group_id: str) -> Coordinator:
        """The coordinator of a group; creates the offsets topic first if there is none.

        Raises:
            TidemarkError: INVALID_GROUP_ID, COORDINATOR_NOT_AVAILABLE.
        """
        check_group_id(group_id)
        if self._partition_count() is None and self.metadata.view.complete:
            try:
                async with asyncio.timeout(_FIRST_USE_S):
                    await self._topic.ensure()
            except TimeoutError:
                raise _not_available(f"{OFFSETS_TOPIC} is not created yet: ZooKeeper does not answer; retry") from None
            await self.wait_for(lambda view: self._is_led(view, group_id), _FIRST_USE_S)
        return self._located(group_id)

    def located(self, group_id: str) -> Coordinator:
        """As `find`, without waiting and without creating the topic."""
        check_group_id(group_id)
        return self._located(group_id)

    async def wait_for(self, holds: Callable[[ClusterView], bool], timeout_s: float) -> bool:
        """Wait until the condition holds for this broker's metadata; False when the time has passed."""
        if holds(self.metadata.view):
            return True
        try:
            async with asyncio.timeout(timeout_s):
                async for _ in self.metadata.watch((OFFSETS_TOPIC,)):
                    if holds(self.metadata.view):
                        return True
        except TimeoutError:
            pass
        return holds(self.metadata.view)

    def _partition_count(self) -> int | None:
        topic = self.metadata.view.topics.get(OFFSETS_TOPIC)
        return None if topic is None or topic.error is not None else count_of(topic) or None

    def _is_led(self, view: ClusterView, group_id: str) -> bool:
        partition_count = self._partition_count()
        if partition_count is None:
            return False
        partition = view.topics[OFFSETS_TOPIC].partitions.get(partition_of_group(group_id, partition_count))
        return partition is not None and partition.leader in view.brokers

    def _located(self, group_id: str) -> Coordinator:
        view = self.metadata.view
        partition_count = self._partition_count()
        if partition_count is None:
            raise _not_available(f"{OFFSETS_TOPIC} is being created; retry")
        index = partition_of_group(group_id, partition_count)
        partition: PartitionView | None = view.topics[OFFSETS_TOPIC].partitions.get(index)
        broker = None if partition is None else view.brokers.get(partition.leader)
        if partition is None or partition.leader == NO_LEADER or broker is None:
            raise _not_available(f"{OFFSETS_TOPIC}-{index}, which has the group, has no leader now; retry")
        if broker.broker_id == self.broker_id and not self._coordinates(index):
            raise _not_available(
                f"this broker gains or has lost the leadership of {OFFSETS_TOPIC}-{index}: retry, or ask another"
            )
        return Coordinator(index, broker, partition.leader_epoch)

    def _coordinates(self, index: int) -> bool:
        """Whether this broker leads the partition under its lease; the metadata may be outdated."""
        shard = self._shards.get(index)
        if shard is None:
            return False
        try:
            shard.log.check()
        except TidemarkError:
            return False
        return True

    async def _sweep(self) -> None:
        clock = self._logs.clock
        due_ms = clock.now_ms()
        for number in count():
            due_ms += int(_SWEEP_S * 1000)
            await asyncio.sleep(_SWEEP_S)
            late_ms = clock.now_ms() - due_ms
            due_ms = clock.now_ms()
            for shard in tuple(self._shards.values()):
                if late_ms > _SUSPENDED_MS:  # a sleeping laptop or SIGSTOP: heartbeats of members could not arrive
                    shard.excuse(late_ms)
                shard.sweep()
            if number % _SWEEPS_A_COUNT == 0:
                self._count()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(self._expire_s)
            for shard in tuple(self._shards.values()):
                await shard.expire()

    async def _follow_topics(self) -> None:
        async for _ in self.metadata.watch(()):
            for shard in tuple(self._shards.values()):
                shard.refresh_topics()
            await asyncio.sleep(_TOPIC_CHANGES_S)  # a thousand new partitions arrive in many updates

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - passed to `fail`
            self._fail(error)

    def known(self) -> Iterator[Group]:
        """The groups that this broker coordinates, except those that are still being loaded."""
        for shard in tuple(self._shards.values()):
            if shard.is_loading:
                continue
            try:
                yield from shard.coordinator.groups
            except TidemarkError:
                continue  # its leadership has ended, or its lease has expired

    def _count(self) -> None:
        states: Counter[str] = Counter({str(state): 0 for state in GroupState})
        members = offsets = 0
        loading = sum(shard.is_loading for shard in self._shards.values())
        for group in self.known():
            states[str(group.state)] += 1
            members += len(group.members)
            offsets += len(group.offsets)
        self.metrics.show(states, members=members, offsets=offsets, loading=loading)


class KnownTopics(Mapping[str, TopicFacts]):
    """The topics of a view of the cluster, without a copy."""

    def __init__(self, view: ClusterView) -> None:
        self._topics = view.topics

    def __getitem__(self, name: str) -> TopicFacts:
        topic = self._topics[name]
        if topic.error is not None:
            raise KeyError(name)
        return TopicFacts(topic.topic_id, count_of(topic))

    def __iter__(self) -> Iterator[str]:
        return (name for name, topic in self._topics.items() if topic.error is None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def count_of(topic: TopicView) -> int:
    """Number of partitions."""
    return topic.partition_count or len(topic.partitions)


def group_settings(settings: BrokerSettings) -> GroupSettings:
    """The group settings; raises INVALID_CONFIG for an unknown assignor."""
    assignors = tuple(name.strip() for name in settings.group_consumer_assignors.split(",") if name.strip())
    unknown = [name for name in assignors if name not in ASSIGNORS]
    if unknown or not assignors or len(set(assignors)) < len(assignors):
        raise TidemarkError(
            ErrorCode.INVALID_CONFIG,
            f"group.consumer.assignors is {settings.group_consumer_assignors!r}: want some of "
            f"{', '.join(ASSIGNORS)}, each once",
            {"config": "group.consumer.assignors"},
        )
    return GroupSettings(
        session_timeout_ms=settings.group_consumer_session_timeout_ms,
        heartbeat_interval_ms=settings.group_consumer_heartbeat_interval_ms,
        max_size=settings.group_consumer_max_size,
        assignors=assignors,
        offsets_retention_ms=settings.offsets_retention_minutes * 60_000,
        metadata_bytes_max=settings.offset_metadata_max_bytes,
    )


def _not_available(sentence: str) -> TidemarkError:
    return TidemarkError(ErrorCode.COORDINATOR_NOT_AVAILABLE, sentence)
