# SPDX-License-Identifier: Apache-2.0
"""Clients on short-lived event loops, while other threads run theirs: each works, and leaves no task or connection."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest
from tidemark.client import Consumer, Producer, aio

from tests.integration.harness.fake_broker import TOPIC, FakeCluster

ROUNDS = 25


async def send_and_read(bootstrap: str) -> None:
    async with aio.Producer(bootstrap) as producer:
        await (await producer.send(TOPIC, b"x"))
    async with aio.Consumer(bootstrap) as consumer:
        await consumer.assign(TOPIC)
        assert await consumer.poll(10) is not None


async def test_event_loops_that_come_and_go_beside_a_blocking_client_fail_in_no_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with FakeCluster() as cluster:

        def many_loops() -> None:
            with Producer(cluster.bootstrap) as producer, Consumer(cluster.bootstrap) as consumer:
                consumer.assign(TOPIC)
                for _ in range(ROUNDS):
                    asyncio.run(send_and_read(cluster.bootstrap))
                    producer.send(TOPIC, b"y").result(10)
                    assert consumer.poll(10) is not None

        with caplog.at_level(logging.WARNING):
            await asyncio.to_thread(many_loops)
    assert [record.getMessage() for record in caplog.records] == []


async def test_two_event_loops_at_once_each_have_clients_of_their_own() -> None:
    async with FakeCluster() as cluster:
        failures: list[BaseException] = []

        def one_loop() -> None:
            try:
                for _ in range(3):
                    asyncio.run(send_and_read(cluster.bootstrap))
            except BaseException as error:
                failures.append(error)
                raise

        threads = [threading.Thread(target=one_loop) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
    assert failures == []
