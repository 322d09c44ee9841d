# SPDX-License-Identifier: Apache-2.0
"""Records of a typed topic, whose values are dicts or instances of a class."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tidemark.client.records import ConsumerRecord
from tidemark.client.serializers import to_json
from tidemark.client.typed.batch_rows import OF_RECORDS
from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.schema import OFFSET_SCHEMA

MakeValue = Callable[[dict[str, Any]], Any]
"""Makes the value of a record of its columns."""


def maker_of(value_class: type | None) -> MakeValue | None:
    """A function that makes instances of a dataclass, a pydantic model or another class with keyword arguments.

    Raises:
        TypeError: `value_class` is no class.
    """
    if value_class is None:
        return None
    if not isinstance(value_class, type):
        raise TypeError(f"value_class is {value_class!r}, not a class")
    validate = getattr(value_class, "model_validate", None)
    if callable(validate):
        made: MakeValue = validate
        return made
    if dataclasses.is_dataclass(value_class):
        names = {field.name for field in dataclasses.fields(value_class) if field.init}
        return lambda row: value_class(**{name: value for name, value in row.items() if name in names})
    return lambda row: value_class(**row)


def typed_records(topic: str, partition: int, rows: pa.RecordBatch, make: MakeValue | None) -> list[ConsumerRecord]:
    """Records of rows with all columns and the system columns of records; the value of a deleted row is None."""
    names = [name for name in rows.schema.names if name not in OF_RECORDS]
    values = _values(rows.select(names))
    times: Any = rows.column("_timestamp").cast(pa.int64())
    columns = (rows.column("_offset"), times, rows.column("_key"), rows.column("_headers"), rows.column("_deleted"))
    records = []
    for value, offset, stamp_us, key, headers, deleted in zip(
        values, *(one.to_pylist() for one in columns), strict=True
    ):
        found: Any = None if deleted else value
        if make is not None and found is not None:
            found = _made(make, found, topic, partition, offset)
        records.append(ConsumerRecord(topic, partition, offset, stamp_us, key, found, tuple(headers or ())))
    return records


def with_json_values(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of a typed topic, polled with all columns, in record.schema.OFFSET_SCHEMA: each value is its row as JSON."""
    values = [None if record.value is None else to_json(record.value) for record in typed_records("", 0, rows, None)]
    columns = [rows.column(name) for name in ("_key", "_timestamp", "_headers", "_offset")]
    columns.insert(1, pa.array(values, pa.binary()))
    return pa.RecordBatch.from_arrays(columns, schema=OFFSET_SCHEMA)


def _values(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows as dicts, maps as dicts, too."""
    converts = [(field.name, _converter(field.type)) for field in rows.schema]
    found: list[dict[str, Any]] = rows.to_pylist()
    for name, convert in converts:
        if convert is not None:
            for row in found:
                row[name] = convert(row[name])
    return found


def _converter(data_type: Any) -> Callable[[Any], Any] | None:
    """A function that makes dicts of the maps in a value; None: there are none."""
    if pa.types.is_map(data_type):
        item = _converter(data_type.item_type)
        if item is None:
            return lambda value: None if value is None else dict(value)
        return lambda value: None if value is None else {name: item(one) for name, one in value}
    if pa.types.is_list(data_type):
        element = _converter(data_type.value_type)
        return element and (lambda value: None if value is None else [element(one) for one in value])
    if pa.types.is_struct(data_type):
        fields = [data_type.field(place) for place in range(data_type.num_fields)]
        parts = {field.name: convert for field in fields if (convert := _converter(field.type)) is not None}
        return _struct_converter(parts) if parts else None
    return None


def _struct_converter(parts: dict[str, Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if value is None:
            return None
        return {name: parts[name](one) if name in parts else one for name, one in value.items()}

    return convert


def _made(make: MakeValue, value: dict[str, Any], topic: str, partition: int, offset: int) -> Any:
    try:
        return make(value)
    except Exception as error:
        raise TidemarkError(
            ErrorCode.INVALID_PAYLOAD,
            f"{topic}-{partition}: value_class cannot be made of the row at offset {offset}: "
            f"{type(error).__name__}: {error}; seek behind this offset to skip the record",
            {"topic": topic, "partition": str(partition), "offset": str(offset)},
        ) from error
