# SPDX-License-Identifier: Apache-2.0
"""Damage of sealed segments below the high watermark: finding it, and replacing the bad bytes (rule T6).

A repaired segment is written beside the damaged one, checked from its first byte to its last, and swapped in as a
cleaned segment is (`recovery/segment_swap.py`). Every other segment stays as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from tidemark.model import TidemarkError
from tidemark.record.envelope import ENVELOPE_BYTES, Batch
from tidemark.storage.files import Descriptor, read_exactly, storage_error, write_all
from tidemark.storage.log.cleaning import CleaningView, SegmentCleaning
from tidemark.storage.recovery.segment_swap import cleaned_path
from tidemark.storage.segments.index import SegmentIndex
from tidemark.storage.segments.scan import checked_batches
from tidemark.storage.segments.segment import Damage, Segment, checked_header

_COPY_BYTES: Final = 1 << 20

Pace = Callable[[int], None]
"""Called with the bytes of each read or write; returns when the next one may start, raises to end the work."""


class DamagedRange(NamedTuple):
    """Bytes of a segment that hold no valid batch, from a batch that is damaged to the next one that is not.

    Attributes:
        base_offset: of the segment.
        start_position, end_position: bytes of its file, the end exclusive.
        start_offset, end_offset: offsets that only the damaged batches can have held, the end exclusive.
        reason: of the first damaged batch.
    """

    base_offset: int
    start_position: int
    end_position: int
    start_offset: int
    end_offset: int
    reason: str


class Patch(NamedTuple):
    """The batches of another replica for a damaged range, in offset order."""

    damaged: DamagedRange
    batches: Sequence[Batch]


class NotJoined(Exception):  # noqa: N818 - a finding about a patch
    """The patches and the bytes around them are no log."""


def find_damage(cleaning: SegmentCleaning, segment: Segment, pace: Pace) -> list[DamagedRange]:
    """Read a sealed segment, and check every batch as a replicated batch is.

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


def _extent(opened: Descriptor, segment: Segment, damage: Damage, position: int, offset: int) -> DamagedRange:
    """The damage from `position` on, where the batch at or after `offset` starts.

    The damage ends at the next good batch, as far as good headers lead there. A damaged header hides the length of its
    batch, and a record may look like a batch: the damage then ends with the segment.
    """
    size, at = segment.size_bytes, position
    end_position, end_offset = size, segment.next_offset
    for following in _next_positions(opened, at, size):
        try:
            [(_, envelope)] = islice(checked_batches(opened.number, following, size, _uncounted), 1)
        except Damage:
            continue
        if offset < envelope.base_offset and envelope.next_offset <= segment.next_offset:
            end_position, end_offset = following, envelope.base_offset
            break
    return DamagedRange(segment.base_offset, position, end_position, offset, end_offset, damage.reason)


def _next_positions(opened: Descriptor, position: int, size: int) -> Iterator[int]:
    """Where the next batches start, as long as each header before is good."""
    while True:
        header = read_exactly(opened.number, min(ENVELOPE_BYTES, size - position), position)
        try:
            position += checked_header(header, 0, position=position, end=size).batch_length
        except Damage:
            return
        if position == size:
            return
        yield position


def _uncounted(size_bytes: int) -> None:
    """The reader of the segment counts the bytes."""


def repair_segment(
    cleaning: SegmentCleaning,
    view: CleaningView,
    segment: Segment,
    patches: Sequence[Patch],
    *,
    may_hold_holes: bool,
    pace: Pace,
) -> bool:
    """Write a new segment file with the patches in place of the damaged ranges, and swap it in.

    Args:
        view: that the segment is of; the log may have changed since.
        patches: rising, one for each damaged range.
        may_hold_holes: compaction may have left holes in the log (rule L1).

    Returns:
        False: the log was truncated, trimmed or closed; nothing was changed.

    Raises:
        NotJoined: the patched segment would not be whole; nothing was changed.
        TidemarkError: DISK_FULL: nothing was changed. STORAGE_ERROR.
        OSError: a read failed, or the segment was removed meanwhile.
    """
    path = cleaned_path(view.path, segment.base_offset, segment.next_offset)
    repaired = Segment(view.path, segment.base_offset)
    repaired.index = SegmentIndex()
    with cleaning.rewriting:
        source = cleaning.open(segment)
        try:
            target = Descriptor(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            size = _write(source, target, segment, patches, pace)
            _note_all(repaired, target, size, view.interval_bytes, segment.next_offset, may_hold_holes, pace)
            cleaning.make_durable(target)
            return cleaning.replace(view, [segment], repaired, path)
        finally:
            path.unlink(missing_ok=True)


def _write(source: Descriptor, target: Descriptor, segment: Segment, patches: Sequence[Patch], pace: Pace) -> int:
    """Copy the good bytes, write the patches between them; gives the size in bytes."""
    position = written = 0
    for damaged, batches in patches:
        written = _copy(source, target, position, damaged.start_position, written, pace)
        content = b"".join(bytes(batch.data) for batch in batches)
        _put(target, content, written)
        written += len(content)
        position = damaged.end_position
    return _copy(source, target, position, segment.size_bytes, written, pace)


def _copy(source: Descriptor, target: Descriptor, start: int, end: int, written: int, pace: Pace) -> int:
    for position in range(start, end, _COPY_BYTES):
        content = read_exactly(source.number, min(_COPY_BYTES, end - position), position)
        _put(target, content, written)
        written += len(content)
        pace(len(content))
    return written


def _put(target: Descriptor, content: bytes, position: int) -> None:
    try:
        write_all(target.number, content, position)
    except OSError as error:
        raise storage_error("write a repaired segment", error) from error


def _note_all(
    repaired: Segment,
    target: Descriptor,
    size: int,
    interval_bytes: int,
    next_offset: int,
    may_hold_holes: bool,
    pace: Pace,
) -> None:
    """Check the written file from its first byte to its last, and index it."""
    epoch = -1
    try:
        for _, envelope in checked_batches(target.number, 0, size, pace):
            gap = envelope.base_offset - repaired.next_offset
            if gap < 0 or (gap > 0 and not may_hold_holes) or envelope.leader_epoch < epoch:
                raise NotJoined(f"the batch at {envelope.base_offset} does not continue at {repaired.next_offset}")
            repaired.note(
                base_offset=envelope.base_offset,
                next_offset=envelope.next_offset,
                length=envelope.batch_length,
                timestamp_us=envelope.max_timestamp_us,
                interval_bytes=interval_bytes,
            )
            epoch = envelope.leader_epoch
    except (Damage, TidemarkError) as error:
        raise NotJoined(str(error)) from error
    missing = next_offset - repaired.next_offset
    if missing < 0 or (missing > 0 and not may_hold_holes):
        raise NotJoined(f"the segment would end at {repaired.next_offset}, not at {next_offset}")
    repaired.next_offset = next_offset  # a hole at the end: the end mark has the offset
