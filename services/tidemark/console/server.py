# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of the console, started and stopped as the servers of the other services."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from tidemark.console.connections import Connection
from tidemark.console.https import HttpsCertificate
from tidemark.model import ErrorCode, TidemarkError, invalid_config
from tidemark.runtime.host_port import HostPort, listening_socket
from tidemark.runtime.limits import connections_max

_KEEP_ALIVE_S: Final = 30
_CONNECTIONS_MAX: Final = 2_000
_BACKLOG: Final = 128


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Has no effect: the process has its own handlers of signals."""
        yield


class HttpServer:
    """Serves an application at one address.

    Args:
        address: to listen on; with port 0 the system chooses a port.
        certificate_file: PEM, for HTTPS; "": plain HTTP. A handshake uses the newest file.
        key_file: the key of the certificate.
        grace_s: time limit of running requests at a stop.
    """

    def __init__(
        self, app: ASGIApp, address: HostPort, *, certificate_file: str = "", key_file: str = "", grace_s: float = 10.0
    ) -> None:
        self._address = address
        self._config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="on",
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, round(grace_s)),
            http=type("_Connection", (Connection,), {"connections_max": min(_CONNECTIONS_MAX, connections_max())}),
            ssl_certfile=certificate_file or None,
            ssl_keyfile=key_file or None,
        )
        self._files = (certificate_file, key_file)
        self._server = _Server(self._config)
        self._socket: socket.socket | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port at which the server listens."""
        assert self._socket is not None, "not started"
        return int(self._socket.getsockname()[1])

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._server.server_state.connections)

    async def start(self) -> None:
        """Listen; returns when requests are served.

        Raises:
            TidemarkError: INVALID_CONFIG: the address or the certificate cannot be used.
        """
        self._load()
        self._socket = open_socket(self._address)
        self._serving = asyncio.create_task(self._server.serve([self._socket]), name="http server")
        while not self._server.started:
            await asyncio.wait({self._serving}, timeout=0.01)
            if self._serving.done():
                raise TidemarkError(ErrorCode.INTERNAL, "the HTTP server ended at its start; its log has the cause")

    async def stop(self) -> None:
        """Stop accepting, let running requests end, close. Idempotent."""
        self._server.should_exit = True
        if self._serving is not None:
            await asyncio.wait({self._serving})
        if self._socket is not None:
            self._socket.close()

    def _load(self) -> None:
        try:
            # First, since it checks the files, which uvicorn's own context reads too.
            secure = HttpsCertificate(*self._files).context() if self._config.is_ssl else None
            self._config.load()
            self._config.ssl = secure
        except OSError as error:
            raise invalid_config(
                "https.certificate.file", f"https.certificate.file and https.key.file cannot be used: {error}"
            ) from error


def open_socket(address: HostPort) -> socket.socket:
    """A socket whose connections send immediately; raises INVALID_CONFIG for an address that cannot be used."""
    try:
        listening = listening_socket(address.host, address.port, _BACKLOG)
    except OSError as error:
        raise invalid_config(
            "console.listeners", f"console.listeners is {address}: cannot listen there ({error.strerror or error})"
        ) from error
    # asyncio sets the option for sockets with a stated protocol only, which create_server does not state. Without the
    # option the body of a response waits 40 ms for the acknowledgement of its headers.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listening.setblocking(False)
    return listening
