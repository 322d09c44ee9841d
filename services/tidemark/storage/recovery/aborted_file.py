# SPDX-License-Identifier: Apache-2.0
"""Files of aborted transactions: `<base>.txnindex` has a row for each abort marker of a segment (rule X5).

A segment without abort markers has no such file. Rows are fixed in size and have a CRC each. The last row has the
number of other rows, because a power loss may cut the file between two rows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tidemark.storage.files import BadFile, checksum, replace_file
from tidemark.storage.segments.segment import ABORTED_SUFFIX

_ROW: Final = struct.Struct("<IIqqqq")
_KIND: Final = 1
_LAST_KIND: Final = 2


class AbortedRow(NamedTuple):
    """The row of an aborted transaction.

    Attributes:
        first_offset: offset of its first record.
        last_offset: offset of its marker.
        stable_offset: first offset of the transactions that were open after the marker; without any the marker's + 1.
            A transaction that ends later has no batch below it.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    stable_offset: int


def aborted_path(stem: Path) -> Path:
    """Path of the file; `stem` is the path of the segment without its suffix."""
    return stem.with_name(stem.name + ABORTED_SUFFIX)


def write_aborted(stem: Path, rows: Iterable[AbortedRow], *, durable: bool = False) -> None:
    """Replace the file by a file with these rows; without rows, delete the file. With `durable` the file is on disk at
    the return.

    Raises:
        OSError: the file is unchanged.
    """
    packed = [_pack(_KIND, row) for row in rows]
    if packed:
        packed.append(_pack(_LAST_KIND, (len(packed), 0, 0, 0)))
        replace_file(aborted_path(stem), b"".join(packed), durable=durable)
    else:
        aborted_path(stem).unlink(missing_ok=True)


def _pack(kind: int, fields: Iterable[int]) -> bytes:
    data = _ROW.pack(0, kind, *fields)
    return checksum(data[4:]).to_bytes(4, "little") + data[4:]


def read_aborted(stem: Path) -> Sequence[AbortedRow]:
    """The rows of a segment; empty without a file.

    Raises:
        BadFile: the file is damaged.
    """
    try:
        data = aborted_path(stem).read_bytes()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise BadFile(f"{stem.name}{ABORTED_SUFFIX} cannot be read: {error.strerror}") from error
    if not data or len(data) % _ROW.size:
        raise BadFile(f"{stem.name}{ABORTED_SUFFIX} ends within a row")
    count = len(data) // _ROW.size - 1
    rows = [AbortedRow(*_unpack(stem, data, number, _KIND)) for number in range(count)]
    if _unpack(stem, data, count, _LAST_KIND)[0] != count:
        raise BadFile(f"{stem.name}{ABORTED_SUFFIX} lacks rows")
    return rows


def _unpack(stem: Path, data: bytes, number: int, wanted_kind: int) -> list[int]:
    at = number * _ROW.size
    crc, kind, *fields = _ROW.unpack_from(data, at)
    if crc != checksum(data[at + 4 : at + _ROW.size]) or kind != wanted_kind:
        raise BadFile(f"row {number} of {stem.name}{ABORTED_SUFFIX} is damaged")
    return fields
