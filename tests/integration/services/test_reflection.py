# SPDX-License-Identifier: Apache-2.0
"""Server reflection as tools use it: every name of the protocol is found, by either version of the reflection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2 as pb
from tidemark.rpc.channel import open_channel
from tidemark.rpc.server import GrpcServer, Service
from tidemark.v1 import admin_service_pb2
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceServicer, add_BrokerServiceServicer_to_server

from tests.fakes.grpc_server import make_server

NAME = "tidemark.v1.BrokerService"
VERSIONS = ("grpc.reflection.v1", "grpc.reflection.v1alpha")
ELECTION_TYPE = admin_service_pb2.ElectionType.DESCRIPTOR.full_name


@pytest.fixture
async def server() -> AsyncIterator[GrpcServer]:
    server = make_server("127.0.0.1", 0, [Service(add_BrokerServiceServicer_to_server, BrokerServiceServicer(), NAME)])
    await server.start()
    yield server
    await server.stop(0)


async def reflected(server: GrpcServer, version: str, **asked: Any) -> pb.ServerReflectionResponse:
    """The answer to one question."""
    async with open_channel(f"127.0.0.1:{server.port}") as channel:
        method: Any = channel.stream_stream(
            f"/{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=pb.ServerReflectionRequest.SerializeToString,
            response_deserializer=pb.ServerReflectionResponse.FromString,
        )
        call = method(timeout=30)
        await call.write(pb.ServerReflectionRequest(**asked))
        answer = await call.read()
        await call.done_writing()
        assert isinstance(answer, pb.ServerReflectionResponse)
        return answer


def files_of(answer: pb.ServerReflectionResponse) -> dict[str, FileDescriptorProto]:
    files = [FileDescriptorProto.FromString(one) for one in answer.file_descriptor_response.file_descriptor_proto]
    return {one.name: one for one in files}


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_service_is_listed(server: GrpcServer, version: str) -> None:
    answer = await reflected(server, version, list_services="")
    assert {one.name for one in answer.list_services_response.service} == {
        NAME,
        "grpc.health.v1.Health",
        *(f"{one}.ServerReflection" for one in VERSIONS),
    }


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("symbol", "path"),
    [
        (NAME, "tidemark/v1/broker_service.proto"),
        (f"{NAME}.GetMetadata", "tidemark/v1/broker_service.proto"),
        ("tidemark.v1.PartitionRef.topic", "tidemark/v1/record.proto"),
        (ELECTION_TYPE, "tidemark/v1/admin_service.proto"),
        ("tidemark.v1.ELECTION_TYPE_PREFERRED", "tidemark/v1/admin_service.proto"),
        (f"{ELECTION_TYPE}.ELECTION_TYPE_PREFERRED", "tidemark/v1/admin_service.proto"),
        ("grpc.health.v1.Health.Check", "grpc_health/v1/health.proto"),
        ("grpc.reflection.v1.ServerReflection.ServerReflectionInfo", "grpc/reflection/v1/reflection.proto"),
        ("grpc.reflection.v1alpha.ServerReflection.ServerReflectionInfo", "grpc_reflection/v1alpha/reflection.proto"),
    ],
)
async def test_a_name_is_found_in_its_file(server: GrpcServer, version: str, symbol: str, path: str) -> None:
    files = files_of(await reflected(server, version, file_containing_symbol=symbol))
    assert path in files
    imported = {needed for one in files.values() for needed in one.dependency}
    assert imported <= set(files)


@pytest.mark.parametrize("symbol", ["", "nope", "tidemark.v1.Nope", f"{NAME}.Nope", f"{NAME}.GetMetadata.nope"])
async def test_an_unknown_name_is_not_found(server: GrpcServer, symbol: str) -> None:
    answer = await reflected(server, VERSIONS[0], file_containing_symbol=symbol)
    assert answer.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


@pytest.mark.parametrize("path", ["tidemark/v1/broker_service.proto", "grpc/reflection/v1/reflection.proto"])
async def test_a_file_is_found_by_its_path(server: GrpcServer, path: str) -> None:
    assert path in files_of(await reflected(server, VERSIONS[0], file_by_filename=path))
