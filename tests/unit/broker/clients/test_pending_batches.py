# SPDX-License-Identifier: Apache-2.0
"""The first pending batch of a transaction in a partition waits for the coordinator's answer (rule X11)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import cast

import pytest
from tidemark.broker.clients.pending_batches import refusals_of
from tidemark.core.replication.queries import BrokerQueries
from tidemark.core.transactions.state import ProducerIdentity, TransactionPartition
from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.record.payload import build_batch

from tests.unit.broker.clients.test_produce import Harness
from tests.unit.record.samples import sample, three_records


class Queries:
    """A broker that leads every partition but `followed`; `opened` have an open transaction of the producer."""

    def __init__(self) -> None:
        self.opened: set[TopicPartition] = set()
        self.followed: set[TopicPartition] = set()

    def replica(self, partition: TopicPartition) -> SimpleNamespace:
        role = "follower" if partition in self.followed else "leader"
        return SimpleNamespace(role=role, identity=SimpleNamespace(topic_id="flights-id"))

    def needs_verification(self, partition: TopicPartition, producer_id: int, producer_epoch: int) -> bool:
        if partition in self.followed:
            raise TidemarkError(ErrorCode.NOT_LEADER, f"{partition} is led by broker 2")
        return partition not in self.opened


class Coordinator:
    """A verifier that answers when the test does."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ProducerIdentity, TransactionPartition]] = []
        self.outcomes: list[asyncio.Future[TidemarkError | None]] = []

    def verify(
        self, transactional_id: str, producer: ProducerIdentity, partition: TransactionPartition
    ) -> asyncio.Future[TidemarkError | None]:
        self.asked.append((transactional_id, producer, partition))
        self.outcomes.append(asyncio.get_running_loop().create_future())
        return self.outcomes[-1]


class World:
    def __init__(self) -> None:
        self.queries, self.coordinator = Queries(), Coordinator()
        self.harness = Harness(cast(BrokerQueries, self.queries), self.coordinator)
        self.context = self.harness.context


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    made.harness.stream.cancel()
    await asyncio.wait({made.harness.stream})


def pending(sequence: int = 0) -> bytes:
    return build_batch(three_records(), producer_id=7, producer_epoch=2, base_sequence=sequence, pending=True)


async def test_the_first_pending_batch_is_appended_after_the_coordinators_answer(world: World) -> None:
    world.context.send(1, pending(), transactional_id="t")
    await world.harness.arrived(0)
    partition = TransactionPartition("flights", "flights-id", 0)
    assert world.coordinator.asked == [("t", ProducerIdentity(7, 2), partition)]
    world.coordinator.outcomes[0].set_result(None)
    (event,) = await world.harness.arrived(1)
    assert event.transactional_id == "t"


async def test_later_requests_of_the_stream_come_after_a_request_that_waits(world: World) -> None:
    world.context.send(1, pending(0), transactional_id="t")
    await world.harness.arrived(0)
    world.queries.opened.add(TopicPartition("flights", 0))
    world.context.send(2, pending(3), transactional_id="t")
    world.context.send(3, sample())
    await world.harness.arrived(0)
    world.coordinator.outcomes[0].set_result(None)
    arrived = await world.harness.arrived(3)
    assert [event.batches[0].envelope.base_sequence for event in arrived] == [0, 3, -1]
    world.context.send(4, sample())
    await world.harness.arrived(4)
    assert len(world.coordinator.asked) == 1


async def test_a_broker_that_becomes_the_leader_while_a_request_waits_appends_no_batch_without_verification(
    world: World,
) -> None:
    world.queries.followed.add(TopicPartition("flights", 1))
    world.context.send(1, pending(), partitions=2, transactional_id="t")
    await world.harness.arrived(0)
    world.queries.followed.clear()
    world.coordinator.outcomes[0].set_result(None)
    (event,) = await world.harness.arrived(1)
    assert event.partition == TopicPartition("flights", 0)
    world.harness.answer(event, 5)
    parts = (await world.harness.response()).partitions
    assert [(part.error.code, part.base_offset) for part in parts] == [("", 5), ("NOT_LEADER", -1)]


async def test_only_the_partition_that_the_coordinator_refuses_is_refused(world: World) -> None:
    world.context.send(1, pending(), partitions=2, transactional_id="t")
    await world.harness.arrived(0)
    world.coordinator.outcomes[0].set_result(TidemarkError(ErrorCode.PRODUCER_FENCED, "epoch 2 is over"))
    world.coordinator.outcomes[1].set_result(None)
    (event,) = await world.harness.arrived(1)
    assert event.partition == TopicPartition("flights", 1)
    world.harness.answer(event, 5)
    parts = (await world.harness.response()).partitions
    assert [(part.error.code, part.base_offset) for part in parts] == [("PRODUCER_FENCED", -1), ("", 5)]


@pytest.mark.parametrize("acks", [0, 1])
async def test_a_request_that_the_leader_refuses_in_any_case_is_not_verified(world: World, acks: int) -> None:
    world.context.send(1, pending(), acks=acks, transactional_id="t")
    await world.harness.arrived(1)
    assert world.coordinator.asked == []


async def test_a_coordinator_that_does_not_answer_in_time_is_a_retriable_refusal() -> None:
    silent, answered = (asyncio.get_running_loop().create_future() for _ in range(2))
    answered.set_result(TidemarkError(ErrorCode.PRODUCER_FENCED, "epoch 2 is over"))
    refused = await refusals_of([(1, answered), (2, silent)], timeout_s=0.01)
    assert {number: error.code for number, error in refused.items()} == {
        1: ErrorCode.PRODUCER_FENCED,
        2: ErrorCode.REQUEST_TIMED_OUT,
    }
