# SPDX-License-Identifier: Apache-2.0
"""PartitionLog: one replica's log on disk, the `Log` of ports.py (rules R1, E1, E3, P3, T5).

One thread appends, truncates and resets; others read, flush and checkpoint beside it. `_lock` guards what is in
memory and is never held across a write; `_files_lock` keeps roll, truncation, reset, close and checkpoint apart.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from tidemark.core.producer_state import ProducerStates
from tidemark.model import NO_EPOCH, EpochEntry, ErrorCode, LeaderEpoch, Offset, TidemarkError
from tidemark.record.envelope import STAMP_BYTES, Batch, stamp
from tidemark.storage.files import (
    PARTITION_FILE,
    has_no_room,
    is_unopened,
    monotonic_ms,
    raise_storage_error,
    storage_error,
    sync_directory,
    sync_file,
    write_vector,
)
from tidemark.storage.log.checkpointed import CheckpointedLog
from tidemark.storage.log.cleanable import CleanableLog
from tidemark.storage.recovery.cleaner_point import lower_clean_point
from tidemark.storage.recovery.damage import CUT_FILE, CutPoint, read_cut_point, write_cut_point
from tidemark.storage.recovery.epoch_file import EPOCH_FILE, write_epochs
from tidemark.storage.recovery.log_loader import envelopes_from, make_segment, segment_offsets, start_anew
from tidemark.storage.recovery.producer_snapshot import SNAPSHOT_SUFFIX, newest_snapshot, snapshot_path, write_snapshot
from tidemark.storage.segments.index import NO_TIMESTAMP_US
from tidemark.storage.segments.segment import Damage, Segment, walk
from tidemark.storage.segments.tail import Tail
from tidemark.storage.settings import storage_settings

_IOV_MAX: Final = 1024


class PartitionLog(CleanableLog, CheckpointedLog):
    """The whole `Log`: appending, cutting and making durable, on top of reading, cleaning and letting the front go."""

    def configure(self, configs: Mapping[str, str]) -> None:
        """As the port says; what is in the log stays as it is."""
        expiration_ms = self._settings.producer_id_expiration_ms
        self._settings = storage_settings(configs, producer_id_expiration_ms=expiration_ms)
        self._interval_bytes = self._settings.index_interval_bytes
        self._segment_ms_us = self._settings.segment_ms * 1000

    # -- append

    def append(
        self, batches: Sequence[Batch], *, base_offset: Offset, leader_epoch: LeaderEpoch, stamp: bool
    ) -> Offset:
        """As the port says; nothing of it is in the log when it raises.

        Raises:
            TidemarkError: STORAGE_ERROR; the replica is offline then.
        """
        self._check_usable()
        if not batches:
            return Offset(self._end)
        if self._unmade is not None:
            self.make_directory()
        if not stamp and batches[0].envelope.base_offset < self._end:
            self._start_at_spanning_batch(batches[0])
        first = base_offset if stamp else batches[0].envelope.base_offset
        assert not stamp or first == self._end, f"a leader appends at {first}, its log ends at {self._end}"
        end = self._end
        try:
            start = 0
            while start < len(batches):
                start = self._append_group(batches, start, leader_epoch, stamp)
        except (OSError, Damage) as error:
            if self._end != end or not is_unopened(error):  # what could not be opened was not written to
                self._undo_append(end)
            if isinstance(error, OSError) and has_no_room(error) and self._broken is None:
                raise storage_error(f"append to {self._path.name} in {self._path.parent}", error) from error
            self._suspect_disk(error)
            reason = error.strerror if isinstance(error, OSError) else error
            raise TidemarkError(ErrorCode.STORAGE_ERROR, f"append to {self._path.name}: {reason}") from error
        return Offset(self._end)

    def make_directory(self) -> None:
        """The first record is coming, or what is like it; the log may have been closed and set aside meanwhile."""
        with self._files_lock:
            self._check_usable()
            if self._unmade is not None:
                try:
                    self._unmade.make()
                except OSError as error:
                    raise_storage_error(f"make the directory of {self._path.name}", error)
                self._unmade = None

    def _append_group(self, batches: Sequence[Batch], start: int, leader_epoch: int, stamping: bool) -> int:
        """Write the batches from `start` on that go into one segment with one writev; gives the next start."""
        active = self._segments[-1]
        if self._rolls_before(active, batches[start]):
            active = self._roll()
        opened = self._pool.get(active, active.log_path)
        descriptor = opened.number
        if active.index is None:
            with self._lock:
                active.ensure_index(descriptor, self._interval_bytes)
        room = self._settings.segment_bytes - active.size_bytes
        buffers: list[bytes | memoryview] = []
        placed: list[tuple[int, int, int, int]] = []
        total, following = 0, self._end
        for batch in islice(batches, start, start + _IOV_MAX // 2):
            envelope, data = batch
            length = len(data)
            if placed and (total + length > room or self._too_late(active, envelope.max_timestamp_us)):
                break
            if stamping:
                base, epoch = following, leader_epoch
                buffers.append(stamp(data, base_offset=base, leader_epoch=epoch))
                buffers.append(memoryview(data)[STAMP_BYTES:])
            else:
                base, epoch = envelope.base_offset, envelope.leader_epoch
                buffers.append(data)
            following = base + envelope.last_offset_delta + 1
            total += length
            placed.append((base, following, length, envelope.max_timestamp_us))
            if active.first_timestamp_us is None:
                active.first_timestamp_us = self._first_timestamp(active, descriptor, envelope.max_timestamp_us)
        write_vector(descriptor, buffers, total, active.size_bytes)
        self._publish(active, descriptor, placed)
        self._remember(batches, start, placed, leader_epoch, stamping)
        return start + len(placed)

    def _publish(self, active: Segment, descriptor: int, placed: list[tuple[int, int, int, int]]) -> None:
        tail, interval_bytes = self._tail, self._interval_bytes
        with self._lock:
            active.ensure_index(descriptor, interval_bytes)  # a checkpoint may have let go of it
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
            self._end = following

    def _remember(
        self,
        batches: Sequence[Batch],
        start: int,
        placed: list[tuple[int, int, int, int]],
        leader_epoch: int,
        stamping: bool,
    ) -> None:
        """Fold epochs and producers of what was appended into the copies that the next start begins from."""
        self._unsnapshotted_batches += len(placed)
        for number, (base, _, _, _) in enumerate(placed, start):
            envelope = batches[number].envelope
            epoch = leader_epoch if stamping else envelope.leader_epoch
            if epoch > self._latest_epoch:
                with self._lock:
                    self._epochs.assign(LeaderEpoch(epoch), Offset(base))
                    self._latest_epoch, self._epochs_behind = epoch, True
            if envelope.producer_id >= 0:
                with self._lock:
                    placed_envelope = envelope._replace(base_offset=base) if stamping else envelope
                    self._producers.observe(placed_envelope, monotonic_ms())

    def _rolls_before(self, active: Segment, batch: Batch) -> bool:
        if active.size_bytes == 0:
            return False
        if active.size_bytes + len(batch.data) > self._settings.segment_bytes:
            return True
        return self._too_late(active, batch.envelope.max_timestamp_us)

    def _too_late(self, active: Segment, timestamp_us: int) -> bool:
        first = active.first_timestamp_us
        return first is not None and timestamp_us - first > self._segment_ms_us

    def _first_timestamp(self, active: Segment, descriptor: int, otherwise_us: int) -> int:
        if active.size_bytes == 0:
            return otherwise_us
        return next(walk(descriptor, 0, active.size_bytes))[1].max_timestamp_us

    def _roll(self) -> Segment:
        """Close the active segment and start the next one at the log end."""
        with self._files_lock:
            sealed = self._segments[-1]
            sealed.seal()
            write_snapshot(self._path, self._end, self._producers)
            self._snapshot_at, self._unsnapshotted_batches = self._end, 0
            segment = make_segment(self._path, self._end)
            with self._lock:
                self._segments = (*self._segments, segment)
                self._tail = Tail(self._end, 0)
                self._names_behind = True
                if sealed.index is not None:
                    self._pool.indexes.use(sealed, len(sealed.index))
            return segment

    def _start_at_spanning_batch(self, batch: Batch) -> None:
        """An empty log takes a batch that spans its start, and names its segment by it (rule L1)."""
        base = batch.envelope.base_offset
        assert self._end == self._start, f"append at {base} below the log end {self._end}"
        assert not self.size_bytes(), f"append at {base} below the log end {self._end}"
        assert batch.envelope.next_offset > self._start, "the batch lies below the log start"
        with self._files_lock, self._lock:
            old = self._segments[-1]
            self._remove_trimmed()
            segment = make_segment(self._path, base)
            self._segments = (segment,)
            self._tail = Tail(base, 0)
            self._names_behind = True
            self._pool.drop(old)
            if old.base_offset != base:
                old.remove()

    def _undo_append(self, end: int) -> None:
        """Take back what was written of an append that failed: all of it or nothing is in the log."""
        try:
            # First what it took of a disk that is full: the cut has to be noted there.
            self._cut_bytes(self._segments[-1], self._segments[-1].size_bytes)
            if self._end != end:
                self._cut(end)
        except (OSError, Damage, TidemarkError) as error:
            self._broken = f"a failed append to {self._path.name} could not be taken back: {error}"

    # -- cut

    def truncate(self, end_offset: Offset) -> ProducerStates:
        """Cut at `end_offset`, exclusive, or before the batch that spans it; gives the producer state of what is left.

        Raises:
            TidemarkError: STORAGE_ERROR; the replica is offline then.
        """
        self._check_usable()
        if end_offset < self._start:
            self.reset(end_offset)
        elif end_offset < self._end:
            try:
                self._cut(end_offset)
            except (OSError, Damage) as error:
                self._suspect_disk(error)
                self._broken = f"truncate {self._path.name} at {end_offset}: {error}"
                raise TidemarkError(ErrorCode.STORAGE_ERROR, self._broken) from error
        return self._producers.copy()

    def _cut(self, end_offset: int) -> None:
        with self._files_lock:
            segment = self._segment_of(end_offset)
            descriptor = self._pool.get(segment, segment.log_path)
            with self._lock:
                index = segment.ensure_index(descriptor.number, self._interval_bytes)
                number = index.floor(end_offset)
                start = index.positions[number] if number >= 0 else 0
            position, end = segment.size_bytes, min(end_offset, self._end)
            for at, envelope in walk(descriptor.number, start, segment.size_bytes):
                if envelope.next_offset > end_offset:
                    position, end = at, min(envelope.base_offset, end_offset)
                    break
            self._mark_cut(CutPoint(end, min(self._start, end)))
            with self._lock:
                self._count_cut(end)
                vouched_for = end < self._flushed
                dropped = [other for other in self._segments if other.base_offset > segment.base_offset]
                self._segments = tuple(other for other in self._segments if other not in dropped)
                self._pool.indexes.drop(segment)
                segment.index = index  # nobody lets go of it any more
                self._end = end
                self._start = min(self._start, end)
                self._flushed = min(self._flushed, end)
                self._tail = Tail(end, position)
                self._names_behind = True  # of the cut's mark, and of segments that must not come back after a crash
            for other in reversed(dropped):
                self._pool.drop(other)
                other.remove()
            self._cut_bytes(segment, position)
            segment.next_offset = end
            self._drop_snapshots(end)
            with self._lock:
                self._cuts += 1
                self._names_behind = True  # a flush in the meantime was too early
            self._rebuild_state(end)
            # Never written over: the cut may reach the disk after what is appended. After an unclean election what lies
            # below the start may be of later epochs than what comes now.
            if position and (vouched_for or end == self._start):
                self._roll_if_there_is_space()

    def _cut_bytes(self, segment: Segment, size_bytes: int) -> None:
        """Cut the file of a segment and what is known of it; its next offset is the caller's."""
        descriptor = self._pool.get(segment, segment.log_path)
        segment.remove_indexes()
        os.ftruncate(descriptor.number, size_bytes)
        with self._lock:
            index = segment.ensure_index(descriptor.number, self._interval_bytes)
            if size_bytes == segment.size_bytes:
                return
            index.cut(size_bytes)
            start = index.positions[-1] if len(index) else 0
            newest = index.timestamps[-1] if len(index) else NO_TIMESTAMP_US
            for _, envelope in walk(descriptor.number, start, size_bytes):
                newest = max(newest, envelope.max_timestamp_us)
            segment.max_timestamp_us = newest
            segment.unindexed_bytes = size_bytes - start
            segment.size_bytes = size_bytes
            if size_bytes == 0:
                segment.first_timestamp_us = None

    def _rebuild_state(self, end: int) -> None:
        """Epochs and producers of what is left: the snapshot at or below the cut, and the envelopes after it (P3)."""
        first, offsets = self._segments[0].base_offset, segment_offsets(self._path, SNAPSHOT_SUFFIX)
        found = newest_snapshot(self._path, offsets, at_least=first, at_most=end)
        start, producers = found or (0, ProducerStates())
        for envelope in envelopes_from(self._segments, start, self._interval_bytes):
            if envelope.producer_id >= 0 and envelope.base_offset >= start:
                producers.observe(envelope)
        with self._lock:
            self._producers = self._expiring(producers)
            self._epochs.truncate_from_end(Offset(end))
            self._latest_epoch, self._epochs_behind = self._epochs.latest, False
        self._write_epochs()

    def _write_epochs(self) -> None:
        try:
            write_epochs(self._path, self._epochs.entries)
        except OSError as error:
            if not has_no_room(error):
                raise
            self._epochs_behind = True  # the next checkpoint tries again

    def reset(self, start_offset: Offset, epoch_below: LeaderEpoch = NO_EPOCH) -> None:
        """Drop everything, start empty there; what lies below was of that epoch, -1 where nobody knows (rule E3).

        Raises:
            TidemarkError: STORAGE_ERROR; the replica is offline then.
        """
        self._check_usable()
        self.make_directory()
        try:
            with self._files_lock:
                cut = CutPoint(min(start_offset, self._end), start_offset, epoch_below=epoch_below)
                self._mark_cut(cut._replace(resetting=True))
                with self._lock:
                    self._count_cut(cut.end_offset)
                    dropped = (*self._trimmed, *self._segments)
                    for other in dropped:
                        self._pool.drop(other)
                    self._start = self._end = self._flushed = start_offset
                    self._segments = (start_anew(self._path, dropped, start_offset),)
                    self._trimmed = ()
                    self._tail = Tail(start_offset, 0)
                    self._producers = self._expiring(ProducerStates())
                    self._epochs.begin_at(start_offset, epoch_below)
                    self._latest_epoch, self._epochs_behind, self._snapshot_at = self._epochs.latest, False, -1
                self._write_epochs()
                self._mark_cut(cut)  # what comes from here on is to stay
                self._names_behind = True  # a flush in the meantime was too early
        except OSError as error:
            self._suspect_disk(error)
            self._broken = f"reset {self._path.name}: {error}"
            raise_storage_error(f"reset {self._path.name}", error)

    def _mark_cut(self, cut: CutPoint) -> None:
        """Before anything is cut: the checkpoints on disk vouch for nothing past it any more (rule T5)."""
        if self._cut_pending:
            earlier = read_cut_point(self._path)
            if earlier is not None:
                cut = cut._replace(end_offset=min(cut.end_offset, earlier.end_offset))
        try:
            lower_clean_point(self._path, cut.end_offset)
            write_cut_point(self._path, cut)
        except OSError as error:
            if has_no_room(error):  # nothing is cut yet: it can be tried again
                raise storage_error(f"cut {self._path.name}", error) from error
            raise
        self._cut_pending = True

    def _drop_snapshots(self, above: int) -> None:
        for offset in segment_offsets(self._path, SNAPSHOT_SUFFIX):
            if offset > above:
                snapshot_path(self._path, offset).unlink(missing_ok=True)
        self._snapshot_at = -1

    # -- make durable

    def save_epochs(self, entries: Sequence[EpochEntry]) -> None:
        """Write the leader-epoch-checkpoint, behind what is in memory; durable with the next syncfs."""
        with self._files_lock:
            with self._lock:
                self._epochs = self._epochs.continued_by(entries)
                self._latest_epoch, self._epochs_behind = self._epochs.latest, False
                known = self._epochs.entries
            try:
                if self._unmade is not None:
                    self._unmade.save_epochs(entries)
                else:
                    write_epochs(self._path, known)
            except OSError as error:
                if has_no_room(error):
                    self._epochs_behind = self._unmade is None  # the next checkpoint tries again
                    return
                raise_storage_error(f"write {EPOCH_FILE} of {self._path.name}", error)

    def flush(self) -> Offset:
        """fdatasync; everything below the result is on disk.

        Raises:
            TidemarkError: STORAGE_ERROR, and the whole log directory is offline: a failed sync is never tried again.
        """
        self._check_usable()
        if self._unmade is not None:
            return Offset(self._flushed)
        with self._lock:
            cuts, end, names = self._cuts, self._end, self._names_behind
            flushed = self._flushed - names  # a segment that was cut just there is behind too
            behind = [segment for segment in self._segments if segment.next_offset > flushed]
            self._names_behind = False
        try:
            for segment in behind:
                self._sync_segment(segment)
            if names:
                self._sync_names()
        except OSError as error:
            if cuts != self._cuts and error.errno == errno.ENOENT:
                return Offset(self._flushed)
            self._home.fail(f"fdatasync of {self._path.name}: {error.strerror}")
            raise_storage_error(f"flush {self._path.name}", error)
        self._note_flushed(end, cuts)
        return Offset(self._flushed)

    def _sync_segment(self, segment: Segment) -> None:
        try:
            opened = self._pool.get(segment, segment.log_path)
        except FileNotFoundError:
            with self._files_lock:  # whoever removes files holds it until the segments are those that are left
                if segment in self._segments:
                    raise
            return
        os.fdatasync(opened.number)

    def _sync_names(self) -> None:
        """Records on disk count for nothing if their files, or whose they are, are not found there after a crash."""
        if self._identity_behind:
            sync_file(self._path / PARTITION_FILE)
        if self._cut_pending:
            with contextlib.suppress(FileNotFoundError):  # a checkpoint took its place
                sync_file(self._path / CUT_FILE)
        sync_directory(self._path)
        if self._identity_behind:
            sync_directory(self._path.parent)
            self._identity_behind = False

    def close(self) -> None:
        """Release the files; every later call is refused."""
        with self._files_lock, self._lock:
            self._broken = self._broken or f"the log {self._path.name} is closed"
            self._cuts += 1
            for segment in self._segments:
                self._pool.drop(segment)
