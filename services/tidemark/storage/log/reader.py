# SPDX-License-Identifier: Apache-2.0
"""Reading a log by offset and by time, from any thread, during the writes of another thread."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Final, TypeVar

from tidemark.model import ErrorCode, TidemarkError
from tidemark.ports import TakeParts, TimestampOffset
from tidemark.storage.files import Descriptor, read_exactly
from tidemark.storage.log.context import LogContext
from tidemark.storage.log.log_segments import LogSegments
from tidemark.storage.segments import time_search
from tidemark.storage.segments.index import NO_TIMESTAMP_US
from tidemark.storage.segments.segment import Damage, Segment, fit, skip_to

_T = TypeVar("_T")
_NOWAIT: Final = getattr(os, "RWF_NOWAIT", None)


class LogReader:
    """Reads of one log; stateless.

    `LogSegments.moves` differs before and after a read during which segments were truncated or replaced: such a read is
    repeated.
    """

    __slots__ = ("_context", "_segments")

    def __init__(self, context: LogContext, segments: LogSegments) -> None:
        self._context = context
        self._segments = segments

    # -- by offset

    def read(self, offset: int, *, end_offset: int, max_bytes: int, cached_only: bool) -> bytes | None:
        """Whole batches from the one that holds `offset`, all below `end_offset` (exclusive); b"" for none.

        Raises:
            TidemarkError: OFFSET_OUT_OF_RANGE, STORAGE_ERROR; CORRUPT_BATCH where a header that was read is damaged.
        """
        return self._repeated(lambda: self._read(offset, end_offset, max_bytes, cached_only), "read from", cached_only)

    def read_parts(self, offset: int, *, end_offset: int, max_bytes: int, take: TakeParts) -> bytes:
        """The result of `take` for these batches; raises the errors of `read` and `take`."""
        return self._repeated(lambda: self._read(offset, end_offset, max_bytes, False, take), "read from") or b""

    def _repeated(self, look: Callable[[], _T], doing: str, cached_only: bool = False) -> _T | None:
        """Repeat `look` until no segment was truncated or replaced meanwhile; with `cached_only`, None instead."""
        segments = self._segments
        while True:
            moves, start = segments.moves, segments.start_offset
            try:
                found = look()
            except TidemarkError:
                if moves == segments.moves:
                    raise
            except (OSError, Damage) as error:
                if cached_only:
                    return None
                with self._context.files_lock:
                    if moves == segments.moves and start == segments.start_offset:
                        self._context.suspect_disk(error)
                        code = ErrorCode.CORRUPT_BATCH if isinstance(error, Damage) else ErrorCode.STORAGE_ERROR
                        raise TidemarkError(code, f"{doing} {self._context.path.name}: {error}") from error
            else:
                if moves == segments.moves:
                    return found
            if cached_only:
                return None
            with self._context.files_lock:
                pass  # the lock waits for the end of the operation

    def _read(
        self, offset: int, end_offset: int, max_bytes: int, cached_only: bool, take: TakeParts | None = None
    ) -> bytes | None:
        segments = self._segments
        with self._context.memory_lock:
            end = segments.end_offset
            if self._context.broken or offset < segments.start_offset or offset > end:
                self._refuse(offset)
            limit = min(end_offset, end)
            if offset >= limit:
                return b""
            segment, start, stop = segments.locate(offset, end_offset=limit, max_bytes=max_bytes)
            if stop < 0 and cached_only and segment.index is None:
                return None
        if start == stop:
            return b""
        descriptor = segments.open(segment)
        if stop >= 0:
            return _taken(descriptor.number, start, stop, cached_only, take)
        return self._read_far(segment, descriptor, offset, limit, max_bytes, cached_only, take)

    def _read_far(
        self,
        segment: Segment,
        descriptor: Descriptor,
        offset: int,
        limit: int,
        max_bytes: int,
        cached_only: bool,
        take: TakeParts | None,
    ) -> bytes | None:
        """Read by the index; where the index is too coarse, by the headers."""
        while True:
            with self._context.memory_lock:
                index = self._segments.index_of(segment, descriptor)
                size, last = segment.size_bytes, segment.next_offset
                start, exact, stop = segment.span(index, offset, end_offset=limit, max_bytes=max_bytes)
            if cached_only and not (exact and stop >= 0):
                return None
            if not exact:
                start = skip_to(descriptor.number, offset, start=start, end=size)
            if stop < start or stop - start > max_bytes:
                stop = -1
            if start == size:  # a hole up to the end of the segment: continue in the next one
                following = self._segments.after(segment)
                if following is None or last >= limit:
                    return b""
                segment, offset = following, following.base_offset
                descriptor = self._segments.open(segment)
                continue
            if stop < 0 or stop == start:
                stop = fit(descriptor.number, start=start, end=size, end_offset=limit, max_bytes=max_bytes)
            return _taken(descriptor.number, start, stop, cached_only, take) if stop > start else b""

    def _refuse(self, offset: int) -> None:
        if self._context.broken:
            raise TidemarkError(ErrorCode.STORAGE_ERROR, self._context.broken)
        start, end = self._segments.start_offset, self._segments.end_offset
        raise TidemarkError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} is outside the log, which holds [{start}, {end})",
            {"log_start_offset": str(start), "log_end_offset": str(end)},
        )

    # -- by time

    def offset_for_timestamp(
        self, timestamp_us: int, *, end_offset: int, check: Callable[[], None]
    ) -> TimestampOffset | None:
        """First record at or after `timestamp_us`, at or past the log start and below `end_offset`.

        `check` is called before each batch, and may raise an error that ends the search.

        Raises:
            TidemarkError: STORAGE_ERROR.
        """
        limit = min(end_offset, self._segments.end_offset)
        return self._repeated(lambda: self._first_at_or_after(timestamp_us, limit, check), "search by time in")

    def _first_at_or_after(self, timestamp_us: int, limit: int, check: Callable[[], None]) -> TimestampOffset | None:
        for segment in self._segments.all:
            if segment.base_offset >= limit:
                break
            if segment.max_timestamp_us < timestamp_us:
                continue
            descriptor = self._segments.open(segment)
            with self._context.memory_lock:
                index = self._segments.index_of(segment, descriptor)
                number = max(index.before_timestamp(timestamp_us), 0)
                start, size = index.positions[number] if len(index) else 0, segment.size_bytes
            found = time_search.first_at_or_after(
                descriptor.number,
                timestamp_us,
                start=start,
                end=size,
                start_offset=self._segments.start_offset,
                end_offset=limit,
                check=check,
            )
            if found is not None:
                return found
        return None

    def max_timestamp(self, *, end_offset: int, check: Callable[[], None]) -> TimestampOffset | None:
        """The first of the records with the largest timestamp below `end_offset`.

        Raises:
            TidemarkError: STORAGE_ERROR.
        """
        limit = min(end_offset, self._segments.end_offset)
        return self._repeated(lambda: self._newest_record(limit, check), "search by time in")

    def _newest_record(self, limit: int, check: Callable[[], None]) -> TimestampOffset | None:
        newest = NO_TIMESTAMP_US
        for segment in self._segments.all:
            if segment.base_offset >= limit:
                break
            if segment.next_offset <= limit:
                newest = max(newest, segment.max_timestamp_us)
                continue
            descriptor = self._segments.open(segment)
            with self._context.memory_lock:
                index = self._segments.index_of(segment, descriptor)
                number = index.floor(limit)
                if number >= 0:
                    newest = max(newest, index.timestamps[number])
                start, size = index.positions[number] if number >= 0 else 0, segment.size_bytes
            newest = max(newest, time_search.newest_below(descriptor.number, limit, start=start, end=size))
        if newest == NO_TIMESTAMP_US:
            return None
        return self._first_at_or_after(newest, limit, check) or self._newest_remaining(limit, check)

    def _newest_remaining(self, limit: int, check: Callable[[], None]) -> TimestampOffset | None:
        """Search the rows for the newest record below `limit`. Envelope timestamps do not help: compaction removed
        the record with its batch's largest timestamp (rule L1)."""
        found: TimestampOffset | None = None
        for segment in self._segments.all:
            if segment.base_offset >= limit:
                break
            if found is not None and segment.max_timestamp_us <= found.timestamp_us:
                continue
            descriptor = self._segments.open(segment)
            found = time_search.newest_record(
                descriptor.number,
                found,
                end=segment.size_bytes,
                start_offset=self._segments.start_offset,
                end_offset=limit,
                check=check,
            )
        return found


def _taken(descriptor: int, start: int, stop: int, cached_only: bool, take: TakeParts | None) -> bytes | None:
    """The bytes [start, stop), or the result of `take` for them."""
    if take is None:
        return _pread(descriptor, stop - start, start, cached_only)

    def read(at: int, length: int) -> bytes:
        data = _pread(descriptor, length, start + at, cached_only=False)
        assert data is not None, "a read of the disk returns bytes"
        return data

    return take(read, stop - start)


def _pread(descriptor: int, length: int, position: int, cached_only: bool) -> bytes | None:
    """Exactly these bytes; None where `cached_only` and some of them are not in the page cache.

    Raises:
        Damage: the file ends before.
        OSError: the disk does not answer.
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
        raise Damage(position + len(data), f"the file ends {length - len(data)} bytes before the log")
    return data
