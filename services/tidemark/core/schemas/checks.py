# SPDX-License-Identifier: Apache-2.0
"""Which schemas may be stored. Each refusal is INVALID_SCHEMA, names the column, and states an alternative."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Final

from tidemark.core.schemas.defaults import fitted
from tidemark.core.schemas.model import (
    COLUMN_ID_MAX,
    ELEMENT,
    INT_BITS,
    MAP_KEY,
    MAP_VALUE,
    NAME_CHARACTERS_MAX,
    PRECISION_MAX,
    VERSION_MAX,
    Column,
    Decimal,
    Dictionary,
    ListOf,
    MapOf,
    Path,
    Primitive,
    SchemaDraft,
    StructOf,
    TopicSchema,
    plain_type,
    walk,
)
from tidemark.core.schemas.refusals import ColumnBudget, invalid, shown

KEY_TYPES: Final = frozenset(
    {Primitive.BOOL, *INT_BITS, Primitive.STRING, Primitive.BINARY, Primitive.DATE, Primitive.TIMESTAMP}
)
"""Primitive types of key columns; decimals may be keys, too."""
_CONTROL: Final = frozenset({"Cc", "Cs"})


def check_draft(draft: SchemaDraft) -> SchemaDraft:
    """The draft; raises INVALID_SCHEMA unless a schema can be made of it."""
    check_columns(draft.columns)
    by_name = {column.name: column for column in draft.columns}
    for name in (*draft.key, *([] if draft.event_time is None else [draft.event_time])):
        if name not in by_name:
            raise invalid(f"key and event_time name columns of the topic; there is no column {shown(name)!r}")
    _check_key([by_name[name] for name in draft.key])
    if draft.event_time is not None:
        _check_event_time(by_name[draft.event_time])
    return draft


def check_schema(schema: TopicSchema) -> TopicSchema:
    """The schema; raises INVALID_SCHEMA unless it may be stored."""
    if not 1 <= schema.version <= VERSION_MAX:
        raise invalid(f"version {schema.version} of a schema: versions go from 1 to {VERSION_MAX}; use another topic")
    check_columns(schema.columns)
    if not 1 <= schema.last_column_id <= COLUMN_ID_MAX:
        raise invalid(f"last_column_id is {schema.last_column_id}: give 1 to {COLUMN_ID_MAX}")
    taken: set[int] = set()
    for path, column in walk(schema.columns):
        if not 1 <= column.id <= schema.last_column_id:
            raise invalid(f"its id {column.id} is not from 1 to last_column_id, {schema.last_column_id}", path)
        if column.id in taken:
            raise invalid(f"another column has its id {column.id}; ids are never used twice", path)
        if column.renamed_from:
            raise invalid("renamed_from belongs into a draft; a stored schema has ids", path)
        taken.add(column.id)
    by_id = {column.id: column for column in schema.columns}
    for found in (*schema.key, *([] if schema.event_time is None else [schema.event_time])):
        if found not in by_id:
            raise invalid(f"key and event_time name columns of the topic; no such column has the id {found}")
    _check_key(schema.key_columns)
    if schema.event_time is not None:
        _check_event_time(by_id[schema.event_time])
    return schema


def check_columns(columns: Sequence[Column]) -> None:
    """Raise INVALID_SCHEMA unless names, types, defaults, number and depth of the columns are allowed."""
    if not columns:
        raise invalid("a schema must have at least one column")
    budget = ColumnBudget()
    _check_siblings((), columns)
    for path, column in walk(columns):
        budget.take(path)
        _check_type(path, column)
        _check_texts(path, column)
        if isinstance(column.type, StructOf):
            _check_siblings(path, column.type.columns)


def name_refusal(path: Path) -> str | None:
    """Why no column can have the last name of the path; None: one can."""
    name = path[-1]
    if not 1 <= len(name) <= NAME_CHARACTERS_MAX:
        return f"a name has 1 to {NAME_CHARACTERS_MAX} characters, this one has {len(name)}"
    if not name.isprintable() and any(unicodedata.category(character) in _CONTROL for character in name):
        return "a name has no control characters"
    if len(path) == 1 and name.startswith("_"):
        return "names with a leading _ are Tidemark's, such as _offset; choose another name"
    return None


def _check_siblings(above: Path, columns: Sequence[Column]) -> None:
    names: dict[str, str] = {}
    for column in columns:
        path = (*above, column.name)
        refusal = name_refusal(path)
        if refusal is not None:
            raise invalid(refusal, path)
        lower = column.name.lower()
        if lower in names:
            raise invalid(f"another column is named {shown(names[lower])}; Spark ignores the case of names", path)
        names[lower] = column.name


def _check_type(path: Path, column: Column) -> None:
    match column.type:
        case Decimal() as number:
            _check_decimal(path, number)
        case Dictionary(value):
            if isinstance(value, Decimal):
                _check_decimal(path, value)
            elif value is Primitive.BOOL:
                raise invalid("a dictionary of bool saves nothing; use bool", path)
        case StructOf(columns):
            if not columns:
                raise invalid("a struct must have at least one column", path)
        case MapOf(key, value):
            if not isinstance(key.type, Primitive | Decimal):
                raise invalid("the keys of a map must be of a type without columns, such as string", path)
            if key.nullable:
                raise invalid("the keys of a map must not be null; state them as not null", path)
            _check_unnamed(path, key, MAP_KEY)
            _check_unnamed(path, value, MAP_VALUE)
        case ListOf(element):
            _check_unnamed(path, element, ELEMENT)
        case _:
            return


def _check_unnamed(path: Path, column: Column, name: str) -> None:
    """Refuse other names, defaults and `renamed_from` in lists and maps, whose columns have fixed names."""
    if column.name != name:
        raise invalid(f"its {name} is named {shown(column.name)!r}, not {name!r}", path)
    if column.default is not None:
        raise invalid(f"its {name} has a default; only columns of the topic and of structs have one", path)
    if column.renamed_from:
        raise invalid(f"its {name} has renamed_from; only columns of the topic and of structs have names", path)


def _check_decimal(path: Path, number: Decimal) -> None:
    if not 1 <= number.precision <= PRECISION_MAX or not 0 <= number.scale <= number.precision:
        raise invalid(
            f"decimal({number.precision},{number.scale}): give a precision of 1 to {PRECISION_MAX}, and a scale from 0 "
            f"to the precision",
            path,
        )


def _check_texts(path: Path, column: Column) -> None:
    if not column.doc.isascii() and any(unicodedata.category(character) == "Cs" for character in column.doc):
        raise invalid("its doc has half a surrogate pair; UTF-8 cannot encode it", path)
    if column.default is None:
        return
    try:
        value = fitted(column.type, column.default.value)
    except ValueError as error:
        raise invalid(str(error), path) from None
    if type(value) is not type(column.default.value):
        raise invalid(f"the default {shown(repr(column.default.value))} is not a value of the type", path)


def _check_key(columns: Sequence[Column]) -> None:
    seen: set[str] = set()
    for column in columns:
        if column.nullable:
            raise invalid("a key column must not be null; state it as not null", (column.name,))
        stored = plain_type(column.type)
        if not isinstance(stored, Decimal) and stored not in KEY_TYPES:
            names = ", ".join(sorted(KEY_TYPES))
            raise invalid(f"a key column is of one of these types: {names}, decimal", (column.name,))
        if column.name in seen:
            raise invalid("the key names it twice", (column.name,))
        seen.add(column.name)


def _check_event_time(column: Column) -> None:
    if column.type is not Primitive.TIMESTAMP:
        raise invalid("the event time must be a timestamp (an instant in microseconds, UTC)", (column.name,))
    if column.nullable:
        raise invalid("the event time must not be null; state it as not null", (column.name,))
