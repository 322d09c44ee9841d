# SPDX-License-Identifier: Apache-2.0
"""Cleans the logs of compacted topics in the background: one thread for each log directory (rule L1).

Before each round the event loop reads log end, truncations and high watermark together. A high watermark from before a
truncation is therefore never applied to records appended after it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

from tidemark.broker.logs.directory_threads import DirectoryThreads, Stopped
from tidemark.broker.node.topic_settings import TopicTable
from tidemark.model import ErrorCode, Offset, TidemarkError, TopicPartition
from tidemark.runtime.configuration.settings import BrokerSettings, TopicSettings
from tidemark.runtime.metrics import Metrics
from tidemark.runtime.wall_bounds import WallBounds
from tidemark.storage.directories.log_manager import LogManager
from tidemark.storage.log.cleaner import CleanerSettings, CleaningDone, clean_log, dirt_of, is_horizon_over
from tidemark.storage.log.partition_log import PartitionLog
from tidemark.storage.log.segment_repair import find_damage

_log = logging.getLogger(__name__)
_LEFT_S: Final = 1800.0
"""Time for which a log that cannot be cleaned is left, without a repair: each attempt reads the whole log."""
_PASSING: Final = (ErrorCode.DISK_FULL, ErrorCode.UNKNOWN_SCHEMA_VERSION)
"""Errors that need no repair: a broker that has just started does not know all schemas."""


class Job(NamedTuple):
    """A log that may be cleaned below `end_offset` (exclusive) while `LogSegments.truncations` stays the same."""

    partition: TopicPartition
    log: PartitionLog
    end_offset: int
    truncations: int
    settings: CleanerSettings


class LogCleaner:
    """Started and stopped with the broker. A failure is logged, and delays no other log.

    Args:
        wall: the wall clock: its earliest time decides a deletion, its latest time sets the horizon of a tombstone.
        paused: whether a copy of the replica has records, so that it must not be cleaned (rule M3).
        suspect: called on the event loop with an offset of each damaged segment that kept a log from being cleaned.
    """

    def __init__(
        self,
        logs: LogManager,
        topics: TopicTable,
        stable_offsets: Callable[[], Mapping[TopicPartition, Offset]],
        settings: BrokerSettings,
        metrics: Metrics,
        wall: WallBounds,
        paused: Callable[[TopicPartition], bool] = lambda partition: False,
        suspect: Callable[[TopicPartition, int], None] = lambda partition, offset: None,
    ) -> None:
        self._suspect = suspect
        self._loop: asyncio.AbstractEventLoop | None = None
        self._logs = logs
        self._topics = topics
        self._stable_offsets = stable_offsets
        self._settings = settings
        self._wall = wall
        self._paused = paused
        directories = len(logs.directories())
        self._buffer_bytes = settings.log_cleaner_dedupe_buffer_size // directories
        self._threads = DirectoryThreads("log-cleaner", directories, settings.log_cleaner_io_max_bytes_per_second)
        self._left: list[dict[PartitionLog, tuple[int, float]]] = [{} for _ in range(directories)]
        """By directory and log that could not be cleaned: `LogSegments.moves` then, and the time of the next attempt
        without a repair."""
        self._runs = metrics.counter("broker_log_cleaner_runs", "Logs that were cleaned completely")
        self._failures = metrics.counter("broker_log_cleaner_failures", "Logs that could not be cleaned")
        self._read = metrics.counter("broker_log_cleaner_read_bytes", "Bytes that the cleaner read")
        self._freed = metrics.counter("broker_log_cleaner_freed_bytes", "Bytes that cleaning removed")
        self._dirtiest = metrics.gauge(
            "broker_log_cleaner_dirty_ratio_max", "Highest dirty ratio of a log, 0 to 1", ("directory",)
        )
        self._last_run = metrics.gauge(
            "broker_log_cleaner_last_run_timestamp_seconds", "Time at which a log was last cleaned"
        )

    def start(self) -> None:
        """Start, unless `log.cleaner.enable` is off."""
        if self._settings.log_cleaner_enable:
            self._threads.start(self._run)

    async def stop(self) -> None:
        """Stop between two reads or writes; segments that were not swapped in are discarded."""
        await self._threads.stop()

    async def _run(self, directory: int) -> None:
        self._loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._settings.log_cleaner_backoff_ms / 1000)
            try:
                jobs = self._jobs(directory)
                await self._threads.run(directory, partial(self._clean_all, directory, jobs))
            except Exception:  # noqa: BLE001 - logged: the next round may succeed
                self._failures.inc()
                _log.exception("the log cleaner failed", extra={"directory": directory})

    def _jobs(self, directory: int) -> list[Job]:
        """The compacted logs of a directory, with their current state."""
        left = self._left[directory].items()
        self._left[directory] = {log: until for log, until in left if log.broken is None}
        rules = {}
        found: list[tuple[TopicPartition, PartitionLog, int]] = []
        for partition, log in self._logs.logs_in(directory):
            rules[partition.topic] = self._topics.rules(partition.topic).settings
            if "compact" in rules[partition.topic].cleanup_policy and not self._paused(partition):
                found.append((partition, log, log.segments.truncations))
        if not found:
            return []
        stable_offsets = self._stable_offsets()
        return [
            Job(
                partition,
                log,
                min(stable_offsets[partition], log.log_end_offset),
                truncations,
                _settings(rules[partition.topic], self._buffer_bytes, self._settings.log_cleaner_io_buffer_size),
            )
            for partition, log, truncations in found
            if partition in stable_offsets
        ]

    def _clean_all(self, directory: int, jobs: Iterable[Job]) -> None:
        """One round, the dirtiest log first; runs on the directory's thread."""
        due: list[tuple[float, Job]] = []
        dirtiest = 0.0
        now_us = self._wall.earliest_us()
        for job in jobs:
            view = job.log.cleaning.view(job.end_offset, truncations=job.truncations)
            if view is None:
                continue
            dirt = dirt_of(view, job.settings, now_us=now_us)
            dirtiest = max(dirtiest, dirt.ratio)
            moves, until_s = self._left[directory].get(job.log, (-1, 0.0))
            if moves == job.log.segments.moves and time.monotonic() < until_s:
                continue
            is_dirty = dirt.dirty_bytes and dirt.ratio >= job.settings.min_cleanable_dirty_ratio
            if is_dirty or is_horizon_over(view, dirt, now_us=now_us):
                due.append((dirt.ratio, job))
        self._dirtiest.labels(str(directory)).set(dirtiest)
        for _, job in sorted(due, key=lambda one: one[0], reverse=True):
            if self._threads.stopping.is_set():
                return
            self._clean(directory, job)

    def _clean(self, directory: int, job: Job) -> None:
        started_s = time.perf_counter()
        try:
            done = clean_log(
                job.log,
                job.end_offset,
                job.settings,
                truncations=job.truncations,
                now_us=self._wall.earliest_us(),
                horizons_from_us=self._wall.latest_us(),
                pace=partial(self._threads.pace, directory),
                layouts=partial(self._topics.layouts.stored, job.partition.topic),
            )
        except Stopped:
            return
        except TidemarkError as error:
            self._failures.inc()
            _log.error("a log could not be cleaned", extra={"partition": str(job.partition), "why": error.message})
            if error.code not in _PASSING:
                self._leave(directory, job)
                self._find_damage(directory, job)
            return
        except Exception:  # noqa: BLE001 - logged: one log delays no other
            self._failures.inc()
            _log.exception("a log could not be cleaned", extra={"partition": str(job.partition)})
            self._leave(directory, job)
            return
        self._note(job, done, time.perf_counter() - started_s)

    def _leave(self, directory: int, job: Job) -> None:
        """Leave a log that cannot be cleaned, until a repair or for some time, unless it was truncated meanwhile."""
        if job.log.segments.truncations == job.truncations:
            self._left[directory][job.log] = (job.log.segments.moves, time.monotonic() + _LEFT_S)

    def _find_damage(self, directory: int, job: Job) -> None:
        """Request the repair of the damaged segments (rule T6); the first round after the repair cleans the log."""
        view = job.log.cleaning.view(job.end_offset, truncations=job.truncations)
        pace = partial(self._threads.pace, directory)
        try:
            for segment in view.segments if view is not None else ():
                if find_damage(job.log.cleaning, segment, pace) and self._loop is not None:
                    self._loop.call_soon_threadsafe(self._suspect, job.partition, segment.base_offset)
        except (OSError, Stopped):
            return

    def _note(self, job: Job, done: CleaningDone, took_s: float) -> None:
        self._read.inc(done.bytes_read)
        self._freed.inc(max(0, done.bytes_before - done.bytes_after))
        if not done.passes:
            return
        self._last_run.set(time.time())
        self._runs.inc()
        _log.info(
            "log cleaned",
            extra={
                "partition": str(job.partition),
                "clean_point": done.clean_point,
                "passes": done.passes,
                "bytes_before": done.bytes_before,
                "bytes_after": done.bytes_after,
                "took_s": round(took_s, 3),
            },
        )


def _settings(topic: TopicSettings, dedupe_buffer_bytes: int, io_buffer_bytes: int) -> CleanerSettings:
    return CleanerSettings(
        delete_retention_ms=topic.delete_retention_ms,
        min_cleanable_dirty_ratio=topic.min_cleanable_dirty_ratio,
        min_compaction_lag_ms=topic.min_compaction_lag_ms,
        dedupe_buffer_bytes=dedupe_buffer_bytes,
        io_buffer_bytes=io_buffer_bytes,
    )
