# SPDX-License-Identifier: Apache-2.0
"""The gRPC server that every service uses: health, and the answers of calls that fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc import errors
from tidemark.rpc import server as server_module
from tidemark.rpc.channel import open_channel
from tidemark.rpc.server import LIVENESS, READINESS, GrpcServer, Service
from tidemark.v1 import broker_service_pb2 as pb
from tidemark.v1.broker_service_pb2_grpc import (
    BrokerServiceServicer,
    BrokerServiceStub,
    add_BrokerServiceServicer_to_server,
)

from tests.fakes.grpc_server import make_server

NAME = "tidemark.v1.BrokerService"


class Troubled(BrokerServiceServicer):
    async def GetMetadata(self, request: Any, context: Any) -> pb.GetMetadataResponse:  # noqa: N802
        raise TidemarkError(ErrorCode.NOT_LEADER, "broker 2 leads", {"leader": "2"})

    async def Fetch(self, request: Any, context: Any) -> pb.FetchResponse:  # noqa: N802
        raise ZeroDivisionError

    async def ListOffsets(self, request: Any, context: Any) -> pb.ListOffsetsResponse:  # noqa: N802
        await asyncio.Event().wait()
        raise AssertionError

    async def DescribeLogDirs(  # noqa: N802
        self, request: Any, context: Any
    ) -> AsyncIterator[pb.DescribeLogDirsResponse]:
        yield pb.DescribeLogDirsResponse()
        raise TidemarkError(ErrorCode.STORAGE_ERROR, "the disk is gone", {"path": "/d"})

    async def InitProducerId(self, request: Any, context: Any) -> pb.InitProducerIdResponse:  # noqa: N802
        return pb.InitProducerIdResponse(producer_id=7)


@pytest.fixture
async def server() -> AsyncIterator[GrpcServer]:
    server = make_server("127.0.0.1", 0, [Service(add_BrokerServiceServicer_to_server, Troubled(), NAME)])
    await server.start()
    yield server
    await server.stop(0)


@pytest.fixture
async def stub(server: GrpcServer) -> AsyncIterator[Any]:
    async with open_channel(f"127.0.0.1:{server.port}") as channel:
        yield BrokerServiceStub(channel)


async def refusal(call: Any) -> TidemarkError:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    return errors.from_rpc_error(failed.value, address="server")


async def health_of(server: GrpcServer, *services: str) -> list[bool]:
    async with open_channel(f"127.0.0.1:{server.port}") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answers = [await health.Check(health_pb2.HealthCheckRequest(service=one), timeout=30) for one in services]
        return [answer.status == health_pb2.HealthCheckResponse.SERVING for answer in answers]


async def test_a_service_is_not_serving_until_its_status_is_set(server: GrpcServer) -> None:
    assert await health_of(server, NAME, READINESS) == [False, False]
    await server.set_serving(True)
    assert await health_of(server, NAME, READINESS) == [True, True]


async def test_liveness_does_not_depend_on_services(server: GrpcServer) -> None:
    for serving in (False, True, False):
        await server.set_serving(serving)
        assert await health_of(server, "", LIVENESS) == [True, True]


async def test_services_serve_before_the_whole_is_ready(server: GrpcServer) -> None:
    await server.set_serving(True, ready=False)
    assert await health_of(server, NAME, READINESS) == [True, False]
    await server.set_ready(True)
    assert await health_of(server, NAME, READINESS) == [True, True]


async def test_calls_are_refused_as_to_be_tried_again_until_their_service_is_there() -> None:
    server = make_server("127.0.0.1", 0, [], later=[NAME])
    await server.start()
    try:
        assert await health_of(server, "", NAME) == [True, False]
        async with open_channel(f"127.0.0.1:{server.port}") as channel:
            stub: Any = BrokerServiceStub(channel)
            unary = await refusal(stub.InitProducerId(pb.InitProducerIdRequest(), timeout=30))
            assert (unary.code, unary.retriable) == (ErrorCode.BROKER_NOT_AVAILABLE, True)
            for stream in (stub.DescribeLogDirs(pb.DescribeLogDirsRequest(), timeout=30), stub.Produce(timeout=30)):
                assert (await refusal(stream.read())).code is ErrorCode.BROKER_NOT_AVAILABLE
            server.add([Service(add_BrokerServiceServicer_to_server, Troubled(), NAME)])
            assert (await stub.InitProducerId(pb.InitProducerIdRequest(), timeout=30)).producer_id == 7
    finally:
        await server.stop(0)


async def test_a_process_is_known_by_the_name_that_it_alone_answers_to(server: GrpcServer) -> None:
    await server.answer_to("process/1")
    assert await health_of(server, "process/1") == [True]
    with pytest.raises(grpc.aio.AioRpcError) as unknown:
        await health_of(server, "process/2")
    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_refusal_arrives_with_code_sentence_and_facts(stub: Any) -> None:
    error = await refusal(stub.GetMetadata(pb.GetMetadataRequest(), timeout=30))
    assert (error.code, error.message, error.metadata) == (ErrorCode.NOT_LEADER, "broker 2 leads", {"leader": "2"})


async def test_a_refused_stream_first_delivers_its_earlier_messages(stub: Any) -> None:
    call = stub.DescribeLogDirs(pb.DescribeLogDirsRequest(), timeout=30)
    await call.read()
    error = await refusal(call.read())
    assert (error.code, error.message, error.metadata) == (
        ErrorCode.STORAGE_ERROR,
        "the disk is gone",
        {"path": "/d"},
    )


async def test_an_unexpected_exception_is_internal_and_the_server_continues(stub: Any) -> None:
    error = await refusal(stub.Fetch(pb.FetchRequest(), timeout=30))
    assert error.code is ErrorCode.INTERNAL
    assert "ZeroDivisionError" in error.message
    assert (await stub.InitProducerId(pb.InitProducerIdRequest(), timeout=30)).producer_id == 7


async def test_a_call_without_a_deadline_is_given_one(stub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "UNBOUNDED_CALL_S", 0.01)
    async with asyncio.timeout(12):
        error = await refusal(stub.ListOffsets(pb.ListOffsetsRequest()))
    assert error.code is ErrorCode.REQUEST_TIMED_OUT


async def test_a_network_that_takes_its_time_is_no_refusal(server: GrpcServer) -> None:
    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward bytes, both ways, after one and a half seconds, as a slow network or a busy machine does."""
        await asyncio.sleep(1.5)
        to_server = await asyncio.open_connection("127.0.0.1", server.port)
        await asyncio.gather(_pass_on(reader, to_server[1]), _pass_on(to_server[0], writer))

    relay = await asyncio.start_server(slowly, "127.0.0.1", 0)
    port = relay.sockets[0].getsockname()[1]
    async with relay, open_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = BrokerServiceStub(channel)
        answer = await stub.InitProducerId(pb.InitProducerIdRequest(), timeout=5, wait_for_ready=False)
    assert answer.producer_id == 7


async def _pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        sink.write(data)
        await sink.drain()
    sink.close()


async def test_a_taken_port_is_refused_with_the_next_step(server: GrpcServer) -> None:
    late = make_server("127.0.0.1", server.port, [])
    with pytest.raises(TidemarkError, match="taken") as refused:
        await late.start()
    await late.stop(0)
    assert refused.value.code is ErrorCode.INVALID_CONFIG
