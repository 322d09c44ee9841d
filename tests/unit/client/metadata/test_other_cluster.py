# SPDX-License-Identifier: Apache-2.0
"""A new cluster at the addresses of an earlier one: its epochs and zxids are lower, and its topics have other ids."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.client.metadata.cluster import Cluster
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView
from tidemark.model import BrokerId, BrokerRegistration, ControllerEpoch, LeaderEpoch
from tidemark.rpc.codecs.metadata import view_to_proto

TOPIC = "orders"


def view(cluster_id: str, controller_epoch: int, zxid: int) -> ClusterView:
    """The metadata of a cluster with one broker and one topic, whose id is that of the cluster."""
    partition = PartitionView(0, BrokerId(0), LeaderEpoch(controller_epoch), (BrokerId(0),), (BrokerId(0),))
    return ClusterView(
        cluster_id,
        controller_epoch=ControllerEpoch(controller_epoch),
        brokers={BrokerId(0): BrokerRegistration(BrokerId(0), "127.0.0.1", 1)},
        topics={TOPIC: TopicView(TOPIC, f"id of {cluster_id}", zxid, zxid, {0: partition}, partition_count=1)},
    )


OLD, NEW, STALE = view("old", 7, 900), view("new", 2, 5), view("new", 1, 4)


@pytest.mark.parametrize("epoch", [1, 7, 9], ids=["lower", "equal", "higher"])
async def test_a_client_takes_over_the_metadata_of_a_new_cluster_at_its_addresses(epoch: int) -> None:
    """Otherwise the client would name the old topic's id, and be refused, until the application starts again."""
    cluster = Cluster("127.0.0.1:1")
    for known in (OLD, view("new", epoch, 5)):
        cluster._merge(known)
    found = cluster.topic_now(TOPIC)
    assert found is not None
    assert (cluster.view.cluster_id, found.topic_id) == ("new", "id of new")


async def test_a_client_ignores_late_metadata_of_the_same_cluster(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster("127.0.0.1:1")
    for known in (OLD, NEW, STALE):
        cluster._merge(known)
    assert cluster.view.controller_epoch == NEW.controller_epoch
    assert caplog.messages == ["the brokers are those of another cluster now: new, not old"]


def test_a_range_reader_takes_over_the_metadata_of_a_new_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [OLD, NEW]

    def call(*_: Any) -> Any:
        return SimpleNamespace(metadata=view_to_proto(told.pop(0)))

    monkeypatch.setattr(RangeReader, "_call", call)
    with RangeReader("127.0.0.1:1", deadline_s=1) as reader:
        assert [reader.topics([TOPIC])[TOPIC].topic_id for _ in range(2)] == ["id of old", "id of new"]
        assert reader.cluster_id == "new"
