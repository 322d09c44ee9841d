# SPDX-License-Identifier: Apache-2.0
"""The group coordinators of this broker, and the lookup of other coordinators (docs/groups.md, step G1).

The leader of a partition of `__consumer_offsets` coordinates exactly the groups of that partition.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from tidemark.broker.coordination.coordinators import Coordinators
from tidemark.broker.coordination.internal_topic import InternalTopic
from tidemark.broker.coordination.lookup import count_of
from tidemark.broker.coordination.state_log import StateLog, StateLogs
from tidemark.broker.groups.group_shard import GROUP_RECORDS, GroupShard
from tidemark.broker.groups.metrics import GroupMetrics
from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.core.cluster_view import ClusterView
from tidemark.core.groups.assignors import ASSIGNORS
from tidemark.core.groups.coordinator import check_group_id
from tidemark.core.groups.group import Group
from tidemark.core.groups.heartbeat import Situation
from tidemark.core.groups.settings import GroupSettings
from tidemark.core.groups.state import GroupState, TopicFacts
from tidemark.model import BrokerId, LeaderEpoch, TidemarkError, TopicPartition, invalid_config
from tidemark.runtime.configuration.settings import BrokerSettings
from tidemark.runtime.wall_bounds import WallBounds

_SWEEP_MS: Final = 500
_COUNT_S: Final = 5.0
_TOPIC_CHANGES_S: Final = 0.1


class GroupCoordinators(Coordinators[GroupShard]):
    """The shards of this broker, and their periodic tasks.

    Args:
        broker_id: id of this broker.
        fail: called with an unexpected error.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        settings: BrokerSettings,
        logs: StateLogs,
        metadata: MetadataCache,
        topic: InternalTopic,
        metrics: GroupMetrics,
        fail: Callable[[BaseException], None],
    ) -> None:
        super().__init__(broker_id, logs, metadata, topic, "group", check_group_id, self._make_shard, fail)
        self.settings = group_settings(settings)
        self.metrics = metrics
        self._write_timeout_s = settings.offsets_commit_timeout_ms / 1000
        self._expire_s = settings.offsets_retention_check_interval_ms / 1000

    def start(self) -> None:
        """Start the periodic tasks."""
        self.run("groups: sweep", self._sweep)
        self.run("groups: expire", self._expire)
        self.run("groups: topics", self._follow_topics)
        self.run("groups: count", self._count)

    def situation(self) -> Situation:
        """The facts that requests are checked against, as of now."""
        clock = self._logs.clock
        view = self.metadata.view
        topics = KnownTopics(view) if view.complete else None
        return Situation(topics, self.settings, clock.now_ms(), clock.wall_us() // 1000, view.hidden_topics)

    def _make_shard(self, partition: TopicPartition, leader_epoch: LeaderEpoch) -> GroupShard:
        log = StateLog(self._logs, GROUP_RECORDS, partition, leader_epoch)
        return GroupShard(log, self.situation, self._write_timeout_s, self.metrics)

    def on_marker(self, partition: TopicPartition, producer_id: int, marker_epoch: int, commit: bool) -> None:
        """A marker in a partition that this broker leads is committed."""
        if partition.topic == self._topic.name:
            shard = self._shards.get(partition.partition)
            if shard is not None:
                shard.on_marker(producer_id, marker_epoch, commit=commit)

    async def _sweep(self) -> None:
        await self._sweep_each(_SWEEP_MS)

    async def _expire(self) -> None:
        wall = WallBounds(self._logs.clock)
        while True:
            await asyncio.sleep(self._expire_s)
            for shard in tuple(self._shards.values()):
                await shard.expire(wall.earliest_us() // 1000)

    async def _follow_topics(self) -> None:
        async for _ in self.metadata.watch(()):
            for shard in tuple(self._shards.values()):
                shard.refresh_topics()
            await asyncio.sleep(_TOPIC_CHANGES_S)  # a thousand new partitions arrive in many updates

    def known(self) -> Iterator[Group]:
        """The groups that this broker coordinates, except those that are still being loaded."""
        for shard in tuple(self._shards.values()):
            if shard.is_loading:
                continue
            try:
                yield from shard.coordinator.groups
            except TidemarkError:
                continue  # the leadership has ended, or the lease has expired

    async def _count(self) -> None:
        while True:
            self._show()
            await asyncio.sleep(_COUNT_S)

    def _show(self) -> None:
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


def group_settings(settings: BrokerSettings) -> GroupSettings:
    """The group settings; raises INVALID_CONFIG for an unknown assignor."""
    assignors = tuple(name.strip() for name in settings.group_consumer_assignors.split(",") if name.strip())
    unknown = [name for name in assignors if name not in ASSIGNORS]
    if unknown or not assignors or len(set(assignors)) < len(assignors):
        raise invalid_config(
            "group.consumer.assignors",
            f"group.consumer.assignors is {settings.group_consumer_assignors!r}: expected some of "
            f"{', '.join(ASSIGNORS)}, each once",
        )
    return GroupSettings(
        session_timeout_ms=settings.group_consumer_session_timeout_ms,
        heartbeat_interval_ms=settings.group_consumer_heartbeat_interval_ms,
        max_size=settings.group_consumer_max_size,
        assignors=assignors,
        offsets_retention_ms=settings.offsets_retention_minutes * 60_000,
        metadata_bytes_max=settings.offset_metadata_max_bytes,
    )
