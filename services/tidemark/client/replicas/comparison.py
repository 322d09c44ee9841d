# SPDX-License-Identifier: Apache-2.0
"""Whether replicas of a partition hold the same: LOG-MATCH, rule L1. Pure: pieces of logs in, differences out.

Above every cleaner's point two replicas have the same batches, byte for byte: equal envelopes with the CRCs that their
brokers have checked say so, or the bytes themselves. Below, and for batches that a cleaner wrote, every offset that
both retain holds the same record, and a batch that both retain has the same offsets, epoch and producer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa

from tidemark.record.envelope import ENVELOPE_BYTES, Batch, Envelope, unpack_envelope
from tidemark.record.payload import with_offsets

_KEPT: Final = (
    "last_offset_delta",
    "leader_epoch",
    "base_sequence",
    "producer_id",
    "producer_epoch",
    "max_timestamp_us",
)
"""What a cleaned batch has of the one that it replaces."""


class Piece(NamedTuple):
    """A batch of a replica; `data` is None where only its envelope was read."""

    envelope: Envelope
    data: bytes | None


def pieces_of(data: bytes, *, envelopes_only: bool) -> Iterator[Piece]:
    """Cut an answer of ReadReplica apart."""
    at = 0
    while at < len(data):
        envelope = unpack_envelope(data, at)
        length = ENVELOPE_BYTES if envelopes_only else envelope.batch_length
        yield Piece(envelope, None if envelopes_only else data[at : at + length])
        at += length


def needs_records(first: Piece, second: Piece) -> bool:
    """Whether envelopes alone cannot tell: they differ, and a cleaner wrote one of the batches."""
    if first.envelope == second.envelope:
        return False
    return first.envelope.is_compacted or second.envelope.is_compacted


def difference(first: Piece, second: Piece, *, cleaned: bool) -> str:
    """How two batches with the same base offset differ; empty: they do not.

    Args:
        first: of one replica.
        second: of the other.
        cleaned: the batches lie below a cleaner's point, so that only records that both retain count.

    Raises:
        TidemarkError: a payload cannot be decoded.
    """
    if first.envelope == second.envelope:
        if first.data is None or second.data is None or first.data == second.data:
            return ""
        return "the bytes differ, though both CRCs are the same"
    if cleaned or first.envelope.is_compacted or second.envelope.is_compacted:
        return _difference_of_records(first, second)
    names = _differing(first.envelope, second.envelope, Envelope._fields)
    return f"the batches differ in {', '.join(names)}"


def _difference_of_records(first: Piece, second: Piece) -> str:
    names = _differing(first.envelope, second.envelope, _KEPT)
    if names:
        return f"the batches differ in {', '.join(names)}"
    assert first.data is not None, "records are compared with their bytes"
    assert second.data is not None, "records are compared with their bytes"
    left, right = _records(first), _records(second)
    for offset in sorted(left.keys() & right.keys()):
        if left[offset] != right[offset]:
            pairs = zip(_COLUMNS, left[offset], right[offset], strict=True)
            names = [name for name, mine, other in pairs if mine != other]
            return f"the records at offset {offset} differ in {', '.join(names)}"
    return ""


_COLUMNS: Final = ("key", "value", "timestamp", "headers")


def _records(piece: Piece) -> dict[int, tuple[Any, ...]]:
    assert piece.data is not None
    rows = with_offsets(Batch(piece.envelope, piece.data))
    columns: list[list[Any]] = [
        rows.column(name).cast(pa.int64()).to_pylist() if name == "timestamp" else rows.column(name).to_pylist()
        for name in _COLUMNS
    ]
    offsets: list[Any] = rows.column("offset").to_pylist()
    return dict(zip(offsets, zip(*columns, strict=True), strict=True))


def _differing(first: Envelope, second: Envelope, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if getattr(first, name) != getattr(second, name)]
