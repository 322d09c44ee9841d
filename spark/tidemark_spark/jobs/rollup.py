# SPDX-License-Identifier: Apache-2.0
"""Event-time windows over a topic of JSON, with a watermark, to another topic: one record for each window and group."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery

from tidemark_spark.jobs.common import (
    add_bootstrap,
    add_stream,
    job_parser,
    read_stream,
    run_job,
    run_stream,
    say,
    start_stream,
)

NAME = "rollup"
_EXAMPLE = """
  spark-submit rollup.py --bootstrap broker-0:9192 --topic flights --to-topic delays --checkpoint /data/delays \\
    --schema "carrier string, dep_delay double, time_hour timestamp" --time time_hour --window "1 hour" \\
    --watermark "2 hours" --by carrier --aggregate "count(*) as flights" --aggregate "avg(dep_delay) as mean_delay"

gives records with key  {"start":"2013-01-01T10:00:00.000Z","carrier":"UA"}
            and value   {"start":"2013-01-01T10:00:00.000Z","end":"2013-01-01T11:00:00.000Z",...,"flights":44,...}
"""


def parser() -> argparse.ArgumentParser:
    """Flags of the job."""
    made = job_parser(
        NAME,
        "Aggregates a topic's JSON values over windows of event time. A window is written once, when the watermark has "
        "passed its end; with --updates, whenever it changed. Its key is the window's start and the groups, so that "
        "a compacted topic keeps the last of each; after a failure a record may be written twice, with the same key.",
        _EXAMPLE,
    )
    add_bootstrap(made)
    made.add_argument("--topic", required=True, help="what is read; its values are JSON objects")
    made.add_argument("--to-topic", required=True, help="where the aggregates go; it has to exist")
    made.add_argument(
        "--schema", required=True, metavar="DDL", help='of the values, e.g. "carrier string, delay double"'
    )
    made.add_argument("--checkpoint", required=True, metavar="PATH", help="where the query keeps its place and state")
    made.add_argument("--aggregate", required=True, action="append", metavar="SQL", help='e.g. "avg(delay) as mean"')
    made.add_argument("--by", default="", metavar="COLUMN[,COLUMN...]", help="groups within a window (none)")
    made.add_argument("--time", metavar="COLUMN", help="event time, of the values (the records' own timestamp)")
    made.add_argument("--window", default="1 hour", help="length of a window (1 hour)")
    made.add_argument("--slide", help="from one window's start to the next's (the window's length)")
    made.add_argument(
        "--watermark", default="10 minutes", help="how late a record may come and still count (10 minutes)"
    )
    made.add_argument("--updates", action="store_true", help="write a window whenever it changed, not once at its end")
    add_stream(made)
    return made


def run(spark: SparkSession, arguments: argparse.Namespace) -> int:
    """Aggregate, until all that is there was read or for ever."""
    read = run_stream(spark, lambda: start(spark, arguments))
    say(f"rolled up {read.rows} records of {arguments.topic} into {arguments.to_topic}")
    if read.late:
        say(f"{read.late} groups of rows came after their windows were closed: a longer --watermark waits for such")
    return 0


def start(spark: SparkSession, arguments: argparse.Namespace) -> StreamingQuery:
    """The streaming query."""
    table = read_stream(spark, arguments)
    rows = as_records(rolled_up(table, arguments), _groups(arguments))
    options = {"tidemark.bootstrap": arguments.bootstrap, "topic": arguments.to_topic}
    if arguments.updates:
        # Spark writes update mode to no source that is written in Python, but to a function in any mode.
        writer = rows.writeStream.outputMode("update").foreachBatch(_appending(options))
    else:
        writer = rows.writeStream.format("tidemark").outputMode("append").options(**options)
    return start_stream(writer.option("checkpointLocation", arguments.checkpoint), arguments.every)


def _appending(options: Mapping[str, str]) -> Callable[[DataFrame, int], None]:
    def append(rows: DataFrame, _batch: int) -> None:
        rows.write.format("tidemark").mode("append").options(**options).save()

    return append


def rolled_up(table: DataFrame, arguments: argparse.Namespace) -> DataFrame:
    """Windows with `start`, `end`, groups and aggregates; values that are no JSON, or have no time, are left out."""
    values = F.from_json(F.col("value").cast("string"), arguments.schema).alias("fields")
    rows = table.select(F.col("timestamp").alias("record_timestamp"), values).select("record_timestamp", "fields.*")
    time = arguments.time or "record_timestamp"
    if time not in rows.columns:
        raise ValueError(f"--time {time} is not in --schema, which has {', '.join(rows.columns[1:])}")
    span = F.window(time, arguments.window, arguments.slide).alias("window")
    first, *rest = (F.expr(text) for text in arguments.aggregate)
    grouped = rows.withWatermark(time, arguments.watermark).groupBy(span, *_groups(arguments)).agg(first, *rest)
    others = [F.col(f"`{name}`") for name in grouped.columns if name != "window"]
    return grouped.select(F.col("window.start").alias("start"), F.col("window.end").alias("end"), *others)


def as_records(table: DataFrame, groups: Sequence[str]) -> DataFrame:
    """Key and value in JSON, times in UTC, nulls too, so that every record of a kind has the same fields."""
    return table.select(_json(["start", *groups]).alias("key"), _json(table.columns).alias("value"))


def _json(columns: Sequence[str]) -> Column:
    return F.to_json(F.struct(*(f"`{name}`" for name in columns)), {"timeZone": "UTC", "ignoreNullFields": "false"})


def _groups(arguments: argparse.Namespace) -> list[str]:
    return [name.strip() for name in arguments.by.split(",") if name.strip()]


def main(arguments: Sequence[str] | None = None) -> int:
    """What spark-submit runs."""
    return run_job(NAME, parser(), run, arguments)
