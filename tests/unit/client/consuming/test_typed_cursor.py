# SPDX-License-Identifier: Apache-2.0
"""A cursor of a typed topic waits for versions that it does not know, and fetches again when its columns change."""

from __future__ import annotations

import pyarrow as pa
from tidemark.client.consuming.partition_cursor import Cursor
from tidemark.client.producing.typed_format import TypedFormat
from tidemark.client.typed.batch_rows import BatchRows
from tidemark.core.schemas.compatibility import Compatibility
from tidemark.core.schemas.ddl import draft_from_ddl
from tidemark.core.schemas.evolution import first_version, next_version
from tidemark.core.schemas.model import TopicSchema
from tidemark.core.schemas.typed_layout import layout_of
from tidemark.model import ErrorCode, TopicPartition
from tidemark.record.typed.batch import prune

from tests.refusals import raises_code
from tests.unit.client.typed.samples import sealed

FIRST = first_version(draft_from_ddl("a INT, b STRING"))
SECOND = next_version(FIRST, draft_from_ddl("a BIGINT, b STRING, c INT DEFAULT 7"), Compatibility.BACKWARD)
OTHER = next_version(FIRST, draft_from_ddl("a INT, b STRING, c INT NOT NULL"), Compatibility.NONE)


def stored(schema: TopicSchema, table: pa.Table, base_offset: int) -> bytes:
    typed = TypedFormat("t", "id", schema)
    return sealed(typed, *typed.fit_table(table, None), base_offset=base_offset).data


def cursor_of(typed: BatchRows, position: int = 0) -> Cursor:
    return Cursor(TopicPartition("t", 0), position, topic_id="id", incarnation="i", typed=typed)


def test_a_batch_of_an_unknown_version_waits_until_the_version_is_known() -> None:
    typed = BatchRows("t", {1: FIRST}, ["a"])
    cursor = cursor_of(typed)
    assert cursor.take(stored(FIRST, pa.table({"a": [1]}), 0) + stored(SECOND, pa.table({"a": [2]}), 1))
    found = cursor.next_rows()
    assert found is not None
    assert found.to_pylist() == [{"a": 1}]
    assert found.schema.field("a").type == pa.int32()
    cursor.passed()
    assert cursor.has_rows
    assert cursor.next_rows() is None
    assert (cursor.wanted_version, cursor.has_rows, cursor.error, cursor.is_damaged) == (2, False, None, False)
    assert cursor.next_rows() is None
    typed.learn({1: FIRST, 2: SECOND})
    cursor.wanted_version = 0
    assert cursor.has_rows
    found = cursor.next_rows()
    assert found is not None
    assert found.to_pylist() == [{"a": 2}]
    assert found.schema.field("a").type == pa.int64()


def test_a_seek_forgets_the_unknown_version() -> None:
    cursor = cursor_of(BatchRows("t", {1: FIRST}))
    cursor.take(stored(SECOND, pa.table({"a": [2]}), 0))
    assert cursor.next_rows() is None
    cursor.seek(5)
    assert cursor.wanted_version == 0


def test_rows_before_the_position_are_left_out() -> None:
    cursor = cursor_of(BatchRows("t", {1: FIRST}, ["a", "_offset"]), position=12)
    cursor.take(stored(FIRST, pa.table({"a": [1, 2, 3, 4]}), 10))
    found = cursor.next_rows()
    assert found is not None
    assert found.to_pylist() == [{"a": 3, "_offset": 12}, {"a": 4, "_offset": 13}]


def test_a_version_that_the_reader_cannot_read_is_an_error_that_names_both() -> None:
    cursor = cursor_of(BatchRows("t", {1: FIRST, 2: OTHER}))
    cursor.take(stored(FIRST, pa.table({"a": [1]}), 0))
    with raises_code(
        ErrorCode.INCOMPATIBLE_SCHEMA, "topic t: a reader with version 2 of the schema cannot read a batch of version 1"
    ):
        cursor.next_rows()


def test_columns_of_all_versions_are_asked_for() -> None:
    typed = BatchRows("t", {1: FIRST, 2: SECOND}, ["c", "_offset"])
    assert 3 in typed.column_ids
    data = stored(FIRST, pa.table({"a": [1]}), 0)
    cursor = cursor_of(typed)
    cursor.take(prune(data, layout_of(FIRST), frozenset(cursor.column_ids)))
    found = cursor.next_rows()
    assert found is not None
    assert found.to_pylist() == [{"c": 7, "_offset": 0}]
