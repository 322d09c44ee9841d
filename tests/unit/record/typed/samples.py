# SPDX-License-Identifier: Apache-2.0
"""Flights as typed rows, and schemas of every kind for generated tests."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import google_crc32c
import pyarrow as pa
from hypothesis import strategies as st
from tidemark.model import TidemarkError
from tidemark.record.envelope import ENVELOPE_BYTES, parse_envelope, seal
from tidemark.record.typed.column_table import parse_table
from tidemark.record.typed.layout import TypedLayout

NOON_US = 1_700_000_000_000_000

STOP = pa.struct([pa.field("at", pa.string()), pa.field("n", pa.int8())])
FLIGHTS = pa.schema(
    [
        pa.field("carrier", pa.string(), nullable=False),
        pa.field("scheduled_at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("delay", pa.int32()),
        pa.field("leg", pa.struct([pa.field("origin", pa.string(), nullable=False), pa.field("miles", pa.int64())])),
        pa.field("stops", pa.list_(pa.field("element", STOP))),
        pa.field("fares", pa.map_(pa.string(), pa.decimal128(10, 2))),
        pa.field("diverted", pa.bool_()),
    ]
)
FLIGHT_IDS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 11, 12, 13, 14)
"""carrier, scheduled_at, delay, leg (origin, miles), stops (element (at, n)), fares (entries, key, value), diverted."""


def flights(version: int = 1) -> TypedLayout:
    return TypedLayout(version, FLIGHTS, FLIGHT_IDS, key_columns=("carrier",), event_time="scheduled_at")


def three_flights() -> pa.RecordBatch:
    rows: list[dict[str, Any]] = [
        {
            "carrier": "UA",
            "scheduled_at": datetime(2023, 11, 14, 22, tzinfo=UTC),
            "delay": 5,
            "leg": {"origin": "EWR", "miles": 1400},
            "stops": [{"at": "ORD", "n": 1}, {"at": None, "n": 2}],
            "fares": [("economy", Decimal("120.50"))],
            "diverted": False,
        },
        {
            "carrier": "AA",
            "scheduled_at": datetime(2023, 11, 14, 21, tzinfo=UTC),
            "delay": None,
            "leg": {"origin": "JFK", "miles": None},
            "stops": [],
            "fares": None,
            "diverted": None,
        },
        {
            "carrier": "UA",
            "scheduled_at": datetime(2023, 11, 14, 23, tzinfo=UTC),
            "delay": -3,
            "leg": {"origin": "LGA", "miles": 200},
            "stops": None,
            "fares": [],
            "diverted": True,
        },
    ]
    return pa.RecordBatch.from_pylist(rows, schema=FLIGHTS)


def resealed(data: bytes) -> bytes:
    """Damaged bytes under valid CRCs, also of the columns, where the table still parses."""
    try:
        table = parse_table(data)
    except TidemarkError:
        return seal(parse_envelope(data), data[ENVELOPE_BYTES:])
    changed = bytearray(data)
    for node in range(len(table.ends)):
        begin, end = table.span(node)
        crc: int = google_crc32c.value(data[table.body_at + begin : table.body_at + end])
        changed[ENVELOPE_BYTES + 16 + 8 * node + 4 : ENVELOPE_BYTES + 16 + 8 * node + 8] = crc.to_bytes(4, "little")
    return seal(parse_envelope(data), bytes(changed)[ENVELOPE_BYTES:])


_LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(max_size=8),
    pa.binary(): st.binary(max_size=8),
    pa.date32(): st.dates(date(1970, 1, 1), date(2100, 1, 1)),
    pa.timestamp("us"): st.datetimes(),
    pa.decimal128(9, 3): st.decimals(-100_000, 100_000, places=3),
}


def types(depth: int = 2) -> st.SearchStrategy[Any]:
    leaves = st.sampled_from(list(_LEAVES))
    if not depth:
        return leaves
    below = types(depth - 1)
    return st.one_of(
        leaves,
        st.builds(lambda kind, null: pa.list_(pa.field("element", kind, nullable=null)), below, st.booleans()),
        st.builds(lambda kind: pa.map_(pa.string(), kind), below),
        st.builds(
            lambda kinds: pa.struct([pa.field(f"f{n}", kind) for n, kind in enumerate(kinds)]),
            st.lists(below, min_size=1, max_size=3),
        ),
    )


def values_of(data_type: Any) -> st.SearchStrategy[Any]:
    if data_type in _LEAVES:
        return _LEAVES[data_type]
    if pa.types.is_map(data_type):
        return st.lists(st.tuples(st.text(max_size=4), _maybe(values_of(data_type.item_type))), max_size=3)
    if pa.types.is_list(data_type):
        below = values_of(data_type.value_type)
        return st.lists(_maybe(below) if data_type.value_field.nullable else below, max_size=3)
    names = [data_type.field(index).name for index in range(data_type.num_fields)]
    return st.fixed_dictionaries({name: _maybe(values_of(data_type.field(name).type)) for name in names})


def _maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values)


@st.composite
def typed_rows(draw: st.DrawFn) -> tuple[TypedLayout, pa.RecordBatch]:
    """A layout of some columns, and rows in it."""
    kinds = draw(st.lists(st.tuples(types(), st.booleans()), min_size=1, max_size=5))
    schema = pa.schema([pa.field(f"c{n}", kind, nullable=null) for n, (kind, null) in enumerate(kinds)])
    count = draw(st.integers(1, 4))
    columns = []
    for kind, null in kinds:
        values = _maybe(values_of(kind)) if null else values_of(kind)
        columns.append(pa.array(draw(st.lists(values, min_size=count, max_size=count)), kind))
    nodes = sum(_nodes(field.type) for field in schema)
    layout = TypedLayout(draw(st.integers(1, 2047)), schema, range(1, nodes + 1))
    return layout, pa.RecordBatch.from_arrays(columns, schema=schema)


def _nodes(data_type: Any) -> int:
    return 1 + sum(_nodes(data_type.field(index).type) for index in range(data_type.num_fields))
