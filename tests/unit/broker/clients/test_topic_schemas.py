# SPDX-License-Identifier: Apache-2.0
"""GetTopicSchemas: any broker answers, from the controller's command or from ZooKeeper (rule S4)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tidemark.broker.clients import topic_schemas
from tidemark.broker.clients.topic_schemas import SchemaReads
from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.broker.node.topic_settings import TopicTable
from tidemark.core.cluster_view import ClusterView, TopicView
from tidemark.core.messages import NewSchemas
from tidemark.model import ControllerEpoch, ErrorCode, SchemaText, TidemarkError
from tidemark.v1.topic_schemas_pb2 import GetTopicSchemasRequest

from tests.contract.test_metadata_store import elected, topic_of, write_of
from tests.fakes.metadata_store import FakeMetadataStore, FakeZooKeeper


class Broker:
    """The parts of a broker that know schemas."""

    def __init__(self, store: FakeMetadataStore) -> None:
        self.table = TopicTable()
        self.metadata = MetadataCache("")
        self.reads = SchemaReads(self.table, self.metadata, store)

    def hears(self, topic_id: str, version: int, name: str = "flights") -> None:
        """Receive UpdateMetadata."""
        created = int(topic_id.rpartition("-")[2])
        view = TopicView(name, topic_id, created_zxid=created, schema_version=version)
        self.metadata.update(ClusterView(controller_epoch=ControllerEpoch(1), topics={name: view}, complete=True))

    async def get(self, *versions: int, topic_id: str = "", topic: str = "flights") -> dict[int, str]:
        request = GetTopicSchemasRequest(topic=topic, topic_id=topic_id, versions=versions)
        return {one.version: one.text for one in (await self.reads.get(request)).schemas}

    async def code(self, *versions: int, topic_id: str = "", topic: str = "flights") -> ErrorCode:
        with pytest.raises(TidemarkError) as refused:
            await self.get(*versions, topic_id=topic_id, topic=topic)
        return refused.value.code


async def store_with(*texts: str) -> FakeMetadataStore:
    """ZooKeeper with the typed topic `flights`, id-1."""
    store = FakeZooKeeper().store()
    await store.start()
    topic = await store.create_topic(replace(topic_of(), schemas={1: SchemaText(texts[0])}))
    await store.write_states(await elected(store), [write_of(topic, 0, -1)])
    for version, text in enumerate(texts[1:], 2):
        assert await store.add_schema(topic, version, SchemaText(text))
    return store


def counting(store: FakeMetadataStore, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    reads: list[object] = []
    topics = store.topics

    async def counted(names: list[str]) -> object:
        reads.append(names)
        await asyncio.sleep(0)
        return await topics(names)

    monkeypatch.setattr(store, "topics", counted)
    return reads


async def test_a_replica_answers_without_zookeeper(monkeypatch: pytest.MonkeyPatch) -> None:
    store = await store_with('{"a":1}', '{"a":2}')
    reads = counting(store, monkeypatch)
    broker = Broker(store)
    broker.hears("id-1", 1)
    broker.table.update_schemas({"flights": "id-1"}, {"flights": NewSchemas("id-1", {1: "one", 2: "two"})})
    assert await broker.get() == {1: "one", 2: "two"}
    assert await broker.get(2, 1, 2, topic_id="id-1") == {1: "one", 2: "two"}
    assert await broker.code(3) is ErrorCode.UNKNOWN_SCHEMA_VERSION
    assert reads == []


async def test_another_broker_reads_a_version_that_metadata_names_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = await store_with('{"a":1}', '{"a":2}')
    reads = counting(store, monkeypatch)
    broker = Broker(store)
    broker.hears("id-1", 1)
    assert await broker.code(2) is ErrorCode.UNKNOWN_SCHEMA_VERSION
    assert await broker.code(-5) is ErrorCode.UNKNOWN_SCHEMA_VERSION
    reads.clear()
    broker.hears("id-1", 2)
    answers = await asyncio.gather(*(broker.get(2) for _ in range(20)), *(broker.get() for _ in range(20)))
    assert answers == [{2: '{"a":2}'}] * 20 + [{1: '{"a":1}', 2: '{"a":2}'}] * 20
    assert len(reads) <= 1


async def test_a_topic_without_a_schema_has_no_versions_and_an_unknown_topic_is_refused() -> None:
    broker = Broker(await store_with('{"a":1}'))
    assert await broker.code() is ErrorCode.LEADER_NOT_AVAILABLE, "before the first UpdateMetadata"
    broker.hears("id-1", 0, "bytes")
    assert await broker.get(topic="bytes") == {}
    assert await broker.code(1, topic="bytes") is ErrorCode.UNKNOWN_SCHEMA_VERSION
    assert await broker.code() is ErrorCode.UNKNOWN_TOPIC


async def test_versions_of_an_earlier_topic_of_the_name_are_never_given() -> None:
    store = await store_with('{"a":1}')
    broker = Broker(store)
    broker.table.update_schemas({"flights": "id-0"}, {"flights": NewSchemas("id-0", {1: "old"})})
    broker.hears("id-1", 1)
    assert await broker.get() == {1: '{"a":1}'}
    assert await broker.code(topic_id="id-0") is ErrorCode.UNKNOWN_TOPIC_ID
    broker.hears("id-2", 1)
    assert await broker.code() is ErrorCode.UNKNOWN_SCHEMA_VERSION, "ZooKeeper still has id-1"


async def test_without_zookeeper_a_broker_without_a_replica_gives_a_retriable_refusal() -> None:
    store = await store_with('{"a":1}')
    broker = Broker(store)
    broker.hears("id-1", 1)
    store.session.suspend()
    assert await broker.code() is ErrorCode.COORDINATION_UNAVAILABLE
    store.session.resume()
    assert await broker.get() == {1: '{"a":1}'}


async def test_schemas_read_in_zookeeper_are_kept_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    store = await store_with('{"a":1}')
    names = [f"other-{number}" for number in range(5)]
    for name in names:
        await store.create_topic(replace(topic_of(name, topic_id="id-1"), schemas={1: SchemaText(f'{{"t":"{name}"}}')}))
    broker = Broker(store)
    views = {name: TopicView(name, "id-1", created_zxid=1, schema_version=1) for name in names}
    broker.metadata.update(ClusterView(controller_epoch=ControllerEpoch(1), topics=views, complete=True))
    monkeypatch.setattr(topic_schemas, "_KEPT_CHARACTERS_MAX", 40)
    reads = counting(store, monkeypatch)
    for _ in range(2):
        for name in names:
            assert await broker.get(topic=name) == {1: f'{{"t":"{name}"}}'}
    assert len(reads) == 10
    assert await broker.get(topic=names[-1])
    assert len(reads) == 10, "the last one is kept"
