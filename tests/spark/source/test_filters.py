# SPDX-License-Identifier: Apache-2.0
"""Filters that Spark passes to a read: no row that passes them is omitted. Pure, without Spark and brokers."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark_spark.filters import Comparison, narrow
from tidemark_spark.typed.filters import masks, times_of

from tests.spark.harness.reading import needs_pushed_filters

EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
DAY_1, DAY_LAST = datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31)  # noqa: DTZ001 - hypothesis adds zones
COMPARED: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "EqualTo": lambda one, other: bool(one == other),
    "EqualNullSafe": lambda one, other: bool(one == other),
    "GreaterThan": lambda one, other: bool(one > other),
    "GreaterThanOrEqual": lambda one, other: bool(one >= other),
    "LessThan": lambda one, other: bool(one < other),
    "LessThanOrEqual": lambda one, other: bool(one <= other),
}
TEXTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "StringStartsWith": str.startswith,
    "StringEndsWith": str.endswith,
    "StringContains": str.__contains__,
}


def decimals(precision: int, scale: int) -> st.SearchStrategy[decimal.Decimal]:
    limit = 10**precision - 1
    exact = decimal.Context(prec=80)
    return st.integers(-limit, limit).map(lambda unscaled: exact.scaleb(decimal.Decimal(unscaled), -scale))


FLOATS: Final = st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 1.5])
VALUES: Final[list[tuple[pa.DataType, st.SearchStrategy[Any]]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), FLOATS | st.floats(width=32)),
    (pa.float64(), FLOATS | st.floats()),
    (pa.string(), st.text("aAäß \u0000😀", max_size=3)),
    (pa.binary(), st.binary(max_size=2)),
    (pa.decimal128(5, 2), decimals(5, 2)),
    (pa.decimal128(38, 3), decimals(38, 3)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", "UTC"), st.datetimes(DAY_1, DAY_LAST, timezones=st.just(datetime.UTC))),
    (pa.timestamp("us"), st.datetimes(DAY_1, DAY_LAST)),
]


def order(value: Any) -> Any:
    """The value in the order of Spark: NaN is the largest number, texts are compared by their bytes."""
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return value.encode() if isinstance(value, str) else value


def passes(kind: str, operand: Any, value: Any) -> bool | None:
    """The result of a filter in Spark, in SQL's logic; None: unknown."""
    if kind == "IsNull":
        return value is None
    if kind == "IsNotNull":
        return value is not None
    if kind == "EqualNullSafe" and (value is None or operand is None):
        return value is operand
    if value is None:
        return None
    if kind == "In":
        found = any(one is not None and order(one) == order(value) for one in operand)
        return True if found else None if None in operand else False
    if operand is None:
        return None
    return TEXTS[kind](value, operand) if kind in TEXTS else COMPARED[kind](order(value), order(operand))


def passed_on(value: Any) -> Any:
    """A constant as PySpark passes it on, in `VariantUtils._get_decimal`."""
    if isinstance(value, list):
        return [passed_on(one) for one in value]
    if not isinstance(value, decimal.Decimal):
        return value
    sign, digits, exponent = value.as_tuple()
    unscaled = int("".join(map(str, digits))) * (-1) ** sign
    return decimal.Decimal(unscaled) * decimal.Decimal(10) ** int(exponent)


@needs_pushed_filters
@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_masks_omit_no_row_that_passes_the_filter(data: st.DataObject) -> None:
    from pyspark.sql import datasource

    data_type, known = data.draw(st.sampled_from(VALUES))
    values = data.draw(st.lists(st.none() | known, min_size=1, max_size=6))
    kinds = [*COMPARED, "In", "IsNull", "IsNotNull", *(TEXTS if pa.types.is_string(data_type) else ())]
    kind = data.draw(st.sampled_from(kinds))
    operand = known if kind in TEXTS else st.sampled_from(values) | st.none() | known
    wanted = data.draw(st.lists(operand, max_size=3) if kind == "In" else operand)
    path = data.draw(st.sampled_from([("x",), ("s", "x")]))
    arguments = () if kind.startswith("Is") else (passed_on(wanted),)
    pushed: Any = getattr(datasource, kind)(path, *arguments)
    negated = data.draw(st.booleans())
    column = pa.array(values, data_type)
    rows = pa.RecordBatch.from_arrays(
        [column, pa.StructArray.from_arrays([column], ["x"]), pa.array(range(len(values)))], ["x", "s", "row"]
    )
    whole = rows
    for mask in masks([datasource.Not(pushed) if negated else pushed], rows.schema):
        rows = rows.filter(mask(rows))
    kept = set(rows.column("row").to_pylist())
    for row, value in enumerate(whole.column("x").to_pylist()):
        found = passes(kind, wanted, value)
        if found is not None and found is not negated:
            assert row in kept, (kind, negated, wanted, value)


@needs_pushed_filters
@pytest.mark.parametrize(
    ("data_type", "kind", "operand", "values"),
    [
        (pa.float64(), "LessThan", math.nan, [1.0, -math.inf]),
        (pa.float32(), "LessThanOrEqual", math.nan, [1.0, math.nan]),
        (pa.decimal128(38, 0), "EqualTo", decimal.Decimal("9" * 37 + "8"), [decimal.Decimal("9" * 37 + "8")]),
        (pa.decimal128(38, 0), "In", [decimal.Decimal("1" * 38)], [decimal.Decimal("1" * 38)]),
    ],
)
def test_masks_omit_no_row_for_constants_that_arrow_compares_otherwise(
    data_type: pa.DataType, kind: str, operand: Any, values: list[Any]
) -> None:
    from pyspark.sql import datasource

    rows = pa.RecordBatch.from_arrays([pa.array(values, data_type)], ["x"])
    pushed = getattr(datasource, kind)(("x",), passed_on(operand))
    assert all(passes(kind, operand, value) for value in values)
    for mask in masks([pushed], rows.schema):
        assert rows.filter(mask(rows)).num_rows == len(values)


@settings(deadline=None, max_examples=300)
@given(
    bounds=st.lists(
        st.tuples(st.sampled_from(["=", ">", ">=", "<", "<="]), st.integers(-3_000_000, 3_000_000)), max_size=3
    ),
    times_us=st.lists(st.integers(-3_000_000, 3_000_000), max_size=8),
)
def test_a_narrowing_by_time_omits_no_record_that_passes(bounds: list[tuple[str, int]], times_us: list[int]) -> None:
    comparisons = [
        Comparison("timestamp", operator, EPOCH + datetime.timedelta(microseconds=at_us)) for operator, at_us in bounds
    ]
    least_ms = narrow(comparisons).timestamp_ms
    first = next((at for at, time_us in enumerate(times_us) if least_ms is None or time_us >= least_ms * 1000), None)
    tests: dict[str, Callable[[int, int], bool]] = {
        "=": int.__eq__,
        ">": int.__gt__,
        ">=": int.__ge__,
        "<": int.__lt__,
        "<=": int.__le__,
    }
    for at, time_us in enumerate(times_us):
        if all(tests[operator](time_us, at_us) for operator, at_us in bounds):
            assert first is not None
            assert at >= first


def test_a_narrowing_by_a_time_before_1970_keeps_the_records_before_1970() -> None:
    assert (
        narrow([Comparison("timestamp", ">=", datetime.datetime(1950, 1, 1, tzinfo=datetime.UTC))]).timestamp_ms is None
    )


@needs_pushed_filters
@settings(deadline=None)
@given(
    bounds=st.lists(st.tuples(st.sampled_from(sorted(COMPARED)), st.integers(-9, 9)), max_size=3),
    times_us=st.lists(st.integers(-12, 12), min_size=1),
)
def test_a_range_of_times_has_a_time_of_each_batch_whose_rows_pass(
    bounds: list[tuple[str, int]], times_us: list[int]
) -> None:
    from pyspark.sql import datasource

    def at(time_us: int) -> datetime.datetime:
        return EPOCH + datetime.timedelta(microseconds=time_us)

    pushed = [getattr(datasource, kind)(("at",), at(time_us)) for kind, time_us in bounds]
    found = times_of([*pushed, datasource.LessThan(("other",), at(-99)), datasource.EqualTo(("at", "x"), 7)], {"at"})
    some_pass = any(all(COMPARED[kind](one, time_us) for kind, time_us in bounds) for one in times_us)
    is_outside = (found.from_us is not None and max(times_us) < found.from_us) or (
        found.until_us is not None and min(times_us) >= found.until_us
    )
    assert not (some_pass and is_outside)
