# SPDX-License-Identifier: Apache-2.0
"""Transactions whose markers are not committed: with the open ones they bound the last stable offset (rule X3)."""

from __future__ import annotations

from collections import deque

from tidemark.core.producer_state import EndedTransaction, ProducerStates
from tidemark.model import Offset


class UncommittedEnds:
    """The ended transactions of one log whose markers are at or above the high watermark.

    A transaction that ended before the log was opened is not known here. So the last stable offset is unknown until the
    high watermark has passed all markers that the log had then.

    Attributes:
        known_from: markers below this offset (exclusive) may be unknown here. Never rises.
        _ended: (first offset, offset of the marker), by the markers.
        _first: the lowest first offset of `_ended`; None where it must be computed.
    """

    __slots__ = ("_ended", "_first", "known_from")

    def __init__(self, known_from: Offset) -> None:
        self.known_from = known_from
        self._ended: deque[tuple[Offset, Offset]] = deque()
        self._first: Offset | None = None

    def add(self, ended: EndedTransaction) -> None:
        """Add the transaction of a marker that was appended."""
        self._ended.append((ended.first_offset, ended.marker_offset))
        self._first = None

    def commit(self, high_watermark: Offset) -> None:
        """Forget the transactions whose markers are below the high watermark."""
        ended = self._ended
        while ended and ended[0][1] < high_watermark:
            ended.popleft()
            self._first = None

    def truncate(self, end_offset: Offset) -> None:
        """Forget the markers that a truncation removed; their transactions are open again."""
        while self._ended and self._ended[-1][1] >= end_offset:
            self._ended.pop()
            self._first = None
        self.known_from = min(self.known_from, end_offset)

    def stable_offset(self, high_watermark: Offset, producers: ProducerStates) -> Offset | None:
        """End (exclusive) of the records below this high watermark whose transactions have committed ends (rule X3).

        None while an end at or above the high watermark may be unknown.
        """
        if high_watermark < self.known_from:
            return None
        stable = high_watermark
        for first in (producers.first_open_offset, self.first_offset if self._ended else None):
            if first is not None and first < stable:
                stable = first
        return stable

    @property
    def first_offset(self) -> Offset | None:
        """The lowest first offset, None without a transaction."""
        if self._first is None and self._ended:
            self._first = min(first for first, _ in self._ended)
        return self._first
