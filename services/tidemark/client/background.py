"""One event loop on a thread of its own, for the sync facade."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from tidemark.model import ErrorCode, TidemarkError

T = TypeVar("T")


class BackgroundLoop:
    """Runs coroutines for threads; ends with `stop`."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run to its end and give its result; raises REQUEST_TIMED_OUT when that takes too long."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s)
        except FutureTimeoutError:
            if future.done():
                raise
            future.cancel()
            raise TidemarkError(ErrorCode.REQUEST_TIMED_OUT, f"not done within {timeout_s} s") from None

    def stop(self) -> None:
        """End the loop and its thread."""
        if self.loop.is_closed():
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
