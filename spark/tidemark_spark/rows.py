"""A topic's rows as the columns of Spark's Kafka source. Pure, and without copying keys or values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidemark_spark.columns import DEAD_LETTER, Columns, ValueFormat
from tidemark_spark.ranges import OffsetRange
from tidemark_spark.values import decode

MERGED_ROWS: Final = 1 << 14
"""Small batches become one of about so many rows: each that crosses to Spark has its price."""
MERGED_BYTES: Final = 4 << 20

CREATE_TIME = 0
LOG_APPEND_TIME = 1


def to_columns(
    records: pa.RecordBatch, part: OffsetRange, columns: Columns, schema: pa.Schema, *, timestamp_type: int
) -> pa.RecordBatch:
    """Spark's columns for rows in record.schema.OFFSET_SCHEMA.

    Args:
        records: rows of one partition.
        part: names the topic and partition.
        columns: which there are to be.
        schema: their types, in their order.
        timestamp_type: CREATE_TIME or LOG_APPEND_TIME.

    Raises:
        MalformedValueError: where a value is not what `columns` says, and the policy is to fail.
    """
    count = records.num_rows
    constants: dict[str, Callable[[], pa.Array[Any]]] = {
        "topic": lambda: pa.repeat(part.topic, count),
        "partition": lambda: pa.array(np.full(count, part.partition, np.int32)),
        "timestampType": lambda: pa.array(np.full(count, timestamp_type, np.int32)),
    }
    decoded: dict[str, pa.Array[Any]] = {}
    if columns.value_format is not ValueFormat.BYTES and "value" in schema.names:
        decoded["value"], decoded[DEAD_LETTER] = decode(
            records.column("value"),
            records.column("offset"),
            value_format=columns.value_format,
            value_type=schema.field("value").type,
            malformed=columns.malformed,
            where=f"{part.topic}-{part.partition}",
        )
    arrays = []
    for field in schema:
        if field.name in decoded:
            array = decoded[field.name]
        elif field.name in constants:
            array = constants[field.name]()
        else:
            array = records.column(field.name)
        # Headers are maps, and become lists of (key, value): other names of the same fields.
        arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def merged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of at least MERGED_ROWS or MERGED_BYTES, but for the last; large ones are not copied."""
    waiting: list[pa.RecordBatch] = []
    rows, size_bytes = 0, 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
        if rows >= MERGED_ROWS or size_bytes >= MERGED_BYTES:
            yield _one(waiting)
            waiting, rows, size_bytes = [], 0, 0
    if waiting:
        yield _one(waiting)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    columns = [pa.concat_arrays([batch.column(index) for batch in batches]) for index in range(batches[0].num_columns)]
    return pa.RecordBatch.from_arrays(columns, schema=batches[0].schema)
