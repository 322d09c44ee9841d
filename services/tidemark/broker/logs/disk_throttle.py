# SPDX-License-Identifier: Apache-2.0
"""The throttle of background reads and writes: log cleaning, scrubbing and log directory moves."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from tidemark.core.quotas.bucket import Bucket
from tidemark.runtime.configuration.settings import UNLIMITED

_CHUNK_BYTES: Final = 1 << 20
_CHUNK_BYTES_MIN: Final = 16 << 10
_CHUNKS_A_SECOND_MIN: Final = 4


class DiskThrottle:
    """Limits the bytes per second of all work that shares the throttle.

    Attributes:
        bytes_per_s: the limit, -1 for none; may be changed at any time.

    Args:
        burst_s: bytes of this time are allowed in one burst.
    """

    def __init__(
        self, bytes_per_s: int = UNLIMITED, *, burst_s: float = 0.0, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.bytes_per_s = bytes_per_s
        self._burst_s = burst_s
        self._now_s = now_s
        self._bucket = Bucket()

    def take(self, size_bytes: int) -> float:
        """Count bytes that were read or written; returns the seconds until the next ones are allowed."""
        if self.bytes_per_s == UNLIMITED:
            return 0.0
        return self._bucket.debit(size_bytes, self.bytes_per_s, self._now_s(), self._burst_s)

    def chunk_bytes(self) -> int:
        """Size of the next step; small steps spread a low limit evenly."""
        if self.bytes_per_s == UNLIMITED:
            return _CHUNK_BYTES
        return min(_CHUNK_BYTES, max(_CHUNK_BYTES_MIN, self.bytes_per_s // _CHUNKS_A_SECOND_MIN))
