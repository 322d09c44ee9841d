# SPDX-License-Identifier: Apache-2.0
"""Rows of typed topics as JSON."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from tidemark.client.outputs.typed_json import json_column, json_rows

_ZONED = pa.timestamp("us", "UTC")


def _column(values: list[Any], data_type: Any) -> Any:
    return pa.array(values, data_type)


def _values(values: list[Any], data_type: Any) -> list[Any]:
    rows = pa.RecordBatch.from_arrays([_column(values, data_type)], ["found"])
    shown = [row["found"] for row in json_rows(rows, ["found"])]
    assert json_column(rows.column("found")) == shown
    return shown


@pytest.mark.parametrize(
    ("us", "shown"),
    [
        (-(2**62), "-144169-06-28T09:59:32.612096"),
        (-62_135_596_800_000_001, "+0000-12-31T23:59:59.999999"),
        (-62_135_596_800_000_000, "0001-01-01T00:00:00"),
        (-1, "1969-12-31T23:59:59.999999"),
        (253_402_300_799_999_999, "9999-12-31T23:59:59.999999"),
        (253_402_300_800_000_000, "+10000-01-01T00:00:00"),
        (-62_198_755_200_000_000, "-0001-01-01T00:00:00"),
    ],
)
def test_a_time_of_any_year_is_exact(us: int, shown: str) -> None:
    assert _values([us, None], _ZONED) == [shown + "Z", None]
    assert _values([us], pa.timestamp("us")) == [shown]


@pytest.mark.parametrize(
    ("days", "shown"),
    [(-719_163, "+0000-12-31"), (-719_162, "0001-01-01"), (2_932_896, "9999-12-31"), (2_932_897, "+10000-01-01")],
)
def test_a_date_of_any_year_is_exact(days: int, shown: str) -> None:
    assert _values([days, None], pa.date32()) == [shown, None]


def test_every_int_has_a_date() -> None:
    assert _values([2**31 - 1, -(2**31)], pa.date32()) == ["+5881580-07-11", "-5877641-06-23"]


@pytest.mark.parametrize("view", [pa.list_view, pa.large_list_view])
def test_list_views_are_lists(view: Any) -> None:
    """A Parquet file may have them, and `produce` writes its rejected rows as JSON."""
    assert _values([[1, None], None, [], [None]], view(pa.int32())) == [[1, None], None, [], [None]]
    shown = ["1970-01-01T00:00:00.000001", None]
    assert _values([[1, None], None], view(pa.timestamp("us"))) == [shown, None]
    assert _values([None, [[[1, None]], None]], view(pa.list_(view(pa.timestamp("us"))))) == [None, [[shown], None]]
    structs = pa.struct([("times", view(pa.timestamp("us"))), ("other", pa.int32())])
    found = [{"times": [1, None], "other": 2}, None, {"times": None, "other": None}]
    assert _values(found, structs) == [{"times": shown, "other": 2}, None, {"times": None, "other": None}]
    found = [[("a", [1, None]), ("b", None)], None, []]
    assert _values(found, pa.map_(pa.string(), view(pa.timestamp("us")))) == [{"a": shown, "b": None}, None, {}]


def test_nested_times_are_exact() -> None:
    far = 253_402_300_800_000_000
    nested = pa.struct([pa.field("at", pa.list_(_ZONED)), pa.field("by", pa.map_(pa.date32(), pa.timestamp("us")))])
    assert _values([{"at": [far, None], "by": [(2_932_897, far)]}, None], nested) == [
        {"at": ["+10000-01-01T00:00:00Z", None], "by": {"+10000-01-01": "+10000-01-01T00:00:00"}},
        None,
    ]


def test_a_dictionary_of_times_is_exact() -> None:
    dictionary: Any = _column([253_402_300_800_000_000, 0, None], _ZONED).dictionary_encode()
    rows = pa.RecordBatch.from_arrays([dictionary], ["found"])
    assert [row["found"] for row in json_rows(rows, ["found"])] == [
        "+10000-01-01T00:00:00Z",
        "1970-01-01T00:00:00Z",
        None,
    ]


def test_times_are_as_python_writes_them() -> None:
    moments = [datetime(2013, 1, 1, 5, tzinfo=UTC), datetime(2024, 2, 29, 23, 59, 59, 7, tzinfo=UTC)]
    assert _values(moments, _ZONED) == [one.isoformat().replace("+00:00", "Z") for one in moments]
    assert _values([date(2024, 2, 29)], pa.date32()) == ["2024-02-29"]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_time_of_any_unit_is_exact(unit: str) -> None:
    moments = [datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), datetime(2024, 2, 29, tzinfo=UTC)]
    assert _values([*moments, None], pa.timestamp(unit, "UTC")) == [
        "1969-12-31T23:59:59Z",
        "2024-02-29T00:00:00Z",
        None,
    ]
    nested = pa.large_list(pa.timestamp(unit))
    assert _values([[datetime(2024, 2, 29, 5, tzinfo=UTC).replace(tzinfo=None)]], nested) == [["2024-02-29T05:00:00"]]


def test_nanoseconds_are_exact() -> None:
    found = _values([1, -1, 1_500_000_020], pa.timestamp("ns"))
    assert found == ["1970-01-01T00:00:00.000000001", "1969-12-31T23:59:59.999999999", "1970-01-01T00:00:01.500000020"]


@pytest.mark.parametrize("data_type", [pa.large_binary(), pa.binary(1), pa.binary_view()])
def test_bytes_of_any_layout_are_base64(data_type: Any) -> None:
    assert _values([b"\xff", None], data_type) == ["/w==", None]
    assert _values([[b"\xff"]], pa.large_list(data_type)) == [["/w=="]]
