# SPDX-License-Identifier: Apache-2.0
"""Finds damage in sealed segments below the high watermark, and replaces the damaged bytes (rule T6).

A repaired segment is written to a new file in the same directory, and checked from its first byte to its last. The new
file is swapped in as a cleaned segment is (`recovery/segment_swap.py`). Other segments are not changed. Damaged bytes
without a valid copy on any replica are copied, so that each range is repaired independently.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from tidemark.model import TidemarkError
from tidemark.record.envelope import ENVELOPE_BYTES, Batch
from tidemark.storage.files import Descriptor, drop_from_page_cache, read_exactly, storage_error, write_all
from tidemark.storage.log.cleaning import CleaningView, SegmentCleaning
from tidemark.storage.recovery.segment_swap import cleaned_path
from tidemark.storage.segments.index import SegmentIndex, load_index
from tidemark.storage.segments.scan import checked_batches
from tidemark.storage.segments.segment import Damage, Segment, checked_header

_COPY_BYTES: Final = 1 << 20

Pace = Callable[[int], None]
"""Called with the bytes of each read or write; returns when the next one may start, raises to end the work."""


class DamagedRange(NamedTuple):
    """Bytes of a segment without a valid batch, from a damaged batch to the next valid batch.

    Attributes:
        base_offset: base offset of the segment.
        start_position, end_position: byte range of its file, the end exclusive.
        start_offset, end_offset: range of offsets that can only belong to the damaged batches, the end exclusive.
        reason: reason of the first damaged batch.
    """

    base_offset: int
    start_position: int
    end_position: int
    start_offset: int
    end_offset: int
    reason: str


class Patch(NamedTuple):
    """The batches of another replica for a damaged range, in offset order; None: the damaged bytes stay."""

    damaged: DamagedRange
    batches: Sequence[Batch] | None


class _Kept(NamedTuple):
    """A damaged range at its place in the new file; the end offset is exclusive."""

    start_position: int
    end_position: int
    end_offset: int


class NotJoined(Exception):  # noqa: N818 - a finding about a patch
    """The patches and the bytes around them are not a log."""


def find_damage(cleaning: SegmentCleaning, segment: Segment, pace: Pace) -> list[DamagedRange]:
    """Read a sealed segment, and check every batch as a produced batch is.

    Raises:
        OSError: the disk does not answer, or the segment was removed meanwhile.
    """
    opened, size = cleaning.open(segment), segment.size_bytes
    position, offset = 0, segment.base_offset
    found: list[DamagedRange] = []
    while position < size:
        try:
            for at, envelope in checked_batches(opened.number, position, size, pace):
                if envelope.base_offset < offset or envelope.next_offset > segment.next_offset:
                    raise Damage(at, f"the batch at {envelope.base_offset} is outside its place in the segment")
                position, offset = at + envelope.batch_length, envelope.next_offset
        except Damage as damage:
            found.append(_extent(opened, segment, damage, position, offset))
            position, offset = found[-1].end_position, found[-1].end_offset
    return found


def find_damage_on_disk(cleaning: SegmentCleaning, segment: Segment, pace: Pace) -> list[DamagedRange]:
    """`find_damage` without the page cache, which may still hold the bytes that were written.

    The bytes that are read leave the page cache immediately, so a pass through a directory does not evict other pages.

    Raises:
        OSError: the errors of `find_damage`.
    """
    opened, size = cleaning.open(segment), segment.size_bytes
    read = 0

    def drop(size_bytes: int) -> None:
        nonlocal read
        drop_from_page_cache(opened.number, read, size_bytes)
        read += size_bytes
        pace(size_bytes)

    drop_from_page_cache(opened.number, 0, size)
    try:
        return find_damage(cleaning, segment, drop)
    finally:
        drop_from_page_cache(opened.number, 0, size)


def _extent(opened: Descriptor, segment: Segment, damage: Damage, position: int, offset: int) -> DamagedRange:
    """The damage from `position` on, where the batch at or after `offset` starts, to the next valid batch.

    A damaged header hides the length of its batch, and a record may contain the bytes of a batch. So the search
    continues at the next entry of the index, whose blocks have separate CRCs. Without the index file, the damage ends
    with the segment.
    """
    size = segment.size_bytes
    index = segment.index or load_index(segment.stem)
    end_position, end_offset = size, segment.next_offset
    for following in _next_positions(opened, position, size, index):
        try:
            [(_, envelope)] = islice(checked_batches(opened.number, following, size, _uncounted), 1)
        except Damage:
            continue
        if offset < envelope.base_offset and envelope.next_offset <= segment.next_offset:
            end_position, end_offset = following, envelope.base_offset
            break
    return DamagedRange(segment.base_offset, position, end_position, offset, end_offset, damage.reason)


def _next_positions(opened: Descriptor, position: int, size: int, index: SegmentIndex) -> Iterator[int]:
    """The start of the next batches: after a batch with a valid header, else at the next index entry."""
    while True:
        header = read_exactly(opened.number, min(ENVELOPE_BYTES, size - position), position)
        try:
            position += checked_header(header, 0, position=position, end=size).batch_length
        except Damage:
            number = bisect_right(index.positions, position)
            position = index.positions[number] if number < len(index) else size
        if position >= size:
            return
        yield position


def _uncounted(size_bytes: int) -> None:
    """Has no effect: the reader of the segment counts these bytes."""


def repair_segment(
    cleaning: SegmentCleaning,
    view: CleaningView,
    segment: Segment,
    patches: Sequence[Patch],
    *,
    holes_until: int,
    pace: Pace,
) -> bool:
    """Write a new segment file with the patches in place of the damaged ranges, and swap it in.

    Args:
        view: that the segment is of; the log may have changed since.
        patches: one for each damaged range, in ascending order.
        holes_until: below this offset (exclusive) the log may have holes: compaction (rule L1), or the log start.

    Returns:
        False: the log was truncated, trimmed or closed; then the log is unchanged.

    Raises:
        NotJoined: the patched segment would have a gap; the log is unchanged.
        TidemarkError: DISK_FULL: the log is unchanged. STORAGE_ERROR.
        OSError: a read failed, or the segment was removed meanwhile.
    """
    path = cleaned_path(view.path, segment.base_offset, segment.next_offset)
    with cleaning.rewriting:
        source = cleaning.open(segment)
        try:
            target = Descriptor(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            size, kept = _write(source, target, segment, patches, pace)
            repaired = _Join(segment, view, holes_until, pace).join(target, size, kept)
            cleaning.make_durable(target)
            return cleaning.replace(view, [segment], repaired, path)
        finally:
            path.unlink(missing_ok=True)


def _write(
    source: Descriptor, target: Descriptor, segment: Segment, patches: Sequence[Patch], pace: Pace
) -> tuple[int, list[_Kept]]:
    """Copy the valid bytes and write the patches between them; returns the size in bytes, and the remaining damage."""
    position = written = 0
    kept: list[_Kept] = []
    for damaged, batches in patches:
        written = _copy(source, target, position, damaged.start_position, written, pace)
        start = written
        if batches is None:
            written = _copy(source, target, damaged.start_position, damaged.end_position, written, pace)
            kept.append(_Kept(start, written, damaged.end_offset))
        else:
            content = b"".join(bytes(batch.data) for batch in batches)
            _put(target, content, written)
            written += len(content)
        position = damaged.end_position
    return _copy(source, target, position, segment.size_bytes, written, pace), kept


def _copy(source: Descriptor, target: Descriptor, start: int, end: int, written: int, pace: Pace) -> int:
    """Copy [start, end), with zeros for bytes that the file has lost; returns the end in the target."""
    for position in range(start, end, _COPY_BYTES):
        size = min(_COPY_BYTES, end - position)
        _put(target, read_exactly(source.number, size, position).ljust(size, b"\0"), written)
        written += size
        pace(size)
    return written


def _put(target: Descriptor, content: bytes, position: int) -> None:
    try:
        write_all(target.number, content, position)
    except OSError as error:
        raise storage_error("write a repaired segment", error) from error


class _Join:
    """Checks a written file from its first byte to its last, except for the damage that is left, and indexes it."""

    def __init__(self, segment: Segment, view: CleaningView, holes_until: int, pace: Pace) -> None:
        self._segment = segment
        self._view = view
        self._holes_until = holes_until
        self._pace = pace
        self._epoch = -1
        self._repaired = Segment(view.path, segment.base_offset)
        self._repaired.index = SegmentIndex()

    def join(self, target: Descriptor, size: int, kept: Sequence[_Kept]) -> Segment:
        """The segment of the file. Raises NotJoined."""
        repaired, segment = self._repaired, self._segment
        if size == 0:
            raise NotJoined("no batch is left in the segment")
        position = 0
        for one in kept:
            self._note_batches(target, position, one.start_position)
            repaired.size_bytes, repaired.next_offset = one.end_position, one.end_offset
            # so the next batch gets an index entry, and can be found without the damaged header
            repaired.unindexed_bytes = self._view.interval_bytes
            position = one.end_position
        self._note_batches(target, position, size)
        if kept:  # a damaged batch may have the largest timestamp
            repaired.max_timestamp_us = max(repaired.max_timestamp_us, segment.max_timestamp_us)
        self._continue_at(segment.next_offset, "the next segment")
        repaired.next_offset = segment.next_offset  # for a hole at the end, the end mark has the offset
        return repaired

    def _note_batches(self, target: Descriptor, start: int, end: int) -> None:
        try:
            for _, envelope in checked_batches(target.number, start, end, self._pace):
                self._continue_at(envelope.base_offset, "a batch")
                if envelope.leader_epoch < self._epoch:
                    raise NotJoined(f"the batch at {envelope.base_offset} has leader epoch {envelope.leader_epoch}")
                self._repaired.note(
                    base_offset=envelope.base_offset,
                    next_offset=envelope.next_offset,
                    length=envelope.batch_length,
                    timestamp_us=envelope.max_timestamp_us,
                    interval_bytes=self._view.interval_bytes,
                )
                self._epoch = envelope.leader_epoch
        except (Damage, TidemarkError) as error:
            raise NotJoined(str(error)) from error

    def _continue_at(self, offset: int, what: str) -> None:
        reached = self._repaired.next_offset
        if offset < reached or (reached < offset and offset > self._holes_until):
            raise NotJoined(f"{what} at {offset} does not continue at {reached}")
