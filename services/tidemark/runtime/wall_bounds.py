# SPDX-License-Identifier: Apache-2.0
"""Bounds of the wall clock, for deletions by time: a jump of the clock that is soon corrected deletes nothing early."""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

from tidemark.ports import Clock

LASTING_MS: Final = 3_600_000
"""Time after which a jump of the wall clock counts as its correction."""
_SAMPLE_MS: Final = LASTING_MS // 100


class WallBounds:
    """The earliest and the latest time that the wall clock of the last `LASTING_MS` makes it now. Safe for threads.

    Both are the wall clock itself unless the clock was set. The difference to the monotonic clock shows that.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._samples: deque[tuple[int, int]] = deque()
        """(monotonic ms, difference of the wall clock in us), in order: the last one before the time that counts, and
        all later ones.
        """
        self._sample()

    def earliest_us(self) -> int:
        """Microseconds since 1970 that have passed for certain: what is older may be deleted."""
        return min(self._sample())

    def latest_us(self) -> int:
        """Microseconds since 1970 from which a time to wait begins."""
        return max(self._sample())

    def _sample(self) -> list[int]:
        with self._lock:
            now_ms, wall_us = self._clock.now_ms(), self._clock.wall_us()
            if not self._samples or now_ms - self._samples[-1][0] >= _SAMPLE_MS:
                self._samples.append((now_ms, wall_us - now_ms * 1000))
            while len(self._samples) > 1 and self._samples[1][0] <= now_ms - LASTING_MS:
                self._samples.popleft()
            return [wall_us, *(now_ms * 1000 + difference_us for _, difference_us in self._samples)]
