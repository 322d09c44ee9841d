# SPDX-License-Identifier: Apache-2.0
"""Durability of a log: flushes, the mark of a truncation, and checkpoints (rules R5, T5)."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Final, NamedTuple

from tidemark.model import ErrorCode, Offset, TidemarkError
from tidemark.storage.files import (
    PARTITION_FILE,
    has_no_room,
    is_unopened,
    raise_storage_error,
    storage_error,
    sync_directory,
    sync_file,
)
from tidemark.storage.log.context import LogContext
from tidemark.storage.log.log_segments import NOT_TRUNCATED, LogSegments
from tidemark.storage.log.replayed_state import ReplayedState
from tidemark.storage.recovery.cleaner_point import lower_clean_point
from tidemark.storage.recovery.damage import CUT_FILE, CutPoint, forget_damage, read_cut_point, write_cut_point
from tidemark.storage.recovery.log_loader import Recovered
from tidemark.storage.segments.segment import Segment

_INDEX_BEHIND_ENTRIES: Final = 64


class Captured(NamedTuple):
    """The state of the log at one instant, for the next checkpoint.

    Attributes:
        truncations: `LogSegments.truncations` at that instant.
        high_watermark_max: a reported high watermark above this offset may be older than a truncation.
        damage_over: the log was refetched past its damage.
    """

    log_end: int
    log_start: int
    truncations: int
    high_watermark_max: int
    damage_over: bool


class Release(NamedTuple):
    """A log start below which files are to be released, and `LogSegments.truncations` then."""

    log_start: int
    truncations: int


class Durability:
    """Flushes a log and supplies its offsets to checkpoints.

    Thread-safe during appends, unless a method states otherwise.

    Attributes:
        flushed_offset: all records below are on disk; written under `memory_lock`.
    """

    __slots__ = (
        "_captured_end",
        "_context",
        "_damaged_until",
        "_high_watermark_max",
        "_identity_behind",
        "_names_behind",
        "_replayed",
        "_segments",
        "_truncation_marked",
        "flushed_offset",
    )

    def __init__(
        self, recovered: Recovered, context: LogContext, segments: LogSegments, replayed: ReplayedState
    ) -> None:
        self._context = context
        self._segments = segments
        self._replayed = replayed
        self.flushed_offset = recovered.recovery_point
        self._names_behind = True
        """Whether names of files in the directory may be missing after a power loss; under `memory_lock`."""
        self._identity_behind = True
        """Whether partition.json and the directory's own name are not synced yet."""
        self._truncation_marked = recovered.cut is not None
        """Whether cut-point.json exists: the checkpoints on disk are older than the last truncation."""
        self._high_watermark_max = max(recovered.cut.end_offset, 0) if recovered.cut is not None else NOT_TRUNCATED
        self._damaged_until = recovered.damage.until if recovered.damage else None
        """Log end that ends the damage, None for an undamaged log."""
        self._captured_end = -1
        """Log end of the last checkpoint: an equal log end means an idle log."""

    # -- flushing

    def flush(self) -> Offset:
        """fdatasync; all records below the result are on disk.

        Raises:
            TidemarkError: STORAGE_ERROR, and the whole log directory is offline: a failed sync is never retried.
                DISK_FULL with too many open files: nothing was lost, and a retry may succeed.
        """
        context, segments = self._context, self._segments
        with context.memory_lock:
            truncations, end, names = segments.truncations, segments.end_offset, self._names_behind
            # a segment that was truncated just at this offset must also be synced
            flushed = self.flushed_offset - names
            behind = [segment for segment in segments.all if segment.next_offset > flushed]
            self._names_behind = False
        try:
            for segment in behind:
                self._sync_segment(segment)
            if names:
                self._sync_names()
        except OSError as error:
            if truncations != segments.truncations and error.errno == errno.ENOENT:
                return Offset(self.flushed_offset)
            if not is_unopened(error):
                context.home.fail(f"fdatasync of {context.path.name}: {error.strerror}")
                raise TidemarkError(ErrorCode.STORAGE_ERROR, f"flush {context.path.name}: {error.strerror}") from error
            with context.memory_lock:
                self._names_behind = self._names_behind or names
            raise_storage_error(f"flush {context.path.name}", error)
        self._note_flushed(end, truncations)
        return Offset(self.flushed_offset)

    def _note_flushed(self, end: int, truncations: int) -> None:
        with self._context.memory_lock:
            if truncations == self._segments.truncations:
                self.flushed_offset = max(self.flushed_offset, end)

    def _sync_segment(self, segment: Segment) -> None:
        try:
            opened = self._segments.open(segment)
        except FileNotFoundError:
            with (
                self._context.files_lock
            ):  # an operation that removes files holds this lock until the list is up to date
                if segment in self._segments.all:
                    raise
            return
        os.fdatasync(opened.number)

    def _sync_names(self) -> None:
        """Sync the names of new files: a power loss loses records whose file or partition.json has no name on disk."""
        path = self._context.path
        if self._identity_behind:
            sync_file(path / PARTITION_FILE)
        if self._truncation_marked:
            with contextlib.suppress(FileNotFoundError):  # a checkpoint replaced the mark
                sync_file(path / CUT_FILE)
        sync_directory(path)
        if self._identity_behind:
            sync_directory(path.parent)
            self._identity_behind = False

    def names_changed(self) -> None:
        """Note that files were made, renamed or removed: the next flush syncs the directory.

        The caller holds `memory_lock`.
        """
        self._names_behind = True

    # -- truncation

    def mark_truncation(self, cut: CutPoint, *, durable: bool = False) -> None:
        """Before a truncation: revoke the checkpoints on disk past its end (rule T5).

        The caller holds `files_lock`. With `durable` the mark is on disk at the return.

        Raises:
            TidemarkError: DISK_FULL; the log is unchanged, so the truncation can be retried.
            OSError: the disk does not answer.
        """
        path = self._context.path
        if self._truncation_marked:
            earlier = read_cut_point(path)
            if earlier is not None:
                cut = cut._replace(end_offset=min(cut.end_offset, earlier.end_offset))
        try:
            lower_clean_point(path, cut.end_offset)
            write_cut_point(path, cut, durable=durable)
        except OSError as error:
            if has_no_room(error):
                raise storage_error(f"truncate {path.name}", error) from error
            raise
        self._truncation_marked = True

    def truncate(self, end_offset: int) -> bool:
        """The log ends there now; whether flushed bytes were truncated. The caller holds both locks."""
        was_flushed = end_offset < self.flushed_offset
        self._high_watermark_max = min(self._high_watermark_max, end_offset)
        self.flushed_offset = min(self.flushed_offset, end_offset)
        self._names_behind = True  # the mark, and removed segments, which must not come back after a crash
        return was_flushed

    def reset(self, start_offset: int, truncated_to: int) -> None:
        """The log is empty and starts there now; the caller holds both locks."""
        self._high_watermark_max = min(self._high_watermark_max, truncated_to)
        self.flushed_offset = start_offset

    # -- checkpoints

    @property
    def checkpoint_due(self) -> bool:
        """Whether a truncation, removable segments or the end of damage wait for a checkpoint."""
        return self._truncation_marked or self._damage_over or self._segments.has_trimmed

    @property
    def high_watermark_max(self) -> int:
        """Bound of the high watermark that a checkpoint may write; `NOT_TRUNCATED`: no bound.

        High watermarks are read before a checkpoint reads the log, so after a truncation a high watermark may be
        outdated. The bound ends when a checkpoint gets a high watermark after the log has grown past the truncation.
        Appends begin only after the caller that reports high watermarks knows of the truncation.
        """
        return self._high_watermark_max

    def capture(self) -> Captured | None:
        """Before a syncfs: complete the files; returns the state that the syncfs covers, None for a broken log.

        Raises:
            OSError: the disk does not answer.
        """
        context, segments, replayed = self._context, self._segments, self._replayed
        with context.files_lock:
            if context.broken:
                return None
            active = segments.active
            with context.memory_lock:
                end = segments.end_offset
                bound = min(end, self._high_watermark_max)
                captured = Captured(end, segments.start_offset, segments.truncations, bound, self._damage_over)
                index = active.index
                behind = index is not None and len(index) - index.written >= _INDEX_BEHIND_ENTRIES
                unwritten = replayed.take_unwritten()
            replayed.write(unwritten, end, segments.all)
            idle, self._captured_end = end == self._captured_end, end
            if behind or (idle and index is not None and len(index) > _INDEX_BEHIND_ENTRIES):
                with context.memory_lock:
                    active.persist()
                    if idle:
                        active.forget_index()
            return captured

    def checkpointed(self, captured: Captured, *, has_high_watermark: bool) -> None:
        """After the checkpoints were renamed: they cover the captured state.

        `has_high_watermark`: the files hold a reported high watermark, so the next one is read after this capture.

        Raises:
            OSError: the disk does not answer.
        """
        context, segments = self._context, self._segments
        self._note_flushed(captured.log_end, captured.truncations)
        with context.files_lock:
            if captured.truncations != segments.truncations:
                return
            if has_high_watermark and captured.log_end > self._high_watermark_max:
                self._high_watermark_max = NOT_TRUNCATED
            if self._truncation_marked:
                (context.path / CUT_FILE).unlink(missing_ok=True)
                self._truncation_marked = False
            if captured.damage_over:
                forget_damage(context.path)
                self._damaged_until = None
            if segments.has_trimmed:
                self._release_trimmed(captured.log_start)
            self._replayed.forget_epochs_below(captured.log_start)

    def prepare_release(self) -> Release | None:
        """On a full disk, where a checkpoint may need the space of trimmed segments: prepare their release by a mark.

        Their indexes are deleted, to make room for the mark. A syncfs follows, then `release_by_mark`.

        Returns:
            None without trimmed segments, or without space for the leader epochs: deleted batches give no epochs.

        Raises:
            OSError: the disk does not answer.
        """
        segments = self._segments
        with self._context.files_lock:
            if self._context.broken or not segments.has_trimmed:
                return None
            segments.remove_trimmed_indexes()
            return Release(segments.start_offset, segments.truncations) if self._replayed.write_epochs() else None

    def release_by_mark(self, release: Release) -> None:
        """Write the log start as a mark, and release the files below; without space for the mark, nothing changes.

        Raises:
            OSError: the disk does not answer.
        """
        segments = self._segments
        with self._context.files_lock:
            if release.truncations != segments.truncations:
                return
            with contextlib.suppress(TidemarkError):
                self.mark_truncation(CutPoint(NOT_TRUNCATED, release.log_start), durable=True)
                self._release_trimmed(release.log_start)

    def _release_trimmed(self, log_start: int) -> None:
        self._segments.release_trimmed(log_start)
        if not self._segments.has_trimmed:
            self._replayed.drop_snapshots_below(self._segments.all[0].base_offset)

    def finish(self) -> None:
        """Before the last syncfs of a clean stop: complete the files, so that the next start needs no scan.

        The files are the index and the end mark of the active segment, the producer snapshot and the leader epochs.

        Raises:
            OSError: the disk does not answer.
        """
        with self._context.files_lock:
            if not self._context.broken:
                self._replayed.write_aborted(self._segments.all)
                self._segments.active.seal()
                self._replayed.write_all(self._segments.end_offset, self._segments.all)

    # -- damage

    @property
    def is_damaged(self) -> bool:
        """Whether records are missing, or no checkpoint covers the refetched log yet (rule T5)."""
        return self._damaged_until is not None

    def end_damage(self) -> None:
        """Note that the log is refetched: the next checkpoint removes the mark of the damage."""
        if self._damaged_until is not None:
            self._damaged_until = 0

    @property
    def _damage_over(self) -> bool:
        return self._damaged_until is not None and self._segments.end_offset >= self._damaged_until
