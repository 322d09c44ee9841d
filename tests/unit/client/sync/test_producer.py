# SPDX-License-Identifier: Apache-2.0
"""Sends of the blocking producer that wait for room in the buffer; no broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from tidemark.client import Producer
from tidemark.client.aio.producer import Producer as AsyncProducer
from tidemark.client.producing.accumulator import Accumulator
from tidemark.client.sync import producer_consumer
from tidemark.model import ErrorCode

from tests.refusals import raises_code

PATIENCE_S = 30.0


class Full(AsyncProducer):
    """The buffer is full after each batch; no record is sent."""

    async def start(self) -> None:
        gathering = Accumulator(batch_bytes=1 << 10, buffer_bytes=1, delivery_timeout_s=60, wake=lambda: None)
        self._sender = cast(Any, SimpleNamespace(accumulator=gathering, transaction=object(), wait_for_room=self.wait))
        self._formats = cast(Any, SimpleNamespace(now=lambda _: None, current=lambda *_: None))

    async def wait(self) -> None:
        await asyncio.sleep(0.05)
        self.sender.accumulator.release(self.sender.accumulator.buffered_bytes)

    async def close(self, timeout_s: float | None = None) -> None:
        await self.cluster.close()

    async def ready(self, topic: str, *, beyond: int = -1) -> int:
        return 1


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Producer]:
    monkeypatch.setattr(producer_consumer, "AsyncProducer", Full)
    with Producer("127.0.0.1:1", batch_bytes=1 << 10) as made:
        yield made


def test_a_send_that_waited_for_room_until_the_next_transaction_is_refused(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record would belong to the other transaction, and share its outcome."""
    sender, waits = producer._client.sender, Event()
    gathering = sender.accumulator
    wait_for_room = gathering.wait_for_room

    def noted(timeout_s: float) -> None:
        waits.set()
        wait_for_room(timeout_s)

    monkeypatch.setattr(gathering, "wait_for_room", noted)
    producer.send("t", b"of the first transaction")
    with ThreadPoolExecutor(1) as other:
        sending = other.submit(producer.send, "t", b"of the first transaction, too")
        assert waits.wait(PATIENCE_S)
        sender.transaction = cast(Any, object())
        gathering.release(gathering.buffered_bytes)
        with raises_code(ErrorCode.INVALID_TXN_STATE):
            sending.result(PATIENCE_S)
    assert sum(batch.count for batch in gathering.take_closed(lambda _: True)) == 1


def test_a_table_may_take_longer_than_the_delivery_timeout_of_one_batch(producer: Producer) -> None:
    """The producer bounds each wait for room; the wait for a large table has as many of them as batches."""
    producer._call_s = 0.01
    producer.send_table("t", pa.table({"value": [bytes(600)] * 5}))
    assert len(producer._client.sender.accumulator.take_closed(lambda _: True)) == 5
