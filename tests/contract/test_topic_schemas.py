# SPDX-License-Identifier: Apache-2.0
"""Versions of a topic's schema: each is created once, never changes, and is deleted with its topic (S1, S2)."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace

import pytest
from tidemark.core.config_resource import ConfigKind, ConfigResource
from tidemark.model import ErrorCode, SchemaText, TopicDescription, TopicPartition
from tidemark.ports import AdminRequest, ControllerTerm, StoreEvent
from tidemark.zookeeper.store import MetadataStore
from tidemark.zookeeper.topic_schemas.nodes import TEXT_BYTES_MAX, deletions, encode

from tests.contract.conftest import Cluster, Ear
from tests.contract.test_metadata_store import elected, topic_of, write_of
from tests.fakes.metadata_store import FakeSession
from tests.refusals import raises_code

FLIGHTS = ConfigResource(ConfigKind.TOPIC, "flights")


def schema_of(number: int, *, size: int = 0) -> SchemaText:
    return SchemaText(
        json.dumps({"columns": number, "doc": "ö" + "x" * size}, separators=(",", ":"), ensure_ascii=False), 7
    )


async def typed_topic(
    store: MetadataStore, *, topic_id: str = "id-1", partitions: int = 2
) -> tuple[TopicDescription, ControllerTerm]:
    """A typed topic that the controller has initialised."""
    term = await elected(store)
    topic = await store.create_topic(
        replace(topic_of(partitions=partitions, topic_id=topic_id), schemas={1: schema_of(1)})
    )
    await store.write_states(term, [write_of(topic, index, -1) for index in range(partitions)])
    return topic, term


async def now(store: MetadataStore) -> TopicDescription:
    return (await store.topics(["flights"]))["flights"]


async def test_a_typed_topic_reads_as_it_was_created_and_keeps_every_version(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    topic, _ = await typed_topic(store)
    assert topic.schemas == {1: schema_of(1)}
    assert topic.schema_version == 1
    assert await other.topics() == {"flights": topic}
    assert (await other.cluster_snapshot()).topics["flights"].topic == topic
    for version in (2, 3):
        assert await store.add_schema(await now(store), version, schema_of(version))
    expected = {version: schema_of(version) for version in (1, 2, 3)}
    assert (await other.topics())["flights"].schemas == expected
    assert (await now(other)).schemas == expected
    described = (await other.cluster_snapshot()).topics["flights"].topic
    assert described is not None
    assert described.schemas == expected
    assert (await now(other)).modified_zxid == topic.modified_zxid


async def test_one_of_two_concurrent_changes_creates_the_version(cluster: Cluster) -> None:
    one, other = await cluster.store(), await cluster.store()
    topic, _ = await typed_topic(one)
    results = await asyncio.gather(
        one.add_schema(topic, 2, SchemaText('{"by":"one"}')), other.add_schema(topic, 2, SchemaText('{"by":"other"}'))
    )
    assert sorted(results) == [False, True]
    winner = "one" if results[0] else "other"
    assert (await now(one)).schemas == {1: schema_of(1), 2: SchemaText(f'{{"by":"{winner}"}}')}


async def test_a_version_is_not_created_where_the_settings_or_the_topic_changed_since_the_read(
    cluster: Cluster,
) -> None:
    store = await cluster.store()
    topic, term = await typed_topic(store)
    assert await store.write_configs(FLIGHTS, {"retention.ms": "9"}, version=topic.configs_version)
    assert not await store.add_schema(topic, 2, schema_of(2))

    before = await now(store)
    await store.delete_topic(term, topic)
    assert not await store.add_schema(before, 2, schema_of(2))
    recreated = await store.create_topic(replace(topic_of(topic_id="id-2"), schemas={1: schema_of(9)}))
    await store.write_states(term, [write_of(recreated, 0, -1)])
    assert not await store.add_schema(replace(before, configs_version=0), 2, schema_of(2))
    assert (await now(store)).schemas == {1: schema_of(9)}
    assert await store.add_schema(recreated, 2, schema_of(10))


async def test_a_topic_without_leaders_yet_gets_no_version(cluster: Cluster) -> None:
    store = await cluster.store()
    topic = await store.create_topic(replace(topic_of(), schemas={1: schema_of(1)}))
    assert not await store.add_schema(topic, 2, schema_of(2))


async def test_an_answer_is_kept_with_the_version_or_neither_is(cluster: Cluster) -> None:
    store = await cluster.store()
    topic, _ = await typed_topic(store)
    receipt = AdminRequest("request-1", "AlterTopicSchema", "digest", 5, answer=b"version 2")
    assert await store.add_schema(topic, 2, schema_of(2), receipt=receipt)
    assert await store.kept_request("request-1") == replace(receipt, version=0)
    assert not await store.add_schema(await now(store), 3, schema_of(3), receipt=receipt)
    assert (await now(store)).schema_version == 2


async def test_a_watch_on_the_topics_reports_each_version_also_after_an_expiry(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    await typed_topic(other)
    for version in range(2, 5):
        assert (await store.topics(watch=True))["flights"].schema_version == version - 1
        ear = Ear(store)
        assert await other.add_schema(await now(other), version, schema_of(version))
        await ear.hears(StoreEvent.TOPICS)
    ear = Ear(store)
    await cluster.expire(store)
    await ear.hears(StoreEvent.SESSION_EXPIRED)
    await store.new_session()
    assert (await store.topics(watch=True))["flights"].schema_version == 4
    assert await other.add_schema(await now(other), 5, schema_of(5))
    await ear.hears(StoreEvent.TOPICS)
    assert (await store.topics(watch=True))["flights"].schema_version == 5


async def test_a_deletion_takes_the_versions_along_and_the_next_topic_of_the_name_has_its_own(cluster: Cluster) -> None:
    store = await cluster.store()
    topic, term = await typed_topic(store)
    many = [f"/config/topics/flights/{version}" for version in range(2, 1200)]
    data = json.dumps({"version": 1, "topic_id": "id-1", "schema": {}}).encode()
    for start in range(0, len(many), 400):
        await store._session.commit(
            lambda multi, start=start: [multi.create(one, data) for one in many[start : start + 400]]
        )  # type: ignore[misc]
    assert (await now(store)).schema_version == 1199
    await store.request_topic_deletion("flights")
    await store.delete_topic(term, topic)
    assert await store.topics() == {}
    without = await store.create_topic(topic_of(topic_id="id-2"))
    assert without.schemas == {}
    assert await store.topics() == {"flights": without}


def test_the_newest_versions_are_deleted_last() -> None:
    names = [one.path.rpartition("/")[2] for one in deletions("t", ["10", "9", "by hand", "1"])]
    assert names == ["by hand", "1", "9", "10"]


async def test_a_damaged_version_has_no_text_and_the_topic_and_its_other_versions_are_read(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    store, other = await cluster.store(), await cluster.store()
    topic, _ = await typed_topic(store)
    await store.add_schema(topic, 2, schema_of(2))
    await store.add_schema(topic, 3, schema_of(3))
    await cluster.corrupt("/config/topics/flights/2", b"{")
    await store._session.commit(lambda multi: multi.create("/config/topics/flights/by-hand", b""))
    unreadable: set[str] = set()
    with caplog.at_level(logging.ERROR):
        read = (await other.topics(unreadable=unreadable))["flights"]
    assert read.schemas == {1: schema_of(1), 2: SchemaText(""), 3: schema_of(3)}
    assert not unreadable
    assert [vars(record)["path"] for record in caplog.records] == ["/config/topics/flights/2"]
    await cluster.corrupt("/config/topics/flights/2", encode(topic.topic_id, schema_of(2)))
    assert (await other.topics(unreadable=unreadable))["flights"].schemas[2] == schema_of(2), "the node was restored"


async def test_a_version_of_another_topic_id_is_left_out(cluster: Cluster) -> None:
    """A topic may be created again between the read of its node and that of its versions."""
    store, other = await cluster.store(), await cluster.store()
    topic, _ = await typed_topic(store)
    await store.add_schema(topic, 2, schema_of(2))
    foreign = json.dumps({"version": 1, "topic_id": "id-9", "schema": {}}).encode()
    await cluster.corrupt("/config/topics/flights/2", foreign)
    assert (await other.topics())["flights"].schemas == {1: schema_of(1)}
    assert (await now(other)).schemas == {1: schema_of(1)}


async def test_a_schema_that_no_node_can_hold_is_refused_with_its_size(cluster: Cluster) -> None:
    store = await cluster.store()
    topic, _ = await typed_topic(store)
    for text in ("[1]", "columns", '{"name":"\\ud800"}', schema_of(2, size=TEXT_BYTES_MAX).text):
        with raises_code(ErrorCode.INVALID_SCHEMA) as refused:
            await store.add_schema(topic, 2, SchemaText(text))
    assert refused.value.metadata["size_bytes_max"] == str(TEXT_BYTES_MAX)
    assert await store.add_schema(topic, 2, schema_of(2, size=TEXT_BYTES_MAX - 200))
    assert (await now(store)).schemas[2] == schema_of(2, size=TEXT_BYTES_MAX - 200)


@pytest.mark.parametrize("cluster", ["fake"], indirect=True)
async def test_a_topic_without_a_schema_and_a_known_version_cost_no_read(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = await cluster.store(), await cluster.store()
    topic, _ = await typed_topic(other)
    await other.create_topic(topic_of("bytes", topic_id="id-bytes"))
    await store.topics(watch=True)
    await store.cluster_snapshot()
    asked: list[str] = []
    children, read_many = FakeSession.children, FakeSession.read_many

    async def counted_children(session: FakeSession, path: str, watch: object = None) -> object:
        asked.append(path)
        return await children(session, path, watch)  # type: ignore[arg-type]

    async def counted_reads(session: FakeSession, paths: list[str]) -> object:
        asked.extend(path for path in paths if path.startswith("/config/topics/flights/"))
        return await read_many(session, paths)

    assert await other.add_schema(topic, 2, schema_of(2))
    monkeypatch.setattr(FakeSession, "children", counted_children)
    monkeypatch.setattr(FakeSession, "read_many", counted_reads)
    await store.topics(watch=True)
    assert [path for path in asked if "/topics/bytes" in path] == []
    assert [path for path in asked if path.startswith("/config/topics/flights/")] == ["/config/topics/flights/2"]
    asked.clear()
    await store.topics(watch=True)
    assert [path for path in asked if path.startswith("/config/topics/")] == []
    await store.cluster_snapshot()
    assert [path for path in asked if path.startswith("/config/topics/flights/")] == ["/config/topics/flights/2"]


@pytest.mark.parametrize("cluster", ["fake"], indirect=True)
async def test_a_lost_answer_to_a_new_version_is_found_by_the_next_read(cluster: Cluster) -> None:
    store = await cluster.store()
    topic, _ = await typed_topic(store)
    assert isinstance(store._session, FakeSession)
    store._session.lose_answers(1, applied=True)
    with raises_code(ErrorCode.COORDINATION_UNAVAILABLE):
        await store.add_schema(topic, 2, schema_of(2))
    assert (await now(store)).schemas[2] == schema_of(2)
    assert not await store.add_schema(topic, 2, schema_of(3))
    assert await store.states([TopicPartition("flights", 0)])
