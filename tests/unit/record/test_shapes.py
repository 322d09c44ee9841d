# SPDX-License-Identifier: Apache-2.0
"""A message with a known shape gets the verdict of a full check."""

from __future__ import annotations

import pytest
from tidemark.model import TidemarkError
from tidemark.record import arrow_message
from tidemark.record.arrow_message import MessageFacts, check_message
from tidemark.record.checks import bytes_layout, check_batch
from tidemark.record.envelope import ENVELOPE_BYTES, Codec
from tidemark.record.shapes import COMPACTED_LAYOUT, LAYOUT

from tests.unit.record.samples import body_start, compacted_sample, sample

SAMPLES = [sample(codec=codec) for codec in Codec] + [compacted_sample(codec=codec) for codec in Codec]


def judged(data: bytes, *, codec: int, compacted: bool) -> MessageFacts | str:
    try:
        return check_message(data, ENVELOPE_BYTES, codec=codec, layout=COMPACTED_LAYOUT if compacted else LAYOUT)
    except TidemarkError as error:
        return f"{error.code} {error.message}"


@pytest.mark.parametrize("data", SAMPLES)
def test_messages_of_this_program_have_known_shapes(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[bytes] = []
    monkeypatch.setattr(arrow_message, "_locate", lambda metadata, *_: looked_at.append(metadata))
    check_batch(data)
    assert looked_at == []


@pytest.mark.parametrize("data", SAMPLES)
def test_every_changed_byte_of_the_metadata_gets_the_verdict_of_a_full_check(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    envelope = check_batch(data).envelope
    layout = bytes_layout(envelope)
    known = dict(layout.shapes)
    for position in range(ENVELOPE_BYTES + 8, body_start(data)):
        for change in (0x01, 0x80, 0xFF):
            changed = bytearray(data)
            changed[position] ^= change
            found = []
            for shapes in (known, {}):
                monkeypatch.setattr(layout, "shapes", shapes)
                found.append(judged(bytes(changed), codec=envelope.codec, compacted=envelope.is_compacted))
            assert found[0] == found[1], position
