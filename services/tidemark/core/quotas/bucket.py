# SPDX-License-Identifier: Apache-2.0
"""A token bucket: counts the amount used beyond a rate, and states the wait until the use is within the rate again."""

from __future__ import annotations

import math


class Bucket:
    """A token bucket. The caller gives the time and the rate, which may change between any two calls.

    Invariant: a user that waits as long as stated uses at most (t + burst) * rate over any t seconds, plus the last
        amount.

    Attributes:
        _owed: amount that was used and that the rate has not yet covered, at the time `_at_s`.
    """

    __slots__ = ("_at_s", "_owed")

    def __init__(self) -> None:
        self._owed = 0.0
        self._at_s = -math.inf

    def wait_s(self, rate: float, now_s: float, burst_s: float = 0.0) -> float:
        """Seconds until more may be used; 0: now.

        Args:
            rate: amount per second, above 0.
            now_s: the time.
            burst_s: the amount of this time at the rate may be used in one burst.
        """
        if now_s > self._at_s:
            self._owed = max(0.0, self._owed - rate * (now_s - self._at_s)) if self._owed else 0.0
            self._at_s = now_s
        return max(0.0, self._owed / rate - burst_s)

    def debit(
        self, amount: float, rate: float, now_s: float, burst_s: float = 0.0, wait_max_s: float = math.inf
    ) -> float:
        """Count a used amount; returns `wait_s`, which is at most `wait_max_s`: use beyond it is not counted."""
        self.wait_s(rate, now_s)
        self._owed = min(self._owed + amount, rate * (burst_s + wait_max_s))
        return self.wait_s(rate, now_s, burst_s)
