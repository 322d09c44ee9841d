# SPDX-License-Identifier: Apache-2.0
"""Random drafts: any schema that may be created.

Drawn from a seed, since that gives ten times as many examples in the same time as a strategy for each part.
"""

from __future__ import annotations

import datetime
import decimal
import struct
from dataclasses import replace
from random import Random

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

RANDOMS = st.integers(0, 2**32).map(Random)
LETTERS = "aB1_ .`'\"\\<>,:()é\u212a\u200b\U0001f600-$\u00a0"
SIMPLE = "abcdefgh"
TEXTS = LETTERS + "\n\t\0\r\x7f"
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
COLUMNS_DRAWN_MAX = 4


def text(random: Random) -> str:
    return "".join(random.choices(TEXTS, k=random.randrange(5)))


def name(random: Random, taken: set[str], simple: bool) -> str:
    """A name that is not among `taken`, which are in lower case."""
    while True:
        found = "".join(random.choices(SIMPLE if simple else LETTERS, k=random.randint(1, 4)))
        if found.lower() not in taken and not found.startswith("_"):
            taken.add(found.lower())
            return found


def decimal_type(random: Random) -> Decimal:
    precision = random.choice([1, 5, 38, random.randint(1, 38)])
    return Decimal(precision, random.choice([0, precision, random.randint(0, precision)]))


def leaf_type(random: Random) -> ColumnType:
    found = random.choice([random.choice(list(Primitive)), random.choice(list(Primitive)), decimal_type(random)])
    return found if found is Primitive.BOOL or random.randrange(5) else Dictionary(found)


def value(random: Random, column_type: ColumnType) -> object:
    """A value of a type without columns."""
    match plain_type(column_type):
        case Decimal(precision, scale):
            largest = 10**precision - 1
            digits = random.choice([0, largest, -largest, random.randint(-largest, largest)])
            return decimal.Decimal(digits).scaleb(-scale, decimal.Context(prec=60))
        case Primitive.BOOL:
            return random.random() < 0.5
        case Primitive.FLOAT32:
            found = random.choice([0.0, -0.0, 1e38, random.uniform(-100, 100)])
            return struct.unpack("<f", struct.pack("<f", found))[0]
        case Primitive.FLOAT64:
            return random.choice([0.0, -0.0, 5e-324, 1.7e308, random.uniform(-100, 100)])
        case Primitive.STRING:
            return text(random)
        case Primitive.BINARY:
            return random.randbytes(random.randrange(4))
        case Primitive.DATE:
            return (EPOCH + datetime.timedelta(days=random.randint(-40_000, 60_000))).date()
        case Primitive.TIMESTAMP:
            return instant(random)
        case Primitive.TIMESTAMP_NTZ:
            return instant(random).replace(tzinfo=None)
        case Primitive() as primitive:
            limit = 1 << (INT_BITS[primitive] - 1)
            return random.choice([0, 1, -limit, limit - 1, random.randrange(-limit, limit)])
        case other:
            raise AssertionError(other)


def instant(random: Random) -> datetime.datetime:
    limit_us = 100 * 365 * 86_400 * 1_000_000
    return EPOCH + datetime.timedelta(microseconds=random.choice([0, -1, random.randint(-limit_us, limit_us)]))


def columns(random: Random, depth: int, simple: bool) -> tuple[Column, ...]:
    taken: set[str] = set()
    count = random.randint(1, COLUMNS_DRAWN_MAX)
    return tuple(column(random, name(random, taken, simple), depth, simple) for _ in range(count))


def column(random: Random, own_name: str, depth: int, simple: bool = True) -> Column:
    column_type = type_of(random, depth, simple)
    doc = text(random) if random.random() < 0.2 else ""
    return Column(NO_ID, own_name, column_type, random.random() < 0.5, default(random, column_type), doc)


def type_of(random: Random, depth: int, simple: bool = True) -> ColumnType:
    match random.randrange(6) if depth > 1 else 5:
        case 0:
            return ListOf(unnamed(random, ELEMENT, depth - 1, simple))
        case 1:
            key = Column(NO_ID, MAP_KEY, plain_type(leaf_type(random)), nullable=False)
            return MapOf(key, unnamed(random, MAP_VALUE, depth - 1, simple))
        case 2:
            return StructOf(columns(random, depth - 1, simple))
        case _:
            return leaf_type(random)


def unnamed(random: Random, own_name: str, depth: int, simple: bool) -> Column:
    return replace(column(random, own_name, depth, simple), default=None)


def default(random: Random, column_type: ColumnType, chance: float = 0.5) -> Default | None:
    if isinstance(column_type, StructOf) or random.random() > chance:
        return None
    if isinstance(column_type, ListOf | MapOf):
        return Default(())
    return Default(fitted(column_type, value(random, column_type)))


def may_be_key(it: Column) -> bool:
    stored = plain_type(it.type)
    return isinstance(stored, Decimal) or stored in KEY_TYPES


def draft(random: Random, depth: int = 3, simple: bool = False) -> SchemaDraft:
    found = columns(random, depth, simple)
    key = [it.name for it in found if may_be_key(it) and random.random() < 0.5]
    random.shuffle(key)
    times = [it.name for it in found if it.type is Primitive.TIMESTAMP]
    return SchemaDraft(found).keyed(key, random.choice([None, *times]))


def drafts(depth: int = 3) -> st.SearchStrategy[SchemaDraft]:
    return RANDOMS.map(lambda random: draft(random, depth))


def schemas(depth: int = 3) -> st.SearchStrategy[TopicSchema]:
    return drafts(depth).map(first_version)
