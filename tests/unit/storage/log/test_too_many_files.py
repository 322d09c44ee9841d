# SPDX-License-Identifier: Apache-2.0
"""A process with too many open files: operations fail whole and are retried, nothing goes offline."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tidemark.model import BrokerEpoch, ErrorCode, Offset, TidemarkError
from tidemark.storage.directories.log_manager import LogManager
from tidemark.storage.log.partition_log import PartitionLog
from tidemark.storage.recovery.cleaner_point import CLEANER_FILE

from tests.refusals import raises_code
from tests.unit.storage.batches import IDENTITY, PARTITION, lead, make_batch, open_one, read_all
from tests.unit.storage.directories.moving import begin, content, copy_all, open_in, open_two
from tests.unit.storage.log.test_cleaner import clean, fill, latest_of, rows_of

CONFIGS = {"segment.bytes": "2000", "index.interval.bytes": "500"}


class Files:
    """open(2) succeeds `left` more times, also for a list of names, then fails with `number`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 1 << 40
        self.number = errno.EMFILE
        for name in ("open", "listdir", "scandir"):
            monkeypatch.setattr(os, name, partial(self._opened, getattr(os, name)))

    def _opened(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if self.left == 0:
            raise OSError(self.number, os.strerror(self.number))
        self.left -= 1
        return call(*arguments, **named)


@pytest.fixture(params=[errno.EMFILE, errno.ENFILE])
def files(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Files:
    files = Files(monkeypatch)
    files.number = request.param
    return files


def opened(path: Path) -> tuple[LogManager, PartitionLog]:
    logs = open_one(path)
    return logs, logs.open(PARTITION, IDENTITY, CONFIGS)[0]


@pytest.mark.parametrize("left", range(8))
def test_a_checkpoint_without_descriptors_is_retried(directory: Path, files: Files, left: int) -> None:
    logs, log = opened(directory)
    lead(log, make_batch(["first"]))
    files.left = left
    failed = None
    try:
        logs.checkpoint({PARTITION: log.log_end_offset})
    except TidemarkError as error:
        failed = error
    assert failed is not None or left > 4
    assert logs.directories()[0].failed is None
    files.left = 1 << 40
    lead(log, make_batch(["second"]))
    logs.checkpoint({PARTITION: log.log_end_offset})
    before = read_all(log)
    logs.close()
    logs, log = opened(directory)
    assert read_all(log) == before
    logs.close()


def test_a_cleaning_without_descriptors_is_retried(directory: Path, files: Files) -> None:
    """Regression: the whole log directory went offline if a cleaned segment was just being put in place."""
    logs = open_one(directory, open_files_max=1)
    log, _ = logs.open(PARTITION, IDENTITY, {**CONFIGS, "cleanup.policy": "compact"})
    fill(log, random.Random(3), 40, keys=5)
    segments, latest = log.segment_count(), latest_of(rows_of(log), below=log.log_end_offset)
    for left in range(200):
        files.left = left
        with contextlib.suppress(TidemarkError):
            clean(log)
        assert (log.broken, logs.directories()[0].failed) == (None, None), left
        if files.left:
            break
    files.left = 1 << 40
    assert log.segment_count() < segments
    assert latest_of(rows_of(log), below=log.log_end_offset) == latest
    logs.close()
    logs, log = opened(directory)
    assert latest_of(rows_of(log), below=log.log_end_offset) == latest
    logs.close()


@pytest.mark.parametrize("left", range(24))
def test_the_end_of_a_move_without_descriptors_is_retried(directory: Path, files: Files, left: int) -> None:
    """Regression: a log directory went offline."""
    logs, log = open_in(directory)
    fill(log, random.Random(12), 20)
    before = content(log)
    future = begin(logs)
    copy_all(future)
    files.left = left
    moved = None
    with contextlib.suppress(TidemarkError):
        moved = logs.mover.finish(future, log.log_end_offset)
    assert [one.failed for one in logs.directories()] == [None, None]
    files.left = 1 << 40
    if moved is None:
        assert content(log) == before
        moved = logs.mover.finish(future, log.log_end_offset)
    assert content(moved) == before
    logs.close()
    logs = open_two(directory)
    moved, _ = logs.open(PARTITION, IDENTITY, CONFIGS)
    assert (content(moved), logs.directory_of(PARTITION)) == (before, 1)
    logs.close()


def test_an_append_without_descriptors_is_refused_whole_and_the_next_one_succeeds(
    directory: Path, files: Files
) -> None:
    logs, log = opened(directory)
    lead(log, make_batch(["a" * 1500]))
    before, end = read_all(log), log.log_end_offset
    files.left = 0
    with raises_code(ErrorCode.DISK_FULL) as refused:
        lead(log, make_batch(["b" * 1500]))  # wants another segment
    assert "open files" in refused.value.message
    assert (log.log_end_offset, log.broken, logs.directories()[0].failed) == (end, None, None)
    assert read_all(log) == before
    files.left = 1 << 40
    lead(log, make_batch(["c" * 1500]))
    assert log.log_end_offset == end + 1
    logs.close()


@pytest.mark.parametrize("left", range(6))
def test_a_flush_without_descriptors_is_retried(directory: Path, files: Files, left: int) -> None:
    """Regression: the whole log directory went offline, though no sync had failed."""
    logs = open_one(directory, open_files_max=1)
    log, _ = logs.open(PARTITION, IDENTITY, CONFIGS)
    lead(log, *(make_batch(["a" * 900]) for _ in range(5)))
    assert log.segment_count() > 2
    files.left = left
    with raises_code(ErrorCode.DISK_FULL):
        log.flush()
    assert (log.broken, logs.directories()[0].failed) == (None, None)
    assert log.flushed_offset < log.log_end_offset
    files.left = 1 << 40
    opened_before = files.left
    assert log.flush() == log.log_end_offset
    assert opened_before - files.left >= 5, "the names and each segment are synced"
    logs.close()


def test_a_roll_by_time_without_descriptors_is_retried(directory: Path, files: Files) -> None:
    logs, log = opened(directory)
    lead(log, make_batch(["a"]))
    logs.close()
    logs, log = opened(directory)
    files.left = 0
    log.roll_by_time(1 << 50)
    assert (log.broken, log.segment_count()) == (None, 1)
    files.left = 1 << 40
    log.roll_by_time(1 << 50)
    assert log.segment_count() == 2
    logs.close()


def test_a_truncation_without_descriptors_can_be_retried(directory: Path, files: Files) -> None:
    logs = open_one(directory, open_files_max=1)
    log, _ = logs.open(PARTITION, IDENTITY, CONFIGS)
    lead(log, *(make_batch(["a" * 900]) for _ in range(5)))
    files.left = 0
    with raises_code(ErrorCode.DISK_FULL):
        log.truncate(Offset(1))
    assert (log.log_end_offset, log.broken) == (5, None)
    files.left = 1 << 40
    log.truncate(Offset(1))
    assert log.log_end_offset == 1
    logs.close()


@pytest.mark.parametrize("left", range(9))
def test_a_reset_without_descriptors_is_retried(directory: Path, files: Files, left: int) -> None:
    """Regression: the replica was offline until a restart if two or three more files could be opened."""
    logs = open_one(directory, open_files_max=1)
    log, _ = logs.open(PARTITION, IDENTITY, CONFIGS)
    lead(log, *(make_batch(["a" * 900]) for _ in range(5)))
    before, end = read_all(log), log.log_end_offset
    files.left = left
    failed = None
    try:
        log.reset(Offset(9))
    except TidemarkError as error:
        failed = error.code
    assert failed in (None, ErrorCode.DISK_FULL)
    assert (log.broken, logs.directories()[0].failed) == (None, None)
    files.left = 1 << 40
    if failed is not None:
        assert log.log_end_offset == 9 or (log.log_end_offset, read_all(log)) == (end, before)
        log.reset(Offset(9))
    lead(log, make_batch(["b"]))
    logs.close()
    logs, log = opened(directory)
    assert (log.log_start_offset, log.log_end_offset) == (9, 10)
    logs.close()


@pytest.mark.parametrize("left", range(4))
def test_a_registration_without_descriptors_is_confirmed_by_a_later_call(
    directory: Path, files: Files, left: int
) -> None:
    """Regression: all log directories went offline, and the broker ended."""
    logs = open_one(directory)
    logs.confirm_registration(BrokerEpoch(4), "boot")
    files.left = left
    with contextlib.suppress(TidemarkError):
        logs.confirm_registration(BrokerEpoch(5), "boot")
    assert logs.directories()[0].failed is None
    files.left = 1 << 40
    logs.confirm_registration(BrokerEpoch(5), "boot")
    logs.close()
    assert open_one(directory).previous[0].incarnation == ("boot", 5)


def test_a_truncation_that_cannot_read_the_cleaner_point_is_retried(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the point stayed past the end, and later records there counted as cleaned."""
    logs, log = opened(directory)
    fill(log, random.Random(3), 40, keys=5)
    point, end = clean(log).clean_point, log.log_end_offset
    read_bytes = Path.read_bytes

    def unopened(path: Path) -> bytes:
        if path.name == CLEANER_FILE:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return read_bytes(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", unopened)
        with raises_code(ErrorCode.DISK_FULL):
            log.truncate(Offset(point // 2))
    assert (log.broken, log.log_end_offset) == (None, end)
    log.truncate(Offset(point // 2))
    assert log.cleaning.clean_point <= point // 2
    logs.close()
