"""One event loop on a thread of its own, shared by every sync client of the process.

It is never closed: grpc.aio has one poller for all loops of a process and stumbles over one that is gone.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from tidemark.model import ErrorCode, TidemarkError

T = TypeVar("T")


class BackgroundLoop:
    """Runs coroutines for threads, on a daemon thread."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._run, name="tidemark-client", daemon=True).start()

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run to its end and give its result; raises REQUEST_TIMED_OUT when that takes too long."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except FutureTimeoutError:
            if future.done():
                raise
            future.cancel()
            raise TidemarkError(ErrorCode.REQUEST_TIMED_OUT, f"not done within {timeout_s} s") from None

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


_lock = threading.Lock()
_shared: BackgroundLoop | None = None


def background_loop() -> BackgroundLoop:
    """The process's loop; a forked child gets one of its own."""
    global _shared
    with _lock:
        if _shared is None or _shared.pid != os.getpid():
            _shared = BackgroundLoop()
        return _shared
