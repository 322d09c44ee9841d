"""What a member of a group gives its application, and what it tells it (docs/groups.md); the membership is played."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidemark.client.aio.group_reader import GroupReader
from tidemark.client.cluster import Cluster
from tidemark.client.cursor import Cursor
from tidemark.client.fetcher import Fetcher
from tidemark.client.group_settings import group_settings
from tidemark.model import TopicPartition

ONE, OTHER = TopicPartition("a", 0), TopicPartition("a", 1)


class Told:
    """What the application was told, in order."""

    def __init__(self) -> None:
        self.all: list[tuple[str, list[TopicPartition]]] = []

    async def assigned(self, partitions: list[TopicPartition]) -> None:
        self.all.append(("assigned", partitions))

    async def revoked(self, partitions: list[TopicPartition]) -> None:
        self.all.append(("revoked", partitions))

    async def lost(self, partitions: list[TopicPartition]) -> None:
        self.all.append(("lost", partitions))


@pytest.fixture
def fetcher() -> SimpleNamespace:
    return SimpleNamespace(
        cursors={}, suspended=False, wake=lambda: None, regroup=lambda: None, moved=lambda cursor: None
    )


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def membership() -> SimpleNamespace:
    return SimpleNamespace(member_id="m", member_epoch=1, owned=frozenset({ONE, OTHER}), may_be_out=False)


@pytest.fixture
async def reader(fetcher: SimpleNamespace, membership: SimpleNamespace, told: Told) -> GroupReader:
    made = GroupReader(cast(Cluster, None), cast(Fetcher, fetcher), group_settings("g"), cast(Any, None))
    made._membership = cast(Any, membership)
    made._handlers = (told.assigned, told.revoked, told.lost)
    for where in (ONE, OTHER):
        fetcher.cursors[where] = Cursor(where, 0, topic_id="t", incarnation="i")
    return made


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_what_was_let_go_of_in_good_order_is_told_as_revoked_only(reader: GroupReader, told: Told) -> None:
    await reader.release(frozenset({ONE}))
    reader.drop([ONE])
    await turns()
    assert told.all == [("revoked", [ONE])]


async def test_what_is_lost_while_the_application_still_works_on_it_is_told_as_lost(
    reader: GroupReader, told: Told
) -> None:
    reader.gave(ONE)
    releasing = asyncio.create_task(reader.release(frozenset({ONE})))
    await turns()
    reader.drop([ONE, OTHER])
    await releasing
    await turns()
    assert told.all == [("lost", [ONE, OTHER])]


async def test_what_comes_back_can_be_lost(reader: GroupReader, fetcher: SimpleNamespace, told: Told) -> None:
    await reader.release(frozenset({ONE}))
    reader.drop([ONE])
    fetcher.cursors[ONE] = Cursor(ONE, 0, topic_id="t", incarnation="i")
    reader.drop([ONE])
    await turns()
    assert told.all == [("revoked", [ONE]), ("lost", [ONE])]
