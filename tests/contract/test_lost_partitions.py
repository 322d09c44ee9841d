# SPDX-License-Identifier: Apache-2.0
"""A partition without nodes is new only if no node can have been deleted; otherwise its first leader is not written."""

from __future__ import annotations

from dataclasses import replace

from tidemark.model import NO_LEADER, TopicPartition
from tidemark.ports import WriteOutcome

from tests.contract.conftest import Cluster
from tests.contract.test_metadata_store import elected, topic_of, write_of
from tests.contract.test_orphaned_topics import removed_by_hand

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
