# SPDX-License-Identifier: Apache-2.0
"""Copies replicas from one log directory into another, and puts the copies in place (rule M3).

Each pair of directories has one thread and one task, which copies one replica at a time until its copy has caught up.
Then effects on the replica are held while the last records are copied and the log is swapped. A move can be ended
between two steps: its copy stays for a later start, or is deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import partial
from typing import Final, TypeVar

from tidemark.broker.logs.append_threads import LogThreads
from tidemark.broker.logs.disk_throttle import DiskThrottle
from tidemark.broker.logs.open_log import OpenReplica
from tidemark.core.replication.queries import BrokerQueries
from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.runtime.clock import timeout
from tidemark.runtime.metrics import Metrics
from tidemark.storage.directories.future_log import FutureLog
from tidemark.storage.directories.log_manager import LogManager
from tidemark.storage.log.partition_log import PartitionLog

_T = TypeVar("_T")

_FLUSH_BYTES: Final = 64 << 20
_PAUSE_S: Final = 1.0
"""Retry delay when the target is full or the replica is damaged."""
_STOP_S: Final = 30.0

_log = logging.getLogger(__name__)


class Outcome(Enum):
    """How a move ended."""

    MOVED = "moved"
    STOPPED = "stopped"  # the copy is kept: the replica was closed, or the broker stops
    GIVEN_UP = "given up"  # the copy is deleted, the replica stays in its directory


class DirMove:
    """The move of a replica to the log directory of index `directory`.

    Attributes:
        replica: the open replica when the move began.
        future, copier: the copy, and the copier that fills it; None until the copy is made.
        copying: the copier copies this replica; meanwhile the cleaner does not change the replica.
        is_ended: the move was requested to end; `keeps_copy`: whether the copy stays then.
    """

    def __init__(self, replica: OpenReplica, directory: int, throttle: DiskThrottle) -> None:
        self.replica = replica
        self.partition: TopicPartition = replica.partition
        self.directory = directory
        self.throttle = throttle
        self.future: FutureLog | None = None
        self.copier: DirCopier | None = None
        self.copying = False
        self.keeps_copy = True
        self.is_ended = False
        self._changed = asyncio.Event()

    def end(self, *, keeps_copy: bool) -> None:
        """Request the end of the move; it ends after the current step."""
        self.keeps_copy = keeps_copy
        self.is_ended = True
        self.wake()

    def wake(self) -> None:
        """End the current wait: the throttle or the log has changed."""
        self._changed.set()

    async def wait(self, seconds: float) -> None:
        """Wait for `seconds`, or until `wake`."""
        self._changed.clear()
        if seconds > 0 and not self.is_ended:
            with contextlib.suppress(TimeoutError):
                async with timeout(seconds):
                    await self._changed.wait()


class CopyMetrics:
    """The metrics of all moves of a broker."""

    def __init__(self, metrics: Metrics) -> None:
        self.moves = metrics.gauge("broker_log_dir_moves", "Running log directory moves")
        self.moved = metrics.counter("broker_log_dir_moves_done", "Completed log directory moves")
        self.failures = metrics.counter("broker_log_dir_moves_failed", "Log directory moves that failed")
        self.copied_bytes = metrics.counter("broker_log_dir_moves_copied_bytes", "Bytes copied between log directories")
        self.paused_s = metrics.histogram(
            "broker_log_dir_move_pause_seconds", "Time for which a replica accepted no appends at the end of its move"
        )


class DirCopier:
    """The moves from one directory into another.

    Args:
        done: called on the event loop with each move that ended.
        suspect: called on the event loop with the offset of a damaged batch, to be repaired (rule T6).
        fail: called with an unexpected error.
    """

    def __init__(
        self,
        name: str,
        queries: BrokerQueries,
        logs: LogManager,
        threads: LogThreads,
        metrics: CopyMetrics,
        done: Callable[[DirMove, Outcome], None],
        suspect: Callable[[TopicPartition, int], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._suspect = suspect
        self._queries = queries
        self._logs = logs
        self._threads = threads
        self._metrics = metrics
        self._done = done
        self._fail = fail
        self._name = name
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"move-{name}")
        self._waiting: dict[DirMove, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()

    def add(self, move: DirMove) -> None:
        """Queue a move whose copy was made."""
        self._waiting[move] = None
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"move {self._name}")

    def end(self, move: DirMove, *, keeps_copy: bool) -> None:
        """End a queued move immediately, and a running one after its current step."""
        move.end(keeps_copy=keeps_copy)
        if move in self._waiting:
            del self._waiting[move]
            task = asyncio.create_task(self._drop(move), name=f"end of the move of {move.partition}")
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _drop(self, move: DirMove) -> None:
        try:
            if not move.keeps_copy:
                await self.run(partial(self._logs.mover.abandon, move.partition))
            self._done(move, Outcome.STOPPED if move.keeps_copy else Outcome.GIVEN_UP)
        except Exception as error:  # noqa: BLE001 - passed to `fail`: a task must not end unnoticed
            self._fail(error)

    async def run(self, call: Callable[[], _T]) -> _T:
        """Run a slow call on the thread of these moves."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def stop(self) -> None:
        """Wait until the ended moves and the thread are done, for a limited time. An append thread that has ended by an
        error never reaches a pause."""
        tasks = [*self._ending, *([self._task] if self._task is not None else [])]
        if tasks:
            _, stuck = await asyncio.wait(tasks, timeout=_STOP_S)
            for task in stuck:
                task.cancel()
            await asyncio.gather(*stuck, return_exceptions=True)
        await asyncio.to_thread(self._thread.shutdown)

    async def _run(self) -> None:
        try:
            while self._waiting:
                move = next(iter(self._waiting))
                del self._waiting[move]
                outcome = await self._finish(move)
                self._done(move, outcome)
        except Exception as error:  # noqa: BLE001 - passed to `fail`: a task must not end unnoticed
            self._fail(error)
        finally:
            self._task = None

    async def _finish(self, move: DirMove) -> Outcome:
        """Carry out a move to its end."""
        move.copying = True
        try:
            outcome = await self._carry_out(move)
        except TidemarkError as error:
            outcome = self._judge(move, error)
        finally:
            move.copying = False
        if outcome is Outcome.GIVEN_UP:
            await self.run(partial(self._logs.mover.abandon, move.partition))
        return outcome

    async def _carry_out(self, move: DirMove) -> Outcome:
        future = move.future
        assert future is not None, "a queued move has its copy"
        unflushed_bytes, is_synced, warned = 0, False, False
        while not move.is_ended:
            try:
                copied = await self.run(partial(future.copy, move.throttle.chunk_bytes()))
                unflushed_bytes += copied.size_bytes
                self._metrics.copied_bytes.inc(copied.size_bytes)
                if copied.caught_up and not is_synced:
                    # the flush precedes the pause, which delays appends
                    await self.run(partial(self._logs.mover.sync, future))
                    is_synced = True
                elif unflushed_bytes >= _FLUSH_BYTES:
                    await self.run(future.log.flush)
                    unflushed_bytes = 0
                elif copied.caught_up and not future.source.is_damaged:
                    return Outcome.MOVED if await self._swap(move, future) else Outcome.STOPPED
                waits_for_repair = copied.caught_up and future.source.is_damaged
                await move.wait(_PAUSE_S if waits_for_repair else move.throttle.take(copied.size_bytes))
            except TidemarkError as error:
                if error.code not in (ErrorCode.DISK_FULL, ErrorCode.CORRUPT_BATCH):
                    raise
                is_full = error.code is ErrorCode.DISK_FULL
                if not is_full:
                    self._suspect(move.partition, future.log.log_end_offset)
                if not warned:
                    warned = True
                    sentence = (
                        "the target directory has no space for a move"
                        if is_full
                        else "a move waits for the repair of a damaged batch"
                    )
                    _log.warning(sentence, extra={"partition": str(move.partition), "why": error.message})
                await move.wait(_PAUSE_S)
        return Outcome.STOPPED if move.keeps_copy else Outcome.GIVEN_UP

    async def _swap(self, move: DirMove, future: FutureLog) -> bool:
        """Put the copy in place of the log; False if the copied log is not the open one any more."""
        replica = self._threads.replica(move.partition)
        if replica is None or replica.log is not future.source or not await self._threads.pause(replica):
            return False
        began_s = time.perf_counter()
        moved: tuple[PartitionLog, int] | None = None
        try:
            moved = await self._put_in_place(move, future, replica)
        finally:
            self._threads.resume(replica, moved)
        if moved is not None:
            self._metrics.paused_s.observe(time.perf_counter() - began_s)
        return moved is not None

    async def _put_in_place(
        self, move: DirMove, future: FutureLog, replica: OpenReplica
    ) -> tuple[PartitionLog, int] | None:
        view = self._queries.replica(move.partition)
        if view is None or replica.failed:
            return None
        log = await self.run(partial(self._logs.mover.finish, future, view.high_watermark))
        return log, move.directory

    def _judge(self, move: DirMove, error: TidemarkError) -> Outcome:
        """The outcome after an error: a failed source stops the move, any other error cancels it."""
        future = move.future
        assert future is not None, "a queued move has its copy"
        states = self._logs.directories()
        home = self._logs.directory_of(move.partition)
        source_failed = home is None or states[home].failed is not None
        if source_failed or (future.source.broken is not None and states[move.directory].failed is None):
            return Outcome.STOPPED
        self._metrics.failures.inc()
        _log.error(
            "a move to another log directory failed",
            extra={"partition": str(move.partition), "why": error.message},
        )
        return Outcome.GIVEN_UP
