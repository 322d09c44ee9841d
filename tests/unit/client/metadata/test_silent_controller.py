# SPDX-License-Identifier: Apache-2.0
"""Brokers without a controller may lack a topic that was created long before: clients wait for the next controller."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.client.metadata import cluster as cluster_module
from tidemark.client.metadata.blocking_cluster import BlockingCluster
from tidemark.client.metadata.cluster import Cluster
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView
from tidemark.errors import unknown_topic
from tidemark.model import NO_LEADER, BrokerId, BrokerRegistration, ControllerEpoch, ErrorCode
from tidemark.rpc.codecs.metadata import view_to_proto

from tests.refusals import raises_code

TOPIC = "orders"
ACTIVE = BrokerId(100)


def view(partitions: int, controller: BrokerId) -> ClusterView:
    known = {index: PartitionView(index, BrokerId(0), 1, (0,), (0,)) for index in range(partitions)}
    found = TopicView(TOPIC, "id", 1, partitions, known, partition_count=partitions)
    return ClusterView(
        "c",
        controller,
        ControllerEpoch(1),
        brokers={BrokerId(0): BrokerRegistration(BrokerId(0), "127.0.0.1", 1)},
        topics={TOPIC: found if partitions else TopicView(TOPIC, "", error=unknown_topic(TOPIC))},
    )


class Asked(Cluster):
    """Merges the next of `views` at each metadata request; the last view repeats."""

    views: list[ClusterView]

    async def _ask_any(self, topics: Collection[str] = (), *, timeout_s: float = 0.0, avoid: str = "") -> None:
        self._merge(self.views.pop(0) if len(self.views) > 1 else self.views[0])

    async def _watch(self) -> None: ...

    async def _topic_names(self) -> list[str]:
        return []


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "TOPIC_PATIENCE_S", 0.0)
    monkeypatch.setitem(BlockingCluster.retrying.__kwdefaults__, "patience_s", 0.0)


def client(*views: ClusterView) -> Asked:
    made = Asked("127.0.0.1:1")
    made.views = list(views)
    return made


async def test_a_client_waits_for_a_topic_until_a_controller_has_updated_the_brokers() -> None:
    made = client(*[view(0, NO_LEADER)] * 3, view(2, ACTIVE))
    assert (await made.topic(TOPIC, timeout_s=60)).count == 2


async def test_a_client_waits_for_added_partitions_until_a_controller_has_updated_the_brokers() -> None:
    made = client(*[view(2, NO_LEADER)] * 3, view(4, ACTIVE))
    assert await made.partition_count(TOPIC, timeout_s=60, beyond=3) == 4


async def test_a_client_does_not_call_a_topic_unknown_while_no_controller_is_active() -> None:
    with raises_code(ErrorCode.LEADER_NOT_AVAILABLE):
        await client(view(0, NO_LEADER)).topic(TOPIC, timeout_s=0.1)
    with raises_code(ErrorCode.LEADER_NOT_AVAILABLE):
        await client(view(2, NO_LEADER)).partition_count(TOPIC, timeout_s=0.1, beyond=7)


async def test_a_broker_with_a_controller_ends_the_wait() -> None:
    with raises_code(ErrorCode.UNKNOWN_TOPIC):
        await client(*[view(0, NO_LEADER)] * 2, view(0, ACTIVE)).topic(TOPIC, timeout_s=60)
    assert await client(*[view(2, NO_LEADER)] * 2, view(2, ACTIVE)).partition_count(TOPIC, timeout_s=60, beyond=7) == 2


def test_a_range_reader_waits_for_a_topic_until_a_controller_has_updated_the_brokers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    views = [*[view(0, NO_LEADER)] * 4, view(2, ACTIVE)]
    monkeypatch.setattr(BlockingCluster, "call", lambda *_: SimpleNamespace(metadata=view_to_proto(_next(views))))
    with RangeReader("127.0.0.1:1", deadline_s=60) as reader:
        assert reader.topics([TOPIC])[TOPIC].count == 2


def test_a_range_reader_does_not_call_a_topic_unknown_while_no_controller_is_active(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = SimpleNamespace(metadata=view_to_proto(view(0, NO_LEADER)))
    monkeypatch.setattr(BlockingCluster, "call", lambda *_: answer)
    with RangeReader("127.0.0.1:1", deadline_s=0.1) as reader, raises_code(ErrorCode.REQUEST_TIMED_OUT):
        reader.topics([TOPIC])


def _next(views: list[Any]) -> Any:
    return views.pop(0) if len(views) > 1 else views[0]
