"""What flushing to disk costs: 100-byte records in 64 KiB Arrow batches, 6 partitions, RF 3, acks=all, three brokers.

One topic for each `flush.policy`, taking turns. `os_per_s` is the default; it is the peer of the other two. All
three brokers of the benchmark share one disk, so each batch is flushed three times there; on three machines it is not.
Goal: `group_commit_per_s` at least half of `os_per_s` where the device's fdatasync takes 1 ms or less.
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

from bench.figures import Figure, report

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


def produce_per_s(bootstrap: str, topic: str, records: int) -> float:
    table = pa.record_batch({"value": pa.array([bytes(SIZE_BYTES)] * TABLE_RECORDS, pa.binary())})
    with Producer(bootstrap, acks="all", batch_bytes=BATCH_BYTES) as producer:
        started_s = time.perf_counter()
        for index in range(records // TABLE_RECORDS):
            producer.send_table(topic, table, partition=index % PARTITIONS)
        producer.flush(FLUSH_TIMEOUT_S)
        return records / (time.perf_counter() - started_s)


def fdatasync_ms(directory: Path) -> list[float]:
    """How long the device takes to make one appended batch durable, with nothing else to do."""
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


def main() -> int:
    """Medians of the rounds; the policies take turns, so that whatever else the machine does befalls all."""
    rates: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    syncs_ms: list[float] = []
    with (
        tempfile.TemporaryDirectory(prefix="tidemark-bench-") as directory,
        LocalCluster(Path(directory)) as cluster,
    ):
        with AdminClient(cluster.admin_address) as admin:
            for policy in POLICIES:
                admin.create_topic(
                    policy, partitions=PARTITIONS, replication_factor=3, configs={"flush.policy": policy}
                )
        for policy in POLICIES:
            produce_per_s(cluster.bootstrap, policy, WARM_UP_RECORDS)
        for number in range(ROUNDS):
            os.sync()  # what the round before left to the kernel is not this one's burden
            syncs_ms += fdatasync_ms(Path(directory))
            turn = number % len(POLICIES)
            for policy in POLICIES[turn:] + POLICIES[:turn]:
                rates[policy].append(produce_per_s(cluster.bootstrap, policy, RECORDS))
                os.sync()
    print(f"one fdatasync of {BATCH_BYTES >> 10} KiB takes {statistics.median(syncs_ms):.2f} ms here (median)")
    default = statistics.median(rates["os"])
    figures = {
        f"{policy.replace('-', '_')}_per_s": Figure(
            statistics.median(found), "records/s", None if policy == "os" else default
        )
        for policy, found in rates.items()
    }
    report("durability", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
