# SPDX-License-Identifier: Apache-2.0
"""Counts the bytes of every call for its connection: messages that came whole, and answers that gRPC has not sent."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import grpc

from tidemark.core.security.service_rights import INTERNAL
from tidemark.model import TidemarkError
from tidemark.rpc.limits.connections import CALL_BYTES, Connection, Connections
from tidemark.rpc.limits.request_scan import COUNTED_FROM_BYTES, check_items, check_size
from tidemark.rpc.limits.sockets import Peer, plain_host


@functools.lru_cache(maxsize=4096)
def peer_of(text: str, port: int) -> Peer | None:
    """The peer that gRPC names: "ipv4:10.0.0.7:4711", "ipv6:%5B::1%5D:4711"; None for another kind."""
    kind, _, address = text.partition(":")
    host, _, number = address.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not number.isdigit():
        return None
    host = host.removeprefix("%5B").removesuffix("%5D").removeprefix("[").removesuffix("]")
    return Peer(port, plain_host(host.replace("%25", "%")), int(number))


class Refused(NamedTuple):
    """Takes the place of a unary request that is not decoded."""

    error: TidemarkError


def _check_of(path: str, decode: Any) -> Callable[..., None] | None:
    """Checks an encoded request of a client; None where the type is not known, or services call."""
    descriptor = getattr(getattr(decode, "__self__", None), "DESCRIPTOR", None)
    if descriptor is None or path in INTERNAL:
        return None

    def check(data: bytes, *, unary: bool) -> None:
        if unary:
            check_size(data)
        check_items(data, descriptor)

    return check


class Call:
    """The meter of one call. The request of a unary call comes before gRPC tells the peer."""

    __slots__ = ("_check", "_connection", "_connections", "_early_bytes", "_held_bytes", "_port")

    def __init__(
        self, connections: Connections, port: int, check: Callable[..., None] | None, header_bytes: int
    ) -> None:
        self._connections = connections
        self._port = port
        self._check = check
        self._connection: Connection | None = None
        self._early_bytes = header_bytes
        self._held_bytes = 0

    def began(self, context: Any) -> None:
        """The handler runs."""
        peer = peer_of(context.peer(), self._port)
        task = asyncio.current_task()
        if peer is None or task is None:
            return
        connection = self._connection = self._connections.of(peer)
        connection.calls += 1
        connection.took(self._early_bytes)
        self._connections.sends(connection, CALL_BYTES)
        task.add_done_callback(self._over)

    def decoder(self, handler: Any) -> Callable[[bytes], Any]:
        """The deserializer of the handler's requests, which returns `Refused` or, in a stream, raises the error."""
        decode, unary = handler.request_deserializer, not handler.request_streaming

        def decoded(data: bytes) -> Any:
            size_bytes = len(data)
            if self._connection is None:
                self._early_bytes += size_bytes
            else:
                self._connection.took(size_bytes)
            if size_bytes >= COUNTED_FROM_BYTES and self._check is not None:
                try:
                    self._check(data, unary=unary)
                except TidemarkError as error:
                    refused = error.with_traceback(None)  # the trace would keep the request until garbage is collected
                    del data
                    if unary:
                        return Refused(refused)
                    raise refused from None
            return data if decode is None else decode(data)

        return decoded

    def encoder(self, handler: Any) -> Callable[[Any], bytes]:
        """The serializer of the handler's answers."""
        encode = handler.response_serializer

        def encoded(message: Any) -> bytes:
            data: bytes = message if encode is None else encode(message)
            self.sends(len(data))
            return data

        return encoded

    def sends(self, size_bytes: int) -> None:
        """An answer is given to gRPC, or, with 0, the last one was sent."""
        if self._connection is not None and size_bytes != self._held_bytes:
            more_bytes, self._held_bytes = size_bytes - self._held_bytes, size_bytes
            self._connections.sends(self._connection, more_bytes)

    def _over(self, task: asyncio.Task[Any]) -> None:
        self.sends(0)
        if self._connection is not None:
            self._connection.calls -= 1
            self._connections.sends(self._connection, -CALL_BYTES)


class MeteredContext:
    """A call's context whose `write` tells when gRPC has sent the answer."""

    def __init__(self, context: Any, call: Call) -> None:
        self._context = context
        self._call = call
        self.read = context.read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def write(self, message: Any) -> None:
        """As of gRPC."""
        await self._context.write(message)
        self._call.sends(0)


class Metering:
    """Makes the meters of a port's calls.

    Args:
        connections: that it counts for.
        port: tells the number of the port.
    """

    def __init__(self, connections: Connections, port: Callable[[], int]) -> None:
        self._connections = connections
        self._port = port
        self._checks: dict[str, Callable[..., None] | None] = {}

    def call(self, details: grpc.HandlerCallDetails, handler: Any) -> Call:
        """The meter of a call with this handler."""
        path = details.method
        if path not in self._checks:
            self._checks[path] = _check_of(path, handler.request_deserializer)
        header_bytes = len(path) + sum(map(len, chain.from_iterable(details.invocation_metadata or ())))
        return Call(self._connections, self._port(), self._checks[path], header_bytes)
