# SPDX-License-Identifier: Apache-2.0
"""A log of typed batches: appends, searches by time, a torn tail, damage. None of these needs the schema."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tidemark.model import BrokerEpoch, Offset
from tidemark.ports import TimestampOffset
from tidemark.record.checks import check_batch
from tidemark.record.envelope import Batch, Codec, split_batches
from tidemark.record.typed.batch import build_typed_batch, read_typed
from tidemark.record.typed.layout import TypedLayout
from tidemark.storage.recovery.damage import valid_batches_in_file

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
    """Damage is no torn tail if a valid batch follows: also a typed one."""
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
