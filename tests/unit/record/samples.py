# SPDX-License-Identifier: Apache-2.0
"""Sample batches of these tests, and functions to damage them."""

from __future__ import annotations

import struct

import pyarrow as pa
from tidemark.record.envelope import ENVELOPE_BYTES, Attributes, Batch, Codec, parse_envelope, seal
from tidemark.record.payload import COMPACTED_SCHEMA, build_batch, encode_rows, from_columns

NOON_US = 1_700_000_000_000_000
METADATA_AT = ENVELOPE_BYTES + 8


def three_records() -> pa.RecordBatch:
    return from_columns(
        [b"carrier-AA", None, b"carrier-UA"],
        [b"first", b"second", None],
        [NOON_US, NOON_US + 5, NOON_US + 2],
        [[("source", b"test"), ("source", None)], None, []],
    )


def sample(codec: Codec = Codec.NONE) -> bytes:
    return build_batch(three_records(), codec=codec)


def compacted_sample(codec: Codec = Codec.NONE, deltas: tuple[int, ...] = (1, 4, 7), last: int = 9) -> bytes:
    """A cleaned batch of ten records from offset 100: those at 101, 104 and 107 remain."""
    rows = three_records().slice(0, len(deltas))
    rows = pa.RecordBatch.from_arrays([*rows.columns, pa.array(deltas, pa.uint32())], schema=COMPACTED_SCHEMA)
    envelope = parse_envelope(sample())._replace(
        base_offset=100,
        leader_epoch=3,
        codec=codec,
        attributes=int(Attributes.COMPACTED | Attributes.DELETE_HORIZON),
        delete_horizon_s=1_800_000_000,
        record_count=len(deltas),
        last_offset_delta=last,
    )
    return seal(envelope, encode_rows(rows, codec))


def with_fields(data: bytes, **fields: int) -> bytes:
    """The batch with other envelope fields and valid CRCs."""
    return seal(parse_envelope(data)._replace(**fields), data[ENVELOPE_BYTES:])


def resealed(data: bytes) -> bytes:
    """Damaged bytes under valid CRCs, as from a faulty writer. The length is that of the bytes."""
    return seal(parse_envelope(data), data[ENVELOPE_BYTES:])


def with_payload(data: bytes, payload: bytes) -> bytes:
    return seal(parse_envelope(data), payload)


def patched(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def body_start(data: bytes) -> int:
    size: int = struct.unpack_from("<i", data, ENVELOPE_BYTES + 4)[0]
    return METADATA_AT + size


def vector_at(data: bytes, field: int) -> int:
    """Byte offset of the first element of RecordBatch field 1 (nodes) or 2 (buffers)."""
    return _pointed(data, _field(data, _header(data), field)) + 4


def header_field_at(data: bytes, field: int) -> int:
    return _field(data, _header(data), field)


def message_field_at(data: bytes, field: int) -> int:
    return _field(data, _pointed(data, METADATA_AT), field)


def compression_field_at(data: bytes, field: int) -> int:
    return _field(data, _pointed(data, header_field_at(data, 3)), field)


def buffer_at(data: bytes, index: int) -> tuple[int, int]:
    """Byte offset in the batch and size of a buffer."""
    offset, size = struct.unpack_from("<qq", data, vector_at(data, 2) + 16 * index)
    return body_start(data) + offset, size


def rows_of(batch: Batch, rows: pa.RecordBatch) -> list[object]:
    """Every value of the rows; timestamps as integers, since not all fit a datetime."""
    columns = [rows.column(0), rows.column(1), rows.column(2).cast(pa.int64()), *rows.columns[3:]]
    return [column.to_pylist() for column in columns]


def _header(data: bytes) -> int:
    return _pointed(data, message_field_at(data, 2))


def _pointed(data: bytes, at: int) -> int:
    target: int = struct.unpack_from("<I", data, at)[0]
    return at + target


def _field(data: bytes, table: int, field: int) -> int:
    vtable = table - struct.unpack_from("<i", data, table)[0]
    offset: int = struct.unpack_from("<H", data, vtable + 4 + 2 * field)[0]
    assert offset, "the sample does not have this field"
    return table + offset
