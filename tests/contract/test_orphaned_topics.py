# SPDX-License-Identifier: Apache-2.0
"""A topic whose node was deleted manually is not a deleted topic: controllers keep it, and its name stays in use."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from kazoo.exceptions import NoNodeError
from tidemark.model import BrokerId, ErrorCode, SchemaText, TidemarkError, TopicPartition

from tests.contract.conftest import Cluster
from tests.contract.test_metadata_store import elected, topic_of
from tests.fakes.metadata_store import FakeMetadataStore
from tests.refusals import raises_code


async def removed_by_hand(cluster: Cluster, path: str) -> None:
    """Deletes nodes like `deleteall`, without a request to Tidemark."""
    store = await cluster.store()
    session = store._session  # type: ignore[attr-defined]
    for child in await session.children(path):
        await removed_by_hand(cluster, f"{path}/{child}")
    (answer,) = await session.commit(lambda multi: multi.delete(path, -1))
    assert not isinstance(answer, NoNodeError)


async def test_a_topic_whose_node_was_deleted_is_reported_unreadable_with_its_last_state(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    store = await cluster.store()
    await store.create_topic(topic_of("well", topic_id="id-well"))
    await store.create_topic(topic_of("hurt", topic_id="id-hurt"))
    unreadable: set[str] = set()
    assert set(await store.topics(unreadable=unreadable)) == {"well", "hurt"}
    assert not unreadable

    await removed_by_hand(cluster, "/brokers/topics/hurt")
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            assert set(await store.topics(watch=True, unreadable=unreadable)) == {"well"}
        assert unreadable == {"hurt"}
        (line,) = [vars(record) for record in caplog.records]
        assert line["path"] == "/brokers/topics/hurt"
        assert "id-hurt" in line["was"]
        assert line["config_path"] == "/config/topics/hurt"
        assert "restore it" in line["message"]


async def test_its_name_is_not_given_to_another_topic_until_it_is_given_up(cluster: Cluster) -> None:
    store = await cluster.store()
    await store.create_topic(topic_of("hurt", topic_id="id-hurt"))
    await removed_by_hand(cluster, "/brokers/topics/hurt")
    with raises_code(ErrorCode.TOPIC_ALREADY_EXISTS, "/brokers/topics/hurt was deleted manually"):
        await store.create_topic(topic_of("hurt", topic_id="id-other"))

    await removed_by_hand(cluster, "/config/topics/hurt")
    assert (await store.create_topic(topic_of("hurt", topic_id="id-other"))).topic_id == "id-other"


async def test_a_topic_that_was_deleted_as_it_should_be_leaves_nothing_unreadable(cluster: Cluster) -> None:
    store = await cluster.store()
    topic = await store.create_topic(topic_of("flights"))
    await store.request_topic_deletion("flights")
    await store.delete_topic(await elected(store), topic)
    unreadable: set[str] = set()
    assert await store.topics(watch=True, unreadable=unreadable) == {}
    assert not unreadable


async def test_a_topic_whose_node_was_deleted_during_its_deletion_leaves_nothing(cluster: Cluster) -> None:
    store = await cluster.store()
    typed = replace(topic_of("hurt", topic_id="id-hurt"), schemas={1: SchemaText('{"columns":[]}')})
    topic = await store.create_topic(typed)
    term = await elected(store)
    await store.request_topic_deletion("hurt", "id-hurt")
    await store.request_partitions({TopicPartition("hurt", 2): (BrokerId(1),)})
    await removed_by_hand(cluster, "/brokers/topics/hurt")
    await store.delete_topic(term, topic)
    unreadable: set[str] = set()
    assert (await store.topics(unreadable=unreadable), unreadable) == ({}, set())
    assert await store.requested_deletions() == frozenset()
    assert not (await store.partition_requests()).added
    created = await store.create_topic(topic_of("hurt", topic_id="id-other"))
    assert not created.schemas
    await store.delete_topic(term, topic)
    assert await store.topics(["hurt"]) == {"hurt": created}


@pytest.mark.parametrize("cluster", ["fake"], indirect=True)
async def test_a_deletion_without_the_node_spares_a_topic_that_is_created_meanwhile(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    assert isinstance(store, FakeMetadataStore)
    topic = await store.create_topic(topic_of("hurt", topic_id="id-hurt"))
    term = await elected(store)
    await store.request_topic_deletion("hurt", "id-hurt")
    await removed_by_hand(cluster, "/brokers/topics/hurt")
    await removed_by_hand(cluster, "/config/topics/hurt")

    async def created() -> None:
        await other.create_topic(topic_of("hurt", topic_id="id-other"))

    store.session.before_commit(created)
    with raises_code(ErrorCode.COORDINATION_UNAVAILABLE):
        await store.delete_topic(term, topic)
    await store.delete_topic(term, topic)
    unreadable: set[str] = set()
    found = await store.topics(unreadable=unreadable)
    assert (found["hurt"].topic_id, unreadable) == ("id-other", set())


async def test_a_deletion_that_was_asked_for_by_hand_before_there_was_a_topic_is_not_of_the_one_made_later(
    cluster: Cluster,
) -> None:
    store = await cluster.store()
    session = store._session
    await session.commit(lambda multi: multi.create("/admin/delete_topics/flights", b""))
    created = await store.create_topic(topic_of("flights"))
    assert await store.topics() == {"flights": created}
    assert not await store.requested_deletions()
    await store.request_topic_deletion("flights")
    with pytest.raises(TidemarkError, match="there is a topic flights already"):
        await store.create_topic(topic_of("flights", topic_id="id-other"))
    assert await store.requested_deletions() == {"flights"}, "one that is asked for of it stays"


@pytest.mark.parametrize("cluster", ["fake"], indirect=True)
async def test_a_topic_is_made_when_the_deletion_of_one_before_it_ends_that_very_moment(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    assert isinstance(store, FakeMetadataStore)
    before = await other.create_topic(topic_of("flights"))
    term = await elected(other)
    await other.request_topic_deletion("flights")

    async def deleted() -> None:
        await other.delete_topic(term, before)

    store.session.before_commit(deleted)
    assert (await store.create_topic(topic_of("flights", topic_id="id-other"))).topic_id == "id-other"
