# SPDX-License-Identifier: Apache-2.0
"""One segment of a log: `<base offset>.log`, its counters and its index."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tidemark.model import TidemarkError
from tidemark.record.checks import check_envelope
from tidemark.record.envelope import ENVELOPE_BYTES, MAGICS, Envelope, header_crc, unpack_envelope
from tidemark.storage.files import read_exactly
from tidemark.storage.segments.index import (
    INDEX_SUFFIX,
    NO_TIMESTAMP_US,
    TIME_INDEX_SUFFIX,
    EndMark,
    SegmentIndex,
    load_index,
    read_end_mark,
    read_index_file,
    write_end_mark,
)

LOG_SUFFIX: Final = ".log"
ABORTED_SUFFIX: Final = ".txnindex"
"""Suffix of the file with the aborted transactions of a segment (rule X5)."""
SET_ASIDE_SUFFIX: Final = ".damaged"
"""Suffix of damaged files that are kept for inspection until their records are refetched."""
OFFSET_DIGITS: Final = 20
WALK_BYTES: Final = 4096
"""Largest number of bytes that a walk reads at a time."""


class Damage(Exception):  # noqa: N818 - a finding, judged by rule T5
    """There is no valid batch at a position of a segment."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"{reason} (byte {position})")
        self.position = position
        self.reason = reason


class Span(NamedTuple):
    """Positions to read: `exact` if a wanted batch starts at `start`; `end` is -1 where headers must be read."""

    start: int
    exact: bool
    end: int


class Segment:
    """A file of batches with rising offsets, and its index.

    Invariant: [0, size_bytes) holds complete batches; `next_offset` (exclusive) is where the next segment would start.

    Attributes:
        max_timestamp_us: largest timestamp of the segment.
        first_timestamp_us: largest timestamp of the first batch, None if it was not read.
        index: the index; None while no index is loaded.
        expected_entries: entries of the index files when they were complete, -1 if unknown.
        unindexed_bytes: bytes after the last index entry.
    """

    __slots__ = (
        "base_offset",
        "expected_entries",
        "first_timestamp_us",
        "index",
        "log_path",
        "max_timestamp_us",
        "next_offset",
        "size_bytes",
        "stem",
        "unindexed_bytes",
    )

    def __init__(self, directory: Path, base_offset: int) -> None:
        self.base_offset = base_offset
        name = f"{base_offset:0{OFFSET_DIGITS}d}"
        self.stem = directory / name
        self.log_path = directory / (name + LOG_SUFFIX)
        self.size_bytes = 0
        self.next_offset = base_offset
        self.max_timestamp_us = NO_TIMESTAMP_US
        self.first_timestamp_us: int | None = None
        self.index: SegmentIndex | None = None
        self.expected_entries = -1
        self.unindexed_bytes = 0

    def accept(self, mark: EndMark) -> None:
        """Take the figures from an end mark that fits the file."""
        self.size_bytes = mark.size_bytes
        self.next_offset = mark.next_offset
        self.max_timestamp_us = mark.max_timestamp_us
        self.expected_entries = mark.entries

    def note(self, *, base_offset: int, next_offset: int, length: int, timestamp_us: int, interval_bytes: int) -> None:
        """Count a batch written at the end, with an index entry if one is due; the index must be loaded."""
        index = self.index
        assert index is not None
        if self.unindexed_bytes >= interval_bytes or not index.positions:
            index.add(base_offset, self.size_bytes, self.max_timestamp_us)
            self.unindexed_bytes = 0
        self.unindexed_bytes += length
        self.size_bytes += length
        self.next_offset = next_offset
        if timestamp_us > self.max_timestamp_us:
            self.max_timestamp_us = timestamp_us

    def ensure_index(self, descriptor: int, interval_bytes: int) -> SegmentIndex:
        """The index, loaded; entries that its files lack are read from the log, and lost files are rewritten."""
        index = self.index
        if index is not None:  # another thread may unload the index at any time
            return index
        index = load_index(self.stem)
        index.cut(self.size_bytes)
        lost = len(index) < self.expected_entries
        position = index.positions[-1] if index.positions else 0
        latest_us = index.timestamps[-1] if index.positions else NO_TIMESTAMP_US
        unindexed = 0
        if len(index) != self.expected_entries or self.size_bytes - position > interval_bytes:
            for at, envelope in walk(descriptor, position, self.size_bytes):
                if not index.positions or (unindexed >= interval_bytes and at > index.positions[-1]):
                    index.add(envelope.base_offset, at, latest_us)
                    unindexed = 0
                unindexed += envelope.batch_length
                latest_us = max(latest_us, envelope.max_timestamp_us)
        else:
            unindexed = self.size_bytes - position
        self.unindexed_bytes = unindexed
        self.index = index
        if lost:
            with contextlib.suppress(OSError):  # the index in memory is sufficient; the next load retries
                self.seal()
        return index

    def span(self, index: SegmentIndex, offset: int, *, end_offset: int, max_bytes: int) -> Span:
        """Positions of the batches from `offset` on, as far as the index has them."""
        first = index.floor(offset)
        start = index.positions[first] if first >= 0 else 0
        exact = first >= 0 and index.offsets[first] == offset
        if self.next_offset <= end_offset and self.size_bytes - start <= max_bytes:
            return Span(start, exact, self.size_bytes)
        last = min(bisect_right(index.positions, start + max_bytes), bisect_right(index.offsets, end_offset)) - 1
        if last > first and index.offsets[last] > offset:
            return Span(start, exact, index.positions[last])
        return Span(start, exact, -1)

    def persist(self) -> None:
        """Write the index entries that the files lack."""
        if self.index is not None:
            self.index.persist(self.stem)

    def seal(self) -> None:
        """Write the index and an end mark for the present segment."""
        if self.index is None:
            return  # the segment is unchanged since it was opened, so the end mark is valid
        self.index.persist(self.stem)
        mark = EndMark(self.next_offset, self.size_bytes, self.max_timestamp_us, len(self.index))
        write_end_mark(self.stem, mark)

    def has_whole_index_files(self) -> bool:
        """Whether both index files are complete, with the right end mark. Does not compare entries with the log."""
        first, whole_first = read_index_file(self.stem, INDEX_SUFFIX)
        second, whole_second = read_index_file(self.stem, TIME_INDEX_SUFFIX)
        mark = read_end_mark(self.stem)
        ends = mark is not None and (mark.next_offset, mark.size_bytes) == (self.next_offset, self.size_bytes)
        return ends and whole_first and whole_second and first[0::2] == second[1::2]

    def rewrite_index_files(self, index: SegmentIndex) -> None:
        """Write both index files again, with an end mark.

        Raises:
            OSError: no space, or the disk does not answer; a read then rebuilds the index.
        """
        index.written = 0
        index.persist(self.stem)
        write_end_mark(self.stem, EndMark(self.next_offset, self.size_bytes, self.max_timestamp_us, len(index)))

    def forget_index(self) -> None:
        """Unload the index, which is complete in the files."""
        index, self.index = self.index, None
        if index is not None:
            self.expected_entries = len(index)

    def remove_indexes(self) -> None:
        """Delete the index files, which are rewritten from memory or from the log."""
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            self.stem.with_name(self.stem.name + suffix).unlink(missing_ok=True)
        if self.index is not None:
            self.index.written = 0

    def remove_aborted(self) -> None:
        """Delete the file of aborted transactions."""
        self.stem.with_name(self.stem.name + ABORTED_SUFFIX).unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete the segment; the log file last, as a start finds segments by it."""
        self.remove_indexes()
        self.remove_aborted()
        self.log_path.unlink(missing_ok=True)


def walk(descriptor: int, start: int, end: int) -> Iterator[tuple[int, Envelope]]:
    """(position, envelope) of each batch in [start, end), with the CRC of its header checked and its body unread.

    Raises:
        Damage: a batch is missing.
    """
    position, buffer, buffer_start = start, b"", start
    while position < end:
        at = position - buffer_start
        if at + ENVELOPE_BYTES > len(buffer):
            buffer, buffer_start, at = read_exactly(descriptor, min(WALK_BYTES, end - position), position), position, 0
        envelope = checked_header(buffer, at, position=position, end=end)
        yield position, envelope
        position += envelope.batch_length


def checked_header(buffer: bytes, at: int, *, position: int, end: int) -> Envelope:
    """The envelope at byte `at` of the buffer, which is `position` of the file, whose batches end by `end`.

    Raises:
        Damage: too short, a wrong CRC, an impossible length.
    """
    if at + ENVELOPE_BYTES > len(buffer):
        raise Damage(position, f"{len(buffer) - at} bytes are left where a batch must start")
    envelope = unpack_envelope(buffer, at)
    length = envelope.batch_length
    if envelope.magic not in MAGICS or length < ENVELOPE_BYTES or length % 8 or position + length > end:
        raise Damage(position, "no batch starts here, or the batch is incomplete")
    if header_crc(buffer[at : at + 12], buffer[at + 16 : at + 20]) != envelope.header_crc:
        raise Damage(position, "the header of a batch is damaged")
    return envelope


def skip_to(descriptor: int, offset: int, *, start: int, end: int) -> int:
    """Position of the first batch in [start, end) whose records do not all lie below `offset`; `end` if none.

    Raises:
        Damage: a header before this batch is damaged, or the batch before a hole.
    """
    before, found = -1, end
    for position, envelope in walk(descriptor, start, end):
        if envelope.next_offset > offset:
            if envelope.base_offset <= offset:
                return position
            found = position
            break
        before = position
    if before >= 0:
        # A hole at the offset: compaction, or the header of another batch, or a damaged last_offset_delta. Only the CRC
        # of the body covers this field, so the CRC of the previous batch is used.
        _check_whole(descriptor, before, found)
    return found


def fit(descriptor: int, *, start: int, end: int, end_offset: int, max_bytes: int) -> int:
    """End of the whole batches from `start` that lie below `end_offset`, at most `max_bytes` except for the first.

    Raises:
        Damage: a header in this range is damaged.
    """
    fitting = start
    for position, envelope in walk(descriptor, start, end):
        past = position + envelope.batch_length
        if position == start and envelope.next_offset > end_offset:
            # Reads end where batches end, unless last_offset_delta is damaged.
            _check_whole(descriptor, position, past)
        if envelope.next_offset > end_offset or (past - start > max_bytes and position > start):
            break
        fitting = past
    return fitting


def _check_whole(descriptor: int, start: int, end: int) -> None:
    try:
        check_envelope(read_exactly(descriptor, end - start, start))
    except TidemarkError as error:
        raise Damage(start, error.message) from error
