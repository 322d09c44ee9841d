# SPDX-License-Identifier: Apache-2.0
"""The payload of a record batch: rows as Arrow, in and out (docs/formats.md). Readers get only validated rows."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.model import NO_PRODUCER, ErrorCode, TidemarkError
from tidemark.record.checks import check_envelope, check_payload, read_validated
from tidemark.record.envelope import (
    ENVELOPE_BYTES,
    MAGIC,
    NO_BASE_OFFSET,
    NO_LEADER_EPOCH,
    NO_SEQUENCE,
    Attributes,
    Batch,
    Codec,
    Envelope,
    parse_envelope,
    seal,
)
from tidemark.record.few_rows import FEW, encode_few
from tidemark.record.schema import COMPACTED_SCHEMA, HEADERS_TYPE, OFFSET_SCHEMA, SCHEMA, TIMESTAMP_TYPE
from tidemark.record.shapes import WRITE_OPTIONS

__all__ = [
    "COMPACTED_SCHEMA",
    "OFFSET_SCHEMA",
    "SCHEMA",
    "build_batch",
    "build_few",
    "build_own_batch",
    "encode_rows",
    "from_columns",
    "read_batch",
    "reseal",
    "row_offsets",
    "with_offsets",
]

Headers = Sequence[tuple[str, bytes | None]] | Mapping[str, bytes | None]
"""Headers of one record, in order; a name may come more than once."""

_SCHEMA_BYTES: Final = {len(schema): schema.serialize().size for schema in (SCHEMA, COMPACTED_SCHEMA)}
"""Size of the schema message, by the number of columns."""
_NULLABLE: Final = (0, 1, 3)
_EMPTY: Final = pa.py_buffer(b"")
_NO_ENTRIES: Final = pa.nulls(0, pa.struct([HEADERS_TYPE.key_field, HEADERS_TYPE.item_field]))


def build_batch(
    records: pa.RecordBatch,
    *,
    codec: Codec = Codec.NONE,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    pending: bool = False,
) -> bytes:
    """One batch in the form that a producer sends: base_offset 0, leader_epoch -1, sealed with both CRCs.

    Args:
        records: rows in SCHEMA, at least one.
        codec: how to compress the buffers.
        producer_id: with producer_epoch and base_sequence, of an idempotent producer.
        producer_epoch: see producer_id.
        base_sequence: sequence of the first record.
        pending: whether the rows belong to a transaction.

    Raises:
        TidemarkError: INVALID_BATCH when there are no rows, INVALID_PAYLOAD when they are not in
            SCHEMA or a timestamp is null.
    """
    if records.schema != SCHEMA:
        raise TidemarkError(ErrorCode.INVALID_PAYLOAD, f"records have the columns {records.schema}, not {SCHEMA}")
    timestamps = records.column(2)
    if timestamps.null_count:
        raise TidemarkError(ErrorCode.INVALID_PAYLOAD, f"{timestamps.null_count} records have no timestamp")
    count = records.num_rows
    if not count:
        raise TidemarkError(ErrorCode.INVALID_BATCH, "a batch must have at least one record")
    for index in _NULLABLE:
        column = records.column(index)
        if column.null_count == count:
            records = records.set_column(index, SCHEMA.field(index), _nulls(count, column.type))
    envelope = _unstamped(count, pc.max(timestamps).value, producer_id, producer_epoch)
    attributes = Attributes.PENDING if pending else Attributes.NONE
    envelope = envelope._replace(codec=codec, attributes=attributes, base_sequence=base_sequence)
    return seal(envelope, encode_rows(records, codec))


def build_few(
    keys: Sequence[bytes | None] | None,
    values: Sequence[bytes | None],
    timestamps_us: Sequence[int],
    *,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    pending: bool = False,
) -> bytes:
    """Like `build_batch` of `from_columns`, for 1 to FEW records without headers and without a codec.

    Raises:
        TypeError: a key or a value is not bytes.
        struct.error: a timestamp is not an integer of 64 bits, or the lengths differ.
    """
    message = encode_few(keys, values, timestamps_us)
    envelope = _unstamped(len(values), max(timestamps_us), producer_id, producer_epoch)
    attributes = Attributes.PENDING if pending else Attributes.NONE
    return seal(envelope._replace(attributes=attributes, base_sequence=base_sequence), message)


def build_own_batch(
    keys: Sequence[bytes],
    values: Sequence[bytes | None],
    timestamp_us: int,
    *,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    attributes: int = 0,
) -> bytes:
    """Like `build_batch`, for one or more records of a service itself, with one timestamp.

    Avoids `pa.array`, whose first use imports modules and would block a broker for half a second. A broker builds few
    of these batches, so each step runs with cold caches: known values are not computed again.
    """
    envelope = _unstamped(len(values), timestamp_us, producer_id, producer_epoch)._replace(attributes=attributes)
    return seal(envelope, memoryview(_own_rows(keys, values, timestamp_us).serialize()))


def _unstamped(count: int, max_timestamp_us: int, producer_id: int, producer_epoch: int) -> Envelope:
    return Envelope(
        base_offset=NO_BASE_OFFSET,
        leader_epoch=NO_LEADER_EPOCH,
        header_crc=0,
        batch_length=0,
        crc=0,
        magic=MAGIC,
        codec=Codec.NONE,
        attributes=0,
        record_count=count,
        last_offset_delta=count - 1,
        base_sequence=NO_SEQUENCE,
        max_timestamp_us=max_timestamp_us,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        delete_horizon_s=0,
    )


def encode_rows(records: pa.RecordBatch, codec: Codec) -> bytes | memoryview:
    """One encapsulated RecordBatch message, padded to 8; rows in SCHEMA or COMPACTED_SCHEMA."""
    if codec == Codec.NONE:
        return memoryview(records.serialize())
    # Only the stream writer compresses; it writes the schema before the first batch.
    sink = pa.BufferOutputStream()
    writer = pa.ipc.new_stream(sink, records.schema, options=WRITE_OPTIONS[codec])
    writer.write_batch(records)
    return memoryview(sink.getvalue())[_SCHEMA_BYTES[len(records.schema)] :]


def read_batch(batch: Batch) -> pa.RecordBatch:
    """The rows of a batch after a full check: both CRCs, the structure, every value.

    Zero copy when uncompressed.

    Raises:
        TidemarkError: the errors of `check_batch`; INVALID_PAYLOAD also for errors that only decompression finds.
    """
    checked = check_envelope(batch.data)
    rows = check_payload(checked)
    return read_validated(checked) if rows is None else rows


def with_offsets(batch: Batch, counted: CountedOffsets | None = None) -> pa.RecordBatch:
    """The rows of a batch in OFFSET_SCHEMA: key, value, timestamp, headers and each row's offset in the partition.

    Args:
        batch: the batch.
        counted: gives the offsets of consecutive batches in less time.
    """
    rows = read_batch(batch)
    envelope = parse_envelope(batch.data)
    if counted is None or envelope.is_compacted:
        offsets = row_offsets(envelope, rows)
    else:
        offsets = counted.of(envelope.base_offset, rows.num_rows)
    timestamps = rows.column(2)
    if envelope.has_append_time:
        timestamps = pa.repeat(scalar_of(envelope.max_timestamp_us, TIMESTAMP_TYPE), rows.num_rows)
    return pa.RecordBatch.from_arrays(
        [rows.column(0), rows.column(1), timestamps, rows.column(3), offsets], schema=OFFSET_SCHEMA
    )


def row_offsets(envelope: Envelope, rows: pa.RecordBatch) -> pa.Array[Any]:
    """Each row's offset in the partition (int64): of a compacted batch by its `offset_delta`, else counted."""
    if envelope.is_compacted:
        return pc.add(rows.column(4).cast(pa.int64()), envelope.base_offset)
    return counted_offsets(envelope.base_offset, rows.num_rows)


def counted_offsets(base_offset: int, count: int) -> pa.Array[Any]:
    """`count` offsets (int64) from the base offset on."""
    if count <= FEW:
        packed = pa.py_buffer(struct.pack(f"{count}q", *range(base_offset, base_offset + count)))
        return pa.Array.from_buffers(pa.int64(), count, [None, packed])
    offsets: pa.Array[Any] = (
        pc.add(_COUNTS.slice(0, count), scalar_of(base_offset, pa.int64()))  # takes half the time of a sum of arrays
        if count <= len(_COUNTS)
        else pc.cumulative_sum(pa.repeat(_ONE, count), start=scalar_of(base_offset - 1, pa.int64()))
    )
    return offsets


class CountedOffsets:
    """Offsets of consecutive batches, counted for several batches at a time: the offsets of a batch are then a slice.

    A slice keeps the offsets of the other batches in memory, so this is for rows that are copied or sent soon.
    """

    def __init__(self) -> None:
        self._first = 0
        self._offsets: pa.Array[Any] | None = None

    def of(self, base_offset: int, count: int) -> pa.Array[Any]:
        """`count` offsets (int64) from the base offset on."""
        at = base_offset - self._first
        if self._offsets is None or at < 0 or at + count > len(self._offsets):
            ahead = max(count, min(count * _COUNTED_BATCHES, len(_COUNTS)))
            self._first, self._offsets, at = base_offset, counted_offsets(base_offset, ahead), 0
        return self._offsets.slice(at, count)


def scalar_of(value: int, data_type: pa.DataType) -> Any:
    """A scalar of 64 bits. Not by pa.scalar or pa.array: those import pandas where installed: half a second, 37 MB."""
    return pa.Array.from_buffers(data_type, 1, [None, pa.py_buffer(value.to_bytes(8, "little", signed=True))])[0]


_COUNTED_BATCHES: Final = 8
_ONE: Final = scalar_of(1, pa.int64())
_COUNTS: Final[pa.Array[Any]] = pc.cumulative_sum(pa.repeat(_ONE, 1 << 14), start=scalar_of(-1, pa.int64()))
"""0, 1, 2 and so on, for batches of up to 16,384 records: 128 KiB."""


def from_columns(
    keys: Sequence[bytes | None] | None,
    values: Sequence[bytes | None],
    timestamps_us: Sequence[int],
    headers: Sequence[Headers | None] | None = None,
) -> pa.RecordBatch:
    """Rows in SCHEMA from Python columns of one length.

    Args:
        keys: key of each record; None: no record has a key.
        values: a None value is a tombstone.
        timestamps_us: microseconds since 1970, UTC.
        headers: headers of each record; None: no record has any.

    Raises:
        TidemarkError: INVALID_PAYLOAD when the columns differ in length or hold something else.
    """
    count = len(values)
    try:
        columns: list[pa.Array[Any]] = [
            _nulls(count, pa.binary()) if keys is None else pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            _timestamps(timestamps_us),
            _nulls(count, HEADERS_TYPE) if headers is None else pa.array(headers, HEADERS_TYPE),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise TidemarkError(ErrorCode.INVALID_PAYLOAD, f"the columns make no records: {error}") from error


def _timestamps(times_us: Sequence[int]) -> pa.Array[Any]:
    count = len(times_us)
    try:
        packed = pa.py_buffer(struct.pack(f"{count}q", *times_us))  # takes a quarter of the time of pa.array
    except struct.error:
        # for a null, which pa.array accepts, or for a wrong type, which raises its error
        return pa.array(times_us, pa.int64()).view(TIMESTAMP_TYPE)
    return pa.Array.from_buffers(TIMESTAMP_TYPE, count, [None, packed])


def _own_rows(keys: Sequence[bytes], values: Sequence[bytes | None], timestamp_us: int) -> pa.RecordBatch:
    count = len(values)
    times = pa.Array.from_buffers(TIMESTAMP_TYPE, count, [None, pa.py_buffer(array("q", [timestamp_us]) * count)])
    columns: list[pa.Array[Any]] = [_binary(keys), _binary(values), times, _nulls(count, HEADERS_TYPE)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def reseal(data: bytes, *, producer_id: int, producer_epoch: int, base_sequence: int) -> bytes:
    """A built batch with other producer fields and new CRCs; one copy and one pass over the payload."""
    envelope = parse_envelope(data)._replace(
        producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence
    )
    return seal(envelope, memoryview(data)[ENVELOPE_BYTES : envelope.batch_length])


def _binary(values: Sequence[bytes | None]) -> pa.Array[Any]:
    offsets = array("i", accumulate((len(value or b"") for value in values), initial=0))
    validity = None
    if None in values:
        bits = sum((value is not None) << index for index, value in enumerate(values))
        validity = pa.py_buffer(bits.to_bytes((len(values) + 7) >> 3, "little"))
    data = pa.py_buffer(b"".join(value for value in values if value is not None))
    return pa.Array.from_buffers(pa.binary(), len(values), [validity, pa.py_buffer(offsets), data])


def _nulls(count: int, data_type: pa.DataType) -> pa.Array[Any]:
    """An array of nulls without data; `pa.nulls` has zeros as data, which would be sent and stored."""
    offsets = pa.py_buffer(bytes(4 * (count + 1)))
    validity = pa.py_buffer(bytes((count + 7) >> 3))
    if data_type == HEADERS_TYPE:
        return pa.Array.from_buffers(data_type, count, [validity, offsets], count, children=[_NO_ENTRIES])
    return pa.Array.from_buffers(data_type, count, [validity, offsets, _EMPTY], count)
