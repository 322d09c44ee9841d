# SPDX-License-Identifier: Apache-2.0
"""Log directories: their owner, their state after the last stop, and placement of replicas (rules T1, F4, C8)."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from tidemark.model import BrokerEpoch, BrokerId, ErrorCode, Offset, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.storage.directories import log_directory as directory_module
from tidemark.storage.directories.log_directory import stored_cluster_id, write_identity
from tidemark.storage.directories.log_manager import open_logs
from tidemark.storage.log import partition_log as log_module
from tidemark.storage.log import replayed_state as state_module

from tests.refusals import raises_code
from tests.unit.storage.batches import (
    BROKER,
    CLUSTER,
    IDENTITY,
    PARTITION,
    follow,
    lead,
    make_batch,
    open_one,
    read_all,
)


def refused(path: Path, *, cluster_id: str = CLUSTER, broker_id: BrokerId = BROKER) -> TidemarkError:
    with pytest.raises(TidemarkError) as caught:
        open_logs([path], cluster_id=cluster_id, broker_id=broker_id)
    return caught.value


def test_a_directory_of_another_cluster_or_broker_is_refused_with_the_remedy(directory: Path) -> None:
    open_one(directory).close()
    error = refused(directory, cluster_id="cluster-two")
    assert error.code is ErrorCode.INVALID_CONFIG
    assert "cluster-one" in error.message
    assert "correct" in error.message
    error = refused(directory, broker_id=BrokerId(2))
    assert error.code is ErrorCode.INVALID_CONFIG
    assert "broker.id" in error.message


def test_a_locked_directory_is_refused_until_it_is_closed(directory: Path) -> None:
    logs = open_one(directory)
    error = refused(directory)
    assert error.code is ErrorCode.STORAGE_ERROR
    assert "another process" in error.message
    logs.close()
    open_one(directory).close()


def test_a_refused_directory_unlocks_the_others(directory: Path) -> None:
    open_logs([directory / "b"], cluster_id="cluster-two", broker_id=BROKER).close()
    with pytest.raises(TidemarkError):
        open_logs([directory / "a", directory / "b"], cluster_id=CLUSTER, broker_id=BROKER)
    open_one(directory / "a").close()


def test_a_file_in_place_of_a_directory_is_refused(directory: Path) -> None:
    (directory / "file").write_text("x")
    assert refused(directory / "file").code is ErrorCode.STORAGE_ERROR


def test_the_uuid_of_a_directory_survives_a_restart(directory: Path) -> None:
    logs = open_one(directory)
    ids = logs.directory_ids
    logs.close()
    again = open_one(directory)
    assert again.directory_ids == ids
    assert len(ids) == 1
    again.close()


def test_the_markers_show_how_the_directory_was_left(directory: Path) -> None:
    logs = open_one(directory)
    assert logs.previous[0][1:] == (None, None)
    logs.confirm_registration(BrokerEpoch(4), "boot-one")
    logs.close()
    logs = open_one(directory)
    assert logs.previous[0][1:] == (None, ("boot-one", 4))
    logs.close_clean(BrokerEpoch(4), {})
    logs = open_one(directory)
    assert logs.previous[0][1:] == (4, ("boot-one", 4))
    logs.sync()
    logs.confirm_registration(BrokerEpoch(5), "boot-two")
    logs.close()
    logs = open_one(directory)
    assert logs.previous[0][1:] == (None, ("boot-two", 5))
    logs.close()


def test_a_disk_that_breaks_during_a_registration_takes_only_its_directory_offline(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = open_logs([directory / "a", directory / "b"], cluster_id=CLUSTER, broker_id=BROKER)
    kept, _ = logs.directory_ids
    replace_or_overwrite = directory_module.replace_or_overwrite

    def replace(place: Path, content: bytes) -> None:
        if place.parent.name == "b":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        replace_or_overwrite(place, content)

    monkeypatch.setattr(directory_module, "replace_or_overwrite", replace)
    logs.confirm_registration(BrokerEpoch(4), "boot-one")
    assert logs.directory_ids == (kept,)
    monkeypatch.setattr(directory_module, "replace_or_overwrite", no_disk)
    with raises_code(ErrorCode.STORAGE_ERROR):
        logs.confirm_registration(BrokerEpoch(5), "boot-one")
    logs.close()
    logs = open_logs([directory / "a", directory / "b"], cluster_id=CLUSTER, broker_id=BROKER)
    assert [one.incarnation for one in logs.previous] == [("", 4), None], "the next start trusts neither"
    logs.close()


def no_disk(*_: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_new_replicas_go_to_the_directory_with_the_fewest(directory: Path) -> None:
    logs = open_logs([directory / "a", directory / "b"], cluster_id=CLUSTER, broker_id=BROKER)
    opened = [logs.open(TopicPartition("t", number), ReplicaIdentity("t", str(number)), {})[1] for number in range(6)]
    assert sorted(recovered.directory for recovered in opened) == [0, 0, 0, 1, 1, 1]
    logs.close()
    logs = open_logs([directory / "a", directory / "b"], cluster_id=CLUSTER, broker_id=BROKER)
    assert len(logs.replicas()) == 6
    for number, before in enumerate(opened):
        recovered = logs.open(TopicPartition("t", number), ReplicaIdentity("t", str(number)), {})[1]
        assert (recovered.directory, recovered.fresh) == (before.directory, False)
    logs.close()


def test_the_directory_with_the_highest_generation_is_opened(directory: Path) -> None:
    logs = open_logs([directory / "a", directory / "b"], cluster_id=CLUSTER, broker_id=BROKER)
    log, first = logs.open(PARTITION, IDENTITY, {})
    lead(log, make_batch(["old"]))
    logs.close()
    source = directory / "ab"[first.directory] / str(PARTITION)
    target = directory / "ab"[1 - first.directory] / str(PARTITION)
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    write_identity(target, IDENTITY, generation=1)
    logs = open_logs([directory / "a", directory / "b"], cluster_id=CLUSTER, broker_id=BROKER)
    _, second = logs.open(PARTITION, IDENTITY, {})
    assert second.directory == 1 - first.directory
    assert not source.exists()
    logs.close()


def test_deleted_replicas_are_removed_at_once_and_strays_after_their_grace(directory: Path) -> None:
    logs = open_one(directory)
    for suffix in ("stray", "delete"):
        lead(logs.open(PARTITION, IDENTITY, {})[0], make_batch(["a"]))
        logs.set_aside(PARTITION, suffix)
    logs.checkpoint({})
    logs.close()
    assert [entry.name.rsplit("-", 1)[1] for entry in directory.iterdir() if entry.is_dir()] == ["stray"]
    logs = open_one(directory, stray_grace_ms=0)
    logs.checkpoint({})
    logs.close()
    assert not [entry for entry in directory.iterdir() if entry.is_dir()]


def test_the_longest_topic_name_can_be_set_aside(directory: Path) -> None:
    partition = TopicPartition("x" * 249, 99999)
    logs = open_one(directory)
    lead(logs.open(partition, IDENTITY, {})[0], make_batch(["a"]))
    logs.set_aside(partition, "stray")
    assert len([entry for entry in directory.iterdir() if entry.is_dir()]) == 1
    logs.close()
    logs = open_one(directory)
    assert logs.replicas() == {}
    logs.close()


def test_a_recreated_partition_does_not_inherit_checkpoints(directory: Path) -> None:
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, {})
    lead(log, make_batch(["a", "b"]))
    logs.checkpoint({PARTITION: Offset(2)})
    logs.close()
    logs = open_one(directory)
    _, recovered = logs.open(PARTITION, IDENTITY._replace(incarnation="incarnation-two"), {})
    assert (recovered.high_watermark, recovered.damaged, recovered.fresh) == (0, None, True)
    logs.close()


@pytest.mark.parametrize("suffix", ["stray", "delete"])
def test_a_replica_set_aside_before_a_kill_is_made_again_without_damage(directory: Path, suffix: str) -> None:
    """The replica is set aside, a kill comes before the next checkpoint, and the replica is opened again."""
    logs = open_one(directory)
    lead(logs.open(PARTITION, IDENTITY, {})[0], make_batch(["a", "b"]))
    logs.checkpoint({PARTITION: Offset(2)})
    logs.set_aside(PARTITION, suffix)
    logs.close()
    logs = open_one(directory)
    _, recovered = logs.open(PARTITION, IDENTITY, {})
    assert (recovered.high_watermark, recovered.damaged, recovered.fresh) == (0, None, True)
    logs.close()


def test_a_replica_made_again_whose_directory_vanishes_is_damaged(directory: Path) -> None:
    logs = open_one(directory)
    for _ in range(2):
        lead(logs.open(PARTITION, IDENTITY, {})[0], make_batch(["a", "b"]))
        logs.checkpoint({PARTITION: Offset(2)})
        if len(list(directory.glob("*-stray"))) == 0:
            logs.set_aside(PARTITION, "stray")
    logs.close()
    shutil.rmtree(directory / str(PARTITION))
    logs = open_one(directory)
    _, recovered = logs.open(PARTITION, IDENTITY, {})
    assert recovered.damaged is not None
    logs.close()


def test_more_logs_than_the_bound_of_open_files_are_served(directory: Path) -> None:
    logs = open_one(directory, open_files_max=3)
    opened = [logs.open(TopicPartition("t", number), ReplicaIdentity("t", str(number)), {})[0] for number in range(12)]
    descriptors = len(os.listdir("/proc/self/fd"))
    for turn in range(3):
        for number, log in enumerate(opened):
            lead(log, make_batch([f"{number}-{turn}"]))
            assert f"{number}-{turn}".encode() in read_all(log)
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 3
    logs.close()


def test_a_failed_append_leaves_nothing_behind(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, {"segment.bytes": "2000"})
    lead(log, make_batch(["a"]))
    before = read_all(log)
    real = os.pwritev
    calls = []

    def full(descriptor: int, buffers: list[bytes], position: int) -> int:
        calls.append(position)
        if len(calls) == 2:
            os.pwrite(descriptor, bytes(buffers[0]), position)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, buffers, position)

    monkeypatch.setattr(log_module.os, "pwritev", full)
    with raises_code(ErrorCode.DISK_FULL) as caught:
        lead(log, *(make_batch(["b" * 300]) for _ in range(9)))
    assert "No space left" in caught.value.message
    monkeypatch.undo()
    assert (log.log_end_offset, read_all(log)) == (1, before)
    lead(log, make_batch(["c"]))
    logs.close()
    logs = open_one(directory)
    log, recovered = logs.open(PARTITION, IDENTITY, {})
    assert (recovered.log_end_offset, recovered.damaged) == (2, None)
    assert read_all(log).startswith(before)
    logs.close()


def test_short_writes_are_continued(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, {})

    def short(descriptor: int, buffers: list[bytes], position: int) -> int:
        return os.pwrite(descriptor, b"".join(buffers)[:33], position)

    monkeypatch.setattr(log_module.os, "pwritev", short)
    lead(log, make_batch(["a", "b"]), make_batch(["c"]))
    monkeypatch.undo()
    assert b"c" in read_all(log)
    logs.close()


def test_a_failed_sync_takes_the_directory_offline_and_is_never_retried(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = open_logs([directory / "a", directory / "b"], cluster_id=CLUSTER, broker_id=BROKER)
    log, recovered = logs.open(PARTITION, IDENTITY, {})
    lead(log, make_batch(["a"]))
    ids = logs.directory_ids

    def fail(failing: Path, _: object) -> None:
        if failing.name == "ab"[recovered.directory]:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(directory_module, "sync_file_system", fail)
    with pytest.raises(TidemarkError):
        logs.checkpoint({PARTITION: Offset(1)})
    monkeypatch.undo()
    assert logs.directory_ids == (ids[1 - recovered.directory],)
    logs.checkpoint({PARTITION: Offset(1)})
    for call in (lambda: follow(log, make_batch(["b"])), log.flush):
        with pytest.raises(TidemarkError, match="offline"):
            call()
    logs.close()
    assert "1\n" in (directory / "ab"[recovered.directory] / "replication-offset-checkpoint").read_text()
    logs = open_logs([directory / "a", directory / "b"], cluster_id=CLUSTER, broker_id=BROKER)
    assert logs.open(PARTITION, IDENTITY, {})[1].high_watermark == 0
    logs.close()


def test_a_checkpoint_of_nothing_new_writes_nothing(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, {})
    lead(log, make_batch(["a"]))
    logs.checkpoint({PARTITION: Offset(1)})
    syncs: list[Path] = []
    monkeypatch.setattr(directory_module, "sync_file_system", lambda *opened: syncs.append(opened[0]))
    logs.checkpoint({PARTITION: Offset(1)})
    assert syncs == []
    lead(log, make_batch(["b"]))
    logs.checkpoint({PARTITION: Offset(1)})
    assert syncs == [directory]
    logs.close()


def test_a_foreign_meta_version_is_refused(directory: Path) -> None:
    open_one(directory).close()
    meta = json.loads((directory / "meta.json").read_text())
    assert meta["cluster_id"] == CLUSTER
    (directory / "meta.json").write_text(json.dumps({**meta, "format_version": 2}))
    assert "checksum" in refused(directory).message


def test_an_expired_producer_is_not_in_the_snapshot_of_a_clean_stop(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = [0]
    monkeypatch.setattr(state_module, "monotonic_ms", lambda: now_ms[0])
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, {})
    lead(log, make_batch(["a"], producer_id=1, producer_epoch=0, sequence=0))
    now_ms[0] = 24 * 3600 * 1000
    lead(log, make_batch(["b"], producer_id=2, producer_epoch=0, sequence=0))
    logs.close_clean(BrokerEpoch(0), {PARTITION: Offset(2)})
    _, recovered = open_one(directory).open(PARTITION, IDENTITY, {})
    assert set(recovered.producers.entries) == {2}


def test_the_cluster_id_on_disk_is_that_of_the_first_readable_directory(tmp_path: Path) -> None:
    paths = [tmp_path / "new", tmp_path / "damaged", tmp_path / "known"]
    assert stored_cluster_id(paths) == ""
    open_logs(paths[1:], cluster_id="shop", broker_id=BrokerId(1)).close()
    (paths[1] / "meta.json").write_bytes(b"{}")
    assert stored_cluster_id(paths) == "shop"
