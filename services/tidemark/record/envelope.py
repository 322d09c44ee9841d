# SPDX-License-Identifier: Apache-2.0
"""The envelope of a record batch: 64 bytes that a broker reads, checks and stamps (docs/formats.md).

The payload is not read here. Stamping rewrites the first 20 bytes only, so a leader appends a produced batch without
copying the batch and without another pass over its bytes.
"""

from __future__ import annotations

import re
import struct
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Final, NamedTuple

import google_crc32c

from tidemark.model import ErrorCode, TidemarkError

if TYPE_CHECKING:
    import pyarrow as pa

ENVELOPE_BYTES: Final = 64
STAMP_BYTES: Final = 20
CRC_START: Final = 24
"""First byte that `crc` covers: it covers [24, batch_length)."""
ALIGNMENT_BYTES: Final = 8
MAGIC: Final = 1
"""Magic of a batch of bytes: key, value, timestamp, headers."""
TYPED_MAGIC: Final = 2
"""Magic of a batch of a typed topic: the columns of a version of the topic's schema."""
MAGICS: Final = (MAGIC, TYPED_MAGIC)
_ANY_MAGIC: Final = re.compile(b"[" + re.escape(bytes(MAGICS)) + b"]")

NO_BASE_OFFSET: Final = 0
"""base_offset of a batch that no leader has stamped."""
NO_LEADER_EPOCH: Final = -1
"""leader_epoch of a batch that no leader has stamped."""
NO_SEQUENCE: Final = -1

_LAYOUT = struct.Struct("<qiIIIBBHIIiqqh6s")
assert _LAYOUT.size == ENVELOPE_BYTES
_STAMP = struct.Struct("<qi")
_LENGTH_AT = slice(16, 20)
_LENGTH = struct.Struct("<I")
_MAGIC_AT: Final = 24
TABLE_HEAD_BYTES: Final = 16
"""Size of the head of the table of columns: flags, number of nodes, node of the event time, 0, smallest timestamp."""
TABLE_ENTRY_BYTES: Final = 8
"""Size of an entry for a node in the table of columns: the node's end in the body, and its CRC."""
_HORIZON_BYTES = 6
DELETE_HORIZON_MAX_S: Final = (1 << (8 * _HORIZON_BYTES)) - 1


class Codec(IntEnum):
    """How the buffers of the payload are compressed; equal to the codec in the Arrow message."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


class Attributes(IntFlag):
    """The low bits of the `attributes` field; the others are the schema version of a typed batch."""

    NONE = 0
    CONTROL = 1 << 0
    """The batch has markers of the protocol, which no consumer gets."""
    COMPACTED = 1 << 1
    """The cleaner wrote the batch: rows carry their own `offset_delta`."""
    APPEND_TIME = 1 << 2
    """Every record's timestamp is `max_timestamp_us`, the leader's clock at append."""
    PENDING = 1 << 3
    """The batch is part of a transaction: the next marker of the producer commits or aborts the batch (rule X1)."""
    DELETE_HORIZON = 1 << 4
    """`delete_horizon_s` is set: from then on the tombstones in the batch may be deleted."""


KNOWN_ATTRIBUTES: Final = 0b11111
VERSION_SHIFT: Final = 5
"""The bits from this one on are the schema version of a typed batch, 1 to 2047; else 0."""

# Plain numbers: an operation on members of a flag costs as much as the CRC of a small batch.
_CONTROL: Final = int(Attributes.CONTROL)
_COMPACTED: Final = int(Attributes.COMPACTED)
_APPEND_TIME: Final = int(Attributes.APPEND_TIME)
_PENDING: Final = int(Attributes.PENDING)
_DELETE_HORIZON: Final = int(Attributes.DELETE_HORIZON)


class Envelope(NamedTuple):
    """The fields of formats.md's table, in its order."""

    base_offset: int
    leader_epoch: int
    header_crc: int
    batch_length: int
    crc: int
    magic: int
    codec: int
    attributes: int
    record_count: int
    last_offset_delta: int
    base_sequence: int
    max_timestamp_us: int
    producer_id: int
    producer_epoch: int
    delete_horizon_s: int

    @property
    def next_offset(self) -> int:
        """First offset after this batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_control(self) -> bool:
        """Whether the batch holds markers of the protocol instead of records."""
        return bool(self.attributes & _CONTROL)

    @property
    def is_pending(self) -> bool:
        """Whether the batch belongs to a transaction: records that a marker commits or aborts, or the marker."""
        return bool(self.attributes & _PENDING)

    @property
    def is_compacted(self) -> bool:
        """Whether rows carry their own offset_delta."""
        return bool(self.attributes & _COMPACTED)

    @property
    def has_append_time(self) -> bool:
        """Whether every record's timestamp is max_timestamp_us."""
        return bool(self.attributes & _APPEND_TIME)

    @property
    def append_time_us(self) -> int:
        """The leader's clock at the append, in microseconds since 1970; -1 if records have the producer's times."""
        return self.max_timestamp_us if self.attributes & _APPEND_TIME else -1

    @property
    def is_typed(self) -> bool:
        """Whether the payload has the columns of a schema."""
        return self.magic == TYPED_MAGIC

    @property
    def schema_version(self) -> int:
        """Version of the schema of a typed batch; 0 of a batch of bytes."""
        return self.attributes >> VERSION_SHIFT

    @property
    def has_delete_horizon(self) -> bool:
        """Whether delete_horizon_s is set."""
        return bool(self.attributes & _DELETE_HORIZON)


class Batch(NamedTuple):
    """A record batch: its parsed envelope and its bytes (envelope included)."""

    envelope: Envelope
    data: bytes


def next_magic(magics: bytes, start: int) -> int:
    """Index of the first byte that is a known magic, from `start` on; -1 if there is none."""
    found = _ANY_MAGIC.search(magics, start)
    return -1 if found is None else found.start()


def parse_envelope(data: bytes | memoryview, offset: int = 0, *, left_bytes: int | None = None) -> Envelope:
    """Unpack the envelope at a byte offset; checks no CRC, and no field except the length.

    Args:
        data: bytes with a batch at the offset.
        offset: where the batch starts.
        left_bytes: bytes from there on, if `data` has only the first of them; None: `data` has all.

    Raises:
        TidemarkError: INVALID_BATCH when fewer than 64 bytes are left. Also if batch_length is below 64, not a multiple
            of 8, or more than the remaining bytes.
    """
    given_bytes = len(data) - offset
    if offset < 0 or given_bytes < ENVELOPE_BYTES:
        raise invalid_batch(
            f"a record batch starts with {ENVELOPE_BYTES} bytes of envelope; {max(given_bytes, 0)} are left"
        )
    left_bytes = given_bytes if left_bytes is None else left_bytes
    fields = _LAYOUT.unpack_from(data, offset)
    length = fields[3]
    if length < ENVELOPE_BYTES or length % ALIGNMENT_BYTES:
        raise invalid_batch(
            f"batch_length {length} is not a multiple of {ALIGNMENT_BYTES} of at least {ENVELOPE_BYTES}"
        )
    if length > left_bytes:
        raise invalid_batch(f"batch_length states {length} bytes, {left_bytes} are left: incomplete, or a wrong length")
    return Envelope._make((*fields[:14], int.from_bytes(fields[14], "little")))


def unpack_envelope(data: bytes | memoryview, offset: int = 0) -> Envelope:
    """Unpack 64 bytes without a check, for readers that walk a file by its headers."""
    fields = _LAYOUT.unpack_from(data, offset)
    return Envelope._make((*fields[:14], int.from_bytes(fields[14], "little")))


def pack_envelope(envelope: Envelope) -> bytes:
    """The 64 bytes of an envelope, with its present CRCs."""
    return _LAYOUT.pack(*envelope[:14], envelope.delete_horizon_s.to_bytes(_HORIZON_BYTES, "little"))


def split_batches(data: bytes | memoryview) -> tuple[Batch, ...]:
    """Split concatenated batches by their lengths; no CRC pass.

    Raises:
        TidemarkError: INVALID_BATCH when a length is wrong or the last batch is incomplete.
    """
    batches: list[Batch] = []
    offset = 0
    while offset < len(data):
        envelope = parse_envelope(data, offset)
        batches.append(Batch(envelope, cut(data, offset, envelope.batch_length)))
        offset += envelope.batch_length
    return tuple(batches)


def end_of_batches(data: bytes | memoryview) -> int:
    """The next offset (exclusive) after the last of some concatenated whole batches, found by their lengths.

    A damaged length ends the search.
    """
    position = last = 0
    while position + ENVELOPE_BYTES <= len(data):
        last = position
        (length,) = _LENGTH.unpack_from(data, position + _LENGTH_AT.start)
        if length < ENVELOPE_BYTES:
            break
        position += length
    return unpack_envelope(data, last).next_offset


def cut(data: bytes | memoryview, offset: int, length: int) -> bytes:
    """The bytes [offset, offset + length), without a copy when that is all of some bytes."""
    return bytes(data if offset == 0 and length == len(data) else data[offset : offset + length])


def header_crc(prefix: bytes, length_field: bytes) -> int:
    """CRC-32C over bytes 0-11 (base_offset, leader_epoch) and 16-19 (batch_length)."""
    crc: int = google_crc32c.extend(google_crc32c.value(prefix), length_field)
    return crc


def body_crc(data: bytes) -> int:
    """CRC-32C that `crc` must have: of bytes [24, end), or [24, body of the message) if typed; no copy."""
    end = head_end(data) if data[_MAGIC_AT] == TYPED_MAGIC else len(data)
    crc: int = google_crc32c.value(_crc_input(data).slice(CRC_START, end - CRC_START))
    return crc


def head_end(data: bytes | memoryview, payload_at: int = ENVELOPE_BYTES) -> int:
    """Byte offset of the body of a typed batch's Arrow message; the end of the data if the lengths are wrong.

    `crc` covers the bytes before it; each node of a column has its own CRC in the table (`record.typed`).
    """
    message = table_end(data, payload_at)
    if message + 8 > len(data):
        return len(data)
    return min(message + 8 + int.from_bytes(data[message + 4 : message + 8], "little"), len(data))


def table_end(data: bytes | memoryview, payload_at: int = ENVELOPE_BYTES) -> int:
    """Byte offset of a typed batch's Arrow message, after the table of columns; unchecked."""
    nodes = int.from_bytes(data[payload_at + 2 : payload_at + 4], "little")
    return payload_at + TABLE_HEAD_BYTES + TABLE_ENTRY_BYTES * nodes


def stamp(data: bytes, *, base_offset: int, leader_epoch: int) -> bytes:
    """The first 20 bytes of a batch as its leader writes them: base_offset, leader_epoch, header_crc, batch_length.

    The other bytes of the batch do not change: a writer does `writev([stamp(...), memoryview(data)[20:]])`.
    """
    prefix = _STAMP.pack(base_offset, leader_epoch)
    length_field = data[_LENGTH_AT]
    return prefix + header_crc(prefix, length_field).to_bytes(4, "little") + length_field


def stamped(batch: Batch, *, base_offset: int, leader_epoch: int) -> Batch:
    """The batch with another base_offset and leader_epoch. Copies the whole batch: for tests and small uses."""
    data = stamp(batch.data, base_offset=base_offset, leader_epoch=leader_epoch) + batch.data[STAMP_BYTES:]
    return Batch(parse_envelope(data), data)


def seal(envelope: Envelope, payload: bytes | memoryview) -> bytes:
    """One batch from an envelope and its padded payload, with batch_length and both CRCs computed."""
    length = ENVELOPE_BYTES + len(payload)
    length_field = length.to_bytes(4, "little")
    head = pack_envelope(envelope._replace(batch_length=length))
    covered = payload if type(payload) is bytes else _crc_input(payload)
    if envelope.magic == TYPED_MAGIC:
        covered = covered[: head_end(payload, 0)]
    crc = google_crc32c.extend(google_crc32c.value(head[CRC_START:]), covered)
    stamp_crc = header_crc(head[:12], length_field)
    fixed = head[:12] + stamp_crc.to_bytes(4, "little") + length_field + crc.to_bytes(4, "little") + head[CRC_START:]
    return b"".join((fixed, payload))


def with_append_time(batch: Batch, *, timestamp_us: int) -> Batch:
    """The batch with the leader's clock as every record's timestamp (`message.timestamp.type=LogAppendTime`).

    Costs one pass for the CRC and one copy.
    """
    envelope = batch.envelope._replace(
        attributes=batch.envelope.attributes | Attributes.APPEND_TIME, max_timestamp_us=timestamp_us
    )
    data = seal(envelope, memoryview(batch.data)[ENVELOPE_BYTES:])
    return Batch(parse_envelope(data), data)


def _crc_input(payload: bytes | memoryview) -> pa.Buffer:
    # Imported here only: controllers and admin services import this module, and do without Arrow and its 40 MB.
    import pyarrow as pa

    return pa.py_buffer(payload)


def invalid_batch(sentence: str) -> TidemarkError:
    """The error for a batch that breaks a rule of its format."""
    return TidemarkError(ErrorCode.INVALID_BATCH, sentence)
