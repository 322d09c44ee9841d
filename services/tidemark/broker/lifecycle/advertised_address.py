# SPDX-License-Identifier: Apache-2.0
"""Check, before a broker registers, that its advertised address leads to this process.

The check calls the address itself: other components that call it must reach this process, not another broker. DNS may
know the name of a pod only some seconds after its start, so the check is repeated for a while. While the broker does
not accept its own certificate, the check waits for other TLS files: the address is not the mistake.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from typing import Any, Final, NamedTuple

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.channel import open_channel, process_identity
from tidemark.rpc.errors import from_rpc_error, is_untrusted
from tidemark.runtime.clock import timeout
from tidemark.runtime.host_port import HostPort

_ATTEMPT_S: Final = 3.0
_PAUSE_S: Final = 0.5
_LOG_S: Final = 5.0

_log = logging.getLogger(__name__)


class _UnreachedError(Exception):
    """The reason why an attempt did not reach this process."""


class _Cause(NamedTuple):
    """Why this broker cannot be reached at an address.

    Attributes:
        answered: another process answers.
        of_files: this process answers, and does not accept its own certificate.
    """

    text: str
    answered: bool = False
    of_files: bool = False


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
        cause = await _why_unreached(address, name, min(_ATTEMPT_S, timeout_ms / 1000))
        if cause is None:
            return
        why = cause.text
        if cause.of_files:
            deadline_s = loop.time() + timeout_ms / 1000
        elif loop.time() + _PAUSE_S >= deadline_s:
            raise TidemarkError(
                ErrorCode.ADVERTISED_ADDRESS_UNREACHABLE,
                f"advertised.listeners is {address}, where this broker cannot be reached: {why}. Tried for "
                f"{timeout_ms} ms. Correct the address, or set advertised.check.timeout.ms=0 if only other "
                "machines reach this broker there",
                {"config": "advertised.listeners"},
            )
        if loop.time() >= log_s:
            log_s = loop.time() + _LOG_S
            if cause.of_files:
                _log.error("waiting for other TLS files", extra={"address": address, "why": why})
            else:
                _log.info("this broker cannot be reached at its address yet", extra={"address": address, "why": why})
        await asyncio.sleep(_PAUSE_S)


async def _why_unreached(address: HostPort, name: str, timeout_s: float) -> _Cause | None:
    """The reason why this broker cannot be reached at the address; None if all answers are from this process."""
    try:
        hosts = await _resolve(address.host, timeout_s)
    except _UnreachedError as unreached:
        return _Cause(str(unreached))
    calls = (_why_not_here(HostPort(host, address.port), address.host, name, timeout_s) for host in hosts)
    causes = await asyncio.gather(*calls)
    strangers = [cause for cause in causes if cause is not None and cause.answered]
    if strangers:
        return strangers[0]
    return None if None in causes else causes[0]


async def _resolve(host: str, timeout_s: float) -> list[str]:
    loop = asyncio.get_running_loop()
    try:
        async with timeout(timeout_s):
            found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise _UnreachedError(f"DNS did not answer for {host}") from None
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise _UnreachedError(f"the name {host} cannot be resolved ({why})") from None
    return list(dict.fromkeys(str(where[0]) for *_, where in found))


async def _why_not_here(where: HostPort, host: str, name: str, timeout_s: float) -> _Cause | None:
    """The cause, or None when this process answers.

    Args:
        where: an IP address that `host` resolves to.
        host: the advertised name, which the certificate of the server must have.
        name: see `check_advertised`.
        timeout_s: time limit of the connection, and of the call, in seconds.
    """
    try:
        async with timeout(timeout_s):
            _, writer = await asyncio.open_connection(where.host, where.port)
            writer.close()
    except TimeoutError:
        return _Cause(f"{where} does not answer within {timeout_s:g} s")
    except OSError as error:
        return _Cause(f"{where}: {_reason(error)}")
    named = [] if process_identity() is None else [("grpc.ssl_target_name_override", host)]
    async with open_channel(str(where), options=[("grpc.enable_http_proxy", 0), *named]) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        try:
            await health.Check(health_pb2.HealthCheckRequest(service=name), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return _Cause(f"another process answers at {where}", answered=True)
            message = from_rpc_error(error, address=str(where)).message
            if is_untrusted(error) and await _presents_own_certificate(where, timeout_s):
                return _Cause(f"the broker does not accept its own certificate: {message}", of_files=True)
            return _Cause(f"{where} accepted the connection, but does not answer as a broker ({message})")
    return None


async def _presents_own_certificate(where: HostPort, timeout_s: float) -> bool:
    """Whether the server at this address has the certificate of this process, signed by any authority."""
    identity = process_identity()
    assert identity is not None, "a certificate was refused, so there is TLS"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        async with timeout(timeout_s):
            _, writer = await asyncio.open_connection(where.host, where.port, ssl=context)
            presented = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.close()
    except (OSError, TimeoutError):
        return False
    own = x509.load_pem_x509_certificate(identity.current().certificate)
    return bool(presented == own.public_bytes(Encoding.DER))


def _reason(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused, so no process listens there"
    return error.strerror or str(error)
