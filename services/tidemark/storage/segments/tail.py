# SPDX-License-Identifier: Apache-2.0
"""The last batches of the active segment, by offset and position, so that reads at the tail read no headers."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Final

_KEEP: Final = 256


class Tail:
    """Ends of the last batches, which are contiguous in the file from `position` on.

    Invariant: `next_offsets[i]` and `ends[i]` (both exclusive) belong to the i-th batch at or after `base_offset`.
    """

    __slots__ = ("base_offset", "ends", "next_offsets", "position")

    def __init__(self, base_offset: int, position: int) -> None:
        self.base_offset = base_offset
        self.position = position
        self.next_offsets = array("q")
        self.ends = array("q")

    def trim(self) -> None:
        """Forget older batches beyond a bound."""
        if len(self.ends) >= 2 * _KEEP:
            gone = len(self.ends) - _KEEP
            self.base_offset = self.next_offsets[gone - 1]
            self.position = self.ends[gone - 1]
            del self.next_offsets[:gone], self.ends[:gone]

    def find(self, offset: int, *, end_offset: int, max_bytes: int) -> tuple[int, int]:
        """(start, end) of the whole batches from `offset` (at least `base_offset`), below `end_offset`.

        At most `max_bytes`, except for the first batch; start = end for none.
        """
        ends, next_offsets = self.ends, self.next_offsets
        first = bisect_right(next_offsets, offset)
        start = ends[first - 1] if first else self.position
        limit = bisect_right(next_offsets, end_offset, first)
        if limit == first:
            return start, start
        past = bisect_right(ends, start + max_bytes, first, limit)
        return start, ends[max(past - 1, first)]
