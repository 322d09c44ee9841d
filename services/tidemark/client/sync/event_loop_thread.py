# SPDX-License-Identifier: Apache-2.0
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
from tidemark.rpc.channel import check_not_lost_by_fork

T = TypeVar("T")


class BackgroundLoop:
    """Runs coroutines for threads, on a daemon thread."""

    def __init__(self) -> None:
        self.forked = False
        """Whether this is the copy of one that runs in the parent process: here it does not."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="tidemark-client", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run to its end and give its result; raises REQUEST_TIMED_OUT when that takes too long."""
        refusal = self._refusal()
        if refusal is not None:
            work.close()
            raise refusal
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except FutureTimeoutError:
            if future.done():
                raise
            future.cancel()
            raise TidemarkError(ErrorCode.REQUEST_TIMED_OUT, f"not done within {timeout_s} s") from None
        except BaseException:
            future.cancel()  # the thread was interrupted, and waits for it no more
            raise

    def _refusal(self) -> TidemarkError | None:
        """Why nobody would ever answer this caller."""
        if self.forked:
            return forked()
        if threading.current_thread() is self._thread:
            return TidemarkError(
                ErrorCode.INVALID_REQUEST,
                "a callback must not wait for its own client, on whose thread it runs: hand that on to another thread",
            )
        return None

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


def forked() -> TidemarkError:
    """The refusal of a client that was made before a fork."""
    return TidemarkError(
        ErrorCode.CLIENT_CLOSED,
        "this client was made before this process was forked, and lives in the parent: make another one here",
    )


_lock = threading.Lock()
_shared: BackgroundLoop | None = None


def background_loop() -> BackgroundLoop:
    """The process's loop; raises INVALID_REQUEST in one that was forked from one that had used a client."""
    global _shared
    check_not_lost_by_fork()
    with _lock:
        if _shared is None:
            _shared = BackgroundLoop()
        return _shared


def _after_fork() -> None:
    global _lock, _shared
    _lock = threading.Lock()  # a thread of the parent may have held it
    if _shared is not None:
        _shared.forked = True
        _shared = None


os.register_at_fork(after_in_child=_after_fork)
