# SPDX-License-Identifier: Apache-2.0
"""The lateness of the event loops of brokers and controllers: in steady produce and fetch, and in control events.

`steady_p999_ms`: under a steady load of produce and fetch, the 99.9th percentile (by time) of the lateness in the worst
    broker; `steady_busy_p999_ms`: the part of it that was that broker's own work, at most.
`<event>_ms`, `<event>_busy_ms`: the longest stall of any service that runs through an event: `create_topics` (1,000
    topics), `broker_failure` (kill -9), `restart` (of that broker, with its start), `shutdown` (SIGTERM),
    `controller_failover` (kill -9), `group` (500 members join one by one, and a tenth leaves), with N partitions of RF
        2.

Times are upper bounds of a histogram's buckets. A timer of 25 ms measures them, so a stall may appear up to 25 ms
shorter.
`--partitions N` (6,000), `--only EVENT ...`, `--seconds S` of steady load (20).
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
from tidemark.client import AdminClient
from tidemark.client.aio import Consumer, Producer
from tidemark.local.cluster import LocalCluster, broker_name, controller_name
from tidemark.model import host_port
from tidemark.v1 import group_service_pb2 as pb
from tidemark.v1.group_service_pb2_grpc import GroupServiceStub

from bench.measuring.cluster_counters import LEADING, is_in_sync
from bench.measuring.figures import Figure, report
from bench.measuring.flags import flags_of
from bench.measuring.watching import scrape, wait_until

BROKERS = 3
TOPIC_PARTITIONS = 1000
TOPICS = 1000
MEMBERS = 500
GROUP = "readers"
GROUP_PARTITIONS = 16
"""Partitions of the topic that stores groups."""
GROUP_ROUNDS = 12
"""Heartbeats of each member."""
TIMEOUT_S = 120.0
SETTLE_S = 2.0
RECORDS_PER_S = 20_000
SIZE_BYTES = 100
CONFIGS = {"min.insync.replicas": "1"}
LATENESS = "tidemark_event_loop_stall_seconds"
BUSY = "tidemark_event_loop_stall_busy_seconds"
PAUSES = "tidemark_gc_pause_seconds"

Histogram = dict[float, float]
"""Upper bound -> number of samples at or below it."""


def histogram(address: str, name: str) -> Histogram:
    """The current histogram; empty if the service does not answer."""
    return {
        float(labels[0]): value
        for (sample, labels), value in scrape(address, f"{name}_bucket").items()
        if sample == f"{name}_bucket"
    }


def share_ms(found: Histogram, share: float) -> float:
    """The bound in milliseconds for this share of the samples; 1 means all samples."""
    total = max(found.values(), default=0.0)
    return 1000 * min((bound for bound, count in found.items() if count >= share * total), default=0.0)


class Watch:
    """Samples of every service between two moments; a service that started in between counts from its start."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._before = self._all()

    def _all(self) -> dict[tuple[str, str], Histogram]:
        return {
            (name, metric): histogram(self._cluster.metrics_address(name), metric)
            for name in self._cluster.names
            for metric in (LATENESS, BUSY, PAUSES)
        }

    def since(self) -> dict[tuple[str, str], Histogram]:
        """Differences, by service and metric."""
        found = {}
        for key, now in self._all().items():
            before = self._before[key]
            restarted = before.get(float("inf"), 0.0) > now.get(float("inf"), 0.0)
            found[key] = now if restarted else {bound: count - before.get(bound, 0.0) for bound, count in now.items()}
        return found


class Arena:
    """The cluster under measurement, and the figures so far."""

    def __init__(self, cluster: LocalCluster, admin: AdminClient, runner: asyncio.Runner) -> None:
        self._runner = runner
        self.cluster = cluster
        self.admin = admin
        self.partitions = 0
        self.figures: dict[str, Figure] = {}

    def live(self) -> list[str]:
        return [name for index in range(BROKERS) if self.cluster.process(name := broker_name(index)).running]

    def is_in_sync(self) -> bool:
        """Whether every partition has a leader and all its replicas in sync."""
        return is_in_sync(self.cluster, self.live(), self.partitions)

    def wait_until_in_sync(self) -> None:
        wait_until("all replicas in sync", self.is_in_sync, timeout_s=TIMEOUT_S, interval_s=0.5)

    def all_led(self) -> bool:
        """Whether live brokers lead every partition, with or without all followers."""
        scraped = [scrape(self.cluster.metrics_address(name), LEADING) for name in self.live()]
        return sum(one.get((LEADING, ()), 0.0) for one in scraped) == self.partitions

    def fill(self, partitions: int) -> None:
        for index in range(partitions // TOPIC_PARTITIONS):
            self.admin.create_topic(f"fill-{index}", partitions=TOPIC_PARTITIONS, replication_factor=2, configs=CONFIGS)
            self.partitions += TOPIC_PARTITIONS
        self.wait_until_in_sync()

    def longest(self, event: str, happen: Callable[[], None]) -> None:
        """Record the longest stall of an event; prints a line with the stall of each service."""
        time.sleep(SETTLE_S)
        watch, began_s = Watch(self.cluster), time.monotonic()
        happen()
        time.sleep(SETTLE_S)
        found, took_s = watch.since(), time.monotonic() - began_s - SETTLE_S
        longest_ms = {key: share_ms(one, 1.0) for key, one in found.items()}
        for metric, suffix in ((LATENESS, ""), (BUSY, "_busy")):
            worst = max(value for (_, which), value in longest_ms.items() if which == metric)
            self.figures[f"{event}{suffix}_ms"] = Figure(worst, "ms", lower_is_better=True)
        by_service = ", ".join(
            f"{name} {longest_ms[name, LATENESS]:.0f}/{longest_ms[name, BUSY]:.0f}/{longest_ms[name, PAUSES]:.0f}"
            for name in self.cluster.names
        )
        print(f"{event}: {took_s:.1f} s, load {os.getloadavg()[0]:.1f}; longest late/busy/gc ms: {by_service}")

    def steady(self, seconds: float) -> None:
        """Produce and fetch at a rate well below the limit of the machine."""
        self.admin.create_topic("steady", partitions=6, replication_factor=3)
        self.partitions += 6
        self.wait_until_in_sync()
        self._runner.run(flow(self.cluster.bootstrap, 3.0))
        watch = Watch(self.cluster)
        passed = self._runner.run(flow(self.cluster.bootstrap, seconds))
        found = watch.since()
        names = [broker_name(index) for index in range(BROKERS)]
        for metric, suffix in ((LATENESS, ""), (BUSY, "_busy")):
            shares = {
                name: (share_ms(found[name, metric], 0.999), share_ms(found[name, metric], 1.0)) for name in names
            }
            worst = max(shares.values())[0]
            self.figures[f"steady{suffix}_p999_ms"] = Figure(worst, "ms", lower_is_better=True)
            print(f"steady{suffix}: {passed / seconds:,.0f} records/s; p99.9 and longest, ms: {shares}")

    def create_topics(self) -> None:
        for index in range(TOPICS):
            self.admin.create_topic(f"one-{index}", partitions=1, replication_factor=2, configs=CONFIGS)
        self.partitions += TOPICS
        self.wait_until_in_sync()

    def broker_failure(self) -> None:
        self.cluster.kill(broker_name(0))
        wait_until("new leaders for all", self.all_led, timeout_s=TIMEOUT_S, interval_s=0.5)
        wait_until("deregistered", lambda: 0 not in self.admin.describe_cluster().view.brokers, timeout_s=TIMEOUT_S)

    def restart(self) -> None:
        if self.cluster.process(broker_name(0)).running:
            self.cluster.terminate(broker_name(0), timeout_s=TIMEOUT_S)
        self.cluster.process(broker_name(0)).start()
        self.wait_until_in_sync()

    def shutdown(self) -> None:
        self.cluster.terminate(broker_name(1), timeout_s=TIMEOUT_S)

    def group(self) -> None:
        self._runner.run(rebalance(self.cluster))
        self.partitions += GROUP_PARTITIONS

    def controller_failover(self) -> None:
        old = controller_name(self.admin.describe_cluster().view.controller_id - 100)
        self.cluster.kill(old)
        wait_until(
            "another controller",
            lambda: controller_name(self.admin.describe_cluster().view.controller_id - 100) != old,
            timeout_s=TIMEOUT_S,
        )
        self.cluster.restart(old)


class Member:
    """A group member, as its coordinator sees it: it follows each assignment immediately."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub
        self._id = uuid.uuid4().hex
        self.epoch = 0
        self.owned = pb.GroupPartitions()

    async def beat(self) -> None:
        request = pb.GroupHeartbeatRequest(group_id=GROUP, member_id=self._id, member_epoch=self.epoch)
        if self.epoch >= 0:
            request.rebalance_timeout_ms = 60_000
            request.subscription.topics.append("fill-0")
            request.owned.CopyFrom(self.owned)
        answer = await self._stub.GroupHeartbeat(request, timeout=TIMEOUT_S)
        self.epoch = answer.member_epoch
        if answer.HasField("assignment"):
            self.owned.CopyFrom(answer.assignment)

    async def leave(self) -> None:
        self.epoch = -1
        await self.beat()


async def rebalance(cluster: LocalCluster) -> None:
    """`MEMBERS` join, the last tenth leaves; heartbeats until every partition is assigned."""
    async with AsyncExitStack() as opened:
        first = await opened.enter_async_context(grpc.aio.insecure_channel(cluster.address(broker_name(0))))
        stub: Any = GroupServiceStub(first)
        while True:
            (found,) = (await stub.FindCoordinator(pb.FindCoordinatorRequest(group_ids=[GROUP]))).coordinators
            if found.broker_id >= 0:
                break
            await asyncio.sleep(0.2)
        address = host_port(found.host, found.port)
        stub = GroupServiceStub(await opened.enter_async_context(grpc.aio.insecure_channel(address)))
        await asyncio.sleep(SETTLE_S)
        members = [Member(stub) for _ in range(MEMBERS)]
        await asyncio.gather(*(member.beat() for member in members))
        gone = members[-MEMBERS // 10 :]
        for round_number in range(GROUP_ROUNDS):
            if round_number == GROUP_ROUNDS // 2:
                await asyncio.gather(*(member.leave() for member in gone))
                members = members[: -len(gone)]
            await asyncio.gather(*(member.beat() for member in members))
            await asyncio.sleep(0.5)
        shared = sum(len(topic.partitions) for member in members for topic in member.owned.topics)
        print(f"group: {len(members)} members share {shared} of {TOPIC_PARTITIONS} partitions")


async def flow(bootstrap: str, seconds: float) -> int:
    """Number of records read in this time, at `RECORDS_PER_S` if possible."""
    passed = 0
    async with Producer(bootstrap, acks="all") as producer, Consumer(bootstrap) as consumer:
        await consumer.assign("steady", start="latest")

        async def consume() -> None:
            nonlocal passed
            async for _ in consumer:
                passed += 1

        reading = asyncio.create_task(consume())
        began_s, sent, value = time.monotonic(), 0, bytes(SIZE_BYTES)
        while (at_s := time.monotonic() - began_s) < seconds:
            while sent < at_s * RECORDS_PER_S:
                await producer.send("steady", value)
                sent += 1
            await asyncio.sleep(0.005)
        await producer.flush()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    return passed


def main() -> int:
    events = ("group", "create_topics", "broker_failure", "restart", "shutdown", "controller_failover")
    parser = flags_of("stalls", __doc__)
    parser.add_argument("--partitions", type=int, default=6_000, metavar="N", help="a multiple of 1,000")
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S", help="duration of the steady load")
    parser.add_argument(
        "--only", nargs="*", default=("steady", *events), metavar="EVENT", help="of steady, " + ", ".join(events)
    )
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="tidemark-bench-") as directory,
        LocalCluster(Path(directory), brokers=BROKERS) as cluster,
        AdminClient(cluster.admin_address, timeout_s=TIMEOUT_S) as admin,
        asyncio.Runner() as runner,
    ):
        arena = Arena(cluster, admin, runner)
        if "steady" in options.only:
            arena.steady(options.seconds)
        if options.partitions:
            arena.longest("fill", lambda: arena.fill(options.partitions))
        for event in events:
            if event in options.only:
                arena.longest(event, getattr(arena, event))
    report("stalls", arena.figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
