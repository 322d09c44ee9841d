# SPDX-License-Identifier: Apache-2.0
"""Records of rows: all, a slice, and none."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tidemark.client.records import ConsumerRecord, records_of
from tidemark.record.envelope import Batch, parse_envelope
from tidemark.record.payload import build_batch, counted_offsets, from_columns, with_offsets

KEYS = [b"a", None, b"", b"b"]
VALUES = [b"1", b"", None, b"\xff" * 50]
HEADERS = [[("one", b"1"), ("one", None)], None, {}, {"two": b"2"}]
RECORDS = [
    ConsumerRecord("t", 3, 0, -5, b"a", b"1", (("one", b"1"), ("one", None))),
    ConsumerRecord("t", 3, 1, 0, None, b"", ()),
    ConsumerRecord("t", 3, 2, 7, b"", None, ()),
    ConsumerRecord("t", 3, 3, 2**62, b"b", b"\xff" * 50, (("two", b"2"),)),
]


def rows() -> pa.RecordBatch:
    data = build_batch(from_columns(KEYS, VALUES, [one.timestamp_us for one in RECORDS], HEADERS))
    return with_offsets(Batch(parse_envelope(data), data))


@pytest.mark.parametrize(("first", "count"), [(0, 4), (1, 2), (3, 1), (2, 0), (4, 0)])
def test_records_are_those_of_the_rows(first: int, count: int) -> None:
    assert records_of("t", 3, rows().slice(first, count)) == RECORDS[first : first + count]


def test_rows_without_keys_and_headers_make_records_without_them() -> None:
    data = build_batch(from_columns(None, [b"1", b"2"], [7, 8]))
    found = records_of("t", 0, with_offsets(Batch(parse_envelope(data), data)))
    assert found == [ConsumerRecord("t", 0, 0, 7, None, b"1", ()), ConsumerRecord("t", 0, 1, 8, None, b"2", ())]


def test_a_table_without_rows_has_no_records() -> None:
    schema = rows().schema
    assert records_of("t", 0, pa.RecordBatch.from_pylist([], schema=schema)) == []
    numbers = pa.Array.from_buffers(pa.int64(), 0, [None, None])  # no memory at all
    columns = [
        numbers.view(one.type) if one.name in ("timestamp", "offset") else pa.nulls(0, one.type) for one in schema
    ]
    assert records_of("t", 0, pa.RecordBatch.from_arrays(columns, schema=schema)) == []


@pytest.mark.parametrize("count", [1, 1 << 14, (1 << 14) + 1])
@pytest.mark.parametrize("base_offset", [0, 2**40])
def test_offsets_of_a_batch_of_any_size_are_consecutive(count: int, base_offset: int) -> None:
    assert counted_offsets(base_offset, count).to_pylist() == list(range(base_offset, base_offset + count))
