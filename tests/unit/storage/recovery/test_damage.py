# SPDX-License-Identifier: Apache-2.0
"""Rule T5: with any damage to the files, a start gives a true prefix, marks the replica damaged, or refuses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tidemark.model import Offset, TidemarkError
from tidemark.record.checks import check_batches
from tidemark.storage.files import checksum
from tidemark.storage.recovery.epoch_file import EPOCH_FILE
from tidemark.storage.segments.index import read_end_mark

from tests.unit.storage.batches import IDENTITY, PARTITION, at, follow, lead, make_batch, open_one, read_all
from tests.unit.storage.recovery.damaging import CONFIGS, cut_file, ends, flip, in_copy, replica, segments, start


def test_after_a_clean_stop_a_short_tail_is_damage(stopped: tuple[Path, bytes]) -> None:
    path, whole = stopped
    last = segments(path)[-1]
    size = last.stat().st_size
    for cut in range(1, 200, 7):
        outcome = in_copy(path, lambda copy, cut=cut: cut_file(replica(copy) / last.name, size - cut))
        assert not isinstance(outcome, TidemarkError)
        recovered, content = outcome
        assert recovered.damaged is not None
        assert recovered.log_end_offset == 30
        assert content == whole[: ends(whole)[30]]


def test_a_clean_stop_scans_nothing(stopped: tuple[Path, bytes]) -> None:
    path, whole = stopped
    logs = open_one(path)
    log, recovered = logs.open(PARTITION, IDENTITY, CONFIGS)
    assert (recovered.log_end_offset, recovered.flushed_offset, recovered.high_watermark) == (32, 32, 30)
    assert recovered.producers.entries[4].batches[-1].last_sequence == 31
    assert all(read_end_mark(segment.with_suffix("")) is not None for segment in segments(path))
    assert logs.previous[0].clean_broker_epoch == 3
    assert read_all(log) == whole
    logs.close()


@pytest.mark.parametrize(
    "name",
    [
        "replication-offset-checkpoint",
        "recovery-point-checkpoint",
        "log-start-offset-checkpoint",
        f"{PARTITION}/{EPOCH_FILE}",
    ],
)
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "checksum"),
        (b"1\n", "checksum"),
        (b"2\nsomething new\n", "version 2, this program knows 1"),
    ],
    ids=["empty", "cut off", "of a later version"],
)
def test_a_damaged_checkpoint_is_logged_and_nothing_is_lost(
    killed: tuple[Path, bytes], caplog: pytest.LogCaptureFixture, name: str, content: bytes, why: str
) -> None:
    path, whole = killed
    if why.startswith("version"):
        content += f"crc {checksum(content):08x}\n".encode()
    (path / name).write_bytes(content)
    recovered, found = start(path)
    assert found == whole
    assert recovered.damaged is None
    assert recovered.epochs == ((0, 0), (1, 8), (2, 16), (3, 24))
    told = [record.why for record in caplog.records if hasattr(record, "why")]
    assert any(why in one and name.rsplit("/", maxsplit=1)[-1] in one for one in told), told


def test_a_missing_segment_is_damage(killed: tuple[Path, bytes]) -> None:
    path, whole = killed
    for number, segment in enumerate(segments(path)[:-1]):
        outcome = in_copy(path, lambda copy, n=segment.name: (replica(copy) / n).unlink())
        assert not isinstance(outcome, TidemarkError)
        recovered, content = outcome
        assert recovered.damaged is not None
        assert recovered.log_end_offset == int(segment.stem)
        assert content == whole[: len(content)]
        assert bool(content) == bool(number)


def test_all_segments_missing_is_damage(killed: tuple[Path, bytes]) -> None:
    outcome = in_copy(killed[0], lambda copy: [segment.unlink() for segment in segments(copy)])
    assert not isinstance(outcome, TidemarkError)
    assert outcome[0].damaged is not None
    assert outcome[1] == b""


def test_a_vanished_replica_directory_is_damage(killed: tuple[Path, bytes]) -> None:
    outcome = in_copy(killed[0], lambda copy: shutil.rmtree(replica(copy)))
    assert not isinstance(outcome, TidemarkError)
    assert outcome[0].damaged is not None
    assert outcome[0].fresh


def test_a_torn_tail_without_its_checkpoints_is_damage(killed: tuple[Path, bytes]) -> None:
    def spoil(copy: Path) -> None:
        (copy / "recovery-point-checkpoint").unlink()
        cut_file(segments(copy)[-1], segments(copy)[-1].stat().st_size - 8)

    outcome = in_copy(killed[0], spoil)
    assert not isinstance(outcome, TidemarkError)
    assert outcome[0].damaged is not None
    assert outcome[0].log_end_offset == 30


def test_valid_records_behind_damage_are_set_aside_until_refetched(killed: tuple[Path, bytes]) -> None:
    path, whole = killed
    target = next(segment for segment in reversed(segments(path)) if int(segment.stem) <= 20)
    position = ends(whole)[20] - (ends(whole)[int(target.stem)] if int(target.stem) else 0)
    bytes_before = sum(segment.stat().st_size for segment in segments(path))
    flip(target, position + 70)

    logs = open_one(path)
    log, recovered = logs.open(PARTITION, IDENTITY, CONFIGS)
    assert recovered.damaged is not None
    assert recovered.log_end_offset == 20
    aside = list(replica(path).glob("*.damaged*"))
    assert sum(file.stat().st_size for file in aside) + ends(whole)[int(target.stem)] == bytes_before
    logs.checkpoint({PARTITION: Offset(20)})
    logs.close()

    logs = open_one(path)
    log, recovered = logs.open(PARTITION, IDENTITY, CONFIGS)
    assert recovered.damaged is not None, "damage survives a restart"
    missing = [batch for batch in check_batches(whole) if batch.envelope.base_offset >= 20]
    follow(log, *missing[:-1])
    logs.checkpoint({PARTITION: Offset(20)})
    assert list(replica(path).glob("*.damaged*")) == aside
    follow(log, missing[-1])
    logs.checkpoint({PARTITION: Offset(20)})
    assert not list(replica(path).glob("*.damaged*"))
    assert read_all(log) == whole
    logs.close()
    assert start(path)[0].damaged is None


@pytest.mark.parametrize("spoil", ["deleted", "emptied", "flipped"])
def test_damage_is_not_forgotten_with_its_file(killed: tuple[Path, bytes], spoil: str) -> None:
    path, whole = killed
    target = next(segment for segment in reversed(segments(path)) if int(segment.stem) <= 20)
    flip(target, ends(whole)[20] - (ends(whole)[int(target.stem)] if int(target.stem) else 0) + 70)
    logs = open_one(path)
    _, recovered = logs.open(PARTITION, IDENTITY, CONFIGS)
    assert recovered.damaged
    logs.checkpoint({PARTITION: Offset(18)})  # no checkpoint has the former log end
    logs.close()
    note = replica(path) / "damage.json"
    if spoil == "deleted":
        note.unlink()
    elif spoil == "emptied":
        note.write_bytes(b"")
    else:
        flip(note, 20)
    logs = open_one(path)
    log, recovered = logs.open(PARTITION, IDENTITY, CONFIGS)
    assert recovered.damaged
    follow(log, *[batch for batch in check_batches(whole) if batch.envelope.base_offset >= 20])
    logs.checkpoint({PARTITION: Offset(20)})
    logs.close()
    recovered, content = start(path)
    assert content == whole
    assert (recovered.damaged is None) == (spoil == "deleted"), "only the file has the end of the damage"


def test_a_tail_of_zeros_or_garbage_is_truncated(killed: tuple[Path, bytes]) -> None:
    path, whole = killed
    for garbage in (bytes(5000), b"\x01" * 4096, whole[:300], whole[40:700]):
        name = segments(path)[-1].name

        def spoil(copy: Path, name: str = name, garbage: bytes = garbage) -> None:
            with (replica(copy) / name).open("ab") as file:
                file.write(garbage)

        outcome = in_copy(path, spoil)
        assert not isinstance(outcome, TidemarkError)
        assert (outcome[0].log_end_offset, outcome[0].damaged) == (32, None)
        assert outcome[1] == whole


def test_a_valid_batch_far_behind_a_lost_page_makes_it_damage(directory: Path) -> None:
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, {})
    lead(log, *(make_batch(["v" * 5000]) for _ in range(30)))
    logs.close()
    file = segments(directory)[0]
    content = bytearray(file.read_bytes())
    content[8192 : len(content) - 3 * 5616] = bytes(len(content) - 3 * 5616 - 8192)
    file.write_bytes(content)
    recovered, kept = start(directory)
    assert recovered.damaged is not None
    assert recovered.log_end_offset == 1
    assert len(check_batches(kept)) == 1


def test_a_kill_between_removing_segments_leaves_a_prefix(killed: tuple[Path, bytes]) -> None:
    path, whole = killed
    logs = open_one(path)
    log, _ = logs.open(PARTITION, IDENTITY, CONFIGS)
    log.truncate(Offset(6))
    logs.close()
    for file in replica(path).glob("*.index"):
        assert int(file.stem) <= 6
    recovered, content = start(path)
    assert (recovered.log_end_offset, recovered.damaged) == (6, None)
    assert content == whole[: ends(whole)[6]]


def test_a_batch_with_a_decreasing_offset_is_damage_or_truncated(directory: Path) -> None:
    logs = open_one(directory)
    log, _ = logs.open(PARTITION, IDENTITY, {})
    lead(log, make_batch(["a"]), make_batch(["b"]))
    logs.close()
    with segments(directory)[0].open("ab") as file:
        file.write(at(make_batch(["c"]), 0).data)
    recovered, content = start(directory)
    assert (recovered.log_end_offset, recovered.damaged) == (2, None)
    assert len(check_batches(content)) == 2


def test_a_replica_killed_while_it_was_made_is_not_damaged(directory: Path) -> None:
    logs = open_one(directory / "young")
    log, _ = logs.open(PARTITION, IDENTITY, CONFIGS)
    log.reset(Offset(0))  # makes its directory
    logs.close()
    (directory / "young" / str(PARTITION) / "partition.json").unlink()
    logs = open_one(directory / "young")
    _, recovered = logs.open(PARTITION, IDENTITY, CONFIGS)
    logs.close()
    assert recovered.fresh
    assert recovered.damaged is None
    assert recovered.log_end_offset == 0
