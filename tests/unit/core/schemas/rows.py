# SPDX-License-Identifier: Apache-2.0
"""Generated rows of a schema, and an independent projection of them in plain Python."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from tidemark.core.schemas.arrow_types import arrow_schema
from tidemark.core.schemas.model import Column, ListOf, MapOf, Primitive, StructOf, TopicSchema, plain_type

from tests.unit.core.schemas.drafts import values

Row = dict[str, Any]


def rows(schema: TopicSchema, count: int = 3) -> st.SearchStrategy[list[Row]]:
    return st.lists(_struct(schema.columns), min_size=1, max_size=count)


def batch(schema: TopicSchema, found: Sequence[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(found), schema=arrow_schema(schema))


def _struct(columns: Sequence[Column]) -> st.SearchStrategy[Row]:
    return st.fixed_dictionaries({column.name: _value(column) for column in columns})


def _value(column: Column) -> st.SearchStrategy[Any]:
    match column.type:
        case ListOf(element):
            found: st.SearchStrategy[Any] = st.lists(_value(element), max_size=2)
        case MapOf(key, value):
            found = st.lists(st.tuples(_value(key), _value(value)), max_size=2)
        case StructOf(columns):
            found = _struct(columns)
        case leaf:
            found = values(leaf)
    return st.none() | found if column.nullable else found


def projected(source: TopicSchema, target: Sequence[Column], found: Sequence[Row]) -> list[Row]:
    """The rows, of version `source`, in the columns `target`."""
    return [_projected_struct(source.columns, target, row) for row in found]


def _projected_struct(source: Sequence[Column], target: Sequence[Column], row: Row) -> Row:
    by_id = {column.id: column for column in source}
    made = {}
    for column in target:
        if column.id in by_id:
            before = by_id[column.id]
            made[column.name] = _projected(before, column, row[before.name])
        else:
            made[column.name] = _default(column)
    return made


def _default(column: Column) -> Any:
    if column.default is None:
        return None
    value = column.default.value
    if value == () and isinstance(column.type, ListOf | MapOf):
        return []
    return _narrow(value) if plain_type(column.type) is Primitive.FLOAT32 else value


def _projected(source: Column, target: Column, value: Any) -> Any:
    if value is None:
        return None
    match source.type, target.type:
        case ListOf(element), ListOf(other):
            return [_projected(element, other, it) for it in value]
        case MapOf(key, item), MapOf(other_key, other_item):
            return [(_projected(key, other_key, k), _projected(item, other_item, v)) for k, v in value]
        case StructOf(columns), StructOf(others):
            return _projected_struct(columns, others, value)
        case _:
            return float(value) if plain_type(target.type) in (Primitive.FLOAT32, Primitive.FLOAT64) else value


def _narrow(value: Any) -> float:
    (narrow,) = struct.unpack("<f", struct.pack("<f", value))
    return float(narrow)


def null_in_column_that_is_not_null(columns: Sequence[Column], found: Sequence[Row]) -> bool:
    return any(_has_null(StructOf(tuple(columns)), row) for row in found)


def _has_null(column_type: Any, value: Any) -> bool:
    match column_type:
        case StructOf(columns):
            return any(_null(column, value[column.name]) for column in columns)
        case ListOf(element):
            return any(_null(element, it) for it in value)
        case MapOf(key, item):
            return any(_null(key, k) or _null(item, v) for k, v in value)
        case _:
            return False


def _null(column: Column, value: Any) -> bool:
    return not column.nullable if value is None else _has_null(column.type, value)
