# SPDX-License-Identifier: Apache-2.0
"""Nodes that were deleted manually. A partition without nodes is new only if no node can have been deleted; otherwise
its first leader is not written. Without the parent of nodes, calls are refused until the parent is restored.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tidemark.model import NO_LEADER, ErrorCode, TopicPartition
from tidemark.ports import StoreEvent, WriteOutcome

from tests.contract.conftest import Cluster, Ear
from tests.contract.test_lost_epochs import ONE, registered
from tests.contract.test_metadata_store import elected, topic_of, write_of
from tests.contract.test_orphaned_topics import removed_by_hand
from tests.refusals import raises_code

FIRST, SECOND = (TopicPartition("flights", index) for index in range(2))


async def test_partitions_of_a_topic_that_lost_no_nodes_are_new(cluster: Cluster) -> None:
    store = await cluster.store()
    topic = await store.create_topic(topic_of(partitions=2))
    term = await elected(store)
    unreadable: set[TopicPartition] = set()
    assert await store.states([FIRST, SECOND], unreadable=unreadable) == {}
    assert not unreadable
    results = await store.write_states(term, [write_of(topic, 0, -1), write_of(topic, 1, -1)])
    assert [one.outcome for one in results] == [WriteOutcome.WRITTEN] * 2


async def test_the_first_leader_of_a_partition_whose_nodes_were_deleted_is_not_written(cluster: Cluster) -> None:
    store = await cluster.store()
    topic = await store.create_topic(topic_of(partitions=2))
    term = await elected(store)
    await store.write_states(term, [write_of(topic, 0, -1), write_of(topic, 1, -1)])
    await removed_by_hand(cluster, "/brokers/topics/flights/1")

    unreadable: set[TopicPartition] = set()
    assert set(await store.states([FIRST, SECOND], unreadable=unreadable)) == {FIRST}
    assert unreadable == {SECOND}
    again = write_of(topic, 1, -1)
    (result,) = await store.write_states(term, [again])
    assert result.outcome is WriteOutcome.CONFLICT
    (result,) = await store.write_states(term, [replace(again, state=replace(again.state, leader=NO_LEADER))])
    assert result.outcome is WriteOutcome.WRITTEN, "a state without a leader fences no broker"


async def test_partitions_of_a_topic_whose_node_was_put_back_are_not_taken_for_new(cluster: Cluster) -> None:
    store = await cluster.store()
    topic = await store.create_topic(topic_of(partitions=1))
    term = await elected(store)
    await store.write_states(term, [write_of(topic, 0, -1)])
    session = store._session  # type: ignore[attr-defined]
    node = await session.get("/brokers/topics/flights")
    assert node is not None
    await removed_by_hand(cluster, "/brokers/topics/flights")
    await session.commit(lambda multi: multi.create("/brokers/topics/flights", node[0]))

    unreadable: set[TopicPartition] = set()
    assert await store.states([FIRST], unreadable=unreadable) == {}
    assert unreadable == {FIRST}


async def test_a_topic_is_refused_without_the_parent_of_settings_and_created_with_it(cluster: Cluster) -> None:
    """Regression: each attempt sent two thousand requests, until the stack was full."""
    store = await cluster.store()
    await removed_by_hand(cluster, "/config/topics")
    with raises_code(ErrorCode.INTERNAL):
        await store.create_topic(topic_of("flights"))
    assert await store.restore_parents() == ["/config/topics"]
    assert await store.restore_parents() == []
    assert (await store.create_topic(topic_of("flights"))).topic == "flights"


async def test_a_deletion_is_refused_without_the_parent_of_deletions_and_seen_with_it(cluster: Cluster) -> None:
    """Regression: the request was repeated without end. The controller did not see later requests."""
    store, other = await cluster.store(), await cluster.store()
    ear = Ear(store)
    await store.create_topic(topic_of("flights"))
    await removed_by_hand(cluster, "/admin/delete_topics")
    assert await store.requested_deletions(watch=True) == frozenset()
    with raises_code(ErrorCode.COORDINATION_UNAVAILABLE):
        await other.request_topic_deletion("flights")
    await other.restore_parents()
    await ear.hears(StoreEvent.DELETIONS)
    assert await store.requested_deletions(watch=True) == frozenset()
    await other.request_topic_deletion("flights")
    await ear.hears(StoreEvent.DELETIONS)
    assert await store.requested_deletions() == {"flights"}


async def test_a_registration_waits_until_the_parent_of_registrations_is_restored(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    await removed_by_hand(cluster, "/brokers/ids")
    registering = asyncio.create_task(registered(store))
    done, _ = await asyncio.wait({registering}, timeout=0.2)
    assert not done
    await other.restore_parents()
    assert await registering == 0
    assert set(await other.live_brokers()) == {ONE}


@pytest.mark.parametrize("content", [b"\xff", b'{"id":7,"address":"h:1"}'])
async def test_a_controller_node_of_no_session_is_no_controller_and_prevents_no_election(
    cluster: Cluster, content: bytes
) -> None:
    """Regression: after an operator had created the node without a session, no controller was elected any more."""
    store = await cluster.store()
    await store._session.commit(lambda multi: multi.create("/controller", content))
    assert await store.controller(watch=True) is None
    term = await elected(store)
    assert await store.controller() == (term.controller_id, "host:100", 5_000)
    assert await elected(store) == term
