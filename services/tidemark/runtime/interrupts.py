# SPDX-License-Identifier: Apache-2.0
"""Treats SIGTERM and SIGHUP like Ctrl-C, for commands that stop gracefully at each of them, but not within a write."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

_ENDS: Final = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGTERM, and at the SIGHUP of a closed terminal, while the context is entered.

    For the main thread only. A SIGHUP that `nohup` ignores stays ignored. Only the first SIGHUP counts: a terminal that
    closes sends one, and its shell another.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        _ignore_hangups([number])
        raise KeyboardInterrupt

    with _handled(_ENDS, interrupt):
        yield


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Raise KeyboardInterrupt of Ctrl-C, SIGTERM and SIGHUP at the end of the context; for the main thread only."""
    noted: list[int] = []
    with _handled((signal.SIGINT, *_ENDS), lambda number, frame: noted.append(number)):
        yield
    if noted:
        _ignore_hangups(noted)
        raise KeyboardInterrupt


def _ignore_hangups(received: list[int]) -> None:
    if signal.SIGHUP in received:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


@contextlib.contextmanager
def _handled(numbers: tuple[signal.Signals, ...], handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in numbers}
    for number, former in before.items():
        if former is not signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
