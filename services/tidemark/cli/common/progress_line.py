# SPDX-License-Identifier: Apache-2.0
"""One line of progress on stderr, kept up to date by rich; nothing without a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

_REFRESHES_PER_S: Final = 5


class ProgressLine:
    """A context manager, as often as needed: the line is on the terminal inside, and erased at the end.

    Args:
        line: returns the present text; called by a thread of rich, and at both ends of the context.
        show: whether the line may be shown.
    """

    def __init__(self, line: Callable[[], str], *, show: bool = True) -> None:
        self._started_s = time.monotonic()
        self._line = line
        self._shown = show and sys.stderr.isatty()
        self._live: Live | None = None

    @property
    def elapsed_s(self) -> float:
        """Seconds since the line was created; never 0, so a rate can be computed."""
        return max(time.monotonic() - self._started_s, 1e-9)

    def __enter__(self) -> Self:
        if self._shown:
            self._live = Live(
                get_renderable=lambda: Text(self._line(), no_wrap=True, overflow="ellipsis"),
                console=Console(stderr=True),
                refresh_per_second=_REFRESHES_PER_S,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()


def bar(part: float, *, width: int = 24) -> str:
    """ "[######......]  50%" for a share between 0 and 1."""
    part = min(max(part, 0.0), 1.0)
    full = round(part * width)
    return f"[{'#' * full}{'.' * (width - full)}] {part:4.0%}"
