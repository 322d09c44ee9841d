# SPDX-License-Identifier: Apache-2.0
"""Other clients' times while a broker is attacked: each figure is the ratio of the p99 during an attack to the p99
without one.

A client sends a record every 5 ms to one broker and waits for its acknowledgement, before each attack and during it,
from the attack's first connection on. The broker has one core; the client and the attackers share the other one.
Figures: one for each attack of `attackers.ATTACKS`, and `memory_mb`, the largest growth of the broker. Target for the
    ratios: at most 2.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tidemark.client import AdminClient
from tidemark.client.aio import Producer
from tidemark.local.cluster import LocalCluster, broker_name

from bench.jobs.attackers import ATTACKS, TOPIC
from bench.measuring.figures import Figure, report
from bench.measuring.flags import flags_of
from bench.measuring.watching import usage

INTERVAL_S = 0.005
SIZE_BYTES = 100
WARM_UP_S = 3.0


async def times_ms(bootstrap: str, seconds: float) -> list[float]:
    """Milliseconds until the acknowledgement of each record; a late one delays the next, but not its due time."""
    found = []
    async with Producer(bootstrap, acks="all", linger_ms=0) as producer:
        await (await producer.send(TOPIC, bytes(SIZE_BYTES), partition=0))
        due_s = time.perf_counter()
        until_s = due_s + seconds
        while due_s < until_s:
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            await (await producer.send(TOPIC, bytes(SIZE_BYTES), partition=0))
            found.append((time.perf_counter() - due_s) * 1000)
            due_s += INTERVAL_S
    return found


def percentiles(times: list[float]) -> tuple[float, float, float]:
    """p50, p99 and the longest time."""
    cut = statistics.quantiles(times, n=100, method="inclusive")
    return cut[49], cut[98], max(times)


class Memory:
    """The largest memory of a process while this runs."""

    def __init__(self, pid: int) -> None:
        self._pid, self._ended = pid, threading.Event()
        self.before_mb = self.most_mb = usage(pid).rss_mb
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.1):
            self.most_mb = max(self.most_mb, usage(self._pid).rss_mb)


def main() -> int:
    parser = flags_of("attacks", __doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each attack, and of the time before it")
    parser.add_argument("--only", choices=ATTACKS, action="append", help="attacks; all without it")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        sys.exit("bench attacks needs two cores: one for the broker, one for the clients")
    os.sched_setaffinity(0, cores[1:2])
    launchers = {broker_name(0): ("taskset", "-c", str(cores[0]))}
    figures, grown = {}, 0.0
    with (
        tempfile.TemporaryDirectory(prefix="tidemark-bench-") as directory,
        LocalCluster(Path(directory), brokers=1, controllers=1, launchers=launchers) as cluster,
    ):
        with AdminClient(cluster.admin_address) as admin:
            admin.create_topic(TOPIC, partitions=1, replication_factor=1)
        asyncio.run(times_ms(cluster.bootstrap, WARM_UP_S))
        port = cluster.bootstrap.rpartition(":")[2]
        for name in options.only or ATTACKS:
            quiet = percentiles(asyncio.run(times_ms(cluster.bootstrap, options.seconds)))
            command = [sys.executable, "-m", "bench.jobs.attackers", name, port, str(options.seconds + 2)]
            with Memory(cluster.process(broker_name(0)).pid) as memory, contextlib.ExitStack() as stack:
                attackers = stack.enter_context(subprocess.Popen(command))
                during = percentiles(asyncio.run(times_ms(cluster.bootstrap, options.seconds)))
                attackers.wait()
            grown = max(grown, memory.most_mb - memory.before_mb)
            figures[name] = Figure(during[1] / quiet[1], "of the p99 without", lower_is_better=True)
            print(
                f"{name}: p50, p99, longest {' '.join(f'{ms:.2f}' for ms in quiet)} ms before, "
                f"{' '.join(f'{ms:.2f}' for ms in during)} ms during; {memory.most_mb - memory.before_mb:.0f} MB more",
                flush=True,
            )
    report("attacks", {**figures, "memory_mb": Figure(grown, "MB", lower_is_better=True)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
