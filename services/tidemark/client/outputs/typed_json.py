# SPDX-License-Identifier: Apache-2.0
"""Rows of typed topics as JSON, as `consume` and `log dump` print them and `produce` reads them.

JSON has fewer types. Decimals, dates and times are texts, binary values are texts in base64. Floats that JSON lacks are
the texts NaN, Infinity and -Infinity. A map is an object, whose members are texts; a map with a key twice is a list of
pairs.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from tidemark.client.typed.batch_rows import SYSTEM_COLUMNS

Convert = Callable[[Any], Any]
encode_json: Final = json.JSONEncoder(ensure_ascii=False).encode


def columns_of(rows: pa.Schema) -> list[str]:
    """Names of the columns of the topic, without system columns."""
    return [name for name in rows.names if name not in SYSTEM_COLUMNS]


def json_rows(rows: pa.RecordBatch, names: Sequence[str]) -> list[dict[str, Any]]:
    """A JSON object for each row, with these columns."""
    part = rows.select(list(names))
    found: list[dict[str, Any]] = part.to_pylist()
    for field in part.schema:
        convert = json_converter(field.type)
        if convert is not None:
            name = field.name
            for row in found:
                if row[name] is not None:
                    row[name] = convert(row[name])
    return found


def json_converter(data_type: Any) -> Convert | None:
    """A function that makes JSON of a value that is not null; None: the value is JSON already."""
    if types.is_dictionary(data_type):
        return json_converter(data_type.value_type)
    if types.is_map(data_type):
        return _map_converter(data_type)
    if types.is_list(data_type):
        element = json_converter(data_type.value_type)
        return element and (lambda value: [None if one is None else element(one) for one in value])
    if types.is_struct(data_type):
        fields = [data_type.field(place) for place in range(data_type.num_fields)]
        parts = {field.name: made for field in fields if (made := json_converter(field.type)) is not None}
        return _struct_converter(parts) if parts else None
    return next((made for fits, made in _CONVERTERS if fits(data_type)), None)


def _map_converter(data_type: Any) -> Convert:
    key, item = json_converter(data_type.key_type) or _as_it_is, json_converter(data_type.item_type) or _as_it_is

    def convert(value: Any) -> dict[str, Any] | list[list[Any]]:
        pairs = [(key(name), None if one is None else item(one)) for name, one in value]
        found = {_key_text(name): one for name, one in pairs}
        return found if len(found) == len(pairs) else [list(pair) for pair in pairs]

    return convert


def _key_text(key: Any) -> str:
    return key if isinstance(key, str) else encode_json(key)


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


def _instant(value: datetime) -> str:
    return f"{value.astimezone(UTC).replace(tzinfo=None).isoformat()}Z"


_CONVERTERS: Final[tuple[tuple[Callable[[Any], bool], Convert], ...]] = (
    (types.is_decimal, str),
    (types.is_floating, _number),
    (types.is_binary, lambda value: base64.b64encode(value).decode()),
    (types.is_date, lambda value: value.isoformat()),
    (lambda one: types.is_timestamp(one) and one.tz is not None, _instant),
    (types.is_timestamp, lambda value: value.isoformat()),
)
