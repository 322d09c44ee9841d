# SPDX-License-Identifier: Apache-2.0
"""Compares batches of two replicas (LOG-MATCH, rule L1). Pure.

Above the cleaner points of both replicas their batches must be equal in every byte. Either the bytes are equal, or the
envelopes are, with CRCs that the brokers have checked. Below, and for batches that a cleaner wrote, a record that both
replicas retain must be equal. A batch that both retain must have the same last offset, leader epoch and producer. Of
typed batches whose schema version is not known here, only offsets and timestamps of the records are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa

from tidemark.record.envelope import ENVELOPE_BYTES, Batch, Envelope, unpack_envelope
from tidemark.record.payload import with_offsets
from tidemark.record.typed.batch import read_typed
from tidemark.record.typed.layout import TypedLayout
from tidemark.record.typed.times import times_and_offsets

_KEPT: Final = (
    "schema_version",
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


Layouts = Mapping[int, TypedLayout]
"""Layouts of the schema versions of a typed topic."""
_NO_LAYOUTS: Final[Layouts] = {}


def difference(first: Piece, second: Piece, *, cleaned: bool, layouts: Layouts = _NO_LAYOUTS) -> str:
    """Describe how two batches with the same base offset differ; "": they do not.

    Args:
        first: batches of one replica.
        second: batches of the other replica.
        cleaned: the batches are below a cleaner point, so only records that both replicas retain are compared.
        layouts: layouts of the schema versions, for typed batches.

    Raises:
        TidemarkError: a payload cannot be decoded.
    """
    if first.envelope == second.envelope:
        if first.data is None or second.data is None or first.data == second.data:
            return ""
        return "the bytes differ, though both CRCs are the same"
    if cleaned or first.envelope.is_compacted or second.envelope.is_compacted:
        return _difference_of_records(first, second, layouts)
    names = _differing(first.envelope, second.envelope, Envelope._fields)
    return f"the batches differ in {', '.join(names)}"


def _difference_of_records(first: Piece, second: Piece, layouts: Layouts) -> str:
    names = _differing(first.envelope, second.envelope, _KEPT)
    if names:
        return f"the batches differ in {', '.join(names)}"
    assert first.data is not None, "records are compared with their bytes"
    assert second.data is not None, "records are compared with their bytes"
    left, right = _records(first, layouts), _records(second, layouts)
    for offset in sorted(left.keys() & right.keys()):
        if left[offset] != right[offset]:
            names = [name for name, mine in left[offset].items() if mine != right[offset][name]]
            return f"the records at offset {offset} differ in {', '.join(names)}"
    return ""


_COLUMNS: Final = ("key", "value", "timestamp", "headers")


def _records(piece: Piece, layouts: Layouts) -> dict[int, dict[str, Any]]:
    """The values of each record, by its offset and their names."""
    assert piece.data is not None
    batch = Batch(piece.envelope, piece.data)
    if piece.envelope.is_typed:
        offsets, columns = _typed_columns(batch, layouts)
    else:
        rows = with_offsets(batch)
        offsets, columns = rows.column("offset"), {name: rows.column(name) for name in _COLUMNS}
    lists = [
        column.cast(pa.int64()).to_pylist() if pa.types.is_timestamp(column.type) else column.to_pylist()
        for column in columns.values()
    ]
    names = list(columns)
    found = zip(offsets.to_pylist(), zip(*lists, strict=True), strict=True)
    return {offset: dict(zip(names, map(_comparable, values), strict=True)) for offset, values in found}


def _comparable(value: Any) -> Any:
    """A value that equals itself, which NaN does not, in any column."""
    return value if isinstance(value, bytes | str | int | None) else repr(value)


def _typed_columns(batch: Batch, layouts: Layouts) -> tuple[Any, dict[str, Any]]:
    layout = layouts.get(batch.envelope.schema_version)
    if layout is None:
        times, offsets = times_and_offsets(batch)
        return offsets, {"timestamp": times}
    found = read_typed(batch, layout)
    columns: dict[str, Any] = {f"column {name}": found.columns.column(name) for name in found.columns.schema.names}
    deleted = pa.repeat(pa.scalar(False), len(found.offsets)) if found.deleted is None else found.deleted
    return found.offsets, {**columns, "timestamp": found.timestamps, "headers": found.headers, "deletion": deleted}


def _differing(first: Envelope, second: Envelope, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if getattr(first, name) != getattr(second, name)]
