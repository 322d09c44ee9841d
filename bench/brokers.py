# SPDX-License-Identifier: Apache-2.0
"""The rate of one, two and three broker processes, each with a fixed share of a core.

`python -m bench brokers [--share 0.2] [--seconds 3] [--rounds 3]`: each broker runs in a control group of its own with
a quota, so that the clients keep the rest of the machine, and the brokers are the limit. 100-byte records in batches of
64 KiB to 6 partitions. Figures: `produce_N` and `consume_N` with one replica and N brokers, `produce_replicated_N`
with N replicas; and the CPU time of all brokers for a batch, in µs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from tidemark.client import AdminClient, Producer
from tidemark.client.aio import Consumer
from tidemark.local.cluster import LocalCluster, broker_name

from bench.measuring.figures import Figure, report
from bench.measuring.flags import flags_of
from bench.measuring.slowdown import QuotaGroup, own_group
from bench.measuring.watching import usage

BROKERS = (1, 2, 3)
PARTITIONS = 6
SIZE_BYTES = 100
BATCH_BYTES = 64 << 10
ROWS_PER_BATCH = 539
"""Rows that fill a batch of BATCH_BYTES."""
TABLE_ROWS = 20_000
FLUSH_TIMEOUT_S = 120.0
_JOIN = 'echo $$ > "$0"; exec "$@"'
"""A shell that joins the group, and becomes the service."""


class Rate(NamedTuple):
    """One phase.

    Attributes:
        per_s: records a second.
        cpu_us: CPU time of all brokers for a batch, in µs.
        loop_us: CPU time of the threads of their event loops for a batch, in µs.
        busy: CPU time of all brokers as a ratio to their total share.
    """

    per_s: float
    cpu_us: float
    loop_us: float
    busy: float


class Brokers:
    """A cluster whose brokers have a share of a core each."""

    def __init__(self, cluster: LocalCluster, count: int, share: float) -> None:
        self.bootstrap, self.count, self._share = cluster.bootstrap, count, share
        self._pids = [cluster.process(broker_name(index)).pid for index in range(count)]

    def _cpu_s(self) -> tuple[float, float]:
        """CPU time of all threads, and of the main threads, which have the event loops."""
        return sum(usage(pid).cpu_s for pid in self._pids), sum(usage(pid, pid).cpu_s for pid in self._pids)

    def _rate(self, records: int, started_s: float, before: tuple[float, float]) -> Rate:
        seconds, batches = time.perf_counter() - started_s, records / ROWS_PER_BATCH
        cpu_s, loop_s = (now - then for now, then in zip(self._cpu_s(), before, strict=True))
        busy = cpu_s / seconds / self._share / self.count
        return Rate(records / seconds, cpu_s / batches * 1e6, loop_s / batches * 1e6, busy)

    def produce(self, topic: str, seconds: float) -> Rate:
        """Tables through the Arrow API, `acks=all`, until all are acknowledged."""
        table = pa.record_batch({"value": pa.array([bytes(SIZE_BYTES)] * TABLE_ROWS, pa.binary())})
        with Producer(self.bootstrap, acks="all", batch_bytes=BATCH_BYTES) as producer:
            started_s, cpu_s, tables = time.perf_counter(), self._cpu_s(), 0
            while time.perf_counter() < started_s + seconds:
                producer.send_table(topic, table, partition=tables % PARTITIONS)
                tables += 1
            producer.flush(FLUSH_TIMEOUT_S)
            return self._rate(tables * TABLE_ROWS, started_s, cpu_s)

    def consume(self, topic: str, seconds: float) -> Rate:
        """Arrow batches from the start of the topic, repeatedly."""
        return asyncio.run(self._consume(topic, seconds))

    async def _consume(self, topic: str, seconds: float) -> Rate:
        async with Consumer(self.bootstrap) as consumer:
            await consumer.assign(topic)
            started_s, cpu_s, found = time.perf_counter(), self._cpu_s(), 0
            while time.perf_counter() < started_s + seconds:
                batch = await consumer.poll(0.2)
                if batch is None:
                    for index in range(PARTITIONS):
                        await consumer.seek((topic, index), "earliest")
                else:
                    found += batch.rows.num_rows
            return self._rate(found, started_s, cpu_s)


@contextlib.contextmanager
def brokers(count: int, share: float) -> Iterator[Brokers]:
    """A cluster with two topics: `plain` has one replica, `replicated` has `count`."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemark-bench-")))
        launchers = {}
        for index in range(count):
            try:
                group = QuotaGroup(len(os.sched_getaffinity(0)) / share, own_group(), broker_name(index))
            except OSError as why:
                sys.exit(f"bench brokers needs a control group with a CPU quota, as root has in most containers: {why}")
            stack.callback(group.remove)
            launchers[broker_name(index)] = ("sh", "-c", _JOIN, str(group.members))
        cluster = stack.enter_context(LocalCluster(directory, brokers=count, controllers=1, launchers=launchers))
        with AdminClient(cluster.admin_address) as admin:
            admin.create_topic("plain", partitions=PARTITIONS, replication_factor=1)
            admin.create_topic("replicated", partitions=PARTITIONS, replication_factor=count)
        yield Brokers(cluster, count, share)


def main() -> int:
    parser = flags_of("brokers", __doc__)
    parser.add_argument("--share", type=float, default=0.2, help="of a core, for each broker")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each phase")
    parser.add_argument("--rounds", type=int, default=3, help="figures are their medians")
    options = parser.parse_args()
    if not 0.05 <= options.share <= 1:
        parser.error(f"--share is {options.share:g}: from 0.05 to 1")
    figures: dict[str, Figure] = {}
    for count in BROKERS:
        with brokers(count, options.share) as running:
            phases = {f"produce_{count}": (running.produce, "plain"), f"consume_{count}": (running.consume, "plain")}
            if count > 1:
                phases[f"produce_replicated_{count}"] = (running.produce, "replicated")
            for name, (measure, topic) in phases.items():
                measure(topic, 1.0)
                rates = [measure(topic, options.seconds) for _ in range(options.rounds)]
                found = Rate(*map(statistics.median, zip(*rates, strict=True)))
                print(
                    f"{name}: {found.cpu_us:.0f} µs of CPU time a batch, {found.loop_us:.0f} of them in event loops; "
                    f"brokers use {found.busy:.0%} of their share",
                    flush=True,
                )
                figures[name] = Figure(found.per_s, "records/s")
                figures[f"{name}_cpu_us"] = Figure(found.cpu_us, "µs a batch", lower_is_better=True)
    report("brokers", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
