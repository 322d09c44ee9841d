# SPDX-License-Identifier: Apache-2.0
"""Flushed records are on disk: after a power loss a start finds and trusts them (rules R3, T5)."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tidemark.model import ErrorCode, Offset, TidemarkError
from tidemark.storage.log.partition_log import PartitionLog

from tests.crash.disk import Image, write_image
from tests.refusals import raises_code
from tests.unit.storage.batches import IDENTITY, PARTITION, at, follow, lead, make_batch, open_one, read_all

SMALL = {"segment.bytes": "2000", "index.interval.bytes": "500"}


class StrictDisk:
    """Keeps only synced data of a directory tree: contents of files, names of directories."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.contents: dict[int, bytes] = {}
        self.names: dict[int, dict[str, int]] = {}
        self.synced: list[str] = []
        self.error: OSError | None = None
        self.meanwhile: Callable[[], object] | None = None
        monkeypatch.setattr(os, "fdatasync", self.sync)
        monkeypatch.setattr(os, "fsync", self.sync)

    def sync(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        self.synced.append(path.name)
        if self.error is not None:
            raise self.error
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            self.names[found.st_ino] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            self.contents[found.st_ino] = path.read_bytes()

    def image(self, directory: Path) -> Image:
        return dict(self._durable(directory.stat().st_ino, ""))

    def after_power_loss(self, directory: Path, target: Path) -> None:
        """Restore in `target` the parts of `directory` that are on disk."""
        write_image(self.image(directory), target)

    def _durable(self, inode: int, prefix: str) -> Iterator[tuple[str, bytes | None]]:
        for name, child in self.names.get(inode, {}).items():
            if child in self.names:
                yield prefix + name, None
                yield from self._durable(child, f"{prefix}{name}/")
            else:
                yield prefix + name, self.contents.get(child, b"")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> StrictDisk:
    return StrictDisk(monkeypatch)


def open_log(directory: Path) -> PartitionLog:
    return open_one(directory).open(PARTITION, IDENTITY, SMALL)[0]


def records(first: int, count: int) -> list[str]:
    return [f"record {number} " + "x" * 60 for number in range(first, first + count)]


def fill(log: PartitionLog, count: int, *, epoch: int = 0) -> None:
    for _ in range(count):
        lead(log, make_batch(records(log.log_end_offset, 5)), epoch=epoch)


def recovered(disk: StrictDisk, path: Path) -> tuple[bytes, str | None, int]:
    """(readable bytes, damage, log end) of a start after a power loss."""
    disk.after_power_loss(path / "disk", path / "after")
    logs = open_one(path / "after")
    try:
        log, found = logs.open(PARTITION, IDENTITY, SMALL)
        return read_all(log), found.damaged, found.log_end_offset
    finally:
        logs.close()


def test_flushed_records_survive_a_power_loss_and_others_do_not(directory: Path, disk: StrictDisk) -> None:
    log = open_log(directory / "disk")
    fill(log, 2)
    assert log.flush() == 10
    kept = read_all(log)
    fill(log, 1)
    assert recovered(disk, directory) == (kept, None, 10)


def test_the_first_flush_makes_the_identity_durable(directory: Path, disk: StrictDisk) -> None:
    log = open_log(directory / "disk")
    fill(log, 1)
    log.flush()
    disk.after_power_loss(directory / "disk", directory / "after")
    logs = open_one(directory / "after")
    assert logs.replicas() == {PARTITION: IDENTITY}
    logs.close()


def test_a_flush_covers_every_segment_since_the_last_one(directory: Path, disk: StrictDisk) -> None:
    log = open_log(directory / "disk")
    fill(log, 20)
    assert len(list((directory / "disk").rglob("*.log"))) > 3, "the log has rolled"
    assert log.flush() == 100
    assert recovered(disk, directory) == (read_all(log), None, 100)


def test_a_flushed_segment_is_not_flushed_again(directory: Path, disk: StrictDisk) -> None:
    log = open_log(directory / "disk")
    fill(log, 20)
    log.flush()
    disk.synced.clear()
    lead(log, make_batch(["small"]))
    assert log.flush() == 101
    newest = max(file.name for file in (directory / "disk").rglob("*.log"))
    assert disk.synced == [newest]
    assert log.flush() == 101
    assert disk.synced == [newest], "nothing was written since"


def test_truncated_segments_do_not_come_back(directory: Path, disk: StrictDisk) -> None:
    log = open_log(directory / "disk")
    fill(log, 20)
    log.flush()
    log.truncate(Offset(30))
    fill(log, 1, epoch=1)
    assert log.flush() == 35
    assert recovered(disk, directory) == (read_all(log), None, 35)


def test_the_flush_after_a_truncation_below_the_recovery_point_makes_its_mark_durable(
    directory: Path, disk: StrictDisk
) -> None:
    logs = open_one(directory / "disk")
    log, _ = logs.open(PARTITION, IDENTITY, SMALL)
    fill(log, 4)
    log.flush()
    logs.checkpoint({PARTITION: Offset(10)})
    # the checkpoint's syncfs made its renamed files durable
    for file in (directory / "disk").glob("*-checkpoint"):
        disk.contents[file.stat().st_ino] = file.read_bytes()
    log.truncate(Offset(12))
    fill(log, 1, epoch=1)
    assert log.flush() == 15
    disk.after_power_loss(directory / "disk", directory / "after")
    after = open_one(directory / "after")
    _, found = after.open(PARTITION, IDENTITY, SMALL)
    assert (found.damaged, found.log_end_offset, found.high_watermark) == (None, 15, 10)
    after.close()
    logs.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_failed_flush_fails_the_directory_and_is_never_retried(
    directory: Path, disk: StrictDisk, number: int
) -> None:
    """A file system that finds space only at the sync has lost the records, too."""
    logs = open_one(directory / "disk")
    log, _ = logs.open(PARTITION, IDENTITY, SMALL)
    fill(log, 1)
    log.flush()
    fill(log, 1)
    disk.synced.clear()
    disk.error = OSError(number, os.strerror(number))
    with raises_code(ErrorCode.STORAGE_ERROR, os.strerror(number)):
        log.flush()
    assert len(disk.synced) == 1
    disk.error = None
    with pytest.raises(TidemarkError, match="offline"):
        log.flush()
    with pytest.raises(TidemarkError, match="offline"):
        fill(log, 1)
    assert len(disk.synced) == 1, "a retry would succeed although the records are lost"
    assert log.flushed_offset == 5
    assert logs.directory_ids == ()
    logs.close()


def test_a_log_that_starts_inside_a_batch_is_found_by_its_new_name(directory: Path, disk: StrictDisk) -> None:
    logs = open_one(directory / "disk")
    log, _ = logs.open(PARTITION, IDENTITY, SMALL)
    log.reset(Offset(12))
    log.flush()
    follow(log, at(make_batch(records(10, 5)), 10))
    assert log.flush() == 15
    logs.checkpoint({PARTITION: Offset(15)})
    for file in (directory / "disk").glob("*-checkpoint"):
        disk.contents[file.stat().st_ino] = file.read_bytes()
    disk.after_power_loss(directory / "disk", directory / "after")
    after = open_one(directory / "after")
    log, found = after.open(PARTITION, IDENTITY, SMALL)
    assert (found.damaged, log.log_start_offset, log.log_end_offset) == (None, 12, 15)
    after.close()
    logs.close()


def test_records_appended_during_a_flush_wait_for_the_next_flush(directory: Path, disk: StrictDisk) -> None:
    log = open_log(directory / "disk")
    fill(log, 2)
    disk.meanwhile = lambda: fill(log, 20)
    assert log.flush() == 10
    assert log.flush() == log.log_end_offset == 110
    assert recovered(disk, directory) == (read_all(log), None, 110)


def test_a_flush_that_meets_a_truncation_does_not_cover_later_records(directory: Path, disk: StrictDisk) -> None:
    log = open_log(directory / "disk")
    fill(log, 4)
    log.flush()
    fill(log, 20)

    def cut() -> None:
        log.truncate(Offset(15))
        fill(log, 30, epoch=1)

    disk.meanwhile = cut
    assert log.flush() <= 15
    assert log.flushed_offset <= 15
    assert log.flush() == log.log_end_offset == 165
    assert recovered(disk, directory) == (read_all(log), None, 165)


def test_a_new_log_directory_survives_a_power_loss(directory: Path, disk: StrictDisk) -> None:
    (directory / "disk").mkdir()
    log = open_log(directory / "disk" / "logs")
    fill(log, 1)
    log.flush()
    disk.after_power_loss(directory / "disk", directory / "after")
    assert open_log(directory / "after" / "logs").log_end_offset == 5
