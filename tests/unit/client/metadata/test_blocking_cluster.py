# SPDX-License-Identifier: Apache-2.0
"""A blocking client in several threads: no thread's metadata is lost, and calls of a closed one fail."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tidemark.client.consuming import range_reader
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.client.metadata import blocking_cluster
from tidemark.client.metadata.blocking_cluster import BlockingCluster
from tidemark.client.replicas import reader as replica_reader
from tidemark.client.replicas.reader import BrokerAddress, ReplicaReader
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView, taken_over
from tidemark.model import (
    BrokerId,
    BrokerRegistration,
    ControllerEpoch,
    ErrorCode,
    LeaderEpoch,
    ReplicaIdentity,
    TopicPartition,
)
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceStub

from tests.refusals import raises_code

PATIENCE_S = 30.0
BROKERS = {BrokerId(0): BrokerRegistration(BrokerId(0), "127.0.0.1", 1)}
PARTITION = PartitionView(0, BrokerId(0), LeaderEpoch(0), (BrokerId(0),), (BrokerId(0),), "i")


def view(*topics: str) -> ClusterView:
    known = {name: TopicView(name, "id", 1, 1, {0: PARTITION}, partition_count=1) for name in topics}
    return ClusterView("c", BrokerId(100), ControllerEpoch(1), brokers=BROKERS, topics=known)


class WatchedLock:
    """A lock that sets an event when a thread waits for it."""

    def __init__(self, waits: threading.Event) -> None:
        self._lock, self._waits = threading.Lock(), waits

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._waits.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_metadata_that_two_threads_take_over_at_the_same_time_have_the_topics_of_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits_or_ended = threading.Event()
    with BlockingCluster("127.0.0.1:1", deadline_s=60.0) as cluster:
        monkeypatch.setattr(cluster, "_lock", WatchedLock(waits_or_ended))

        def other() -> None:
            cluster._take_over(view("b"))
            waits_or_ended.set()

        thread = threading.Thread(target=other)

        def slowly(known: ClusterView, update: ClusterView) -> ClusterView:
            if "a" in update.topics:
                thread.start()
                assert waits_or_ended.wait(PATIENCE_S)
            return taken_over(known, update)

        monkeypatch.setattr(blocking_cluster, "taken_over", slowly)
        cluster._take_over(view("a"))
        thread.join(PATIENCE_S)
        assert set(cluster.view.topics) == {"a", "b"}


@pytest.mark.parametrize("module", [range_reader, replica_reader], ids=["offsets", "replicas"])
def test_a_reader_that_another_thread_closes_before_a_call_raises_client_closed(
    monkeypatch: pytest.MonkeyPatch, module: Any
) -> None:
    def closing(channel: Any) -> Any:
        ranges.close()
        replicas.__exit__()
        return BrokerServiceStub(channel)

    monkeypatch.setattr(module, "BrokerServiceStub", closing)
    ranges, replicas = RangeReader("127.0.0.1:1", deadline_s=60.0), ReplicaReader("127.0.0.1:1")
    ranges._cluster.view = view("a")
    where = TopicPartition("a", 0)
    with raises_code(ErrorCode.CLIENT_CLOSED):
        if module is range_reader:
            ranges.offsets({where: "latest"})
        else:
            replicas.read(BrokerAddress("127.0.0.1:1", ()), where, ReplicaIdentity("id", "i"))


def test_a_call_in_flight_ends_with_client_closed_as_another_thread_closes_the_client() -> None:
    """Regression: a read of a replica ended with BROKER_NOT_AVAILABLE, although its broker was live."""
    cluster = BlockingCluster("127.0.0.1:1", deadline_s=60.0)
    with raises_code(ErrorCode.CLIENT_CLOSED), cluster.channel("127.0.0.1:1") as channel:
        call = channel.unary_unary("/a/B").future(b"", wait_for_ready=True, timeout=PATIENCE_S)
        cluster.close()
        call.result()
