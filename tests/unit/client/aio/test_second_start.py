# SPDX-License-Identifier: Apache-2.0
"""A client that is started by `start`, and again by `async with`."""

from __future__ import annotations

import asyncio

import pytest
from tidemark.client.aio import AdminClient, Consumer, Producer
from tidemark.client.metadata.cluster import Cluster


@pytest.fixture(autouse=True)
def without_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(_: Cluster) -> None:
        return

    monkeypatch.setattr(Cluster, "start", start)


async def test_the_sender_of_a_producer_stays() -> None:
    """Otherwise records of the first producer would have no outcome after the close."""
    producer = Producer("127.0.0.1:1")
    await producer.start()
    first = producer.sender
    async with producer:
        assert producer.sender is first
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_the_assignment_of_a_consumer_stays() -> None:
    consumer = Consumer("127.0.0.1:1")
    await consumer.start()
    first = consumer._fetcher
    async with consumer:
        assert consumer._fetcher is first
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_the_channel_of_an_admin_client_stays() -> None:
    admin = AdminClient(admin="127.0.0.1:1")
    await admin.start()
    first = admin._connection._channel
    async with admin:
        assert admin._connection._channel is first
