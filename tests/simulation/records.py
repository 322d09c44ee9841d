# SPDX-License-Identifier: Apache-2.0
"""Records of worlds: a record is a word like "v7.1", and its key follows from the word alone.

Batches in memory carry words instead of bytes; real ones carry them in a header of each record, so that a cleaned batch
states which of its records are left.
"""

from __future__ import annotations

from functools import lru_cache

from tidemark.model import LeaderEpoch, TidemarkError
from tidemark.record.checks import check_batch
from tidemark.record.envelope import Attributes, Batch, Envelope, parse_envelope, stamped
from tidemark.record.markers import EndMarker, build_marker
from tidemark.record.payload import build_batch, from_columns, read_batch, row_offsets

Values = list[str | None]
"""Records by offset; None where no record is: below the log start, or where the cleaner removed one."""
KEYS = 4
_TOMBSTONE_EVERY = 3
_WORD = "word"


@lru_cache(maxsize=1 << 14)
def key_of(value: str) -> str:
    name, _, number = value.rpartition(".")
    return f"k{(_number(name) + int(number)) % KEYS}"


@lru_cache(maxsize=1 << 14)
def is_tombstone(value: str) -> bool:
    """Whether a record deletes its key."""
    name, _, number = value.rpartition(".")
    return (_number(name) + 2 * int(number)) % _TOMBSTONE_EVERY == 0


def _number(name: str) -> int:
    """The number in a name: 7 of "v7", 3 of "p5:3"."""
    return int(name.rpartition(":")[2].lstrip("v"))


def make_batch(value: str, *, records: int = 1, sequence: int = -1, producer_id: int = -1, at_us: int = 0) -> Batch:
    """An unstamped batch; `value` stands for its payload."""
    producer_epoch = 0 if producer_id >= 0 else -1
    envelope = Envelope(
        0, -1, 0, 100, 0, 1, 0, 0, records, records - 1, sequence, at_us, producer_id, producer_epoch, 0
    )
    return Batch(envelope, value.encode())


def make_real_batch(
    value: str,
    *,
    records: int = 1,
    sequence: int = -1,
    producer_id: int = -1,
    producer_epoch: int = 0,
    pending: bool = False,
    at_us: int = 0,
) -> Batch:
    """A batch as `make_batch` makes it, through the bytes that a producer sends."""
    words = [f"{value}.{n}" for n in range(records)]
    rows = from_columns(
        keys=[key_of(word).encode() for word in words],
        values=[None if is_tombstone(word) else word.encode() for word in words],
        timestamps_us=[at_us] * records,
        headers=[{_WORD: word.encode()} for word in words],
    )
    epoch = producer_epoch if producer_id >= 0 else -1
    data = build_batch(rows, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, pending=pending)
    return Batch(parse_envelope(data), bytes(data))


def make_real_marker(producer_id: int, producer_epoch: int, *, commit: bool, at_us: int) -> Batch:
    """A marker with which a coordinator ends a transaction."""
    marker = EndMarker(commit, coordinator_epoch=0)
    data = build_marker(producer_id=producer_id, producer_epoch=producer_epoch, marker=marker, timestamp_us=at_us)
    return Batch(parse_envelope(data), bytes(data))


def is_real(batch: Batch) -> bool:
    """Whether the batch is bytes in the form of the wire."""
    return batch.envelope.crc != 0


_FLIPPED = b"\xff"
"""The value of a flipped record in memory, which no producer wrote."""


def flipped(batch: Batch) -> Batch:
    """The batch as a disk returns it after a bit has flipped."""
    return Batch(batch.envelope, _FLIPPED)


def is_good(batch: Batch) -> bool:
    """The result of the shipping check of every batch that is received; the same for those in memory."""
    if not is_real(batch):
        return batch.data != _FLIPPED
    try:
        check_batch(batch.data)
    except TidemarkError:
        return False
    return True


_REAL: dict[int, tuple[str | None, ...]] = {}
"""The words in real batches, by the CRC of the part that no stamp changes."""


def values_of(batch: Batch) -> tuple[str | None, ...]:
    """The records of a batch, one entry for each offset."""
    envelope = batch.envelope
    if envelope.is_control:
        return (f"m{envelope.producer_id}:{envelope.producer_epoch}.0",)
    if not is_real(batch):
        return _in_memory(batch.data.decode(), envelope.last_offset_delta + 1)
    found = _REAL.get(envelope.crc)
    if found is None:
        rows = read_batch(batch)
        values: Values = [None] * (envelope.last_offset_delta + 1)
        offsets = row_offsets(envelope, rows).to_pylist()
        for offset, headers in zip(offsets, rows.column(3).to_pylist(), strict=True):
            assert offset is not None, "every row has one"
            assert headers is not None, "every record has its word"
            values[offset - envelope.base_offset] = headers[0][1].decode()
        if len(_REAL) > 1 << 14:
            _REAL.clear()
        found = _REAL[envelope.crc] = tuple(values)
    return found


@lru_cache(maxsize=1 << 14)
def _in_memory(data: str, count: int) -> tuple[str | None, ...]:
    name, compacted, left = data.partition("|")
    kept = {int(one) for one in left.split(",") if one} if compacted else range(count)
    return tuple(f"{name}.{n}" if n in kept else None for n in range(count))


def without(batch: Batch, gone: set[int]) -> Batch:
    """A batch in memory as the cleaner leaves it: without the records at these deltas."""
    name = batch.data.decode().partition("|")[0]
    left = [n for n, value in enumerate(values_of(batch)) if value is not None and n not in gone]
    envelope = batch.envelope._replace(
        record_count=len(left), attributes=batch.envelope.attributes | Attributes.COMPACTED
    )
    return Batch(envelope, f"{name}|{','.join(map(str, left))}".encode())


def stamp_at(batch: Batch, base_offset: int, leader_epoch: LeaderEpoch) -> Batch:
    """Stamp a batch as a leader's append does."""
    if is_real(batch):
        return stamped(batch, base_offset=base_offset, leader_epoch=leader_epoch)
    return Batch(batch.envelope._replace(base_offset=base_offset, leader_epoch=leader_epoch), batch.data)


def agree(one: Values, other: Values) -> bool:
    """Whether both have equal records at the offsets that both have."""
    return one == other or all(
        mine == yours or mine is None or yours is None for mine, yours in zip(one, other, strict=False)
    )
