# SPDX-License-Identifier: Apache-2.0
"""A new cluster at the addresses of an earlier one: its epochs and zxids are lower, and its topics have other ids."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.client.metadata.blocking_cluster import BlockingCluster
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

    monkeypatch.setattr(BlockingCluster, "call", call)
    with RangeReader("127.0.0.1:1", deadline_s=1) as reader:
        assert [reader.topics([TOPIC])[TOPIC].topic_id for _ in range(2)] == ["id of old", "id of new"]
        assert reader.cluster_id == "new"


class Bootstrap:
    """Answers at addresses with views; an address without a view does not answer. `stub` replaces that of a client."""

    def __init__(self, views: dict[str, ClusterView]) -> None:
        self.views = views

    def stub(self, address: str) -> Any:
        async def ask(request: Any, **_: Any) -> Any:
            if address not in self.views:
                raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata())
            return SimpleNamespace(metadata=view_to_proto(self.views[address]))

        return SimpleNamespace(GetMetadata=ask)


async def test_a_client_keeps_its_cluster_if_bootstrap_names_another_one(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a producer would send some records to each cluster."""
    cluster = Cluster("127.0.0.1:1,elsewhere:2")
    brokers = Bootstrap({"127.0.0.1:1": OLD})
    monkeypatch.setattr(cluster, "stub", brokers.stub)
    assert await cluster._ask_any() is None
    brokers.views["elsewhere:2"] = NEW
    for _ in range(20):
        assert await cluster._ask_any() is None
        assert cluster.view.cluster_id == "old"
    assert [message for message in caplog.messages if "elsewhere:2" in message] == [
        "elsewhere:2 is of cluster new; this client uses cluster old: is bootstrap correct?"
    ]
    del brokers.views["127.0.0.1:1"]
    assert await cluster._ask_any() is not None, "the cluster may only be unreachable for a moment"
    cluster._heard_s -= 31
    assert await cluster._ask_any() is None
    assert cluster.view.cluster_id == "new", "a new cluster has replaced the old one"


def view_of(cluster_id: str, *ports: int) -> ClusterView:
    """The metadata of a cluster with brokers at these ports of hosts that no client names."""
    brokers = {
        BrokerId(index): BrokerRegistration(BrokerId(index), "10.0.0.1", port) for index, port in enumerate(ports)
    }
    return replace(view(cluster_id, 2, 5), brokers=brokers)


async def test_a_client_keeps_its_cluster_if_the_address_of_one_broker_passes_to_another_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a pod that reuses the address of an earlier pod would get the next records of a producer."""
    cluster = Cluster("bootstrap:1")
    old = view_of("old", 1, 2, 3)
    brokers = Bootstrap(dict.fromkeys(("bootstrap:1", "10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3"), old))
    monkeypatch.setattr(cluster, "stub", brokers.stub)
    assert await cluster._ask_any() is None
    brokers.views["10.0.0.1:2"] = view_of("new", 2)
    for _ in range(20):
        assert await cluster._ask_any() is None
        assert cluster.view.cluster_id == "old"


async def test_a_client_replaces_its_cluster_only_by_the_cluster_that_bootstrap_leads_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster("bootstrap:1")
    brokers = Bootstrap({"bootstrap:1": view_of("old", 1, 2)})
    monkeypatch.setattr(cluster, "stub", brokers.stub)
    assert await cluster._ask_any() is None
    brokers.views = {"10.0.0.1:1": view_of("new", 1), "10.0.0.1:2": view_of("new", 1)}
    cluster._heard_s -= 31
    assert await cluster._ask_any() is not None
    assert cluster.view.cluster_id == "old"
    brokers.views["bootstrap:1"] = view_of("new", 1)
    assert await cluster._ask_any() is None, "every address is of the new cluster"
    assert cluster.view.cluster_id == "new"


def test_a_range_reader_keeps_its_cluster_if_the_address_of_one_broker_passes_to_another_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = view_of("old", 1, 2)
    views = dict.fromkeys(("bootstrap:1", "10.0.0.1:1", "10.0.0.1:2"), old)

    def call(_: Any, address: str, *__: Any) -> Any:
        return SimpleNamespace(metadata=view_to_proto(views[address]))

    monkeypatch.setattr(BlockingCluster, "call", call)
    with RangeReader("bootstrap:1", deadline_s=1) as reader:
        reader.topics([TOPIC])
        views["10.0.0.1:2"] = view_of("new", 2)
        for _ in range(4):
            assert reader.topics([TOPIC])[TOPIC].topic_id == "id of old"
            reader.ask_another()
        views = dict.fromkeys(views, view_of("new", 2))
        assert reader.topics([TOPIC])[TOPIC].topic_id == "id of new"


def test_a_range_reader_keeps_its_cluster_if_bootstrap_names_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    views = {"127.0.0.1:1": OLD, "elsewhere:2": NEW}

    def call(_: Any, address: str, *__: Any) -> Any:
        return SimpleNamespace(metadata=view_to_proto(views[address]))

    monkeypatch.setattr(BlockingCluster, "call", call)
    with RangeReader("127.0.0.1:1,elsewhere:2", deadline_s=1) as reader:
        for _ in range(4):
            assert reader.topics([TOPIC])[TOPIC].topic_id == "id of old"
            reader.ask_another()
