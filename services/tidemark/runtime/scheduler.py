# SPDX-License-Identifier: Apache-2.0
"""Tasks on the running asyncio event loop: `ports.Scheduler`, and a part of a process that runs until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from tidemark.ports import Signal
from tidemark.runtime.clock import timeout

T = TypeVar("T")


class AsyncioScheduler:
    """Owns the tasks that it spawned; `stop` cancels them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], on_error: Callable[[BaseException], None]) -> None:
        """Run `work` as a task; an exception other than its cancellation goes to `on_error`."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._on_done, on_error))

    def call_soon(self, work: Callable[[], None]) -> None:
        """Call `work` after the callbacks that are ready now."""
        asyncio.get_running_loop().call_soon(work)

    async def sleep_ms(self, duration_ms: int) -> None:
        """Suspend the calling coroutine."""
        await asyncio.sleep(duration_ms / 1000)

    def signal(self) -> Signal:
        """Make a flag that is not set."""
        return asyncio.Event()

    async def wait(self, signal: Signal, timeout_ms: int) -> None:
        """Suspend until `signal` is set or the timeout expires."""
        with contextlib.suppress(TimeoutError):
            async with timeout(timeout_ms / 1000):
                await signal.wait()

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Result of `work`, which blocks; other tasks continue meanwhile."""
        return await asyncio.to_thread(work)

    async def stop(self) -> None:
        """Cancel every task and wait for their ends."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_done(self, on_error: Callable[[BaseException], None], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        _report(on_error, task)


class BackgroundTask:
    """A task that runs until it is stopped.

    Args:
        fail: called with the error that ended the task.
    """

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self._fail = fail
        self._task: asyncio.Task[None] | None = None

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run `work` as a task of this name."""
        self._task = asyncio.create_task(work, name=name)
        self._task.add_done_callback(partial(_report, self._fail))

    async def stop(self) -> None:
        """Cancel the task, if it was started, and wait for its end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})


def _report(on_error: Callable[[BaseException], None], task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        on_error(error)
