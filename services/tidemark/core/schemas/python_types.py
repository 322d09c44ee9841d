# SPDX-License-Identifier: Apache-2.0
"""Python classes to drafts: dataclasses and pydantic models, which are recognised without an import of pydantic.

    @dataclass
    class Flight:
        carrier: str
        delay: Annotated[int, "int32"] = 0
        price: Annotated[Decimal, "decimal(10,2)"] | None = None
        legs: list[Leg] = field(default_factory=list)

`Optional` columns are nullable. `Annotated` with a text states a type of the topic. Docs come from a pydantic field's
description, and from `field(metadata={"doc": ...})`.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import types
import typing
import uuid
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from typing import Any, Final, NamedTuple, get_args, get_origin

from tidemark.core.schemas.checks import check_draft
from tidemark.core.schemas.defaults import fitted
from tidemark.core.schemas.model import (
    ELEMENT,
    MAP_KEY,
    MAP_VALUE,
    NO_ID,
    Column,
    ColumnType,
    Decimal,
    Default,
    ListOf,
    MapOf,
    Path,
    Primitive,
    SchemaDraft,
    StructOf,
)
from tidemark.core.schemas.refusals import ColumnBudget, invalid, shown
from tidemark.core.schemas.type_names import INSTEAD
from tidemark.core.schemas.type_parser import TypeParser

_TYPES: Final[Mapping[object, Primitive]] = {
    bool: Primitive.BOOL,
    int: Primitive.INT64,
    float: Primitive.FLOAT64,
    str: Primitive.STRING,
    bytes: Primitive.BINARY,
    bytearray: Primitive.BINARY,
    datetime.date: Primitive.DATE,
    datetime.datetime: Primitive.TIMESTAMP,
    uuid.UUID: Primitive.STRING,
}
_NO_TYPES: Final[Mapping[object, str]] = {
    datetime.time: INSTEAD["time"],
    datetime.timedelta: INSTEAD["duration"],
    decimal.Decimal: 'state its digits: Annotated[Decimal, "decimal(10,2)"]',
    type(None): INSTEAD["null"],
    complex: "use a struct of two floats",
}
_STATE_ONE: Final = 'state one: Annotated[..., "string"]'
_LISTS: Final = (Sequence, Set)
_EMPTY_FACTORIES: Final = (list, tuple, set, frozenset, dict)
_TYPE_ALIASES_MAX: Final = 32


class _Field(NamedTuple):
    """A field of a class, with its type and default."""

    name: str
    annotation: object
    default: object = None
    doc: str = ""
    extras: tuple[object, ...] = ()
    """Annotations that pydantic has taken off the type."""


class _Plain(NamedTuple):
    """A type without Optional, Annotated and aliases."""

    type: object
    nullable: bool
    extras: tuple[object, ...]


def draft_from_class(cls: type, key: Sequence[str] = (), event_time: str | None = None) -> SchemaDraft:
    """The draft whose columns are the fields of a dataclass or pydantic model.

    Args:
        cls: the class.
        key: names of the key columns.
        event_time: name of the column with the event time.

    Raises:
        TidemarkError: INVALID_SCHEMA: another class, a type that Spark lacks, or one of `check_draft`'s reasons.
    """
    fields = _fields(cls, ())
    if fields is None:
        raise invalid(f"{shown(getattr(cls, '__name__', repr(cls)))} is neither a dataclass nor a pydantic model")
    budget = ColumnBudget()
    return check_draft(SchemaDraft(tuple(_column(it, (), budget) for it in fields)).keyed(key, event_time))


def _fields(cls: object, path: Path) -> list[_Field] | None:
    """The fields of a class; None: the class has no fields."""
    if not isinstance(cls, type):
        return None
    models = getattr(cls, "model_fields", None)
    if isinstance(models, Mapping) and hasattr(cls, "model_validate"):
        return list(_pydantic_fields(models))
    if not dataclasses.is_dataclass(cls):
        return None
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise invalid(f"the types of {shown(cls.__name__)} do not resolve: {shown(str(error))}", path) from None
    return [
        _Field(it.name, hints[it.name], _stated(it.default, it.default_factory), str(it.metadata.get("doc", "")))
        for it in dataclasses.fields(cls)
    ]


def _pydantic_fields(models: Mapping[str, Any]) -> Iterator[_Field]:
    for name, info in models.items():
        default = None if info.is_required() else _stated(info.default, info.default_factory)
        yield _Field(name, info.annotation, default, info.description or "", tuple(info.metadata))


def _stated(default: object, factory: object) -> object:
    """The default of a field; a factory counts if it makes an empty list or dict."""
    if factory is not None and factory is not dataclasses.MISSING:
        return () if factory in _EMPTY_FACTORIES else None
    return None if default is dataclasses.MISSING else default


def _column(field: _Field, above: Path, budget: ColumnBudget) -> Column:
    path = (*above, field.name)
    budget.take(path)
    plain = _plain(field.annotation, path)
    column_type = _type(plain.type, (*plain.extras, *field.extras), path, budget)
    default = None
    value = field.default.value if isinstance(field.default, enum.Enum) else field.default
    if value is not None and not isinstance(column_type, StructOf):
        try:
            default = Default(fitted(column_type, str(value) if isinstance(value, uuid.UUID) else value))
        except ValueError as error:
            raise invalid(str(error), path) from None
    return Column(NO_ID, field.name, column_type, plain.nullable, default, field.doc)


def _unnamed(annotation: object, above: Path, name: str, budget: ColumnBudget) -> Column:
    path = (*above, name)
    budget.take(path)
    plain = _plain(annotation, path)
    return Column(NO_ID, name, _type(plain.type, plain.extras, path, budget), plain.nullable)


def _plain(annotation: object, path: Path) -> _Plain:
    nullable, extras = False, ()
    for _ in range(_TYPE_ALIASES_MAX):
        origin = get_origin(annotation)
        if origin is typing.Annotated:
            annotation, *more = get_args(annotation)
            extras = (*more, *extras)
        elif origin in (typing.Union, types.UnionType):
            others = [it for it in get_args(annotation) if it is not type(None)]
            if len(others) != 1:
                raise invalid(f"a union of {len(others)} types; {INSTEAD['union']}", path)
            nullable = nullable or len(others) < len(get_args(annotation))
            annotation = others[0]
        elif hasattr(annotation, "__supertype__"):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = getattr(annotation, "__value__", None)
        else:
            return _Plain(annotation, nullable, extras)
    raise invalid(f"more than {_TYPE_ALIASES_MAX} aliases of a type follow one another", path)


def _type(found: object, extras: tuple[object, ...], path: Path, budget: ColumnBudget) -> ColumnType:
    for extra in extras:
        if isinstance(extra, str):
            return TypeParser(extra, budget).whole_type(path)
    if found is decimal.Decimal:
        digits = [(getattr(it, "max_digits", None), getattr(it, "decimal_places", None)) for it in extras]
        for precision, scale in digits:
            if isinstance(precision, int) and isinstance(scale, int):
                return Decimal(precision, scale)
    if isinstance(found, Hashable) and found in _TYPES:
        return _TYPES[found]
    if get_origin(found) is typing.Literal:
        return _of_values(get_args(found), path)
    if isinstance(found, type) and issubclass(found, enum.Enum):
        return _of_values([it.value for it in found], path)
    return _type_with_columns(found, path, budget)


def _type_with_columns(found: object, path: Path, budget: ColumnBudget) -> ColumnType:
    origin, arguments = get_origin(found), get_args(found)
    if isinstance(origin, type) and issubclass(origin, Mapping) and len(arguments) == 2:
        key = dataclasses.replace(_unnamed(arguments[0], path, MAP_KEY, budget), nullable=False)
        return MapOf(key, _unnamed(arguments[1], path, MAP_VALUE, budget))
    if isinstance(origin, type) and issubclass(origin, _LISTS):
        if origin is not tuple or arguments[1:] == (...,):
            return ListOf(_unnamed(arguments[0], path, ELEMENT, budget))
        raise invalid("a tuple with a type for each place; use a class with fields, or tuple[T, ...]", path)
    fields = _fields(found, path)
    if fields is not None:
        return StructOf(tuple(_column(it, path, budget) for it in fields))
    name = shown(found.__name__ if isinstance(found, type) else str(found))
    why = _NO_TYPES.get(found) if isinstance(found, Hashable) else None
    raise invalid(f"no type of a topic for {name}; {why or _STATE_ONE}", path)


def _of_values(values: Sequence[object], path: Path) -> ColumnType:
    """The type that the values of an enum or a Literal have."""
    kinds = {_TYPES.get(type(value)) for value in values}
    if len(kinds) == 1 and (kind := kinds.pop()) is not None:
        return kind
    raise invalid("its values are of several types; use one", path)
