# SPDX-License-Identifier: Apache-2.0
"""Controlled shutdown: a stopping broker serves until the controller has moved its leaderships to other brokers.

The broker requests the shutdown on its heartbeat streams. The controller elects in-sync replicas, then sends its
permission (`may_shut_down`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from tidemark.runtime.clock import timeout

_NO_PING_S: Final = 2.0
"""A broker without leaderships stops waiting when no controller has pinged it for this long."""
_NO_CONTROLLER_S: Final = 10.0
"""Twice the time of a controller election. Without a controller, no leadership is moved."""
_CHECK_S: Final = 0.1
_LOG_S: Final = 5.0

_log = logging.getLogger(__name__)


class ControlledShutdown:
    """The request to stop, and the reasons to end the wait for its permission.

    Args:
        max_wait_ms: `controlled.shutdown.max.wait.ms`; 0: no wait.
        leader_count: how many partitions this broker leads.
    """

    def __init__(
        self,
        *,
        max_wait_ms: int,
        leader_count: Callable[[], int],
        now_s: Callable[[], float],
    ) -> None:
        self._max_wait_s = max_wait_ms / 1000
        self._leader_count = leader_count
        self._now_s = now_s
        self._began_s: float | None = None
        self._pinged_s = now_s()
        self._released = asyncio.Event()

    def on_ping(self, may_shut_down: bool) -> None:
        """A heartbeat of the controller arrived; `may_shut_down`: no partition needs this broker any more."""
        self._pinged_s = self._now_s()
        if may_shut_down and self._began_s is not None:
            self._released.set()

    def why_now(self) -> str | None:
        """Why this broker may stop now; None while the broker has to wait."""
        now_s = self._now_s()
        began_s = self._began_s if self._began_s is not None else now_s
        if self._released.is_set():
            return "the controller permits it: no partition needs this broker any more"
        if now_s - began_s >= self._max_wait_s:
            return "controlled.shutdown.max.wait.ms has passed"
        unpinged_s = now_s - max(self._pinged_s, began_s)
        if unpinged_s >= _NO_PING_S and self._leader_count() == 0:
            return "this broker leads no partition, and no controller sends it heartbeats any more"
        if unpinged_s >= _NO_CONTROLLER_S:
            return f"no controller has pinged for {_NO_CONTROLLER_S:.0f} s, so no leadership will be moved"
        return None

    async def run(self, *, announce: Callable[[], Awaitable[None]], failed: asyncio.Future[object]) -> None:
        """Request a controlled shutdown and wait for the permission.

        Args:
            announce: sends the request on every heartbeat stream.
            failed: ends the wait immediately; the broker has failed and has no leadership that could move.
        """
        self._began_s = logged_s = self._now_s()
        leading = {"leader_count": self._leader_count(), "max_wait_ms": round(self._max_wait_s * 1000)}
        _log.info("controlled shutdown: waiting until no partition needs this broker", extra=leading)
        await announce()
        while not failed.done() and (why := self.why_now()) is None:
            try:
                async with timeout(_CHECK_S):
                    await self._released.wait()
            except TimeoutError:
                if self._now_s() - logged_s >= _LOG_S:
                    logged_s = self._now_s()
                    leading["leader_count"] = self._leader_count()
                    _log.info("controlled shutdown: still waiting for the controller", extra=leading)
        if not failed.done():
            waited_ms = round((self._now_s() - self._began_s) * 1000)
            outcome = {"why": why, "waited_ms": waited_ms, "leader_count": self._leader_count()}
            _log.info("controlled shutdown: stopping now", extra=outcome)
