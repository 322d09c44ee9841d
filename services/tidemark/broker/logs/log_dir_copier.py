# SPDX-License-Identifier: Apache-2.0
"""Copies replicas from one log directory into another, one after the other, and puts them in their place (rule M3).

One thread and one task for each pair of directories. A move has its turn until its copy has caught up; then what comes
for the replica is held for as long as the rest takes. Between two steps a move can be ended: its copy stays, to be gone
on with, or goes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import partial
from typing import Final, TypeVar

from tidemark.broker.logs.append_threads import LogThreads
from tidemark.broker.logs.open_log import OpenReplica
from tidemark.core.replication.queries import BrokerQueries
from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.runtime.configuration import UNLIMITED
from tidemark.runtime.metrics import Metrics
from tidemark.storage.directories.future_log import FutureLog
from tidemark.storage.directories.log_manager import LogManager
from tidemark.storage.log.partition_log import PartitionLog

_T = TypeVar("_T")

_CHUNK_BYTES: Final = 1 << 20
_CHUNK_BYTES_MIN: Final = 16 << 10
_CHUNKS_A_SECOND_MIN: Final = 4
_FLUSH_BYTES: Final = 64 << 20
_PAUSE_S: Final = 1.0
"""Before the next try where there is no space, or the replica is not whole."""
_STOP_S: Final = 30.0

_log = logging.getLogger(__name__)


class Outcome(Enum):
    """How a move ended."""

    MOVED = "moved"
    STOPPED = "stopped"  # the copy stays: the replica was closed, or the broker stops
    GIVEN_UP = "given up"  # the copy goes, the replica stays where it is


class Budget:
    """Bytes that the copying of some moves may write in a second, together."""

    def __init__(self, bytes_per_s: int = UNLIMITED, now_s: Callable[[], float] = time.monotonic) -> None:
        self.bytes_per_s = bytes_per_s
        self._now_s = now_s
        self._free_at_s = 0.0

    def take(self, size_bytes: int) -> float:
        """After they were written: seconds until the next may be."""
        if self.bytes_per_s == UNLIMITED:
            return 0.0
        now_s = self._now_s()
        self._free_at_s = max(self._free_at_s, now_s) + size_bytes / self.bytes_per_s
        return self._free_at_s - now_s

    def chunk_bytes(self) -> int:
        """How much to copy at a time, so that a low budget is used evenly."""
        if self.bytes_per_s == UNLIMITED:
            return _CHUNK_BYTES
        return min(_CHUNK_BYTES, max(_CHUNK_BYTES_MIN, self.bytes_per_s // _CHUNKS_A_SECOND_MIN))


class DirMove:
    """A replica on its way; `directory` is the index of where to.

    Attributes:
        replica: as it was open when the move began.
        future, copier: its copy and who fills it; None until that is made.
        copying: it has its turn: nothing of the replica is cleaned or let go by age or size meanwhile.
        is_ended: it was asked to end; `keeps_copy`: what becomes of the copy then.
    """

    def __init__(self, replica: OpenReplica, directory: int, budget: Budget) -> None:
        self.replica = replica
        self.partition: TopicPartition = replica.partition
        self.directory = directory
        self.budget = budget
        self.future: FutureLog | None = None
        self.copier: DirCopier | None = None
        self.copying = False
        self.keeps_copy = True
        self.is_ended = False
        self._news = asyncio.Event()

    def end(self, *, keeps_copy: bool) -> None:
        """Go on no more than it takes to leave things whole."""
        self.keeps_copy = keeps_copy
        self.is_ended = True
        self.look_again()

    def look_again(self) -> None:
        """Wait no longer: the budget is another, or the log."""
        self._news.set()

    async def wait(self, seconds: float) -> None:
        """So long, or until there is something to look at."""
        self._news.clear()
        if seconds > 0 and not self.is_ended:
            try:
                await asyncio.wait_for(self._news.wait(), seconds)
            except TimeoutError:
                return


class CopyMetrics:
    """What operators see of all moves of a broker."""

    def __init__(self, metrics: Metrics) -> None:
        self.moves = metrics.gauge("broker_log_dir_moves", "Running log directory moves")
        self.moved = metrics.counter("broker_log_dir_moves_done", "Completed log directory moves")
        self.failures = metrics.counter("broker_log_dir_moves_failed", "Log directory moves that failed")
        self.copied_bytes = metrics.counter("broker_log_dir_moves_copied_bytes", "Bytes copied between log directories")
        self.paused_s = metrics.histogram(
            "broker_log_dir_move_pause_seconds", "How long a replica accepted no appends at the end of its move"
        )


class DirCopier:
    """The moves from one directory into another.

    Args:
        done: told of each move that ended, on the event loop.
        fail: called with a mistake of ours.
    """

    def __init__(
        self,
        name: str,
        queries: BrokerQueries,
        logs: LogManager,
        threads: LogThreads,
        metrics: CopyMetrics,
        done: Callable[[DirMove, Outcome], None],
        fail: Callable[[BaseException], None],
    ) -> None:
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
        """Its copy is there: have it filled when its turn comes."""
        self._waiting[move] = None
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"move {self._name}")

    def end(self, move: DirMove, *, keeps_copy: bool) -> None:
        """End a move that was added: soon; at once where it still waits for its turn."""
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
        except Exception as error:  # noqa: BLE001 - handed on: a task's death must not go unseen
            self._fail(error)

    async def run(self, call: Callable[[], _T]) -> _T:
        """Something that takes its time, on the thread of these moves."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def stop(self) -> None:
        """Wait for the end of moves that were asked to end, and of the thread; not for ever for an append thread that
        has died, and reaches no pause any more."""
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
        except Exception as error:  # noqa: BLE001 - handed on: a task's death must not go unseen
            self._fail(error)
        finally:
            self._task = None

    async def _finish(self, move: DirMove) -> Outcome:
        """All of a move's turn."""
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
        assert future is not None, "it has its turn when its copy is made"
        unflushed_bytes, near, told = 0, False, False
        while not move.is_ended:
            try:
                copied = await self.run(partial(future.copy, move.budget.chunk_bytes()))
                unflushed_bytes += copied.size_bytes
                self._metrics.copied_bytes.inc(copied.size_bytes)
                if copied.caught_up and not near:
                    await self.run(partial(self._logs.mover.sync, future))  # while nobody waits for it yet
                    near = True
                elif unflushed_bytes >= _FLUSH_BYTES:
                    await self.run(future.log.flush)
                    unflushed_bytes = 0
                elif copied.caught_up and not future.source.is_damaged:
                    return Outcome.MOVED if await self._swap(move, future) else Outcome.STOPPED
                waits_for_repair = copied.caught_up and future.source.is_damaged
                await move.wait(_PAUSE_S if waits_for_repair else move.budget.take(copied.size_bytes))
            except TidemarkError as error:
                if error.code is not ErrorCode.DISK_FULL:
                    raise
                if not told:
                    told = True
                    _log.warning("no space to move to", extra={"partition": str(move.partition), "why": error.message})
                await move.wait(_PAUSE_S)
        return Outcome.STOPPED if move.keeps_copy else Outcome.GIVEN_UP

    async def _swap(self, move: DirMove, future: FutureLog) -> bool:
        """Whether the replica was still the one that was copied."""
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
        """What a failure means: the replica's own end is none of the move's; what else there is ends the move."""
        future = move.future
        assert future is not None, "it has its turn when its copy is made"
        states = self._logs.directories()
        home = self._logs.directory_of(move.partition)
        source_failed = home is None or states[home].failed is not None
        if source_failed or (future.source.broken is not None and states[move.directory].failed is None):
            return Outcome.STOPPED
        self._metrics.failures.inc()
        _log.error(
            "a move to another log directory was given up",
            extra={"partition": str(move.partition), "why": error.message},
        )
        return Outcome.GIVEN_UP
