# SPDX-License-Identifier: Apache-2.0
"""The requests of a client that learns many topics, one after another (KIP-526)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from tidemark.client.metadata import cluster as cluster_module
from tidemark.client.metadata.backoff import Backoff
from tidemark.client.metadata.cluster import Cluster
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView
from tidemark.model import BrokerId, BrokerRegistration, ControllerEpoch, LeaderEpoch
from tidemark.rpc.codecs.metadata import view_to_proto

from tests.turns import turns

PARTITION = PartitionView(0, BrokerId(0), LeaderEpoch(1), (BrokerId(0),), (BrokerId(0),))


class Broker:
    """The only broker of a cluster that has every topic; notes the topics that each request names."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.watched: list[list[str]] = []
        self.ended: list[list[str]] = []

    def stub(self, address: str) -> Any:
        return SimpleNamespace(GetMetadata=self.get, WatchMetadata=self.watch)

    async def get(self, request: Any, **_: Any) -> Any:
        self.asked.append(list(request.topics))
        return self._answer(request.topics)

    def watch(self, request: Any) -> Any:
        self.watched.append(list(request.topics))
        answer = self._answer(request.topics, complete=True)
        ended = self.ended

        class Watch:
            def cancel(self) -> None:
                ended.append(list(request.topics))

            async def __aiter__(self) -> AsyncIterator[Any]:
                yield answer
                await asyncio.Event().wait()

        return Watch()

    def _answer(self, topics: list[str], *, complete: bool = False) -> Any:
        view = ClusterView(
            "the cluster",
            BrokerId(0),
            ControllerEpoch(1),
            brokers={BrokerId(0): BrokerRegistration(BrokerId(0), "127.0.0.1", 1)},
            topics={name: TopicView(name, f"id of {name}", 1, 1, {0: PARTITION}, partition_count=1) for name in topics},
            complete=complete,
        )
        return SimpleNamespace(metadata=view_to_proto(view))


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker()
    monkeypatch.setattr(Cluster, "stub", lambda cluster, address: made.stub(address))
    return made


async def test_a_client_asks_for_each_of_many_topics_once(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request would otherwise name all topics so far: half a million for 1,000 topics, and a new watch each."""
    monkeypatch.setattr(cluster_module, "_GATHER_S", 1.0)  # longer than the 50 requests take on a busy machine
    cluster = Cluster("127.0.0.1:1")
    for number in range(50):
        assert (await cluster.topic(f"t{number}", timeout_s=5)).count == 1
        await turns()
    assert broker.asked == [[f"t{number}"] for number in range(50)]
    assert sum(map(len, broker.watched)) <= 100
    await cluster.close()


async def test_a_watch_gets_the_topics_that_were_learned_last(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "_GATHER_S", 0.0)
    cluster = Cluster("127.0.0.1:1")
    for name in ("a", "b"):
        await cluster.topic(name, timeout_s=5)
        await turns(20)
    assert broker.watched[-1] == ["a", "b"]
    await cluster.close()


async def test_a_watch_continues_while_new_topics_gather(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise no stream would tell the client of a new leader."""
    cluster = Cluster("127.0.0.1:1")
    await cluster.topic("a", timeout_s=5)
    await turns(20)
    monkeypatch.setattr(cluster_module, "_GATHER_S", 1.0)
    await cluster.topic("b", timeout_s=5)
    await turns(20)
    assert broker.watched == [["a"]]
    assert not broker.ended
    await cluster.close()


async def test_a_client_forgets_a_topic_that_it_has_not_used_for_five_minutes(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a producer of many short-lived topics names all of them in each request."""
    clock = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(cluster_module, "time", clock)
    monkeypatch.setattr(cluster_module, "_GATHER_S", 0.0)
    cluster = Cluster("127.0.0.1:1")
    forgotten: set[str] = set()
    cluster.used_topics.users.append(lambda: {"assigned"})
    cluster.used_topics.forgotten.append(forgotten.update)
    cluster.follow(["subscribed"])
    for name in ("assigned", "old", "used-again"):
        await cluster.topic(name, timeout_s=5)
    clock.monotonic = lambda: 299.0
    await cluster.topic("used-again", timeout_s=5)
    await cluster.topic("young", timeout_s=5)
    await turns(20)
    assert "old" in broker.watched[-1]
    clock.monotonic = lambda: 301.0
    await cluster.topic("new", timeout_s=5)
    await turns(20)
    assert broker.watched[-1] == ["assigned", "new", "subscribed", "used-again", "young"]
    assert (forgotten, "old" in cluster.view.topics) == ({"old"}, False)
    broker.asked.clear()
    assert (await cluster.topic("old", timeout_s=5)).count == 1
    assert broker.asked == [["old"]]
    await cluster.close()


async def test_requests_of_a_client_name_no_more_topics_than_a_broker_takes(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker refuses such a request, and the client would learn no new leader."""
    monkeypatch.setattr(cluster_module, "_GATHER_S", 0.0)
    monkeypatch.setattr("tidemark.rpc.request_limits.NAMED_MAX", 2)
    monkeypatch.setattr(cluster_module, "NAMED_MAX", 2)
    cluster = Cluster("127.0.0.1:1")
    names = ["a", "b", "c", "d", "e"]
    for name in names:
        await cluster.topic(name, timeout_s=5)
    broker.asked.clear()
    await cluster.look_again(timeout_s=5)
    assert sorted(name for named in broker.asked for name in named) == names
    await turns(20)
    assert max(map(len, [*broker.asked, *broker.watched])) == 2
    await cluster.close()


async def test_a_watch_removes_no_topic_that_it_does_not_name(broker: Broker) -> None:
    """A client learns topics while its stream opens, and may have more topics than a stream can name."""
    cluster = Cluster("127.0.0.1:1")
    for name in ("a", "b"):
        await cluster.topic(name, timeout_s=5)
    watching = asyncio.create_task(cluster._watch_one("127.0.0.1:1", ["a"], Backoff()))
    await turns()
    assert sorted(cluster.view.topics) == ["a", "b"]
    watching.cancel()
    await asyncio.wait({watching})
    await cluster.close()
