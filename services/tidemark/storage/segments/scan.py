# SPDX-License-Identifier: Apache-2.0
"""Reading past the recovery point: every batch is checked as a produced batch is (rule T5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from tidemark.model import TidemarkError
from tidemark.record.checks import check_batch
from tidemark.record.envelope import ENVELOPE_BYTES, Envelope
from tidemark.record.markers import EndMarker, may_be_marker, read_marker
from tidemark.storage.files import read_exactly
from tidemark.storage.segments.segment import Damage, checked_header

_READ_BYTES: Final = 1 << 20


def checked_batches(
    descriptor: int, start: int, end: int, scanned: Callable[[int], None]
) -> Iterator[tuple[int, Envelope]]:
    """(position, envelope) of each batch in [start, end), checked from the first byte to the last.

    `scanned` is called with the number of checked bytes, about each mebibyte.

    Raises:
        Damage: a batch is missing or damaged.
    """
    position = start
    while position < end:
        buffer = read_exactly(descriptor, min(_READ_BYTES, end - position), position)
        at = 0
        while at + ENVELOPE_BYTES <= len(buffer) or at == 0:
            length = int.from_bytes(buffer[at + 16 : at + 20], "little")
            if at + length > len(buffer):
                length = checked_header(buffer, at, position=position + at, end=end).batch_length
                if at:
                    break  # the next read starts with that batch
                buffer = read_exactly(descriptor, length, position)
            yield position + at, check_at(buffer, at, position=position + at, end=end)
            at += length
        position += at
        scanned(at)


def check_at(buffer: bytes, at: int, *, position: int, end: int) -> Envelope:
    """The envelope of the batch at byte `at` of the buffer, which is `position` of a file whose batches end by `end`.

    Raises:
        Damage: the batch is damaged.
    """
    try:
        return check_batch(buffer, at).envelope
    except TidemarkError as error:
        checked_header(buffer, at, position=position, end=end)  # the reason from a reader of headers
        raise Damage(position, error.message) from error


def marker_at(descriptor: int, position: int, envelope: Envelope) -> EndMarker | None:
    """The content of the batch at `position` if the batch is a marker; other batches are not read.

    Raises:
        Damage: the batch is damaged.
    """
    if not may_be_marker(envelope):
        return None
    try:
        return read_marker(check_batch(read_exactly(descriptor, envelope.batch_length, position)))
    except TidemarkError as error:
        raise Damage(position, error.message) from error
