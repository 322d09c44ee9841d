# SPDX-License-Identifier: Apache-2.0
"""Pauses between retries: doubling, with jitter, so that many clients do not retry at the same time."""

from __future__ import annotations

import random
from typing import Final

FIRST_S: Final = 0.02
MAX_S: Final = 0.4


class Backoff:
    """Pauses of one series of retries."""

    __slots__ = ("_first_s", "_max_s", "_pause_s")

    def __init__(self, first_s: float = FIRST_S, max_s: float = MAX_S) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._pause_s = first_s

    def next_s(self) -> float:
        """Return the seconds until the next retry."""
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, self._max_s)
        return pause_s * random.uniform(0.8, 1.2)

    def reset(self) -> None:
        """Return to the first pause, after a success."""
        self._pause_s = self._first_s
