"""The data source: schema, options in, Arrow out. Batch read; every step that computes lives in options and ranges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter, InputPartition
from pyspark.sql.types import StructType

from tidemark_spark import rows, topics
from tidemark_spark.options import ReadOptions, include_headers, parse_options
from tidemark_spark.ranges import OffsetRange, plan_ranges
from tidemark_spark.writer import TidemarkStreamWriter, open_stream_writer, open_writer

NAME = "tidemark"

_SCHEMA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
_HEADERS = ", headers array<struct<key: string, value: binary>>"


def register(spark: SparkSession) -> None:
    """Make format("tidemark") known to a session that did not find `pyspark_tidemark` by itself."""
    spark.dataSource.register(TidemarkDataSource)


@dataclass(frozen=True)
class TidemarkInputPartition(InputPartition):
    """What one task reads: stateless, so that a retried task reads the same."""

    offsets: OffsetRange
    topic_id: str
    incarnation: str
    timestamp_type: int


class TidemarkDataSource(DataSource):
    """Topics as a table with the columns of Spark's Kafka source.

    Options: `tidemark.bootstrap`; `subscribe` or `assign`; `startingOffsets` (earliest, or JSON by topic and
    partition), `endingOffsets` (latest, or JSON); `minPartitions`; `includeHeaders`; `deadlineMs`.
    """

    @classmethod
    def name(cls) -> str:
        """What format() takes."""
        return NAME

    def schema(self) -> str:
        """Columns, named and typed as those of Spark's Kafka source."""
        return _SCHEMA + (_HEADERS if include_headers(self.options) else "")

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader; the options are checked here, on the driver."""
        return TidemarkReader(parse_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch writer; see docs/spark-writing.md for its options and columns."""
        return open_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TidemarkStreamWriter:  # noqa: N802 - Spark's name
        """A writer of micro-batches, with the same options and columns."""
        return open_stream_writer(self.options, schema, overwrite=overwrite)


class TidemarkReader(DataSourceReader):
    """Plans ranges once, on the driver; every task then reads its range and nothing else."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """One for each range; the ends are the high watermarks now."""
        described = topics.describe(self._options)
        planned = plan_ranges(self._options, {name: topic.bounds for name, topic in described.items()})
        return [_task(offsets, described[offsets.topic]) for offsets in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range, in the order of their offsets."""
        # Where nothing is planned, Spark makes up one task, with a bare partition.
        if type(partition) is InputPartition and partition.value is None:
            return
        assert isinstance(partition, TidemarkInputPartition)
        for records in topics.read(
            self._options, partition.offsets, topic_id=partition.topic_id, incarnation=partition.incarnation
        ):
            yield rows.to_columns(
                records,
                partition.offsets,
                timestamp_type=partition.timestamp_type,
                with_headers=self._options.include_headers,
            )


def _task(offsets: OffsetRange, topic: topics.TopicFacts) -> TidemarkInputPartition:
    return TidemarkInputPartition(offsets, topic.topic_id, topic.incarnations[offsets.partition], topic.timestamp_type)
