# SPDX-License-Identifier: Apache-2.0
"""The console with an admin service of 10,000 partitions, some of which change before each answer."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
from tidemark.core.cluster_view import PartitionView, TopicView
from tidemark.model import BrokerId, BrokerRegistration, LeaderEpoch
from tidemark.rpc.codecs.metadata import broker_to_proto, topic_to_proto
from tidemark.v1 import admin_service_pb2 as pb
from tidemark.v1 import metadata_pb2
from tidemark.v1.admin_service_pb2_grpc import AdminServiceServicer, add_AdminServiceServicer_to_server

from tests.integration.harness.console import console_of

TOPICS, PARTITIONS, BROKERS = 1_000, 10, 10
CHANGES = 10
"""Topics that change between two answers."""
PAGES = ("/", "/topics", "/topics?sort=out-of-sync", "/topics?q=99", "/brokers")
ROUNDS = 20
REFRESH_MS = "200"
ANSWER_S = 0.3
SLOWNESS = 4
"""The factor of a slow machine."""


@dataclass
class Cluster:
    """The part of a cluster that a console needs."""

    bootstrap: str


def topic(number: int, in_sync: int = 3) -> metadata_pb2.TopicMetadata:
    """A topic whose partitions have this number of in-sync replicas."""
    partitions = {}
    for index in range(PARTITIONS):
        replicas = tuple(BrokerId((number + index + one) % BROKERS) for one in range(3))
        partitions[index] = PartitionView(index, replicas[0], LeaderEpoch(5), replicas, replicas[:in_sync])
    return topic_to_proto(TopicView(f"topic-{number:04}", f"id{number}", partitions=partitions))


class AdminOfManyPartitions(AdminServiceServicer):
    """Answers the questions of the pages."""

    def __init__(self) -> None:
        self._topics = [topic(number) for number in range(TOPICS)]
        self._turns = itertools.count()

    async def DescribeTopics(self, request: Any, context: Any) -> pb.DescribeTopicsResponse:  # noqa: N802
        turn = next(self._turns)
        for number in range(turn * CHANGES, (turn + 1) * CHANGES):
            self._topics[number % TOPICS] = topic(number % TOPICS, 2 + turn % 2)
        return pb.DescribeTopicsResponse(topics=self._topics)

    async def DescribeCluster(self, request: Any, context: Any) -> pb.DescribeClusterResponse:  # noqa: N802
        registered = (BrokerRegistration(BrokerId(one), "localhost", 9000 + one) for one in range(BROKERS))
        metadata = metadata_pb2.ClusterMetadata(cluster_id="c", controller_id=100)
        metadata.brokers.extend(map(broker_to_proto, registered))
        count = TOPICS * PARTITIONS
        return pb.DescribeClusterResponse(metadata=metadata, topic_count=TOPICS, partition_count=count)

    async def DescribeLogDirs(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        for _ in ():
            yield


async def test_the_pages_of_10_000_partitions_answer_while_they_are_refreshed(tmp_path: Path) -> None:
    server = grpc.aio.server()
    add_AdminServiceServicer_to_server(AdminOfManyPartitions(), server)
    cluster: Any = Cluster(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    await server.start()
    took_s: dict[str, list[float]] = {page: [] for page in PAGES}
    try:
        with console_of(cluster, tmp_path, console_refresh_ms=REFRESH_MS) as console:
            async with httpx.AsyncClient(base_url=console.url, timeout=60) as client:
                await client.get(PAGES[0])

                async def tab(page: str) -> None:
                    for _ in range(ROUNDS):
                        began_s = time.monotonic()
                        answer = await client.get(page)
                        took_s[page].append(time.monotonic() - began_s)
                        assert answer.status_code == 200
                        await asyncio.sleep(0.1)

                await asyncio.gather(*map(tab, PAGES))
    finally:
        await server.stop(0)
    slowest = {page: max(times) for page, times in took_s.items()}
    assert max(slowest.values()) < SLOWNESS * ANSWER_S, slowest
