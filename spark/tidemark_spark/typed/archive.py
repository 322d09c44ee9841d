# SPDX-License-Identifier: Apache-2.0
"""Archives of typed topics in Spark: tasks write the partitions, and all files are one table by column ids."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.client.tables.archive_files import SYSTEM_COLUMNS, Archive
from tidemark.client.tables.archive_rows import archived_rows
from tidemark.client.tables.archiver import ArchiveTask, archive_topic, write_partition
from tidemark.client.tables.compaction import Compacted, MergeTask, compact_archive, merge
from tidemark.core.schemas.model import Column, ColumnType, ListOf, MapOf, StructOf
from tidemark.model import TidemarkError

from tidemark_spark.typed.read_schema import DELETED, HEADERS, OFFSET, PARTITION, TIMESTAMP, table_schema
from tidemark_spark.typed.spark_types import spark_type
from tidemark_spark.typed.table import TypedTable
from tidemark_spark.typed.topic import TypedTopic

_ID = "parquet.field.id"
_REPLAYED = (PARTITION, OFFSET, TIMESTAMP, HEADERS, DELETED)
OF_PATTERNS = re.compile(r"[][{}*?\\]")
"""Characters of a path that Spark takes as a pattern."""
_BY_ID = "spark.sql.parquet.fieldId.read.enabled"
_DEADLINE_S = 30.0


def is_typed_topic(bootstrap: str, topic: str) -> bool:
    """Whether the topic has a schema; raises UNKNOWN_TOPIC, REQUEST_TIMED_OUT."""
    with RangeReader(bootstrap, deadline_s=_DEADLINE_S) as reader:
        return reader.topics([topic])[topic].schema_version > 0


def is_typed_archive(root: str) -> bool:
    """Whether the directory is an archive of a typed topic."""
    try:
        return bool(Archive(root).files())
    except TidemarkError:  # not on a mounted file system
        return False


def archive_with(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    root: str,
    *,
    file_mib: int,
    iceberg: str | None = None,
    catalog: Mapping[str, str] | None = None,
) -> int:
    """Archive the records that are committed now, one Spark task for each partition; returns the number of rows.

    A task that runs again continues where its files end. All executors see the directory at the same path.
    """

    def run(tasks: Iterable[ArchiveTask]) -> list[int]:
        parts = list(tasks)
        return spark.sparkContext.parallelize(parts, max(1, len(parts))).map(write_partition).collect()

    return archive_topic(bootstrap, topic, root, file_mib=file_mib, run=run, iceberg=iceberg, catalog=catalog)


def compact_with(
    spark: SparkSession,
    root: str,
    *,
    file_mib: int,
    min_files: int,
    grace_hours: float,
    catalog: Mapping[str, str] | None = None,
) -> Compacted:
    """Merge files of an archive, one Spark task for each merged file; see `compact_archive`."""

    def run(tasks: Iterable[MergeTask]) -> list[int]:
        parts = list(tasks)
        return spark.sparkContext.parallelize(parts, max(1, len(parts))).map(merge).collect() if parts else []

    return compact_archive(
        root, file_mib=file_mib, min_files=min_files, grace_hours=grace_hours, run=run, catalog=catalog
    )


def read_typed_archive(spark: SparkSession, root: str) -> DataFrame:
    """All files as one table in the newest version of the archive, with widened columns, matched by column ids.

    A column that a file lacks is null. The session reads Parquet by field ids from now on, where a schema has some.
    """
    archive = Archive(root)
    newest = max((footer.schema for footer in archive.ends().values()), key=lambda schema: schema.version)
    spark.conf.set(_BY_ID, "true")
    schema = StructType([_field(column) for column in (*newest.columns, *SYSTEM_COLUMNS)])
    paths = [str(file.path) for files in archive.files().values() for file in files]
    return spark.read.schema(schema).parquet(*(OF_PATTERNS.sub(r"\\\g<0>", path) for path in paths))


def archived_table(spark: SparkSession, root: str) -> DataFrame:
    """All rows of an archive in its newest version, with defaults, and the metadata columns.

    A task has the rows of one partition, in order. The read calls no broker.
    """
    archive = Archive(root)
    footers = {partition: [file.footer() for file in files] for partition, files in archive.files().items()}
    first = next(iter(footers.values()))[0]
    versions = {footer.schema.version: footer.schema for parts in footers.values() for footer in parts}
    topic = TypedTopic(first.topic, first.topic_id, versions)
    table = TypedTable(topic, table_schema(topic, None, ",".join(_REPLAYED)))
    parts = [(partition, found[0].start, found[-1].end) for partition, found in footers.items()]

    def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in (row for batch in batches for row in batch.to_pylist()):
            shape = table.shaper(part["partition"])
            yield from map(shape, archived_rows(Archive(root), part["partition"], part["low"], part["end"], table.rows))

    spread = spark.sparkContext.parallelize(parts, len(parts))
    return spark.createDataFrame(spread, "partition int, low bigint, end bigint").mapInArrow(rows_of, table.schema)


def read_history(
    spark: SparkSession, bootstrap: str, topic: str, root: str, *, columns: Sequence[str] | None = None
) -> DataFrame:
    """Archive and log of a topic as one table in the newest version, each row once; a task for each file.

    The read ends at the rows that are committed now. The boundary between archive and log is fixed now, too.

    Args:
        spark: the session.
        bootstrap: "host:port[,host:port...]" of any brokers.
        topic: name of the topic.
        root: directory of its archive, which all executors see at the same path.
        columns: names, paths below them, and metadata columns such as `_offset`; None: all columns of the schema.

    Raises:
        TidemarkError: the errors of `tidemark.read_table` with `history`.
    """
    options = {"tidemark.bootstrap": bootstrap, "history": root}
    if columns is not None:
        options["columns"] = ",".join(columns)
    return spark.read.format("tidemark").options(**options).load(topic)


def _field(column: Column) -> StructField:
    return StructField(column.name, _type(column.type), True, {_ID: column.id})


def _type(column_type: ColumnType) -> DataType:
    match column_type:
        case ListOf(element):
            return ArrayType(_type(element.type))
        case MapOf(key, value):
            return MapType(_type(key.type), _type(value.type))
        case StructOf(columns):
            return StructType([_field(column) for column in columns])
        case _:
            return spark_type(column_type)
