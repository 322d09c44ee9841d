# SPDX-License-Identifier: Apache-2.0
"""Moves kazoo to another server of the ensemble when one stops answering, before the session expires.

By itself kazoo takes any sent request as activity, so kazoo leaves a server without answers late or never. Then kazoo
waits a whole session timeout for each connection: one unreachable server ends sessions that two others would have kept.

Here the client leaves a silent server after a third of the session timeout. A connection attempt, or a DNS query with a
known earlier answer, times out after a sixth. The server that was tried last comes last.

A server that is starting may accept a connection and forget it (its `NIOServerCnxn` fails without a database). A client
with a session closes a silent connection after a third of the session timeout, even with a single server.

The lease (rule F1) lasts five sixths, which covers one silent server. That is a sixth until the next request, a little
more than a third without an answer, and a sixth for a failed connection.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

from kazoo.protocol.serialization import Connect

_log = logging.getLogger(__name__)

SILENCE_FRACTION: Final = 3
_CONNECT_FRACTION: Final = 6
_CONNECT_S_MIN: Final = 0.2
STEPS: Final = 4
"""Steps in which a silence is counted; after a suspension, a process counts only one step."""


class Servers:
    """Chooses the server of one kazoo client. `leave` is called on the event loop; all other methods run on kazoo's
    thread.

    Attributes:
        negotiated_timeout_ms: granted by the last server, known before kazoo reports the connection; 0 before.
    """

    def __init__(self, client: Any, session_timeout_ms: int) -> None:
        self.negotiated_timeout_ms = 0
        self._client = client
        self._connection = connection = client._connection
        self._connect_s = max(session_timeout_ms / 1000 / _CONNECT_FRACTION, _CONNECT_S_MIN)
        self._answer_s = session_timeout_ms / 1000 / SILENCE_FRACTION
        self._addresses: list[tuple[str, str, int]] = []
        self._tried: tuple[str, int] | None = None
        self._expand: Callable[[], list[tuple[str, str, int]]] = connection._expand_client_hosts
        self._invoke: Callable[..., Any] = connection._invoke
        self._connect: Callable[..., Any] = connection._connect
        self._open: Callable[..., Any] = client.handler.create_connection
        connection._expand_client_hosts = self._in_order
        connection._invoke = self._asked
        connection._connect = self._noted
        client.handler.create_connection = self._opened

    def leave(self) -> None:
        """Close the connection if another server is configured; kazoo then connects to the next server."""
        if len(self._addresses) < 2 or self._tried is None:
            return
        _log.warning("a ZooKeeper server is silent; trying another", extra={"server": "{}:{}".format(*self._tried)})
        with contextlib.suppress(OSError, AttributeError):  # no socket, or a closed socket
            self._connection._socket.shutdown(socket.SHUT_RDWR)

    def _in_order(self) -> list[tuple[str, str, int]]:
        found = self._resolved()
        hosts = {address[0] for address in found}
        found += [known for known in self._addresses if known[0] not in hosts]
        self._addresses = sorted(found, key=lambda address: address[1:] == self._tried)
        return list(self._addresses)

    def _resolved(self) -> list[tuple[str, str, int]]:
        """Present addresses; while a DNS server does not answer, the earlier addresses stay in use."""
        found: list[tuple[str, str, int]] = []
        asking = threading.Thread(target=lambda: found.extend(self._expand()), name="zookeeper names", daemon=True)
        asking.start()
        asking.join(self._connect_s if self._addresses else None)
        return [] if asking.is_alive() else found

    def _noted(self, host: str, hostip: str, port: int) -> Any:
        self._tried = (hostip, port)
        return self._connect(host, hostip, port)

    def _opened(self, *arguments: Any, timeout: float, **named: Any) -> Any:
        return self._open(*arguments, timeout=min(timeout, self._connect_s), **named)

    def _asked(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        if not isinstance(request, Connect):
            return self._invoke(timeout, request, xid)
        hurry = len(self._addresses) > 1 or request.session_id
        answer = self._invoke(min(timeout, self._answer_s) if hurry else timeout, request, xid)
        self.negotiated_timeout_ms = answer[0].time_out
        return answer
