# SPDX-License-Identifier: Apache-2.0
"""Rates of copies, and the time since each grew, from successive reads of their sizes. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Final

LOOKS_APART_S: Final = 0.5
"""Shortest time between two looks from which a rate is computed."""
_FORGOTTEN_S: Final = 60.0
"""Time without a look after which a copy begins again."""
_NEW_WEIGHT: Final = 0.5


@dataclass(frozen=True, slots=True)
class _Sample:
    """A copy at the last look; `at_s` and `bytes_done` are of the last look with a known size."""

    seen_s: float
    at_s: float
    bytes_done: int | None
    grew_at_s: float
    rate_bytes_per_s: float | None = None


class CopyRates:
    """Keeps the last sample of each copy, by any key."""

    def __init__(self) -> None:
        self._samples: dict[Hashable, _Sample] = {}

    def look(self, copies: Mapping[Hashable, int | None], now_s: float) -> None:
        """Note the bytes of all copies (None: unknown); other copies are forgotten. `now_s` is a monotonic time."""
        self._samples = {key: _next(self._samples.get(key), done, now_s) for key, done in copies.items()}

    def rate_bytes_per_s(self, key: Hashable) -> float | None:
        """Rate of a copy; None: not known yet."""
        return self._samples[key].rate_bytes_per_s

    def silent_s(self, key: Hashable) -> float:
        """Seconds without a byte copied, as of the last look."""
        return self._samples[key].seen_s - self._samples[key].grew_at_s


def _next(before: _Sample | None, done: int | None, now_s: float) -> _Sample:
    if before is None or now_s - before.seen_s > _FORGOTTEN_S or (before.bytes_done is None and done is not None):
        return _Sample(now_s, now_s, done, now_s)
    elapsed_s = now_s - before.at_s
    if done is None or before.bytes_done is None or elapsed_s < LOOKS_APART_S:
        return replace(before, seen_s=now_s)
    grown = max(0, done - before.bytes_done)
    rate = grown / elapsed_s
    if before.rate_bytes_per_s is not None:
        rate = _NEW_WEIGHT * rate + (1 - _NEW_WEIGHT) * before.rate_bytes_per_s
    return _Sample(now_s, now_s, done, now_s if grown else before.grew_at_s, rate)
