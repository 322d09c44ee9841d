# SPDX-License-Identifier: Apache-2.0
"""Trimming a log by time, by size and by its leader; crashes in between (rules L1, E3, T5)."""

from __future__ import annotations

import os
from pathlib import Path

from tidemark.core.replication.events import RecoveredLog
from tidemark.model import ErrorCode, Offset
from tidemark.ports import RetentionLimits as Limits
from tidemark.storage.directories.log_manager import LogManager
from tidemark.storage.log.partition_log import PartitionLog

from tests.refusals import raises_code
from tests.unit.storage.batches import IDENTITY, PARTITION, at, follow, lead, make_batch, open_one, read_all

CONFIGS = {"segment.bytes": "2000", "index.interval.bytes": "500", "file.delete.delay.ms": "0"}
SECOND_US = 1_000_000
EVERYTHING = Limits(-1, -1)


def opened(logs: LogManager, **configs: str) -> tuple[PartitionLog, RecoveredLog]:
    return logs.open(PARTITION, IDENTITY, {**CONFIGS, **configs})


def filled(logs: LogManager, batches: int = 20, **configs: str) -> PartitionLog:
    """Ten records a batch, one second from batch to batch, several segments."""
    log, _ = opened(logs, **configs)
    for number in range(batches):
        lead(log, make_batch([f"v{number}"] * 10, timestamp_us=number * SECOND_US, producer_id=7, producer_epoch=0,
                             sequence=number * 10))  # fmt: skip
    return log


def files(path: Path, suffix: str = ".log") -> list[str]:
    return sorted(one.name for one in (path / str(PARTITION)).iterdir() if one.name.endswith(suffix))


def bases(path: Path) -> list[int]:
    return [int(name[:20]) for name in files(path)]


def test_segments_older_than_the_limit_are_removed(directory: Path) -> None:
    log = filled(open_one(directory))
    second = bases(directory)[1]
    newest_of_first_ms = (second // 10 - 1) * 1000
    limits = Limits(5_000, -1)
    assert log.expired_until(limits, high_watermark=Offset(200), now_ms=newest_of_first_ms + 5_000) == 0
    assert log.expired_until(limits, high_watermark=Offset(200), now_ms=newest_of_first_ms + 5_001) == second
    assert log.expired_until(limits, high_watermark=Offset(second - 1), now_ms=1 << 40) == 0, "not past the HW"
    assert log.expired_until(limits, high_watermark=Offset(200), now_ms=1 << 40) == 200, (
        "also the active segment, if everything expired"
    )
    assert log.expired_until(EVERYTHING, high_watermark=Offset(200), now_ms=1 << 40) == 0


def test_the_oldest_segments_beyond_the_size_are_removed_and_the_active_one_stays(directory: Path) -> None:
    log = filled(open_one(directory))
    starts = bases(directory)
    size = log.size_bytes()
    first = (directory / str(PARTITION) / files(directory)[0]).stat().st_size
    assert log.expired_until(Limits(-1, size), high_watermark=Offset(200), now_ms=0) == 0
    assert log.expired_until(Limits(-1, size - first + 1), high_watermark=Offset(200), now_ms=0) == 0
    assert log.expired_until(Limits(-1, size - first), high_watermark=Offset(200), now_ms=0) == starts[1]
    assert log.expired_until(Limits(-1, 0), high_watermark=Offset(200), now_ms=0) == starts[-1]


def test_trimmed_records_are_out_of_range_at_once_and_a_checkpoint_releases_their_files(directory: Path) -> None:
    logs = open_one(directory)
    log = filled(logs)
    starts = bases(directory)
    log.trim(Offset(starts[2] + 5))
    assert log.log_start_offset == starts[2] + 5
    with raises_code(ErrorCode.OFFSET_OUT_OF_RANGE) as caught:
        log.read(Offset(starts[2]), end_offset=200, max_bytes=1 << 20)
    assert caught.value.metadata["log_start_offset"] == str(starts[2] + 5)
    assert bases(directory) == starts, "until a checkpoint names the log start the files are needed"
    logs.checkpoint({PARTITION: Offset(200)})
    assert bases(directory) == starts[2:]
    logs.close()  # waits for the deleter
    assert files(directory, ".deleted") == []
    again = open_one(directory)
    log, found = opened(again)
    assert (found.log_start_offset, found.log_end_offset, found.damaged) == (starts[2] + 5, 200, None)
    read_all(log)


def test_released_files_are_renamed_and_removed_by_a_start(directory: Path) -> None:
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, {**CONFIGS, "file.delete.delay.ms": "3600000"})
    for number in range(20):
        lead(log, make_batch([f"v{number}"] * 10))
    before = bases(directory)
    log.trim(Offset(before[2]))
    logs.checkpoint({PARTITION: Offset(200)})
    assert [name[:20] for name in files(directory, ".log.deleted")] == [f"{base:020d}" for base in before[:2]]
    logs.close()
    again = open_one(directory)
    opened(again)
    assert files(directory, ".deleted") == []


def test_a_kill_before_the_checkpoint_restores_the_old_log_start(directory: Path) -> None:
    logs = open_one(directory)
    log = filled(logs)
    logs.checkpoint({PARTITION: Offset(200)})
    log.trim(Offset(100))
    logs.close()
    log, found = opened(open_one(directory))
    assert (found.log_start_offset, found.damaged) == (0, None)
    assert len(read_all(log)) > 0


def test_a_segment_that_a_crash_brings_back_below_the_log_start_is_no_damage(directory: Path) -> None:
    logs = open_one(directory)
    log = filled(logs)
    starts = bases(directory)
    name = files(directory)[0]
    content = (directory / str(PARTITION) / name).read_bytes()
    log.trim(Offset(starts[3]))
    logs.checkpoint({PARTITION: Offset(200)})
    logs.close()
    (directory / str(PARTITION) / name).write_bytes(content)
    again = open_one(directory)
    log, found = opened(again)
    assert (found.log_start_offset, found.damaged) == (starts[3], None)
    assert bases(directory) == starts[3:]


def test_a_fully_trimmed_log_continues_at_its_end(directory: Path) -> None:
    logs = open_one(directory)
    log = filled(logs)
    log.trim(Offset(200))
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes()) == (200, 200, 0)
    logs.checkpoint({PARTITION: Offset(200)})
    assert bases(directory) == [200]
    lead(log, make_batch(["more"]))
    log.truncate(Offset(200))
    lead(log, make_batch(["other"]))
    logs.close()
    log, found = opened(open_one(directory))
    assert (found.log_start_offset, found.log_end_offset, found.damaged) == (200, 201, None)
    assert 7 in found.producers.entries, "producer states outlive their records"


def test_a_reset_and_a_truncation_after_a_trim_leave_no_file_of_the_old_log(directory: Path) -> None:
    logs = open_one(directory)
    log = filled(logs)
    log.trim(Offset(100))
    log.reset(Offset(500))
    assert bases(directory) == [500]
    follow(log, at(make_batch(["x"]), 500))
    log.trim(Offset(501))
    log.truncate(Offset(300))
    assert bases(directory) == [300]
    logs.close()
    _, found = opened(open_one(directory))
    assert (found.log_start_offset, found.log_end_offset, found.damaged) == (300, 300, None)


def test_a_reader_keeps_reading_files_released_meanwhile(directory: Path) -> None:
    logs = open_one(directory)
    log = filled(logs, **{"file.delete.delay.ms": "60000"})
    held = log.segments.all[0]
    before = held.log_path.read_bytes()
    log.trim(Offset(200))
    logs.checkpoint({PARTITION: Offset(200)})
    assert held.log_path.name.endswith(".deleted")
    held_file = log.segments.open(held)
    assert os.pread(held_file.number, len(before) + 1, 0) == before
    logs.close()


def test_an_idle_segment_rolls_when_it_is_old_enough_after_a_restart_too(directory: Path) -> None:
    logs = open_one(directory)
    log = filled(logs, batches=2)
    assert not log.may_roll_by_time(604_800_000)
    log.roll_by_time(604_800_000)
    assert bases(directory) == [0]
    logs.close()
    logs = open_one(directory)
    log, _ = opened(logs)
    assert log.may_roll_by_time(0), "its first record was not read yet"
    log.roll_by_time(604_800_000)
    assert not log.may_roll_by_time(604_800_000)
    log.roll_by_time(604_800_001)
    assert bases(directory) == [0, 20]
    assert not log.may_roll_by_time(1 << 50), "an empty segment never rolls"


def test_snapshots_below_the_log_start_are_deleted_except_the_newest(directory: Path) -> None:
    logs = open_one(directory)
    log = filled(logs)
    starts = bases(directory)
    log.trim(Offset(starts[3]))
    logs.checkpoint({PARTITION: Offset(200)})
    assert next(int(name[:20]) for name in files(directory, ".snapshot")) == starts[3]
    producers = log.truncate(Offset(starts[3]))
    assert producers.entries[7].batches[-1].last_offset == starts[3] - 1
