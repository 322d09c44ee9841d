# SPDX-License-Identifier: Apache-2.0
"""A producer keeps nothing of topics that it no longer writes to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from tidemark.client.metadata.cluster import Leader
from tidemark.client.metadata.used_topics import IDLE_S, UsedTopics
from tidemark.client.producing import sender as senders
from tidemark.client.producing.produce_stream import Answer, Attempt
from tidemark.client.producing.sender import Sender
from tidemark.client.settings import producer_settings
from tidemark.core.cluster_view import ClusterView
from tidemark.model import BrokerId, ErrorCode, LeaderEpoch, TidemarkError

from tests.turns import turns

_LEADER = Leader(BrokerId(1), "b:1", LeaderEpoch(2), "topic id", "first")
_REFUSED = TidemarkError(ErrorCode.NOT_ENOUGH_REPLICAS, "refused")


class World:
    """A sender, and the attempts at the only leader without answers."""

    def __init__(self) -> None:
        self.used_topics = UsedTopics()
        self.cluster: Any = SimpleNamespace(
            view=ClusterView(),
            headers=(),
            leader=lambda partition: _LEADER,
            channel=lambda address: None,
            topic_now=lambda topic: None,
            listen=lambda listener: None,
            used=lambda address: None,
            use=lambda topic: self.used_topics.use(topic, 0.0),
            used_topics=self.used_topics,
            note_refusal=lambda partition, error: None,
        )
        self.attempts: list[Attempt] = []
        self.in_flight_max = 100
        self.answered = 0
        settings = producer_settings(enable_idempotence=False, linger_ms=0, delivery_timeout_ms=60_000)
        self.sender = Sender(self.cluster, settings)
        self.sender.start()

    def stream(self, address: str, channel: object, *, on_answer: Any, **_: Any) -> Any:
        def send(groups: Any) -> None:
            self.attempts.extend(attempt for group in groups for attempt in group)

        async def close() -> None:
            return

        self.on_answer = on_answer
        return SimpleNamespace(
            send=send,
            close=close,
            broken=False,
            is_busy=lambda now_s, requests_max: len(self.attempts) - self.answered >= self.in_flight_max,
            check_deadlines=lambda now_s: None,
            break_off=lambda error: None,
        )

    async def send(self, topic: str) -> Attempt:
        self.sender.accumulator.add(topic, None, 1, None, b"value", 1, None)
        await turns()
        return self.attempts[-1]

    def answer(self, attempt: Attempt, error: TidemarkError | None = None) -> None:
        self.answered += 1
        self.on_answer(Answer(attempt, -1 if error else 7, -1, error))

    @property
    def kept(self) -> set[str]:
        """The topics of which the sender keeps anything."""
        sender = self.sender
        return {where.topic for where in (*sender._queues, *sender._pauses)} | sender.accumulator.sticky.keys()


@pytest_asyncio.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    made = World()
    monkeypatch.setattr(senders, "ProduceStream", made.stream)
    yield made
    await made.sender.stop()


async def test_a_sender_keeps_nothing_of_an_idle_topic_whose_records_have_outcomes(world: World) -> None:
    world.answer(await world.send("done"))
    world.answer(await world.send("refused"), _REFUSED)
    world.used_topics.use("other", IDLE_S + 1)
    assert world.kept == {"refused"}, "its record waits for a retry"
    assert list(world.used_topics) == ["other", "refused"]


async def test_a_sender_takes_the_late_answer_of_an_idle_topic(world: World) -> None:
    """Such an answer would otherwise break the stream of all other topics."""
    late = await world.send("gone")
    (queue,) = world.sender._queues.values()
    queue.abandon(TidemarkError(ErrorCode.UNKNOWN_TOPIC, "deleted"))
    world.sender._resolve(queue)
    world.used_topics.use("other", IDLE_S + 1)
    world.answer(late)
    assert world.kept == set()
    again = await world.send("gone")
    assert (again is late, again.topic_id) == (False, "topic id")


async def test_a_late_answer_of_an_idle_topic_lets_a_sender_send_the_next_batch(world: World) -> None:
    late = await world.send("gone")
    (queue,) = world.sender._queues.values()
    queue.abandon(TidemarkError(ErrorCode.UNKNOWN_TOPIC, "deleted"))
    world.sender._resolve(queue)
    world.in_flight_max = 1
    assert await world.send("other") is late, "the stream is busy"
    world.sender._forget({"gone"})
    world.answer(late)
    await turns()
    assert world.attempts[-1].batch.partition.topic == "other"


async def test_a_sender_without_its_event_loop_fails_the_records_of_a_forgotten_topic(world: World) -> None:
    handle = world.sender.accumulator.add("idle", None, 1, None, b"value", 1, None)

    def use(topic: str) -> None:
        raise RuntimeError("Event loop is closed")  # of the event that starts another metadata stream

    world.cluster.use = use
    assert world.sender.fail_rest() == 1
    with pytest.raises(TidemarkError, match="closed before the acknowledgement"):
        await handle
