# SPDX-License-Identifier: Apache-2.0
"""Leader epochs, producer states and aborted transactions of a log (rules E1, P3, X5), and the files that a start reads
them from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.core.producer_state import ProducerEntry, ProducerStates
from tidemark.model import EpochEntry, LeaderEpoch, Offset
from tidemark.record.envelope import Batch
from tidemark.record.markers import read_marker
from tidemark.record.transactions import AbortedTransaction
from tidemark.storage.files import has_no_room, monotonic_ms
from tidemark.storage.log.aborted_index import AbortedIndex, UnwrittenRows, write_rows
from tidemark.storage.log.context import LogContext, Unmade
from tidemark.storage.log.log_segments import Placed
from tidemark.storage.recovery.aborted_file import AbortedRow
from tidemark.storage.recovery.aborted_replay import aborted_row
from tidemark.storage.recovery.epoch_file import write_epochs
from tidemark.storage.recovery.log_loader import Recovered, replay_from, segment_offsets
from tidemark.storage.recovery.producer_snapshot import (
    SNAPSHOT_SUFFIX,
    newest_snapshot,
    snapshot_due,
    snapshot_path,
    write_snapshot,
)
from tidemark.storage.segments.segment import Segment


class Unwritten(NamedTuple):
    """Copies of the state that the files lack, None where a file is complete."""

    epochs: tuple[EpochEntry, ...] | None
    producers: ProducerStates | None
    aborted: UnwrittenRows | None


class ReplayedState:
    """The leader epochs, producer states and aborted transactions that result from a replay of the log's batches.

    The append thread folds batches in, in the section of `memory_lock` that publishes them. While the lock is held, the
    state covers every batch below the log end. Files are written under `files_lock`.
    """

    __slots__ = (
        "_aborted",
        "_context",
        "_epochs",
        "_epochs_behind",
        "_latest_epoch",
        "_producers",
        "_snapshot_at",
        "_unsnapshotted_batches",
    )

    def __init__(self, recovered: Recovered, context: LogContext) -> None:
        self._context = context
        self._epochs: LeaderEpochs = recovered.epochs
        self._latest_epoch: int = recovered.epochs.latest
        """Latest epoch of `_epochs`: an append compares it with the epoch of each batch."""
        self._epochs_behind = False
        """Whether the leader-epoch-checkpoint lacks an epoch that is in memory."""
        self._producers = self._expiring(recovered.producers)
        self._aborted = AbortedIndex(recovered.aborted, recovered.aborted_unwritten_from)
        self._snapshot_at = recovered.snapshot_at
        """Offset of the newest producer snapshot; -1 if there may be none."""
        self._unsnapshotted_batches = recovered.unsnapshotted_batches

    def _expiring(self, producers: ProducerStates) -> ProducerStates:
        return producers.expiring(self._context.settings.producer_id_expiration_ms, monotonic_ms())

    @property
    def epochs(self) -> tuple[EpochEntry, ...]:
        """Leader epochs and their start offsets."""
        return self._epochs.entries

    @property
    def producers(self) -> Mapping[int, ProducerEntry]:
        """Producer states by producer id; the caller holds `memory_lock`, or is the append thread."""
        return self._producers.entries

    # -- in memory

    def fold(self, batches: Sequence[Batch], start: int, placed: Sequence[Placed], stamped_epoch: int | None) -> None:
        """Apply the batches from number `start`, in their order; the caller holds `memory_lock`.

        `stamped_epoch`: the leader epoch that was stamped into them; None where they keep their own.
        """
        self._unsnapshotted_batches += len(placed)
        latest = self._latest_epoch
        for number, (base, _, _, _) in enumerate(placed, start):
            envelope = batches[number].envelope
            epoch = envelope.leader_epoch if stamped_epoch is None else stamped_epoch
            if epoch > latest:
                self._epochs.assign(LeaderEpoch(epoch), Offset(base))
                self._latest_epoch, self._epochs_behind = epoch, True
                latest = epoch
            if envelope.producer_id >= 0:
                if stamped_epoch is not None:
                    envelope = envelope._replace(base_offset=base)
                ended = self._producers.observe(envelope, monotonic_ms(), read_marker(batches[number]))
                if ended is not None and not ended.commit:
                    self._aborted.add(aborted_row(ended, self._producers))

    def aborted_between(self, start_offset: int, end_offset: int) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions with batches that may lie in [start, end); the caller holds `memory_lock`."""
        return self._aborted.overlapping(start_offset, end_offset)

    def aborted_rows(self, segment: Segment) -> tuple[AbortedRow, ...]:
        """The rows of aborted transactions of a segment."""
        with self._context.memory_lock:
            return tuple(self._aborted.rows(segment.base_offset, segment.next_offset))

    def copy_producers(self) -> ProducerStates:
        """An independent copy; by the append thread."""
        return self._producers.copy()

    def restart_at(self, start_offset: Offset, epoch_below: LeaderEpoch) -> None:
        """The state of an empty log; `epoch_below`: leader epoch of the last record below. The caller holds both
        locks."""
        self._producers = self._expiring(ProducerStates())
        self._aborted = AbortedIndex()
        self._epochs.begin_at(start_offset, epoch_below)
        self._latest_epoch, self._epochs_behind, self._snapshot_at = self._epochs.latest, False, -1

    def adopt(self, epochs: Sequence[EpochEntry], producers: ProducerStates) -> None:
        """Replace all state by that of another copy of the log; the caller holds both locks."""
        self._epochs = LeaderEpochs(epochs)
        self._latest_epoch, self._epochs_behind = self._epochs.latest, True
        self._producers = self._expiring(producers)
        self._snapshot_at = -1

    def forget_epochs_below(self, log_start: int) -> None:
        """Drop the leader epochs of records below a log start that a checkpoint names."""
        with self._context.memory_lock:
            known = self._epochs.entries
            if known and known[0].start_offset < log_start:
                self._epochs.truncate_from_start(Offset(log_start))

    # -- files

    def rebuild(self, segments: Sequence[Segment], end_offset: int, clean_point: int) -> None:
        """Restore the state after a truncation: the newest snapshot up to the log end, then envelopes (P3).

        Args:
            segments: the segments that are left.
            end_offset: the new log end, exclusive.
            clean_point: the clean point before the truncation; see `newest_snapshot`.

        Raises:
            OSError, Damage: an envelope cannot be read.
        """
        self._drop_snapshots(end_offset)
        path, front = self._context.path, segments[0].base_offset
        found = newest_snapshot(path, self._snapshots(), at_least=front, at_most=end_offset, clean_point=clean_point)
        start, producers = found or (0, ProducerStates())
        for envelope, marker in replay_from(segments, start, self._context.settings.index_interval_bytes):
            if envelope.producer_id >= 0 and envelope.base_offset >= start:
                producers.observe(envelope, marker=marker)
        with self._context.memory_lock:
            self._producers = self._expiring(producers)
            self._aborted.truncate(end_offset)
            self._epochs.truncate_from_end(Offset(end_offset))
            self._latest_epoch, self._epochs_behind = self._epochs.latest, False
        self.write_epochs()

    def continue_epochs(self, entries: Sequence[EpochEntry], unmade: Unmade | None) -> None:
        """Take over the leader epochs of the replica and write them; to the roster where there is no directory.

        The caller holds `files_lock`. Raises OSError; a full disk is retried by the next checkpoint instead.
        """
        with self._context.memory_lock:
            self._epochs = self._epochs.continued_by(entries)
            self._latest_epoch, self._epochs_behind = self._epochs.latest, False
        if unmade is None:
            self.write_epochs()
            return
        try:
            unmade.save_epochs(entries)
        except OSError as error:
            if not has_no_room(error):
                raise

    def write_epochs(self) -> bool:
        """Write the leader-epoch-checkpoint; on a full disk False, and the next checkpoint retries. Raises OSError."""
        try:
            write_epochs(self._context.path, self._epochs.entries)
        except OSError as error:
            if not has_no_room(error):
                raise
            self._epochs_behind = True
            return False
        return True

    def take_unwritten(self) -> Unwritten:
        """The state that the files lack; the caller holds `memory_lock` and then calls `write`."""
        epochs = self._epochs.entries if self._epochs_behind else None
        self._epochs_behind = False
        due = snapshot_due(self._unsnapshotted_batches, self._producers)
        return Unwritten(epochs, self._producers.copy() if due else None, self._aborted.take_unwritten())

    def write(self, unwritten: Unwritten, log_end: int, segments: Sequence[Segment]) -> None:
        """Write the result that `take_unwritten` returned at `log_end`. The caller holds `files_lock`. Raises
        OSError."""
        if unwritten.aborted is not None:
            try:
                self._write_aborted(unwritten.aborted, segments)
            except OSError:
                self._epochs_behind = self._epochs_behind or unwritten.epochs is not None
                raise
        if unwritten.epochs is not None:
            try:
                write_epochs(self._context.path, unwritten.epochs)
            except OSError:
                self._epochs_behind = True
                raise
        if unwritten.producers is not None:
            self._replace_snapshots(log_end, unwritten.producers, segments)

    def write_all(self, log_end: int, segments: Sequence[Segment]) -> None:
        """Complete the files at a clean stop. The caller holds `files_lock`. Raises OSError."""
        if log_end > 0 and self._snapshot_at != log_end:
            self._replace_snapshots(log_end, self._producers, segments)
        if self._epochs_behind:
            write_epochs(self._context.path, self._epochs.entries)
            self._epochs_behind = False

    def write_aborted(self, segments: Sequence[Segment]) -> None:
        """Complete the files of aborted transactions, before a segment is sealed. The caller holds `files_lock`.

        Raises:
            OSError: the disk does not answer, or is full.
        """
        with self._context.memory_lock:
            unwritten = self._aborted.take_unwritten()
        if unwritten is not None:
            self._write_aborted(unwritten, segments)

    def _write_aborted(self, unwritten: UnwrittenRows, segments: Sequence[Segment]) -> None:
        try:
            write_rows(unwritten, segments)
        except OSError:
            with self._context.memory_lock:
                self._aborted.put_back(unwritten)
            raise

    def note_unwritten_aborted(self, base_offset: int) -> None:
        """Note that the file of the segment at `base_offset` was not written: the next checkpoint writes it."""
        with self._context.memory_lock:
            self._aborted.unwritten_from = min(self._aborted.unwritten_from, base_offset)

    def retain_aborted(self, segment: Segment, markers: Sequence[int]) -> None:
        """Drop the aborted transactions of a cleaned segment, except transactions with these markers."""
        with self._context.memory_lock:
            self._aborted.retain(segment.base_offset, segment.next_offset, markers)

    def trim_aborted(self, base_offset: int) -> None:
        """Drop the aborted transactions of segments below the first segment."""
        with self._context.memory_lock:
            self._aborted.trim(base_offset)

    def write_snapshot(self, log_end: int) -> None:
        """Write the producer snapshot of this log end, at the start of a segment; called by the append thread.
        Raises OSError.
        """
        self._write_snapshot(log_end, self._producers)

    def _write_snapshot(self, log_end: int, producers: ProducerStates) -> None:
        write_snapshot(self._context.path, log_end, producers)
        self._snapshot_at, self._unsnapshotted_batches = log_end, 0

    def _replace_snapshots(self, log_end: int, producers: ProducerStates, segments: Sequence[Segment]) -> None:
        """Write a snapshot and delete earlier snapshots, except at the starts of segments, where truncations begin.

        Snapshots of trimmed segments stay: until the next checkpoint, a start after a kill begins there.
        """
        self._write_snapshot(log_end, producers)
        kept, front = {segment.base_offset for segment in segments} | {log_end}, segments[0].base_offset
        self._delete_snapshots(offset for offset in self._snapshots() if offset > front and offset not in kept)

    def _drop_snapshots(self, above: int) -> None:
        """Delete the snapshots past a truncation: other batches will have their offsets."""
        self._delete_snapshots(offset for offset in self._snapshots() if offset > above)
        self._snapshot_at = -1

    def drop_snapshots_below(self, base_offset: int) -> None:
        """Delete the snapshots below the first segment except the newest, which a truncation to the log start needs."""
        self._delete_snapshots([offset for offset in self._snapshots() if offset <= base_offset][:-1])

    def _snapshots(self) -> list[int]:
        return segment_offsets(self._context.path, SNAPSHOT_SUFFIX)

    def _delete_snapshots(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            snapshot_path(self._context.path, offset).unlink(missing_ok=True)
