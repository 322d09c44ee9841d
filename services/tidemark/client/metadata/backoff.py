# SPDX-License-Identifier: Apache-2.0
"""Pauses between retries, and the timeout of each attempt; both double.

Pauses have jitter, so that many clients do not retry at the same time.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final

from tidemark.model import ErrorCode, TidemarkError

FIRST_S: Final = 0.02
MAX_S: Final = 0.4
ATTEMPT_S_MAX: Final = 30.0
METADATA_ATTEMPT_S_MAX: Final = 8.0
"""Shorter than for other requests, because a broker that starts meanwhile is only asked by the next attempt."""
_ATTEMPT_S_MIN: Final = 0.01


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


class AttemptTimeout:
    """The timeout of each attempt of one series: twice as long after an attempt that timed out.

    An overloaded broker answers late. Attempts of a fixed time could then all time out, and each costs the broker the
    work of an answer.
    """

    __slots__ = ("_first_s", "_max_s", "_next_s")

    def __init__(self, first_s: float, max_s: float = ATTEMPT_S_MAX) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._next_s = first_s

    def within(self, left_s: float) -> float:
        """Return the seconds of the next attempt, of `left_s` that remain."""
        return max(_ATTEMPT_S_MIN, min(self._next_s, left_s))

    def note(self, errors: Iterable[TidemarkError]) -> None:
        """Lengthen the next attempt if a broker did not answer the last one in time, even if other brokers answered."""
        if any(error.code is ErrorCode.REQUEST_TIMED_OUT for error in errors):
            self._next_s = min(2 * self._next_s, self._max_s)

    def reset(self) -> None:
        """Return to the first timeout, after a success."""
        self._next_s = self._first_s
