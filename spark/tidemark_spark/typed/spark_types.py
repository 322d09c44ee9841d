# SPDX-License-Identifier: Apache-2.0
"""Columns of a topic's schema as Spark's types, and Arrow arrays in the form that Spark takes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, cast

import pyarrow as pa
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

Array = Any
Convert = Callable[[Array], Array]

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
        ValueError: the type is not that of the column, nor a struct of some of its fields.
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
                raise ValueError(f"the schema says {found} for the column {path!r}, which is {wanted}")
            yield path


def shaping(found: Any, wanted: Any) -> Convert:
    """A function that gives arrays of one type the names, order and nullability of another; copies no values."""
    if found.equals(wanted):
        return lambda array: array
    if isinstance(wanted, pa.StructType):
        return _struct_shaping(found, wanted)
    if isinstance(wanted, pa.MapType):
        entries = pa.struct([wanted.key_field, wanted.item_field])
        inner = shaping(pa.struct([found.key_field, found.item_field]), entries)
        return lambda array: _with_values(array, inner(array.values), wanted)
    if isinstance(wanted, pa.ListType):
        inner = shaping(found.value_type, wanted.value_type)
        return lambda array: _with_values(array, inner(array.values), wanted)
    return lambda array: array.cast(wanted)


def _struct_shaping(found: Any, wanted: Any) -> Convert:
    fields = list(wanted)
    places = [found.get_field_index(field.name) for field in fields]
    if -1 in places:  # the two fields of a map's entries
        places = list(range(len(fields)))
    parts = [shaping(found.field(place).type, field.type) for place, field in zip(places, fields, strict=True)]

    def convert(array: Array) -> Array:
        children = [part(array.field(place)) for part, place in zip(parts, places, strict=True)]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)

    return convert


def _with_values(array: Array, values: Array, wanted: Any) -> Array:
    return pa.Array.from_buffers(wanted, len(array), array.buffers()[:2], offset=array.offset, children=[values])


def ddl_of(fields: Sequence[StructField]) -> str:
    """Names and types, for a sentence."""
    return ", ".join(f"{field.name} {cast('Any', field.dataType).simpleString()}" for field in fields)
