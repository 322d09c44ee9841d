"""The envelope of a record batch: 64 bytes that a broker reads, checks and stamps (docs/formats.md)."""

from __future__ import annotations

import struct
from typing import NamedTuple

ENVELOPE_BYTES = 64
STAMP_BYTES = 20
MAGIC = 1

_LAYOUT = struct.Struct("<qiIIIBBHIIiqqh6s")
assert _LAYOUT.size == ENVELOPE_BYTES


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


class Batch(NamedTuple):
    """A record batch: its parsed envelope and its bytes (envelope included)."""

    envelope: Envelope
    data: bytes
