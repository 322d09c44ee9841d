# SPDX-License-Identifier: Apache-2.0
"""Checks the values of one record against its columns, in Python's types: at `send`, so that the error arises there."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import math
import operator
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tidemark.client.suggestions import nearest
from tidemark.client.typed.mismatches import MisfitError, shown_value
from tidemark.core.schemas.defaults import EXACT, FLOAT32_MAX
from tidemark.core.schemas.model import (
    INT_BITS,
    Column,
    ColumnType,
    Decimal,
    ListOf,
    MapOf,
    Primitive,
    StructOf,
    plain_type,
)
from tidemark.model import UNIX_EPOCH

Convert = Callable[[Any], Any]
"""Returns the value as Arrow takes it; raises MisfitError."""

_FLOAT32: Final = struct.Struct("f")
FIRST: Final = datetime.datetime.min.replace(tzinfo=datetime.UTC)
"""The first instant that readers have, in the year 1 in UTC."""
LAST: Final = datetime.datetime.max.replace(tzinfo=datetime.UTC)
_STAND_INS: Final[dict[ColumnType, Any]] = {
    Primitive.BOOL: False,
    Primitive.STRING: "",
    Primitive.BINARY: b"",
    Primitive.DATE: UNIX_EPOCH.date(),
    Primitive.TIMESTAMP: UNIX_EPOCH,
    Primitive.TIMESTAMP_NTZ: UNIX_EPOCH.replace(tzinfo=None),
}
_NULL_FORBIDDEN: Final = "null, and the column is never null"


class Deletion(tuple[Any, ...]):
    """Values of a record that deletes the earlier rows of its key; readers see its key only."""


def converter(column: Column, kind: type) -> Convert | None:
    """The check of a column's values of one Python type; None: every value of that type is used unchanged.

    Raises:
        MisfitError: the column does not accept values of that type.
    """
    if kind is type(None):
        if column.nullable:
            return None
        raise MisfitError(_NULL_FORBIDDEN)
    if issubclass(kind, enum.Enum):
        return lambda value: checked(value.value, column)
    stored = plain_type(column.type)
    match stored:
        case StructOf(columns):
            return lambda value: struct_value(value, columns)
        case ListOf(element):
            return _list_converter(kind, element)
        case MapOf(key, value):
            return _map_converter(kind, key, value)
        case Decimal():
            return _decimal_converter(kind, stored)
        case Primitive():
            return _CONVERTERS[stored](kind, stored)
        case _:
            raise AssertionError(stored)


def checked(value: Any, column: Column) -> Any:
    """One value of a column, in the form that Arrow takes; raises MisfitError."""
    convert = converter(column, type(value))
    return value if convert is None else convert(value)


def struct_value(value: Any, columns: Sequence[Column]) -> dict[str, Any]:
    """A mapping, dataclass or model as a dict with every column, in their order; raises MisfitError."""
    given = fields_of(value)
    if given is None:
        raise MisfitError(f"{shown_value(value)} is a {type(value).__name__}: give a mapping, a dataclass or a model")
    found = {}
    for column in columns:
        try:
            found[column.name] = checked(given[column.name], column) if column.name in given else missing(column)
        except MisfitError as misfit:
            raise misfit.below(column.name) from None
    if len(given) > len(columns) or given.keys() - found.keys():
        raise superfluous(given, columns)
    return found


def fields_of(value: Any) -> Mapping[str, Any] | None:
    """The fields of a mapping, a dataclass, a named tuple or a pydantic model; None for any other object."""
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    names = getattr(type(value), "model_fields", None) or getattr(type(value), "_fields", None)
    return {name: getattr(value, name) for name in names} if names else None


def missing(column: Column) -> Any:
    """The value of a column that the record lacks: its default, or None; raises MisfitError."""
    if column.default is not None:
        return column.default.value
    if column.nullable:
        return None
    raise MisfitError("the record lacks the column, which is never null and has no default")


def superfluous(given: Mapping[str, Any], columns: Sequence[Column]) -> MisfitError:
    """The error for a record with fields that are not columns."""
    known = [column.name for column in columns]
    name = next(name for name in given if name not in known)
    similar = nearest(name, known) if isinstance(name, str) else None
    hint = f"did you mean {similar}?" if similar else "omit it, or add it to the schema first"
    return MisfitError(f"the schema has no such column: {hint}", [str(name)])


def stand_in(column: Column) -> Any:
    """A value of a column that is never null, for a row that deletes earlier rows: readers do not get this value."""
    match plain_type(column.type):
        case StructOf(columns):
            return {below.name: None if below.nullable else stand_in(below) for below in columns}
        case ListOf() | MapOf():
            return []
        case Decimal():
            return decimal.Decimal(0)
        case stored:
            return _STAND_INS.get(stored, 0)


def size_bytes(value: Any) -> int:
    """Approximate size of a value of any length in a batch, in bytes."""
    if isinstance(value, str | bytes):
        return len(value) + 4
    if isinstance(value, dict):
        return sum(map(size_bytes, value.values()))
    if isinstance(value, list | tuple):
        return 4 + sum(map(size_bytes, value))
    return 8


# -- nested values -----------------------------------------------------------------------------------------------------


def _list_converter(kind: type, element: Column) -> Convert:
    as_list = getattr(kind, "tolist", None)  # arrays of numpy
    if not issubclass(kind, list | tuple | set | frozenset) and as_list is None:
        raise _other(kind, "a list")

    def convert(value: Any) -> list[Any]:
        items = value if as_list is None else value.tolist()
        if as_list is not None and not isinstance(items, list):  # a scalar of numpy has the method, too
            raise _other(kind, "a list")
        try:
            return [checked(one, element) for one in items]
        except MisfitError as misfit:
            raise misfit.below(element.name) from None

    return convert


def _map_converter(kind: type, key: Column, value: Column) -> Convert:
    if not issubclass(kind, Mapping | list | tuple):
        raise _other(kind, "a mapping, or a list of pairs")

    def convert(given: Any) -> list[tuple[Any, Any]]:
        pairs = given.items() if isinstance(given, Mapping) else given
        found = []
        for pair in pairs:
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise MisfitError(f"{shown_value(pair)} is not a pair of key and value")
            found.append((_part(pair[0], key), _part(pair[1], value)))
        keys = [pair[0] for pair in found]
        if len(set(keys)) < len(keys):
            twice = next(one for place, one in enumerate(keys) if one in keys[:place])
            raise MisfitError(f"the map has the key {shown_value(twice)} twice", [key.name])
        return found

    return convert


def _part(value: Any, column: Column) -> Any:
    try:
        return checked(value, column)
    except MisfitError as misfit:
        raise misfit.below(column.name) from None


# -- plain values ------------------------------------------------------------------------------------------------------


def _bool_converter(kind: type, wanted: Primitive) -> Convert | None:
    if kind is bool:
        return None
    if kind.__name__ in ("bool", "bool_") and kind.__module__ == "numpy":
        return bool
    raise _other(kind, wanted)


def _int_converter(kind: type, wanted: Primitive) -> Convert:
    if issubclass(kind, bool) or not hasattr(kind, "__index__") or kind.__name__ == "bool_":
        raise _other(kind, wanted)
    high = (1 << (INT_BITS[wanted] - 1)) - 1
    low = -high - 1

    def convert(value: Any) -> Any:
        if low <= value <= high:
            return value
        raise MisfitError(f"{shown_value(value)} is outside of {wanted}: give {low} to {high}")

    def of_other_class(value: Any) -> Any:
        try:
            return convert(operator.index(value))
        except TypeError:  # an array of numpy has the method, too
            raise _other(kind, wanted) from None

    return convert if kind is int else of_other_class


def _float_converter(kind: type, wanted: Primitive) -> Convert | None:
    if kind is float and wanted is Primitive.FLOAT64:
        return None
    if issubclass(kind, bool) or not (issubclass(kind, float) or hasattr(kind, "__float__")) or issubclass(kind, str):
        raise _other(kind, wanted)
    if issubclass(kind, decimal.Decimal):
        raise _other(kind, wanted)
    limit = FLOAT32_MAX if wanted is Primitive.FLOAT32 else math.inf
    is_whole = hasattr(kind, "__index__")  # also an integer of numpy

    def convert(value: Any) -> float:
        try:
            number = float(value)
        except OverflowError:
            raise MisfitError(f"{shown_value(value)} is outside of {wanted}") from None
        except TypeError:
            raise _other(kind, wanted) from None
        if abs(number) > limit and math.isfinite(number):
            raise MisfitError(f"{shown_value(value)} is outside of {wanted}")
        if is_whole and int(_as_float32(number) if wanted is Primitive.FLOAT32 else number) != value:
            raise MisfitError(f"{shown_value(value)} does not fit {wanted} without a loss")
        return number

    return convert


def _as_float32(number: float) -> float:
    found: float = _FLOAT32.unpack(_FLOAT32.pack(number))[0]
    return found


def _string_converter(kind: type, wanted: Primitive) -> Convert:
    if issubclass(kind, uuid.UUID):
        return str
    if not issubclass(kind, str):
        raise _other(kind, wanted)

    def convert(value: str) -> str:
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise MisfitError(
                    f"{shown_value(value)} has half a surrogate pair, which UTF-8 cannot encode"
                ) from None
        return value

    def of_other_class(value: str) -> str:
        return convert(str.__str__(value))

    return convert if kind is str else of_other_class


def _binary_converter(kind: type, wanted: Primitive) -> Convert | None:
    if kind is bytes:
        return None
    if not issubclass(kind, bytes | bytearray | memoryview):
        raise _other(kind, wanted)
    return bytes


def _date_converter(kind: type, wanted: Primitive) -> Convert | None:
    if kind is datetime.date:
        return None
    if not issubclass(kind, datetime.date) or issubclass(kind, datetime.datetime):
        raise _other(kind, wanted)
    return lambda value: datetime.date(value.year, value.month, value.day)


def _instant_converter(kind: type, wanted: Primitive) -> Convert:
    if not issubclass(kind, datetime.datetime):
        raise _other(kind, "a datetime with a time zone")

    def convert(value: datetime.datetime) -> datetime.datetime:
        if value.tzinfo is None:
            raise MisfitError(f"{shown_value(value)} has no time zone: add one, for example with .astimezone()")
        if is_outside(value):
            raise MisfitError(f"{shown_value(value)} is outside of the years 1 to 9999 in UTC")
        return value

    return convert if kind is datetime.datetime else lambda value: convert(_as_datetime(value))


def is_outside(instant: datetime.datetime) -> bool:
    """Whether an instant is not of the years 1 to 9999 in UTC, which readers have: in its time zone it always is."""
    return not FIRST <= instant <= LAST


def _local_converter(kind: type, wanted: Primitive) -> Convert:
    if not issubclass(kind, datetime.datetime):
        raise _other(kind, "a datetime without a time zone")

    def convert(value: datetime.datetime) -> datetime.datetime:
        if value.tzinfo is not None:
            raise MisfitError(f"{shown_value(value)} has a time zone, the column {wanted} has none")
        return value

    return convert if kind is datetime.datetime else lambda value: convert(_as_datetime(value))


def _as_datetime(value: Any) -> datetime.datetime:
    """Convert a value of a subclass, such as pandas' Timestamp, which has nanoseconds and a missing value."""
    if value != value or getattr(value, "nanosecond", 0):
        raise MisfitError(f"{shown_value(value)} is not a whole number of microseconds")
    found: datetime.datetime = value.to_pydatetime() if hasattr(value, "to_pydatetime") else value
    return found


def _decimal_converter(kind: type, wanted: Decimal) -> Convert:
    name = f"decimal({wanted.precision},{wanted.scale})"
    if issubclass(kind, bool) or not issubclass(kind, decimal.Decimal | int):
        raise _other(kind, name)
    step = decimal.Decimal(1).scaleb(-wanted.scale)
    limit = decimal.Decimal(10) ** (wanted.precision - wanted.scale)

    def convert(value: Any) -> decimal.Decimal:
        try:
            number = decimal.Decimal(value).quantize(step, context=EXACT)
        except decimal.DecimalException:
            raise MisfitError(f"{shown_value(value)} does not fit {name} without a loss") from None
        if not number.is_finite() or number.copy_abs() >= limit:
            raise MisfitError(f"{shown_value(value)} is outside of {name}")
        return number

    return convert


def _other(kind: type, wanted: str) -> MisfitError:
    return MisfitError(f"a value of type {kind.__name__}, and the column is {wanted}")


_CONVERTERS: Final[dict[ColumnType, Callable[[type, Primitive], Convert | None]]] = {
    Primitive.BOOL: _bool_converter,
    **dict.fromkeys(INT_BITS, _int_converter),
    Primitive.FLOAT32: _float_converter,
    Primitive.FLOAT64: _float_converter,
    Primitive.STRING: _string_converter,
    Primitive.BINARY: _binary_converter,
    Primitive.DATE: _date_converter,
    Primitive.TIMESTAMP: _instant_converter,
    Primitive.TIMESTAMP_NTZ: _local_converter,
}
