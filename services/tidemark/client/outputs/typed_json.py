# SPDX-License-Identifier: Apache-2.0
"""Rows of typed topics as JSON, as `consume` and `log dump` print them and `produce` reads them.

JSON has fewer types. Decimals, dates and times are texts, binary values are texts in base64. Floats that JSON lacks are
the texts NaN, Infinity and -Infinity. A map is an object, whose members are texts; a map with a key twice is a list of
pairs. The text of a date or time is exact also outside of the years 1 to 9999, as ISO 8601 has it: -0044, +12013.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from tidemark.client.typed.batch_rows import SYSTEM_COLUMNS
from tidemark.client.typed.table_columns import is_binary, unnested
from tidemark.client.units import UNITS_US
from tidemark.core.schemas.arrow_types import is_list
from tidemark.model import UNIX_EPOCH

Convert = Callable[[Any], Any]
_DAY_US: Final = 86_400_000_000
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_LAST_DAY: Final = date.max.toordinal()
_DAYS_OF_400_YEARS: Final = 146_097
encode_json: Final = json.JSONEncoder(ensure_ascii=False).encode


def columns_of(rows: pa.Schema) -> list[str]:
    """Names of the columns of the topic, without system columns."""
    return [name for name in rows.names if name not in SYSTEM_COLUMNS]


def json_rows(rows: pa.RecordBatch, names: Sequence[str]) -> list[dict[str, Any]]:
    """A JSON object for each row, with these columns."""
    part = _with_plain_lists(rows.select(list(names)))
    found: list[dict[str, Any]] = _with_integers(part).to_pylist()
    for field in part.schema:
        convert = json_converter(field.type)
        if convert is not None:
            name = field.name
            for row in found:
                if row[name] is not None:
                    row[name] = convert(row[name])
    return found


def json_column(column: Any) -> list[Any]:
    """The values of a column as JSON."""
    column = _plain_lists(column)
    convert = json_converter(column.type)
    values: list[Any] = column.cast(_as_integers(column.type)).to_pylist()
    return values if convert is None else [None if one is None else convert(one) for one in values]


def json_converter(data_type: Any) -> Convert | None:
    """A function that makes JSON of a value that is not null, with dates and times as integers; None: the value is
    JSON.
    """
    if types.is_dictionary(data_type):
        return json_converter(data_type.value_type)
    if types.is_map(data_type):
        return _map_converter(data_type)
    if is_list(data_type):
        element = json_converter(data_type.value_type)
        return element and (lambda value: [None if one is None else element(one) for one in value])
    if types.is_struct(data_type):
        fields = [data_type.field(place) for place in range(data_type.num_fields)]
        parts = {field.name: made for field in fields if (made := json_converter(field.type)) is not None}
        return _struct_converter(parts) if parts else None
    if types.is_timestamp(data_type):
        return _time_converter(data_type.unit, "Z" if data_type.tz else "")
    return next((made for fits, made in _CONVERTERS if fits(data_type)), None)


def _map_converter(data_type: Any) -> Convert:
    key, item = json_converter(data_type.key_type) or _as_it_is, json_converter(data_type.item_type) or _as_it_is

    def convert(value: Any) -> dict[str, Any] | list[list[Any]]:
        pairs = [(key(name), None if one is None else item(one)) for name, one in value]
        found = {name if isinstance(name, str) else encode_json(name): one for name, one in pairs}
        return found if len(found) == len(pairs) else [list(pair) for pair in pairs]

    return convert


def _struct_converter(parts: dict[str, Convert]) -> Convert:
    def convert(value: Any) -> dict[str, Any]:
        return {name: parts[name](one) if name in parts and one is not None else one for name, one in value.items()}

    return convert


def _as_it_is(value: Any) -> Any:
    return value


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _time_converter(unit: str, zone: str) -> Convert:
    """A function that makes the text of a number of `unit` since 1970; `zone` is its end."""
    if unit == "ns":
        return lambda ns: f"{_local_time(ns // 1000)}{_digits_of(ns)}{zone}"
    factor = UNITS_US[unit]
    return lambda number: f"{_local_time(number * factor)}{zone}"


def _digits_of(ns: int) -> str:
    """The digits below a microsecond, which continue the text of the time; "" for none."""
    us, rest = divmod(ns, 1000)
    point = "" if us % 1_000_000 else ".000000"
    return f"{point}{rest:03d}" if rest else ""


def _local_time(us: int) -> str:
    days, of_day_us = divmod(us, _DAY_US)
    time = (UNIX_EPOCH + timedelta(microseconds=of_day_us)).time()
    return f"{_date(days)}T{time.isoformat()}"


def _date(days: int) -> str:
    """The date in ISO 8601, in Python's calendar, which repeats every 400 years."""
    ordinal = days + _EPOCH_DAY
    if 1 <= ordinal <= _LAST_DAY:
        return date.fromordinal(ordinal).isoformat()
    rounds, within = divmod(ordinal - 1, _DAYS_OF_400_YEARS)
    found = date.fromordinal(within + 1)
    return f"{found.year + 400 * rounds:+05d}{found.isoformat()[4:]}"


def _with_plain_lists(rows: pa.RecordBatch) -> pa.RecordBatch:
    if not any(_has_views(field.type) for field in rows.schema):
        return rows
    return pa.RecordBatch.from_arrays([_plain_lists(column) for column in rows.columns], names=rows.schema.names)


def _plain_lists(array: Any) -> Any:
    """The same values without list views, which Arrow does not cast, or casts with another value."""
    found = array.type
    if not _has_views(found):
        return array
    if is_list(found):
        offsets, values = unnested(array)
        return pa.ListArray.from_arrays(offsets, _plain_lists(values), mask=array.is_null())
    if types.is_struct(found):
        parts = [_plain_lists(part) for part in array.flatten()]
        names = [found.field(place).name for place in range(found.num_fields)]
        return pa.StructArray.from_arrays(parts, names, mask=array.is_null())
    offsets, items = unnested(array.cast(pa.list_(pa.struct([found.key_field, found.item_field]))))
    key, item = items.flatten()
    return pa.MapArray.from_arrays(offsets, key, _plain_lists(item), mask=array.is_null())


def _has_views(found: Any) -> bool:
    if types.is_list_view(found) or types.is_large_list_view(found):
        return True
    if not (types.is_nested(found) and found.num_fields):
        return False
    return any(_has_views(found.field(place).type) for place in range(found.num_fields))


def _with_integers(rows: pa.RecordBatch) -> pa.RecordBatch:
    schema = pa.schema([field.with_type(_as_integers(field.type)) for field in rows.schema])
    return rows if schema.equals(rows.schema) else rows.cast(schema)


def _as_integers(data_type: Any) -> Any:
    """The type with integers in place of dates and timestamps, also without a dictionary of such values."""
    if types.is_timestamp(data_type):
        return pa.int64()
    if types.is_date(data_type):
        return pa.int32()
    if types.is_dictionary(data_type):
        made = _as_integers(data_type.value_type)
        return data_type if made == data_type.value_type else made
    if types.is_map(data_type):
        key = data_type.key_field.with_type(_as_integers(data_type.key_type))
        return pa.map_(key, data_type.item_field.with_type(_as_integers(data_type.item_type)))
    if is_list(data_type):
        return pa.list_(data_type.value_field.with_type(_as_integers(data_type.value_type)))
    if types.is_struct(data_type):
        fields = [data_type.field(place) for place in range(data_type.num_fields)]
        return pa.struct([field.with_type(_as_integers(field.type)) for field in fields])
    return data_type


_CONVERTERS: Final[tuple[tuple[Callable[[Any], bool], Convert], ...]] = (
    (types.is_decimal, str),
    (types.is_floating, _number),
    (is_binary, lambda value: base64.b64encode(value).decode()),
    (types.is_date, _date),
)
