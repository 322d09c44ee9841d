# SPDX-License-Identifier: Apache-2.0
"""The cleaner against a plain dict: random logs, reads, reopening, producers, epochs, concurrent truncations."""

from __future__ import annotations

import random
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tidemark.model import Offset
from tidemark.record.envelope import Batch, Codec, parse_envelope
from tidemark.record.payload import build_batch, from_columns, with_offsets
from tidemark.storage.directories.log_manager import LogManager
from tidemark.storage.log.cleaner import CleanerSettings, CleaningDone, clean_log, dirt_of
from tidemark.storage.log.partition_log import PartitionLog
from tidemark.storage.recovery.cleaner_point import read_clean_point
from tidemark.storage.recovery.log_loader import segment_offsets

from tests.unit.storage.batches import IDENTITY, PARTITION, checked, latest_epoch, lead, open_one

CONFIGS = {"segment.bytes": "4096", "index.interval.bytes": "700", "cleanup.policy": "compact"}
NOW_US = 10_000_000_000
Row = tuple[int, bytes | None, bytes | None]


def keyed(rows: list[tuple[bytes | None, bytes | None]], *, codec: Codec = Codec.NONE, **producer: Any) -> Batch:
    columns = from_columns([key for key, _ in rows], [value for _, value in rows], list(range(len(rows))))
    data = bytes(build_batch(columns, codec=codec, **producer))
    return Batch(parse_envelope(data), data)


def fill(log: PartitionLog, rng: random.Random, batches: int, *, keys: int = 30) -> None:
    """Random batches of some producers and epochs, with some tombstones and records without a key."""
    sequences: dict[int, int] = {}
    epoch = max(0, latest_epoch(log))
    for _ in range(batches):
        epoch += rng.random() < 0.05
        records: list[tuple[bytes | None, bytes | None]] = []
        for _ in range(rng.randrange(1, 12)):
            key = None if rng.random() < 0.02 else b"key-%d" % rng.randrange(keys)
            records.append((key, None if rng.random() < 0.1 else rng.randbytes(rng.randrange(40))))
        producer = rng.choice((-1, 1, 2, 3))
        sequence = sequences.get(producer, 0)
        sequences[producer] = sequence + len(records)
        named = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence} if producer > 0 else {}
        lead(log, keyed(records, codec=rng.choice(list(Codec)), **named), epoch=epoch)


def batches_of(log: PartitionLog) -> list[Batch]:
    """Every batch, in order; there may be holes between them."""
    found: list[Batch] = []
    offset, end = log.log_start_offset, log.log_end_offset
    while offset < end:
        data = log.read(offset, end_offset=end, max_bytes=1 << 20)
        assert data, f"nothing at {offset} of a log that ends at {end}"
        found += checked(data)
        assert found[-1].envelope.next_offset > offset
        offset = Offset(found[-1].envelope.next_offset)
    offsets = [batch.envelope.base_offset for batch in found]
    assert offsets == sorted(set(offsets)), "each batch comes once"
    return found


def rows_of(log: PartitionLog) -> list[Row]:
    found: list[Row] = []
    for batch in batches_of(log):
        found += _rows_in(bytes(batch.data))
    return found


@lru_cache(maxsize=1 << 10)
def _rows_in(data: bytes) -> tuple[Row, ...]:
    rows = with_offsets(Batch(parse_envelope(data), data))
    columns = (rows.column(name).to_pylist() for name in ("offset", "key", "value"))
    return tuple(zip(*columns, strict=True))


def latest_of(rows: list[Row], *, below: int) -> list[Row]:
    """The rows after a cleaning of everything below that offset."""
    latest = {key: offset for offset, key, _ in rows if offset < below and key is not None}
    return [row for row in rows if row[1] is None or row[0] >= latest.get(row[1], 0)]


def opened(path: Path, configs: dict[str, str] = CONFIGS) -> tuple[LogManager, PartitionLog]:
    logs = open_one(path)
    return logs, logs.open(PARTITION, IDENTITY, configs)[0]


def clean(log: PartitionLog, settings: CleanerSettings | None = None, *, upto: int | None = None) -> CleaningDone:
    high_watermark = log.log_end_offset if upto is None else upto
    return clean_log(log, high_watermark, settings or CleanerSettings(), now_us=NOW_US, pace=lambda _: None)


def cleanable_end(log: PartitionLog, high_watermark: int) -> int:
    view = log.cleaning.view(high_watermark)
    assert view is not None
    return view.segments[-1].next_offset if view.segments else 0


def test_small_neighbours_are_merged_into_one_segment(directory: Path) -> None:
    logs, log = opened(directory)
    fill(log, random.Random(1), 300, keys=2)
    count = len(segment_offsets(directory / str(PARTITION)))
    clean(log)
    clean(log)
    assert len(segment_offsets(directory / str(PARTITION))) < count / 2
    logs.close()


def test_the_active_segment_and_records_above_the_high_watermark_are_not_cleaned(directory: Path) -> None:
    logs, log = opened(directory)
    fill(log, random.Random(2), 40, keys=1)
    before = batches_of(log)
    assert clean(log, upto=0).passes == 1
    assert batches_of(log) == before
    view = log.cleaning.view(int(log.log_end_offset))
    assert view is not None
    assert view.segments[-1].next_offset < log.log_end_offset
    logs.close()


def test_young_records_wait_for_min_compaction_lag(directory: Path) -> None:
    logs, log = opened(directory)
    fill(log, random.Random(3), 60)
    view = log.cleaning.view(int(log.log_end_offset))
    assert view is not None
    lagging = CleanerSettings(min_compaction_lag_ms=1000)
    assert dirt_of(view, lagging, now_us=1_000_005).dirty_bytes == 0
    everything = dirt_of(view, lagging, now_us=NOW_US)
    assert everything.ratio == 1.0
    assert everything.end_offset == view.segments[-1].next_offset
    clean(log)
    view = log.cleaning.view(int(log.log_end_offset))
    assert view is not None
    assert dirt_of(view, lagging, now_us=NOW_US).ratio == 0.0
    logs.close()


def test_tombstones_are_deleted_after_their_horizon(directory: Path) -> None:
    logs, log = opened(directory)
    for number in range(40):
        lead(log, keyed([(b"a", b"x" * 300), (b"b", b"y" * number)]))
    lead(log, keyed([(b"a", None)]))
    for _ in range(20):
        lead(log, keyed([(b"c", b"z" * 300)]))
    settings = CleanerSettings(delete_retention_ms=5_000)
    done = clean(log, settings)
    assert (b"a", None) in [row[1:] for row in rows_of(log)]
    assert done.earliest_horizon_s == NOW_US // 1_000_000 + 5
    clean_log(log, log.log_end_offset, settings, now_us=NOW_US + 4_999_999, pace=lambda _: None)
    assert (b"a", None) in [row[1:] for row in rows_of(log)]
    clean_log(log, log.log_end_offset, settings, now_us=NOW_US + 5_000_000, pace=lambda _: None)
    assert b"a" not in [key for _, key, _ in rows_of(log)]
    assert b"b" in [key for _, key, _ in rows_of(log)]
    logs.close()


def test_a_cleaning_ends_when_the_log_is_truncated_meanwhile(directory: Path) -> None:
    logs, log = opened(directory)
    fill(log, random.Random(4), 120)
    end = cleanable_end(log, int(log.log_end_offset)) // 2
    expected = [row for row in rows_of(log) if row[0] < end]
    cut: list[int] = []

    def cut_once(_: int) -> None:
        if not cut:
            cut.append(end)
            log.truncate(Offset(end))

    clean_log(log, log.log_end_offset, CleanerSettings(io_buffer_bytes=1), now_us=NOW_US, pace=cut_once)
    left = rows_of(log)
    assert set(left) <= set(expected)
    assert read_clean_point(directory / str(PARTITION)).offset <= log.log_end_offset
    assert not list((directory / str(PARTITION)).glob("*.cleaned"))
    fill(log, random.Random(5), 120)
    before = rows_of(log)
    clean(log)
    assert rows_of(log) == latest_of(before, below=cleanable_end(log, int(log.log_end_offset)))
    logs.close()


@pytest.mark.parametrize("what", ["close", "reset"])
def test_a_cleaning_ends_without_an_error_when_the_log_is_closed(directory: Path, what: str) -> None:
    logs, log = opened(directory)
    fill(log, random.Random(6), 120)
    ended: list[int] = []

    def end_it(_: int) -> None:
        if not ended:
            ended.append(1)
            if what == "close":
                log.close()
            else:
                log.reset(Offset(5))

    assert (
        clean_log(log, log.log_end_offset, CleanerSettings(io_buffer_bytes=1), now_us=NOW_US, pace=end_it).passes <= 1
    )
    assert not list((directory / str(PARTITION)).glob("*.cleaned"))
    assert read_clean_point(directory / str(PARTITION)).offset == 0
    logs.close()


def test_a_truncation_below_the_clean_point_lowers_the_point(directory: Path) -> None:
    logs, log = opened(directory)
    fill(log, random.Random(7), 120)
    point = clean(log).clean_point
    log.truncate(Offset(point // 2))
    assert read_clean_point(directory / str(PARTITION)).offset <= log.log_end_offset <= point // 2
    fill(log, random.Random(8), 200)
    logs.close()
    logs, log = opened(directory)
    assert read_clean_point(directory / str(PARTITION)).offset <= point // 2
    logs.close()


def test_offsets_are_found_by_time_in_a_cleaned_log(directory: Path) -> None:
    logs, log = opened(directory)
    for number in range(60):
        rows = from_columns([b"a", b"b"], [b"v" * 200, b"w" * 200], [2 * number, 2 * number + 1])
        data = bytes(build_batch(rows))
        lead(log, Batch(parse_envelope(data), data))
    newest = from_columns([b"late"], [b"v" * 300], [1_000_000])
    lead(log, Batch(parse_envelope(bytes(build_batch(newest))), bytes(build_batch(newest))))
    for number in range(60, 120):
        rows = from_columns([b"late", b"b"], [b"v" * 200, b"w" * 200], [2 * number, 2 * number + 1])
        data = bytes(build_batch(rows))
        lead(log, Batch(parse_envelope(data), data))
    clean(log)
    end = log.log_end_offset
    times: dict[int, int] = {}
    for batch in batches_of(log):
        rows = with_offsets(batch)
        in_us = rows.column("timestamp").cast(pa.int64())
        times |= {int(str(offset)): int(str(at)) for offset, at in zip(rows.column("offset"), in_us, strict=True)}
    for wanted in range(0, 240, 7):
        found = log.offset_for_timestamp(wanted, end_offset=end)
        assert found is not None
        assert found.offset == min(offset for offset, time in times.items() if time >= wanted)
    top = log.max_timestamp(end_offset=end)
    assert top is not None
    assert top.timestamp_us == max(times.values()) < 1_000_000
    assert top.offset == min(offset for offset, time in times.items() if time == top.timestamp_us)
    logs.close()
