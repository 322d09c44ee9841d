# SPDX-License-Identifier: Apache-2.0
"""Clients that the application did not close: a warning when they are collected; at exit a bounded flush."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - Python refuses this import during the exit, and Arrow needs it
import logging
import os
import warnings
from concurrent.futures import Future, wait
from typing import Final

from tidemark.client.aio.consumer import Consumer
from tidemark.client.aio.producer import Producer
from tidemark.client.sync.event_loop_thread import BackgroundLoop

EXIT_S: Final = 5.0
"""Time in which all producers send their buffered records at the exit of the interpreter."""
_SLACK_S: Final = 1.0

_log = logging.getLogger("tidemark.client")
_open: dict[Producer, BackgroundLoop] = {}
_closing: set[Future[None]] = set()


def add(producer: Producer, background: BackgroundLoop) -> None:
    """Flush this producer at exit."""
    _open[producer] = background


def remove(producer: Producer) -> None:
    """Do not flush this producer at exit: the application closes it."""
    _open.pop(producer, None)


def warn_and_close(producer: Producer) -> None:
    """The application dropped its last reference without a close: warn, and close on the event-loop thread."""
    if _close_soon(producer, None):
        advice = "a Producer was dropped without close(): use `with Producer(...)`, or call close()"
        warnings.warn(advice, ResourceWarning, stacklevel=2)


def warn_and_leave(consumer: Consumer, background: BackgroundLoop) -> None:
    """Warn about a consumer that was dropped without a close; leave its group and close its connections."""
    if background.forked:
        return
    _finish(background.start(_leave(consumer)))
    advice = "a Consumer was dropped without close(): use `with Consumer(...)`, or call close()"
    warnings.warn(advice, ResourceWarning, stacklevel=2)


def _close_soon(producer: Producer, timeout_s: float | None) -> bool:
    background = _open.pop(producer, None)
    if background is None or background.forked:
        return False
    _finish(background.start(_close(producer, timeout_s)))
    return True


def _finish(closing: Future[None]) -> None:
    _closing.add(closing)
    closing.add_done_callback(_closing.discard)


async def _close(producer: Producer, timeout_s: float | None) -> None:
    sender = producer.sender
    failed = sender.metrics().failed_records
    await producer.close(timeout_s)
    lost = sender.metrics().failed_records - failed
    if lost:
        _log.error("%d records were lost: their producer was not closed, and could not send them in time", lost)


async def _leave(consumer: Consumer) -> None:
    consumer.not_done_with_last()  # the application may not have got all records of the last batch
    await consumer.close()


@atexit.register
def _flush_at_exit() -> None:
    for producer in list(_open):
        _close_soon(producer, EXIT_S)
    wait(list(_closing), EXIT_S + _SLACK_S)


def _after_fork() -> None:
    """Forget the producers in a forked child: the parent flushes them."""
    _open.clear()
    _closing.clear()


os.register_at_fork(after_in_child=_after_fork)
