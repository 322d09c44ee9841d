# SPDX-License-Identifier: Apache-2.0
"""Rows that do not fit are refused with topic, version, column and row; rows that fit without a loss are accepted."""

from __future__ import annotations

import collections
import dataclasses
import enum
import mmap
import struct
import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pydantic
import pytest
from tidemark.client.producing.accumulator import Accumulator
from tidemark.client.producing.partitioner import hash_of
from tidemark.client.producing.table import as_rows
from tidemark.client.producing.typed_format import TypedFormat, slices
from tidemark.client.typed.batch_rows import BatchRows
from tidemark.client.typed.records import typed_records
from tidemark.core.schemas.ddl import draft_from_ddl
from tidemark.core.schemas.evolution import first_version
from tidemark.core.schemas.model import TopicSchema
from tidemark.model import ErrorCode, TidemarkError

from tests.refusals import raises_code
from tests.unit.client.typed.samples import FLIGHTS, from_checked, from_records, sealed
from tests.unit.core.schemas.drafts import draft
from tests.unit.core.schemas.rows import rows

NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)
ROW: dict[str, Any] = {"carrier": "UA", "scheduled_at": NOON}


class Plain(enum.Enum):
    TEXT = "UA"
    NUMBER = 7


def schema_of(ddl: str) -> TopicSchema:
    return first_version(draft_from_ddl(ddl))


def check(record: Any, schema: TopicSchema = FLIGHTS) -> Any:
    return TypedFormat("flights", "id", schema).records.check(record)[0]


def fit(table: Any, schema: TopicSchema = FLIGHTS, timestamp: str | None = None) -> list[dict[str, Any]]:
    batches = TypedFormat("flights", "id", schema).fit_table(table, timestamp)
    return [row for batch in batches for row in batch.to_pylist()]


EAST, WEST = timezone(timedelta(hours=14)), timezone(timedelta(hours=-5))
BAD_RECORDS: list[tuple[str, Any, str, str]] = [
    ("missing", {"scheduled_at": NOON}, "carrier", "lacks the column"),
    ("superfluous", ROW | {"dely": 1}, "dely", "did you mean delay"),
    ("no_name", ROW | {1: 1}, "1", "no such column"),
    ("null", ROW | {"carrier": None}, "carrier", "never null"),
    ("text_for_int", ROW | {"flight": "7"}, "flight", "a value of type str, and the column is int32"),
    ("enum_of_text_for_int", ROW | {"flight": Plain.TEXT}, "flight", "of type str"),
    ("uuid_for_int", ROW | {"flight": uuid.UUID(int=1)}, "flight", "of type UUID"),
    ("bool_for_int", ROW | {"flight": True}, "flight", "of type bool"),
    ("numpy_bool_for_int", ROW | {"flight": np.True_}, "flight", "of type bool"),
    ("float_for_int", ROW | {"flight": 7.0}, "flight", "of type float"),
    ("out_of_range", ROW | {"delay": 2**15}, "delay", "outside of int16"),
    ("too_large", ROW | {"flight": 10**5000}, "flight", "outside of int32"),
    ("half_a_pair", ROW | {"carrier": "\ud800"}, "carrier", "surrogate"),
    ("bytes_for_text", ROW | {"carrier": b"UA"}, "carrier", "of type bytes"),
    ("no_time_zone", ROW | {"scheduled_at": NOON.replace(tzinfo=None)}, "scheduled_at", "no time zone"),
    ("year_0_in_utc", ROW | {"scheduled_at": datetime.min.replace(tzinfo=EAST)}, "scheduled_at", "years 1 to 9999"),
    ("year_10000_in_utc", ROW | {"scheduled_at": datetime.max.replace(tzinfo=WEST)}, "scheduled_at", "years 1 to 9999"),
    ("date_for_time", ROW | {"scheduled_at": date(2026, 1, 1)}, "scheduled_at", "of type date"),
    ("int_for_time", ROW | {"scheduled_at": 1}, "scheduled_at", "of type int"),
    ("nanoseconds", ROW | {"scheduled_at": pd.Timestamp(1, tz="UTC")}, "scheduled_at", "microseconds"),
    ("not_a_time", ROW | {"scheduled_at": pd.NaT}, "scheduled_at", ""),
    ("float_for_decimal", ROW | {"price": 1.5}, "price", "of type float"),
    ("digits_lost", ROW | {"price": Decimal("1.005")}, "price", "without a loss"),
    ("too_many_digits", ROW | {"price": Decimal("123456789")}, "price", "outside of decimal"),
    ("nan_decimal", ROW | {"price": Decimal("NaN")}, "price", "decimal"),
    ("list_of_other", ROW | {"legs": "EWR"}, "legs", "a list"),
    ("nested_missing", ROW | {"legs": [{"miles": 1}]}, "legs.element.origin", "lacks"),
    ("nested_null", ROW | {"legs": [{"origin": "A"}, {"origin": None}]}, "legs.element.origin", "never null"),
    ("nested_superfluous", ROW | {"legs": [{"origin": "A", "x": 1}]}, "legs.element.x", "no such column"),
    ("nested_other", ROW | {"legs": [5]}, "legs.element", "a mapping"),
    ("scalar_of_numpy_for_list", ROW | {"legs": np.str_("EWR")}, "legs", "of type str"),
    ("number_of_numpy_for_list", ROW | {"legs": np.int64(1)}, "legs", "of type int"),
    ("array_for_int", ROW | {"flight": np.array([7, 8])}, "flight", "of type ndarray"),
    ("map_of_other", ROW | {"tags": 5}, "tags", "a mapping"),
    ("map_null_key", ROW | {"tags": {None: 1}}, "tags.key", "never null"),
    ("map_value", ROW | {"tags": {"a": "b"}}, "tags.value", "of type str"),
    ("key_twice", ROW | {"tags": [("a", 1), ("b", 2), ("a", 3)]}, "tags.key", "'a' twice"),
    ("map_pairs", ROW | {"tags": ["ab"]}, "tags", "not a pair"),
    ("bytes", b"{}", "", "of type bytes (this topic has a schema)"),
    ("list", [1], "", "of type list"),
]


@pytest.mark.parametrize(
    ("record", "column", "sentence"), [bad[1:] for bad in BAD_RECORDS], ids=[bad[0] for bad in BAD_RECORDS]
)
def test_a_record_that_does_not_fit_is_refused_by_column(record: Any, column: str, sentence: str) -> None:
    with pytest.raises(TidemarkError) as refused:
        check(record)
    error = refused.value
    assert error.code is ErrorCode.SCHEMA_MISMATCH
    assert error.message.startswith("topic flights, schema version 1: ")
    assert sentence in error.message
    assert {"topic": "flights", "version": "1"}.items() <= error.metadata.items()
    assert error.metadata.get("column", "") == column


@pytest.mark.parametrize(
    ("column", "value", "sentence"),
    [
        ("flight", 2**31, "outside of int32"),
        ("flight", -(2**31) - 1, "outside of int32"),
        ("delay", 2**15, "outside of int16"),
        ("carrier", "\ud800", "surrogate"),
        ("scheduled_at", NOON.replace(tzinfo=None), "no time zone"),
        ("price", Decimal("1.005"), "without a loss"),
    ],
)
def test_a_misfit_among_records_of_the_same_types_is_refused_by_column(column: str, value: Any, sentence: str) -> None:
    records = TypedFormat("flights", "id", FLIGHTS).records
    fits = ROW | {"flight": 2**31 - 1, "delay": -(2**15), "price": Decimal("1.50"), "legs": None, "tags": {}}
    before = records.check(fits)
    with pytest.raises(TidemarkError, match=sentence) as refused:
        records.check(fits | {column: value})
    assert (refused.value.code, refused.value.metadata["column"]) == (ErrorCode.SCHEMA_MISMATCH, column)
    assert records.check(fits) == before


def test_datetimes_of_any_time_zones_are_the_same_instants_in_a_batch() -> None:
    schema = schema_of("at TIMESTAMP, local TIMESTAMP_NTZ")
    zones = [UTC, ZoneInfo("UTC"), ZoneInfo("America/New_York"), timezone(timedelta(hours=-9, minutes=-30))]
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    typed = TypedFormat("t", "id", schema)
    for chosen in ([UTC], [ZoneInfo("UTC")], [ZoneInfo("America/New_York")], zones):
        at = [NOON.astimezone(chosen[place % len(chosen)]) + timedelta(microseconds=place) for place in range(9)]
        records = [{"at": one, "local": one.replace(tzinfo=None)} for one in at]
        for more in ([], [{"at": None, "local": None}], [{"at": first, "local": first.replace(tzinfo=None)}]):
            found = from_records(typed, [*records, *more]).select(["at", "local"]).to_pylist()
            assert found == [*records, *more]
    assert from_records(typed, [{"at": last, "local": None}]).column("at").to_pylist() == [last]


class Model(pydantic.BaseModel):
    carrier: str
    scheduled_at: datetime
    delay: int | None = None


@dataclasses.dataclass
class Leg:
    origin: str
    miles: int | None = None


@dataclasses.dataclass(slots=True)
class Flight:
    carrier: str
    flight: int
    delay: int
    price: Decimal
    scheduled_at: datetime
    legs: list[Leg]
    tags: dict[str, int]


class Carrier(enum.StrEnum):
    UNITED = "UA"


Named = collections.namedtuple("Named", ["carrier", "scheduled_at"])


@pytest.mark.parametrize(
    ("record", "wanted"),
    [
        (ROW, {}),
        (collections.ChainMap(ROW), {}),
        (Named("UA", NOON), {}),
        (Model(carrier="UA", scheduled_at=NOON, delay=3), {"delay": 3}),
        (ROW | {"carrier": Carrier.UNITED}, {}),
        (
            ROW | {"carrier": Plain.TEXT, "flight": Plain.NUMBER, "tags": {Plain.TEXT: 1}},
            {"flight": 7, "tags": [("UA", 1)]},
        ),
        (ROW | {"tags": {uuid.UUID(int=1): 2}}, {"tags": [("00000000-0000-0000-0000-000000000001", 2)]}),
        (ROW | {"flight": np.int64(7), "delay": np.int8(-1)}, {"flight": 7, "delay": -1}),
        (ROW | {"price": 3}, {"price": Decimal("3.00")}),
        (ROW | {"scheduled_at": pd.Timestamp(NOON)}, {}),
        (ROW | {"scheduled_at": NOON.astimezone(timezone(timedelta(hours=5)))}, {}),
        (ROW | {"legs": ({"origin": "EWR"},)}, {"legs": [{"origin": "EWR", "miles": None}]}),
        (ROW | {"tags": [("a", 1)]}, {"tags": [("a", 1)]}),
        (
            Flight("UA", 1, 2, Decimal(1), NOON, [Leg("EWR")], {"a": 1}),
            {
                "flight": 1,
                "delay": 2,
                "price": Decimal("1.00"),
                "legs": [{"origin": "EWR", "miles": None}],
                "tags": [("a", 1)],
            },
        ),
    ],
)
def test_records_of_many_classes_are_taken(record: Any, wanted: dict[str, Any]) -> None:
    typed = TypedFormat("flights", "id", FLIGHTS)
    nothing = dict.fromkeys(["flight", "delay", "price", "legs", "tags"])
    (row,) = from_records(typed, [record, record]).slice(1).to_pylist()
    assert row == {**ROW, **nothing, **wanted}


def test_floats_are_taken_unless_their_value_would_change() -> None:
    schema = schema_of("a FLOAT, b DOUBLE")
    assert check({"a": 0.1, "b": 3}, schema) == (0.1, 3.0)
    assert check({"a": float("inf"), "b": np.float32(0.5)}, schema) == (float("inf"), 0.5)
    assert check({"a": np.int64(-(2**24)), "b": np.int64(2**53)}, schema) == (-(2.0**24), 2.0**53)
    for bad in ({"a": 2**24 + 1}, {"a": 10**39}, {"b": np.int64(2**53 + 1)}):
        with pytest.raises(TidemarkError, match=r"column [ab]"):
            check(bad, schema)
    for bad in ({"a": 1e39}, {"b": 2**53 + 1}, {"b": Decimal(1)}, {"b": "1"}, {"b": 10**400}, {"b": True}):
        with pytest.raises(TidemarkError, match=r"column [ab]"):
            check(bad, schema)


def test_a_default_stands_for_a_column_that_is_missing_and_not_for_a_null() -> None:
    schema = schema_of("a STRING NOT NULL DEFAULT 'x', b INT DEFAULT 7")
    assert check({}, schema) == ("x", 7)
    assert check({"b": None}, schema) == ("x", None)
    assert fit(pa.table({"b": pa.array([None, 1], pa.int32())}), schema) == [{"a": "x", "b": None}, {"a": "x", "b": 1}]
    with pytest.raises(TidemarkError, match="row 1, column a: null"):
        fit(pa.table({"a": ["y", None]}), schema)


@pytest.mark.parametrize("key", ["UA", {"carrier": "UA"}, collections.namedtuple("Key", ["carrier"])("UA")])
def test_a_deletion_has_the_key_of_the_rows_that_it_deletes(key: Any) -> None:
    typed = TypedFormat("flights", "id", FLIGHTS)
    deleted, kept = typed.records.deletion(key, 7)[0], check(ROW)
    assert typed.records.key(deleted) == typed.records.key(kept) == b"UA"
    sent = from_checked(typed, [deleted, kept])
    reader = BatchRows("flights", {1: FLIGHTS})
    stored = sealed(typed, sent)
    assert typed.read(stored.data).equals(sent)
    first, second = typed_records("flights", 0, reader.rows(stored, 0, 0))
    assert (first.key, first.value, first.timestamp_us) == (b"UA", None, 7)
    assert second.value is not None
    assert BatchRows("flights", {1: FLIGHTS}, ["_offset"]).rows(stored, 0, 0).to_pylist() == [{"_offset": 101}]


@pytest.mark.parametrize("key", [7, {"carrier": None}, {"carrier": "UA", "delay": 1}, {}, ["UA"]])
def test_a_deletion_with_another_key_is_refused(key: Any) -> None:
    with pytest.raises(TidemarkError, match=r"column (carrier|delay)"):
        TypedFormat("flights", "id", FLIGHTS).records.deletion(key, 7)
    with pytest.raises(TidemarkError, match="no key columns"):
        TypedFormat("t", "id", schema_of("a INT")).records.deletion(key, 7)


@pytest.mark.parametrize("timestamp_us", [10**18, -(10**18)])
def test_a_deletion_at_a_time_that_no_datetime_has_is_refused(timestamp_us: int) -> None:
    with pytest.raises(TidemarkError, match=r"column scheduled_at: .* is outside of the years 1 to 9999") as refused:
        TypedFormat("flights", "id", FLIGHTS).records.deletion("UA", timestamp_us)
    assert refused.value.code is ErrorCode.SCHEMA_MISMATCH


def test_a_deletion_fits_any_schema() -> None:
    random = Random(3)
    for _ in range(300):
        schema = first_version(draft(random))
        typed = TypedFormat("t", "id", schema)
        if schema.key:
            (record,) = rows(random, schema)[:1]
            key = {column.name: record[column.name] for column in schema.key_columns}
            sent = from_checked(typed, [typed.records.deletion(key, 7)[0]])
            (found,) = typed_records("t", 0, BatchRows("t", {1: schema}).rows(sealed(typed, sent), 0, 0))
            assert (found.value, found.key) == (None, typed.records.key(typed.records.check(record)[0]))


# -- tables ------------------------------------------------------------------------------------------------------------


def table_of(**columns: Any) -> pa.Table:
    return pa.table({"carrier": ["UA", "AA"], "scheduled_at": [NOON, NOON], **columns})


def at(*times: Any) -> pa.Table:
    return table_of().set_column(1, "scheduled_at", pa.array(*times))


def legs(*rows: Any) -> pa.Table:
    leg = pa.struct([pa.field("origin", pa.string()), pa.field("miles", pa.int64())])
    return table_of(legs=pa.array(rows, pa.list_(leg)))


NS = pa.timestamp("ns", "UTC")
TS = pa.timestamp("us")
LOCAL = NOON.replace(tzinfo=None)
TAGS = pa.array([[], [("a", 2**31)]], pa.map_(pa.string(), pa.int64()))
A, B, NULL = {"origin": "A"}, {"origin": "B"}, {"origin": None}
FAR = {"origin": "A", "miles": 2**31}
BAD_TABLES: list[tuple[str, pa.Table, str, str, str]] = [
    ("missing", pa.table({"carrier": ["UA"]}), "scheduled_at", "", "lack the column"),
    ("superfluous", table_of(dely=[1, 2]), "dely", "", "did you mean delay"),
    ("twice", pa.Table.from_arrays([pa.array([1])] * 2, ["delay", "delay"]), "delay", "", "two columns"),
    ("null", table_of().set_column(0, "carrier", pa.array(["UA", None])), "carrier", "1", "never null"),
    ("other_type", table_of(delay=["1", "2"]), "delay", "", "string"),
    ("bool", table_of(delay=[True, False]), "delay", "", "bool"),
    ("out_of_range", table_of(delay=[1, 2**15]), "delay", "1", "32768 does not fit int16"),
    ("fraction", table_of(delay=[1.0, 1.5]), "delay", "1", "1.5 does not fit"),
    ("local_time", at([LOCAL, LOCAL]), "scheduled_at", "", "name the time zone"),
    ("nanoseconds", at([0, 1], NS), "scheduled_at", "1", "without a loss"),
    ("decimal", table_of(price=pa.array([1, 10**9])), "price", "1", "decimal"),
    ("nested_null", legs([A], [B, NULL]), "legs.element.origin", "1", "never null"),
    ("nested_range", legs(None, [FAR]), "legs.element.miles", "1", "does not fit int32"),
    ("nested_other", table_of(legs=[["A"], []]), "legs.element", "", "a struct"),
    ("key_twice", table_of(tags=pa.array([[], [("a", 1), ("a", 2)]], TAGS.type)), "tags.key", "1", "'a' twice"),
    ("year_30000", at([0, 2**60], pa.timestamp("us", "UTC")), "scheduled_at", "1", "years 1 to 9999"),
    ("far_seconds", at([0, 2**60], pa.timestamp("s", "UTC")), "scheduled_at", "1", "without a loss"),
    ("map_value", table_of(tags=TAGS), "tags.value", "1", "does not fit int32"),
]


@pytest.mark.parametrize(
    ("table", "column", "row", "sentence"), [bad[1:] for bad in BAD_TABLES], ids=[bad[0] for bad in BAD_TABLES]
)
def test_a_table_that_does_not_fit_is_refused_by_column_and_row(
    table: pa.Table, column: str, row: str, sentence: str
) -> None:
    with pytest.raises(TidemarkError) as refused:
        fit(table)
    error = refused.value
    assert error.code is ErrorCode.SCHEMA_MISMATCH
    assert (error.metadata["column"], error.metadata.get("row", "")) == (column, row)
    assert sentence in error.message


@pytest.mark.parametrize(
    ("ddl", "numbers", "kind"),
    [
        ("a DATE", [-719_163, -719_162, 2_932_896, 2_932_897], pa.date32()),
        ("a TIMESTAMP_NTZ", [-62_135_596_800_000_001, -62_135_596_800_000_000, 253_402_300_799_999_999, 2**62], TS),
    ],
)
def test_times_are_of_the_years_that_python_has(ddl: str, numbers: list[int], kind: Any) -> None:
    schema, array = schema_of(ddl), pa.array(numbers, pa.int64() if kind is TS else pa.int32()).cast(kind)
    found = fit(pa.table({"a": array.slice(1, 2)}), schema)
    assert [row["a"].year for row in found] == [1, 9999]
    for wrong in (array.slice(0, 2), array.slice(3)):
        with pytest.raises(TidemarkError, match=r"row 0, column a: .* is outside of the years 1 to 9999"):
            fit(pa.table({"a": wrong}), schema)


def texts(offsets: list[int], data: bytes) -> Any:
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32).tobytes()), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)


def indices(*found: int) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(found, pa.int32()), pa.array(["UA"]), safe=False)


def legs_of(origins: Any) -> Any:
    return pa.ListArray.from_arrays([0, 1, len(origins)], pa.StructArray.from_arrays([origins], ["origin"]))


def lists(offsets: list[int]) -> Any:
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32).tobytes())]
    origins = pa.array([{"origin": "A"}] * 4)
    return pa.Array.from_buffers(pa.list_(origins.type), len(offsets) - 1, buffers, children=[origins])


LYING: list[tuple[str, str, Any, str]] = [
    ("offsets_backwards", "carrier", texts([0, 5, 4, 6], b"abcdef"), "1"),
    ("offset_negative", "carrier", texts([0, -5, 4, 6], b"abcdef"), "0"),
    ("not_utf_8", "carrier", texts([0, 1, 2, 3], b"ab\xff"), "2"),
    ("index_out_of_range", "carrier", indices(0, 1, 0), "1"),
    ("index_negative", "carrier", indices(0, 0, -1), "2"),
    ("nested", "legs.element.origin", legs_of(texts([0, 1, 5, 4], b"abcdef")), "1"),
    ("lists_backwards", "legs", lists([0, 2, 1, 3]), "1"),
    ("list_negative", "legs", lists([0, -1, 1]), "0"),
    ("map_value", "tags.value", pa.MapArray.from_arrays([0, 1, 2], ["a", "b"], texts([0, 1, 0], b"ab")), "1"),
]


@pytest.mark.parametrize(("column", "array", "row"), [one[1:] for one in LYING], ids=[one[0] for one in LYING])
def test_a_table_with_lying_buffers_is_refused_by_column_and_row(column: str, array: Any, row: str) -> None:
    count = len(array)
    whole = {"carrier": pa.array(["UA"] * count), "scheduled_at": pa.array([NOON] * count)}
    with pytest.raises(TidemarkError) as refused:
        fit(pa.table(whole | {column.partition(".")[0]: array}))
    error = refused.value
    assert error.code is ErrorCode.SCHEMA_MISMATCH
    assert (error.metadata["column"], error.metadata["row"]) == (column, row)
    assert "no valid Arrow array" in error.message


def test_a_slice_of_a_table_is_checked_as_far_as_its_rows_reach() -> None:
    whole = pa.record_batch(
        {"carrier": ["UA"] * 2, "scheduled_at": [NOON] * 2, "legs": legs_of(texts([0, 1, 2, 0], b"ab"))}
    )
    assert [row["legs"][0]["origin"] for row in fit(whole.slice(0, 1))] == ["a"]
    with pytest.raises(TidemarkError, match=r"row 0, column legs.element.origin: no valid Arrow array"):
        fit(whole.slice(1, 1))


def test_the_row_is_counted_over_all_chunks_of_a_table() -> None:
    table = pa.concat_tables([table_of(delay=[1, 2]), table_of(delay=[3, 2**20])])
    with pytest.raises(TidemarkError, match="row 3, column delay: 1048576"):
        fit(table)


def test_tables_of_many_libraries_are_taken() -> None:
    rows = {"carrier": ["UA", "AA"], "delay": [1, None], "scheduled_at": [NOON, NOON]}
    wanted = [
        ROW | {"flight": None, "delay": 1, "price": None, "legs": None, "tags": None},
        ROW | {"carrier": "AA", "flight": None, "delay": None, "price": None, "legs": None, "tags": None},
    ]
    frame = pd.DataFrame(rows)
    assert fit(frame) == wanted
    assert fit(frame.assign(carrier=frame["carrier"].astype("category"), flight=None)) == wanted
    assert fit(pl.DataFrame(rows)) == wanted
    assert fit(pl.DataFrame(rows).with_columns(pl.col("carrier").cast(pl.Categorical))) == wanted
    with duckdb.connect() as connection:
        connection.register("rows", pa.table(rows))
        assert fit(connection.sql("SELECT carrier, delay, scheduled_at FROM rows")) == wanted
        made = connection.sql(
            "SELECT * EXCLUDE (delay), map {'a': 1} AS tags, 1.5 AS price, 9::HUGEINT AS flight FROM rows"
        )
        assert [(row["tags"], row["price"], row["flight"]) for row in fit(made)] == [
            ([("a", 1)], Decimal("1.50"), 9)
        ] * 2
    nested = pl.DataFrame(rows).with_columns(
        tags=pl.Series([[{"key": "a", "value": 1}], []]), legs=pl.Series([[{"origin": "A"}], None])
    )
    assert [(row["tags"], row["legs"]) for row in fit(nested)] == [
        ([("a", 1)], [{"origin": "A", "miles": None}]),
        ([], None),
    ]


def test_a_null_map_stays_null_with_entries_below_it() -> None:
    entries = pa.StructArray.from_arrays([pa.array(["a", "a", "b", "c"]), pa.array([1, 2, 3, 4])], ["key", "value"])
    tags = pa.ListArray.from_arrays(pa.array([0, 2, 4], pa.int32()), entries, mask=pa.array([True, False]))
    assert [row["tags"] for row in fit(table_of(tags=tags))] == [None, [("b", 3), ("c", 4)]]


def test_a_map_keeps_null_structs_whose_fields_are_never_null() -> None:
    points = pa.StructArray.from_arrays(
        [pa.array([1, None, 3], pa.int32())],
        fields=[pa.field("a", pa.int32(), nullable=False)],
        mask=pa.array([False, True, False]),
    )
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 2, 3], pa.int32()), points)
    maps = pa.MapArray.from_arrays(pa.array([0, 1, None, 2, 3], pa.int32()), pa.array(["k", "l", "m"]), lists)
    schema = schema_of("m MAP<STRING, ARRAY<STRUCT<a: INT NOT NULL>>>")
    wanted = [[("k", [{"a": 1}, None])], [("l", [])], None, [("m", [{"a": 3}])]]
    for start in range(4):
        assert [row["m"] for row in fit(pa.table({"m": maps.slice(start)}), schema)] == wanted[start:]


def test_a_table_with_more_bytes_than_arrow_joins_keeps_all_rows() -> None:
    half_bytes = (1 << 30) + 1
    ends = pa.py_buffer(struct.pack("<iii", 0, half_bytes, half_bytes))
    half = pa.Array.from_buffers(pa.binary(), 2, [None, ends, pa.py_buffer(mmap.mmap(-1, half_bytes))])
    table = pa.Table.from_batches([pa.record_batch({"blob": half})] * 2)
    batches = TypedFormat("blobs", "id", schema_of("blob BINARY")).fit_table(table, None)
    lengths = [length for batch in batches for length in pc.binary_length(batch.column("blob")).to_pylist()]
    assert lengths == [half_bytes, 0] * 2


def test_the_unnamed_index_of_a_pandas_frame_is_no_column() -> None:
    """Arrow makes a column of it, unless it counts the rows: after a filter, a sort or a concatenation."""
    frame = pd.DataFrame({"a": [3, 1, 2], "b": ["x", "y", "z"]})
    chosen, schema = frame[frame.a < 3].sort_values("a"), schema_of("a BIGINT, b STRING")
    wanted = [{"a": 1, "b": "y"}, {"a": 2, "b": "z"}]
    for table in (chosen, pa.Table.from_pandas(chosen), pa.RecordBatch.from_pandas(chosen), chosen.set_index("b")):
        assert fit(table, schema) == wanted
    (rows_of_bytes,) = as_rows(chosen, key=None, value=None, timestamp=None, now_us=0)
    assert rows_of_bytes.column("value").to_pylist() == [b'{"a":1,"b":"y"}', b'{"a":2,"b":"z"}']


@pytest.mark.parametrize("value", [1, object(), [[1], "a"]])
def test_a_frame_that_arrow_cannot_take_is_refused_by_topic_and_column(value: Any) -> None:
    frame = pd.DataFrame({"carrier": ["UA", value], "scheduled_at": [NOON, NOON]})
    with pytest.raises(TidemarkError, match=r"topic flights: a DataFrame that Arrow cannot take: .*carrier") as refused:
        fit(frame)
    assert (refused.value.code, refused.value.metadata) == (ErrorCode.INVALID_PAYLOAD, {"topic": "flights"})


def test_rows_of_a_frame_are_those_at_the_time_of_the_send() -> None:
    """Arrow takes the numbers of a pandas frame without a copy, and pandas may change them in place."""
    frame = pd.DataFrame(
        {"a": [1, 2], "b": [1.0, 2.0], "at": pd.to_datetime([0, 1], unit="us", utc=True).as_unit("us")}
    )
    typed = TypedFormat("t", "id", schema_of("a BIGINT, b DOUBLE, at TIMESTAMP"))
    found = typed.fit_table(frame, None)
    sent = [row for rows in found for row in rows.to_pylist()]
    frame["a"] += 7
    frame.loc[0, "b"] = 9.0
    frame["at"] += pd.Timedelta("1s")
    assert [row for rows in found for row in rows.to_pylist()] == sent


def test_rows_of_a_table_are_those_at_the_time_of_the_send() -> None:
    """Arrow takes an array of numpy without a copy, and a program may use the array again for the next table."""
    numbers, texts = np.arange(6.0), ["a", "b", "c"]
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 4, 6], pa.int32()), numbers)
    table = pa.table({"b": pa.array(numbers)[:3], "text": texts, "list": lists})
    typed = TypedFormat("t", "id", schema_of("b DOUBLE, text STRING, list ARRAY<DOUBLE>, at TIMESTAMP"))
    for given in (table, table.to_batches()[0], pa.concat_tables([table, table])):
        found = typed.fit_table(given, None)
        sent = [row for rows in found for row in rows.to_pylist()]
        numbers += 7
        assert [row for rows in found for row in rows.to_pylist()] == sent
    times = np.arange(3)
    (rows_of_bytes,) = as_rows(
        pa.table({"value": texts, "at": times}), key=None, value="value", timestamp="at", now_us=0
    )
    before = rows_of_bytes.to_pylist()
    times += 1
    assert rows_of_bytes.to_pylist() == before


def test_null_structs_hide_the_nulls_below_them() -> None:
    schema = schema_of("leg STRUCT<origin: STRING NOT NULL, at: STRUCT<gate: INT NOT NULL> NOT NULL>")
    leg = pa.struct([("origin", pa.string()), ("at", pa.struct([("gate", pa.int32())]))])
    rows = [{"leg": {"origin": "A", "at": {"gate": 1}}}, {"leg": None}]
    assert fit(pa.Table.from_pylist(rows, pa.schema([("leg", leg)])), schema) == rows
    with pytest.raises(TidemarkError, match=r"row 1, column leg.at.gate: null"):
        fit(
            pa.Table.from_pylist([rows[0], {"leg": {"origin": "A", "at": {"gate": None}}}], pa.schema([("leg", leg)])),
            schema,
        )


def test_timestamps_of_a_table_are_for_topics_without_an_event_time() -> None:
    schema = schema_of("a INT")
    (row,) = fit(pa.table({"a": [1], "at": [NOON]}), schema, timestamp="at")
    assert row == {"_timestamp": NOON, "a": 1}
    with pytest.raises(TidemarkError, match="has the event time scheduled_at: omit timestamp"):
        fit(table_of(), timestamp="scheduled_at")
    with pytest.raises(TidemarkError, match="1 rows have no timestamp"):
        fit(pa.table({"a": [1, 2], "at": [NOON, None]}), schema, timestamp="at")


@pytest.mark.parametrize("time_us", [-(10**18), 10**18])
def test_a_record_at_a_time_that_readers_lack_is_refused(time_us: int) -> None:
    """Its row would end each read with Python's times; the other topics take any time, as Kafka's do."""
    typed = TypedFormat("t", "id", schema_of("a INT"))
    gathering = Accumulator(batch_bytes=1 << 20, buffer_bytes=1 << 20, delivery_timeout_s=60, wake=lambda: None)
    with raises_code(ErrorCode.INVALID_TIMESTAMP, f"timestamp_us is {time_us}: .* years 1 to 9999"):
        gathering.add_row(typed, typed.records.check({"a": 1}), 0, 1, time_us, None)
    assert not gathering.open
    gathering.add("bytes", 0, 1, None, b"value", time_us, None)
    times = pa.array([0, time_us], pa.int64()).view(pa.timestamp("us", "UTC"))
    table = pa.table({"a": [1, 2], "at": times})
    with raises_code(ErrorCode.INVALID_TIMESTAMP, f"column 'at', row 1: {time_us} us since 1970 .* years 1 to 9999"):
        typed.fit_table(table, "at")


def test_slices_keep_to_their_bytes_unless_a_row_is_larger() -> None:
    sizes = [10, 10, 5000, 10, 10, 10, 9000, 10]
    rows = pa.RecordBatch.from_pydict({"a": ["x" * size for size in sizes]})
    parts = list(slices(rows, 6000))
    assert [one for part in parts for one in part.column("a").to_pylist()] == rows.column("a").to_pylist()
    assert all(part.nbytes <= 7500 or part.num_rows == 1 for part in parts)


class OtherDatetime(datetime):
    """As the datetimes of other libraries, such as pendulum."""


@pytest.mark.parametrize(
    "ddl", ["at TIMESTAMP NOT NULL, PRIMARY KEY (at)", "at TIMESTAMP NOT NULL, n INT, PRIMARY KEY (n, at)"]
)
@pytest.mark.parametrize("kind", [datetime, OtherDatetime])
def test_a_key_goes_to_the_partition_of_its_bytes_also_in_the_hour_that_a_clock_repeats(
    ddl: str, kind: type[datetime]
) -> None:
    """Python calls both instants equal, if their time zone is the same object."""
    typed = TypedFormat("t", "id", schema_of(ddl))
    first = kind(2026, 11, 1, 1, 30, tzinfo=ZoneInfo("America/New_York"))
    for at in (first, first.replace(fold=1), first.astimezone(UTC), first.replace(fold=1).astimezone(UTC), first):
        values, _ = typed.records.check({"at": at} | ({"n": 1} if " n " in ddl else {}))
        assert typed.partition_of(values, 1 << 30) == hash_of(typed.records.key(values) or b"") % (1 << 30)
