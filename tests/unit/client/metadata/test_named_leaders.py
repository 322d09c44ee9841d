# SPDX-License-Identifier: Apache-2.0
"""Leaders that refusals name: leader epochs compare within one topic id and incarnation only (rule K2)."""

from __future__ import annotations

from typing import Any

import pytest
from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.client.metadata.cluster import Cluster
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView
from tidemark.core.replication.replica import Replica, check_epoch
from tidemark.model import (
    BrokerId,
    BrokerRegistration,
    ErrorCode,
    LeaderEpoch,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
)

from tests.refusals import raises_code

WHERE = TopicPartition("orders", 0)


def view(topic_id: str, incarnation: str, leader: int, epoch: int) -> ClusterView:
    """The metadata of a cluster with one topic of one partition; a topic with a larger id is a later one."""
    ids = (BrokerId(1), BrokerId(2))
    partition = PartitionView(0, BrokerId(leader), LeaderEpoch(epoch), ids, ids, incarnation, partition_epoch=epoch)
    brokers = {one: BrokerRegistration(one, "here", int(one)) for one in ids}
    topic = TopicView(WHERE.topic, topic_id, ord(topic_id), ord(topic_id), {0: partition}, partition_count=1)
    return ClusterView("c", brokers=brokers, topics={WHERE.topic: topic}, complete=True)


@pytest.mark.parametrize(
    ("behind", "epoch"),
    [(("a", "i"), 1), (("b", "h"), 1), (("b", "i"), 50)],
    ids=["earlier topic", "earlier partition", "same partition"],
)
async def test_a_client_takes_a_leader_over_only_for_the_topic_id_and_incarnation_that_it_knows(
    behind: tuple[str, str], epoch: int
) -> None:
    """Otherwise the epochs of the new topic would be below the known one, and the client would never find a leader."""
    broker, cluster = MetadataCache(""), Cluster("here:1")
    broker.update(view(*behind, leader=2, epoch=50))
    cluster._merge(view("b", "i", leader=1, epoch=0))
    refusal = TidemarkError(ErrorCode.NOT_LEADER, "not led here")
    cluster.note_refusal(WHERE, broker.explain(refusal, WHERE))
    later = view("b", "i", leader=1, epoch=1)
    cluster._merge(later)
    found = cluster.leader(WHERE)
    assert found is not None
    assert found.leader_epoch == epoch
    await cluster.close()


def test_a_replica_names_its_ids_with_its_leader_epoch() -> None:
    """A request to produce has no incarnation: a replica of an earlier one refuses the request by its epoch."""
    replica: Any = Replica(WHERE, ReplicaIdentity("b", "h"), LeaderEpoch(50))
    with raises_code(ErrorCode.FENCED_LEADER_EPOCH) as caught:
        check_epoch(replica, LeaderEpoch(0), LeaderEpoch(50))
    with raises_code(ErrorCode.NOT_LEADER) as not_led:
        replica.leading()
    for error in (caught.value, not_led.value):
        assert (error.metadata["topic_id"], error.metadata["incarnation"]) == ("b", "h")
