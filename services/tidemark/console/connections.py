# SPDX-License-Identifier: Apache-2.0
"""Connections of browsers: one that waits for its client for very long ends, and makes room for others at the limit."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import sys
import termios
from collections import Counter
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

CLIENT_S: Final = 30.0
"""Time in which a client must send a whole request, and take a part of the response."""


class Connection(H11Protocol):
    """A connection of the server. Subclasses set the limit.

    Attributes:
        connections_max: the largest number of connections of the server.
        host: address of the client.
        waits_since_s: when the last response was complete, or the connection was made, by the clock of the loop.
    """

    connections_max = 1

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, and end another connection above the limit."""
        super().connection_made(transport)
        self.host = self.client[0] if self.client else ""
        self.waits_since_s = self.loop.time()
        self._unsent_bytes = 0
        self._check = self.loop.call_later(CLIENT_S, self._check_client)
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._check.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self.waits_since_s = self.loop.time()
        super().on_response_complete()

    @property
    def waits_for_request(self) -> bool:
        """Whether the client has the last response, and has sent no whole request since."""
        cycle: Any = self.cycle
        is_answered = cycle is None or cycle.response_complete or cycle.more_body
        return is_answered and not self.transport.get_write_buffer_size()

    def _check_client(self) -> None:
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes:
            unsent_bytes += _system_bytes(self.transport.get_extra_info("socket"))
        is_unread = bool(unsent_bytes) and unsent_bytes == self._unsent_bytes
        if is_unread or (self.waits_for_request and self.loop.time() - self.waits_since_s >= CLIENT_S):
            self.transport.abort()
            return
        self._unsent_bytes = unsent_bytes
        self._check = self.loop.call_later(CLIENT_S, self._check_client)

    def _make_room(self) -> None:
        """End the connection that has waited longest, of the address with the most."""
        found: list[Any] = [one for one in self.connections if not one.transport.is_closing()]
        if len(found) <= self.connections_max:
            return
        count_of = Counter(one.host for one in found)
        waiting = [one for one in found if one.waits_for_request]
        max(waiting, key=lambda one: (count_of[one.host], -one.waits_since_s)).transport.abort()


def _system_bytes(connected: Any) -> int:
    """Bytes in the system that the client has not acknowledged; 0 if the system does not state them.

    The system takes more only when a third of its buffer, which may have megabytes, is free.
    """
    with contextlib.suppress(OSError):
        return int.from_bytes(fcntl.ioctl(connected.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    return 0
