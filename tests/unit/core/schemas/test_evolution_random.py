# SPDX-License-Identifier: Apache-2.0
"""Chains of random changes that a policy allows: the readers that the policy names can read."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise
from random import Random

import pytest
from hypothesis import given, settings
from tidemark.core.schemas.arrow_types import arrow_schema
from tidemark.core.schemas.compatibility import Compatibility
from tidemark.core.schemas.evolution import differences, first_version, next_version
from tidemark.core.schemas.model import (
    Column,
    ColumnType,
    Decimal,
    Dictionary,
    ListOf,
    MapOf,
    Primitive,
    SchemaDraft,
    TopicSchema,
    children,
    draft_of,
    walk,
    with_children,
)
from tidemark.core.schemas.projection import Projection
from tidemark.core.schemas.text import from_text, to_text
from tidemark.model import ErrorCode, TidemarkError

from tests.unit.core.schemas.drafts import RANDOMS, column, default, draft, leaf_type, name
from tests.unit.core.schemas.rows import batch, null_in_column_that_is_not_null, projected, pruned_batch, rows

CHANGES = ("type", "widen", "nullable", "default", "rename", "drop", "add", "order", "doc", "below", "below")
WIDER: dict[ColumnType, ColumnType] = {
    Primitive.INT8: Primitive.INT16,
    Primitive.INT16: Primitive.FLOAT64,
    Primitive.INT32: Primitive.INT64,
    Primitive.INT64: Primitive.INT32,
    Primitive.FLOAT32: Primitive.FLOAT64,
    Primitive.FLOAT64: Primitive.FLOAT32,
    Primitive.STRING: Dictionary(Primitive.STRING),
    Dictionary(Primitive.STRING): Primitive.STRING,
}


def changed(random: Random, columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """Columns of a draft after one change, here or below."""
    place = random.randrange(len(columns))
    chosen = columns[place]
    taken = {it.name.lower() for it in columns}
    match random.choice(CHANGES):
        case "drop" if len(columns) > 1:
            return (*columns[:place], *columns[place + 1 :])
        case "add":
            return (*columns, column(random, name(random, taken, simple=True), 2))
        case "order":
            return tuple(random.sample(columns, len(columns)))
        case "below" if children(chosen.type):
            new = with_children(chosen.type, changed_below(random, chosen.type))
            return (*columns[:place], replace(chosen, type=new), *columns[place + 1 :])
        case "rename":
            new_column = replace(chosen, name=name(random, taken, simple=True), renamed_from=chosen.name)
        case change:
            new_column = changed_column(random, chosen, change)
    return (*columns[:place], new_column, *columns[place + 1 :])


def changed_below(random: Random, column_type: ColumnType) -> tuple[Column, ...]:
    match column_type:
        case ListOf(element):
            return (changed_in_place(random, element),)
        case MapOf(key, item):
            return (key, changed_in_place(random, item))
        case _:
            return changed(random, children(column_type))


def changed_in_place(random: Random, element: Column) -> Column:
    if children(element.type) and random.random() < 0.7:
        return replace(element, type=with_children(element.type, changed_below(random, element.type)))
    return replace(changed_column(random, element, random.choice(CHANGES)), default=None)


def changed_column(random: Random, chosen: Column, change: str) -> Column:
    match change, chosen.type:
        case "type", _:
            return replace(chosen, type=leaf_type(random), default=None)
        case "nullable", _:
            return replace(chosen, nullable=not chosen.nullable)
        case "default", found:
            return replace(chosen, default=None if chosen.default else default(random, found, 1))
        case "widen", Decimal(precision, scale) if chosen.default is None:
            return replace(chosen, type=Decimal(min(38, precision + 3), scale))
        case "widen", found if chosen.default is None:
            return replace(chosen, type=WIDER.get(found, found))
        case _:
            return replace(chosen, doc=chosen.doc + "x")


def chain(random: Random, compatibility: Compatibility) -> list[TopicSchema]:
    """Versions of one topic; changes that the policy forbids are refused with a sentence."""
    versions = [first_version(draft(random, depth=3, simple=True))]
    for _ in range(random.randint(2, 8)):
        current = versions[-1]
        changes = SchemaDraft(changed(random, draft_of(current).columns))
        try:
            following = next_version(current, changes, compatibility)
        except TidemarkError as error:
            check_refusal(error, current)
        else:
            assert from_text(to_text(following)) == following
            if following is not current:
                versions.append(following)
    return versions


def check_refusal(error: TidemarkError, current: TopicSchema) -> None:
    assert error.code is ErrorCode.INCOMPATIBLE_SCHEMA, error
    versions = (error.metadata["version"], error.metadata["next_version"])
    assert versions == (str(current.version), str(current.version + 1))
    assert f"version {versions[1]} cannot follow version {versions[0]}" in error.message
    assert error.metadata["column"] in error.message
    assert error.metadata["rule"] in error.message


def check_read(source: TopicSchema, target: TopicSchema, random: Random) -> None:
    found = rows(random, source)
    before, after = random.randrange(3), random.randrange(3)
    padded = batch(source, [*found[:1] * before, *found, *found[:1] * after]).slice(before, len(found))
    projection = Projection(source, target, dictionaries=False)
    assert projection.arrow_schema.equals(arrow_schema(target))
    made = projection.apply(pruned_batch(source, projection.column_ids, padded))
    made.validate(full=True)
    assert made.schema.equals(projection.arrow_schema)
    assert made.to_pylist() == projected(source, target.columns, found)
    assert not null_in_column_that_is_not_null(target.columns, made.to_pylist())


@pytest.mark.parametrize("compatibility", Compatibility)
def test_promised_readers_can_read_each_version(compatibility: Compatibility) -> None:
    reads = []

    @settings(max_examples=60, deadline=None)
    @given(RANDOMS)
    def check(random: Random) -> None:
        for old, new in combinations(chain(random, compatibility), 2):
            if compatibility.backward:
                reads.append(old)
                check_read(old, new, random)
            if compatibility.forward:
                reads.append(new)
                check_read(new, old, random)

    check()
    assert compatibility is Compatibility.NONE or len(reads) > 100


@settings(max_examples=60, deadline=None)
@given(RANDOMS)
def test_ids_are_never_used_twice(random: Random) -> None:
    for current, following in pairwise(chain(random, Compatibility.NONE)):
        before = {it.id for _, it in walk(current.columns)}
        for _, it in walk(following.columns):
            assert it.id in before or current.last_column_id < it.id <= following.last_column_id
        assert following.key == current.key
        assert following.event_time == current.event_time
        assert differences(current, following)
        assert not differences(following, following)
