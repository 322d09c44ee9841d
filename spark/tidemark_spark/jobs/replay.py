# SPDX-License-Identifier: Apache-2.0
"""Writes Parquet to a topic with keys, timestamps, headers and the order within a partition, in one transaction.

The archive of a topic with a schema goes to a topic with a schema, whose producers check the rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.client.tables.archive_files import Archive
from tidemark.core.cluster_view import TopicView
from tidemark.model import ErrorCode, TidemarkError

from tidemark_spark.archive_layout import is_archive, read_archive
from tidemark_spark.jobs.common import add_bootstrap, job_parser, run_job, say
from tidemark_spark.typed.archive import archived_table, is_typed_archive
from tidemark_spark.typed.read_schema import PARTITION

NAME = "replay"
_DEADLINE_S = 60.0
_EXAMPLE = """
  spark-submit replay.py --from /data/archive --topic orders --to-topic orders-again
  spark-submit replay.py --from /data/archive --to-topic orders --where "date = '2026-11-20'" --partition-by key
"""


def parser() -> argparse.ArgumentParser:
    """Arguments of the job."""
    made = job_parser(
        NAME,
        "Writes the rows of Parquet files to a topic, with their keys, headers and timestamps, in the order of their "
        "offsets within each partition. The archive of a topic with a schema goes to a topic with a schema that has "
        "its columns. The rows are one transaction where the cluster allows it: readers with "
        "read_committed see all of them, or none.",
        _EXAMPLE,
    )
    add_bootstrap(made)
    made.add_argument(
        "--from",
        dest="source",
        required=True,
        metavar="PATH",
        help="an archive of archive.py, or Parquet files with a column value, and optionally key, headers, timestamp, "
        "partition, offset. A path on this machine for the archive of a topic with a schema",
    )
    made.add_argument("--to-topic", required=True, metavar="TOPIC", help="target; an existing topic")
    made.add_argument("--topic", help="source topic, for an archive of several topics")
    made.add_argument("--where", metavar="SQL", help="only rows that meet this condition, e.g. \"date = '2026-11-20'\"")
    made.add_argument(
        "--partition-by",
        choices=("partition", "key"),
        default="partition",
        help="partition: each row keeps its partition (the default); key: the key decides, for a topic with another "
        "number of partitions",
    )
    return made


def run(spark: SparkSession, arguments: argparse.Namespace) -> int:
    """Write the rows to the topic once.

    Raises:
        ValueError: a required column is missing, or the partitions or the schema do not fit.
        TidemarkError: UNKNOWN_TOPIC, UNKNOWN_PARTITION, REQUEST_TIMED_OUT.
    """
    with RangeReader(arguments.bootstrap, deadline_s=_DEADLINE_S) as reader:
        target = reader.topics([arguments.to_topic])[arguments.to_topic]
    has_columns = is_typed_archive(arguments.source)
    if has_columns != bool(target.schema_version):
        raise ValueError(_misfit(arguments, has_columns=has_columns))
    table = _typed_rows(spark, arguments, target) if has_columns else _rows_of_bytes(spark, arguments, target)
    writer = table.write.format("tidemark").mode("append").option("tidemark.bootstrap", arguments.bootstrap)
    writer.option("topic", arguments.to_topic).option("typed", str(has_columns).lower()).save()
    say(f"replayed {arguments.source} to {arguments.to_topic}")
    return 0


def _misfit(arguments: argparse.Namespace, *, has_columns: bool) -> str:
    if has_columns:
        return (
            f"{arguments.source} is the archive of a topic with a schema, and {arguments.to_topic} has none: replay it "
            "to a topic with a schema"
        )
    return (
        f"topic {arguments.to_topic} has a schema, and {arguments.source} is not the archive of a topic with one: "
        'write its columns with format("tidemark")'
    )


def _typed_rows(spark: SparkSession, arguments: argparse.Namespace, target: TopicView) -> DataFrame:
    """Rows with the columns of the newest version in the archive; each task has a partition, in order."""
    archive = Archive(arguments.source)
    footers = archive.ends()
    topic = next(iter(footers.values())).topic
    if arguments.topic not in (None, topic):
        raise ValueError(f"{arguments.source} is the archive of topic {topic}, not of {arguments.topic}")
    for partition, start, end in archive.gaps():
        say(
            f"warning: offsets {start} to {end - 1} of partition {partition} are not in {arguments.source}: a file is "
            "missing, or a run skipped rows that retention had deleted"
        )
    table = archived_table(spark, arguments.source)
    if arguments.where is not None:
        table = table.where(arguments.where)
    if arguments.partition_by == "key":
        return table.drop(PARTITION)
    highest = max(footers)
    if arguments.where is not None and highest >= len(target.partitions):
        highest = _highest(table, PARTITION)
    _check_partitions(highest, target)
    return table


def _rows_of_bytes(spark: SparkSession, arguments: argparse.Namespace, target: TopicView) -> DataFrame:
    """Rows with the columns of records; each task has a partition, in order, if the archive has offsets."""
    table = _rows(spark, arguments)
    keep = arguments.partition_by == "partition"
    ordered = [name for name in ("topic", "partition", "offset") if name in table.columns]
    if keep:
        if "partition" not in table.columns:
            raise ValueError(f"{arguments.source} has no column 'partition': use --partition-by key")
        _check_partitions(_highest(table, "partition"), target)
    if "offset" in ordered and "partition" in ordered:
        # One task per partition, sorted: a task writes its rows in order.
        parts = max(1, table.select("topic" if "topic" in ordered else "partition", "partition").distinct().count())
        table = table.repartition(parts, *ordered[:-1]).sortWithinPartitions(*ordered)
    kept = ["key", "value", "headers", "timestamp", *(["partition"] if keep else [])]
    return table.select([name for name in kept if name in table.columns])


def _rows(spark: SparkSession, arguments: argparse.Namespace) -> DataFrame:
    archived = is_archive(spark, arguments.source)
    table = read_archive(spark, arguments.source) if archived else spark.read.parquet(arguments.source)
    if "value" not in table.columns:
        raise ValueError(f"{arguments.source} has no column 'value', only {', '.join(table.columns)}")
    if arguments.topic is not None:
        table = table.where(table["topic"] == arguments.topic)
    elif "topic" in table.columns:
        topics = [row[0] for row in table.select("topic").distinct().limit(2).collect()]
        if len(topics) > 1:
            raise ValueError(f"{arguments.source} has several topics: choose one with --topic")
    return table if arguments.where is None else table.where(arguments.where)


def _highest(table: DataFrame, column: str) -> int:
    """The largest index of a partition; -1 without rows."""
    found = table.agg({column: "max"}).collect()[0][0]
    return -1 if found is None else int(found)


def _check_partitions(highest: int, target: TopicView) -> None:
    count = len(target.partitions)
    if highest >= count:
        raise TidemarkError(
            ErrorCode.UNKNOWN_PARTITION,
            f"rows come from partitions up to {highest}, and {target.topic} has {count}: add partitions, or use "
            f"--partition-by key",
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job, as spark-submit does; returns the exit status."""
    return run_job(NAME, parser(), run, arguments)
