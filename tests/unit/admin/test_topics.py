# SPDX-License-Identifier: Apache-2.0
"""Topics at the admin service, even when ZooKeeper loses responses and sessions; the store is the suite's fake."""

from __future__ import annotations

import asyncio

import pytest
from tidemark.admin.descriptions import Descriptions
from tidemark.admin.planning import TopicRequest
from tidemark.admin.session import SessionKeeper
from tidemark.admin.topics import TopicAdministration
from tidemark.admin.views import Counts, count
from tidemark.model import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    BrokerRegistration,
    ErrorCode,
    IsrEntry,
    LeaderAndIsr,
    LeaderEpoch,
    TopicDescription,
    TopicPartition,
    VersionedState,
)
from tidemark.rpc.receiver import ReceiverCheck

from tests.fakes.metadata_store import FakeMetadataStore, FakeZooKeeper
from tests.refusals import raises_code


async def store_with_a_broker() -> FakeMetadataStore:
    store = FakeZooKeeper().store()
    await store.start()
    registration = BrokerRegistration(BrokerId(0), "localhost", 9192, directory_ids=("d",), boot_id="b")
    await store.register_broker(registration, clean=True, locked_directory_ids=frozenset())
    return store


def administration(store: FakeMetadataStore) -> TopicAdministration:
    return TopicAdministration(store, default_replication_factor=1)


async def test_creation_whose_response_was_lost_finds_its_topic() -> None:
    store = await store_with_a_broker()
    store.session.lose_answers(1, applied=True)
    with raises_code(ErrorCode.REQUEST_TIMED_OUT):  # no controller elects leaders
        await administration(store).create_topic(TopicRequest("t", 1), validate_only=False, timeout_s=0.0)
    assert list(await store.topics()) == ["t"]


async def test_creation_that_did_not_reach_zookeeper_fails() -> None:
    store = await store_with_a_broker()
    store.session.lose_answers(1, applied=False)
    with raises_code(ErrorCode.COORDINATION_UNAVAILABLE):
        await administration(store).create_topic(TopicRequest("t", 1), validate_only=False, timeout_s=0.0)
    assert await store.topics() == {}


async def test_topic_created_concurrently_is_refused() -> None:
    store = await store_with_a_broker()

    async def be_faster() -> None:
        await store.create_topic(TopicDescription("t", "other", {0: (BrokerId(0),)}, {0: "i"}))

    store.session.before_commit(be_faster)
    with raises_code(ErrorCode.TOPIC_ALREADY_EXISTS):
        await administration(store).create_topic(TopicRequest("t", 1), validate_only=False, timeout_s=1.0)
    assert (await store.topics())["t"].topic_id == "other"


async def test_without_brokers_no_topic_can_be_created() -> None:
    store = FakeZooKeeper().store()
    await store.start()
    with raises_code(ErrorCode.INVALID_REPLICATION_FACTOR):
        await administration(store).create_topic(TopicRequest("t", 1), validate_only=False, timeout_s=1.0)


async def test_deleting_the_offsets_topic_is_refused() -> None:
    store = await store_with_a_broker()
    name = "__consumer_offsets"
    await store.create_topic(TopicDescription(name, "id", {0: (BrokerId(0),)}, {0: "i"}))
    with raises_code(ErrorCode.INVALID_REQUEST, "tidemark group delete"):
        await administration(store).topic_id(name)


async def test_an_expired_session_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FakeZooKeeper().store()
    receiver = ReceiverCheck()
    keeper = SessionKeeper(store, receiver)
    await keeper.start()
    expired = store.session.session_id
    renewed = asyncio.Event()
    renew = store.new_session

    async def tell_when_renewed() -> None:
        await renew()
        renewed.set()

    monkeypatch.setattr(store, "new_session", tell_when_renewed)
    store.session.expire()
    async with asyncio.timeout(5):
        await renewed.wait()
    assert store.session.session_id != expired
    assert await Descriptions(store, {}).topic_names() == []
    assert receiver.cluster_id == ""
    await keeper.stop()


def test_unhealthy_partitions_are_counted_by_kind() -> None:
    replicas = (BrokerId(0), BrokerId(1), BrokerId(2))
    topic = TopicDescription("t", "id", dict.fromkeys(range(4), replicas), {}, configs={"min.insync.replicas": "2"})

    def state(leader: int, *isr: int) -> VersionedState:
        entries = tuple(IsrEntry(BrokerId(member), BrokerEpoch(0)) for member in isr)
        return VersionedState(LeaderAndIsr(BrokerId(leader), LeaderEpoch(0), entries, min_isr=2), 0)

    states = {
        TopicPartition("t", 0): state(0, 0, 1, 2),
        TopicPartition("t", 1): state(1, 1, 2),
        TopicPartition("t", 2): state(NO_LEADER, 2),
    }
    assert count([topic], states) == Counts(topics=1, partitions=4, under_replicated=3, under_min_isr=2, offline=2)


async def test_retry_finds_its_topic_by_id_and_refuses_another_topic() -> None:
    store = await store_with_a_broker()
    with raises_code(ErrorCode.REQUEST_TIMED_OUT):  # no controller elects leaders
        await administration(store).create_topic(TopicRequest("t", 1), validate_only=False, timeout_s=0.0)
    topic_id = (await store.topics())["t"].topic_id
    for retry, code in (
        (TopicRequest("t", 1, topic_id=topic_id), ErrorCode.REQUEST_TIMED_OUT),
        (TopicRequest("t", 1), ErrorCode.TOPIC_ALREADY_EXISTS),
        (TopicRequest("t", 1, topic_id="another"), ErrorCode.TOPIC_ALREADY_EXISTS),
    ):
        with raises_code(code):
            await administration(store).create_topic(retry, validate_only=False, timeout_s=0.0)
