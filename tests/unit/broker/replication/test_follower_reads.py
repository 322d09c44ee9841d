# SPDX-License-Identifier: Apache-2.0
"""Reads of the leader's log for its followers: data outside the page cache is read on the pool."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from tidemark.broker.metrics.broker import BrokerMetrics
from tidemark.broker.replication.follower_reads import FollowerReads
from tidemark.core.replication.effects import ReadForFollower
from tidemark.core.replication.events import Event, FollowerReadDone
from tidemark.model import BrokerId, ErrorCode, LeaderEpoch, Offset, TopicPartition
from tidemark.runtime.metrics import Metrics

from tests.unit.record.samples import sample

READ = ReadForFollower(BrokerId(2), TopicPartition("flights", 0), LeaderEpoch(0), Offset(0), Offset(3), 1 << 20)


class ColdLog:
    """A log outside the page cache; a read waits for the test's permission."""

    def __init__(self) -> None:
        self.may_read = threading.Event()
        self.content = sample()

    def read(self, offset: int, *, end_offset: int, max_bytes: int, cached_only: bool = False) -> bytes | None:
        if cached_only:
            return None
        assert self.may_read.wait(5)
        return self.content


class Logs:
    """The open log of the partition."""

    def __init__(self) -> None:
        self.open = ColdLog()

    def log(self, partition: TopicPartition) -> ColdLog:
        return self.open


class Harness:
    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.logs = Logs()
        self.suspected: list[tuple[TopicPartition, int]] = []
        self.done: asyncio.Future[FollowerReadDone] = asyncio.get_running_loop().create_future()
        self.reads = FollowerReads(self.logs, pool, BrokerMetrics(Metrics()), self._submit, self._suspect)  # type: ignore[arg-type]

    def _suspect(self, partition: TopicPartition, offset: int) -> None:
        self.suspected.append((partition, offset))

    def _submit(self, event: Event) -> None:
        assert isinstance(event, FollowerReadDone)
        self.done.set_result(event)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as started:
        yield started


async def test_data_outside_the_page_cache_is_read_on_the_pool(pool: ThreadPoolExecutor) -> None:
    harness = Harness(pool)
    harness.reads.read(READ)
    assert not harness.done.done()
    harness.logs.open.may_read.set()
    event = await harness.done
    assert (event.error, [batch.data for batch in event.batches]) == (None, [sample()])


async def test_data_of_a_log_that_was_closed_meanwhile_is_discarded(pool: ThreadPoolExecutor) -> None:
    harness = Harness(pool)
    harness.reads.read(READ)
    old, harness.logs.open = harness.logs.open, ColdLog()
    old.may_read.set()
    event = await harness.done
    assert event.batches == ()
    assert event.error is not None
    assert event.error.code is ErrorCode.STORAGE_ERROR


async def test_bytes_that_are_no_batches_are_refused_and_suspected(pool: ThreadPoolExecutor) -> None:
    harness = Harness(pool)
    harness.logs.open.content = sample()[:-8]
    harness.logs.open.may_read.set()
    harness.reads.read(READ)
    event = await harness.done
    assert event.error is not None
    assert event.error.code is ErrorCode.CORRUPT_BATCH
    assert harness.suspected == [(READ.partition, READ.offset)]


async def test_good_batches_before_a_damaged_length_are_given_and_the_damaged_one_is_suspected(
    pool: ThreadPoolExecutor,
) -> None:
    harness = Harness(pool)
    harness.logs.open.content = sample() + sample()[:-8]
    harness.logs.open.may_read.set()
    harness.reads.read(READ)
    event = await harness.done
    assert (event.error, [batch.data for batch in event.batches]) == (None, [sample()])
    assert harness.suspected == [(READ.partition, event.batches[0].envelope.next_offset)]


class WarmLog:
    """A log inside the page cache."""

    def __init__(self) -> None:
        self.reads = 0

    def read(self, offset: int, *, end_offset: int, max_bytes: int, cached_only: bool = False) -> bytes | None:
        self.reads += 1
        return sample() * 2


async def test_followers_at_the_same_offset_share_one_read_and_a_later_one_reads_again(
    pool: ThreadPoolExecutor,
) -> None:
    log, given = WarmLog(), list[Event]()
    logs = Logs()
    logs.open = log  # type: ignore[assignment]
    reads = FollowerReads(logs, pool, BrokerMetrics(Metrics()), given.append, lambda *_: None)  # type: ignore[arg-type]
    other = replace(READ, follower=BrokerId(3))
    reads.read(READ)
    reads.read(other)
    assert log.reads == 1
    assert given == [
        FollowerReadDone(one.follower, one.partition, one.leader_epoch, one.offset, given[0].batches, None)  # type: ignore[union-attr]
        for one in (READ, other)
    ]
    reads.read(replace(READ, end_offset=Offset(2)))
    assert log.reads == 2
    await asyncio.sleep(0)
    reads.read(replace(READ, end_offset=Offset(2)))
    assert log.reads == 3
