# SPDX-License-Identifier: Apache-2.0
"""Chains of random changes: what a policy allows, the readers that it promises can read."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tidemark.core.schemas.arrow_types import arrow_schema, pruned
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

from tests.unit.core.schemas.drafts import LEAVES, SIMPLE_NAMES, column, defaults, drafts
from tests.unit.core.schemas.rows import batch, null_in_column_that_is_not_null, projected, rows

CHANGES = st.sampled_from(["type", "widen", "nullable", "default", "rename", "drop", "add", "order", "doc", "below"])
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


@st.composite
def changed(draw: st.DrawFn, columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """Columns of a draft after one change, here or below."""
    place = draw(st.integers(0, len(columns) - 1))
    chosen = columns[place]
    names = SIMPLE_NAMES.filter(lambda name: name not in {it.name.lower() for it in columns})
    match draw(CHANGES):
        case "drop" if len(columns) > 1:
            return (*columns[:place], *columns[place + 1 :])
        case "add":
            return (*columns, draw(column(draw(names), SIMPLE_NAMES, 2)))
        case "order":
            return tuple(draw(st.permutations(columns)))
        case "below" if children(chosen.type):
            new = with_children(chosen.type, draw(changed_below(chosen.type)))
            return (*columns[:place], replace(chosen, type=new), *columns[place + 1 :])
        case "rename":
            new_column = replace(chosen, name=draw(names), renamed_from=chosen.name)
        case change:
            new_column = draw(changed_column(chosen, change))
    return (*columns[:place], new_column, *columns[place + 1 :])


@st.composite
def changed_below(draw: st.DrawFn, column_type: ColumnType) -> tuple[Column, ...]:
    match column_type:
        case ListOf(element):
            return (draw(changed_in_place(element)),)
        case MapOf(key, value):
            return (key, draw(changed_in_place(value)))
        case _:
            return draw(changed(children(column_type)))


@st.composite
def changed_in_place(draw: st.DrawFn, element: Column) -> Column:
    if children(element.type) and draw(st.booleans()):
        return replace(element, type=with_children(element.type, draw(changed_below(element.type))))
    return replace(draw(changed_column(element, draw(CHANGES))), default=None)


@st.composite
def changed_column(draw: st.DrawFn, chosen: Column, change: str) -> Column:
    match change, chosen.type:
        case "type", _:
            return replace(chosen, type=draw(LEAVES), default=None)
        case "nullable", _:
            return replace(chosen, nullable=not chosen.nullable)
        case "default", found:
            return replace(chosen, default=None if chosen.default else draw(defaults(found)))
        case "widen", Decimal(precision, scale) if chosen.default is None:
            return replace(chosen, type=Decimal(min(38, precision + 3), scale))
        case "widen", found if chosen.default is None:
            return replace(chosen, type=WIDER.get(found, found))
        case _:
            return replace(chosen, doc=chosen.doc + "x")


@st.composite
def chains(draw: st.DrawFn, compatibility: Compatibility) -> list[TopicSchema]:
    """Versions of one topic; changes that the policy forbids are refused with a sentence."""
    versions = [first_version(draw(drafts(SIMPLE_NAMES, depth=2)))]
    for _ in range(draw(st.integers(1, 5))):
        current = versions[-1]
        draft = draft_of(current)
        draft = SchemaDraft(draw(changed(draft.columns)))
        try:
            following = next_version(current, draft, compatibility)
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


def check_read(source: TopicSchema, target: TopicSchema, data: st.DataObject) -> None:
    found = data.draw(rows(source))
    whole = batch(source, found)
    before, after = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))
    padded = batch(source, [*found[:1] * before, *found, *found[:1] * after])
    for sliced in (whole, padded.slice(before, len(found))):
        projection = Projection(source, target, dictionaries=False)
        assert projection.arrow_schema.equals(arrow_schema(target))
        made = projection.apply(pruned_rows(sliced, source, projection.column_ids))
        made.validate(full=True)
        assert made.schema.equals(projection.arrow_schema)
        assert made.to_pylist() == projected(source, target.columns, found)
        assert not null_in_column_that_is_not_null(target.columns, made.to_pylist())


def pruned_rows(whole: pa.RecordBatch, schema: TopicSchema, ids: tuple[int, ...]) -> pa.RecordBatch:
    """The rows without the columns, nested ones too, that are not fetched."""
    target = pruned(schema, ids)
    return pa.RecordBatch.from_arrays(
        [_pruned_array(whole.column(field.name), field.type) for field in target], schema=target
    )


def _pruned_array(array: pa.Array, kept: pa.DataType) -> pa.Array:
    return array if array.type.equals(kept) else pa.array(array.to_pylist(), kept)


@pytest.mark.parametrize("compatibility", Compatibility)
def test_promised_readers_can_read_each_version(compatibility: Compatibility) -> None:
    reads = []

    @settings(max_examples=25, suppress_health_check=list(HealthCheck), deadline=None)
    @given(chains(compatibility), st.data())
    def check(versions: list[TopicSchema], data: st.DataObject) -> None:
        for old, new in combinations(versions, 2):
            if compatibility.backward:
                reads.append(old)
                check_read(old, new, data)
            if compatibility.forward:
                reads.append(new)
                check_read(new, old, data)

    check()
    assert compatibility is Compatibility.NONE or len(reads) > 10


@settings(max_examples=30, suppress_health_check=list(HealthCheck), deadline=None)
@given(chains(Compatibility.NONE))
def test_ids_are_never_used_twice(versions: list[TopicSchema]) -> None:
    for current, following in pairwise(versions):
        before = {it.id for _, it in walk(current.columns)}
        for _, it in walk(following.columns):
            assert it.id in before or current.last_column_id < it.id <= following.last_column_id
        assert following.key == current.key
        assert following.event_time == current.event_time
        assert differences(current, following)
        assert not differences(following, following)
