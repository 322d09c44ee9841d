# SPDX-License-Identifier: Apache-2.0
"""Aggregates the rows of a topic over event-time windows with a watermark, and writes them to another topic.

Either topic may have a schema: then its rows are columns. Otherwise its values are JSON.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
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
from tidemark_spark.transactions.settings import QUERY_ID, TransactionSettings, query_identity
from tidemark_spark.typed.read_schema import TIMESTAMP
from tidemark_spark.typed.topic import typed_topic

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
        "Aggregates the rows of a topic over windows of event time: the columns of a topic with a schema, or JSON "
        "values. A window is written once, when the watermark "
        "has passed its end; with --updates, after each change. The key is the start of the window with the groups, so "
        "a compacted topic keeps the last record of each. A micro-batch is a transaction where the cluster allows it: "
        "readers with read_committed see each record once, after any failure.",
        _EXAMPLE,
    )
    add_bootstrap(made)
    made.add_argument("--topic", required=True, help="source: a topic with a schema, or of JSON objects")
    made.add_argument(
        "--to-topic", required=True, help="target, an existing topic; with a schema, the results are its columns"
    )
    made.add_argument("--schema", metavar="DDL", help='fields of the JSON values, e.g. "carrier string, delay double"')
    made.add_argument("--checkpoint", required=True, metavar="PATH", help="checkpoint of the query")
    made.add_argument("--aggregate", required=True, action="append", metavar="SQL", help='e.g. "avg(delay) as mean"')
    made.add_argument("--by", default="", metavar="COLUMN[,COLUMN...]", help="groups within a window (none)")
    made.add_argument("--time", metavar="COLUMN", help="event time, a column or field (the records' timestamp)")
    made.add_argument("--window", default="1 hour", help="length of a window (1 hour)")
    made.add_argument("--slide", help="time between the starts of windows (the window's length)")
    made.add_argument(
        "--watermark", default="10 minutes", help="largest delay of a record that still counts (10 minutes)"
    )
    made.add_argument("--updates", action="store_true", help="write a window after each change, not once at its end")
    add_stream(made)
    return made


def run(spark: SparkSession, arguments: argparse.Namespace) -> int:
    """Aggregate the current records, or continuously."""
    read = run_stream(spark, lambda: start(spark, arguments))
    say(f"rolled up {read.rows} records of {arguments.topic} into {arguments.to_topic}")
    if read.late:
        say(f"{read.late} groups of rows arrived after their windows were closed: a longer --watermark includes them")
    return 0


def start(spark: SparkSession, arguments: argparse.Namespace) -> StreamingQuery:
    """Start the streaming query."""
    table = read_stream(spark, arguments, **({} if arguments.schema else {"metadataColumns": TIMESTAMP}))
    rows = rolled_up(table, arguments)
    options = {"tidemark.bootstrap": arguments.bootstrap, "topic": arguments.to_topic}
    if typed_topic(options, arguments.to_topic) is None:
        rows = as_records(rows, _groups(arguments))
    else:
        options["typed"] = "true"
    if arguments.updates:
        # Spark does not write update mode to a Python data source, but to a function in any mode.
        writer = rows.writeStream.outputMode("update").foreachBatch(_appending(options))
    else:
        writer = rows.writeStream.format("tidemark").outputMode("append").options(**options)
    return start_stream(writer.option("checkpointLocation", arguments.checkpoint), arguments.every)


def _appending(options: Mapping[str, str]) -> Callable[[DataFrame, int], None]:
    def append(rows: DataFrame, batch: int) -> None:
        query_id = rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        once = (
            {"txnAppId": query_identity(TransactionSettings(), query_id), "txnVersion": str(batch)} if query_id else {}
        )
        rows.write.format("tidemark").mode("append").options(**options, **once).save()

    return append


def rolled_up(table: DataFrame, arguments: argparse.Namespace) -> DataFrame:
    """Windows with `start`, `end`, groups and aggregates; values that are not JSON, or have no time, are ignored."""
    rows = _rows(table, arguments.schema)
    time = arguments.time or "record_timestamp"
    if time not in rows.columns:
        where = "--schema" if arguments.schema else f"the schema of {arguments.topic}"
        raise ValueError(f"--time {time} is not in {where}, which has {', '.join(rows.columns[1:])}")
    span = F.window(time, arguments.window, arguments.slide).alias("window")
    first, *rest = (F.expr(text) for text in arguments.aggregate)
    grouped = rows.withWatermark(time, arguments.watermark).groupBy(span, *_groups(arguments)).agg(first, *rest)
    others = [F.col(f"`{name}`") for name in grouped.columns if name != "window"]
    return grouped.select(F.col("window.start").alias("start"), F.col("window.end").alias("end"), *others)


def _rows(table: DataFrame, schema: str | None) -> DataFrame:
    """The record's timestamp first, then the columns of the topic, or the fields of its JSON values."""
    if schema is None:
        others = [f"`{name}`" for name in table.columns if name != TIMESTAMP]
        return table.select(F.col(TIMESTAMP).alias("record_timestamp"), *others)
    values = F.from_json(F.col("value").cast("string"), schema).alias("fields")
    return table.select(F.col("timestamp").alias("record_timestamp"), values).select("record_timestamp", "fields.*")


def as_records(table: DataFrame, groups: Sequence[str]) -> DataFrame:
    """Key and value in JSON, times in UTC, with nulls, so that all records have the same fields."""
    return table.select(_json(["start", *groups]).alias("key"), _json(table.columns).alias("value"))


def _json(columns: Sequence[str]) -> Column:
    return F.to_json(F.struct(*(f"`{name}`" for name in columns)), {"timeZone": "UTC", "ignoreNullFields": "false"})


def _groups(arguments: argparse.Namespace) -> list[str]:
    return [name.strip() for name in arguments.by.split(",") if name.strip()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job, as spark-submit does; returns the exit status."""
    return run_job(NAME, parser(), run, arguments)
