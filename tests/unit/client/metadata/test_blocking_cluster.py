# SPDX-License-Identifier: Apache-2.0
"""A blocking client in several threads: each call of a closed client raises CLIENT_CLOSED."""

from __future__ import annotations

from typing import Any

import pytest
from tidemark.client.consuming import range_reader
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.client.replicas import reader as replica_reader
from tidemark.client.replicas.reader import BrokerAddress, ReplicaReader
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView
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

BROKERS = {BrokerId(0): BrokerRegistration(BrokerId(0), "127.0.0.1", 1)}
PARTITION = PartitionView(0, BrokerId(0), LeaderEpoch(0), (BrokerId(0),), (BrokerId(0),), "i")


def view(*topics: str) -> ClusterView:
    known = {name: TopicView(name, "id", 1, 1, {0: PARTITION}, partition_count=1) for name in topics}
    return ClusterView("c", BrokerId(100), ControllerEpoch(1), brokers=BROKERS, topics=known)


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
