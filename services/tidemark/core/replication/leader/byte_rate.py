# SPDX-License-Identifier: Apache-2.0
"""How many bytes a second go through somewhere, as an average that forgets; costs nothing while nothing does.

A move whose throttle is below what producers append would never end (rule M2): whoever asks for one is told this rate.
"""

from __future__ import annotations

from math import exp
from typing import Final

AVERAGED_MS: Final = 30_000
"""What is older than this has less than 1/e of the weight of what is new."""
_SHORTEST_MS: Final = 1_000


class ByteRate:
    """Exponentially weighted; while younger than `AVERAGED_MS`, the average over its life, at least a second."""

    __slots__ = ("_at_ms", "_bytes", "_since_ms")

    def __init__(self, now_ms: int) -> None:
        self._since_ms = now_ms
        self._at_ms = now_ms
        self._bytes = 0.0

    def add(self, count: int, now_ms: int) -> None:
        """So many bytes went through now."""
        self._bytes = self._left(now_ms) + count
        self._at_ms = now_ms

    def per_s(self, now_ms: int) -> float:
        """Bytes a second, as of now."""
        age_ms = max(now_ms - self._since_ms, _SHORTEST_MS)
        weight_ms = AVERAGED_MS * (1 - exp(-age_ms / AVERAGED_MS))
        return self._left(now_ms) * 1000 / weight_ms

    def _left(self, now_ms: int) -> float:
        return self._bytes * exp(-max(0, now_ms - self._at_ms) / AVERAGED_MS)
