# SPDX-License-Identifier: Apache-2.0
"""The table at the start of a typed payload: where each column node lies in the Arrow body, and its CRC.

The envelope's `crc` covers the table and the metadata of the Arrow message; the table covers the body. So the CRCs
prove each column to a reader that gets only some of them, and this module does not need the schema.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import google_crc32c
import pyarrow as pa

from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.envelope import (
    ALIGNMENT_BYTES,
    ENVELOPE_BYTES,
    TABLE_ENTRY_BYTES,
    TABLE_HEAD_BYTES,
    head_end,
    invalid_batch,
    table_end,
)

NO_NODE: Final = 0xFFFF
NODES_MAX: Final = 4096
"""Field nodes of a batch, including system columns."""
HAS_TIMESTAMPS: Final = 1
"""Flag: each row has its own timestamp, in a system column."""
HAS_HEADERS: Final = 2
HAS_TOMBSTONES: Final = 4
"""Flag: a system column states which rows delete the earlier rows of their key."""
KNOWN_FLAGS: Final = HAS_TIMESTAMPS | HAS_HEADERS | HAS_TOMBSTONES

_HEAD: Final = struct.Struct("<HHHHq")
assert _HEAD.size == TABLE_HEAD_BYTES


class ColumnTable(NamedTuple):
    """A parsed table of column nodes.

    Attributes:
        flags: such as HAS_TIMESTAMPS.
        event_time_node: node with the event time; NO_NODE: no event time.
        min_timestamp_us: smallest timestamp of the rows, UTC.
        ends: end of each node's bytes in the body; a node begins where the one before it ends.
        crcs: CRC-32C of each node's bytes.
        message_at: byte offset of the Arrow message in the batch.
        body_at: byte offset of the body of the message in the batch.
    """

    flags: int
    event_time_node: int
    min_timestamp_us: int
    ends: tuple[int, ...]
    crcs: tuple[int, ...]
    message_at: int
    body_at: int

    def span(self, node: int) -> tuple[int, int]:
        """Start and end of a node's bytes in the body."""
        return (self.ends[node - 1] if node else 0), self.ends[node]


def parse_table(data: bytes | memoryview) -> ColumnTable:
    """Parse the table of a typed batch, whole or pruned.

    Raises:
        TidemarkError: INVALID_BATCH: a length or a flag is wrong.
    """
    message_at = table_end(data)
    body_at = head_end(data)
    if message_at + 8 > len(data):
        raise invalid_batch("the table of columns is longer than the batch")
    flags, nodes, event_time_node, zero, min_timestamp_us = _HEAD.unpack_from(data, ENVELOPE_BYTES)
    if flags & ~KNOWN_FLAGS or zero:
        raise invalid_batch(f"the table of columns has flags {flags:#x} that are not known")
    if not 0 < nodes <= NODES_MAX:
        raise invalid_batch(f"the table of columns has {nodes} nodes; a batch has 1 to {NODES_MAX}")
    if event_time_node != NO_NODE and event_time_node >= nodes:
        raise invalid_batch(f"the table of columns names node {event_time_node} of {nodes} as the event time")
    entries = struct.unpack_from(f"<{2 * nodes}I", data, ENVELOPE_BYTES + TABLE_HEAD_BYTES)
    ends, crcs = entries[0::2], entries[1::2]
    if any(end % ALIGNMENT_BYTES for end in ends) or list(ends) != sorted(ends):
        raise invalid_batch("the ends of columns in the table are unaligned or do not rise")
    return ColumnTable(flags, event_time_node, min_timestamp_us, ends, crcs, message_at, body_at)


def min_timestamp_us(data: bytes | memoryview) -> int:
    """Smallest timestamp of the rows of a typed batch, whole or pruned; raises INVALID_BATCH."""
    if table_end(data) > len(data):
        raise invalid_batch("the table of columns is longer than the batch")
    found: int = _HEAD.unpack_from(data, ENVELOPE_BYTES)[4]
    return found


def check_columns(data: bytes) -> ColumnTable:
    """Check the CRC of every column node of a whole typed batch; the envelope's `crc` has been checked.

    Raises:
        TidemarkError: CORRUPT_BATCH: a CRC; INVALID_BATCH: the table.
    """
    table = parse_table(data)
    body_bytes = len(data) - table.body_at
    if table.ends[-1] != body_bytes:
        raise invalid_batch(f"the columns end at {table.ends[-1]} of a body of {body_bytes} bytes")
    check_nodes(table, data, range(len(table.ends)))
    return table


def check_nodes(table: ColumnTable, data: bytes, nodes: Sequence[int]) -> None:
    """Check the CRCs of nodes that lie one after the other from the start of the body on.

    Raises:
        TidemarkError: CORRUPT_BATCH.
    """
    buffer = pa.py_buffer(data)
    at = table.body_at
    for node in nodes:
        begin, end = table.span(node)
        size = end - begin
        if google_crc32c.value(buffer.slice(at, size)) != table.crcs[node]:
            raise TidemarkError(ErrorCode.CORRUPT_BATCH, f"the CRC of column node {node} does not match: damaged bytes")
        at += size


def write_table(
    body: pa.Buffer, ends: Sequence[int], *, flags: int, event_time_node: int, min_timestamp_us: int
) -> bytes:
    """The table of a body whose nodes end at these offsets."""
    entries: list[int] = []
    begin = 0
    for end in ends:
        entries += (end, google_crc32c.value(body.slice(begin, end - begin)))
        begin = end
    return _HEAD.pack(flags, len(ends), event_time_node, 0, min_timestamp_us) + struct.pack(
        f"<{len(entries)}I", *entries
    )


assert struct.calcsize("<2I") == TABLE_ENTRY_BYTES
