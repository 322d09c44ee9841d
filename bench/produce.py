# SPDX-License-Identifier: Apache-2.0
"""Producing 100-byte records to 6 partitions, RF 3, acks=all, on a cluster of three brokers on loopback.

`arrow_acks_all_per_s`: columns through the Arrow API; peer: Kafka's own perf producer, 64 KiB batches.
`records_acks_all_per_s`: one `send` for each record; peer: confluent-kafka from Python.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from tidemark.client import AdminClient, Producer
from tidemark.local.cluster import LocalCluster

from bench.measuring.figures import Figure, report
from bench.measuring.flags import flags_of
from bench.peers import BATCH_BYTES, confluent_is_there, confluent_per_s, kafka_peer

ROUNDS = 3
PARTITIONS = 6
SIZE_BYTES = 100
ARROW_RECORDS = 2_000_000
ARROW_BATCH_RECORDS = 20_000
SINGLE_RECORDS = 300_000
PEER_RECORDS = 1_000_000
FLUSH_TIMEOUT_S = 120


def arrow_per_s(
    bootstrap: str, topic: str, *, records: int = ARROW_RECORDS, size_bytes: int = SIZE_BYTES, **settings: Any
) -> float:
    """One run of the Arrow API, with tables of two megabytes and these `settings` of the producer."""
    rows = ARROW_BATCH_RECORDS * SIZE_BYTES // size_bytes
    table = pa.record_batch({"value": pa.array([bytes(size_bytes)] * rows, pa.binary())})
    tables = max(1, records // rows)
    with Producer(bootstrap, acks="all", **settings) as producer:
        started_s = time.perf_counter()
        for index in range(tables):
            producer.send_table(topic, table, partition=index % PARTITIONS)
        producer.flush(FLUSH_TIMEOUT_S)
        return tables * rows / (time.perf_counter() - started_s)


def records_per_s(bootstrap: str, topic: str, *, records: int = SINGLE_RECORDS) -> float:
    """One run with a `send` for each record."""
    value = bytes(SIZE_BYTES)
    with Producer(bootstrap, acks="all", batch_bytes=BATCH_BYTES) as producer:
        started_s = time.perf_counter()
        for _ in range(records):
            producer.send(topic, value)
        producer.flush(FLUSH_TIMEOUT_S)
        return records / (time.perf_counter() - started_s)


def main() -> int:
    """Best of the rounds; Tidemark and the peer take turns, so that other load of the machine affects both."""
    flags_of("produce", __doc__).parse_args()
    rates: dict[str, list[float]] = {name: [] for name in ("columns", "records", "peer columns", "peer records")}
    with (
        kafka_peer() as peer,
        tempfile.TemporaryDirectory(prefix="tidemark-bench-") as directory,
        LocalCluster(Path(directory)) as cluster,
    ):
        # The peer's directory may hold the topics of an earlier run.
        topics = [f"{kind}-{int(time.time())}" for kind in ("columns", "records")]
        with AdminClient(cluster.admin_address) as admin:
            for topic in topics:
                admin.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
                if peer is not None:
                    peer.call("topic", topic, str(PARTITIONS), "3")
        by_record = peer is not None and confluent_is_there()
        for _ in range(ROUNDS):
            rates["columns"].append(arrow_per_s(cluster.bootstrap, topics[0]))
            rates["records"].append(records_per_s(cluster.bootstrap, topics[1]))
            if peer is not None:
                rate = peer.produce_per_s(topics[0], records=PEER_RECORDS, size_bytes=SIZE_BYTES)
                rates["peer columns"].append(rate)
            if by_record:
                rate = confluent_per_s(topics[1], records=SINGLE_RECORDS, size_bytes=SIZE_BYTES)
                rates["peer records"].append(rate)
    best = {name: max(found, default=None) for name, found in rates.items()}
    figures = {
        "arrow_acks_all_per_s": Figure(max(rates["columns"]), "records/s", best["peer columns"]),
        "records_acks_all_per_s": Figure(max(rates["records"]), "records/s", best["peer records"]),
    }
    report("produce", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
