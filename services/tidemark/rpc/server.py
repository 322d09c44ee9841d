"""A grpc.aio server with health, reflection and one place where refusals become status."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.channel import LIMITS, WINDOW
from tidemark.rpc.errors import abort_with

_log = logging.getLogger(__name__)

PING_ACCEPTED_MS = 5_000
"""A client that pings an idle connection more often than that is cut off; ours do every 10 s."""
_OPTIONS: tuple[tuple[str, int], ...] = (
    *LIMITS,
    *WINDOW,
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.min_ping_interval_without_data_ms", PING_ACCEPTED_MS),
    ("grpc.keepalive_permit_without_calls", 1),
)


UNBOUNDED_CALL_S = 60.0
"""What a unary call may take whose caller gave no deadline: nobody waits for ever (rule K3)."""


class Service(NamedTuple):
    """A servicer, how it is added to a server, and its full name ("tidemark.v1.BrokerService")."""

    add: Callable[[Any, grpc.aio.Server], None]
    servicer: object
    full_name: str


class GrpcServer:
    """Health is NOT_SERVING from before the port opens until `set_serving(True)`."""

    def __init__(self, host: str, port: int, services: Sequence[Service]) -> None:
        self._services = tuple(services)
        self._server = grpc.aio.server(interceptors=[_Refusals()], options=list(_OPTIONS))
        self._health = health_aio.HealthServicer()
        for service in self._services:
            service.add(service.servicer, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (*(service.full_name for service in self._services), reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        try:
            self.port = self._server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise TidemarkError(
                ErrorCode.INVALID_CONFIG,
                f"listeners is {host}:{port}: cannot listen there; is the port taken, is the host this machine?",
                {"config": "listeners"},
            ) from error

    async def start(self) -> None:
        """Open the port, NOT_SERVING."""
        await self.set_serving(False)
        await self._server.start()

    async def set_serving(self, serving: bool) -> None:
        """Tell every health watcher."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *(service.full_name for service in self._services)):
            await self._health.set(name, status)

    async def stop(self, grace_s: float) -> None:
        """NOT_SERVING, no new calls, calls under way get `grace_s` seconds."""
        await self.set_serving(False)
        await self._server.stop(grace_s)


def make_server(host: str, port: int, services: Sequence[Service]) -> GrpcServer:
    """A server bound to host:port (0: a free one, told by `.port`), not yet started; raises INVALID_CONFIG."""
    return GrpcServer(host, port, services)


class _Refusals(grpc.aio.ServerInterceptor):
    """Calls end with the refusal their handler raised; what nobody foresaw in a unary one is logged, and INTERNAL."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming:
            return handler
        if handler.response_streaming:
            return _refusing_stream(handler)
        inner = handler.unary_unary
        if not inspect.iscoroutinefunction(inner):
            return handler

        async def refusing(request: Any, context: Any) -> Any:
            bound_s = UNBOUNDED_CALL_S if context.time_remaining() is None else None
            try:
                async with asyncio.timeout(bound_s):
                    return await inner(request, context)
            except TidemarkError as error:
                await abort_with(context, error)
            except TimeoutError:
                sentence = f"{handler_call_details.method} was not answered in time; try again, with a deadline"
                await abort_with(context, TidemarkError(ErrorCode.REQUEST_TIMED_OUT, sentence))
            except grpc.aio.AbortError:
                raise
            except Exception as error:  # noqa: BLE001 - the last resort of every call
                _log.exception("unexpected", extra={"method": handler_call_details.method})
                await abort_with(context, TidemarkError(ErrorCode.INTERNAL, f"{type(error).__name__}: {error}"))

        return grpc.unary_unary_rpc_method_handler(
            refusing,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


def _refusing_stream(handler: Any) -> Any:
    """A call that is answered by a stream which its handler generates; deadlines of streams are their own affair."""
    inner = handler.unary_stream
    if not inspect.isasyncgenfunction(inner):
        return handler

    async def refusing(request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            async with contextlib.aclosing(inner(request, context)) as responses:
                async for response in responses:
                    yield response
        except TidemarkError as error:
            await abort_with(context, error)

    return grpc.unary_stream_rpc_method_handler(
        refusing,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )
