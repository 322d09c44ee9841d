# SPDX-License-Identifier: Apache-2.0
"""How long to wait before the next try: doubling, with jitter, so that many clients do not come back as one."""

from __future__ import annotations

import random
from typing import Final

FIRST_S: Final = 0.02
MAX_S: Final = 0.4


class Backoff:
    """Pauses of one series of failures."""

    __slots__ = ("_first_s", "_max_s", "_pause_s")

    def __init__(self, first_s: float = FIRST_S, max_s: float = MAX_S) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._pause_s = first_s

    def next_s(self) -> float:
        """Seconds until the next try."""
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, self._max_s)
        return pause_s * random.uniform(0.8, 1.2)

    def reset(self) -> None:
        """It worked."""
        self._pause_s = self._first_s
