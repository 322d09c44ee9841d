# SPDX-License-Identifier: Apache-2.0
"""Values by their format and schema; pure, no Spark."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark_spark.columns import Malformed, ValueFormat
from tidemark_spark.values import MalformedValueError, check_type, decode

FLIGHT = pa.struct([pa.field("carrier", pa.string()), pa.field("delay", pa.int32())])


def decoded(
    values: list[bytes | None],
    value_format: ValueFormat = ValueFormat.JSON,
    value_type: pa.DataType = FLIGHT,
    malformed: Malformed = Malformed.DEAD_LETTER,
) -> tuple[list[object], list[bytes | None]]:
    found, letters = decode(
        pa.array(values, pa.binary()),
        pa.array(range(100, 100 + len(values)), pa.int64()),
        value_format=value_format,
        value_type=value_type,
        malformed=malformed,
        where="flights-3",
    )
    assert found.type == value_type
    found.validate(full=True)
    return found.to_pylist(), letters.to_pylist()


def stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()


def test_json_becomes_the_fields_of_the_schema() -> None:
    values = [b'{"carrier": "UA", "delay": 5, "gate": {"a": [1]}}', b'{\n "delay": null}', None, b"null"]
    rows, letters = decoded(values, malformed=Malformed.FAIL)
    assert rows == [{"carrier": "UA", "delay": 5}, {"carrier": None, "delay": None}, None, None]
    assert letters == [None] * 4


MALFORMED = [
    b"",
    b"{",
    b'{"delay": "late"}',
    b'{"delay": 1.5}',
    b"17",
    b'{"delay": 1}{"delay": 2}',
    b'{"delay": 1}\n{"delay": 2}',
    b'{"delay": 1}, "v": {"delay": 2}',
    b'1}\n{"v":2',
    b'{"delay": 1}, "x": 2',
    b'{"delay": 1}, {"delay": 2}',
    b'{"carrier": "\xff"}',
    b'{"delay": 99999999999}',
]


@pytest.mark.parametrize("value", MALFORMED)
def test_a_malformed_value_is_a_dead_letter_and_the_others_are_read(value: bytes) -> None:
    rows, letters = decoded([b'{"delay": 1}', value, None, b'{"delay": 2}'])
    assert rows == [{"carrier": None, "delay": 1}, None, None, {"carrier": None, "delay": 2}]
    assert letters == [None, value, None, None]


@settings(deadline=None)
@given(
    values=st.lists(
        st.one_of(
            st.none(),
            st.sampled_from(MALFORMED),
            st.builds(lambda number: json.dumps({"delay": number}).encode(), st.integers(-1000, 1000)),
        )
    )
)
def test_every_value_keeps_its_row_however_many_are_malformed(values: list[bytes | None]) -> None:
    rows, letters = decoded(values)
    for value, row, letter in zip(values, rows, letters, strict=True):
        if value is None or value in MALFORMED:
            assert (row, letter) == (None, value)
        else:
            assert (row, letter) == ({"carrier": None, **json.loads(value)}, None)


@pytest.mark.parametrize("value_format", [ValueFormat.JSON, ValueFormat.STRING, ValueFormat.ARROW])
def test_no_value_at_all_is_well_in_every_format(value_format: ValueFormat) -> None:
    value_type = {
        ValueFormat.JSON: FLIGHT,
        ValueFormat.STRING: pa.string(),
        ValueFormat.ARROW: pa.list_(pa.field("element", FLIGHT)),
    }[value_format]
    assert decoded([None, None], value_format, value_type) == ([None, None], [None, None])


def test_the_error_of_mode_fail_names_partition_offset_and_remedy() -> None:
    with pytest.raises(
        MalformedValueError, match=r"flights-3: the value at offset 102, b'oops', .* malformedValues=null"
    ):
        decoded([b"{}", None, b"oops"], malformed=Malformed.FAIL)


def test_text_is_text_or_malformed() -> None:
    rows, letters = decoded([b"caf\xc3\xa9", b"\xff", None], ValueFormat.STRING, pa.string())
    assert rows == ["café", None, None]
    assert letters == [None, b"\xff", None]


def test_days_times_and_decimals_are_read_from_json() -> None:
    kind = pa.struct(
        [
            pa.field("day", pa.date32()),
            pa.field("at", pa.timestamp("us", tz="UTC")),
            pa.field("price", pa.decimal128(10, 2)),
            pa.field("stops", pa.list_(pa.field("element", pa.string()))),
        ]
    )
    value = b'{"day": "2013-01-02", "at": "2013-01-02T03:04:05Z", "price": 3.25, "stops": ["ORD", null]}'
    rows, _ = decoded([value], value_type=kind)
    assert str(rows[0]) == (
        "{'day': datetime.date(2013, 1, 2), 'at': datetime.datetime(2013, 1, 2, 3, 4, 5, "
        "tzinfo=zoneinfo.ZoneInfo(key='UTC')), 'price': Decimal('3.25'), 'stops': ['ORD', None]}"
    )


def test_an_arrow_value_gives_all_its_rows_by_the_names_of_their_columns() -> None:
    kind = pa.list_(pa.field("element", FLIGHT))
    two = pa.table({"delay": pa.array([1, 2], pa.int64()), "extra": [0, 0], "carrier": ["UA", "AA"]})
    none, other = two.slice(0, 0), pa.table({"carrier": ["UA"]})
    rows, letters = decoded([stream(two), stream(none), stream(other), b"no", None], ValueFormat.ARROW, kind)
    assert rows == [[{"carrier": "UA", "delay": 1}, {"carrier": "AA", "delay": 2}], [], None, None, None]
    assert letters == [None, None, stream(other), b"no", None]


def test_a_damaged_arrow_value_is_a_dead_letter_and_the_others_are_read() -> None:
    kind = pa.list_(pa.field("element", FLIGHT))
    rows = pa.table({"delay": pa.array([1, 2], pa.int32()), "carrier": ["UA", "AA"]})
    whole = stream(rows)
    twice = pa.Table.from_arrays([*rows.columns, rows.column(0)], ["delay", "carrier", "delay"])
    no_text = whole.replace(b"carrier", b"\xff" * 7)
    no_rows = rows.schema.serialize().size  # a valid stream of these bytes has no rows
    lengths = [length for length in range(0, len(whole) - 8, 8) if length != no_rows]
    damaged = [*(whole[:length] for length in lengths), stream(twice), no_text]
    found, letters = decoded([*damaged, whole], ValueFormat.ARROW, kind)
    assert letters == [*damaged, None]
    assert found == [*[None] * len(damaged), rows.select(["carrier", "delay"]).to_pylist()]


def test_an_arrow_value_of_two_streams_is_a_dead_letter() -> None:
    rows = pa.table({"delay": pa.array([1, 2], pa.int32()), "carrier": ["UA", "AA"]})
    whole, wanted = stream(rows), rows.select(["carrier", "delay"]).to_pylist()
    values = [whole, whole + whole, whole[:-8], whole + bytes(8), whole + b"\x01"]
    found, letters = decoded(values, ValueFormat.ARROW, pa.list_(pa.field("element", FLIGHT)))
    assert found == [wanted, None, wanted, wanted, None]
    assert letters == [None, whole + whole, None, None, whole + b"\x01"]


@pytest.mark.parametrize(
    ("value_format", "kind", "sentence"),
    [
        (ValueFormat.JSON, pa.string(), "gives a struct"),
        (ValueFormat.JSON, pa.struct([("m", pa.map_(pa.string(), pa.int64()))]), "value.m is map"),
        (ValueFormat.ARROW, FLIGHT, "gives an array of structs"),
    ],
)
def test_a_schema_that_a_format_cannot_fill_is_refused(
    value_format: ValueFormat, kind: pa.DataType, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        check_type(value_format, kind)
