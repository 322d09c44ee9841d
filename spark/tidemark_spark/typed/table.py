# SPDX-License-Identifier: Apache-2.0
"""The columns that a read of a typed topic gives, and how each task makes them of typed batches.

A read has the newest version of the schema at the time of `load`. Batches of every other version become rows of that
version. A task asks for the columns that it needs; the broker leaves the others out.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from tidemark.client.typed.batch_rows import BatchRows
from tidemark.core.schemas.column_paths import selected
from tidemark.core.schemas.model import TopicSchema
from tidemark.model import TidemarkError

from tidemark_spark.compat import arrow_schema
from tidemark_spark.typed.filters import Mask, masks
from tidemark_spark.typed.spark_types import Convert, paths_in, shaping, spark_field
from tidemark_spark.typed.topic import TypedTopic

KEY, PARTITION, OFFSET, TIMESTAMP, HEADERS = "_key", "_partition", "_offset", "_timestamp", "_headers"
DELETED: Final = "_deleted"
METADATA: Final[dict[str, DataType]] = {
    KEY: BinaryType(),
    PARTITION: IntegerType(),
    OFFSET: LongType(),
    TIMESTAMP: TimestampType(),
    HEADERS: ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
    DELETED: BooleanType(),
}
"""Columns of every typed topic. `_deleted` says which rows delete the earlier rows of their key."""
_ALL: Final = (KEY, PARTITION, OFFSET, TIMESTAMP, HEADERS)


def table_schema(topic: TypedTopic, columns: str | None, metadata: str | None) -> StructType:
    """The schema of a read that gives none itself.

    Args:
        topic: the topic.
        columns: option `columns`: names or paths of columns, metadata columns too; None: all.
        metadata: option `metadataColumns`: true, false, or names.

    Raises:
        ValueError: names no column; says which there are.
    """
    added = _metadata_names(metadata)
    if columns is None:
        return StructType([*map(spark_field, topic.newest.columns), *map(_metadata_field, added)])
    asked = [name.strip() for name in columns.split(",") if name.strip()]
    if not asked:
        raise ValueError(f"option 'columns' names none; topic {topic.name} has {_names(topic.newest)}")
    paths = [name for name in asked if name not in METADATA]
    try:
        found = selected(topic.newest, paths) if paths else ()
    except TidemarkError as error:
        raise ValueError(f"option 'columns': topic {topic.name}: {error.message}") from None
    named = [name for name in asked if name in METADATA]
    order = {column.name: at for at, column in reversed(list(enumerate(_first_names(found, paths))))}
    fields = sorted(map(spark_field, found), key=lambda field: order.get(field.name, len(order)))
    return StructType([*fields, *map(_metadata_field, dict.fromkeys([*named, *added]))])


def _first_names(found: Sequence[Any], paths: Sequence[str]) -> list[Any]:
    """The columns in the order in which the paths name them."""
    by_path = []
    for path in paths:
        by_path += [column for column in found if path == column.name or path.startswith(f"{column.name}.")]
    return by_path


def _metadata_names(text: str | None) -> Sequence[str]:
    word = (text or "false").strip()
    if word.lower() in ("true", "false"):
        return _ALL if word.lower() == "true" else ()
    names = [name.strip() for name in word.split(",") if name.strip()]
    for name in names:
        if name not in METADATA:
            raise ValueError(
                f"option 'metadataColumns' names {name!r}; want true, false or some of {', '.join(METADATA)}"
            )
    return names


def _metadata_field(name: str) -> StructField:
    return StructField(name, METADATA[name], name in (KEY, HEADERS))


def _names(schema: TopicSchema) -> str:
    return ", ".join(column.name for column in schema.columns)


class TypedTable:
    """The columns of a read. It goes to tasks with its topic, columns and filters only.

    Args:
        topic: the topic, with the versions that are known.
        schema: the columns that Spark expects.
        filters: filters of the query; rows that do not pass them are left out where that is sure.

    Raises:
        ValueError: the topic has no such column, or one of another type.
    """

    def __init__(self, topic: TypedTopic, schema: StructType, filters: Sequence[Any] = ()) -> None:
        self.topic = topic
        self.schema = schema
        self.filters = tuple(filters)
        self._paths = _paths(topic, schema)
        self._masks: list[Mask] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """State that is sent to tasks."""
        return {"topic": self.topic, "schema": self.schema, "filters": self.filters}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def filtered(self, filters: Sequence[Any]) -> TypedTable:
        """The same columns, with filters."""
        return TypedTable(self.topic, self.schema, filters)

    @functools.cached_property
    def rows(self) -> BatchRows:
        """Makes rows of batches: columns of the schema by their names, the wanted metadata columns, and `_offset`."""
        newest = self.topic.newest
        names = [field.name for field in self.schema.fields if field.name in METADATA and field.name != PARTITION]
        system = list(dict.fromkeys([*names, OFFSET]))
        whole = bool(self._paths) and selected(newest, self._paths) == newest.columns
        return BatchRows(
            self.topic.name,
            self.topic.versions,
            None if whole else [*self._paths, *system],
            system=system,
            dictionaries=False,
            version=newest.version,
        )

    def passing(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that may pass the filters of the query."""
        if not self.filters:
            return rows
        if self._masks is None:
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


def _paths(topic: TypedTopic, schema: StructType) -> list[str]:
    by_name = {column.name: column for column in topic.newest.columns}
    found: list[str] = []
    for field in schema.fields:
        kind = METADATA.get(field.name)
        if kind is not None:
            if kind.simpleString() != field.dataType.simpleString():
                text = f"{field.dataType.simpleString()} for the column {field.name!r}, which is {kind.simpleString()}"
                raise ValueError(f"the schema says {text}")
        elif field.name in by_name:
            try:
                found += paths_in(field.dataType, by_name[field.name])
            except ValueError as error:
                raise ValueError(f"topic {topic.name}, schema version {topic.newest.version}: {error}") from None
        else:
            raise ValueError(
                f"the schema has a column {field.name!r}; topic {topic.name} has {_names(topic.newest)} in version "
                f"{topic.newest.version} of its schema, and {', '.join(METADATA)}"
            )
    return found


def _shaped(field: pa.Field[Any]) -> Callable[[pa.RecordBatch], Any]:
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
