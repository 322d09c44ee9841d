# SPDX-License-Identifier: Apache-2.0
"""Values of JSON and of CSV cells as Python values of a typed topic's columns. Pure.

Texts represent types that JSON and CSV lack: decimals, dates, times, binary in base64. A time without a zone is UTC.
Values of another type pass through, so that the check of the row refuses them.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal as Number
from decimal import InvalidOperation
from typing import Any, Final

from tidemark.client.typed.mismatches import MisfitError, shown_value
from tidemark.client.units import UNITS_US
from tidemark.core.schemas.defaults import FINER
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
from tidemark.model import DECIMAL_TEXT, UNIX_EPOCH, decimal_number

Convert = Callable[[Any], Any]
_NUMBER: Final = re.compile(r"-?\d{1,100}(\.\d{1,100})?", re.ASCII)
_NUMBERS: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_SPECIAL: Final = re.compile(r"\s*[+-]?(nan|inf|infinity)\s*", re.ASCII | re.IGNORECASE)
_LIMIT: Final = 2**64
"""Above every integer of a column, and every instant. Python would need hours to make an integer of 1e999999999."""
_BOOLS: Final = {"true": True, "1": True, "false": False, "0": False}


def json_reader(column_type: ColumnType, unit: str) -> Convert | None:
    """A function that makes a value of the column of a JSON value that is not null; None: the values need no
    conversion.

    The function raises MisfitError.

    Args:
        column_type: type of the column.
        unit: of numbers in a column of times, since 1970: a key of UNITS_US.
    """
    match plain_type(column_type):
        case ListOf(element):
            inner = json_reader(element.type, unit)
            return inner and (lambda value: _list_of(value, element, inner))
        case MapOf(key, item):
            return lambda value: _map_of(value, key, item, unit)
        case StructOf(columns):
            parts = {column.name: made for column in columns if (made := json_reader(column.type, unit)) is not None}
            return (lambda value: _struct_of(value, parts)) if parts else None
        case Decimal(precision, scale):
            return lambda value: _decimal(value, f"decimal({precision},{scale})")
        case Primitive.TIMESTAMP:
            return lambda value: _instant(value, unit)
        case other:
            return _OF_JSON.get(other)


def text_reader(column_type: ColumnType, unit: str) -> Convert:
    """A function that makes a value of the column of a text that is not empty; see `json_reader`."""
    plain = plain_type(column_type)
    if isinstance(plain, ListOf | MapOf | StructOf):
        inner = json_reader(plain, unit) or _as_it_is
        return lambda text: inner(parse_json(text, exact=True))
    if plain in INT_BITS:
        return lambda text: _integer(text, plain)
    of_json = json_reader(plain, unit) or _as_it_is
    match plain:
        case Primitive.BOOL:
            return _bool
        case Primitive.FLOAT32 | Primitive.FLOAT64:
            return lambda text: _float(text, plain)
        case Primitive.TIMESTAMP:
            return lambda text: of_json(_number_of(text))
        case _:
            return of_json


def parse_json(text: str | bytes, *, exact: bool) -> Any:
    """The document; `exact`: fractions become decimals. Raises MisfitError."""
    try:
        return json.loads(text, parse_float=Number if exact else None, parse_constant=_NUMBERS.__getitem__)
    except json.JSONDecodeError as error:
        raise MisfitError(f"not JSON: {error.msg} at column {error.colno}") from None
    except UnicodeDecodeError:
        raise MisfitError("not JSON: not UTF-8") from None
    except (RecursionError, ValueError, InvalidOperation) as error:  # a number with too many digits
        raise MisfitError(f"not JSON that can be read: {error}") from None


def parse_shown(text: bytes) -> Any:
    """The document for a file of rows that do not fit; numbers that JSON or a float lacks are texts. Raises as json."""
    return json.loads(text, parse_float=_shown_number, parse_constant=str)


def _shown_number(text: str) -> float | str:
    number = float(text)
    try:
        return number if math.isfinite(number) and Number(repr(number)) == Number(text) else text
    except InvalidOperation:
        return text


def _as_it_is(value: Any) -> Any:
    return value


def _number_of(text: str) -> int | Number | str:
    """The number that a text is, such as 1357016400.5; another text unchanged."""
    found = _NUMBER.fullmatch(text)
    return text if found is None else Number(text) if found[1] else int(text)


# -- nested values -----------------------------------------------------------------------------------------------------


def _list_of(value: Any, element: Column, inner: Convert) -> Any:
    if not isinstance(value, list):
        return value
    try:
        return [None if one is None else inner(one) for one in value]
    except MisfitError as misfit:
        raise misfit.below(element.name) from None


def _struct_of(value: Any, parts: Mapping[str, Convert]) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: converted(name, one, parts.get(name)) for name, one in value.items()}


def converted(name: str, value: Any, convert: Convert | None) -> Any:
    """A value of the column of that name; raises MisfitError."""
    if convert is None or value is None:
        return value
    try:
        return convert(value)
    except MisfitError as misfit:
        raise misfit.below(name) from None


def _map_of(value: Any, key: Column, item: Column, unit: str) -> Any:
    of_item = json_reader(item.type, unit)
    if isinstance(value, dict):
        of_key = text_reader(key.type, unit)
        return [(converted(key.name, k, of_key), converted(item.name, v, of_item)) for k, v in value.items()]
    if isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        of_key_json = json_reader(key.type, unit)
        return [(converted(key.name, k, of_key_json), converted(item.name, v, of_item)) for k, v in value]
    return value


# -- plain values ------------------------------------------------------------------------------------------------------


def _other(value: object, wanted: str) -> MisfitError:
    return MisfitError(f"{shown_value(value)} is not a valid {wanted}")


def _bool(text: str) -> bool:
    found = _BOOLS.get(text.lower())
    if found is None:
        raise MisfitError(f"{shown_value(text)} is not a bool: expected true or false")
    return found


def _integer(text: str, wanted: str) -> int:
    number = _whole(_exact(text))
    if isinstance(number, int):
        return number
    raise _other(text, wanted)


def _exact(text: str) -> Number | None:
    """The number that a text states; None for another text, and one beyond the range of decimals."""
    try:
        return Number(text) if DECIMAL_TEXT.fullmatch(text.strip()) else None
    except InvalidOperation:
        return None


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 5.0 is the integer 5."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, Number) and value.is_finite() and -_LIMIT < value < _LIMIT and value == int(value):
        return int(value)
    return value


def _float(text: str, wanted: str) -> float:
    number = float(text) if _SPECIAL.fullmatch(text) else decimal_number(text.strip())
    if number is None:
        raise _other(text, wanted)
    return number


def _json_float(value: Any) -> Any:
    if isinstance(value, str):
        return _NUMBERS.get(value, value)
    number = float(value) if isinstance(value, Number) else value
    if isinstance(number, float) and math.isinf(number) and all(value is not one for one in _NUMBERS.values()):
        raise MisfitError("the number is too large for a float")
    return number


def _decimal(value: Any, wanted: str) -> Any:
    if not isinstance(value, str | float):
        return value
    number = _exact(str(value))
    if number is None:
        raise _other(value, wanted)
    return number


def _binary(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise MisfitError(f"{shown_value(value)} is not base64, as binary values are written in texts") from None


def _date(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise MisfitError(f"{shown_value(value)} is not a date such as 2013-01-01") from None


def _instant(value: Any, unit: str) -> Any:
    if isinstance(value, str):
        found = _moment(value)
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    if isinstance(value, int | float | Number) and not isinstance(value, bool):
        try:
            if -_LIMIT < value < _LIMIT:
                return UNIX_EPOCH + timedelta(microseconds=round(value * UNITS_US[unit]))
            raise OverflowError
        except OverflowError:
            raise MisfitError(
                f"{shown_value(value)} {unit} since 1970 is outside of the years 1 to 9999: --timestamp-unit names "
                "another unit"
            ) from None
    return value


def _local(value: Any) -> Any:
    return _moment(value) if isinstance(value, str) else value


def _moment(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise MisfitError(f"{shown_value(text)} is not a time such as 2013-01-01T05:00:00Z") from None
    if FINER.search(text):
        raise MisfitError(f"{shown_value(text)} is not a whole number of microseconds")
    return found


_OF_JSON: Final[Mapping[ColumnType, Convert]] = {
    **dict.fromkeys(INT_BITS, _whole),
    Primitive.FLOAT32: _json_float,
    Primitive.FLOAT64: _json_float,
    Primitive.BINARY: _binary,
    Primitive.DATE: _date,
    Primitive.TIMESTAMP_NTZ: _local,
}
