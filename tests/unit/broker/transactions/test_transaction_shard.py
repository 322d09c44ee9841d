# SPDX-License-Identifier: Apache-2.0
"""Times of markers and answers, and the behaviour of a new coordinator (rules X12-X14)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar, cast

import pytest
from tidemark.broker.coordination.state_log import StateLog
from tidemark.broker.transactions.coordinators import TransactionCoordinators
from tidemark.broker.transactions.metrics import TransactionMetrics
from tidemark.broker.transactions.requests import Requests, Work
from tidemark.broker.transactions.transaction_shard import TransactionShard
from tidemark.core.transactions.phases import Phase
from tidemark.core.transactions.requests import Addition, End, Init, Initialized, Marker, Situation, TransactionSettings
from tidemark.core.transactions.state import Change, ProducerIdentity, TransactionPartition
from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.runtime.metrics import Metrics

from tests.refusals import raises_code
from tests.turns import turns
from tests.unit.broker.coordination.held_log import HeldLog, loaded

PARTITION = TopicPartition("__transaction_state", 3)
A0, A1 = (TransactionPartition("a", "a-id", index) for index in range(2))

_T = TypeVar("_T")


class World:
    """One coordinator; its log writes when the test requests it."""

    def __init__(self, leader_epoch: int, records: Iterable[Change] = ()) -> None:
        self.log: HeldLog[Change] = HeldLog(PARTITION, leader_epoch)
        self.log.records.extend(records)
        self.decided: list[str] = []
        self.now_ms = 1_000_000
        self.metrics = Metrics()
        counts = TransactionMetrics(self.metrics)
        self.shard = TransactionShard(
            cast(StateLog[Change], self.log),
            lambda: Situation(self.now_ms, self.now_ms, TransactionSettings()),
            1.0,
            counts,
            lambda _, names: self.decided.extend(names),
        )
        coordinators = cast(TransactionCoordinators, _OneShard(self.shard, counts))
        self.requests = Requests(coordinators, self._next_producer_id)
        self._last_id = 100

    async def _next_producer_id(self) -> int:
        self._last_id += 1
        return self._last_id

    async def loaded(self) -> World:
        await loaded(self.shard)
        return self

    async def write(self, work: Work[_T]) -> _T:
        """Apply a change and write its records."""
        return await self.finish(asyncio.create_task(self.shard.change(work)))

    async def finish(self, waiting: asyncio.Task[_T]) -> _T:
        """Write all records until the request is answered."""
        async with asyncio.timeout(5):
            while not waiting.done():
                await asyncio.sleep(0)
                while not self.log.writes.empty():
                    await self.log.finish_write()
        return await waiting

    async def start(self, transactional_id: str = "t") -> ProducerIdentity:
        found = await self.write(lambda core, now: core.init(Init(transactional_id, 60_000, None, 7), now))
        assert isinstance(found, Initialized)
        return found.producer

    async def begin(self, *partitions: TransactionPartition) -> ProducerIdentity:
        """A producer with an open transaction in these partitions."""
        producer = await self.start()
        await self.write(lambda core, now: core.add_partitions(Addition("t", producer, partitions), now))
        return producer

    def phase(self) -> Phase:
        return self.shard.coordinator.describe("t").phase

    def sent(self) -> list[Marker]:
        return list(self.shard.markers("t"))


class _OneShard:
    def __init__(self, shard: TransactionShard, metrics: TransactionMetrics) -> None:
        self._shard = shard
        self.metrics = metrics

    def shard_of(self, transactional_id: str) -> TransactionShard:
        return self._shard


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = await World(leader_epoch=4).loaded()
    yield made
    made.shard.close()


def end(producer: ProducerIdentity, *, commit: bool) -> Work[ProducerIdentity]:
    return lambda core, now: core.end(End("t", producer, commit), now)


async def test_markers_and_the_answer_leave_after_the_record_of_the_decision_is_committed(world: World) -> None:
    producer = await world.begin(A0, A1)
    ending = asyncio.create_task(world.shard.change(end(producer, commit=True)))
    await turns()
    assert world.phase() is Phase.PREPARE_COMMIT
    assert (world.decided, world.sent(), ending.done()) == ([], [], False)
    await world.log.finish_write()
    assert await ending == ProducerIdentity(7, 1)
    assert world.decided == ["t"]
    assert world.sent() == [Marker("t", ProducerIdentity(7, 1), True, 4, (A0, A1))]


async def test_no_marker_leaves_for_a_decision_whose_write_failed(world: World) -> None:
    producer = await world.begin(A0)
    ending = asyncio.create_task(world.shard.change(end(producer, commit=True)))
    await turns()
    failure = TidemarkError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "one replica")
    await world.log.finish_write(failure)
    with pytest.raises(TidemarkError):
        await ending
    await world.loaded()
    assert (world.decided, world.phase()) == ([], Phase.ONGOING)


async def test_a_new_coordinator_sends_the_markers_of_prepared_transactions_under_its_own_epoch(world: World) -> None:
    producer = await world.begin(A0, A1)
    await world.write(end(producer, commit=False))
    successor = await World(leader_epoch=9, records=world.log.records).loaded()
    assert successor.decided == ["t"]
    assert successor.sent() == [Marker("t", ProducerIdentity(7, 1), False, 9, (A0, A1))]
    successor.shard.close()


async def test_a_transaction_is_complete_when_every_partition_has_answered(world: World) -> None:
    producer = await world.begin(A0, A1)
    await world.write(end(producer, commit=True))
    assert world.shard.marked("t", ProducerIdentity(7, 1), [A1])
    assert world.sent() == [Marker("t", ProducerIdentity(7, 1), True, 4, (A0,))]
    assert world.shard.marked("t", ProducerIdentity(7, 1), [A0])
    assert world.phase() is Phase.COMPLETE_COMMIT
    await world.log.finish_write()
    assert world.decided == ["t"], "no other marker is sent"


async def test_an_answered_marker_is_reported_again_while_its_record_cannot_be_written(world: World) -> None:
    producer = await world.begin(A0)
    await world.write(end(producer, commit=True))
    world.log.unwritable = TidemarkError(ErrorCode.NOT_ENOUGH_REPLICAS, "one replica")
    assert not world.shard.marked("t", ProducerIdentity(7, 1), [A0])
    assert world.phase() is Phase.PREPARE_COMMIT
    world.log.unwritable = None
    assert world.shard.marked("t", ProducerIdentity(7, 1), [A0])
    assert world.phase() is Phase.COMPLETE_COMMIT


async def test_a_transaction_that_is_open_for_too_long_is_aborted_by_the_sweep(world: World) -> None:
    await world.begin(A0)
    world.now_ms += 59_999
    world.shard.sweep()
    assert world.phase() is Phase.ONGOING
    world.now_ms += 1
    world.shard.sweep()
    await world.log.finish_write()
    await turns()
    assert (world.phase(), world.decided) == (Phase.PREPARE_ABORT, ["t"])
    assert b'tidemark_transaction_decisions_total{reason="timeout",result="abort"} 1.0' in world.metrics.render()


async def test_a_request_waits_until_the_last_transaction_is_complete(world: World) -> None:
    producer = await world.begin(A0)
    await world.write(end(producer, commit=True))
    addition = Addition("t", ProducerIdentity(7, 1), (A1,))
    adding = asyncio.create_task(world.requests.change("t", lambda core, now: core.add_partitions(addition, now)))
    await turns()
    assert not adding.done()
    world.shard.marked("t", ProducerIdentity(7, 1), [A0])
    await world.finish(adding)
    assert world.phase() is Phase.ONGOING


async def test_a_request_is_refused_when_the_last_transaction_is_not_complete_in_time(world: World) -> None:
    producer = await world.begin(A0)
    await world.write(end(producer, commit=True))
    addition = Addition("t", ProducerIdentity(7, 1), (A1,))
    with raises_code(ErrorCode.CONCURRENT_TRANSACTIONS):
        await world.requests.change("t", lambda core, now: core.add_partitions(addition, now), wait_s=0)


async def test_a_new_producer_waits_until_the_open_transaction_is_aborted(world: World) -> None:
    await world.begin(A0)

    def init(fresh: int | None) -> Work[Initialized | TidemarkError]:
        return lambda core, now: core.init(Init("t", 60_000, None, fresh), now)

    starting = asyncio.create_task(world.requests.change_with_producer_id("t", init))
    await turns()
    await world.log.finish_write()
    await turns()
    assert not starting.done()
    world.shard.marked("t", ProducerIdentity(7, 1), [A0])
    assert (await world.finish(starting)).producer == ProducerIdentity(7, 2)


async def test_only_a_new_id_uses_up_a_producer_id(world: World) -> None:
    def init(fresh: int | None) -> Work[Initialized | TidemarkError]:
        given.append(fresh)
        return lambda core, now: core.init(Init("u", 60_000, None, fresh), now)

    given: list[int | None] = []
    for _ in range(2):
        await world.finish(asyncio.create_task(world.requests.change_with_producer_id("u", init)))
    assert given == [101, None]
