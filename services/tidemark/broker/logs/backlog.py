# SPDX-License-Identifier: Apache-2.0
"""Calls that wait for a few threads. A call costs no future: a starting broker opens thousands of logs at the same
time."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

_log = logging.getLogger(__name__)


class Backlog:
    """Starts calls in their order, on at most `threads` threads. Safe for threads."""

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._idle = threads
        """Threads that run no `_work`; under the lock."""
        self._lock = threading.Lock()
        self._calls: deque[Callable[[], None]] = deque()

    def add(self, call: Callable[[], None]) -> None:
        """Queue a call, which should not raise; RuntimeError after `stop`."""
        self._calls.append(call)
        with self._lock:
            if not self._idle:
                return
            self._idle -= 1
        self._pool.submit(self._work)

    def drop(self) -> None:
        """Forget the queued calls."""
        self._calls.clear()

    def stop(self) -> None:
        """Forget the queued calls; blocks until the running ones are done."""
        self.drop()
        self._pool.shutdown(wait=True)

    def _work(self) -> None:
        while call := self._next():
            try:
                call()
            except Exception:  # noqa: BLE001 - later calls do not depend on this one
                _log.exception("a call failed")

    def _next(self) -> Callable[[], None] | None:
        """The next call. None ends `_work`. The lock covers this decision: a call that is queued later starts another
        worker.
        """
        with self._lock:
            if self._calls:
                return self._calls.popleft()
            self._idle += 1
            return None
