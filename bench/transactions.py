# SPDX-License-Identifier: Apache-2.0
"""Transactions compared with plain producing, and with Kafka's transactions: 100-byte records, 6 partitions, RF 3,
three brokers on loopback.

`python -m bench transactions [--rounds 3] [--records 1000000] [--commits 200]`: medians of the rounds, in which the
sides take turns.

- `txn_produce`: columns through the Arrow API in transactions of 100 ms; peer: Kafka's ProducerPerformance with
  `--transaction-duration-ms 100`. Target: at least 2 times the peer.
- `txn_produce_of_plain`: its ratio to the same loop without transactions; target: at least 0.9.
- `txn_commit_p50_ms`, `txn_commit_p99_ms`: the commit of a transaction with one acknowledged record in each of 6
  partitions; peer: confluent-kafka. Target: p50 at most 10 ms, and at most the peer's.
- `read_committed_of_plain`: the rate of reading `txn_produce`'s records with `isolation_level="read_committed"`, as a
  ratio to that of reading the same records with "read_uncommitted"; target: at least 0.95.
- `spark_exactly_once_of_plain`: the rate of a batch write of Spark, local[2], with `transactional=true`, as a ratio to
  that of the same write with `transactional=false`; target: at least 0.85.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
from tidemark.client import AdminClient, Producer
from tidemark.local.cluster import LocalCluster

from bench.jobs.spark_write_job import Task
from bench.latency import percentile
from bench.measuring.figures import Figure, report
from bench.measuring.flags import flags_of
from bench.measuring.tls import read_per_s
from bench.peers import KafkaPeer, confluent_is_there, kafka_peer
from bench.spark import run_job

PARTITIONS = 6
SIZE_BYTES = 100
TABLE_RECORDS = 20_000
TRANSACTION_S = 0.1
FLUSH_TIMEOUT_S = 120
WARM_UP_COMMITS = 20
WARM_UP_RECORDS = 120_000
SPARK_JOB = Path(__file__).with_name("jobs") / "spark_write_job.py"


def plain_per_s(bootstrap: str, topic: str, records: int) -> float:
    """One run without transactions."""
    with Producer(bootstrap, acks="all") as producer:
        started_s = time.perf_counter()
        for index in range(records // TABLE_RECORDS):
            producer.send_table(topic, _table(), partition=index % PARTITIONS)
        producer.flush(FLUSH_TIMEOUT_S)
        return records / (time.perf_counter() - started_s)


def transactional_per_s(bootstrap: str, topic: str, records: int) -> float:
    """One run in transactions of 100 ms; the start of the producer id does not count."""
    with Producer(bootstrap, transactional_id=f"bench-{uuid.uuid4().hex}") as producer:
        with producer.transaction():
            producer.send(topic, b"the first transaction starts the producer")
        started_s, index, tables = time.perf_counter(), 0, records // TABLE_RECORDS
        while index < tables:
            with producer.transaction():
                until_s = time.perf_counter() + TRANSACTION_S
                while index < tables and time.perf_counter() < until_s:
                    producer.send_table(topic, _table(), partition=index % PARTITIONS)
                    index += 1
        return records / (time.perf_counter() - started_s)


def _table() -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([bytes(SIZE_BYTES)] * TABLE_RECORDS, pa.binary())})


def commits_ms(bootstrap: str, topic: str, commits: int) -> list[float]:
    """Milliseconds of each commit, after every record is acknowledged."""
    found = []
    with Producer(bootstrap, transactional_id=f"bench-{uuid.uuid4().hex}", linger_ms=0) as producer:
        for _ in range(WARM_UP_COMMITS + commits):
            transaction = producer.transaction()
            transaction.begin()
            for partition in range(PARTITIONS):
                producer.send(topic, bytes(SIZE_BYTES), partition=partition)
            producer.flush(FLUSH_TIMEOUT_S)
            started_s = time.perf_counter()
            transaction.commit()
            found.append((time.perf_counter() - started_s) * 1000)
    return found[WARM_UP_COMMITS:]


def peer_commits_ms(topic: str, commits: int) -> list[float]:
    """The same through confluent-kafka."""
    confluent = importlib.import_module("confluent_kafka")
    settings = {
        "bootstrap.servers": os.environ["TIDEMARK_PEER_KAFKA_BOOTSTRAP"],
        "transactional.id": f"bench-{uuid.uuid4().hex}",
        "linger.ms": 0,
    }
    producer, found = confluent.Producer(settings), []
    producer.init_transactions(FLUSH_TIMEOUT_S)
    for _ in range(WARM_UP_COMMITS + commits):
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(topic, bytes(SIZE_BYTES), partition=partition)
        producer.flush(FLUSH_TIMEOUT_S)
        started_s = time.perf_counter()
        producer.commit_transaction(FLUSH_TIMEOUT_S)
        found.append((time.perf_counter() - started_s) * 1000)
    return found[WARM_UP_COMMITS:]


def spark_of_plain(bootstrap: str, topic: str, records: int, rounds: int) -> float:
    """Ratio of Spark's rates with and without a transaction; the median of the rounds of one session."""
    task = Task({"tidemark.bootstrap": bootstrap}, topic, records, rounds)
    found = run_job(sys.executable, SPARK_JOB, task, task.format)
    print("spark", {kind: [round(rate) for rate in rates] for kind, rates in found.items()}, file=sys.stderr)
    return statistics.median(a / b for a, b in zip(found["transactional"], found["plain"], strict=True))


def peer_per_s(peer: KafkaPeer, topic: str, records: int) -> float:
    """Kafka's perf producer in transactions of 100 ms."""
    return peer.produce_per_s(topic, records=records, size_bytes=SIZE_BYTES, transaction_ms=int(TRANSACTION_S * 1000))


def measure(options: argparse.Namespace, cluster: LocalCluster, peer: KafkaPeer | None, run: str) -> dict[str, Figure]:
    """Every figure."""
    rates: dict[str, list[float]] = {name: [] for name in ("plain", "transactional", "of plain", "peer", "read")}
    ours: list[float] = []
    theirs: list[float] = []
    by_record = peer is not None and confluent_is_there()
    plain, transactional, small = (f"{kind}-{run}" for kind in ("plain", "transactional", "small"))
    for warm_up in (plain_per_s, transactional_per_s):
        warm_up(cluster.bootstrap, small, min(options.records, WARM_UP_RECORDS))
    for _ in range(options.rounds):
        rates["plain"].append(plain_per_s(cluster.bootstrap, plain, options.records))
        rates["transactional"].append(transactional_per_s(cluster.bootstrap, transactional, options.records))
        rates["of plain"].append(rates["transactional"][-1] / rates["plain"][-1])
        ours += commits_ms(cluster.bootstrap, small, options.commits)
        levels = ("read_uncommitted", "read_committed")
        reads = [
            asyncio.run(read_per_s(cluster.bootstrap, transactional, options.records, isolation_level=level))
            for level in levels
        ]
        rates["read"].append(reads[1] / reads[0])
        if peer is not None:
            rates["peer"].append(peer_per_s(peer, transactional, options.records))
        if by_record:
            theirs += peer_commits_ms(small, options.commits)
    medians: dict[str, Any] = {name: statistics.median(found) if found else None for name, found in rates.items()}
    figures = {
        "txn_produce": Figure(medians["transactional"], "records/s", medians["peer"]),
        "txn_produce_of_plain": Figure(medians["of plain"], "ratio"),
    }
    for name, share in (("txn_commit_p50_ms", 0.5), ("txn_commit_p99_ms", 0.99)):
        of_peer = percentile(theirs, share) if theirs else None
        figures[name] = Figure(percentile(ours, share), "ms", of_peer, lower_is_better=True)
    figures["read_committed_of_plain"] = Figure(medians["read"], "ratio")
    of_plain = spark_of_plain(cluster.bootstrap, small, options.records, options.rounds)
    figures["spark_exactly_once_of_plain"] = Figure(of_plain, "ratio")
    return figures


def main() -> int:
    parser = flags_of("transactions", __doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=1_000_000, help="of each run of producing and reading")
    parser.add_argument("--commits", type=int, default=200, help="of each round")
    options = parser.parse_args()
    run = str(int(time.time()))
    with (
        kafka_peer() as peer,
        tempfile.TemporaryDirectory(prefix="tidemark-bench-") as directory,
        LocalCluster(Path(directory)) as cluster,
    ):
        with AdminClient(cluster.admin_address) as admin:
            for kind in ("plain", "transactional", "small"):
                admin.create_topic(f"{kind}-{run}", partitions=PARTITIONS, replication_factor=3)
                if peer is not None:
                    peer.call("topic", f"{kind}-{run}", str(PARTITIONS), "3")
        figures = measure(options, cluster, peer, run)
    report("transactions", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
