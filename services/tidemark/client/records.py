# SPDX-License-Identifier: Apache-2.0
"""Records and positions that the clients return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Any, Final, NamedTuple

import pyarrow as pa


class RecordMetadata(NamedTuple):
    """The position of an acknowledged record.

    Attributes:
        topic: name of the topic.
        partition: index of the partition.
        offset: offset of the record; -1 with acks=0, which brings no response.
        timestamp_us: microseconds since 1970; the leader's if the topic uses append times.
    """

    topic: str
    partition: int
    offset: int
    timestamp_us: int


class BatchMetadata(NamedTuple):
    """The position of one batch of a table: `record_count` rows from `base_offset` on (-1 with acks=0)."""

    topic: str
    partition: int
    base_offset: int
    record_count: int


class ConsumerRecord(NamedTuple):
    """One committed record.

    Attributes:
        topic: name of the topic.
        partition: index of the partition.
        offset: offset of the record.
        timestamp_us: microseconds since 1970.
        key: bytes, or the result of the consumer's key deserializer; None without a key.
        value: bytes, or the result of the consumer's value deserializer; None for a tombstone.
        headers: (name, value) pairs in order; a name may repeat.
    """

    topic: str
    partition: int
    offset: int
    timestamp_us: int
    key: Any
    value: Any
    headers: Sequence[tuple[str, bytes | None]]


_AS_RECORD: Final[Callable[[tuple[Any, ...]], ConsumerRecord]] = partial(tuple.__new__, ConsumerRecord)
"""Makes a ConsumerRecord in half the time of a call of the class, whose `__new__` is a Python function."""


class PartitionBatch(NamedTuple):
    """Committed rows of one partition in record.schema.OFFSET_SCHEMA: key, value, timestamp, headers, offset.

    Rows of a topic with a schema have its columns, and _key, _offset, _timestamp, _headers, _deleted.
    """

    topic: str
    partition: int
    rows: pa.RecordBatch


class Timestamp(NamedTuple):
    """A start at the first record at or after a time, in microseconds since 1970."""

    us: int


class OffsetAndTimestamp(NamedTuple):
    """A record found by time: its offset and its timestamp in microseconds since 1970."""

    offset: int
    timestamp_us: int


def offsets_of(rows: pa.RecordBatch) -> pa.Array[Any]:
    """The offsets of polled rows, int64."""
    return rows.column("_offset" if "_offset" in rows.schema.names else "offset")


def records_of(topic: str, partition: int, rows: pa.RecordBatch) -> list[ConsumerRecord]:
    """Convert rows in record.schema.OFFSET_SCHEMA to records."""
    key, value, stamp_us, headers, offset = rows.columns
    count = rows.num_rows
    columns = zip(
        repeat(topic),
        repeat(partition),
        _integers(offset),
        _integers(stamp_us),
        repeat(None) if key.null_count == count else key.to_pylist(),
        value.to_pylist(),
        repeat(()) if headers.null_count == count else (tuple(some or ()) for some in headers.to_pylist()),
        strict=False,
    )
    return list(map(_AS_RECORD, columns))


def _integers(column: pa.Array[Any]) -> list[int]:
    """The values of a column of 64-bit integers, or of timestamps, without a null."""
    if not len(column):
        return []  # an empty column may have no buffer
    values: Any = column.buffers()[1]
    found: list[int] = memoryview(values).cast("q")[column.offset : column.offset + len(column)].tolist()
    return found
