# SPDX-License-Identifier: Apache-2.0
"""Append threads on a full disk: an append without space is reported once, and later ones are not lost (rule R1)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import pytest
from tidemark.broker.logs import append_threads
from tidemark.broker.logs.open_log import OpenReplica
from tidemark.core.producer_state import ProducerStates
from tidemark.core.replication.effects import AppendToLog, CloseLog, OpenLog, ResumeLog, TruncateLog
from tidemark.core.replication.events import LogAppended, LogFailed, LogFull, LogMoved, LogOpened, LogTruncated
from tidemark.core.replication.replica_log import FULL_PAUSE_MS
from tidemark.model import ErrorCode, LeaderEpoch, Offset, TidemarkError, TopicPartition
from tidemark.record.envelope import Batch

from tests.fakes.logs import MemoryLog, MemoryLogs
from tests.unit.broker.logs.test_append_threads import BATCH, IDENTITY, PARTITION, Harness

RECORDS = BATCH.envelope.last_offset_delta + 1


class Disk:
    """Whether there is space."""

    def __init__(self) -> None:
        self.full = False
        self.asked = threading.Event()

    def check(self) -> None:
        if self.full:
            self.asked.set()
            raise TidemarkError(ErrorCode.DISK_FULL, "no space")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    found = Disk()
    append, truncate = MemoryLog.append, MemoryLog.truncate

    def checked_append(
        self: MemoryLog, batches: Sequence[Batch], *, base_offset: Offset, leader_epoch: LeaderEpoch, stamp: bool
    ) -> Offset:
        found.check()
        return append(self, batches, base_offset=base_offset, leader_epoch=leader_epoch, stamp=stamp)

    def checked_truncate(self: MemoryLog, end_offset: Offset) -> ProducerStates:
        if end_offset < self.log_end_offset:
            found.check()
        return truncate(self, end_offset)

    monkeypatch.setattr(MemoryLog, "append", checked_append)
    monkeypatch.setattr(MemoryLog, "truncate", checked_truncate)
    monkeypatch.setattr(append_threads, "_SPACE_S", 0.01)
    return found


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    made = Harness(MemoryLogs())
    made.threads.start()
    await made.open()
    made.events.clear()
    yield made
    made.threads.stop()


def append(base: int) -> AppendToLog:
    return AppendToLog(PARTITION, IDENTITY, Offset(base), LeaderEpoch(1), (BATCH,), stamp=True)


async def test_appends_after_one_without_space_are_dropped_until_the_core_resumes(harness: Harness, disk: Disk) -> None:
    harness.threads.submit(append(0))
    await harness.wait_for(1)
    disk.full = True
    harness.threads.submit(append(RECORDS))
    await harness.wait_for(2)
    disk.full = False
    harness.threads.submit(append(2 * RECORDS))
    harness.threads.submit(ResumeLog(PARTITION, IDENTITY))
    harness.threads.submit(append(RECORDS))
    written, full, again = await harness.wait_for(3)
    assert isinstance(full, LogFull)
    assert (full.log_end_offset, full.error.code) == (RECORDS, ErrorCode.DISK_FULL)
    assert written == LogAppended(PARTITION, IDENTITY, Offset(RECORDS))
    assert again == LogAppended(PARTITION, IDENTITY, Offset(2 * RECORDS))


async def test_a_directory_that_fails_during_an_append_without_space_ends_no_thread(
    harness: Harness, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a sync may fail on a full disk, too; the append thread ended, and the broker with it."""

    def offline(self: MemoryLog, end_offset: Offset) -> ProducerStates:
        raise TidemarkError(ErrorCode.STORAGE_ERROR, "the log directory is offline: syncfs")

    monkeypatch.setattr(MemoryLog, "truncate", offline)
    disk.full = True
    harness.threads.submit(append(0))
    await harness.wait_for(1)
    (failed,) = harness.events
    assert isinstance(failed, LogFailed)
    assert failed.error.code is ErrorCode.STORAGE_ERROR
    assert (harness.failures, harness.spaces) == ([], [])


async def test_a_truncation_without_space_is_retried_until_there_is_some(harness: Harness, disk: Disk) -> None:
    harness.threads.submit(append(0))
    await harness.wait_for(1)
    disk.full = True
    harness.threads.submit(TruncateLog(PARTITION, IDENTITY, Offset(0)))
    await asyncio.to_thread(disk.asked.wait, 5)
    disk.full = False
    await harness.wait_for(2)
    assert isinstance(harness.events[1], LogTruncated)


async def test_a_replica_that_waits_for_space_can_be_closed(harness: Harness, disk: Disk) -> None:
    harness.threads.submit(append(0))
    await harness.wait_for(1)
    disk.full = True
    harness.threads.submit(TruncateLog(PARTITION, IDENTITY, Offset(0)))
    harness.threads.submit(CloseLog(PARTITION, IDENTITY, None))
    harness.threads.submit(OpenLog(PARTITION, IDENTITY))
    await harness.wait_for(2)
    assert isinstance(harness.events[1], LogOpened)
    assert harness.failures == []


@pytest.mark.parametrize("set_aside", ["delete", None])
async def test_a_directory_whose_full_replica_is_closed_is_no_longer_reported_as_full(
    harness: Harness, disk: Disk, set_aside: str | None
) -> None:
    disk.full = True
    harness.threads.submit(append(0))
    await harness.wait_for(1)
    assert harness.spaces == [(0, False)]
    harness.threads.submit(CloseLog(PARTITION, IDENTITY, set_aside))
    await harness.open()
    assert harness.spaces == [(0, False), (0, True)]


OTHER = TopicPartition("flights", 1)


async def full_with_another(harness: Harness, disk: Disk) -> None:
    """The directory refuses an append; from now on there is space, and another log is open there."""
    harness.threads.submit(OpenLog(OTHER, IDENTITY))
    await harness.wait_for(1)
    disk.full = True
    harness.threads.submit(append(0))
    await harness.wait_for(2)
    disk.full = False


async def append_to_other(harness: Harness) -> None:
    count = len(harness.events) + 1
    harness.threads.submit(AppendToLog(OTHER, IDENTITY, Offset(0), LeaderEpoch(1), (BATCH,), stamp=True))
    await harness.wait_for(count)


@pytest.mark.parametrize(("calm_s", "spaces"), [(0.0, [(0, False), (0, True)]), (60.0, [(0, False)])])
async def test_a_directory_has_space_again_with_the_append_of_another_replica_some_time_after_the_refusal(
    harness: Harness, disk: Disk, monkeypatch: pytest.MonkeyPatch, calm_s: float, spaces: list[tuple[int, bool]]
) -> None:
    """No record may follow in the refused log."""
    monkeypatch.setattr(append_threads, "_CALM_S", calm_s)
    await full_with_another(harness, disk)
    await append_to_other(harness)
    assert harness.spaces == spaces


def test_a_refused_replica_tries_again_before_the_append_of_another_one_proves_space() -> None:
    """Regression: between two refusals, which a pause of the core separates, small appends ended the alert."""
    assert 2 * FULL_PAUSE_MS < 1000 * append_threads._CALM_S


async def test_a_directory_has_space_again_at_once_with_an_append_of_the_refused_replica(
    harness: Harness, disk: Disk
) -> None:
    await full_with_another(harness, disk)
    harness.threads.submit(ResumeLog(PARTITION, IDENTITY))
    harness.threads.submit(append(0))
    await harness.wait_for(3)
    assert harness.spaces == [(0, False), (0, True)]


async def test_a_directory_that_goes_offline_is_no_longer_reported_as_full(harness: Harness, disk: Disk) -> None:
    """No append follows there until the next start."""
    await full_with_another(harness, disk)
    harness.threads.fail_directory(0, TidemarkError(ErrorCode.STORAGE_ERROR, "offline"))
    noted = asyncio.Event()
    harness.threads._on_loop(noted.set)
    async with asyncio.timeout(5):
        await noted.wait()
    assert harness.spaces == [(0, False), (0, True)]


async def test_a_full_directory_stays_full_when_another_log_there_is_closed(harness: Harness, disk: Disk) -> None:
    await full_with_another(harness, disk)
    harness.threads.submit(CloseLog(OTHER, IDENTITY, None))
    harness.threads.submit(OpenLog(OTHER, IDENTITY))
    await harness.wait_for(3)
    assert harness.spaces == [(0, False)]


async def test_space_that_the_event_loop_notes_during_a_refusal_leaves_no_directory_full_for_ever(
    harness: Harness, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log directory move ends just when the append thread notes the refusal."""
    monkeypatch.setattr(append_threads, "_CALM_S", 0.0)
    on_loop = harness.threads._on_loop

    def moved_before(call: Callable[..., None], *arguments: object) -> None:
        if arguments == (0, False):
            harness.threads._has_space(0)
        on_loop(call, *arguments)

    monkeypatch.setattr(harness.threads, "_on_loop", moved_before)
    await full_with_another(harness, disk)
    await append_to_other(harness)
    assert harness.spaces[-1] == (0, True)


class Timers:
    """Holds timers until the test fires them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._due: list[Callable[[], object]] = []
        self._news = asyncio.Event()
        monkeypatch.setattr(asyncio.get_running_loop(), "call_later", self._call_later)

    def _call_later(self, delay_s: float, call: Callable[..., object], *arguments: object) -> None:
        self._due.append(partial(call, *arguments))
        self._news.set()

    async def wait_for_one(self) -> None:
        async with asyncio.timeout(5):
            await self._news.wait()

    def fire(self) -> None:
        due, self._due = self._due, []
        for call in due:
            call()


async def waiting_truncation(
    harness: Harness, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> tuple[Timers, OpenReplica]:
    """A truncation to 0, waiting for space, of a log of one batch; from now on there is space."""
    timers = Timers(monkeypatch)
    harness.threads.submit(append(0))
    await harness.wait_for(1)
    disk.full = True
    harness.threads.submit(TruncateLog(PARTITION, IDENTITY, Offset(0)))
    await timers.wait_for_one()
    disk.full = False
    replica = harness.threads.replica(PARTITION)
    assert replica is not None
    return timers, replica


@pytest.mark.parametrize("paused", [False, True])
async def test_a_truncation_waiting_for_space_is_not_applied_to_a_later_opening(
    harness: Harness, disk: Disk, monkeypatch: pytest.MonkeyPatch, paused: bool
) -> None:
    timers, replica = await waiting_truncation(harness, disk, monkeypatch)
    if paused:
        assert await harness.threads.pause(replica)
    harness.threads.submit(CloseLog(PARTITION, IDENTITY, "delete"))
    harness.threads.submit(OpenLog(PARTITION, IDENTITY))
    if paused:
        timers.fire()
        harness.threads.resume(replica, None)
    await harness.wait_for(2)
    harness.threads.submit(append(0))
    timers.fire()
    harness.threads.submit(append(RECORDS))
    opened, *written = (await harness.wait_for(4))[1:]
    assert isinstance(opened, LogOpened)
    assert written == [LogAppended(PARTITION, IDENTITY, Offset(end)) for end in (RECORDS, 2 * RECORDS)]


async def test_a_truncation_waiting_for_space_is_applied_after_a_move_to_another_directory(
    harness: Harness, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers, replica = await waiting_truncation(harness, disk, monkeypatch)
    assert await harness.threads.pause(replica)
    timers.fire()
    harness.threads.resume(replica, (replica.log, 0))
    timers.fire()
    moved, cut = (await harness.wait_for(3))[1:]
    assert isinstance(moved, LogMoved)
    assert isinstance(cut, LogTruncated)
