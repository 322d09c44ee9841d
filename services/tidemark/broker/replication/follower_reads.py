# SPDX-License-Identifier: Apache-2.0
"""Reads of the leader's log for its followers (`ReadForFollower`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from tidemark.broker.logs.append_threads import LogThreads
from tidemark.broker.metrics.broker import BrokerMetrics
from tidemark.core.replication.effects import ReadForFollower
from tidemark.core.replication.events import Event, FollowerReadDone
from tidemark.model import ErrorCode, Offset, TidemarkError, TopicPartition
from tidemark.ports import Log
from tidemark.record.checks import split_until_damage
from tidemark.record.envelope import Batch, split_batches


class _Read(NamedTuple):
    """A read of one opening of a log."""

    log: Log
    offset: int
    end_offset: int
    max_bytes: int


class FollowerReads:
    """Reads cached data on the event loop, and other data on the pool.

    `suspect` gets the partition and the offset of a read that met a damaged batch (rule T6).

    Followers that are caught up need the same batches at the same moment. The result for one follower is reused for the
    next until the event loop runs another task.
    """

    def __init__(
        self,
        logs: LogThreads,
        pool: ThreadPoolExecutor,
        metrics: BrokerMetrics,
        submit: Callable[[Event], None],
        suspect: Callable[[TopicPartition, int], None],
    ) -> None:
        self._suspect = suspect
        self._logs = logs
        self._pool = pool
        self._metrics = metrics
        self._submit = submit
        self._last: tuple[_Read, tuple[Batch, ...]] | None = None

    def read(self, effect: ReadForFollower) -> None:
        """Read batches for a follower; the result comes as the event `FollowerReadDone`."""
        began_s = time.perf_counter()
        log = self._logs.log(effect.partition)
        if log is None:
            error = TidemarkError(ErrorCode.STORAGE_ERROR, f"{effect.partition}: its log is not open")
            self._done(effect, b"", error)
            return
        what = _Read(log, effect.offset, effect.end_offset, effect.max_bytes)
        if self._last is not None and self._last[0] == what:
            self._give(effect, self._last[1])
            return
        try:
            data = _read(log, effect, cached_only=True)
        except TidemarkError as error:
            self._done(effect, b"", error)
            return
        if data is None:
            reading = asyncio.get_running_loop().run_in_executor(self._pool, _read, log, effect)
            reading.add_done_callback(lambda done: self._cold_done(effect, log, done, began_s))
        else:
            self._metrics.follower_read_seconds.observe(time.perf_counter() - began_s)
            batches = self._done(effect, data, None)
            if batches:
                self._last = (what, batches)
                asyncio.get_running_loop().call_soon(self._forget)

    def _forget(self) -> None:
        self._last = None

    def _cold_done(self, effect: ReadForFollower, log: Log, done: asyncio.Future[bytes | None], began_s: float) -> None:
        if done.cancelled():
            return
        self._metrics.follower_read_seconds.observe(time.perf_counter() - began_s)
        failure = done.exception()
        if self._logs.log(effect.partition) is not log:  # the data may be of another incarnation (rule C7)
            sentence = f"{effect.partition}: its log was closed while it was read"
            self._done(effect, b"", TidemarkError(ErrorCode.STORAGE_ERROR, sentence))
        elif failure is None:
            self._done(effect, done.result() or b"", None)
        elif isinstance(failure, TidemarkError):
            self._done(effect, b"", failure)
        else:
            self._done(effect, b"", TidemarkError(ErrorCode.STORAGE_ERROR, f"{effect.partition}: {failure}"))

    def _done(self, effect: ReadForFollower, data: bytes, error: TidemarkError | None) -> tuple[Batch, ...]:
        batches: tuple[Batch, ...] = ()
        damaged_at = effect.offset if error is not None and error.code is ErrorCode.CORRUPT_BATCH else None
        try:
            batches = split_batches(data)
        except TidemarkError as damage:  # the disk returned bytes that differ from the written bytes
            batches = tuple(split_until_damage(data)[0])
            damaged_at = Offset(batches[-1].envelope.next_offset) if batches else effect.offset
            if not batches:
                error = TidemarkError(ErrorCode.CORRUPT_BATCH, f"{effect.partition}: {damage.message}")
        if damaged_at is not None:
            self._suspect(effect.partition, damaged_at)
        self._give(effect, batches, error)
        return batches

    def _give(self, effect: ReadForFollower, batches: tuple[Batch, ...], error: TidemarkError | None = None) -> None:
        self._metrics.replicated_bytes.value += sum([batch.envelope.batch_length for batch in batches])
        self._submit(
            FollowerReadDone(effect.follower, effect.partition, effect.leader_epoch, effect.offset, batches, error)
        )


def _read(log: Log, effect: ReadForFollower, cached_only: bool = False) -> bytes | None:
    return log.read(effect.offset, end_offset=effect.end_offset, max_bytes=effect.max_bytes, cached_only=cached_only)
