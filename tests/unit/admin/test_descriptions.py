# SPDX-License-Identifier: Apache-2.0
"""Descriptions as responses in bytes: their contents, and that each is encoded once until a change."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tidemark.admin import descriptions as module
from tidemark.admin.descriptions import Descriptions
from tidemark.core.cluster_view import TopicView
from tidemark.core.security.authorizer import Authorizer, Rules
from tidemark.core.security.principals import ANONYMOUS
from tidemark.model import (
    BrokerEpoch,
    BrokerId,
    BrokerRegistration,
    ErrorCode,
    IsrEntry,
    LeaderAndIsr,
    LeaderEpoch,
    ReplicaIdentity,
    TopicDescription,
    TopicPartition,
)
from tidemark.ports import ControllerTerm, StateWrite
from tidemark.rpc import errors, request_limits
from tidemark.rpc.security.access import Access
from tidemark.rpc.security.audit import Audit
from tidemark.runtime import slices
from tidemark.runtime.metrics import Metrics
from tidemark.v1 import admin_service_pb2 as pb

from tests.fakes.metadata_store import FakeMetadataStore, FakeSession, FakeZooKeeper
from tests.refusals import raises_code

ADDRESS = "localhost:9194"
REPLICAS = (BrokerId(0), BrokerId(1))


class Cluster:
    """A cluster with three topics; the one that is described has a partition with two replicas in sync, and one
    without a leader."""

    def __init__(self) -> None:
        self.ensemble = FakeZooKeeper()
        self.store: FakeMetadataStore = self.ensemble.store()
        self.descriptions = Descriptions(self.store, {"": ADDRESS})

    async def start(self) -> ControllerTerm:
        await self.store.start()
        for broker in REPLICAS:
            registration = BrokerRegistration(
                broker, "localhost", 9192 + broker, directory_ids=(f"{broker}",), boot_id="b"
            )
            await self.store.register_broker(registration, clean=True, locked_directory_ids=frozenset())
        term = await self.store.elect_controller(BrokerId(100), "localhost:9193")
        assert term is not None
        for name in ("c", "a", "b"):
            await self.store.create_topic(
                TopicDescription(name, f"id-{name}", dict.fromkeys(range(2), REPLICAS), {0: "i0", 1: "i1"})
            )
        await self.write(term, "b", isr=REPLICAS, version=-1)
        return term

    async def write(self, term: ControllerTerm, topic: str, *, isr: tuple[BrokerId, ...], version: int) -> None:
        state = LeaderAndIsr(
            leader=isr[0],
            leader_epoch=LeaderEpoch(0),
            isr=tuple(IsrEntry(broker, BrokerEpoch(0)) for broker in isr),
            min_isr=2,
        )
        identity = ReplicaIdentity(f"id-{topic}", "i0")
        await self.store.write_states(term, [StateWrite(TopicPartition(topic, 0), identity, state, version)])

    async def topics(self, *names: str) -> list[pb.DescribeTopicsResponse]:
        found = pb.DescribeTopicsResponse.FromString(await self.descriptions.topics(names))
        return list(found.topics)

    async def cluster(self) -> pb.DescribeClusterResponse:
        return pb.DescribeClusterResponse.FromString(await self.descriptions.cluster())


async def test_topics_come_in_the_order_asked_and_each_that_is_missing_has_its_error() -> None:
    cluster = Cluster()
    await cluster.start()
    found = await cluster.topics("c", "nope", "b", "not a name", "c")
    assert [one.topic for one in found] == ["c", "nope", "b", "not a name", "c"]
    codes = [errors.from_proto(one.error).code if one.HasField("error") else None for one in found]
    assert codes == [None, ErrorCode.UNKNOWN_TOPIC, None, ErrorCode.INVALID_TOPIC_NAME, None]
    assert [list(partition.in_sync_replicas) for partition in found[2].partitions] == [[0, 1], []]
    assert [one.topic for one in await cluster.topics()] == ["a", "b", "c"]
    assert await cluster.descriptions.topic_names() == ["a", "b", "c"]


async def test_the_cluster_is_described_with_its_counts_and_follows_each_change() -> None:
    cluster = Cluster()
    term = await cluster.start()
    found = await cluster.cluster()
    assert found.metadata.controller_id == 100
    assert found.metadata.admin_address == ADDRESS
    assert [broker.broker_id for broker in found.metadata.brokers] == [0, 1]
    assert (found.topic_count, found.partition_count, found.offline_count) == (3, 6, 5)
    assert found.under_replicated_count == 5
    await cluster.write(term, "b", isr=REPLICAS[:1], version=0)
    found = await cluster.cluster()
    assert (found.under_replicated_count, found.under_min_isr_count, found.offline_count) == (6, 6, 5)
    await cluster.store.begin_draining([BrokerId(1)])
    assert list((await cluster.cluster()).draining_brokers) == [1]
    await cluster.store.resign(term)
    assert (await cluster.cluster()).metadata.controller_id == -1


async def test_an_unreadable_topic_is_named_with_its_reason_and_left_out_of_all_topics() -> None:
    cluster = Cluster()
    await cluster.start()
    cluster.ensemble.corrupt("/brokers/topics/a", b"\x00")
    (found,) = await cluster.topics("a")
    assert found.topic == "a"
    assert "/brokers/topics/a" in found.error.message
    assert [one.topic for one in await cluster.topics()] == ["b", "c"]
    assert (await cluster.cluster()).topic_count == 2


async def test_only_a_changed_topic_is_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    term = await cluster.start()
    encoded: list[str] = []
    encode = module.topic_to_proto

    def counted(view: TopicView) -> object:
        encoded.append(view.topic)
        return encode(view)

    monkeypatch.setattr(module, "topic_to_proto", counted)
    await asyncio.gather(*(cluster.topics() for _ in range(20)))
    assert encoded == ["a", "b", "c"]
    assert await cluster.descriptions.topics([]) is await cluster.descriptions.topics([])
    assert await cluster.descriptions.cluster() is await cluster.descriptions.cluster()
    await cluster.write(term, "b", isr=REPLICAS[:1], version=0)
    await cluster.topics()
    assert encoded == ["a", "b", "c", "b"]


async def test_an_answer_for_all_does_not_reach_a_caller_that_saw_an_earlier_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    await cluster.start()

    class Other:
        """Another caller's description of all topics, after a topic was created, at each pause of this caller."""

        is_due = True

        async def give_way(self) -> None:
            monkeypatch.undo()
            await cluster.store.create_topic(TopicDescription("secret", "id-s", {0: REPLICAS}, {0: "i"}))
            await cluster.descriptions.topics(())

    monkeypatch.setattr(slices, "Pace", Other)
    access = SimpleNamespace(may_describe=lambda name: name != "secret")
    answer = pb.DescribeTopicsResponse.FromString(await cluster.descriptions.topics((), access))  # type: ignore[arg-type]
    assert [topic.topic for topic in answer.topics] == ["a", "b", "c"]


async def test_calls_at_the_same_time_share_their_reads_of_zookeeper(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    await cluster.start()
    await cluster.cluster()
    reads = 0
    for name in ("read_many", "get", "children", "deliver_events"):
        original = getattr(FakeSession, name)

        async def counted(session: FakeSession, *arguments: object, _original: object = original) -> object:
            nonlocal reads
            reads += 1
            return await _original(session, *arguments)  # type: ignore[operator]

        monkeypatch.setattr(FakeSession, name, counted)
    await asyncio.gather(*(cluster.descriptions.cluster() for _ in range(50)), cluster.descriptions.topics(["a"]))
    assert reads <= 2


async def test_without_zookeeper_there_is_an_error_and_no_old_answer() -> None:
    cluster = Cluster()
    await cluster.start()
    await cluster.cluster()
    await cluster.topics()
    cluster.store.session.suspend()
    for call in (cluster.descriptions.cluster(), cluster.descriptions.topics([]), cluster.descriptions.topic_names()):
        with raises_code(ErrorCode.COORDINATION_UNAVAILABLE):
            await call
    cluster.store.session.resume()
    assert (await cluster.cluster()).topic_count == 3


async def test_parts_of_deleted_topics_are_forgotten() -> None:
    cluster = Cluster()
    term = await cluster.start()
    for number in range(20):
        topic = TopicDescription(f"t{number}", "id", {0: REPLICAS}, {0: "i"})
        created = await cluster.store.create_topic(topic)
        await cluster.topics()
        await cluster.store.delete_topic(term, replace(created))
    await cluster.topics()
    assert len(cluster.descriptions._described) <= 2 * 3 + 2


async def test_too_many_topics_are_refused_before_any_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_limits, "NAMED_MAX", 2)
    cluster = Cluster()  # not started: each read fails
    with raises_code(ErrorCode.INVALID_REQUEST, "at most 2 topics"):
        await cluster.topics("a", "b", "c")


async def test_a_hidden_topic_that_is_named_many_times_is_decided_and_written_once() -> None:
    cluster = Cluster()
    await cluster.start()
    authorizer, metrics = Authorizer(), Metrics()
    authorizer.use(Rules())
    access = Access(authorizer, Audit(metrics), ANONYMOUS, "::1", "")
    answer = await cluster.descriptions.topics(["a"] * 50, access)
    found = pb.DescribeTopicsResponse.FromString(answer).topics
    assert [one.error.code for one in found] == [ErrorCode.UNKNOWN_TOPIC] * 50
    assert 'operation="DESCRIBE",resource_type="TOPIC"} 1.0' in metrics.render().decode()
