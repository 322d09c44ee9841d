# SPDX-License-Identifier: Apache-2.0
"""Arrow types in and out, and the nodes of a batch."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from tidemark.core.schemas.arrow_types import arrow_field, arrow_schema, draft_from_arrow, node_ids, pruned
from tidemark.core.schemas.ddl import draft_from_ddl
from tidemark.core.schemas.evolution import first_version
from tidemark.core.schemas.model import (
    Column,
    Decimal,
    Dictionary,
    ListOf,
    Primitive,
    SchemaDraft,
    TopicSchema,
    kept_columns,
    walk,
)
from tidemark.core.schemas.type_names import SPARK, type_name
from tidemark.core.schemas.typed_layout import layout_of
from tidemark.model import ErrorCode, TidemarkError

from tests.refusals import raises_code
from tests.unit.core.schemas.drafts import RANDOMS, draft, schemas
from tests.unit.core.schemas.test_model import FLIGHTS


class Duration2(pa.ExtensionType):
    def __init__(self) -> None:
        super().__init__(pa.int64(), "tidemark.test")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""


def test_the_arrow_schema_of_flights() -> None:
    leg = pa.struct([("origin", pa.string()), ("miles", pa.int32())])
    assert arrow_schema(FLIGHTS) == pa.schema(
        [
            pa.field("carrier", pa.string(), nullable=False),
            pa.field("legs", pa.list_(leg)),
            pa.field("fares", pa.map_(pa.string(), pa.int32())),
        ]
    )
    assert node_ids(FLIGHTS) == (1, 2, 3, 4, 5, 6, 6, 7, 8)


def types_of(draft: SchemaDraft) -> list[object]:
    """Docs, defaults and dictionaries of a draft do not pass through Arrow."""
    return [(path, arrow_field(column), column.nullable) for path, column in walk(draft.columns)]


@settings(max_examples=100)
@given(schemas())
def test_any_schema_comes_back_from_its_arrow_schema(schema: TopicSchema) -> None:
    arrow = arrow_schema(schema)
    again = draft_from_arrow(arrow)
    assert arrow_schema(first_version(again)).equals(arrow)
    dictionaries = pa.schema([arrow_field(column, dictionaries=True) for column in schema.columns])
    assert types_of(draft_from_arrow(dictionaries)) == types_of(SchemaDraft(schema.columns))


@settings(max_examples=60)
@given(schemas())
def test_each_node_of_a_batch_has_its_columns_id(schema: TopicSchema) -> None:
    assert list(node_ids(schema)) == ids_of(arrow_schema(schema), {path: it.id for path, it in walk(schema.columns)})


def ids_of(arrow: pa.Schema, ids: dict[tuple[str, ...], int]) -> list[int]:
    """Ids by the names of Arrow's own tree of fields."""
    found: list[int] = []

    def visit(data_type: pa.DataType, path: tuple[str, ...]) -> None:
        found.append(ids[path])
        if pa.types.is_map(data_type):
            found.append(ids[path])
            visit(data_type.key_type, (*path, "key"))
            visit(data_type.item_type, (*path, "value"))
        elif pa.types.is_list(data_type):
            visit(data_type.value_type, (*path, "element"))
        elif pa.types.is_struct(data_type):
            for index in range(data_type.num_fields):
                field = data_type.field(index)
                visit(field.type, (*path, field.name))

    for field in arrow:
        visit(field.type, (field.name,))
    return found


@settings(max_examples=60)
@given(RANDOMS)
def test_a_pruned_schema_has_the_columns_that_are_named(random: Random) -> None:
    schema = first_version(draft(random))
    ids = [it.id for _, it in walk(schema.columns)]
    assert pruned(schema, ids) == arrow_schema(schema)
    assert len(pruned(schema, [])) == 0
    wanted = set(random.sample(ids, random.randrange(len(ids))))
    part = pruned(schema, wanted)
    assert [field.name for field in part] == [
        column.name for column in schema.columns if wanted & {it.id for _, it in walk([column])}
    ]
    pa.RecordBatch.from_pylist([], schema=part).validate(full=True)
    if wanted:  # the broker prunes the nodes of a batch by rules of its own
        remains = layout_of(schema).pruned(0, frozenset(wanted)).arrangement
        assert remains.schema.equals(part)
        kept = {it.id for _, it in walk(kept_columns(schema.columns, wanted))}
        assert [it for it in node_ids(schema) if it in kept] == list(remains.node_ids)


def test_a_pruned_schema_keeps_the_way_to_a_nested_column() -> None:
    assert pruned(FLIGHTS, {5}) == pa.schema([("legs", pa.list_(pa.struct([("miles", pa.int32())])))])
    assert pruned(FLIGHTS, {8, 999}) == pa.schema([("fares", pa.map_(pa.string(), pa.int32()))])


@pytest.mark.parametrize(
    ("arrow", "expected"),
    [
        (pa.large_string(), Primitive.STRING),
        (pa.string_view(), Primitive.STRING),
        (pa.large_binary(), Primitive.BINARY),
        (pa.binary_view(), Primitive.BINARY),
        (pa.binary(16), Primitive.BINARY),
        (pa.date64(), Primitive.DATE),
        (pa.timestamp("ns"), Primitive.TIMESTAMP_NTZ),
        (pa.timestamp("s", "Europe/Madrid"), Primitive.TIMESTAMP),
        (pa.decimal32(5, 2), Decimal(5, 2)),
        (pa.decimal64(12, 2), Decimal(12, 2)),
        (pa.dictionary(pa.int8(), pa.string()), Dictionary(Primitive.STRING)),
        (pa.dictionary(pa.int8(), pa.large_string()), Dictionary(Primitive.STRING)),
        (pa.dictionary(pa.int8(), pa.bool_()), Primitive.BOOL),
        (pa.large_list(pa.int8()), ListOf(Column(0, "element", Primitive.INT8))),
        (pa.list_(pa.int8(), 3), ListOf(Column(0, "element", Primitive.INT8))),
        (pa.list_view(pa.int8()), ListOf(Column(0, "element", Primitive.INT8))),
    ],
)
def test_types_that_hold_the_same_values_are_accepted(arrow: pa.DataType, expected: object) -> None:
    assert draft_from_arrow(pa.schema([("a", arrow)])).columns[0].type == expected


@pytest.mark.parametrize(
    ("arrow", "instead"),
    [
        (pa.uint8(), "use int16"),
        (pa.uint16(), "use int32"),
        (pa.uint32(), "use int64"),
        (pa.uint64(), "use decimal(20,0)"),
        (pa.float16(), "use float32"),
        (pa.null(), "drop the column"),
        (pa.time32("s"), "use int64 with the microseconds"),
        (pa.time64("us"), "use int64 with the microseconds"),
        (pa.duration("us"), "use int64 with the unit"),
        (pa.month_day_nano_interval(), "use int64 with the unit"),
        (pa.decimal256(50, 2), "at most 38 digits"),
        (pa.sparse_union([pa.field("x", pa.int8())]), "use a struct"),
        (pa.dense_union([pa.field("x", pa.int8())]), "use a struct"),
        (pa.run_end_encoded(pa.int32(), pa.string()), "use the type of its values"),
        (pa.uuid(), "use its storage type, fixed_size_binary[16]"),
        (Duration2(), "use its storage type, int64"),
    ],
    ids=str,
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_type_that_spark_lacks_is_refused(arrow: pa.DataType, instead: str, wrapped: bool) -> None:
    whole = pa.struct([("b", pa.list_(arrow))]) if wrapped else arrow
    with raises_code(ErrorCode.INVALID_SCHEMA) as raised:
        draft_from_arrow(pa.schema([("ok", pa.int8()), ("a", whole)]))
    assert raised.value.metadata == {"column": "a.b.element" if wrapped else "a"}
    assert instead in raised.value.message


def test_a_dictionary_of_structs_is_refused() -> None:
    arrow = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array([{"x": 1}])).type
    with pytest.raises(TidemarkError, match="a type without columns"):
        draft_from_arrow(pa.schema([("a", arrow)]))


def test_a_decimal_with_a_negative_scale_is_refused() -> None:
    with pytest.raises(TidemarkError, match="a scale from 0"):
        draft_from_arrow(pa.schema([("a", pa.decimal128(5, -2))]))


def test_an_arrow_type_of_depth_100_is_refused() -> None:
    deep = pa.int8()
    for _ in range(100):
        deep = pa.list_(deep)
    with pytest.raises(TidemarkError, match="nest at most 16 deep"):
        draft_from_arrow(pa.schema([("a", deep)]))


def test_an_arrow_schema_with_a_name_twice_is_refused() -> None:
    with pytest.raises(TidemarkError, match="another column is named a"):
        draft_from_arrow(pa.schema([("a", pa.int8()), ("a", pa.int8())]))


def test_an_arrow_schema_of_5000_columns_is_refused() -> None:
    with pytest.raises(TidemarkError, match="at most 1000 columns"):
        draft_from_arrow(pa.schema([(f"c{index}", pa.int8()) for index in range(5_000)]))


def test_the_page_lists_the_names_of_each_type() -> None:
    page = (Path(__file__).parents[4] / "docs" / "schemas.md").read_text()
    rows = re.findall(r"^\| `([^|`]*)` \| `([A-Z][^|`]*)` \| `([^|`]*)` \|", page, re.MULTILINE)
    assert len(rows) == len(Primitive) + 5
    for name, in_spark, in_arrow in rows:
        (column,) = draft_from_ddl(f"a {name}").columns
        assert (type_name(column.type), type_name(column.type, SPARK)) == (name, in_spark)
        assert str(arrow_field(column, dictionaries=True).type).startswith(in_arrow)
