# SPDX-License-Identifier: Apache-2.0
"""Columns that the application names while a consumer takes up and leaves typed topics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidemark.client.aio import Consumer
from tidemark.client.consuming.partition_cursor import Cursor
from tidemark.client.consuming.typed_topics import TypedTopics
from tidemark.client.metadata.used_topics import IDLE_S, UsedTopics
from tidemark.client.settings import consumer_settings
from tidemark.client.typed.topic_schemas import KnownSchemas
from tidemark.core.schemas.ddl import draft_from_ddl
from tidemark.core.schemas.evolution import first_version
from tidemark.model import ErrorCode, TopicPartition

from tests.refusals import raises_code
from tests.turns import turns


def known(ddl: str) -> KnownSchemas:
    schema = first_version(draft_from_ddl(ddl))
    return KnownSchemas("id", {1: schema}, schema)


KNOWN = {"flights": known("carrier STRING, delay INT"), "weather": known("city STRING, rain INT")}


@pytest.fixture
def fetcher() -> Any:
    return SimpleNamespace(cursors={}, moved=lambda *cursors: None)


@pytest.fixture
def topics(fetcher: Any, monkeypatch: pytest.MonkeyPatch) -> TypedTopics:
    cluster: Any = SimpleNamespace(listen=lambda listener: None, used_topics=UsedTopics())
    made = TypedTopics(cluster, consumer_settings(), fetcher, lambda topic: None)

    async def load(topic: str, **_: Any) -> KnownSchemas:
        made.schemas.known[topic] = KNOWN[topic]
        return KNOWN[topic]

    monkeypatch.setattr(made.schemas, "load", load)
    return made


async def taken_up(topics: TypedTopics, topic: str) -> Cursor:
    """A cursor that the fetcher does not have yet, as that of a member before `on_assigned`."""
    return Cursor(TopicPartition(topic, 0), 0, topic_id="id", incarnation="i", typed=await topics.open(topic))


def columns(cursor: Cursor) -> list[str]:
    assert cursor.typed is not None
    return [name for name in cursor.typed.schema.names if not name.startswith("_")]


async def test_a_partition_that_is_taken_up_meanwhile_has_the_columns_too(topics: TypedTopics, fetcher: Any) -> None:
    cursor = await taken_up(topics, "flights")
    topics.want(["delay"])
    fetcher.cursors[cursor.partition] = cursor
    assert columns(cursor) == ["delay"]
    topics.want(None)
    assert columns(cursor) == ["carrier", "delay"]


async def test_a_topic_that_is_not_read_any_more_needs_no_column(topics: TypedTopics, fetcher: Any) -> None:
    for topic in KNOWN:
        cursor = await taken_up(topics, topic)
        fetcher.cursors[cursor.partition] = cursor
    with raises_code(ErrorCode.INVALID_REQUEST, "rain"):
        topics.want(["rain"])
    assert columns(cursor) == ["city", "rain"]
    del fetcher.cursors[TopicPartition("flights", 0)]
    topics.want(["rain"])
    assert columns(cursor) == ["rain"]
    with raises_code(ErrorCode.INVALID_REQUEST, "rain"):
        await topics.open("flights")


async def test_a_consumer_keeps_no_reader_of_an_idle_topic(topics: TypedTopics) -> None:
    used = topics.schemas._cluster.used_topics
    used.use("flights", 0.0)
    await topics.open("flights")
    used.use("weather", IDLE_S)
    assert topics._readers == {}


class Wanted:
    """Stands for the parts of a consumer that give rows: a batch has the columns that are wanted as it is taken."""

    passed = False
    columns: Any = None
    waits = True

    def want(self, columns: Any) -> None:
        self.columns = columns

    def done(self) -> None:
        return

    def next_batch(self) -> Any:
        self.waits = not self.waits
        return SimpleNamespace(columns=self.columns) if self.waits else None

    async def wait_for_rows(self, timeout_s: float | None) -> None:
        await turns()


@pytest.mark.parametrize("polls", [False, True])
async def test_the_late_end_of_an_abandoned_loop_does_not_change_the_columns_of_the_next_call(polls: bool) -> None:
    """asyncio closes a generator without a reference later, on the event loop."""
    consumer, parts = Consumer("127.0.0.1:1"), Wanted()
    consumer._started = consumer._typed_topics = consumer._delivery = cast(Any, parts)
    async for _ in consumer.batches(columns=["delay"]):
        break
    found: Any
    if polls:
        found = await consumer.poll(columns=["carrier"])
    else:
        found = await anext(consumer.batches(columns=["carrier"]))
    assert found.columns == ["carrier"]
