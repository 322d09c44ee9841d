# SPDX-License-Identifier: Apache-2.0
"""A running broker deletes stray replicas after their grace, also on a full disk (rule C8)."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tidemark.model import ErrorCode, Offset, TopicPartition
from tidemark.storage.directories import log_manager as manager_module
from tidemark.storage.files import write_temporary
from tidemark.storage.recovery.damage import CUT_FILE
from tidemark.storage.segments.segment import Segment

from tests.crash.disk import Image, read_image, write_image
from tests.refusals import raises_code
from tests.unit.storage.batches import IDENTITY, PARTITION, lead, make_batch, open_one
from tests.unit.storage.kills import Killer

CONFIGS = {"segment.bytes": "2000", "file.delete.delay.ms": "0"}
HOUR_MS = 3_600_000


def strays(path: Path) -> list[str]:
    return [one.name for one in path.iterdir() if one.name.endswith("-stray")]


def test_a_stray_is_deleted_after_its_grace_without_a_restart(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = open_one(directory, stray_grace_ms=HOUR_MS)
    log, _ = logs.open(PARTITION, IDENTITY, {})
    lead(log, make_batch(["ours no more"]))
    logs.set_aside(PARTITION, "stray")
    logs.checkpoint({})
    assert len(strays(directory)) == 1
    now_s = manager_module.time.monotonic()
    monkeypatch.setattr(manager_module.time, "monotonic", lambda: now_s + HOUR_MS / 1000 - 60)
    logs.checkpoint({})
    assert len(strays(directory)) == 1
    monkeypatch.setattr(manager_module.time, "monotonic", lambda: now_s + HOUR_MS / 1000 + 60)
    logs.checkpoint({})
    logs.close()  # waits for the deleter
    assert strays(directory) == []


def test_a_machine_without_threads_delays_a_deletion_and_fails_no_log(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the broker ended."""
    logs = open_one(directory)
    first, second = PARTITION, TopicPartition("second", 0)
    for one in (first, second):
        lead(logs.open(one, IDENTITY, {})[0], make_batch(["deleted"]))

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refused)
        logs.set_aside(first, "delete")
    assert [one.name for one in directory.iterdir() if one.name.endswith("-delete")]
    logs.set_aside(second, "delete")
    logs.close()  # waits for the deleter
    assert not [one.name for one in directory.iterdir() if one.name.endswith("-delete")]


def full(number: int) -> Callable[..., int]:
    def write(*arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    return write


def without_space(*arguments: object, **more: object) -> Path:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_stray_is_deleted_though_no_checkpoint_can_be_written(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = open_one(directory, stray_grace_ms=0)
    log, _ = logs.open(PARTITION, IDENTITY, {})
    lead(log, make_batch(["ours no more"]))
    logs.set_aside(PARTITION, "stray")
    ours, _ = logs.open(TopicPartition("ours", 0), IDENTITY, {})
    lead(ours, make_batch(["still ours"]))
    monkeypatch.setattr("tidemark.storage.directories.checkpoint_files.write_temporary", without_space)
    with raises_code(ErrorCode.DISK_FULL):
        logs.checkpoint({})
    logs.close()
    assert strays(directory) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_frees_the_space_of_a_deleted_replica(
    directory: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Regression: the directory was renamed, and stayed until the next start."""
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, {})
    lead(log, make_batch(["takes space"]))
    monkeypatch.setattr(os, "write", full(number))
    logs.set_aside(PARTITION, "delete")
    logs.close()  # waits for the deleter
    assert [path.name for path in directory.iterdir() if path.is_dir()] == []


def test_indexes_of_trimmed_segments_make_room_for_their_checkpoint(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, {"segment.bytes": "2000", "file.delete.delay.ms": "0"})
    for _ in range(20):
        lead(log, make_batch(["x" * 300]))
    log.trim(Offset(15))
    removed: list[int] = []
    remove = Segment.remove_indexes

    def noted(segment: Segment) -> None:
        removed.append(segment.base_offset)
        remove(segment)

    def scarce(place: Path, content: bytes, *, durable: bool = False) -> Path:
        return write_temporary(place, content, durable=durable) if removed else without_space()

    monkeypatch.setattr(Segment, "remove_indexes", noted)
    monkeypatch.setattr("tidemark.storage.directories.checkpoint_files.write_temporary", scarce)
    logs.checkpoint({PARTITION: Offset(20)})
    assert removed[0] == 0
    logs.close()
    again = open_one(directory)
    _, found = again.open(PARTITION, IDENTITY, {})
    assert (found.log_start_offset, found.log_end_offset, found.damaged) == (15, 20, None)
    assert again.directories()[0].failed is None


@pytest.mark.parametrize("start", [15, 20])
def test_trimmed_segments_are_deleted_though_no_checkpoint_can_be_written(
    directory: Path, monkeypatch: pytest.MonkeyPatch, start: int
) -> None:
    """Regression: with many replicas, checkpoints need more space than the indexes free, and the disk stayed full."""
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, CONFIGS)
    lead(log, *(make_batch(["x" * 300]) for _ in range(12)))
    logs.checkpoint({PARTITION: Offset(12)})
    lead(log, *(make_batch(["x" * 300], producer_id=7, producer_epoch=0, sequence=one) for one in range(8)), epoch=2)
    log.trim(Offset(start))
    first, before = log.segments.all[0].base_offset, log.state()
    monkeypatch.setattr("tidemark.storage.directories.checkpoint_files.write_temporary", without_space)
    with raises_code(ErrorCode.DISK_FULL):
        logs.checkpoint({PARTITION: Offset(20)})
    logs.close()
    assert min(int(path.stem) for path in log.path.glob("*.log")) == first
    again = open_one(directory)
    log, found = again.open(PARTITION, IDENTITY, CONFIGS)
    assert (found.high_watermark, found.damaged) == (12, None)
    assert log.state()._replace(producers=before.producers) == before
    assert found.producers.entries == before.producers.entries
    again.close()


def test_a_kill_while_marks_free_space_damages_no_log(
    directory: Path, monkeypatch: pytest.MonkeyPatch, killer: Killer
) -> None:
    logs = open_one(directory / "log")
    log, _ = logs.open(PARTITION, IDENTITY, {"segment.bytes": "2000"})  # no thread deletes files during the kills
    lead(log, *(make_batch(["x" * 300]) for _ in range(20)))
    logs.checkpoint({PARTITION: Offset(20)})
    log.trim(Offset(15))
    images: list[Image] = []

    def refused() -> None:
        with raises_code(ErrorCode.DISK_FULL):
            logs.checkpoint({PARTITION: Offset(20)})

    with monkeypatch.context() as full:
        full.setattr("tidemark.storage.directories.checkpoint_files.write_temporary", without_space)
        killer.each_point(refused, lambda: images.append(read_image(directory / "log")))
    log.trim(Offset(19))
    killer.each_point(
        lambda: logs.checkpoint({PARTITION: Offset(20)}), lambda: images.append(read_image(log.path.parent))
    )
    logs.close()
    starts = []
    for number, image in enumerate(images):
        place = directory / str(number)
        write_image(image, place)
        again = open_one(place)
        _, found = again.open(PARTITION, IDENTITY, CONFIGS)
        assert (found.log_end_offset, found.high_watermark, found.damaged) == (20, 20, None)
        starts.append(found.log_start_offset)
        again.close()
        shutil.rmtree(place)
    assert starts == sorted(starts), "no start of the log is lower than one before"
    assert set(starts) == {0, 15, 19}


def test_a_checkpoint_newer_than_a_mark_has_the_log_start(directory: Path) -> None:
    """A kill, or a power loss, comes before the mark is removed."""
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, CONFIGS)
    lead(log, *(make_batch(["x" * 300]) for _ in range(20)))
    log.truncate(Offset(19))
    mark = (log.path / CUT_FILE).read_bytes()
    log.trim(Offset(17))
    logs.checkpoint({PARTITION: Offset(17)})
    assert not (log.path / CUT_FILE).exists()
    (log.path / CUT_FILE).write_bytes(mark)
    logs.close()
    again = open_one(directory)
    _, found = again.open(PARTITION, IDENTITY, CONFIGS)
    assert (found.log_start_offset, found.log_end_offset, found.damaged) == (17, 19, None)
    again.close()


@pytest.mark.parametrize("set_by_s", [365 * 86_400, -365 * 86_400])
def test_a_changed_clock_deletes_no_stray_early(
    directory: Path, monkeypatch: pytest.MonkeyPatch, set_by_s: int
) -> None:
    logs = open_one(directory, stray_grace_ms=HOUR_MS)
    log, _ = logs.open(PARTITION, IDENTITY, {})
    lead(log, make_batch(["ours no more"]))
    logs.set_aside(PARTITION, "stray")
    wall_s, now_s = manager_module.time.time(), manager_module.time.monotonic()
    monkeypatch.setattr(manager_module.time, "time", lambda: wall_s + set_by_s)
    logs.checkpoint({})
    monkeypatch.setattr(manager_module.time, "monotonic", lambda: now_s + HOUR_MS / 1000 + 60)
    assert len(strays(directory)) == 1
    logs.checkpoint({})
    logs.close()
    assert strays(directory) == []


def test_the_grace_of_a_stray_continues_across_a_restart(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = open_one(directory, stray_grace_ms=HOUR_MS)
    log, _ = logs.open(PARTITION, IDENTITY, {})
    lead(log, make_batch(["ours no more"]))
    logs.set_aside(PARTITION, "stray")
    logs.close()
    wall_s = manager_module.time.time()
    monkeypatch.setattr(manager_module.time, "time", lambda: wall_s + HOUR_MS / 1000 + 60)
    logs = open_one(directory, stray_grace_ms=HOUR_MS)
    logs.checkpoint({})
    logs.close()
    assert strays(directory) == []
