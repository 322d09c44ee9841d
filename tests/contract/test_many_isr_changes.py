# SPDX-License-Identifier: Apache-2.0
"""Many concurrent ISR changes of a leader: many to a multi, and each succeeds or fails separately (rules R9, Z2)."""

from __future__ import annotations

from dataclasses import replace

from tidemark.model import ReplicaIdentity, TopicPartition
from tidemark.ports import WriteOutcome

from tests.contract.conftest import Cluster
from tests.contract.test_metadata_store import STATE, elected, register, registration_of, topic_of, write_of


async def test_isr_changes_with_conflicts_fail_alone(cluster: Cluster) -> None:
    store, leader = await cluster.store(), await cluster.store()
    topic = await store.create_topic(topic_of(partitions=400))
    term = await elected(store)
    await register(leader, registration_of(2))
    await store.write_states(term, [write_of(topic, partition, -1) for partition in range(400)])
    shrunk = replace(STATE, isr=STATE.isr[:1])
    gone = replace(topic, incarnations=dict.fromkeys(topic.incarnations, "gone"))
    writes = [
        write_of(topic, partition, 7, shrunk)
        if partition % 40 == 3
        else write_of(gone, partition, 0, shrunk)
        if partition % 40 == 5
        else write_of(topic, partition, 0, shrunk, b2=0 if partition % 40 != 9 else 4)
        for partition in range(400)
    ]
    results = await leader.write_isrs(writes)
    for partition, result in enumerate(results):
        stands = partition % 40 not in (3, 5, 9)
        assert result == ((WriteOutcome.WRITTEN, 1) if stands else (WriteOutcome.CONFLICT, -1)), partition
    found = await leader.read_isrs({write.partition: write.identity for write in writes if write not in writes[5::40]})
    assert {partition.partition: one.version for partition, one in found.items()} == {
        partition: results[partition].version if results[partition].outcome is WriteOutcome.WRITTEN else 0
        for partition in range(400)
        if partition % 40 != 5
    }


async def test_deleted_states_are_missing_from_the_result(cluster: Cluster) -> None:
    store = await cluster.store()
    topic = await store.create_topic(topic_of(partitions=3))
    term = await elected(store)
    await store.write_states(term, [write_of(topic, partition, -1) for partition in range(3)])
    asked = {
        TopicPartition(topic.topic, 0): ReplicaIdentity(topic.topic_id, topic.incarnations[0]),
        TopicPartition(topic.topic, 1): ReplicaIdentity(topic.topic_id, "gone"),
        TopicPartition("absent", 0): ReplicaIdentity("x", "y"),
    }
    assert await store.read_isrs(asked) == {TopicPartition(topic.topic, 0): (STATE, 0)}
    assert await store.write_isrs([]) == []
