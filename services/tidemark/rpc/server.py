# SPDX-License-Identifier: Apache-2.0
"""A grpc.aio server with health, reflection, and one place where errors become status.

Health: `""` and "liveness" are SERVING from the opening of the port on. Both depend on the event loop only, never on
ZooKeeper. "readiness" is the condition that a rolling restart waits for. The full name of each service states whether
its calls are served.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, cast

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tidemark.core.security.listeners import INTERNAL_SERVICES, Listener
from tidemark.model import ErrorCode, TidemarkError, invalid_config
from tidemark.rpc.channel import LIMITS, WINDOW
from tidemark.rpc.errors import Continuation, abort_with, handler_refusing
from tidemark.rpc.health import Health
from tidemark.rpc.limits.answer_size import fit
from tidemark.rpc.limits.connections import DEFAULT_LIMITS, ConnectionLimits, Connections
from tidemark.rpc.limits.metering import Call, CheckedRequests, MeteredContext, Metering
from tidemark.rpc.limits.watch import ConnectionWatch
from tidemark.rpc.reflection import add_reflection
from tidemark.rpc.security.listeners import ListenerPort
from tidemark.runtime.clock import timeout
from tidemark.runtime.configuration.key import UNLIMITED
from tidemark.runtime.host_port import HostPort
from tidemark.runtime.limits import connections_max
from tidemark.runtime.metrics import METRICS

_log = logging.getLogger(__name__)

LIVENESS: Final = "liveness"
READINESS: Final = "readiness"
_HEALTH: Final = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

PING_ACCEPTED_MS = 2_000
"""A client that pings an idle connection more often is disconnected. Clients ping every `channel.KEEPALIVE_MS`. Clients
of later versions may ping more often, but not below 5 s while older servers exist that do not accept it."""
HANDSHAKE_MS = 10_000
"""Time limit of a new connection for its handshake: TLS, and HTTP/2's first frame. gRPC's default is two minutes."""
_OF_SERVICES: Final = (Listener.ONLY, Listener.INTERNAL, Listener.PLAIN)
"""Listeners that serve the calls between services of the cluster."""
_OPTIONS: tuple[tuple[str, int], ...] = (
    *LIMITS,
    *WINDOW,
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.min_ping_interval_without_data_ms", PING_ACCEPTED_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
    ("grpc.compression_enabled_algorithms_bitset", 1),
)
"""The last option: no compression of requests. gRPC would expand some kilobytes into 16 MiB, and received bytes
could not be compared with the bytes of messages.
"""


_SIZES: Final = dict((*LIMITS, *WINDOW))
_PROBES: Final = (
    *(one for one in _OPTIONS if one[0] not in _SIZES),
    ("grpc.max_receive_message_length", 4 << 10),
    ("grpc.max_allowed_incoming_connections", 100),
    ("grpc.max_concurrent_streams", 10),
    ("grpc.max_connection_idle_ms", 60_000),
)
"""Options of the port for probes, which has no other limits: a message has a name of a service."""
UNBOUNDED_CALL_S = 60.0
"""Time limit of a unary call whose caller set no deadline (rule K3)."""


_PLAIN_BESIDE_TLS: Final = METRICS.gauge(
    "plain_beside_tls",
    "1 while both a listener with plain text and one with TLS are open",
)


def _is_no_cut_stream(record: logging.LogRecord) -> bool:
    """A log filter: drops the traceback that gRPC logs if a connection ends while a response is written."""
    return record.exc_info is None or type(record.exc_info[1]).__name__ != "ExecuteBatchError"


logging.getLogger("grpc._cython.cygrpc").addFilter(_is_no_cut_stream)


class Service(NamedTuple):
    """A servicer, the function that adds it to a server, and its full name ("tidemark.v1.BrokerService")."""

    add: Callable[[Any, grpc.aio.Server], None]
    servicer: object
    full_name: str


class GrpcServer:
    """Alive once its ports are open; its services are NOT_SERVING until `set_serving(True)`.

    Args:
        ports: the ports; the first port serves all calls. Other ports serve no internal calls of the cluster.
        services: the services from the start on; empty if `later` names them.
        later: full names of the services that `add` brings after the start. Until then every call except health's and
            reflection's is refused with BROKER_NOT_AVAILABLE.
        health: address of a plain-text port that serves only the health service; None: no such port.
        gate: checks the rights of every caller; None: authorization is off.
        limits: limits of connections, streams and bytes in flight.
        receiver: refuses calls for other services; None: every call is accepted.
    """

    def __init__(
        self,
        ports: Sequence[ListenerPort],
        services: Sequence[Service],
        later: Sequence[str] = (),
        health: HostPort | None = None,
        gate: grpc.aio.ServerInterceptor | None = None,
        limits: ConnectionLimits = DEFAULT_LIMITS,
        receiver: grpc.aio.ServerInterceptor | None = None,
    ) -> None:
        self._names = (*(service.full_name for service in services), *later)
        options = [*_OPTIONS, *_limit_options(limits, len(ports))]
        self._health = Health()
        self._watch = ConnectionWatch(limits, lambda: frozenset(self.ports.values()))
        last = [one for one in (gate, receiver) if one is not None]
        self._open = [_Open(port, self._names, self._health, options, last, self._watch.connections) for port in ports]
        self._probed = None if health is None else grpc.aio.server(options=_PROBES)
        self._probed_at = health
        if self._probed is not None:
            health_pb2_grpc.add_HealthServicer_to_server(self._health, self._probed)
        if services:
            self.add(services)

    @property
    def port(self) -> int:
        """Number of the first port, from `start` on even if 0 was requested."""
        return self._open[0].number

    @property
    def ports(self) -> dict[Listener, int]:
        """Number of each port, as `port`."""
        return {one.port.listener: one.number for one in self._open}

    async def start(self) -> None:
        """Open the ports: alive, neither ready nor serving; raises INVALID_CONFIG."""
        for one in self._open:
            with _named("listeners", str(one.port.address)):
                one.number = one.port.bind(one.server)
        if self._probed is not None:
            with _named("health.listeners", str(self._probed_at)):
                self._probed.add_insecure_port(str(self._probed_at))
            await self._probed.start()
        await self.set_serving(False)
        for name in ("", LIVENESS):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        secure = [one.port.identity is not None for one in self._open]
        _PLAIN_BESIDE_TLS.set(any(secure) and not all(secure))
        for one in self._open:
            await one.server.start()
        self._watch.start()

    def add(self, services: Sequence[Service]) -> None:
        """Add all services that `later` named, together."""
        for one in self._open:
            one.services.add([service for service in services if one.has(service.full_name)])

    async def answer_to(self, name: str) -> None:
        """Report SERVING for this name too: a caller that knows the name has reached exactly this process."""
        self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def set_serving(self, serving: bool, *, ready: bool | None = None) -> None:
        """Report the state to all health watchers, and the readiness too.

        Args:
            ready: the readiness, if it differs from `serving`.
        """
        for name in self._names:
            self._health.set(name, _status(serving))
        await self.set_ready(serving if ready is None else ready)

    async def set_ready(self, ready: bool) -> None:
        """Report the readiness to its watchers."""
        self._health.set(READINESS, _status(ready))

    async def stop(self, grace_s: float) -> None:
        """NOT_SERVING, no new calls; running calls get `grace_s` seconds."""
        await self.set_serving(False)
        self._watch.ports_close()
        await asyncio.gather(*(one.server.stop(grace_s) for one in self._open))
        if self._probed is not None:
            await self._probed.stop(0)
        await self._watch.stop()


@contextlib.contextmanager
def _named(setting: str, address: str) -> Iterator[None]:
    """Report a port that cannot be opened by the name of its setting."""
    try:
        yield
    except RuntimeError as error:
        raise invalid_config(
            setting, f"{setting} is {address}: cannot listen there; is the port taken, is the host this machine?"
        ) from error


def _status(serving: bool) -> Any:
    return health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING


def _limit_options(limits: ConnectionLimits, ports: int) -> list[tuple[str, int]]:
    """gRPC's part of the limits. gRPC counts the connections of each port, so each port has its share.

    gRPC's protection from overload is off. That protection also counts calls that have ended for the client, and
    refuses calls of a client within the limit.
    """
    connections = limits.connections or connections_max()
    return [
        ("grpc.max_allowed_incoming_connections", max(1, connections // ports)),
        ("grpc.max_concurrent_streams", limits.streams),
        ("grpc.http.overload_protection", 0),
        *([] if limits.idle_ms == UNLIMITED else [("grpc.max_connection_idle_ms", limits.idle_ms)]),
    ]


class _Open:
    """A port with its own server of gRPC."""

    def __init__(
        self,
        port: ListenerPort,
        names: Sequence[str],
        health: Health,
        options: Sequence[tuple[str, int]],
        last: Sequence[grpc.aio.ServerInterceptor],
        connections: Connections,
    ) -> None:
        self.port = port
        self.number = port.address.port
        self.services = _Services()
        self.server = grpc.aio.server(
            interceptors=[
                _Refusals(Metering(connections, lambda: self.number)),
                *port.interceptors(),
                *last,
            ],
            options=[*options, *port.options()],
        )
        health_pb2_grpc.add_HealthServicer_to_server(health, self.server)
        add_reflection((*filter(self.has, names), _HEALTH), self.server)
        self.server.add_generic_rpc_handlers((self.services,))

    def has(self, name: str) -> bool:
        """Whether this port serves the service."""
        return self.port.listener in _OF_SERVICES or name not in INTERNAL_SERVICES


class _Services(grpc.GenericRpcHandler):
    """Methods by path. Servicers are added as to a server, even after the start."""

    def __init__(self) -> None:
        self._generic: list[grpc.GenericRpcHandler] = []
        self._open = False

    def add(self, services: Sequence[Service]) -> None:
        for service in services:
            service.add(service.servicer, cast(grpc.aio.Server, self))
        self._open = True

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self._generic.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """Has no effect: the generic handlers are the same."""

    def service(self, call: grpc.HandlerCallDetails) -> Any:
        if not self._open:
            return _STARTING
        for handlers in self._generic:
            found = handlers.service(call)
            if found is not None:
                return found
        return None


_STOPPED: Final = "Server already stopped."
"""gRPC's error for the request of a call that arrived while the server stopped."""

_STARTING: Final = handler_refusing(
    TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "this service is starting; try again")
)
"""Handler of calls before the start is complete."""


class _Refusals(grpc.aio.ServerInterceptor):
    """Ends calls with the error of their handler; an unexpected error of a unary call is logged, and sent as
    INTERNAL. Counts the bytes of each call."""

    def __init__(self, metering: Metering) -> None:
        self._metering = metering

    async def intercept_service(self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        call = self._metering.call(handler_call_details, handler)
        if handler.stream_stream or handler.unary_stream:
            return _refusing_stream(handler, call)
        inner = handler.unary_unary
        if not inspect.iscoroutinefunction(inner):
            return handler

        async def refusing(_: object, context: Any) -> Any:
            call.began(context)
            try:
                async with timeout(UNBOUNDED_CALL_S) as bound:
                    request = await call.request(context)
                    if context.time_remaining() is not None:
                        bound.reschedule(None)
                    response = await inner(request, context)
                    await fit(response)
                    return call.encode(response)  # gRPC would hold the response, too, until it is sent
            except TidemarkError as error:
                await abort_with(context, error)
            except TimeoutError:
                sentence = f"{handler_call_details.method} was not answered in time; try again, with a deadline"
                await abort_with(context, TidemarkError(ErrorCode.REQUEST_TIMED_OUT, sentence))
            except asyncio.CancelledError:
                call.abandoned()
                raise
            except grpc.aio.AbortError:
                raise
            except Exception as error:  # noqa: BLE001 - the last handler of every call
                if isinstance(error, grpc.aio.BaseError) and str(error) == _STOPPED:
                    call.abandoned()
                    raise asyncio.CancelledError from None
                _log.exception("a call failed with an unexpected error", extra={"method": handler_call_details.method})
                await abort_with(context, TidemarkError(ErrorCode.INTERNAL, f"{type(error).__name__}: {error}"))

        return grpc.stream_unary_rpc_method_handler(refusing)


def _refusing_stream(handler: Any, call: Call) -> Any:
    """The handler of a call with a stream of requests or answers; streams set their own deadlines."""
    inner, of_one = handler.stream_stream or handler.unary_stream, not handler.request_streaming

    async def generated(_: object, context: Any) -> None:
        call.began(context)
        metered = MeteredContext(context, call)
        try:
            request = await call.request(context) if of_one else CheckedRequests(context, call)
            async with contextlib.aclosing(inner(request, metered)) as responses:
                async for response in responses:
                    await metered.write(response)
                    del response  # gRPC would hold the response of a generator until the next one
        except TidemarkError as error:
            await abort_with(context, error)
        except asyncio.CancelledError:
            call.abandoned()
            raise

    async def written(_: object, context: Any) -> Any:
        call.began(context)
        metered = MeteredContext(context, call)
        try:
            return await inner(await call.request(context) if of_one else CheckedRequests(context, call), metered)
        except TidemarkError as error:
            await abort_with(context, error)
        except asyncio.CancelledError:
            call.abandoned()
            raise

    if inspect.isasyncgenfunction(inner):
        refusing: Any = generated
    elif inspect.iscoroutinefunction(inner):
        refusing = written
    else:
        return handler
    return grpc.stream_stream_rpc_method_handler(refusing, None if of_one else call.decoder())
