# SPDX-License-Identifier: Apache-2.0
"""Counts the items of a large request before protobuf decodes it.

An item can be as small as two bytes, and becomes an object of some hundred bytes. To decode 16 MiB of such items holds
the event loop for more than a second. Small requests are not counted: they are decoded within some milliseconds.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc import request_limits
from tidemark.runtime.slices import Pace

COUNTED_FROM_BYTES: Final = 128 << 10
_ITEMS_PER_NAME: Final = 4
"""Limit of items at every depth, for each name that is allowed: a partition with its batches is two items or more."""
_OTHERS_PER_NAME: Final = 12
_OTHERS_MAX: Final = 200
"""Other fields of one message. Encoders write each field once, and lists of numbers as one field."""
_MORE: Final = 0x80
"""A byte of a number from this value on is followed by another byte."""
_SHIFT_MAX: Final = 63
_DEPTH_MAX: Final = 16
_FIELDS_AT_ONCE: Final = 300
SLICE_S: Final = 0.000_3
PAUSE_S: Final = 0.001
"""Pause between two slices of counting, since the request may be refused. A count rarely takes this long."""
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5


@functools.cache
def _fields(descriptor: Any) -> dict[int, Any]:
    """The fields by number that are items, or that may have items: their types, or False for text and bytes."""
    found = {}
    for field in descriptor.fields:
        named = field.is_repeated and field.type in (field.TYPE_STRING, field.TYPE_BYTES)
        if named or field.message_type is not None:
            found[field.number] = field.message_type or False
    return found


_Open = tuple[int, int, dict[int, Any], int]
"""A message within the request that is counted further: next position, end, its `_fields`, other fields left."""


class ItemScan:
    """Counts the fields of one encoded request, some at a time.

    Args:
        data: the request.
        descriptor: descriptor of its type.
    """

    def __init__(self, data: bytes, descriptor: Any) -> None:
        self._data = data
        self._items = request_limits.NAMED_MAX * _ITEMS_PER_NAME
        self._others = request_limits.NAMED_MAX * _OTHERS_PER_NAME
        self._stack: list[_Open] = [(0, len(data), _fields(descriptor), _OTHERS_MAX)]

    def count(self, fields: int) -> bool:
        """Count up to `fields` more fields; returns whether the request is at its end.

        Messages whose type has no items are not entered: decoding them takes less time than counting. Protobuf will
        refuse a malformed request.

        Raises:
            TidemarkError: INVALID_REQUEST for too many items or fields.
        """
        try:
            while self._stack and fields > 0:
                fields = self._walk(fields)
        except IndexError:  # the request ends within a number, or has a number of more than 64 bits
            self._stack.clear()
        return not self._stack

    def _walk(self, fields: int) -> int:
        """Count in the innermost open message; returns how many fields are left to count."""
        data, (at, end, known, others) = self._data, self._stack.pop()
        while at < end and fields > 0:
            fields -= 1
            tag = data[at]
            at += 1
            if tag >= _MORE:
                tag, at = _varint(data, at - 1)
            kind = tag & 7
            if kind != _BYTES:
                others -= 1
                at = _after(data, at, kind)
            else:
                length = data[at]
                at += 1
                if length >= _MORE:
                    length, at = _varint(data, at - 1)
                begin, at = at, at + length
                field = known.get(tag >> 3)
                if field is None:
                    others -= 1
                else:
                    self._items -= 1
                    if length and field and len(self._stack) < _DEPTH_MAX and (within := _fields(field)):
                        self._check(others)
                        self._stack += [(at, end, known, others), (begin, min(at, end), within, _OTHERS_MAX)]
                        return fields
            if self._items < 0 or others < 0:
                raise _too_many()
        if at < end:
            self._stack.append((at, end, known, others))
            return fields
        self._others -= _OTHERS_MAX - others
        self._check(others)
        return fields

    def _check(self, others: int) -> None:
        if self._items < 0 or others < 0 or self._others < 0:
            raise _too_many()


def _after(data: bytes, at: int, kind: int) -> int:
    """Position after the number that begins at `at`."""
    if kind == _VARINT:
        return _varint(data, at)[1]
    if kind == _FIXED_32:
        return at + 4
    if kind == _FIXED_64:
        return at + 8
    raise _too_many()  # a group: no message has groups, and groups can be nested


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < _MORE:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while byte >= _MORE:
        at += 1
        if shift > _SHIFT_MAX:
            raise IndexError
        byte = data[at]
        value |= (byte & 0x7F) << shift
        shift += 7
    return value, at + 1


async def check_items(data: bytes, descriptor: Any) -> None:
    """Raises INVALID_REQUEST for an encoded request with too many items, or fields; `descriptor` of its type.

    Other tasks run between slices.
    """
    if len(data) < COUNTED_FROM_BYTES:
        return
    scan, pace = ItemScan(data, descriptor), Pace(SLICE_S, PAUSE_S)
    while not scan.count(_FIELDS_AT_ONCE):
        if pace.is_due:
            await pace.give_way()


def check_size(data: bytes) -> None:
    """Raises INVALID_REQUEST for a unary request whose answer, which may repeat it, would be too long."""
    if len(data) > request_limits.REQUEST_BYTES_MAX:
        raise TidemarkError(
            ErrorCode.INVALID_REQUEST,
            f"a request has at most {request_limits.REQUEST_BYTES_MAX} bytes, this one {len(data)}; send several",
            {"request_bytes_max": str(request_limits.REQUEST_BYTES_MAX)},
        )


def _too_many() -> TidemarkError:
    return TidemarkError(
        ErrorCode.INVALID_REQUEST,
        f"a request names at most {request_limits.NAMED_MAX} items, and this one far more; send several requests",
        {"named_max": str(request_limits.NAMED_MAX)},
    )
