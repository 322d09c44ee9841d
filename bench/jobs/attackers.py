# SPDX-License-Identifier: Apache-2.0
"""Attacks on the connections of a server: `python -m bench.jobs.attackers NAME PORT SECONDS`.

The attackers have the address 127.0.0.2; the clients that are measured have 127.0.0.1. The process has the lowest
priority, since real attackers take no processor of a client.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import resource
import struct
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Final, NamedTuple

from tidemark.v1 import broker_service_pb2 as pb

TOPIC: Final = "attacked"
SOURCE: Final = "127.0.0.2"
UPLINK_BYTES_PER_S: Final = 50_000_000
"""Bytes per second of all attackers together."""
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 4, 8, 9
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4
_INITIAL_WINDOW: Final = 4
_FRAME_BYTES: Final = 16_384
_RETRY_S: Final = 0.05
_MIB: Final = 1 << 20
_LIST_OFFSETS: Final = "/tidemark.v1.BrokerService/ListOffsets"
_FETCH: Final = "/tidemark.v1.BrokerService/Fetch"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def headers(path: str) -> bytes:
    """The headers of a call, without compression."""
    fields = {
        ":method": "POST", ":scheme": "http", ":path": path, ":authority": "x", "te": "trailers",
        "content-type": "application/grpc",
    }  # fmt: skip
    return b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )


class Uplink:
    """The bandwidth that all attackers share."""

    def __init__(self) -> None:
        self._free_s = 0.0

    async def carry(self, size_bytes: int) -> None:
        """Wait until the rate limit permits this number of bytes."""
        now_s = time.monotonic()
        self._free_s = max(now_s, self._free_s) + size_bytes / UPLINK_BYTES_PER_S
        if (wait_s := self._free_s - now_s) > 0:
            await asyncio.sleep(wait_s)


_UPLINK: Final = Uplink()


class Connection:
    """A connection of an attacker that keeps to HTTP/2's windows."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._initial = self._whole = 65_535
        self._windows: dict[int, int] = {}
        self._changed = asyncio.Event()
        self._answered = asyncio.Event()
        self._settled = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    def write(self, data: bytes) -> None:
        """Send frames as they are."""
        self._writer.write(data)

    def begin(self, stream: int, path: str) -> None:
        """The headers of a call."""
        self._windows[stream] = self._initial
        self.write(frame(_HEADERS, _END_HEADERS, stream, headers(path)))

    async def data(self, stream: int, data: bytes) -> None:
        """A part of a message, as windows allow."""
        at = 0
        while at < len(data):
            while min(self._whole, self._windows[stream]) <= 0:
                self._changed.clear()
                await self._changed.wait()
            size = min(len(data) - at, _FRAME_BYTES, self._whole, self._windows[stream])
            self._whole -= size
            self._windows[stream] -= size
            await _UPLINK.carry(size)
            self.write(frame(_DATA, 0, stream, data[at : at + size]))
            await self._writer.drain()
            at += size

    async def answer(self, stream: int) -> None:
        """End the request, and wait for the end of the call."""
        self._answered.clear()
        self.write(frame(_DATA, _END_STREAM, stream))
        await self._answered.wait()
        del self._windows[stream]

    async def until_closed(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the connection, and raise its error; False after the timeout."""
        done, _ = await asyncio.wait([self._reading], timeout=timeout_s)
        return any(one.result() is None for one in done)

    async def settled(self) -> None:
        """Wait for the server's settings."""
        await self._settled.wait()

    async def unless_closed(self, work: Coroutine[None, None, None]) -> None:
        """Run the attack, or raise the error of the connection."""
        working = asyncio.ensure_future(work)
        try:
            await asyncio.wait([working, self._reading], return_when=asyncio.FIRST_COMPLETED)
            await (self._reading if self._reading.done() else working)
        finally:
            working.cancel()

    async def _read(self) -> None:
        while True:
            head = await self._reader.readexactly(9)
            payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
            if kind == _SETTINGS and not flags & _ACK:
                self._set(payload)
                self.write(frame(_SETTINGS, _ACK, 0))
                self._settled.set()
            elif kind == _WINDOW_UPDATE and stream == 0:
                self._whole += int.from_bytes(payload, "big")
            elif kind == _WINDOW_UPDATE and stream in self._windows:
                self._windows[stream] += int.from_bytes(payload, "big")
            elif kind == _HEADERS and flags & _END_STREAM:
                self._answered.set()
            self._changed.set()

    def _set(self, payload: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", payload):
            if name == _INITIAL_WINDOW:
                self._windows = {stream: left + value - self._initial for stream, left in self._windows.items()}
                self._initial = value

    def close(self) -> None:
        """End the connection."""
        self._reading.cancel()
        self._writer.close()


@contextlib.asynccontextmanager
async def connected(port: int, settings: bytes = b"") -> AsyncIterator[Connection]:
    """A connection with these settings of HTTP/2."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(SOURCE, 0))
    writer.write(_PREFACE + frame(_SETTINGS, 0, 0, settings))
    connection = Connection(reader, writer)
    try:
        yield connection
    finally:
        connection.close()


async def silent(port: int) -> None:
    """Sends nothing: the server waits for the handshake."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(SOURCE, 0))
    try:
        await reader.read()  # until the server ends the connection
    finally:
        writer.close()


async def idle(port: int) -> None:
    """Makes no call."""
    async with connected(port) as connection:
        await connection.until_closed()


async def drips(port: int) -> None:
    """Sends the headers of a call one by one, each second one, without end."""
    async with connected(port) as connection:
        await connection.unless_closed(connection.settled())  # no other frame comes between those of the headers
        connection.write(frame(_HEADERS, 0, 1, headers(_LIST_OFFSETS)))
        while not await connection.until_closed(timeout_s=1):
            connection.write(frame(_CONTINUATION, 0, 1, b"\0\x01a\x01b"))


async def reads_nothing(port: int) -> None:
    """Asks for answers of a megabyte, and reads none."""
    partition = pb.PartitionFetch(topic=TOPIC, current_leader_epoch=-1, max_bytes=_MIB)
    request = pb.FetchRequest(partitions=[partition], max_bytes=_MIB).SerializeToString()
    async with connected(port, struct.pack(">HI", _INITIAL_WINDOW, 0)) as connection:
        for number in range(1, 7, 2):
            connection.begin(number, _FETCH)
            connection.write(frame(_DATA, _END_STREAM, number, struct.pack(">BI", 0, len(request)) + request))
        await connection.until_closed()


async def never_ends(port: int) -> None:
    """Sends messages of 16 MiB without their last byte."""
    async with connected(port) as connection:

        async def messages() -> None:
            for number in range(1, 40, 2):
                connection.begin(number, _LIST_OFFSETS)
                await connection.data(number, struct.pack(">BI", 0, 16 * _MIB - 8) + bytes(15 * _MIB))

        await connection.unless_closed(messages())
        await connection.until_closed()


def repeats(request: bytes) -> Callable[[int], Awaitable[None]]:
    """Sends the request, and again as soon as its answer has come."""

    async def repeat(port: int) -> None:
        async with connected(port) as connection:

            async def calls() -> None:
                for stream in itertools.count(1, 2):
                    connection.begin(stream, _LIST_OFFSETS)
                    await connection.data(stream, struct.pack(">BI", 0, len(request)) + request)
                    await connection.answer(stream)

            await connection.unless_closed(calls())

    return repeat


class Attack(NamedTuple):
    """Connections, which the attacker opens again when the server has closed them.

    Attributes:
        connections: at a time.
        per_s: first attempts per second. Thousands at the same time would occupy the attacker's own processor for long.
        one: the action of one connection.
    """

    connections: int
    per_s: int
    one: Callable[[int], Awaitable[None]]


ATTACKS: Final[dict[str, Attack]] = {
    "silent_handshakes": Attack(900, 3_000, silent),
    "idle_connections": Attack(10_000, 3_000, idle),
    "dripping_headers": Attack(900, 3_000, drips),
    "unread_answers": Attack(100, 20, reads_nothing),
    "unfinished_messages": Attack(100, 20, never_ends),
    "nested_groups": Attack(4, 20, repeats(b"\x0b" * (8 * _MIB - 16))),
    "tiny_items": Attack(4, 20, repeats(b"\x0a\x00" * (4 * _MIB - 8))),
}


async def attack(name: str, port: int, seconds: float) -> None:
    """Keep all connections of the attack open for some time."""
    connections, per_s, one = ATTACKS[name]

    async def again(place: int) -> None:
        await asyncio.sleep(place / per_s)
        while True:
            with contextlib.suppress(OSError, EOFError):
                await one(port)
            await asyncio.sleep(_RETRY_S)

    tasks = [asyncio.create_task(again(place)) for place in range(connections)]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def main() -> int:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    asyncio.run(attack(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
