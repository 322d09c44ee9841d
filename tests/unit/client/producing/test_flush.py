# SPDX-License-Identifier: Apache-2.0
"""A flush waits for the records that were sent before it, while the application sends more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytest_asyncio
from tidemark.client.metadata.cluster import Cluster, Leader
from tidemark.client.metadata.used_topics import UsedTopics
from tidemark.client.producing import sender as senders
from tidemark.client.producing.batching import SendHandle
from tidemark.client.producing.produce_stream import Answer
from tidemark.client.producing.sender import Sender
from tidemark.client.settings import producer_settings
from tidemark.core.cluster_view import ClusterView
from tidemark.model import BrokerId, LeaderEpoch

from tests.turns import turns

_LEADER = Leader(BrokerId(1), "b:1", LeaderEpoch(2), "topic id", "first")
_CLUSTER = SimpleNamespace(
    view=ClusterView(),
    headers=(),
    leader=lambda partition: _LEADER,
    channel=lambda address: None,
    topic_now=lambda topic: None,
    listen=lambda listener: None,
    used=lambda address: None,
    use=lambda topic: None,
    used_topics=UsedTopics(),
)


class Broker:
    """The stream of the only leader; the test answers its requests."""

    broken = False

    def __init__(self) -> None:
        self.held: list[Callable[[], None]] = []

    def stream(self, address: str, channel: object, *, on_answer: Any, **_: Any) -> Broker:
        self._on_answer = on_answer
        return self

    def send(self, groups: Any) -> None:
        for attempt in (attempt for group in groups for attempt in group):
            self.held.append(lambda attempt=attempt: self._on_answer(Answer(attempt, 7, -1, None)))  # type: ignore[misc]

    def is_busy(self, now_s: float, requests_max: int) -> bool:
        return False

    def check_deadlines(self, now_s: float) -> None:
        return

    def break_off(self, error: object) -> None:
        return

    async def close(self) -> None:
        return


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker()
    monkeypatch.setattr(senders, "ProduceStream", made.stream)
    return made


@pytest_asyncio.fixture
async def sender(broker: Broker) -> AsyncIterator[Sender]:
    settings = producer_settings(enable_idempotence=False, linger_ms=60_000, delivery_timeout_ms=120_000)
    made = Sender(cast(Cluster, _CLUSTER), settings)
    made.start()
    yield made
    await made.stop()


def send(sender: Sender, partition: int) -> SendHandle:
    return sender.accumulator.add("orders", partition, 6, None, b"value", 1, None)


@pytest.mark.parametrize("partition", [0, 1])
async def test_flush_waits_for_earlier_records_only(sender: Sender, broker: Broker, partition: int) -> None:
    """Another thread that keeps sending would otherwise keep the flush waiting without end."""
    before = send(sender, 0)
    flushing = asyncio.create_task(sender.flush())
    await turns()
    later = send(sender, partition)
    await turns()
    assert not flushing.done()
    broker.held.pop(0)()
    async with asyncio.timeout(5):
        await flushing
    assert before.done()
    assert not later.done()


async def test_flush_of_a_close_waits_for_later_records_too(sender: Sender, broker: Broker) -> None:
    send(sender, 0)
    closing = asyncio.create_task(sender.flush(later=True))
    await turns()
    later = send(sender, 1)
    await turns()
    broker.held.pop(0)()
    await turns()
    assert not closing.done()
    broker.held.pop(0)()
    async with asyncio.timeout(5):
        await closing
    assert later.done()
