# SPDX-License-Identifier: Apache-2.0
"""A topic's rows as the columns of Spark's Kafka source. Pure, and without copying keys or values."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from tidemark_spark.columns import DEAD_LETTER, Columns, ValueFormat
from tidemark_spark.ranges import OffsetRange
from tidemark_spark.values import decode

MERGED_ROWS: Final = 1 << 14
"""Small batches become one of about so many rows: each that crosses to Spark has its price."""
MERGED_BYTES: Final = 4 << 20

CREATE_TIME = 0
LOG_APPEND_TIME = 1


class Rows:
    """Makes Spark's columns of the rows of one task, which are of one partition.

    Args:
        part: names the topic and partition.
        columns: which there are to be.
        schema: their types, in their order.
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
        """Spark's columns of rows in record.schema.OFFSET_SCHEMA.

        Raises:
            MalformedValueError: where a value is not what the columns say, and the policy is to fail.
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
            # Headers are maps, and become lists of (key, value): other names of the same fields.
            arrays.append(array if array.type == field.type else array.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _decoded(self, records: pa.RecordBatch) -> dict[str, pa.Array[Any]]:
        columns, schema = self._columns, self._schema
        if columns.value_format is ValueFormat.BYTES or "value" not in schema.names:
            return {}
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
        """A column of one value: made once, and cut to length."""
        known = self._constants.get(name)
        if known is None or len(known) < count:
            known = self._constants[name] = _repeated(self._values[name], count)
        return known.slice(0, count)


def _repeated(value: str | int, count: int) -> pa.Array[Any]:
    # Not by pa.repeat: it imports pandas where that is installed, in each of Spark's Python processes.
    if isinstance(value, int):
        return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(value.to_bytes(4, "little") * count)])
    text = value.encode()
    ends = array("i", range(0, (count + 1) * len(text), len(text)))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(text * count)])


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
