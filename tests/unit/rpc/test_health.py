# SPDX-License-Identifier: Apache-2.0
"""The health service of a real server, also towards watchers that read nothing."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc._cython import cygrpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tidemark.core.security.listeners import Listener
from tidemark.core.security.principals import Role
from tidemark.local.certificates import Authority
from tidemark.rpc import health
from tidemark.rpc.security.files import TlsIdentity
from tidemark.rpc.security.listeners import ListenerPort
from tidemark.rpc.server import READINESS, GrpcServer
from tidemark.runtime.host_port import HostPort
from tidemark.runtime.metrics import METRICS

from tests.fakes.grpc_server import make_server
from tests.unit.rpc.limits.http2 import frame

Answer = health_pb2.HealthCheckResponse
_SETTINGS, _HEADERS, _DATA = 4, 1, 0


@pytest.fixture
async def server() -> AsyncIterator[GrpcServer]:
    server = make_server("127.0.0.1", 0, [])
    await server.start()
    yield server
    await server.stop(0)


@pytest.fixture
async def stub(server: GrpcServer) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield health_pb2_grpc.HealthStub(channel)


async def _watch_and_read_nothing(port: int) -> asyncio.StreamWriter:
    """A watch of the readiness whose HTTP/2 window is 0; returns once the server answers it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    fields = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": b"/grpc.health.v1.Health/Watch",
        b":authority": b"x",
        b"te": b"trailers",
        b"content-type": b"application/grpc",
    }
    headers = b"".join(b"\0" + bytes([len(n)]) + n + bytes([len(v)]) + v for n, v in fields.items())
    request = health_pb2.HealthCheckRequest(service=READINESS).SerializeToString()
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(_SETTINGS, 0, 0, struct.pack(">HI", 4, 0)))
    writer.write(frame(_HEADERS, 4, 1, headers) + frame(_DATA, 1, 1, struct.pack(">BI", 0, len(request)) + request))
    while True:
        head = await reader.readexactly(9)
        await reader.readexactly(int.from_bytes(head[:3], "big"))
        if head[3] == _SETTINGS and not head[4] & 1:
            writer.write(frame(_SETTINGS, 1, 0, b""))
        if head[3] == _HEADERS:
            return writer


async def test_a_watcher_that_reads_nothing_delays_neither_a_change_nor_the_stop(server: GrpcServer) -> None:
    async with asyncio.timeout(10):
        writer = await _watch_and_read_nothing(server.port)
    try:
        async with asyncio.timeout(10):
            await server.set_ready(True)
            await server.set_ready(False)
            await server.stop(0)
    finally:
        writer.close()


async def test_a_watcher_is_sent_unknown_then_each_state_that_the_name_gets(server: GrpcServer, stub: Any) -> None:
    watch = stub.Watch(health_pb2.HealthCheckRequest(service="later"), timeout=10)
    assert (await watch.read()).status == Answer.SERVICE_UNKNOWN
    await server.answer_to("later")
    assert (await watch.read()).status == Answer.SERVING
    watch.cancel()


async def test_check_answers_for_known_names_only_and_list_for_all(server: GrpcServer, stub: Any) -> None:
    for name, status in (("", Answer.SERVING), ("liveness", Answer.SERVING), (READINESS, Answer.NOT_SERVING)):
        request = health_pb2.HealthCheckRequest(service=name)
        assert (await stub.Check(request, timeout=10)).status == status
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Check(health_pb2.HealthCheckRequest(service="none"), timeout=10)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    messages: Any = health_pb2  # its type stubs are older than List
    listed = await stub.List(messages.HealthListRequest(), timeout=10)
    assert set(listed.statuses) == {"", "liveness", READINESS}


async def test_watches_beyond_the_limit_are_refused_until_one_ends(
    server: GrpcServer, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "WATCHES_MAX", 1)
    request = health_pb2.HealthCheckRequest(service=READINESS)
    first = stub.Watch(request, timeout=10)
    await first.read()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Watch(request, timeout=10).read()
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    first.cancel()
    async with asyncio.timeout(10):
        while server._health._watches:  # noqa: ASYNC110 - the server ends the watch in its own time
            await asyncio.sleep(0.01)
    assert (await stub.Watch(request, timeout=10).read()).status == Answer.NOT_SERVING


@pytest.mark.parametrize(("plain", "secure", "says"), [(1, 0, 0.0), (0, 1, 0.0), (1, 1, 1.0)])
async def test_a_plain_listener_beside_one_with_tls_is_reported(
    tmp_path: Path, plain: int, secure: int, says: float
) -> None:
    identity = TlsIdentity(Authority.create(tmp_path, "shop").issue_service(Role.BROKER, "0", ["127.0.0.1"]))
    address = HostPort("127.0.0.1", 0)
    ports = [ListenerPort(Listener.INTERNAL, address, identity)] * secure
    server = GrpcServer([*ports, *[ListenerPort(Listener.PLAIN, address)] * plain], [])
    await server.start()
    try:
        assert METRICS.registry.get_sample_value("tidemark_plain_beside_tls") == says
    finally:
        await server.stop(0)


def test_a_stream_that_was_cut_while_it_was_written_leaves_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    grpcs = logging.getLogger("grpc._cython.cygrpc")
    for error in (cygrpc.ExecuteBatchError("cut"), ValueError("wrong")):
        try:
            raise error
        except (cygrpc.ExecuteBatchError, ValueError):
            grpcs.exception("raised by a method")
    assert [str(record.exc_info and record.exc_info[1]) for record in caplog.records] == ["wrong"]
