# SPDX-License-Identifier: Apache-2.0
"""Reserves ports on loopback, even while the process that uses a port is down."""

from __future__ import annotations

import socket
import sys
from typing import Final

from tidemark.model import ErrorCode, TidemarkError

HOST: Final = "127.0.0.1"


class HeldPorts:
    """Named ports, bound but not listening.

    On Linux a listener with SO_REUSEADDR, such as gRPC's and Prometheus', can bind the port of this socket. The kernel
    does not assign this port to a process that binds port 0. On other systems ports are only chosen.
    """

    def __init__(self) -> None:
        self._ports: dict[str, int] = {}
        self._sockets: list[socket.socket] = []

    def __getitem__(self, name: str) -> int:
        return self._ports[name]

    def take(self, name: str, port: int = 0) -> int:
        """Bind `port` (0: a free port) for `name`; raises INVALID_CONFIG if another process listens there."""
        if name in self._ports:
            return self._ports[name]
        if port and _answers(port):
            raise TidemarkError(
                ErrorCode.INVALID_CONFIG,
                f"port {port} for {name} is taken; stop the process that listens there, or use --free-ports",
            )
        holder = socket.socket()
        try:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((HOST, port))
        except OSError as error:
            holder.close()
            raise TidemarkError(ErrorCode.INVALID_CONFIG, f"port {port} for {name} is taken: {error}") from error
        self._ports[name] = int(holder.getsockname()[1])
        self._sockets.append(holder)
        return self._ports[name]

    def hand_over(self) -> None:
        """Call when all ports are chosen: closes the sockets on systems that refuse a second bind."""
        if sys.platform != "linux":
            self._close()

    def release(self) -> None:
        """Release all ports that are held."""
        self._close()
        self._ports.clear()

    def _close(self) -> None:
        for holder in self._sockets:
            holder.close()
        self._sockets.clear()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex((HOST, port)) == 0
