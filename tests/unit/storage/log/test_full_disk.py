# SPDX-License-Identifier: Apache-2.0
"""A log on a full disk: an append is truncated whole, a checkpoint is retried, nothing goes offline (rule T5)."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tidemark.core.replication.events import RecoveredLog
from tidemark.model import BrokerEpoch, BrokerId, EpochEntry, ErrorCode, LeaderEpoch, Offset, TidemarkError
from tidemark.storage import files
from tidemark.storage.directories import log_directory as directory_module
from tidemark.storage.directories.log_manager import LogManager, open_logs
from tidemark.storage.files import pack_json
from tidemark.storage.log import log_segments as segments_module
from tidemark.storage.log.durability import Durability, Release
from tidemark.storage.log.partition_log import PartitionLog
from tidemark.storage.recovery.cleaner_point import CleanPoint, write_clean_point
from tidemark.storage.recovery.damage import CutPoint
from tidemark.storage.segments.segment import Segment

from tests.refusals import raises_code
from tests.unit.storage.batches import IDENTITY, PARTITION, at, lead, make_batch, open_one, read_all

CONFIGS = {"segment.bytes": "2000", "index.interval.bytes": "500"}


class FullDisk:
    """Write calls have `room_bytes` of space, then fail with ENOSPC or EDQUOT."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room_bytes = 1 << 40
        self.number = errno.ENOSPC
        self._pwritev, self._pwrite = os.pwritev, os.pwrite
        monkeypatch.setattr(os, "pwritev", self._writev)
        monkeypatch.setattr(os, "pwrite", self._write)

    def _writev(self, descriptor: int, buffers: Sequence[Any], position: int) -> int:
        return self._write(descriptor, b"".join(buffers), position)

    def _write(self, descriptor: int, data: Any, position: int) -> int:
        size = min(len(data), self.room_bytes)
        if size == 0:
            raise OSError(self.number, os.strerror(self.number))
        self.room_bytes -= size
        return self._pwrite(descriptor, memoryview(data)[:size], position)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    return FullDisk(monkeypatch)


def opened(logs: LogManager) -> tuple[PartitionLog, RecoveredLog]:
    return logs.open(PARTITION, IDENTITY, CONFIGS)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("room_bytes", [0, 1, 100, 300])
def test_an_append_without_space_is_truncated_whole_and_a_later_one_may_succeed(
    directory: Path, disk: FullDisk, room_bytes: int, number: int
) -> None:
    logs = open_one(directory)
    log, _ = opened(logs)
    lead(log, make_batch(["kept"], producer_id=7, producer_epoch=0, sequence=0))
    before = read_all(log)
    disk.room_bytes, disk.number = room_bytes, number
    for _ in range(3):
        with raises_code(ErrorCode.DISK_FULL):
            lead(log, make_batch(["lost " * 100], producer_id=7, producer_epoch=0, sequence=1))
        assert (log.log_end_offset, read_all(log), log.broken) == (1, before, None)
    assert log.truncate(Offset(1)).entries[7].batches[-1].last_sequence == 0
    disk.room_bytes = 1 << 40
    assert lead(log, make_batch(["more"] * 5)) == 6
    logs.close()
    again, found = opened(open_one(directory))
    assert (found.log_end_offset, found.damaged) == (6, None)
    read_all(again)


def test_a_roll_without_space_is_retried(directory: Path, disk: FullDisk) -> None:
    logs = open_one(directory)
    log, _ = opened(logs)
    end = 0
    for room_bytes in (0, 3, 40, 200, 900, 1 << 40):
        disk.room_bytes = 1 << 40
        while log.size_bytes() % 2000 < 1500:
            end = lead(log, make_batch(["x" * 300]))
        disk.room_bytes = room_bytes
        with contextlib.suppress(TidemarkError):
            end = lead(log, make_batch(["y" * 700]))
        assert log.log_end_offset == end
        assert log.broken is None
    read_all(log)
    logs.close()
    disk.room_bytes = 1 << 40
    again, found = opened(open_one(directory))
    assert (found.log_end_offset, found.damaged) == (end, None)
    read_all(again)


def test_a_failed_append_over_two_segments_frees_its_space_before_its_mark(
    directory: Path, disk: FullDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = opened(open_one(directory))
    lead(log, make_batch(["kept"]))
    mark_truncation = Durability.mark_truncation

    def needs_the_taken_space(durability: Durability, point: CutPoint) -> None:
        if any(segment.log_path.stat().st_size > segment.size_bytes for segment in log.segments.all):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        disk.room_bytes = 1 << 40
        mark_truncation(durability, point)

    monkeypatch.setattr(Durability, "mark_truncation", needs_the_taken_space)
    disk.room_bytes = 3000
    with pytest.raises(TidemarkError) as caught:
        log.append([make_batch(["x" * 700])] * 8, base_offset=Offset(1), leader_epoch=LeaderEpoch(0), stamp=True)
    assert (caught.value.code, log.broken) == (ErrorCode.DISK_FULL, None)
    assert log.log_end_offset == 1
    assert lead(log, make_batch(["more"])) == 2
    read_all(log)


@pytest.mark.parametrize("room_bytes", [1100, 1500, 2000, 2900, 3500])
def test_a_failed_append_over_several_segments_is_truncated_without_any_space(
    directory: Path, disk: FullDisk, room_bytes: int
) -> None:
    """Regression: the mark of the truncation had no space, so a follower stayed offline though space came back."""
    logs = open_one(directory)
    log, _ = opened(logs)
    lead(log, make_batch(["kept"]))
    kept = read_all(log)
    disk.room_bytes = room_bytes
    with raises_code(ErrorCode.DISK_FULL):
        log.append([make_batch(["x" * 700])] * 8, base_offset=Offset(1), leader_epoch=LeaderEpoch(0), stamp=True)
    assert disk.room_bytes == 0
    assert (log.broken, log.log_end_offset, read_all(log)) == (None, 1, kept)
    logs.close()
    disk.room_bytes = 1 << 40
    log, found = opened(open_one(directory))
    assert (found.log_end_offset, found.damaged, read_all(log)) == (1, None, kept)
    assert lead(log, make_batch(["more"])) == 2
    read_all(log)


def test_a_checkpoint_without_space_is_retried_and_leaves_no_partial_file(directory: Path, disk: FullDisk) -> None:
    logs = open_one(directory)
    log, _ = opened(logs)
    lead(log, make_batch(["one"]))
    log.save_epochs((EpochEntry(LeaderEpoch(0), Offset(0)),))
    disk.room_bytes = 10
    for _ in range(2):
        with raises_code(ErrorCode.DISK_FULL):
            logs.checkpoint({PARTITION: Offset(1)})
    assert [one.failed for one in logs.directories()] == [None]
    assert not list(directory.rglob("*.tmp"))
    disk.room_bytes = 1 << 40
    logs.checkpoint({PARTITION: Offset(1)})
    logs.close()
    _, found = opened(open_one(directory))
    assert (found.high_watermark, found.flushed_offset) == (1, 1)


def test_epochs_that_cannot_be_written_are_written_with_a_later_checkpoint(directory: Path, disk: FullDisk) -> None:
    logs = open_one(directory)
    log, _ = opened(logs)
    lead(log, make_batch(["one"]))
    disk.room_bytes = 0
    log.save_epochs((EpochEntry(LeaderEpoch(0), Offset(0)), EpochEntry(LeaderEpoch(9), Offset(1))))
    disk.room_bytes = 1 << 40
    logs.checkpoint({PARTITION: Offset(1)})
    logs.close()
    _, found = opened(open_one(directory))
    assert found.epochs[-1] == EpochEntry(LeaderEpoch(9), Offset(1))


@pytest.mark.parametrize("room_bytes", [0, 50, 500])
def test_a_start_on_a_full_disk_opens_records_appended_after_the_checkpoint(
    directory: Path, disk: FullDisk, room_bytes: int
) -> None:
    """Regression: a replica that did not open stayed offline until the next start, though space came back."""
    logs = open_one(directory)
    log, _ = opened(logs)
    logs.checkpoint({})
    for epoch in range(4):
        lead(log, *(make_batch(["x" * 300]) for _ in range(10)), epoch=epoch)
    whole = read_all(log)
    logs.close()
    disk.room_bytes = room_bytes
    for _ in range(2):
        logs = open_one(directory)
        log, found = opened(logs)
        assert (found.log_end_offset, found.damaged) == (40, None)
        assert found.epochs == tuple((epoch, 10 * epoch) for epoch in range(4))
        assert read_all(log) == whole
        logs.close()
    disk.room_bytes = 1 << 40
    log, _ = opened(open_one(directory))
    assert read_all(log) == whole
    assert lead(log, make_batch(["more"]), epoch=4) == 41


def test_a_truncation_without_space_changes_nothing_and_can_be_retried(directory: Path, disk: FullDisk) -> None:
    logs = open_one(directory)
    log, _ = opened(logs)
    lead(log, make_batch(["one"]), make_batch(["two"]))
    before = read_all(log)
    disk.room_bytes = 0
    for cut in (lambda: log.truncate(Offset(1)), lambda: log.reset(Offset(9))):
        with raises_code(ErrorCode.DISK_FULL):
            cut()
        assert (log.broken, read_all(log)) == (None, before)
    disk.room_bytes = 1 << 40
    log.truncate(Offset(1))
    assert log.log_end_offset == 1
    log.reset(Offset(9))
    assert lead(log, make_batch(["nine"])) == 10


def test_a_truncation_without_space_for_the_clean_point_can_be_retried(directory: Path, disk: FullDisk) -> None:
    log, _ = opened(open_one(directory))
    lead(log, make_batch(["one"]), make_batch(["two"]))
    marks = CutPoint(1, 0), CutPoint(2, 9, resetting=True)
    for mark, cut in zip(marks, (lambda: log.truncate(Offset(1)), lambda: log.reset(Offset(9))), strict=True):
        disk.room_bytes = 1 << 40
        write_clean_point(log.path, CleanPoint(2))
        disk.room_bytes = len(pack_json(mark._asdict()))
        with pytest.raises(TidemarkError) as caught:
            cut()
        assert (caught.value.code, log.broken) == (ErrorCode.DISK_FULL, None)
    disk.room_bytes = 1 << 40
    log.truncate(Offset(1))
    assert (log.log_end_offset, log.cleaning.clean_point) == (1, 1)


def test_a_reset_without_space_for_its_second_mark_is_retried_before_appends(directory: Path, disk: FullDisk) -> None:
    logs = open_one(directory)
    log, _ = opened(logs)
    lead(log, make_batch(["one"]))
    disk.room_bytes = len(pack_json(CutPoint(1, 9, resetting=True)._asdict()))
    with pytest.raises(TidemarkError) as caught:
        log.reset(Offset(9))
    assert (caught.value.code, log.broken, disk.room_bytes) == (ErrorCode.DISK_FULL, None, 0)
    disk.room_bytes = 1 << 40
    log.reset(Offset(9))
    lead(log, make_batch(["nine"]))
    whole = read_all(log)
    logs.close()
    again, found = opened(open_one(directory))
    assert (read_all(again), found.log_start_offset, found.damaged) == (whole, 9, None)


def test_a_sync_without_space_takes_the_directory_offline(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = open_one(directory)
    log, _ = opened(logs)
    lead(log, make_batch(["one"]))

    def lost(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(directory_module, "sync_file_system", lost)
    with pytest.raises(TidemarkError):
        logs.checkpoint({PARTITION: Offset(1)})
    assert logs.directories()[0].failed is not None


def test_segments_are_trimmed_on_a_full_disk(directory: Path, disk: FullDisk) -> None:
    logs = open_one(directory)
    log, _ = opened(logs)
    lead(log, *(make_batch(["x" * 300]) for _ in range(12)))
    disk.room_bytes = 0
    log.roll_by_time(1 << 50)
    log.trim(Offset(12))
    assert (log.log_start_offset, log.log_end_offset) == (12, 12)
    disk.room_bytes = 1 << 40
    lead(log, make_batch(["more"]))
    logs.checkpoint({PARTITION: Offset(13)})
    logs.close()
    _, found = opened(open_one(directory))
    assert (found.log_start_offset, found.log_end_offset, found.damaged) == (12, 13, None)


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, ErrorCode.DISK_FULL), (errno.EROFS, ErrorCode.STORAGE_ERROR)]
)
def test_a_batch_across_the_log_start_is_refused_where_its_segment_cannot_be_made(
    directory: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: ErrorCode
) -> None:
    """Regression: the error ended the append thread, and the broker."""
    logs = open_one(directory)
    log, _ = opened(logs)
    log.reset(Offset(5))
    spanning = at(make_batch(["a"] * 4), 3, 1)

    def fails(path: Path, base_offset: int) -> Segment:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(segments_module, "make_segment", fails)
        with raises_code(code):
            log.append([spanning], base_offset=Offset(5), leader_epoch=LeaderEpoch(1), stamp=False)
    assert (logs.directories()[0].failed is None) == (code is ErrorCode.DISK_FULL)
    if code is ErrorCode.DISK_FULL:
        assert log.append([spanning], base_offset=Offset(5), leader_epoch=LeaderEpoch(1), stamp=False) == 7
        assert log.log_start_offset == 5
    logs.close()


@pytest.mark.parametrize("room_bytes", [0, 50, 100])
def test_trimmed_segments_stay_where_their_mark_finds_no_space(
    directory: Path, disk: FullDisk, room_bytes: int
) -> None:
    logs = open_one(directory)
    log, _ = opened(logs)
    lead(log, *(make_batch(["x" * 300]) for _ in range(12)), epoch=3)
    log.trim(Offset(9))
    disk.room_bytes = room_bytes
    with raises_code(ErrorCode.DISK_FULL):
        logs.checkpoint({PARTITION: Offset(12)})
    disk.room_bytes = 1 << 40
    assert log.segments.has_trimmed
    logs.close()
    logs = open_one(directory)
    log, found = opened(logs)
    assert (found.log_end_offset, found.damaged, found.epochs) == (12, None, ((3, 0),))
    logs.close()


def test_a_checkpoint_that_cannot_write_an_index_has_written_the_epochs(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next checkpoint raises the recovery point: a start reads the epochs below it from the file alone."""
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, {"index.interval.bytes": "1"})
    log.save_epochs([EpochEntry(LeaderEpoch(0), Offset(0))])
    for number in range(300):
        lead(log, make_batch(["one"]), epoch=int(number >= 50))

    def full(segment: Segment) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Segment, "persist", full)
        with pytest.raises(TidemarkError):
            logs.checkpoint({PARTITION: Offset(300)})
    logs.checkpoint({PARTITION: Offset(300)})
    logs.close()
    _, found = opened(open_one(directory))
    assert found.epochs == ((0, 0), (1, 50))


def test_space_is_freed_while_other_logs_are_opened(
    directory: Path, disk: FullDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = open_one(directory)
    for number in range(3):
        lead(logs.open(PARTITION._replace(partition=number), IDENTITY, {})[0], make_batch(["one"]))
    prepare_release, opened_meanwhile = Durability.prepare_release, iter(range(10, 20))

    def others_open(durability: Durability) -> Release | None:
        disk.room_bytes = 1 << 40
        logs.open(PARTITION._replace(partition=next(opened_meanwhile)), IDENTITY, {})
        disk.room_bytes = 0
        return prepare_release(durability)

    monkeypatch.setattr(Durability, "prepare_release", others_open)
    disk.room_bytes = 0
    with raises_code(ErrorCode.DISK_FULL):
        logs.checkpoint({PARTITION: Offset(1)})
    disk.room_bytes = 1 << 40
    logs.checkpoint({PARTITION: Offset(1)})
    logs.close()


@pytest.mark.parametrize("boot", ["b", "boot-one", "a-boot-id-longer-than-that-before"])
def test_a_registration_is_confirmed_on_a_full_disk(
    directory: Path, monkeypatch: pytest.MonkeyPatch, boot: str
) -> None:
    logs = open_one(directory)
    logs.confirm_registration(BrokerEpoch(4), "boot-one")
    logs.close()
    logs = open_one(directory)
    with monkeypatch.context() as patched:
        patched.setattr(files, "write_temporary", no_space)
        logs.confirm_registration(BrokerEpoch(1005), boot)
    logs.close()
    logs = open_one(directory)
    assert logs.previous[0][1:] == (None, (boot, 1005))
    logs.close()


def test_a_full_disk_keeps_no_mark_of_an_earlier_clean_shutdown(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = open_one(directory)
    logs.confirm_registration(BrokerEpoch(4), "boot-one")
    logs.close_clean(BrokerEpoch(4), {})
    (directory / directory_module.INCARNATION_FILE).unlink()
    logs = open_one(directory)
    with monkeypatch.context() as patched:
        patched.setattr(files, "write_temporary", no_space)
        with pytest.raises(TidemarkError) as caught:
            logs.confirm_registration(BrokerEpoch(5), "boot-one")
    assert caught.value.code is ErrorCode.DISK_FULL
    logs.close()
    logs = open_one(directory)
    assert logs.previous[0][1:] == (None, None)
    logs.confirm_registration(BrokerEpoch(6), "boot-one")
    logs.close()


def test_a_full_directory_is_reported_beside_a_broken_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = open_logs([tmp_path / "broken", tmp_path / "full"], cluster_id="c", broker_id=BrokerId(0))
    numbers = iter((errno.EIO, errno.ENOSPC))

    def refused(*_: object, **__: object) -> Path:
        number = next(numbers)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files, "write_temporary", refused)
    with raises_code(ErrorCode.DISK_FULL):
        logs.confirm_registration(BrokerEpoch(4), "boot-one")
    assert len(logs.directory_ids) == 1
    logs.close()


def no_space(*_: object, **__: object) -> Path:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
