# SPDX-License-Identifier: Apache-2.0
"""Retention: leaders periodically check for segments that their topics no longer need (rule L1).

The leader decides, and its followers delete the same records. The same check rolls segments that reached segment.ms
without an append, on every replica. Each partition costs one check per interval, idle or not.
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
from tidemark.runtime.configuration.settings import UNLIMITED, TopicSettings

_SLICE = 200
"""Replicas that are checked before the event loop gets control back."""


class _Check(NamedTuple):
    """A replica at the time of its check; `limits` is None on followers."""

    view: ReplicaView
    log: Log
    limits: RetentionLimits | None


class _Found(NamedTuple):
    """The result of a check: the new log start offset, and whether the active segment is rolled."""

    view: ReplicaView
    start_offset: Offset
    rolls: bool


class Retention:
    """One task; checks that read a log run in a thread.

    Args:
        interval_ms: time between two checks.
        wall_ms: the wall clock, which stamps records; its earliest time after the clock was set.
        fail: called with an unexpected error. Without retention, disks fill up.
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
    ) -> None:
        self._queries = queries
        self._threads = threads
        self._topics = topics
        self._submit = submit
        self._interval_ms = interval_ms
        self._wall_ms = wall_ms
        self._fail = fail
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start; the first check follows after the first interval."""
        self._task = asyncio.create_task(self._run(), name="retention")

    def stop(self) -> None:
        """Stop the checks."""
        if self._task is not None:
            self._task.cancel()

    async def check(self) -> None:
        """Check every replica once."""
        partitions = self._queries.partitions()
        for first in range(0, len(partitions), _SLICE):
            checks = [check for one in partitions[first : first + _SLICE] if (check := self._check_of(one)) is not None]
            now_ms = self._wall_ms()
            for found in await asyncio.to_thread(_judge, checks, now_ms):
                view = found.view
                if found.rolls:
                    self._threads.roll_by_time(view.partition, now_ms)
                if found.start_offset > view.log_start_offset:
                    self._submit(
                        LogStartRequested(view.partition, view.identity, view.leader_epoch, found.start_offset)
                    )

    def _check_of(self, partition: TopicPartition) -> _Check | None:
        log, view = self._threads.log(partition), self._queries.replica(partition)
        if log is None or view is None:
            return None
        limits = limits_of(self._topics.rules(partition.topic).settings) if view.role == "leader" else None
        return _Check(view, log, limits)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            try:
                await self.check()
            except Exception as error:  # noqa: BLE001 - passed to `fail`
                self._fail(error)
                return


def limits_of(settings: TopicSettings) -> RetentionLimits | None:
    """A topic's limits; None without limits, or when its cleanup.policy does not delete."""
    unlimited = settings.retention_ms == UNLIMITED and settings.retention_bytes == UNLIMITED
    if unlimited or "delete" not in settings.cleanup_policy:
        return None
    return RetentionLimits(settings.retention_ms, settings.retention_bytes)


def _judge(checks: list[_Check], now_ms: int) -> list[_Found]:
    found = []
    for view, log, limits in checks:
        rolls = log.may_roll_by_time(now_ms)
        start = view.log_start_offset
        if limits is not None:
            start = log.expired_until(limits, high_watermark=view.high_watermark, now_ms=now_ms)
        if rolls or start > view.log_start_offset:
            found.append(_Found(view, start, rolls))
    return found
