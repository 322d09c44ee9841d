# SPDX-License-Identifier: Apache-2.0
"""Markers as bytes (rule X2, docs/formats.md)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.checks import ProduceLimits, check_batch, check_produced
from tidemark.record.envelope import Attributes
from tidemark.record.markers import EndMarker, build_marker, read_marker
from tidemark.record.payload import build_batch, build_own_batch

from tests.refusals import raises_code
from tests.unit.record.samples import NOON_US, three_records, with_fields

GOLDEN = Path(__file__).parents[2] / "golden"


def marker(*, commit: bool, coordinator_epoch: int = 9) -> bytes:
    content = EndMarker(commit, coordinator_epoch)
    return build_marker(producer_id=4711, producer_epoch=3, marker=content, timestamp_us=NOON_US)


@pytest.mark.parametrize(("name", "commit"), [("commit", True), ("abort", False)])
def test_a_marker_is_built_of_the_golden_bytes_and_read_back(name: str, commit: bool) -> None:
    golden = (GOLDEN / f"{name}.batch").read_bytes()
    assert marker(commit=commit) == golden
    batch = check_batch(golden)
    assert read_marker(batch) == EndMarker(commit, 9)
    envelope = batch.envelope
    assert (envelope.is_control, envelope.is_pending, envelope.magic, envelope.base_sequence) == (True, True, 1, -1)
    assert (envelope.producer_id, envelope.producer_epoch, envelope.max_timestamp_us) == (4711, 3, NOON_US)


def test_key_and_value_of_a_marker_are_little_endian_numbers() -> None:
    data = marker(commit=True, coordinator_epoch=0x01020304)
    assert bytes.fromhex("0000 0100") in data
    assert bytes.fromhex("0000 04030201") in data


def test_other_batches_are_no_markers() -> None:
    for attributes in (Attributes.NONE, Attributes.PENDING, Attributes.CONTROL):
        data = build_own_batch([b"key"], [b"value"], 1, producer_id=1, producer_epoch=0, attributes=attributes)
        assert read_marker(check_batch(data)) is None


def test_a_marker_of_an_unknown_type_or_with_more_bytes_is_read_as_far_as_known() -> None:
    def control(key: bytes, value: bytes) -> EndMarker | None:
        attributes = Attributes.CONTROL | Attributes.PENDING
        data = build_own_batch([key], [value], NOON_US, producer_id=1, producer_epoch=1, attributes=attributes)
        return read_marker(check_batch(data))

    assert control(bytes.fromhex("0000 0200"), bytes(6)) is None
    assert control(bytes.fromhex("0100 0100 ff"), bytes.fromhex("0100 07000000 ff")) == EndMarker(True, 7)
    for key, value in ((b"\0\0\1", bytes(6)), (bytes(4), bytes(5))):
        with raises_code(ErrorCode.INVALID_PAYLOAD):
            control(key, value)


def test_a_control_batch_of_two_rows_is_no_valid_marker() -> None:
    keys, values, attributes = [bytes(4)] * 2, [bytes(6)] * 2, Attributes.CONTROL | Attributes.PENDING
    data = build_own_batch(keys, values, NOON_US, producer_id=1, producer_epoch=1, attributes=attributes)
    with pytest.raises(TidemarkError, match="one row"):
        read_marker(check_batch(data))


def test_a_producer_may_set_the_pending_attribute_and_no_other() -> None:
    pending = build_batch(three_records(), producer_id=1, producer_epoch=0, base_sequence=0, pending=True)
    check_produced(check_batch(pending), ProduceLimits(), now_us=NOON_US)
    without_sequence = build_batch(three_records(), producer_id=1, producer_epoch=0, pending=True)
    refused = [without_sequence, marker(commit=True)]
    refused += [
        with_fields(pending, attributes=int(Attributes.PENDING | other))
        for other in (Attributes.CONTROL, Attributes.APPEND_TIME)
    ]
    for data in refused:
        with raises_code(ErrorCode.INVALID_BATCH):
            check_produced(check_batch(data), ProduceLimits(), now_us=NOON_US)
