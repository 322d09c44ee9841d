# SPDX-License-Identifier: Apache-2.0
"""Documents and DDL to drafts and back."""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark.core.schemas.ddl import ddl_of, draft_from_ddl
from tidemark.core.schemas.document import document_of, draft_from_document
from tidemark.core.schemas.evolution import first_version
from tidemark.core.schemas.model import (
    Column,
    Decimal,
    Default,
    Dictionary,
    ListOf,
    MapOf,
    Primitive,
    SchemaDraft,
    StructOf,
    TopicSchema,
    draft_of,
)
from tidemark.core.schemas.refusals import TEXT_BYTES_MAX, ColumnBudget
from tidemark.core.schemas.type_parser import TypeParser
from tidemark.model import ErrorCode, TidemarkError

from tests.refusals import raises_code
from tests.unit.core.schemas.drafts import schemas

FLIGHTS = """
columns:
  - {name: carrier, type: string, nullable: false, doc: "IATA code"}
  - {name: delay, type: int32, default: 0}
  - {name: price, type: "decimal(10,2)", default: 1.50}
  - {name: legs, type: "list<struct<origin: string not null, miles: int32>>"}
  - {name: scheduled_at, type: timestamp}
  - {name: day, type: date, default: 2026-11-24}
  - {name: old_name2, renamed_from: old_name, type: string}
key: [carrier]
event_time: scheduled_at
"""
LEG = StructOf((Column(0, "origin", Primitive.STRING, nullable=False), Column(0, "miles", Primitive.INT32)))
DRAFT = SchemaDraft(
    (
        Column(0, "carrier", Primitive.STRING, nullable=False, doc="IATA code"),
        Column(0, "delay", Primitive.INT32, default=Default(0)),
        Column(0, "price", Decimal(10, 2), default=Default(decimal.Decimal("1.50"))),
        Column(0, "legs", ListOf(Column(0, "element", LEG))),
        Column(0, "scheduled_at", Primitive.TIMESTAMP, nullable=False),
        Column(0, "day", Primitive.DATE, default=Default(datetime.date(2026, 11, 24))),
        Column(0, "old_name2", Primitive.STRING, renamed_from="old_name"),
    ),
    key=("carrier",),
    event_time="scheduled_at",
)
DDL = (
    "carrier STRING NOT NULL COMMENT 'IATA code', delay INT DEFAULT 0, price DECIMAL(10,2) DEFAULT 1.50, "
    "legs ARRAY<STRUCT<origin: STRING NOT NULL, miles: INT>>, scheduled_at TIMESTAMP NOT NULL, "
    "day DATE DEFAULT DATE '2026-11-24', old_name2 STRING RENAMED FROM old_name, "
    "PRIMARY KEY (carrier), EVENT_TIME (scheduled_at)"
)


def refusal(parse: Callable[[str], object], text: str) -> str:
    with raises_code(ErrorCode.INVALID_SCHEMA) as raised:
        parse(text)
    assert len(raised.value.message) < 500
    return raised.value.message


def column_of(text: str) -> Column:
    (column,) = draft_from_ddl(f"a {text}").columns
    return column


def test_the_document_of_flights() -> None:
    assert draft_from_document(yaml.safe_load(FLIGHTS)) == DRAFT
    assert draft_from_document(document_of(DRAFT)) == DRAFT


def test_the_ddl_of_flights() -> None:
    assert draft_from_ddl(DDL) == DRAFT
    assert ddl_of(DRAFT) == DDL


@settings(max_examples=100)
@given(schemas())
def test_any_schema_that_may_be_created_comes_back(schema: TopicSchema) -> None:
    draft, document = draft_of(schema), document_of(schema)
    assert draft_from_document(document) == draft
    assert draft_from_document(json.loads(json.dumps(document))) == draft
    assert draft_from_ddl(ddl_of(schema)) == draft
    assert first_version(draft) == schema


@settings(max_examples=5)
@given(schemas(depth=2))
def test_a_document_comes_back_from_yaml(schema: TopicSchema) -> None:
    assert draft_from_document(yaml.safe_load(yaml.safe_dump(document_of(schema)))) == draft_of(schema)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("boolean", Primitive.BOOL),
        ("BYTE", Primitive.INT8),
        ("smallint", Primitive.INT16),
        ("Integer", Primitive.INT32),
        ("long", Primitive.INT64),
        ("float", Primitive.FLOAT32),
        ("double", Primitive.FLOAT64),
        ("varchar(10)", Primitive.STRING),
        ("timestamp_ltz", Primitive.TIMESTAMP),
        ("dec", Decimal(10, 0)),
        ("numeric(5)", Decimal(5, 0)),
        (": decimal ( 5 , 2 )", Decimal(5, 2)),
        ("dictionary<string>", Dictionary(Primitive.STRING)),
        ("list<int32>", ListOf(Column(0, "element", Primitive.INT32))),
        ("array<int not null>", ListOf(Column(0, "element", Primitive.INT32, nullable=False))),
        (
            "map<string, int>",
            MapOf(Column(0, "key", Primitive.STRING, nullable=False), Column(0, "value", Primitive.INT32)),
        ),
        ("struct<`b``c d` int>", StructOf((Column(0, "b`c d", Primitive.INT32),))),
    ],
)
def test_types_have_the_names_of_tidemark_and_of_spark(text: str, expected: object) -> None:
    assert column_of(text).type == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int default -5", -5),
        ("float default 1e-5", 1e-5),
        ("double default 3", 3.0),
        ("boolean default true", True),
        ("string default 'it''s \\'n\\t\\u00e9'", "it's 'n\té"),
        ('string default "a""b"', 'a"b'),
        ("binary default X'0aFF'", b"\x0a\xff"),
        ("date default '2026-11-24'", datetime.date(2026, 11, 24)),
        ("decimal(5,2) default 3", decimal.Decimal("3.00")),
        (
            "timestamp default timestamp '2026-11-24T12:00:00+02:00'",
            datetime.datetime(2026, 11, 24, 10, tzinfo=datetime.UTC),
        ),
        ("array<int> default array()", ()),
        ("map<int, int> default map()", ()),
    ],
)
def test_defaults_are_literals(text: str, expected: object) -> None:
    default = column_of(text).default
    assert default is not None
    assert (default.value, type(default.value)) == (expected, type(expected))


def test_a_quote_may_be_escaped_beside_a_doubled_one() -> None:
    assert column_of(r"string default '\''''") == replace(column_of("string"), default=Default("''"))


def test_a_default_of_null_is_none() -> None:
    assert column_of("int default null comment 'x'") == Column(0, "a", Primitive.INT32, doc="x")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the DDL is empty"),
        ("a", "column a: expected a type, found the end of the text at character 2"),
        ("a int,", "expected a column's name, found the end"),
        ("a int b", "expected the end, found 'b' at character 7"),
        ("a int default", "expected a default such as"),
        ("a int default 1.5", "not a value of int32"),
        ("a int default 2147483648", "outside of int32"),
        (f"a double default {'9' * 500}", "more than 400 characters"),
        ("a double default 1e99999999999999999999", "column a: no type has the number 1e99999999999999999999"),
        ("a double default 1e999", "not a finite number"),
        ("a date default '2026-02-30'", "not a date such as"),
        ("a timestamp default '2026-11-24T22:14:00.1234567Z'", "not a whole number of microseconds"),
        ("a binary default X'0'", "pairs of hex digits"),
        ("a int comment 5", "expected a text in quotes, found '5'"),
        ("a string comment 'x", 'expected a text in quotes, found "\'"'),
        ("a uint8", "Spark has no such type; use int16"),
        ("a interval", "use int64 with the unit"),
        ("a time", "microseconds of the day"),
        ("a variant", "use string with JSON"),
        ("a blob", "there is no type 'blob': types are bool"),
        ("a 5", "expected a type, found '5'"),
        ("a decimal(5,2,1)", "two numbers"),
        ("a decimal(x)", "expected a whole number"),
        ("a decimal(99)", "decimal(99,0)"),
        ("a array", "expected '<'"),
        ("a array<int", "expected '>', found the end"),
        ("a array<int default 5>", "has a default"),
        ("a array<int renamed from b>", "has renamed_from"),
        ("a map<int>", "expected ','"),
        ("a map<int null, int>", "must not be null"),
        ("a struct<>", "expected a column's name, found '>'"),
        ("a dictionary<array<int>>", "there is no type 'array'"),
        ("a int, A string", "another column is named a"),
        ("a int, primary key (b)", "there is no column 'b'"),
        ("a int, primary key ()", "expected a column's name"),
        ("a timestamp, b timestamp, event_time (a, b)", "only one column can have the event time"),
        ("a float, primary key (a)", "key column is of one of these"),
        ("array<" * 50_000, "column array: expected a type, found '<'"),
        ("a " + "array<" * 80_000, "nest at most 16 deep"),
        ("a " + "struct<a:" * 50_000, "nest at most 16 deep"),
        (", ".join(f"c{index} int" for index in range(5_000)), "at most 1000 columns"),
        ("a " + "x" * TEXT_BYTES_MAX, f"{TEXT_BYTES_MAX} are allowed"),
        ("a " + "9" * 400_000, "expected a type"),
        ("a \ud800", "surrogate"),
    ],
)
def test_a_ddl_of_no_schema_is_refused(text: str, words: str) -> None:
    assert words in refusal(draft_from_ddl, text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "a schema is a mapping with columns, key, event_time"),
        ("{columns: [], colour: 1}", "a schema has no 'colour'; it has columns, key, event_time"),
        ("{key: [a]}", "a list of columns"),
        ("{columns: {a: int32}}", "a list of columns"),
        ("{columns: []}", "at least one column"),
        ("{columns: [a]}", "a column is a mapping with name, type"),
        ("{columns: [{name: on, type: int32}]}", "put quotes around one such as 'on'"),
        ("{columns: [{name: a}]}", "column a: it has no type"),
        ("{columns: [{name: a, type: {set: int32}}]}", "column a: it has no type. Give a text"),
        ("{columns: [{name: a, type: {list: int32, map: [int32, int32]}}]}", "column a: it has no type"),
        ("{columns: [{name: a, type: {map: [int32]}}]}", "column a: it has no type"),
        ("{columns: [{name: a, type: {list: {nullable: true}}}]}", "column a.element: it has no type"),
        ("{columns: [{name: a, type: {list: {type: int32, name: b}}}]}", "column a.element: element has no 'name'"),
        ("{columns: [{name: a, type: {struct: [{type: int32}]}}]}", "column a: a column must have a name"),
        ("{columns: [{name: a, type: {struct: [{name: b, type: int33}]}}]}", "column a.b: "),
        ("{columns: [{name: a, type: {map: [{type: string, nullable: true}, int32]}}]}", "must not be null"),
        ("{columns: [{name: a, type: int32, nulable: false}]}", "a column has no 'nulable'"),
        ("{columns: [{name: a, type: int32, nullable: maybe}]}", "column a: nullable must be true or false"),
        ("{columns: [{name: a, type: int32, default: 1.5}]}", "column a: the default 1.5 is not a value of int32"),
        ("{columns: [{name: a, type: timestamp, default: 2026-01-01 10:00:00}]}", "needs a time zone"),
        ("{columns: [{name: a, type: int32, doc: [b]}]}", "column a: doc and renamed_from must be texts"),
        ("{columns: [{name: a, type: int32 int32}]}", "column a: expected the end, found 'int32'"),
        ("{columns: [{name: a, type: int32}], key: {a: 1}}", "the key must be a list"),
        ("{columns: [{name: a, type: int32}], key: [1]}", "the key must be a list"),
        ("{columns: [{name: a, type: int32}], key: [b]}", "there is no column 'b'"),
        ("{columns: [{name: a, type: int32, nullable: true}], key: a}", "column a: a key column must not be null"),
        ("{columns: [{name: a, type: int32}], event_time: 5}", "event_time must be the name of a column"),
        ("{columns: [{name: a, type: int32}, {name: A, type: int32}]}", "another column is named a"),
    ],
)
def test_a_document_of_no_schema_is_refused(text: str, words: str) -> None:
    assert words in refusal(lambda it: draft_from_document(yaml.safe_load(it)), text)


def test_a_nested_type_may_be_a_mapping() -> None:
    text = """
    columns:
      - name: stops
        nullable: false
        type:
          list:
            nullable: false
            type:
              struct:
                - {name: origin, type: string, nullable: false, doc: IATA code}
                - {name: fees, type: {map: [string, {type: "decimal(10,2)", nullable: false}]}}
                - {name: kind, type: {dictionary: string}, default: late}
                - {name: notes, type: {list: "list<string>"}, renamed_from: remarks}
    """
    in_words = (
        "list<struct<origin: string not null comment 'IATA code', fees: map<string, decimal(10,2) not null>, "
        "kind: dictionary<string> default 'late', notes: list<list<string>> renamed from remarks> not null>"
    )
    plain = draft_from_document({"columns": [{"name": "stops", "type": in_words, "nullable": False}]})
    assert draft_from_document(yaml.safe_load(text)) == plain


def test_mappings_of_too_many_or_too_deep_columns_are_refused() -> None:
    deep: object = "int32"
    for _ in range(200):
        deep = {"list": deep}
    wide = {"struct": [{"name": f"c{index}", "type": "int32"} for index in range(1_000)]}
    for nested, words in ((deep, "at most 16 deep"), (wide, "at most 1000 columns")):
        with pytest.raises(TidemarkError, match=words):
            draft_from_document({"columns": [{"name": "a", "type": nested}]})


def test_a_document_of_5000_columns_is_refused() -> None:
    columns = [{"name": f"c{index}", "type": "int32"} for index in range(5_000)]
    with pytest.raises(TidemarkError, match="at most 1000 columns"):
        draft_from_document({"columns": columns})


def test_a_document_that_repeats_a_large_column_is_refused_early() -> None:
    wide = "struct<" + ", ".join(f"c{index}: int32" for index in range(900)) + ">"
    column = {"name": "a", "type": wide}
    with pytest.raises(TidemarkError, match="at most 1000 columns"):
        draft_from_document({"columns": [column] * 100_000})


def test_a_key_of_one_column_may_be_a_text() -> None:
    draft = draft_from_document({"columns": [{"name": "a", "type": "int32"}], "key": "a"})
    assert draft == SchemaDraft((Column(0, "a", Primitive.INT32, nullable=False),), key=("a",))


@settings(max_examples=100)
@given(
    st.lists(
        st.sampled_from(
            [
                "a",
                "int",
                "array",
                "<",
                ">",
                "(",
                ")",
                ",",
                ":",
                "5",
                "'x'",
                "map",
                "struct",
                "`b`",
                "not",
                "null",
                "default",
                "primary",
                "key",
            ]
        )
    )
)
def test_any_words_are_a_schema_or_refused(words: list[str]) -> None:
    text = " ".join(words)
    try:
        draft = draft_from_ddl(text)
    except TidemarkError as error:
        refused = error.code
    else:
        refused = ErrorCode.INVALID_SCHEMA
        assert draft_from_ddl(ddl_of(draft)) == draft
    assert refused is ErrorCode.INVALID_SCHEMA


def test_columns_in_capitals_keep_their_names() -> None:
    assert [it.name for it in draft_from_ddl("Carrier INT, `Event_Time` INT, PRIMARY int").columns] == [
        "Carrier",
        "Event_Time",
        "PRIMARY",
    ]


def test_the_type_of_a_column_is_the_whole_text() -> None:
    assert TypeParser("list<int32>", ColumnBudget()).whole_type(("a",)) == column_of("list<int32>").type


def test_a_draft_with_renames_in_structs_comes_back() -> None:
    leg = StructOf((replace(LEG.columns[0], renamed_from="from"),))
    draft = SchemaDraft((Column(0, "leg", leg),))
    assert draft_from_ddl(ddl_of(draft)) == draft == draft_from_document(document_of(draft))
