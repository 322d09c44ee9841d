# SPDX-License-Identifier: Apache-2.0
"""The columns of a version as a schema of Iceberg, with their ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from tidemark.client.tables.archive_files import SYSTEM_COLUMNS
from tidemark.core.schemas.model import Column, ColumnType, Decimal, ListOf, MapOf, Primitive, StructOf, plain_type
from tidemark.core.schemas.model import TopicSchema as Version
from tidemark.model import ErrorCode, TidemarkError

if TYPE_CHECKING:
    from pyiceberg.schema import Schema


def check_changes(now: Schema, wanted: Schema, version: Version) -> None:
    """Check that Iceberg allows these changes of a table's columns; raises INCOMPATIBLE_SCHEMA."""
    from pyiceberg.exceptions import ResolveError
    from pyiceberg.schema import promote
    from pyiceberg.types import PrimitiveType

    for field_id in set(now.field_ids) & set(wanted.field_ids):
        before, after = now.find_type(field_id), wanted.find_type(field_id)
        if before == after or not (isinstance(before, PrimitiveType) and isinstance(after, PrimitiveType)):
            continue
        try:
            promote(before, after)
        except ResolveError:
            path = wanted.find_column_name(field_id)
            raise TidemarkError(
                ErrorCode.INCOMPATIBLE_SCHEMA,
                f"version {version.version} of the schema makes column {path} {after} of {before}, which "
                f"Iceberg does not do",
                {"column": str(path), "version": str(version.version)},
            ) from None


def iceberg_schema(version: Version, schema_id: int = 0) -> Schema:
    """The columns of a version and SYSTEM_COLUMNS, with their ids; all may be null."""
    from pyiceberg.schema import Schema

    return Schema(*_fields((*version.columns, *SYSTEM_COLUMNS)), schema_id=schema_id)


def _fields(columns: Sequence[Column]) -> Iterator[Any]:
    from pyiceberg.types import NestedField

    for column in columns:
        yield NestedField(column.id, column.name, _type(column.type), required=False, doc=column.doc or None)


def _type(column_type: ColumnType) -> Any:
    from pyiceberg import types

    match plain_type(column_type):
        case Primitive() as primitive:
            return getattr(types, _TYPES[primitive])()
        case Decimal(precision, scale):
            return types.DecimalType(precision, scale)
        case ListOf(element):
            return types.ListType(element.id, _type(element.type), element_required=False)
        case MapOf(key, value):
            return types.MapType(key.id, _type(key.type), value.id, _type(value.type), value_required=False)
        case StructOf(columns):
            return types.StructType(*_fields(columns))
        case other:
            raise AssertionError(other)


_TYPES: Final = {
    Primitive.BOOL: "BooleanType",
    Primitive.INT8: "IntegerType",
    Primitive.INT16: "IntegerType",
    Primitive.INT32: "IntegerType",
    Primitive.INT64: "LongType",
    Primitive.FLOAT32: "FloatType",
    Primitive.FLOAT64: "DoubleType",
    Primitive.STRING: "StringType",
    Primitive.BINARY: "BinaryType",
    Primitive.DATE: "DateType",
    Primitive.TIMESTAMP: "TimestamptzType",
    Primitive.TIMESTAMP_NTZ: "TimestampType",
}
