# SPDX-License-Identifier: Apache-2.0
"""What a log lets its cleaner see and do: the sealed segments below the high watermark, and their replacement (L1)."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tidemark.model import ErrorCode, TidemarkError
from tidemark.storage.files import Descriptor, storage_error
from tidemark.storage.log.reader import LogReader
from tidemark.storage.recovery.cleaner_point import read_clean_point, write_clean_point
from tidemark.storage.recovery.segment_swap import commit_swap, finish_swap
from tidemark.storage.segments.segment import Segment

_log = logging.getLogger(__name__)


class CleaningView(NamedTuple):
    """A log as its cleaner finds it.

    Attributes:
        path: of the replica's directory.
        segments: whole segments below the high watermark from the log's first on, never the active one.
        clean_point: below it (exclusive) there is one record of each key.
        producers: ids of those whose last batches must stay.
        cuts: what `replace` is held to.
        interval_bytes: `index.interval.bytes`.
        segment_bytes: `segment.bytes`.
    """

    path: Path
    segments: tuple[Segment, ...]
    clean_point: int
    producers: frozenset[int]
    cuts: int
    interval_bytes: int
    segment_bytes: int


class CleanableLog(LogReader):
    """A log whose old segments may be replaced by cleaned ones; safe beside appends, reads, truncations and the end."""

    @property
    def cuts(self) -> int:
        """How often the log was cut; what was known of it before the last one may not hold any more."""
        return self._cuts

    def cleaning_view(self, high_watermark: int, *, cuts: int | None = None) -> CleaningView | None:
        """What there is to clean; None when the log cannot be used, or was cut since it had been `cuts` times."""
        with self._files_lock:
            if self._broken or self._home.failed or cuts not in (None, self._cuts):
                return None
            with self._lock:
                producers = frozenset(self._producers.entries)
            return CleaningView(
                path=self._path,
                segments=tuple(one for one in self._segments[:-1] if one.next_offset <= high_watermark),
                clean_point=min(read_clean_point(self._path), self._end),
                producers=producers,
                cuts=self._cuts,
                interval_bytes=self._interval_bytes,
                segment_bytes=self._settings.segment_bytes,
            )

    def open_for_cleaning(self, segment: Segment) -> Descriptor:
        """The file of a segment of the view.

        Raises:
            OSError: also where the segment has gone since.
        """
        return self._pool.get(segment, segment.log_path)

    def make_durable(self, file: Descriptor) -> None:
        """fsync of what has been written to take the place of segments.

        Raises:
            TidemarkError: STORAGE_ERROR, and the whole log directory is offline: a failed sync is never tried again.
        """
        try:
            os.fsync(file.number)
        except OSError as error:
            self._home.fail(f"fsync of a cleaned segment of {self._path.name}: {error.strerror}")
            raise storage_error(f"clean {self._path.name}", error) from error

    def replace_segments(self, view: CleaningView, sources: Sequence[Segment], cleaned: Segment, file: Path) -> bool:
        """Put a cleaned segment, written durably to `file`, in the place of neighbours of the view.

        False: the log was cut, closed or has lost one of them since; nothing was changed and `file` is the caller's.

        Raises:
            TidemarkError: STORAGE_ERROR; the directory is offline then, and the next start finishes this. DISK_FULL:
                nothing was changed.
        """
        with self._files_lock:
            before = self._segments
            if self._broken or self._home.failed or view.cuts != self._cuts or sources[0] not in before:
                return False
            at = before.index(sources[0])
            past = at + len(sources)
            if before[at:past] != tuple(sources) or past >= len(before):
                return False
            try:
                swap = commit_swap(file)
            except OSError as error:
                raise storage_error(f"clean {self._path.name}", error) from error
            with self._lock:
                self._swaps += 1
            try:
                finish_swap(swap)
            except OSError as error:
                self._broken = f"replace segments of {self._path.name}: {error}"
                self._home.fail(self._broken)
                raise TidemarkError(ErrorCode.STORAGE_ERROR, self._broken) from error
            with self._lock:
                self._segments = (*before[:at], cleaned, *before[past:])
                self._swaps += 1
            for source in sources:
                self._pool.drop(source)
            try:
                cleaned.seal()
                cleaned.forget_index()
            except OSError as error:  # the index is in memory, and the next start makes it anew
                _log.warning("index not written", extra={"log": self._path.name, "why": str(error)})
            return True

    def note_clean_point(self, view: CleaningView, offset: int) -> bool:
        """All below `offset` has been cleaned, unless the log was cut meanwhile.

        Raises:
            OSError: the disk does not answer.
        """
        with self._files_lock:
            if self._broken or view.cuts != self._cuts:
                return False
            write_clean_point(self._path, offset)
            return True
