# SPDX-License-Identifier: Apache-2.0
"""Counts the items of a large request before protobuf decodes it.

An item can be as small as two bytes, and becomes an object of some hundred: decoding 16 MiB of such items holds the
event loop for more than a second. Small requests are not counted: they are decoded within some milliseconds.
"""

from __future__ import annotations

import functools
from typing import Any, Final, NamedTuple

from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc import request_limits

COUNTED_FROM_BYTES: Final = 128 << 10
_FIELDS_PER_ITEM: Final = 16
_SHIFT_MAX: Final = 63
_DEPTH_MAX: Final = 16
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5


class _Field(NamedTuple):
    is_item: bool
    message: Any


@functools.cache
def _fields(descriptor: Any) -> dict[int, _Field]:
    """The fields by number that are items, or that have items."""
    found = {}
    for field in descriptor.fields:
        sized = field.message_type is not None or field.type in (field.TYPE_STRING, field.TYPE_BYTES)
        if sized and (field.is_repeated or field.message_type is not None):
            found[field.number] = _Field(field.is_repeated, field.message_type)
    return found


class _Counter:
    def __init__(self) -> None:
        self.items = request_limits.NAMED_MAX
        self.fields = request_limits.NAMED_MAX * _FIELDS_PER_ITEM

    def walk(self, data: bytes, start: int, end: int, descriptor: Any, depth: int = 0) -> None:
        """Count the fields of a message; protobuf will refuse a malformed one."""
        known, at = _fields(descriptor), start
        while at < end:
            self.fields -= 1
            if self.fields < 0 or self.items < 0:
                raise _too_many()
            tag, at = _varint(data, at)
            kind = tag & 7
            if kind == _VARINT:
                _, at = _varint(data, at)
            elif kind == _BYTES:
                length, at = _varint(data, at)
                field = known.get(tag >> 3)
                if field is not None:
                    self.items -= field.is_item
                    if field.message is not None and length and depth < _DEPTH_MAX:
                        self.walk(data, at, min(at + length, end), field.message, depth + 1)
                at += length
            elif kind in (_FIXED_32, _FIXED_64):
                at += 4 if kind == _FIXED_32 else 8


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while byte >= 0x80:
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
        f"a request names at most {request_limits.NAMED_MAX} items, and this one more; send several requests",
        {"named_max": str(request_limits.NAMED_MAX)},
    )
