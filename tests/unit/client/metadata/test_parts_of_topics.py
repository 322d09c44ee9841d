# SPDX-License-Identifier: Apache-2.0
"""A new topic of which the metadata has the first partitions only: clients count all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tidemark.client.aio.producer import Producer
from tidemark.client.metadata.cluster import Cluster
from tidemark.client.producing.partitioner import partition_of
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView
from tidemark.model import BrokerRegistration, ErrorCode, TopicPartition

from tests.refusals import raises_code
from tests.turns import turns

TOPIC, COUNT = "orders", 8
BROKER = BrokerRegistration(0, "127.0.0.1", 1)


def told(cluster: Cluster, known: int, count: int = COUNT) -> None:
    """The metadata has the first `known` partitions of `count`."""
    partitions = {index: PartitionView(index, 0, 1, (0,), (0,)) for index in range(known)}
    cluster._merge(
        ClusterView(
            brokers={0: BROKER}, topics={TOPIC: TopicView(TOPIC, "id", 1, 1, partitions, partition_count=count)}
        )
    )


@pytest.fixture
async def producer(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Producer]:
    """Has the metadata of the first four partitions, and asks no broker."""

    async def started(_: Cluster) -> None: ...

    monkeypatch.setattr(Cluster, "start", started)
    monkeypatch.setattr(Cluster, "refresh", lambda _: None)
    async with Producer("127.0.0.1:1") as producer:
        told(producer.cluster, 4)
        yield producer


@pytest.fixture
def cluster(producer: Producer) -> Cluster:
    return producer.cluster


async def test_the_count_of_partitions_has_those_that_are_not_known_yet(cluster: Cluster) -> None:
    assert await cluster.partition_count(TOPIC, timeout_s=0.0, beyond=COUNT - 1) == COUNT


async def test_a_topic_is_given_with_its_partitions_once_they_are_known(cluster: Cluster) -> None:
    asked = asyncio.create_task(cluster.with_partitions(TOPIC, None, timeout_s=100))
    one = asyncio.create_task(cluster.with_partitions(TOPIC, [5], timeout_s=100))
    led = asyncio.create_task(cluster.leader_in_time(TopicPartition(TOPIC, 5), deadline_s=1e12))
    assert set((await cluster.with_partitions(TOPIC, [1, 3], timeout_s=0)).partitions) == set(range(4))
    await asyncio.sleep(0)
    assert not any(waiting.done() for waiting in (asked, one, led))
    told(cluster, 6)
    assert set((await one).partitions) == set(range(6))
    assert (await led).broker_id == 0
    assert not asked.done()
    told(cluster, COUNT)
    assert set((await asked).partitions) == set(range(COUNT))


async def test_a_topic_that_grows_meanwhile_is_given_with_its_new_partitions(cluster: Cluster) -> None:
    asked = asyncio.create_task(cluster.with_partitions(TOPIC, None, timeout_s=100))
    await asyncio.sleep(0)
    told(cluster, COUNT, COUNT + 4)
    await turns()
    told(cluster, COUNT + 4, COUNT + 4)
    assert set((await asked).partitions) == set(range(COUNT + 4))


async def test_a_partition_that_stays_unknown_is_an_error_in_time(cluster: Cluster) -> None:
    with raises_code(ErrorCode.LEADER_NOT_AVAILABLE, f"{TOPIC}-4"):
        await cluster.with_partitions(TOPIC, None, timeout_s=0.05)


async def test_a_key_has_the_same_partition_before_and_after_the_rest_is_known(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [b"key-%d" % number for number in range(50)]
    sent: list[tuple[int, int]] = []
    accumulator: Any = producer.sender.accumulator
    monkeypatch.setattr(accumulator, "add", lambda _, partition, count, *rest: sent.append((partition, count)))
    for known in (4, COUNT):
        told(producer.cluster, known)
        for key in keys:
            producer.send_now(TOPIC, b"v", key, None, None, None)
    assert sent == [(partition_of(key, COUNT), COUNT) for key in keys] * 2
