# SPDX-License-Identifier: Apache-2.0
"""Input of `produce` for typed topics: values of each type, rows that do not fit, and output of `consume`."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from pyarrow import parquet
from tidemark.cli.consume.options import ConsumeOptions
from tidemark.cli.produce.rejects import Rejects
from tidemark.cli.produce.typed_inputs import TypedInput
from tidemark.client.outputs.shape import Shape
from tidemark.client.outputs.typed_rows import open_typed_sink, reader_of
from tidemark.client.producing.typed_format import TypedFormat
from tidemark.client.records import PartitionBatch
from tidemark.core.schemas.ddl import draft_from_ddl
from tidemark.core.schemas.evolution import first_version
from tidemark.core.schemas.model import TopicSchema
from tidemark.model import ErrorCode, TidemarkError

from tests.unit.client.typed.samples import from_records, sealed
from tests.unit.core.schemas.drafts import RANDOMS, draft
from tests.unit.core.schemas.rows import rows

Read = Callable[[TypedInput], Iterator[pa.RecordBatch]]


def schema_of(ddl: str) -> TopicSchema:
    return first_version(draft_from_ddl(ddl))


PLAIN = schema_of(
    "name STRING NOT NULL, ok BOOLEAN, small TINYINT, big BIGINT, rate DOUBLE, price DECIMAL(10,2), day DATE, "
    "at TIMESTAMP, local TIMESTAMP_NTZ, raw BINARY, legs ARRAY<STRUCT<miles: INT>>, tags MAP<INT, STRING>"
)
NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
VALUES: dict[str, Any] = {
    "name": "a,b",
    "ok": True,
    "small": -5,
    "big": 2**62,
    "rate": 0.5,
    "price": Decimal("12.50"),
    "day": date(2013, 1, 1),
    "at": NOON,
    "local": NOON.replace(tzinfo=None),
    "raw": b"\x00\xff",
    "legs": [{"miles": 7}, None],
    "tags": [(1, "one")],
}
CELLS = (
    '"a,b",true,-5,4611686018427387904,0.5,12.5,2013-01-01,2013-01-01 12:00:00,2013-01-01T12:00:00,AP8=,'
    '"[{""miles"": 7}, null]","{""1"": ""one""}"'
)
HEADER = ",".join(VALUES)


def of(read: Read, schema: TopicSchema = PLAIN, file: io.StringIO | None = None, **options: Any) -> list[Any]:
    batches = list(read(TypedInput("t", schema, Rejects(file), **options)))
    return [row for batch in batches for row in batch.to_pylist()]


def refused(read: Read, schema: TopicSchema = PLAIN, **options: Any) -> tuple[int, str]:
    """The number of rows before the refusal, and its sentence."""
    batches = read(TypedInput("t", schema, Rejects(None), **options))
    count = 0
    refusal: TidemarkError | None = None
    while refusal is None:
        try:
            count += next(batches).num_rows
        except TidemarkError as error:
            refusal = error
    assert refusal.code is ErrorCode.SCHEMA_MISMATCH
    return count, refusal.message


def csv_of(*lines: str) -> Read:
    return lambda source: source.csv_batches(io.BytesIO("\n".join(lines).encode()), ",")


def json_of(*documents: Any) -> Read:
    lines = "\n".join(one if isinstance(one, str) else json.dumps(one) for one in documents)
    return lambda source: source.json_batches(io.BytesIO(lines.encode()))


def parquet_of(table: pa.Table) -> Read:
    file = io.BytesIO()
    parquet.write_table(table, file)
    return lambda source: source.parquet_batches(file)


def test_cells_become_values_of_their_columns_and_empty_ones_null() -> None:
    empty = {**dict.fromkeys(VALUES), "name": ""}
    assert of(csv_of(HEADER, CELLS, "," * (len(VALUES) - 1))) == [VALUES, empty]
    misfit = CELLS.replace("true", "maybe")
    file = io.StringIO()
    assert of(csv_of(HEADER, misfit, CELLS, "," * (len(VALUES) - 1)), file=file) == [VALUES, empty], "cell by cell"
    assert json.loads(file.getvalue())["row"]["ok"] == "maybe"


@pytest.mark.parametrize(
    ("column", "cell", "value"),
    [
        ("small", "5.0", 5),
        ("rate", "NaN", None),
        ("rate", "1e3", 1000.0),
        ("ok", "0", False),
        ("at", "2013-01-01T13:00:00+01:00", NOON),
        ("at", str(int(NOON.timestamp() * 1e6)), NOON),
        ("at", f"{int(NOON.timestamp() * 1e6)}.25", NOON),
        ("at", "-1", datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
        ("price", "1e2", Decimal("100.00")),
    ],
)
def test_other_ways_to_write_a_value(column: str, cell: str, value: Any) -> None:
    found = of(csv_of(f"name,{column}", f"x,{cell}"))[0][column]
    assert found == value if value is not None else found != found


@pytest.mark.parametrize(
    ("column", "cell", "reason"),
    [
        ("small", "128", "128 is outside of int8"),
        ("small", "0x1F", "'0x1F' is not a valid int8"),
        ("small", "1.5", "'1.5' is not a valid int8"),
        ("small", "１２", "'１２' is not a valid int8"),
        ("rate", "１.5", "'１.5' is not a valid float64"),
        ("price", "1_0", "'1_0' is not a valid decimal(10,2)"),
        ("price", "１", "'１' is not a valid decimal(10,2)"),
        ("big", "1e99999", "'1e99999' is not a valid int64"),
        ("rate", "1e400", "'1e400' is not a valid float64"),
        ("price", "1.005", "does not fit decimal(10,2) without a loss"),
        ("price", "1e-999999999", "does not fit decimal(10,2) without a loss"),
        ("day", "2013-02-30", "'2013-02-30' is not a date"),
        ("at", "2013-01-01T00:00:00.0000001Z", "is not a whole number of microseconds"),
        ("at", '"2013-01-01T00:00:00,1234567Z"', "is not a whole number of microseconds"),
        ("at", "999999999999999999", "--timestamp-unit"),
        ("local", "2013-01-01T00:00:00Z", "has a time zone"),
        ("raw", "?", "is not base64"),
        ("legs", "[1]", "legs.element: 1 is a int"),
        ("legs", "[", "not JSON: Expecting value"),
        ("ok", "yes", "expected true or false"),
    ],
)
def test_a_cell_that_does_not_fit_is_refused_with_its_line_and_column(column: str, cell: str, reason: str) -> None:
    count, sentence = refused(csv_of(f"name,{column}", 'x,""', '"x\ny",', f"x,{cell}", "x,"))
    assert (count, sentence.partition(":")[0].partition(".")[0]) == (2, f"line 5, column {column}")
    assert reason in sentence


def test_the_header_of_a_csv_file_names_columns_of_the_topic() -> None:
    assert refused(csv_of("name,smal", "x,1")) == (
        0,
        "line 1, column smal: the schema has no such column: did you mean small?",
    )
    assert "line 1, column name: the header lacks the column" in refused(csv_of("ok", "true"))[1]
    assert "two columns" in refused(csv_of("name,name", "x,y"))[1]
    assert refused(csv_of("name,ok", "x"))[1] == "line 2: the row has 1 cells, and the first line names 2 columns"
    assert of(csv_of("\ufeffname,_offset,_deleted", "x,1,"))[0]["name"] == "x"
    assert of(csv_of("")) == []


def test_json_lines_are_rows_or_records_of_consume() -> None:
    row = {"name": "x", "price": 12.5, "small": 5.0, "tags": {"1": "one"}, "rate": "Infinity", "_offset": 3}
    record = {"topic": "t", "partition": 0, "offset": 7, "timestamp_us": 5, "key": "k", "value": row}
    headers = [{"name": "h", "value": "1"}]
    found = of(json_of(row, "", {**record, "headers": headers}))
    values = {"name": "x", "price": Decimal("12.50"), "small": 5, "tags": [(1, "one")], "rate": float("inf")}
    assert found[0] == {**dict.fromkeys(VALUES), **values}
    assert found[1]["_headers"] == [("h", b"1")]
    assert found[1]["_timestamp"] == datetime(1970, 1, 1, microsecond=5, tzinfo=UTC)
    assert (
        of(json_of({name: record[name] for name in ("offset", "timestamp_us", "value")} | {"headers": []}))[0]["name"]
        == "x"
    ), "of log dump"
    exact = of(json_of('{"name": "x", "price": 12345678.12}'))[0]["price"]
    assert exact == Decimal("12345678.12")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "line 2: not JSON: Expecting property name"),
        ("5", "line 2: not a JSON object"),
        ("[" * 100_000, "line 2: not JSON that can be read"),
        ('{"ok": true}', "line 2, column name: the record lacks the column"),
        ('{"name": null}', "line 2, column name: null"),
        ('{"name": "x", "smal": 1}', "line 2, column smal: the schema has no such column: did you mean small?"),
        ('{"name": "x", "small": "1"}', "line 2, column small: a value of type str"),
        ('{"name": "x", "legs": [{"miles": "far"}]}', "line 2, column legs.element.miles: a value of type str"),
        ('{"name": "x", "small": 1e999999999}', "line 2, column small: a value of type Decimal"),
        ('{"name": "x", "at": -1e999999999}', "line 2, column at: Decimal('-1E+999999999') us since 1970 is outside"),
        ('{"name": "x", "price": 1e-99999999999999999999}', "line 2: not JSON that can be read"),
        ('{"name": "x", "rate": 1e400}', "line 2, column rate: the number is too large for a float"),
        (
            '{"topic": "t", "partition": 0, "offset": 7, "timestamp_us": 5, "value": null, "headers": []}',
            "line 2: the record has no row",
        ),
    ],
)
def test_a_json_line_that_does_not_fit_is_refused_with_its_line(line: str, sentence: str) -> None:
    count, found = refused(json_of({"name": "x"}, line, {"name": "y"}))
    assert count == 1
    assert found.startswith(sentence)


def test_rows_that_do_not_fit_go_to_the_file_of_rejects_and_the_others_are_sent() -> None:
    file = io.StringIO()
    lines = [{"name": str(number), "small": 100 * (number % 3)} for number in range(9)]
    assert [row["name"] for row in of(json_of(*lines, "{"), file=file)] == ["0", "1", "3", "4", "6", "7"]
    rejected = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [(one["line"], one["column"]) for one in rejected] == [(3, "small"), (6, "small"), (9, "small"), (10, None)]
    assert (rejected[0]["row"], rejected[3]["row"]) == (lines[2], "{")
    file = io.StringIO()
    table = pa.table({"name": [one["name"] for one in lines], "small": [one["small"] for one in lines]})
    assert [row["name"] for row in of(parquet_of(table), file=file)] == ["0", "1", "3", "4", "6", "7"]
    assert [json.loads(line)["line"] for line in file.getvalue().splitlines()] == [3, 6, 9]


def test_each_line_of_the_rejects_is_strict_json_with_the_digits_of_the_input() -> None:
    file = io.StringIO()
    long = "12345678901234567890.125"
    tiny = "1e-99999999999999999999"
    lines = [
        '{"price": NaN}',
        '{"price": 1e400}',
        f'{{"price": {long}, "rate": 0.5}}',
        f'{{"price": {tiny}}}',
        '{"price": -Infinity',
    ]
    assert of(json_of(*lines), file=file) == []
    found = [json.loads(line, parse_constant=pytest.fail)["row"] for line in file.getvalue().splitlines()]
    assert found == [{"price": "NaN"}, {"price": "1e400"}, {"price": long, "rate": 0.5}, {"price": tiny}, lines[4]]


def test_a_number_of_json_that_a_float_lacks_is_refused_and_infinity_is_a_value() -> None:
    floats = schema_of("rate DOUBLE, small FLOAT")
    assert "column rate: the number is too large" in refused(json_of('{"rate": 1e400}'), floats)[1]
    assert "column small: the number is too large" in refused(json_of('{"small": -1e400}'), floats)[1]
    found = of(json_of('{"rate": Infinity, "small": "-Infinity"}'), floats)
    assert found == [{"rate": float("inf"), "small": float("-inf")}]


def test_a_rejected_row_of_a_parquet_file_has_the_values_of_the_file() -> None:
    columns: dict[str, Any] = {
        "name": pa.array(["x"]),
        "small": pa.array([128]),
        "at": pa.array([NOON], pa.timestamp("ms", "UTC")),
        "local": pa.array([NOON.replace(tzinfo=None)], pa.timestamp("ns")),
        "raw": pa.array([b"\xff"], pa.large_binary()),
        "day": pa.array([NOON.time()], pa.time64("us")),
    }
    file = io.StringIO()
    assert of(parquet_of(pa.table(columns)), file=file) == []
    assert json.loads(file.getvalue())["row"] == {
        "name": "x",
        "small": 128,
        "at": "2013-01-01T12:00:00Z",
        "local": "2013-01-01T12:00:00",
        "raw": "/w==",
        "day": "12:00:00",
    }


def test_a_parquet_file_is_matched_by_name_and_type() -> None:
    naive = pa.table({"name": ["x"], "at": pa.array([NOON.replace(tzinfo=None)], pa.timestamp("ms")), "_offset": [1]})
    row = of(parquet_of(naive))[0]
    assert (row["name"], row["at"], row["small"]) == ("x", NOON, None)
    assert refused(parquet_of(pa.table({"name": ["x"], "small": ["1"]}))) == (
        0,
        "the Parquet file, column small: the table has the type string, the schema int8",
    )
    large = pa.table({"name": ["x"] * 5, "small": [0, 1, 2, 3, 400]})
    assert refused(parquet_of(large)) == (4, "line 5, column small: 400 does not fit int8 without a loss")


def test_timestamps_are_those_of_their_column_unless_the_topic_has_an_event_time() -> None:
    schema = schema_of("n INT")
    at = datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)
    for read in (csv_of("n,time", "1,5"), json_of({"n": 1, "time": 5})):
        assert of(read, schema, timestamp="time", unit="s") == [{"n": 1, "_timestamp": at}]
    timed = schema_of("n INT, at TIMESTAMP NOT NULL, EVENT_TIME (at)")
    assert of(csv_of("n,at,_timestamp", "1,1970-01-01T00:00:05Z,"), timed) == [{"n": 1, "at": at}]


KEYED = schema_of(
    "carrier STRING NOT NULL, n INT NOT NULL, at TIMESTAMP NOT NULL, PRIMARY KEY (carrier), EVENT_TIME (at)"
)


def test_a_row_that_is_marked_as_deleted_is_the_deletion_of_its_key() -> None:
    at = datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)
    stamp = "1970-01-01T00:00:05Z"
    kept = {"carrier": "UA", "n": 7, "at": at, "_deleted": False}
    reads = [
        csv_of("carrier,n,at,_deleted", f"UA,7,{stamp},", f"AA,,{stamp},true", f"B6,3,{stamp},TRUE"),
        json_of(
            {"carrier": "UA", "n": 7, "at": stamp},
            {"carrier": "AA", "n": None, "at": stamp, "_deleted": True},
            {"carrier": "B6", "at": stamp, "_deleted": True},
        ),
    ]
    for read in reads:
        assert of(read, KEYED) == [
            kept,
            *({"carrier": key, "n": 0, "at": at, "_deleted": True} for key in ("AA", "B6")),
        ]
    without_times = [csv_of("carrier,n,at,_deleted", "AA,,,true"), json_of({"carrier": "AA", "_deleted": True})]
    for read in without_times:
        before = datetime.now(UTC)
        (row,) = of(read, KEYED)
        assert before <= row["at"] <= datetime.now(UTC)
    dumped = {"offset": 7, "timestamp_us": 5_000_000, "value": None, "headers": []}
    dumped["deleted"] = {"carrier": "AA", "at": stamp}
    assert of(json_of(dumped), KEYED) == [{"carrier": "AA", "n": 0, "at": at, "_deleted": True}], "of log dump"
    untouched = csv_of("carrier,n,at,_deleted", f"UA,7,{stamp},false")
    assert of(untouched, KEYED) == [{"carrier": "UA", "n": 7, "at": at}]
    table = pa.table(
        {"carrier": ["UA", "AA"], "n": pa.array([7, 0], pa.int32()), "at": [at, at], "_deleted": [False, True]}
    )
    assert of(parquet_of(table), KEYED) == table.to_pylist()


@pytest.mark.parametrize(
    ("read", "sentence"),
    [
        (csv_of("carrier,n,at,_deleted", "UA,,,yes"), "column _deleted: expected true or false"),
        (csv_of("carrier,n,at,_deleted", "UA,,5x,true"), "column at"),
        (json_of({"n": 5, "_deleted": True}), "column carrier: the record lacks the column"),
        (json_of({"carrier": 5, "_deleted": True}), "column carrier: a value of type int"),
        (json_of({"carrier": "UA", "_deleted": "true"}), "column _deleted: expected true or false"),
    ],
)
def test_a_deletion_without_a_good_key_is_refused_with_its_line(read: Read, sentence: str) -> None:
    count, message = refused(read, KEYED)
    assert count == 0
    assert message.startswith(("line 1, ", "line 2, "))
    assert sentence in message


def test_a_row_of_a_topic_without_key_columns_cannot_delete_others() -> None:
    assert "no key columns" in refused(json_of({"name": "a", "_deleted": True}))[1]


def test_an_empty_cell_of_a_column_that_is_never_null_is_an_empty_text_or_no_bytes() -> None:
    schema = schema_of("name STRING NOT NULL, raw BINARY NOT NULL, other BINARY, n INT NOT NULL")
    assert of(csv_of("name,raw,other,n", ",,,1"), schema) == [{"name": "", "raw": b"", "other": None, "n": 1}]
    assert "column n: null" in refused(csv_of("name,raw,other,n", "a,,,"), schema)[1]


INPUTS: dict[Shape, Callable[[TypedInput, io.BytesIO], Iterator[pa.RecordBatch]]] = {
    Shape.TEXT: lambda source, file: source.json_batches(file),
    Shape.JSON: lambda source, file: source.json_batches(file),
    Shape.CSV: lambda source, file: source.csv_batches(file, ","),
    Shape.PARQUET: lambda source, file: source.parquet_batches(file),
}
"""`produce` reads the output of `consume`."""


@pytest.mark.parametrize("shape", list(INPUTS))
@given(random=RANDOMS)
@settings(max_examples=60, deadline=None)
def test_rows_of_any_schema_come_back_from_the_output_of_consume(shape: Shape, random: Random) -> None:
    schema = first_version(draft(random))
    sent = rows(random, schema)
    read = stored(schema, sent, shape)
    out = io.BytesIO()
    sink = open_typed_sink(out, ConsumeOptions("t", output=shape), read.rows.schema)
    sink.show(read)
    sink.close()
    back = list(INPUTS[shape](TypedInput("t", schema, Rejects(None)), io.BytesIO(out.getvalue())))
    names = [column.name for column in schema.columns]
    found = [row for one in back for row in one.select(names).to_pylist()]
    wanted = read.rows.select(names).to_pylist()
    if shape is Shape.CSV:  # an empty cell is null, unless the column is never null
        texts = {column.name for column in schema.columns if column.nullable}
        wanted = [
            {name: None if name in texts and value in ("", b"") else value for name, value in row.items()}
            for row in wanted
        ]
    assert repr(found) == repr(wanted)


def stored(schema: TopicSchema, sent: list[dict[str, Any]], shape: Shape) -> PartitionBatch:
    """The rows as `consume` reads them."""
    typed = TypedFormat("t", "id", schema)
    batch = sealed(typed, from_records(typed, sent))
    reader = reader_of(ConsumeOptions("t", output=shape), {1: schema})
    assert reader is not None
    return PartitionBatch("t", 0, reader.rows(batch, 0, 0))
