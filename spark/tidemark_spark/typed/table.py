# SPDX-License-Identifier: Apache-2.0
"""The columns that a read of a typed topic returns, and their conversion from typed batches in each task.

A read has the newest version of the schema at the time of `load`. Batches of every other version become rows of that
version. A task requests the columns that it needs; the broker omits all other columns.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructType
from tidemark.core.schemas.column_paths import selected

from tidemark_spark.compat import arrow_schema
from tidemark_spark.typed.read_schema import HEADERS, METADATA, OFFSET, PARTITION, TIMESTAMP, paths_of
from tidemark_spark.typed.topic import TypedTopic

if TYPE_CHECKING:
    from tidemark.client.typed.batch_rows import BatchRows

    from tidemark_spark.typed.filters import Mask
    from tidemark_spark.typed.shapes import Convert


class TypedTable:
    """The columns of a read. The table goes to tasks with its topic, columns and filters only.

    Args:
        topic: the topic, with the versions that are known.
        schema: the columns that Spark expects.
        filters: filters of the query; rows that do not pass them are omitted where that is sure.

    Raises:
        ValueError: the topic has no such column, or the column has another type.
    """

    def __init__(self, topic: TypedTopic, schema: StructType, filters: Sequence[Any] = ()) -> None:
        self.topic = topic
        self.schema = schema
        self.filters = tuple(filters)
        self._paths = paths_of(topic, schema)
        self._masks: list[Mask] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """State that is sent to tasks."""
        return {"topic": self.topic, "schema": self.schema, "filters": self.filters}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def filtered(self, filters: Sequence[Any]) -> TypedTable:
        """The table with the same columns, and with filters."""
        return TypedTable(self.topic, self.schema, filters)

    @functools.cached_property
    def rows(self) -> BatchRows:
        """Makes rows of batches: columns of the schema by their names, and the wanted metadata columns."""
        from tidemark.client.typed.batch_rows import BatchRows  # in tasks: the driver only plans

        from tidemark_spark.typed.filters import times_of

        newest = self.topic.schema
        system = [field.name for field in self.schema.fields if field.name in METADATA and field.name != PARTITION]
        if not system and not self._paths:
            system = [OFFSET]  # for the number of rows
        whole = bool(self._paths) and selected(newest, self._paths) == newest.columns
        return BatchRows(
            self.topic.name,
            self.topic.versions,
            None if whole else [*self._paths, *system],
            system=system,
            dictionaries=False,
            version=newest.version,
            times=times_of(self.filters, self._time_columns()),
        )

    def _time_columns(self) -> set[str]:
        """The columns with the timestamps of rows; batches with append times, whose event times differ, are not
        omitted.
        """
        event_time = self.topic.schema.event_time_column
        return {TIMESTAMP} if event_time is None else {TIMESTAMP, event_time.name}

    def passing(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that may pass the filters of the query."""
        if not self.filters:
            return rows
        if self._masks is None:
            from tidemark_spark.typed.filters import masks

            self._masks = masks(self.filters, rows.schema)
        for mask in self._masks:
            rows = rows.filter(mask(rows))
        return rows

    def shaper(self, partition: int) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """A function from rows of one partition to batches for Spark."""
        wanted = arrow_schema(self.schema)
        makers: list[Callable[[pa.RecordBatch], Any]] = []
        for field in wanted:
            makers.append(_partitions(partition) if field.name == PARTITION else _shaped(field))

        def shape(rows: pa.RecordBatch) -> pa.RecordBatch:
            return pa.RecordBatch.from_arrays([make(rows) for make in makers], schema=wanted)

        return shape


def _shaped(field: pa.Field[Any]) -> Callable[[pa.RecordBatch], Any]:
    from tidemark_spark.typed.shapes import shaping

    convert: Convert | None = None

    def make(rows: pa.RecordBatch) -> Any:
        nonlocal convert
        array = rows.column(field.name)
        if convert is None:
            convert = _headers(field.type) if field.name == HEADERS else shaping(array.type, field.type)
        return convert(array)

    return make


def _headers(wanted: Any) -> Convert:
    """Maps as lists of (key, value): the same buffers, other field names."""
    return lambda array: array.cast(wanted)


def _partitions(partition: int) -> Callable[[pa.RecordBatch], Any]:
    # Not by pa.repeat: it imports an installed pandas in each of Spark's Python processes.
    def make(rows: pa.RecordBatch) -> Any:
        data = struct.pack("<i", partition) * rows.num_rows
        return pa.Array.from_buffers(pa.int32(), rows.num_rows, [None, pa.py_buffer(data)])

    return make
