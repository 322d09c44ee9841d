# SPDX-License-Identifier: Apache-2.0
"""Waits for a condition, for a bounded time."""

from __future__ import annotations

import time
from collections.abc import Callable

_PAUSE_S = 0.05


def wait_for(
    holds: Callable[[], bool], what: str, timeout_s: float = 60.0, *, refused: type[Exception] | tuple[()] = ()
) -> None:
    """Check the condition repeatedly; at the deadline, name the missing condition.

    An error of `refused` counts as not yet.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            if holds():
                return
        except refused:
            pass
        assert time.monotonic() < deadline_s, f"not in time: {what}"
        time.sleep(_PAUSE_S)
