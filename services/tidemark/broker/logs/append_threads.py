# SPDX-License-Identifier: Apache-2.0
"""Carries out the core's effects on logs, in order: one append thread for each log directory.

Logs are opened on recovery threads and flushed on flush threads (`FlushThreads`), unless the topic leaves flushes to
the kernel. An append thread takes all queued effects, carries them out, and delivers all completions to the event loop
together. Queued appends to one log become one write. While a replica is opened or closed, its effects are held, so that
an effect never reaches the log of another opening. The same holds while a log changes its directory (`pause`,
`resume`).
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Final

from tidemark.broker.logs.flush_threads import FlushThreads
from tidemark.broker.logs.open_log import GROUP_COMMIT, OpenReplica
from tidemark.broker.logs.recovery_threads import RecoveryThreads
from tidemark.broker.node.topic_settings import TopicTable
from tidemark.core.producer_state import ProducerStates
from tidemark.core.replication.effects import (
    AdvanceLogStart,
    AppendToLog,
    ClearDamage,
    CloseLog,
    OpenLog,
    ResetLog,
    ResumeLog,
    SaveEpochs,
    TruncateLog,
)
from tidemark.core.replication.events import (
    Event,
    LogAppended,
    LogFailed,
    LogFlushed,
    LogFull,
    LogMoved,
    LogOpened,
    LogTruncated,
    RecoveredLog,
)
from tidemark.model import ErrorCode, Offset, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.ports import Log, Logs
from tidemark.record.envelope import Batch
from tidemark.runtime.slices import SlicedCalls

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RollLog:
    """Roll the active segment if it is older than segment.ms; this changes no state of the core."""

    partition: TopicPartition
    identity: ReplicaIdentity
    now_ms: int


@dataclass(frozen=True, slots=True)
class ReachPause:
    """Completes `reached` after all earlier effects on the replica, and after the delivery of their completions."""

    partition: TopicPartition
    identity: ReplicaIdentity
    reached: asyncio.Future[None]


LogEffect = (
    OpenLog
    | CloseLog
    | AppendToLog
    | TruncateLog
    | ResetLog
    | AdvanceLogStart
    | ResumeLog
    | ClearDamage
    | SaveEpochs
    | RollLog
    | ReachPause
)
_DRAIN_MAX: Final = 64
_SPACE_S: Final = 1.0
"""Retry delay for a truncation that failed with ENOSPC."""
_CALM_S: Final = 5.0
"""Time after an append without space from which on one of another replica proves space. On a full disk, small appends
may still fit; the refused replica tries again after a second, and its producer's pause."""


_Job = tuple[OpenReplica, LogEffect, float]
"""Replica, effect, and time of the submission."""


class LogThreads:
    """Owns the open logs.

    Args:
        deliver: called on the event loop with completions, in order.
        fail: called on the event loop with an unexpected error of a thread.
        observe_append: called on the event loop with the seconds from an append's submission to its completion.
        note_space: called on the event loop with a directory's index and False when it is full, True when it has space
            again.
        observe_flush: called on the event loop with the seconds that an fdatasync of a log took.
        openers: the threads that open logs; stopped with these threads.
    """

    def __init__(
        self,
        logs: Logs,
        topics: TopicTable,
        deliver: Callable[[Sequence[Event]], None],
        fail: Callable[[BaseException], None],
        observe_append: Callable[[float], None],
        observe_flush: Callable[[float], None],
        note_space: Callable[[int, bool], None] = lambda directory, has_space: None,
        openers: RecoveryThreads | None = None,
    ) -> None:
        self._logs = logs
        self._topics = topics
        self._deliver = deliver
        self._fail = fail
        self._observe_append = observe_append
        self._observe_flush = observe_flush
        self._note_space = note_space
        self._loop = asyncio.get_running_loop()
        self._calls = SlicedCalls(self._loop)
        self._replicas: dict[TopicPartition, OpenReplica] = {}
        self._held: dict[TopicPartition, deque[LogEffect]] = {}
        self._paused: set[TopicPartition] = set()
        self._offline: dict[int, TidemarkError] = {}
        self._full: dict[int, tuple[OpenReplica, float]] = {}
        """By full directory, the replica and the time of its last append without space."""
        self._opened_listener: Callable[[TopicPartition], None] = lambda partition: None
        self._openers = openers or RecoveryThreads(logs)
        self._queues: list[queue.SimpleQueue[_Job | None]] = [queue.SimpleQueue() for _ in logs.directory_ids]
        self._threads = [
            threading.Thread(target=self._run, args=(jobs,), name=f"append-{index}", daemon=True)
            for index, jobs in enumerate(self._queues)
        ]
        topics.listen(self._topics_changed)
        self._flush = FlushThreads(
            len(self._queues),
            lambda *flush: self._on_loop(self._flushed, *flush),
            lambda *failure: self._on_loop(self._flush_failed, *failure),
            lambda error: self._on_loop(self._fail, error),
        )

    def start(self) -> None:
        """Start the append threads and the flush threads."""
        for thread in self._threads:
            thread.start()
        self._flush.start()

    def stop(self) -> None:
        """Carry out the queued effects on open logs, and cancel queued openings; blocks until the threads end."""
        for jobs in self._queues:
            jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._flush.stop()
        self._openers.stop()

    def log(self, partition: TopicPartition) -> Log | None:
        """The open log of a replica, for reads."""
        replica = self._replicas.get(partition)
        return replica.log if replica is not None else None

    def replica(self, partition: TopicPartition) -> OpenReplica | None:
        """The open log of a replica, and its directory; None: the log is not open."""
        return self._replicas.get(partition)

    def listen(self, listener: Callable[[TopicPartition], None]) -> None:
        """Set the listener that is called, on the event loop, after each opening of a log."""
        self._opened_listener = listener

    def _submit_later(self, replica: OpenReplica, effect: LogEffect) -> None:
        self._loop.call_later(_SPACE_S, self._submit_again, replica, effect)

    def _submit_again(self, replica: OpenReplica, effect: LogEffect) -> None:
        """Submit the effect again if the log is still open, in this or another log directory."""
        current = self._replicas.get(replica.partition)
        if current is not None and current.opening is replica.opening:
            if replica.partition in self._paused:  # a held effect may close the log
                self._submit_later(replica, effect)
            else:
                self.submit(effect)

    def roll_by_time(self, partition: TopicPartition, now_ms: int) -> None:
        """Roll the active segment of an open log if it is old enough."""
        replica = self._replicas.get(partition)
        if replica is not None:
            self.submit(RollLog(partition, replica.identity, now_ms))

    def fail_directory(self, directory: int, error: TidemarkError) -> int:
        """Fail every open log in an offline directory; returns the number of logs that had not failed before.

        `resume` checks a paused log, which a log directory move is copying, and `_opened` one that is being opened.
        """
        self._offline[directory] = error
        self._has_space(directory)  # after the refusals that are queued; the offline directory is reported instead
        here = [one for one in self._replicas.values() if one.directory == directory]
        failed = [one for one in here if one.partition not in self._paused and one.fail()]
        self._deliver([LogFailed(replica.partition, replica.identity, error) for replica in failed])
        return len(failed)

    def submit(self, effect: LogEffect) -> None:
        """Carry out an effect after the earlier effects on the same replica."""
        partition = effect.partition
        held = self._held.get(partition)
        if held is not None:
            held.append(effect)
        elif isinstance(effect, OpenLog):
            self._held[partition] = deque()
            self._openers.open(partition, partial(self._open, effect))
        elif isinstance(effect, CloseLog):
            self._held[partition] = deque()
            replica = self._replicas.pop(partition, None)
            if replica is not None:
                self._queues[replica.directory].put((replica, effect, 0.0))
            else:
                self._openers.run(partial(self._close, effect))
        else:
            replica = self._replicas.get(partition)
            if replica is not None and not replica.failed and replica.identity == effect.identity:
                self._queues[replica.directory].put((replica, effect, time.perf_counter()))

    # -- log directory moves (rule M3) -------------------------------------------------------------------------

    async def pause(self, replica: OpenReplica) -> bool:
        """Hold new effects on the replica, and wait until the earlier ones are done.

        Returns False, without an effect, when the log is being opened or closed, or is closed.
        """
        partition = replica.partition
        if partition in self._held or self._replicas.get(partition) is not replica:
            return False
        self._held[partition] = deque()
        self._paused.add(partition)
        reached: asyncio.Future[None] = self._loop.create_future()
        self._queues[replica.directory].put((replica, ReachPause(partition, replica.identity, reached), 0.0))
        await reached
        return True

    def resume(self, replica: OpenReplica, moved: tuple[Log, int] | None) -> None:
        """End the pause; `moved`: the log and the directory index to use from now on."""
        partition, identity = replica.partition, replica.identity
        held = self._held.pop(partition)
        self._paused.discard(partition)
        current = replica
        if moved is not None:
            current = self._replicas[partition] = OpenReplica(partition, identity, *moved)
            current.full, current.opening = replica.full, replica.opening
            self._left(replica)
            if replica.failed:
                current.fail()
            self._configure(current)
        offline = self._offline.get(current.directory)
        failed = offline is not None and current.fail()
        self._flush.written(current)  # flushes that were refused during the pause
        for one in held:  # held effects precede the next effects of the core
            self.submit(one)
        if moved is not None:
            self._deliver((LogMoved(partition, identity, current.directory),))
        if offline is not None and failed:
            self._deliver((LogFailed(partition, identity, offline),))

    # -- open and close ----------------------------------------------------------------------------------------

    def _open(self, effect: OpenLog) -> None:
        try:
            log, found = self._logs.open(
                effect.partition, effect.identity, self._topics.configs(effect.partition.topic)
            )
        except Exception as error:  # noqa: BLE001 - one replica that cannot be opened must not stop the others
            self._on_loop(self._opened, effect, None, _failure(effect, error))
        else:
            self._on_loop(self._opened, effect, log, found)

    def _opened(self, effect: OpenLog, log: Log | None, found: RecoveredLog | TidemarkError) -> None:
        held = self._held.pop(effect.partition)
        closing = any(isinstance(one, CloseLog) for one in held)
        if log is None:
            assert isinstance(found, TidemarkError), "a log that was not opened has its error"
            if not closing:
                self._deliver((LogFailed(effect.partition, effect.identity, found),))
        else:
            assert isinstance(found, RecoveredLog), "an opened log was recovered"
            replica = self._replicas[effect.partition] = OpenReplica(
                effect.partition, effect.identity, log, found.directory
            )
            self._configure(replica)  # the settings may have changed during the opening
            if not closing:  # else the core has closed this opening, and may wait for another opening
                self._deliver((LogOpened(effect.partition, effect.identity, found),))
            offline = self._offline.get(replica.directory)
            if offline is not None and replica.fail() and not closing:
                self._deliver((LogFailed(effect.partition, effect.identity, offline),))
            if found.flushed_offset < found.log_end_offset:
                self._flush.written(replica)
        for one in held:
            self.submit(one)
        self._opened_listener(effect.partition)

    def _topics_changed(self, topics: frozenset[str]) -> None:
        """Records appended under the old settings are flushed by the new ones."""
        for replica in self._replicas.values():
            if replica.partition.topic in topics:
                self._configure(replica)
                self._flush.settings_changed(replica)

    def _configure(self, replica: OpenReplica) -> None:
        settings = self._topics.rules(replica.partition.topic).settings
        replica.flush_interval_s = settings.flush_interval_ms / 1000
        replica.flush_policy = settings.flush_policy
        replica.log.configure(self._topics.configs(replica.partition.topic))

    def _close(self, effect: CloseLog) -> None:
        """Set the log aside if required; else storage keeps the log for the checkpoints until the next opening."""
        try:
            if effect.set_aside is not None:
                self._logs.set_aside(effect.partition, effect.set_aside)
        except TidemarkError as error:
            _log.warning("cannot set a log aside", extra={"partition": str(effect.partition), "why": str(error)})
        except Exception as error:  # noqa: BLE001 - passed to `fail`
            self._on_loop(self._fail, error)
        self._on_loop(self._closed, effect)

    def _closed(self, effect: CloseLog) -> None:
        for one in self._held.pop(effect.partition):
            self.submit(one)

    # -- the append threads ------------------------------------------------------------------------------------

    def _run(self, jobs: queue.SimpleQueue[_Job | None]) -> None:
        going_on = True
        while going_on:
            work: list[_Job] = []
            job = jobs.get()
            try:
                while job is not None:
                    work.append(job)
                    if len(work) == _DRAIN_MAX:
                        break
                    job = jobs.get_nowait()
                going_on = job is not None
            except queue.Empty:
                pass
            done: list[Event] = []
            truncated: list[OpenReplica] = []
            try:
                for replica, effects in _by_replica(work).items():
                    self._carry_out(replica, effects, done, truncated)
            except BaseException as error:  # noqa: BLE001 - passed to `fail`: a thread must not end unnoticed
                self._on_loop(self._fail, error)
                return
            if done:
                submitted_s = [at for _, effect, at in work if isinstance(effect, AppendToLog)]
                self._on_loop(self._completed, done, truncated, submitted_s)
            for _, effect, _ in work:
                if isinstance(effect, ReachPause):
                    self._on_loop(_reach, effect.reached)

    def _completed(self, events: list[Event], truncated: list[OpenReplica], submitted_s: list[float]) -> None:
        for replica in truncated:
            replica.truncations += 1
            self._flush.written(replica)
        self._deliver(events)
        now_s = time.perf_counter()
        for at_s in submitted_s:
            self._observe_append(now_s - at_s)

    def _flushed(self, replica: OpenReplica, truncations: int, flushed_offset: Offset, took_s: float) -> None:
        """Report the flush to the core, unless the log was truncated meanwhile: then another flush follows."""
        self._observe_flush(took_s)
        current = (
            self._replicas.get(replica.partition) is replica
            and truncations == replica.truncations
            and not replica.failed
        )
        if current and replica.flush_policy == GROUP_COMMIT:
            self._deliver((LogFlushed(replica.partition, replica.identity, flushed_offset),))

    def _flush_failed(self, replica: OpenReplica, error: TidemarkError) -> None:
        """Ignore the error of a closed log. A log directory move may have replaced a paused log; `resume` flushes the
        new log.
        """
        if (
            replica.partition not in self._paused
            and self._replicas.get(replica.partition) is replica
            and replica.fail()
        ):
            self._deliver((LogFailed(replica.partition, replica.identity, error),))

    def _carry_out(
        self, replica: OpenReplica, effects: list[LogEffect], done: list[Event], truncated: list[OpenReplica]
    ) -> None:
        for appends, group in groupby(effects, key=lambda effect: type(effect) is AppendToLog):
            some: list[Any] = list(group)
            if appends:
                if not replica.failed and not replica.full:
                    self._attempt(replica, some[0], done, partial(self._append, replica, some, done))
                continue
            for effect in some:
                if isinstance(effect, CloseLog):
                    if done:  # completions of this opening precede those of the next one
                        self._on_loop(self._completed, [*done], [*truncated], [])
                        done.clear()
                        truncated.clear()
                    self._left(replica)
                    self._close(effect)
                elif not replica.failed:
                    self._attempt(replica, effect, done, partial(_do, replica, effect, done))
                    if isinstance(effect, TruncateLog | ResetLog):
                        truncated.append(replica)

    def _append(self, replica: OpenReplica, effects: Sequence[AppendToLog], done: list[Event]) -> None:
        _append(replica, effects, done)
        full = self._full.get(replica.directory)
        if full is not None and (full[0] is replica or time.monotonic() - full[1] >= _CALM_S):
            self._has_space(replica.directory)
        self._flush.written(replica)

    def _left(self, replica: OpenReplica) -> None:
        """The log of a replica was closed, or has left its directory: if it was refused last, no append may follow."""
        full = self._full.get(replica.directory)
        if full is not None and full[0] is replica:
            self._has_space(replica.directory)

    def _has_space(self, directory: int) -> None:
        if self._full.pop(directory, None) is not None:
            self._on_loop(self._note_space, directory, True)

    def _attempt(self, replica: OpenReplica, effect: LogEffect, done: list[Event], act: Callable[[], None]) -> None:
        try:
            try:
                act()
            except TidemarkError as error:
                if error.code is not ErrorCode.DISK_FULL or not self._waits_for_space(replica, effect, error, done):
                    raise
        except TidemarkError as error:  # also where the log directory has failed since
            if replica.fail():
                done.append(LogFailed(replica.partition, replica.identity, error))

    def _waits_for_space(
        self, replica: OpenReplica, effect: LogEffect, error: TidemarkError, done: list[Event]
    ) -> bool:
        """Whether the log is as it was before the effect, so that the replica need not fail."""
        if isinstance(effect, AppendToLog):
            end = replica.log.log_end_offset
            done.append(LogFull(replica.partition, replica.identity, end, replica.log.truncate(end), error))
            replica.full = True
            self._on_loop(self._note_space, replica.directory, False)  # first: the event loop may note space now
            self._full[replica.directory] = replica, time.monotonic()
            return True
        if isinstance(effect, TruncateLog | ResetLog):  # the core waits for this effect, and submits no other effect
            self._on_loop(self._submit_later, replica, effect)
            return True
        return False

    def _on_loop(self, call: Callable[..., None], *arguments: object) -> None:
        try:
            self._calls.call(call, *arguments)
        except RuntimeError:  # the event loop has ended, and no caller waits
            _log.debug("a completion arrived after the end of the event loop")


def _reach(reached: asyncio.Future[None]) -> None:
    if not reached.done():
        reached.set_result(None)


def _by_replica(work: list[_Job]) -> dict[OpenReplica, list[LogEffect]]:
    """The effects on each replica, in order; the effects on different replicas are independent."""
    found: dict[OpenReplica, list[LogEffect]] = {}
    for replica, effect, _ in work:
        effects = found.get(replica)
        if effects is None:
            found[replica] = [effect]
        else:
            effects.append(effect)
    return found


def _append(replica: OpenReplica, effects: Sequence[AppendToLog], done: list[Event]) -> None:
    """Write consecutive appends of the same stamp and leader epoch together."""
    partition, identity = replica.partition, replica.identity
    start, count = 0, len(effects)
    while start < count:
        first = effects[start]
        batches: list[Batch] = []
        stop = start
        while stop < count:
            effect = effects[stop]
            if effect.stamp != first.stamp or (effect.stamp and effect.leader_epoch != first.leader_epoch):
                break
            batches.extend(effect.batches)
            stop += 1
        end = replica.log.append(
            batches, base_offset=first.base_offset, leader_epoch=first.leader_epoch, stamp=first.stamp
        )
        for index in range(start, stop):
            ended_at = effects[index + 1].base_offset if index + 1 < stop else end
            done.append(LogAppended(partition, identity, ended_at))
        start = stop


def _do(replica: OpenReplica, effect: LogEffect, done: list[Event]) -> None:
    log = replica.log
    if isinstance(effect, TruncateLog):
        producers = log.truncate(effect.end_offset)
    elif isinstance(effect, ResetLog):
        log.reset(effect.start_offset, effect.epoch_below)
        producers = ProducerStates()
    elif isinstance(effect, AdvanceLogStart):
        log.trim(effect.start_offset)
        return
    elif isinstance(effect, ResumeLog):
        replica.full = False
        return
    elif isinstance(effect, ClearDamage):
        log.end_damage()
        return
    elif isinstance(effect, RollLog):
        log.roll_by_time(effect.now_ms)
        return
    elif isinstance(effect, ReachPause):
        return
    else:
        assert isinstance(effect, SaveEpochs)
        log.save_epochs(effect.entries)
        return
    done.append(
        LogTruncated(
            replica.partition, replica.identity, Offset(log.log_start_offset), Offset(log.log_end_offset), producers
        )
    )


def _failure(effect: LogEffect, error: Exception) -> TidemarkError:
    if isinstance(error, TidemarkError):
        return error
    _log.error("a log cannot be opened", extra={"partition": str(effect.partition)}, exc_info=error)
    return TidemarkError(ErrorCode.STORAGE_ERROR, f"{effect.partition}: {type(error).__name__}: {error}")
