# SPDX-License-Identifier: Apache-2.0
"""Progress of a member whose application gets a polled batch record by record, on its own thread."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidemark.client.aio.consumer import Consumer
from tidemark.client.aio.delivery import Delivery
from tidemark.client.consuming.fetcher import Fetcher
from tidemark.client.consuming.partition_cursor import Cursor
from tidemark.client.group import group_reader
from tidemark.client.group.group_reader import GroupReader
from tidemark.client.group.offset_commits import GroupPosition
from tidemark.client.group.settings import group_settings
from tidemark.client.metadata.cluster import Cluster
from tidemark.client.records import ConsumerRecord
from tidemark.model import TopicPartition

ONE, OTHER = TopicPartition("a", 0), TopicPartition("a", 1)
NOTHING = cast(Any, None)


class Reading:
    """A member that has polled the records 100 to 199 of one partition, in leader epoch 7."""

    def __init__(self) -> None:
        self.cursors = {
            where: Cursor(where, offset, topic_id="t", incarnation="i") for where, offset in ((ONE, 100), (OTHER, 5))
        }
        self.committed: list[GroupPosition] = []
        fetcher = SimpleNamespace(cursors=self.cursors, suspended=False, moved=lambda *cursors: None)
        self.reader = GroupReader(cast(Cluster, None), cast(Fetcher, fetcher), group_settings("g"), NOTHING)
        membership = SimpleNamespace(owned=frozenset(self.cursors), may_be_out=False, commit=self._commit)
        self.reader._membership = cast(Any, membership)
        self.delivery = Delivery(cast(Fetcher, fetcher), self.reader, NOTHING, NOTHING, NOTHING)
        self.consumer = Consumer("127.0.0.1:1", group="g")
        self.consumer._started = cast(Fetcher, fetcher)
        self.consumer._group, self.consumer._delivery = self.reader, self.delivery
        self.held = self.cursors[ONE]
        self.held.position, self.held._position_epoch = 200, 7
        self.delivery._give(self.held)

    async def _commit(self, positions: list[GroupPosition], **_: Any) -> None:
        self.committed = positions

    def offsets(self) -> dict[TopicPartition, int]:
        return {where: one.offset for where, one in self.reader.processed().items()}


@pytest.fixture
async def reading() -> Reading:
    return Reading()


def record(offset: int, where: TopicPartition = ONE) -> ConsumerRecord:
    return ConsumerRecord(*where, offset, 0, None, b"", ())


async def test_a_member_that_goes_through_a_batch_is_not_idle(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `max_poll_interval_ms` it would leave the group, and read the same records again, without end."""
    now_s = [time.monotonic()]
    monkeypatch.setattr(group_reader, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    for offset in range(100, 103):
        now_s[0] += 200
        reading.consumer.works_on(record(offset))
        assert reading.reader.idle_s == 0
    now_s[0] += 200
    assert reading.reader.idle_s == 200


async def test_a_member_commits_the_processed_records_of_a_batch_that_it_goes_through(reading: Reading) -> None:
    assert reading.offsets() == {ONE: 100, OTHER: 5}
    reading.consumer.works_on(record(140))
    assert reading.offsets() == {ONE: 140, OTHER: 5}
    assert reading.held.processed_epoch == 7, "the bound of the epoch of record 139"


@pytest.mark.parametrize("event", ["seek", "given back", "lost", "next batch"])
async def test_a_record_of_an_earlier_batch_counts_for_no_progress(reading: Reading, event: str) -> None:
    reading.consumer.works_on(record(140))
    if event == "seek":
        reading.held.seek(0)
        reading.delivery.held = None
    elif event == "given back":
        reading.delivery.give_back(ONE, 120)
    elif event == "lost":
        reading.cursors[ONE] = Cursor(ONE, 0, topic_id="t", incarnation="i")
    else:
        reading.consumer.works_on(None)  # the blocking consumer polls
        reading.held.seek(0)
        reading.held.position = 200
    assert reading.offsets()[ONE] == {"seek": 0, "given back": 120, "lost": 0, "next batch": 0}[event]


async def test_a_commit_within_a_batch_leaves_the_rest_of_the_batch(reading: Reading) -> None:
    """Otherwise each commit would fetch the rest again: megabytes for each record."""
    generation = reading.held.generation
    reading.consumer.works_on(record(140))
    await reading.consumer.commit_before(record(141))
    assert [(one.partition, one.offset, one.leader_epoch) for one in reading.committed] == [
        (ONE, 141, 7),
        (OTHER, 5, -1),
    ]
    assert reading.offsets()[ONE] == 141, "the next automatic commit must not go back"
    assert (reading.held.generation, reading.held.position) == (generation, 200)


@pytest.mark.parametrize("offsets", [None, {ONE: 141}])
async def test_a_commit_of_the_application_stays_in_force_if_it_fails_afterwards(
    reading: Reading, offsets: dict[TopicPartition | tuple[str, int], int] | None
) -> None:
    """The last commit of a member must not go back: the next reader would read committed records again."""
    reading.consumer.works_on(record(140))
    await (reading.consumer.commit(offsets) if offsets else reading.consumer.commit_before(record(141)))
    assert reading.offsets()[ONE] == 141
    reading.delivery.give_back(ONE, 140)  # a blocking consumer ends with an exception of its block
    assert (reading.held.position, reading.offsets()[ONE]) == (140, 141)
    reading.held.seek(20)
    assert reading.offsets()[ONE] == 20, "the application goes back itself"


@pytest.mark.parametrize("meanwhile", ["batches discarded", "given back"])
async def test_a_commit_of_the_application_counts_though_its_partition_is_fetched_again_meanwhile(
    reading: Reading, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    async def commit(positions: list[GroupPosition], **_: Any) -> None:
        if meanwhile == "given back":
            reading.delivery.give_back(ONE, 140)
        else:
            reading.held.generation += 1

    monkeypatch.setattr(reading.reader._membership, "commit", commit)
    reading.consumer.works_on(record(140))
    await reading.consumer.commit({ONE: 141})
    reading.delivery.give_back(ONE, 140)
    assert reading.offsets()[ONE] == 141


async def test_a_commit_does_not_count_after_a_seek_of_the_application_meanwhile(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def commit(positions: list[GroupPosition], **_: Any) -> None:
        reading.held.seek(20)

    monkeypatch.setattr(reading.reader._membership, "commit", commit)
    await reading.consumer.commit({ONE: 141})
    assert reading.offsets()[ONE] == 20


async def test_a_commit_of_records_that_were_not_read_yet_does_not_count_as_progress(reading: Reading) -> None:
    await reading.consumer.commit({ONE: 300})
    assert reading.offsets()[ONE] == 100


async def test_a_commit_of_a_partition_that_was_moved_meanwhile_takes_its_new_position(reading: Reading) -> None:
    reading.held.seek(20)
    reading.delivery.held = None
    await reading.consumer.commit_before(record(141))
    assert [(one.partition, one.offset) for one in reading.committed] == [(ONE, 20), (OTHER, 5)]


async def test_a_commit_while_a_partition_is_revoked_omits_records_that_were_not_returned(reading: Reading) -> None:
    reading.held.withheld = True
    await reading.consumer.commit_before(record(141))
    assert reading.committed[0].offset == 141
