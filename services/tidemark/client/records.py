# SPDX-License-Identifier: Apache-2.0
"""What the client gives back: where a record went, what a record is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from tidemark.model import TopicPartition


class RecordMetadata(NamedTuple):
    """Where an acknowledged record is.

    Attributes:
        topic: its topic.
        partition: its partition.
        offset: its offset; -1 with acks=0, where nobody told.
        timestamp_us: microseconds since 1970; the leader's where the topic keeps append times.
    """

    topic: str
    partition: int
    offset: int
    timestamp_us: int


class BatchMetadata(NamedTuple):
    """Where one batch of a table is: `record_count` rows from `base_offset` on (-1 with acks=0)."""

    topic: str
    partition: int
    base_offset: int
    record_count: int


class ConsumerRecord(NamedTuple):
    """One committed record.

    Attributes:
        topic: its topic.
        partition: its partition.
        offset: its offset.
        timestamp_us: microseconds since 1970.
        key: None where it has none.
        value: None is a tombstone.
        headers: in order; a name may come more than once.
    """

    topic: str
    partition: int
    offset: int
    timestamp_us: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class PartitionBatch(NamedTuple):
    """Committed rows of one partition in record.schema.OFFSET_SCHEMA: key, value, timestamp, headers, offset."""

    topic: str
    partition: int
    rows: pa.RecordBatch


class Timestamp(NamedTuple):
    """A point in time to start at: the first record at or after it, microseconds since 1970."""

    us: int


class OffsetAndTimestamp(NamedTuple):
    """A record found by time: its offset and its timestamp in microseconds since 1970."""

    offset: int
    timestamp_us: int


def as_partition(value: TopicPartition | tuple[str, int]) -> TopicPartition:
    """A plain pair as the name of a partition."""
    return value if isinstance(value, TopicPartition) else TopicPartition(*value)


def records_of(topic: str, partition: int, rows: pa.RecordBatch) -> list[ConsumerRecord]:
    """The rows of a batch in record.schema.OFFSET_SCHEMA, one by one."""
    columns = (
        rows.column("offset").to_pylist(),
        rows.column("timestamp").cast(pa.int64()).to_pylist(),
        *(rows.column(name).to_pylist() for name in ("key", "value", "headers")),
    )
    return [
        ConsumerRecord(topic, partition, offset, timestamp_us, key, value, tuple(headers or ()))
        for offset, timestamp_us, key, value, headers in zip(*columns, strict=True)
    ]
