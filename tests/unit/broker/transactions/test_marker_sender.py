# SPDX-License-Identifier: Apache-2.0
"""Markers go to leaders in batches, again until each partition has answered, or its topic is deleted (X12-X15)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from typing import cast

import pytest
from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.broker.transactions.marker_sender import MarkerSender
from tidemark.broker.transactions.metrics import TransactionMetrics
from tidemark.broker.transactions.transaction_shard import TransactionShard
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView
from tidemark.core.transactions.requests import Marker
from tidemark.core.transactions.state import ProducerIdentity, TransactionPartition
from tidemark.model import (
    BrokerId,
    BrokerRegistration,
    ControllerEpoch,
    ErrorCode,
    LeaderEpoch,
    TidemarkError,
    TopicDescription,
)
from tidemark.rpc import errors
from tidemark.runtime.metrics import Metrics
from tidemark.v1 import transaction_service_pb2 as pb

from tests.turns import turns

HERE, GONE = BrokerId(0), BrokerId(1)
PRODUCER = ProducerIdentity(7, 1)


def at(index: int, topic: str = "a") -> TransactionPartition:
    return TransactionPartition(topic, f"{topic}-id", index)


class Coordinator:
    """A shard with markers, which notes the answers."""

    def __init__(self, *partitions: TransactionPartition) -> None:
        self.partitions = partitions
        self.answered: list[TransactionPartition] = []
        self.is_closed = False
        self.refuses = 0

    def markers(self, transactional_id: str) -> Iterator[Marker]:
        yield Marker(transactional_id, PRODUCER, True, 4, self.partitions)

    def marked(
        self, transactional_id: str, marker: ProducerIdentity, partitions: Sequence[TransactionPartition]
    ) -> bool:
        assert (transactional_id, marker) == ("t", PRODUCER)
        if self.refuses:
            self.refuses -= 1
            return False
        self.answered.extend(partitions)
        return True


class Leader:
    """WriteMarkers of this broker: errors by partition index, used up one by one."""

    def __init__(self) -> None:
        self.errors: dict[int, list[ErrorCode]] = {}
        self.calls: list[list[int]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def __call__(self, request: pb.WriteMarkersRequest) -> pb.WriteMarkersResponse:
        self.calls.append([one.partition for marker in request.markers for one in marker.partitions])
        await self.may_answer.wait()
        response = pb.WriteMarkersResponse()
        for marker in request.markers:
            assert (marker.producer.producer_id, marker.producer.producer_epoch) == PRODUCER
            assert (marker.commit, marker.coordinator_epoch) == (True, 4)
            for one in marker.partitions:
                refusals = self.errors.get(one.partition)
                error = TidemarkError(refusals.pop(0), "not now") if refusals else None
                response.outcomes.append(pb.MarkerOutcome(error=None if error is None else errors.to_proto(error)))
        return response


class ZooKeeper:
    """The topics that exist."""

    def __init__(self, *topics: str) -> None:
        self.topics = topics
        self.reads = 0

    async def __call__(self, names: Collection[str]) -> Mapping[str, TopicDescription]:
        self.reads += 1
        return {
            name: TopicDescription(topic=name, topic_id=f"{name}-id", partitions={0: (HERE,)}, incarnations={0: "i"})
            for name in names
            if name in self.topics
        }


def cache(leaders: Iterable[BrokerId], topic: str = "a") -> MetadataCache:
    made = MetadataCache("")
    made.update(view(leaders, topic))
    return made


def view(leaders: Iterable[BrokerId], topic: str = "a") -> ClusterView:
    partitions = {
        index: PartitionView(index, leader, LeaderEpoch(1), (leader,), (leader,))
        for index, leader in enumerate(leaders)
    }
    return ClusterView(
        controller_epoch=ControllerEpoch(1),
        brokers={HERE: BrokerRegistration(HERE, "127.0.0.1", 1)},
        topics={topic: TopicView(topic, f"{topic}-id", partitions=partitions)},
        complete=True,
    )


@pytest.fixture
def leader() -> Leader:
    return Leader()


@pytest.fixture
def zookeeper() -> ZooKeeper:
    return ZooKeeper("a")


@pytest.fixture
def metadata() -> MetadataCache:
    return cache([HERE, HERE, HERE])


@pytest.fixture
async def sender(leader: Leader, zookeeper: ZooKeeper, metadata: MetadataCache) -> AsyncIterator[MarkerSender]:
    made = MarkerSender(HERE, metadata, leader, zookeeper, TransactionMetrics(Metrics()), retry_s=0)
    yield made
    await made.stop()


def send(sender: MarkerSender, coordinator: Coordinator) -> None:
    sender.send(cast(TransactionShard, coordinator), ["t"])


async def answers(coordinator: Coordinator, count: int) -> list[TransactionPartition]:
    async with asyncio.timeout(5):
        while len(coordinator.answered) < count:  # noqa: ASYNC110 - several tasks make the answers
            await asyncio.sleep(0)
    return sorted(coordinator.answered)


async def test_the_markers_of_one_leader_go_in_one_call(sender: MarkerSender, leader: Leader) -> None:
    coordinator = Coordinator(at(0), at(1), at(2))
    send(sender, coordinator)
    assert await answers(coordinator, 3) == [at(0), at(1), at(2)]
    assert leader.calls == [[0, 1, 2]]


async def test_only_partitions_that_refused_a_marker_get_the_marker_again(sender: MarkerSender, leader: Leader) -> None:
    leader.errors = {1: [ErrorCode.NOT_LEADER, ErrorCode.NOT_ENOUGH_REPLICAS]}
    coordinator = Coordinator(at(0), at(1))
    send(sender, coordinator)
    assert await answers(coordinator, 2) == [at(0), at(1)]
    assert leader.calls == [[0, 1], [1], [1]]


async def test_markers_that_are_under_way_are_not_sent_twice(sender: MarkerSender, leader: Leader) -> None:
    leader.may_answer.clear()
    coordinator = Coordinator(at(0))
    send(sender, coordinator)
    await turns(20)
    send(sender, coordinator)
    await turns(20)
    leader.may_answer.set()
    await answers(coordinator, 1)
    assert leader.calls == [[0]]


async def test_a_partition_without_a_leader_gets_its_marker_from_its_next_leader(
    sender: MarkerSender, leader: Leader, metadata: MetadataCache
) -> None:
    metadata.update(view([HERE, GONE]))
    coordinator = Coordinator(at(0), at(1))
    send(sender, coordinator)
    await turns(20)
    assert coordinator.answered == [at(0)]
    metadata.update(view([HERE, HERE]))
    assert await answers(coordinator, 2) == [at(0), at(1)]


@pytest.mark.parametrize("partition", [at(0, "b"), at(9), TransactionPartition("a", "earlier-id", 0)])
async def test_a_partition_that_was_deleted_counts_as_marked(
    sender: MarkerSender, leader: Leader, partition: TransactionPartition
) -> None:
    coordinator = Coordinator(partition)
    send(sender, coordinator)
    assert await answers(coordinator, 1) == [partition]
    assert leader.calls == []


async def test_a_partition_that_only_the_metadata_of_this_broker_lacks_does_not_count_as_deleted(
    leader: Leader,
) -> None:
    metadata, zookeeper = cache([HERE], "b"), ZooKeeper("a", "b")
    sender = MarkerSender(HERE, metadata, leader, zookeeper, TransactionMetrics(Metrics()), retry_s=0)
    coordinator = Coordinator(at(0))
    send(sender, coordinator)
    while zookeeper.reads < 3:  # noqa: ASYNC110 - each retry reads ZooKeeper
        await asyncio.sleep(0)
    assert coordinator.answered == []
    metadata.update(view([HERE], "a"))
    assert await answers(coordinator, 1) == [at(0)]
    assert leader.calls == [[0]]
    await sender.stop()


async def test_a_partition_with_a_later_marker_counts_as_marked(sender: MarkerSender, leader: Leader) -> None:
    leader.errors = {0: [ErrorCode.PRODUCER_FENCED]}
    coordinator = Coordinator(at(0))
    send(sender, coordinator)
    assert await answers(coordinator, 1) == [at(0)]


async def test_a_marker_of_a_fenced_coordinator_is_not_sent_again(sender: MarkerSender, leader: Leader) -> None:
    leader.errors = {0: [ErrorCode.COORDINATOR_FENCED]}
    coordinator = Coordinator(at(0), at(1))
    send(sender, coordinator)
    await answers(coordinator, 1)
    await turns(20)
    assert (coordinator.answered, leader.calls) == ([at(1)], [[0, 1]])


async def test_no_marker_is_sent_again_after_the_leadership_of_its_coordinator(
    sender: MarkerSender, leader: Leader
) -> None:
    leader.errors = {0: [ErrorCode.NOT_LEADER] * 2}
    leader.may_answer.clear()
    coordinator = Coordinator(at(0))
    send(sender, coordinator)
    await turns(20)
    coordinator.is_closed = True
    leader.may_answer.set()
    await turns(20)
    assert leader.calls == [[0]]


async def test_an_answer_that_cannot_be_stored_is_reported_again_and_not_sent_again(
    sender: MarkerSender, leader: Leader
) -> None:
    coordinator = Coordinator(at(0))
    coordinator.refuses = 2
    send(sender, coordinator)
    assert await answers(coordinator, 1) == [at(0)]
    assert leader.calls == [[0]]
