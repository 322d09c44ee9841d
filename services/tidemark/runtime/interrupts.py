# SPDX-License-Identifier: Apache-2.0
"""Treats SIGTERM like Ctrl-C, for commands that stop gracefully at both signals, but not within a write."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGTERM while the context is entered; for the main thread only."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Raise KeyboardInterrupt of Ctrl-C and SIGTERM at the end of the context; for the main thread only."""
    noted: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda number, frame: noted.append(number)) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
    if noted:
        raise KeyboardInterrupt
