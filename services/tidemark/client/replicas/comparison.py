# SPDX-License-Identifier: Apache-2.0
"""Compares batches of two replicas (LOG-MATCH, rule L1). Pure.

Above the clean offsets of both replicas their batches must be equal in every byte: equal bytes, or equal envelopes
with CRCs that the brokers have checked. Below, and for batches that a cleaner wrote, a record that both replicas retain
must be equal, and a batch that both retain must have the same last offset, leader epoch and producer.
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
"""Fields that a cleaned batch keeps of the batch that it replaces."""


class Piece(NamedTuple):
    """A batch of a replica; `data` is None if only its envelope was read."""

    envelope: Envelope
    data: bytes | None


def pieces_of(data: bytes, *, envelopes_only: bool) -> Iterator[Piece]:
    """Yield the batches of a ReadReplica response."""
    at = 0
    while at < len(data):
        envelope = unpack_envelope(data, at)
        length = ENVELOPE_BYTES if envelopes_only else envelope.batch_length
        yield Piece(envelope, None if envelopes_only else data[at : at + length])
        at += length


def needs_records(first: Piece, second: Piece) -> bool:
    """Whether the records must be compared: the envelopes differ, and a cleaner wrote one of the batches."""
    if first.envelope == second.envelope:
        return False
    return first.envelope.is_compacted or second.envelope.is_compacted


def difference(first: Piece, second: Piece, *, cleaned: bool) -> str:
    """Describe how two batches with the same base offset differ; "": they do not.

    Args:
        first: of one replica.
        second: of the other replica.
        cleaned: the batches are below a clean offset, so only records that both replicas retain are compared.

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
