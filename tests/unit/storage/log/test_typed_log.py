# SPDX-License-Identifier: Apache-2.0
"""A log of typed batches: appends, searches by time, a torn tail, damage. None of these needs the schema."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tidemark.model import BrokerEpoch, ErrorCode, Offset
from tidemark.ports import TimestampOffset
from tidemark.record.checks import check_batch
from tidemark.record.envelope import Batch, Codec, split_batches
from tidemark.record.typed.batch import build_typed_batch, read_typed
from tidemark.record.typed.column_table import HAS_TOMBSTONES
from tidemark.record.typed.layout import TypedLayout
from tidemark.record.typed.times import times_and_offsets
from tidemark.storage.log.cleaner import CleanerSettings, clean_log
from tidemark.storage.recovery.damage import valid_batches_in_file

from tests.refusals import raises_code
from tests.unit.storage.batches import IDENTITY, PARTITION, lead, memory_directory, open_one, read_all

AT = pa.field("at", pa.timestamp("us", "UTC"), nullable=False)
LAYOUT = TypedLayout(3, pa.schema([AT, pa.field("n", pa.int64())]), [1, 2], event_time="at")


@pytest.fixture
def path() -> Iterator[Path]:
    with memory_directory() as made:
        yield made / "log"


def batch(times_us: list[int], codec: Codec = Codec.NONE) -> Batch:
    times = pa.array(times_us, pa.int64()).view(AT.type)
    rows = pa.RecordBatch.from_arrays([times, pa.array(times_us, pa.int64())], schema=LAYOUT.schema)
    return check_batch(build_typed_batch(rows, LAYOUT, codec=codec))


@pytest.mark.parametrize("codec", list(Codec))
def test_a_search_by_time_finds_the_record_by_its_event_time(path: Path, codec: Codec) -> None:
    logs = open_one(path)
    log, _ = logs.open(PARTITION, IDENTITY, {})
    lead(log, batch([50, 10, 30], codec))
    lead(log, batch([20, 70], codec))
    end = log.log_end_offset
    assert log.offset_for_timestamp(20, end_offset=end) == TimestampOffset(50, Offset(0))
    assert log.offset_for_timestamp(51, end_offset=end) == TimestampOffset(70, Offset(4))
    assert log.max_timestamp(end_offset=end) == TimestampOffset(70, Offset(4))
    assert log.offset_for_timestamp(71, end_offset=end) is None
    logs.close()


def test_a_torn_tail_is_cut_and_whole_batches_stay(path: Path) -> None:
    logs = open_one(path)
    logs.confirm_registration(BrokerEpoch(1), "boot-1")
    log, _ = logs.open(PARTITION, IDENTITY, {})
    lead(log, batch([1, 2]), batch([3, 4]))
    logs.close()
    segment = max((path / str(PARTITION)).glob("*.log"))
    with segment.open("rb+") as file:
        file.truncate(segment.stat().st_size - 40)
    logs = open_one(path)
    log, recovered = logs.open(PARTITION, IDENTITY, {})
    assert recovered.log_end_offset == 2
    [left] = split_batches(read_all(log))
    assert read_typed(left, LAYOUT).columns.column("n").to_pylist() == [1, 2]
    logs.close()


def test_a_typed_batch_behind_damage_is_found(path: Path) -> None:
    """Damage is not a torn tail if a valid batch follows: also a typed one."""
    logs = open_one(path)
    log, _ = logs.open(PARTITION, IDENTITY, {})
    first = batch([1, 2])
    lead(log, first, batch([3, 4]))
    logs.close()
    segment = max((path / str(PARTITION)).glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[20] ^= 1
    segment.write_bytes(data)
    assert valid_batches_in_file(segment, at_least=0) == 4


KEYED = TypedLayout(
    1, pa.schema([pa.field("k", pa.string(), nullable=False), pa.field("n", pa.int64())]), [1, 2], key_columns=["k"]
)
WIDER = TypedLayout(
    2,
    pa.schema([pa.field("n", pa.int64()), pa.field("k", pa.string(), nullable=False), pa.field("note", pa.string())]),
    [2, 1, 3],
    key_columns=["k"],
)
LAYOUTS = {1: KEYED, 2: WIDER}


def keyed(rows: list[dict[str, Any]], codec: Codec, layout: TypedLayout = KEYED, flags: int = 0) -> Batch:
    made = pa.RecordBatch.from_pylist(rows, schema=layout.arrangement(flags).schema)
    return check_batch(build_typed_batch(made, layout, codec=codec, flags=flags))


@pytest.mark.parametrize("codec", list(Codec))
def test_cleaning_keeps_the_latest_row_of_each_key_across_versions(path: Path, codec: Codec) -> None:
    logs = open_one(path)
    log, _ = logs.open(PARTITION, IDENTITY, {"segment.bytes": "1000", "cleanup.policy": "compact"})
    lead(log, keyed([{"k": "a", "n": 1}, {"k": "b", "n": 2}, {"k": "c", "n": 3}], codec))
    lead(log, keyed([{"k": "a", "n": 4, "note": "second"}], codec, WIDER))
    gone = {"_deleted": True, "k": "c", "n": None}
    lead(log, keyed([gone], codec, flags=HAS_TOMBSTONES))
    lead(log, *(keyed([{"k": f"filler-{number}", "n": number}], codec) for number in range(9)))

    def clean(now_s: int) -> None:
        settings = CleanerSettings(delete_retention_ms=1000)
        clean_log(
            log,
            log.log_end_offset,
            settings,
            now_us=now_s * 1_000_000,
            pace=lambda _: None,
            layouts=LAYOUTS.__getitem__,
        )

    def whole() -> list[Batch]:
        found: list[Batch] = []
        while (offset := found[-1].envelope.next_offset if found else 0) < log.log_end_offset:
            found += split_batches(log.read(Offset(offset), end_offset=log.log_end_offset, max_bytes=1) or b"")
        return found

    def rows() -> list[tuple[int, str, int | None, bool]]:
        found: list[tuple[int, str, int | None, bool]] = []
        for one in whole():
            check_batch(one.data)
            read = read_typed(one, LAYOUTS[one.envelope.schema_version])
            deleted = [False] * len(read.offsets) if read.deleted is None else read.deleted.to_pylist()
            keys, numbers = (read.columns.column(name).to_pylist() for name in ("k", "n"))
            found += zip(read.offsets.to_pylist(), keys, numbers, deleted, strict=True)
        return [row for row in found if not row[1].startswith("filler")]

    clean(now_s=100)
    assert rows() == [(1, "b", 2, False), (3, "a", 4, False), (4, "c", None, True)]
    times, offsets = times_and_offsets(whole()[0])
    assert offsets.to_pylist() == [1]
    assert len(times) == 1
    lead(log, *(keyed([{"k": f"filler-{number}", "n": number}], codec) for number in range(9)))
    clean(now_s=200)
    assert rows() == [(1, "b", 2, False), (3, "a", 4, False)]
    logs.close()


def test_cleaning_waits_for_a_version_that_is_not_known(path: Path) -> None:
    logs = open_one(path)
    log, _ = logs.open(PARTITION, IDENTITY, {"segment.bytes": "500", "cleanup.policy": "compact"})
    for number in range(9):
        lead(log, keyed([{"k": "a", "n": number}], Codec.NONE))
    before = read_all(log)
    with raises_code(ErrorCode.UNKNOWN_SCHEMA_VERSION):
        clean_log(log, log.log_end_offset, CleanerSettings(), now_us=10**12, pace=lambda _: None)
    assert read_all(log) == before
    logs.close()
