# SPDX-License-Identifier: Apache-2.0
"""Counts the bytes of every call for its connection: messages that came whole, and answers that gRPC has not sent."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NamedTuple

import grpc

from tidemark.core.security.service_rights import INTERNAL
from tidemark.model import TidemarkError
from tidemark.rpc.errors import abort_with
from tidemark.rpc.limits.connections import Connection, Connections
from tidemark.rpc.limits.request_scan import COUNTED_FROM_BYTES, check_items, check_size
from tidemark.rpc.limits.sockets import Peer, plain_host


def peer_of(text: str, port: int) -> Peer | None:
    """The peer that gRPC names: "ipv4:10.0.0.7:4711", "ipv6:%5B::1%5D:4711"; None for another kind."""
    kind, _, address = text.partition(":")
    host, _, number = address.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not number.isdigit():
        return None
    host = host.removeprefix("%5B").removesuffix("%5D").removeprefix("[").removesuffix("]")
    return Peer(port, plain_host(host.replace("%25", "%")), int(number))


class _Refused(NamedTuple):
    """Takes the place of a request that is not decoded."""

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


class _Call:
    """The bytes of one call. The request of a unary call comes before gRPC tells the peer."""

    __slots__ = ("_connection", "_connections", "_early_bytes", "_held_bytes")

    def __init__(self, connections: Connections, header_bytes: int) -> None:
        self._connections = connections
        self._connection: Connection | None = None
        self._early_bytes = header_bytes
        self._held_bytes = 0

    def began(self, context: Any, port: int) -> None:
        """The handler runs."""
        peer = peer_of(context.peer(), port)
        task = asyncio.current_task()
        if peer is None or task is None:
            return
        connection = self._connection = self._connections.of(peer)
        connection.calls += 1
        connection.took(self._early_bytes)
        task.add_done_callback(self._over)

    def took(self, size_bytes: int) -> None:
        """A message came."""
        if self._connection is None:
            self._early_bytes += size_bytes
        else:
            self._connection.took(size_bytes)

    def sends(self, size_bytes: int) -> None:
        """An answer is given to gRPC, or, with 0, the last one was sent."""
        if self._connection is not None and size_bytes != self._held_bytes:
            more_bytes, self._held_bytes = size_bytes - self._held_bytes, size_bytes
            self._connections.sends(self._connection, more_bytes)

    def _over(self, task: asyncio.Task[Any]) -> None:
        self.sends(0)
        if self._connection is not None:
            self._connection.calls -= 1


class _Context:
    """A call's context whose `write` tells when gRPC has sent the answer."""

    def __init__(self, context: Any, call: _Call) -> None:
        self._context = context
        self._call = call
        self.read = context.read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def write(self, message: Any) -> None:
        """As of gRPC."""
        await self._context.write(message)
        self._call.sends(0)


class Metering(grpc.aio.ServerInterceptor):
    """The first interceptor of a server: it sees every call, refused ones too.

    Args:
        connections: that it counts for.
        port: tells the number of the server's port.
    """

    def __init__(self, connections: Connections, port: Callable[[], int]) -> None:
        self._connections = connections
        self._port = port

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the handler."""
        headers = handler_call_details.invocation_metadata or ()
        header_bytes = len(handler_call_details.method) + sum(len(name) + len(value) for name, value in headers)
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        call = _Call(self._connections, header_bytes)
        decode, encode = handler.request_deserializer, handler.response_serializer
        check = _check_of(handler_call_details.method, decode)

        def decoded(data: bytes) -> Any:
            call.took(len(data))
            if len(data) >= COUNTED_FROM_BYTES and check is not None:
                try:
                    check(data, unary=not handler.request_streaming)
                except TidemarkError as error:
                    if handler.request_streaming:
                        raise  # from `read`, in the handler
                    return _Refused(error)
            return data if decode is None else decode(data)

        def encoded(message: Any) -> bytes:
            data: bytes = message if encode is None else encode(message)
            call.sends(len(data))
            return data

        if handler.unary_unary is not None:
            one = self._single(handler.unary_unary, call)
            return grpc.unary_unary_rpc_method_handler(one, decoded, encoded)
        if handler.unary_stream is not None:
            many = self._streamed(handler.unary_stream, call)
            return grpc.unary_stream_rpc_method_handler(many, decoded, encoded)
        if handler.stream_stream is not None:
            both = self._streamed(handler.stream_stream, call)
            return grpc.stream_stream_rpc_method_handler(both, decoded, encoded)
        return grpc.stream_unary_rpc_method_handler(self._single(handler.stream_unary, call), decoded, encoded)

    def _single(self, inner: Any, call: _Call) -> Any:
        async def metered(request: Any, context: Any) -> Any:
            call.began(context, self._port())
            if type(request) is _Refused:
                await abort_with(context, request.error)
            return await inner(request, context)

        return metered if inspect.iscoroutinefunction(inner) else inner

    def _streamed(self, inner: Any, call: _Call) -> Any:
        async def metered(request: Any, context: Any) -> Any:
            call.began(context, self._port())
            if type(request) is _Refused:
                await abort_with(context, request.error)
            try:
                return await inner(request, _Context(context, call))
            except TidemarkError as error:  # of a request that is not decoded, if the handler knows no such errors
                await abort_with(context, error)

        async def generated(request: Any, context: Any) -> AsyncIterator[Any]:
            call.began(context, self._port())
            if type(request) is _Refused:
                await abort_with(context, request.error)
            async with aclosing(inner(request, _Context(context, call))) as responses:
                async for response in responses:
                    yield response
                    call.sends(0)

        if inspect.isasyncgenfunction(inner):
            return generated
        return metered if inspect.iscoroutinefunction(inner) else inner
