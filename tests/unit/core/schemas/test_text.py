# SPDX-License-Identifier: Apache-2.0
"""The canonical text of a schema, and texts that are refused."""

from __future__ import annotations

import datetime
import decimal
import json
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark.core.schemas.evolution import first_version
from tidemark.core.schemas.model import (
    Column,
    ColumnType,
    Decimal,
    Default,
    DefaultValue,
    Primitive,
    SchemaDraft,
    TopicSchema,
)
from tidemark.core.schemas.refusals import TEXT_BYTES_MAX
from tidemark.core.schemas.text import from_text, to_text
from tidemark.model import ErrorCode, TidemarkError

from tests.refusals import raises_code
from tests.unit.core.schemas.drafts import schemas
from tests.unit.core.schemas.test_model import FLIGHTS

COLUMN = {"id": 1, "name": "a", "type": "int32"}
ONE = {"version": 1, "columns": [COLUMN], "last_column_id": 1}


def refusal(text: str) -> str:
    with raises_code(ErrorCode.INVALID_SCHEMA) as raised:
        from_text(text)
    assert len(raised.value.message) < 500
    return raised.value.message


@settings(max_examples=100)
@given(schemas())
def test_any_schema_that_may_be_created_comes_back(schema: TopicSchema) -> None:
    text = to_text(schema)
    assert from_text(text) == schema
    assert to_text(from_text(text)) == text


def test_the_text_is_compact_json() -> None:
    assert to_text(FLIGHTS) == (
        '{"version":1,"columns":[{"id":1,"name":"carrier","type":"string","nullable":false},'
        '{"id":2,"name":"legs","type":{"list":{"id":3,"type":{"struct":[{"id":4,"name":"origin","type":"string"},'
        '{"id":5,"name":"miles","type":"int32"}]}}}},'
        '{"id":6,"name":"fares","type":{"map":[{"id":7,"type":"string","nullable":false},{"id":8,"type":"int32"}]}}],'
        '"key":[1],"last_column_id":8}'
    )


@pytest.mark.parametrize(
    ("column_type", "one", "other"),
    [
        (Primitive.FLOAT64, 0.0, -0.0),
        (Decimal(5, 2), decimal.Decimal("1.5"), decimal.Decimal("1.50")),
        (Decimal(5, 2), decimal.Decimal("0"), decimal.Decimal("-0.00")),
        (
            Primitive.TIMESTAMP,
            datetime.datetime.fromisoformat("2026-11-24T12:00:00Z"),
            datetime.datetime.fromisoformat("2026-11-24T14:00:00+02:00"),
        ),
    ],
)
def test_equal_schemas_have_equal_texts(column_type: ColumnType, one: DefaultValue, other: DefaultValue) -> None:
    made = [first_version(SchemaDraft((Column(0, "a", column_type, default=Default(it)),))) for it in (one, other)]
    assert made[0] == made[1]
    assert to_text(made[0]) == to_text(made[1])


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ([], "objects for the schema"),
        ({**ONE, "version": 1.0}, "version is not a whole number"),
        ({**ONE, "version": True}, "version is not a whole number"),
        ({**ONE, "color": 1}, "'color' is unknown to this version of Tidemark"),
        ({**ONE, "columns": {}}, "columns must be a list"),
        ({**ONE, "columns": [5]}, "objects for the schema"),
        ({**ONE, "columns": [{"id": 1, "type": "int32"}]}, "has no name"),
        ({**ONE, "columns": [{**COLUMN, "id": "1"}]}, "column a: id is not a whole number"),
        ({**ONE, "columns": [{**COLUMN, "nullable": 1}]}, "column a: nullable must be true or false"),
        ({**ONE, "columns": [{**COLUMN, "doc": 1}]}, "doc a text"),
        ({**ONE, "columns": [{**COLUMN, "type": "uint8"}]}, "column a: its type 'uint8'"),
        ({**ONE, "columns": [{**COLUMN, "type": {"union": []}}]}, "column a: its type is none"),
        ({**ONE, "columns": [{**COLUMN, "type": {"list": {}, "map": []}}]}, "column a: its type is none"),
        ({**ONE, "columns": [{**COLUMN, "type": {"list": 5}}]}, "column a: the text of a schema must have objects"),
        ({**ONE, "columns": [{**COLUMN, "type": {"dictionary": "list"}}]}, "column a: its type 'list'"),
        ({**ONE, "columns": [{**COLUMN, "default": 2**31}]}, "column a: the default is outside of int32"),
        ({**ONE, "columns": [{**COLUMN, "type": "date", "default": "2026-02-30"}]}, "is not a date such as"),
        ({**ONE, "columns": [{**COLUMN, "type": "timestamp", "default": "noon"}]}, "is not a date and time such as"),
        ({**ONE, "columns": [{**COLUMN, "type": "binary", "default": "a"}]}, "not a value of binary"),
        ({**ONE, "columns": [{**COLUMN, "type": "binary", "default": "é"}]}, "not a value of binary"),
        ({**ONE, "columns": [{**COLUMN, "type": "decimal(4,2)", "default": "x"}]}, "not a value of decimal(4,2)"),
        ({**ONE, "columns": [COLUMN, COLUMN]}, "another column is named a"),
        ({**ONE, "columns": [COLUMN, {**COLUMN, "name": "b"}]}, "never used twice"),
        ({**ONE, "key": 1}, "not a list of ids"),
        ({**ONE, "key": ["a"]}, "key is not a whole number"),
        ({**ONE, "key": [1]}, "a key column must not be null"),
        ({**ONE, "event_time": "a"}, "event_time is not a whole number"),
        ({"version": 1, "columns": [COLUMN]}, "last_column_id is not a whole number"),
    ],
)
def test_a_text_of_no_schema_is_refused(facts: object, words: str) -> None:
    from_text(json.dumps(ONE))
    assert words in refusal(json.dumps(facts))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ('{"version":1,"version":1}', "a name twice"),
        ('{"version":NaN}', "not a number of JSON"),
        ('{"version":' + "1" * 5_000 + "}", "not JSON"),
        ('{"version":' + "1" * 4_000 + ',"columns":[' + json.dumps(COLUMN) + "]}", "version is not a whole number"),
        ("[" * 200_000, "nests deeper than 120 brackets"),
        ('{"a":' * 50_000, "nests deeper than 120 brackets"),
        ('"' + "[" * 200_000 + '"', "objects for the schema"),
        ('"' + "\\" * 200_001, "not JSON"),
        (" " * (TEXT_BYTES_MAX + 1), f"{TEXT_BYTES_MAX} are allowed"),
        ("é" * (TEXT_BYTES_MAX // 2 + 1), f"{TEXT_BYTES_MAX} are allowed"),
        ("\ud800", "surrogate"),
    ],
)
def test_hostile_json_is_refused(text: str, words: str) -> None:
    assert words in refusal(text)


@pytest.mark.parametrize("ending", ["", "\\"])
def test_a_string_without_an_end_costs_one_pass(ending: str) -> None:
    text = '"' + '\\"' * 250_000 + ending  # each quote could begin a string: a pass for each would take hours
    began_s = time.process_time()
    assert "it is not JSON" in refusal(text)
    assert time.process_time() - began_s < 10


def test_deep_columns_are_refused_before_recursion() -> None:
    column: dict[str, object] = {"id": 1, "type": "int32"}
    for _ in range(30):
        column = {"id": 1, "type": {"list": column}}
    assert "nest at most 16 deep" in refusal(json.dumps({**ONE, "columns": [{**column, "name": "a"}]}))


def test_a_text_of_too_many_columns_is_refused() -> None:
    columns = [{"id": index + 1, "name": f"c{index}", "type": "int32"} for index in range(5_000)]
    assert "at most 1000 columns" in refusal(json.dumps({**ONE, "columns": columns}))


def test_a_schema_with_too_long_docs_is_refused() -> None:
    draft = SchemaDraft((Column(0, "a", Primitive.INT32, doc="é" * (TEXT_BYTES_MAX // 2)),))
    with pytest.raises(TidemarkError, match="shorten the docs"):
        first_version(draft)


def test_the_size_counts_bytes_of_utf8() -> None:
    assert (
        from_text(to_text(replace(FLIGHTS, columns=(Column(1, "é", Primitive.INT32, False),)))).columns[0].name == "é"
    )


KEYS = st.sampled_from(["version", "columns", "key", "event_time", "id", "name", "type", "list", "map", "struct"])
LEAVES = st.none() | st.booleans() | st.integers() | st.sampled_from(["a", "int32", "decimal(5,2)", "date"])


@settings(max_examples=30)
@given(st.recursive(LEAVES, lambda it: st.lists(it) | st.dictionaries(KEYS, it)))
def test_json_of_the_right_words_is_a_schema_or_refused(columns: object) -> None:
    try:
        from_text(json.dumps({**ONE, "columns": columns}))
    except TidemarkError as error:
        refused = error.code
    else:
        refused = ErrorCode.INVALID_SCHEMA
    assert refused is ErrorCode.INVALID_SCHEMA
