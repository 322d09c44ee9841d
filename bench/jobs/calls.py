# SPDX-License-Identifier: Apache-2.0
"""Function calls of one record at a time, acks=all, RF 3: of the client, the leader and a follower.

Other programs on the machine hardly change these counts. cProfile counts the event loop of each process and the append
thread of each broker. The calls of an idle process in the same time are subtracted. The client's calls are those of a
producer, a consumer and the loop of this benchmark.

    python -m bench.jobs.calls [rounds]
"""

from __future__ import annotations

import asyncio
import cProfile
import json
import os
import runpy
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from tidemark.client.aio import Consumer, Producer
from tidemark.local.cluster import LocalCluster, broker_name

RECORDS: Final = 300
WARM_UP: Final = 300
IDLE_S: Final = 3.0
SIZE_BYTES: Final = 100
TOPIC: Final = "calls"
_SNAPSHOT_S: Final = 0.01
_CREATE: Final = """
from tidemark.client import AdminClient
with AdminClient({address!r}) as admin:
    admin.create_topic({topic!r}, partitions=1, replication_factor=3)
"""


def count(profile: cProfile.Profile) -> int:
    """Calls that a profile has counted."""
    return sum(entry.callcount for entry in profile.getstats())


def run_counted(directory: Path, module: str, arguments: list[str]) -> None:
    """Run a service in this process; each SIGUSR1 writes the number of its calls so far to a file."""
    profiles = [cProfile.Profile()]
    run = threading.Thread.run

    def run_profiled(thread: threading.Thread) -> None:
        if thread.name.startswith("append-"):
            profiles.append(cProfile.Profile())
            profiles[-1].enable()
        run(thread)

    def write(*_: object) -> None:
        profiles[0].disable()
        path = directory / f"{os.getpid()}.new"
        path.write_text(str(sum(map(count, profiles))), encoding="utf-8")
        path.rename(directory / str(os.getpid()))
        profiles[0].enable()

    threading.Thread.run = run_profiled  # type: ignore[method-assign, assignment]
    signal.signal(signal.SIGUSR1, write)
    sys.argv = [module, *arguments]
    profiles[0].enable()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


async def calls_until_now(directory: Path, pids: list[int]) -> list[int]:
    """Calls of each broker since its start."""
    for pid in pids:
        os.kill(pid, signal.SIGUSR1)
    found = []
    for pid in pids:
        path = directory / str(pid)
        while not path.exists():  # noqa: ASYNC110 - another process makes the file
            await asyncio.sleep(_SNAPSHOT_S)
        found.append(int(path.read_text(encoding="utf-8")))
        path.unlink()
    return found


async def one_round(producer: Producer, consumer: Consumer, directory: Path, pids: list[int]) -> dict[str, float]:
    """Calls for a record, of each kind of process."""
    before, idle, busy = await calls_until_now(directory, pids), cProfile.Profile(), cProfile.Profile()
    with idle:
        await asyncio.sleep(IDLE_S)
    between, began_s = await calls_until_now(directory, pids), time.perf_counter()
    with busy:
        await send(producer, consumer, RECORDS)
    idle_share = (time.perf_counter() - began_s) / IDLE_S
    after = await calls_until_now(directory, pids)
    starts = zip(before, between, after, strict=True)
    brokers = sorted((last - middle - (middle - first) * idle_share) / RECORDS for first, middle, last in starts)
    return {
        "client": (count(busy) - count(idle) * idle_share) / RECORDS,
        "leader": brokers[-1],
        "follower": statistics.mean(brokers[:-1]),
    }


async def send(producer: Producer, consumer: Consumer, records: int) -> None:
    """Send records one after another, each when the consumer has the one before."""
    for _ in range(records):
        await (await producer.send(TOPIC, bytes(SIZE_BYTES), partition=0))
        await anext(consumer)


async def measure(cluster: LocalCluster, directory: Path, rounds: int) -> list[dict[str, float]]:
    """Calls for a record, of each round."""
    pids = [cluster.process(broker_name(index)).pid for index in range(3)]
    async with (
        Producer(cluster.bootstrap, acks="all", linger_ms=0) as producer,
        Consumer(cluster.bootstrap) as consumer,
    ):
        await consumer.assign(TOPIC, start="latest")
        await send(producer, consumer, WARM_UP)
        return [await one_round(producer, consumer, directory, pids) for _ in range(rounds)]


def main(rounds: int) -> None:
    """Print the median of each count."""
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as made:
        directory = Path(made)
        launcher = [sys.executable, "-m", "bench.jobs.calls", "--within", made]
        launchers = {broker_name(index): launcher for index in range(3)}
        with LocalCluster(directory / "cluster", launchers=launchers) as cluster:
            # In a process of its own: a second event loop with gRPC would cost this one more calls.
            create = _CREATE.format(address=cluster.admin_address, topic=TOPIC)
            subprocess.run([sys.executable, "-c", create], check=True)
            found = asyncio.run(measure(cluster, directory, rounds))
    print(json.dumps({name: round(statistics.median(one[name] for one in found)) for name in found[0]}))


if __name__ == "__main__":
    if "--within" in sys.argv:
        at = sys.argv.index("--within") + 1
        run_counted(Path(sys.argv[at]), sys.argv[at + 3], sys.argv[at + 4 :])  # after: python -m <module> <arguments>
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
