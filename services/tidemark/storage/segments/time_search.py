# SPDX-License-Identifier: Apache-2.0
"""Finding records by time inside one segment: headers select the batch, its rows the record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.model import Offset, TidemarkError
from tidemark.ports import TimestampOffset
from tidemark.record.checks import check_envelope
from tidemark.record.payload import with_offsets
from tidemark.record.typed.times import times_and_offsets
from tidemark.storage.files import read_exactly
from tidemark.storage.segments.index import NO_TIMESTAMP_US
from tidemark.storage.segments.segment import Damage, walk

_OFFSETS: Final = "offset"
_TIMESTAMPS: Final = "timestamp"


def first_at_or_after(
    descriptor: int,
    timestamp_us: int,
    *,
    start: int,
    end: int,
    start_offset: int,
    end_offset: int,
    check: Callable[[], None],
) -> TimestampOffset | None:
    """First record at or after the time among the batches in [start, end), within [start_offset, end_offset).

    `check` is called before each batch, and may raise an error that ends the search.

    Raises:
        Damage: a batch is damaged.
    """
    for position, envelope in walk(descriptor, start, end):
        check()
        if envelope.next_offset > end_offset:
            return None
        if envelope.max_timestamp_us < timestamp_us or envelope.next_offset <= start_offset:
            continue
        times, offsets = _times_at(descriptor, position, envelope.batch_length)
        wanted = pc.and_(
            pc.greater_equal(times, pa.scalar(timestamp_us)),
            pc.greater_equal(offsets, pa.scalar(start_offset)),
        )
        row = pc.index(wanted, value=True).as_py()
        if row >= 0:
            return TimestampOffset(times[row].as_py(), Offset(offsets[row].as_py()))
    return None


def newest_record(
    descriptor: int,
    found: TimestampOffset | None,
    *,
    end: int,
    start_offset: int,
    end_offset: int,
    check: Callable[[], None],
) -> TimestampOffset | None:
    """The newest record in [0, end) and [start_offset, end_offset), the first among equals; `found` if no record is
    newer.

    `check` is called before each batch, and may raise an error that ends the search.

    Raises:
        Damage: a batch is damaged.
    """
    for position, envelope in walk(descriptor, 0, end):
        check()
        if envelope.next_offset > end_offset:
            break
        if envelope.next_offset <= start_offset or (found and envelope.max_timestamp_us <= found.timestamp_us):
            continue
        times, offsets = _times_at(descriptor, position, envelope.batch_length)
        readable = pc.greater_equal(offsets, pa.scalar(start_offset))
        times, offsets = times.filter(readable), offsets.filter(readable)
        newest = pc.max(times).as_py()
        if newest is not None and (found is None or newest > found.timestamp_us):
            row = pc.index(times, newest).as_py()
            found = TimestampOffset(newest, Offset(offsets[row].as_py()))
    return found


def _times_at(descriptor: int, position: int, length: int) -> tuple[Any, Any]:
    """Timestamp (us since 1970) and offset of each row, int64."""
    try:
        batch = check_envelope(read_exactly(descriptor, length, position))
        if batch.envelope.is_typed:
            times, offsets = times_and_offsets(batch)
        else:
            rows = with_offsets(batch)
            times, offsets = rows.column(_TIMESTAMPS), rows.column(_OFFSETS)
        return pc.cast(times, pa.int64()), offsets
    except TidemarkError as error:
        raise Damage(position, error.message) from error


def newest_below(descriptor: int, end_offset: int, *, start: int, end: int) -> int:
    """Largest timestamp of the batches in [start, end) that lie below `end_offset`."""
    newest = NO_TIMESTAMP_US
    for _, envelope in walk(descriptor, start, end):
        if envelope.next_offset > end_offset:
            break
        newest = max(newest, envelope.max_timestamp_us)
    return newest
