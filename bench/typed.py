# SPDX-License-Identifier: Apache-2.0
"""Typed topics: Spark jobs, produce and scans on rows of twelve columns, about 120 bytes each, local[2].

`python -m bench typed [--rows 2000000] [--fetch-peer]`. Each side runs alone, with three brokers on loopback, RF 3,
6 partitions; each figure has a Spark session of its own. Tidemark uses the installed PySpark. The peer is Spark's
Kafka source with PySpark 4.0.0 on Apache Kafka. All variants of a job must give the same sums. The job: a window of
an hour, a join with the names of carriers, and sums of six of the twelve columns; rates are the best of three rounds
after the first one of a session.

- `spark_typed_vs_json`: the job from a typed topic; peer: Kafka's source and from_json.
- `spark_typed_vs_json_cold`: the first round of the sessions.
- `spark_typed_vs_value_format`: peer: Tidemark's own valueFormat=json.
- `spark_typed_vs_avro`: peer: Kafka's source and from_avro.
- `spark_pruned_vs_json`, `spark_pruned_vs_value_format`: a job of two of the twelve columns, which are all that
  brokers send; peers as above.
- `stream_typed_vs_json`: the job as an availableNow query over the whole topic.
- `pruned_bytes_share`: bytes that leave the brokers for these two columns, as a share of those for all;
`pruned_cpu_share`: the same share of the brokers' CPU time.
- `produce_table_vs_serializer`, `produce_rows_vs_serializer`: rows as tables, and as a dict each; peer: the faster of
  confluent-kafka's AvroSerializer and JSONSerializer, a dict each. All acks=all.
- `polars_scan_rows_per_s`: sums of the two columns by `tidemark.scan`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tidemark
from tidemark.client import AdminClient, Producer
from tidemark.core.schemas.ddl import draft_from_ddl
from tidemark.local.cluster import LocalCluster, broker_name

from bench.jobs.typed_job import DDL, Task, avro_schema
from bench.measuring.figures import Figure, report
from bench.measuring.flags import flags_of
from bench.measuring.watching import scrape
from bench.peers import kafka_peer
from bench.peers.connector import connector
from bench.spark import run_job

ROWS = 2_000_000
PARTITIONS = 6
JOBS = Path(__file__).resolve().with_name("jobs")
JOB = JOBS / "typed_job.py"
PRODUCE_PEER = JOBS / "typed_produce_peer.py"
LIMIT_S = 1200
ROUNDS = 3
TABLE_ROWS = 20_000
TYPED, VALUES = "typed", "values"
_FETCHED, _CPU = "tidemark_broker_fetched_bytes_total", "process_cpu_seconds_total"

Found = dict[str, dict[str, Any]]


def run(python: Path | str, task: Task) -> dict[str, Any]:
    """Run a task in a separate Python; raises an error with its output."""
    found: dict[str, Any] = run_job(python, JOB, task, task.format)
    print(task.format, task.kind, task.action, found, file=sys.stderr)
    return found


def ours(rows: int) -> tuple[Found, dict[str, float]]:
    """Results of the sessions by their names, and the figures that need no Spark."""
    found: Found = {}
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as directory, LocalCluster(Path(directory)) as cluster:
        draft = draft_from_ddl(DDL).keyed(["carrier"], "at")  # times are years ago: retention would delete the rows
        with AdminClient(cluster.admin_address) as admin:
            for topic, schema in ((TYPED, draft), (VALUES, None), ("tables", draft), ("rows", draft)):
                admin.create_topic(
                    topic, partitions=PARTITIONS, replication_factor=3, schema=schema, configs={"retention.ms": -1}
                )
        bootstrap = {"tidemark.bootstrap": cluster.bootstrap}

        def task(kind: str, action: str) -> Task:
            return Task(bootstrap, TYPED if kind == "typed" else VALUES, kind, rows, action)

        for kind in ("typed", "json"):
            run(sys.executable, task(kind, "fill"))
        for name, kind, action in (
            ("typed", "typed", "read"),
            ("two", "typed", "read_two"),
            ("value_format", "value_format", "read"),
            ("value_format_two", "value_format", "read_two"),
            ("stream", "typed", "stream"),
        ):
            before = served(cluster)
            found[name] = run(sys.executable, task(kind, action))
            for what, value in served(cluster).items():
                found[name][what] = (value - before[what]) / found[name]["reads"]
        return found, without_spark(cluster.bootstrap, rows)


def served(cluster: LocalCluster) -> dict[str, float]:
    """Bytes that the brokers have sent to consumers, and their CPU time in seconds."""
    samples = [scrape(cluster.metrics_address(broker_name(index)), _FETCHED, _CPU) for index in range(3)]
    return {name: sum(one[name, ()] for one in samples) for name in (_FETCHED, _CPU)}


def without_spark(bootstrap: str, rows: int) -> dict[str, float]:
    """Rows a second of tables and rows that are produced, and of a scan by Polars."""
    count = min(rows, 200_000)
    table = tidemark.read_table(bootstrap, TYPED).read_all().slice(0, count).combine_chunks()
    records = table.to_pylist()
    found: dict[str, list[float]] = {"table": [], "rows": [], "scan": []}
    for _ in range(ROUNDS):
        with Producer(bootstrap) as producer:
            started_s = time.perf_counter()
            for at in range(0, count, TABLE_ROWS):
                producer.send_table("tables", table.slice(at, TABLE_ROWS))
            producer.flush(120)
            found["table"].append(count / (time.perf_counter() - started_s))
            started_s = time.perf_counter()
            for record in records:
                producer.send("rows", record)
            producer.flush(120)
            found["rows"].append(count / (time.perf_counter() - started_s))
        found["scan"].append(scanned_per_s(bootstrap, rows))
    return {name: max(rates) for name, rates in found.items()}


def scanned_per_s(bootstrap: str, rows: int) -> float:
    import polars as pl

    started_s = time.perf_counter()
    frame = tidemark.scan(bootstrap, TYPED).select(pl.col("delay").sum(), pl.col("at").max(), pl.len()).collect()
    assert frame["len"][0] == rows, frame
    return rows / (time.perf_counter() - started_s)


def theirs(rows: int, *, fetch: bool) -> tuple[Found, dict[str, float]]:
    """The same of the peer; empty without one."""
    spark = connector(fetch=fetch)
    if spark is None:
        return {}, {}
    found: Found = {}
    with kafka_peer(fetch=fetch) as peer:
        if peer is None:
            return {}, {}
        bootstrap = {"kafka.bootstrap.servers": os.environ["TIDEMARK_PEER_KAFKA_BOOTSTRAP"]}
        has_avro = any(jar.name.startswith("spark-avro") for jar in spark.jars)
        if not has_avro:
            print(
                "no peer for Avro: --fetch-peer downloads Spark's jar, after `rm -r .peers/spark-kafka-*`",
                file=sys.stderr,
            )
        jars = [str(jar) for jar in spark.jars]

        def task(kind: str, action: str) -> Task:
            return Task(bootstrap, f"typed-{kind}", kind, rows, action, jars)

        for kind in ("json", "avro", "produced") if has_avro else ("json", "produced"):
            peer.call("topic", f"typed-{kind}", str(PARTITIONS), "3")
            if kind != "produced":
                run(spark.python, task(kind, "fill"))
        for name, kind, action in (
            ("typed", "json", "read"),
            ("two", "json", "read_two"),
            ("stream", "json", "stream"),
            ("avro", "avro", "read"),
        ):
            if kind == "json" or has_avro:
                found[name] = run(spark.python, task(kind, action))
        return found, produced(spark.python, min(rows, 100_000))


def produced(python: Path, rows: int) -> dict[str, float]:
    """Rows a second of confluent-kafka by serializer.

    Empty if it is not installed in the environment of the peer's PySpark.
    """
    columns = [column.name for column in draft_from_ddl(DDL).columns]
    with tempfile.TemporaryDirectory(prefix="bench-rows-") as directory:
        lines, schema = Path(directory, "rows.jsonl"), Path(directory, "flight.avsc")
        schema.write_text(avro_schema())
        texts = {"carrier": "AA", "origin": "JFK", "dest": "D17", "tailnum": "N01234"}
        with lines.open("w") as out:
            for index in range(rows):
                row: dict[str, Any] = dict.fromkeys(columns, index % 1000)
                row |= {**texts, "at": 1356998400000000 + index * 15_000_000, "air_time": 31.0, "price": 99.5}
                out.write(json.dumps({**row, "remark": f"gate 7, boarding 3, {index:012d}"}) + "\n")
        command = [str(python), str(PRODUCE_PEER), "typed-produced", str(lines), str(schema)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        print(f"no peer by serializer: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return {}
    rates: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    print("confluent-kafka", rates, file=sys.stderr)
    return rates


def check_same(mine: Found, others: Found) -> None:
    """All variants of a job have the same sums."""
    for names in (("typed", "value_format", "avro"), ("two", "value_format_two")):
        sums = [found[name]["sums"] for found in (mine, others) for name in names if name in found]
        assert all(one == sums[0] for one in sums), sums


def main() -> int:
    parser = flags_of("typed", __doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of each topic")
    parser.add_argument("--fetch-peer", action="store_true", help="download Kafka and Spark's connector if missing")
    arguments = parser.parse_args()
    rows = arguments.rows
    others, serialized = theirs(rows, fetch=arguments.fetch_peer)
    mine, rates = ours(rows)
    check_same(mine, others)
    figures: dict[str, Figure] = {}

    def compare(name: str, own: str, other: str, beside: Found, which: str = "warm_s") -> None:
        peer = rows / beside[other][which] if other in beside else None
        figures[name] = Figure(rows / mine[own][which], "rows/s", peer)

    compare("spark_typed_vs_json", "typed", "typed", others)
    compare("spark_typed_vs_json_cold", "typed", "typed", others, "cold_s")
    compare("spark_typed_vs_value_format", "typed", "value_format", mine)
    compare("spark_typed_vs_avro", "typed", "avro", others)
    compare("spark_pruned_vs_json", "two", "two", others)
    compare("spark_pruned_vs_value_format", "two", "value_format_two", mine)
    compare("stream_typed_vs_json", "stream", "stream", others)
    figures["pruned_bytes_share"] = Figure(mine["two"][_FETCHED] / mine["typed"][_FETCHED], "of all bytes")
    figures["pruned_cpu_share"] = Figure(mine["two"][_CPU] / mine["typed"][_CPU], "of a whole read")
    peer = max(serialized.values(), default=None)
    figures["produce_table_vs_serializer"] = Figure(rates["table"], "rows/s", peer)
    figures["produce_rows_vs_serializer"] = Figure(rates["rows"], "rows/s", peer)
    figures["polars_scan_rows_per_s"] = Figure(rates["scan"], "rows/s")
    report("typed", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
