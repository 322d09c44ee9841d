# SPDX-License-Identifier: Apache-2.0
"""Topics are read repeatedly: every change is reported, and unchanged topics are not watched again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidemark.ports import StoreEvent
from tidemark.zookeeper import topic_reader

from tests.contract.conftest import Cluster, Ear
from tests.contract.test_metadata_store import elected, topic_of
from tests.fakes.metadata_store import FakeSession


async def test_the_next_read_returns_each_change_and_sets_the_watch_again(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    term = await elected(other)
    ear = Ear(store)
    topics = {name: await other.create_topic(topic_of(name, topic_id=f"id-{name}")) for name in ("a", "b", "c")}
    assert await store.topics(watch=True) == topics
    for round_number in range(3):
        wider = topic_of("b", partitions=3 + round_number, topic_id="id-b")
        before = topics["b"]
        written = await other.write_topic(term, replace(before, partitions=wider.partitions))
        assert written is not None
        topics["b"] = written
        await ear.hears(StoreEvent.TOPICS)
        assert await store.topics(watch=True) == topics
    await other.delete_topic(term, topics.pop("b"))
    await ear.hears(StoreEvent.TOPICS)
    assert await store.topics(watch=True) == topics
    topics["b"] = await other.create_topic(topic_of("b", partitions=1, topic_id="id-other"))
    assert await store.topics(watch=True) == topics


async def test_watches_are_there_again_after_an_outage_and_with_another_session(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    term = await elected(other)
    ear = Ear(store)
    topic = await other.create_topic(topic_of())
    await store.topics(watch=True)
    await cluster.expire(store)
    await ear.hears(StoreEvent.SESSION_EXPIRED)
    await store.new_session()
    assert await store.topics(watch=True) == {"flights": topic}
    wider = topic_of(partitions=5)
    changed = await other.write_topic(term, replace(topic, partitions=wider.partitions))
    await ear.hears(StoreEvent.TOPICS)
    assert await store.topics(watch=True) == {"flights": changed}


@pytest.mark.parametrize("cluster", ["fake"], indirect=True)
async def test_a_topic_that_did_not_change_is_watched_once(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    store, other = await cluster.store(), await cluster.store()
    asked: list[str] = []
    get = FakeSession.get

    async def counted(session: FakeSession, path: str, watch: topic_reader.Watch | None = None) -> object:
        asked.append(path)
        return await get(session, path, watch)

    monkeypatch.setattr(FakeSession, "get", counted)
    for number in range(20):
        await other.create_topic(topic_of(f"t{number}", topic_id=f"id-{number}"))
        assert len(await store.topics(watch=True)) == number + 1
    assert len(asked) == 2 * 20
