# SPDX-License-Identifier: Apache-2.0
"""Unusable and vanishing directories: a refusal names the remedy, and nothing is promised that is not on disk.

Rules T1 and Z3."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tidemark.model import BrokerId, ErrorCode, Offset, TidemarkError, TopicPartition
from tidemark.storage.directories.log_manager import LogManager, open_logs
from tidemark.storage.inspect.inspection import replica_paths
from tidemark.storage.log.partition_log import PartitionLog

from tests.refusals import raises_code
from tests.unit.storage.batches import BROKER, CLUSTER, IDENTITY, PARTITION, lead, make_batch, open_one, read_all


def refused(*paths: Path) -> TidemarkError:
    with pytest.raises(TidemarkError) as caught:
        open_logs(paths, cluster_id=CLUSTER, broker_id=BROKER)
    return caught.value


@pytest.mark.parametrize("lost", [[], [".lock"], ["meta.json"], [".lock", "meta.json", "empty-replicas"]])
def test_a_second_broker_is_refused_also_after_the_lock_file_was_deleted(directory: Path, lost: list[str]) -> None:
    logs = open_one(directory)
    for name in lost:
        (directory / name).unlink()
    refusal = refused(directory)
    assert refusal.code is ErrorCode.STORAGE_ERROR
    assert "is locked by another process: stop that broker first" in refusal.message
    logs.close()


def test_a_refused_broker_disowns_only_directories_that_it_made(directory: Path) -> None:
    for name in ("old", "new"):
        (directory / name).mkdir()
    open_logs([directory / "old"], cluster_id=CLUSTER, broker_id=BROKER).close()
    logs = open_logs([directory / "old", directory / "new"], cluster_id=CLUSTER, broker_id=BROKER)
    logs.disown()
    logs.close()
    open_logs([directory / "new"], cluster_id=CLUSTER, broker_id=BrokerId(7)).close()
    with raises_code(ErrorCode.INVALID_CONFIG, "belongs to broker 1"):
        open_logs([directory / "old"], cluster_id=CLUSTER, broker_id=BrokerId(7))


def test_a_directory_that_is_named_twice_is_refused(directory: Path) -> None:
    (directory / "a").mkdir()
    (directory / "link").symlink_to(directory / "a")
    for twice in (
        [directory / "a", directory / "a"],
        [directory / "a", directory / "link"],
        [directory / "a", directory / "a" / ".." / "a"],
    ):
        refusal = refused(*twice)
        assert refusal.code is ErrorCode.INVALID_CONFIG
        assert "log.dirs names" in refusal.message
        assert "twice" in refusal.message
    open_one(directory / "a").close()


def test_a_copy_of_a_directory_beside_the_original_is_refused(directory: Path) -> None:
    """The broker would use one of two copies of each replica, possibly the older one."""
    logs = open_one(directory / "a")
    logs.open(PARTITION, IDENTITY, {})
    logs.close()
    shutil.copytree(directory / "a", directory / "copy")
    refusal = refused(directory / "a", directory / "new", directory / "copy")
    assert refusal.code is ErrorCode.INVALID_CONFIG
    assert f"{directory / 'copy'} is a copy of {directory / 'a'}" in refusal.message
    open_one(directory / "a").close()


def test_a_file_instead_of_a_directory_or_its_parent_is_refused_with_the_remedy(directory: Path) -> None:
    (directory / "file").write_text("x")
    for place in (directory / "file", directory / "file" / "below"):
        refusal = refused(place)
        assert refusal.code is ErrorCode.STORAGE_ERROR
        assert str(place) in refusal.message
        assert "correct log.dirs" in refusal.message
    assert (directory / "file").read_text() == "x"


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_directory_without_write_permission_is_refused_with_the_remedy(
    directory: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    real = os.open

    def read_only(name: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(number, os.strerror(number), name)
        return real(name, flags, *rest, **named)

    monkeypatch.setattr(os, "open", read_only)
    refusal = refused(directory)
    assert refusal.code is ErrorCode.STORAGE_ERROR
    assert os.strerror(number) in refusal.message
    assert "correct log.dirs" in refusal.message
    owner = directory.stat()
    told = f"the owner is user {owner.st_uid} and group {owner.st_gid}, with mode {owner.st_mode & 0o7777:04o}"
    assert (told in refusal.message) == ("securityContext.fsGroup" in refusal.message) == (number == errno.EACCES)


def test_the_lost_and_found_of_a_new_volume_is_ignored(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mkfs makes the directory for root alone: the broker must not read it."""
    lost = directory / "lost+found"
    lost.mkdir(mode=0o000)
    real = os.scandir

    def scandir(where: Any = ".") -> Any:
        assert "lost+found" not in str(where), "only root may look there"
        return real(where)

    monkeypatch.setattr(os, "scandir", scandir)
    for _ in range(2):
        logs = open_one(directory)
        logs.open(PARTITION, IDENTITY, {})
        assert list(logs.replicas()) == [PARTITION]
        logs.sync()
        logs.close()
    assert [one.partition for one in replica_paths(directory) if one.aside] == []
    assert lost.stat().st_mode & 0o777 == 0


def test_directories_in_place_of_its_own_files_are_refused(directory: Path) -> None:
    for name in ("meta.json", ".lock", "empty-replicas"):
        home = directory / f"home-{name}"
        open_one(home).close()
        (home / name).unlink()
        (home / name).mkdir()
        refusal = refused(home)
        assert refusal.code is ErrorCode.STORAGE_ERROR
        assert "Is a directory" in refusal.message


def test_a_file_in_place_of_a_replica_is_refused_and_stays(directory: Path) -> None:
    (directory / "home").mkdir()
    logs = open_one(directory / "home")
    (directory / "home" / str(PARTITION)).write_text("mine")
    log, _ = logs.open(PARTITION, IDENTITY, {})
    with raises_code(ErrorCode.STORAGE_ERROR, "File exists"):
        lead(log, make_batch(["a"]))
    other, _ = logs.open(TopicPartition("other", 0), IDENTITY, {})
    lead(other, make_batch(["b"]))
    logs.checkpoint({})
    logs.close()
    assert (directory / "home" / str(PARTITION)).read_text() == "mine"


def two(path: Path) -> tuple[LogManager, dict[int, TopicPartition], list[PartitionLog]]:
    """Two directories with a replica in each, by directory."""
    logs = open_logs([path / "a", path / "b"], cluster_id=CLUSTER, broker_id=BROKER)
    placed: dict[int, TopicPartition] = {}
    opened: dict[int, PartitionLog] = {}
    for number in range(2):
        partition = TopicPartition("t", number)
        log, found = logs.open(partition, IDENTITY, {})
        lead(log, make_batch(["a"]))
        placed[found.directory], opened[found.directory] = partition, log
    assert set(placed) == {0, 1}
    logs.checkpoint(dict.fromkeys(placed.values(), Offset(1)))
    return logs, placed, [opened[0], opened[1]]


@pytest.mark.parametrize("instead", ["nothing", "an empty directory", "a file"])
def test_a_directory_that_vanishes_goes_offline_and_vouches_for_nothing(directory: Path, instead: str) -> None:
    """An unmounted file system leaves an empty directory: a syncfs there syncs another file system."""
    logs, placed, (gone, stays) = two(directory)
    (directory / "a").rename(directory / "elsewhere")
    if instead == "an empty directory":
        (directory / "a").mkdir()
    elif instead == "a file":
        (directory / "a").write_text("x")
    flushed = gone.flushed_offset
    lead(gone, make_batch(["b"]))
    lead(stays, make_batch(["b"]))
    with raises_code(ErrorCode.STORAGE_ERROR):
        logs.checkpoint(dict.fromkeys(placed.values(), Offset(2)))
    assert gone.flushed_offset == flushed
    assert stays.flushed_offset == 2
    states = logs.directories()
    assert "offline" in str(states[0].failed)
    assert states[1].failed is None
    with pytest.raises(TidemarkError, match="offline"):
        lead(gone, make_batch(["c"]))
    logs.checkpoint({placed[1]: Offset(2)})
    logs.close()
    assert instead != "an empty directory" or not list((directory / "a").iterdir())


def test_a_sync_of_a_replaced_directory_fails_the_registration(directory: Path) -> None:
    logs, _, _ = two(directory)
    (directory / "a").rename(directory / "elsewhere")
    (directory / "a").mkdir()
    with pytest.raises(TidemarkError, match="was removed or replaced since it was opened"):
        logs.sync()
    assert len(logs.directory_ids) == 1
    logs.close()


def test_a_replica_whose_directory_vanishes_is_damaged_at_the_next_open(directory: Path) -> None:
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, {})
    lead(log, make_batch(["a"]))
    logs.checkpoint({PARTITION: Offset(1)})
    shutil.rmtree(directory / str(PARTITION))
    assert read_all(log), "an open file stays"
    logs.close()
    logs = open_one(directory)
    _, found = logs.open(PARTITION, IDENTITY, {})
    assert found.damaged is not None
    logs.close()
