# SPDX-License-Identifier: Apache-2.0
"""Indexes of segments that are not appended to any more, in memory under a bound: the least recently used are let go.

Those of active segments are not among them; they are as many as there are replicas that are appended to, and are small
at first. An index is read again when it is wanted.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final, Protocol

ENTRY_BYTES: Final = 24
LIMIT_BYTES: Final = 64 << 20


class Indexed(Protocol):
    """A segment, as far as this goes."""

    def forget_index(self) -> None:
        """Let go of the index in memory."""


class LoadedIndexes:
    """Safe for threads. A segment that has been dropped is not touched any more when `drop` returns."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._sizes: OrderedDict[Indexed, int] = OrderedDict()
        self._total_bytes = 0

    @property
    def total_bytes(self) -> int:
        """What the indexes take."""
        return self._total_bytes

    def use(self, segment: Indexed, entries: int) -> None:
        """The index of a segment is loaded and has so many entries; others may go for it."""
        with self._lock:
            if segment in self._sizes:
                self._sizes.move_to_end(segment)
                return
            self._sizes[segment] = entries * ENTRY_BYTES
            self._total_bytes += entries * ENTRY_BYTES
            while self._total_bytes > self._limit_bytes and len(self._sizes) > 1:
                oldest, size_bytes = self._sizes.popitem(last=False)
                self._total_bytes -= size_bytes
                oldest.forget_index()

    def drop(self, segment: Indexed) -> None:
        """It has gone, or is appended to again: its index is its own affair."""
        with self._lock:
            self._total_bytes -= self._sizes.pop(segment, 0)
