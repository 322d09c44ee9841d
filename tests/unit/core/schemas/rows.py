# SPDX-License-Identifier: Apache-2.0
"""Generated rows of a schema, and an independent projection of them in plain Python."""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from random import Random
from typing import Any

import pyarrow as pa
from tidemark.core.schemas.arrow_types import arrow_schema, pruned
from tidemark.core.schemas.model import Column, ListOf, MapOf, Primitive, StructOf, TopicSchema, plain_type

from tests.unit.core.schemas.drafts import value

Row = dict[str, Any]


def rows(random: Random, schema: TopicSchema) -> list[Row]:
    return [_struct(random, schema.columns) for _ in range(random.randint(1, 4))]


def batch(schema: TopicSchema, found: Sequence[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(found), schema=arrow_schema(schema))


def pruned_batch(schema: TopicSchema, ids: Collection[int], whole: pa.RecordBatch) -> pa.RecordBatch:
    """The rows without the columns, nested ones too, that were not fetched."""
    kept = pruned(schema, ids)
    arrays = [_pruned_array(whole.column(field.name), field.type) for field in kept]
    return pa.RecordBatch.from_arrays(arrays, schema=kept)


def _pruned_array(array: pa.Array, kept: pa.DataType) -> pa.Array:
    return array if array.type.equals(kept) else pa.array(array.to_pylist(), kept)


def _struct(random: Random, columns: Sequence[Column]) -> Row:
    return {column.name: _value(random, column) for column in columns}


def _value(random: Random, column: Column) -> Any:
    if column.nullable and random.random() < 0.3:
        return None
    match column.type:
        case ListOf(element):
            return [_value(random, element) for _ in range(random.randrange(3))]
        case MapOf(key, item):
            found = {_value(random, key): _value(random, item) for _ in range(random.randrange(3))}
            return list(found.items())
        case StructOf(columns):
            return _struct(random, columns)
        case leaf:
            return value(random, leaf)


def projected(source: TopicSchema, target: Sequence[Column], found: Sequence[Row]) -> list[Row]:
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
    found = column.default.value
    if found == () and isinstance(column.type, ListOf | MapOf):
        return []
    return _narrow(found) if plain_type(column.type) is Primitive.FLOAT32 else found


def _projected(source: Column, target: Column, found: Any) -> Any:
    if found is None:
        return None
    match source.type, target.type:
        case ListOf(element), ListOf(other):
            return [_projected(element, other, it) for it in found]
        case MapOf(key, item), MapOf(other_key, other_item):
            return [(_projected(key, other_key, k), _projected(item, other_item, v)) for k, v in found]
        case StructOf(columns), StructOf(others):
            return _projected_struct(columns, others, found)
        case _:
            floats = (Primitive.FLOAT32, Primitive.FLOAT64)
            return float(found) if plain_type(target.type) in floats else found


def _narrow(found: Any) -> float:
    (narrow,) = struct.unpack("<f", struct.pack("<f", found))
    return float(narrow)


def null_in_column_that_is_not_null(columns: Sequence[Column], found: Sequence[Row]) -> bool:
    return any(_has_null(StructOf(tuple(columns)), row) for row in found)


def _has_null(column_type: Any, found: Any) -> bool:
    match column_type:
        case StructOf(columns):
            return any(_null(column, found[column.name]) for column in columns)
        case ListOf(element):
            return any(_null(element, it) for it in found)
        case MapOf(key, item):
            return any(_null(key, k) or _null(item, v) for k, v in found)
        case _:
            return False


def _null(column: Column, found: Any) -> bool:
    return not column.nullable if found is None else _has_null(column.type, found)
