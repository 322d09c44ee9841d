# SPDX-License-Identifier: Apache-2.0
"""Readers as Spark makes and calls them, but in this process: a test of brokers need not wait for Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from tidemark.client import ConsumerRecord
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.client.records import records_of
from tidemark_spark import compat
from tidemark_spark.options import parse_schema_options
from tidemark_spark.source import TidemarkDataSource

TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}
Place = tuple[str, int, int]
needs_read_limits = pytest.mark.skipif(
    not compat.HAS_READ_LIMITS, reason="this PySpark gives a stream reader neither its start nor a limit; 4.2 does"
)
needs_pushed_filters = pytest.mark.skipif(
    not hasattr(DataSourceReader, "pushFilters"), reason="this PySpark pushes no filters down to a reader; 4.1 does"
)


def schema_of(options: dict[str, str]) -> StructType:
    """The schema of a read of bytes."""
    return StructType([StructField(name, TYPES[name]) for name in parse_schema_options(options).names])


def batch_reader(options: dict[str, str]) -> DataSourceReader:
    return TidemarkDataSource(options).reader(schema_of(options))


def stream_reader(options: dict[str, str]) -> DataSourceStreamReader:
    return TidemarkDataSource(options).streamReader(schema_of(options))


def at_most(count: int) -> Any:
    """The limit of a micro-batch, as Spark passes it."""
    return compat.read_limit(count, 0)


def at_least(count: int) -> Any:
    """The least size of a micro-batch, in the same way."""
    return compat.read_limit(None, count)


def next_end(reader: DataSourceStreamReader, start: dict[str, Any], limit: Any = None) -> dict[str, Any]:
    """The end of the next micro-batch, or of the first if there is no start; as JSON, like Spark's checkpoint."""
    told = (start, limit or compat.read_all()) if compat.HAS_READ_LIMITS else ()
    end: dict[str, Any] = json.loads(json.dumps(reader.latestOffset(*told)))
    return end


def planned(reader: DataSourceStreamReader, start: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The tasks of the micro-batch after a start, and its end; both are known by then in every version of PySpark."""
    end = next_end(reader, start)
    return reader.partitions(start, end), end


def batches(reader: DataSourceReader | DataSourceStreamReader, partitions: Any) -> Iterator[pa.RecordBatch]:
    """The batches of the tasks; each task gets its reader in the form in which Spark sends it."""
    for partition in partitions:
        yield from pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(partition)))


def places(reader: DataSourceReader | DataSourceStreamReader, partitions: Any) -> list[Place]:
    """Topic, partition and offset of each row."""
    found: list[Place] = []
    for batch in batches(reader, partitions):
        columns = [batch.column(name).to_pylist() for name in ("topic", "partition", "offset")]
        found += zip(*columns, strict=True)
    return found


def committed_records(bootstrap: str, topic: str) -> list[ConsumerRecord]:
    """All committed records of a topic, by partition and offset."""
    found: list[ConsumerRecord] = []
    with RangeReader(bootstrap, deadline_s=30.0, isolation_level="read_committed") as reader:
        partitions = sorted(reader.topics([topic])[topic].partitions)
        for index, held in reader.bounds(topic, partitions).items():
            for rows in reader.read(topic, index, held.earliest, held.latest):
                found += records_of(topic, index, rows)
    return found
