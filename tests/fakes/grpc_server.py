# SPDX-License-Identifier: Apache-2.0
"""A gRPC server with one listener. Services have one for each listener of their settings (`rpc.security.service`)."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from tidemark.core.security.listeners import Listener
from tidemark.rpc.limits.connections import DEFAULT_LIMITS, ConnectionLimits
from tidemark.rpc.security.files import TlsIdentity
from tidemark.rpc.security.listeners import ListenerPort
from tidemark.rpc.server import GrpcServer, Service
from tidemark.runtime.host_port import HostPort


def make_server(
    host: str,
    port: int,
    services: Sequence[Service],
    later: Sequence[str] = (),
    identity: TlsIdentity | None = None,
    gate: grpc.aio.ServerInterceptor | None = None,
    limits: ConnectionLimits = DEFAULT_LIMITS,
) -> GrpcServer:
    """A server at host:port.

    Args:
        host: address of this machine.
        port: 0: a free port, stated by `.port`.
        services: as of `GrpcServer`, `later`, `gate` and `limits` too.
        identity: the TLS files; None: plain text.
    """
    one = ListenerPort(Listener.ONLY, HostPort(host, port), identity)
    return GrpcServer([one], services, later, gate=gate, limits=limits)
