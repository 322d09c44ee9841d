# SPDX-License-Identifier: Apache-2.0
"""The cluster metadata that the controller sent to this broker, and the clients that watch it (rule K2)."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import replace
from typing import Final

from tidemark.core.cluster_view import ClusterView, MetadataAssembler, TopicView
from tidemark.model import (
    NO_LEADER,
    BrokerId,
    ControllerEpoch,
    ErrorCode,
    LeaderEpoch,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
    unknown_partition,
    unknown_topic,
)
from tidemark.runtime.slices import InSlices

_BEHIND_MAX: Final = 64
"""Changes queued for a slow watcher; beyond that it gets the whole view instead."""
_SILENT_S: Final = 2.0
"""Least time without a heartbeat after which answers name no controller."""
_PINGS: Final = 4
"""Number of intervals of heartbeats, if that is longer."""


class MetadataCache:
    """The latest view. Every watcher gets the whole view first, then the changes.

    Answers name a controller only while the controller of this view sends heartbeats. Without one, changes that are
    written in ZooKeeper reach brokers only after the next election, so a missing topic may be a new one.
    """

    def __init__(self, admin_address: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self._view = ClusterView(admin_address=admin_address)
        self._now_s = now_s
        self._pinged_s = -math.inf
        self._silent_s = _SILENT_S
        self._assembler = MetadataAssembler()
        self._watchers: set[_Watcher] = set()
        self._closed = False

    @property
    def view(self) -> ClusterView:
        """The cluster as of the last UpdateMetadata."""
        return self._view

    def set_cluster_id(self, cluster_id: str) -> None:
        """Set the cluster id, before the first controller connects."""
        self._view = replace(self._view, cluster_id=cluster_id)

    def update(self, update: ClusterView) -> None:
        """Apply metadata from the controller; the caller has checked its controller epoch.

        Raises:
            TidemarkError: INVALID_REQUEST when a part of the update is missing.
        """
        view = self._assembler.take(self._view, update)
        if view is None:
            return
        self._view = view
        self.pinged(view.controller_epoch)
        # Watchers get the merged state of the partitions that the update names; an outdated update changes nothing.
        changed = replace(
            update,
            cluster_id=self._view.cluster_id,
            admin_address=self._view.admin_address,
            topics=view.topics if update.is_whole else self._named_in(update),
            complete=update.is_whole,
            part=0,
            sequence=view.sequence,
        )
        for watcher in self._watchers:
            watcher.add(changed)

    def pinged(self, controller_epoch: ControllerEpoch, *, interval_ms: int = 0) -> None:
        """A heartbeat of this controller has arrived, and states the interval of heartbeats; 0: unknown.

        A new controller counts once its metadata have arrived.
        """
        if controller_epoch == self._view.controller_epoch:
            self._pinged_s = self._now_s()
            if interval_ms:
                self._silent_s = max(_SILENT_S, _PINGS * interval_ms / 1000)

    @property
    def _is_silent(self) -> bool:
        return self._now_s() - self._pinged_s > self._silent_s

    def _answer(self, view: ClusterView) -> ClusterView:
        return replace(view, controller_id=NO_LEADER) if self._is_silent else view

    def _named_in(self, update: ClusterView) -> dict[str, TopicView]:
        """Only the partitions that the update names: there are thousands of watchers, and few partitions change."""
        found = {}
        for name, changed in update.topics.items():
            merged = self._view.topics.get(name)
            if merged is not None:
                partitions = {
                    index: merged.partitions[index] for index in changed.partitions if index in merged.partitions
                }
                found[name] = replace(merged, partitions=partitions)
        return found

    def describe(self, topics: Collection[str], *, all_topics: bool) -> ClusterView:
        """The view of the named topics, or of all; an unknown topic carries its error."""
        if all_topics:
            return self._answer(self._view)
        found = {name: self._named(name) for name in topics}
        return self._answer(replace(self._view, topics=found, complete=False))

    async def describe_in_slices(self, topics: Collection[str]) -> ClusterView:
        """Like `describe` for very many names. Known topics are of one view; unknown ones are looked up later."""
        view, found = self._view, {}
        async for name in InSlices(topics):
            found[name] = view.topics.get(name) or self._named(name)
        return self._answer(replace(view, topics=found, complete=False))

    def _named(self, name: str) -> TopicView:
        return self._view.topics.get(name) or TopicView(name, "", error=self.unknown(name))

    def in_sync_replicas(
        self, partition: TopicPartition, identity: ReplicaIdentity, leader_epoch: LeaderEpoch
    ) -> tuple[BrokerId, ...]:
        """The ISR of a partition in a leader epoch, as last received; empty for another incarnation or epoch."""
        topic = self._view.topics.get(partition.topic)
        known = None if topic is None else topic.partitions.get(partition.partition)
        if topic is None or known is None or known.leader_epoch != leader_epoch:
            return ()
        return known.in_sync_replicas if identity == ReplicaIdentity(topic.topic_id, known.incarnation) else ()

    def unknown(self, topic: str) -> TidemarkError:
        """The error for a topic that cannot be described."""
        if not self._view.complete:
            return TidemarkError(
                ErrorCode.LEADER_NOT_AVAILABLE, "this broker has no metadata yet: no controller has connected to it"
            )
        if topic in self._view.hidden_topics:
            return TidemarkError(
                ErrorCode.LEADER_NOT_AVAILABLE,
                f"znodes of {topic} do not parse: restore those that the controller's log names",
            )
        return self._in_doubt(unknown_topic(topic))

    def unknown_partition(self, partition: TopicPartition) -> TidemarkError:
        """The error for a partition that its topic does not have."""
        topic = self._view.topics.get(partition.topic)
        return self._in_doubt(unknown_partition(*partition, 0 if topic is None else len(topic.partitions)))

    def _in_doubt(self, error: TidemarkError) -> TidemarkError:
        if not self._is_silent:
            return error
        sentence = f"no controller is active, and this broker may not know the newest topics: {error.message}"
        return TidemarkError(ErrorCode.LEADER_NOT_AVAILABLE, sentence, error.metadata)

    def explain(self, error: TidemarkError, partition: TopicPartition) -> TidemarkError:
        """Add the metadata of the partition to the NOT_LEADER of a broker without the replica."""
        if error.code is not ErrorCode.NOT_LEADER:
            return error
        topic = self._view.topics.get(partition.topic)
        if topic is None:
            return self.unknown(partition.topic) if self._view.complete else error
        known = topic.partitions.get(partition.partition)
        if known is None:
            return self.unknown_partition(partition)
        if known.leader_epoch <= int(error.metadata.get("leader_epoch", -1)):
            return error
        led = f"{partition} is led by broker {known.leader} in epoch {known.leader_epoch}"
        sentence = led if "leader_epoch" in error.metadata else error.message  # this broker may lead, without its lease
        metadata = {"leader": str(known.leader), "leader_epoch": str(known.leader_epoch)}
        # If the metadata of this broker are stale, these ids and this epoch are those of an earlier topic.
        ids = {"topic_id": topic.topic_id, "incarnation": known.incarnation}
        return TidemarkError(ErrorCode.NOT_LEADER, sentence, {**metadata, **ids})

    async def watch(self, topics: Collection[str]) -> AsyncIterator[ClusterView]:
        """The whole view of these topics (all when none is named), then each change, until `close`."""
        watcher = _Watcher(self, frozenset(topics))
        self._watchers.add(watcher)
        try:
            while not self._closed:
                changes = await watcher.changes()
                while changes:  # a watch that waits holds no view: each can have a megabyte of errors
                    yield changes.pop(0)
        finally:
            self._watchers.discard(watcher)

    def send_again(self) -> None:
        """Send the whole view to every watcher: the rights of clients changed."""
        for watcher in self._watchers:
            watcher.add(replace(self._view, complete=True))

    def close(self) -> None:
        """End every watch."""
        self._closed = True
        for watcher in self._watchers:
            watcher.wake()


class _Watcher:
    def __init__(self, cache: MetadataCache, wanted: frozenset[str]) -> None:
        self._cache = cache
        self._wanted = wanted
        self._changes: list[ClusterView] = []
        self._whole = True
        self._changed = asyncio.Event()
        self._changed.set()

    def add(self, change: ClusterView) -> None:
        if change.complete or len(self._changes) >= _BEHIND_MAX:
            self._whole = True
        if self._whole:
            self._changes.clear()
        else:
            self._changes.append(_only(change, self._wanted) if self._wanted else change)
        self._changed.set()

    def wake(self) -> None:
        self._changed.set()

    async def changes(self) -> list[ClusterView]:
        await self._changed.wait()
        self._changed.clear()
        if self._whole:
            self._whole = False
            self._changes.clear()
            view = self._cache.describe(self._wanted, all_topics=not self._wanted)
            return [replace(view, complete=True)]
        changes, self._changes = self._changes, []
        return changes


def _only(view: ClusterView, wanted: frozenset[str]) -> ClusterView:
    return replace(
        view,
        topics={name: topic for name, topic in view.topics.items() if name in wanted},
        deleted_topics=tuple(name for name in view.deleted_topics if name in wanted),
    )
