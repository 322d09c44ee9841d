# SPDX-License-Identifier: Apache-2.0
"""Columns of a topic's schema as Spark's types. Pure; without pyarrow, since Spark asks for them in a new process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from tidemark.core.schemas.model import Column, ColumnType, Decimal, ListOf, MapOf, Primitive, StructOf, plain_type

_PRIMITIVES: Final[dict[Primitive, DataType]] = {
    Primitive.BOOL: BooleanType(),
    Primitive.INT8: ByteType(),
    Primitive.INT16: ShortType(),
    Primitive.INT32: IntegerType(),
    Primitive.INT64: LongType(),
    Primitive.FLOAT32: FloatType(),
    Primitive.FLOAT64: DoubleType(),
    Primitive.STRING: StringType(),
    Primitive.BINARY: BinaryType(),
    Primitive.DATE: DateType(),
    Primitive.TIMESTAMP: TimestampType(),
    Primitive.TIMESTAMP_NTZ: TimestampNTZType(),
}


def spark_type(column_type: ColumnType) -> DataType:
    """Spark's type of a column."""
    match plain_type(column_type):
        case Primitive() as primitive:
            return _PRIMITIVES[primitive]
        case Decimal(precision, scale):
            return DecimalType(precision, scale)
        case ListOf(element):
            return ArrayType(spark_type(element.type), element.nullable)
        case MapOf(key, value):
            return MapType(spark_type(key.type), spark_type(value.type), value.nullable)
        case StructOf(columns):
            return StructType([spark_field(column) for column in columns])
        case other:
            raise AssertionError(other)


def spark_field(column: Column) -> StructField:
    """Spark's field of a column; its doc is the comment."""
    metadata = {"comment": column.doc} if column.doc else None
    return StructField(column.name, spark_type(column.type), column.nullable, metadata)


def paths_in(given: DataType, column: Column, above: str = "") -> Iterator[str]:
    """Paths of the parts of a column that a read of this type needs.

    Raises:
        ValueError: the type is neither the column's type nor a struct of some of its fields.
    """
    path = f"{above}.{column.name}" if above else column.name
    match given, column.type:
        case StructType(), StructOf(columns):
            by_name = {child.name: child for child in columns}
            for field in given.fields:
                if field.name not in by_name:
                    raise ValueError(f"column {path!r} has no field {field.name!r}; it has {', '.join(by_name)}")
                yield from paths_in(field.dataType, by_name[field.name], path)
        case ArrayType(), ListOf(element):
            yield from paths_in(given.elementType, element, path)
        case _:
            wanted, found = spark_type(column.type).simpleString(), given.simpleString()
            if wanted != found:
                raise ValueError(f"the schema states {found} for the column {path!r}, which is {wanted}")
            yield path
