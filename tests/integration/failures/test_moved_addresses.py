# SPDX-License-Identifier: Apache-2.0
"""A server that comes back under its name at another address, as a pod does, is found again within seconds."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import cast

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tidemark.model import BrokerEpoch, BrokerId, BrokerRegistration
from tidemark.rpc.channel import AddressChannels, open_channel
from tidemark.rpc.server import GrpcServer

from tests.fakes.grpc_server import make_server
from tests.integration.harness.group_member import until

FOUND_WITHIN_S = 15.0
"""Bound below 30 s, after which gRPC resolves a name again by itself."""
ATTEMPT_S = 2.5
"""Time limit of a connection attempt."""
_A, _AAAA = 1, 28


class NameServer(asyncio.DatagramProtocol):
    """Resolves every name to `address`; a client asks it with `dns://127.0.0.1:<port>/name:port`."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.asked = 0
        self.answers = True
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.asked += 1
        if not self.answers:
            return
        end = data.index(b"\0", 12) + 5
        (kind,) = struct.unpack(">H", data[end - 4 : end - 2])
        answers = 1 if kind == _A else 0
        header = data[:2] + struct.pack(">HHHHH", 0x8180, 1, answers, 0, 0)
        record = b"\xc0\x0c" + struct.pack(">HHIH", _A, 1, 1, 4) + socket.inet_aton(self.address)
        assert self._transport is not None
        self._transport.sendto(header + data[12:end] + record * answers, addr)


async def serve(host: str, port: int) -> GrpcServer:
    server = make_server(host, port, [])
    await server.start()
    return server


@contextlib.asynccontextmanager
async def name_server() -> AsyncIterator[tuple[NameServer, str]]:
    """A name server with the prefix of the names that it resolves."""
    loop = asyncio.get_running_loop()
    transport, names = await loop.create_datagram_endpoint(lambda: NameServer("127.0.0.1"), local_addr=("127.0.0.1", 0))
    try:
        yield names, f"dns://127.0.0.1:{transport.get_extra_info('sockname')[1]}"
    finally:
        transport.close()


@contextlib.contextmanager
def silent(port: int) -> Iterator[None]:
    """Connection attempts to 127.0.0.1:port remain unanswered, as those to the address of a pod that is gone."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(0)
        for _ in range(3):  # Linux ignores further attempts while the queue of the listener is full
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", port))
        yield


def broker(address: str, broker_epoch: int) -> BrokerRegistration:
    """A broker at an address that names its name server."""
    found = SimpleNamespace(broker_id=BrokerId(0), address=address, broker_epoch=BrokerEpoch(broker_epoch))
    return cast("BrokerRegistration", found)


async def connected(prefix: str) -> tuple[GrpcServer, AddressChannels, str]:
    """A server, channels with a connection to it as a broker of epoch 7, and its address."""
    server = await serve("127.0.0.1", 0)
    channels, address = AddressChannels(), f"{prefix}/broker-0.test:{server.port}"
    channels.note("c", [broker(address, 7)])
    await health_pb2_grpc.HealthStub(channels.get(address)).Check(health_pb2.HealthCheckRequest(), timeout=10)
    return server, channels, address


async def test_a_server_is_found_again_at_its_new_address() -> None:
    async with name_server() as (names, prefix):
        server = await serve("127.0.0.1", 0)
        channel = open_channel(f"{prefix}/broker-0.test:{server.port}")
        health = health_pb2_grpc.HealthStub(channel)
        await health.Check(health_pb2.HealthCheckRequest(), timeout=10)
        await server.stop(0)
        # Until the name has another address, calls of the client fail; gRPC has resolved the name once by then.
        await asyncio.sleep(0.5)
        names.address = "127.0.0.2"
        server = await serve("127.0.0.2", server.port)
        moved_s = time.monotonic()
        await health.Check(health_pb2.HealthCheckRequest(), timeout=40, wait_for_ready=True)
        assert time.monotonic() - moved_s < FOUND_WITHIN_S
        await channel.close()
        await server.stop(0)


async def test_the_channel_of_a_restarted_broker_does_not_connect_to_the_former_address() -> None:
    async with name_server() as (names, prefix):
        server, channels, address = await connected(prefix)
        health = health_pb2_grpc.HealthStub(channels.get(address))
        asked = names.asked
        await server.stop(0)
        await until(lambda: names.asked >= asked + 2, lambda: f"{names.asked}")  # gRPC resolves the name again
        names.address = "127.0.0.2"
        server = await serve("127.0.0.2", server.port)
        channels.note("c", [broker(address, 8)])
        channels.note("c", [broker(address, 7)])  # from a broker that is behind
        with silent(server.port):
            moved_s = time.monotonic()
            await health.Check(health_pb2.HealthCheckRequest(), timeout=10)
            assert time.monotonic() - moved_s < ATTEMPT_S, "the attempt to the former address timed out first"
        await channels.close()
        await server.stop(0)


async def test_a_lost_connection_needs_no_name_server() -> None:
    async with name_server() as (names, prefix):
        server, channels, address = await connected(prefix)
        health = health_pb2_grpc.HealthStub(channels.get(address))
        names.answers = False
        connection = channels.get(address).generation().channel
        await server.stop(0)
        await connection.wait_for_state_change(grpc.ChannelConnectivity.READY)  # a call before would end with it
        server = await serve("127.0.0.1", server.port)
        channels.note("c", [broker(address, 7)])
        back_s = time.monotonic()
        await health.Check(health_pb2.HealthCheckRequest(), timeout=10, wait_for_ready=True)
        assert time.monotonic() - back_s < ATTEMPT_S
        await channels.close()
        await server.stop(0)
