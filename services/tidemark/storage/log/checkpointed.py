# SPDX-License-Identifier: Apache-2.0
"""What a log lets the checkpoints of its directory see and do (rules R5, T5): what they vouch for, what goes then."""

from __future__ import annotations

from typing import Final, NamedTuple

from tidemark.core.producer_state import ProducerStates
from tidemark.model import Offset
from tidemark.storage.log.movable import MovableLog
from tidemark.storage.log.reader import NOT_CUT
from tidemark.storage.recovery.damage import CUT_FILE, forget_damage
from tidemark.storage.recovery.epoch_file import write_epochs
from tidemark.storage.recovery.log_loader import segment_offsets
from tidemark.storage.recovery.producer_snapshot import SNAPSHOT_SUFFIX, snapshot_due, snapshot_path, write_snapshot

_INDEX_BEHIND_ENTRIES: Final = 64


class Captured(NamedTuple):
    """What a checkpoint will vouch for: the log at one instant, and the number of cuts until then.

    `high_watermark_max`: what it is told of a higher one may be of before a cut. `damage_over`: by then it was damaged
    no more.
    """

    log_end: int
    log_start: int
    cuts: int
    high_watermark_max: int
    damage_over: bool


class CheckpointedLog(MovableLog):
    """A log that a checkpoint vouches for, beside its appends.

    High watermarks are taken before a checkpoint looks at the log, so that after a cut they may be of what was cut, or
    of another lineage. They are bounded by `_uncovered_cut` until one has been told, and the log has grown behind the
    cut by then: nothing is appended before whoever tells them knows of the cut.
    """

    @property
    def broken(self) -> str | None:
        """Why every call is refused (a write failed, or the log is closed), None while it is not."""
        return self._broken

    @property
    def cut_pending(self) -> bool:
        """The checkpoints on disk are older than the last cut, or files of the front or an old damage wait for one."""
        return self._cut_pending or self._damage_over or bool(self._trimmed)

    def capture(self) -> Captured | None:
        """Before a syncfs: write what is behind, and say what that syncfs will vouch for; None if unusable.

        Raises:
            OSError: the disk does not answer.
        """
        with self._files_lock:
            if self._broken:
                return None
            active = self._segments[-1]
            with self._lock:
                bound = min(self._end, self._uncovered_cut)
                captured = Captured(self._end, self._start, self._cuts, bound, self._damage_over)
                index = active.index
                behind = index is not None and len(index) - index.written >= _INDEX_BEHIND_ENTRIES
                epochs = self._epochs.entries if self._epochs_behind else None
                self._epochs_behind = False
                due = snapshot_due(self._unsnapshotted_batches, self._producers)
                snapshot = self._producers.copy() if due else None
            idle, self._captured_end = captured.log_end == self._captured_end, captured.log_end
            if behind or (idle and index is not None and len(index) > _INDEX_BEHIND_ENTRIES):
                with self._lock:
                    active.persist()
                    if idle:
                        active.forget_index()
            if epochs is not None:
                try:
                    write_epochs(self._path, epochs)
                except OSError:
                    self._epochs_behind = True
                    raise
            if snapshot is not None:
                self._snapshot(captured.log_end, snapshot)
            return captured

    def checkpointed(self, captured: Captured, *, told: bool) -> None:
        """After the checkpoints were renamed: they vouch for what was captured.

        `told`: with a high watermark, so that the next one is taken later than this capture.

        Raises:
            OSError: the disk does not answer.
        """
        self._note_flushed(captured.log_end, captured.cuts)
        with self._files_lock:
            if captured.cuts != self._cuts:
                return
            if told and captured.log_end > self._uncovered_cut:
                self._uncovered_cut = NOT_CUT
            if self._cut_pending:
                (self._path / CUT_FILE).unlink(missing_ok=True)
                self._cut_pending = False
            if captured.damage_over:
                forget_damage(self._path)
                self._damaged_until = None
            if self._trimmed:
                self._rename_trimmed(captured.log_start)
            with self._lock:
                known = self._epochs.entries
                if known and known[0].start_offset < captured.log_start:
                    self._epochs.truncate_from_start(Offset(captured.log_start))

    def _snapshot(self, end: int, states: ProducerStates) -> None:
        """Write a snapshot and drop what it replaces; those at the starts of segments stay, for truncations."""
        write_snapshot(self._path, end, states)
        self._snapshot_at, self._unsnapshotted_batches = end, 0
        kept = {segment.base_offset for segment in self._segments} | {end}
        for offset in segment_offsets(self._path, SNAPSHOT_SUFFIX):
            if offset not in kept:
                snapshot_path(self._path, offset).unlink(missing_ok=True)

    def finish(self) -> None:
        """Before the last syncfs of a clean stop: index, end mark, snapshot and epochs, so that no start scans.

        Raises:
            OSError: the disk does not answer.
        """
        with self._files_lock:
            if self._broken or self._unmade is not None:
                return
            self._segments[-1].seal()
            if self._end > 0 and self._snapshot_at != self._end:
                self._snapshot(self._end, self._producers)
            if self._epochs_behind:
                write_epochs(self._path, self._epochs.entries)
                self._epochs_behind = False

    def _note_flushed(self, end: int, cuts: int) -> None:
        with self._lock:
            if cuts == self._cuts:
                self._flushed = max(self._flushed, end)
