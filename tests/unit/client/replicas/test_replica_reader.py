# SPDX-License-Identifier: Apache-2.0
"""The view of named topics: a broker without a new topic in its metadata does not hide the topic."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tidemark.client.metadata import blocking_cluster
from tidemark.client.metadata.blocking_cluster import BlockingCluster
from tidemark.client.replicas.reader import ReplicaReader
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView
from tidemark.errors import unknown_topic
from tidemark.model import BrokerId, BrokerRegistration, ErrorCode, LeaderEpoch
from tidemark.rpc.codecs.metadata import view_to_proto

from tests.refusals import raises_code

PARTITION = PartitionView(0, BrokerId(0), LeaderEpoch(0), (BrokerId(0),), (BrokerId(0),), "i")
KNOWN = TopicView("new", "id", 1, 1, {0: PARTITION}, partition_count=1)
UNKNOWN = TopicView("new", "", error=unknown_topic("new"))
BROKERS = {BrokerId(one): BrokerRegistration(BrokerId(one), "host", 9000 + one) for one in range(3)}


def reader(monkeypatch: pytest.MonkeyPatch, *topics: TopicView) -> ReplicaReader:
    """A reader whose broker N describes the topic as `topics[N]`; it knows the address of broker 0."""

    def call(_: Any, address: str, *__: Any) -> Any:
        view = ClusterView(brokers=BROKERS, controller_id=BrokerId(100), topics={"new": topics[int(address[-1])]})
        return SimpleNamespace(metadata=view_to_proto(view))

    monkeypatch.setattr(BlockingCluster, "call", call)
    return ReplicaReader("host:9000")


def test_a_topic_that_only_some_brokers_know_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with reader(monkeypatch, UNKNOWN, UNKNOWN, KNOWN) as made:
        assert made.view(["new"]).topics["new"].topic_id == "id"


def test_a_topic_that_no_broker_knows_is_refused_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    waits_s: list[float] = []
    monkeypatch.setattr(blocking_cluster, "time", SimpleNamespace(monotonic=lambda: sum(waits_s), sleep=waits_s.append))
    with reader(monkeypatch, UNKNOWN, UNKNOWN, UNKNOWN) as made, raises_code(ErrorCode.UNKNOWN_TOPIC):
        made.view(["new"])
    assert sum(waits_s) <= 0.5


def test_a_view_is_never_one_of_another_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = iter(("shop", "bank"))

    def call(*_: Any) -> Any:
        view = ClusterView(cluster_id=next(clusters, "shop"), brokers=BROKERS, topics={"new": KNOWN})
        return SimpleNamespace(metadata=view_to_proto(view))

    monkeypatch.setattr(BlockingCluster, "call", call)
    with ReplicaReader("host:9000") as made:
        assert [made.view().cluster_id for _ in range(2)] == ["shop", "shop"]
