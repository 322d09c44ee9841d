# SPDX-License-Identifier: Apache-2.0
"""Streams end when the token of their caller expires, however busy they are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from tidemark.rpc.security.expiring import ending_at

MESSAGE = b"x" * 100_000


class _Server(grpc.GenericRpcHandler):
    """Has a stream with a backlog that never ends, for a token that expires after a while."""

    def __init__(self, lasts_s: float) -> None:
        self.ended = asyncio.Event()
        self.sent = 0
        self._lasts_s = lasts_s

    def service(self, _details: Any) -> Any:
        handler: Any = grpc.unary_stream_rpc_method_handler(self._backlog)
        return ending_at(time.time() + self._lasts_s, handler)

    async def _backlog(self, _request: bytes, _context: Any) -> AsyncIterator[bytes]:
        try:
            while True:
                self.sent += 1
                yield MESSAGE
        finally:
            self.ended.set()


@asynccontextmanager
async def stream_of(backlog: _Server) -> AsyncIterator[Any]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([backlog])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            method: Any = channel.unary_stream("/a/b")
            yield method(b"")
    finally:
        await server.stop(None)


async def messages_until_refused(stream: Any) -> int:
    received = 0
    async with asyncio.timeout(20):
        try:
            while await stream.read() is not grpc.aio.EOF:
                received += 1
        except grpc.aio.AioRpcError as ended:
            assert ended.code() is grpc.StatusCode.UNAUTHENTICATED  # noqa: PT017 - the messages are counted too
            return received
    pytest.fail("the stream ended without an error")


@pytest.mark.parametrize("lasts_s", [0.0, 0.5])
async def test_a_stream_with_a_backlog_ends_when_the_token_expires(lasts_s: float) -> None:
    async with stream_of(_Server(lasts_s)) as stream:
        received = await messages_until_refused(stream)
    assert (received > 0) == (lasts_s > 0)


async def test_a_stream_of_a_client_that_does_not_read_ends_when_the_token_expires() -> None:
    backlog = _Server(0.5)
    async with stream_of(backlog) as stream:
        assert await stream.read() == MESSAGE
        async with asyncio.timeout(10):
            await backlog.ended.wait()
        assert await messages_until_refused(stream) < backlog.sent
