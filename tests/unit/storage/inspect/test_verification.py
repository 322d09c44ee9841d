# SPDX-License-Identifier: Apache-2.0
"""Verification finds each kind of damage at its position, and nothing in a valid log."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tidemark.cli.inspect.log_verify import finding_lines
from tidemark.model import BrokerEpoch, EpochEntry, LeaderEpoch, Offset, TidemarkError, TopicPartition
from tidemark.record.checks import check_batches
from tidemark.record.envelope import ENVELOPE_BYTES, Batch, parse_envelope, seal, stamp
from tidemark.record.payload import build_batch, from_columns
from tidemark.storage.directories.checkpoint_files import HIGH_WATERMARKS, LOG_STARTS
from tidemark.storage.directories.log_directory import META_FILE
from tidemark.storage.directories.roster import ROSTER_FILE
from tidemark.storage.files import PARTITION_FILE, pack_lines, read_lines
from tidemark.storage.inspect.directory_verification import DirectoryReport, DirectoryVerifier, Options
from tidemark.storage.inspect.findings import Finding, FindingKind, Severity
from tidemark.storage.inspect.inspection import Good, is_held, read_log, read_segment
from tidemark.storage.log.cleaner import CleanerSettings, clean_log
from tidemark.storage.recovery.damage import CutPoint, KnownDamage, write_cut_point, write_damage
from tidemark.storage.recovery.epoch_file import EPOCH_FILE
from tidemark.storage.recovery.segment_swap import cleaned_path
from tidemark.storage.segments.index import EndMark, load_index, write_end_mark

from tests.unit.storage.batches import IDENTITY, PARTITION, lead, make_batch, memory_directory, open_one
from tests.unit.storage.directories.moving import begin, move, open_in

CONFIGS = {"segment.bytes": "4000", "index.interval.bytes": "600"}
BATCHES = 16


@pytest.fixture
def path() -> Iterator[Path]:
    with memory_directory() as made:
        yield made / "logs"


def fill(path: Path, *, stop: bool) -> None:
    """16 batches of 2 records in several segments and 4 epochs."""
    logs = open_one(path)
    log, _ = logs.open(PARTITION, IDENTITY, CONFIGS)
    for number in range(BATCHES):
        batch = make_batch([f"{number}a", f"{number}b"], producer_id=4, producer_epoch=0, sequence=2 * number)
        lead(log, batch, epoch=number // 4)
    if stop:
        logs.close_clean(BrokerEpoch(3), {PARTITION: Offset(30)})
    else:
        logs.close()


@pytest.fixture
def good(path: Path) -> Path:
    """A log that was stopped cleanly."""
    fill(path, stop=True)
    return path


def verify(path: Path, options: Options = Options()) -> DirectoryReport:  # noqa: B008 - a value, not a list
    return DirectoryVerifier(path, options, on_replica=lambda target, size: None, on_bytes=lambda size: None).run()


def errors(path: Path, options: Options = Options()) -> list[Finding]:  # noqa: B008 - a value, not a list
    report = verify(path, options)
    every = [*report.findings, *(one for replica in report.replicas for one in replica.findings)]
    found = [one for one in every if one.severity is Severity.ERROR]
    assert len(found) == report.error_count
    return found


def replica(path: Path) -> Path:
    return path / str(PARTITION)


def segments(path: Path) -> list[Path]:
    return sorted(replica(path).glob("*.log"))


def positions(segment: Path) -> list[int]:
    return [piece.position for piece in read_segment(segment)]


def test_a_valid_log_has_no_findings_and_its_figures_are_reported(good: Path) -> None:
    report = verify(good, Options(deep=True))
    (found,) = report.replicas
    assert (report.findings, found.findings, report.held) == ([], [], False)
    assert (found.batches, found.records, found.log_start, found.log_end) == (BATCHES, 2 * BATCHES, 0, 2 * BATCHES)
    assert found.segments == len(segments(good)) > 2
    assert found.size_bytes == sum(segment.stat().st_size for segment in segments(good))


def test_a_single_replica_is_verified_with_the_checkpoints_beside_it(good: Path) -> None:
    report = verify(replica(good))
    assert [one.partition for one in report.replicas] == [PARTITION]
    (good / HIGH_WATERMARKS).write_bytes(pack_lines([f"flights 0 {IDENTITY.incarnation} 99"]))
    (found,) = errors(replica(good))
    assert (found.kind, found.offset) == (FindingKind.CHECKPOINT, 32)


def test_a_log_after_a_kill_has_no_findings(path: Path) -> None:
    fill(path, stop=False)
    assert errors(path) == []


def test_a_reset_that_a_start_will_finish_is_no_error(good: Path) -> None:
    segments(good)[-1].unlink()
    write_cut_point(replica(good), CutPoint(32, 40, resetting=True))
    assert errors(good) == []


@pytest.mark.parametrize("stop", [True, False], ids=["stopped", "killed"])
def test_batches_below_the_log_start_are_not_compared_with_the_epoch_file(path: Path, stop: bool) -> None:
    """The epoch file drops their epochs immediately.

    The batches are deleted with their segment, or at the next checkpoint.
    """
    logs = open_one(path)
    log, _ = logs.open(PARTITION, IDENTITY, {})
    for number in range(10):
        lead(log, make_batch([str(number)]), epoch=1 if number < 6 else 2)
    logs.checkpoint({PARTITION: Offset(10)})
    log.trim(Offset(7))
    log.save_epochs((EpochEntry(LeaderEpoch(2), Offset(7)),))
    if stop:
        logs.close_clean(BrokerEpoch(3), {PARTITION: Offset(10)})
    logs.close()
    assert errors(path) == []


def test_verification_writes_and_locks_nothing(good: Path) -> None:
    before = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in good.rglob("*") if file.is_file()}
    verify(good, Options(deep=True))
    assert {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in good.rglob("*") if file.is_file()} == before


def test_a_directory_locked_by_a_broker_is_detected(path: Path) -> None:
    logs = open_one(path)
    log, _ = logs.open(PARTITION, IDENTITY, CONFIGS)
    lead(log, make_batch(["a"]))
    assert is_held(path)
    assert verify(path).held
    logs.close()
    assert not is_held(path)


def patch(file: Path, position: int, content: bytes) -> None:
    data = bytearray(file.read_bytes())
    data[position : position + len(content)] = content
    file.write_bytes(bytes(data))


def flip(file: Path, position: int) -> None:
    patch(file, position, bytes([file.read_bytes()[position] ^ 0x40]))


def restamp(segment: Path, position: int, *, base_offset: int, leader_epoch: int) -> None:
    data = segment.read_bytes()[position:]
    patch(segment, position, stamp(data, base_offset=base_offset, leader_epoch=leader_epoch))


def damage_body(path: Path) -> tuple[Path, int | None, int | None]:
    segment = segments(path)[1]
    at = positions(segment)[1]
    offset = check_batches(segment.read_bytes())[1].envelope.base_offset
    flip(segment, at + ENVELOPE_BYTES + 9)
    return segment, at, offset


def damage_header(path: Path) -> tuple[Path, int | None, int | None]:
    segment = segments(path)[1]
    at = positions(segment)[1]
    offset = check_batches(segment.read_bytes())[1].envelope.base_offset
    flip(segment, at + 3)
    return segment, at, offset


def cut_a_sealed_segment(path: Path) -> tuple[Path, int | None, int | None]:
    segment = segments(path)[0]
    at = positions(segment)[-1]
    offset = check_batches(segment.read_bytes())[-1].envelope.base_offset
    segment.write_bytes(segment.read_bytes()[:-8])
    return segment, at, offset


BATCH_DAMAGES = [damage_body, damage_header, cut_a_sealed_segment]


@pytest.mark.parametrize("spoil", BATCH_DAMAGES)
def test_a_damaged_batch_is_found_where_it_is(
    good: Path, spoil: Callable[[Path], tuple[Path, int | None, int | None]]
) -> None:
    whole = {path: path.read_bytes() for path in segments(good)}
    where = spoil(good)
    found = [one for one in errors(good) if one.kind is FindingKind.BATCH]
    assert [(one.path, one.position, one.offset) for one in found] == [where]
    assert f"tidemark replicas verify --topic {PARTITION.topic} --partition 0 --repair" in found[0].advice
    if spoil is not cut_a_sealed_segment:
        path, position, offset = where
        assert position is not None
        end = parse_envelope(whole[path], position).next_offset
        assert found[0].end_offset == end
        assert f" offsets [{offset}, {end}): " in finding_lines(found[0])[0]


def test_damage_below_the_log_start_is_a_note(path: Path) -> None:
    """The way on after the loss of all copies: the records before the end of the damage are deleted."""
    fill(path, stop=True)
    segment, at, offset = damage_body(path)
    assert at is not None
    assert offset is not None
    (found,) = errors(path)
    logs = open_one(path)
    log, _ = logs.open(PARTITION, IDENTITY, CONFIGS)
    log.trim(Offset(offset + 2))
    logs.close_clean(BrokerEpoch(3), {PARTITION: Offset(30)})

    report = verify(path)

    assert report.error_count == 0
    (note,) = [one for one in report.replicas[0].findings if one.kind is FindingKind.BATCH]
    assert (note.severity, note.path, note.offset, note.advice) == (Severity.NOTE, segment, found.offset, "")
    assert "below the log start" in note.sentence


def test_batches_after_a_damaged_batch_are_verified(good: Path) -> None:
    first, second = segments(good)[0], segments(good)[2]
    flip(first, ENVELOPE_BYTES + 9)
    flip(second, positions(second)[2] + ENVELOPE_BYTES + 9)
    assert [one.path for one in errors(good) if one.kind is FindingKind.BATCH] == [first, second]


def test_a_decreasing_offset_is_found(good: Path) -> None:
    segment = segments(good)[0]
    restamp(segment, positions(segment)[2], base_offset=1, leader_epoch=0)
    found = next(one for one in errors(good) if one.kind is FindingKind.OFFSETS)
    assert (found.path, found.position, found.offset) == (segment, positions(segment)[2], 1)


def test_a_hole_is_found_unless_the_topic_was_compacted(good: Path) -> None:
    segment = segments(good)[0]
    at = positions(segment)
    data = segment.read_bytes()
    segment.write_bytes(data[: at[1]] + data[at[2] :])
    for suffix in (".index", ".timeindex"):
        segment.with_suffix(suffix).unlink()
    (found,) = errors(good)
    assert (found.kind, found.path, found.position, found.offset) == (FindingKind.HOLE, segment, at[1], 2)
    assert errors(good, Options(compacted=frozenset({"flights"}))) == []
    cleaned_path(replica(good), 0, 12).write_bytes(b"")
    assert errors(good) == [], "the cleaner was at work"


def test_a_missing_segment_is_found(good: Path) -> None:
    gone = segments(good)[1]
    offset = check_batches(gone.read_bytes())[0].envelope.base_offset
    gone.unlink()
    (found,) = errors(good)
    assert (found.kind, found.offset) == (FindingKind.OFFSETS, offset)


def test_a_missing_first_segment_is_found_by_the_log_start(good: Path) -> None:
    segments(good)[0].unlink()
    (found,) = errors(good)
    assert (found.kind, found.offset) == (FindingKind.OFFSETS, 0)


def test_a_cleaned_log_has_no_findings_also_without_its_clean_point(path: Path) -> None:
    logs = open_one(path)
    log, _ = logs.open(PARTITION, IDENTITY, {**CONFIGS, "cleanup.policy": "compact"})
    for number in range(60):
        rows = from_columns([b"key-%d" % (number % 7)], [b"%d" % number], [number])
        data = bytes(build_batch(rows))
        lead(log, Batch(parse_envelope(data), data), epoch=number // 20)
    done = clean_log(log, 60, CleanerSettings(), now_us=10_000_000_000, pace=lambda _: None)
    assert done.passes
    logs.close_clean(BrokerEpoch(3), {PARTITION: Offset(60)})
    offsets = [piece.batch.envelope.base_offset for _, piece in read_log(replica(path)) if isinstance(piece, Good)]
    assert offsets != list(range(60))
    assert errors(path, Options(deep=True)) == []
    (replica(path) / "cleaner-offset-checkpoint").unlink()
    assert errors(path, Options(deep=True)) == []


def test_a_decreasing_epoch_is_found(good: Path) -> None:
    segment = segments(good)[-1]
    base = check_batches(segment.read_bytes())[-1].envelope.base_offset
    restamp(segment, positions(segment)[-1], base_offset=base, leader_epoch=0)
    (found,) = errors(good)
    assert (found.kind, found.position, found.offset) == (FindingKind.EPOCH, positions(segment)[-1], base)


def test_an_epoch_file_that_differs_from_the_batches_is_found(good: Path) -> None:
    file = replica(good) / EPOCH_FILE
    lines = read_lines(file)
    assert lines is not None
    assert lines[1] == "1 8"
    file.write_bytes(pack_lines([lines[0], "1 10", *lines[2:]]))
    (found,) = errors(good)
    assert (found.kind, found.offset) == (FindingKind.EPOCH, 8)
    file.write_bytes(b"nonsense")
    assert [one.kind for one in errors(good)] == [FindingKind.FILE]


def test_an_index_entry_without_its_batch_is_found(good: Path) -> None:
    segment = segments(good)[0]
    stem = segment.with_suffix("")
    index = load_index(stem)
    index.positions[1] += 8
    index.written = 0
    index.persist(stem)
    found = errors(good)
    assert {one.kind for one in found} == {FindingKind.INDEX}
    assert found[0].path == stem.with_name(f"{stem.name}.index")
    assert found[0].offset == index.offsets[1]


def test_a_wrong_time_index_is_found(good: Path) -> None:
    segment = segments(good)[0]
    stem = segment.with_suffix("")
    index = load_index(stem)
    index.timestamps[1] += 1000
    index.written = 0
    index.persist(stem)
    (found,) = errors(good)
    assert (found.kind, found.path.suffix) == (FindingKind.INDEX, ".timeindex")


def test_an_index_with_a_damaged_block_is_found(good: Path) -> None:
    file = segments(good)[0].with_suffix(".index")
    flip(file, 20)
    assert {(one.kind, one.path) for one in errors(good)} == {(FindingKind.INDEX, file)}


def test_a_wrong_end_mark_is_found(good: Path) -> None:
    segment = segments(good)[0]
    stem = segment.with_suffix("")
    write_end_mark(stem, EndMark(999, segment.stat().st_size, 0, len(load_index(stem))))
    (found,) = errors(good)
    assert found.kind is FindingKind.INDEX
    assert "999" in found.sentence


@pytest.mark.parametrize("name", [HIGH_WATERMARKS, "recovery-point-checkpoint", LOG_STARTS])
def test_a_checkpoint_beyond_the_log_is_found(good: Path, name: str) -> None:
    (good / name).write_bytes(pack_lines([f"flights 0 {IDENTITY.incarnation} 33"]))
    assert [(one.kind, one.path, one.offset) for one in errors(good)] == [(FindingKind.CHECKPOINT, good / name, 32)]


def test_a_damaged_checkpoint_is_found(good: Path) -> None:
    (good / HIGH_WATERMARKS).write_bytes(b"1\nflights 0")
    assert [(one.kind, one.path) for one in errors(good)] == [(FindingKind.FILE, good / HIGH_WATERMARKS)]


def test_a_replica_that_lost_its_directory_is_found(good: Path) -> None:
    shutil.rmtree(replica(good))
    (found,) = errors(good)
    assert (found.kind, found.offset) == (FindingKind.CHECKPOINT, 30)
    assert "flights-0" in found.sentence


@pytest.mark.parametrize("name", [PARTITION_FILE, "snapshot"])
def test_a_damaged_small_file_is_found(good: Path, name: str) -> None:
    file = replica(good) / name if name == PARTITION_FILE else sorted(replica(good).glob("*.snapshot"))[-1]
    file.write_bytes(file.read_bytes()[:-5])
    found = errors(good)
    assert (found[0].kind, found[0].path) == (FindingKind.FILE, file)


def test_recorded_damage_is_reported_with_its_reason(good: Path) -> None:
    write_damage(replica(good), KnownDamage("the disk lied", 40))
    (found,) = errors(good)
    assert (found.kind, found.offset) == (FindingKind.DAMAGE, 40)
    assert "the disk lied" in found.sentence
    write_damage(replica(good), KnownDamage("the disk lied", 32))
    assert errors(good) == []
    assert [one.kind for one in verify(good).replicas[0].findings] == [FindingKind.DAMAGE]


def test_an_incomplete_last_batch_is_a_torn_tail_and_no_error_while_a_broker_writes(good: Path) -> None:
    last = segments(good)[-1]
    (good / "recovery-point-checkpoint").write_bytes(pack_lines([f"flights 0 {IDENTITY.incarnation} 20"]))
    whole = last.read_bytes()
    last.write_bytes(whole + whole[:100])
    (found,) = errors(good)
    assert (found.kind, found.path, found.position) == (FindingKind.TORN_TAIL, last, len(whole))
    assert errors(good, Options(live=True)) == []
    notes = [one for one in verify(good, Options(live=True)).replicas[0].findings if one.kind is FindingKind.TORN_TAIL]
    assert "one is being written" in notes[0].sentence


def test_a_torn_tail_below_the_recovery_point_is_damage(good: Path) -> None:
    last = segments(good)[-1]
    last.write_bytes(last.read_bytes()[:-8])
    assert FindingKind.BATCH in {one.kind for one in errors(good)}


def test_a_payload_with_wrong_values_is_found_only_by_decoding(good: Path) -> None:
    segment = segments(good)[-1]
    at = positions(segment)[-1]
    data = segment.read_bytes()[at:]
    envelope = check_batches(data)[0].envelope
    payload = bytearray(data[ENVELOPE_BYTES:])
    payload[-16:] = b"\xff" * 16
    payload[8:40] = b"\xee" * 32
    patch(segment, at, seal(envelope, bytes(payload)))
    assert errors(good) == []
    (found,) = errors(good, Options(deep=True))
    assert (found.kind, found.position, found.offset) == (FindingKind.PAYLOAD, at, envelope.base_offset)


def test_a_changed_byte_of_any_file_is_found(good: Path) -> None:
    rng = random.Random(5)
    files = sorted(file for file in good.rglob("*") if file.is_file() and file.stat().st_size)
    assert {"meta.json", "empty-replicas", "leader-epoch-checkpoint"} <= {file.name for file in files}
    for file in files:
        content = file.read_bytes()
        for _ in range(12):
            position, bit = rng.randrange(len(content)), 1 << rng.randrange(8)
            patch(file, position, bytes([content[position] ^ bit]))
            assert errors(good), f"bit {bit} of byte {position} of {file.name}"
            file.write_bytes(content)
    assert errors(good) == []


def test_directories_that_were_set_aside_are_listed(good: Path) -> None:
    name = f"gone-1.{'a' * 32}-stray"
    shutil.copytree(replica(good), good / name)
    report = verify(good)
    assert report.error_count == 0
    assert [(one.kind, one.path) for one in report.findings] == [(FindingKind.LEFTOVER, good / name)]
    assert [(one.partition, one.aside) for one in report.replicas][-1] == (TopicPartition("gone", 1), "stray")


def test_checkpoints_do_not_apply_to_a_copy_and_deleted_replicas_are_not_read(good: Path) -> None:
    future, deleted = (good / f"{PARTITION}.{'b' * 32}-{suffix}" for suffix in ("future", "delete"))
    for copy in (future, deleted):
        shutil.copytree(replica(good), copy)
    for segment in sorted(future.glob("*.log"))[1:]:
        segment.unlink()
    sorted(deleted.glob("*.log"))[1].unlink()
    report = verify(good)
    assert report.error_count == 0
    assert [(one.aside, one.batches > 0) for one in report.replicas] == [
        ("", True),
        ("delete", False),
        ("future", True),
    ]


@pytest.mark.parametrize("clean", [True, False])
def test_directories_of_a_moving_or_moved_replica_have_no_findings(path: Path, clean: bool) -> None:
    logs, log = open_in(path)
    for number in range(20):
        lead(log, make_batch([f"{number}"]), epoch=number // 5)
    logs.checkpoint({PARTITION: Offset(20)})
    begin(logs)
    directories = [path / "a", path / "b"]
    assert [errors(directory) for directory in directories] == [[], []], "while it is copied"
    logs.checkpoint({PARTITION: Offset(20)})
    if clean:
        logs.close_clean(BrokerEpoch(3), {PARTITION: Offset(20)})
    else:
        logs.close()
    assert [errors(directory) for directory in directories] == [[], []], "interrupted"
    logs, _ = open_in(path)
    moved = move(logs)
    lead(moved, make_batch(["after"]), epoch=9)
    logs.close_clean(BrokerEpoch(4), {PARTITION: Offset(21)})
    assert [errors(directory) for directory in directories] == [[], []], "done"
    assert verify(path / "b").replicas[0].records == 21


def test_a_path_without_a_log_directory_is_refused(path: Path) -> None:
    path.mkdir()
    with pytest.raises(TidemarkError, match=r"meta\.json"):
        verify(path)
    with pytest.raises(TidemarkError, match="not a directory"):
        verify(path / "not-there")


@pytest.mark.parametrize("name", ["00000000000000000000.log", "00000000000000000000.index", PARTITION_FILE])
def test_a_fifo_in_a_replica_is_found_and_not_read(good: Path, name: str) -> None:
    """Regression: the read never ended."""
    path = replica(good) / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    assert [(one.kind, one.path) for one in errors(good)] == [(FindingKind.FILE, path)]
    assert "not a regular file" in errors(good)[0].sentence


@pytest.mark.parametrize("name", [META_FILE, HIGH_WATERMARKS, ROSTER_FILE])
def test_a_fifo_in_a_log_directory_is_found_and_not_read(good: Path, name: str) -> None:
    (good / name).unlink(missing_ok=True)
    os.mkfifo(good / name)
    for path in (good, replica(good)):
        assert [(one.kind, one.path) for one in errors(path)] == [(FindingKind.FILE, good / name)]


def test_random_bytes_as_a_segment_give_a_bounded_number_of_findings(good: Path) -> None:
    segment = segments(good)[0]
    segment.write_bytes(b"\x01" * 200_000)
    found = errors(good)
    assert found[0].kind is FindingKind.BATCH
    assert len(found) < 50
