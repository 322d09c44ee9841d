# SPDX-License-Identifier: Apache-2.0
"""Answers with very many errors: every request within the limits gets an answer that gRPC sends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tidemark.core.security.authorizer import Authorizer, Rules
from tidemark.model import TidemarkError, unknown_topic
from tidemark.rpc import errors, request_limits
from tidemark.rpc.channel import open_channel
from tidemark.rpc.limits.answer_size import BRIEF
from tidemark.rpc.security.access import Accesses
from tidemark.rpc.security.audit import Audit
from tidemark.rpc.security.gate import Gate
from tidemark.rpc.server import Service
from tidemark.v1 import broker_service_pb2 as pb
from tidemark.v1.broker_service_pb2_grpc import (
    BrokerServiceServicer,
    BrokerServiceStub,
    add_BrokerServiceServicer_to_server,
)

from tests.fakes.grpc_server import make_server

NAME = "tidemark.v1.BrokerService"
LONG = "n" * 245


class Unknowing(BrokerServiceServicer):
    """Knows no topic."""

    async def ListOffsets(self, request: pb.ListOffsetsRequest, context: Any) -> pb.ListOffsetsResponse:  # noqa: N802
        answer = pb.ListOffsetsResponse()
        for one in request.partitions:
            error = errors.to_proto(unknown_topic(one.topic))
            answer.partitions.add(topic=one.topic, partition=one.partition, offset=-1, error=error)
        return answer


@pytest.fixture(params=["denied", "unknown"])
async def stub(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    authorizer = Authorizer([])
    authorizer.use(Rules(()))
    gate = Gate(Accesses(authorizer, Audit(), "")) if request.param == "denied" else None
    server = make_server("127.0.0.1", 0, [Service(add_BrokerServiceServicer_to_server, Unknowing(), NAME)], gate=gate)
    await server.start()
    async with open_channel(f"127.0.0.1:{server.port}") as channel:
        yield BrokerServiceStub(channel)
    await server.stop(0)


async def test_an_answer_with_an_error_for_each_of_the_most_names_is_sent(stub: Any) -> None:
    names = [f"{LONG}{number}"[-249:] for number in range(request_limits.NAMED_MAX)]
    request = pb.ListOffsetsRequest(partitions=[pb.PartitionListOffsets(topic=name) for name in names])
    answer = await stub.ListOffsets(request, timeout=120)
    assert [one.topic for one in answer.partitions] == names
    codes = {one.error.code for one in answer.partitions}
    assert codes == {"UNKNOWN_TOPIC"}
    first, last = answer.partitions[0].error, answer.partitions[-1].error
    assert names[0] in first.message
    assert last.message == BRIEF
    assert isinstance(errors.from_proto(last), TidemarkError)
