# SPDX-License-Identifier: Apache-2.0
"""The aborted transactions of a log at its start: rows of the files, and rows of a replay (rule X5).

A checkpoint covers the rows of every marker below the recovery point, so the rows above come from the batches. Rows of
a segment come from its batches, too, if its file is damaged, or if the segment has no end mark. A replacement of
segments writes the file before the end mark.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Collection, Sequence
from typing import Final

from tidemark.core.producer_state import EndedTransaction, ProducerStates
from tidemark.storage.files import BadFile
from tidemark.storage.recovery.aborted_file import AbortedRow, read_aborted
from tidemark.storage.segments.segment import Segment

_NEVER: Final = (1 << 63) - 1
_log = logging.getLogger(__name__)


def aborted_row(ended: EndedTransaction, states: ProducerStates) -> AbortedRow:
    """The row of an abort marker that these producer states have just observed."""
    opened = states.first_open_offset
    stable = ended.marker_offset + 1 if opened is None else opened
    return AbortedRow(ended.producer_id, ended.first_offset, ended.marker_offset, stable)


class StoredAborted:
    """The aborted transactions: the rows of the files, then the rows of the replay.

    Attributes:
        replayed_from: the replay must know the transactions that were open at this offset. The offset is at most the
            offset of the first row that the files may lack.
        unwritten_from: files of the segments that end above it (exclusive) differ from the rows.
        _trusted: for each segment, rows of markers at or above this offset come from the replay.
    """

    def __init__(self, segments: Sequence[Segment], unsealed: Collection[Segment], recovery_point: int) -> None:
        self.replayed_from = self.unwritten_from = _NEVER
        self._bases = [segment.base_offset for segment in segments]
        self._trusted: list[int] = []
        self._rows: list[AbortedRow] = []
        for segment in segments:
            self._read(segment, recovery_point, is_complete=segment not in unsealed)

    def _read(self, segment: Segment, recovery_point: int, *, is_complete: bool) -> None:
        base, trusted = segment.base_offset, max(recovery_point, segment.base_offset)
        rows: Sequence[AbortedRow] = ()
        try:
            rows = read_aborted(segment.stem)
        except BadFile as bad:
            _log.error("the aborted transactions of a segment are read from its batches", extra={"why": str(bad)})
            is_complete = False
        if not is_complete:
            trusted = base
            self.replayed_from = min(self.replayed_from, base)
            self.unwritten_from = min(self.unwritten_from, base)
        kept = [row for row in rows if base <= row.last_offset < min(trusted, segment.next_offset)]
        if len(kept) < len(rows):
            self.unwritten_from = min(self.unwritten_from, base)
        self._trusted.append(trusted)
        self._rows += kept

    def replay(self, ended: EndedTransaction | None, states: ProducerStates) -> None:
        """Apply a batch of a replay; `ended`: the transaction that the batch ended."""
        if ended is None or ended.commit:
            return
        marker = ended.marker_offset
        if marker >= self._trusted[bisect_right(self._bases, marker) - 1]:
            self._rows.append(aborted_row(ended, states))
            self.unwritten_from = min(self.unwritten_from, marker)

    @property
    def rows(self) -> Sequence[AbortedRow]:
        """The rows of all aborted transactions, by their markers."""
        return sorted(self._rows, key=lambda row: row.last_offset)

    def of(self, segment: Segment) -> Sequence[AbortedRow]:
        """The aborted transactions whose markers are in the segment."""
        return [row for row in self.rows if segment.base_offset <= row.last_offset < segment.next_offset]
