# SPDX-License-Identifier: Apache-2.0
"""Splits a batch that was refused for some of its records, as KIP-467 does: these records fail, the other records are
sent again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa

from tidemark.client.producing.batching import Outcome, PendingBatch
from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.record_indexes import REFUSED_RECORDS, Ranges, parse_ranges, ranges_of, ranges_text

_OF_RECORDS: Final = frozenset({ErrorCode.BATCH_TOO_LARGE, ErrorCode.NULL_KEY, ErrorCode.INVALID_TIMESTAMP})
"""Errors that some records of a batch cause; an error that names records counts, too."""


class Part(NamedTuple):
    """Consecutive records of a split batch, with their error; None: these records are sent again."""

    batch: PendingBatch
    error: TidemarkError | None


class Piece(PendingBatch):
    """Consecutive records of a batch that was split. Their outcome is the outcome of these records of that batch."""

    __slots__ = ("_first", "_whole")

    def __init__(self, batch: PendingBatch, first: int, end: int, rows: pa.RecordBatch | None) -> None:
        part = None if rows is None else rows.slice(first, end - first)
        super().__init__(
            batch.partition,
            opened_s=batch.opened_s,
            deadline_s=batch.deadline_s,
            rows=part,
            batch_format=batch.format,
        )
        if part is not None:
            self.timestamps_us = batch.timestamps_us[:1]  # for rows without an event time
        else:
            self.count = end - first
            width = len(batch.values) // batch.count
            self.keys, self.values = batch.keys[first:end], batch.values[first * width : end * width]
            self.deleted = None if batch.deleted is None else batch.deleted[first:end]
            self.timestamps_us = batch.timestamps_us[first:end]
            self.headers = None if batch.headers is None else batch.headers[first:end]
        # The bytes of the batch are divided among the pieces, independent of their size, and return to the buffer.
        self.size_bytes = batch.size_bytes * end // batch.count - batch.size_bytes * first // batch.count
        self.home = batch.home
        self._whole, self._first = position_of(batch)
        self._first += first

    @property
    def position(self) -> tuple[PendingBatch, int]:
        """The batch that the application filled, and the index of this piece's first record in that batch."""
        return self._whole, self._first

    def resolve(self, base_offset: int, append_time_us: int, error: TidemarkError | None) -> None:
        """Set the outcome of these records in the whole batch."""
        super().resolve(base_offset, append_time_us, error)
        self._whole.resolve_records(Outcome(self._first, self.count, base_offset, append_time_us, error))


def position_of(batch: PendingBatch) -> tuple[PendingBatch, int]:
    """The batch that the application filled, and the index of this batch's first record in that batch."""
    return batch.position if isinstance(batch, Piece) else (batch, 0)


def split(batch: PendingBatch, error: TidemarkError) -> list[Part]:
    """The parts of a batch that was refused and is certainly not in the log; one part if the whole batch failed.

    If a refusal names records, these records fail. Without names the producer itself finds the records without a key,
    and the records outside the bound that the error states. A batch that is too large, or cannot be built, is halved;
    the halves are sent alone.
    """
    rows = batch.rows if batch.data is None else batch.format.read(batch.data)  # None if it was never built
    refused = _refused_records(batch, rows, error)
    if not refused and batch.count > 1 and (error.code == ErrorCode.BATCH_TOO_LARGE or rows is None):
        return [Part(_suspect(half, error), None) for half in _halves(batch, rows)]
    parts: list[Part] = []
    end = 0
    for first, last in refused or ((0, batch.count - 1),):
        if first > end:
            parts.append(Part(Piece(batch, end, first, rows), None))
        end = last + 1
        failed = batch if end - first == batch.count else Piece(batch, first, end, rows)
        parts.append(Part(failed, _of_records(failed, error)))
    if end < batch.count:
        parts.append(Part(Piece(batch, end, batch.count, rows), None))
    return parts


def names_records(error: TidemarkError) -> bool:
    """Whether single records may be the cause of a refusal."""
    return error.code in _OF_RECORDS or REFUSED_RECORDS in error.metadata


def _refused_records(batch: PendingBatch, rows: pa.RecordBatch | None, error: TidemarkError) -> Ranges:
    named = parse_ranges(error.metadata.get(REFUSED_RECORDS, ""), batch.count)
    if named or rows is None:
        return named
    if error.code == ErrorCode.NULL_KEY:
        return ranges_of(rows.column(0).is_null().to_pylist())
    oldest, newest = (error.metadata.get(name, "") for name in ("timestamp_min_us", "timestamp_max_us"))
    try:
        if oldest:
            return ranges_of(stamp_us < int(oldest) for stamp_us in batch.format.timestamps_us(rows))
        if newest:
            return ranges_of(stamp_us > int(newest) for stamp_us in batch.format.timestamps_us(rows))
    except ValueError:
        pass  # the text is from a server of another version
    return ()


def _halves(batch: PendingBatch, rows: pa.RecordBatch | None) -> tuple[Piece, Piece]:
    middle = batch.count // 2
    return Piece(batch, 0, middle, rows), Piece(batch, middle, batch.count, rows)


def _suspect(half: Piece, error: TidemarkError) -> Piece:
    half.refusal, half.refused_in_company = error, True
    return half


def _of_records(batch: PendingBatch, error: TidemarkError) -> TidemarkError:
    """The error with the indexes of these records in the batch that the application filled."""
    whole, first = position_of(batch)
    named = ranges_text([(first, first + batch.count - 1)])
    which = f"record {first}" if batch.count == 1 else f"records {first} to {first + batch.count - 1}"
    return TidemarkError(
        error.code,
        f"{which} of a batch of {whole.count}: {error.message}",
        dict(error.metadata) | {REFUSED_RECORDS: named, "batch_records": str(whole.count)},
    )
