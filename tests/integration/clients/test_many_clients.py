# SPDX-License-Identifier: Apache-2.0
"""Many clients at the same time, each with separate connections (in full: `make bench NAME=many_clients`)."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from pathlib import Path

from tidemark.client.aio import AdminClient, Consumer, Producer
from tidemark.local.cluster import LocalCluster, broker_name

from bench.stalls import BUSY, LATENESS, Watch

PAIRS = 50
RECORDS = 5
TOPIC = "many"
LEFT_OVER = 10
"""Connections of earlier clients that may still be there, and end or begin meanwhile."""


def sockets(cluster: LocalCluster) -> int:
    found = 0
    for index in range(3):
        for path in Path(f"/proc/{cluster.process(broker_name(index)).pid}/fd").iterdir():
            try:
                found += os.readlink(path).startswith("socket:")
            except FileNotFoundError:  # closed after the listing
                continue
    return found


async def pair(cluster: LocalCluster, partition: int, connected: asyncio.Barrier) -> list[bytes | None]:
    """Records that a consumer reads from a producer of this partition, while all others are connected, too."""
    async with Producer(cluster.bootstrap, acks="all") as producer, Consumer(cluster.bootstrap) as consumer:
        await consumer.assign(TOPIC, partitions=[partition], start="earliest")
        await (await producer.send(TOPIC, b"0", partition=partition))
        await connected.wait()
        for number in range(1, RECORDS):
            await (await producer.send(TOPIC, str(number).encode(), partition=partition))
        return [(await anext(consumer)).value for _ in range(RECORDS)]


async def test_each_of_many_consumers_reads_its_producers_records_and_brokers_free_all_state(
    cluster: LocalCluster,
) -> None:
    async with AdminClient(cluster.admin_address) as admin:
        await admin.create_topic(TOPIC, partitions=PAIRS + 1, replication_factor=3)
    async with asyncio.timeout(120):
        await pair(cluster, PAIRS, asyncio.Barrier(1))  # so that brokers know one another
        watch, before, connected = Watch(cluster), sockets(cluster), asyncio.Barrier(PAIRS + 1)
        reading = asyncio.gather(*(pair(cluster, partition, connected) for partition in range(PAIRS)))
        await connected.wait()
        assert sockets(cluster) >= before + 2 * PAIRS
        assert await reading == [[str(number).encode() for number in range(RECORDS)]] * PAIRS
    gc.collect()  # gRPC's calls are cycles that hold on to their channels
    found = watch.since()
    for name in cluster.names:
        for metric in (LATENESS, BUSY):
            assert max(found[name, metric].values(), default=0) > 0, f"{name} shows how late its event loop is"
    deadline_s = time.monotonic() + 30
    while (left := sockets(cluster) - before) > LEFT_OVER:
        assert time.monotonic() < deadline_s, f"{left} connections stay open after their clients have closed them"
        await asyncio.sleep(0.1)
