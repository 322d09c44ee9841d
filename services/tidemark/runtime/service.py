# SPDX-License-Identifier: Apache-2.0
"""The life of a service process: start, wait for SIGTERM or SIGINT, stop in order, exit code."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final, NoReturn

from tidemark.model import TidemarkError
from tidemark.runtime.collecting import BoundedCollections
from tidemark.runtime.metrics import METRICS, Metrics
from tidemark.runtime.stalls import StallMeter
from tidemark.runtime.termination import write_termination_message

_log = logging.getLogger(__name__)

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
"""Something broke: the start, the stop, or what ran in between."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


async def run_until_stopped(
    start: Callable[[], Awaitable[object]],
    stop: Callable[[], Awaitable[object]],
    *,
    failed: asyncio.Future[object] | None = None,
    metrics: Metrics = METRICS,
    termination_path: str = "",
) -> int:
    """Run a service until SIGTERM or SIGINT; a second signal ends the process at once.

    Args:
        start: brings the service up; a TidemarkError from it is one log line and exit code 1.
        stop: brings it down in order; also called when `start` failed half-way or was interrupted.
        failed: ends the service too, with exit code 1, when it completes.
        metrics: where the stalls of the event loop are shown.
        termination_path: `termination.message.path`; what made it fail first is written there.

    Returns:
        the exit code for the process.
    """
    collections = BoundedCollections()
    collections.start()
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    received: list[signal.Signals] = []

    def on_signal(number: signal.Signals) -> None:
        if received:
            _log.error("second signal: ending at once", extra={"signal": number.name})
            logging.shutdown()
            os._exit(128 + number)
        received.append(number)
        stopping.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    stalls = StallMeter(loop)
    for collector in stalls.collectors():
        metrics.registry.register(collector)
    stalls.start()
    failures = _Failures(termination_path)
    try:
        code = await _start_and_wait(start, stopping, failed, failures)
        if received:
            _log.info("stopping", extra={"signal": received[0].name})
        return await _stop(stop, code, failures)
    finally:
        stalls.stop()
        for collector in stalls.collectors():
            metrics.registry.unregister(collector)
        collections.stop()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def end_process(code: int) -> NoReturn:
    """Exit without taking the interpreter apart: with thousands of partitions that takes a second, in which whoever
    waits for the end of the process waits for nothing. Everything must have been stopped."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class _Failures:
    """Says why something failed: each time in the log, the first time as the termination message."""

    def __init__(self, termination_path: str) -> None:
        self._path = termination_path

    def succeeded(self, done: asyncio.Future[object], what: str) -> bool:
        """Whether it did; if not, say why: one line for a refusal, a traceback for our own mistakes."""
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        if error is None:
            return True
        if isinstance(error, TidemarkError):
            _log.error("%s: %s", what, error, extra={"code": str(error.code)})
            self._told(f"{what}: {error.code}: {error.message}")
        else:
            _log.error(what, exc_info=error)
            self._told(f"{what}: {type(error).__name__}: {error}")
        return False

    def ended_by_itself(self) -> None:
        """Nothing failed, and yet it ended."""
        _log.error("the service ended by itself")
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
