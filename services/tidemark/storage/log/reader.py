# SPDX-License-Identifier: Apache-2.0
"""Reading a replica's log: by offset and by time, from any thread, beside the one that writes it.

`_lock` guards what is in memory and is held across a disk access only while an index is loaded. `_cuts` counts the
beginnings and ends of truncations, `_swaps` those of replacements of cleaned segments; both hold `_files_lock` from one
to the other. A read that met one is made again.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NoReturn, Protocol, TypeVar

from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.core.producer_state import ProducerStates
from tidemark.model import EpochEntry, ErrorCode, Offset, TidemarkError
from tidemark.ports import TimestampOffset
from tidemark.storage.files import Descriptor, is_broken, monotonic_ms, read_exactly
from tidemark.storage.recovery.log_loader import Recovered
from tidemark.storage.segments import time_search
from tidemark.storage.segments.descriptor_pool import DescriptorPool
from tidemark.storage.segments.index import NO_TIMESTAMP_US, SegmentIndex
from tidemark.storage.segments.segment import Damage, Segment, fit, skip_to
from tidemark.storage.segments.tail import Tail
from tidemark.storage.settings import StorageSettings

NOT_CUT: Final = (1 << 63) - 1
_T = TypeVar("_T")
_NOWAIT: Final = getattr(os, "RWF_NOWAIT", None)


class Home(Protocol):
    """The log directory that a log lives in, as far as the log needs it."""

    @property
    def failed(self) -> str | None:
        """Why the directory is offline, None while it is not."""

    def fail(self, reason: str) -> None:
        """A sync failed: the directory goes offline (it is never tried again)."""

    def delete_later(self, paths: list[Path], delay_ms: int) -> None:
        """Remove these files in a while; readers may still have them open."""


class Unmade(Protocol):
    """What stands for the directory of a replica that has held nothing yet."""

    def make(self) -> None:
        """Make the directory, with an empty segment at offset 0. Raises OSError."""

    def save_epochs(self, entries: Sequence[EpochEntry]) -> None:
        """Keep the leader epochs that began without a record. Raises OSError."""


class LogReader:
    """What a log knows in memory, and reading it: the half of `PartitionLog` that changes nothing.

    Invariants: segments are contiguous; `_end` is the published log end, up to which every byte has been written.
    """

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
        self._path = path
        self._unmade = unmade
        """None as soon as there is a directory."""
        self._settings = settings
        self._pool = pool
        self._home = home
        self._lock = threading.Lock()
        self._files_lock = threading.RLock()
        self._segments: tuple[Segment, ...] = tuple(recovered.segments)
        self._start = recovered.log_start
        self._end = recovered.log_end
        self._epochs: LeaderEpochs = recovered.epochs
        self._latest_epoch: int = recovered.epochs.latest
        self._epochs_behind = False
        self._producers: ProducerStates = self._expiring(recovered.producers)
        self._flushed = recovered.recovery_point
        self._damaged_until = recovered.damage.until if recovered.damage else None
        self._cuts = 0
        self._swaps = 0
        self._cut_pending = recovered.cut is not None
        self._uncovered_cut = max(recovered.cut.end_offset, 0) if recovered.cut is not None else NOT_CUT
        self._snapshot_at = recovered.snapshot_at
        self._unsnapshotted_batches = recovered.unsnapshotted_batches
        self._captured_end = -1
        self._names_behind = True
        self._identity_behind = True
        self._broken: str | None = None
        self._tail = Tail(self._end, self._segments[-1].size_bytes)
        self._interval_bytes = settings.index_interval_bytes
        self._segment_ms_us = settings.segment_ms * 1000

    def _expiring(self, producers: ProducerStates) -> ProducerStates:
        return producers.expiring(self._settings.producer_id_expiration_ms, monotonic_ms())

    # -- what is known

    @property
    def log_start_offset(self) -> Offset:
        """First offset, inclusive."""
        return Offset(self._start)

    @property
    def log_end_offset(self) -> Offset:
        """Next offset, exclusive."""
        return Offset(self._end)

    @property
    def flushed_offset(self) -> Offset:
        """Everything below is on disk."""
        return Offset(self._flushed)

    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size_bytes for segment in self._segments)

    def segment_count(self) -> int:
        """How many segments there are, the one that is written among them."""
        return len(self._segments)

    def bytes_from(self, offset: int) -> int:
        """About how many bytes lie from this offset on, from memory alone: as if the records of a segment were of one
        size."""
        segments, end, found = self._segments, self._end, 0
        for segment in reversed(segments):
            base = segment.base_offset
            if base < offset:
                records = end - base
                return found + (segment.size_bytes * max(0, end - offset) // records if records > 0 else 0)
            found, end = found + segment.size_bytes, base
        return found

    def _check_usable(self) -> None:
        reason = self._broken or self._home.failed
        if reason:
            raise TidemarkError(ErrorCode.STORAGE_ERROR, reason)

    # -- read

    def read(self, offset: Offset, *, end_offset: int, max_bytes: int, cached_only: bool = False) -> bytes | None:
        """Whole batches from the one that holds `offset`, all below `end_offset` (exclusive); b"" when there is none.

        Raises:
            TidemarkError: OFFSET_OUT_OF_RANGE, STORAGE_ERROR.
        """
        return self._unmoved(lambda: self._read(offset, end_offset, max_bytes, cached_only), "read from", cached_only)

    def _unmoved(self, look: Callable[[], _T], doing: str, cached_only: bool = False) -> _T | None:
        """What was found while no file was cut, replaced or let go; else looked for again, or None if `cached_only`."""
        while True:
            moves, start = self._cuts + self._swaps, self._start
            try:
                found = look()
            except (OSError, Damage) as error:
                if cached_only:
                    return None
                with self._files_lock:
                    if moves == self._cuts + self._swaps and start == self._start:
                        self._refuse(f"{doing} {self._path.name}", error)
            else:
                if moves == self._cuts + self._swaps:
                    return found
                if cached_only:
                    return None
                with self._files_lock:
                    pass  # it waits for the end of what is under way

    def _suspect_disk(self, error: Exception) -> None:
        """An I/O error or a file system gone read-only: the directory goes offline as a whole."""
        if is_broken(error):
            self._home.fail(f"{self._path.name}: {error}")

    def _refuse(self, doing: str, error: Exception) -> NoReturn:
        self._suspect_disk(error)
        raise TidemarkError(ErrorCode.STORAGE_ERROR, f"{doing}: {error}") from error

    def _read(self, offset: int, end_offset: int, max_bytes: int, cached_only: bool) -> bytes | None:
        with self._lock:
            end = self._end
            if self._broken or offset < self._start or offset > end:
                self._refuse_read(offset)
            limit = min(end_offset, end)
            if offset >= limit:
                return b""
            if offset >= self._tail.base_offset:
                segment = self._segments[-1]
                start, stop = self._tail.find(offset, end_offset=limit, max_bytes=max_bytes)
            else:
                segment = self._segment_of(offset)
                start, stop = 0, -1
                if cached_only and segment.index is None:
                    return None
        if start == stop:
            return b""
        descriptor = self._pool.get(segment, segment.log_path)
        if stop >= 0:
            return _pread(descriptor.number, stop - start, start, cached_only)
        return self._read_far(segment, descriptor, offset, limit, max_bytes, cached_only)

    def _read_far(
        self, segment: Segment, descriptor: Descriptor, offset: int, limit: int, max_bytes: int, cached_only: bool
    ) -> bytes | None:
        """Read by the index; where it is too coarse, by the headers."""
        while True:
            with self._lock:
                index = self._index_of(segment, descriptor)
                size, last = segment.size_bytes, segment.next_offset
                start, exact, stop = segment.span(index, offset, end_offset=limit, max_bytes=max_bytes)
            if cached_only and not (exact and stop >= 0):
                return None
            if not exact:
                start = skip_to(descriptor.number, offset, start=start, end=size)
            if stop < start or stop - start > max_bytes:
                stop = -1
            if start == size:  # a hole up to the end of the segment: the next one goes on
                following = self._segment_after(segment)
                if following is None or last >= limit:
                    return b""
                segment, offset = following, following.base_offset
                descriptor = self._pool.get(segment, segment.log_path)
                continue
            if stop < 0 or stop == start:
                stop = fit(descriptor.number, start=start, end=size, end_offset=limit, max_bytes=max_bytes)
            return _pread(descriptor.number, stop - start, start, cached_only) if stop > start else b""

    def _index_of(self, segment: Segment, descriptor: Descriptor) -> SegmentIndex:
        """Its index, loaded; the lock is held."""
        index = segment.ensure_index(descriptor.number, self._interval_bytes)
        if segment is not self._segments[-1]:
            self._pool.indexes.use(segment, len(index))
        return index

    def _refuse_read(self, offset: int) -> None:
        if self._broken:
            raise TidemarkError(ErrorCode.STORAGE_ERROR, self._broken)
        raise TidemarkError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} is outside the log, which holds [{self._start}, {self._end})",
            {"log_start_offset": str(self._start), "log_end_offset": str(self._end)},
        )

    def _segment_of(self, offset: int) -> Segment:
        segments = self._segments
        low, high = 0, len(segments) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if segments[middle].base_offset <= offset:
                low = middle
            else:
                high = middle - 1
        return segments[low]

    def _segment_after(self, segment: Segment) -> Segment | None:
        return next((other for other in self._segments if other.base_offset > segment.base_offset), None)

    # -- by time

    def offset_for_timestamp(self, timestamp_us: int, *, end_offset: Offset) -> TimestampOffset | None:
        """First record at or after `timestamp_us`, at or past the log start and below `end_offset`.

        Raises:
            TidemarkError: STORAGE_ERROR.
        """
        limit = min(end_offset, self._end)
        return self._unmoved(lambda: self._first_at_or_after(timestamp_us, limit), "search by time in")

    def _first_at_or_after(self, timestamp_us: int, limit: int) -> TimestampOffset | None:
        for segment in self._segments:
            if segment.base_offset >= limit:
                break
            if segment.max_timestamp_us < timestamp_us:
                continue
            descriptor = self._pool.get(segment, segment.log_path)
            with self._lock:
                index = self._index_of(segment, descriptor)
                number = max(index.before_timestamp(timestamp_us), 0)
                start, size = index.positions[number] if len(index) else 0, segment.size_bytes
            found = time_search.first_at_or_after(
                descriptor.number, timestamp_us, start=start, end=size, start_offset=self._start, end_offset=limit
            )
            if found is not None:
                return found
        return None

    def max_timestamp(self, *, end_offset: Offset) -> TimestampOffset | None:
        """The first of the records with the largest timestamp below `end_offset`.

        Raises:
            TidemarkError: STORAGE_ERROR.
        """
        limit = min(end_offset, self._end)
        return self._unmoved(lambda: self._newest_record(limit), "search by time in")

    def _newest_record(self, limit: int) -> TimestampOffset | None:
        newest = NO_TIMESTAMP_US
        for segment in self._segments:
            if segment.base_offset >= limit:
                break
            if segment.next_offset <= limit:
                newest = max(newest, segment.max_timestamp_us)
                continue
            descriptor = self._pool.get(segment, segment.log_path)
            with self._lock:
                index = self._index_of(segment, descriptor)
                number = index.floor(limit)
                if number >= 0:
                    newest = max(newest, index.timestamps[number])
                start, size = index.positions[number] if number >= 0 else 0, segment.size_bytes
            newest = max(newest, time_search.newest_below(descriptor.number, limit, start=start, end=size))
        if newest == NO_TIMESTAMP_US:
            return None
        return self._first_at_or_after(newest, limit) or self._newest_left(limit)

    def _newest_left(self, limit: int) -> TimestampOffset | None:
        """By the rows: compaction took the record that had the time which its batch keeps (rule L1)."""
        found: TimestampOffset | None = None
        for segment in self._segments:
            if segment.base_offset >= limit:
                break
            if found is not None and segment.max_timestamp_us <= found.timestamp_us:
                continue
            descriptor = self._pool.get(segment, segment.log_path)
            found = time_search.newest_record(
                descriptor.number, found, end=segment.size_bytes, start_offset=self._start, end_offset=limit
            )
        return found


def _pread(descriptor: int, length: int, position: int, cached_only: bool) -> bytes | None:
    """Exactly these bytes; None where `cached_only` and not all of them are in the page cache.

    Raises:
        OSError: also where the file ends before.
    """
    if cached_only and _NOWAIT is not None:
        buffer = bytearray(length)
        try:
            if os.preadv(descriptor, [buffer], position, _NOWAIT) == length:
                return bytes(buffer)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EOPNOTSUPP):
                raise
            if error.errno == errno.EAGAIN:
                return None
        else:
            return None
    data = read_exactly(descriptor, length, position)
    if len(data) != length:
        raise OSError(errno.ENODATA, f"the file ends {length - len(data)} bytes before the log")
    return data
