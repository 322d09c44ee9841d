# SPDX-License-Identifier: Apache-2.0
"""Calls of clients whose address has passed to another broker, or to a service of another cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tidemark.client.aio import AdminClient
from tidemark.client.consuming.range_reader import RangeReader, RangeStart
from tidemark.client.replicas.reader import ReplicaReader, addresses
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView
from tidemark.core.security.listeners import Listener
from tidemark.model import (
    BrokerId,
    BrokerRegistration,
    ControllerEpoch,
    ErrorCode,
    LeaderEpoch,
    ReplicaIdentity,
    TopicPartition,
)
from tidemark.rpc.codecs.metadata import view_to_proto
from tidemark.rpc.receiver import ReceiverCheck
from tidemark.rpc.security.listeners import ListenerPort
from tidemark.rpc.server import GrpcServer, Service
from tidemark.runtime.host_port import HostPort
from tidemark.v1 import admin_service_pb2, replica_reads_pb2
from tidemark.v1 import broker_service_pb2 as pb
from tidemark.v1.admin_service_pb2_grpc import AdminServiceServicer, add_AdminServiceServicer_to_server
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceServicer, add_BrokerServiceServicer_to_server

from tests.refusals import raises_code

FLIGHTS = TopicPartition("flights", 0)


class Broker(BrokerServiceServicer):
    """Broker 1, which leads flights-0 and counts the calls that it serves."""

    def __init__(self) -> None:
        self.port = 0
        self.served: list[str] = []

    async def GetMetadata(self, request: Any, context: Any) -> pb.GetMetadataResponse:  # noqa: N802
        one = BrokerId(1)
        partition = PartitionView(0, one, LeaderEpoch(0), (one,), (one,), "inc")
        view = ClusterView(
            cluster_id="shop",
            brokers={one: BrokerRegistration(one, "127.0.0.1", self.port)},
            topics={"flights": TopicView("flights", "id", 1, 1, {0: partition}, partition_count=1)},
            controller_id=BrokerId(100),
            controller_epoch=ControllerEpoch(1),
            admin_address=f"127.0.0.1:{self.port}",
        )
        return pb.GetMetadataResponse(metadata=view_to_proto(view))

    async def Fetch(self, request: pb.FetchRequest, context: Any) -> pb.FetchResponse:  # noqa: N802
        self.served.append("Fetch")
        return pb.FetchResponse(partitions=[pb.PartitionFetchResult(topic="flights") for _ in request.partitions])

    async def ListOffsets(self, request: pb.ListOffsetsRequest, context: Any) -> pb.ListOffsetsResponse:  # noqa: N802
        self.served.append("ListOffsets")
        return pb.ListOffsetsResponse(partitions=[pb.PartitionListOffsetsResult(topic="flights", offset=7)])

    async def ReadReplica(self, request: Any, context: Any) -> replica_reads_pb2.ReadReplicaResponse:  # noqa: N802
        self.served.append("ReadReplica")
        return replica_reads_pb2.ReadReplicaResponse(log_end_offset=7)


class Admin(AdminServiceServicer):
    async def ListTopics(self, request: Any, context: Any) -> admin_service_pb2.ListTopicsResponse:  # noqa: N802
        return admin_service_pb2.ListTopicsResponse()


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Broker, ReceiverCheck]]:
    """A server of broker 1 and the admin service of cluster shop, with the check of its calls."""
    broker, receiver = Broker(), ReceiverCheck(1)
    port = ListenerPort(Listener.ONLY, HostPort("127.0.0.1", 0), None)
    services = [
        Service(add_BrokerServiceServicer_to_server, broker, "tidemark.v1.BrokerService"),
        Service(add_AdminServiceServicer_to_server, Admin(), "tidemark.v1.AdminService"),
    ]
    server = GrpcServer([port], services, receiver=receiver)
    await server.start()
    broker.port = server.port
    receiver.cluster_id = "shop"
    try:
        yield broker, receiver
    finally:
        await server.stop(0)


def read_replica(port: int, before: Callable[[], None]) -> object:
    with ReplicaReader(f"127.0.0.1:{port}") as reader:
        known = addresses(reader.view(["flights"]))
        before()
        return reader.read(known[1], FLIGHTS, ReplicaIdentity("id", "inc"))


def look_up(port: int, before: Callable[[], None]) -> object:
    with RangeReader(f"127.0.0.1:{port}", deadline_s=0.5) as reader:
        reader.topics(["flights"])
        before()
        return reader.offsets({FLIGHTS: "latest"})


def fetch(port: int, before: Callable[[], None]) -> object:
    with RangeReader(f"127.0.0.1:{port}", deadline_s=0.5) as reader:
        reader.topics(["flights"])
        before()
        return reader.fetch_together([RangeStart("flights", 0, 0)])


CALLS = {"ReadReplica": read_replica, "ListOffsets": look_up, "Fetch": fetch}


@pytest.mark.parametrize("call", CALLS)
async def test_a_broker_of_another_cluster_serves_no_read_of_this_one(call: str) -> None:
    async with served() as (broker, receiver):
        await asyncio.to_thread(CALLS[call], broker.port, lambda: None)
        assert broker.served.pop() == call

        def move() -> None:
            receiver.cluster_id = "bank"

        await asyncio.gather(asyncio.to_thread(CALLS[call], broker.port, move), return_exceptions=True)
        assert broker.served == []


async def test_a_replica_is_not_read_from_another_broker_at_the_address_of_its_own() -> None:
    async with served() as (broker, receiver):

        def move() -> None:
            receiver._broker_id = 2

        with raises_code(ErrorCode.BROKER_NOT_AVAILABLE, "for broker 1; this is broker 2"):
            await asyncio.to_thread(read_replica, broker.port, move)
        assert broker.served == []


async def test_an_admin_service_of_another_cluster_refuses_clients_of_this_one() -> None:
    async with served() as (broker, receiver), AdminClient(f"127.0.0.1:{broker.port}") as admin:
        assert await admin.list_topics() == []
        receiver.cluster_id = "bank"
        with raises_code(ErrorCode.BROKER_NOT_AVAILABLE, "for cluster shop; this is a service of cluster bank"):
            await admin.list_topics()
