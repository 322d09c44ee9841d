# SPDX-License-Identifier: Apache-2.0
"""The event-loop thread that all sync clients of a process share.

The loop is never closed: grpc.aio has one poller for all loops of a process, which fails on a closed loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Coroutine, Generator
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final, TypeVar

from tidemark.client.lifecycle import interruptible
from tidemark.model import ErrorCode, TidemarkError, invalid_request
from tidemark.rpc.channel import check_not_lost_by_fork

T = TypeVar("T")
_log = logging.getLogger("tidemark.client")

_END_S: Final = 5.0
"""Time for a call to end after its timeout; longer only if another callback holds the loop."""
_INTERRUPTED_S: Final = 0.5
"""Time for which an interrupted call waits until the loop has handled its cancellation."""


class _Call(Coroutine[Any, Any, T]):
    """A coroutine that can be cancelled as long as it has no result; used on the event loop.

    An interrupt may end the calling thread, or the process, before the loop has begun a call. Python would warn of a
    native coroutine that is never awaited.
    """

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._unbegun = [work]
        self._begun: Coroutine[Any, Any, T] | None = None
        self._task: asyncio.Task[Any] | None = None

    def send(self, value: Any) -> Any:
        """Run to the next wait."""
        return self._work().send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error where the coroutine waits."""
        return self._work().throw(*error)

    def close(self) -> None:
        """End the coroutine."""
        self.drop()
        if self._begun is not None:
            self._begun.close()

    def __await__(self) -> Generator[Any, Any, T]:
        """Run to the result."""
        return self._work().__await__()

    def _work(self) -> Coroutine[Any, Any, T]:
        if self._begun is None:
            self._task = asyncio.current_task()
            try:
                self._begun = self._unbegun.pop()
            except IndexError:
                raise asyncio.CancelledError from None
        return self._begun

    def end(self) -> None:
        """Cancel the coroutine, unless it has ended."""
        self.drop()
        if self._task is not None:
            self._task.cancel()

    def drop(self) -> None:
        """Close a coroutine that has not begun, from any thread."""
        with contextlib.suppress(IndexError):
            self._unbegun.pop().close()


class BackgroundLoop:
    """Runs coroutines for other threads, on a daemon thread."""

    def __init__(self) -> None:
        self.forked = False
        """Whether this is a copy in a forked child, where the thread does not run."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="tidemark-client", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine; any thread may call this, and wait for the future on another thread than the loop's."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine and return its result; raises REQUEST_TIMED_OUT after `timeout_s`.

        A result also counts if it comes as the time ends, for example after a pause of the process. Otherwise the
        records of a poll would be lost.
        """
        call = _Call(work)
        try:
            with interruptible():
                return self._result_of(call, timeout_s)
        finally:
            call.drop()

    def _result_of(self, call: _Call[T], timeout_s: float | None) -> T:
        refusal = self._refusal()
        if refusal is not None:
            raise refusal
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result(timeout_s)
        except FutureTimeoutError:
            if future.done():
                return future.result()
        except BaseException:
            if future.cancel():  # the calling thread was interrupted; otherwise this is the error of the coroutine
                self._wait_for_loop()
            raise
        self._loop.call_soon_threadsafe(call.end)
        try:
            return future.result(_END_S)
        except FutureTimeoutError:
            if future.done():
                return future.result()
            future.cancel()
        except CancelledError:
            pass
        raise TidemarkError(ErrorCode.REQUEST_TIMED_OUT, f"not completed within {timeout_s} s") from None

    def _wait_for_loop(self) -> None:
        """Let the loop run the calls of this thread: the process may end now."""
        seen = threading.Event()
        self._loop.call_soon_threadsafe(seen.set)
        seen.wait(_INTERRUPTED_S)

    def _refusal(self) -> TidemarkError | None:
        """Return the error of a call that could never end; None without one."""
        if self.forked:
            return forked()
        if threading.current_thread() is self._thread:
            return invalid_request(
                "a callback runs on the thread of its client and must not wait for that client: use another thread"
            )
        return None

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while True:
            try:
                self._loop.run_forever()
            except SystemExit:  # ends this thread only, on which all blocking clients depend
                _log.exception("an application's callback called sys.exit, which ends no process from this thread")


def forked() -> TidemarkError:
    """Make the error of a client that was made before a fork."""
    return TidemarkError(
        ErrorCode.CLIENT_CLOSED,
        "this client was made before this process was forked, and works only in the parent: make another one here",
    )


_lock = threading.Lock()
_shared: BackgroundLoop | None = None


def background_loop() -> BackgroundLoop:
    """Return the shared loop; raises INVALID_REQUEST in a process forked from one that had used a client."""
    global _shared
    check_not_lost_by_fork()
    with _lock:
        if _shared is None:
            _shared = BackgroundLoop()
        return _shared


def _after_fork() -> None:
    global _lock, _shared
    _lock = threading.Lock()  # a thread of the parent may have held the lock during the fork
    if _shared is not None:
        _shared.forked = True
        _shared = None


os.register_at_fork(after_in_child=_after_fork)
