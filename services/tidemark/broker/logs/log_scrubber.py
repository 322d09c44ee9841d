# SPDX-License-Identifier: Apache-2.0
"""Reads every sealed batch once in `log.scrub.interval.ms`, and requests repairs of damaged ones (rule T6).

The scrubber also rewrites damaged index files. The scrubber reads the disk, not the page cache. Each log directory has
one thread. A pass goes through the partitions of a directory by name. Its position is stored in the directory, so that
a pass continues after a restart.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from tidemark.broker.logs.directory_threads import DirectoryThreads, Stopped
from tidemark.model import Offset, TidemarkError, TopicPartition
from tidemark.runtime.configuration.settings import BrokerSettings
from tidemark.runtime.metrics import Metrics
from tidemark.storage.directories.log_manager import LogManager
from tidemark.storage.directories.scrub_position import ScrubPosition, read_scrub_position, write_scrub_position
from tidemark.storage.log.partition_log import PartitionLog
from tidemark.storage.log.segment_repair import DamagedRange, find_damage_on_disk
from tidemark.storage.segments.segment import Segment

_log = logging.getLogger(__name__)
_STORE_S: Final = 10.0
"""Interval at which the position of a pass is stored."""


class LogScrubber:
    """The scrubber starts and stops with the broker, and is off with `log.scrub.interval.ms` 0.

    Args:
        repair: repairs the segment that holds an offset of a partition.
    """

    def __init__(
        self,
        logs: LogManager,
        high_watermarks: Callable[[], Mapping[TopicPartition, Offset]],
        repair: Callable[[TopicPartition, int], Awaitable[bool]],
        settings: BrokerSettings,
        metrics: Metrics,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._logs = logs
        self._high_watermarks = high_watermarks
        self._repair = repair
        self._interval_ms = settings.log_scrub_interval_ms
        self._fail = fail
        limit = settings.log_scrub_io_max_bytes_per_second
        self._threads = DirectoryThreads("log-scrubber", len(logs.directories()), limit)
        self._read = metrics.counter("broker_log_scrub_read_bytes", "Bytes that the scrubber read and checked")
        self._ended = metrics.gauge(
            "broker_log_scrub_last_pass_timestamp_seconds",
            "Time at which the scrubber last reached the end of a log directory",
            ("directory",),
        )

    def start(self) -> None:
        """Start, unless `log.scrub.interval.ms` is 0."""
        if self._interval_ms:
            for task in self._threads.start(self._run):
                task.add_done_callback(self._on_end)

    async def stop(self) -> None:
        """Stop between two reads."""
        await self._threads.stop()

    def _on_end(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, Stopped):
            self._fail(error)

    async def _run(self, directory: int) -> None:
        path = self._logs.directories()[directory].path
        position = read_scrub_position(path) or ScrubPosition(began_ms=_now_ms(), ended=True)
        _store(path, position)
        while True:
            if position.ended:
                left_ms = position.began_ms + self._interval_ms - _now_ms()
                await asyncio.sleep(min(max(0, left_ms), self._interval_ms) / 1000)  # the clock may have been wrong
                position = ScrubPosition(began_ms=_now_ms())
            await self._pass(directory, position)
            position = ScrubPosition(began_ms=position.began_ms, ended=True)
            _store(path, position)
            self._ended.labels(str(path)).set(time.time())

    async def _pass(self, directory: int, position: ScrubPosition) -> None:
        """Read the sealed segments of a log directory from the position on; stores the position periodically."""
        stored_s = time.monotonic()
        path = self._logs.directories()[directory].path
        names = sorted((str(partition), partition) for partition, _ in self._logs.logs_in(directory))
        for name, partition in names:
            if name < position.partition:
                continue
            offset = position.offset if name == position.partition else 0
            while (segment := await self._scrub_next(directory, partition, offset)) is not None:
                offset = segment.next_offset
                if time.monotonic() - stored_s >= _STORE_S:
                    stored_s = time.monotonic()
                    _store(path, position._replace(partition=name, offset=offset))

    async def _scrub_next(self, directory: int, partition: TopicPartition, offset: int) -> Segment | None:
        """Read the first sealed segment that ends past `offset`; None if there is none, or it cannot be read."""
        log = dict(self._logs.logs_in(directory)).get(partition)
        if log is None:
            return None
        truncations = log.segments.truncations
        high_watermark = self._high_watermarks().get(partition, Offset(0))
        look = partial(self._look, directory, log, offset, high_watermark, truncations)
        try:
            segment, found = await self._threads.run(directory, look)
        except (OSError, TidemarkError) as error:
            # The disk fails, or the segment was removed during the read. Reads and checkpoints report a failing disk.
            _log.info("a log was not scrubbed", extra={"partition": str(partition), "why": str(error)})
            return None
        if found:
            await self._repair(partition, found[0].start_offset)
        return segment

    def _look(
        self, directory: int, log: PartitionLog, offset: int, high_watermark: int, truncations: int
    ) -> tuple[Segment | None, list[DamagedRange]]:
        view = log.cleaning.view(high_watermark, truncations=truncations)
        segments = () if view is None else view.segments
        segment = next((one for one in segments if one.next_offset > offset), None)
        if segment is None:
            return None, []
        found = find_damage_on_disk(log.cleaning, segment, partial(self._pace, directory))
        if not found and log.cleaning.heal_index(segment):
            _log.warning(
                "the damaged index files of a segment were rewritten", extra={"segment": str(segment.log_path)}
            )
        return segment, found

    def _pace(self, directory: int, size_bytes: int) -> None:
        self._read.inc(size_bytes)
        self._threads.pace(directory, size_bytes)


def _store(path: Path, position: ScrubPosition) -> None:
    """Store the position; without that, a restart repeats a part of the pass."""
    try:
        write_scrub_position(path, position)
    except OSError as error:
        _log.warning("the position of the scrubber is not stored", extra={"directory": str(path), "why": str(error)})


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
