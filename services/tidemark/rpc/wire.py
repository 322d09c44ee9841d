"""Messages that carry batches, put together around them by one join (proto3's wire format).

On the wire nothing is different. protobuf's Python API copies a bytes field when it is set and again, several times,
while it serializes: 600 us for 400 kB, where this takes 12.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from google.protobuf.message import Message

_LENGTH_DELIMITED: Final = 2


def nested(field: int, pieces: Iterable[bytes]) -> list[bytes]:
    """A length-delimited field (bytes, or a message) whose content is these pieces, one after the other."""
    content = list(pieces)
    return [_varint(field << 3 | _LENGTH_DELIMITED) + _varint(sum(map(len, content))), *content]


def message(head: Message, *fields: Sequence[bytes]) -> list[bytes]:
    """The pieces of a message: `head` has the fields that are small, `fields` are those made by `nested`."""
    pieces = [head.SerializeToString()]
    for field in fields:
        pieces += field
    return pieces


def _varint(number: int) -> bytes:
    octets = bytearray()
    while number >= 0x80:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    octets.append(number)
    return bytes(octets)
