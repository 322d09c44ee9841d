# SPDX-License-Identifier: Apache-2.0
"""One process of `bench.many_clients`: pairs of a producer and a consumer, each a client with its own connections.

Pair n sends to partition n of the topic and reads that partition. The process prints a line of JSON when all clients
are connected, waits for a line on stdin, and prints another line of JSON when every acknowledged record has been read.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import resource
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidemark.client.aio import Consumer, Producer
from tidemark.model import TidemarkError
from tidemark.runtime.limits import raise_open_files

from bench.measuring.watching import usage

CONNECTING = 10
"""Number of clients of one process that connect at the same time."""
READ_TIMEOUT_S = 60.0
SIZE_BYTES = 100


@dataclass
class Found:
    """The results of all pairs of this process."""

    connect_s: list[float] = field(default_factory=list)
    acknowledge_ms: list[float] = field(default_factory=list)
    deliver_ms: list[float] = field(default_factory=list)
    sent: int = 0
    acknowledged: int = 0
    read: int = 0
    missing: int = 0
    failures: list[str] = field(default_factory=list)


class Pair:
    """A producer and a consumer of one partition."""

    def __init__(self, bootstrap: str, topic: str, partition: int, found: Found) -> None:
        self._producer = Producer(bootstrap, acks="all", linger_ms=0)
        self._consumer = Consumer(bootstrap)
        self._topic = topic
        self._partition = partition
        self._found = found
        self._sent = 0
        self._acknowledged: set[int] = set()
        self._read: set[int] = set()
        self._news = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Connect both clients, also to the partition's leader: send and read a first record."""
        began_s = time.perf_counter()
        await self._consumer.start()
        await self._consumer.assign(self._topic, partitions=[self._partition], start="earliest")
        self._reading = asyncio.create_task(self._keep_reading())
        await self._producer.start()
        await self._send()
        self._found.connect_s.append(time.perf_counter() - began_s)

    async def run(self, seconds: float, interval_s: float) -> None:
        """Send at this interval, then wait until every acknowledged record has been read."""
        until_s = time.monotonic() + seconds
        await asyncio.sleep(random.uniform(0, interval_s))
        while (began_s := time.monotonic()) < until_s:
            took_s = await self._send()
            self._found.acknowledge_ms.append(took_s * 1000)
            await asyncio.sleep(max(0.0, began_s + interval_s - time.monotonic()))
        with contextlib.suppress(TimeoutError):  # missing records are counted
            async with asyncio.timeout(READ_TIMEOUT_S):
                while not self._acknowledged <= self._read:
                    self._news.clear()
                    await self._news.wait()
        self._found.acknowledged += len(self._acknowledged)
        self._found.read += len(self._read)
        self._found.missing += len(self._acknowledged - self._read)

    async def _send(self) -> float:
        """Seconds until the record was acknowledged or refused."""
        began_s, number = time.perf_counter(), self._sent
        self._sent += 1
        self._found.sent += 1
        value = f"{number} {time.time_ns()} ".encode().ljust(SIZE_BYTES, b".")
        try:
            await (await self._producer.send(self._topic, value, partition=self._partition))
        except TidemarkError as error:
            self._found.failures.append(f"{error.code}: {error.message}")
        else:
            self._acknowledged.add(number)
        return time.perf_counter() - began_s

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        await self._producer.close()
        await self._consumer.close()

    async def _keep_reading(self) -> None:
        async for record in self._consumer:
            number, sent_ns, _ = (record.value or b"").split(b" ", 2)
            self._read.add(int(number))
            self._news.set()
            if int(number) > 0:  # the first record waits until all clients are connected
                self._found.deliver_ms.append((time.time_ns() - int(sent_ns)) / 1e6)


def shares(times: list[float]) -> dict[str, float]:
    """p50, p99 and the longest time."""
    ordered = sorted(times) or [0.0]
    return {
        name: ordered[min(len(ordered) - 1, int(share * len(ordered)))]
        for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    }


def tell(**fields: Any) -> None:
    own = {"rss_mb": usage(os.getpid()).rss_mb, "descriptors": len(list(Path("/proc/self/fd").iterdir()))}
    threads = len(list(Path("/proc/self/task").iterdir()))
    cpu = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({**fields, **own, "threads": threads, "cpu_s": cpu.ru_utime + cpu.ru_stime}), flush=True)


async def run(options: argparse.Namespace) -> None:
    found, slots = Found(), asyncio.Semaphore(CONNECTING)
    pairs = [Pair(options.bootstrap, options.topic, options.first + index, found) for index in range(options.pairs)]

    async def connect(pair: Pair) -> None:
        async with slots:
            await pair.connect()

    await asyncio.gather(*map(connect, pairs))
    tell(connect_s=shares(found.connect_s))
    await asyncio.to_thread(sys.stdin.readline)
    began_s = time.monotonic()
    await asyncio.gather(*(pair.run(options.seconds, options.interval) for pair in pairs))
    tell(
        acknowledge_ms=shares(found.acknowledge_ms),
        deliver_ms=shares(found.deliver_ms),
        sent=found.sent,
        acknowledged=found.acknowledged,
        read=found.read,
        missing=found.missing,
        failures=found.failures[:5],
        took_s=time.monotonic() - began_s,
    )
    await asyncio.to_thread(sys.stdin.readline)
    await asyncio.gather(*(pair.close() for pair in pairs))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.jobs.many_clients")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--first", type=int, required=True, help="partition of the first pair")
    parser.add_argument("--pairs", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--interval", type=float, required=True, help="seconds between two records of a producer")
    options = parser.parse_args()
    raise_open_files()
    asyncio.run(run(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
