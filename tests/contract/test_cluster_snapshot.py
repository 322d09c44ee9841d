# SPDX-License-Identifier: Apache-2.0
"""A snapshot of the cluster, current by watches: it equals a direct read after a sync, or raises an error."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from kazoo.protocol.states import Callback
from tidemark.core.config_resource import ConfigKind, ConfigResource
from tidemark.model import BrokerId, BrokerRegistration, ErrorCode, TidemarkError, TopicPartition
from tidemark.ports import ClusterSnapshot, ControllerTerm, StoreEvent, TopicSnapshot
from tidemark.zookeeper.store import MetadataStore

from tests.contract.conftest import Cluster, Ear
from tests.contract.test_metadata_store import STATE, elected, topic_of, write_of
from tests.fakes.metadata_store import FakeSession
from tests.refusals import raises_code

READERS = 8
ROUNDS = 12


async def read_directly(store: MetadataStore) -> ClusterSnapshot:
    """The same snapshot by requests without watches."""
    topics = await store.topics()
    wanted = [TopicPartition(name, index) for name, topic in topics.items() for index in topic.partitions]
    states = await store.states(wanted, sync=True)
    return ClusterSnapshot(
        cluster_id=await store.cluster_id(),
        brokers=await store.live_brokers(),
        controller=await store.controller(),
        draining=await store.draining_brokers(),
        topics={
            name: TopicSnapshot(topics[name], {one: state for one, state in states.items() if one.topic == name})
            for name in sorted(topics)
        },
    )


async def register(store: MetadataStore, broker: int) -> None:
    registration = BrokerRegistration(
        BrokerId(broker), "localhost", 9192 + broker, directory_ids=(f"d{broker}",), boot_id="b"
    )
    await store.register_broker(registration, clean=True, locked_directory_ids=frozenset())


async def changes(store: MetadataStore, term: ControllerTerm) -> AsyncIterator[str]:
    topic = await store.create_topic(topic_of("b"))
    yield "a topic"
    await store.create_topic(topic_of("a", topic_id="id-2"))
    yield "a topic that comes first"
    await store.write_states(term, [write_of(topic, 0, -1), write_of(topic, 1, -1)])
    yield "states"
    await store.write_states(term, [write_of(topic, 1, 0, replace(STATE, lineage=7))])
    yield "one state"
    resource = ConfigResource(ConfigKind.TOPIC, "b")
    assert await store.write_configs(resource, {"retention.ms": "1"}, version=0)
    yield "settings"
    wider = await store.write_topic(term, replace(topic, partitions=topic_of(partitions=3).partitions))
    assert wider is not None
    yield "partitions"
    await register(store, 4)
    yield "a broker"
    await store.begin_draining([BrokerId(4)])
    yield "the first draining broker"
    await store.end_draining([BrokerId(4)])
    yield "no draining broker"
    await store.delete_topic(term, wider)
    yield "a deletion"
    await store.create_topic(topic_of("b", topic_id="id-3"))
    yield "another topic of the same name"
    await store.resign(term)
    yield "no controller"


@pytest.mark.parametrize("writer", ["itself", "another store"])
async def test_each_change_of_any_store_is_in_the_next_snapshot(cluster: Cluster, writer: str) -> None:
    store = await cluster.store()
    other = store if writer == "itself" else await cluster.store()
    assert (await store.cluster_snapshot()).topics == {}
    async for change in changes(other, await elected(other)):
        snapshot = await store.cluster_snapshot()
        assert snapshot == await read_directly(store), change
        assert list(snapshot.topics) == sorted(snapshot.topics), change


async def test_an_unchanged_part_is_the_same_object(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    for name in ("a", "b"):
        await other.create_topic(topic_of(name, topic_id=f"id-{name}"))
    await store.cluster_snapshot()
    before = await store.cluster_snapshot()
    assert await store.cluster_snapshot() is before
    await register(other, 1)
    after = await store.cluster_snapshot()
    assert after is not before
    assert after.topics is before.topics
    await other.create_topic(topic_of("c", topic_id="id-c"))
    assert (await store.cluster_snapshot()).topics["a"] is before.topics["a"]


async def test_an_unreadable_topic_has_its_reason_and_the_others_are_described(cluster: Cluster) -> None:
    store = await cluster.store()
    for name in ("bad", "good"):
        await store.create_topic(topic_of(name, topic_id=f"id-{name}"))
    assert (await store.cluster_snapshot()).topics["bad"].topic is not None
    await cluster.corrupt("/brokers/topics/bad", b"\x00")
    topics = (await store.cluster_snapshot()).topics
    assert topics["bad"].topic is None
    assert topics["bad"].error is not None
    assert "/brokers/topics/bad" in topics["bad"].error.message
    assert topics["good"].topic is not None


async def test_a_partition_with_a_damaged_state_is_unreadable_until_it_is_written_again(cluster: Cluster) -> None:
    store = await cluster.store()
    term = await elected(store)
    topic = await store.create_topic(topic_of("a"))
    await store.write_states(term, [write_of(topic, 0, -1), write_of(topic, 1, -1)])
    hurt = TopicPartition("a", 0)
    assert not (await store.cluster_snapshot()).topics["a"].unreadable
    await cluster.corrupt("/brokers/topics/a/0/leaderAndISR", b"\x00")
    found = (await store.cluster_snapshot()).topics["a"]
    assert found.unreadable == {hurt}
    assert hurt not in found.states
    again = (await (await cluster.store()).cluster_snapshot()).topics["a"]
    assert again == found, "a store that reads everything finds the same"
    await store.write_states(term, [write_of(topic, 0, 1)])
    healed = (await store.cluster_snapshot()).topics["a"]
    assert not healed.unreadable
    assert hurt in healed.states


async def test_without_an_answer_of_zookeeper_there_is_no_snapshot_and_later_all_that_changed_is_in_it(
    cluster: Cluster,
) -> None:
    store, other = await cluster.store(2000), await cluster.store(20_000)
    ear, ear_of_other = Ear(store), Ear(other)
    await other.create_topic(topic_of("before"))
    assert list((await store.cluster_snapshot()).topics) == ["before"]
    await cluster.stop_serving()
    await ear.hears(StoreEvent.SESSION_SUSPENDED)
    with raises_code(ErrorCode.COORDINATION_UNAVAILABLE):
        await store.cluster_snapshot()
    await cluster.serve_again()
    await ear_of_other.hears(StoreEvent.SESSION_RESTORED)
    await other.create_topic(topic_of("meanwhile", topic_id="id-2"))
    async with asyncio.timeout(20):
        while True:
            try:
                snapshot = await store.cluster_snapshot()
                break
            except TidemarkError:
                if store._session.session_id == 0:
                    await store.new_session()
    assert list(snapshot.topics) == ["before", "meanwhile"]
    await other.create_topic(topic_of("after", topic_id="id-3"))
    assert list((await store.cluster_snapshot()).topics) == ["after", "before", "meanwhile"]


async def test_an_expired_session_has_no_snapshot_and_a_new_one_has_every_change(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    ear = Ear(store)
    await store.cluster_snapshot()
    await cluster.expire(store)
    await ear.hears(StoreEvent.SESSION_EXPIRED)
    with pytest.raises(TidemarkError):
        await store.cluster_snapshot()
    await other.create_topic(topic_of("a"))
    await store.new_session()
    assert list((await store.cluster_snapshot()).topics) == ["a"]
    await other.create_topic(topic_of("b", topic_id="id-2"))
    assert list((await store.cluster_snapshot()).topics) == ["a", "b"]


class Ledger:
    """The topics that must be in a snapshot taken now, and those that must not."""

    def __init__(self) -> None:
        self.present: dict[str, str] = {}
        self.gone: dict[str, str] = {}
        """The id of the topic that had the name."""

    def check(self, must: dict[str, str], must_not: dict[str, str], snapshot: ClusterSnapshot) -> None:
        """Check a snapshot against `must` and `must_not` at the time of its request."""
        for name, topic_id in must.items():
            if self.present.get(name) == topic_id:  # no deletion has begun since
                found = snapshot.topics.get(name)
                assert found is not None, name
                assert found.topic is not None
                assert found.topic.topic_id == topic_id
        for name, topic_id in must_not.items():
            if self.gone.get(name) == topic_id:  # no creation has begun since
                assert name not in snapshot.topics


async def create_and_delete(store: MetadataStore, term: ControllerTerm, ledger: Ledger, seed: int) -> None:
    choice = random.Random(seed)
    for round_number in range(ROUNDS):
        name = f"t{seed}-{choice.randrange(3)}"
        if name in ledger.present:
            topic_id = ledger.present.pop(name)
            await store.delete_topic(term, (await store.topics([name]))[name])
            ledger.gone[name] = topic_id
        else:
            ledger.gone.pop(name, None)
            topic = await store.create_topic(topic_of(name, topic_id=f"id-{seed}-{round_number}"))
            await store.write_states(term, [write_of(topic, 0, -1)])
            ledger.present[name] = topic.topic_id


async def test_readers_beside_writers_and_an_expiry_see_every_write_that_ended_before_they_asked(
    cluster: Cluster,
) -> None:
    store, other = await cluster.store(), await cluster.store()
    term, ledger, ear = await elected(other), Ledger(), Ear(store)
    writing = asyncio.gather(*(create_and_delete(other, term, ledger, seed) for seed in range(4)))
    refused: set[ErrorCode] = set()

    async def read() -> None:
        while not writing.done():
            must, must_not = dict(ledger.present), dict(ledger.gone)
            try:
                snapshot = await store.cluster_snapshot()
            except TidemarkError as error:
                refused.add(error.code)
                await asyncio.sleep(0.001)
                continue
            ledger.check(must, must_not, snapshot)

    async def expire() -> None:
        await store.cluster_snapshot()
        await cluster.expire(store)
        await ear.hears(StoreEvent.SESSION_EXPIRED)
        await store.new_session()

    async with asyncio.timeout(60):
        await asyncio.gather(writing, expire(), *(read() for _ in range(READERS)))
    assert refused <= {ErrorCode.COORDINATION_UNAVAILABLE}
    assert await store.cluster_snapshot() == await read_directly(store)


@pytest.mark.parametrize("cluster", ["fake"], indirect=True)
async def test_a_change_during_the_read_of_its_znode_is_in_the_next_snapshot(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = await cluster.store(), await cluster.store()
    term = await elected(other)
    topic = await other.create_topic(topic_of())
    await other.write_states(term, [write_of(topic, 0, -1)])
    await store.cluster_snapshot()
    read_many, late = FakeSession.read_many, [1, 2, 3]

    async def read_and_be_overtaken(session: FakeSession, paths: list[str]) -> object:
        found = await read_many(session, paths)
        if session is store._session and late and any("leaderAndISR" in path for path in paths):
            version = late.pop(0)
            await other.write_states(term, [write_of(topic, 0, version, replace(STATE, lineage=10 + version))])
        return found

    monkeypatch.setattr(FakeSession, "read_many", read_and_be_overtaken)
    await other.write_states(term, [write_of(topic, 0, 0, replace(STATE, lineage=10))])
    for lineage in (10, 11, 12, 13):
        snapshot = await store.cluster_snapshot()
        assert snapshot.topics["flights"].states[TopicPartition("flights", 0)].state.lineage == lineage
    assert not late


@pytest.mark.parametrize("cluster", ["fake"], indirect=True)
async def test_a_read_that_fails_forgets_no_change(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    store, other = await cluster.store(), await cluster.store()
    await store.cluster_snapshot()
    await other.create_topic(topic_of())
    read_many = FakeSession.read_many

    async def fail(session: FakeSession, paths: list[str]) -> object:
        raise TidemarkError(ErrorCode.COORDINATION_UNAVAILABLE, "the answer was lost")

    monkeypatch.setattr(FakeSession, "read_many", fail)
    with pytest.raises(TidemarkError):
        await store.cluster_snapshot()
    monkeypatch.setattr(FakeSession, "read_many", read_many)
    assert list((await store.cluster_snapshot()).topics) == ["flights"]


@pytest.mark.parametrize("cluster", ["zookeeper"], indirect=True)
async def test_a_snapshot_waits_for_events_that_arrived_before_the_answer_to_its_sync(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    await store.cluster_snapshot()
    release = threading.Event()
    # kazoo delivers events on one thread and answers on another; the thread of the events is late here.
    store._session._client.handler.dispatch_callback(Callback("watch", release.wait, (20,)))  # type: ignore[attr-defined]
    try:
        await other.create_topic(topic_of())
        reading = asyncio.create_task(store.cluster_snapshot())
        await asyncio.wait({reading}, timeout=0.5)
    finally:
        release.set()
    assert list((await reading).topics) == ["flights"]
