# SPDX-License-Identifier: Apache-2.0
"""Divides the rows of a table into partitions and batches, without a Python object for each row."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.client.producing.batching import BATCH_OVERHEAD_BYTES
from tidemark.client.producing.partitioner import partitions_of
from tidemark.client.serializers import to_json
from tidemark.client.typed.table_columns import decoded
from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.schema import HEADERS_TYPE, SCHEMA, TIMESTAMP_TYPE

_INDEX: Final = re.compile(r"__index_level_\d+__")


@runtime_checkable
class ArrowStream(Protocol):
    """An object with Arrow's C stream protocol, such as a frame of pandas or polars."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the rows as a PyCapsule."""


Frame = pa.Table | pa.RecordBatch | ArrowStream


def as_batches(table: Frame) -> list[pa.RecordBatch]:
    """The rows of a table of any kind, as record batches in their order; raises INVALID_PAYLOAD."""
    if not isinstance(table, pa.RecordBatch | ArrowStream):
        kind = type(table).__name__
        raise TidemarkError(
            ErrorCode.INVALID_PAYLOAD,
            f"a {kind} is not a table: give a table of pyarrow, or a frame of pandas or polars",
        )
    if isinstance(table, pa.RecordBatch):
        return [_without_index(table)]
    try:
        whole: pa.Table = _without_index(table if isinstance(table, pa.Table) else pa.table(table))
        return whole.to_batches()
    except (pa.ArrowException, TypeError, ValueError) as error:  # columns of a pandas frame may have any objects
        reason = "; ".join(map(str, error.args))
        sentence = f"a {type(table).__name__} that Arrow cannot take: {reason}"
        raise TidemarkError(ErrorCode.INVALID_PAYLOAD, sentence) from error


def _without_index(table: Any) -> Any:
    """The table without the unnamed index of a pandas frame, of which Arrow makes a column."""
    names = list(filter(_INDEX.fullmatch, table.schema.names))
    return table.drop_columns(names) if names and table.schema.pandas_metadata else table


def owned(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with a copy of all columns but texts and bytes: numpy and pandas may change arrays in place before the
    batch is built.
    """
    return pa.RecordBatch.from_arrays(list(map(_copied, rows.columns)), schema=rows.schema)


def _copied(array: Any) -> Any:
    if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
        return array
    return pa.concat_arrays([array, array[:0]])  # Arrow copies to join several arrays; an array alone would stay


def as_rows(
    table: Frame, *, key: str | None, value: str | None, timestamp: str | None, now_us: int
) -> list[pa.RecordBatch]:
    """Convert a table to record.schema.SCHEMA; strings become UTF-8 bytes. Without `value` a row is its value, as JSON.

    Raises:
        TidemarkError: INVALID_PAYLOAD if a named column is missing, or cannot be cast to the type in SCHEMA.
    """
    found = as_batches(table)
    batches = found if len(found) < 2 else pa.Table.from_batches(found).combine_chunks().to_batches()
    return [
        _rows_of(batch, key=key, value=value, timestamp=timestamp, now_us=now_us) for batch in batches if batch.num_rows
    ]


def _rows_of(batch: pa.RecordBatch, *, key: str | None, value: str | None, timestamp: str | None, now_us: int) -> Any:
    names = batch.schema.names
    named = (value, timestamp, None if key == "key" else key)  # "key" is the default; the column is optional
    for wanted in named:
        if wanted is not None and wanted not in names:
            raise TidemarkError(ErrorCode.INVALID_PAYLOAD, f"the table has no column {wanted!r}, only {names}")
    count = batch.num_rows
    keys = _cast(batch, key, pa.binary()) if key is not None and key in names else pa.nulls(count, pa.binary())
    if timestamp is None:
        stamps: Any = pa.repeat(pa.scalar(now_us, TIMESTAMP_TYPE), count)
    else:
        stamps = _copied(cast_timestamps(batch, timestamp))
    headers = _cast(batch, "headers", HEADERS_TYPE) if "headers" in names else pa.nulls(count, HEADERS_TYPE)
    values = _as_json(batch) if value is None else _cast(batch, value, pa.binary())
    return pa.RecordBatch.from_arrays([keys, values, stamps, headers], schema=SCHEMA)


def _check_single(batch: pa.RecordBatch, name: str) -> None:
    count = batch.schema.names.count(name)
    if count > 1:
        sentence = f"the table has {count} columns {name!r}: give each column a name of its own"
        raise TidemarkError(ErrorCode.INVALID_PAYLOAD, sentence)


def _as_json(batch: pa.RecordBatch) -> Any:
    for name in batch.schema.names:
        _check_single(batch, name)
    try:
        return pa.array([to_json(row) for row in batch.to_pylist()], pa.binary())
    except (TypeError, ValueError) as error:
        raise TidemarkError(ErrorCode.INVALID_PAYLOAD, f"a row cannot be written as JSON: {error}") from None


def cast_timestamps(batch: pa.RecordBatch, name: str) -> Any:
    """The column of that name as timestamps; raises INVALID_PAYLOAD."""
    if name not in batch.schema.names:
        raise TidemarkError(ErrorCode.INVALID_PAYLOAD, f"the table has no column {name!r}, only {batch.schema.names}")
    found = _cast(batch, name, TIMESTAMP_TYPE)
    if found.null_count:
        raise TidemarkError(ErrorCode.INVALID_PAYLOAD, f"column {name!r}: {found.null_count} rows have no timestamp")
    return found


def cast_headers(batch: pa.RecordBatch, name: str) -> Any:
    """The column of that name as headers; raises INVALID_PAYLOAD."""
    return _cast(batch, name, HEADERS_TYPE)


def _cast(batch: pa.RecordBatch, name: str, wanted: Any) -> Any:
    _check_single(batch, name)
    column: Any = batch.column(name)
    try:
        return (decoded(column) if pa.types.is_dictionary(column.type) else column).cast(wanted)
    except pa.ArrowException as error:
        raise TidemarkError(ErrorCode.INVALID_PAYLOAD, f"column {name!r} cannot be cast to {wanted}: {error}") from None


def by_partition(rows: pa.RecordBatch, partitions: int) -> Iterator[tuple[int | None, pa.RecordBatch]]:
    """Yield the rows of each partition, in order; None for rows without a key, which may go to any partition."""
    keys = rows.column(0)
    if keys.null_count == rows.num_rows:
        yield None, rows
        return
    if partitions == 1:  # also rows without a key keep their place
        yield 0, rows
        return
    yield from by_target_array(rows, partitions_of(keys, partitions))


def by_target(rows: pa.RecordBatch, targets: Sequence[int]) -> Iterator[tuple[int | None, pa.RecordBatch]]:
    """Yield the rows of each partition, in order, for given partitions of the rows."""
    return by_target_array(rows, pa.array(targets, pa.int32()))


def by_target_array(rows: pa.RecordBatch, targets: pa.Array[Any]) -> Iterator[tuple[int | None, pa.RecordBatch]]:
    """Sort the rows by partition, stably, with one copy for any number of partitions."""
    order = pc.array_sort_indices(targets)
    compute: Any = pc  # the stubs do not know run_end_encode
    runs = compute.run_end_encode(targets.take(order))
    found: list[int | None] = runs.values.to_pylist()
    ordered = rows if len(found) == 1 else rows.take(order)
    start = 0
    for target, end in zip(found, runs.run_ends.to_pylist(), strict=True):
        yield target, ordered.slice(start, end - start)
        start = end


def slices(rows: pa.RecordBatch, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield slices of at least one row that make batches of at most about `batch_bytes`, without a copy."""
    room_bytes = max(1, batch_bytes - BATCH_OVERHEAD_BYTES)
    if rows.nbytes <= room_bytes:  # the usual case for a table with keys, which has many small parts
        yield rows
        return
    columns: tuple[Any, Any] = (rows.column(0), rows.column(1))
    keys, values = (pc.fill_null(pc.binary_length(column), 0) for column in columns)
    content_bytes = pc.add(keys, values)
    beside_bytes = 1 + max(0, rows.nbytes - int(pc.sum(content_bytes).as_py())) // rows.num_rows
    step = max(1, room_bytes * rows.num_rows // max(1, rows.nbytes))
    largest_bytes = int(pc.max(content_bytes).as_py()) + beside_bytes
    if largest_bytes * step * 4 <= room_bytes * 5:
        for start in range(0, rows.num_rows, step):
            yield rows.slice(start, step)
    else:  # adjacent large rows would make a batch above the brokers' limit
        yield from _counted(rows, content_bytes.to_pylist(), beside_bytes, room_bytes)


def _counted(
    rows: pa.RecordBatch, content_bytes: Sequence[int], beside_bytes: int, room_bytes: int
) -> Iterator[pa.RecordBatch]:
    start = size_bytes = 0
    for index, length in enumerate(content_bytes):
        size_bytes += length + beside_bytes
        if size_bytes > room_bytes and index > start:
            yield rows.slice(start, index - start)
            start, size_bytes = index, length + beside_bytes
    yield rows.slice(start)
