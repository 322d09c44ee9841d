"""Readers as Spark makes and calls them, but in this process: a test of brokers need not wait for Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
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


def schema_of(options: dict[str, str]) -> StructType:
    """The schema of a read of bytes."""
    return StructType([StructField(name, TYPES[name]) for name in parse_schema_options(options).names])


def batch_reader(options: dict[str, str]) -> DataSourceReader:
    return TidemarkDataSource(options).reader(schema_of(options))


def stream_reader(options: dict[str, str]) -> DataSourceStreamReader:
    return TidemarkDataSource(options).streamReader(schema_of(options))


def next_end(reader: DataSourceStreamReader, start: dict[str, Any], limit: ReadLimit | None = None) -> dict[str, Any]:
    """The end of the next micro-batch, through the text that Spark keeps."""
    end: dict[str, Any] = json.loads(json.dumps(reader.latestOffset(start, limit or ReadAllAvailable())))
    return end


def batches(reader: DataSourceReader | DataSourceStreamReader, partitions: Any) -> Iterator[pa.RecordBatch]:
    """What the tasks give, each with a reader that came to it as Spark sends it."""
    for partition in partitions:
        yield from pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(partition)))


def places(reader: DataSourceReader | DataSourceStreamReader, partitions: Any) -> list[Place]:
    """Topic, partition and offset of each row."""
    found: list[Place] = []
    for batch in batches(reader, partitions):
        columns = [batch.column(name).to_pylist() for name in ("topic", "partition", "offset")]
        found += zip(*columns, strict=True)
    return found
