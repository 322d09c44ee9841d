# SPDX-License-Identifier: Apache-2.0
"""PartitionLog: one replica's log on disk, the `Log` of ports.py (rules R1, E1, E3, L1, P3, T5)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.core.producer_state import ProducerStates
from tidemark.model import NO_EPOCH, EpochEntry, ErrorCode, LeaderEpoch, Offset, TidemarkError
from tidemark.ports import RetentionLimits, TakeParts, TimestampOffset, no_check
from tidemark.record.envelope import STAMP_BYTES, Batch, stamp
from tidemark.record.transactions import AbortedTransaction
from tidemark.storage.files import (
    DELETED_SUFFIX,
    has_no_room,
    is_unopened,
    raise_storage_error,
    storage_error,
    write_vector,
)
from tidemark.storage.log import retention
from tidemark.storage.log.cleaning import SegmentCleaning
from tidemark.storage.log.context import Home, LogContext, Unmade
from tidemark.storage.log.durability import Durability
from tidemark.storage.log.log_segments import LogSegments, Placed
from tidemark.storage.log.log_state import LogState
from tidemark.storage.log.reader import LogReader
from tidemark.storage.log.replayed_state import ReplayedState
from tidemark.storage.recovery.cleaner_point import CleanPoint
from tidemark.storage.recovery.damage import CutPoint
from tidemark.storage.recovery.epoch_file import EPOCH_FILE
from tidemark.storage.recovery.log_loader import Recovered, Restart, make_segment, prepare_restart
from tidemark.storage.segments.descriptor_pool import DescriptorPool
from tidemark.storage.segments.segment import Damage, Segment, walk
from tidemark.storage.settings import StorageSettings, storage_settings

_IOV_MAX: Final = 1024
SEGMENTS_MAX: Final = 10_000
"""Segments of a log from which on appends make segments of `LARGER_BYTES` or more, with any segment.bytes and
segment.ms. A client may choose these settings, and each segment takes several files and some kB of memory."""
LARGER_BYTES: Final = 1 << 20
_NEVER_US: Final = 1 << 63


class PartitionLog:
    """Appends to, truncates and trims one log, and assembles the parts that read, flush and clean it.

    One thread appends, truncates, resets, trims and rolls. Reads, flushes, checkpoints and the cleaner run
    concurrently; `LogContext` has the locks. A change that spans parts is made here: under `memory_lock` the parts
    agree.

    Attributes:
        segments: which segments there are, and the log start and end.
        durability: flushes and checkpoints.
        cleaning: the cleaner's view of the segments, and their replacement.
    """

    __slots__ = ("_context", "_reader", "_replayed", "_successor", "_unmade", "cleaning", "durability", "segments")

    def __init__(
        self,
        path: Path,
        recovered: Recovered,
        *,
        settings: StorageSettings,
        pool: DescriptorPool,
        home: Home,
        unmade: Unmade | None = None,
    ) -> None:
        self._context = context = LogContext(path, settings, home)
        self._unmade = unmade
        """Replaces the directory until the first record, then None; written under `files_lock`."""
        self.segments = LogSegments(
            recovered.segments,
            start_offset=recovered.log_start,
            end_offset=recovered.log_end,
            context=context,
            pool=pool,
        )
        self._replayed = ReplayedState(recovered, context)
        self._reader = LogReader(context, self.segments)
        self.durability = Durability(recovered, context, self.segments, self._replayed)
        self.cleaning = SegmentCleaning(context, self.segments, self._replayed)
        self._successor: PartitionLog | None = None
        """The copy in another directory that took this log's place; it answers this log's readers."""

    # -- figures

    @property
    def path(self) -> Path:
        """Directory of the replica."""
        return self._context.path

    @property
    def log_start_offset(self) -> Offset:
        """First offset of the log, inclusive."""
        return Offset(self.segments.start_offset)

    @property
    def log_end_offset(self) -> Offset:
        """Next offset of the log, exclusive."""
        return Offset(self.segments.end_offset)

    @property
    def flushed_offset(self) -> Offset:
        """Offset (exclusive) below which all records are on disk."""
        return Offset(self.durability.flushed_offset)

    @property
    def broken(self) -> str | None:
        """Why every call is refused (a failed write, or the log is closed), None while the log can be used."""
        return self._context.broken

    @property
    def is_damaged(self) -> bool:
        """Whether records are missing, or no checkpoint covers the refetched log yet (rule T5)."""
        return self.durability.is_damaged

    @property
    def has_directory(self) -> bool:
        """Whether the replica has a directory: the replica has held a record, or has prepared for one."""
        return self._unmade is None

    def size_bytes(self) -> int:
        """Size of all segments, in bytes."""
        return self.segments.size_bytes()

    def segment_count(self) -> int:
        """Number of segments, including the active segment."""
        return len(self.segments.all)

    def bytes_from(self, offset: int) -> int:
        """Estimated bytes from this offset to the end, from memory only."""
        return self.segments.bytes_from(offset)

    def configure(self, configs: Mapping[str, str]) -> None:
        """Apply the topic's settings to later operations."""
        expiration_ms = self._context.settings.producer_id_expiration_ms
        self._context.settings = storage_settings(configs, producer_id_expiration_ms=expiration_ms)

    # -- append

    def append(
        self, batches: Sequence[Batch], *, base_offset: Offset, leader_epoch: LeaderEpoch, stamp: bool
    ) -> Offset:
        """Append all of the batches or none, stamped with offset and leader epoch by a leader; returns the log end.

        Raises:
            TidemarkError: STORAGE_ERROR: the replica is offline. DISK_FULL: the log is unchanged.
        """
        context, segments = self._context, self.segments
        context.check_usable()
        if not batches:
            return Offset(segments.end_offset)
        if self._unmade is not None:
            self.make_directory()
        end = segments.end_offset
        assert not stamp or base_offset == end, f"a leader appends at {base_offset}, its log ends at {end}"
        try:
            if not stamp and batches[0].envelope.base_offset < end:
                self._start_at_spanning_batch(batches[0])
            start = 0
            while start < len(batches):
                start = self._append_group(batches, start, leader_epoch if stamp else None)
        except (OSError, Damage) as error:
            if segments.end_offset != end or not is_unopened(error):  # otherwise no file was opened or written
                self._undo_append(end)
            if isinstance(error, OSError) and has_no_room(error) and context.broken is None:
                raise storage_error(f"append to {self.path.name} in {self.path.parent}", error) from error
            context.suspect_disk(error)
            reason = error.strerror if isinstance(error, OSError) else error
            raise TidemarkError(ErrorCode.STORAGE_ERROR, f"append to {self.path.name}: {reason}") from error
        return Offset(segments.end_offset)

    def make_directory(self) -> None:
        """Make the directory before the first record.

        Raises:
            TidemarkError: STORAGE_ERROR, DISK_FULL; also where the log was closed meanwhile.
        """
        with self._context.files_lock:
            self._context.check_usable()
            if self._unmade is not None:
                try:
                    self._unmade.make()
                except OSError as error:
                    raise_storage_error(f"make the directory of {self.path.name}", error)
                self._unmade = None

    def _append_group(self, batches: Sequence[Batch], start: int, stamped_epoch: int | None) -> int:
        """Write the batches from `start` that fit the active segment with one writev; returns the next start."""
        segments, settings = self.segments, self._context.settings
        segment_bytes, segment_us = settings.segment_bytes, settings.segment_ms * 1000
        if len(segments.all) >= SEGMENTS_MAX:
            segment_bytes, segment_us = max(segment_bytes, LARGER_BYTES), _NEVER_US
        active = segments.active
        if _rolls_before(active, batches[start], segment_bytes, segment_us):
            active = self._roll()
        descriptor = segments.open(active)
        if active.index is None:
            with self._context.memory_lock:
                segments.index_of(active, descriptor)
        room = segment_bytes - active.size_bytes
        buffers: list[bytes | memoryview] = []
        placed: list[Placed] = []
        total, following = 0, segments.end_offset
        for envelope, data in islice(batches, start, start + _IOV_MAX // 2):
            length = len(data)
            timestamp_us = envelope.max_timestamp_us
            if placed and (total + length > room or _is_too_late(active, timestamp_us, segment_us)):
                break
            if stamped_epoch is not None:
                base = following
                buffers.append(stamp(data, base_offset=base, leader_epoch=stamped_epoch))
                buffers.append(memoryview(data)[STAMP_BYTES:])
            else:
                base = envelope.base_offset
                buffers.append(data)
            following = base + envelope.last_offset_delta + 1
            total += length
            placed.append((base, following, length, timestamp_us))
            if active.first_timestamp_us is None:
                active.first_timestamp_us = _first_timestamp(active, descriptor.number, otherwise_us=timestamp_us)
        write_vector(descriptor.number, buffers, total, active.size_bytes)
        with self._context.memory_lock:
            segments.publish(active, descriptor, placed)
            self._replayed.fold(batches, start, placed, stamped_epoch)
        return start + len(placed)

    def _roll(self) -> Segment:
        """Close the active segment and start the next one at the log end."""
        with self._context.files_lock:
            end = self.segments.end_offset
            self._replayed.write_aborted(self.segments.all)
            self.segments.active.seal()
            self._replayed.write_snapshot(end)
            segment = make_segment(self.path, end)
            with self._context.memory_lock:
                self.segments.add(segment)
                self.durability.names_changed()
            return segment

    def _roll_if_there_is_space(self) -> None:
        try:
            self._roll()
        except OSError as error:
            if not has_no_room(error):
                raise

    def _start_at_spanning_batch(self, batch: Batch) -> None:
        """An empty log takes a batch that spans its start, in a segment named after that batch (rule L1)."""
        segments, base = self.segments, batch.envelope.base_offset
        end = segments.end_offset
        assert end == segments.start_offset, f"append at {base} below the log end {end}"
        assert not self.size_bytes(), f"append at {base} below the log end {end}"
        assert batch.envelope.next_offset > segments.start_offset, "the batch lies below the log start"
        with self._context.files_lock, self._context.memory_lock:
            segments.restart_at(base)
            self.durability.names_changed()

    def _undo_append(self, end: int) -> None:
        """Truncate the bytes of a failed append; the log is broken where that fails too."""
        active = self.segments.active
        try:
            # The file first: on a full disk the mark of the truncation needs the space.
            self.segments.truncate_file(active, active.size_bytes)
            if self.segments.end_offset != end:
                self._truncate(end, undoes_append=True)
        except (OSError, Damage, TidemarkError) as error:
            self._context.broken = f"a failed append to {self.path.name} could not be truncated: {error}"

    # -- truncate

    def truncate(self, end_offset: Offset) -> ProducerStates:
        """Truncate to `end_offset` (exclusive), or before the batch that spans it; returns the remaining producer
        state.

        Raises:
            TidemarkError: STORAGE_ERROR: the replica is offline. DISK_FULL: the log is unchanged.
        """
        self._context.check_usable()
        if end_offset < self.segments.start_offset:
            self.reset(end_offset)
        elif end_offset < (end := self.segments.end_offset):
            try:
                self._truncate(end_offset)
            except (OSError, Damage) as error:
                if isinstance(error, OSError) and is_unopened(error) and self.segments.end_offset == end:
                    raise storage_error(f"truncate {self.path.name}", error) from error
                self._context.suspect_disk(error)
                self._context.broken = f"truncate {self.path.name} to {end_offset}: {error}"
                raise TidemarkError(ErrorCode.STORAGE_ERROR, self._context.broken) from error
        return self._replayed.copy_producers()

    def _truncate(self, end_offset: int, *, undoes_append: bool = False) -> None:
        context, segments, durability = self._context, self.segments, self.durability
        with context.files_lock:
            boundary = segments.boundary(end_offset)
            segment, _, position, end = boundary
            clean_point = self.cleaning.clean_point
            try:
                durability.mark_truncation(CutPoint(end, min(segments.start_offset, end)))
            except TidemarkError:
                # The core never counted these records. A checkpoint that did, and a crash before the next checkpoint,
                # make the replica damaged at worst.
                if not undoes_append:
                    raise
            with context.memory_lock:
                dropped = segments.truncate(boundary)
                was_flushed = durability.truncate(end)
            segments.remove(dropped)
            if was_flushed and position == 0:
                segments.renew_file(segment)
            segments.truncate_file(segment, position)
            segment.next_offset = end
            # Twice: a flush meanwhile may sync the directory before the last file is deleted, and `rebuild` may fail.
            with context.memory_lock:
                segments.finish_truncation()
                durability.names_changed()
            self._replayed.rebuild(segments.all, end, clean_point)
            with context.memory_lock:
                durability.names_changed()
            # Flushed bytes are never overwritten: the truncation may reach the disk after later appends. After an
            # unclean election, records below the log start may have later epochs than the records that follow.
            if position and (was_flushed or end == segments.start_offset):
                self._roll_if_there_is_space()

    def reset(self, start_offset: Offset, epoch_below: LeaderEpoch = NO_EPOCH) -> None:
        """Delete every record and start empty at `start_offset` (rule E3).

        `epoch_below`: leader epoch of the last record below; -1: unknown.

        Raises:
            TidemarkError: STORAGE_ERROR: the replica is offline. DISK_FULL: the reset can be retried.
        """
        context, segments, durability = self._context, self.segments, self.durability
        context.check_usable()
        self.make_directory()
        try:
            with context.files_lock:
                restart = self._prepare_restart(start_offset)
                cut = CutPoint(min(start_offset, segments.end_offset), start_offset, epoch_below=epoch_below)
                durability.mark_truncation(cut._replace(resetting=True))
                with context.memory_lock:
                    segments.reset(restart, cut.end_offset)
                    durability.reset(start_offset, cut.end_offset)
                    self._replayed.restart_at(start_offset, epoch_below)
                self._replayed.write_epochs()
                durability.mark_truncation(cut)  # from this step on, a start keeps the segments
                with context.memory_lock:
                    durability.names_changed()  # a flush that ran during the reset does not count
        except OSError as error:
            context.suspect_disk(error)
            context.broken = f"reset {self.path.name}: {error}"
            raise_storage_error(f"reset {self.path.name}", error)

    def _prepare_restart(self, start_offset: Offset) -> Restart:
        try:
            return prepare_restart(self.path, start_offset)
        except OSError as error:
            if has_no_room(error):
                raise storage_error(f"reset {self.path.name}", error) from error
            raise

    # -- trim and roll

    def expired_until(self, limits: RetentionLimits, *, high_watermark: Offset, now_ms: int) -> Offset:
        """Offset where retention lets the log start; thread-safe."""
        with self._context.memory_lock:
            start = self.segments.start_offset
            figures = [
                retention.SegmentFigures(one.next_offset, one.size_bytes, one.max_timestamp_us)
                for one in self.segments.all
            ]
        return Offset(retention.expired_until(figures, start, limits, high_watermark=high_watermark, now_ms=now_ms))

    def trim(self, start_offset: Offset) -> None:
        """Raise the log start to `start_offset`; a log trimmed to its end rolls first.

        Segments below leave the log immediately. Their files are deleted after a checkpoint on disk names that log
        start. If files were deleted before, a start would treat the log as damaged.

        Raises:
            TidemarkError: STORAGE_ERROR.
        """
        self._context.check_usable()
        end = self.segments.end_offset
        assert start_offset <= end, f"a log that ends at {end} cannot start at {start_offset}"
        try:
            with self._context.files_lock:
                if start_offset == end and self.segments.active.size_bytes:
                    self._roll_if_there_is_space()
                self.segments.trim(start_offset)
                self._replayed.trim_aborted(self.segments.all[0].base_offset)
        except OSError as error:
            self._context.suspect_disk(error)
            raise TidemarkError(ErrorCode.STORAGE_ERROR, f"trim {self.path.name}: {error}") from error

    def may_roll_by_time(self, now_ms: int) -> bool:
        """Whether the active segment may be older than segment.ms, from memory only; `roll_by_time` reads its age."""
        active = self.segments.active
        first_us = active.first_timestamp_us
        return active.size_bytes > 0 and (first_us is None or self._is_old(first_us, now_ms))

    def _is_old(self, first_timestamp_us: int, now_ms: int) -> bool:
        return now_ms * 1000 - first_timestamp_us > self._context.settings.segment_ms * 1000

    def roll_by_time(self, now_ms: int) -> None:
        """Roll an active segment older than segment.ms, even without appends.

        Raises:
            TidemarkError: STORAGE_ERROR.
        """
        self._context.check_usable()
        active = self.segments.active
        if active.size_bytes == 0:
            return
        try:
            if active.first_timestamp_us is None:
                descriptor = self.segments.open(active)
                active.first_timestamp_us = _first_timestamp(active, descriptor.number, otherwise_us=0)
            if self._is_old(active.first_timestamp_us, now_ms):
                self._roll()
        except (OSError, Damage) as error:
            if has_no_room(error):
                return  # the next call retries
            self._context.suspect_disk(error)
            raise TidemarkError(ErrorCode.STORAGE_ERROR, f"roll {self.path.name}: {error}") from error

    # -- read

    def read(self, offset: Offset, *, end_offset: int, max_bytes: int, cached_only: bool = False) -> bytes | None:
        """Whole batches from the one that holds `offset`, all below `end_offset` (exclusive); b"" if there are none.

        Raises:
            TidemarkError: OFFSET_OUT_OF_RANGE, STORAGE_ERROR; CORRUPT_BATCH where a header that was read is damaged.
        """
        try:
            return self._reader.read(offset, end_offset=end_offset, max_bytes=max_bytes, cached_only=cached_only)
        except TidemarkError:
            if self._successor is None:
                raise
        return self._successor.read(offset, end_offset=end_offset, max_bytes=max_bytes, cached_only=cached_only)

    def read_parts(self, offset: Offset, *, end_offset: int, max_bytes: int, take: TakeParts) -> bytes:
        """The result of `take` for the batches that `read` would return; `take` may read parts, and be called again.

        Raises:
            TidemarkError: the errors of `read` and `take`.
        """
        try:
            return self._reader.read_parts(offset, end_offset=end_offset, max_bytes=max_bytes, take=take)
        except TidemarkError:
            if self._successor is None:
                raise
        return self._successor.read_parts(offset, end_offset=end_offset, max_bytes=max_bytes, take=take)

    def offset_for_timestamp(
        self, timestamp_us: int, *, end_offset: Offset, check: Callable[[], None] = no_check
    ) -> TimestampOffset | None:
        """First record at or after `timestamp_us`, at or past the log start and below `end_offset`.

        Raises:
            TidemarkError: STORAGE_ERROR.
        """
        try:
            return self._reader.offset_for_timestamp(timestamp_us, end_offset=end_offset, check=check)
        except TidemarkError:
            if self._successor is None:
                raise
        return self._successor.offset_for_timestamp(timestamp_us, end_offset=end_offset, check=check)

    def max_timestamp(self, *, end_offset: Offset, check: Callable[[], None] = no_check) -> TimestampOffset | None:
        """The first of the records with the largest timestamp below `end_offset`.

        Raises:
            TidemarkError: STORAGE_ERROR.
        """
        try:
            return self._reader.max_timestamp(end_offset=end_offset, check=check)
        except TidemarkError:
            if self._successor is None:
                raise
        return self._successor.max_timestamp(end_offset=end_offset, check=check)

    def aborted_transactions(self, start_offset: Offset, end_offset: Offset) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions with batches that may lie in [start, end); thread-safe, never waits for the disk."""
        if self._successor is not None:
            return self._successor.aborted_transactions(start_offset, end_offset)
        with self._context.memory_lock:
            return self._replayed.aborted_between(start_offset, end_offset)

    # -- make durable

    def flush(self) -> Offset:
        """fdatasync; all records below the result are on disk. Thread-safe.

        Raises:
            TidemarkError: the errors of `Durability.flush`.
        """
        self._context.check_usable()
        return self.durability.flush() if self._unmade is None else self.flushed_offset

    def save_epochs(self, entries: Sequence[EpochEntry]) -> None:
        """Write the leader-epoch-checkpoint; durable with the next syncfs.

        Raises:
            TidemarkError: STORAGE_ERROR.
        """
        with self._context.files_lock:
            try:
                self._replayed.continue_epochs(entries, self._unmade)
            except OSError as error:
                raise_storage_error(f"write {EPOCH_FILE} of {self.path.name}", error)

    def end_damage(self) -> None:
        """Note that the log is refetched: the next checkpoint covers the present log, and removes the damage."""
        self.durability.end_damage()

    def finish(self) -> None:
        """Write the files of the next start, before the last syncfs of a clean stop (`Durability.finish`).

        Raises:
            OSError: the disk does not answer.
        """
        with self._context.files_lock:
            if self._unmade is None:
                self.durability.finish()

    def close(self) -> None:
        """Release the files; every later call is refused."""
        with self._context.files_lock, self._context.memory_lock:
            self._context.broken = self._context.broken or f"the log {self.path.name} is closed"
            self.segments.close()

    # -- move to another directory (rule M3)

    def state(self) -> LogState:
        """The state that a copy must have, as of one instant."""
        with self._context.memory_lock:
            start, end = Offset(self.segments.start_offset), Offset(self.segments.end_offset)
            epochs, producers = LeaderEpochs(self._replayed.epochs), ProducerStates(self._replayed.producers)
        epochs.truncate_from_start(start)
        return LogState(start, end, epochs.entries, producers)

    def adopt(self, state: LogState, clean_point: CleanPoint) -> None:
        """Take over the state that a copy cannot read from batches.

        This state consists of leader epochs without a record, producers whose batches were removed, and a log end past
        the last batch. The next `finish` writes them.

        Raises:
            OSError: the disk does not answer.
        """
        with self._context.files_lock:
            with self._context.memory_lock:
                self._replayed.adopt(state.epochs, state.producers)
                self.segments.extend_to(state.log_end_offset)
            self.cleaning.adopt_clean_point(clean_point)

    def rename(self, path: Path) -> None:
        """Rename the directory of a copy; this log has no readers yet.

        Raises:
            OSError: the directory keeps its name.
        """
        with self._context.files_lock, self._context.memory_lock:
            self.path.rename(path)
            self._context.path = path
            self.segments.move_to(path)
            with contextlib.suppress(OSError):  # a start deletes these files, too
                for name in os.listdir(path):
                    if name.endswith(DELETED_SUFFIX):
                        (path / name).unlink(missing_ok=True)

    def give_way(self, successor: PartitionLog) -> None:
        """Close; from now on, readers of this log read the copy."""
        self._successor = successor
        self.close()


def _rolls_before(active: Segment, batch: Batch, segment_bytes: int, segment_us: int) -> bool:
    if active.size_bytes == 0:
        return False
    if active.size_bytes + len(batch.data) > segment_bytes:
        return True
    return _is_too_late(active, batch.envelope.max_timestamp_us, segment_us)


def _is_too_late(active: Segment, timestamp_us: int, segment_us: int) -> bool:
    first_us = active.first_timestamp_us
    return first_us is not None and timestamp_us - first_us > segment_us


def _first_timestamp(active: Segment, descriptor: int, *, otherwise_us: int) -> int:
    """Largest timestamp of the first batch of the segment; `otherwise_us` for an empty segment."""
    if active.size_bytes == 0:
        return otherwise_us
    return next(walk(descriptor, 0, active.size_bytes))[1].max_timestamp_us
