# SPDX-License-Identifier: Apache-2.0
"""Much to do on an event loop, a slice at a time, so that what else is due waits no longer than a slice."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

SLICE_S: Final = 0.004


class SlicedCalls:
    """Calls from any thread, carried out on the event loop in their order; a burst gives the loop back in between.

    asyncio's own `call_soon_threadsafe` runs all that came meanwhile in one go, however much that is.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self._scheduled = False

    def call(self, function: Callable[..., None], *arguments: object) -> None:
        """Have it called, after those before it; RuntimeError when the loop has ended."""
        self._calls.append((function, arguments))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        # Not scheduled before the look at the queue: whoever adds to it from here on schedules anew, once too often at
        # worst.
        self._scheduled = False
        until_s = time.perf_counter() + SLICE_S
        calls = self._calls
        try:
            while calls:
                function, arguments = calls.popleft()
                function(*arguments)
                if time.perf_counter() > until_s:
                    break
        finally:
            if calls and not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._run)


class Pace:
    """For a coroutine that goes through much: `if pace.is_due: await pace.give_way()` in its loop."""

    def __init__(self) -> None:
        self._until_s = time.perf_counter() + SLICE_S

    @property
    def is_due(self) -> bool:
        """Whether a slice has passed since it began, or since it last gave way."""
        return time.perf_counter() > self._until_s

    async def give_way(self) -> None:
        """Let all others have a turn."""
        await asyncio.sleep(0)
        self._until_s = time.perf_counter() + SLICE_S
