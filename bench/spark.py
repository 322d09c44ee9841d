# SPDX-License-Identifier: Apache-2.0
"""Spark's reads and writes of 100-byte records in 6 partitions, local[2], compared with Spark's own Kafka source and
sink.

`python -m bench spark [--records 4000000] [--fetch-peer]`. Each side runs alone, with three brokers on loopback,
RF 3, and a fresh Spark session. Tidemark uses the installed PySpark. The peer uses PySpark 4.0.0 and the connector of
that version with Apache Kafka, if both are in .peers/ (`--fetch-peer` downloads them).

- `batch_read_cold`: rows per second of the first query of a session: a count and the length of all values.
- `batch_read_warm`: the same query again, best of three.
- `stream_read`: availableNow over all records, from start to end, best of three.
- `write`: a quarter as many rows, acks=all, best of three.
- `write_keyed`: the same, each row with its own key, whose hash chooses the partition.
- `small_ranges_ms`: a count and the length of all values, of 20 records in each of 500 partitions; best of five.
- `ceiling_of_batch_read_cold`, `ceiling_of_batch_read_warm`, `ceiling_of_stream_read`: these rates, as a share of those
  of a source in Python that returns the same rows from memory, in separate sessions after Tidemark's. Spark looks for
  installed sources when that one is registered, so its cold read begins there.
- `microbatch_overhead_ms`: driver time of a micro-batch on a topic of 1,000 partitions (without its tasks), minus the
  same with Spark's `rate-micro-batch` source; median of ten.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tidemark.client import AdminClient, Producer
from tidemark.local.cluster import LocalCluster

from bench import produce
from bench.jobs.spark_job import MICRO_BATCHES, Task
from bench.measuring.figures import Figure, report
from bench.measuring.flags import flags_of
from bench.peers import kafka_peer
from bench.peers.connector import connector

RECORDS = 4_000_000
JOB = Path(__file__).with_name("jobs") / "spark_job.py"
LIMIT_S = 1200
WIDE_RECORDS = 1000 * (MICRO_BATCHES + 1)
SMALL_PARTITIONS, SMALL_RECORDS = 500, 20
SOURCE, SINK, WIDE, SMALL = "spark-source", "spark-sink", "spark-wide", "spark-small"


def run(python: Path | str, task: Task) -> dict[str, float]:
    """Run the job in a separate Python; raises an error with its output."""
    found: dict[str, float] = run_job(python, JOB, task, task.format)
    print(task.format, {name: round(value, 1) for name, value in found.items()}, file=sys.stderr)
    return found


def run_job(python: Path | str, job: Path, task: Any, sink: str) -> Any:
    """Run a job in a separate Python, and return its JSON; raises an error with its output.

    Args:
        python: with PySpark.
        job: the job's file.
        task: its parameters, a dataclass.
        sink: format of the sink or source; for "tidemark" and "memory" the job imports this repository's package.
    """
    roots = [str(Path(__file__).resolve().parents[1] / name) for name in ("services", "spark")]
    path = os.pathsep.join([*roots, os.environ.get("PYTHONPATH", "")]) if sink in ("tidemark", "memory") else ""
    done = subprocess.run(
        [str(python), str(job), json.dumps(dataclasses.asdict(task))],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    return json.loads(done.stdout.strip().splitlines()[-1])


def ours(arguments: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as directory, LocalCluster(Path(directory)) as cluster:
        with AdminClient(cluster.admin_address) as admin:
            for topic in (SOURCE, SINK):
                admin.create_topic(topic, partitions=produce.PARTITIONS, replication_factor=3)
            for topic, partitions in ((WIDE, arguments.partitions), (SMALL, SMALL_PARTITIONS)):
                admin.create_topic(
                    topic, partitions=partitions, replication_factor=1, configs={"min.insync.replicas": "1"}
                )
        produce.arrow_per_s(cluster.bootstrap, SOURCE, records=arguments.records)
        with Producer(cluster.bootstrap) as producer:
            for _ in range(WIDE_RECORDS):
                producer.send(WIDE, b"x", partition=0)
            for number in range(SMALL_PARTITIONS * SMALL_RECORDS):
                producer.send(SMALL, bytes(produce.SIZE_BYTES), partition=number % SMALL_PARTITIONS)
        task = Task(
            "tidemark",
            {"tidemark.bootstrap": cluster.bootstrap},
            SOURCE,
            arguments.records,
            SINK,
            arguments.records // 4,
            WIDE,
            SMALL,
            SMALL_PARTITIONS * SMALL_RECORDS,
            streams=not arguments.batch_only,
        )
        return run(sys.executable, task)


def ceiling(arguments: argparse.Namespace) -> dict[str, float]:
    """Rates of reads of as many rows from memory."""
    task = Task(
        "memory",
        {"records": str(arguments.records)},
        SOURCE,
        arguments.records,
        "",
        0,
        streams=not arguments.batch_only,
    )
    return run(sys.executable, task)


def theirs(arguments: argparse.Namespace) -> dict[str, float]:
    spark = connector(fetch=arguments.fetch_peer)
    if spark is None:
        return {}
    with kafka_peer(fetch=arguments.fetch_peer) as peer:
        if peer is None:
            return {}
        for topic in (SOURCE, SINK):
            peer.call("topic", topic, str(produce.PARTITIONS), "3")
        peer.produce_per_s(SOURCE, records=arguments.records, size_bytes=produce.SIZE_BYTES)
        task = Task(
            "kafka",
            {"kafka.bootstrap.servers": os.environ["TIDEMARK_PEER_KAFKA_BOOTSTRAP"]},
            SOURCE,
            arguments.records,
            SINK,
            arguments.records // 4,
            jars=[str(jar) for jar in spark.jars],
            streams=not arguments.batch_only,
        )
        return run(spark.python, task)


def main() -> int:
    parser = flags_of("spark", __doc__)
    parser.add_argument("--records", type=int, default=RECORDS, help="records to read; a quarter is written")
    parser.add_argument(
        "--partitions", type=int, default=1000, help="partitions of the topic of microbatch_overhead_ms"
    )
    parser.add_argument("--batch-only", action="store_true", help="no streaming")
    parser.add_argument("--fetch-peer", action="store_true", help="download Kafka and Spark's connector if missing")
    arguments = parser.parse_args()
    peer, found = theirs(arguments), ours(arguments)
    units = {"small_ranges_ms": "ms", "microbatch_overhead_ms": "ms"}
    names = ("batch_read_warm", "batch_read_cold", "stream_read", "write", "write_keyed", *units)
    figures = {
        name: Figure(found[name], units.get(name, "records/s"), peer.get(name), lower_is_better=name in units)
        for name in names
        if name in found
    }
    for name, rate in ceiling(arguments).items():
        figures[f"ceiling_of_{name}"] = Figure(found[name] / rate, "of the ceiling")
    report("spark", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
