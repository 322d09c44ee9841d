# SPDX-License-Identifier: Apache-2.0
"""Loaded indexes of sealed segments, under a bound: the least recently used are unloaded and read again on demand.

Indexes of active segments do not count: each replica with appends has one, which begins small.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final, Protocol

ENTRY_BYTES: Final = 24
LIMIT_BYTES: Final = 64 << 20


class Indexed(Protocol):
    """A segment whose index can be unloaded."""

    def forget_index(self) -> None:
        """Unload the index of the segment."""


class LoadedIndexes:
    """Thread-safe. After `drop` returned, the index of that segment is never unloaded by this object."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._sizes: OrderedDict[Indexed, int] = OrderedDict()
        self._total_bytes = 0

    @property
    def total_bytes(self) -> int:
        """Memory of the loaded indexes, in bytes."""
        return self._total_bytes

    def use(self, segment: Indexed, entries: int) -> None:
        """Count the loaded index of a segment, which may unload other indexes."""
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
        """No longer count a segment that was removed, or is active again."""
        with self._lock:
            self._total_bytes -= self._sizes.pop(segment, 0)
