# SPDX-License-Identifier: Apache-2.0
"""Retention: every so often the leaders here look at what their topics need no longer (rule L1).

The decision is the leader's: what it lets go its followers let go too. The same look rolls segments that came of age
while nothing was appended, on every replica by itself. A partition costs one look an interval, whether idle or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from tidemark.broker.logs.append_threads import LogThreads
from tidemark.broker.node.topic_settings import TopicTable
from tidemark.core.replication.events import Event, LogStartRequested
from tidemark.core.replication.queries import BrokerQueries
from tidemark.core.replication.replica import ReplicaView
from tidemark.model import Offset, TopicPartition
from tidemark.ports import Log, RetentionLimits
from tidemark.runtime.configuration import UNLIMITED, TopicSettings

_SLICE = 200
"""So many replicas are looked at before the event loop is given back."""


class _Look(NamedTuple):
    """A replica as it was when its turn came; `limits` are None where it does not lead."""

    view: ReplicaView
    log: Log
    limits: RetentionLimits | None


class _Found(NamedTuple):
    """What there is to do for it."""

    view: ReplicaView
    start_offset: Offset
    rolls: bool


class Retention:
    """One task; what has to look at a log does so in a thread.

    Args:
        interval_ms: how long from one look to the next.
        wall_ms: the clock that records are dated by.
        fail: called with a mistake of ours: without retention disks fill.
        paused: whether a replica is to be left alone for now (rule M3).
    """

    def __init__(
        self,
        queries: BrokerQueries,
        threads: LogThreads,
        topics: TopicTable,
        submit: Callable[[Event], None],
        interval_ms: int,
        wall_ms: Callable[[], int],
        fail: Callable[[BaseException], None],
        paused: Callable[[TopicPartition], bool] = lambda partition: False,
    ) -> None:
        self._queries = queries
        self._threads = threads
        self._topics = topics
        self._submit = submit
        self._interval_ms = interval_ms
        self._wall_ms = wall_ms
        self._fail = fail
        self._paused = paused
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, with a first look after the first interval."""
        self._task = asyncio.create_task(self._run(), name="retention")

    def stop(self) -> None:
        """No more."""
        if self._task is not None:
            self._task.cancel()

    async def look(self) -> None:
        """Look at every replica once."""
        partitions = self._queries.partitions()
        for first in range(0, len(partitions), _SLICE):
            looks = [look for one in partitions[first : first + _SLICE] if (look := self._look_at(one)) is not None]
            now_ms = self._wall_ms()
            for found in await asyncio.to_thread(_judge, looks, now_ms):
                view = found.view
                if found.rolls:
                    self._threads.roll_by_time(view.partition, now_ms)
                if found.start_offset > view.log_start_offset:
                    self._submit(
                        LogStartRequested(view.partition, view.identity, view.leader_epoch, found.start_offset)
                    )

    def _look_at(self, partition: TopicPartition) -> _Look | None:
        log, view = self._threads.log(partition), self._queries.replica(partition)
        if log is None or view is None or self._paused(partition):
            return None
        limits = limits_of(self._topics.rules(partition.topic).settings) if view.role == "leader" else None
        return _Look(view, log, limits)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001 - handed on
                self._fail(error)
                return


def limits_of(settings: TopicSettings) -> RetentionLimits | None:
    """A topic's limits, None where it has none or its cleanup.policy does not delete."""
    unlimited = settings.retention_ms == UNLIMITED and settings.retention_bytes == UNLIMITED
    if unlimited or "delete" not in settings.cleanup_policy:
        return None
    return RetentionLimits(settings.retention_ms, settings.retention_bytes)


def _judge(looks: list[_Look], now_ms: int) -> list[_Found]:
    found = []
    for view, log, limits in looks:
        rolls = log.may_roll_by_time(now_ms)
        start = view.log_start_offset
        if limits is not None:
            start = log.expired_until(limits, high_watermark=view.high_watermark, now_ms=now_ms)
        if rolls or start > view.log_start_offset:
            found.append(_Found(view, start, rolls))
    return found
