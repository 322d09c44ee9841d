# SPDX-License-Identifier: Apache-2.0
"""Checks the connections of a server periodically, and ends the connections above the limits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final

from tidemark.rpc.limits.connections import DROPPED_S, REASONS, Address, ConnectionLimits, Connections
from tidemark.rpc.limits.listening import Attempts, drop_attempts
from tidemark.rpc.limits.sockets import Found, Peer, Sockets
from tidemark.runtime.clock import timeout
from tidemark.runtime.metrics import METRICS
from tidemark.runtime.slices import Pace

_INTERVAL_S: Final = 0.25
_QUIET_INTERVAL_S: Final = 1.0
"""Interval of checks while there are no new connections and running calls stay within the limits, to save CPU time
of an idle service.
"""
_SLICE_S: Final = 0.000_3
_PAUSE_S: Final = 0.003
"""Pause between slices of a check, which is not urgent: a running call is delayed by one short slice at most."""
_SHARE: Final = 50
"""Checks use at most 1/N of the time for this N: with very many open files, checks are rarer."""
_LOG_INTERVAL_S: Final = 10.0
_GLANCE_S: Final = 0.002
"""Time from an attempt to connect until new connections are counted, if no check comes before."""
_MANY: Final = 16
"""Number of new connections that are counted before the next check."""

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
        limits: see `ConnectionLimits`.
        ports: the numbers of the ports.
    """

    def __init__(self, limits: ConnectionLimits, ports: Callable[[], frozenset[int]]) -> None:
        self._sockets = Sockets(ports)
        self._wake = asyncio.Event()
        self._attempts = Attempts(self._wake.set)
        self.connections = Connections(limits, self._sockets.find, self._sockets.end, self._refused, self._drop)
        self._task: asyncio.Task[None] | None = None
        self._logged_s: dict[str, float] = {}
        self._dropped_until_s: dict[Address, float] = {}

    def start(self) -> None:
        """Start the periodic checks of the connections."""
        self._task = asyncio.create_task(self._run(), name="connection watch")

    async def stop(self) -> None:
        """Stop the checks of connections."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def ports_close(self) -> None:
        """Note that the listening sockets will be closed; connections are still checked."""
        self._attempts.end()

    async def _run(self) -> None:
        while True:
            try:
                await self._look_and_wait()
            except Exception:  # noqa: BLE001 - the next check may succeed; the limits of gRPC hold meanwhile
                _log.exception("the connections were not checked")
                await asyncio.sleep(_INTERVAL_S)

    async def _look_and_wait(self) -> None:
        pace = Pace(_SLICE_S, _PAUSE_S)
        began_s = time.monotonic()
        await self._look(pace)
        now_s = time.monotonic()
        until_s = now_s + max(_INTERVAL_S, pace.worked_s * _SHARE - (now_s - began_s))
        await self._until_due(until_s)
        while self._is_quiet() and until_s < now_s + _QUIET_INTERVAL_S:
            until_s += _INTERVAL_S
            await self._until_due(until_s)

    def _is_quiet(self) -> bool:
        """Whether no event since the last check needs another check."""
        return not self.connections.can_exceed and not self._dropped_until_s and self._sockets.opened() <= 0

    async def _until_due(self, until_s: float) -> None:
        """Wait for the next check. Many new connections are counted together."""
        listening = self._sockets.listening()
        while (left_s := until_s - time.monotonic()) > 0:
            self._wake.clear()
            self._attempts.await_one(listening)
            with contextlib.suppress(TimeoutError):
                async with timeout(left_s):
                    await self._wake.wait()
            if self._attempts.came:
                await asyncio.sleep(_GLANCE_S)
                await self._glance_if_many()

    async def _glance_if_many(self) -> None:
        if self._sockets.opened() >= _MANY:
            pace = Pace(_SLICE_S)
            await self.connections.glance_is_over([one async for one in self._sockets.glance(pace)], pace)

    async def _look(self, pace: Pace) -> None:
        found: list[Found] = [one async for one in self._sockets.look(pace)]
        await self.connections.look_is_over(found, pace)
        self._drop_no_longer()
        _OPEN.set(len(self.connections))
        _BYTES.set(self.connections.bytes)

    def _drop(self, for_s: dict[Address, float]) -> None:
        """Let the kernel drop new connections of addresses for some seconds: they would slow all others."""
        until_s, now_s = self._dropped_until_s, time.monotonic()
        new = for_s.keys() - until_s.keys()
        until_s.update({one: max(until_s.get(one, 0.0), now_s + more_s) for one, more_s in for_s.items()})
        if new:
            self._filter()
        for port, host in new & until_s.keys():
            self._warn("connection attempts of an address are dropped", host=host, port=port)

    def _drop_no_longer(self) -> None:
        until_s, now_s = self._dropped_until_s, time.monotonic()
        for address in list(until_s):
            if self.connections.is_full(address):
                until_s[address] = now_s + DROPPED_S
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
        self._warn("connections end because of a limit", limit=reason, host=peer.host)

    def _warn(self, message: str, **fields: object) -> None:
        now_s = time.monotonic()
        if now_s - self._logged_s.get(message, -_LOG_INTERVAL_S) >= _LOG_INTERVAL_S:
            self._logged_s[message] = now_s
            _log.warning(message, extra=fields)
