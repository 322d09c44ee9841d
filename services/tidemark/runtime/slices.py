# SPDX-License-Identifier: Apache-2.0
"""Divides long work on an event loop into slices, so that other tasks wait no longer than one slice."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Generic, Self, TypeVar

SLICE_S: Final = 0.004

T = TypeVar("T")


class SlicedCalls:
    """Runs calls from any thread on the event loop, in order; between the slices of a burst other tasks run.

    asyncio's `call_soon_threadsafe` runs a burst in one pass, however long.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self._scheduled = False

    def call(self, function: Callable[..., None], *arguments: object) -> None:
        """Queue a call; RuntimeError once the event loop is closed."""
        self._calls.append((function, arguments))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        # Cleared before the queue is read: a call that is queued after this line schedules again, possibly once more
        # than needed.
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
    """For the loop of a long coroutine: `if pace.is_due: await pace.give_way()`.

    Args:
        slice_s: length of a slice; None: `SLICE_S`.
        pause_s: time between two slices. Work that is not urgent has a pause: without a pause, a call of many steps
            waits for a slice at each step.

    Attributes:
        until_s: time, by time.perf_counter(), of the end of the slice; cheaper for each record than `is_due`.
        worked_s: processor time of all completed slices, without the time of other processes.
    """

    def __init__(self, slice_s: float | None = None, pause_s: float = 0) -> None:
        self._slice_s = SLICE_S if slice_s is None else slice_s
        self._pause_s = pause_s
        self.worked_s = 0.0
        self._begin()

    @property
    def is_due(self) -> bool:
        """Whether a slice has passed since the start or the last `give_way`."""
        return time.perf_counter() > self.until_s

    def hurry(self) -> None:
        """Make no pauses from now on: the work has become urgent."""
        self._pause_s = 0

    async def give_way(self) -> None:
        """Let all other tasks run."""
        self.worked_s += time.thread_time() - self._began_s
        await asyncio.sleep(self._pause_s)
        self._begin()

    def _begin(self) -> None:
        self._began_s = time.thread_time()
        self.until_s = time.perf_counter() + self._slice_s


class InSlices(Generic[T]):
    """Iterates over many items on an event loop: `async for item in InSlices(items)`.

    Args:
        items: the items.
        pace: of several loops of one coroutine; None: a pace of its own.
    """

    def __init__(self, items: Iterable[T], pace: Pace | None = None) -> None:
        self._items = iter(items)
        self._pace = pace or Pace()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if self._pace.is_due:
            await self._pace.give_way()
        for item in self._items:
            return item
        raise StopAsyncIteration
