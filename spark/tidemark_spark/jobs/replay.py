# SPDX-License-Identifier: Apache-2.0
"""Parquet to a topic, keeping keys, times, headers and the order within a partition. At least once."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.model import ErrorCode, TidemarkError

from tidemark_spark.archive_layout import is_archive, read_archive
from tidemark_spark.jobs.common import add_bootstrap, job_parser, run_job, say

NAME = "replay"
_DEADLINE_S = 60.0
_EXAMPLE = """
  spark-submit replay.py --from /data/archive --topic orders --to-topic orders-again
  spark-submit replay.py --from /data/archive --to-topic orders --where "date = '2026-11-20'" --partition-by key
"""


def parser() -> argparse.ArgumentParser:
    """Flags of the job."""
    made = job_parser(
        NAME,
        "Writes the rows of Parquet files to a topic: with their keys, headers and times, and within each partition in "
        "the order of their offsets. Rows are written at least once: a task that Spark runs again writes again.",
        _EXAMPLE,
    )
    add_bootstrap(made)
    made.add_argument(
        "--from",
        dest="source",
        required=True,
        metavar="PATH",
        help="an archive that archive.py made, or Parquet files with a column value, and key, headers, timestamp, "
        "partition, offset as there are",
    )
    made.add_argument("--to-topic", required=True, metavar="TOPIC", help="where the rows go; it has to exist")
    made.add_argument("--topic", help="of an archive of several topics: which one")
    made.add_argument("--where", metavar="SQL", help="only rows for which this holds, e.g. \"date = '2026-11-20'\"")
    made.add_argument(
        "--partition-by",
        choices=("partition", "key"),
        default="partition",
        help="partition: each row goes to the partition it came from (the default); key: where its key belongs, for a "
        "topic with another number of partitions",
    )
    return made


def run(spark: SparkSession, arguments: argparse.Namespace) -> int:
    """Replay once.

    Raises:
        ValueError: there are no rows of that kind, or they name no order or partition.
        TidemarkError: UNKNOWN_TOPIC, UNKNOWN_PARTITION, BROKER_NOT_AVAILABLE.
    """
    table = _rows(spark, arguments)
    keep = arguments.partition_by == "partition"
    ordered = [name for name in ("topic", "partition", "offset") if name in table.columns]
    if keep:
        if "partition" not in table.columns:
            raise ValueError(f"{arguments.source} has no column 'partition': say --partition-by key")
        _check_partitions(table, arguments)
    if "offset" in ordered and "partition" in ordered:
        # All of a partition in one task, in order: a task's rows keep theirs.
        parts = max(1, table.select("topic" if "topic" in ordered else "partition", "partition").distinct().count())
        table = table.repartition(parts, *ordered[:-1]).sortWithinPartitions(*ordered)
    kept = ["key", "value", "headers", "timestamp", *(["partition"] if keep else [])]
    written = table.select([name for name in kept if name in table.columns])
    writer = written.write.format("tidemark").mode("append").option("tidemark.bootstrap", arguments.bootstrap)
    writer.option("topic", arguments.to_topic).save()
    say(f"replayed {arguments.source} to {arguments.to_topic}")
    return 0


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
            raise ValueError(f"{arguments.source} holds several topics: choose one with --topic")
    return table if arguments.where is None else table.where(arguments.where)


def _check_partitions(table: DataFrame, arguments: argparse.Namespace) -> None:
    highest = table.agg({"partition": "max"}).collect()[0][0]
    with RangeReader(arguments.bootstrap, deadline_s=_DEADLINE_S) as reader:
        count = len(reader.topics([arguments.to_topic])[arguments.to_topic].partitions)
    if highest is not None and highest >= count:
        raise TidemarkError(
            ErrorCode.UNKNOWN_PARTITION,
            f"rows come from partitions up to {highest}, and {arguments.to_topic} has {count}: give it more, or say "
            f"--partition-by key",
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """What spark-submit runs."""
    return run_job(NAME, parser(), run, arguments)
