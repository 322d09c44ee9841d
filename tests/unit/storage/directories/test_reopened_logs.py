# SPDX-License-Identifier: Apache-2.0
"""A log that is opened again, or created again, in the same process gets the offsets of its own checkpoints on disk
(rules R3, T5)."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from tidemark.core.replication.events import RecoveredLog
from tidemark.model import ErrorCode, Offset, ReplicaIdentity
from tidemark.storage.directories import log_directory
from tidemark.storage.directories.checkpoint_files import Checkpoints
from tidemark.storage.directories.log_directory import LogDirectory
from tidemark.storage.directories.log_manager import LogManager
from tidemark.storage.log.partition_log import PartitionLog

from tests.refusals import raises_code
from tests.unit.storage.batches import IDENTITY, PARTITION, lead, make_batch, open_one, read_all

CONFIGS = {"segment.bytes": "1000"}
NEXT = ReplicaIdentity("topic-two", "incarnation-two")


def opened(logs: LogManager) -> tuple[PartitionLog, RecoveredLog]:
    return logs.open(PARTITION, IDENTITY, CONFIGS)


def fill(log: PartitionLog, count: int) -> None:
    """Append records, each in a segment of its own."""
    for _ in range(count):
        lead(log, make_batch(["x" * 600]))


def checkpoint_without_space(logs: LogManager, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, raises_code(ErrorCode.DISK_FULL):
        patch.setattr(Checkpoints, "write_temporaries", fail)
        patch.setattr(LogDirectory, "_make_room", lambda directory: False)
        logs.checkpoint({PARTITION: Offset(6)})


def test_a_reopened_log_counts_no_records_of_a_failed_checkpoint_as_flushed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = open_one(directory)
    log, _ = opened(logs)
    fill(log, 2)
    assert log.flush() == 2
    logs.checkpoint({})
    fill(log, 1)
    checkpoint_without_space(logs, monkeypatch)
    log, found = opened(logs)
    assert (found.log_end_offset, found.flushed_offset) == (3, 2)
    logs.checkpoint({})
    assert log.flushed_offset == 3
    logs.close()


def test_a_reopened_log_keeps_its_trimmed_segments_until_a_checkpoint_is_on_disk(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = open_one(directory)
    log, _ = opened(logs)
    fill(log, 6)
    logs.checkpoint({PARTITION: Offset(6)})
    log.trim(Offset(3))
    checkpoint_without_space(logs, monkeypatch)
    opened(logs)
    logs.close()
    log, found = opened(open_one(directory))
    assert (found.damaged, found.log_end_offset) == (None, 6)
    read_all(log)


def test_a_log_that_is_reopened_during_a_checkpoint_counts_as_flushed_after_the_next_one(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = open_one(directory)
    fill(opened(logs)[0], 2)
    during: list[tuple[PartitionLog, RecoveredLog]] = []
    sync = LogDirectory._sync_file_system

    def reopen(one: LogDirectory) -> None:
        during.append(opened(logs))
        sync(one)

    with monkeypatch.context() as patch:
        patch.setattr(LogDirectory, "_sync_file_system", reopen)
        logs.checkpoint({PARTITION: Offset(2)})
    [(log, found)] = during
    assert (found.log_end_offset, found.flushed_offset, log.flushed_offset) == (2, 0, 0)
    logs.checkpoint({PARTITION: Offset(2)})
    assert log.flushed_offset == 2
    logs.close()
    log, found = opened(open_one(directory))
    assert (found.damaged, found.flushed_offset, found.high_watermark) == (None, 2, 2)


@pytest.mark.parametrize("records", [3, 8])
def test_a_checkpoint_gives_no_log_the_high_watermark_of_the_deleted_topic_of_its_name(
    directory: Path, monkeypatch: pytest.MonkeyPatch, records: int
) -> None:
    """High watermarks are read before a checkpoint, and the checkpoint waits for the disks of other directories."""
    logs = open_one(directory)
    fill(opened(logs)[0], 6)
    checkpoint = LogDirectory.checkpoint

    def wait_for_another_disk(here: LogDirectory, high_watermarks: Mapping[PartitionLog, Offset]) -> None:
        logs.set_aside(PARTITION, "delete")
        fill(logs.open(PARTITION, NEXT, CONFIGS)[0], records)
        checkpoint(here, high_watermarks)

    with monkeypatch.context() as patch:
        patch.setattr(LogDirectory, "checkpoint", wait_for_another_disk)
        logs.checkpoint({PARTITION: Offset(6)})
    logs.close()
    _, found = open_one(directory).open(PARTITION, NEXT, CONFIGS)
    assert (found.log_end_offset, found.high_watermark, found.damaged) == (records, 0, None)


def test_a_replica_that_is_set_aside_at_the_end_of_a_checkpoint_gets_no_offsets_back(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = open_one(directory)
    log, _ = opened(logs)
    fill(log, 2)
    (home,) = logs._directories
    points, threads = home.checkpoints, list[threading.Thread]()

    def broken(one: PartitionLog) -> str | None:
        found = one._context.broken
        if one is log and points.guard.locked() and not threads:
            threads.append(threading.Thread(target=logs.set_aside, args=(PARTITION, "delete")))
            threads[0].start()
        elif one is log and is_on_disk and not threads:
            logs.set_aside(PARTITION, "delete")
        return found

    is_on_disk = False

    def sync(of: Path) -> None:
        nonlocal is_on_disk
        is_on_disk = True

    with monkeypatch.context() as patch:
        patch.setattr(log_directory, "sync_directory", sync)
        patch.setattr(PartitionLog, "broken", property(broken))
        logs.checkpoint({PARTITION: Offset(2)})
    for thread in threads:
        thread.join()
    assert (PARTITION, IDENTITY.incarnation) not in points.recovery_points
    logs.close()
