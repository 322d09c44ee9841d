# SPDX-License-Identifier: Apache-2.0
"""Check, before a broker registers, that its advertised address leads to this process.

The check calls the address itself: other components that call it must reach this process, not another broker. DNS may
know the name of a pod only some seconds after its start, so the check is repeated for a while.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.channel import open_channel, process_identity
from tidemark.rpc.errors import from_rpc_error
from tidemark.runtime.host_port import HostPort

_ATTEMPT_S: Final = 3.0
_PAUSE_S: Final = 0.5
_LOG_S: Final = 5.0

_log = logging.getLogger(__name__)


class _UnreachedError(Exception):
    """The reason why an attempt did not reach this process."""


async def check_advertised(address: HostPort, name: str, timeout_ms: int) -> None:
    """Return when a call to `address` reached this process.

    Args:
        address: the advertised address, with its port.
        name: a health service name that only this process knows (`GrpcServer.answer_to`).
        timeout_ms: how long the check is repeated; 0 skips the check.

    Raises:
        TidemarkError: ADVERTISED_ADDRESS_UNREACHABLE, with the cause of the last attempt.
    """
    if timeout_ms == 0:
        return
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_ms / 1000
    log_s = loop.time()
    while True:
        why = await _why_unreached(address, name, min(_ATTEMPT_S, timeout_ms / 1000))
        if why is None:
            return
        if loop.time() + _PAUSE_S >= deadline_s:
            raise TidemarkError(
                ErrorCode.ADVERTISED_ADDRESS_UNREACHABLE,
                f"advertised.listeners is {address}, where this broker cannot be reached: {why}. Tried for "
                f"{timeout_ms} ms. Correct the address, or set advertised.check.timeout.ms=0 if it leads to this "
                "broker only from other machines",
                {"config": "advertised.listeners"},
            )
        if loop.time() >= log_s:
            log_s = loop.time() + _LOG_S
            _log.info("the advertised address does not lead here yet", extra={"address": address, "why": why})
        await asyncio.sleep(_PAUSE_S)


async def _why_unreached(address: HostPort, name: str, timeout_s: float) -> str | None:
    """The reason why the address does not lead here; None if at least one answer came, and all answers came from this
    process.
    """
    try:
        hosts = await _resolve(address.host, timeout_s)
    except _UnreachedError as unreached:
        return str(unreached)
    calls = (_why_not_here(HostPort(host, address.port), address.host, name, timeout_s) for host in hosts)
    causes = await asyncio.gather(*calls)
    strangers = [cause for cause, answered in causes if answered and cause is not None]
    if strangers:
        return strangers[0]
    return None if any(cause is None for cause, _ in causes) else causes[0][0]


async def _resolve(host: str, timeout_s: float) -> list[str]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise _UnreachedError(f"DNS did not answer for {host}") from None
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise _UnreachedError(f"the name {host} cannot be resolved ({why})") from None
    return list(dict.fromkeys(str(where[0]) for *_, where in found))


async def _why_not_here(where: HostPort, host: str, name: str, timeout_s: float) -> tuple[str | None, bool]:
    """The cause, or None when this process answers; and whether any process answers.

    Args:
        where: an IP address that `host` resolves to.
        host: the advertised name, which the certificate of the server must have.
        name: see `check_advertised`.
        timeout_s: time limit of the connection, and of the call, in seconds.
    """
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(where.host, where.port)
            writer.close()
    except TimeoutError:
        return f"{where} does not answer within {timeout_s:g} s", False
    except OSError as error:
        return f"{where}: {_reason(error)}", False
    named = [] if process_identity() is None else [("grpc.ssl_target_name_override", host)]
    async with open_channel(str(where), options=[("grpc.enable_http_proxy", 0), *named]) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        try:
            await health.Check(health_pb2.HealthCheckRequest(service=name), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return f"another process answers at {where}", True
            cause = from_rpc_error(error, address=str(where))
            return f"{where} accepted the connection, but does not answer as a broker ({cause.message})", False
    return None, True


def _reason(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused, so no process listens there"
    return error.strerror or str(error)
