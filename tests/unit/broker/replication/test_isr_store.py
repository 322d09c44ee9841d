# SPDX-License-Identifier: Apache-2.0
"""The leader's ISR writes to ZooKeeper, and their events for the core (rule R9)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from tidemark.broker.node.own_epoch import OwnEpoch
from tidemark.broker.replication.controller_hints import GrpcControllerHints
from tidemark.broker.replication.isr_store import IsrStore
from tidemark.core.replication.effects import ReadIsr, ReportIsrChange, WriteIsr
from tidemark.core.replication.events import Event, IsrRead, IsrWriteFailed, IsrWritten
from tidemark.model import (
    BrokerEpoch,
    BrokerId,
    BrokerRegistration,
    IsrEntry,
    LeaderAndIsr,
    LeaderEpoch,
    ReplicaIdentity,
    TopicDescription,
    TopicPartition,
    VersionedState,
)
from tidemark.ports import StateWrite, WriteOutcome, WriteResult
from tidemark.runtime.scheduler import AsyncioScheduler
from tidemark.zookeeper.codecs import encode_state

from tests.fakes.metadata_store import FakeMetadataStore, FakeZooKeeper
from tests.turns import turns

PARTITION = TopicPartition("flights", 0)
GONE = TopicPartition("gone", 0)
IDENTITY = ReplicaIdentity("t" * 32, "a" * 32)
EPOCH = LeaderEpoch(3)
STATE = LeaderAndIsr(BrokerId(0), EPOCH, (IsrEntry(BrokerId(0), BrokerEpoch(0)),))
WIDER = replace(STATE, isr=(*STATE.isr, IsrEntry(BrokerId(1), BrokerEpoch(0))))


class Harness:
    def __init__(self, zookeeper: FakeZooKeeper, store: FakeMetadataStore) -> None:
        self.zookeeper = zookeeper
        self.store = store
        self.failures: list[BaseException] = []
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self.writer = IsrStore(
            store,
            GrpcControllerHints(BrokerId(0), "c", store, OwnEpoch()),
            AsyncioScheduler(),
            self._events.put_nowait,
            self.failures.append,
        )

    async def event(self) -> Event:
        async with asyncio.timeout(5):
            return await self._events.get()

    def write(self, expected_version: int = 0, *, epoch_of_joiner: int = 0) -> None:
        joining = {BrokerId(1): BrokerEpoch(epoch_of_joiner)}
        self.writer.write(WriteIsr(PARTITION, IDENTITY, WIDER, expected_version, joining))


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    zookeeper = FakeZooKeeper()
    store = zookeeper.store()
    await store.start()
    topic = TopicDescription("flights", IDENTITY.topic_id, {0: (BrokerId(0), BrokerId(1))}, {0: IDENTITY.incarnation})
    await store.create_topic(topic)
    registration = BrokerRegistration(BrokerId(1), "here", 1, directory_ids=("d",))
    await store.register_broker(registration, clean=True, locked_directory_ids=frozenset({"d"}))
    term = await store.elect_controller(BrokerId(100), "here:2")
    assert term is not None
    await store.write_states(term, [StateWrite(PARTITION, IDENTITY, STATE, -1)])
    harness = Harness(zookeeper, store)
    yield harness
    await harness.writer.stop()
    assert harness.failures == []


async def test_a_successful_write_is_reported_with_its_version(harness: Harness) -> None:
    harness.write()
    assert await harness.event() == IsrWritten(PARTITION, 1)
    assert (await harness.store.states([PARTITION]))[PARTITION] == VersionedState(WIDER, 1)


async def test_writes_that_gather_while_a_call_is_in_flight_share_the_next_call(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    answers = asyncio.Event()

    async def write_isrs(writes: Sequence[StateWrite]) -> Sequence[WriteResult]:
        calls.append(len(writes))
        await answers.wait()
        return [WriteResult(WriteOutcome.WRITTEN, 1)] * len(writes)

    monkeypatch.setattr(harness.store, "write_isrs", write_isrs)
    for _ in range(100):
        harness.write()
        await asyncio.sleep(0)
    assert calls == [1]
    answers.set()
    assert [await harness.event() for _ in range(100)] == [IsrWritten(PARTITION, 1)] * 100
    assert calls == [1, 99]


async def test_a_conflict_and_a_joiner_with_a_new_registration_fail_definitely(harness: Harness) -> None:
    harness.write(expected_version=5)
    assert await harness.event() == IsrWriteFailed(PARTITION, unknown=False)
    harness.write(epoch_of_joiner=1)
    assert await harness.event() == IsrWriteFailed(PARTITION, unknown=False)


@pytest.mark.parametrize("applied", [True, False])
async def test_a_lost_answer_is_unknown_until_the_node_is_read(harness: Harness, applied: bool) -> None:
    harness.store.session.lose_answers(1, applied=applied)
    harness.write()
    assert await harness.event() == IsrWriteFailed(PARTITION, unknown=True)
    harness.writer.read(ReadIsr(PARTITION, IDENTITY, EPOCH))
    assert await harness.event() == IsrRead(
        PARTITION, VersionedState(WIDER, 1) if applied else VersionedState(STATE, 0)
    )


async def test_a_read_is_tried_until_zookeeper_answers(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.broker.replication.isr_store._REREAD_MS", 0)
    harness.store.session.suspend()
    harness.writer.read(ReadIsr(PARTITION, IDENTITY, EPOCH))
    await asyncio.sleep(0)
    harness.store.session.resume()
    assert await harness.event() == IsrRead(PARTITION, VersionedState(STATE, 0))


async def test_the_node_of_another_incarnation_is_not_used(harness: Harness) -> None:
    harness.writer.read(ReadIsr(PARTITION, ReplicaIdentity(IDENTITY.topic_id, "b" * 32), EPOCH))
    assert await harness.event() == IsrRead(PARTITION, None)


async def test_a_damaged_node_is_read_until_it_is_readable_and_the_others_are_answered_at_once(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.broker.replication.isr_store._REREAD_MS", 0)
    told: list[object] = []
    monkeypatch.setattr(harness.writer, "report", told.append)
    path = "/brokers/topics/flights/0/leaderAndISR"
    whole = harness.zookeeper.nodes[path].data
    harness.zookeeper.corrupt(path, b"\xff\xfe")
    harness.writer.read(ReadIsr(PARTITION, IDENTITY, EPOCH))
    harness.writer.read(ReadIsr(GONE, IDENTITY, EPOCH))
    assert await harness.event() == IsrRead(GONE, None)
    assert told == [ReportIsrChange(PARTITION)], "the controller receives one report"
    harness.zookeeper.corrupt(path, whole)
    assert await harness.event() == IsrRead(PARTITION, VersionedState(STATE, 2))
    assert len(told) == 1


async def test_a_node_that_was_set_back_to_an_earlier_leader_epoch_ends_no_leadership(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.broker.replication.isr_store._REREAD_MS", 0)
    told: list[object] = []
    monkeypatch.setattr(harness.writer, "report", told.append)
    later = LeaderEpoch(EPOCH + 1)
    harness.writer.read(ReadIsr(PARTITION, IDENTITY, later))
    while not told:  # noqa: ASYNC110 - a report is not an event
        await asyncio.sleep(0)
    path = "/brokers/topics/flights/0/leaderAndISR"
    harness.zookeeper.corrupt(path, encode_state(replace(STATE, leader_epoch=later)))
    assert await harness.event() == IsrRead(PARTITION, VersionedState(replace(STATE, leader_epoch=later), 1))
    assert told == [ReportIsrChange(PARTITION)], "the controller receives one report"


async def test_an_unexpected_error_ends_the_broker_instead_of_leaving_the_core_waiting(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(writes: Sequence[StateWrite]) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(harness.store, "write_isrs", fail)
    harness.write()
    await turns(5)
    assert [type(failure) for failure in harness.failures] == [ZeroDivisionError]
    harness.failures.clear()


async def test_writes_of_the_same_moment_are_sent_together(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    write_isrs = harness.store.write_isrs

    async def counted(writes: Sequence[StateWrite]) -> Sequence[WriteResult]:
        calls.append(len(writes))
        return await write_isrs(writes)

    monkeypatch.setattr(harness.store, "write_isrs", counted)
    harness.write()
    for partition in range(1, 50):
        harness.writer.write(WriteIsr(TopicPartition("another", partition), IDENTITY, WIDER, 0, {}))
    events = [await harness.event() for _ in range(50)]
    assert calls == [50]
    assert events[0] == IsrWritten(PARTITION, 1)
    assert set(events[1:]) == {
        IsrWriteFailed(TopicPartition("another", number), unknown=False) for number in range(1, 50)
    }


async def test_reads_of_two_incarnations_are_separate_requests(harness: Harness) -> None:
    harness.writer.read(ReadIsr(PARTITION, ReplicaIdentity(IDENTITY.topic_id, "b" * 32), EPOCH))
    harness.writer.read(ReadIsr(PARTITION, IDENTITY, EPOCH))
    assert await harness.event() == IsrRead(PARTITION, None)
    assert await harness.event() == IsrRead(PARTITION, VersionedState(STATE, 0))


async def test_the_leader_epoch_of_another_incarnation_does_not_make_a_node_old(harness: Harness) -> None:
    harness.writer.read(ReadIsr(PARTITION, IDENTITY, EPOCH))
    harness.writer.read(ReadIsr(PARTITION, ReplicaIdentity(IDENTITY.topic_id, "b" * 32), LeaderEpoch(EPOCH + 1)))
    async with asyncio.timeout(10):
        assert await harness.event() == IsrRead(PARTITION, VersionedState(STATE, 0))
        assert await harness.event() == IsrRead(PARTITION, None)
