# SPDX-License-Identifier: Apache-2.0
"""Avro schemas to drafts."""

from __future__ import annotations

import datetime
import decimal
import json

import pytest
from tidemark.core.schemas.avro import draft_from_avro
from tidemark.core.schemas.ddl import ddl_of
from tidemark.core.schemas.model import Column, Decimal, Default, Dictionary, ListOf, MapOf, Primitive, StructOf
from tidemark.model import ErrorCode

from tests.refusals import raises_code

FLIGHT = """
{"type": "record", "name": "Flight", "namespace": "air", "doc": "one flight", "fields": [
  {"name": "carrier", "type": "string", "doc": "IATA code"},
  {"name": "delay", "type": ["null", "int"], "default": null},
  {"name": "late", "type": ["int", "null"], "default": 7, "aliases": ["lateness"]},
  {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
  {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
  {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}, "default": "A"},
  {"name": "other_kind", "type": "Kind"},
  {"name": "from", "type": {"type": "record", "name": "Airport", "fields": [{"name": "code", "type": "string"}]}},
  {"name": "to", "type": ["null", "air.Airport"]},
  {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}, "default": []},
  {"name": "fares", "type": {"type": "map", "values": "double"}, "default": {}},
  {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 16}}
]}
"""


def one(avro: object, **facts: object) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": avro, **facts}]})


def column_of(avro: object, **facts: object) -> Column:
    (column,) = draft_from_avro(one(avro, **facts)).columns
    return column


def refusal(text: str) -> str:
    with raises_code(ErrorCode.INVALID_SCHEMA) as raised:
        draft_from_avro(text)
    return raised.value.message


def test_the_record_of_a_flight() -> None:
    assert ddl_of(draft_from_avro(FLIGHT)) == (
        "carrier STRING NOT NULL COMMENT 'IATA code', delay INT, late INT DEFAULT 7 RENAMED FROM lateness, "
        "price DECIMAL(10,2) NOT NULL, at TIMESTAMP NOT NULL, kind DICTIONARY<STRING> NOT NULL DEFAULT 'A', "
        "other_kind DICTIONARY<STRING> NOT NULL, from STRUCT<code: STRING NOT NULL> NOT NULL, "
        "to STRUCT<code: STRING NOT NULL>, tags ARRAY<STRING> NOT NULL DEFAULT ARRAY(), "
        "fares MAP<STRING, DOUBLE NOT NULL> NOT NULL DEFAULT MAP(), hash BINARY NOT NULL"
    )


def logical(kind: str, logical_type: str, **facts: object) -> dict[str, object]:
    return {"type": kind, "logicalType": logical_type, **facts}


@pytest.mark.parametrize(
    ("avro", "expected"),
    [
        ("boolean", Primitive.BOOL),
        ("long", Primitive.INT64),
        ("float", Primitive.FLOAT32),
        ("double", Primitive.FLOAT64),
        ("bytes", Primitive.BINARY),
        ({"type": "int"}, Primitive.INT32),
        ({"type": {"type": "string"}}, Primitive.STRING),
        (logical("int", "date"), Primitive.DATE),
        (logical("long", "timestamp-micros"), Primitive.TIMESTAMP),
        (logical("long", "local-timestamp-millis"), Primitive.TIMESTAMP_NTZ),
        (logical("string", "uuid"), Primitive.STRING),
        (logical("long", "unheard-of"), Primitive.INT64),
        (logical("fixed", "decimal", name="D", size=9, precision=20), Decimal(20, 0)),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, Dictionary(Primitive.STRING)),
        ({"type": "array", "items": "int"}, ListOf(Column(0, "element", Primitive.INT32, nullable=False))),
        (
            {"type": "map", "values": ["null", "int"]},
            MapOf(Column(0, "key", Primitive.STRING, nullable=False), Column(0, "value", Primitive.INT32)),
        ),
        (
            {"type": "record", "name": "S", "fields": [{"name": "b", "type": "int"}]},
            StructOf((Column(0, "b", Primitive.INT32, nullable=False),)),
        ),
    ],
)
def test_types_of_avro_have_types_of_the_topic(avro: object, expected: object) -> None:
    assert column_of(avro) == Column(0, "a", expected, nullable=False)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("avro", "default", "expected"),
    [
        ("bytes", "\u00ff\u0001", b"\xff\x01"),
        (logical("bytes", "decimal", precision=4, scale=2), "\u0001\u0000", decimal.Decimal("2.56")),
        (logical("bytes", "decimal", precision=4, scale=2), "\u00ff", decimal.Decimal("-0.01")),
        (logical("int", "date"), 1, datetime.date(1970, 1, 2)),
        (logical("long", "timestamp-millis"), 1500, datetime.datetime(1970, 1, 1, 0, 0, 1, 500000, datetime.UTC)),
        (logical("long", "timestamp-micros"), 3, datetime.datetime(1970, 1, 1, 0, 0, 0, 3, datetime.UTC)),
        (logical("long", "timestamp-nanos"), -1, datetime.datetime.fromisoformat("1969-12-31T23:59:59.999999Z")),
        (logical("long", "local-timestamp-millis"), 0, datetime.datetime.fromisoformat("1970-01-01T00:00:00")),
        ("double", 1, 1.0),
    ],
)
def test_defaults_of_avro_have_values_of_python(avro: object, default: object, expected: object) -> None:
    assert column_of(avro, default=default).default == Default(expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing", "not JSON"),
        ('"string"', "must be a record"),
        ('["null", {"type": "record"}]', "must be a record"),
        ('{"type": "record", "fields": []}', "have a name"),
        ('{"type": "record", "name": "R"}', "a list of fields"),
        ('{"type": "record", "name": "R", "fields": [5]}', "a field must be an object"),
        ('{"type": "record", "name": "R", "fields": []}', "at least one column"),
        (one(None), "column a: it has no type"),
        (one("strnig"), "column a: there is no Avro type 'strnig'"),
        (one("null"), "drop the column"),
        (one(["int", "string"]), "column a: a union of 2 types besides null; use a struct"),
        (one(["null"]), "a union of 0 types"),
        (one([["null", "int"], "null", "string"]), "a union of 2 types"),
        (one(logical("int", "time-millis")), "use int64 with the microseconds"),
        (one(logical("fixed", "duration", name="D", size=12)), "use int64 with the unit"),
        (one(logical("bytes", "decimal")), "a precision and a scale"),
        (one(logical("bytes", "decimal", precision=50)), "decimal(50,0)"),
        (one("int", default="x"), "not a value of int32"),
        (one("int", default=2**31), "outside of int32"),
        (one("bytes", default="\u0100"), "is not a value of binary"),
        (
            one(logical("long", "timestamp-millis"), default=10**18),
            "the default 1000000000000000000 is not a value of timestamp",
        ),
        (one({"type": "array", "items": "int"}, default=[1]), "can only be empty"),
        (one("int", aliases="b"), "aliases a list"),
        (one({"type": "record", "name": "R2", "fields": [{"name": "r", "type": ["null", "R2"]}]}), "nest at most 16"),
        (one(["null", "R"]), "nest at most 16 deep"),
        (
            one({"type": "record", "name": "S", "fields": [{"name": f"f{n}", "type": "S"} for n in range(40)]}),
            "at most",
        ),
    ],
)
def test_an_avro_schema_of_no_topic_is_refused(text: str, words: str) -> None:
    assert words in refusal(text)


def test_an_avro_schema_of_5000_fields_is_refused() -> None:
    fields = [{"name": f"f{index}", "type": "int"} for index in range(5_000)]
    assert "at most 1000 columns" in refusal(json.dumps({"type": "record", "name": "R", "fields": fields}))


def test_deep_types_are_refused_before_recursion() -> None:
    deep: object = "int"
    for _ in range(50):
        deep = {"type": "array", "items": deep}
    assert "nest at most 16 deep" in refusal(one(deep))
    for _ in range(200):
        deep = {"type": deep}
    assert "nests deeper than 120 brackets" in refusal(one(deep))
