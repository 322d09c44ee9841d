# SPDX-License-Identifier: Apache-2.0
"""Calls that name another cluster or another broker are refused; other calls are accepted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from tidemark.core.security.listeners import Listener
from tidemark.model import ErrorCode
from tidemark.rpc.channel import open_channel
from tidemark.rpc.errors import from_rpc_error
from tidemark.rpc.receiver import ReceiverCheck, receiver_headers
from tidemark.rpc.security.listeners import ListenerPort
from tidemark.rpc.server import GrpcServer, Service
from tidemark.runtime.host_port import HostPort
from tidemark.v1 import broker_service_pb2 as pb
from tidemark.v1.broker_service_pb2_grpc import (
    BrokerServiceServicer,
    BrokerServiceStub,
    add_BrokerServiceServicer_to_server,
)


class Echo(BrokerServiceServicer):
    """A call of each kind."""

    async def GetMetadata(self, request: object, context: object) -> pb.GetMetadataResponse:  # noqa: N802
        return pb.GetMetadataResponse()

    async def FetchStream(self, requests: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        await context.write(pb.FetchResponse())


@pytest.mark.parametrize(
    ("headers", "refusal"),
    [
        ((), None),
        (receiver_headers("shop"), None),
        (receiver_headers("shop", 1), None),
        (receiver_headers("", 1), None),
        (receiver_headers("bank", 1), "for cluster bank; this is a service of cluster shop"),
        (receiver_headers("shop", 2), "for broker 2; this is broker 1"),
    ],
    ids=str,
)
async def test_a_service_refuses_calls_for_another_one(headers: Any, refusal: str | None) -> None:
    receiver = ReceiverCheck(1)
    receiver.cluster_id = "shop"
    port = ListenerPort(Listener.ONLY, HostPort("127.0.0.1", 0), None)
    service = Service(add_BrokerServiceServicer_to_server, Echo(), "tidemark.v1.BrokerService")
    server = GrpcServer([port], [service], receiver=receiver)
    await server.start()
    async with open_channel(f"127.0.0.1:{server.port}") as channel:
        stub: Any = BrokerServiceStub(channel)
        asked = (
            stub.GetMetadata(pb.GetMetadataRequest(), metadata=headers, timeout=10),
            stub.FetchStream(metadata=headers, timeout=10).read(),
        )
        for one in asked:
            try:
                await one
            except grpc.RpcError as error:
                found = from_rpc_error(error, address="the address")
                assert refusal is not None, found
                assert (found.code, found.retriable) == (ErrorCode.BROKER_NOT_AVAILABLE, True)
                assert refusal in found.message
            else:
                assert refusal is None
    await server.stop(0)


async def test_a_service_that_does_not_know_its_cluster_yet_accepts_calls_for_any() -> None:
    async def handle(_: object) -> str:
        return "handler"

    details: Any = SimpleNamespace(invocation_metadata=receiver_headers("bank"))
    assert await ReceiverCheck().intercept_service(handle, details) == "handler"
