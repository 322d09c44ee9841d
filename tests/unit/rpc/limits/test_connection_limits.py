# SPDX-License-Identifier: Apache-2.0
"""Attacks on the connections of a real server, each with small limits, while another client is served."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import weakref
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
import tidemark.rpc.server
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tidemark.core.security.listeners import Listener
from tidemark.core.security.principals import Role
from tidemark.local.certificates import Authority
from tidemark.local.ports import HeldPorts
from tidemark.rpc.channel import open_channel
from tidemark.rpc.limits import connections, watch
from tidemark.rpc.limits.connections import (
    ABANDONED,
    ADDRESS,
    ALL,
    CALL_BYTES,
    CONNECTION,
    ENDED_AT_ONCE,
    ConnectionLimits,
    Connections,
)
from tidemark.rpc.limits.listening import Attempts
from tidemark.rpc.limits.sockets import Found, Peer
from tidemark.rpc.security.files import TlsIdentity
from tidemark.rpc.security.listeners import ListenerPort
from tidemark.rpc.server import GrpcServer, Service
from tidemark.runtime.host_port import HostPort
from tidemark.runtime.metrics import METRICS
from tidemark.runtime.slices import Pace

from tests.fakes.grpc_server import make_server
from tests.turns import turns
from tests.unit.rpc.limits.http2 import CONTINUATION, DATA, END_STREAM, HEADERS, RST_STREAM, Http2, frame, headers

MIB = 1 << 20
LONG_S = 110
"""Ends a wait shortly before pytest ends the test; other processes may use all cores for long."""
CANCEL = struct.pack(">I", 8)
STREAM, WRITTEN, ECHO = "/test.Bytes/Stream", "/test.Bytes/Written", "/test.Bytes/Echo"
OTHER = "127.0.0.2"
"""Address of the attacker; the other client has 127.0.0.1."""


class Answer:
    """An answer that a test can watch."""


class Bytes:
    """A service of plain bytes."""

    def __init__(self) -> None:
        self.answers: list[weakref.ref[Answer]] = []

    async def stream(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        while True:
            yield bytes(int(request))

    async def wait(self, request: bytes, context: Any) -> AsyncIterator[Answer]:
        answer = self._watched()
        yield answer
        del answer
        await asyncio.Event().wait()

    async def sent(self, requests: Any, context: Any) -> None:
        await context.write(self._watched())

    async def returned(self, request: bytes, context: Any) -> Answer:
        return self._watched()

    def _watched(self) -> Answer:
        answer = Answer()
        self.answers.append(weakref.ref(answer))
        return answer

    async def written(self, requests: Any, context: Any) -> None:
        size = int(await context.read())
        while True:
            await context.write(bytes(size))

    async def sink(self, requests: Any, context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request[:1]

    async def drain(self, requests: Any, context: Any) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:
            await context.write(request[:1])

    async def echo(self, request: bytes, context: Any) -> bytes:
        return request

    def add(self, servicer: object, server: grpc.aio.Server) -> None:
        methods = {
            "Stream": grpc.unary_stream_rpc_method_handler(self.stream),
            "Wait": grpc.unary_stream_rpc_method_handler(self.wait, response_serializer=lambda _: b"x"),
            "Sent": grpc.stream_stream_rpc_method_handler(self.sent, response_serializer=lambda _: bytes(MIB)),
            "Returned": grpc.unary_unary_rpc_method_handler(self.returned, response_serializer=lambda _: bytes(MIB)),
            "Written": grpc.stream_stream_rpc_method_handler(self.written),
            "Sink": grpc.stream_stream_rpc_method_handler(self.sink),
            "Drain": grpc.stream_stream_rpc_method_handler(self.drain),
            "Echo": grpc.unary_unary_rpc_method_handler(self.echo),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Bytes", methods),))


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def serve(
    stack: AsyncExitStack, identity: TlsIdentity | None = None, service: Bytes | None = None, **limits: int
) -> GrpcServer:
    service = service or Bytes()
    server = make_server(
        "127.0.0.1",
        0,
        [Service(service.add, service, "test.Bytes")],
        identity=identity,
        limits=ConnectionLimits(**limits),
    )
    await server.start()
    stack.push_async_callback(server.stop, 0)
    return server


def ended(limit: str) -> float:
    """Connections that the limit has ended in this process."""
    return METRICS.registry.get_sample_value("tidemark_connections_ended_total", {"limit": limit}) or 0.0


async def is_served(server: GrpcServer) -> bool:
    async with open_channel(f"127.0.0.1:{server.port}") as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=LONG_S)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def held(server: GrpcServer) -> int:
    return server._watch.connections.bytes


async def until(condition: Any) -> None:
    async with asyncio.timeout(LONG_S):
        while not condition():  # noqa: ASYNC110 - the server acts in its own time
            await asyncio.sleep(0.01)


async def test_messages_that_never_end_are_bounded_for_a_connection(stack: AsyncExitStack) -> None:
    server, before = await serve(stack, connection_bytes=8 * MIB), ended(CONNECTION)
    attacker = await stack.enter_async_context(Http2(server.port, source=OTHER))
    sent = 0
    async with asyncio.timeout(LONG_S):
        for number in range(1, 200, 2):
            attacker.call(number, ECHO)
            if not await attacker.data(number, struct.pack(">BI", 0, 16 * MIB) + bytes(2 * MIB)):
                break
            sent += 2 * MIB
            await asyncio.sleep(0.05)  # the server looks every quarter of a second
    assert attacker.closed.is_set(), f"{sent} bytes of unfinished messages are held"
    assert ended(CONNECTION) == before + 1
    await until(lambda: held(server) == 0)
    assert await is_served(server)


@pytest.mark.parametrize("checked", [False, True])
async def test_requests_that_running_calls_hold_are_bounded_for_a_connection(
    stack: AsyncExitStack, checked: bool
) -> None:
    server, before = await serve(stack, connection_bytes=8 * MIB), ended(CONNECTION)
    if not checked:
        await server._watch.stop()  # no check finds the connection before its bytes exceed the limit
    channel = await stack.enter_async_context(open_channel(f"127.0.0.1:{server.port}"))
    wait, opened = channel.unary_stream("/test.Bytes/Wait"), 0
    with contextlib.suppress(grpc.aio.AioRpcError):
        for _ in range(50):
            call = wait(bytes(100 << 10), timeout=LONG_S)
            opened += await call.read() == b"x"
    assert 4 < opened < 7, "a request of 100 KiB counts as 1.2 MiB"
    assert ended(CONNECTION) == before + 1
    await until(lambda: held(server) == 0)


async def test_the_port_for_probes_takes_small_messages_only(stack: AsyncExitStack) -> None:
    ports = HeldPorts()
    stack.callback(ports.release)
    port = ports.take("health")
    listener = ListenerPort(Listener.ONLY, HostPort("127.0.0.1", 0), None)
    server = GrpcServer([listener], [], ["test.Bytes"], health=HostPort("127.0.0.1", port))
    await server.start()
    stack.push_async_callback(server.stop, 0)
    stub = health_pb2_grpc.HealthStub(await stack.enter_async_context(open_channel(f"127.0.0.1:{port}")))
    answer = await stub.Check(health_pb2.HealthCheckRequest(service="liveness"), timeout=LONG_S)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.aio.AioRpcError, match="larger than max"):
        await stub.Check(health_pb2.HealthCheckRequest(service="x" * 100_000), timeout=LONG_S)


async def test_a_stream_that_waits_holds_no_answer(stack: AsyncExitStack) -> None:
    service = Bytes()
    server = await serve(stack, service=service)
    channel = await stack.enter_async_context(open_channel(f"127.0.0.1:{server.port}"))
    call = channel.unary_stream("/test.Bytes/Wait")(b"", timeout=LONG_S)
    assert await call.read() == b"x"
    await until(lambda: service.answers[0]() is None)
    call.cancel()


@pytest.mark.parametrize("path", ["/test.Bytes/Sent", "/test.Bytes/Returned"])
async def test_the_bytes_of_an_answer_that_a_client_does_not_read_are_held_and_not_the_answer(
    stack: AsyncExitStack, path: str
) -> None:
    """Regression: 402 MiB of answers that were not read took 1.2 GB of a broker's memory."""
    service = Bytes()
    server = await serve(stack, service=service)
    client = await stack.enter_async_context(Http2(server.port, window=0))
    client.call(1, path, b"")
    await until(lambda: held(server) > MIB)
    assert [answer() for answer in service.answers] == [None]


@pytest.mark.parametrize("path", [STREAM, WRITTEN, ECHO])
async def test_answers_that_a_client_does_not_read_are_bounded_for_a_connection(
    stack: AsyncExitStack, path: str
) -> None:
    server, before = await serve(stack, connection_bytes=8 * MIB), ended(CONNECTION)
    attacker = await stack.enter_async_context(Http2(server.port, window=0, source=OTHER))
    request = b"x" * MIB if path == ECHO else str(MIB).encode()
    for number in range(1, 60, 2):
        attacker.call(number, path)
        await attacker.data(number, struct.pack(">BI", 0, len(request)) + request)
        attacker.send(frame(DATA, END_STREAM, number))
    async with asyncio.timeout(LONG_S):
        await attacker.closed.wait()
    assert ended(CONNECTION) == before + 1
    await until(lambda: held(server) == 0)
    assert await is_served(server)


async def test_bytes_of_all_connections_are_bounded_at_the_address_with_the_most(stack: AsyncExitStack) -> None:
    server, before = await serve(stack, bytes=8 * MIB), ended(ALL)
    quiet = await stack.enter_async_context(Http2(server.port, window=0))
    quiet.call(1, STREAM, str(3 * MIB).encode())
    await until(lambda: held(server) >= 3 * MIB)
    attackers = [await stack.enter_async_context(Http2(server.port, window=0, source=OTHER)) for _ in range(4)]
    for one in attackers:
        one.call(1, STREAM, str(2 * MIB).encode())
    await until(lambda: ended(ALL) == before + 2)
    await until(lambda: sum(one.closed.is_set() for one in attackers) == 2)
    assert not quiet.closed.is_set(), "its connection holds the most, but its address does not"
    assert await is_served(server)


async def test_a_client_that_reads_and_writes_much_holds_nothing(stack: AsyncExitStack) -> None:
    server = await serve(stack, connection_bytes=8 * MIB)
    async with open_channel(f"127.0.0.1:{server.port}") as channel:
        echo: Any = channel.unary_unary(ECHO)
        for _ in range(40):
            assert len(await echo(bytes(MIB), timeout=LONG_S)) == MIB
        stream: Any = channel.unary_stream(STREAM)
        call = stream(str(MIB).encode(), timeout=LONG_S)
        for _ in range(40):
            assert len(await call.read()) == MIB
        small = [echo(b"x", timeout=LONG_S) for _ in range(500)]
        await asyncio.gather(*small)
        await until(lambda: held(server) <= 2 * MIB)
        call.cancel()
        await until(lambda: held(server) == 0)
        assert await echo(b"x", timeout=LONG_S) == b"x"


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize(("method", "size"), [("Sink", 100), ("Sink", MIB), ("Drain", 100), ("Drain", MIB)])
async def test_a_stream_of_requests_that_are_read_is_never_ended(
    stack: AsyncExitStack, tmp_path: Path, method: str, size: int, secure: bool
) -> None:
    files = Authority.create(tmp_path, "shop").issue_service(Role.BROKER, "0", ["127.0.0.1"]) if secure else None
    identity = None if files is None else TlsIdentity(files)
    server, before = await serve(stack, identity, connection_bytes=8 * MIB), ended(CONNECTION)
    async with open_channel(f"127.0.0.1:{server.port}", identity) as channel:
        stream: Any = channel.stream_stream(f"/test.Bytes/{method}")
        call = stream(timeout=LONG_S)
        for _ in range(40 if size == MIB else 500):
            await call.write(bytes(size))
            await call.read()
        await until(lambda: held(server) <= 48 << 10)  # a handshake, the call, and the last answer
        call.cancel()
    assert ended(CONNECTION) == before


async def test_a_request_that_grpc_compressed_is_refused(stack: AsyncExitStack) -> None:
    server = await serve(stack)
    options = [("grpc.default_compression_algorithm", 2)]
    async with open_channel(f"127.0.0.1:{server.port}", options=options) as channel:
        echo: Any = channel.unary_unary(ECHO)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await echo(bytes(MIB), timeout=LONG_S)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_connections_of_one_address_are_bounded_and_the_oldest_stay(stack: AsyncExitStack) -> None:
    server, before = await serve(stack, per_address=3), ended(ADDRESS)
    first = [await stack.enter_async_context(Http2(server.port, source=OTHER)) for _ in range(3)]
    await until(lambda: len(server._watch.connections) == 3)
    later = [await stack.enter_async_context(Http2(server.port, source=OTHER)) for _ in range(4)]
    await until(lambda: all(one.closed.is_set() for one in later))
    assert not any(one.closed.is_set() for one in first)
    assert ended(ADDRESS) == before + 4
    assert await is_served(server)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_the_kernel_drops_attempts_of_an_address_with_very_many_connections(
    stack: AsyncExitStack, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (watch, connections):
        monkeypatch.setattr(module, "DROPPED_S", 0.2)
    service = Bytes()
    limits = ConnectionLimits(per_address=5)
    server = make_server(host, 0, [Service(service.add, service, "test.Bytes")], limits=limits)
    await server.start()
    stack.push_async_callback(server.stop, 0)
    other = OTHER if host == "127.0.0.1" else host
    address = (host, server.port)
    many: list[socket.socket] = []

    def more() -> bool:
        """Connect repeatedly: on a busy machine connections end one by one, and then do not exceed the rate."""
        with contextlib.suppress(TimeoutError):
            for _ in range(ENDED_AT_ONCE):
                many.append(socket.create_connection(address, timeout=0.3, source_address=(other, 0)))
                stack.callback(many[-1].close)
        return bool(server._watch._dropped_until_s)

    await until(more)
    with pytest.raises(TimeoutError):
        socket.create_connection(address, timeout=0.3, source_address=(other, 0))
    if other == OTHER:
        assert await is_served(server)
    for one in many:
        one.close()
    await until(lambda: not server._watch._dropped_until_s)
    socket.create_connection(address, timeout=10, source_address=(other, 0)).close()


async def test_new_connections_of_one_address_have_a_rate_and_others_are_served(stack: AsyncExitStack) -> None:
    server, ended_before = await serve(stack, creation_rate=20), ended(ADDRESS)
    address = ("127.0.0.1", server.port)
    held = stack.enter_context(contextlib.ExitStack())

    def more() -> bool:
        """Connect repeatedly: a busy machine may take long for twenty connections. Few connections stay open."""
        held.close()
        with contextlib.suppress(TimeoutError):
            for _ in range(60):
                held.callback(socket.create_connection(address, timeout=0.3, source_address=(OTHER, 0)).close)
        return bool(server._watch._dropped_until_s)

    await until(more)
    assert (server.port, OTHER) in server._watch._dropped_until_s
    assert await is_served(server)
    await until(lambda: not server._watch._dropped_until_s)
    socket.create_connection(address, timeout=LONG_S, source_address=(OTHER, 0)).close()
    assert ended(ADDRESS) == ended_before


async def test_the_rate_of_new_connections_knows_each_connection_once() -> None:
    dropped: dict[Any, float] = {}
    limited = Connections(
        ConnectionLimits(creation_rate=10), lambda _: None, lambda *_: True, lambda *_: None, dropped.update
    )
    found = [Found(Peer(9092, "10.0.0.7", number), number, number, 0, 0) for number in range(1, 11)]
    for _ in range(3):
        await limited.look_is_over(found, Pace())
    assert not dropped
    more = [Found(Peer(9092, "10.0.0.7", number), number, number, 0, 0) for number in range(11, 16)]
    await limited.glance_is_over(more, Pace())
    assert list(dropped) == [(9092, "10.0.0.7")]
    assert 0 < dropped[9092, "10.0.0.7"] <= 0.5


async def test_a_closed_listening_socket_whose_number_is_used_again_is_no_attempt() -> None:
    told: list[None] = []
    attempts = Attempts(lambda: told.append(None))
    closed = socket.create_server(("127.0.0.1", 0))
    file = closed.fileno()
    closed.close()
    attempts.await_one([file])
    one, other = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=one)
    attempts.await_one([one.fileno()])
    other.sendall(b"x")
    await asyncio.sleep(0)
    attempts.end()
    writer.close()
    other.close()
    assert not attempts.came
    assert not told


async def test_attempts_wake_the_watch_once_and_not_after_the_end() -> None:
    told = asyncio.Event()
    attempts = Attempts(told.set)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        attempts.await_one([listening.fileno()])
        with socket.create_connection(listening.getsockname()):
            async with asyncio.timeout(LONG_S):
                await told.wait()
            assert attempts.came
            attempts.end()
            told.clear()
            attempts.await_one([listening.fileno()])
            await turns()
    assert not told.is_set()


async def test_connections_that_say_nothing_count_too(stack: AsyncExitStack) -> None:
    server, before = await serve(stack, per_address=5), ended(ADDRESS)
    silent = [socket.create_connection(("127.0.0.1", server.port), source_address=(OTHER, 0)) for _ in range(20)]
    for one in silent:
        stack.callback(one.close)
    await until(lambda: ended(ADDRESS) >= before + 15)
    assert await is_served(server)


async def test_connections_are_bounded_in_all(stack: AsyncExitStack) -> None:
    server = await serve(stack, connections=16)
    for _ in range(16):
        await stack.enter_async_context(Http2(server.port))
    beyond = await stack.enter_async_context(Http2(server.port))
    async with asyncio.timeout(LONG_S):
        await beyond.closed.wait()


async def test_a_connection_has_so_many_streams_and_more_calls_wait(stack: AsyncExitStack) -> None:
    server = await serve(stack, streams=8)
    one = await stack.enter_async_context(Http2(server.port))
    assert one.streams_max == 8
    async with open_channel(f"127.0.0.1:{server.port}") as channel:
        echo: Any = channel.unary_unary(ECHO)
        assert await asyncio.gather(*(echo(b"x", timeout=LONG_S) for _ in range(50))) == [b"x"] * 50


@pytest.mark.parametrize("dripping", [False, True])
async def test_a_connection_without_a_call_ends_when_its_idle_time_is_over(
    stack: AsyncExitStack, dripping: bool
) -> None:
    server = await serve(stack, idle_ms=1_000)
    one = await stack.enter_async_context(Http2(server.port))
    if dripping:
        one.send(frame(HEADERS, 0, 1, headers(ECHO)[:9]))
    async with asyncio.timeout(LONG_S):
        while not one.closed.is_set():
            if dripping:
                one.send(frame(CONTINUATION, 0, 1, b"\0\x01a\x01b"))
            await asyncio.sleep(0.1)


async def test_headers_that_drip_without_end_are_bounded(stack: AsyncExitStack) -> None:
    server, before = await serve(stack, connection_bytes=MIB), ended(CONNECTION)
    one = await stack.enter_async_context(Http2(server.port))
    one.send(frame(HEADERS, 0, 1, headers(ECHO)))
    async with asyncio.timeout(LONG_S):
        while not one.closed.is_set():
            for _ in range(32):
                one.send(frame(CONTINUATION, 0, 1, b"\0\x03abc\x7f\xf1\x01" + b"v" * 368))
            await asyncio.sleep(0.002)
    assert ended(CONNECTION) == before + 1
    assert await is_served(server)


async def test_calls_that_their_client_abandons_end_its_connection_when_they_are_very_many(
    stack: AsyncExitStack,
) -> None:
    server, before = await serve(stack), ended(ABANDONED)
    attacker = await stack.enter_async_context(Http2(server.port, source=OTHER))
    async with asyncio.timeout(LONG_S):
        for number in range(1, 20_000, 2):
            attacker.call(number, ECHO)
            attacker.send(frame(RST_STREAM, 0, number, CANCEL))
            if number % 100 == 1:
                await asyncio.sleep(0.01)
            if attacker.closed.is_set():
                break
        await attacker.closed.wait()
    assert ended(ABANDONED) == before + 1
    assert await is_served(server)


async def test_bytes_of_abandoned_requests_are_not_held_for_ever(stack: AsyncExitStack) -> None:
    server, before = await serve(stack, connection_bytes=48 * MIB), ended(CONNECTION)
    client = await stack.enter_async_context(Http2(server.port))
    client.call(1, "/test.Bytes/Drain")
    async with asyncio.timeout(LONG_S):
        for number in range(3, 3 + 2 * 20, 2):
            client.call(number, ECHO)
            assert await client.data(number, struct.pack(">BI", 0, 16 * MIB) + bytes(3 * MIB))
            client.send(frame(RST_STREAM, 0, number, CANCEL))
        await until(lambda: held(server) < 21 * MIB)
        client.send(frame(RST_STREAM, 0, 1, CANCEL))
        await until(lambda: held(server) == 0)
    assert ended(CONNECTION) == before


async def test_calls_whose_request_has_not_come_count_and_time_out(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tidemark.rpc.server, "UNBOUNDED_CALL_S", 1.0)
    server = await serve(stack)
    attacker = await stack.enter_async_context(Http2(server.port, source=OTHER))
    for number in range(1, 100, 2):
        attacker.call(number, ECHO)
    await until(lambda: held(server) >= 50 * CALL_BYTES)
    await until(lambda: held(server) == 0)
    assert not attacker.closed.is_set()


async def test_a_gone_connection_above_its_limit_is_sought_once_between_checks() -> None:
    sought: list[Peer] = []
    limits = ConnectionLimits(connection_bytes=MIB)
    limited = Connections(limits, sought.append, lambda *_: True, lambda *_: None)
    peer = Peer(9092, "10.0.0.7", 4711)
    connection = limited.of(peer)
    for _ in range(100):
        limited.call_began(connection, 100)
    assert sought == [peer]
    await limited.look_is_over([], Pace())
    assert sought == [peer, peer]
    assert not connection.ended


async def test_few_of_many_connections_above_the_limit_are_sought_between_checks() -> None:
    """Each search looks at all open files: with 10,000 of them, it holds up the event loop for 0.1 s."""
    sought: list[Peer] = []
    limited = Connections(ConnectionLimits(bytes=MIB), sought.append, lambda *_: True, lambda *_: None)
    for number in range(100):
        limited.sends(limited.of(Peer(9092, "10.0.0.7", number)), MIB)
    assert len(sought) == connections.SOUGHT_OF_A_LOOK
    assert limited.can_exceed, "the next check is early"
    await limited.look_is_over([], Pace())
    assert len(sought) == 2 * connections.SOUGHT_OF_A_LOOK


async def test_a_connection_that_is_only_one_of_too_many_is_not_sought() -> None:
    sought: list[Peer] = []
    limited = Connections(ConnectionLimits(per_address=1), sought.append, lambda *_: True, lambda *_: None)
    for number in range(100):
        connection = limited.of(Peer(9092, "10.0.0.7", number))
        limited.call_began(connection, 100)
        for _ in range(20):
            limited.abandoned(connection)
    await limited.look_is_over([], Pace())
    assert not sought


async def test_a_connection_that_opens_while_a_check_gives_way_keeps_its_counts() -> None:
    limited = Connections(ConnectionLimits(), lambda _: None, lambda *_: True, lambda *_: None)
    peer, other = Peer(9092, "10.0.0.7", 4711), Peer(9092, "10.0.0.8", 4711)
    check = asyncio.create_task(limited.look_is_over([Found(other, 8, 98, 0, 0)], Pace(0)))
    await turns(1)
    limited.of(peer).took(8 * MIB)
    await check
    await limited.look_is_over([Found(peer, 7, 99, 0, 8 * MIB)], Pace())
    assert limited.bytes == 0


async def test_messages_of_a_connection_that_opens_during_a_look_are_not_taken_for_unfinished_ones() -> None:
    limited = Connections(ConnectionLimits(), lambda _: None, lambda *_: True, lambda *_: None)
    peer = Peer(9092, "10.0.0.7", 4711)
    limited.of(peer).took(8 * MIB)
    await limited.look_is_over([], Pace())
    await limited.look_is_over([Found(peer, 7, 99, 0, 8 * MIB)], Pace())
    assert limited.bytes == 0
    await limited.look_is_over([], Pace())
    assert len(limited) == 0
