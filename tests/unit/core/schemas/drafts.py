# SPDX-License-Identifier: Apache-2.0
"""Generated drafts: any schema that may be created."""

from __future__ import annotations

import datetime
import decimal
from dataclasses import replace

from hypothesis import strategies as st
from tidemark.core.schemas.checks import KEY_TYPES
from tidemark.core.schemas.defaults import fitted
from tidemark.core.schemas.evolution import first_version
from tidemark.core.schemas.model import (
    ELEMENT,
    INT_BITS,
    MAP_KEY,
    MAP_VALUE,
    NO_ID,
    Column,
    ColumnType,
    Decimal,
    Default,
    Dictionary,
    ListOf,
    MapOf,
    Primitive,
    SchemaDraft,
    StructOf,
    TopicSchema,
    plain_type,
)

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
SIMPLE_NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,4}", fullmatch=True)
NAMES = SIMPLE_NAMES | st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=6)
DECIMALS = st.integers(1, 38).flatmap(lambda digits: st.builds(Decimal, st.just(digits), st.integers(0, digits)))
PRIMITIVES = st.sampled_from(list(Primitive))
DICTIONARIES = (PRIMITIVES.filter(lambda it: it is not Primitive.BOOL) | DECIMALS).map(Dictionary)
LEAVES = PRIMITIVES | DECIMALS | DICTIONARIES
YEARS = (datetime.datetime.fromisoformat("1900-01-01"), datetime.datetime.fromisoformat("2200-01-01"))
INSTANTS = st.datetimes(*YEARS, timezones=st.just(datetime.UTC))


def values(column_type: ColumnType) -> st.SearchStrategy[object]:
    """Values of a type without columns."""
    column_type = plain_type(column_type)
    match column_type:
        case Decimal(precision, scale):
            digits = st.integers(1 - 10**precision, 10**precision - 1)
            context = decimal.Context(prec=60)
            return digits.map(lambda number: decimal.Decimal(number).scaleb(-scale, context))
        case Primitive.BOOL:
            return st.booleans()
        case Primitive.FLOAT32 | Primitive.FLOAT64:
            width = 32 if column_type is Primitive.FLOAT32 else 64
            return st.floats(width=width, allow_nan=False, allow_infinity=False)
        case Primitive.STRING:
            return TEXTS
        case Primitive.BINARY:
            return st.binary(max_size=8)
        case Primitive.DATE:
            return st.dates(datetime.date(1900, 1, 1), datetime.date(2200, 1, 1))
        case Primitive.TIMESTAMP:
            return INSTANTS
        case Primitive.TIMESTAMP_NTZ:
            return st.datetimes(*YEARS)
        case Primitive() as primitive:
            limit = 1 << (INT_BITS[primitive] - 1)
            return st.integers(-limit, limit - 1)
        case _:
            raise AssertionError(column_type)


@st.composite
def columns(draw: st.DrawFn, names: st.SearchStrategy[str], depth: int, least: int = 1) -> tuple[Column, ...]:
    chosen = draw(st.lists(names, min_size=least, max_size=4, unique_by=str.lower))
    return tuple(draw(column(name, names, depth)) for name in chosen)


@st.composite
def column(draw: st.DrawFn, name: str, names: st.SearchStrategy[str], depth: int) -> Column:
    column_type = draw(column_types(names, depth))
    return Column(
        NO_ID,
        name,
        column_type,
        nullable=draw(st.booleans()),
        default=draw(defaults(column_type)),
        doc=draw(st.just("") | TEXTS),
    )


@st.composite
def column_types(draw: st.DrawFn, names: st.SearchStrategy[str], depth: int) -> ColumnType:
    kind = draw(st.sampled_from(["leaf", "leaf", "leaf", "list", "map", "struct"])) if depth > 1 else "leaf"
    match kind:
        case "list":
            return ListOf(draw(unnamed(ELEMENT, names, depth - 1)))
        case "map":
            key = Column(NO_ID, MAP_KEY, draw(PRIMITIVES | DECIMALS), nullable=False)
            return MapOf(key, draw(unnamed(MAP_VALUE, names, depth - 1)))
        case "struct":
            return StructOf(draw(columns(names, depth - 1)))
        case _:
            return draw(LEAVES)


@st.composite
def unnamed(draw: st.DrawFn, name: str, names: st.SearchStrategy[str], depth: int) -> Column:
    return replace(draw(column(name, names, depth)), default=None)


@st.composite
def defaults(draw: st.DrawFn, column_type: ColumnType) -> Default | None:
    if isinstance(column_type, StructOf) or not draw(st.booleans()):
        return None
    if isinstance(column_type, ListOf | MapOf):
        return Default(())
    return Default(fitted(column_type, draw(values(column_type))))


def may_be_key(it: Column) -> bool:
    stored = plain_type(it.type)
    return isinstance(stored, Decimal) or stored in KEY_TYPES


@st.composite
def drafts(draw: st.DrawFn, names: st.SearchStrategy[str] = NAMES, depth: int = 3) -> SchemaDraft:
    found = draw(columns(names.filter(lambda name: not name.startswith("_")), depth))
    key = [it.name for it in found if may_be_key(it) and draw(st.booleans())]
    times = [it.name for it in found if it.type is Primitive.TIMESTAMP]
    event_time = draw(st.sampled_from([None, *times]))
    return SchemaDraft(found).keyed(draw(st.permutations(key)), event_time)


def schemas(names: st.SearchStrategy[str] = NAMES, depth: int = 3) -> st.SearchStrategy[TopicSchema]:
    return drafts(names, depth).map(first_version)


def leaf_or_empty_types() -> st.SearchStrategy[ColumnType]:
    """Types that may have a default."""
    return column_types(SIMPLE_NAMES, 2).filter(lambda it: not isinstance(it, StructOf))
