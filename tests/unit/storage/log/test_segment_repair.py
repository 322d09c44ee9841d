# SPDX-License-Identifier: Apache-2.0
"""Finding damaged batches of sealed segments, and replacing them by those of another replica (rule T6)."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tidemark.model import ErrorCode, Offset
from tidemark.record.checks import check_batches
from tidemark.record.compaction import empty_batch
from tidemark.record.envelope import Batch, header_crc, parse_envelope
from tidemark.record.payload import build_batch, from_columns
from tidemark.storage.directories.log_manager import LogManager
from tidemark.storage.files import drop_from_page_cache
from tidemark.storage.log.cleaner import CleanerSettings, clean_log
from tidemark.storage.log.cleaning import CleaningView
from tidemark.storage.log.partition_log import PartitionLog
from tidemark.storage.log.segment_repair import (
    DamagedRange,
    NotJoined,
    Patch,
    find_damage,
    find_damage_on_disk,
    repair_segment,
)
from tidemark.storage.segments.segment import Segment

from tests.refusals import raises_code
from tests.unit.storage.batches import IDENTITY, PARTITION, lead, make_batch, open_one, read_all
from tests.unit.storage.kills import Killer
from tests.unit.storage.log.test_cleaner import CONFIGS as COMPACTED
from tests.unit.storage.log.test_cleaner import NOW_US, batches_of, clean, fill, rows_of

PLAIN = {"segment.bytes": "4096", "index.interval.bytes": "700"}


class Replicas:
    """Two copies of one log: `log`, to be damaged, and `good`."""

    def __init__(self, root: Path, configs: dict[str, str], make: Callable[[PartitionLog], None]) -> None:
        self.configs = configs
        self.path = root / "bad"
        logs = open_one(self.path)
        log = logs.open(PARTITION, IDENTITY, configs)[0]
        make(log)
        logs.checkpoint({PARTITION: log.log_end_offset})
        logs.close()
        shutil.copytree(self.path, root / "good")
        self.logs, self.log = self.open(self.path)
        _, self.good = self.open(root / "good")

    def open(self, path: Path) -> tuple[LogManager, PartitionLog]:
        logs = open_one(path)
        return logs, logs.open(PARTITION, IDENTITY, self.configs)[0]

    @property
    def view(self) -> CleaningView:
        found = self.log.cleaning.view(self.log.log_end_offset)
        assert found is not None
        return found

    def flip(self, segment: Segment, byte: int, bit: int = 1) -> None:
        with segment.log_path.open("r+b") as file:
            file.seek(byte)
            [value] = file.read(1)
            file.seek(byte)
            file.write(bytes([value ^ bit]))

    def damage(self, segment: Segment) -> list[DamagedRange]:
        return find_damage(self.log.cleaning, segment, lambda _: None)

    def patches(self, ranges: Sequence[DamagedRange]) -> list[Patch]:
        """The batches of the good replica."""
        every = batches_of(self.good)
        return [
            Patch(one, [b for b in every if one.start_offset <= b.envelope.base_offset < one.end_offset])
            for one in ranges
        ]

    def repair(self, segment: Segment, patches: Sequence[Patch], view: CleaningView | None = None) -> bool:
        return repair_segment(
            self.log.cleaning,
            view or self.view,
            segment,
            patches,
            holes_until=1 << 62 if "cleanup.policy" in self.configs else 0,
            pace=lambda _: None,
        )


def some_batches(log: PartitionLog) -> None:
    rng = random.Random(7)
    for number in range(60):
        lead(log, make_batch(["x" * rng.randrange(60) for _ in range(rng.randrange(1, 8))]), epoch=number // 20)


def compacted_batches(log: PartitionLog) -> None:
    fill(log, random.Random(3), 70)
    clean(log)
    fill(log, random.Random(4), 30)


@pytest.mark.parametrize("seed", range(24))
def test_flipped_bits_of_a_sealed_segment_are_found_and_replaced(directory: Path, seed: int) -> None:
    rng = random.Random(seed)
    compacts = seed % 3 == 2
    replicas = Replicas(directory, COMPACTED if compacts else PLAIN, compacted_batches if compacts else some_batches)
    segment = rng.choice(replicas.view.segments)
    whole = segment.log_path.read_bytes()
    flipped = {rng.randrange(len(whole)) for _ in range(rng.randrange(1, 4))}
    for byte in flipped:
        replicas.flip(segment, byte, 1 << rng.randrange(8))

    ranges = replicas.damage(segment)

    assert all(any(one.start_position <= byte < one.end_position for one in ranges) for byte in flipped)
    assert replicas.repair(segment, replicas.patches(ranges))
    assert segment.log_path.read_bytes() == whole
    assert read_all(replicas.log) if not compacts else rows_of(replicas.log) == rows_of(replicas.good)
    assert all(replicas.damage(one) == [] for one in replicas.view.segments)
    before = rows_of(replicas.good)
    replicas.logs.close()
    _, reopened = replicas.open(replicas.path)
    assert rows_of(reopened) == before
    assert not reopened.is_damaged


def test_a_good_segment_has_no_damage(directory: Path) -> None:
    replicas = Replicas(directory, PLAIN, some_batches)

    assert len(replicas.view.segments) > 3
    assert [replicas.damage(one) for one in replicas.view.segments] == [[]] * len(replicas.view.segments)


def test_a_range_names_exactly_the_offsets_of_the_damaged_batch(directory: Path) -> None:
    replicas = Replicas(directory, PLAIN, some_batches)
    segment = replicas.view.segments[1]
    data = segment.log_path.read_bytes()
    second = parse_envelope(data, parse_envelope(data).batch_length)
    start = parse_envelope(data).batch_length
    replicas.flip(segment, start + 70)

    [found] = replicas.damage(segment)

    assert (found.start_position, found.end_position) == (start, start + second.batch_length)
    assert (found.start_offset, found.end_offset) == (second.base_offset, second.next_offset)
    assert "crc does not match" in found.reason


def test_a_search_on_disk_reads_the_disk_and_leaves_nothing_in_the_page_cache(tmp_path: Path) -> None:
    replicas = Replicas(tmp_path, {"segment.bytes": "4000000"}, large_batches)
    segment = replicas.view.segments[0]
    with segment.log_path.open("rb", buffering=0) as file:
        os.fsync(file.fileno())
        drop_from_page_cache(file.fileno(), 0, segment.size_bytes)
        if is_cached(file.fileno()):
            pytest.skip("this file system has no disk below its page cache")
        file.read()
        assert is_cached(file.fileno())
        before, read = disk_bytes_read(), []

        assert find_damage_on_disk(replicas.log.cleaning, segment, read.append) == []

        assert disk_bytes_read() - before >= segment.size_bytes
        assert sum(read) == segment.size_bytes
        assert not is_cached(file.fileno())


@pytest.mark.parametrize("missing_bytes", [1, 90, 700])
def test_a_read_past_the_end_of_a_cut_file_is_damage_that_can_be_repaired(directory: Path, missing_bytes: int) -> None:
    replicas = Replicas(directory, PLAIN, some_batches)
    segment = replicas.view.segments[1]
    whole = segment.log_path.read_bytes()
    with segment.log_path.open("r+b") as file:
        file.truncate(len(whole) - missing_bytes)

    with raises_code(ErrorCode.CORRUPT_BATCH):
        replicas.log.read(Offset(segment.next_offset - 1), end_offset=segment.next_offset, max_bytes=1 << 20)

    assert replicas.repair(segment, replicas.patches(replicas.damage(segment)))
    assert segment.log_path.read_bytes() == whole


@pytest.mark.parametrize("missing_bytes", [1, 90, 700])
def test_a_cleaning_ends_with_an_error_at_the_end_of_a_cut_file(directory: Path, missing_bytes: int) -> None:
    replicas = Replicas(directory, COMPACTED, compacted_batches)
    path = replicas.view.segments[0].log_path
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - missing_bytes)
    left = iter(range(1000))

    def pace(_: int) -> None:
        assert next(left, None) is not None, "the cleaner reads on without an end"

    with raises_code(ErrorCode.STORAGE_ERROR):
        clean_log(replicas.log, replicas.log.log_end_offset, CleanerSettings(), now_us=NOW_US, pace=pace)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_damaged_index_files_are_rewritten(directory: Path, suffix: str) -> None:
    replicas = Replicas(directory, {**PLAIN, "index.interval.bytes": "200"}, some_batches)
    segment = replicas.view.segments[1]
    paths = [segment.log_path.with_suffix(one) for one in (".index", ".timeindex")]
    whole = [path.read_bytes() for path in paths]
    path = segment.log_path.with_suffix(suffix)
    good = path.read_bytes()
    assert not replicas.log.cleaning.heal_index(segment)
    damages = [good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :] for at in range(len(good))]
    for number, damaged in enumerate([*damages, b"", good[:-1], None]):
        if damaged is None:
            path.unlink()
        else:
            path.write_bytes(damaged)
        if number % 2:
            segment.forget_index()

        assert replicas.log.cleaning.heal_index(segment), number

        assert [one.read_bytes() for one in paths] == whole, number


def test_the_index_of_a_deleted_segment_is_not_rewritten(directory: Path) -> None:
    replicas = Replicas(directory, PLAIN, some_batches)
    segment = replicas.view.segments[0]
    opened, path = replicas.log.cleaning.open(segment), segment.log_path
    replicas.log.trim(segment.next_offset)
    replicas.logs.checkpoint({PARTITION: replicas.log.log_end_offset})
    assert not path.exists()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(type(replicas.log.cleaning), "open", lambda *_: opened)

        assert not replicas.log.cleaning.heal_index(segment)

    assert not path.with_suffix(".index").exists()


def large_batches(log: PartitionLog) -> None:
    for _ in range(9):
        lead(log, make_batch(["x" * 1_000_000]), epoch=0)


def is_cached(descriptor: int) -> bool:
    try:
        return os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False


def disk_bytes_read() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


def test_a_damaged_header_ends_its_damage_at_the_next_index_entry(directory: Path) -> None:
    replicas = Replicas(directory, PLAIN, some_batches)
    segment = replicas.view.segments[1]
    size = parse_envelope(segment.log_path.read_bytes()).batch_length
    replicas.flip(segment, size + 17)  # batch_length of the second batch

    [found] = replicas.damage(segment)

    assert found.start_position == size
    assert found.end_position < size + 2 * 700, "index.interval.bytes and one batch"


def test_a_damaged_header_without_an_index_damages_the_rest_of_its_segment(directory: Path) -> None:
    replicas = Replicas(directory, PLAIN, some_batches)
    segment = replicas.view.segments[1]
    whole = segment.log_path.read_bytes()
    segment.remove_indexes()
    replicas.flip(segment, 17)

    [found] = replicas.damage(segment)

    assert (found.start_position, found.end_offset) == (0, segment.next_offset)
    assert replicas.repair(segment, replicas.patches([found]))
    assert segment.log_path.read_bytes() == whole


def test_a_range_without_a_good_copy_does_not_keep_the_others_damaged(directory: Path) -> None:
    replicas = Replicas(directory, PLAIN, some_batches)
    segment = replicas.view.segments[1]
    whole = bytearray(segment.log_path.read_bytes())
    size = parse_envelope(bytes(whole)).batch_length
    size += parse_envelope(bytes(whole), size).batch_length
    for byte in (70, size + 17, len(whole) - 30):  # a body, a header, a body
        replicas.flip(segment, byte)
    first, second, third = replicas.patches(replicas.damage(segment))

    assert replicas.repair(segment, [first, second._replace(batches=None), third])

    segment = replicas.view.segments[1]
    assert replicas.damage(segment) == [second.damaged]
    whole[size + 17] ^= 1
    assert segment.log_path.read_bytes() == bytes(whole)
    end = second.damaged.end_offset
    after = replicas.log.read(Offset(end), end_offset=segment.next_offset, max_bytes=1 << 20)
    assert after == bytes(whole)[second.damaged.end_position :], "a reader passes the damaged header"
    assert replicas.repair(segment, [second])
    assert replicas.damage(replicas.view.segments[1]) == []


def test_bytes_that_a_file_has_lost_stay_damage_where_no_replica_has_them(directory: Path) -> None:
    """Without them the segment would end earlier, and readers would treat the lost records as a hole."""
    replicas = Replicas(directory, PLAIN, some_batches)
    segment = replicas.view.segments[1]
    size = segment.size_bytes
    with segment.log_path.open("r+b") as file:
        file.truncate(size - 100)
    replicas.flip(segment, 70)
    first, last = replicas.patches(replicas.damage(segment))

    assert replicas.repair(segment, [first, last._replace(batches=None)])

    segment = replicas.view.segments[1]
    assert segment.size_bytes == segment.log_path.stat().st_size == size
    assert [one[:-1] for one in replicas.damage(segment)] == [last.damaged[:-1]]


def test_a_file_that_lost_its_end_is_damaged_to_its_end(directory: Path) -> None:
    replicas = Replicas(directory, PLAIN, some_batches)
    segment = replicas.view.segments[2]
    whole = segment.log_path.read_bytes()
    with segment.log_path.open("r+b") as file:
        file.truncate(len(whole) // 2)

    ranges = replicas.damage(segment)

    assert ranges[-1].end_offset == segment.next_offset
    assert replicas.repair(segment, replicas.patches(ranges))
    assert segment.log_path.read_bytes() == whole


def test_a_record_that_looks_like_a_batch_does_not_end_the_damage(directory: Path) -> None:
    """A damaged header hides the length of its batch, so the scan treats a record of the batch as the next batch."""

    def make(log: PartitionLog) -> None:
        some_batches(log)
        end = int(log.log_end_offset)
        inner = make_batch(["inner"])
        lead(log, inner, epoch=9)
        [stored] = check_batches(log.read(Offset(end), end_offset=end + 1, max_bytes=1 << 20) or b"")
        following = _moved(bytes(stored.data), end + 3)
        lead(log, _holding(following), make_batch(["a"]), make_batch(["b"]), make_batch(["c"]), epoch=9)
        for _ in range(80):
            lead(log, make_batch(["tail" * 10]), epoch=9)

    replicas = Replicas(directory, PLAIN, make)
    outer = next(one for one in batches_of(replicas.good) if b"inner" in one.data and one.envelope.batch_length > 700)
    segment = next(one for one in reversed(replicas.view.segments) if one.base_offset <= outer.envelope.base_offset)
    whole = segment.log_path.read_bytes()
    replicas.flip(segment, whole.index(bytes(outer.data)) + 17)  # batch_length

    ranges = replicas.damage(segment)

    [found] = ranges
    assert found.end_offset in [one.envelope.base_offset for one in batches_of(replicas.good)]
    assert found.end_offset >= outer.envelope.next_offset
    assert replicas.repair(segment, replicas.patches(ranges))
    assert segment.log_path.read_bytes() == whole


def _moved(data: bytes, base_offset: int) -> bytes:
    """A stored batch, at another offset."""
    head = base_offset.to_bytes(8, "little") + data[8:12]
    return head + header_crc(head, data[16:20]).to_bytes(4, "little") + data[16:]


def _holding(value: bytes) -> Batch:
    """Two records; the first has the value where a batch may start."""
    padding = b"\0" * 8
    data = bytes(build_batch(from_columns(None, [padding * 60 + value, b"second"], [1, 2])))
    at = data.index(value)
    if at % 8:  # a batch starts at a multiple of 8
        data = bytes(build_batch(from_columns(None, [padding * 60 + b"\0" * (8 - at % 8) + value, b"second"], [1, 2])))
    return Batch(parse_envelope(data), data)


def test_a_batch_of_another_offset_is_not_accepted(directory: Path) -> None:
    replicas = Replicas(directory, PLAIN, some_batches)
    segment = replicas.view.segments[1]
    replicas.flip(segment, 80)
    damaged_bytes = segment.log_path.read_bytes()
    [found] = replicas.damage(segment)
    others = [one for one in batches_of(replicas.good) if one.envelope.base_offset >= found.end_offset]

    with pytest.raises(NotJoined, match="does not continue"):
        replicas.repair(segment, [Patch(found, others[:1])])

    assert segment.log_path.read_bytes() == damaged_bytes
    assert not [name for name in replicas.view.path.iterdir() if name.suffix == ".cleaned"]


def test_a_log_that_was_truncated_meanwhile_is_not_changed(directory: Path) -> None:
    replicas = Replicas(directory, PLAIN, some_batches)
    view = replicas.view
    segment = view.segments[1]
    replicas.flip(segment, 80)
    patches = replicas.patches(replicas.damage(segment))
    replicas.log.truncate(Offset(segment.next_offset + 1))

    assert not replicas.repair(segment, patches, view)
    assert replicas.damage(segment)


def test_a_kill_at_any_operation_of_a_repair_leaves_the_damaged_or_the_repaired_segment(
    directory: Path, killer: Killer
) -> None:
    replicas = Replicas(directory, PLAIN, some_batches)
    segment = replicas.view.segments[2]
    whole = segment.log_path.read_bytes()
    replicas.flip(segment, 90)
    damaged = segment.log_path.read_bytes()
    patches = replicas.patches(replicas.damage(segment))
    image = directory / "image"
    seen: list[bytes] = []
    rows = rows_of(replicas.good)

    def look() -> None:
        shutil.rmtree(image, ignore_errors=True)
        shutil.copytree(replicas.path, image, ignore=shutil.ignore_patterns(".lock"))
        logs, log = replicas.open(image)
        found = next(one for one in log.segments.all if one.base_offset == segment.base_offset)
        seen.append(found.log_path.read_bytes())
        if seen[-1] == whole:
            assert rows_of(log) == rows
        logs.close()

    killer.each_point(lambda: replicas.repair(segment, patches), look)

    assert len(seen) > 4
    assert set(seen) == {damaged, whole}
    assert seen == sorted(seen, key=lambda one: one == whole), "no kill undoes a repair"


@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("number", [0, 1])
def test_batches_that_compaction_removed_from_the_other_replica_are_a_hole(
    directory: Path, number: int, with_index: bool
) -> None:
    replicas = Replicas(directory, COMPACTED, compacted_batches)
    segment = replicas.view.segments[number]
    whole = DamagedRange(segment.base_offset, 0, segment.size_bytes, segment.base_offset, segment.next_offset, "")
    [patch] = replicas.patches([whole])
    assert patch.batches is not None
    first = patch.batches[0]
    assert first.envelope.next_offset < segment.next_offset
    gone = range(first.envelope.next_offset, segment.next_offset)
    left = [row for row in rows_of(replicas.good) if row[0] not in gone]

    end = empty_batch(segment.next_offset - 1, first.envelope.leader_epoch)
    assert replicas.repair(segment, [patch._replace(batches=[first, end])])

    assert rows_of(replicas.log) == left
    if not with_index:
        for one in replicas.view.segments:
            one.remove_indexes()
    replicas.logs.close()
    _, reopened = replicas.open(replicas.path)
    assert rows_of(reopened) == left
    assert not reopened.is_damaged


def test_a_segment_never_becomes_empty(directory: Path) -> None:
    """A start treats an empty segment file as the start of an empty log."""
    replicas = Replicas(directory, COMPACTED, compacted_batches)
    segment = replicas.view.segments[0]
    whole = DamagedRange(segment.base_offset, 0, segment.size_bytes, segment.base_offset, segment.next_offset, "")

    with pytest.raises(NotJoined, match="no batch is left"):
        replicas.repair(segment, [Patch(whole, [])])
