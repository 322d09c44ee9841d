# SPDX-License-Identifier: Apache-2.0
"""Rows of one version as rows of another; only some columns."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Sequence
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from tidemark.core.schemas.arrow_types import arrow_schema
from tidemark.core.schemas.column_paths import selected
from tidemark.core.schemas.compatibility import Compatibility
from tidemark.core.schemas.ddl import draft_from_ddl
from tidemark.core.schemas.evolution import first_version, next_version
from tidemark.core.schemas.model import Column, Primitive, SchemaDraft, StructOf, TopicSchema, walk
from tidemark.core.schemas.projection import Projection
from tidemark.model import ErrorCode, TidemarkError

from tests.refusals import raises_code
from tests.unit.core.schemas.drafts import RANDOMS, columns, default, draft, type_of
from tests.unit.core.schemas.rows import batch, projected, pruned_batch, rows

FLIGHTS = first_version(
    draft_from_ddl(
        "carrier STRING NOT NULL, delay INT, leg STRUCT<origin: STRING, miles: SMALLINT>, "
        "legs ARRAY<STRUCT<origin: STRING, miles: SMALLINT>>, fares MAP<STRING, STRUCT<eur: FLOAT>>"
    )
)
ROWS = [
    {
        "carrier": "IB",
        "delay": 5,
        "leg": {"origin": "MAD", "miles": 7},
        "legs": [{"origin": "MAD", "miles": 7}, None],
        "fares": [("Y", {"eur": 1.5})],
    },
    {"carrier": "BA", "delay": None, "leg": None, "legs": None, "fares": None},
]


def later(ddl: str, compatibility: Compatibility = Compatibility.BACKWARD) -> TopicSchema:
    return next_version(FLIGHTS, draft_from_ddl(ddl), compatibility)


def fetched(projection: Projection, found: Sequence[dict[str, object]] = ROWS) -> pa.RecordBatch:
    """The rows of FLIGHTS as a pruned fetch gives them."""
    return pruned_batch(FLIGHTS, projection.column_ids, batch(FLIGHTS, found))


def read(target: TopicSchema, *columns: str) -> list[dict[str, object]]:
    projection = Projection(FLIGHTS, target, columns or None)
    made = projection.apply(fetched(projection))
    made.validate(full=True)
    assert made.schema.equals(projection.arrow_schema)
    return made.to_pylist()


def names(schema: TopicSchema, projection: Projection) -> list[str]:
    return [".".join(path) for path, column in walk(schema.columns) if column.id in projection.column_ids]


def test_rows_of_the_same_version_pass_without_a_copy() -> None:
    projection = Projection(FLIGHTS, FLIGHTS)
    whole = batch(FLIGHTS, ROWS)
    made = projection.apply(whole)
    assert made.to_pylist() == ROWS
    addresses = [[buffer and buffer.address for buffer in column.buffers()] for column in made.columns]
    assert addresses == [[buffer and buffer.address for buffer in column.buffers()] for column in whole.columns]


def test_rows_of_an_earlier_version_are_renamed_widened_and_filled() -> None:
    target = later(
        "note STRING NOT NULL DEFAULT 'none', late BIGINT RENAMED FROM delay, carrier STRING NOT NULL, tail STRING, "
        "leg STRUCT<hub: STRING DEFAULT 'LHR', far: INT RENAMED FROM miles>, fares MAP<STRING, STRUCT<eur: DOUBLE>>"
    )
    assert read(target) == [
        {
            "note": "none",
            "late": 5,
            "carrier": "IB",
            "tail": None,
            "leg": {"hub": "LHR", "far": 7},
            "fares": [("Y", {"eur": 1.5})],
        },
        {"note": "none", "late": None, "carrier": "BA", "tail": None, "leg": None, "fares": None},
    ]
    assert names(FLIGHTS, Projection(FLIGHTS, target)) == ["carrier", "delay", "leg.miles", "fares"]


@pytest.mark.parametrize(
    ("columns", "asked", "first"),
    [
        (["delay", "carrier"], ["carrier", "delay"], {"carrier": "IB", "delay": 5}),
        (["leg.origin"], ["leg.origin"], {"leg": {"origin": "MAD"}}),
        (["leg", "leg.origin"], ["leg.origin", "leg.miles"], {"leg": {"origin": "MAD", "miles": 7}}),
        (["legs.miles"], ["legs.element.miles"], {"legs": [{"miles": 7}, None]}),
        (["legs.element.miles"], ["legs.element.miles"], {"legs": [{"miles": 7}, None]}),
        (["fares.value.eur"], ["fares"], {"fares": [("Y", {"eur": 1.5})]}),
        (["fares.key"], ["fares"], {"fares": [("Y", {"eur": 1.5})]}),
    ],
)
def test_columns_may_be_chosen_by_their_paths(columns: list[str], asked: list[str], first: dict[str, object]) -> None:
    assert names(FLIGHTS, Projection(FLIGHTS, FLIGHTS, columns)) == asked
    assert read(FLIGHTS, *columns)[0] == first


@pytest.mark.parametrize("path", ["", "nothing", "leg.", "leg.hub", "carrier.x", ".", "legs.element.x", "CARRIER"])
def test_a_path_that_names_no_column_is_refused(path: str) -> None:
    with raises_code(ErrorCode.INVALID_REQUEST, "version 1 of the schema has no column") as raised:
        Projection(FLIGHTS, FLIGHTS, ["carrier", path])
    assert "it has carrier, delay, leg, legs, fares" in raised.value.message


def test_names_may_have_dots() -> None:
    schema = first_version(draft_from_ddl("`a.b` INT, a STRUCT<b: STRING, c: INT>, `a.b.c` STRUCT<d: INT>, `x.` INT"))
    for path, expected in [("a.b", "a.b"), ("a.c", "a"), ("a.b.c.d", "a.b.c"), ("x.", "x.")]:
        assert [column.name for column in selected(schema, [path])] == [expected]


def test_the_number_of_rows_survives_without_columns() -> None:
    projection = Projection(FLIGHTS, FLIGHTS, [])
    assert len(projection.column_ids) == 1
    made = projection.apply(fetched(projection))
    assert (made.num_rows, made.num_columns) == (2, 0)


def test_columns_that_the_batch_lacks_alone_keep_the_number_of_rows() -> None:
    target = later("carrier STRING NOT NULL, x INT, leg STRUCT<hub: STRING>")
    assert read(target, "x") == [{"x": None}, {"x": None}]
    assert names(FLIGHTS, Projection(FLIGHTS, target, ["x"])) == ["leg.miles"]
    assert read(target, "leg") == [{"leg": {"hub": None}}, {"leg": None}]
    assert names(FLIGHTS, Projection(FLIGHTS, target, ["leg"])) == ["leg.miles"]
    assert read(target, "carrier", "leg") == [{"carrier": "IB", "leg": {"hub": None}}, {"carrier": "BA", "leg": None}]
    assert names(FLIGHTS, Projection(FLIGHTS, target, ["carrier", "leg"])) == ["carrier", "leg.miles"]


def test_a_column_that_got_another_id_is_not_read_under_its_old_one() -> None:
    columns = "carrier STRING NOT NULL, leg STRUCT<origin: STRING, miles: {0}>, fares MAP<STRING, STRUCT<eur: {1}>>"
    between = later(columns.format("STRING", "STRING"), Compatibility.NONE)
    target = next_version(between, draft_from_ddl(columns.format("SMALLINT", "FLOAT")), Compatibility.NONE)
    assert read(target, "leg", "fares")[0] == {"leg": {"origin": "MAD", "miles": None}, "fares": [("Y", {"eur": None})]}


@pytest.mark.parametrize("start", [0, 1, 2, 3, 9])
@pytest.mark.parametrize("rows_kept", [0, 1, 2, 5])
def test_a_slice_of_a_batch_is_read_as_its_rows(start: int, rows_kept: int) -> None:
    target = later(
        "carrier STRING NOT NULL, leg STRUCT<far: INT RENAMED FROM miles, hub: STRING DEFAULT 'LHR'>, "
        "legs ARRAY<STRUCT<miles: BIGINT>>, fares MAP<STRING, STRUCT<eur: DOUBLE>>"
    )
    projection = Projection(FLIGHTS, target)
    whole = fetched(projection, [*ROWS, *ROWS[:1] * 2, *ROWS] * 3)
    made = projection.apply(whole.slice(start, rows_kept))
    made.validate(full=True)
    assert made.to_pylist() == projection.apply(whole).to_pylist()[start : start + rows_kept]
    assert made.to_pylist() == projected(
        FLIGHTS, target.columns, ([*ROWS, *ROWS[:1] * 2, *ROWS] * 3)[start:][:rows_kept]
    )


def test_a_reader_that_cannot_read_a_version_gets_both_versions_and_the_column() -> None:
    target = later("carrier STRING NOT NULL, x INT NOT NULL, delay SMALLINT", Compatibility.FORWARD)
    with raises_code(ErrorCode.INCOMPATIBLE_SCHEMA) as raised:
        Projection(FLIGHTS, target)
    assert raised.value.message == (
        "a reader with version 2 of the schema cannot read a batch of version 1: column x: version 1 has no such "
        "column; in version 2 the column is not null and has no default; omit the column, or read with version 1"
    )
    with pytest.raises(TidemarkError, match="column delay: is int32 in version 1 and int16 in version 2"):
        Projection(FLIGHTS, target, ["delay"])
    assert read(target, "carrier") == [{"carrier": "IB"}, {"carrier": "BA"}]


def test_dictionaries_come_out_encoded_or_plain() -> None:
    target = later(
        "carrier DICTIONARY<STRING> NOT NULL, code DICTIONARY<STRING> DEFAULT 'x', tags ARRAY<DICTIONARY<STRING>>, "
        "leg STRUCT<origin: DICTIONARY<STRING>>"
    )
    projection = Projection(FLIGHTS, target)
    made = projection.apply(fetched(projection))
    made.validate(full=True)
    encoded = pa.dictionary(pa.int32(), pa.string())
    assert made.schema.types == [encoded, encoded, pa.list_(encoded), pa.struct([("origin", encoded)])]
    plain = Projection(FLIGHTS, target, dictionaries=False)
    assert plain.arrow_schema == arrow_schema(target)
    expected = [
        {"carrier": "IB", "code": "x", "tags": None, "leg": {"origin": "MAD"}},
        {"carrier": "BA", "code": "x", "tags": None, "leg": None},
    ]
    assert made.to_pylist() == expected
    assert plain.apply(fetched(plain)).to_pylist() == expected


@settings(max_examples=60, deadline=None)
@given(RANDOMS)
def test_any_columns_of_any_schema_can_be_read(random: Random) -> None:
    schema = first_version(draft(random))
    paths = [".".join(path) for path, _ in walk(schema.columns)]
    chosen = random.sample(paths, min(len(paths), random.randint(1, 3)))
    found = rows(random, schema)
    for dictionaries in (False, True):
        projection = Projection(schema, schema, chosen, dictionaries=dictionaries)
        made = projection.apply(pruned_batch(schema, projection.column_ids, batch(schema, found)))
        made.validate(full=True)
        assert made.to_pylist() == projected(schema, selected(schema, chosen), found)


@settings(max_examples=100, deadline=None)
@given(RANDOMS)
def test_any_default_fills_the_rows_that_lack_the_column(random: Random) -> None:
    column_type = type_of(random, 2)
    new = Column(0, "x", column_type, nullable=False, default=default(random, column_type, 1))
    old = Column(0, "a", Primitive.STRING)
    first = first_version(SchemaDraft((Column(0, "s", StructOf((old,))),)))
    if new.default is None:
        return
    target = next_version(first, SchemaDraft((Column(0, "s", StructOf((old, new))), new)), Compatibility.FULL)
    found = [{"s": {"a": "b"}}, {"s": None}][: random.randrange(3)]
    for dictionaries in (False, True):
        projection = Projection(first, target, dictionaries=dictionaries)
        made = projection.apply(batch(first, found))
        made.validate(full=True)
        assert made.to_pylist() == projected(first, target.columns, found)


@settings(max_examples=60, deadline=None)
@given(RANDOMS)
def test_a_missing_struct_has_no_null_where_parquet_takes_none(random: Random) -> None:
    inner = StructOf(columns(random, 3, simple=True))
    old = Column(0, "a", Primitive.STRING)
    first = first_version(SchemaDraft((old,)))
    target = next_version(first, SchemaDraft((old, Column(0, "s", inner))), Compatibility.FULL)
    found = [{"a": "b"}] * random.choice([0, 1, 9])
    for dictionaries in (False, True):
        made = Projection(first, target, dictionaries=dictionaries).apply(batch(first, found))
        made.validate(full=True)
        assert made.column(1).null_count == len(found)
        pq.write_table(pa.Table.from_batches([made]), io.BytesIO())


def test_a_projection_imports_no_pandas() -> None:
    code = """
import sys, decimal
import pyarrow as pa
from tidemark.core.schemas.ddl import draft_from_ddl
from tidemark.core.schemas.evolution import first_version
from tidemark.core.schemas.compatibility import Compatibility
from tidemark.core.schemas.evolution import next_version
from tidemark.core.schemas.projection import Projection
first = first_version(draft_from_ddl("a INT"))
ddl = "a BIGINT, b DICTIONARY<STRING> DEFAULT 'x', c DECIMAL(5,2) DEFAULT 1, d ARRAY<INT> DEFAULT ARRAY(), e DATE"
projection = Projection(first, next_version(first, draft_from_ddl(ddl), Compatibility.BACKWARD))
column = pa.Array.from_buffers(pa.int32(), 1, [None, pa.py_buffer(bytes(4))])
projection.apply(pa.RecordBatch.from_arrays([column], names=["a"]))
print("pandas" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_rows_of_another_schema_raise_an_assertion() -> None:
    with pytest.raises(AssertionError, match="is not carrier: string not null"):
        Projection(FLIGHTS, FLIGHTS).apply(pa.RecordBatch.from_pylist([{"a": 1}]))
