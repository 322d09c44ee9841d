# SPDX-License-Identifier: Apache-2.0
"""Rows of a batch of bytes in a range of offsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tidemark.record.envelope import Batch
from tidemark.record.payload import CountedOffsets, with_offsets


def reading_bytes() -> Callable[[Batch, int, int], pa.RecordBatch]:
    """A function that returns the rows of [start, end) of a batch of bytes, in record.schema.OFFSET_SCHEMA.

    The function is for one read, whose batches are consecutive, and takes a batch, a start and an end.
    """
    counted = CountedOffsets()
    return lambda batch, start, end: _between(with_offsets(batch, counted), start, end)


def _between(rows: pa.RecordBatch, start: int, end: int) -> pa.RecordBatch:
    """Return the rows with offsets in [start, end); offsets rise along the rows."""
    offsets: pa.Array[Any] = rows.column(4)
    count = rows.num_rows
    if count == 0:
        return rows
    first: int = offsets[0].as_py()
    last: int = offsets[count - 1].as_py()
    if first >= start and last < end:
        return rows
    if last - first == count - 1:
        begin = max(0, start - first)
        return rows.slice(begin, max(0, min(count, end - first) - begin))
    values: list[Any] = offsets.to_pylist()
    keep = [index for index, offset in enumerate(values) if start <= offset < end]
    return rows.slice(keep[0], len(keep)) if keep else rows.slice(0, 0)
