# SPDX-License-Identifier: Apache-2.0
"""The sparse indexes of a segment: `.index` (offset to position) and `.timeindex` (time to offset).

Both files grow in blocks with a CRC-32C each, so a damaged or missing file is detected and rebuilt from the log. An end
mark, the last block of `.timeindex`, records the content of the segment when it was closed or rolled. A segment whose
file still has that size needs no scan (rule T5).
"""

from __future__ import annotations

import os
import struct
from array import array
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import Final, NamedTuple

from tidemark.storage.files import Descriptor, checksum, read_exactly, write_all

INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
NO_TIMESTAMP_US: Final = -(1 << 63)

_HEADER: Final = struct.Struct("<IIQ")  # crc of the following bytes, kind, number of entries
_ENTRY_BYTES: Final = 16
_ENTRIES: Final = 1
_END: Final = 2
_END_MARK: Final = struct.Struct("<qqqq")
_END_BLOCK_BYTES: Final = _HEADER.size + _END_MARK.size


class EndMark(NamedTuple):
    """A segment when it was closed: next offset (exclusive), size, largest timestamp, number of index entries."""

    next_offset: int
    size_bytes: int
    max_timestamp_us: int
    entries: int


class SegmentIndex:
    """Entries for every `index.interval.bytes` of a segment, in memory.

    An entry is (base offset of a batch, its position, largest timestamp of all batches of the segment before it).
    Invariant: each of the three columns never decreases; the first `written` entries are in the files.
    """

    __slots__ = ("offsets", "positions", "timestamps", "written")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.positions = array("q")
        self.timestamps = array("q")
        self.written = 0

    def __len__(self) -> int:
        return len(self.positions)

    def add(self, offset: int, position: int, timestamp_us_before: int) -> None:
        """Add an entry past the last."""
        self.offsets.append(offset)
        self.positions.append(position)
        self.timestamps.append(timestamp_us_before)

    def floor(self, offset: int) -> int:
        """Number of the last entry at or below the offset, -1 if there is none."""
        return bisect_right(self.offsets, offset) - 1

    def before_timestamp(self, timestamp_us: int) -> int:
        """Number of the last entry before which every record is older than the timestamp, -1 if there is none."""
        return bisect_left(self.timestamps, timestamp_us) - 1

    def cut(self, position: int) -> None:
        """Drop the entries at or past a position of the log."""
        keep = bisect_left(self.positions, position)
        if keep < len(self):
            del self.offsets[keep:], self.positions[keep:], self.timestamps[keep:]
            self.written = 0  # the files have too many entries and must be rewritten

    def persist(self, stem: Path) -> None:
        """Write the entries that the files lack; `stem` is the path of the segment without its suffix."""
        if self.written == len(self) and self.written:
            return
        start, self.written = self.written, 0  # after a failed write the files are rewritten
        _append(stem, INDEX_SUFFIX, _block(self.offsets[start:], self.positions[start:]), rewrite=start == 0)
        _append(stem, TIME_INDEX_SUFFIX, _block(self.timestamps[start:], self.offsets[start:]), rewrite=start == 0)
        self.written = len(self)


def load_index(stem: Path) -> SegmentIndex:
    """The entries that both files have, up to the first damaged block."""
    first, whole_first = read_index_file(stem, INDEX_SUFFIX)
    second, whole_second = read_index_file(stem, TIME_INDEX_SUFFIX)
    index = SegmentIndex()
    count = min(len(first), len(second)) // 2
    index.offsets = first[0 : 2 * count : 2]
    index.positions = first[1 : 2 * count : 2]
    index.timestamps = second[0 : 2 * count : 2]
    if second[1 : 2 * count : 2] != index.offsets:
        return SegmentIndex()
    if whole_first and whole_second and len(first) == len(second):
        index.written = count
    return index


def write_end_mark(stem: Path, mark: EndMark) -> None:
    """Append the end mark to `.timeindex`."""
    _append(stem, TIME_INDEX_SUFFIX, _pack_block(_END, _END_MARK.size // _ENTRY_BYTES, _END_MARK.pack(*mark)))


def read_end_mark(stem: Path) -> EndMark | None:
    """The end mark if it is the last block of `.timeindex`, else None."""
    try:
        descriptor = Descriptor(stem.with_name(stem.name + TIME_INDEX_SUFFIX), os.O_RDONLY)
    except OSError:
        return None
    size = os.fstat(descriptor.number).st_size
    if size < _END_BLOCK_BYTES:
        return None
    data = read_exactly(descriptor.number, _END_BLOCK_BYTES, size - _END_BLOCK_BYTES)
    crc, kind, _ = _HEADER.unpack_from(data)
    if kind != _END or crc != checksum(data[4:]):
        return None
    return EndMark(*_END_MARK.unpack_from(data, _HEADER.size))


def _pack_block(kind: int, count: int, payload: bytes) -> bytes:
    head = _HEADER.pack(0, kind, count)[4:]
    return checksum(head + payload).to_bytes(4, "little") + head + payload


def _block(first: array[int], second: array[int]) -> bytes:
    payload = array("q", bytes(len(first) * _ENTRY_BYTES))
    payload[0::2] = first
    payload[1::2] = second
    return _pack_block(_ENTRIES, len(first), payload.tobytes())


def _append(stem: Path, suffix: str, block: bytes, *, rewrite: bool = False) -> None:
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if rewrite else 0)
    descriptor = Descriptor(stem.with_name(stem.name + suffix), flags)
    write_all(descriptor.number, block, os.fstat(descriptor.number).st_size)


def read_index_file(stem: Path, suffix: str) -> tuple[array[int], bool]:
    """Pairs of all valid blocks of one of the two files, flat; and whether the file exists with only valid blocks."""
    entries = array("q")
    try:
        data = stem.with_name(stem.name + suffix).read_bytes()
    except OSError:
        return entries, False
    at = 0
    while at < len(data):
        if at + _HEADER.size > len(data):
            return entries, False
        crc, kind, count = _HEADER.unpack_from(data, at)
        end = at + _HEADER.size + count * _ENTRY_BYTES
        if end > len(data) or checksum(data[at + 4 : end]) != crc:
            return entries, False
        if kind == _ENTRIES:
            entries.frombytes(data[at + _HEADER.size : end])
        at = end
    return entries, True
