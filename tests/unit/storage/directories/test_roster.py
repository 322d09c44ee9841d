# SPDX-License-Identifier: Apache-2.0
"""Empty replicas: a line in the roster, a directory with the first record (rules T5, C8, E1)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tidemark.model import (
    BrokerEpoch,
    EpochEntry,
    ErrorCode,
    LeaderEpoch,
    Offset,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
)
from tidemark.storage.directories import log_directory as directory_module
from tidemark.storage.directories import roster as roster_module
from tidemark.storage.directories.checkpoint_files import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS
from tidemark.storage.directories.roster import ROSTER_FILE, Roster, RosterEntry
from tidemark.storage.files import read_lines

from tests.unit.storage.batches import IDENTITY, PARTITION, follow, lead, make_batch, open_one, read_all

OTHER = IDENTITY._replace(incarnation="incarnation-two")
EPOCHS = (EpochEntry(LeaderEpoch(3), Offset(0)),)


def directories(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if entry.is_dir())


def test_a_replica_without_a_record_has_no_directory_and_survives_a_kill(directory: Path) -> None:
    logs = open_one(directory)
    _, recovered = logs.open(PARTITION, IDENTITY, {})
    assert recovered.fresh
    logs.close()
    assert directories(directory) == []
    logs = open_one(directory)
    assert logs.replicas() == {PARTITION: IDENTITY}
    _, recovered = logs.open(PARTITION, IDENTITY, {})
    assert (recovered.fresh, recovered.damaged, recovered.log_end_offset) == (False, None, 0)
    logs.close()


def test_the_first_record_makes_the_directory(directory: Path) -> None:
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, {})
    lead(log, make_batch(["a", "b"]))
    whole = read_all(log)
    logs.close()
    assert directories(directory) == [str(PARTITION)]
    assert Roster(directory).entries == {}
    logs = open_one(directory)
    log, recovered = logs.open(PARTITION, IDENTITY, {})
    assert (recovered.fresh, recovered.damaged, recovered.log_end_offset) == (False, None, 2)
    assert read_all(log) == whole
    logs.close()


def test_a_reset_of_an_empty_follower_makes_its_directory(directory: Path) -> None:
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, {})
    log.reset(Offset(70))
    logs.close()
    logs = open_one(directory)
    _, recovered = logs.open(PARTITION, IDENTITY, {})
    assert (recovered.log_start_offset, recovered.log_end_offset, recovered.damaged) == (70, 70, None)
    logs.close()


def test_epochs_without_a_record_are_kept_before_and_after_there_is_a_directory(directory: Path) -> None:
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, {})
    log.save_epochs(EPOCHS)
    logs.close()
    logs = open_one(directory)
    log, recovered = logs.open(PARTITION, IDENTITY, {})
    assert recovered.epochs == EPOCHS
    log.reset(Offset(0))
    log.save_epochs(EPOCHS)
    logs.close()
    logs = open_one(directory)
    assert logs.open(PARTITION, IDENTITY, {})[1].epochs == EPOCHS
    logs.close()


@pytest.mark.parametrize("step", ["make_segment", "write_epochs", "write_identity"])
def test_a_kill_while_the_directory_is_made_leaves_an_empty_replica(
    directory: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, {})
    log.save_epochs(EPOCHS)

    def killed(*arguments: object, **named: object) -> None:
        raise OSError(5, "killed here")

    with monkeypatch.context() as patched:
        patched.setattr(directory_module, step, killed)
        with pytest.raises(TidemarkError) as caught:
            lead(log, make_batch(["a"]))
    assert caught.value.code is ErrorCode.STORAGE_ERROR
    logs.close()
    logs = open_one(directory)
    log, recovered = logs.open(PARTITION, IDENTITY, {})
    assert (recovered.damaged, recovered.log_end_offset) == (None, 0)
    assert lead(log, make_batch(["b"])) == 1
    logs.close()


def test_a_kill_before_the_line_is_removed_loses_no_record(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, {})
    with monkeypatch.context() as patched:
        patched.setattr(Roster, "forget", lambda self, partition: False)
        lead(log, make_batch(["a", "b"]))
    logs.close()
    assert PARTITION in Roster(directory).entries
    logs = open_one(directory)
    assert logs.open(PARTITION, IDENTITY, {})[1].log_end_offset == 2
    logs.close()
    assert Roster(directory).entries == {}


def test_a_line_never_replaces_an_unreadable_directory(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, {})
    with monkeypatch.context() as patched:
        patched.setattr(Roster, "forget", lambda self, partition: False)
        lead(log, make_batch(["a", "b"]))
    logs.close()
    (directory / str(PARTITION) / "partition.json").write_bytes(b"{}")
    logs = open_one(directory)
    _, recovered = logs.open(PARTITION, IDENTITY, {})
    assert recovered.damaged is not None, "the replica held two records"
    logs.close()


def test_checkpoints_have_a_line_for_a_replica_from_its_first_record_on(directory: Path) -> None:
    files = [directory / name for name in (HIGH_WATERMARKS, RECOVERY_POINTS, LOG_STARTS)]
    logs = open_one(directory)
    logs.open(PARTITION, IDENTITY, {})
    logs.checkpoint({PARTITION: Offset(0)})
    logs.close_clean(BrokerEpoch(3), {PARTITION: Offset(0)})
    assert [list(read_lines(file) or ()) for file in files] == [[], [], []]
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, {})
    lead(log, make_batch(["a", "b"]))
    logs.checkpoint({PARTITION: Offset(1)})
    logs.close()
    line = f"{PARTITION.topic} {PARTITION.partition} {IDENTITY.incarnation}"
    assert [list(read_lines(file) or ()) for file in files] == [[f"{line} {at}"] for at in (1, 2, 0)]


def test_an_empty_replica_with_checkpointed_records_is_damaged(directory: Path) -> None:
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, {})
    lead(log, make_batch(["a", "b"]))
    logs.checkpoint({PARTITION: Offset(2)})
    logs.close()
    for file in (directory / str(PARTITION)).iterdir():
        file.unlink()
    (directory / str(PARTITION)).rmdir()
    Roster(directory).put(PARTITION, RosterEntry(IDENTITY))
    logs = open_one(directory)
    _, recovered = logs.open(PARTITION, IDENTITY, {})
    assert recovered.damaged is not None
    logs.close()


def test_another_incarnation_and_a_deletion_leave_no_line(directory: Path) -> None:
    logs = open_one(directory)
    logs.open(PARTITION, IDENTITY, {})[0].save_epochs(EPOCHS)
    _, recovered = logs.open(PARTITION, OTHER, {})
    assert (recovered.fresh, recovered.epochs) == (True, ())
    logs.set_aside(PARTITION, "delete")
    logs.close()
    assert directories(directory) == []
    logs = open_one(directory)
    assert logs.replicas() == {}
    logs.close()


def test_a_closed_log_makes_no_directory(directory: Path) -> None:
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, {})
    logs.set_aside(PARTITION, "delete")
    with pytest.raises(TidemarkError):
        follow(log, make_batch(["late"]))
    assert directories(directory) == []
    logs.close()


def test_a_clean_stop_and_a_flush_write_no_file_of_an_empty_replica(directory: Path) -> None:
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, {})
    assert log.flush() == 0
    logs.close_clean(directory_module.BrokerEpoch(4), {PARTITION: Offset(0)})
    assert directories(directory) == []
    logs = open_one(directory)
    assert logs.open(PARTITION, IDENTITY, {})[1].flushed_offset == 0
    logs.close()


def test_a_torn_line_loses_only_its_own_entry(directory: Path) -> None:
    roster = Roster(directory)
    for number in range(3):
        roster.put(TopicPartition("t", number), RosterEntry(IDENTITY))
    content = (directory / ROSTER_FILE).read_bytes()
    for length in range(len(content)):
        (directory / ROSTER_FILE).write_bytes(content[:length])
        entries = Roster(directory).entries
        assert set(entries) == {TopicPartition("t", number) for number in range(content[:length].count(b"\n") - 1)}
        roster = Roster(directory)
        roster.put(PARTITION, RosterEntry(OTHER, EPOCHS))
        assert Roster(directory).entries == {**entries, PARTITION: RosterEntry(OTHER, EPOCHS)}


def test_a_flipped_byte_never_gives_another_entry(directory: Path) -> None:
    roster = Roster(directory)
    entries = {TopicPartition("t", number): RosterEntry(ReplicaIdentity("t", str(number))) for number in range(2)}
    for partition, entry in entries.items():
        roster.put(partition, entry)
    content = (directory / ROSTER_FILE).read_bytes()
    for at in range(len(content)):
        (directory / ROSTER_FILE).write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert Roster(directory).entries.items() <= entries.items()


def test_a_full_disk_within_a_line_damages_no_other_line(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roster = Roster(directory)
    write = os.write
    with monkeypatch.context() as patched:
        patched.setattr(roster_module.os, "write", lambda descriptor, data: write(descriptor, data[:9]))
        with pytest.raises(OSError, match="No space"):
            roster.put(PARTITION, RosterEntry(IDENTITY))
    assert roster.entries == {}
    roster.put(PARTITION, RosterEntry(OTHER))
    assert Roster(directory).entries == {PARTITION: RosterEntry(OTHER)}


def test_obsolete_lines_are_bounded(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster_module, "_DEAD_LINES_MIN", 10)
    roster = Roster(directory)
    for number in range(200):
        roster.put(PARTITION, RosterEntry(IDENTITY, (EpochEntry(LeaderEpoch(number), Offset(0)),)))
    assert (directory / ROSTER_FILE).read_bytes().count(b"\n") < 20
    assert Roster(directory).entries[PARTITION].epochs == ((199, 0),)
