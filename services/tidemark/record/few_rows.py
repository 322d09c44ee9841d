# SPDX-License-Identifier: Apache-2.0
"""Writes the Arrow message of a few rows without Arrow: byte for byte the message that `payload.encode_rows` writes.

A client that sends one record at a time runs with cold caches. Arrow's constructors and kernels are then a large part
of the time of a record. Each call runs code that is no longer in the processor's caches.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

from tidemark.record.arrow_message import Numbers
from tidemark.record.shapes import LAYOUT, TEMPLATES

FEW: Final = 32
"""Largest number of rows; for more rows Arrow is faster."""

_ALIGNMENT_BYTES: Final = 8
_PADDING: Final = tuple(bytes(-size % _ALIGNMENT_BYTES) for size in range(_ALIGNMENT_BYTES))
_EMPTY_OFFSETS: Final = bytes(4)
_NO_ENTRIES: Final = (b"", b"", _EMPTY_OFFSETS, b"", b"", _EMPTY_OFFSETS, b"")
"""Buffers of the entries of headers, of their names, and of their values."""


def encode_few(
    keys: Sequence[bytes | None] | None, values: Sequence[bytes | None], timestamps_us: Sequence[int]
) -> bytes:
    """One encapsulated RecordBatch message in SCHEMA, uncompressed, of 1 to FEW records without headers.

    Args:
        keys: key of each record; None: no record has a key.
        values: a None value is a tombstone.
        timestamps_us: microseconds since 1970, UTC.

    Raises:
        TypeError: a key or a value is not bytes.
        struct.error: a timestamp is not an integer of 64 bits, or the lengths differ.
    """
    count = len(values)
    key_nulls, key_buffers = _column(keys, count)
    value_nulls, value_buffers = _column(values, count)
    times = struct.pack(f"{len(timestamps_us)}q", *timestamps_us)
    if len(times) != 8 * count:
        raise struct.error("the columns differ in length")
    buffers = (*key_buffers, *value_buffers, b"", times, _validity(count), bytes(4 * (count + 1)), *_NO_ENTRIES)
    places: list[int] = []
    parts: list[bytes] = [b""]
    body_bytes = 0
    for buffer in buffers:
        size = len(buffer)
        places += (body_bytes, size)
        parts += (buffer, _PADDING[size % _ALIGNMENT_BYTES])
        body_bytes += size + -size % _ALIGNMENT_BYTES
    nodes = (count, key_nulls, count, value_nulls, count, 0, count, count, 0, 0, 0, 0, 0, 0)
    parts[0] = TEMPLATES[0].write(LAYOUT, Numbers(0, body_bytes, count, nodes, tuple(places)))
    return b"".join(parts)


def _column(values: Sequence[bytes | None] | None, count: int) -> tuple[int, tuple[bytes, bytes, bytes]]:
    """The number of nulls; and validity, offsets and data of a column of bytes (None: of nulls)."""
    nulls = count if values is None else values.count(None)
    if values is None or nulls == count:
        return count, (_validity(count), bytes(4 * (count + 1)), b"")
    sizes = (len(value) if value is not None else 0 for value in values)
    offsets = struct.pack(f"{count + 1}i", *accumulate(sizes, initial=0))
    if not nulls:
        return 0, (b"", offsets, b"".join(values))  # type: ignore[arg-type]  # none is None
    validity = _validity(count, (index for index, value in enumerate(values) if value is not None))
    return nulls, (validity, offsets, b"".join(value for value in values if value is not None))


def _validity(count: int, valid: Iterable[int] = ()) -> bytes:
    return sum(1 << index for index in valid).to_bytes((count + 7) >> 3, "little")
