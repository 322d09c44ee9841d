# SPDX-License-Identifier: Apache-2.0
"""Looks at the connections of a server again and again, and ends those above the limits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final

from tidemark.rpc.limits.connections import REASONS, ConnectionLimits, Connections
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


class ConnectionWatch:
    """The connections of some ports, kept within limits.

    Args:
        limits: see there.
        ports: the numbers of the ports.
    """

    def __init__(self, limits: ConnectionLimits, ports: Callable[[], frozenset[int]]) -> None:
        self._sockets = Sockets(ports)
        self._due = asyncio.Event()
        self.connections = Connections(limits, self._sockets.end, self._refused, self._due.set)
        self._task: asyncio.Task[None] | None = None
        self._logged_s = -_LOG_INTERVAL_S

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
        _OPEN.set(len(self.connections))
        _BYTES.set(self.connections.bytes)

    def _refused(self, reason: str, peer: Peer) -> None:
        _REFUSED.labels(reason).inc()
        now_s = time.monotonic()
        if now_s - self._logged_s >= _LOG_INTERVAL_S:
            self._logged_s = now_s
            _log.warning("connections end because of a limit", extra={"limit": reason, "host": peer.host})
