# SPDX-License-Identifier: Apache-2.0
"""Calls to brokers: DescribeReplicas to a broker that registers again meanwhile, and metadata for several brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc
import pytest
from tidemark.controller import peers as peers_module
from tidemark.controller.peers import BrokerPeers
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView
from tidemark.core.controller.effects import DescribeReplicas, SendLeaderAndIsr, SendStopReplica, SendUpdateMetadata
from tidemark.core.messages import LeaderAndIsrCommand, StopReplicaCommand
from tidemark.model import BrokerEpoch, BrokerId, BrokerRegistration, ControllerEpoch, ErrorCode, LeaderEpoch
from tidemark.rpc.codecs.metadata import partition_to_proto
from tidemark.v1 import controller_service_pb2 as pb
from tidemark.v1.controller_service_pb2_grpc import (
    BrokerControlServiceServicer,
    add_BrokerControlServiceServicer_to_server,
)
from tidemark.v1.metadata_pb2 import PartitionMetadata

BROKER = BrokerId(1)


class Silent(BrokerControlServiceServicer):
    """A broker that never answers its first question."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.headers: list[object] = []

    def _note(self, context: Any) -> None:
        self.headers += [one for one in context.invocation_metadata() if one[0].startswith("receiver-")]

    async def LeaderAndIsr(self, request: pb.LeaderAndIsrRequest, context: Any) -> pb.LeaderAndIsrResponse:  # noqa: N802
        self._note(context)
        return pb.LeaderAndIsrResponse()

    async def StopReplica(self, request: pb.StopReplicaRequest, context: Any) -> pb.StopReplicaResponse:  # noqa: N802
        self._note(context)
        return pb.StopReplicaResponse()

    async def UpdateMetadata(  # noqa: N802
        self, request: pb.UpdateMetadataRequest, context: Any
    ) -> pb.UpdateMetadataResponse:
        self._note(context)
        return pb.UpdateMetadataResponse()

    async def DescribeReplicas(  # noqa: N802
        self, request: pb.DescribeReplicasRequest, context: Any
    ) -> pb.DescribeReplicasResponse:
        self._note(context)
        if not self.asked.is_set():
            self.asked.set()
            await asyncio.sleep(3600)
        return pb.DescribeReplicasResponse()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "_DESCRIBE_DEADLINE_S", 60.0)


@pytest.fixture
async def silent() -> AsyncIterator[tuple[Silent, int]]:
    broker, server = Silent(), grpc.aio.server()
    add_BrokerControlServiceServicer_to_server(broker, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield broker, port
    await server.stop(None)


def question(broker_epoch: int) -> DescribeReplicas:
    return DescribeReplicas(BROKER, broker_epoch, BrokerEpoch(broker_epoch), ())


async def test_a_question_to_a_registration_that_is_over_is_answered(silent: tuple[Silent, int]) -> None:
    broker, port = silent
    peers = BrokerPeers(BrokerId(100), ControllerEpoch(1), "c")
    registration = BrokerRegistration(BROKER, "127.0.0.1", port, broker_epoch=BrokerEpoch(1))
    peers.follow({BROKER: registration})
    asking = asyncio.create_task(peers.describe_replicas(question(1)))
    await broker.asked.wait()
    peers.follow({BROKER: replace(registration, broker_epoch=BrokerEpoch(2))})
    assert (await peers.describe_replicas(question(2))).error is None
    answer = await asking
    assert answer.error is not None
    assert answer.error.code is ErrorCode.BROKER_NOT_AVAILABLE
    await peers.stop()


async def test_each_call_names_its_receiver(silent: tuple[Silent, int]) -> None:
    """Another broker at this address, possibly of the same broker epoch or of another cluster, must refuse the call."""
    broker, port = silent
    broker.asked.set()
    sender, epoch = (BrokerId(100), ControllerEpoch(1)), BrokerEpoch(3)
    peers = BrokerPeers(*sender, "c")
    peers.follow({BROKER: BrokerRegistration(BROKER, "127.0.0.1", port, broker_epoch=epoch)})
    leader_and_isr = LeaderAndIsrCommand(*sender, epoch, ())
    stop = StopReplicaCommand(*sender, epoch, ())
    assert (await peers.send_leader_and_isr(SendLeaderAndIsr(BROKER, 1, (leader_and_isr,)))).error is None
    assert (await peers.send_stop_replica(SendStopReplica(BROKER, 2, stop))).error is None
    assert (await peers.send_update_metadata(SendUpdateMetadata(BROKER, 3, epoch, ClusterView()))).error is None
    assert (await peers.describe_replicas(question(3))).error is None
    assert broker.headers == [("receiver-cluster", "c"), ("receiver-broker", "1")] * 4
    await peers.stop()


async def test_a_question_that_is_cancelled_is_not_answered(silent: tuple[Silent, int]) -> None:
    broker, port = silent
    peers = BrokerPeers(BrokerId(100), ControllerEpoch(1), "c")
    peers.follow({BROKER: BrokerRegistration(BROKER, "127.0.0.1", port)})
    asking = asyncio.create_task(peers.describe_replicas(question(1)))
    await broker.asked.wait()
    asking.cancel()
    await asyncio.wait([asking])
    assert asking.cancelled()
    await peers.stop()


async def test_metadata_of_a_partition_are_encoded_once_for_all_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[PartitionView] = []

    def encode(view: PartitionView) -> PartitionMetadata:
        encoded.append(view)
        return partition_to_proto(view)

    monkeypatch.setattr(peers_module, "partition_to_proto", encode)
    peers = BrokerPeers(BrokerId(100), ControllerEpoch(1), "c")
    views = [PartitionView(index, BROKER, LeaderEpoch(0), (BROKER,), (BROKER,)) for index in range(3)]
    for some in (views[:2], views, views[1:]):
        topic = TopicView("t", "id", 1, 1, {one.partition: one for one in some})
        view = ClusterView(topics={"t": topic})
        await peers.send_update_metadata(SendUpdateMetadata(BROKER, 1, BrokerEpoch(1), view))
    assert encoded == views
