# SPDX-License-Identifier: Apache-2.0
"""A bare HTTP/2 client: sends the frames that a test names, keeps to windows, and answers pings."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from types import TracebackType

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
ACK, END_STREAM, END_HEADERS = 1, 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_MAX_STREAMS, _WINDOW = 3, 4
_FRAME_BYTES = 16_384


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def headers(path: str) -> bytes:
    """The headers of a call, without compression."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "x",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )


def message(data: bytes) -> bytes:
    return struct.pack(">BI", 0, len(data)) + data


class Http2:
    """One connection.

    Args:
        port: of the server on this machine.
        window: bytes of each answer that the server may send; None: as HTTP/2 begins.
        source: address of this end.

    Attributes:
        closed: set when the server has closed the connection.
        streams_max: that the server allows; None: it has not said.
    """

    def __init__(self, port: int, window: int | None = None, source: str = "127.0.0.1") -> None:
        self._port, self._own_window, self._source = port, window, source
        self.closed = asyncio.Event()
        self.streams_max: int | None = None
        self._settled = asyncio.Event()
        self._changed = asyncio.Condition()
        self._initial = self._connection = 65_535
        self._windows: dict[int, int] = {}

    async def __aenter__(self) -> Http2:
        self._reader, self._writer = await asyncio.open_connection(
            "127.0.0.1", self._port, local_addr=(self._source, 0)
        )
        own = b"" if self._own_window is None else struct.pack(">HI", _WINDOW, self._own_window)
        self._writer.write(PREFACE + frame(SETTINGS, 0, 0, own))
        self._reading = asyncio.create_task(self._read())
        async with asyncio.timeout(10):
            await self._settled.wait()  # the settings arrived, or the connection closed
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reading.cancel()
        self._writer.close()

    def send(self, data: bytes) -> None:
        """Send frames as they are."""
        self._writer.write(data)

    def call(self, stream: int, path: str, request: bytes | None = None) -> None:
        """Begin a call; with `request`, send that as its last message."""
        self._windows[stream] = self._initial
        self.send(frame(HEADERS, END_HEADERS, stream, headers(path)))
        if request is not None:
            self.send(frame(DATA, END_STREAM, stream, message(request)))

    async def data(self, stream: int, data: bytes) -> bool:
        """Send a part of a message as windows allow; False once the server has closed the connection."""
        while data and not self.closed.is_set():
            async with self._changed:
                await self._changed.wait_for(
                    lambda: self.closed.is_set() or min(self._connection, self._windows[stream]) > 0
                )
                size = max(0, min(len(data), _FRAME_BYTES, self._connection, self._windows[stream]))
                self._connection -= size
                self._windows[stream] -= size
            self.send(frame(DATA, 0, stream, data[:size]))
            with contextlib.suppress(ConnectionError):
                await self._writer.drain()
            data = data[size:]
        return not self.closed.is_set()

    async def _read(self) -> None:
        try:
            while True:
                head = await self._reader.readexactly(9)
                payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                await self._take(head[3], head[4], int.from_bytes(head[5:], "big"), payload)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.closed.set()
            self._settled.set()
            async with self._changed:
                self._changed.notify_all()

    async def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        async with self._changed:
            if kind == SETTINGS and not flags & ACK:
                self._set(payload)
                self.send(frame(SETTINGS, ACK, 0))
                self._settled.set()
            elif kind == PING and not flags & ACK:
                self.send(frame(PING, ACK, 0, payload))
            elif kind == WINDOW_UPDATE and stream == 0:
                self._connection += int.from_bytes(payload, "big")
            elif kind == WINDOW_UPDATE and stream in self._windows:
                self._windows[stream] += int.from_bytes(payload, "big")
            self._changed.notify_all()

    def _set(self, payload: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", payload):
            if name == _MAX_STREAMS:
                self.streams_max = value
            elif name == _WINDOW:
                for stream in self._windows:
                    self._windows[stream] += value - self._initial
                self._initial = value
