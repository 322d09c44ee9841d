# SPDX-License-Identifier: Apache-2.0
"""A stream without messages: pings keep the connection, and no server treats the pings as an attack."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tidemark.core.security.principals import Role
from tidemark.local.certificates import Authority
from tidemark.rpc import channel, server
from tidemark.rpc.security.files import TlsIdentity

from tests.chaos.arena.proxy import ANY_CALLER, Network, Trouble
from tests.fakes.grpc_server import make_server

_PING_MS = 100
_TOO_MANY = 6


async def test_a_client_that_pings_an_idle_stream_more_often_than_the_server_wants_loses_it_and_one_that_does_not_keeps_it(  # noqa: E501
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The settings of production with shorter times: the server accepts pings twice as often as clients send them."""

    def options(accepted_ms: int) -> tuple[tuple[str, int], ...]:
        return tuple((name, accepted_ms if value == server.PING_ACCEPTED_MS else value) for name, value in production)

    production = server._OPTIONS
    monkeypatch.setattr(server, "_OPTIONS", options(_PING_MS // 2))
    assert not await _is_ended(_PING_MS * _TOO_MANY)
    monkeypatch.setattr(server, "_OPTIONS", options(3600_000))
    assert await _is_ended(_PING_MS * 10 * _TOO_MANY)


async def test_a_metadata_stream_ends_after_a_network_cut_however_long_it_was_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def sooner(options: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
        """Pings come more often; the time for an answer is shortened less, for a busy machine is slow to answer."""
        scaled = re.compile(r"keepalive_time|ping_interval|ping_timeout")
        return tuple(
            (name, value // (4 if "timeout" in name else 40) if scaled.search(name) else value)
            for name, value in options
        )

    monkeypatch.setattr(server, "_OPTIONS", sooner(server._OPTIONS))
    monkeypatch.setattr(channel, "CHANNEL_OPTIONS", sooner(channel.CHANNEL_OPTIONS))
    serving = make_server("127.0.0.1", 0, [])
    await serving.start()
    with Network(dict) as network:
        port = await asyncio.to_thread(network.add, "server", lambda: serving.port)
        async with channel.open_channel(f"127.0.0.1:{port}") as open_channel:
            stub: Any = health_pb2_grpc.HealthStub(open_channel)
            call = stub.Watch(health_pb2.HealthCheckRequest())
            await call.read()
            reading = asyncio.ensure_future(call.read())
            await asyncio.wait(
                {reading}, timeout=dict(channel.CHANNEL_OPTIONS)["grpc.keepalive_time_ms"] / 1000 * _TOO_MANY
            )
            assert not reading.done(), "the stream is only silent"
            for way in ((ANY_CALLER, "server"), ("server", ANY_CALLER)):
                await asyncio.to_thread(network.disturb, *way, Trouble(silent=True))
            async with asyncio.timeout(30):
                with pytest.raises(grpc.aio.AioRpcError) as lost:
                    await reading
            assert lost.value.code() is grpc.StatusCode.UNAVAILABLE
    await serving.stop(0.1)


async def _is_ended(within_ms: int) -> bool:
    """Whether the server ends a stream that carries only pings."""
    serving = make_server("127.0.0.1", 0, [])
    await serving.start()
    pings = [("grpc.keepalive_time_ms", _PING_MS), ("grpc.http2.max_pings_without_data", 0)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{serving.port}", options=pings) as channel:
        call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        await call.read()
        try:
            async with asyncio.timeout(within_ms / 1000):
                await call.read()
        except TimeoutError:
            return False
        except grpc.aio.AioRpcError as error:
            return error.details() == "Too many pings"
        finally:
            call.cancel()
            await serving.stop(0.1)
    raise AssertionError("the server sent a message on that stream")


async def test_a_connection_without_a_handshake_is_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The limit of production with a shorter time, in plain text and with TLS."""
    options = tuple((name, 300 if value == server.HANDSHAKE_MS else value) for name, value in server._OPTIONS)
    monkeypatch.setattr(server, "_OPTIONS", options)
    files = Authority.create(tmp_path, "shop").issue_service(Role.BROKER, "0", ["127.0.0.1"])
    for identity in (None, TlsIdentity(files)):
        serving = make_server("127.0.0.1", 0, [], identity=identity)
        await serving.start()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", serving.port)
            async with asyncio.timeout(30):
                await reader.read()  # until the server closes the connection
            writer.close()
        finally:
            await serving.stop(0)
