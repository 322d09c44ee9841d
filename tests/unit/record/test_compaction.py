# SPDX-License-Identifier: Apache-2.0
"""Compaction of batches against a plain dict: kept and removed records, and unchanged fields."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from tidemark.record.checks import check_batch
from tidemark.record.compaction import ENTRY_BYTES, CleaningRule, Decoded, KeyOffsets, compact, decode, no_layouts
from tidemark.record.envelope import Attributes, Batch, Codec, stamped
from tidemark.record.payload import build_batch, from_columns, with_offsets

HORIZON_S = 5_000
NOW_S = 1_000
UNTOUCHED = ("leader_epoch", "last_offset_delta", "base_sequence", "producer_id", "producer_epoch", "max_timestamp_us")
Row = tuple[int, bytes | None, bytes | None]


def batch_of(
    base: int, records: list[tuple[bytes | None, bytes | None]], *, codec: Codec = Codec.NONE, producer_id: int = -1
) -> Batch:
    rows = from_columns(
        [key for key, _ in records],
        [value for _, value in records],
        [1_000_000 * (base + number) for number in range(len(records))],
        [[("n", str(base + number).encode())] if number % 3 else None for number in range(len(records))],
    )
    epoch = 7 if producer_id >= 0 else -1
    data = build_batch(rows, codec=codec, producer_id=producer_id, producer_epoch=epoch, base_sequence=min(epoch, 0))
    built = check_batch(bytes(data))
    return stamped(built, base_offset=base, leader_epoch=2)


def random_log(rng: random.Random) -> list[Batch]:
    batches, base = [], rng.randrange(100)
    keys = [b"", b"\x00", *(b"k%d" % number for number in range(rng.choice((1, 5, 40))))]
    for _ in range(rng.randrange(1, 12)):
        records: list[tuple[bytes | None, bytes | None]] = []
        for _ in range(rng.randrange(1, 20)):
            key = None if rng.random() < 0.05 else rng.choice(keys)
            records.append((key, None if rng.random() < 0.2 else b"v%d" % rng.randrange(1 << 30)))
        batch = batch_of(base, records, codec=rng.choice(list(Codec)), producer_id=rng.choice((-1, 3)))
        batches.append(batch)
        base = batch.envelope.next_offset + rng.choice((0, 0, 4))
    return batches


def rows_of(batches: list[Batch]) -> list[Row]:
    found: list[Row] = []
    for batch in batches:
        rows = with_offsets(check_batch(batch.data))
        columns = (rows.column(name).to_pylist() for name in ("offset", "key", "value"))
        found += zip(*columns, strict=True)
    return found


def decoded(batches: list[Batch]) -> list[Decoded]:
    return [decode(batch, no_layouts) for batch in batches]


def clean(
    batches: list[Batch], *, end: int, now_s: int = NOW_S, kept: frozenset[int] = frozenset(), each: int = 3
) -> list[Batch]:
    latest = KeyOffsets(1 << 30)
    dirty = [batch for batch in batches if batch.envelope.next_offset <= end]
    for start in range(0, len(dirty), each):
        some = dirty[start : start + each]
        assert latest.add(decoded(some))
    cleaned: list[Batch] = []
    for start in range(0, len(batches), each):
        some = batches[start : start + each]
        rule = CleaningRule(end_offset=end, now_s=now_s, delete_horizon_s=HORIZON_S, kept=kept)
        cleaned += [check_batch(data) for data in compact(decoded(some), latest, rule) if data is not None]
    return cleaned


def expected_rows(batches: list[Batch], end: int) -> list[Row]:
    latest = {key: offset for offset, key, _ in rows_of(batches) if offset < end and key is not None}
    return [row for row in rows_of(batches) if row[1] is None or row[0] >= latest.get(row[1], 0)]


@pytest.mark.parametrize("seed", range(60))
def test_the_latest_record_of_each_key_stays_where_it_was(seed: int) -> None:
    rng = random.Random(seed)
    batches = random_log(rng)
    end = rng.choice(batches).envelope.next_offset
    kept = frozenset(batch.envelope.base_offset for batch in batches if rng.random() < 0.2)

    cleaned = clean(batches, end=end, kept=kept)

    assert rows_of(cleaned) == expected_rows(batches, end)
    assert kept <= {batch.envelope.base_offset for batch in cleaned}
    assert rows_of(clean(cleaned, end=end, kept=kept)) == rows_of(cleaned), "a second cleaning finds nothing"
    before = {batch.envelope.base_offset: batch for batch in batches}
    for batch in cleaned:
        was = before[batch.envelope.base_offset].envelope
        for name in UNTOUCHED:
            assert getattr(batch.envelope, name) == getattr(was, name), name


@pytest.mark.parametrize("seed", range(20))
def test_kept_records_keep_their_headers_and_timestamps(seed: int) -> None:
    batches = random_log(random.Random(seed))
    end = batches[-1].envelope.next_offset
    before = {row["offset"]: row for batch in batches for row in with_offsets(batch).to_pylist()}
    for batch in clean(batches, end=end):
        for row in with_offsets(batch).to_pylist():
            assert row == before[row["offset"]]


def test_a_batch_that_keeps_all_records_keeps_its_bytes() -> None:
    batch = batch_of(10, [(b"a", b"1"), (b"b", b"2")])
    assert clean([batch], end=12)[0].data is batch.data


def test_a_tombstone_is_deleted_after_its_horizon() -> None:
    log = [batch_of(0, [(b"a", b"1"), (b"b", b"1")]), batch_of(2, [(b"a", None)])]
    once = clean(log, end=3)
    assert rows_of(once) == [(1, b"b", b"1"), (2, b"a", None)]
    assert once[1].envelope.delete_horizon_s == HORIZON_S
    assert once[1].envelope.has_delete_horizon
    assert not once[0].envelope.has_delete_horizon

    later = clean(once, end=3, now_s=HORIZON_S - 1)
    assert [batch.data for batch in later] == [batch.data for batch in once], "the horizon is set once"

    last = clean(once, end=3, now_s=HORIZON_S, kept=frozenset({2}))
    assert rows_of(last) == [(1, b"b", b"1")]
    assert last[1].envelope.record_count == 0
    assert last[1].envelope.attributes == Attributes.COMPACTED
    assert rows_of(clean(last, end=3, now_s=HORIZON_S)) == [(1, b"b", b"1")]


def test_a_tombstone_past_the_cleaned_offset_gets_no_horizon() -> None:
    """Records that it deletes may still be there after the horizon."""
    log = [batch_of(0, [(b"a", b"1")]), batch_of(1, [(b"a", None)])]
    cleaned = clean(log, end=1)
    assert [batch.data for batch in cleaned] == [batch.data for batch in log]


def test_a_tombstone_past_the_cleaned_offset_stays_after_its_horizon() -> None:
    """A follower gets cleaned batches from its leader, and may still hold the records that they delete."""
    tombstone = clean([batch_of(1, [(b"a", None)])], end=2)[0]
    assert tombstone.envelope.has_delete_horizon
    log = [batch_of(0, [(b"a", b"1")]), tombstone]
    assert rows_of(clean(log, end=1, now_s=HORIZON_S)) == rows_of(log)
    assert rows_of(clean(log, end=2, now_s=HORIZON_S)) == []


def test_a_batch_without_records_is_dropped_unless_kept() -> None:
    log = [batch_of(0, [(b"a", b"1")], producer_id=3), batch_of(1, [(b"a", b"2")], producer_id=3)]
    assert [batch.envelope.base_offset for batch in clean(log, end=2)] == [1]
    kept = clean(log, end=2, kept=frozenset({0}))
    assert [batch.envelope.record_count for batch in kept] == [0, 1]
    assert kept[0].envelope.producer_id == 3
    assert kept[0].envelope.next_offset == 1


def test_a_full_map_refuses_additions_and_keeps_its_keys() -> None:
    some = [batch_of(base, [(b"key-%d" % (base + n), b"") for n in range(10)]) for base in range(0, 1000, 10)]
    latest = KeyOffsets(20_000)
    taken = 0
    for batch in some:
        if not latest.add(decoded([batch])):
            break
        taken += 1
    assert 0 < taken < len(some)
    assert len(latest) == 10 * taken
    assert latest.size_bytes <= 20_000


def test_a_map_always_takes_known_keys() -> None:
    latest = KeyOffsets(20_000)
    for base in range(0, 5000, 10):
        batch = batch_of(base, [(b"key-%d" % n, b"") for n in range(10)])
        assert latest.add(decoded([batch]))
    assert len(latest) == 10


def test_a_first_batch_larger_than_the_map_is_added() -> None:
    batch = batch_of(0, [(b"key-%d" % n, b"") for n in range(100)])
    latest = KeyOffsets(1)
    assert latest.add(decoded([batch]))
    assert not latest.add(decoded([batch])) or len(latest) == 100


@pytest.mark.parametrize("seed", range(20))
def test_a_bounded_map_is_a_dict_that_takes_additions_whole_or_not(seed: int) -> None:
    rng = random.Random(seed)
    max_bytes = rng.choice((300, 700, 2000))
    keys = [b"k%d" % number * rng.randrange(1, 4) for number in range(rng.choice((3, 12, 40)))]
    latest, known = KeyOffsets(max_bytes), dict[bytes, int]()

    def least(of: dict[bytes, int]) -> int:
        return sum(len(key) + 4 + 8 + ENTRY_BYTES for key in of)

    def most(of: dict[bytes, int]) -> int:
        return least(of) + len(of) + 8

    base = 0
    for _ in range(30):
        chosen = [rng.choice(keys) for _ in range(rng.randrange(1, 4))]
        batch = batch_of(base, [(key, b"v") for key in chosen])
        together = known | {key: base + number for number, key in enumerate(chosen)}
        took = latest.add(decoded([batch]))
        if took:
            assert not known or least(together) <= max_bytes
            known = together
        else:
            assert most(together) > max_bytes or most(known) > 0.75 * max_bytes
        if known:
            assert latest.size_bytes <= max(max_bytes, most(known))
        if rng.random() < 0.3:
            assert len(latest) == len(known)
            assert least(known) <= latest.size_bytes <= most(known)
        base = batch.envelope.next_offset
    found = latest.of(pa.chunked_array([pa.array([*keys, None], pa.binary())])).to_pylist()
    assert found == [*(known.get(key) for key in keys), None]


def test_an_empty_map_finds_no_key() -> None:
    latest = KeyOffsets(100)
    assert (len(latest), latest.size_bytes) == (0, 0)
    assert latest.of(pa.chunked_array([pa.array([b"k"], pa.binary())])).to_pylist() == [None]
