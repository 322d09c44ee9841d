# SPDX-License-Identifier: Apache-2.0
"""Timestamps and offsets of a typed batch, read without its schema: for searches by time, and to check a batch."""

from __future__ import annotations

from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.arrow_message import read_buffers
from tidemark.record.envelope import Batch, Codec, invalid_batch
from tidemark.record.payload import counted_offsets, scalar_of
from tidemark.record.schema import TIMESTAMP_TYPE
from tidemark.record.typed.column_table import (
    HAS_HEADERS,
    HAS_TIMESTAMPS,
    HAS_TOMBSTONES,
    NO_NODE,
    ColumnTable,
    parse_table,
)

_HEADER_NODES: Final = 4
_CODEC_NAMES: Final[dict[Codec, Literal["lz4", "zstd"]]] = {Codec.LZ4: "lz4", Codec.ZSTD: "zstd"}


def times_and_offsets(batch: Batch) -> tuple[pa.Array[Any], pa.Array[Any]]:
    """Timestamp (us, UTC) and offset (int64) of each row of a batch that `check_envelope` has accepted.

    Raises:
        TidemarkError: INVALID_PAYLOAD.
    """
    envelope = batch.envelope
    table = parse_table(batch.data)
    count = envelope.record_count
    node = 0 if table.flags & HAS_TIMESTAMPS else table.event_time_node
    if not count:  # the cleaner keeps the last batch of a producer without rows
        return pa.array([], TIMESTAMP_TYPE), pa.array([], pa.int64())
    if envelope.has_append_time or node == NO_NODE:
        times: Any = pa.repeat(scalar_of(envelope.max_timestamp_us, TIMESTAMP_TYPE), count)
    else:
        times = _values(batch, table, node, TIMESTAMP_TYPE, 8)
    if not envelope.is_compacted:
        return times, counted_offsets(envelope.base_offset, count)
    before = (
        bool(table.flags & HAS_TIMESTAMPS)
        + _HEADER_NODES * bool(table.flags & HAS_HEADERS)
        + bool(table.flags & HAS_TOMBSTONES)
    )
    deltas = _values(batch, table, before, pa.uint32(), 4)
    return times, pc.add(deltas.cast(pa.int64()), scalar_of(envelope.base_offset, pa.int64()))


def check_times(batch: Batch) -> None:
    """Check that a produced batch states its oldest and newest timestamp, which retention and searches rely on.

    Decodes the column of timestamps, also of a compressed batch: a search by time that cannot decode the column treats
    the batch as damaged. The structure of the batch has been checked (`check_typed`).

    Raises:
        TidemarkError: INVALID_BATCH: another timestamp, or two columns of timestamps; INVALID_PAYLOAD.
    """
    table = parse_table(batch.data)
    if table.flags & HAS_TIMESTAMPS and table.event_time_node != NO_NODE:
        raise invalid_batch("the schema has an event time, and the batch also has a column _timestamp: omit it")
    oldest_us = newest_us = batch.envelope.max_timestamp_us
    node = 0 if table.flags & HAS_TIMESTAMPS else table.event_time_node
    if node != NO_NODE:
        bounds: Any = pc.min_max(_values(batch, table, node, pa.int64(), 8))
        oldest_us, newest_us = bounds["min"].as_py(), bounds["max"].as_py()
    stated = table.min_timestamp_us, batch.envelope.max_timestamp_us
    if stated != (oldest_us, newest_us):
        raise invalid_batch(
            f"the batch states its timestamps go from {stated[0]} to {stated[1]} µs; they go from {oldest_us} to "
            f"{newest_us}"
        )


def _values(batch: Batch, table: ColumnTable, node: int, data_type: pa.DataType, width_bytes: int) -> pa.Array[Any]:
    """The values of a node of fixed width that is never null, so that its only bytes are its values."""
    needed_bytes = batch.envelope.record_count * width_bytes
    begin, end = table.span(node)
    numbers = read_buffers(batch.data, table.message_at)
    sizes = [size for offset, size in zip(numbers[0::2], numbers[1::2], strict=True) if offset == begin and size]
    if len(sizes) != 1 or not 0 < sizes[0] <= end - begin:
        raise _unreadable("its bytes are not where the table of columns states")
    data = pa.py_buffer(batch.data).slice(table.body_at + begin, sizes[0])
    if batch.envelope.codec != Codec.NONE:
        data = _decompressed(data, Codec(batch.envelope.codec), needed_bytes)
    if data.size < needed_bytes:
        raise _unreadable(f"it has {data.size} bytes, its rows need {needed_bytes}")
    return pa.Array.from_buffers(data_type, batch.envelope.record_count, [None, data])


def _decompressed(data: pa.Buffer, codec: Codec, needed_bytes: int) -> pa.Buffer:
    declared = int.from_bytes(memoryview(data)[:8], "little", signed=True)
    if declared == -1:
        return data.slice(8)
    if not 0 <= declared <= needed_bytes + 64:
        raise _unreadable(f"it declares {declared} bytes, its rows need {needed_bytes}")
    try:
        whole: pa.Buffer = pa.decompress(data.slice(8), declared, codec=_CODEC_NAMES[codec])
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(str(error)) from None
    return whole


def _unreadable(reason: str) -> TidemarkError:
    return TidemarkError(ErrorCode.INVALID_PAYLOAD, f"the times of the typed batch cannot be read: {reason}")
