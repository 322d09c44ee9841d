# SPDX-License-Identifier: Apache-2.0
"""Columns, ids, and schemas that are refused."""

from __future__ import annotations

import datetime
import decimal
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from tidemark.core.schemas.checks import check_draft, check_schema
from tidemark.core.schemas.evolution import first_version
from tidemark.core.schemas.model import (
    COLUMNS_MAX,
    DEPTH_MAX,
    Column,
    ColumnType,
    Decimal,
    Default,
    DefaultValue,
    Dictionary,
    ListOf,
    MapOf,
    Primitive,
    SchemaDraft,
    StructOf,
    TopicSchema,
    children,
    draft_of,
    kept_columns,
    walk,
)
from tidemark.model import ErrorCode, TidemarkError

from tests.refusals import raises_code
from tests.unit.core.schemas.drafts import drafts

NOON = datetime.datetime.fromisoformat("2026-11-24T12:00:00")
STRING, INT32, TIMESTAMP = Primitive.STRING, Primitive.INT32, Primitive.TIMESTAMP
LEGS = ListOf(Column(3, "element", StructOf((Column(4, "origin", STRING), Column(5, "miles", INT32)))))
FARES = MapOf(Column(7, "key", STRING, nullable=False), Column(8, "value", INT32))
FLIGHTS = TopicSchema(
    version=1,
    columns=(Column(1, "carrier", STRING, nullable=False), Column(2, "legs", LEGS), Column(6, "fares", FARES)),
    key=(1,),
    event_time=None,
    last_column_id=8,
)


def one(column_type: ColumnType, name: str = "a", **facts: object) -> SchemaDraft:
    return SchemaDraft((replace(Column(0, name, column_type), **facts),))


def nested(depth: int) -> ColumnType:
    found: ColumnType = INT32
    for _ in range(depth - 1):
        found = ListOf(Column(0, "element", found))
    return found


def refusal(draft: SchemaDraft) -> str:
    with raises_code(ErrorCode.INVALID_SCHEMA) as raised:
        check_draft(draft)
    assert len(raised.value.message) < 500
    return raised.value.message


def test_columns_are_walked_depth_first() -> None:
    assert [(".".join(path), column.id) for path, column in walk(FLIGHTS.columns)] == [
        ("carrier", 1),
        ("legs", 2),
        ("legs.element", 3),
        ("legs.element.origin", 4),
        ("legs.element.miles", 5),
        ("fares", 6),
        ("fares.key", 7),
        ("fares.value", 8),
    ]
    assert [column.id for column in FLIGHTS.by_id().values()] == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("wanted", "kept"),
    [
        ({1}, {1}),
        ({2}, {2, 3, 4, 5}),
        ({5}, {2, 3, 5}),
        ({3}, {2, 3, 4, 5}),
        ({1, 4}, {1, 2, 3, 4}),
        ({8}, {6, 7, 8}),
        ({7}, {6, 7, 8}),
        ({99}, set()),
        (set(), set()),
    ],
)
def test_a_read_keeps_columns_above_and_below_and_whole_maps(wanted: set[int], kept: set[int]) -> None:
    assert {column.id for _, column in walk(kept_columns(FLIGHTS.columns, wanted))} == kept


@settings(max_examples=60)
@given(drafts())
def test_the_first_version_has_the_drafts_columns_with_ids_in_order(draft: SchemaDraft) -> None:
    schema = first_version(draft)
    assert draft_of(schema) == draft
    ids = [column.id for _, column in walk(schema.columns)]
    assert ids == list(range(1, schema.last_column_id + 1))
    assert [column.name for column in schema.key_columns] == list(draft.key)
    event_time = schema.event_time_column
    assert (event_time.name if event_time else None) == draft.event_time
    assert check_schema(schema) is schema


def test_the_first_version_ignores_renames() -> None:
    assert first_version(one(INT32, renamed_from="b")) == first_version(one(INT32))


@pytest.mark.parametrize(
    ("draft", "words"),
    [
        (SchemaDraft(()), "at least one column"),
        (one(INT32, name=""), "1 to 255 characters, this one has 0"),
        (one(INT32, name="a" * 256), "this one has 256"),
        (one(INT32, name="a\nb"), r"column a\nb: a name has no control characters"),
        (one(INT32, name="a\ud800"), "control characters"),
        (one(INT32, name="_offset"), "column _offset: names with a leading _"),
        (one(StructOf(())), "column a: a struct must have at least one column"),
        (one(Decimal(39, 0)), "decimal(39,0)"),
        (one(Decimal(5, 6)), "decimal(5,6)"),
        (one(Decimal(5, -1)), "decimal(5,-1)"),
        (one(Dictionary(Decimal(0, 0))), "decimal(0,0)"),
        (one(Dictionary(Primitive.BOOL)), "use bool"),
        (one(MapOf(Column(0, "key", STRING), Column(0, "value", INT32))), "must not be null"),
        (one(MapOf(Column(0, "key", LEGS, False), Column(0, "value", INT32))), "keys of a map"),
        (one(MapOf(Column(0, "k", STRING, False), Column(0, "value", INT32))), "named 'k', not 'key'"),
        (one(ListOf(Column(0, "item", STRING))), "named 'item', not 'element'"),
        (one(ListOf(Column(0, "element", INT32, default=Default(1)))), "has a default"),
        (one(INT32, doc="\udfff"), "surrogate"),
        (SchemaDraft((Column(0, "a", INT32), Column(0, "a", INT32))), "column a: another column is named a"),
        (SchemaDraft((Column(0, "a", INT32), Column(0, "A", INT32))), "column A: another column is named a"),
        (one(StructOf((Column(0, "b", INT32), Column(0, "B", STRING)))), "column a.B: another column is named b"),
        (SchemaDraft((Column(0, "a", INT32),), key=("b",)), "there is no column 'b'"),
        (SchemaDraft((Column(0, "a", INT32),), key=("a",)), "column a: a key column must not be null"),
        (SchemaDraft((Column(0, "a", INT32, False),), key=("a", "a")), "names it twice"),
        (SchemaDraft((Column(0, "a", Primitive.FLOAT64, False),), key=("a",)), "one of these types: binary, bool"),
        (SchemaDraft((Column(0, "a", LEGS, False),), key=("a",)), "one of these types"),
        (SchemaDraft((Column(0, "a", TIMESTAMP),), event_time="b"), "there is no column 'b'"),
        (SchemaDraft((Column(0, "a", TIMESTAMP),), event_time="a"), "must not be null"),
        (SchemaDraft((Column(0, "a", Primitive.TIMESTAMP_NTZ, False),), event_time="a"), "must be a timestamp"),
    ],
)
def test_a_draft_that_no_topic_can_have_is_refused(draft: SchemaDraft, words: str) -> None:
    assert words in refusal(draft)


@pytest.mark.parametrize(
    ("column_type", "value", "words"),
    [
        (Primitive.INT8, 128, "outside of int8: give -128 to 127"),
        (Primitive.INT64, 2**63, "outside of int64"),
        (INT32, True, "not a value of int32"),
        (INT32, "1", "not a value of int32"),
        (INT32, 1.0, "not a value of int32"),
        (Primitive.BOOL, 1, "not a value of bool"),
        (Primitive.FLOAT32, 3.5e38, "not a finite number of float32"),
        (Primitive.FLOAT64, float("nan"), "not a finite number"),
        (Primitive.FLOAT64, float("inf"), "not a finite number"),
        (STRING, b"a", "not a value of string"),
        (STRING, "\ud800", "not a value of string"),
        (Primitive.BINARY, 5, "not a value of binary"),
        (Primitive.DATE, NOON, "not a value of date"),
        (TIMESTAMP, NOON, "needs a time zone"),
        (Primitive.TIMESTAMP_NTZ, datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), "has no time zone"),
        (Decimal(4, 2), decimal.Decimal("123.4"), "not a value of decimal(4,2)"),
        (Decimal(4, 2), decimal.Decimal("1.234"), "not a value of decimal(4,2)"),
        (Decimal(4, 2), decimal.Decimal("NaN"), "not a value of decimal(4,2)"),
        (Decimal(4, 2), decimal.Decimal("1e999999"), "not a value of decimal(4,2)"),
        (Dictionary(STRING), 5, "not a value of string"),
        (LEGS, (1,), "can only be empty"),
        (StructOf((Column(0, "b", INT32),)), (), "a struct has no default"),
    ],
)
def test_a_default_that_does_not_fit_is_refused(column_type: ColumnType, value: DefaultValue, words: str) -> None:
    assert words in refusal(one(column_type, default=Default(value)))


def test_a_default_of_many_digits_is_refused() -> None:
    assert "outside of int32" in refusal(one(INT32, default=Default(10**5000)))
    assert "not a value of string" in refusal(one(STRING, default=Default(10**5000)))


def test_the_number_of_columns_is_bounded() -> None:
    columns = tuple(Column(0, f"c{index}", INT32) for index in range(5_000))
    check_draft(SchemaDraft(columns[:COLUMNS_MAX]))
    assert f"column c{COLUMNS_MAX}: a schema has at most {COLUMNS_MAX}" in refusal(SchemaDraft(columns))
    wide = StructOf(columns[: COLUMNS_MAX - 1])
    check_draft(one(wide))
    assert "at most" in refusal(one(StructOf(columns[:COLUMNS_MAX])))


@pytest.mark.parametrize("depth", [DEPTH_MAX + 1, 100, 5 * sys.getrecursionlimit()])
def test_the_depth_of_columns_is_bounded_before_recursion(depth: int) -> None:
    check_draft(one(nested(DEPTH_MAX)))
    assert "nest at most 16 deep" in refusal(one(nested(depth)))


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (replace(FLIGHTS, version=0), "versions go from 1 to 2047"),
        (replace(FLIGHTS, version=2048), "versions go from 1 to 2047"),
        (replace(FLIGHTS, last_column_id=7), "column fares.value: its id 8 is not from 1 to last_column_id, 7"),
        (replace(FLIGHTS, last_column_id=2**31), "last_column_id"),
        (replace(FLIGHTS, key=(2,)), "key column"),
        (replace(FLIGHTS, key=(4,)), "no such column has the id 4"),
        (replace(FLIGHTS, event_time=9), "no such column has the id 9"),
        (replace(FLIGHTS, columns=(Column(1, "a", INT32, False), Column(1, "b", INT32))), "never used twice"),
        (replace(FLIGHTS, columns=(Column(0, "a", INT32, False),)), "its id 0"),
        (replace(FLIGHTS, columns=(Column(1, "a", INT32, False, renamed_from="b"),)), "belongs into a draft"),
    ],
)
def test_a_schema_with_wrong_ids_is_refused(schema: TopicSchema, words: str) -> None:
    check_schema(FLIGHTS)
    with pytest.raises(TidemarkError, match="INVALID_SCHEMA") as raised:
        check_schema(schema)
    assert words in raised.value.message


def test_a_keyed_draft_has_columns_that_are_not_null() -> None:
    draft = SchemaDraft((Column(0, "a", INT32), Column(0, "t", TIMESTAMP), Column(0, "b", INT32)))
    keyed = draft.keyed(["a"], "t")
    assert [column.nullable for column in keyed.columns] == [False, False, True]
    assert (keyed.key, keyed.event_time) == (("a",), "t")
    assert keyed.keyed() == keyed


def test_types_without_columns_have_no_children() -> None:
    assert children(Decimal(5, 2)) == ()
    assert children(FARES) == (FARES.key, FARES.value)
