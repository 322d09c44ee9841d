# SPDX-License-Identifier: Apache-2.0
"""Options and rows of the Spark sink; pure, no Spark session."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    Row,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from tidemark.record.schema import SCHEMA
from tidemark_spark.sink import writer
from tidemark_spark.sink.compat import batches_of_rows
from tidemark_spark.sink.options import check_columns, parse_write_options
from tidemark_spark.sink.rows import destined
from tidemark_spark.sink.writer import TidemarkCommitMessage, Written, summary

BOOTSTRAP = {"tidemark.bootstrap": "127.0.0.1:9192"}
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
NOW_US = 1_700_000_000_000_000


def schema(**columns: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def test_options_are_kafkas_and_are_read_in_any_case_and_with_either_prefix() -> None:
    options = parse_write_options(
        {**BOOTSTRAP, "Topic": "rows", "tidemark.ACKS": "-1", "kafka.batch.size": "65536", "checkpointLocation": "/x"}
    )
    assert (options.bootstrap, options.topic) == ("127.0.0.1:9192", "rows")
    assert options.settings == {"acks": "all", "batch_bytes": 65536, "delivery_timeout_ms": 120_000}


def test_the_address_may_have_the_name_that_it_has_for_sparks_kafka_sink() -> None:
    options = parse_write_options({"kafka.bootstrap.servers": "127.0.0.1:9192", "kafka.acks": "all", "topic": "rows"})
    assert (options.bootstrap, options.topic) == ("127.0.0.1:9192", "rows")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "'tidemark.bootstrap' is missing"),
        ({**BOOTSTRAP, "topics": "rows"}, "no option 'topics' for writes; did you mean 'topic'?"),
        ({"tidemark.bootstap": "h:1", "topic": "rows"}, "did you mean 'tidemark.bootstrap'?"),
        ({**BOOTSTRAP, "x": "y"}, "no option 'x' for writes; it has deadlineMs, tidemark.acks, "),
        ({**BOOTSTRAP, "topic": " "}, "'topic' names no topic"),
        ({**BOOTSTRAP, "tidemark.batch.size": "64k"}, "'tidemark.batch.size' is '64k'; expected a whole number"),
        ({**BOOTSTRAP, "kafka.transactional.id": "t"}, "no option 'kafka.transactional.id'"),
        ({**BOOTSTRAP, "kafka.linger.ms": "5"}, "no option 'kafka.linger.ms' for writes: it configures Kafka's client"),
        ({**BOOTSTRAP, "tidemark.enable.idempotence": "yes"}, "expected true or false"),
        ({"tidemark.bootstrap": "localhost"}, "option 'tidemark.bootstrap': 'localhost' is not host:port"),
        ({**BOOTSTRAP, "kafka.bootstrap.servers": "other:9092"}, "name different brokers"),
        ({**BOOTSTRAP, "deadlineMs": "0"}, "'deadlineMs' is '0'; expected a whole number from 1"),
        (
            {**BOOTSTRAP, "kafka.compression.type": "gzip"},
            "option 'kafka.compression.type' is 'gzip': expected none, lz4",
        ),
        ({**BOOTSTRAP, "kafka.acks": "2"}, "option 'kafka.acks' is '2': expected 0, 1 or 'all'"),
        ({**BOOTSTRAP, "tidemark.max.in.flight.requests.per.connection": "0"}, "connection' is 0: expected 1 to 10"),
        ({**BOOTSTRAP, "tidemark.batch.size": "0"}, "option 'tidemark.batch.size' is 0: expected 1 to"),
        ({**BOOTSTRAP, "kafka.acks": "1", "kafka.enable.idempotence": "true"}, "idempotence needs acks='all', not '1'"),
        (
            {**BOOTSTRAP, "tidemark.acks": "all", "kafka.acks": "0"},
            "options 'tidemark.acks' and 'kafka.acks' contradict one another",
        ),
    ],
)
def test_a_wrong_option_is_refused_with_a_suggestion(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        parse_write_options(options)


def test_every_column_of_a_read_may_be_written_again() -> None:
    header = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
    read = schema(
        key=BinaryType(),
        value=BinaryType(),
        topic=StringType(),
        partition=IntegerType(),
        offset=LongType(),
        timestamp=TimestampType(),
        timestampType=IntegerType(),
        headers=header,
    )
    check_columns(read, parse_write_options(BOOTSTRAP))


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"key": StringType(), "topic": StringType()}, "needs the column 'value', string or binary; there are key"),
        ({"value": StringType()}, "needs the option 'topic' or a column 'topic'"),
        ({"value": LongType(), "topic": StringType()}, "column 'value' is bigint; expected string or binary"),
        (
            {"value": StringType(), "topic": StringType(), "partition": LongType()},
            "column 'partition' is bigint; expected int",
        ),
        ({"value": StringType(), "topic": BinaryType()}, "column 'topic' is binary; expected string"),
        (
            {"value": StringType(), "topic": StringType(), "headers": ArrayType(StringType())},
            "column 'headers' is array<string>; expected array<struct<key:string,value:binary>>",
        ),
    ],
)
def test_a_column_that_does_not_fit_is_refused_by_name(columns: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        check_columns(schema(**columns), parse_write_options(BOOTSTRAP))


ROW = st.tuples(
    st.sampled_from(["north", "south", "east"]),
    st.none() | st.integers(0, 3),
    st.none() | st.binary(max_size=4),
    st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=3) | st.none(),
    st.none() | st.integers(0, 10**15),
)


def batch_of(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    headers = [
        None if pairs is None else [{"key": key, "value": value} for key, value in pairs] for _, _, _, pairs, _ in rows
    ]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([row[0] for row in rows], pa.string()),
            pa.array([row[1] for row in rows], pa.int32()),
            pa.array([row[2] for row in rows], pa.binary()),
            pa.array([str(index) for index in range(len(rows))], pa.string()),
            pa.array(headers, HEADERS),
            pa.array([row[4] for row in rows], pa.timestamp("us", tz="Europe/Berlin")),
            pa.array(range(len(rows)), pa.int64()),
        ],
        names=["topic", "partition", "key", "value", "headers", "timestamp", "offset"],
    )


@settings(deadline=None)
@given(rows=st.lists(ROW, min_size=1, max_size=40), cut=st.integers(0, 40))
def test_every_row_is_written_once_to_its_partition_in_order_and_unchanged(
    rows: list[tuple[Any, ...]], cut: int
) -> None:
    whole = batch_of(rows)
    parts = [part for part in (whole.slice(0, cut), whole.slice(cut)) if part.num_rows]
    found: dict[int, tuple[Any, ...]] = {}
    for topic, partition, table in destined(parts, None, NOW_US):
        assert table.schema == SCHEMA
        table.validate(full=True)
        numbers = [int(value) for value in table.column("value").to_pylist()]
        assert numbers == sorted(numbers)
        stamps = table.column("timestamp").cast(pa.int64()).to_pylist()
        keys, headers = table.column("key").to_pylist(), table.column("headers").to_pylist()
        for place, number in enumerate(numbers):
            found[number] = (topic, partition, keys[place], headers[place], stamps[place])
    assert found == {
        index: (topic, partition, key, headers, NOW_US if stamp is None else stamp)
        for index, (topic, partition, key, headers, stamp) in enumerate(rows)
    }


def test_the_option_topic_goes_before_the_column_even_where_that_is_null() -> None:
    batch = pa.record_batch({"value": ["a", "b"], "topic": pa.array([None, "south"], pa.string())})
    found = list(destined([batch], "north", NOW_US))
    assert [(part.topic, part.partition, part.rows.num_rows) for part in found] == [("north", None, 2)]


def test_a_null_topic_is_refused_with_how_many_rows_have_it() -> None:
    batch = pa.record_batch({"value": ["a", "b"], "topic": pa.array([None, "south"], pa.string())})
    with pytest.raises(ValueError, match="column 'topic' is null in 1 of 2 rows"):
        list(destined([batch], None, NOW_US))


@pytest.mark.parametrize("headers", [[[{"key": None, "value": b"x"}]], [[None]]])
def test_a_header_without_a_name_is_refused(headers: list[Any]) -> None:
    batch = pa.record_batch({"value": pa.array(["a"]), "headers": pa.array(headers, HEADERS)})
    with pytest.raises(ValueError, match="a header or its key is null"):
        list(destined([batch], "north", NOW_US))


def test_rows_as_pyspark_4_0_gives_them_become_the_same_columns() -> None:
    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    wanted = schema(key=StringType(), value=BinaryType(), headers=ArrayType(header))
    rows = [Row("a", bytearray(b"1"), [Row(key="n", value=bytearray(b"x"))]), Row(None, None, None)]
    batches = list(batches_of_rows(iter(rows), wanted))
    assert [batch.to_pylist() for batch in batches] == [
        [
            {"key": "a", "value": b"1", "headers": [{"key": "n", "value": b"x"}]},
            {"key": None, "value": None, "headers": None},
        ]
    ]


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose clock does not show UTC."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("new_york")
def test_times_as_pyspark_4_0_gives_them_are_the_same_instants() -> None:
    """PySpark makes datetimes without a time zone of them, of the machine's time zone."""
    instants = [datetime(2026, month, 1, 12, tzinfo=UTC) for month in (1, 7)]
    local = [instant.astimezone().replace(tzinfo=None) for instant in instants]
    wanted = schema(timestamp=TimestampType(), clock=TimestampNTZType(), times=ArrayType(TimestampType()))
    (batch,) = batches_of_rows(iter([Row(one, one, [one]) for one in local]), wanted)
    assert batch.to_pylist() == [
        {"timestamp": instant, "clock": one, "times": [instant]} for instant, one in zip(instants, local, strict=True)
    ]


def test_the_commit_message_counts_rows_by_partition() -> None:
    one = TidemarkCommitMessage({("rows", 0): Written(10, 14, 3), ("rows", 1): Written(0, 0, 1)}, 40)
    two = TidemarkCommitMessage({("rows", 0): Written(11, 12, 2)}, 20)
    assert summary([one, None, two]) == (
        "2 tasks wrote 6 records, 60 bytes (rows-0: 5 in offsets 10 to 14, rows-1: 1 in offsets 0 to 0)"
    )


def test_the_sink_logs_to_the_logger_of_the_source() -> None:
    """Regression: its lines, such as those of failed writes, came from another logger at the level of the root."""
    assert writer._log.name == "tidemark.spark"
