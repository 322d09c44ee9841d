# SPDX-License-Identifier: Apache-2.0
"""Rows in and out of batches: every codec, offsets, append time, compacted batches, resealing."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark.model import ErrorCode
from tidemark.record.checks import check_batch
from tidemark.record.envelope import ENVELOPE_BYTES, Attributes, Batch, Codec, parse_envelope, stamped, with_append_time
from tidemark.record.payload import (
    OFFSET_SCHEMA,
    SCHEMA,
    CountedOffsets,
    build_batch,
    build_own_batch,
    from_columns,
    read_batch,
    reseal,
    with_offsets,
)
from tidemark.record.schema import HEADERS_TYPE

from tests.refusals import raises_code
from tests.unit.record.samples import NOON_US, body_start, compacted_sample, sample, three_records

CODECS = list(Codec)


@pytest.mark.parametrize("codec", CODECS)
def test_rows_read_back_equal(codec: Codec) -> None:
    rows = three_records()
    batch = check_batch(build_batch(rows, codec=codec))
    assert read_batch(batch).equals(rows)
    assert batch.envelope.codec == codec


@pytest.mark.parametrize("codec", CODECS)
def test_a_slice_of_rows_has_only_its_own_data(codec: Codec) -> None:
    rows = from_columns(None, [b"%d" % i for i in range(1000)], list(range(1000)))
    data = build_batch(rows.slice(500, 3), codec=codec)
    assert len(data) < 1200
    assert read_batch(check_batch(data)).column(1).to_pylist() == [b"500", b"501", b"502"]


def test_the_envelope_of_a_produced_batch_has_its_figures() -> None:
    envelope = parse_envelope(build_batch(three_records(), producer_id=5, producer_epoch=2, base_sequence=70))
    assert (envelope.base_offset, envelope.leader_epoch) == (0, -1)
    assert (envelope.record_count, envelope.last_offset_delta) == (3, 2)
    assert envelope.max_timestamp_us == NOON_US + 5
    assert (envelope.producer_id, envelope.producer_epoch, envelope.base_sequence) == (5, 2, 70)
    assert envelope.attributes == 0


def test_a_control_batch_has_its_attribute() -> None:
    envelope = parse_envelope(build_own_batch([b"key"], [b"value"], NOON_US, attributes=Attributes.CONTROL))
    assert envelope.is_control
    assert envelope.attributes == Attributes.CONTROL


@pytest.mark.parametrize("count", range(1, 10))
def test_every_batch_is_a_multiple_of_eight_long(count: int) -> None:
    assert len(build_batch(from_columns(None, [b"x" * count], [1]), codec=Codec.LZ4)) % 8 == 0


def test_uncompressed_rows_are_views_of_the_batch() -> None:
    batch = check_batch(sample())
    start = pa.py_buffer(batch.data).address
    values = read_batch(batch).column(1).buffers()[2]
    assert values is not None
    assert start + body_start(batch.data) <= values.address < start + len(batch.data)


def test_offsets_count_up_from_the_base_offset() -> None:
    batch = stamped(check_batch(sample()), base_offset=41, leader_epoch=2)
    rows = with_offsets(batch)
    assert rows.schema == OFFSET_SCHEMA
    assert rows.column("offset").to_pylist() == [41, 42, 43]
    assert rows.select(SCHEMA.names).equals(three_records())


@pytest.mark.parametrize("codec", CODECS)
def test_compacted_rows_keep_their_offsets(codec: Codec) -> None:
    batch = check_batch(compacted_sample(codec))
    assert batch.envelope.next_offset == 110
    assert with_offsets(batch).column("offset").to_pylist() == [101, 104, 107]


@settings(deadline=None)
@given(batches=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3_000)), min_size=1, max_size=9))
def test_offsets_that_are_counted_for_several_batches_are_those_of_each_batch(batches: list[tuple[int, int]]) -> None:
    counted, base_offset = CountedOffsets(), 5
    for hole, count in batches:
        base_offset += hole
        assert counted.of(base_offset, count).to_pylist() == list(range(base_offset, base_offset + count))
        base_offset += count
    assert counted.of(2, 3).to_pylist() == [2, 3, 4], "a read that goes back"


def test_append_time_is_every_records_timestamp() -> None:
    batch = with_append_time(check_batch(sample()), timestamp_us=NOON_US + 77)
    assert with_offsets(batch).column("timestamp").cast(pa.int64()).to_pylist() == [NOON_US + 77] * 3
    assert read_batch(batch).column("timestamp").cast(pa.int64()).to_pylist()[0] == NOON_US


@pytest.mark.parametrize("codec", CODECS)
def test_an_empty_compacted_batch_has_no_rows_and_keeps_its_offsets(codec: Codec) -> None:
    batch = check_batch(compacted_sample(codec, deltas=()))
    assert with_offsets(batch).num_rows == 0
    assert batch.envelope.record_count == 0
    assert batch.envelope.next_offset == 110


def test_columns_of_nulls_cost_no_data() -> None:
    timestamps = from_columns(None, [b""] * 1000, [1] * 1000).column(2)
    rows = pa.RecordBatch.from_arrays(
        [pa.nulls(1000, pa.binary()), pa.nulls(1000, pa.binary()), timestamps, pa.nulls(1000, HEADERS_TYPE)],
        schema=SCHEMA,
    )
    data = build_batch(rows)
    bitmaps, offset_buffers, timestamp_buffer = 3 * 128, 3 * 4008, 8000
    assert len(data) < bitmaps + offset_buffers + timestamp_buffer + 700
    assert read_batch(check_batch(data)).equals(rows)


def test_columns_become_rows() -> None:
    rows = from_columns([b"k", None], [None, b"v"], [1, 2], [{"a": b"1", "b": None}, None])
    assert rows.schema == SCHEMA
    assert rows.column("key").to_pylist() == [b"k", None]
    assert rows.column("value").to_pylist() == [None, b"v"]
    assert rows.column("timestamp").cast(pa.int64()).to_pylist() == [1, 2]
    assert rows.column("headers").to_pylist() == [[("a", b"1"), ("b", None)], None]


@pytest.mark.parametrize(
    ("keys", "values", "timestamps_us"),
    [([b"k"], [b"a", b"b"], [1, 2]), (None, [b"a"], []), (None, [3.5], [1]), (None, [b"a"], ["soon"])],
    ids=["too few keys", "no timestamp", "a value that is not bytes", "a timestamp that is not a number"],
)
def test_inconsistent_columns_are_refused(keys: object, values: object, timestamps_us: object) -> None:
    with raises_code(ErrorCode.INVALID_PAYLOAD):
        from_columns(keys, values, timestamps_us)  # type: ignore[arg-type]


def test_a_batch_of_no_records_is_refused() -> None:
    with raises_code(ErrorCode.INVALID_BATCH):
        build_batch(from_columns(None, [], []))


def test_rows_of_another_schema_are_refused() -> None:
    with raises_code(ErrorCode.INVALID_PAYLOAD):
        build_batch(three_records().select(["key", "value"]))


def test_a_record_without_a_timestamp_is_refused() -> None:
    rows = from_columns(None, [b"v"], [None])  # type: ignore[list-item]
    with raises_code(ErrorCode.INVALID_PAYLOAD, "timestamp"):
        build_batch(rows)


@pytest.mark.parametrize("codec", CODECS)
def test_resealing_gives_the_bytes_that_building_would_have(codec: Codec) -> None:
    expected = build_batch(three_records(), codec=codec, producer_id=9, producer_epoch=1, base_sequence=12)
    assert reseal(sample(codec), producer_id=9, producer_epoch=1, base_sequence=12) == expected


def test_reading_checks_the_crc_first() -> None:
    data = bytearray(sample())
    data[-20] ^= 1
    with raises_code(ErrorCode.CORRUPT_BATCH):
        read_batch(Batch(parse_envelope(bytes(data)), bytes(data)))


def test_the_payload_is_one_arrow_ipc_message() -> None:
    message = pa.ipc.read_message(pa.py_buffer(sample()).slice(ENVELOPE_BYTES))
    assert message.type == "record batch"
    assert pa.ipc.read_record_batch(message, SCHEMA).equals(three_records())


def test_importing_it_does_not_import_pandas() -> None:
    """The import would cost every broker half a second at start, and 37 MB."""
    asking = "import sys, tidemark.record.payload; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asking], check=False).returncode == 0


@given(
    st.lists(st.tuples(st.binary(max_size=20), st.one_of(st.none(), st.binary(max_size=20))), min_size=1, max_size=70)
)
@settings(deadline=None)
def test_a_batch_of_a_service_equals_that_of_a_producer(pairs: list[tuple[bytes, bytes | None]]) -> None:
    keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    made = build_own_batch(keys, values, NOON_US, producer_id=7, producer_epoch=3, attributes=Attributes.PENDING)
    rows = from_columns(keys, values, [NOON_US] * len(keys))
    read = read_batch(check_batch(made))
    read.validate(full=True)
    assert read.equals(rows)
    produced = build_batch(rows, producer_id=7, producer_epoch=3, pending=True)
    assert parse_envelope(made)._replace(batch_length=0, crc=0, header_crc=0) == parse_envelope(produced)._replace(
        batch_length=0, crc=0, header_crc=0
    )


def test_a_service_writes_its_records_without_importing_pandas() -> None:
    program = (
        "import sys; from tidemark.record.payload import build_own_batch; "
        "build_own_batch([b'k'], [None], 1); sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
