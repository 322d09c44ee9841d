# SPDX-License-Identifier: Apache-2.0
"""JSON Schema to drafts: an object with properties becomes a typed topic.

A property that is not required, or may be null, is nullable. Source: JSON Schema 2020-12, and draft 7 where both agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, cast

from tidemark.core.schemas.checks import check_draft
from tidemark.core.schemas.defaults import fitted
from tidemark.core.schemas.model import (
    ELEMENT,
    MAP_KEY,
    MAP_VALUE,
    NO_ID,
    Column,
    ColumnType,
    Default,
    Dictionary,
    ListOf,
    MapOf,
    Path,
    Primitive,
    SchemaDraft,
    StructOf,
)
from tidemark.core.schemas.refusals import ColumnBudget, invalid, shown
from tidemark.core.schemas.text import parse_json
from tidemark.core.schemas.type_names import INSTEAD

Json = Mapping[str, object]
_REFERENCES_MAX: Final = 32
"""References that may follow one another."""
_FORMATS: Final[Mapping[tuple[str, object], Primitive]] = {
    ("string", "date"): Primitive.DATE,
    ("string", "date-time"): Primitive.TIMESTAMP,
    ("integer", "int8"): Primitive.INT8,
    ("integer", "int16"): Primitive.INT16,
    ("integer", "int32"): Primitive.INT32,
    ("number", "float"): Primitive.FLOAT32,
}
_TYPES: Final = {
    "string": Primitive.STRING,
    "integer": Primitive.INT64,
    "number": Primitive.FLOAT64,
    "boolean": Primitive.BOOL,
}
_NAMES: Final = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}


class _Found(NamedTuple):
    """The type of a column, whether it may be null, and the object that states its type."""

    type: ColumnType
    nullable: bool
    stated: Json


def draft_from_json_schema(text: str) -> SchemaDraft:
    """The draft of a JSON Schema whose root is an object with properties. Raises INVALID_SCHEMA."""
    root = parse_json(text)
    found = _Reader(root).type(root, ())
    if not isinstance(found.type, StructOf):
        raise invalid("the root of a JSON Schema for a topic must be an object with properties")
    return check_draft(SchemaDraft(found.type.columns))


class _Reader:
    def __init__(self, root: object) -> None:
        self._root = root
        self._budget = ColumnBudget()

    def type(self, schema: object, path: Path) -> _Found:
        stated, nullable = self._resolved(schema, path)
        names = _type_names(stated, path)
        nullable = nullable or "null" in names
        names -= {"null"}
        if names == {"integer", "number"}:
            names = {"number"}
        if len(names) != 1:
            alternative = INSTEAD["union" if names else "null"]
            raise invalid(f"it has {len(names)} types besides null; {alternative}", path)
        (name,) = names
        if name == "object":
            return _Found(self._object(stated, path), nullable, stated)
        if name == "array":
            if not isinstance(stated.get("items"), dict):
                raise invalid("an array must have one schema for its items; use an object for a tuple", path)
            return _Found(ListOf(self._unnamed(stated["items"], path, ELEMENT)), nullable, stated)
        if name not in _TYPES:
            raise invalid(f"there is no JSON type {shown(name)!r}", path)
        return _Found(_scalar(name, stated), nullable, stated)

    def _object(self, stated: Json, path: Path) -> ColumnType:
        properties, required = stated.get("properties", {}), stated.get("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list):
            raise invalid("properties must be an object, and required a list", path)
        if properties:
            return StructOf(tuple(self._property(it, properties[it], it in required, path) for it in properties))
        values = stated.get("additionalProperties")
        if not isinstance(values, dict):
            raise invalid("an object without stated properties; state them, or keep the object as string", path)
        self._budget.take((*path, MAP_KEY))
        key = Column(NO_ID, MAP_KEY, Primitive.STRING, nullable=False)
        return MapOf(key, self._unnamed(values, path, MAP_VALUE))

    def _property(self, name: str, schema: object, required: bool, above: Path) -> Column:
        path = (*above, name)
        self._budget.take(path)
        found = self.type(schema, path)
        own: Json = schema if isinstance(schema, dict) else {}
        facts = {**found.stated, **own}
        doc, value = facts.get("description", ""), facts.get("default")
        if not isinstance(doc, str):
            raise invalid("description must be a text", path)
        try:
            default = None if value is None else Default(fitted(found.type, value))
        except ValueError as error:
            raise invalid(str(error), path) from None
        nullable = found.nullable or (not required and default is None)
        return Column(NO_ID, name, found.type, nullable, default, doc)

    def _unnamed(self, schema: object, above: Path, name: str) -> Column:
        path = (*above, name)
        self._budget.take(path)
        found = self.type(schema, path)
        return Column(NO_ID, name, found.type, found.nullable)

    def _resolved(self, schema: object, path: Path) -> tuple[Json, bool]:
        """The object that references, and a choice between one type and null, lead to; whether null was a choice."""
        nullable = False
        for _ in range(_REFERENCES_MAX):
            if not isinstance(schema, dict):
                raise invalid("the JSON Schema of a column must be an object", path)
            if "$ref" in schema:
                schema = self._referenced(schema["$ref"], path)
                continue
            choices = next((schema[it] for it in ("anyOf", "oneOf", "allOf") if it in schema), None)
            if choices is None:
                return cast("Json", schema), nullable
            if not isinstance(choices, list):
                raise invalid("anyOf, oneOf and allOf must be lists", path)
            others = [it for it in choices if not isinstance(it, dict) or it.get("type") != "null"]
            if len(others) != 1:
                raise invalid(f"a choice between {len(others)} types; {INSTEAD['union']}", path)
            nullable = nullable or len(others) < len(choices)
            schema = others[0]
        raise invalid(f"more than {_REFERENCES_MAX} references refer to each other in a row", path)

    def _referenced(self, pointer: object, path: Path) -> object:
        if not isinstance(pointer, str) or not pointer.startswith("#"):
            raise invalid(f"the reference {shown(str(pointer))!r} leads out of the file; put its schema inside", path)
        found = self._root
        for step in pointer[1:].split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or name not in found:
                raise invalid(f"the reference {shown(pointer)!r} leads nowhere", path)
            found = found[name]
        return found


def _type_names(stated: Json, path: Path) -> set[str]:
    names = stated.get("type")
    if isinstance(names, str):
        return {names}
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        return set(names)
    if names is not None:
        raise invalid("type must be a text or a list of texts", path)
    if "properties" in stated or isinstance(stated.get("additionalProperties"), dict):
        return {"object"}
    if "items" in stated:
        return {"array"}
    values = stated.get("enum", [stated["const"]] if "const" in stated else [])
    return {_NAMES.get(type(value), "object") for value in values} if isinstance(values, list) else set()


def _scalar(name: str, stated: Json) -> ColumnType:
    form = stated.get("format")
    if isinstance(form, str) and (name, form) in _FORMATS:
        return _FORMATS[name, form]
    if name == "string" and stated.get("contentEncoding") == "base64":
        return Primitive.BINARY
    if name == "string" and "enum" in stated:
        return Dictionary(Primitive.STRING)
    return _TYPES[name]
