# SPDX-License-Identifier: Apache-2.0
"""Counts the bytes of every call for its connection: messages that arrived completely, and answers that gRPC has not
sent.

A call begins with its headers: gRPC gives each call here as a stream, and `Call` reads a single request itself.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from itertools import chain
from typing import Any, Final, NamedTuple, NoReturn

import grpc
from google.protobuf.message import DecodeError

from tidemark.core.security.service_rights import INTERNAL
from tidemark.model import TidemarkError, invalid_request
from tidemark.rpc.limits.connections import Connection, Connections
from tidemark.rpc.limits.request_scan import COUNTED_FROM_BYTES, check_items, check_size
from tidemark.rpc.limits.sockets import Peer, plain_host

_REFUSAL_WAIT_S_MAX: Final = 60.0
_DECODED: Final = 10
_DECODED_BYTES_MAX: Final = 4 << 20
"""Memory of the decoded names of a call's only request, as a multiple of its bytes, and at most; a call may hold them
for as long as it runs."""


@functools.lru_cache(maxsize=4096)
def peer_of(text: str, port: int) -> Peer | None:
    """The peer that gRPC names: "ipv4:10.0.0.7:4711", "ipv6:%5B::1%5D:4711"; None for another kind."""
    kind, _, address = text.partition(":")
    host, _, number = address.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not number.isdigit():
        return None
    host = host.removeprefix("%5B").removesuffix("%5D").removeprefix("[").removesuffix("]")
    return Peer(port, plain_host(host.replace("%25", "%")), int(number))


class _Unchecked(NamedTuple):
    """Takes the place of a request in a stream that is large, until its items are counted, or malformed."""

    data: bytes


class Call:
    """The meter of one call, and the reader of its requests.

    Args:
        connections: the connections for which the meter counts.
        port: number of the port.
        handler: handler of the call.
        descriptor: type of the requests of a client; None if it is unknown, or if services call.
        header_bytes: bytes of the headers of the call.
    """

    __slots__ = (
        "_answered", "_connection", "_connections", "_decode", "_descriptor", "_encode", "_header_bytes",
        "_held_bytes", "_port", "_request_bytes",
    )  # fmt: skip

    def __init__(
        self, connections: Connections, port: int, handler: Any, descriptor: Any | None, header_bytes: int
    ) -> None:
        self._connections = connections
        self._port = port
        self._decode = handler.request_deserializer
        self._encode = handler.response_serializer
        self._descriptor = descriptor
        self._header_bytes = header_bytes
        self._connection: Connection | None = None
        self._answered = False
        self._held_bytes = 0
        self._request_bytes = 0

    def began(self, context: Any) -> None:
        """Note that the handler runs."""
        peer = peer_of(context.peer(), self._port)
        task = asyncio.current_task()
        if peer is None or task is None:
            return
        connection = self._connection = self._connections.of(peer)
        self._connections.call_began(connection, self._header_bytes)
        task.add_done_callback(self._over)

    async def request(self, context: Any) -> Any:
        """The only request; raises INVALID_REQUEST if the request is too long, has too many items or cannot be decoded.

        Cancelled for a call that ended before its request arrived.
        """
        data = await context.read()
        if data is grpc.aio.EOF:
            raise asyncio.CancelledError
        if self._connection is not None:
            self._connection.took(len(data))
        self._request_bytes = 2 * len(data) + min(_DECODED * len(data), _DECODED_BYTES_MAX)
        self.sends(0)
        if self._descriptor is not None and len(data) >= COUNTED_FROM_BYTES:
            refused = await _refusal(data, self._descriptor, unary=True)
            if refused is not None:
                del data
                await self._refuse(refused)
        return self._decoded(data)

    def decoder(self) -> Callable[[bytes], Any]:
        """The deserializer of a stream of requests, which `checked` completes."""
        decode, is_checked = self._decode, self._descriptor is not None

        def decoded(data: bytes) -> Any:
            size_bytes = len(data)
            if self._connection is not None:
                self._connection.took(size_bytes)
            if size_bytes >= COUNTED_FROM_BYTES and is_checked:
                return _Unchecked(data)
            try:
                return data if decode is None else decode(data)
            except DecodeError:  # `checked` refuses the request
                return _Unchecked(data)

        return decoded

    async def checked(self, request: _Unchecked) -> Any:
        """A request of a stream as its handler takes it; raises INVALID_REQUEST as `request` does."""
        refused = None if self._descriptor is None else await _refusal(request.data, self._descriptor, unary=False)
        if refused is not None:
            del request
            await self._refuse(refused)
        return self._decoded(request.data)

    def _decoded(self, data: bytes) -> Any:
        try:
            return data if self._decode is None else self._decode(data)
        except DecodeError as error:
            raise invalid_request(f"the request is malformed: {error}") from None

    async def _refuse(self, error: TidemarkError) -> NoReturn:
        if self._connection is not None and (early_s := self._connections.refusal_early_s(self._connection)):
            await asyncio.sleep(min(early_s, _REFUSAL_WAIT_S_MAX))
        raise error

    def encode(self, message: Any) -> bytes:
        """Serialize an answer, whose bytes count as held for the peer."""
        encode = self._encode
        data: bytes = message if encode is None else encode(message)
        self._answered = True
        self.sends(len(data))
        return data

    def sends(self, size_bytes: int) -> None:
        """Note that an answer is given to gRPC, or, with 0, that gRPC has sent the last answer."""
        size_bytes += self._request_bytes
        if self._connection is not None and size_bytes != self._held_bytes:
            more_bytes, self._held_bytes = size_bytes - self._held_bytes, size_bytes
            self._connections.sends(self._connection, more_bytes)

    def abandoned(self) -> None:
        """Note that the client ended the call."""
        if self._connection is not None and not self._answered:
            self._connections.abandoned(self._connection)

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._request_bytes = 0
        self.sends(0)
        if self._connection is not None:
            self._connections.call_is_over(self._connection)


async def _refusal(data: bytes, descriptor: Any, *, unary: bool) -> TidemarkError | None:
    """The error of a request that is too long, or has too many items; without a traceback, which would keep the
    request in memory.
    """
    try:
        if unary:
            check_size(data)
        await check_items(data, descriptor)
    except TidemarkError as error:
        return error.with_traceback(None)
    return None


class MeteredContext:
    """A call's context whose `read` checks requests, and whose `write` notes when gRPC has sent the answer."""

    def __init__(self, context: Any, call: Call) -> None:
        self._context = context
        self._call = call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def read(self) -> Any:
        """Receive a message, as in gRPC; raises INVALID_REQUEST for a request that names too much."""
        request = await self._context.read()
        return await self._call.checked(request) if type(request) is _Unchecked else request

    async def write(self, message: Any) -> None:
        """Send a message, as in gRPC, which gets its bytes: gRPC would hold the message, too, until it is sent."""
        data = self._call.encode(message)
        del message
        await self._context.write(data)
        self._call.sends(0)


class CheckedRequests:
    """The requests of a stream, checked as by `MeteredContext.read`."""

    def __init__(self, context: Any, call: Call) -> None:
        self._read = context.read
        self._call = call

    def __aiter__(self) -> CheckedRequests:
        return self

    async def __anext__(self) -> Any:
        request = await self._read()
        if request is grpc.aio.EOF:
            raise StopAsyncIteration
        return await self._call.checked(request) if type(request) is _Unchecked else request


class Metering:
    """Makes the meters of a port's calls.

    Args:
        connections: the connections for which the meters count.
        port: returns the number of the port.
    """

    def __init__(self, connections: Connections, port: Callable[[], int]) -> None:
        self._connections = connections
        self._port = port
        self._descriptors: dict[str, Any | None] = {}

    def call(self, details: grpc.HandlerCallDetails, handler: Any) -> Call:
        """The meter of a call with this handler."""
        path = details.method
        if path not in self._descriptors:
            decode = handler.request_deserializer
            known = None if path in INTERNAL else getattr(getattr(decode, "__self__", None), "DESCRIPTOR", None)
            self._descriptors[path] = known
        header_bytes = len(path) + sum(map(len, chain.from_iterable(details.invocation_metadata or ())))
        return Call(self._connections, self._port(), handler, self._descriptors[path], header_bytes)
