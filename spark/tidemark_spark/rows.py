# SPDX-License-Identifier: Apache-2.0
"""Converts rows of a topic to the columns of Spark's Kafka source. Pure; copies no keys or values."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from tidemark_spark.columns import DEAD_LETTER, Columns, ValueFormat
from tidemark_spark.ranges import OffsetRange

MERGED_ROWS: Final = 1 << 14
"""Small batches are merged up to this number of rows, since each batch that goes to Spark has a fixed cost."""
MERGED_BYTES: Final = 4 << 20

CREATE_TIME = 0
LOG_APPEND_TIME = 1


class Rows:
    """Makes Spark's columns from the rows of one task, all of one partition.

    Args:
        part: topic and partition.
        columns: columns to make.
        schema: types of the columns, in order.
        timestamp_type: CREATE_TIME or LOG_APPEND_TIME.
    """

    def __init__(self, part: OffsetRange, columns: Columns, schema: pa.Schema, *, timestamp_type: int) -> None:
        self._where = f"{part.topic}-{part.partition}"
        self._columns = columns
        self._schema = schema
        self._values: dict[str, str | int] = {
            "topic": part.topic,
            "partition": part.partition,
            "timestampType": timestamp_type,
        }
        self._constants: dict[str, pa.Array[Any]] = {}

    def to_columns(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Spark's columns from rows in record.schema.OFFSET_SCHEMA.

        Raises:
            MalformedValueError: for a malformed value, if the policy is to fail.
        """
        schema, decoded = self._schema, self._decoded(records)
        arrays = []
        for field in schema:
            if field.name in decoded:
                array = decoded[field.name]
            elif field.name in self._values:
                array = self._constant(field.name, records.num_rows)
            else:
                array = records.column(field.name)
            # Headers are maps, and become lists of (key, value): the same buffers, other field names.
            arrays.append(array if array.type == field.type else array.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _decoded(self, records: pa.RecordBatch) -> dict[str, pa.Array[Any]]:
        columns, schema = self._columns, self._schema
        if columns.value_format is ValueFormat.BYTES or "value" not in schema.names:
            return {}
        from tidemark_spark.values import decode  # imports much of pyarrow

        values, dead_letters = decode(
            records.column("value"),
            records.column("offset"),
            value_format=columns.value_format,
            value_type=schema.field("value").type,
            malformed=columns.malformed,
            where=self._where,
        )
        return {"value": values, DEAD_LETTER: dead_letters}

    def _constant(self, name: str, count: int) -> pa.Array[Any]:
        """A column of one value, created once and sliced."""
        known = self._constants.get(name)
        if known is None or len(known) < count:
            known = self._constants[name] = _repeated(self._values[name], count)
        return known.slice(0, count)


def _repeated(value: str | int, count: int) -> pa.Array[Any]:
    # Not by pa.repeat: it imports an installed pandas in each of Spark's Python processes.
    if isinstance(value, int):
        return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(value.to_bytes(4, "little") * count)])
    text = value.encode()
    ends = array("i", range(0, (count + 1) * len(text), len(text)))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(text * count)])


def merged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merge batches up to MERGED_ROWS or MERGED_BYTES; only the last may be smaller; large batches are not copied."""
    waiting: list[pa.RecordBatch] = []
    rows, size_bytes = 0, 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        size_bytes += batch.get_total_buffer_size()  # nbytes takes 50 times as long
        if rows >= MERGED_ROWS or size_bytes >= MERGED_BYTES:
            yield _one(waiting)
            waiting, rows, size_bytes = [], 0, 0
    if waiting:
        yield _one(waiting)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches).combine_chunks()  # concat_batches of pyarrow 19 and later, as fast
    if not table.num_rows:
        return batches[0]
    (merged,) = table.to_batches()  # a second chunk would need 2 GiB in a column
    return merged
