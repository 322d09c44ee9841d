# SPDX-License-Identifier: Apache-2.0
"""JSON Schema to drafts."""

from __future__ import annotations

import json

import pytest
from tidemark.core.schemas.ddl import ddl_of
from tidemark.core.schemas.json_schema import draft_from_json_schema
from tidemark.core.schemas.model import Column, Default, Dictionary, ListOf, MapOf, Primitive
from tidemark.model import ErrorCode

from tests.refusals import raises_code

FLIGHT = """
{"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "required": ["carrier", "at", "leg"],
 "properties": {
  "carrier": {"type": "string", "description": "IATA code"},
  "delay": {"type": "integer", "format": "int32", "default": 0},
  "late": {"type": ["number", "null"]},
  "at": {"type": "string", "format": "date-time"},
  "leg": {"$ref": "#/$defs/leg"},
  "legs": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/leg"}, {"type": "null"}]}},
  "fares": {"type": "object", "additionalProperties": {"type": "number"}},
  "state": {"enum": ["early", "late"]}
 },
 "$defs": {"leg": {"type": "object", "description": "one leg", "properties": {"origin": {"type": "string"}}}}
}
"""


def one(schema: object, required: bool = True) -> str:
    return json.dumps({"type": "object", "properties": {"a": schema}, "required": ["a"] if required else []})


def refusal(text: str) -> str:
    with raises_code(ErrorCode.INVALID_SCHEMA) as raised:
        draft_from_json_schema(text)
    return raised.value.message


def test_the_object_of_a_flight() -> None:
    assert ddl_of(draft_from_json_schema(FLIGHT)) == (
        "carrier STRING NOT NULL COMMENT 'IATA code', delay INT NOT NULL DEFAULT 0, late DOUBLE, "
        "at TIMESTAMP NOT NULL, leg STRUCT<origin: STRING> NOT NULL COMMENT 'one leg', "
        "legs ARRAY<STRUCT<origin: STRING>>, "
        "fares MAP<STRING, DOUBLE NOT NULL>, state DICTIONARY<STRING>"
    )


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "boolean"}, Primitive.BOOL),
        ({"type": "integer"}, Primitive.INT64),
        ({"type": "integer", "format": "int64"}, Primitive.INT64),
        ({"type": ["integer", "number"]}, Primitive.FLOAT64),
        ({"type": "number", "format": "float"}, Primitive.FLOAT32),
        ({"type": "string", "format": "date"}, Primitive.DATE),
        ({"type": "string", "format": "email"}, Primitive.STRING),
        ({"type": "string", "format": ["date"]}, Primitive.STRING),
        ({"type": "string", "contentEncoding": "base64"}, Primitive.BINARY),
        ({"type": "string", "enum": ["a"]}, Dictionary(Primitive.STRING)),
        ({"const": 5}, Primitive.INT64),
        ({"allOf": [{"type": "integer"}]}, Primitive.INT64),
        ({"items": {"type": "integer"}}, ListOf(Column(0, "element", Primitive.INT64, nullable=False))),
        (
            {"additionalProperties": {"type": ["integer", "null"]}},
            MapOf(Column(0, "key", Primitive.STRING, nullable=False), Column(0, "value", Primitive.INT64)),
        ),
    ],
)
def test_types_of_json_have_types_of_the_topic(schema: object, expected: object) -> None:
    (column,) = draft_from_json_schema(one(schema)).columns
    assert column == Column(0, "a", expected, nullable=False)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schema", "required", "nullable"),
    [
        ({"type": "integer"}, True, False),
        ({"type": "integer"}, False, True),
        ({"type": ["null", "integer"]}, True, True),
        ({"oneOf": [{"type": "null"}, {"type": "integer"}]}, True, True),
        ({"enum": [1, 2, None]}, True, True),
        ({"type": "integer", "default": 5}, False, False),
    ],
)
def test_a_property_is_nullable_unless_required(schema: object, required: bool, nullable: bool) -> None:
    (column,) = draft_from_json_schema(one(schema, required)).columns
    assert (column.type, column.nullable) == (Primitive.INT64, nullable)


def test_a_default_beside_a_reference_counts() -> None:
    text = json.dumps(
        {"properties": {"a": {"$ref": "#/$defs/n~1m", "default": 7}}, "$defs": {"n/m": {"type": "integer"}}}
    )
    assert draft_from_json_schema(text).columns[0].default == Default(7)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "must be an object"),
        ("{}", "0 types besides null"),
        ('{"type": "string"}', "the root"),
        ('{"type": "object"}', "without stated properties"),
        ('{"type": "object", "additionalProperties": {"type": "string"}}', "the root"),
        ('{"type": "object", "properties": []}', "properties must be an object"),
        ('{"type": "object", "required": "a"}', "required a list"),
        (one(True), "column a: the JSON Schema of a column must be an object"),
        (one({}), "column a: it has 0 types"),
        (one({"type": "null"}), "column a: it has 0 types besides null; drop"),
        (one({"type": 5}), "column a: type must be a text"),
        (one({"type": "text"}), "there is no JSON type 'text'"),
        (one({"type": ["string", "integer"]}), "2 types besides null; use a struct"),
        (one({"anyOf": [{"type": "string"}, {"type": "integer"}]}), "a choice between 2 types; use a struct"),
        (one({"oneOf": 5}), "must be lists"),
        (one({"enum": [1, "a"]}), "2 types besides null"),
        (one({"type": "array"}), "one schema for its items"),
        (one({"type": "array", "prefixItems": [{}]}), "one schema for its items"),
        (one({"type": "object"}), "keep the object as string"),
        (one({"type": "integer", "default": 1.5}), "not a value of int64"),
        (one({"type": "integer", "description": 5}), "description must be a text"),
        (one({"$ref": "other.json"}), "leads out of the file"),
        (one({"$ref": 5}), "leads out of the file"),
        (one({"$ref": "#/$defs/x"}), "leads nowhere"),
        (one({"$ref": "#/properties/a"}), "more than 32 references"),
        (one({"$ref": "#"}), "nest at most 16 deep"),
        (one({"allOf": [{"$ref": "#/properties/a"}]}), "more than 32 references"),
    ],
)
def test_a_json_schema_of_no_topic_is_refused(text: str, words: str) -> None:
    assert words in refusal(text)


def test_a_json_schema_of_5000_properties_is_refused() -> None:
    properties = {f"p{index}": {"type": "integer"} for index in range(5_000)}
    assert "at most 1000 columns" in refusal(json.dumps({"properties": properties}))


def test_references_that_multiply_are_refused_early() -> None:
    wide = {f"p{index}": {"$ref": "#"} for index in range(50)}
    assert "at most" in refusal(json.dumps({"properties": wide}))


def test_deep_properties_are_refused_before_recursion() -> None:
    deep: object = {"type": "integer"}
    for _ in range(40):
        deep = {"properties": {"a": deep}}
    assert "nest at most 16 deep" in refusal(json.dumps(deep))
