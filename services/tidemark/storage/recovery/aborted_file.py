# SPDX-License-Identifier: Apache-2.0
"""Files of aborted transactions: `<base>.txnindex` has a row for each abort marker of a segment (rule X5).

A segment without abort markers has no such file. Rows are fixed in size and have a CRC each.
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


class AbortedRow(NamedTuple):
    """An aborted transaction.

    Attributes:
        first_offset: of its first record.
        last_offset: of its marker.
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
    """Replace the file by one with these rows; without rows there is none. With `durable` it is on disk at once.

    Raises:
        OSError: the file is as it was.
    """
    content = b"".join(_pack(row) for row in rows)
    if content:
        replace_file(aborted_path(stem), content, durable=durable)
    else:
        aborted_path(stem).unlink(missing_ok=True)


def _pack(row: AbortedRow) -> bytes:
    data = _ROW.pack(0, _KIND, *row)
    return checksum(data[4:]).to_bytes(4, "little") + data[4:]


def read_aborted(stem: Path) -> Sequence[AbortedRow]:
    """The rows of a segment; none without a file.

    Raises:
        BadFile: the file is damaged.
    """
    try:
        data = aborted_path(stem).read_bytes()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise BadFile(f"{stem.name}{ABORTED_SUFFIX} cannot be read: {error.strerror}") from error
    if not data:  # its rows were lost with the power: no empty file is written
        raise BadFile(f"{stem.name}{ABORTED_SUFFIX} is empty")
    if len(data) % _ROW.size:
        raise BadFile(f"{stem.name}{ABORTED_SUFFIX} ends within a row")
    rows: list[AbortedRow] = []
    for at in range(0, len(data), _ROW.size):
        crc, kind, *fields = _ROW.unpack_from(data, at)
        if crc != checksum(data[at + 4 : at + _ROW.size]) or kind != _KIND:
            raise BadFile(f"row {at // _ROW.size} of {stem.name}{ABORTED_SUFFIX} is damaged")
        rows.append(AbortedRow(*fields))
    return rows
