# SPDX-License-Identifier: Apache-2.0
"""Runs a service process: start, wait for SIGTERM or SIGINT, stop in order, exit code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, NoReturn

from tidemark.model import TidemarkError
from tidemark.runtime.collecting import BoundedCollections
from tidemark.runtime.metrics import METRICS, Metrics
from tidemark.runtime.stalls import StallMeter, WatchedLoop
from tidemark.runtime.termination import write_termination_message

_log = logging.getLogger(__name__)

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
"""The start, the run or the stop failed."""

_DEFECT: Final = "a defect of this service; report it with the log, and start the service again"
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


async def run_until_stopped(
    start: Callable[[], Awaitable[object]],
    stop: Callable[[], Awaitable[object]],
    *,
    failed: asyncio.Future[object] | None = None,
    metrics: Metrics = METRICS,
    termination_path: str = "",
) -> int:
    """Run a service until SIGTERM or SIGINT; a second signal ends the process immediately.

    Args:
        start: starts the service; a TidemarkError from it gives one log line and exit code 1.
        stop: stops the service in order; also called after a failed or interrupted `start`.
        failed: when this future completes, the service stops with exit code 1.
        metrics: receives the stalls of the event loop, if that is a `WatchedLoop`.
        termination_path: `termination.message.path`; the first failure is written there.

    Returns:
        The exit code of the process.
    """
    collections = BoundedCollections()
    collections.start()
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    received: list[signal.Signals] = []

    def on_signal(number: signal.Signals) -> None:
        if received:
            _log.error("second signal: ending immediately", extra={"signal": number.name})
            logging.shutdown()
            os._exit(128 + number)
        received.append(number)
        stopping.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    measured = contextlib.ExitStack()
    if isinstance(loop, WatchedLoop):
        measured.enter_context(_stalls(loop, metrics))
    failures = _Failures(termination_path)
    try:
        code = await _start_and_wait(start, stopping, failed, failures)
        if received:
            _log.info("stopping", extra={"signal": received[0].name})
        return await _stop(stop, code, failures)
    finally:
        measured.close()
        collections.stop()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def _stalls(loop: WatchedLoop, metrics: Metrics) -> Iterator[None]:
    stalls = StallMeter(loop, loop.selector)
    for collector in stalls.collectors():
        metrics.registry.register(collector)
    stalls.start()
    try:
        yield
    finally:
        stalls.stop()
        for collector in stalls.collectors():
            metrics.registry.unregister(collector)


def end_process(code: int) -> NoReturn:
    """Exit without the interpreter's clean-up, which takes a second with thousands of partitions. Everything must
    have been stopped before."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class _Failures:
    """Reports failures: each failure in the log, the first failure as the termination message."""

    def __init__(self, termination_path: str) -> None:
        self._path = termination_path

    def succeeded(self, done: asyncio.Future[object], what: str) -> bool:
        """Whether `done` succeeded; logs a failure as one line for a TidemarkError, with a traceback for any other
        error."""
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        if error is None:
            return True
        if isinstance(error, TidemarkError):
            _log.error("%s: %s", what, error, extra={"code": str(error.code)})
            self._told(f"{what}: {error.code}: {error.message}")
        else:
            _log.error("%s: %s", what, _DEFECT, exc_info=error)
            self._told(f"{what}: {type(error).__name__}: {error}: {_DEFECT}")
        return False

    def ended_by_itself(self) -> None:
        """Report a service that ended without a failure or a signal."""
        _log.error("the service ended without a signal")
        self._told("the service ended by itself")

    def _told(self, message: str) -> None:
        write_termination_message(self._path, message)
        self._path = ""


async def _start_and_wait(
    start: Callable[[], Awaitable[object]],
    stopping: asyncio.Event,
    failed: asyncio.Future[object] | None,
    failures: _Failures,
) -> int:
    starting = asyncio.ensure_future(_awaited(start))
    stopped = asyncio.create_task(stopping.wait())
    try:
        first: set[asyncio.Future[Any]] = {starting, stopped}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
            return EXIT_OK
        if not failures.succeeded(starting, "the start failed"):
            return EXIT_FAILED
        ends: set[asyncio.Future[Any]] = {stopped} if failed is None else {stopped, failed}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if failed is not None and failed.done() and not stopping.is_set():
            if failures.succeeded(failed, "the service failed"):
                failures.ended_by_itself()
            return EXIT_FAILED
        return EXIT_OK
    finally:
        stopped.cancel()


async def _stop(stop: Callable[[], Awaitable[object]], code: int, failures: _Failures) -> int:
    stopping = asyncio.ensure_future(_awaited(stop))
    await asyncio.wait({stopping})
    return code if failures.succeeded(stopping, "the stop failed") else EXIT_FAILED


async def _awaited(call: Callable[[], Awaitable[object]]) -> object:
    return await call()
