# SPDX-License-Identifier: Apache-2.0
"""Checks a DataFrame against the schema of its topic before the first task, and prepares rows for the producer. Pure.

Columns belong together by their names. A type that holds more than the column's is refused here. Nulls, and values
below the limits of a type, are the producer's to check (`tidemark.client.typed`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)
from tidemark.client.suggestions import nearest
from tidemark.core.schemas.model import Column, ListOf, MapOf, StructOf, TopicSchema

from tidemark_spark.sink.rows import header_maps
from tidemark_spark.typed.spark_types import spark_type
from tidemark_spark.typed.topic import TypedTopic

PARTITION: Final = "_partition"
TIMESTAMP: Final = "_timestamp"
HEADERS: Final = "_headers"
DELETED: Final = "_deleted"
_DERIVED: Final = frozenset({"_key", "_offset"})
"""Columns of a read that a write cannot set."""
_HEADERS_TYPE: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_OWN: Final = {PARTITION: "int", TIMESTAMP: "timestamp", HEADERS: _HEADERS_TYPE.simpleString(), DELETED: "boolean"}
_WIDER: Final[dict[type[DataType], int]] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_INT_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 19}
_EXACT_IN_DOUBLE_BITS: Final = 32


def check_table(schema: StructType, topic: TypedTopic) -> None:
    """Check that rows of this schema can be written; ValueError names topic, version and column."""
    newest = topic.schema
    by_name = {column.name: column for column in newest.columns}
    where = f"topic {topic.name}, schema version {newest.version}"
    for field in schema.fields:
        if field.name in _DERIVED:
            continue
        if field.name in _OWN:
            _check_own(field, newest, where)
        elif field.name not in by_name:
            similar = nearest(field.name, list(by_name))
            hint = f"did you mean {similar}?" if similar else "drop it, or add it to the schema first"
            raise ValueError(f"{where}: the schema has no column {field.name!r}: {hint}")
        else:
            _check_type(field.dataType, by_name[field.name], field.name, where)
    _check_missing([field.name for field in schema.fields], newest.columns, "", where)


def _check_own(field: StructField, newest: TopicSchema, where: str) -> None:
    found = field.dataType.simpleString()
    if found != _OWN[field.name]:
        raise ValueError(f"{where}: column {field.name!r} is {found}; expected {_OWN[field.name]}")


def _check_missing(names: Sequence[str], columns: Sequence[Column], above: str, where: str) -> None:
    for column in columns:
        if column.name not in names and not column.nullable and column.default is None:
            raise ValueError(
                f"{where}: the table lacks the column {above + column.name!r}, which is never null and has no default"
            )


def _check_type(given: DataType, column: Column, path: str, where: str) -> None:
    match given, column.type:
        case StructType(), StructOf(columns):
            by_name = {child.name: child for child in columns}
            for field in given.fields:
                if field.name not in by_name:
                    raise ValueError(
                        f"{where}: column {path!r} has no field {field.name!r}; it has {', '.join(by_name)}"
                    )
                _check_type(field.dataType, by_name[field.name], f"{path}.{field.name}", where)
            _check_missing([field.name for field in given.fields], columns, f"{path}.", where)
        case ArrayType(), ListOf(element):
            _check_type(given.elementType, element, f"{path}.element", where)
        case MapType(), MapOf(key, value):
            _check_type(given.keyType, key, f"{path}.key", where)
            _check_type(given.valueType, value, f"{path}.value", where)
        case _:
            wanted = spark_type(column.type)
            if not _fits(given, wanted, column):
                raise ValueError(
                    f"{where}: column {path!r} is {given.simpleString()} in the table and {wanted.simpleString()} "
                    f"in the schema: cast it first"
                )


def _fits(given: DataType, wanted: DataType, column: Column) -> bool:
    """Whether every value of one type is a value of the other."""
    if isinstance(given, NullType):
        return column.nullable
    if isinstance(given, StringType | VarcharType) and isinstance(wanted, StringType):
        return True
    bits = _WIDER.get(type(given))
    if isinstance(wanted, DecimalType):
        if isinstance(given, DecimalType):
            digits, scale = given.precision - given.scale, given.scale
        else:
            digits, scale = _INT_DIGITS.get(bits or 0, 99), 0
        return digits <= wanted.precision - wanted.scale and scale <= wanted.scale
    if bits is not None and isinstance(wanted, DoubleType):
        return bits <= _EXACT_IN_DOUBLE_BITS
    if bits is not None:
        return bits <= _WIDER.get(type(wanted), 0)
    if isinstance(given, FloatType) and isinstance(wanted, DoubleType):
        return True
    return given.simpleString() == wanted.simpleString()


def parted(batches: Sequence[pa.RecordBatch]) -> Iterator[tuple[int | None, pa.Table]]:
    """Rows for the producer by the partition that they name; None: the key decides, or no partition is named.

    Raises:
        ValueError: a header has no name.
    """
    table = pa.Table.from_batches(list(batches))
    table = table.drop_columns([name for name in table.column_names if name in _DERIVED])
    if DELETED in table.column_names and pc.any(table.column(DELETED)).as_py() is False:
        table = table.drop_columns([DELETED])  # so that a schema without a key takes it, too
    if HEADERS in table.column_names:
        place = table.column_names.index(HEADERS)
        table = table.set_column(place, HEADERS, header_maps(table.column(HEADERS).combine_chunks()))
    if PARTITION not in table.column_names:
        yield None, table
        return
    named: Any = table.column(PARTITION).combine_chunks()
    rows = table.drop_columns([PARTITION])
    for value in named.unique():
        number = value.as_py()
        yield number, rows.filter(named.is_null() if number is None else pc.equal(named, value))
