# SPDX-License-Identifier: Apache-2.0
"""Background work on logs: for each log directory one thread with a disk throttle, and a task that gives it work."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from tidemark.broker.logs.disk_throttle import DiskThrottle
from tidemark.runtime.started_pool import started_pool

T = TypeVar("T")

_BURST_S: Final = 1.0


class Stopped(Exception):  # noqa: N818 - not an error: the broker stops during the work
    """Raised between two reads or writes."""


class DirectoryThreads:
    """Threads, throttles and tasks by the index of the log directory.

    Args:
        name: begins the names of threads and tasks.
        directories: number of log directories.
        max_bytes_per_second: limit of each throttle, -1 for none.
    """

    def __init__(
        self, name: str, directories: int, max_bytes_per_second: int, *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._threads = [started_pool(1, f"{name}-{one}") for one in range(directories)]
        self._throttles = [DiskThrottle(max_bytes_per_second, burst_s=_BURST_S, now_s=now_s) for _ in self._threads]
        self._tasks: list[asyncio.Task[None]] = []
        self.stopping = threading.Event()

    def start(self, run: Callable[[int], Coroutine[Any, Any, None]]) -> list[asyncio.Task[None]]:
        """Start the task `run` of each directory."""
        indexes = range(len(self._threads))
        self._tasks = [asyncio.create_task(run(one), name=f"{self._name}-{one}") for one in indexes]
        return self._tasks

    async def stop(self) -> None:
        """Stop between two reads or writes."""
        self.stopping.set()
        for task in self._tasks:
            task.cancel()
        for thread in self._threads:
            await asyncio.get_running_loop().run_in_executor(None, thread.shutdown)

    async def run(self, directory: int, work: Callable[[], T]) -> T:
        """Run a function on the thread of a directory."""
        return await asyncio.get_running_loop().run_in_executor(self._threads[directory], work)

    def pace(self, directory: int, size_bytes: int) -> None:
        """Wait until the throttle allows the next bytes after these; raises Stopped when the broker stops."""
        wait_s = self._throttles[directory].take(size_bytes)
        if self.stopping.wait(wait_s) if wait_s else self.stopping.is_set():
            raise Stopped
