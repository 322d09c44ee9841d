# SPDX-License-Identifier: Apache-2.0
"""Bytes per second as an exponentially weighted average; costs nothing while no bytes are counted.

A reassignment with a throttle below the append rate would never end, so the admin service reports this rate (rule M2).
"""

from __future__ import annotations

from math import exp
from typing import Final

AVERAGED_MS: Final = 30_000
"""Bytes counted longer ago have less than 1/e of the weight of new ones."""
_SHORTEST_MS: Final = 1_000


class ByteRate:
    """Bytes per second, as an exponentially weighted average.

    Before `AVERAGED_MS` have passed, the rate is the average since the first count, of at least one second.

    Attributes:
        _since_ms: time of the first count.
        _bytes: weighted bytes as of `_at_ms`; the weight decays with time.
    """

    __slots__ = ("_at_ms", "_bytes", "_since_ms")

    def __init__(self, now_ms: int) -> None:
        self._since_ms = now_ms
        self._at_ms = now_ms
        self._bytes = 0.0

    def add(self, count: int, now_ms: int) -> None:
        """Count `count` bytes at `now_ms`."""
        self._bytes = self._left(now_ms) + count
        self._at_ms = now_ms

    def per_s(self, now_ms: int) -> float:
        """Bytes per second at `now_ms`."""
        age_ms = max(now_ms - self._since_ms, _SHORTEST_MS)
        weight_ms = AVERAGED_MS * (1 - exp(-age_ms / AVERAGED_MS))
        return self._left(now_ms) * 1000 / weight_ms

    def _left(self, now_ms: int) -> float:
        return self._bytes * exp(-max(0, now_ms - self._at_ms) / AVERAGED_MS)
