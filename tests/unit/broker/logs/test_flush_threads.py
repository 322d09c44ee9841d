# SPDX-License-Identifier: Apache-2.0
"""Flushes: their logs and times, the events for the core, and failed flushes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from tidemark.broker.logs import flush_threads as flush_module
from tidemark.broker.logs.append_threads import LogThreads
from tidemark.broker.logs.flush_threads import FlushThreads
from tidemark.broker.logs.open_log import OpenReplica
from tidemark.broker.node.topic_settings import TopicTable
from tidemark.core.replication.effects import AppendToLog, CloseLog, Effect, OpenLog, TruncateLog
from tidemark.core.replication.events import Event, LogAppended, LogFailed, LogFlushed, LogOpened, LogTruncated
from tidemark.model import ErrorCode, LeaderEpoch, Offset, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.record.checks import check_batch

from tests.fakes.logs import MemoryLog, MemoryLogs
from tests.unit.record.samples import sample

IDENTITY = ReplicaIdentity("t" * 32, "a" * 32)
BATCH = check_batch(sample())
GROUPED = TopicPartition("grouped", 0)
TIMED = TopicPartition("timed", 0)
LAZY = TopicPartition("lazy", 0)
CONFIGS = {
    "grouped": {"flush.policy": "group-commit"},
    "timed": {"flush.policy": "interval", "flush.interval.ms": "20"},
    "lazy": {"flush.policy": "os"},
}


class Disk:
    """Counts the flushes of MemoryLogs by log; while `stalls`, each flush blocks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.flushes: list[MemoryLog] = []
        self.stalls = False
        self.began, self.go_on, self.failed = threading.Event(), threading.Event(), threading.Event()
        self.error: TidemarkError | None = None
        self._real = MemoryLog.flush
        disk = self
        monkeypatch.setattr(MemoryLog, "flush", lambda log: disk.flush(log))

    def flush(self, log: MemoryLog) -> Offset:
        self.flushes.append(log)
        if self.error is not None:
            self.failed.set()
            raise self.error
        offset = self._real(log)
        if self.stalls:
            self.began.set()
            assert self.go_on.wait(5)
        return offset


class Harness:
    """LogThreads over memory; `events` are those for the core."""

    def __init__(self) -> None:
        self.logs = MemoryLogs()
        self.events: list[Event] = []
        self.failures: list[BaseException] = []
        self.flush_seconds: list[float] = []
        self.topics = TopicTable()
        self.topics.update(CONFIGS)
        self._news = asyncio.Event()
        self.threads = LogThreads(
            self.logs, self.topics, self._deliver, self.failures.append, lambda _: None, self._observe_flush
        )

    def _observe_flush(self, seconds: float) -> None:
        self.flush_seconds.append(seconds)
        self._news.set()

    def _deliver(self, events: Sequence[Event]) -> None:
        self.events.extend(events)
        self._news.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not holds():
                self._news.clear()
                await self._news.wait()

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if type(event) is kind]

    async def does(self, effect: Effect, answer: type[Event]) -> None:
        before = len(self.of(answer))
        self.threads.submit(effect)
        await self.until(lambda: len(self.of(answer)) > before)

    async def opens(self, partition: TopicPartition) -> None:
        await self.does(OpenLog(partition, IDENTITY), LogOpened)

    def flushed_to(self) -> list[int]:
        return [event.flushed_offset for event in self.events if isinstance(event, LogFlushed)]


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    harness = Harness()
    harness.threads.start()
    yield harness
    await asyncio.to_thread(harness.threads.stop)
    assert harness.failures == []


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def append(base: int, partition: TopicPartition = GROUPED) -> AppendToLog:
    return AppendToLog(partition, IDENTITY, Offset(base), LeaderEpoch(1), (BATCH,), stamp=True)


async def test_appends_to_a_group_commit_topic_are_flushed_and_reported_to_the_core(harness: Harness) -> None:
    await harness.opens(GROUPED)
    await harness.does(append(0), LogFlushed)
    assert harness.events[1:] == [LogAppended(GROUPED, IDENTITY, Offset(3)), LogFlushed(GROUPED, IDENTITY, Offset(3))]
    assert len(harness.flush_seconds) == 1


async def test_appends_during_a_flush_are_covered_by_one_more(harness: Harness, disk: Disk) -> None:
    await harness.opens(GROUPED)
    disk.stalls = True
    harness.threads.submit(append(0))
    await asyncio.to_thread(disk.began.wait, 5)
    for base in (3, 6, 9):
        await harness.does(append(base), LogAppended)
    assert harness.flushed_to() == []
    disk.go_on.set()
    await harness.until(lambda: 12 in harness.flushed_to())
    assert harness.flushed_to() == [3, 12]
    assert len(disk.flushes) == 2


async def test_a_topic_that_leaves_flushes_to_the_kernel_is_never_flushed(harness: Harness, disk: Disk) -> None:
    await harness.opens(LAZY)
    await harness.opens(GROUPED)
    await harness.does(append(0, LAZY), LogAppended)
    await harness.does(append(0, GROUPED), LogFlushed)
    assert len(disk.flushes) == 1


async def test_an_interval_topic_is_flushed_when_due_without_an_event_for_the_core(
    harness: Harness, disk: Disk
) -> None:
    await harness.opens(TIMED)
    await harness.does(append(0, TIMED), LogAppended)
    await harness.does(append(3, TIMED), LogAppended)
    await harness.until(lambda: len(harness.flush_seconds) > 0)
    log = harness.threads.log(TIMED)
    assert set(disk.flushes) == {log}
    assert harness.flushed_to() == []


async def test_a_log_that_was_opened_with_unflushed_records_is_flushed(harness: Harness) -> None:
    await harness.opens(LAZY)
    await harness.does(append(0, LAZY), LogAppended)
    harness.threads.submit(CloseLog(LAZY, IDENTITY, None))
    harness.topics.update({"lazy": {"flush.policy": "group-commit"}})
    await harness.opens(LAZY)
    await harness.until(lambda: bool(harness.flushed_to()))
    assert harness.flushed_to() == [3]


async def test_a_flush_before_a_truncation_does_not_count_for_the_log_after_it(harness: Harness, disk: Disk) -> None:
    await harness.opens(GROUPED)
    disk.stalls = True
    harness.threads.submit(append(0))
    await asyncio.to_thread(disk.began.wait, 5)
    await harness.does(TruncateLog(GROUPED, IDENTITY, Offset(0)), LogTruncated)
    disk.go_on.set()
    await harness.until(lambda: bool(harness.flushed_to()))
    assert harness.flushed_to() == [0], "the earlier flush would have reported 3"


async def test_a_failed_flush_fails_its_replica_once_and_is_not_retried(harness: Harness, disk: Disk) -> None:
    await harness.opens(GROUPED)
    disk.error = TidemarkError(ErrorCode.STORAGE_ERROR, "fdatasync: input/output error")
    await harness.does(append(0), LogFailed)
    harness.threads.submit(append(3))
    harness.threads.submit(TruncateLog(GROUPED, IDENTITY, Offset(0)))
    disk.error = None
    await harness.opens(LAZY)
    await harness.does(append(0, LAZY), LogAppended)
    assert len(disk.flushes) == 1
    assert [type(event) for event in harness.events if event.partition == GROUPED] == [
        LogOpened,
        LogAppended,
        LogFailed,
    ]


async def test_a_flush_without_descriptors_is_retried(
    harness: Harness, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush_module, "_RETRY_S", 0.01)
    await harness.opens(GROUPED)
    disk.error = TidemarkError(ErrorCode.DISK_FULL, "flush: too many open files")
    harness.threads.submit(append(0))
    await asyncio.to_thread(disk.failed.wait, 5)
    disk.error = None
    await harness.until(lambda: harness.flushed_to() == [3])
    assert harness.of(LogFailed) == []


async def test_flush_threads_stop_without_descriptors(disk: Disk) -> None:
    harness = Harness()
    harness.threads.start()
    await harness.opens(GROUPED)
    disk.error = TidemarkError(ErrorCode.DISK_FULL, "flush: too many open files")
    await harness.does(append(0), LogAppended)
    await asyncio.to_thread(disk.failed.wait, 5)
    await asyncio.to_thread(harness.threads.stop)
    assert harness.of(LogFailed) == []


async def test_a_failed_flush_of_a_closed_log_is_ignored(harness: Harness, disk: Disk) -> None:
    await harness.opens(GROUPED)
    disk.stalls = True
    harness.threads.submit(append(0))
    await asyncio.to_thread(disk.began.wait, 5)
    await harness.does(append(3), LogAppended)
    harness.threads.submit(CloseLog(GROUPED, IDENTITY, "stray"))
    await harness.opens(GROUPED)
    disk.go_on.set()
    await harness.does(append(0), LogFlushed)
    assert harness.of(LogFailed) == []
    assert harness.flushed_to() == [3]


async def test_logs_waiting_for_their_interval_are_flushed_at_the_stop(disk: Disk) -> None:
    harness = Harness()
    harness.topics.update({"timed": {"flush.policy": "interval", "flush.interval.ms": "86400000"}})
    harness.threads.start()
    await harness.opens(TIMED)
    await harness.does(append(0, TIMED), LogAppended)
    assert disk.flushes == []
    await asyncio.to_thread(harness.threads.stop)
    assert len(disk.flushes) == 1


def test_a_busy_group_commit_log_does_not_delay_flushes_of_others() -> None:
    turns: list[str] = []
    done = threading.Event()

    def flushed(replica: OpenReplica, *_: object) -> None:
        turns.append(replica.partition.topic)
        if len(turns) == 4:
            done.set()
        elif replica is busy:
            threads.written(busy)  # a flush is always pending

    threads = FlushThreads(1, flushed, lambda *_: None, lambda _: None)
    log, _ = MemoryLogs().open(GROUPED, IDENTITY, {})
    busy = OpenReplica(GROUPED, IDENTITY, log, 0, flush_policy="group-commit")
    timed = [
        OpenReplica(TopicPartition(f"timed-{index}", 0), IDENTITY, log, 0, flush_policy="interval") for index in (1, 2)
    ]
    for replica in (busy, *timed):
        threads.written(replica)
    threads.start()
    assert done.wait(5)
    threads.stop()
    assert turns[:4] == ["timed-1", "grouped", "timed-2", "grouped"]


async def test_earlier_appends_are_flushed_when_their_topic_begins_to_require_flushes(
    harness: Harness, disk: Disk
) -> None:
    await harness.opens(LAZY)
    await harness.does(append(0, LAZY), LogAppended)
    assert disk.flushes == []
    harness.topics.update({"lazy": {"flush.policy": "group-commit"}})
    await harness.until(lambda: harness.flushed_to() == [3])
    harness.topics.update({"lazy": {}})
    await harness.does(append(3, LAZY), LogAppended)
    assert len(disk.flushes) == 1


async def test_a_shorter_interval_applies_to_logs_that_wait_already(harness: Harness, disk: Disk) -> None:
    harness.topics.update({"timed": {"flush.policy": "interval", "flush.interval.ms": "86400000"}})
    await harness.opens(TIMED)
    await harness.does(append(0, TIMED), LogAppended)
    assert disk.flushes == []
    harness.topics.update({"timed": {"flush.policy": "interval", "flush.interval.ms": "20"}})
    await harness.until(lambda: len(disk.flushes) == 1)


def test_an_unexpected_error_in_a_flush_is_passed_on() -> None:
    broken: list[BaseException] = []
    threads = FlushThreads(1, lambda *_: None, lambda *_: None, broken.append)
    log, _ = MemoryLogs().open(GROUPED, IDENTITY, {})
    replica = OpenReplica(GROUPED, IDENTITY, log, 0, flush_policy="group-commit")
    del replica.log
    threads.written(replica)
    threads.start()
    threads.stop()
    assert isinstance(broken[0], AttributeError)
