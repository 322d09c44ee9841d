# SPDX-License-Identifier: Apache-2.0
"""Counts the items of a large request before protobuf decodes it.

An item can be as small as two bytes, and becomes an object of some hundred: decoding 16 MiB of such items holds the
event loop for more than a second. Small requests are not counted: they are decoded within some milliseconds.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc import request_limits

COUNTED_FROM_BYTES: Final = 128 << 10
_ITEMS_PER_NAME: Final = 4
"""Items at every depth, of which some name a topic: a partition with its batches, for example, is two or more."""
_OTHERS_PER_NAME: Final = 12
_OTHERS_MAX: Final = 200
"""Other fields of one message. Encoders write each field once, and lists of numbers as one field."""
_MORE: Final = 0x80
"""Bytes of a number from this value on are followed by another one."""
_SHIFT_MAX: Final = 63
_DEPTH_MAX: Final = 16
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


class _Counter:
    """The rest of the limits of a whole request."""

    def __init__(self) -> None:
        self.items = request_limits.NAMED_MAX * _ITEMS_PER_NAME
        self.others = request_limits.NAMED_MAX * _OTHERS_PER_NAME

    def walk(self, data: bytes, start: int, end: int, descriptor: Any, depth: int = 0) -> None:
        """Count the fields of a message; protobuf will refuse a malformed one.

        Messages whose type has no items are not entered: decoding them takes less time than counting.
        """
        known, at, others = _fields(descriptor), start, _OTHERS_MAX
        while at < end:
            tag = data[at]
            at += 1
            if tag >= _MORE:
                tag, at = _varint(data, at - 1)
            kind = tag & 7
            if kind == _BYTES:
                length = data[at]
                at += 1
                if length >= _MORE:
                    length, at = _varint(data, at - 1)
                field = known.get(tag >> 3)
                if field is None:
                    others -= 1
                else:
                    self.items -= 1
                    if field and depth < _DEPTH_MAX and _fields(field):
                        self.walk(data, at, min(at + length, end), field, depth + 1)
                at += length
            else:
                others -= 1
                at = _after(data, at, kind)
            if self.items < 0 or others < 0:
                raise _too_many()
        self.others -= _OTHERS_MAX - others
        if self.others < 0:
            raise _too_many()


def _after(data: bytes, at: int, kind: int) -> int:
    """The end of a number."""
    if kind == _VARINT:
        return _varint(data, at)[1]
    if kind == _FIXED_32:
        return at + 4
    if kind == _FIXED_64:
        return at + 8
    raise _too_many()  # a group: no message has one, and they can be nested in each other


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


def check_items(data: bytes, descriptor: Any) -> None:
    """Raises INVALID_REQUEST for an encoded request with too many items, or fields; `descriptor` of its type."""
    if len(data) < COUNTED_FROM_BYTES:
        return
    try:
        _Counter().walk(data, 0, len(data), descriptor)
    except IndexError:  # it ends within a number, or has one of more than 64 bits
        return


def check_size(data: bytes) -> None:
    """Raises INVALID_REQUEST for a unary request that is too long to be repeated by its answer."""
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
