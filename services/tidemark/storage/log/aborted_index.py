# SPDX-License-Identifier: Apache-2.0
"""The aborted transactions of one log, in memory, and which segments' files lack them (rule X5)."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from tidemark.record.transactions import AbortedTransaction
from tidemark.storage.recovery.aborted_file import AbortedRow, write_aborted
from tidemark.storage.segments.segment import Segment

_COMPLETE: Final = (1 << 63) - 1


class UnwrittenRows(NamedTuple):
    """The rows of the segments that end above `from_offset`, whose files differ from them."""

    from_offset: int
    rows: tuple[AbortedRow, ...]


class AbortedIndex:
    """Rows in the order of their markers; changed and read under `memory_lock`.

    Attributes:
        unwritten_from: files of segments that end at or below it (exclusive end) are complete.
    """

    __slots__ = ("_columns", "unwritten_from")

    def __init__(self, rows: Iterable[AbortedRow] = (), unwritten_from: int = _COMPLETE) -> None:
        self._columns = tuple(array("q") for _ in AbortedRow._fields)
        self.unwritten_from = unwritten_from
        for row in rows:
            self._append(row)

    def __len__(self) -> int:
        return len(self._columns[0])

    def _append(self, row: AbortedRow) -> None:
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)

    def add(self, row: AbortedRow) -> None:
        """Add the transaction of an abort marker that was appended."""
        self._append(row)
        self.unwritten_from = min(self.unwritten_from, row.last_offset)

    def overlapping(self, start_offset: int, end_offset: int) -> tuple[AbortedTransaction, ...]:
        """The transactions with batches that may lie in [start, end)."""
        producers, firsts, lasts, stables = self._columns
        found: list[AbortedTransaction] = []
        for number in range(bisect_right(lasts, start_offset), len(self)):
            if firsts[number] < end_offset:
                found.append(AbortedTransaction(producers[number], firsts[number], lasts[number]))
            if stables[number] >= end_offset:
                break  # the transactions of later markers have no batch below this offset
        return tuple(found)

    def rows(self, start_offset: int = 0, end_offset: int = _COMPLETE) -> Iterator[AbortedRow]:
        """The rows whose markers are in [start, end)."""
        lasts = self._columns[2]
        for number in range(bisect_left(lasts, start_offset), bisect_left(lasts, end_offset)):
            yield AbortedRow(*(column[number] for column in self._columns))

    def truncate(self, end_offset: int) -> None:
        """Drop the rows of markers at and above `end_offset`, which a truncation removes."""
        keep = bisect_left(self._columns[2], end_offset)
        if keep < len(self):
            for column in self._columns:
                del column[keep:]
            self.unwritten_from = min(self.unwritten_from, end_offset)

    def trim(self, start_offset: int) -> None:
        """Drop the rows of markers below `start_offset`, whose segments have left the log with their files."""
        gone = bisect_left(self._columns[2], start_offset)
        for column in self._columns:
            del column[:gone]

    def retain(self, start_offset: int, end_offset: int, markers: Sequence[int]) -> None:
        """Keep the rows of these markers among the rows of [start, end): the cleaner dropped the other markers."""
        kept = set(markers)
        rows = [
            row for row in self.rows() if not start_offset <= row.last_offset < end_offset or row.last_offset in kept
        ]
        self._columns = tuple(array("q") for _ in AbortedRow._fields)
        for row in rows:
            self._append(row)

    def take_unwritten(self) -> UnwrittenRows | None:
        """The rows that files lack, None if all are complete; `put_back` after a failed write."""
        if self.unwritten_from == _COMPLETE:
            return None
        start, self.unwritten_from = self.unwritten_from, _COMPLETE
        return UnwrittenRows(start, tuple(self.rows()))

    def put_back(self, unwritten: UnwrittenRows) -> None:
        """Mark the rows as unwritten again, after files could not be written."""
        self.unwritten_from = min(self.unwritten_from, unwritten.from_offset)


def write_rows(unwritten: UnwrittenRows, segments: Sequence[Segment]) -> None:
    """Replace the files of the segments that lack rows; the caller holds `files_lock`.

    Raises:
        OSError: the disk does not answer, or is full.
    """
    lasts = [row.last_offset for row in unwritten.rows]
    for number, segment in enumerate(segments):
        if number + 1 < len(segments) and segment.next_offset <= unwritten.from_offset:
            continue
        end = segments[number + 1].base_offset if number + 1 < len(segments) else _COMPLETE
        first, past = bisect_left(lasts, segment.base_offset), bisect_left(lasts, end)
        write_aborted(segment.stem, unwritten.rows[first:past])
