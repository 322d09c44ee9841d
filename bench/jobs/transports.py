# SPDX-License-Identifier: Apache-2.0
"""The messages of one record with acks=all and nothing else: no log, no checks, no protocol.

A client sends to a leader, the leader to two followers, and both followers answer. Then the leader sends to the
client's producer and to its consumer. Each is a process of its own. So the time until the consumer has the message is
the least that this transport allows: by streams of gRPC for asyncio, or by bare sockets of asyncio.

    python -m bench.jobs.transports grpc|sockets [records]
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import grpc

HOST: Final = "127.0.0.1"
MESSAGE: Final = bytes(400)
"""A message as large as the batch of one record of 100 bytes with its request."""
FOLLOWERS: Final = 2
WARM_UP: Final = 200
_HELLO: Final = b""
_NAGLE: Final = (6, 1, 1)
_RECORD_TIMEOUT_S: Final = 30.0

Receive = Callable[["Link", bytes], None]


class Link:
    """One connection that sends messages; a transport calls the receiver with each message that arrives."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self.send = send


class SocketLink(asyncio.Protocol):
    """Messages with a length prefix, on a socket."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._data = b""

    def connection_made(self, transport: Any) -> None:
        transport.get_extra_info("socket").setsockopt(*_NAGLE)
        self.link = Link(lambda message: transport.write(struct.pack(">I", len(message)) + message))

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 4 and len(self._data) >= 4 + (size := struct.unpack_from(">I", self._data)[0]):
            message, self._data = self._data[4 : 4 + size], self._data[4 + size :]
            self._receive(self.link, message)


class Sockets:
    """Bare sockets of asyncio."""

    async def serve(self, receive: Receive) -> int:
        server = await asyncio.get_running_loop().create_server(lambda: SocketLink(receive), HOST, 0)
        self._server = server
        return int(server.sockets[0].getsockname()[1])

    async def connect(self, port: int, receive: Receive) -> Link:
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(lambda: SocketLink(receive), HOST, port))[1].link


class Grpc:
    """Streams of gRPC for asyncio, without protobuf."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, receive: Receive) -> int:
        async def messages(requests: AsyncIterator[bytes], context: Any) -> None:
            link = self._link(context.write)
            async for message in requests:
                receive(link, message)

        handlers = {"Messages": grpc.stream_stream_rpc_method_handler(messages)}
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bench", handlers)])
        port = self._server.add_insecure_port(f"{HOST}:0")
        await self._server.start()
        return port

    async def connect(self, port: int, receive: Receive) -> Link:
        stream: Any = grpc.aio.insecure_channel(f"{HOST}:{port}").stream_stream("/bench/Messages")()
        link = self._link(stream.write)

        async def read() -> None:
            async for message in stream:
                receive(link, message)

        self._start(read())
        return link

    def _link(self, write: Callable[[bytes], Any]) -> Link:
        waiting: asyncio.Queue[bytes] = asyncio.Queue()

        async def send() -> None:
            while True:
                await write(await waiting.get())

        self._start(send())
        return Link(waiting.put_nowait)

    def _start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


TRANSPORTS: Final[dict[str, Callable[[], Sockets | Grpc]]] = {"grpc": Grpc, "sockets": Sockets}


async def follower(transport: Sockets | Grpc) -> int:
    return await transport.serve(lambda link, message: link.send(message))


async def leader(transport: Sockets | Grpc, followers: list[int]) -> int:
    clients: set[Link] = set()
    answers = 0

    def answered(_: Link, message: bytes) -> None:
        nonlocal answers
        answers += 1
        if answers % FOLLOWERS == 0:
            for client in clients:
                client.send(message)

    links = [await transport.connect(port, answered) for port in followers]

    def received(client: Link, message: bytes) -> None:
        clients.add(client)
        for link in links if message else ():
            link.send(message)

    return await transport.serve(received)


async def records_ms(transport: Sockets | Grpc, port: int, records: int) -> list[float]:
    """Milliseconds until both the producer and the consumer have their message, of each record."""
    arrived: asyncio.Queue[None] = asyncio.Queue()
    links = [await transport.connect(port, lambda *_: arrived.put_nowait(None)) for _ in range(2)]
    for link in links:
        link.send(_HELLO)
    found = []
    for _ in range(WARM_UP + records):
        sent_s = time.perf_counter()
        links[0].send(MESSAGE)
        async with asyncio.timeout(_RECORD_TIMEOUT_S):
            await arrived.get()
            await arrived.get()
        found.append((time.perf_counter() - sent_s) * 1000)
    return found[WARM_UP:]


async def _serve(name: str, followers: list[int]) -> None:
    transport = TRANSPORTS[name]()
    print(await (leader(transport, followers) if followers else follower(transport)), flush=True)
    await asyncio.Event().wait()


def measure(name: str, records: int) -> list[float]:
    """Milliseconds of each record by one transport."""
    with contextlib.ExitStack() as stack:

        def start(*followers: int) -> int:
            command = [sys.executable, "-m", "bench.jobs.transports", name, "serve", *map(str, followers)]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(process.kill)
            assert process.stdout is not None
            return int(process.stdout.readline())

        port = start(*[start() for _ in range(FOLLOWERS)])
        return asyncio.run(records_ms(TRANSPORTS[name](), port, records))


if __name__ == "__main__":
    if sys.argv[2:3] == ["serve"]:
        asyncio.run(_serve(sys.argv[1], [int(port) for port in sys.argv[3:]]))
    else:
        print(json.dumps(measure(sys.argv[1], int(sys.argv[2]) if sys.argv[2:] else 2000)))
