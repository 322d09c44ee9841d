# SPDX-License-Identifier: Apache-2.0
"""Records of a typed topic, whose values are dicts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa

from tidemark.client.records import ConsumerRecord
from tidemark.client.typed.batch_rows import OF_RECORDS
from tidemark.model import UNIX_EPOCH, ErrorCode, TidemarkError


def typed_records(topic: str, partition: int, rows: pa.RecordBatch) -> list[ConsumerRecord]:
    """Records of rows with all columns and the system columns of records; the value of a deleted row is None.

    Raises:
        TidemarkError: INVALID_PAYLOAD: a date or time that Python lacks.
    """
    names = [name for name in rows.schema.names if name not in OF_RECORDS]
    try:
        values = _values(rows.select(names))
    except (OverflowError, ValueError) as error:
        facts = {"topic": topic, "partition": str(partition), "offset": str(rows.column("_offset")[0].as_py())}
        sentence = f"a row from offset {facts['offset']} on has a value that Python lacks: {error}; use batches()"
        raise TidemarkError(ErrorCode.INVALID_PAYLOAD, f"{topic}-{partition}: {sentence}", facts) from error
    times: Any = rows.column("_timestamp").cast(pa.int64())
    columns = (rows.column("_offset"), times, rows.column("_key"), rows.column("_headers"), rows.column("_deleted"))
    records = []
    for value, offset, stamp_us, key, headers, deleted in zip(
        values, *(one.to_pylist() for one in columns), strict=True
    ):
        found: Any = None if deleted else value
        records.append(ConsumerRecord(topic, partition, offset, stamp_us, key, found, tuple(headers or ())))
    return records


def _values(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows as dicts, maps as dicts, too."""
    names = rows.schema.names
    columns = [_python_values(column) for column in rows.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _python_values(array: Any) -> list[Any]:
    """The values of a column. Arrow takes 12 us for a datetime, so datetimes are made of integers here."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    convert = _converter(array.type)
    found: list[Any] = array.cast(_as_integers(array.type)).to_pylist()
    return found if convert is None else [convert(value) for value in found]


def _as_integers(data_type: Any) -> Any:
    """The type with integers in the place of timestamps."""
    if pa.types.is_timestamp(data_type):
        return pa.int64()
    if pa.types.is_map(data_type):
        key = data_type.key_field.with_type(_as_integers(data_type.key_type))
        return pa.map_(key, data_type.item_field.with_type(_as_integers(data_type.item_type)))
    if pa.types.is_list(data_type):
        return pa.list_(data_type.value_field.with_type(_as_integers(data_type.value_type)))
    if pa.types.is_struct(data_type):
        fields = [data_type.field(place) for place in range(data_type.num_fields)]
        return pa.struct([field.with_type(_as_integers(field.type)) for field in fields])
    return data_type


def _converter(data_type: Any) -> Callable[[Any], Any] | None:
    """A function that makes datetimes of integers, and dicts of maps, in a value; None: the type has neither."""
    if pa.types.is_timestamp(data_type):
        epoch = UNIX_EPOCH if data_type.tz is not None else UNIX_EPOCH.replace(tzinfo=None)
        return lambda value: None if value is None else epoch + timedelta(microseconds=value)
    if pa.types.is_map(data_type):
        return _map_converter(_converter(data_type.key_type) or _same, _converter(data_type.item_type) or _same)
    if pa.types.is_list(data_type):
        element = _converter(data_type.value_type)
        return element and (lambda value: None if value is None else [element(one) for one in value])
    if pa.types.is_struct(data_type):
        fields = [data_type.field(place) for place in range(data_type.num_fields)]
        parts = {field.name: convert for field in fields if (convert := _converter(field.type)) is not None}
        return _struct_converter(parts) if parts else None
    return None


def _same(value: Any) -> Any:
    return value


def _map_converter(key: Callable[[Any], Any], item: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else {key(name): item(one) for name, one in value}


def _struct_converter(parts: dict[str, Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if value is None:
            return None
        return {name: parts[name](one) if name in parts else one for name, one in value.items()}

    return convert
