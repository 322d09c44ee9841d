# SPDX-License-Identifier: Apache-2.0
"""Truncation and reset cut short, or followed by a power loss (rules E3, R3, T5): found by the crash points."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.model import BrokerEpoch, EpochEntry, LeaderEpoch, Offset
from tidemark.storage.directories.log_manager import LogManager
from tidemark.storage.log import replayed_state as state_module
from tidemark.storage.log.durability import Durability
from tidemark.storage.log.partition_log import PartitionLog
from tidemark.storage.recovery import log_loader as recovery_module
from tidemark.storage.recovery.damage import CutPoint
from tidemark.storage.recovery.epoch_file import EPOCH_FILE, read_epochs
from tidemark.storage.segments.segment import Segment

from tests.unit.storage.batches import IDENTITY, PARTITION, lead, make_batch, memory_directory, open_one, read_all
from tests.unit.storage.log.test_flush import SMALL, StrictDisk, fill, recovered


@pytest.fixture
def path() -> Iterator[Path]:
    with memory_directory() as made:
        yield made


def opened(path: Path) -> tuple[LogManager, PartitionLog]:
    logs = open_one(path)
    return logs, logs.open(PARTITION, IDENTITY, SMALL)[0]


class Killed(BaseException):
    """The process is gone."""


def killed_in(patch: pytest.MonkeyPatch, removals: int, work: Callable[[], object]) -> bool:
    """Whether the work was cut short after so many segments were removed."""
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
def test_a_reset_cut_short_by_a_kill_is_finished_by_the_start(
    path: Path, monkeypatch: pytest.MonkeyPatch, removals: int
) -> None:
    """It dropped what was appended after it, when the start after that took it for a part of the old log."""
    logs, log = opened(path)
    fill(log, 20)
    logs.checkpoint({PARTITION: Offset(100)})
    assert killed_in(monkeypatch, removals, lambda: log.reset(Offset(104), LeaderEpoch(7)))
    logs.close()
    for appended in range(5):
        logs = open_one(path)
        log, found = logs.open(PARTITION, IDENTITY, SMALL)
        assert (found.log_start_offset, found.log_end_offset, found.damaged) == (104, 104 + 20 * appended, None)
        assert found.epochs[0] == (7, 104), "that is what it tells its leader, or it may skip what that one has below"
        assert found.producers.entries == {}
        fill(log, 4, epoch=8 + appended)
        logs.close()


@pytest.mark.parametrize("trimmed", [False, True], ids=["checkpointed front", "front that waits for a checkpoint"])
@pytest.mark.parametrize("start", [10, 12, 52])
@pytest.mark.parametrize("removals", range(6))
def test_a_reset_to_below_the_log_start_cut_short_by_a_kill_is_finished_by_the_start(
    path: Path, monkeypatch: pytest.MonkeyPatch, removals: int, start: int, trimmed: bool
) -> None:
    """After an unclean election: what is left begins above, and was taken for a log that has lost its front."""
    logs, log = opened(path)
    fill(log, 20)
    if trimmed:
        logs.checkpoint({PARTITION: Offset(100)})
    log.trim(Offset(54))
    if not trimmed:
        logs.checkpoint({PARTITION: Offset(100)})
    assert killed_in(monkeypatch, removals, lambda: log.reset(Offset(start)))
    logs.close()
    for appended in range(3):
        logs = open_one(path)
        log, found = logs.open(PARTITION, IDENTITY, SMALL)
        assert (found.log_start_offset, found.log_end_offset, found.damaged) == (start, start + 5 * appended, None)
        assert found.high_watermark == start
        fill(log, 1, epoch=appended)
        logs.close()


def test_what_is_flushed_after_a_reset_outlives_a_flush_in_the_middle_of_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark that has the next start finish the reset is on disk then."""
    disk = StrictDisk(monkeypatch)
    _, log = opened(path / "disk")
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
    assert recovered(disk, path) == (read_all(log), None, 205)


def after_a_cut_below_the_high_watermark(path: Path) -> tuple[LogManager, PartitionLog]:
    """After an unclean election: 100 records of the old lineage were committed, none of the 30 new ones is."""
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


def test_a_high_watermark_of_before_a_cut_vouches_for_nothing_that_came_after_it(path: Path) -> None:
    """It was taken before the cut, the log was looked at when it had grown again."""
    logs, _ = after_a_cut_below_the_high_watermark(path)
    logs.checkpoint({PARTITION: Offset(100)})
    assert found_after_a_kill(path, logs) == 50


def test_a_checkpoint_that_is_told_no_high_watermark_vouches_for_none_of_before_a_cut(path: Path) -> None:
    """One that a move needs knows the high watermark of that replica only."""
    logs, _ = after_a_cut_below_the_high_watermark(path)
    logs.checkpoint({})
    logs.checkpoint({PARTITION: Offset(100)})  # taken before that one
    assert found_after_a_kill(path, logs) == 50


def test_a_start_after_a_cut_does_not_bring_the_high_watermark_of_before_it_back(path: Path) -> None:
    logs, _ = after_a_cut_below_the_high_watermark(path)
    logs.close()
    logs, _ = opened(path)
    logs.checkpoint({})
    assert found_after_a_kill(path, logs) == 50


@pytest.mark.parametrize("moved", [False, True])
def test_the_second_checkpoint_after_a_cut_knows_what_has_been_committed_since(path: Path, moved: bool) -> None:
    """One that was told no high watermark, as another replica's move needs it, does not count."""
    logs, _ = after_a_cut_below_the_high_watermark(path)
    if moved:
        logs.checkpoint({})
    logs.checkpoint({PARTITION: Offset(70)})
    logs.checkpoint({PARTITION: Offset(70)})
    assert found_after_a_kill(path, logs) == 70


def test_a_cut_is_not_forgotten_by_checkpoints_before_the_log_has_grown_again(path: Path) -> None:
    """Whoever tells them the high watermark may not have heard of the cut yet."""
    logs, log = opened(path)
    fill(log, 20)
    log.truncate(Offset(50))
    logs.checkpoint({PARTITION: Offset(100)})
    logs.checkpoint({PARTITION: Offset(100)})
    fill(log, 6, epoch=1)
    logs.checkpoint({PARTITION: Offset(100)})
    assert found_after_a_kill(path, logs) == 50


def test_a_flush_after_a_cut_keeps_the_cut_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = StrictDisk(monkeypatch)
    _, log = opened(path / "disk")
    lead(log, *(make_batch([value]) for value in "abc"))
    log.flush()
    log.truncate(Offset(2))
    log.flush()
    assert recovered(disk, path) == (read_all(log), None, 2)


def test_what_is_flushed_behind_a_cut_is_not_doubted_for_what_was_cut(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = StrictDisk(monkeypatch)
    _, log = opened(path / "disk")
    lead(log, *(make_batch([value]) for value in "abc"))
    log.flush()
    log.truncate(Offset(2))
    lead(log, make_batch(["y" * 1500]), epoch=1)
    assert log.flush() == 3
    assert recovered(disk, path) == (read_all(log), None, 3)


def test_a_flush_in_the_middle_of_a_cut_does_not_stand_for_one_after_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = StrictDisk(monkeypatch)
    _, log = opened(path / "disk")
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
    assert recovered(disk, path) == (read_all(log), None, 35)


def test_what_a_checkpoint_vouches_for_is_not_written_over_where_it_is_cut(path: Path) -> None:
    """The page that the cut goes through may reach the disk before the cut does."""
    logs, log = opened(path)
    lead(log, *(make_batch([value]) for value in "abc"))
    logs.checkpoint({PARTITION: Offset(2)})
    (first,) = (path / str(PARTITION)).glob("*.log")
    before = first.read_bytes()
    log.truncate(Offset(2))
    cut = first.read_bytes()
    assert before.startswith(cut)
    lead(log, make_batch(["d"]), epoch=1)
    assert first.read_bytes() == cut
    assert log.log_end_offset == 3
    whole = read_all(log)
    logs.close()
    logs, log = opened(path)
    assert read_all(log) == whole
    logs.close()


def test_a_snapshot_from_before_a_gap_is_not_taken_for_what_producers_did_last(path: Path) -> None:
    """Batches of theirs that retention took since would pass for new ones when they are sent again."""
    logs, log = opened(path)
    for number in range(20):
        lead(log, make_batch(["x" * 300], producer_id=4, producer_epoch=0, sequence=number))
    starts = [segment.base_offset for segment in log.segments.all]
    assert len(starts) > 4
    logs.checkpoint({PARTITION: Offset(20)})
    log.trim(Offset(starts[-1]))
    log.truncate(Offset(starts[-1]))  # its mark names the new log start
    logs.close()
    (path / str(PARTITION) / f"{starts[-1]:020d}.snapshot").write_bytes(b"rotten")
    logs, log = opened(path)
    assert log.log_start_offset == log.log_end_offset == starts[-1]
    assert log.state().producers.entries == {}
    logs.close()


@pytest.mark.parametrize("written", [b"", b"a batch, begun"], ids=["nothing", "some"])
def test_a_log_killed_before_the_batch_that_spans_its_start_was_written_has_lost_nothing(
    path: Path, written: bytes
) -> None:
    """The segment for it begins below the log start; the empty one that it replaces is gone already."""
    logs, log = opened(path)
    fill(log, 2)
    log.reset(Offset(54))
    logs.checkpoint({PARTITION: Offset(54)})
    logs.close()
    replica = path / str(PARTITION)
    (replica / f"{54:020}.log").rename(replica / f"{52:020}.log")
    (replica / f"{52:020}.log").write_bytes(written)
    for _ in range(2):
        logs = open_one(path)
        log, found = logs.open(PARTITION, IDENTITY, SMALL)
        assert (found.log_start_offset, found.log_end_offset, found.damaged) == (54, 54, None)
        logs.close()


def test_a_log_without_its_epoch_file_says_that_nobody_knows_what_was_let_go(path: Path) -> None:
    logs, log = opened(path)
    fill(log, 2, epoch=3)
    log.reset(Offset(54))
    log.save_epochs((EpochEntry(LeaderEpoch(3), Offset(54)),))
    logs.close()
    (path / str(PARTITION) / EPOCH_FILE).unlink()
    for _ in range(2):
        logs = open_one(path)
        log, found = logs.open(PARTITION, IDENTITY, SMALL)
        assert found.epochs == ((-1, 54),)
        logs.close()


def of_two_epochs(path: Path) -> tuple[LogManager, PartitionLog]:
    logs, log = opened(path)
    fill(log, 4, epoch=3)
    fill(log, 4, epoch=5)
    log.save_epochs((EpochEntry(LeaderEpoch(3), Offset(0)), EpochEntry(LeaderEpoch(5), Offset(20))))
    return logs, log


def test_what_was_let_go_before_a_kill_is_known_by_the_batches_that_are_back(path: Path) -> None:
    """The file of epochs goes on at once, the log start with the next checkpoint."""
    logs, log = of_two_epochs(path)
    logs.checkpoint({PARTITION: Offset(40)})
    log.trim(Offset(30))
    log.save_epochs((EpochEntry(LeaderEpoch(5), Offset(30)),))
    logs.close()
    _, found = open_one(path).open(PARTITION, IDENTITY, SMALL)
    assert found.log_start_offset == 0
    assert found.epochs == ((3, 0), (5, 20))


def test_a_kill_after_a_front_was_let_go_leaves_what_was_let_go_before_it_known(path: Path) -> None:
    """The log starts there again, and what lay below is told by no batch."""
    logs, log = opened(path)
    fill(log, 20, epoch=5)
    for start in (20, 60):
        logs.checkpoint({PARTITION: Offset(100)})
        log.trim(Offset(start))
        log.save_epochs((EpochEntry(LeaderEpoch(5), Offset(start)),))
    logs.close()
    for _ in range(2):
        logs = open_one(path)
        _, found = logs.open(PARTITION, IDENTITY, SMALL)
        assert (found.log_start_offset, found.epochs) == (20, ((5, 20),))
        logs.close()


def test_a_stop_leaves_an_epoch_file_that_the_next_start_need_not_write(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor that of a log whose front was let go: a start would write one for each replica."""
    logs, log = opened(path)
    fill(log, 20, epoch=5)
    log.trim(Offset(60))
    log.save_epochs((EpochEntry(LeaderEpoch(5), Offset(60)),))
    for _ in range(3):
        logs.checkpoint({PARTITION: Offset(100)})
    logs.close_clean(BrokerEpoch(1), {PARTITION: Offset(100)})
    logs.close()

    def written(*arguments: object) -> None:
        raise AssertionError(f"it wrote {arguments}")

    monkeypatch.setattr(recovery_module, "write_epochs", written)
    _, found = open_one(path).open(PARTITION, IDENTITY, SMALL)
    assert LeaderEpochs(found.epochs).epoch_at(Offset(59)) == 5


def test_a_reset_that_has_no_space_for_its_epochs_has_noted_them_with_the_cut(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, log = opened(path)
    fill(log, 20, epoch=5)

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(state_module, "write_epochs", full)
    monkeypatch.setattr(recovery_module, "write_epochs", full)
    log.reset(Offset(500), LeaderEpoch(7))
    for _ in range(2):
        logs.close()
        logs = open_one(path)
        log, found = logs.open(PARTITION, IDENTITY, SMALL)
        assert (found.log_start_offset, found.epochs, found.damaged) == (500, ((7, 500),), None)
    monkeypatch.undo()
    fill(log, 1, epoch=8)
    logs.close()
    log, found = open_one(path).open(PARTITION, IDENTITY, SMALL)
    assert found.epochs == ((7, 500), (8, 500))


def test_a_reset_is_finished_without_space_for_its_epochs_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs, log = opened(path)
    fill(log, 20)
    assert killed_in(monkeypatch, 1, lambda: log.reset(Offset(104), LeaderEpoch(7)))

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(recovery_module, "write_epochs", full)
    for _ in range(2):
        logs.close()
        logs = open_one(path)
        log, found = logs.open(PARTITION, IDENTITY, SMALL)
        assert (found.log_start_offset, found.epochs, found.damaged) == (104, ((7, 104),), None)


def test_a_checkpoint_that_ends_late_forgets_nothing_that_was_told_meanwhile(path: Path) -> None:
    """A copy takes over the epochs of the log, which starts later, while the checkpoints of its directory go on."""
    logs, log = opened(path)
    fill(log, 20, epoch=5)
    log.trim(Offset(10))
    captured = log.durability.capture()
    assert captured is not None
    log.trim(Offset(60))
    state = log.state()
    log.adopt(state, 0)
    log.durability.checkpointed(captured, told=True)
    assert log.state().epochs == state.epochs == ((5, 60),)
    logs.close()


def test_epochs_of_before_the_log_start_go_when_a_checkpoint_knows_of_it(path: Path) -> None:
    logs, log = of_two_epochs(path)
    log.trim(Offset(30))
    told = (EpochEntry(LeaderEpoch(5), Offset(30)),)
    for known in (((3, 0), (5, 20)), told):
        log.save_epochs(told)
        epochs = read_epochs(log.path)
        assert epochs is not None
        assert epochs.entries == known
        logs.checkpoint({PARTITION: Offset(40)})
    logs.close()
