# SPDX-License-Identifier: Apache-2.0
"""An application that computes between its calls, and awaits nothing else, leaves other tasks their turns."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidemark.client.aio import Consumer, Producer
from tidemark.client.records import ConsumerRecord

from tests.turns import counted_turns

RECORD = ConsumerRecord("a", 0, 7, 0, None, b"", ())


@pytest.fixture
def compute(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Computing takes a millisecond."""
    now_s = [time.perf_counter()]
    monkeypatch.setattr(time, "perf_counter", lambda: now_s[0])

    def compute() -> None:
        now_s[0] += 0.001

    return compute


async def test_a_producer_sends_while_the_application_computes(compute: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise records would expire in the buffer: the error would say that no broker answered."""
    producer = Producer("127.0.0.1:1")
    producer._sender = cast(Any, SimpleNamespace(transaction=None))
    lane = SimpleNamespace(send=lambda key, value: RECORD, send_some=lambda records, handles: handles.extend(records))
    producer.lanes.now["a"] = cast(Any, lane)
    async with counted_turns() as counted:
        for _ in range(100):
            compute()
            await producer.send("a", b"")
        assert 5 <= len(counted) <= 20
        for _ in range(100):
            compute()
            await producer.send_many("a", [(None, b"")])
        assert 10 <= len(counted) <= 40


@pytest.mark.parametrize("reads", ["records", "batches", "lists"])
async def test_a_member_sends_heartbeats_while_the_application_computes(compute: Any, reads: str) -> None:
    """Otherwise its session would end while rows are buffered, and the group would give them to another member."""
    consumer = Consumer("127.0.0.1:1")
    consumer._started = consumer._typed_topics = cast(Any, SimpleNamespace(want=lambda columns: None))
    one = {"next_of_held": lambda: RECORD, "next_batch": lambda: RECORD, "next_records": lambda most: [RECORD]}
    consumer._delivery = cast(Any, SimpleNamespace(done=lambda: None, **one))
    read: dict[str, Any] = {
        "records": lambda: anext(consumer),
        "batches": consumer.poll,
        "lists": consumer.poll_records,
    }
    async with counted_turns() as counted:
        for _ in range(100):
            compute()
            assert await read[reads]()
        assert 5 <= len(counted) <= 20
