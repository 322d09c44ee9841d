# SPDX-License-Identifier: Apache-2.0
"""The segments of a log: which there are, which holds an offset, and how the list changes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tidemark.storage.files import DELETED_SUFFIX, Descriptor, has_no_room, write_temporary
from tidemark.storage.log.context import LogContext
from tidemark.storage.recovery.log_loader import Restart, make_segment, restart_empty
from tidemark.storage.segments.descriptor_pool import DescriptorPool
from tidemark.storage.segments.index import INDEX_SUFFIX, NO_TIMESTAMP_US, TIME_INDEX_SUFFIX, SegmentIndex
from tidemark.storage.segments.segment import ABORTED_SUFFIX, LOG_SUFFIX, Segment, walk
from tidemark.storage.segments.tail import Tail

NOT_TRUNCATED: Final = (1 << 63) - 1

Placed = tuple[int, int, int, int]
"""A batch as written: base offset, next offset (exclusive), length in bytes, largest timestamp."""


class Boundary(NamedTuple):
    """The end of the log after a truncation: in this segment, before `position`, at `end_offset` (exclusive)."""

    segment: Segment
    segment_index: SegmentIndex
    position: int
    end_offset: int


class LogSegments:
    """The list of segments, the log start and end, and the last batches of the active segment.

    Only the append thread and the cleaner change the list, under `files_lock`; each assignment is made under
    `memory_lock`. The attributes are replaced as a whole, so a reader of one attribute needs no lock.

    Attributes:
        all: the segments in offset order, contiguous, at least one; the last is the active segment.
        start_offset: first offset of the log, inclusive.
        end_offset: next offset of the log, exclusive; every byte below has been written.
        truncations: counts the beginnings and the ends of truncations, and the close.
        swaps: counts the beginnings and the ends of replacements by cleaned segments.
    """

    __slots__ = (
        "_context",
        "_lowest_truncation",
        "_pool",
        "_tail",
        "_trimmed",
        "all",
        "end_offset",
        "start_offset",
        "swaps",
        "truncations",
    )

    def __init__(
        self,
        segments: Sequence[Segment],
        *,
        start_offset: int,
        end_offset: int,
        context: LogContext,
        pool: DescriptorPool,
    ) -> None:
        self.all = tuple(segments)
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.truncations = 0
        self.swaps = 0
        self._context = context
        self._pool = pool
        self._tail = Tail(end_offset, self.all[-1].size_bytes)
        self._lowest_truncation = NOT_TRUNCATED
        self._trimmed: tuple[Segment, ...] = ()
        """Segments below the first of `all`, oldest first, whose files wait for a checkpoint."""

    # -- finding

    @property
    def active(self) -> Segment:
        """The segment that batches are appended to."""
        return self.all[-1]

    @property
    def moves(self) -> int:
        """Changes whenever bytes of a file were truncated or replaced: a read across a change is not consistent."""
        return self.truncations + self.swaps

    def size_bytes(self) -> int:
        """Size of all segments, in bytes."""
        return sum(segment.size_bytes for segment in self.all)

    def bytes_from(self, offset: int) -> int:
        """Estimated bytes from this offset to the end, from memory only, as if all records of a segment had the same
        size.
        """
        segments, end, found = self.all, self.end_offset, 0
        for segment in reversed(segments):
            base = segment.base_offset
            if base < offset:
                records = end - base
                return found + (segment.size_bytes * max(0, end - offset) // records if records > 0 else 0)
            found, end = found + segment.size_bytes, base
        return found

    def containing(self, offset: int) -> Segment:
        """The segment with the largest base offset at or below `offset`."""
        segments = self.all
        low, high = 0, len(segments) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if segments[middle].base_offset <= offset:
                low = middle
            else:
                high = middle - 1
        return segments[low]

    def after(self, segment: Segment) -> Segment | None:
        """The segment that follows another one."""
        return next((other for other in self.all if other.base_offset > segment.base_offset), None)

    def locate(self, offset: int, *, end_offset: int, max_bytes: int) -> tuple[Segment, int, int]:
        """Segment, start and stop position of the batches from `offset`; stop is -1 where an index must be read.

        The caller holds `memory_lock`.
        """
        tail = self._tail
        if offset >= tail.base_offset:
            start, stop = tail.find(offset, end_offset=end_offset, max_bytes=max_bytes)
            return self.all[-1], start, stop
        return self.containing(offset), 0, -1

    def open(self, segment: Segment) -> Descriptor:
        """The file of a segment. Raises OSError, also for a removed file."""
        descriptor = self._pool.get(segment, segment.log_path)
        if self._context.broken or self.containing(segment.base_offset) is not segment:
            self._pool.drop(segment)  # the segment has left the log before: no later call would drop its file
        return descriptor

    def index_of(self, segment: Segment, descriptor: Descriptor) -> SegmentIndex:
        """The index, loaded if it is not in memory; the caller holds `memory_lock`."""
        index = segment.ensure_index(descriptor.number, self._context.settings.index_interval_bytes)
        if segment is not self.all[-1]:
            self._pool.indexes.use(segment, len(index))
        return index

    # -- appending

    def publish(self, active: Segment, descriptor: Descriptor, placed: Sequence[Placed]) -> None:
        """Make written batches part of the log; the caller holds `memory_lock`."""
        interval_bytes, tail = self._context.settings.index_interval_bytes, self._tail
        active.ensure_index(descriptor.number, interval_bytes)  # a checkpoint may have unloaded the index
        for base, following, length, timestamp_us in placed:
            active.note(
                base_offset=base,
                next_offset=following,
                length=length,
                timestamp_us=timestamp_us,
                interval_bytes=interval_bytes,
            )
            tail.next_offsets.append(following)
            tail.ends.append(active.size_bytes)
        tail.trim()
        self.end_offset = following

    def add(self, segment: Segment) -> None:
        """Make this empty segment the active one; the caller holds both locks and has sealed the active segment."""
        sealed = self.all[-1]
        self.all = (*self.all, segment)
        self._tail = Tail(self.end_offset, 0)
        if sealed.index is not None:
            self._pool.indexes.use(sealed, len(sealed.index))

    def restart_at(self, base_offset: int) -> None:
        """Replace the empty active segment by a segment with this base offset; the caller holds both locks."""
        old = self.all[-1]
        self._remove_trimmed()
        segment = make_segment(self._context.path, base_offset)
        self.all = (segment,)
        self._tail = Tail(base_offset, 0)
        self._pool.drop(old)
        if old.base_offset != base_offset:
            old.remove()

    def extend_to(self, end_offset: int) -> None:
        """Set the log end past the last batch, as after a truncation in a hole; the caller holds both locks."""
        if self.end_offset < end_offset:
            self.end_offset = self.all[-1].next_offset = end_offset
            self._tail = Tail(end_offset, self.all[-1].size_bytes)

    # -- truncating

    def take_lowest_truncation(self) -> int:
        """The lowest end of truncations since the last call, `NOT_TRUNCATED` for none.

        At or past this offset, batches of a copy may differ from the batches of this log.
        """
        with self._context.memory_lock:
            lowest, self._lowest_truncation = self._lowest_truncation, NOT_TRUNCATED
            return lowest

    def _begin_truncation(self, end_offset: int) -> None:
        self.truncations += 1
        self._lowest_truncation = min(self._lowest_truncation, end_offset)

    def boundary(self, end_offset: int) -> Boundary:
        """The end of the log after a truncation to `end_offset`: where its last batch at or below this offset ends.

        The caller holds `files_lock`. Raises OSError, Damage.
        """
        segment = self.containing(end_offset)
        descriptor = self.open(segment)
        with self._context.memory_lock:
            index = segment.ensure_index(descriptor.number, self._context.settings.index_interval_bytes)
            before = index.floor(end_offset) - 1  # the batch of the last entry may span the offset, after a hole
            start = index.positions[before] if before >= 0 else 0
        position, reached = start, segment.base_offset
        for at, envelope in walk(descriptor.number, start, segment.size_bytes):
            if envelope.next_offset > end_offset:
                end_offset = min(end_offset, envelope.base_offset)
                break
            position, reached = at + envelope.batch_length, envelope.next_offset
        return Boundary(segment, index, position, max(reached, min(self.start_offset, end_offset)))

    def truncate(self, boundary: Boundary) -> tuple[Segment, ...]:
        """Set the log end, in memory; returns the segments to `remove`. The caller holds both locks."""
        segment, index, position, end_offset = boundary
        self._begin_truncation(end_offset)
        dropped = tuple(other for other in self.all if other.base_offset > segment.base_offset)
        self.all = self.all[: len(self.all) - len(dropped)]
        self._pool.indexes.drop(segment)
        segment.index = index  # the active segment's index stays loaded
        self.end_offset = end_offset
        self.start_offset = min(self.start_offset, end_offset)
        self._tail = Tail(end_offset, position)
        return dropped

    def finish_truncation(self) -> None:
        """Note that the files match the list; the caller holds both locks."""
        self.truncations += 1

    def remove(self, dropped: Sequence[Segment]) -> None:
        """Delete files, the newest first; the caller holds `files_lock`. Raises OSError."""
        for segment in reversed(dropped):
            self._pool.drop(segment)
            segment.remove()

    def renew_file(self, segment: Segment) -> None:
        """Replace a flushed file by an empty file; without disk space the old file is kept.

        After a power loss the old name has its old bytes, next to the segments that followed. The caller holds
        `files_lock`. Raises OSError.
        """
        try:
            write_temporary(segment.log_path, b"").replace(segment.log_path)
        except OSError as error:
            if not has_no_room(error):
                raise
        self._pool.drop(segment)

    def truncate_file(self, segment: Segment, size_bytes: int) -> None:
        """Shorten the file of a segment, its index and its figures; its `next_offset` is left to the caller.

        The caller holds `files_lock`, or is the append thread. Raises OSError, Damage.
        """
        descriptor = self.open(segment)
        segment.remove_indexes()
        os.ftruncate(descriptor.number, size_bytes)
        with self._context.memory_lock:
            index = segment.ensure_index(descriptor.number, self._context.settings.index_interval_bytes)
            if size_bytes == segment.size_bytes:
                return
            index.cut(size_bytes)
            start = index.positions[-1] if len(index) else 0
            newest_us = index.timestamps[-1] if len(index) else NO_TIMESTAMP_US
            for _, envelope in walk(descriptor.number, start, size_bytes):
                newest_us = max(newest_us, envelope.max_timestamp_us)
            segment.max_timestamp_us = newest_us
            segment.unindexed_bytes = size_bytes - start
            segment.size_bytes = size_bytes
            if size_bytes == 0:
                segment.first_timestamp_us = None

    def reset(self, restart: Restart, truncated_to: int) -> None:
        """Delete every segment and start empty; the caller holds both locks. Raises OSError."""
        self._begin_truncation(truncated_to)
        dropped = (*self._trimmed, *self.all)
        self.start_offset = self.end_offset = restart.start_offset
        self.all = (restart_empty(self._context.path, dropped, restart),)
        self._trimmed = ()
        self._tail = Tail(restart.start_offset, 0)
        for other in dropped:
            self._pool.drop(other)

    def close(self) -> None:
        """Close the files; the caller holds both locks."""
        self.truncations += 1
        for segment in (*self._trimmed, *self.all):
            self._pool.drop(segment)

    # -- moving the log start

    @property
    def has_trimmed(self) -> bool:
        """Whether files below the log start wait for a checkpoint."""
        return bool(self._trimmed)

    def trim(self, start_offset: int) -> None:
        """Raise the log start; complete segments below it leave the log immediately. The caller holds `files_lock`."""
        with self._context.memory_lock:
            self.start_offset = max(self.start_offset, start_offset)
            count = 0
            while count < len(self.all) - 1 and self.all[count].next_offset <= self.start_offset:
                count += 1
            self._trimmed = (*self._trimmed, *self.all[:count])
            self.all = self.all[count:]

    def remove_trimmed_indexes(self) -> None:
        """Free space: delete the indexes of trimmed segments; the caller holds `files_lock`. Raises OSError."""
        for segment in self._trimmed:
            segment.remove_indexes()

    def release_trimmed(self, log_start: int) -> None:
        """Rename the trimmed files below a log start that a checkpoint or mark on disk names, to be deleted later.

        The caller holds `files_lock`. Raises OSError.
        """
        while self._trimmed and self._trimmed[0].next_offset <= log_start:
            segment = self._trimmed[0]
            self._pool.drop(segment)
            self._context.home.delete_later(_renamed(segment), self._context.settings.file_delete_delay_ms)
            self._trimmed = self._trimmed[1:]

    def _remove_trimmed(self) -> None:
        self.remove(self._trimmed)
        self._trimmed = ()

    # -- replacing, moving

    def begin_swap(self) -> None:
        """Note that files of segments are about to change; the caller holds `files_lock`."""
        with self._context.memory_lock:
            self.swaps += 1

    def swap(self, sources: Sequence[Segment], cleaned: Segment) -> None:
        """Replace neighbours by the cleaned segment, after its file; the caller holds `files_lock`."""
        at = self.all.index(sources[0])
        with self._context.memory_lock:
            self.all = (*self.all[:at], cleaned, *self.all[at + len(sources) :])
            self.swaps += 1
        for source in sources:
            self._pool.drop(source)

    def move_to(self, path: Path) -> None:
        """Note the new path of the directory; the caller holds both locks."""
        for segment in (*self._trimmed, *self.all):
            segment.stem = path / segment.stem.name
            segment.log_path = path / segment.log_path.name


def _renamed(segment: Segment) -> list[Path]:
    """The files of a segment under their `.deleted` names; open readers keep the log file."""
    renamed = []
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, ABORTED_SUFFIX, LOG_SUFFIX):
        path = segment.stem.with_name(segment.stem.name + suffix)
        try:
            renamed.append(path.replace(path.with_name(path.name + DELETED_SUFFIX)))
        except FileNotFoundError:
            continue
    segment.log_path = segment.log_path.with_name(segment.log_path.name + DELETED_SUFFIX)
    return renamed
