# SPDX-License-Identifier: Apache-2.0
"""Starts after moves: copies, committed copies, and disks that do not answer (rule M3)."""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path

import pytest
from tidemark.model import ReplicaIdentity, TopicPartition
from tidemark.storage.directories.log_directory import future_document
from tidemark.storage.files import PARTITION_FILE
from tidemark.storage.log.cleaner import CleanerSettings, clean_log

from tests.unit.storage.batches import IDENTITY, PARTITION, lead, make_batch
from tests.unit.storage.directories.moving import begin, content, copy_all, move, names_in, open_in, open_two
from tests.unit.storage.log.test_cleaner import CONFIGS, NOW_US, fill, keyed, rows_of

STALE = "the replica as it was before it moved"


def left_in_both(root: Path) -> None:
    """A stopped broker: the replica in the second directory, its state from before the move in the first."""
    logs, log = open_in(root)
    fill(log, random.Random(1), 20)
    logs.checkpoint({PARTITION: log.log_end_offset})
    shutil.copytree(root / "a" / str(PARTITION), root / STALE)
    log = move(logs)
    lead(log, make_batch(["only in the new place"]), epoch=60)
    logs.checkpoint({PARTITION: log.log_end_offset})
    logs.close()
    (root / STALE).rename(root / "a" / str(PARTITION))


def test_the_directory_of_the_higher_generation_is_opened_and_the_other_set_aside(directory: Path) -> None:
    left_in_both(directory)
    logs = open_two(directory)
    assert logs.replicas() == {PARTITION: IDENTITY}
    log, found = logs.open(PARTITION, IDENTITY, CONFIGS)
    assert found.directory == 1
    assert content(log).epochs[-1].leader_epoch == 60
    assert [name.rsplit("-", 1)[1] for name in names_in(directory, "a")] == ["stray"]
    logs.close()


def test_a_disk_that_cannot_set_the_old_replica_aside_goes_offline(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_in_both(directory)
    logs = open_two(directory)
    real = Path.rename

    def broken(self: Path, target: Path) -> Path:
        if self.parent.name == "a":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(self, target)

    monkeypatch.setattr(Path, "rename", broken)
    log, found = logs.open(PARTITION, IDENTITY, CONFIGS)
    assert found.directory == 1
    assert [one.failed is None for one in logs.directories()] == [False, True]
    lead(log, make_batch(["it goes on"]), epoch=61)
    logs.close()


def test_the_generation_of_another_incarnation_is_ignored(directory: Path) -> None:
    left_in_both(directory)
    other = ReplicaIdentity(IDENTITY.topic_id, "incarnation-two")
    logs = open_two(directory)
    log, found = logs.open(PARTITION, other, CONFIGS)
    assert found.fresh
    assert log.log_end_offset == 0
    left = [name for one in "ab" for name in names_in(directory, one)]
    assert len([name for name in left if name.endswith("-stray")]) == 2, "both are of the other incarnation"
    logs.close()


def test_a_copy_with_a_damaged_partition_file_is_set_aside_and_one_without_is_deleted(directory: Path) -> None:
    logs, log = open_in(directory)
    fill(log, random.Random(2), 10)
    before = content(log)
    begin(logs)
    logs.close()
    (copy,) = (path for path in (directory / "b").iterdir() if path.name.endswith("-future"))
    shutil.copytree(copy, copy.with_name(f"{PARTITION}.{'0' * 32}-future"))
    (copy.with_name(f"{PARTITION}.{'0' * 32}-future") / PARTITION_FILE).unlink()
    (copy / PARTITION_FILE).write_bytes(b"{}")
    logs, log = open_in(directory)
    assert logs.mover.target_of(PARTITION) is None
    assert content(log) == before
    logs.close()
    assert names_in(directory, "b") == [copy.name], "kept as stray: it may be the replica"


def test_a_copy_of_a_log_that_was_cleaned_since_begins_again(directory: Path) -> None:
    """The rest of the log lacks the tombstones of records in the copy: the copy would bring deleted keys back."""
    logs, log = open_in(directory)
    lead(log, keyed([(b"deleted", b"value")]), *[keyed([(b"%d" % key, b"x" * 200)]) for key in range(40)])
    lead(log, keyed([(b"deleted", None)]), *[keyed([(b"%d" % key, b"y" * 200)]) for key in range(40)])
    assert begin(logs).copy(1000).size_bytes
    logs.close()
    logs, log = open_in(directory)
    settings = CleanerSettings(delete_retention_ms=1000)
    for now_us in (NOW_US, NOW_US + 2_000_000):
        clean_log(log, log.log_end_offset, settings, now_us=now_us, pace=lambda _: None)
    before, future = rows_of(log), begin(logs)
    copy_all(future)
    assert rows_of(logs.mover.finish(future, log.log_end_offset)) == before
    logs.close()


def test_one_of_two_copies_is_continued(directory: Path) -> None:
    logs, log = open_in(directory)
    fill(log, random.Random(3), 10)
    before = content(log)
    copy_all(begin(logs))
    logs.close()
    (copy,) = (path for path in (directory / "b").iterdir() if path.name.endswith("-future"))
    shutil.copytree(copy, copy.with_name(f"{PARTITION}.{'0' * 32}-future"))
    logs, log = open_in(directory)
    assert content(move(logs)) == before
    logs.close()
    assert names_in(directory, "b") == [str(PARTITION)]


def test_a_replica_with_the_longest_name_moves_and_is_found_by_a_start(directory: Path) -> None:
    partition = TopicPartition("t" * 249, 12345)
    logs = open_two(directory)
    logs.prefer(partition, 0)
    log = logs.open(partition, IDENTITY, CONFIGS)[0]
    fill(log, random.Random(4), 20)
    before = content(log)
    copy_all(logs.mover.begin(partition, 1, CONFIGS))
    logs.close()
    logs = open_two(directory)
    assert logs.mover.target_of(partition) == 1
    log = logs.open(partition, IDENTITY, CONFIGS)[0]
    future = logs.mover.begin(partition, 1, CONFIGS)
    copy_all(future)
    assert content(logs.mover.finish(future, log.log_end_offset)) == before
    logs.close()
    logs = open_two(directory)
    log, found = logs.open(partition, IDENTITY, CONFIGS)
    assert (content(log), found.directory) == (before, 1)
    logs.close()


def test_an_old_directory_at_the_copys_path_is_set_aside(directory: Path) -> None:
    logs, log = open_in(directory)
    fill(log, random.Random(5), 10)
    before = content(log)
    left = directory / "b" / str(PARTITION)
    left.mkdir()
    document = future_document(PARTITION, IDENTITY, generation=0, future=False)
    (left / PARTITION_FILE).write_bytes(document)
    assert content(move(logs)) == before
    logs.close()
    logs = open_two(directory)
    log, found = logs.open(PARTITION, IDENTITY, CONFIGS)
    assert (content(log), found.directory) == (before, 1)
    logs.close()
