# SPDX-License-Identifier: Apache-2.0
"""Interrupted truncations and resets, and power losses after them (rules E3, R3, T5): cases of the crash points."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.model import BrokerEpoch, EpochEntry, LeaderEpoch, Offset
from tidemark.storage.directories.log_manager import LogManager
from tidemark.storage.log import log_segments as segments_module
from tidemark.storage.log import replayed_state as state_module
from tidemark.storage.log.durability import Durability
from tidemark.storage.log.partition_log import PartitionLog
from tidemark.storage.recovery import log_loader as recovery_module
from tidemark.storage.recovery.cleaner_point import CleanPoint
from tidemark.storage.recovery.damage import CutPoint
from tidemark.storage.recovery.epoch_file import EPOCH_FILE, read_epochs
from tidemark.storage.segments.segment import Segment

from tests.unit.storage.batches import IDENTITY, PARTITION, lead, make_batch, open_one, read_all
from tests.unit.storage.log.test_flush import SMALL, StrictDisk, fill, recovered


def opened(path: Path) -> tuple[LogManager, PartitionLog]:
    logs = open_one(path)
    return logs, logs.open(PARTITION, IDENTITY, SMALL)[0]


class Killed(BaseException):
    """The process was killed."""


def killed_in(patch: pytest.MonkeyPatch, removals: int, work: Callable[[], object]) -> bool:
    """Run the work, and kill it after this number of removed segments; returns whether the kill happened."""
    left = [removals]
    remove = Segment.remove

    def removing(segment: Segment) -> None:
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        remove(segment)

    with patch.context() as patched:
        patched.setattr(Segment, "remove", removing)
        try:
            work()
        except Killed:
            return True
    return False


@pytest.mark.parametrize("removals", range(4))
def test_a_start_finishes_a_reset_that_a_kill_interrupted(
    directory: Path, monkeypatch: pytest.MonkeyPatch, removals: int
) -> None:
    """Regression: the next start treated later records as a part of the old log, and dropped them."""
    logs, log = opened(directory)
    fill(log, 20)
    logs.checkpoint({PARTITION: Offset(100)})
    assert killed_in(monkeypatch, removals, lambda: log.reset(Offset(104), LeaderEpoch(7)))
    logs.close()
    for appended in range(5):
        logs = open_one(directory)
        log, found = logs.open(PARTITION, IDENTITY, SMALL)
        assert (found.log_start_offset, found.log_end_offset, found.damaged) == (104, 104 + 20 * appended, None)
        assert found.epochs[0] == (7, 104), (
            "the follower reports this epoch; without it, it may skip records of the leader"
        )
        assert found.producers.entries == {}
        fill(log, 4, epoch=8 + appended)
        logs.close()


@pytest.mark.parametrize("trimmed", [False, True], ids=["checkpointed front", "front that waits for a checkpoint"])
@pytest.mark.parametrize("start", [10, 12, 52])
@pytest.mark.parametrize("removals", range(6))
def test_a_start_finishes_an_interrupted_reset_to_below_the_log_start(
    directory: Path, monkeypatch: pytest.MonkeyPatch, removals: int, start: int, trimmed: bool
) -> None:
    """Regression after an unclean election: the remaining segments seemed to have lost the log start."""
    logs, log = opened(directory)
    fill(log, 20)
    if trimmed:
        logs.checkpoint({PARTITION: Offset(100)})
    log.trim(Offset(54))
    if not trimmed:
        logs.checkpoint({PARTITION: Offset(100)})
    assert killed_in(monkeypatch, removals, lambda: log.reset(Offset(start)))
    logs.close()
    for appended in range(3):
        logs = open_one(directory)
        log, found = logs.open(PARTITION, IDENTITY, SMALL)
        assert (found.log_start_offset, found.log_end_offset, found.damaged) == (start, start + 5 * appended, None)
        assert found.high_watermark == start
        fill(log, 1, epoch=appended)
        logs.close()


def test_records_flushed_after_a_reset_survive_a_flush_during_the_reset(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark with which a start finishes the reset is on disk then."""
    disk = StrictDisk(monkeypatch)
    _, log = opened(directory / "disk")
    fill(log, 20)
    log.flush()
    mark_truncation = Durability.mark_truncation

    def flushing(durability: Durability, cut: CutPoint) -> None:
        if not cut.resetting:
            log.flush()
        mark_truncation(durability, cut)

    with monkeypatch.context() as patched:
        patched.setattr(Durability, "mark_truncation", flushing)
        log.reset(Offset(200))
    fill(log, 1)
    assert log.flush() == 205
    assert recovered(disk, directory) == (read_all(log), None, 205)


def after_a_cut_below_the_high_watermark(path: Path) -> tuple[LogManager, PartitionLog]:
    """After an unclean election: 100 committed records of the old lineage, 30 uncommitted new ones."""
    logs, log = opened(path)
    fill(log, 20)
    logs.checkpoint({PARTITION: Offset(100)})
    log.truncate(Offset(50))
    fill(log, 6, epoch=1)
    return logs, log


def found_after_a_kill(path: Path, logs: LogManager) -> int:
    logs.close()
    logs = open_one(path)
    found = logs.open(PARTITION, IDENTITY, SMALL)[1]
    logs.close()
    assert (found.log_end_offset, found.damaged) == (80, None)
    return found.high_watermark


def test_a_high_watermark_from_before_a_truncation_does_not_cover_later_records(directory: Path) -> None:
    """The high watermark is older than the truncation, and the checkpoint sees the log after new appends."""
    logs, _ = after_a_cut_below_the_high_watermark(directory)
    logs.checkpoint({PARTITION: Offset(100)})
    assert found_after_a_kill(directory, logs) == 50


def test_a_checkpoint_without_a_high_watermark_keeps_none_from_before_a_truncation(directory: Path) -> None:
    """The checkpoint of a move has the high watermark of the moved replica only."""
    logs, _ = after_a_cut_below_the_high_watermark(directory)
    logs.checkpoint({})
    logs.checkpoint({PARTITION: Offset(100)})  # high watermarks read before that checkpoint
    assert found_after_a_kill(directory, logs) == 50


def test_a_start_after_a_truncation_does_not_restore_the_old_high_watermark(directory: Path) -> None:
    logs, _ = after_a_cut_below_the_high_watermark(directory)
    logs.close()
    logs, _ = opened(directory)
    logs.checkpoint({})
    assert found_after_a_kill(directory, logs) == 50


@pytest.mark.parametrize("moved", [False, True])
def test_the_second_checkpoint_after_a_truncation_has_the_new_high_watermark(directory: Path, moved: bool) -> None:
    """A checkpoint without the high watermark, as in another replica's move, does not count."""
    logs, _ = after_a_cut_below_the_high_watermark(directory)
    if moved:
        logs.checkpoint({})
    logs.checkpoint({PARTITION: Offset(70)})
    logs.checkpoint({PARTITION: Offset(70)})
    assert found_after_a_kill(directory, logs) == 70


def test_checkpoints_keep_the_bound_of_a_truncation_until_the_log_has_grown(directory: Path) -> None:
    """The reported high watermark may be older than the truncation."""
    logs, log = opened(directory)
    fill(log, 20)
    log.truncate(Offset(50))
    logs.checkpoint({PARTITION: Offset(100)})
    logs.checkpoint({PARTITION: Offset(100)})
    fill(log, 6, epoch=1)
    logs.checkpoint({PARTITION: Offset(100)})
    assert found_after_a_kill(directory, logs) == 50


def test_a_flush_after_a_truncation_makes_the_truncation_durable(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = StrictDisk(monkeypatch)
    _, log = opened(directory / "disk")
    lead(log, *(make_batch([value]) for value in "abc"))
    log.flush()
    log.truncate(Offset(2))
    log.flush()
    assert recovered(disk, directory) == (read_all(log), None, 2)


def test_records_flushed_after_a_truncation_are_not_damaged_by_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = StrictDisk(monkeypatch)
    _, log = opened(directory / "disk")
    lead(log, *(make_batch([value]) for value in "abc"))
    log.flush()
    log.truncate(Offset(2))
    lead(log, make_batch(["y" * 1500]), epoch=1)
    assert log.flush() == 3
    assert recovered(disk, directory) == (read_all(log), None, 3)


def test_a_flush_during_a_truncation_does_not_count_as_one_after_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = StrictDisk(monkeypatch)
    _, log = opened(directory / "disk")
    fill(log, 20)
    log.flush()
    remove = Segment.remove

    def removing(segment: Segment) -> None:
        log.flush()
        remove(segment)

    with monkeypatch.context() as patched:
        patched.setattr(Segment, "remove", removing)
        log.truncate(Offset(30))
    fill(log, 1, epoch=1)
    assert log.flush() == 35
    assert recovered(disk, directory) == (read_all(log), None, 35)


def test_bytes_below_a_checkpoint_are_never_overwritten_after_a_truncation(directory: Path) -> None:
    """The page of the truncation may reach the disk before the truncation."""
    logs, log = opened(directory)
    lead(log, *(make_batch([value]) for value in "abc"))
    logs.checkpoint({PARTITION: Offset(2)})
    (first,) = (directory / str(PARTITION)).glob("*.log")
    before = first.read_bytes()
    log.truncate(Offset(2))
    cut = first.read_bytes()
    assert before.startswith(cut)
    lead(log, make_batch(["d"]), epoch=1)
    assert first.read_bytes() == cut
    assert log.log_end_offset == 3
    whole = read_all(log)
    logs.close()
    logs, log = opened(directory)
    assert read_all(log) == whole
    logs.close()


def test_a_power_loss_in_the_flush_after_a_truncation_never_mixes_records_of_before_and_after(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Life 22 of the crash points: old segments reappeared, with new bytes in the first of them."""
    disk = StrictDisk(monkeypatch)
    _, log = opened(directory / "disk")
    fill(log, 20)
    log.flush()
    before, (_, segment, *later) = read_all(log), log.segments.all
    assert later
    log.truncate(Offset(segment.base_offset))
    fill(log, 1, epoch=1)
    log.durability._sync_segment(log.segments.active)
    assert recovered(disk, directory) == (before, None, 100)


def test_a_truncation_without_space_for_a_new_file_truncates_the_old_one(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, log = opened(directory)
    fill(log, 20)
    log.flush()
    start = log.segments.active.base_offset

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(segments_module, "write_temporary", full)
        log.truncate(Offset(start))
    fill(log, 1, epoch=1)
    assert log.log_end_offset == start + 5
    assert len(read_all(log)) == log.size_bytes()


def test_a_snapshot_from_before_a_gap_is_not_used(directory: Path) -> None:
    """Retries of trimmed batches would be appended again as new batches."""
    logs, log = opened(directory)
    for number in range(20):
        lead(log, make_batch(["x" * 300], producer_id=4, producer_epoch=0, sequence=number))
    starts = [segment.base_offset for segment in log.segments.all]
    assert len(starts) > 4
    logs.checkpoint({PARTITION: Offset(20)})
    log.trim(Offset(starts[-1]))
    log.truncate(Offset(starts[-1]))  # its mark names the new log start
    logs.close()
    (directory / str(PARTITION) / f"{starts[-1]:020d}.snapshot").write_bytes(b"rotten")
    logs, log = opened(directory)
    assert log.log_start_offset == log.log_end_offset == starts[-1]
    assert log.state().producers.entries == {}
    logs.close()


@pytest.mark.parametrize("written", [b"", b"a batch, begun"], ids=["nothing", "some"])
def test_a_kill_before_the_batch_that_spans_the_log_start_loses_nothing(directory: Path, written: bytes) -> None:
    """The new segment begins below the log start; the empty segment that it replaces is deleted already."""
    logs, log = opened(directory)
    fill(log, 2)
    log.reset(Offset(54))
    logs.checkpoint({PARTITION: Offset(54)})
    logs.close()
    replica = directory / str(PARTITION)
    (replica / f"{54:020}.log").rename(replica / f"{52:020}.log")
    (replica / f"{52:020}.log").write_bytes(written)
    for _ in range(2):
        logs = open_one(directory)
        log, found = logs.open(PARTITION, IDENTITY, SMALL)
        assert (found.log_start_offset, found.log_end_offset, found.damaged) == (54, 54, None)
        logs.close()


def test_without_the_epoch_file_the_epoch_below_the_log_start_is_unknown(directory: Path) -> None:
    logs, log = opened(directory)
    fill(log, 2, epoch=3)
    log.reset(Offset(54))
    log.save_epochs((EpochEntry(LeaderEpoch(3), Offset(54)),))
    logs.close()
    (directory / str(PARTITION) / EPOCH_FILE).unlink()
    for _ in range(2):
        logs = open_one(directory)
        log, found = logs.open(PARTITION, IDENTITY, SMALL)
        assert found.epochs == ((-1, 54),)
        logs.close()


def of_two_epochs(path: Path) -> tuple[LogManager, PartitionLog]:
    logs, log = opened(path)
    fill(log, 4, epoch=3)
    fill(log, 4, epoch=5)
    log.save_epochs((EpochEntry(LeaderEpoch(3), Offset(0)), EpochEntry(LeaderEpoch(5), Offset(20))))
    return logs, log


def test_batches_that_a_kill_brings_back_give_the_epochs_below_the_log_start(directory: Path) -> None:
    """The epoch file has the new start immediately; the log start needs the next checkpoint."""
    logs, log = of_two_epochs(directory)
    logs.checkpoint({PARTITION: Offset(40)})
    log.trim(Offset(30))
    log.save_epochs((EpochEntry(LeaderEpoch(5), Offset(30)),))
    logs.close()
    _, found = open_one(directory).open(PARTITION, IDENTITY, SMALL)
    assert found.log_start_offset == 0
    assert found.epochs == ((3, 0), (5, 20))


def test_a_kill_after_a_trim_keeps_the_epoch_below_the_earlier_log_start(directory: Path) -> None:
    """The log starts there again, and no batch gives the epoch below."""
    logs, log = opened(directory)
    fill(log, 20, epoch=5)
    for start in (20, 60):
        logs.checkpoint({PARTITION: Offset(100)})
        log.trim(Offset(start))
        log.save_epochs((EpochEntry(LeaderEpoch(5), Offset(start)),))
    logs.close()
    for _ in range(2):
        logs = open_one(directory)
        _, found = logs.open(PARTITION, IDENTITY, SMALL)
        assert (found.log_start_offset, found.epochs) == (20, ((5, 20),))
        logs.close()


def test_the_epoch_file_of_a_clean_stop_is_not_rewritten_by_the_next_start(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for a trimmed log, too: else a start would write one file for each replica."""
    logs, log = opened(directory)
    fill(log, 20, epoch=5)
    log.trim(Offset(60))
    log.save_epochs((EpochEntry(LeaderEpoch(5), Offset(60)),))
    for _ in range(3):
        logs.checkpoint({PARTITION: Offset(100)})
    logs.close_clean(BrokerEpoch(1), {PARTITION: Offset(100)})
    logs.close()

    def written(*arguments: object) -> None:
        raise AssertionError(f"the log wrote {arguments}")

    monkeypatch.setattr(recovery_module, "write_epochs", written)
    _, found = open_one(directory).open(PARTITION, IDENTITY, SMALL)
    assert LeaderEpochs(found.epochs).epoch_at(Offset(59)) == 5


def test_a_reset_without_space_for_the_epoch_file_has_the_epoch_in_its_mark(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, log = opened(directory)
    fill(log, 20, epoch=5)

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(state_module, "write_epochs", full)
    monkeypatch.setattr(recovery_module, "write_epochs", full)
    log.reset(Offset(500), LeaderEpoch(7))
    for _ in range(2):
        logs.close()
        logs = open_one(directory)
        log, found = logs.open(PARTITION, IDENTITY, SMALL)
        assert (found.log_start_offset, found.epochs, found.damaged) == (500, ((7, 500),), None)
    monkeypatch.undo()
    fill(log, 1, epoch=8)
    logs.close()
    log, found = open_one(directory).open(PARTITION, IDENTITY, SMALL)
    assert found.epochs == ((7, 500), (8, 500))


def test_a_start_finishes_a_reset_without_space_for_the_epoch_file(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, log = opened(directory)
    fill(log, 20)
    assert killed_in(monkeypatch, 1, lambda: log.reset(Offset(104), LeaderEpoch(7)))

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(recovery_module, "write_epochs", full)
    for _ in range(2):
        logs.close()
        logs = open_one(directory)
        log, found = logs.open(PARTITION, IDENTITY, SMALL)
        assert (found.log_start_offset, found.epochs, found.damaged) == (104, ((7, 104),), None)


def test_a_late_checkpoint_does_not_drop_newer_epochs(directory: Path) -> None:
    """A copy adopts the epochs of the log, with a higher log start, during a checkpoint of its directory."""
    logs, log = opened(directory)
    fill(log, 20, epoch=5)
    log.trim(Offset(10))
    captured = log.durability.capture()
    assert captured is not None
    log.trim(Offset(60))
    state = log.state()
    log.adopt(state, CleanPoint())
    log.durability.checkpointed(captured, has_high_watermark=True)
    assert log.state().epochs == state.epochs == ((5, 60),)
    logs.close()


def test_epochs_below_the_log_start_are_dropped_after_a_checkpoint(directory: Path) -> None:
    logs, log = of_two_epochs(directory)
    log.trim(Offset(30))
    told = (EpochEntry(LeaderEpoch(5), Offset(30)),)
    for known in (((3, 0), (5, 20)), told):
        log.save_epochs(told)
        epochs = read_epochs(log.path)
        assert epochs is not None
        assert epochs.entries == known
        logs.checkpoint({PARTITION: Offset(40)})
    logs.close()
