# SPDX-License-Identifier: Apache-2.0
"""The bulk path: a table's rows to partitions and batches, with no Python object for a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.client.producing.batching import BATCH_OVERHEAD_BYTES
from tidemark.client.producing.partitioner import partitions_of
from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.schema import HEADERS_TYPE, SCHEMA, TIMESTAMP_TYPE


@runtime_checkable
class ArrowStream(Protocol):
    """What speaks Arrow's C stream protocol: frames of pandas and polars do."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Its rows."""


Frame = pa.Table | pa.RecordBatch | ArrowStream


def as_rows(table: Frame, *, key: str | None, value: str, timestamp: str | None, now_us: int) -> list[pa.RecordBatch]:
    """The table's columns in record.schema.SCHEMA; strings become their UTF-8 bytes.

    Raises:
        TidemarkError: INVALID_PAYLOAD when a named column is missing, or of a type that does not go into SCHEMA's.
    """
    if not isinstance(table, pa.RecordBatch | ArrowStream):
        kind = type(table).__name__
        raise TidemarkError(
            ErrorCode.INVALID_PAYLOAD, f"a {kind} is no table: give one of pyarrow, or a frame of pandas or polars"
        )
    if not isinstance(table, pa.RecordBatch | pa.Table):
        table = pa.table(table)
    batches = [table] if isinstance(table, pa.RecordBatch) else table.combine_chunks().to_batches()
    return [
        _rows_of(batch, key=key, value=value, timestamp=timestamp, now_us=now_us) for batch in batches if batch.num_rows
    ]


def _rows_of(batch: pa.RecordBatch, *, key: str | None, value: str, timestamp: str | None, now_us: int) -> Any:
    names = batch.schema.names
    named = (value, timestamp, None if key == "key" else key)  # "key" is the default: rows need not have one
    for wanted in named:
        if wanted is not None and wanted not in names:
            raise TidemarkError(ErrorCode.INVALID_PAYLOAD, f"the table has no column {wanted!r}, only {names}")
    count = batch.num_rows
    keys = _cast(batch, key, pa.binary()) if key is not None and key in names else pa.nulls(count, pa.binary())
    if timestamp is None:
        stamps: Any = pa.repeat(pa.scalar(now_us, TIMESTAMP_TYPE), count)
    else:
        stamps = _cast(batch, timestamp, TIMESTAMP_TYPE)
    headers = _cast(batch, "headers", HEADERS_TYPE) if "headers" in names else pa.nulls(count, HEADERS_TYPE)
    return pa.RecordBatch.from_arrays([keys, _cast(batch, value, pa.binary()), stamps, headers], schema=SCHEMA)


def _cast(batch: pa.RecordBatch, name: str, wanted: Any) -> Any:
    try:
        return batch.column(name).cast(wanted)
    except pa.ArrowException as error:
        raise TidemarkError(ErrorCode.INVALID_PAYLOAD, f"column {name!r} does not go into {wanted}: {error}") from None


def by_partition(rows: pa.RecordBatch, partitions: int) -> Iterator[tuple[int | None, pa.RecordBatch]]:
    """The rows of each partition in their order; None for those without a key, which may go anywhere."""
    keys = rows.column(0)
    if keys.null_count == rows.num_rows:
        yield None, rows
        return
    yield from _by_target(rows, partitions_of(keys, partitions))


def by_target(rows: pa.RecordBatch, targets: Sequence[int]) -> Iterator[tuple[int | None, pa.RecordBatch]]:
    """The rows of each partition in their order, where it is known of each row."""
    return _by_target(rows, pa.array(targets, pa.int32()))


def _by_target(rows: pa.RecordBatch, targets: pa.Array[Any]) -> Iterator[tuple[int | None, pa.RecordBatch]]:
    """One stable sort and one copy of the rows, however many partitions there are."""
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
    """Slices that make batches of about `batch_bytes` at most, at least one row each, no copy."""
    room_bytes = max(1, batch_bytes - BATCH_OVERHEAD_BYTES)
    if rows.nbytes <= room_bytes:  # as the many small parts of a table with keys are: not worth a look at each row
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
    else:  # large rows that stand together would make a batch that no broker takes
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
