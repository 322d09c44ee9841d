# SPDX-License-Identifier: Apache-2.0
"""A topic's rows as Spark's columns; pure, no Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import StructField, StructType
from tidemark.record.schema import HEADERS_TYPE, OFFSET_SCHEMA, TIMESTAMP_TYPE
from tidemark_spark.columns import parse_columns
from tidemark_spark.compat import arrow_schema
from tidemark_spark.ranges import OffsetRange
from tidemark_spark.rows import CREATE_TIME, LOG_APPEND_TIME, MERGED_ROWS, Rows, merged

from tests.spark.harness.reading import TYPES

RANGE = OffsetRange("flights", 4, 7, 10)


def convert(rows: pa.RecordBatch, *, timestamp_type: int = CREATE_TIME, **options: str) -> pa.RecordBatch:
    columns = parse_columns(options)
    schema = arrow_schema(StructType([StructField(name, TYPES[name]) for name in columns.names]))
    return Rows(RANGE, columns, schema, timestamp_type=timestamp_type).to_columns(rows)


def records() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([b"UA", None, b"AA"]),
            pa.array([b"1", b"2", None]),
            pa.array([1, 2, 3], pa.int64()).view(TIMESTAMP_TYPE),
            pa.array([[("a", b"x"), ("a", None)], None, []], HEADERS_TYPE),
            pa.array([7, 8, 9], pa.int64()),
        ],
        schema=OFFSET_SCHEMA,
    )


def test_every_record_becomes_a_row_with_its_place() -> None:
    columns = convert(records())
    assert columns.schema.names == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert columns.column("topic").to_pylist() == ["flights"] * 3
    assert columns.column("partition").to_pylist() == [4, 4, 4]
    assert columns.column("offset").to_pylist() == [7, 8, 9]
    assert columns.column("key").to_pylist() == [b"UA", None, b"AA"]
    assert columns.column("value").to_pylist() == [b"1", b"2", None]


def test_the_timestamp_type_has_kafkas_values() -> None:
    columns = convert(records(), timestamp_type=LOG_APPEND_TIME)
    assert columns.column("timestampType").to_pylist() == [1, 1, 1]


@pytest.mark.parametrize("skipped", [0, 1, 2, 3])
def test_headers_keep_order_repeats_and_absence(skipped: int) -> None:
    columns = convert(records().slice(skipped), includeheaders="true")
    expected = [[{"key": "a", "value": b"x"}, {"key": "a", "value": None}], None, []]
    assert columns.column("headers").to_pylist() == expected[skipped:]
    columns.validate(full=True)


def test_columns_are_those_asked_for_in_that_order() -> None:
    columns = convert(records(), columns="offset, value")
    assert columns.schema.names == ["offset", "value"]
    assert columns.column("value").to_pylist() == [b"1", b"2", None]


def test_empty_batches_become_an_empty_one() -> None:
    empty = records().slice(0, 0)
    assert [(batch.schema, batch.num_rows) for batch in merged([empty, empty])] == [(empty.schema, 0)]


def test_small_batches_become_large_ones_with_the_same_rows() -> None:
    batches = list(merged(records() for _ in range(10_000)))
    assert [batch.num_rows >= MERGED_ROWS for batch in batches] == [True, False]
    assert pa.Table.from_batches(batches).column("offset").to_pylist() == [7, 8, 9] * 10_000
