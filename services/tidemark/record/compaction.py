# SPDX-License-Identifier: Apache-2.0
"""Compaction of batches: keep the latest record of each key (rule L1). Pure; works on many batches at a time.

Arrow's hash tables compare the bytes of keys, not only a digest: a collision of two keys costs time, but no record. A
batch of the result replaces exactly one batch and keeps its base_offset, last_offset_delta, leader_epoch, producer
fields and max_timestamp; its rows carry their own `offset_delta`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.compacted_transactions import CompactedTransactions
from tidemark.record.envelope import (
    ENVELOPE_BYTES,
    MAGIC,
    NO_SEQUENCE,
    Attributes,
    Batch,
    Codec,
    Envelope,
    parse_envelope,
    seal,
)
from tidemark.record.markers import may_be_marker
from tidemark.record.payload import encode_rows, read_batch, row_offsets
from tidemark.record.schema import COMPACTED_SCHEMA
from tidemark.record.typed.batch import StoredRows, deletions, encode_stored, read_stored, stored_offsets
from tidemark.record.typed.key_bytes import key_bytes
from tidemark.record.typed.layout import TypedLayout

ENTRY_BYTES: Final = 64
"""Memory of a key in addition to its own bytes: its offset, and its share of the hash table."""
_FULL_SHARE: Final = 0.75
"""Above this share of used slots, the map is full: each further addition would cost a pass over the whole map."""


Layouts = Callable[[int], TypedLayout]
"""The layout of a schema version; raises UNKNOWN_SCHEMA_VERSION."""


def no_layouts(version: int) -> TypedLayout:
    """Refuse every version: the topic has no schema."""
    raise TidemarkError(ErrorCode.UNKNOWN_SCHEMA_VERSION, f"version {version} of the topic's schema is not known here")


class Decoded(NamedTuple):
    """A decoded batch: its envelope and its rows."""

    batch: Batch
    rows: pa.RecordBatch
    """The stored rows, including system columns."""
    keys: Any
    """Key of each row, binary; null for a row without a key."""
    tombstones: Any
    """bool: rows that delete the earlier rows of their key; None: no row does."""
    offsets: Any
    """Offset of each row, int64."""
    typed: StoredRows | None
    """The typed rows; None for a batch of bytes."""


def decode(batch: Batch, layouts: Layouts) -> Decoded:
    """Decode and fully validate a batch.

    Raises:
        TidemarkError: the errors of `read_batch` and `read_stored`; UNKNOWN_SCHEMA_VERSION.
    """
    if not batch.envelope.is_typed:
        rows = read_batch(batch)
        keys, values = rows.column(0), rows.column(1)
        tombstones = pc.and_(pc.is_null(values), pc.is_valid(keys)) if values.null_count else None
        return Decoded(batch, rows, keys, tombstones, row_offsets(batch.envelope, rows), None)
    layout = layouts(batch.envelope.schema_version)
    stored = read_stored(batch, layout)
    of_columns = key_bytes(stored.rows, layout.key_columns)
    found = pa.nulls(stored.rows.num_rows, pa.binary()) if of_columns is None else of_columns
    offsets = stored_offsets(stored.rows, batch.envelope)
    return Decoded(batch, stored.rows, found, deletions(stored.rows), offsets, stored)


class KeyOffsets:
    """The latest offset of each key among the records added; records without a key are skipped.

    Invariant: `size_bytes` is at most `max_bytes`, unless the first addition alone is larger.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._folded: pa.Table | None = None
        self._pending: list[pa.Table] = []
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Estimated memory, with the hash table of a lookup."""
        return self._size_bytes

    def __len__(self) -> int:
        """Number of keys in the map."""
        folded = self._fold()
        return 0 if folded is None else folded.num_rows

    def add(self, batches: Sequence[Decoded]) -> bool:
        """Add the rows of these batches, either all or none; returns False if the rows do not fit."""
        new = _latest(_keys_and_offsets(batches))
        cost = _cost(new)
        if self._size_bytes and self._size_bytes + cost > self._max_bytes:
            self._fold()
            if self._size_bytes + cost > self._max_bytes:
                return self._add_folded(new)
        self._pending.append(new)
        self._size_bytes += cost
        return True

    def _add_folded(self, new: pa.Table) -> bool:
        """New rows with known keys may fit: add them and measure."""
        if self._folded is None or self._size_bytes > _FULL_SHARE * self._max_bytes:
            return False
        together = _latest(pa.concat_tables([self._folded, new]))
        if _cost(together) > self._max_bytes:
            return False
        self._folded, self._size_bytes = together, _cost(together)
        return True

    def _fold(self) -> pa.Table | None:
        if self._pending:
            known = [] if self._folded is None else [self._folded]
            self._folded = _latest(pa.concat_tables([*known, *self._pending]))
            self._pending = []
            self._size_bytes = _cost(self._folded)
        return self._folded

    def of(self, keys: pa.ChunkedArray[Any]) -> pa.ChunkedArray[Any]:
        """The latest offset of each key, null if it is unknown."""
        folded = self._fold()
        if folded is None or not folded.num_rows:
            return pa.chunked_array([pa.nulls(len(keys), pa.int64())])
        found = pc.index_in(keys, value_set=folded.column(0).chunk(0), skip_nulls=True)
        return pc.take(folded.column(1), found)


@dataclass(frozen=True, slots=True)
class CleaningRule:
    """The parameters of one cleaning of a log.

    Attributes:
        end_offset: every record below this offset (exclusive) has been added to the map.
        now_s: wall clock, seconds since 1970.
        delete_horizon_s: horizon of tombstones that have none: they may be deleted after this time.
        kept: base offsets of the batches that stay even without records.
        transactions: transactions of this pass.
    """

    end_offset: int
    now_s: int
    delete_horizon_s: int
    kept: Container[int]
    transactions: CompactedTransactions = field(default_factory=CompactedTransactions)


def compact(batches: Sequence[Decoded], latest: KeyOffsets, rule: CleaningRule) -> list[bytes | None]:
    """The replacement of each batch: its own bytes, new bytes, or None where the batch is dropped."""
    offsets = pa.chunked_array([one.offsets for one in batches], pa.int64())
    keys = pa.chunked_array([one.keys for one in batches], pa.binary())
    outdated: Any = pc.less(offsets, latest.of(keys))
    stays: Any = pc.invert(outdated.fill_null(False))
    stays = stays.combine_chunks()
    result: list[bytes | None] = []
    start = 0
    for one in batches:
        count = one.rows.num_rows
        envelope = one.batch.envelope
        result.append(_compact_one(one, stays.slice(start, count), rule))
        if result[-1] is not None:
            rule.transactions.keep(envelope)
        start += count
    return result


def _compact_one(decoded: Decoded, stays: Any, rule: CleaningRule) -> bytes | None:
    batch, rows = decoded.batch, decoded.rows
    envelope = batch.envelope
    if envelope.is_control:
        return _compact_marker(batch, rule) if may_be_marker(envelope) else batch.data
    if envelope in rule.transactions.aborted:
        stays = pc.and_(stays, pa.scalar(False))
    left: int = stays.true_count
    if decoded.tombstones is not None and envelope.next_offset <= rule.end_offset:
        # this cleaning removes the records of these tombstones, even if another replica set the horizon
        tombstones = pc.and_(stays, decoded.tombstones)
        if envelope.has_delete_horizon and envelope.delete_horizon_s <= rule.now_s:
            stays = pc.and_not(stays, tombstones)
            left = stays.true_count
        elif not envelope.has_delete_horizon and tombstones.true_count:
            envelope = envelope._replace(
                attributes=envelope.attributes | Attributes.DELETE_HORIZON, delete_horizon_s=rule.delete_horizon_s
            )
    if left == rows.num_rows:
        same = envelope is batch.envelope and (left or envelope.base_offset in rule.kept)
        if same:
            return batch.data
        if left:
            return seal(envelope, memoryview(batch.data)[ENVELOPE_BYTES:])
    if not left and envelope.base_offset not in rule.kept:
        return None
    return _with_rows(decoded, envelope, stays)


def _compact_marker(batch: Batch, rule: CleaningRule) -> bytes | None:
    """A marker whose transaction has no batches left gets a horizon. The first cleaning after the horizon drops the
    marker (rule X6).
    """
    envelope = batch.envelope
    if rule.transactions.end(envelope) or envelope.base_offset in rule.kept:
        return batch.data
    if envelope.has_delete_horizon:
        return None if envelope.delete_horizon_s <= rule.now_s else batch.data
    attributes = envelope.attributes | int(Attributes.DELETE_HORIZON)
    ends_later = envelope._replace(attributes=attributes, delete_horizon_s=rule.delete_horizon_s)
    return seal(ends_later, memoryview(batch.data)[ENVELOPE_BYTES:])


def empty_batch(offset: int, leader_epoch: int) -> Batch:
    """A batch without records for one offset, which cleaning writes to keep the end of a segment known."""
    payload = encode_rows(pa.RecordBatch.from_pylist([], schema=COMPACTED_SCHEMA), Codec.NONE)
    envelope = Envelope(
        base_offset=offset,
        leader_epoch=leader_epoch,
        header_crc=0,
        batch_length=0,
        crc=0,
        magic=MAGIC,
        codec=int(Codec.NONE),
        attributes=int(Attributes.COMPACTED),
        record_count=0,
        last_offset_delta=0,
        base_sequence=NO_SEQUENCE,
        max_timestamp_us=0,
        producer_id=NO_SEQUENCE,
        producer_epoch=NO_SEQUENCE,
        delete_horizon_s=0,
    )
    data = seal(envelope, payload)
    return Batch(parse_envelope(data), data)


def _with_rows(decoded: Decoded, envelope: Envelope, stays: Any) -> bytes:
    """The batch with only some of its rows, which then carry their offsets."""
    deltas = None if envelope.is_compacted else _counted(decoded.rows.num_rows)
    attributes, horizon_s = envelope.attributes | int(Attributes.COMPACTED), envelope.delete_horizon_s
    # plain numbers: the inverse of a flag would clear the bits of the schema version, too
    if decoded.tombstones is None or not pc.and_(stays, decoded.tombstones).true_count:
        attributes, horizon_s = (
            attributes & ~int(Attributes.DELETE_HORIZON),
            0,
        )
    kept = envelope._replace(attributes=int(attributes), delete_horizon_s=horizon_s, record_count=stays.true_count)
    if decoded.typed is not None:
        return seal(kept, encode_stored(decoded.typed, deltas, stays, kept.codec))
    rows = decoded.rows
    if deltas is not None:
        rows = pa.RecordBatch.from_arrays([*rows.columns, deltas], schema=COMPACTED_SCHEMA)
    return seal(kept, encode_rows(rows.filter(stays), Codec(kept.codec)))


@lru_cache(maxsize=64)
def _counted(count: int) -> pa.Array[Any]:
    """0, 1, 2, ...: batches of one log tend to be of one size."""
    # By hand: see `record.payload`.
    return pa.Array.from_buffers(pa.uint32(), count, [None, pa.py_buffer(array("I", range(count)))])


def _keys_and_offsets(batches: Sequence[Decoded]) -> pa.Table:
    data = [one for one in batches if not one.batch.envelope.is_control]
    keys = pa.chunked_array([one.keys for one in data], pa.binary())
    offsets = pa.chunked_array([one.offsets for one in data], pa.int64())
    table = pa.Table.from_arrays([keys, offsets], names=["key", "offset"])
    return table.filter(pc.is_valid(keys)) if keys.null_count else table


def _latest(table: pa.Table) -> pa.Table:
    """One row for each key, with its largest offset; single chunks."""
    latest = table.group_by("key", use_threads=False).aggregate([("offset", "max")])
    return latest.rename_columns(["key", "offset"]).combine_chunks()


def _cost(table: pa.Table) -> int:
    return table.nbytes + ENTRY_BYTES * table.num_rows
