# SPDX-License-Identifier: Apache-2.0
"""Drafts that are proposed for rows without a schema."""

from __future__ import annotations

import datetime
import decimal
import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark.core.schemas.arrow_types import arrow_schema
from tidemark.core.schemas.ddl import ddl_of
from tidemark.core.schemas.evolution import first_version
from tidemark.core.schemas.infer import Inference, infer_draft
from tidemark.model import ErrorCode, TidemarkError

from tests.refusals import raises_code


def inferred(*rows: dict[str, object]) -> str:
    return ddl_of(infer_draft(rows).draft)


def column_of(*values: object) -> tuple[str, tuple[str, ...]]:
    found = infer_draft([{"a": value} for value in values])
    return ddl_of(found.draft).removeprefix("a "), found.notes


def test_rows_of_flights() -> None:
    rows = [
        {"carrier": "IB", "delay": 5, "at": "2026-11-24T10:00:00Z", "leg": {"origin": "MAD"}, "tags": ["x", None]},
        {"carrier": "BA", "delay": 5.5, "at": "2026-11-24 10:00:00.123+01:00", "leg": {"miles": 7}, "extra": True},
        {"carrier": None, "tags": [], "nothing": None},
    ]
    draft, notes, row_count = infer_draft(rows)
    assert ddl_of(draft) == (
        "carrier STRING, delay DOUBLE, at TIMESTAMP, leg STRUCT<origin: STRING, miles: BIGINT>, tags ARRAY<STRING>, "
        "extra BOOLEAN"
    )
    assert notes == (
        "column at: each text is a timestamp, which is proposed",
        "column nothing is omitted: all its values are null",
    )
    assert row_count == 3


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, -5, None], "BIGINT"),
        ([2**63 - 1, -(2**63)], "BIGINT"),
        ([2**63], "DECIMAL(19,0)"),
        ([1, 1.5], "DOUBLE"),
        ([float("nan")], "DOUBLE"),
        ([True, None], "BOOLEAN"),
        ([decimal.Decimal("1.50"), decimal.Decimal("100")], "DECIMAL(5,2)"),
        ([decimal.Decimal("0.001"), 12], "DECIMAL(5,3)"),
        ([decimal.Decimal("1e-500")], "DOUBLE"),
        ([decimal.Decimal("NaN")], "DOUBLE"),
        ([b"x"], "BINARY"),
        ([datetime.date(2026, 1, 1)], "DATE"),
        ([datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)], "TIMESTAMP"),
        ([datetime.datetime.fromisoformat("2026-01-01")], "TIMESTAMP_NTZ"),
        (["2026-01-01", "2026-12-31"], "DATE"),
        (["2026-01-01T00:00"], "TIMESTAMP_NTZ"),
        (["2026-01-01T00:00:00.1234560Z"], "TIMESTAMP"),
        (["2026-01-01T00:00:00.123456789Z"], "STRING"),
        (["20260101"], "STRING"),
        (["2026-02-30"], "STRING"),
        (["2026-01-01", "2026-01-01T00:00:00Z"], "STRING"),
        ([[1], [2.5]], "ARRAY<DOUBLE>"),
        ([[[]]], "ARRAY<ARRAY<STRING>>"),
        ([(1, 2)], "ARRAY<BIGINT>"),
        ([{"b": 1}, {"c": "x"}], "STRUCT<b: BIGINT, c: STRING>"),
        ([{}], "STRING"),
        ([[{"b": None}]], "ARRAY<STRING>"),
    ],
)
def test_values_have_a_type_that_holds_them_all(values: list[object], expected: str) -> None:
    assert column_of(*values)[0] == expected


@pytest.mark.parametrize(
    ("values", "expected", "note"),
    [
        ([1, "x", 2], "STRING", "column a: values of several kinds (2 int, 1 text); string is proposed, with JSON"),
        ([{"b": 1}, [1]], "STRING", "several kinds (1 object, 1 list)"),
        ([10**50], "DOUBLE", "numbers of 51 digits; float64 is proposed, which rounds them"),
        ([2**53 + 1, 0.5], "DOUBLE", "numbers of 16 digits; float64 is proposed, which rounds them"),
        ([10**5000], "DOUBLE", "float64 is proposed"),
        ([2**63, 0.5], "DOUBLE", "numbers of 19 digits"),
        (["2026-01-01", "2026-01-02", "n/a"], "STRING", "2 of 3 texts are dates or times; string is proposed"),
        ([[]], "ARRAY<STRING>", "column a.element: no value is known"),
        ([{f"k{index}": index for index in range(60)}], "MAP<STRING, BIGINT>", "60 names; a map of int64 is proposed"),
        ([object()], "STRING", "several kinds (1 other)"),
    ],
)
def test_doubts_become_notes(values: list[object], expected: str, note: str) -> None:
    found, notes = column_of(*values)
    assert found == expected
    assert note in "\n".join(notes)


def test_names_that_no_column_can_have_are_left_out() -> None:
    found = infer_draft([{"_id": 1, "a\n": 2, "ok": 3, "OK": 4, "": 5, "s": {"_x": 1, "X": 2, "x": 3}}])
    assert ddl_of(found.draft) == "ok BIGINT, s STRUCT<_x: BIGINT, X: BIGINT>"
    assert found.notes[0].startswith("column _id is omitted: names with a leading _ are Tidemark's")
    assert any("column OK is omitted: there is ok" in note for note in found.notes)
    assert len(found.notes) == 5


def test_objects_with_values_of_several_types_stay_structs() -> None:
    row = {f"k{index}": index if index % 2 else "x" for index in range(60)}
    assert inferred({"a": row}).startswith("a STRUCT<k0: STRING, k1: BIGINT")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "the rows have no values"),
        ([{}], "the rows have no values"),
        ([{"a": None}], "at least one column"),
        ([{f"c{index}": index for index in range(5_000)}], "the rows have 5000 columns"),
    ],
)
def test_rows_without_a_schema_are_refused(rows: list[dict[str, object]], words: str) -> None:
    with raises_code(ErrorCode.INVALID_SCHEMA, words):
        infer_draft(rows)


def test_deep_rows_become_texts_below_the_depth_of_a_schema() -> None:
    deep: object = 1
    for _ in range(5_000):
        deep = [deep]
    found, notes = column_of(deep)
    assert found == "ARRAY<" * 15 + "STRING" + ">" * 15
    assert "several kinds (1 other)" in notes[0]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda it: st.lists(it, max_size=3) | st.dictionaries(st.sampled_from("abcA"), it, max_size=3),
    max_leaves=8,
)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("abc"), JSON, max_size=3), min_size=1, max_size=4))
def test_any_rows_of_json_have_a_proposal_or_are_refused(rows: list[dict[str, object]]) -> None:
    try:
        found = infer_draft(json.loads(json.dumps(rows)))
    except TidemarkError as error:
        assert error.code is ErrorCode.INVALID_SCHEMA  # noqa: PT017
        return
    check_fits(found, rows)


def check_fits(found: Inference, rows: list[dict[str, object]]) -> None:
    """Check that Arrow takes the rows in the proposed columns, unless a note states a doubt."""
    schema = arrow_schema(first_version(found.draft))
    if not found.notes:
        batch = pa.RecordBatch.from_pylist(rows, schema=schema)
        batch.validate(full=True)
        for row, again in zip(rows, batch.to_pylist(), strict=True):
            assert {name: value for name, value in again.items() if value is not None}.keys() == {
                name for name, value in row.items() if value is not None
            }
