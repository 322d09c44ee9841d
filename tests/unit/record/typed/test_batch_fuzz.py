# SPDX-License-Identifier: Apache-2.0
"""Typed batches with each byte changed: damage is found, and a lie under valid CRCs is refused or harmless."""

from __future__ import annotations

import contextlib

import pytest
from tidemark.model import TidemarkError
from tidemark.record.checks import check_envelope
from tidemark.record.envelope import ENVELOPE_BYTES, Codec
from tidemark.record.typed.batch import check_typed, prune, read_pruned, read_typed

from tests.unit.record.typed.samples import flights, resealed, three_flights
from tests.unit.record.typed.test_batch import CODECS, batch_of, touch


@pytest.mark.parametrize("codec", CODECS)
def test_every_damaged_byte_is_found_in_a_whole_batch_and_in_a_pruned_one(codec: Codec) -> None:
    layout = flights()
    data = batch_of(three_flights(), layout, codec).data
    ids = frozenset({3, 5})
    pruned = prune(data, layout, ids)
    for position in range(len(data)):
        with pytest.raises(TidemarkError):
            check_envelope(_flipped(data, position))
    for position in range(len(pruned)):
        with pytest.raises(TidemarkError):
            read_pruned(_flipped(pruned, position), layout, ids)


def _flipped(data: bytes, position: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 0x10
    return bytes(changed)


@pytest.mark.parametrize("codec", CODECS)
def test_a_writer_that_lies_under_valid_crcs_is_refused_or_harmless(codec: Codec) -> None:
    layout = flights()
    data = batch_of(three_flights(), layout, codec).data
    ids = frozenset({3, 5, 7})
    for position in range(ENVELOPE_BYTES, len(data)):
        for change in (0x01, 0x80):
            lie = bytearray(data)
            lie[position] ^= change
            with contextlib.suppress(TidemarkError):
                batch = check_envelope(resealed(bytes(lie)))
                check_typed(batch, layout)
                touch(read_typed(batch, layout).columns)
            with contextlib.suppress(TidemarkError):
                touch(read_pruned(prune(resealed(bytes(lie)), layout, ids), layout, ids).columns)
