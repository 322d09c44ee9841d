# SPDX-License-Identifier: Apache-2.0
"""Moves of a replica to another log directory of its broker: copying, cancelling, resuming (rule M3)."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest
from tidemark.model import EpochEntry, ErrorCode, LeaderEpoch, Offset, ReplicaIdentity, TidemarkError
from tidemark.storage.directories import replica_mover as mover_module
from tidemark.storage.directories.log_manager import LogManager
from tidemark.storage.files import Descriptor
from tidemark.storage.log import durability as durability_module
from tidemark.storage.log.partition_log import PartitionLog
from tidemark.storage.recovery.cleaner_point import CleanPoint

from tests.refusals import raises_code
from tests.unit.storage.batches import IDENTITY, PARTITION, at, lead, make_batch, read_all
from tests.unit.storage.directories.moving import begin, content, copy_all, move, names_in, open_in, open_two
from tests.unit.storage.log.test_cleaner import CONFIGS, clean, fill, rows_of


def reopened(logs: LogManager, root: Path, *, high_watermark: int) -> tuple[LogManager, PartitionLog]:
    logs.checkpoint({PARTITION: Offset(high_watermark)})
    logs.close()
    again = open_two(root)
    log, found = again.open(PARTITION, IDENTITY, CONFIGS)
    assert found.damaged is None
    assert found.high_watermark == high_watermark
    return again, log


def test_a_moved_log_is_identical_and_its_old_directory_is_deleted(directory: Path) -> None:
    logs, log = open_in(directory)
    fill(log, random.Random(1), 80)
    before = content(log)
    moved = move(logs)
    assert content(moved) == before
    assert logs.directory_of(PARTITION) == 1
    lead(moved, make_batch(["after"]), epoch=50)
    after = content(moved)
    logs, log = reopened(logs, directory, high_watermark=after.end)
    assert content(log) == after
    assert logs.directory_of(PARTITION) == 1
    assert names_in(directory, "a") == []
    assert names_in(directory, "b") == [str(PARTITION)]
    logs.close()


def test_a_replica_moves_and_moves_back(directory: Path) -> None:
    logs, log = open_in(directory)
    fill(log, random.Random(2), 30)
    move(logs, 1)
    log = move(logs, 0)
    before = content(log)
    logs, log = reopened(logs, directory, high_watermark=before.end)
    assert content(log) == before
    assert logs.directory_of(PARTITION) == 0
    logs.close()


def test_an_empty_replica_moves_with_its_epochs(directory: Path) -> None:
    logs, log = open_in(directory)
    log.save_epochs([EpochEntry(LeaderEpoch(4), Offset(0))])
    log = move(logs)
    logs, log = reopened(logs, directory, high_watermark=0)
    assert content(log).epochs == ((4, 0),)
    assert logs.directory_of(PARTITION) == 1
    logs.close()


def test_the_new_log_answers_a_reader_of_the_old_log(directory: Path) -> None:
    logs, log = open_in(directory)
    fill(log, random.Random(3), 40)
    everything = read_all(log)
    moved = move(logs)
    assert read_all(log) == everything
    assert log.max_timestamp(end_offset=moved.log_end_offset) == moved.max_timestamp(end_offset=moved.log_end_offset)
    assert log.offset_for_timestamp(3, end_offset=moved.log_end_offset) is not None
    with pytest.raises(TidemarkError):
        lead(log, make_batch(["to the old one"]))
    logs.close()


@pytest.mark.parametrize("seed", range(25))
def test_a_copy_follows_appends_truncations_resets_and_trims_across_restarts(directory: Path, seed: int) -> None:
    rng = random.Random(seed)
    logs, log = open_in(directory)
    fill(log, rng, 30)
    future = begin(logs)
    epoch, cleaned = 0, False
    for _ in range(40):
        end, start = log.log_end_offset, log.log_start_offset
        epoch = max([epoch, *(entry.leader_epoch for entry in log.state().epochs)])
        what = rng.random()
        if what < 0.35:
            fill(log, rng, rng.randrange(1, 8))
        elif what < 0.6:
            future.copy(rng.choice((1, 500, 5000)))
        elif what < 0.75:
            if what < 0.7:
                log.truncate(Offset(rng.randint(max(start, end - 40), end)))
            else:
                log.reset(Offset(rng.randint(max(0, start - 5), end + 20)))
            epoch += 1
            lead(log, make_batch(["of another leader"] * rng.randrange(1, 9)), epoch=epoch)
        elif what < 0.8:
            log.trim(Offset(rng.randint(start, end)))
        elif what < 0.83:
            cleaned = clean(log).passes > 0 or cleaned
        elif what < 0.9:
            logs.checkpoint({})
        else:
            logs.close()
            logs, log = open_in(directory)
            assert logs.mover.target_of(PARTITION) == 1
            future = begin(logs)
    copy_all(future)
    before, rows = content(log), rows_of(log)
    log = logs.mover.finish(future, log.log_end_offset)
    for restart in (False, True):
        if restart:
            logs, log = reopened(logs, directory, high_watermark=before.end)
        if cleaned:  # removed records may still be in the copy
            assert set(rows) <= set(rows_of(log))
        else:
            assert content(log) == before
        assert content(log)._replace(data=b"") == before._replace(data=b"")
    logs.close()


def test_a_copy_discards_a_read_after_a_truncation_that_it_lacks(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log grows past the end of the copy again, with batches that begin elsewhere."""
    logs, log = open_in(directory)
    lead(log, *(make_batch(["a", "b"]) for _ in range(50)))
    future = begin(logs)
    copy_all(future)
    lead(log, *(make_batch(["a", "b"]) for _ in range(5)))
    read = PartitionLog.read

    def cut_first(self: PartitionLog, offset: Offset, *, end_offset: int, max_bytes: int) -> bytes | None:
        monkeypatch.setattr(PartitionLog, "read", read)
        log.truncate(Offset(50))
        lead(log, *(make_batch(["c"] * 7) for _ in range(12)), epoch=1)
        return read(self, offset, end_offset=end_offset, max_bytes=max_bytes)

    monkeypatch.setattr(PartitionLog, "read", cut_first)
    copy_all(future)
    before = content(log)
    moved = logs.mover.finish(future, log.log_end_offset)
    assert content(moved) == before
    logs.close()


def test_a_copy_from_before_a_kill_drops_records_that_the_log_replaced(directory: Path) -> None:
    logs, log = open_in(directory)
    lead(log, make_batch(["one", "two"]), epoch=1)
    lead(log, make_batch(["uncommitted", "too"]), epoch=2)
    copy_all(begin(logs))
    log.truncate(Offset(2))
    lead(log, make_batch(["other", "records"]), epoch=3)
    before = content(log)
    logs.close()  # the copy lacks the truncation
    logs, log = open_in(directory)
    assert content(log) == before
    assert content(move(logs)) == before
    logs.close()


def test_a_compacted_log_moves_with_its_holes_and_its_clean_point(directory: Path) -> None:
    rng = random.Random(4)
    logs, log = open_in(directory)
    fill(log, rng, 80, keys=5)
    clean(log)
    fill(log, rng, 10, keys=5)
    before, rows, point = content(log), rows_of(log), log.cleaning.point
    assert point.offset > 0
    moved = move(logs)
    assert content(moved) == before
    assert moved.cleaning.point == point
    clean(moved)
    assert set(rows_of(moved)) <= set(rows)
    logs.close()


def test_a_cleaning_during_the_copy_does_not_raise_the_copys_clean_point(directory: Path) -> None:
    logs, log = open_in(directory)
    fill(log, random.Random(5), 60, keys=5)
    future = begin(logs)
    copy_all(future)
    clean(log)
    moved = logs.mover.finish(future, log.log_end_offset)
    assert moved.cleaning.clean_point == 0, "the copy holds records that were not cleaned"
    logs.close()


def test_a_log_that_ends_in_a_hole_moves_with_its_end(directory: Path) -> None:
    logs, log = open_in(directory)
    log.append([at(make_batch(["a"]), 0)], base_offset=Offset(0), leader_epoch=LeaderEpoch(0), stamp=False)
    as_truncated_by_an_earlier_version = log.state()._replace(log_end_offset=Offset(5))
    log.adopt(as_truncated_by_an_earlier_version, CleanPoint())
    assert log.log_end_offset == 5
    moved = move(logs)
    assert moved.log_end_offset == 5
    lead(moved, make_batch(["c"]))
    assert len(read_all(moved)) == 2 * len(make_batch(["a"]).data)
    logs.close()


def test_an_abandoned_move_keeps_the_replica_and_deletes_the_copy(directory: Path) -> None:
    logs, log = open_in(directory)
    fill(log, random.Random(6), 30)
    before = content(log)
    copy_all(begin(logs))
    assert logs.mover.target_of(PARTITION) == 1
    logs.mover.abandon(PARTITION)
    assert logs.mover.target_of(PARTITION) is None
    lead(log, make_batch(["goes on"]), epoch=60)
    logs.close()
    assert names_in(directory, "b") == []
    logs, log = open_in(directory)
    assert content(log).data.startswith(before.data)
    assert logs.mover.target_of(PARTITION) is None
    logs.close()


def test_a_copy_is_deleted_with_its_replica(directory: Path) -> None:
    logs, log = open_in(directory)
    fill(log, random.Random(7), 10)
    future = begin(logs)
    logs.set_aside(PARTITION, "delete")
    with pytest.raises(TidemarkError):
        copy_all(future)
    logs.close()
    assert names_in(directory, "a") == names_in(directory, "b") == []


def test_opening_a_replica_deletes_a_copy_of_another_incarnation(directory: Path) -> None:
    logs, log = open_in(directory)
    fill(log, random.Random(8), 10)
    begin(logs)
    logs.close()
    logs = open_two(directory)
    log, found = logs.open(PARTITION, ReplicaIdentity("topic-one", "incarnation-two"), CONFIGS)
    assert found.fresh
    assert log.log_end_offset == 0
    assert logs.mover.target_of(PARTITION) is None
    logs.close()
    assert [name for name in names_in(directory, "b") if "-future" in name] == []


def test_a_start_deletes_a_copy_without_its_replica(directory: Path) -> None:
    logs, log = open_in(directory)
    fill(log, random.Random(9), 10)
    begin(logs)
    logs.close()
    (directory / "a" / str(PARTITION)).rename(directory / "elsewhere")
    logs = open_two(directory)
    assert logs.mover.target_of(PARTITION) is None
    logs.close()
    assert names_in(directory, "b") == []


def test_a_damaged_copy_is_copied_again(directory: Path) -> None:
    logs, log = open_in(directory)
    fill(log, random.Random(10), 40)
    before = content(log)
    copy_all(begin(logs))
    logs.checkpoint({})
    logs.close()
    (copy,) = (path for path in (directory / "b").iterdir() if path.name.endswith("-future"))
    for segment in copy.glob("*.log"):
        os.truncate(segment, 0)
    logs, log = open_in(directory)
    assert content(move(logs)) == before
    logs.close()


def test_a_full_target_leaves_the_copy_unchanged_and_copying_can_resume(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, log = open_in(directory)
    fill(log, random.Random(11), 20)
    future = begin(logs)
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", _raising(errno.ENOSPC))
    with raises_code(ErrorCode.DISK_FULL):
        future.copy(1 << 20)
    monkeypatch.setattr(os, "pwritev", real)
    copy_all(future)
    before = content(log)
    assert content(logs.mover.finish(future, log.log_end_offset)) == before
    logs.close()


def test_a_replica_moves_away_from_a_full_directory(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the full directory went offline with all its replicas."""
    logs, log = open_in(directory)
    fill(log, random.Random(11), 20)
    future = begin(logs)
    copy_all(future)
    before = content(log)
    monkeypatch.setattr(os, "write", _raising(errno.ENOSPC))
    assert content(logs.mover.finish(future, log.log_end_offset)) == before
    assert [state.failed for state in logs.directories()] == [None, None]
    logs.close()
    assert names_in(directory, "a") == []


def test_an_abandoned_copy_is_deleted_from_a_full_target(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the copy took its space until the next start."""
    logs, log = open_in(directory)
    fill(log, random.Random(11), 20)
    copy_all(begin(logs))
    monkeypatch.setattr(os, "write", _raising(errno.ENOSPC))
    logs.mover.abandon(PARTITION)
    logs.close()
    assert names_in(directory, "b") == []


def test_a_full_target_deletes_trimmed_segments_of_a_copy(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs, log = open_in(directory)
    fill(log, random.Random(11), 60)
    future = begin(logs)
    copy_all(future)
    logs.checkpoint({PARTITION: log.log_end_offset})
    log.trim(Offset(log.log_end_offset // 2))
    copy_all(future)
    assert future.log.segments.has_trimmed
    with monkeypatch.context() as full:
        full.setattr("tidemark.storage.directories.checkpoint_files.write_temporary", _raising(errno.ENOSPC))
        with raises_code(ErrorCode.DISK_FULL):
            logs.checkpoint({PARTITION: log.log_end_offset})
    assert not future.log.segments.has_trimmed
    logs.close()
    logs, log = open_in(directory)
    before = content(log)
    assert content(move(logs)) == before
    logs.close()


def test_a_truncation_that_a_full_target_refused_is_retried(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the copy kept records that the log had replaced, and then became the log."""
    logs, log = open_in(directory)
    lead(log, *(make_batch(["old"]) for _ in range(8)), epoch=3)
    future = begin(logs)
    copy_all(future)
    log.truncate(Offset(5))
    lead(log, *(make_batch(["new"]) for _ in range(8)), epoch=4)
    with monkeypatch.context() as full:
        full.setattr(durability_module, "write_cut_point", _raising(errno.ENOSPC))
        for _ in range(2):
            with raises_code(ErrorCode.DISK_FULL):
                future.copy(1 << 20)
    copy_all(future)
    before = content(log)
    assert content(logs.mover.finish(future, log.log_end_offset)) == before
    logs.close()


def test_a_log_whose_first_batch_lies_past_its_start_moves(directory: Path) -> None:
    """No batch of the copy gives the epoch below."""
    logs, log = open_in(directory)
    lead(log, *(make_batch(["a", "b"]) for _ in range(3)), epoch=5)
    log.append([at(make_batch(["c"]), 20, 5)], base_offset=Offset(20), leader_epoch=LeaderEpoch(5), stamp=False)
    log.trim(Offset(10))
    log.save_epochs([EpochEntry(LeaderEpoch(5), Offset(10))])
    before = content(log)
    assert content(move(logs)) == before
    logs.close()


def test_a_target_that_fails_with_an_unknown_commit_never_wins_later(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, log = open_in(directory)
    fill(log, random.Random(12), 20)
    future = begin(logs)
    copy_all(future)
    real = mover_module.sync_directory

    def broken(directory: Path | Descriptor) -> None:
        if isinstance(directory, Descriptor):  # the first one is that of the copy
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(directory)

    monkeypatch.setattr(mover_module, "sync_directory", broken)
    with pytest.raises(TidemarkError) as caught:
        logs.mover.finish(future, log.log_end_offset)
    monkeypatch.undo()
    assert caught.value.code is ErrorCode.LOG_DIR_OFFLINE
    assert [one.failed is None for one in logs.directories()] == [True, False]
    lead(log, make_batch(["acknowledged after the failure"]), epoch=70)
    before = content(log)
    logs.close()
    logs = open_two(directory)  # the disk is back, with the copy as a committed replica
    log, _ = logs.open(PARTITION, IDENTITY, CONFIGS)
    assert content(log) == before
    assert logs.directory_of(PARTITION) == 0
    logs.close()


def test_an_old_directory_that_fails_after_the_commit_goes_offline_and_the_move_stands(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, log = open_in(directory)
    fill(log, random.Random(13), 20)
    before = content(log)
    future = begin(logs)
    copy_all(future)
    real = Path.rename

    def broken(self: Path, target: Path) -> Path:
        if str(target).endswith("-delete"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(self, target)

    monkeypatch.setattr(Path, "rename", broken)
    moved = logs.mover.finish(future, log.log_end_offset)
    monkeypatch.undo()
    assert [one.failed is None for one in logs.directories()] == [False, True]
    lead(moved, make_batch(["after"]), epoch=70)
    after = content(moved)
    assert after.data.startswith(before.data)
    logs.close()
    logs = open_two(directory)
    log, _ = logs.open(PARTITION, IDENTITY, CONFIGS)
    assert content(log) == after
    assert logs.directory_of(PARTITION) == 1
    logs.close()


def test_a_damaged_replica_is_not_moved_before_it_is_refetched(directory: Path) -> None:
    logs, log = open_in(directory)
    fill(log, random.Random(14), 20)
    logs.checkpoint({PARTITION: log.log_end_offset})
    logs.close()
    first = min((directory / "a" / str(PARTITION)).glob("*.log"))
    content_bytes = bytearray(first.read_bytes())
    content_bytes[len(content_bytes) // 2] ^= 0xFF
    first.write_bytes(content_bytes)
    for name in (directory / "a").glob("*-checkpoint"):
        name.unlink()
    logs = open_two(directory)
    log, found = logs.open(PARTITION, IDENTITY, CONFIGS)
    assert found.damaged is not None
    future = begin(logs)
    copy_all(future)
    with pytest.raises(TidemarkError, match="damaged"):
        logs.mover.finish(future, log.log_end_offset)
    assert logs.directory_of(PARTITION) == 0
    logs.close()


def _raising(number: int) -> object:
    def fails(*_: object, **named: object) -> None:
        raise OSError(number, os.strerror(number))

    return fails
