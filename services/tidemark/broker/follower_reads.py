"""Reads of the leader's log for its followers (`ReadForFollower`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tidemark.broker.log_threads import LogThreads
from tidemark.broker.metrics import BrokerMetrics
from tidemark.core.effects import ReadForFollower
from tidemark.core.events import Event, FollowerReadDone
from tidemark.model import ErrorCode, TidemarkError
from tidemark.ports import Log
from tidemark.record.envelope import Batch, split_batches


class FollowerReads:
    """What lies in the page cache is read at once, the rest by the pool."""

    def __init__(
        self,
        logs: LogThreads,
        pool: ThreadPoolExecutor,
        metrics: BrokerMetrics,
        submit: Callable[[Event], None],
    ) -> None:
        self._logs = logs
        self._pool = pool
        self._metrics = metrics
        self._submit = submit

    def read(self, effect: ReadForFollower) -> None:
        """Carry out `ReadForFollower`."""
        log = self._logs.log(effect.partition)
        if log is None:
            error = TidemarkError(ErrorCode.STORAGE_ERROR, f"{effect.partition}: its log is not open")
            self._done(effect, b"", error)
            return
        try:
            data = _read(log, effect, cached_only=True)
        except TidemarkError as error:
            self._done(effect, b"", error)
            return
        if data is None:
            reading = asyncio.get_running_loop().run_in_executor(self._pool, _read, log, effect)
            reading.add_done_callback(lambda done: self._cold_done(effect, log, done))
        else:
            self._done(effect, data, None)

    def _cold_done(self, effect: ReadForFollower, log: Log, done: asyncio.Future[bytes | None]) -> None:
        if done.cancelled():
            return
        failure = done.exception()
        if self._logs.log(effect.partition) is not log:  # what was read may be of another incarnation (rule C7)
            sentence = f"{effect.partition}: its log was closed while it was read"
            self._done(effect, b"", TidemarkError(ErrorCode.STORAGE_ERROR, sentence))
        elif failure is None:
            self._done(effect, done.result() or b"", None)
        elif isinstance(failure, TidemarkError):
            self._done(effect, b"", failure)
        else:
            self._done(effect, b"", TidemarkError(ErrorCode.STORAGE_ERROR, f"{effect.partition}: {failure}"))

    def _done(self, effect: ReadForFollower, data: bytes, error: TidemarkError | None) -> None:
        batches: tuple[Batch, ...] = ()
        try:
            batches = split_batches(data)
        except TidemarkError as damage:  # what the disk gave back is not what was written
            error = damage
        else:
            self._metrics.replicated_bytes.inc(len(data))
        self._submit(
            FollowerReadDone(effect.follower, effect.partition, effect.leader_epoch, effect.offset, batches, error)
        )


def _read(log: Log, effect: ReadForFollower, cached_only: bool = False) -> bytes | None:
    return log.read(effect.offset, end_offset=effect.end_offset, max_bytes=effect.max_bytes, cached_only=cached_only)
