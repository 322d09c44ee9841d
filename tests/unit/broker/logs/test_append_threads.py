# SPDX-License-Identifier: Apache-2.0
"""Effects on logs: order, grouping, and effects on a replica that is closed or fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest
from tidemark.broker.logs.append_threads import LogThreads
from tidemark.broker.node.topic_settings import TopicTable
from tidemark.core.replication.effects import AppendToLog, ClearDamage, CloseLog, OpenLog, ResetLog, TruncateLog
from tidemark.core.replication.events import (
    Event,
    LogAppended,
    LogFailed,
    LogMoved,
    LogOpened,
    LogTruncated,
    RecoveredLog,
)
from tidemark.model import NO_EPOCH, ErrorCode, LeaderEpoch, Offset, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.record.checks import check_batch
from tidemark.record.envelope import Batch

from tests.fakes.logs import MemoryLog, MemoryLogs
from tests.unit.record.samples import sample

PARTITION = TopicPartition("flights", 0)
IDENTITY = ReplicaIdentity("t" * 32, "a" * 32)
AGAIN = ReplicaIdentity("t" * 32, "b" * 32)
BATCH = check_batch(sample())


class Harness:
    """LogThreads over memory; `events` are those for the core, `spaces` whether directories have space."""

    def __init__(self, logs: MemoryLogs) -> None:
        self.logs = logs
        self.events: list[Event] = []
        self.flushes: list[float] = []
        self.failures: list[BaseException] = []
        self.failed = asyncio.Event()
        self._news = asyncio.Event()
        self.spaces: list[tuple[int, bool]] = []
        self.threads = LogThreads(
            logs,
            TopicTable(),
            self._deliver,
            self._fail,
            lambda _: None,
            self.flushes.append,
            lambda *space: self.spaces.append(space),
        )

    def _deliver(self, events: Sequence[Event]) -> None:
        self.events.extend(events)
        self._news.set()

    def _fail(self, error: BaseException) -> None:
        self.failures.append(error)
        self.failed.set()

    async def wait_for(self, count: int) -> list[Event]:
        async with asyncio.timeout(5):
            while len(self.events) < count:
                self._news.clear()
                await self._news.wait()
        return self.events

    async def open(self, identity: ReplicaIdentity = IDENTITY) -> None:
        before = len(self.events)
        self.threads.submit(OpenLog(PARTITION, identity))
        assert isinstance((await self.wait_for(before + 1))[-1], LogOpened)


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    harness = Harness(MemoryLogs())
    harness.threads.start()
    yield harness
    await asyncio.to_thread(harness.threads.stop)
    assert harness.failures == []


def append(base: int, identity: ReplicaIdentity = IDENTITY) -> AppendToLog:
    return AppendToLog(PARTITION, identity, Offset(base), LeaderEpoch(1), (BATCH,), stamp=True)


def block(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event, list[int]]:
    """Block the next append; returns (append began, let it continue, number of batches of each append)."""
    began, go_on = threading.Event(), threading.Event()
    sizes: list[int] = []
    real = MemoryLog.append

    def slow(
        self: MemoryLog, batches: Sequence[Batch], *, base_offset: Offset, leader_epoch: LeaderEpoch, stamp: bool
    ) -> Offset:
        sizes.append(len(batches))
        began.set()
        assert go_on.wait(5)
        return real(self, batches, base_offset=base_offset, leader_epoch=leader_epoch, stamp=stamp)

    monkeypatch.setattr(MemoryLog, "append", slow)
    return began, go_on, sizes


async def test_queued_appends_become_one_write_and_each_is_answered_with_its_own_end(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.open()
    began, go_on, sizes = block(monkeypatch)
    harness.threads.submit(append(0))
    await asyncio.to_thread(began.wait, 5)
    for base in (3, 6, 9):
        harness.threads.submit(append(base))
    go_on.set()
    events = (await harness.wait_for(5))[1:]
    assert events == [LogAppended(PARTITION, IDENTITY, Offset(end)) for end in (3, 6, 9, 12)]
    assert sizes == [1, 3]


async def test_a_truncation_keeps_its_place_between_two_appends(harness: Harness) -> None:
    await harness.open()
    harness.threads.submit(append(0))
    harness.threads.submit(append(3))
    harness.threads.submit(TruncateLog(PARTITION, IDENTITY, Offset(3)))
    harness.threads.submit(append(3))
    harness.threads.submit(ResetLog(PARTITION, IDENTITY, Offset(50), NO_EPOCH))
    events = (await harness.wait_for(6))[1:]
    ends = [event.log_end_offset for event in events if isinstance(event, LogAppended | LogTruncated)]
    assert ends == [3, 6, 3, 6, 50]
    assert isinstance(events[4], LogTruncated)
    assert events[4].log_start_offset == 50


async def test_the_end_of_damage_reaches_the_log_after_earlier_effects(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[int] = []
    monkeypatch.setattr(MemoryLog, "end_damage", lambda log: ends.append(log.log_end_offset))
    await harness.open()
    harness.threads.submit(append(0))
    harness.threads.submit(ClearDamage(PARTITION, IDENTITY))
    harness.threads.submit(append(3))
    await harness.wait_for(3)
    assert ends == [3]


async def test_a_failure_is_reported_once_and_later_effects_are_dropped(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.open()
    began, go_on, _ = block(monkeypatch)
    harness.threads.submit(append(0))
    await asyncio.to_thread(began.wait, 5)

    def refuse(self: MemoryLog, end_offset: Offset) -> None:
        raise TidemarkError(ErrorCode.STORAGE_ERROR, "the disk is full")

    monkeypatch.setattr(MemoryLog, "truncate", refuse)
    harness.threads.submit(TruncateLog(PARTITION, IDENTITY, Offset(0)))
    harness.threads.submit(append(3))
    harness.threads.submit(TruncateLog(PARTITION, IDENTITY, Offset(0)))
    go_on.set()
    await harness.wait_for(3)
    await harness.open()  # after this, all earlier effects are done
    kinds = [type(event) for event in harness.events]
    assert kinds == [LogOpened, LogAppended, LogFailed, LogOpened]


async def test_effects_during_an_opening_and_a_close_are_carried_out_afterwards_in_order(harness: Harness) -> None:
    harness.threads.submit(OpenLog(PARTITION, IDENTITY))
    harness.threads.submit(CloseLog(PARTITION, IDENTITY, "stray"))
    harness.threads.submit(OpenLog(PARTITION, AGAIN))
    (opened,) = await harness.wait_for(1)
    assert isinstance(opened, LogOpened)
    assert opened.identity == AGAIN, "an opening that was closed meanwhile is not reported"
    assert [(partition, suffix) for partition, suffix, _ in harness.logs.set_aside_replicas] == [(PARTITION, "stray")]
    harness.threads.submit(append(0, IDENTITY))  # for the previous opening: the core expects no answer
    harness.threads.submit(append(0, AGAIN))
    assert (await harness.wait_for(2))[1:] == [LogAppended(PARTITION, AGAIN, Offset(3))]


async def test_a_replica_that_cannot_be_opened_is_reported_and_can_be_opened_later(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: MemoryLogs, *_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryLogs, "open", refuse)
        harness.threads.submit(OpenLog(PARTITION, IDENTITY))
        (failed,) = await harness.wait_for(1)
    assert isinstance(failed, LogFailed)
    assert failed.error.code is ErrorCode.STORAGE_ERROR
    assert harness.threads.log(PARTITION) is None
    await harness.open()
    assert harness.threads.log(PARTITION) is not None


async def test_an_unexpected_error_in_a_thread_is_passed_to_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(MemoryLogs())
    harness.threads.start()
    await harness.open()
    harness.threads.submit(append(99))  # not at the log end: the log raises an assertion
    async with asyncio.timeout(5):
        await harness.failed.wait()
    assert isinstance(harness.failures[0], AssertionError)
    await asyncio.to_thread(harness.threads.stop)


async def test_an_offline_directory_fails_each_of_its_logs_once(harness: Harness) -> None:
    await harness.open()
    offline = TidemarkError(ErrorCode.STORAGE_ERROR, "the log directory is offline")
    assert harness.threads.fail_directory(1, offline) == 0
    assert harness.threads.fail_directory(0, offline) == 1
    assert harness.threads.fail_directory(0, offline) == 0
    assert harness.events[1:] == [LogFailed(PARTITION, IDENTITY, offline)]


async def test_a_log_fails_at_its_opening_if_its_directory_went_offline_meanwhile(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, real = threading.Event(), MemoryLogs.open

    def open_and_tell(
        logs: MemoryLogs, partition: TopicPartition, identity: ReplicaIdentity, configs: Mapping[str, str]
    ) -> tuple[MemoryLog, RecoveredLog]:
        found = real(logs, partition, identity, configs)
        opened.set()
        return found

    monkeypatch.setattr(MemoryLogs, "open", open_and_tell)
    harness.threads.submit(OpenLog(PARTITION, IDENTITY))
    assert opened.wait(5), "the event loop does not hear of the opening before the failure"
    offline = TidemarkError(ErrorCode.STORAGE_ERROR, "the log directory is offline")
    assert harness.threads.fail_directory(0, offline) == 0
    events = await harness.wait_for(2)
    assert isinstance(events[0], LogOpened)
    assert events[1:] == [LogFailed(PARTITION, IDENTITY, offline)]


# -- log directory moves


async def test_effects_during_a_pause_wait_and_go_to_the_log_in_use_afterwards(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.open()
    began, go_on, _ = block(monkeypatch)
    harness.threads.submit(append(0))
    await asyncio.to_thread(began.wait, 5)
    replica = harness.threads.replica(PARTITION)
    assert replica is not None
    pausing = asyncio.create_task(harness.threads.pause(replica))
    await asyncio.sleep(0)
    harness.threads.submit(append(3))
    assert not pausing.done(), "an earlier effect is not done"
    go_on.set()
    assert await pausing
    assert harness.events[1:] == [LogAppended(PARTITION, IDENTITY, Offset(3))], "reported before the pause is reached"
    other = MemoryLogs().open(PARTITION, IDENTITY, {})[0]
    other.append((BATCH,), base_offset=Offset(0), leader_epoch=LeaderEpoch(1), stamp=True)
    harness.threads.resume(replica, (other, 0))
    assert harness.events[2] == LogMoved(PARTITION, IDENTITY, 0)
    assert (await harness.wait_for(4))[3] == LogAppended(PARTITION, IDENTITY, Offset(6))
    assert harness.threads.log(PARTITION) is other
    assert other.log_end_offset == 6


async def test_a_pause_without_a_move_changes_nothing(harness: Harness) -> None:
    await harness.open()
    replica = harness.threads.replica(PARTITION)
    assert replica is not None
    assert await harness.threads.pause(replica)
    assert not await harness.threads.pause(replica), "the replica is paused already"
    harness.threads.submit(append(0))
    harness.threads.resume(replica, None)
    assert (await harness.wait_for(2))[1:] == [LogAppended(PARTITION, IDENTITY, Offset(3))]
    assert harness.threads.replica(PARTITION) is replica


async def test_a_closing_or_closed_replica_is_not_paused(harness: Harness) -> None:
    await harness.open()
    replica = harness.threads.replica(PARTITION)
    assert replica is not None
    harness.threads.submit(CloseLog(PARTITION, IDENTITY, None))
    assert not await harness.threads.pause(replica)
    await harness.open()
    assert not await harness.threads.pause(replica)


async def test_a_close_during_a_pause_closes_the_log_in_use_afterwards(harness: Harness) -> None:
    await harness.open()
    replica = harness.threads.replica(PARTITION)
    assert replica is not None
    assert await harness.threads.pause(replica)
    harness.threads.submit(append(0))
    harness.threads.submit(CloseLog(PARTITION, IDENTITY, "delete"))
    harness.threads.resume(replica, None)
    await harness.wait_for(2)
    assert harness.threads.replica(PARTITION) is None
    await harness.open(AGAIN)


async def test_a_directory_that_goes_offline_during_a_pause_fails_the_replica_at_its_end(
    harness: Harness,
) -> None:
    await harness.open()
    replica = harness.threads.replica(PARTITION)
    assert replica is not None
    offline = TidemarkError(ErrorCode.STORAGE_ERROR, "the log directory is offline")
    assert await harness.threads.pause(replica)
    assert harness.threads.fail_directory(0, offline) == 0
    assert len(harness.events) == 1, "its directory after the pause is not known yet"
    harness.threads.submit(append(0))
    harness.threads.resume(replica, None)
    assert harness.events[1:] == [LogFailed(PARTITION, IDENTITY, offline)]


async def test_completions_of_one_opening_precede_those_of_the_next_while_another_log_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the core assigns the answer to an earlier truncation to the new log, and stops."""
    harness, other = Harness(MemoryLogs()), TopicPartition("flights", 1)
    began, gates = [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]
    calls = iter(range(2))
    write = MemoryLog.append

    def slow(self: MemoryLog, *arguments: Any, **more: Any) -> Any:
        number = next(calls)
        began[number].set()
        assert gates[number].wait(30)
        return write(self, *arguments, **more)

    def at(base: int) -> AppendToLog:
        return AppendToLog(other, IDENTITY, Offset(base), LeaderEpoch(1), (BATCH,), stamp=True)

    harness.threads.start()
    await harness.open()
    harness.threads.submit(OpenLog(other, IDENTITY))
    await harness.wait_for(2)
    harness.threads.submit(append(0))
    await harness.wait_for(3)
    monkeypatch.setattr(MemoryLog, "append", slow)
    harness.threads.submit(at(0))
    await asyncio.to_thread(began[0].wait, 30)
    harness.threads.submit(TruncateLog(PARTITION, IDENTITY, Offset(0)))
    harness.threads.submit(CloseLog(PARTITION, IDENTITY, None))
    harness.threads.submit(at(3))
    harness.threads.submit(OpenLog(PARTITION, IDENTITY))
    gates[0].set()
    await asyncio.to_thread(began[1].wait, 30)
    await harness.wait_for(6)  # append, truncation and opening: the second append still waits
    gates[1].set()
    await harness.wait_for(7)
    kinds = [type(event) for event in harness.events[3:] if event.partition == PARTITION]
    assert kinds == [LogTruncated, LogOpened]
    await asyncio.to_thread(harness.threads.stop)
