# SPDX-License-Identifier: Apache-2.0
"""Columns that a batch lacks: their default or null. This module does not use pa.array or pa.scalar, which import
pandas.

If a struct is null, its columns that are never null still have a value: Parquet accepts no null there.
"""

from __future__ import annotations

import datetime
import decimal
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
from pyarrow import types

from tidemark.core.schemas.arrow_types import arrow_type
from tidemark.core.schemas.model import (
    INT_BITS,
    Column,
    ColumnType,
    Decimal,
    DefaultValue,
    Dictionary,
    ListOf,
    MapOf,
    Primitive,
    plain_type,
)
from tidemark.model import UNIX_EPOCH, microseconds_of

if TYPE_CHECKING:
    Array = pa.Array[Any]
else:
    Array = pa.Array

Fill = Callable[[int], Array]

_WIDTHS: Final = {Primitive.FLOAT32: "<f", Primitive.FLOAT64: "<d"}
_DECIMAL_BYTES: Final = 16
_DIGITS: Final = decimal.Context(prec=80)


def filler(column: Column, dictionaries: bool) -> Fill:
    """A function from a number of rows to a column that the batch lacks: its default, or null."""
    made = arrow_type(column.type, dictionaries)
    if column.default is None:
        return lambda count: nulls(made, count)
    if isinstance(column.type, ListOf | MapOf):
        return lambda count: _empty_ones(made, count)
    scalar = _one(column.type, column.default.value)[0]
    if isinstance(column.type, Dictionary) and dictionaries:
        return lambda count: cast("Any", pa.repeat(scalar, count)).dictionary_encode()
    return lambda count: pa.repeat(scalar, count)


def _one(column_type: ColumnType, value: DefaultValue) -> Array:
    """An array with one value, without pa.array, which imports an installed pandas: half a second."""
    plain = plain_type(column_type)
    made = arrow_type(plain)
    content = _bytes(plain, value)
    if plain in (Primitive.STRING, Primitive.BINARY):
        offsets = struct.pack("<ii", 0, len(content))
        return pa.Array.from_buffers(made, 1, [None, pa.py_buffer(offsets), pa.py_buffer(content)])
    return pa.Array.from_buffers(made, 1, [None, pa.py_buffer(content)])


def nulls(made: pa.DataType, count: int) -> Array:
    """An array of nulls of a type."""
    if not types.is_struct(made):
        return cast("Array", pa.nulls(count, cast("Any", made)))
    none_valid = pa.py_buffer(bytes((count + 7) // 8))
    return pa.Array.from_buffers(made, count, [none_valid], children=_below(made, count))


def _below(made: pa.DataType, count: int) -> list[Array]:
    """The columns of a struct without values: null, or zero where null is not allowed."""
    fields = [made.field(place) for place in range(made.num_fields)]
    return [nulls(field.type, count) if field.nullable else _zeros(field.type, count) for field in fields]


def _zeros(made: pa.DataType, count: int) -> Array:
    """An array of values that no reader sees: 0 or empty."""
    if types.is_struct(made):
        return pa.Array.from_buffers(made, count, [None], children=_below(made, count))
    if types.is_list(made) or types.is_map(made):
        return _empty_ones(made, count)
    if types.is_dictionary(made):
        values: Any = _zeros(cast("Any", made).value_type, count)
        return cast("Array", values.dictionary_encode())
    width = 32 if types.is_string(made) or types.is_binary(made) else cast("Any", made).bit_width
    buffers = [None, pa.py_buffer(bytes((count + 1) * width // 8 + 1))]
    if types.is_string(made) or types.is_binary(made):
        buffers.append(pa.py_buffer(b""))
    return pa.Array.from_buffers(made, count, buffers)


def _empty_ones(made: pa.DataType, count: int) -> Array:
    """An array of empty lists or maps."""
    none = nulls(made.field(0).type, 0)
    offsets = pa.py_buffer(bytes(4 * (count + 1)))
    return pa.Array.from_buffers(made, count, [None, offsets], children=[none])


def _bytes(plain: ColumnType, value: DefaultValue) -> bytes:
    """The bytes of a value as Arrow stores the value."""
    match value:
        case bool():
            return bytes([value])
        case str():
            return value.encode()
        case bytes():
            return value
        case decimal.Decimal():
            assert isinstance(plain, Decimal)
            unscaled = int(value.scaleb(plain.scale, _DIGITS))
            return unscaled.to_bytes(_DECIMAL_BYTES, "little", signed=True)
        case datetime.datetime():
            microseconds = microseconds_of(value.replace(tzinfo=value.tzinfo or datetime.UTC))
            return microseconds.to_bytes(8, "little", signed=True)
        case datetime.date():
            return (value - UNIX_EPOCH.date()).days.to_bytes(4, "little", signed=True)
        case int() | float():
            assert isinstance(plain, Primitive)
            return struct.pack(_WIDTHS[plain], value) if plain in _WIDTHS else _int_bytes(plain, int(value))
        case _:
            raise AssertionError(value)


def _int_bytes(plain: Primitive, value: int) -> bytes:
    return value.to_bytes(INT_BITS[plain] // 8, "little", signed=True)
