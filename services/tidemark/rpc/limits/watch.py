# SPDX-License-Identifier: Apache-2.0
"""Looks at the connections of a server again and again, and ends those above the limits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final

from tidemark.rpc.limits.connections import REASONS, Address, ConnectionLimits, Connections
from tidemark.rpc.limits.listening import drop_attempts
from tidemark.rpc.limits.sockets import Found, Peer, Sockets
from tidemark.runtime.metrics import METRICS
from tidemark.runtime.slices import Pace

_INTERVAL_S: Final = 0.25
_SLICE_S: Final = 0.000_3
_PAUSE_S: Final = 0.003
"""A look is not urgent: each call of that moment is delayed by one short slice, or by none."""
_SHARE: Final = 50
"""A look takes at most one part of so many of the time: with very many open files looks are rarer."""
_LOG_INTERVAL_S: Final = 10.0
_DROPPED_S: Final = 5.0
"""Shortest time for which attempts of an address are dropped; longer while it has all connections that it may."""

_log = logging.getLogger(__name__)

_REFUSED: Final = METRICS.counter(
    "connections_ended", "Connections that were ended because of a limit, by limit", ["limit"]
)
for _reason in REASONS:
    _REFUSED.labels(_reason)
_OPEN: Final = METRICS.gauge("connections", "Open connections to the ports of this service")
_BYTES: Final = METRICS.gauge(
    "connection_bytes_in_flight", "Bytes of unfinished requests and of answers that clients have not taken"
)

_DROPPED: Final = METRICS.gauge(
    "dropped_addresses", "Addresses whose connection attempts are dropped, since very many connections were ended"
)


class ConnectionWatch:
    """The connections of some ports, kept within limits.

    Args:
        limits: see there.
        ports: the numbers of the ports.
    """

    def __init__(self, limits: ConnectionLimits, ports: Callable[[], frozenset[int]]) -> None:
        self._sockets = Sockets(ports)
        self._due = asyncio.Event()
        self.connections = Connections(limits, self._sockets.end, self._refused, self._due.set, self._drop)
        self._task: asyncio.Task[None] | None = None
        self._logged_s = -_LOG_INTERVAL_S
        self._dropped_until_s: dict[Address, float] = {}

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._run(), name="connection watch")

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            pace = Pace(_SLICE_S, _PAUSE_S)
            began_s = time.monotonic()
            try:
                await self._look(pace)
            except Exception:  # noqa: BLE001 - the next look may succeed; the limits of gRPC hold meanwhile
                _log.exception("the connections were not looked at")
            wait_s = max(_INTERVAL_S, pace.worked_s * _SHARE - (time.monotonic() - began_s))
            self._due.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._due.wait(), wait_s)

    async def _look(self, pace: Pace) -> None:
        found: list[Found] = [one async for one in self._sockets.look(pace)]
        await self.connections.look_is_over(found, pace)
        self._drop_no_longer()
        _OPEN.set(len(self.connections))
        _BYTES.set(self.connections.bytes)

    def _drop(self, crowds: set[Address]) -> None:
        """Have the kernel drop new connections of addresses: they would only be ended again."""
        new = crowds - self._dropped_until_s.keys()
        self._dropped_until_s.update(dict.fromkeys(crowds, time.monotonic() + _DROPPED_S))
        if new:
            self._filter()
        for port, host in new & self._dropped_until_s.keys():
            _log.warning("connection attempts of an address are dropped", extra={"host": host, "port": port})

    def _drop_no_longer(self) -> None:
        until_s, now_s = self._dropped_until_s, time.monotonic()
        for address in list(until_s):
            if self.connections.is_full(address):
                until_s[address] = now_s + _DROPPED_S
        over = [address for address, then_s in until_s.items() if then_s < now_s]
        for address in over:
            del until_s[address]
        if over:
            self._filter()

    def _filter(self) -> None:
        for file, port in self._sockets.listening().items():
            if not drop_attempts(file, [host for at, host in self._dropped_until_s if at == port]):
                self._dropped_until_s.clear()
        _DROPPED.set(len(self._dropped_until_s))

    def _refused(self, reason: str, peer: Peer) -> None:
        _REFUSED.labels(reason).inc()
        now_s = time.monotonic()
        if now_s - self._logged_s >= _LOG_INTERVAL_S:
            self._logged_s = now_s
            _log.warning("connections end because of a limit", extra={"limit": reason, "host": peer.host})
