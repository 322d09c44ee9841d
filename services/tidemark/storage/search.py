"""Finding records by time inside one segment: the headers choose the batch, its rows the record."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.model import Offset
from tidemark.ports import TimestampOffset
from tidemark.record.checks import check_envelope
from tidemark.record.payload import with_offsets
from tidemark.storage.files import read_exactly
from tidemark.storage.index import NO_TIMESTAMP_US
from tidemark.storage.segment import walk

_OFFSETS: Final = "offset"
_TIMESTAMPS: Final = "timestamp"


def first_at_or_after(
    descriptor: int, timestamp_us: int, *, start: int, end: int, start_offset: int, end_offset: int
) -> TimestampOffset | None:
    """First record at or after the time among the batches in [start, end), within the offsets given.

    Raises:
        Damage: a header is damaged.
        TidemarkError: a batch is damaged.
    """
    for position, envelope in walk(descriptor, start, end):
        if envelope.next_offset > end_offset:
            return None
        if envelope.max_timestamp_us < timestamp_us or envelope.next_offset <= start_offset:
            continue
        batch = check_envelope(read_exactly(descriptor, envelope.batch_length, position))
        rows = with_offsets(batch)
        times = pc.cast(rows.column(_TIMESTAMPS), pa.int64())
        wanted = pc.and_(
            pc.greater_equal(times, pa.scalar(timestamp_us)),
            pc.greater_equal(rows.column(_OFFSETS), pa.scalar(start_offset)),
        )
        row = pc.index(wanted, value=True).as_py()
        if row >= 0:
            return TimestampOffset(times[row].as_py(), Offset(rows.column(_OFFSETS)[row].as_py()))
    return None


def newest_below(descriptor: int, end_offset: int, *, start: int, end: int) -> int:
    """Largest timestamp of the batches in [start, end) that lie below `end_offset`."""
    newest = NO_TIMESTAMP_US
    for _, envelope in walk(descriptor, start, end):
        if envelope.next_offset > end_offset:
            break
        newest = max(newest, envelope.max_timestamp_us)
    return newest
