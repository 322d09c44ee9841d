# SPDX-License-Identifier: Apache-2.0
"""How far something long has come, on one line of stderr that is written over and over; nothing without a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

_EVERY_S: Final = 0.2
_CLEAR: Final = "\r\x1b[K"


class Progress:
    """A line on a terminal.

    Args:
        show: None: if stderr is a terminal.
        now_s: a clock.
    """

    def __init__(self, show: bool | None = None, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._show = sys.stderr.isatty() if show is None else show
        self._now_s = now_s
        self.started_s = now_s()
        self._told_s = float("-inf")
        self._there = False

    @property
    def elapsed_s(self) -> float:
        """Since this was made."""
        return max(self._now_s() - self.started_s, 1e-9)

    def tell(self, line: Callable[[], str]) -> None:
        """Show the line, unless the last one has hardly been seen; it is made only then."""
        if not self._show:
            return
        now_s = self._now_s()
        if now_s - self._told_s < _EVERY_S:
            return
        self._told_s = now_s
        self._there = True
        sys.stderr.write(_CLEAR + line())
        sys.stderr.flush()

    def clear(self) -> None:
        """Take the line away, so that something else can be printed."""
        if self._there:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
            self._there = False


def bar(part: float, *, width: int = 24) -> str:
    """ "[######······]  50 %" of a share between 0 and 1."""
    part = min(max(part, 0.0), 1.0)
    full = round(part * width)
    return f"[{'#' * full}{'.' * (width - full)}] {part:4.0%}"
