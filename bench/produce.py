"""Producing 100-byte records to 6 partitions, RF 3, acks=all, on a cluster of three brokers on loopback.

`arrow_acks_all_per_s`: columns through the Arrow API; peer: Kafka's own perf producer, 64 KiB batches.
`records_acks_all_per_s`: one `send` for each record; peer: confluent-kafka from Python.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
from tidemark.client import AdminClient, Producer
from tidemark.local.cluster import LocalCluster

from bench.figures import Figure, report
from bench.peers import ROUNDS, best_confluent_per_s, kafka_peer

PARTITIONS = 6
SIZE_BYTES = 100
ARROW_RECORDS = 2_000_000
ARROW_BATCH_RECORDS = 20_000
SINGLE_RECORDS = 300_000
PEER_RECORDS = 1_000_000
FLUSH_TIMEOUT_S = 120


def arrow_per_s(bootstrap: str, topic: str) -> float:
    table = pa.record_batch({"value": pa.array([bytes(SIZE_BYTES)] * ARROW_BATCH_RECORDS, pa.binary())})
    with Producer(bootstrap, acks="all") as producer:
        started_s = time.perf_counter()
        for index in range(ARROW_RECORDS // ARROW_BATCH_RECORDS):
            producer.send_table(topic, table, partition=index % PARTITIONS)
        producer.flush(FLUSH_TIMEOUT_S)
        return ARROW_RECORDS / (time.perf_counter() - started_s)


def records_per_s(bootstrap: str, topic: str) -> float:
    value = bytes(SIZE_BYTES)
    with Producer(bootstrap, acks="all") as producer:
        started_s = time.perf_counter()
        for _ in range(SINGLE_RECORDS):
            producer.send(topic, value)
        producer.flush(FLUSH_TIMEOUT_S)
        return SINGLE_RECORDS / (time.perf_counter() - started_s)


def ours() -> tuple[float, float]:
    """Best of the rounds, each with a cluster that has nothing else to do."""
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as directory, LocalCluster(Path(directory)) as cluster:
        with AdminClient(cluster.admin_address) as admin:
            for topic in ("columns", "records"):
                admin.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
        columns = max(arrow_per_s(cluster.bootstrap, "columns") for _ in range(ROUNDS))
        return columns, max(records_per_s(cluster.bootstrap, "records") for _ in range(ROUNDS))


def theirs() -> tuple[float | None, float | None]:
    with kafka_peer() as peer:
        if peer is None:
            return None, None
        for topic in ("columns", "records"):
            peer.call("topic", topic, str(PARTITIONS), "3")
        columns = peer.best_produce_per_s("columns", records=PEER_RECORDS, size_bytes=SIZE_BYTES)
        return columns, best_confluent_per_s("records", records=SINGLE_RECORDS, size_bytes=SIZE_BYTES)


def main() -> int:
    peer_columns, peer_records = theirs()
    columns, records = ours()
    figures = {
        "arrow_acks_all_per_s": Figure(columns, "records/s", peer_columns),
        "records_acks_all_per_s": Figure(records, "records/s", peer_records),
    }
    report("produce", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
