# SPDX-License-Identifier: Apache-2.0
"""The front of a log moves: what retention lets go, and how its files go (rules L1, E3, T5; docs/formats.md).

The leader decides; a log does as it is told. Segments that lie below the log start leave the log at once. Their files
go only when a checkpoint on disk names that log start (before, a start would miss them and call the log damaged): they
are renamed to `.deleted` then, and removed some time later, so that whoever is reading one is not disturbed.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from tidemark.model import ErrorCode, Offset, TidemarkError
from tidemark.ports import RetentionLimits
from tidemark.storage.files import DELETED_SUFFIX, has_no_room
from tidemark.storage.log.reader import LogReader
from tidemark.storage.recovery.log_loader import segment_offsets
from tidemark.storage.recovery.producer_snapshot import SNAPSHOT_SUFFIX, snapshot_path
from tidemark.storage.segments.index import INDEX_SUFFIX, NO_TIMESTAMP_US, TIME_INDEX_SUFFIX
from tidemark.storage.segments.segment import LOG_SUFFIX, Damage, Segment, walk

UNLIMITED: Final = -1
_log = logging.getLogger(__name__)


class FrontOfLog(LogReader):
    """The part of a log that lets its oldest segments go.

    Invariant: `_trimmed` are the segments before the first of `_segments`, oldest first, whose files are still there.
    """

    _trimmed: tuple[Segment, ...] = ()

    def _roll(self) -> Segment:
        """Close the active segment and start the next one at the log end."""
        raise AssertionError("rolling is the appender's")

    def expired_until(self, limits: RetentionLimits, *, high_watermark: Offset, now_ms: int) -> Offset:
        """Where the log may start: whole segments from the front, never past the high watermark.

        A segment goes by time when its newest record is older than `retention_ms`, the active one too; by size when
        without it the log still has `retention_bytes`, the active one never.
        """
        with self._lock:
            segments, start = self._segments, self._start
            known = [(one.next_offset, one.size_bytes, one.max_timestamp_us) for one in segments]
        oldest_us = (now_ms - limits.retention_ms) * 1000
        left_bytes = sum(size_bytes for _, size_bytes, _ in known)
        for number, (end, size_bytes, newest_us) in enumerate(known, 1):
            active = number == len(known)
            by_time = limits.retention_ms != UNLIMITED and NO_TIMESTAMP_US < newest_us < oldest_us
            by_size = limits.retention_bytes != UNLIMITED and left_bytes - size_bytes >= limits.retention_bytes
            if end > high_watermark or size_bytes == 0 or not (by_time or (by_size and not active)):
                break
            left_bytes -= size_bytes
            start = max(start, end)
        return Offset(start)

    def may_roll_by_time(self, now_ms: int) -> bool:
        """Whether the active segment may have come of age (segment.ms): cheap, and sure only after a look at it."""
        active = self._segments[-1]
        first_us = active.first_timestamp_us
        return active.size_bytes > 0 and (first_us is None or self._of_age(first_us, now_ms))

    def _of_age(self, first_timestamp_us: int, now_ms: int) -> bool:
        return now_ms * 1000 - first_timestamp_us > self._segment_ms_us

    def roll_by_time(self, now_ms: int) -> None:
        """Roll a segment that has come of age though nothing is appended (segment.ms); by the append thread.

        Raises:
            TidemarkError: STORAGE_ERROR.
        """
        self._check_usable()
        active = self._segments[-1]
        if active.size_bytes == 0:
            return
        try:
            if active.first_timestamp_us is None:
                descriptor = self._pool.get(active, active.log_path)
                first = next(walk(descriptor.number, 0, active.size_bytes))[1]
                active.first_timestamp_us = first.max_timestamp_us
            if self._of_age(active.first_timestamp_us, now_ms):
                self._roll_if_there_is_space()
        except (OSError, Damage) as error:
            self._suspect_disk(error)
            raise TidemarkError(ErrorCode.STORAGE_ERROR, f"roll {self._path.name}: {error}") from error

    def _roll_if_there_is_space(self) -> None:
        """Else the next time will do."""
        try:
            self._roll()
        except OSError as error:
            if not has_no_room(error):
                raise

    def trim(self, start_offset: Offset) -> None:
        """Start at `start_offset` from now on, nowhere below; by the append thread. All of it gone rolls it first.

        Raises:
            TidemarkError: STORAGE_ERROR.
        """
        self._check_usable()
        assert start_offset <= self._end, f"a log that ends at {self._end} cannot start at {start_offset}"
        try:
            with self._files_lock:
                if start_offset == self._end and self._segments[-1].size_bytes:
                    self._roll_if_there_is_space()
                self._let_go(start_offset)
        except OSError as error:
            self._suspect_disk(error)
            raise TidemarkError(ErrorCode.STORAGE_ERROR, f"trim {self._path.name}: {error}") from error

    def _let_go(self, start_offset: int) -> None:
        with self._lock:
            self._start = max(self._start, start_offset)
            count = 0
            while count < len(self._segments) - 1 and self._segments[count].next_offset <= self._start:
                count += 1
            self._trimmed = (*self._trimmed, *self._segments[:count])
            self._segments = self._segments[count:]

    def make_room(self) -> bool:
        """Remove the indexes of what waits for a checkpoint to go; whether there were any."""
        with self._files_lock:
            for segment in self._trimmed:
                segment.remove_indexes()
            return bool(self._trimmed)

    def _rename_trimmed(self, log_start: int) -> None:
        """A checkpoint on disk says that the log starts there: what lies below may go; under `_files_lock`."""
        while self._trimmed and self._trimmed[0].next_offset <= log_start:
            segment = self._trimmed[0]
            self._pool.drop(segment)
            self._home.delete_later(_renamed(segment), self._settings.file_delete_delay_ms)
            self._trimmed = self._trimmed[1:]
        if not self._trimmed:
            first = self._segments[0].base_offset
            snapshots = [offset for offset in segment_offsets(self._path, SNAPSHOT_SUFFIX) if offset <= first]
            for offset in snapshots[:-1]:  # a truncation to the log start still needs the newest of them
                snapshot_path(self._path, offset).unlink(missing_ok=True)

    def _remove_trimmed(self) -> None:
        """The log starts anew elsewhere: nothing of it may be found there after a crash; under `_files_lock`."""
        for segment in reversed(self._trimmed):
            self._pool.drop(segment)
            segment.remove()
        self._trimmed = ()


def _renamed(segment: Segment) -> list[Path]:
    """The files of a segment under the names that say they are to go; its log last, and known there to its readers."""
    renamed = []
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, LOG_SUFFIX):
        path = segment.stem.with_name(segment.stem.name + suffix)
        try:
            renamed.append(path.replace(path.with_name(path.name + DELETED_SUFFIX)))
        except FileNotFoundError:
            continue
    segment.log_path = segment.log_path.with_name(segment.log_path.name + DELETED_SUFFIX)
    return renamed


def delete_files(paths: list[Path]) -> None:
    """Remove what was renamed; what cannot be is removed by the next start."""
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("could not delete", extra={"path": str(path), "error": str(error)})
