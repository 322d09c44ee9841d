# SPDX-License-Identifier: Apache-2.0
"""A consumer of thousands of partitions visits each a few times, and not all of them for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidemark.client.aio.consumer import Consumer
from tidemark.client.aio.delivery import Delivery
from tidemark.client.consuming.fetcher import Fetcher
from tidemark.client.consuming.partition_cursor import Cursor
from tidemark.client.consuming.record_reader import RecordReader
from tidemark.client.consuming.typed_topics import TypedTopics
from tidemark.client.group.group_reader import GroupReader
from tidemark.client.group.settings import group_settings
from tidemark.client.metadata.cluster import Cluster
from tidemark.client.metadata.used_topics import UsedTopics
from tidemark.client.settings import consumer_settings
from tidemark.client.typed.topic_schemas import KnownSchemas
from tidemark.model import TopicPartition
from tidemark.record.envelope import Batch, parse_envelope, stamped
from tidemark.record.payload import build_batch, from_columns

COUNT = 500
ALL = [TopicPartition("a", index) for index in range(COUNT)]
BATCHES = 2


@pytest.fixture
def fetcher() -> SimpleNamespace:
    """`moves`: the number of cursors in each call of `moved`."""
    moves: list[int] = []
    return SimpleNamespace(
        cursors={where: Cursor(where, 0, topic_id="t", incarnation="i") for where in ALL},
        moves=moves,
        moved=lambda *cursors: moves.append(len(cursors)),
        suspended=False,
        freed=lambda size_bytes: None,
    )


@pytest.fixture
def group(fetcher: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> GroupReader:
    """The reader of a member without committed offsets."""

    async def fetch(*_: object, **__: object) -> dict[TopicPartition, Any]:
        return {}

    async def starts(wanted: Iterable[TopicPartition]) -> dict[TopicPartition, Cursor]:
        return {where: Cursor(where, 0, topic_id="t", incarnation="i") for where in wanted}

    reader = GroupReader(cast(Cluster, None), cast(Fetcher, fetcher), group_settings("g"), cast(Any, starts))
    monkeypatch.setattr(reader, "fetch", fetch)
    return reader


async def test_a_member_begins_to_fetch_all_its_partitions_together(
    group: GroupReader, fetcher: SimpleNamespace
) -> None:
    fetcher.cursors.clear()
    await group.take_up(frozenset(ALL))
    assert fetcher.moves == [COUNT]


async def test_a_member_moves_all_its_partitions_to_the_committed_offsets_together(
    group: GroupReader, fetcher: SimpleNamespace
) -> None:
    await group.seek_to_committed(timeout_s=1)
    assert fetcher.moves == [COUNT]


async def test_a_consumer_begins_to_fetch_all_its_partitions_together(
    fetcher: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def whole(*_: object, **__: object) -> SimpleNamespace:
        found = {index: SimpleNamespace(incarnation="i") for index in range(COUNT)}
        return SimpleNamespace(count=COUNT, topic_id="t", partitions=found)

    async def found(wanted: Iterable[TopicPartition], start: str) -> dict[TopicPartition, int]:
        return dict.fromkeys(wanted, 0)

    async def untyped(topic: str) -> None:
        return None

    consumer = Consumer("127.0.0.1:1")
    consumer._read(cast(Fetcher, fetcher), None, cast(TypedTopics, SimpleNamespace(open=untyped)))
    monkeypatch.setattr(consumer.cluster, "with_partitions", whole)
    monkeypatch.setattr(consumer._offsets, "find_each", found)
    assert await consumer.assign("a") == ALL
    assert fetcher.moves == [COUNT]


def test_other_columns_are_fetched_for_all_partitions_together(
    fetcher: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = cast(Cluster, SimpleNamespace(listen=lambda listener: None, used_topics=UsedTopics()))
    topics = TypedTopics(cluster, consumer_settings(), cast(Fetcher, fetcher), lambda topic: None)
    topics.schemas.known["a"] = KnownSchemas("t", {}, cast(Any, None))
    rows = cast(Any, SimpleNamespace(become=lambda other: None))
    monkeypatch.setattr(topics, "_rows_of", lambda topic, known: rows)
    monkeypatch.setitem(topics._readers, "a", ("t", rows))
    for cursor in fetcher.cursors.values():
        cursor.typed = rows
    topics.want(["delay"])
    assert fetcher.moves == [COUNT]


def test_each_batch_does_not_take_a_visit_of_every_partition(
    fetcher: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = build_batch(from_columns(None, [b"v"], [7]))
    filled = ALL[COUNT // 2 :]
    for cursor in map(fetcher.cursors.get, filled):
        for offset in range(BATCHES):
            cursor.take(stamped(Batch(parse_envelope(data), data), base_offset=offset, leader_epoch=0).data)
    visits: Counter[TopicPartition] = Counter()
    had_rows = Cursor.has_rows.fget
    assert had_rows is not None

    def has_rows(cursor: Cursor) -> bool:
        visits[cursor.partition] += 1
        return bool(had_rows(cursor))

    monkeypatch.setattr(Cursor, "has_rows", property(has_rows))
    delivery = Delivery(
        cast(Fetcher, fetcher), None, cast(TypedTopics, None), RecordReader(None, None, None), lambda work: None
    )
    given: list[TopicPartition] = []
    while (batch := delivery.next_batch()) is not None:
        given.append(TopicPartition(batch.topic, batch.partition))
    assert given == filled * BATCHES, "the partitions take turns"
    assert max(visits.values()) <= 3 * (BATCHES + 1)
