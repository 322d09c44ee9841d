# SPDX-License-Identifier: Apache-2.0
"""The canonical text of a schema: compact JSON, the content of a version's znode."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn, cast

from tidemark.core.schemas.checks import check_schema
from tidemark.core.schemas.defaults import as_json, fitted
from tidemark.core.schemas.model import (
    ELEMENT,
    MAP_KEY,
    MAP_VALUE,
    Column,
    ColumnType,
    Decimal,
    Default,
    Dictionary,
    ListOf,
    MapOf,
    Path,
    Primitive,
    StructOf,
    TopicSchema,
)
from tidemark.core.schemas.refusals import ColumnBudget, check_size, invalid, shown

_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*+\\?+"?+', re.DOTALL)
"""A string; for a string without an end, the rest of the text. A match at every quote makes one pass enough."""
_BRACKET: Final = re.compile(r"[\[\]{}]")
_JSON_DEPTH_MAX: Final = 120
"""Largest depth of JSON; sixteen nested columns need less depth."""
_INT_END: Final = 1 << 63
_DECIMAL: Final = re.compile(r"decimal\((\d{1,3}),(\d{1,3})\)")
_SCHEMA_KEYS: Final = frozenset({"version", "columns", "key", "event_time", "last_column_id"})
_COLUMN_KEYS: Final = frozenset({"id", "name", "type", "nullable", "default", "doc"})


def to_text(schema: TopicSchema) -> str:
    """The canonical text; equal schemas have equal texts. Raises INVALID_SCHEMA above TEXT_BYTES_MAX."""
    facts: dict[str, object] = {"version": schema.version, "columns": [_column_json(it) for it in schema.columns]}
    if schema.key:
        facts["key"] = schema.key
    if schema.event_time is not None:
        facts["event_time"] = schema.event_time
    facts["last_column_id"] = schema.last_column_id
    text = json.dumps(facts, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    check_size(text)
    return text


def from_text(text: str) -> TopicSchema:
    """The schema of a text, after all checks; raises INVALID_SCHEMA."""
    found = parse_json(text)
    facts = _object(found, _SCHEMA_KEYS, ())
    budget = ColumnBudget()
    key = facts.get("key", [])
    if not isinstance(key, list):
        raise invalid("the key is not a list of ids")
    event_time = facts.get("event_time")
    return check_schema(
        TopicSchema(
            version=_int(facts.get("version"), "version", ()),
            columns=_columns(facts.get("columns"), (), budget),
            key=tuple(_int(it, "key", ()) for it in key),
            event_time=None if event_time is None else _int(event_time, "event_time", ()),
            last_column_id=_int(facts.get("last_column_id"), "last_column_id", ()),
        )
    )


def parse_json(text: str) -> object:
    """The value of a JSON text from outside; raises INVALID_SCHEMA: not JSON, too large, or nested too deep."""
    check_size(text)
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > _JSON_DEPTH_MAX:
            raise invalid(f"the JSON nests deeper than {_JSON_DEPTH_MAX} brackets")
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_no_number)
    except ValueError as error:  # also for numbers of more digits than Python converts
        raise invalid(f"it is not JSON: {shown(str(error))}") from None


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a name twice")
    return found


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _column_json(column: Column, named: bool = True) -> dict[str, object]:
    facts: dict[str, object] = {"id": column.id}
    if named:
        facts["name"] = column.name
    facts["type"] = _type_json(column.type)
    if not column.nullable:
        facts["nullable"] = False
    if column.default is not None:
        facts["default"] = as_json(column.type, fitted(column.type, column.default.value))
    if column.doc:
        facts["doc"] = column.doc
    return facts


def _type_json(column_type: ColumnType) -> object:
    match column_type:
        case Primitive():
            return column_type.value
        case Decimal(precision, scale):
            return f"decimal({precision},{scale})"
        case Dictionary(value):
            return {"dictionary": _type_json(value)}
        case ListOf(element):
            return {"list": _column_json(element, named=False)}
        case MapOf(key, value):
            return {"map": [_column_json(key, named=False), _column_json(value, named=False)]}
        case StructOf(columns):
            return {"struct": [_column_json(column) for column in columns]}


def _columns(found: object, above: Path, budget: ColumnBudget) -> tuple[Column, ...]:
    if not isinstance(found, list):
        raise invalid("columns must be a list", above)
    columns = []
    for each in found:
        facts = _object(each, _COLUMN_KEYS, above)
        name = facts.get("name")
        if not isinstance(name, str):
            raise invalid("a column has no name", above)
        columns.append(_column(facts, (*above, name), budget))
    return tuple(columns)


def _column(facts: Mapping[str, object], path: Path, budget: ColumnBudget) -> Column:
    budget.take(path)
    column_type = _type(facts.get("type"), path, budget)
    nullable, doc = facts.get("nullable", True), facts.get("doc", "")
    if not isinstance(nullable, bool) or not isinstance(doc, str):
        raise invalid("nullable must be true or false, and doc a text", path)
    default = None
    if "default" in facts:
        try:
            default = Default(fitted(column_type, facts["default"]))
        except ValueError as error:
            raise invalid(str(error), path) from None
    return Column(_int(facts.get("id"), "id", path), path[-1], column_type, nullable, default, doc)


def _unnamed(found: object, above: Path, name: str, budget: ColumnBudget) -> Column:
    return _column(_object(found, _COLUMN_KEYS - {"name"}, above), (*above, name), budget)


def _type(found: object, path: Path, budget: ColumnBudget) -> ColumnType:
    match found:
        case str():
            return _plain_type(found, path)
        case {"dictionary": str() as value, **others} if not others:
            return Dictionary(_plain_type(value, path))
        case {"list": element, **others} if not others:
            return ListOf(_unnamed(element, path, ELEMENT, budget))
        case {"map": [key, value], **others} if not others:
            return MapOf(_unnamed(key, path, MAP_KEY, budget), _unnamed(value, path, MAP_VALUE, budget))
        case {"struct": columns, **others} if not others:
            return StructOf(_columns(columns, path, budget))
        case _:
            raise invalid("its type is none of a stored schema", path)


def _plain_type(text: str, path: Path) -> Primitive | Decimal:
    number = _DECIMAL.fullmatch(text)
    if number:
        return Decimal(int(number[1]), int(number[2]))
    try:
        return Primitive(text)
    except ValueError:
        raise invalid(f"its type {shown(text)!r} is none of a stored schema", path) from None


def _object(found: object, allowed: frozenset[str], path: Path) -> Mapping[str, object]:
    if not isinstance(found, dict):
        raise invalid("the text of a schema must have objects for the schema and its columns", path)
    unknown: Sequence[str] = sorted(set(found) - allowed)
    if unknown:
        raise invalid(f"{shown(unknown[0])!r} is unknown to this version of Tidemark; upgrade first", path)
    return cast("dict[str, Any]", found)


def _int(found: object, name: str, path: Path) -> int:
    if type(found) is int and -_INT_END <= found < _INT_END:
        return found
    raise invalid(f"{name} is not a whole number of 64 bits", path)
