# SPDX-License-Identifier: Apache-2.0
"""leaderAndISR nodes damaged or deleted manually are written again, with versions above the known ones (rule Z4)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidemark.model import (
    BrokerId,
    ErrorCode,
    LeaderEpoch,
    ReplicaIdentity,
    StateRebuild,
    TopicDescription,
    TopicPartition,
)
from tidemark.ports import WriteOutcome

from tests.contract.conftest import Cluster
from tests.contract.test_metadata_store import (
    STATE,
    elected,
    read_isr,
    register,
    registration_of,
    topic_of,
    write_isr,
    write_of,
)
from tests.contract.test_orphaned_topics import removed_by_hand
from tests.refusals import raises_code

P = TopicPartition("flights", 0)
NODE = "/brokers/topics/flights/0/leaderAndISR"
AGAIN = replace(STATE, leader_epoch=LeaderEpoch(103))


def rebuild_of(topic: TopicDescription, damaged_version: int, above_version: int = -1) -> StateRebuild:
    identity = ReplicaIdentity(topic.topic_id, topic.incarnations[0])
    return StateRebuild(P, identity, AGAIN, topic.version, damaged_version, above_version)


async def garbage(store: object, data: bytes = b"\xff\xfe") -> None:
    session = store._session  # type: ignore[attr-defined]
    await session.commit(lambda multi: multi.set_data(NODE, data, -1))


async def test_a_damaged_node_is_written_again_at_the_version_of_the_damage(cluster: Cluster) -> None:
    store = await cluster.store()
    topic = await store.create_topic(topic_of(partitions=1))
    term = await elected(store)
    await store.write_states(term, [write_of(topic, 0, -1)])
    await garbage(store)
    assert await store.damaged_versions([P]) == {P: 1}
    assert await store.rebuild_states(term, [rebuild_of(topic, 0)]) == [False], "the node has another version"
    assert await store.rebuild_states(term, [rebuild_of(topic, 1)]) == [True]
    assert (await store.states([P]))[P] == (AGAIN, 2)
    assert await store.rebuild_states(term, [rebuild_of(topic, 2)]) == [False], "the node is readable"


@pytest.mark.parametrize("path", [NODE, "/brokers/topics/flights/0"])
async def test_a_deleted_node_gets_a_version_that_no_leader_knows(cluster: Cluster, path: str) -> None:
    store, leader = await cluster.store(), await cluster.store()
    topic = await store.create_topic(topic_of(partitions=1))
    term = await elected(store)
    await store.write_states(term, [write_of(topic, 0, -1)])
    await removed_by_hand(cluster, path)
    assert await store.damaged_versions([P]) == {P: -1}
    unreadable: set[TopicPartition] = set()
    assert await store.states([P], unreadable=unreadable) == {}
    assert unreadable == {P}
    assert await store.rebuild_states(term, [rebuild_of(topic, -1, above_version=5)]) == [True]
    assert (await store.states([P]))[P] == (AGAIN, 6)
    shrunk = write_of(topic, 0, 0, replace(STATE, isr=STATE.isr[:1]))
    assert (await write_isr(leader, shrunk)).outcome is WriteOutcome.CONFLICT, "the leader of before is fenced"
    identity = ReplicaIdentity(topic.topic_id, topic.incarnations[0])
    assert await read_isr(leader, P, identity) == (AGAIN, 6)


async def test_a_deposed_controller_rebuilds_nothing(cluster: Cluster) -> None:
    store, other = await cluster.store(), await cluster.store()
    topic = await store.create_topic(topic_of(partitions=1))
    term = await elected(store)
    await store.write_states(term, [write_of(topic, 0, -1)])
    await store.resign(term)
    await elected(other, 101)
    await garbage(other)
    with raises_code(ErrorCode.CONTROLLER_NOT_ACTIVE):
        await store.rebuild_states(term, [rebuild_of(topic, 1)])
    unreadable: set[TopicPartition] = set()
    await other.states([P], unreadable=unreadable)
    assert unreadable == {P}


async def test_a_leader_reads_its_other_nodes_beside_a_damaged_or_deleted_one(cluster: Cluster) -> None:
    store = await cluster.store()
    topic = await store.create_topic(topic_of(partitions=3))
    term = await elected(store)
    await store.write_states(term, [write_of(topic, index, -1) for index in range(3)])
    await garbage(store)
    await removed_by_hand(cluster, "/brokers/topics/flights/1/leaderAndISR")
    asked = {
        TopicPartition("flights", index): ReplicaIdentity(topic.topic_id, topic.incarnations[index])
        for index in range(3)
    }
    unreadable: set[TopicPartition] = set()
    assert set(await store.read_isrs(asked, unreadable=unreadable)) == {TopicPartition("flights", 2)}
    assert unreadable == {P, TopicPartition("flights", 1)}


async def test_a_broker_whose_registration_was_deleted_does_not_join_an_isr(cluster: Cluster) -> None:
    store, broker = await cluster.store(), await cluster.store()
    topic = await store.create_topic(topic_of(partitions=1))
    await store.write_states(await elected(store), [write_of(topic, 0, -1)])
    epoch = await register(broker, registration_of(2))
    await removed_by_hand(cluster, "/brokers/ids/2")
    assert BrokerId(2) in await store.broker_epochs()
    assert (await write_isr(store, write_of(topic, 0, 0, b2=epoch))).outcome is WriteOutcome.CONFLICT
    await broker.stop()
    again = await cluster.store()
    epoch = await register(again, registration_of(2))
    assert (await write_isr(store, write_of(topic, 0, 0, b2=epoch))).outcome is WriteOutcome.WRITTEN
