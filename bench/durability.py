# SPDX-License-Identifier: Apache-2.0
"""The cost of flushes: 100-byte records in 64 KiB Arrow batches, 6 partitions, RF 3, acks=all, three brokers.

One topic for each `flush.policy`, in turn; medians of the rounds. The peer is Kafka's own perf producer with the same
batches, to topics with the most similar flushes of Kafka (`THEIRS`); Tidemark and Kafka take turns too. All three
brokers of the benchmark share one disk, so each batch is flushed three times there, unlike on three machines.
Target: `group_commit_of_os`, the ratio of `group_commit_per_s` to `os_per_s`, at least 0.5 on a device whose fdatasync
takes 1 ms or less.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
from tidemark.client import AdminClient, Producer
from tidemark.local.cluster import LocalCluster

from bench.measuring.figures import Figure, report
from bench.measuring.flags import flags_of
from bench.peers import KafkaPeer, kafka_peer

ROUNDS = 5
PARTITIONS = 6
SIZE_BYTES = 100
BATCH_BYTES = 64 << 10
RECORDS = 600_000
TABLE_RECORDS = 20_000
WARM_UP_RECORDS = 120_000
FLUSH_TIMEOUT_S = 120
SYNCS = 40
POLICIES = ("os", "group-commit", "interval")
PEER_RECORDS = 1_000_000  # each run starts a new JVM, which needs time to warm up
THEIRS: dict[str, tuple[str, ...]] = {
    "os": (),
    "group-commit": ("--config", "flush.messages=1"),
    "interval": ("--config", "flush.ms=1000"),
}
"""Kafka's settings; Kafka has no group commit, and flushes each append separately before it answers."""


def produce_per_s(bootstrap: str, topic: str, records: int) -> float:
    table = pa.record_batch({"value": pa.array([bytes(SIZE_BYTES)] * TABLE_RECORDS, pa.binary())})
    with Producer(bootstrap, acks="all", batch_bytes=BATCH_BYTES) as producer:
        started_s = time.perf_counter()
        for index in range(records // TABLE_RECORDS):
            producer.send_table(topic, table, partition=index % PARTITIONS)
        producer.flush(FLUSH_TIMEOUT_S)
        return records / (time.perf_counter() - started_s)


def fdatasync_ms(directory: Path) -> list[float]:
    """Time in which the idle device makes one appended batch durable."""
    path = directory / "fdatasync"
    times_ms = []
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    try:
        for _ in range(SYNCS):
            os.write(descriptor, bytes(BATCH_BYTES))
            started_s = time.perf_counter()
            os.fdatasync(descriptor)
            times_ms.append((time.perf_counter() - started_s) * 1000)
    finally:
        os.close(descriptor)
        path.unlink()
    return times_ms


def make_topics(cluster: LocalCluster, peer: KafkaPeer | None) -> dict[str, str]:
    """Create one topic for each policy on both sides."""
    # the peer's directory may have topics of an earlier run
    topics = {policy: f"{policy}-{int(time.time())}" for policy in POLICIES}
    with AdminClient(cluster.admin_address) as admin:
        for policy, topic in topics.items():
            configs = {"flush.policy": policy}
            admin.create_topic(topic, partitions=PARTITIONS, replication_factor=3, configs=configs)
            if peer is not None:
                peer.call("topic", topic, str(PARTITIONS), "3", *THEIRS[policy])
    return topics


def measure(
    cluster: LocalCluster, peer: KafkaPeer | None, directory: Path
) -> tuple[dict[str, list[float]], dict[str, list[float]], list[float]]:
    """(Tidemark, Kafka, fdatasync): records/s of each round by policy, and milliseconds."""
    topics = make_topics(cluster, peer)
    ours: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    theirs: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    syncs_ms: list[float] = []
    for topic in topics.values():
        produce_per_s(cluster.bootstrap, topic, WARM_UP_RECORDS)
        if peer is not None:
            peer.produce_per_s(topic, records=WARM_UP_RECORDS, size_bytes=SIZE_BYTES)
    for number in range(ROUNDS):
        os.sync()  # flush the data of the previous round before this one
        syncs_ms += fdatasync_ms(directory)
        turn = number % len(POLICIES)
        for policy in POLICIES[turn:] + POLICIES[:turn]:
            ours[policy].append(produce_per_s(cluster.bootstrap, topics[policy], RECORDS))
            os.sync()
            if peer is not None:
                rate = peer.produce_per_s(topics[policy], records=PEER_RECORDS, size_bytes=SIZE_BYTES)
                theirs[policy].append(rate)
                os.sync()
    return ours, theirs, syncs_ms


def main() -> int:
    flags_of("durability", __doc__).parse_args()
    with (
        kafka_peer() as peer,
        tempfile.TemporaryDirectory(prefix="tidemark-bench-") as directory,
        LocalCluster(Path(directory)) as cluster,
    ):
        ours, theirs, syncs_ms = measure(cluster, peer, Path(directory))
    print(f"one fdatasync of {BATCH_BYTES >> 10} KiB takes {statistics.median(syncs_ms):.2f} ms here (median)")
    figures = {
        f"{policy.replace('-', '_')}_per_s": Figure(
            statistics.median(ours[policy]), "records/s", statistics.median(theirs[policy]) if theirs[policy] else None
        )
        for policy in POLICIES
    }
    default, committed = figures["os_per_s"], figures["group_commit_per_s"]
    share = committed.peer / default.peer if committed.peer and default.peer else None
    figures["group_commit_of_os"] = Figure(committed.value / default.value, "of os_per_s", share)
    report("durability", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
