# SPDX-License-Identifier: Apache-2.0
"""A schema of flights, and rows of generated schemas sent through the formats of a producer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
from tidemark.client.producing.typed_format import TypedFormat
from tidemark.client.typed.record_rows import Values
from tidemark.client.typed.record_values import Deletion
from tidemark.core.schemas.ddl import draft_from_ddl
from tidemark.core.schemas.evolution import first_version
from tidemark.core.schemas.model import ListOf, MapOf, Primitive, StructOf, TopicSchema, plain_type
from tidemark.record.checks import check_envelope
from tidemark.record.envelope import Batch, Codec, stamped

FLIGHTS = first_version(
    draft_from_ddl(
        "carrier STRING NOT NULL, flight INT, delay SMALLINT, price DECIMAL(10,2), scheduled_at TIMESTAMP NOT NULL, "
        "legs ARRAY<STRUCT<origin: STRING NOT NULL, miles: INT>>, tags MAP<STRING, INT>, PRIMARY KEY (carrier), "
        "EVENT_TIME (scheduled_at)"
    )
)


def sealed(typed: TypedFormat, rows: pa.RecordBatch, codec: Codec = Codec.NONE, base_offset: int = 100) -> Batch:
    """A batch of a producer, as a leader stores it."""
    data = typed.build(rows, timestamp_us=7, codec=codec, producer_id=-1, producer_epoch=-1, base_sequence=-1)
    return stamped(check_envelope(data), base_offset=base_offset, leader_epoch=1)


def from_records(typed: TypedFormat, records: Sequence[Any]) -> pa.RecordBatch:
    """The rows of records that were sent one by one."""
    return from_checked(typed, [typed.records.check(record)[0] for record in records])


def from_checked(typed: TypedFormat, rows: Sequence[Values]) -> pa.RecordBatch:
    """The rows of checked records, some of which may delete others."""
    deleted = [type(row) is Deletion for row in rows]
    return typed.rows([], list(chain.from_iterable(rows)), [7] * len(rows), None, deleted)


def as_read(schema: TopicSchema, row: dict[str, Any], maps: Any = list) -> dict[str, Any]:
    """A generated row as a reader returns it."""
    return {column.name: _as_read(column.type, row[column.name], maps) for column in schema.columns}


def _as_read(column_type: Any, value: Any, maps: Any) -> Any:
    if value is None:
        return None
    match column_type:
        case ListOf(element):
            return [_as_read(element.type, one, maps) for one in value]
        case MapOf(key, item):
            pairs = value.items() if isinstance(value, dict) else value
            return maps((_as_read(key.type, k, maps), _as_read(item.type, v, maps)) for k, v in pairs)
        case StructOf(columns):
            return {column.name: _as_read(column.type, value[column.name], maps) for column in columns}
        case other if plain_type(other) is Primitive.FLOAT32:
            return pa.scalar(value, pa.float32()).as_py()
        case _:
            return value
