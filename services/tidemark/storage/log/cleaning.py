# SPDX-License-Identifier: Apache-2.0
"""The part of a log for its cleaner and its repair: sealed segments below the high watermark, and their replacement
(rules L1, T6)."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.transactions import AbortedTransaction
from tidemark.storage.files import BadFile, Descriptor, drop_from_page_cache, storage_error
from tidemark.storage.log.context import LogContext
from tidemark.storage.log.log_segments import LogSegments
from tidemark.storage.log.replayed_state import ReplayedState
from tidemark.storage.recovery.aborted_file import read_aborted, write_aborted
from tidemark.storage.recovery.cleaner_point import CleanPoint, read_clean_point, write_clean_point
from tidemark.storage.recovery.segment_swap import commit_swap, finish_swap
from tidemark.storage.segments.index import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from tidemark.storage.segments.segment import Damage, Segment

_log = logging.getLogger(__name__)


class CleaningView(NamedTuple):
    """A snapshot of a log for its cleaner or its repair.

    Attributes:
        path: directory of the replica.
        segments: complete segments below an offset, from the first segment of the log, without the active segment.
        clean_point: offset (exclusive) below which there is one record of each key.
        horizon_s: as in `CleanPoint`.
        producers: ids of the producers whose last batches must stay.
        truncations: `replace` and `note_clean_point` refuse a view from before a later truncation.
        interval_bytes: `index.interval.bytes`.
        segment_bytes: `segment.bytes`.
    """

    path: Path
    segments: tuple[Segment, ...]
    clean_point: int
    horizon_s: int
    producers: frozenset[int]
    truncations: int
    interval_bytes: int
    segment_bytes: int


class SegmentCleaning:
    """Replaces old segments of a log by cleaned or repaired ones; safe during appends, reads, truncations, the close.

    `LogSegments` owns the list of segments; the cleaner point is in its own file.

    Attributes:
        rewriting: held while a replacement is written: cleaner and repair may name the same file.
    """

    __slots__ = ("_context", "_replayed", "_segments", "rewriting")

    def __init__(self, context: LogContext, segments: LogSegments, replayed: ReplayedState) -> None:
        self._context = context
        self._segments = segments
        self._replayed = replayed
        self.rewriting = threading.Lock()

    @property
    def clean_point(self) -> int:
        """Offset (exclusive) below which there is one record of each key."""
        return self.point.offset

    @property
    def point(self) -> CleanPoint:
        """The cleaner point, and the horizon below it."""
        return read_clean_point(self._context.path)

    def view(self, end_offset: int, *, truncations: int | None = None) -> CleaningView | None:
        """The sealed segments below `end_offset` (exclusive).

        None if the log cannot be used, or was truncated after `truncations`.
        """
        context, segments = self._context, self._segments
        with context.files_lock:
            if not context.is_usable or truncations not in (None, segments.truncations):
                return None
            with context.memory_lock:
                producers = frozenset(self._replayed.producers)
            point = self.point
            return CleaningView(
                path=context.path,
                segments=tuple(one for one in segments.all[:-1] if one.next_offset <= end_offset),
                clean_point=min(point.offset, segments.end_offset),
                horizon_s=point.horizon_s,
                producers=producers,
                truncations=segments.truncations,
                interval_bytes=context.settings.index_interval_bytes,
                segment_bytes=context.settings.segment_bytes,
            )

    def open(self, segment: Segment) -> Descriptor:
        """The file of a segment of the view.

        Raises:
            OSError: also where the segment was removed meanwhile.
        """
        return self._segments.open(segment)

    def make_durable(self, file: Descriptor) -> None:
        """fsync of a file that will replace segments.

        Raises:
            TidemarkError: STORAGE_ERROR, and the whole log directory is offline: a failed sync is never retried.
        """
        try:
            os.fsync(file.number)
        except OSError as error:
            name = self._context.path.name
            self._context.home.fail(f"fsync of a cleaned segment of {name}: {error.strerror}")
            raise storage_error(f"clean {name}", error) from error

    def aborted(self, start_offset: int, end_offset: int) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions with batches that may lie in [start, end)."""
        with self._context.memory_lock:
            return self._replayed.aborted_between(start_offset, end_offset)

    def replace(
        self,
        view: CleaningView,
        sources: Sequence[Segment],
        cleaned: Segment,
        file: Path,
        *,
        markers: Sequence[int] | None = None,
    ) -> bool:
        """Put a cleaned segment, written durably to `file`, in the place of neighbours of the view.

        `markers`: base offsets of the markers in the file; None: the same as before.

        False: the log was truncated or closed, or has dropped a segment; then the log is unchanged and the caller owns
        `file`.

        Raises:
            TidemarkError: STORAGE_ERROR; the directory is offline, and the next start finishes the replacement.
                DISK_FULL: the disk is full; the log is as before.
        """
        context, segments = self._context, self._segments
        with context.files_lock:
            before = segments.all
            if not context.is_usable or view.truncations != segments.truncations or sources[0] not in before:
                return False
            at = before.index(sources[0])
            past = at + len(sources)
            if before[at:past] != tuple(sources) or past >= len(before):
                return False
            try:
                swap = commit_swap(file)
            except OSError as error:
                raise storage_error(f"clean {context.path.name}", error) from error
            segments.begin_swap()
            try:
                finish_swap(swap)
            except OSError as error:
                context.broken = f"replace segments of {context.path.name}: {error}"
                context.home.fail(context.broken)
                raise TidemarkError(ErrorCode.STORAGE_ERROR, context.broken) from error
            segments.swap(sources, cleaned)
            if markers is not None:
                self._replayed.retain_aborted(cleaned, markers)
            try:
                write_aborted(cleaned.stem, self._replayed.aborted_rows(cleaned), durable=True)
                cleaned.seal()
                cleaned.forget_index()
            except OSError as error:  # the index is in memory, and the next start writes it
                self._replayed.note_unwritten_aborted(cleaned.base_offset)
                _log.warning("index not written", extra={"log": context.path.name, "why": str(error)})
            return True

    def heal_index(self, segment: Segment) -> bool:
        """Check the index files of a sealed segment without damaged batches, on the disk, and rewrite damaged files.

        Returns:
            Whether the files were rewritten.

        Raises:
            OSError: the disk does not answer or is full, or the segment was removed meanwhile.
        """
        context, opened = self._context, self.open(segment)
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            with contextlib.suppress(FileNotFoundError):
                file = Descriptor(segment.stem.with_name(segment.stem.name + suffix), os.O_RDONLY)
                drop_from_page_cache(file.number, 0, 0)
        if segment not in self._segments.all[:-1]:
            return False
        healed = self._heal_aborted(segment)
        if segment.has_whole_index_files():
            return healed
        try:
            index = segment.ensure_index(opened.number, context.settings.index_interval_bytes)
        except Damage:  # the segment was damaged after the check of the batches
            return False
        with context.files_lock:
            if not context.is_usable or segment not in self._segments.all[:-1]:
                return False
            segment.rewrite_index_files(index)
            return True

    def _heal_aborted(self, segment: Segment) -> bool:
        """Rewrite a damaged file of aborted transactions from memory; True if the file was damaged."""
        with self._context.files_lock:
            if not self._context.is_usable or segment not in self._segments.all[:-1]:
                return False
            rows = self._replayed.aborted_rows(segment)
            with contextlib.suppress(BadFile):
                if tuple(read_aborted(segment.stem)) == rows:
                    return False
            write_aborted(segment.stem, rows)
            return True

    def note_clean_point(self, view: CleaningView, point: CleanPoint) -> bool:
        """Write the cleaner point, unless the log was truncated meanwhile.

        Raises:
            OSError: the disk does not answer.
        """
        with self._context.files_lock:
            if self._context.broken or view.truncations != self._segments.truncations:
                return False
            write_clean_point(self._context.path, point)
            return True

    def adopt_clean_point(self, point: CleanPoint) -> None:
        """Take over the cleaner point of the log of which this log is a copy; the caller holds `files_lock`.

        Raises:
            OSError: the disk does not answer.
        """
        if point != self.point:
            write_clean_point(self._context.path, point)
