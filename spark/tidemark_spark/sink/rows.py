# SPDX-License-Identifier: Apache-2.0
"""Splits the rows of a Spark task into record batches in the client's schema, by topic and partition.

Pure; creates no Python object for a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tidemark.record.schema import HEADERS_TYPE, SCHEMA, TIMESTAMP_TYPE

_ENTRY_FIELDS: Final[list[Any]] = [HEADERS_TYPE.key_field, HEADERS_TYPE.item_field]
_HEADER_TYPE: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])


class Destined(NamedTuple):
    """Rows of one topic in record.schema.SCHEMA, in input order; `partition` None: the keys decide."""

    topic: str
    partition: int | None
    rows: pa.RecordBatch


def destined(batches: Sequence[pa.RecordBatch], topic: str | None, now_us: int) -> Iterator[Destined]:
    """Rows of some batches by topic and partition, in input order.

    Args:
        batches: batches of one schema with `value`, and optionally `key`, `headers`, `topic`, `partition`, `timestamp`.
        topic: topic of all rows; None: the column decides.
        now_us: timestamp of rows without a timestamp, microseconds since 1970.

    Raises:
        ValueError: a row has no topic, or a header has no name.
    """
    table = pa.Table.from_batches(list(batches)).combine_chunks()
    for batch in table.to_batches():
        rows = _records(batch, now_us)
        names = batch.schema.names
        topics = None if topic is not None else batch.column("topic").cast(pa.string())
        partitions = batch.column("partition") if "partition" in names else None
        if partitions is not None and partitions.null_count == len(partitions):
            partitions = None
        for chosen, indices in _by_topic(topic, topics):
            yield from _by_partition(chosen, _take(rows, indices), _take(partitions, indices))


def _records(batch: pa.RecordBatch, now_us: int) -> pa.RecordBatch:
    names, count = batch.schema.names, batch.num_rows
    key = batch.column("key").cast(pa.binary()) if "key" in names else pa.nulls(count, pa.binary())
    headers = header_maps(batch.column("headers")) if "headers" in names else pa.nulls(count, HEADERS_TYPE)
    now = pa.scalar(now_us, TIMESTAMP_TYPE)
    stamps: Any = pa.repeat(now, count)
    if "timestamp" in names:
        stamps = pc.fill_null(batch.column("timestamp").cast(TIMESTAMP_TYPE), now)
    return pa.RecordBatch.from_arrays(
        [key, batch.column("value").cast(pa.binary()), stamps, headers],
        schema=SCHEMA,
    )


def header_maps(lists: Any) -> Any:
    """Lists of (key, value) as maps: the same buffers under another type.

    Raises:
        ValueError: a header has no name.
    """
    lists = lists.cast(pa.list_(_HEADER_TYPE))  # also from large lists
    entries = lists.values
    names = entries.field(0)
    if entries.null_count or names.null_count:
        raise ValueError("a header or its key is null: expected a key for each, e.g. named_struct('key', 'trace', ...)")
    pairs = pa.StructArray.from_arrays([names, entries.field(1)], fields=_ENTRY_FIELDS)
    validity, offsets = lists.buffers()[:2]
    return pa.Array.from_buffers(
        HEADERS_TYPE, len(lists), [validity, offsets], lists.null_count, lists.offset, children=[pairs]
    )


def _by_topic(topic: str | None, topics: Any) -> Iterator[tuple[str, Any]]:
    """Each topic with the indices of its rows; None: all rows."""
    if topic is not None:
        yield topic, None
        return
    if topics.null_count:
        raise ValueError(
            f"column 'topic' is null in {topics.null_count} of {len(topics)} rows: fill it, or name one topic for all "
            f"rows with the option 'topic'"
        )
    encoded = topics.dictionary_encode()
    found: list[str] = encoded.dictionary.to_pylist()
    if len(found) == 1:
        yield found[0], None
        return
    yield from zip(found, _groups(encoded.indices.to_numpy(zero_copy_only=False), len(found)), strict=True)


def _by_partition(topic: str, rows: pa.RecordBatch, partitions: Any) -> Iterator[Destined]:
    """Rows that name their partition, then rows whose key decides."""
    if partitions is None:
        yield Destined(topic, None, rows)
        return
    encoded = partitions.dictionary_encode(null_encoding="encode")
    found: list[int | None] = encoded.dictionary.to_pylist()
    if len(found) == 1:
        yield Destined(topic, found[0], rows)
        return
    groups = _groups(encoded.indices.to_numpy(zero_copy_only=False), len(found))
    for partition, indices in zip(found, groups, strict=True):
        yield Destined(topic, partition, _take(rows, indices))


def _groups(codes: Any, count: int) -> list[Any]:
    """Ascending row indices of each code, by one stable sort."""
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=count))
    return [pa.array(part) for part in np.split(order, ends[:-1])]


def _take(values: Any, indices: Any) -> Any:
    return values if indices is None or values is None else values.take(indices)
