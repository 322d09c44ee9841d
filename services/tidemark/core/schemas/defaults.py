# SPDX-License-Identifier: Apache-2.0
"""Default values of columns: checks that a value fits the type, and the form of a value in JSON."""

from __future__ import annotations

import base64
import binascii
import datetime
import decimal
import math
import re
from collections.abc import Callable, Mapping
from typing import Final

from tidemark.core.schemas.model import (
    INT_BITS,
    ColumnType,
    Decimal,
    DefaultValue,
    ListOf,
    MapOf,
    Primitive,
    StructOf,
    plain_type,
)
from tidemark.core.schemas.refusals import shown

FLOAT32_MAX: Final = (2 - 2**-23) * 2.0**127
EXACT: Final = decimal.Context(prec=80, traps=[decimal.InvalidOperation, decimal.Inexact])
FINER: Final = re.compile(r"[.,]\d{6}\d*[1-9]")
"""Matches the text of a time that is more precise than microseconds."""
Json = str | int | float | bool | list[object] | dict[str, object]


def fitted(column_type: ColumnType, value: object) -> DefaultValue:
    """A value as the default of a column, from Python, JSON or YAML.

    Binary, date, timestamps and decimals may be texts: base64, ISO 8601, digits.

    Raises:
        ValueError: the value does not fit; the text is the reason.
    """
    column_type = plain_type(column_type)
    match column_type:
        case ListOf() | MapOf():
            if isinstance(value, list | tuple | Mapping) and not value:
                return ()
            raise ValueError("the default of a list or map can only be empty")
        case StructOf():
            raise ValueError("a struct has no default; give defaults to its columns, or make the struct nullable")
        case Decimal():
            return _fit_decimal(column_type, value)
        case Primitive() as primitive:
            return _fit_primitive(primitive, value)
        case _:
            raise AssertionError(column_type)


def as_json(column_type: ColumnType, value: DefaultValue) -> Json:
    """A fitted default as JSON, in the form that `fitted` accepts."""
    match value:
        case ():
            return {} if isinstance(column_type, MapOf) else []
        case bytes():
            return base64.b64encode(value).decode("ascii")
        case decimal.Decimal():
            return format(value, "f")
        case datetime.datetime():
            return value.isoformat().replace("+00:00", "Z")
        case datetime.date():
            return value.isoformat()
        case bool() | int() | float() | str():
            return value
        case _:
            raise AssertionError(value)


def _fit_primitive(primitive: Primitive, value: object) -> DefaultValue:
    try:
        return _FITTERS[primitive](primitive, value)
    except (OverflowError, decimal.DecimalException, binascii.Error, UnicodeEncodeError):
        raise _unfit(primitive, value) from None


def _fit_decimal(column_type: Decimal, value: object) -> decimal.Decimal:
    name = f"decimal({column_type.precision},{column_type.scale})"
    if isinstance(value, bool) or not isinstance(value, int | float | str | decimal.Decimal):
        raise _unfit(name, value)
    try:
        number = decimal.Decimal(repr(value) if isinstance(value, float) else value)
        number = number.quantize(decimal.Decimal(1).scaleb(-column_type.scale), context=EXACT)
    except (decimal.DecimalException, ValueError):
        raise _unfit(name, value) from None
    if not number.is_finite() or len(number.as_tuple().digits) > column_type.precision:
        raise _unfit(name, value)
    return abs(number) if number.is_zero() else number


def _fit_bool(primitive: Primitive, value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise _unfit(primitive, value)


def _fit_int(primitive: Primitive, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        limit = 1 << (INT_BITS[primitive] - 1)
        if -limit <= value < limit:
            return int(value)
        raise ValueError(f"the default is outside of {primitive}: give {-limit} to {limit - 1}")
    raise _unfit(primitive, value)


def _fit_float(primitive: Primitive, value: object) -> float:
    if isinstance(value, int | float | decimal.Decimal) and not isinstance(value, bool):
        number = float(value) + 0.0  # -0.0 and 0.0 are equal, and have the same text
        if math.isfinite(number) and (primitive is Primitive.FLOAT64 or abs(number) <= FLOAT32_MAX):
            return number
        raise ValueError(f"the default is not a finite number of {primitive}")
    raise _unfit(primitive, value)


def _fit_string(primitive: Primitive, value: object) -> str:
    if isinstance(value, str):
        value.encode()
        return str(value)
    raise _unfit(primitive, value)


def _fit_binary(primitive: Primitive, value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return base64.b64decode(value.encode(), validate=True)
    raise _unfit(primitive, value)


def _fit_date(primitive: Primitive, value: object) -> datetime.date:
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value
    if isinstance(value, str):
        try:
            return datetime.date.fromisoformat(value)
        except ValueError:
            raise ValueError(f"the default {shown(value)!r} is not a date such as 2026-11-24") from None
    raise _unfit(primitive, value)


def _fit_datetime(primitive: Primitive, value: object) -> datetime.datetime:
    if isinstance(value, str):
        text = value
        try:
            value = datetime.datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(
                f"the default {shown(text)!r} is not a date and time such as 2026-11-24T22:14:00"
            ) from None
        if FINER.search(text):
            raise ValueError(f"the default {shown(text)!r} is not a whole number of microseconds")
    if not isinstance(value, datetime.datetime):
        raise _unfit(primitive, value)
    if primitive is Primitive.TIMESTAMP_NTZ:
        if value.tzinfo is not None:
            raise ValueError("the default of a timestamp_ntz has no time zone; omit it, or use timestamp")
        return value
    if value.tzinfo is None:
        raise ValueError("the default of a timestamp needs a time zone: end it with Z, or use timestamp_ntz")
    return value.astimezone(datetime.UTC)


def _unfit(name: str, value: object) -> ValueError:
    try:
        text = shown(repr(value))
    except (ValueError, RecursionError):  # an int with more digits than Python prints
        text = "of that size"
    return ValueError(f"the default {text} is not a value of {name}")


_FITTERS: Final[Mapping[Primitive, Callable[[Primitive, object], DefaultValue]]] = {
    Primitive.BOOL: _fit_bool,
    **dict.fromkeys(INT_BITS, _fit_int),
    Primitive.FLOAT32: _fit_float,
    Primitive.FLOAT64: _fit_float,
    Primitive.STRING: _fit_string,
    Primitive.BINARY: _fit_binary,
    Primitive.DATE: _fit_date,
    Primitive.TIMESTAMP: _fit_datetime,
    Primitive.TIMESTAMP_NTZ: _fit_datetime,
}
