# SPDX-License-Identifier: Apache-2.0
"""The mapping of a YAML or JSON file to a draft, and back.

columns:
  - {name: carrier, type: string, doc: IATA code}
  - {name: legs, type: "list<struct<origin: string not null, miles: int32>>"}
  - name: stops
    type:
      list:
        struct:
          - {name: origin, type: string, nullable: false}
          - {name: fees, type: {map: [string, "decimal(10,2)"]}}
  - {name: price, type: "decimal(10,2)", default: "0.00"}
  - {name: scheduled_at, type: timestamp}
  - {name: tail_number, renamed_from: tailnum, type: string}
key: [carrier]
event_time: scheduled_at
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from tidemark.core.schemas.checks import check_draft
from tidemark.core.schemas.defaults import as_json, fitted
from tidemark.core.schemas.model import (
    ELEMENT,
    MAP_KEY,
    MAP_VALUE,
    NO_ID,
    Column,
    ColumnType,
    Default,
    ListOf,
    MapOf,
    Path,
    SchemaDraft,
    StructOf,
    TopicSchema,
    draft_of,
)
from tidemark.core.schemas.refusals import ColumnBudget, invalid, shown
from tidemark.core.schemas.type_names import type_name
from tidemark.core.schemas.type_parser import TypeParser

_KEYS: Final = ("columns", "key", "event_time")
_COLUMN_KEYS: Final = ("name", "type", "nullable", "default", "doc", "renamed_from")
_PART_KEYS: Final = ("type", "nullable")


def draft_from_document(document: object) -> SchemaDraft:
    """The draft that a document states; columns of the key and of the event time are not null.

    Args:
        document: the value of a YAML or JSON file.

    Raises:
        TidemarkError: INVALID_SCHEMA: another structure, or one of `check_draft`'s reasons.
    """
    facts = _mapping(document, _KEYS, "a schema")
    columns = facts.get("columns")
    if not isinstance(columns, list):
        raise invalid("a schema must have a list of columns: columns: [{name: ..., type: ...}]")
    key, event_time = facts.get("key") or [], facts.get("event_time")
    names = [key] if isinstance(key, str) else key
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise invalid("the key must be a list of the columns' names: key: [carrier]")
    if not isinstance(event_time, str | None):
        raise invalid("event_time must be the name of a column")
    chosen = {*names, event_time}
    budget = ColumnBudget()
    draft = SchemaDraft(tuple(_column(each, chosen, budget) for each in columns), tuple(names), event_time)
    return check_draft(draft)


def document_of(schema: TopicSchema | SchemaDraft) -> dict[str, Any]:
    """The document that states a schema: plain lists, dicts and values that YAML and JSON have."""
    draft = draft_of(schema) if isinstance(schema, TopicSchema) else schema
    document: dict[str, Any] = {"columns": [_column_facts(column) for column in draft.columns]}
    if draft.key:
        document["key"] = list(draft.key)
    if draft.event_time is not None:
        document["event_time"] = draft.event_time
    return document


def _column(document: object, chosen: set[str | None], budget: ColumnBudget, above: Path = ()) -> Column:
    facts = _mapping(document, _COLUMN_KEYS, "a column", above)
    name = facts.get("name")
    if not isinstance(name, str):
        raise invalid("a column must have a name; put quotes around one such as 'on' or '1'", above)
    path = (*above, name)
    budget.take(path)
    return _column_of(facts, path, budget, may_be_null=name not in chosen)


def _column_of(facts: Mapping[str, object], path: Path, budget: ColumnBudget, *, may_be_null: bool) -> Column:
    column_type = _type(facts.get("type"), path, budget)
    default = facts.get("default")
    try:
        fit = None if default is None else Default(fitted(column_type, default))
    except ValueError as error:
        raise invalid(str(error), path) from None
    nullable = facts.get("nullable", may_be_null)
    if not isinstance(nullable, bool):
        raise invalid("nullable must be true or false", path)
    doc, renamed_from = facts.get("doc") or "", facts.get("renamed_from") or ""
    if not isinstance(doc, str) or not isinstance(renamed_from, str):
        raise invalid("doc and renamed_from must be texts; put quotes around them", path)
    return Column(NO_ID, path[-1], column_type, nullable, fit, doc, renamed_from)


def _type(found: object, path: Path, budget: ColumnBudget) -> ColumnType:
    """A type: a text, or a mapping of one of list, map, struct and dictionary."""
    match found:
        case str():
            return TypeParser(found, budget).whole_type(path)
        case {"list": element, **others} if not others:
            return ListOf(_part(element, (*path, ELEMENT), budget))
        case {"map": [key, value], **others} if not others:
            return MapOf(
                _part(key, (*path, MAP_KEY), budget, may_be_null=False), _part(value, (*path, MAP_VALUE), budget)
            )
        case {"struct": [*columns], **others} if not others:
            return StructOf(tuple(_column(each, set(), budget, path) for each in columns))
        case {"dictionary": str() as value, **others} if not others:
            return TypeParser(f"dictionary<{value}>", budget).whole_type(path)
    raise invalid(
        'it has no type. Give a text such as int32, "decimal(10,2)" or "list<string>", or a mapping: {list: TYPE}, '
        "{map: [TYPE, TYPE]}, {struct: [{name: NAME, type: TYPE}]} or {dictionary: TYPE}",
        path,
    )


def _part(found: object, path: Path, budget: ColumnBudget, *, may_be_null: bool = True) -> Column:
    """An element, a key or a value: a type, or a mapping with a type and other facts of a column without a name."""
    budget.take(path)
    if isinstance(found, Mapping) and "type" in found:
        return _column_of(_mapping(found, _PART_KEYS, path[-1], path), path, budget, may_be_null=may_be_null)
    return Column(NO_ID, path[-1], _type(found, path, budget), may_be_null)


def _column_facts(column: Column) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": column.name, "type": type_name(column.type)}
    if not column.nullable:
        facts["nullable"] = False
    if column.default is not None:
        facts["default"] = as_json(column.type, column.default.value)
    if column.doc:
        facts["doc"] = column.doc
    if column.renamed_from:
        facts["renamed_from"] = column.renamed_from
    return facts


def _mapping(document: object, allowed: tuple[str, ...], owner: str, path: Path = ()) -> Mapping[str, object]:
    names = ", ".join(allowed)
    if not isinstance(document, Mapping):
        raise invalid(f"{owner} is a mapping with {names}", path)
    for name in document:
        if name not in allowed:
            raise invalid(f"{owner} has no {shown(str(name))!r}; it has {names}", path)
    return cast("Mapping[str, object]", document)
