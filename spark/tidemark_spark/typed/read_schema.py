# SPDX-License-Identifier: Apache-2.0
"""The columns of a read of a typed topic, by its options. Pure; without pyarrow, as `spark_types`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

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
from tidemark.core.schemas.column_paths import selected
from tidemark.core.schemas.model import TopicSchema
from tidemark.model import TidemarkError

from tidemark_spark.typed.spark_types import paths_in, spark_field
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
"""Columns of every typed topic. `_deleted` states which rows delete the earlier rows of their key."""
_ALL: Final = (KEY, PARTITION, OFFSET, TIMESTAMP, HEADERS)


def table_schema(topic: TypedTopic, columns: str | None, metadata: str | None) -> StructType:
    """The schema of a read without a given schema.

    Args:
        topic: the topic.
        columns: option `columns`: names or paths of columns, metadata columns too; None: all.
        metadata: option `metadataColumns`: true, false, or names.

    Raises:
        ValueError: names no column; states which there are.
    """
    added = _metadata_names(metadata)
    if columns is None:
        return StructType([*map(spark_field, topic.schema.columns), *map(_metadata_field, added)])
    asked = [name.strip() for name in columns.split(",") if name.strip()]
    if not asked:
        raise ValueError(f"option 'columns' names none; topic {topic.name} has {_names(topic.schema)}")
    paths = [name for name in asked if name not in METADATA]
    try:
        found = selected(topic.schema, paths) if paths else ()
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
                f"option 'metadataColumns' names {name!r}; expected true, false or some of {', '.join(METADATA)}"
            )
    return names


def _metadata_field(name: str) -> StructField:
    return StructField(name, METADATA[name], name in (KEY, HEADERS))


def _names(schema: TopicSchema) -> str:
    return ", ".join(column.name for column in schema.columns)


def paths_of(topic: TypedTopic, schema: StructType) -> list[str]:
    """Paths of the topic's columns that a read with this schema needs.

    Raises:
        ValueError: the topic has no such column, or the column has another type.
    """
    by_name = {column.name: column for column in topic.schema.columns}
    found: list[str] = []
    for field in schema.fields:
        kind = METADATA.get(field.name)
        if kind is not None:
            if kind.simpleString() != field.dataType.simpleString():
                text = f"{field.dataType.simpleString()} for the column {field.name!r}, which is {kind.simpleString()}"
                raise ValueError(f"the schema states {text}")
        elif field.name in by_name:
            try:
                found += paths_in(field.dataType, by_name[field.name])
            except ValueError as error:
                raise ValueError(f"topic {topic.name}, schema version {topic.schema.version}: {error}") from None
        else:
            raise ValueError(
                f"the schema has a column {field.name!r}; topic {topic.name} has {_names(topic.schema)} in version "
                f"{topic.schema.version} of its schema, and {', '.join(METADATA)}"
            )
    return found
