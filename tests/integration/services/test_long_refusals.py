# SPDX-License-Identifier: Apache-2.0
"""Long refusals: gRPC drops a status whose headers are too large, so services shorten it and keep the cause."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from tidemark.errors import ErrorCode, TidemarkError
from tidemark.rpc import errors
from tidemark.rpc.channel import open_channel
from tidemark.rpc.server import Service
from tidemark.v1 import broker_service_pb2 as pb
from tidemark.v1.broker_service_pb2_grpc import (
    BrokerServiceServicer,
    BrokerServiceStub,
    add_BrokerServiceServicer_to_server,
)

from tests.fakes.grpc_server import make_server

LONG = 1_000_000


class Talkative(BrokerServiceServicer):
    """Refuses with the message of the test."""

    def __init__(self) -> None:
        self.refusal = TidemarkError(ErrorCode.INTERNAL, "")

    async def GetMetadata(self, request: Any, context: Any) -> pb.GetMetadataResponse:  # noqa: N802
        raise self.refusal


@pytest.fixture
async def told() -> AsyncIterator[Any]:
    talkative = Talkative()
    server = make_server(
        "127.0.0.1", 0, [Service(add_BrokerServiceServicer_to_server, talkative, "tidemark.v1.BrokerService")]
    )
    await server.start()

    async def refuse(message: str, facts: dict[str, str]) -> TidemarkError:
        talkative.refusal = TidemarkError(ErrorCode.UNKNOWN_TOPIC, message, facts)
        stub: Any = BrokerServiceStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            await stub.GetMetadata(pb.GetMetadataRequest(), timeout=10)
        return errors.from_rpc_error(refused.value, address="here")

    async with open_channel(f"127.0.0.1:{server.port}") as channel:
        yield refuse
    await server.stop(0)


async def test_a_short_refusal_is_sent_whole(told: Any) -> None:
    sentence = "there is no topic 'ünï%'; " * 20
    found = await told(sentence, {"topic": "ünï%", "seen": "x" * 500})
    assert (found.code, found.message) == (ErrorCode.UNKNOWN_TOPIC, sentence)
    assert found.metadata == {"topic": "ünï%", "seen": "x" * 500}


@pytest.mark.parametrize("letter", ["a", "\n", "%", "ü", "💥"])
async def test_a_long_refusal_is_shortened_and_keeps_its_code(told: Any, letter: str) -> None:
    found = await told(f"there is no topic {letter * LONG}", {"small": "1", "topic": letter * LONG, "more": "x"})
    assert found.code is ErrorCode.UNKNOWN_TOPIC
    assert found.message.startswith(f"there is no topic {letter * 100}")
    assert found.message.endswith("[...]")
    assert found.metadata["small"] == "1"
    assert set(found.metadata) == {"small", "topic", "more"}
