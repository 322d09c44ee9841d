# SPDX-License-Identifier: Apache-2.0
"""The 64 bytes in front of every batch: parsing, splitting, stamping."""

from __future__ import annotations

import google_crc32c
import pytest
from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.checks import check_batch
from tidemark.record.envelope import (
    DELETE_HORIZON_MAX_S,
    ENVELOPE_BYTES,
    STAMP_BYTES,
    Attributes,
    Batch,
    Codec,
    Envelope,
    pack_envelope,
    parse_envelope,
    split_batches,
    stamp,
    stamped,
    with_append_time,
)

from tests.unit.record.samples import NOON_US, sample, with_fields


def code_of(refusal: pytest.ExceptionInfo[TidemarkError]) -> ErrorCode:
    return refusal.value.code


def test_an_envelope_survives_packing_and_parsing() -> None:
    envelope = Envelope(7, 3, 11, 64, 13, 1, 2, 17, 5, 9, 21, NOON_US, 1 << 40, 2, DELETE_HORIZON_MAX_S)
    assert parse_envelope(pack_envelope(envelope)) == envelope


def test_fields_have_the_positions_of_the_format() -> None:
    data = with_fields(sample(), producer_id=258, producer_epoch=3, base_sequence=4)
    data = stamped(Batch(parse_envelope(data), data), base_offset=0x0102, leader_epoch=0x0304).data
    assert data[0:12].hex() == "0201000000000000" + "04030000"
    assert int.from_bytes(data[16:20], "little") == len(data)
    assert data[24:28].hex() == "01" + "00" + "0000"
    assert data[28:40].hex() == "03000000" + "02000000" + "04000000"
    assert int.from_bytes(data[40:48], "little") == NOON_US + 5
    assert data[48:64].hex() == "0201000000000000" + "0300" + "000000000000"


def test_the_two_crcs_cover_the_documented_bytes() -> None:
    data = sample()
    envelope = parse_envelope(data)
    assert envelope.header_crc == google_crc32c.value(data[0:12] + data[16:20])
    assert envelope.crc == google_crc32c.value(data[24:])


def test_the_next_offset_follows_the_last_record() -> None:
    assert parse_envelope(sample())._replace(base_offset=40).next_offset == 43


def test_a_memoryview_is_parsed_in_place() -> None:
    data = sample()
    assert parse_envelope(memoryview(b"x" * 24 + data), 24) == parse_envelope(data)


@pytest.mark.parametrize("kept_bytes", [0, 1, ENVELOPE_BYTES - 1])
def test_less_than_an_envelope_is_refused(kept_bytes: int) -> None:
    with pytest.raises(TidemarkError) as refusal:
        parse_envelope(sample()[:kept_bytes])
    assert code_of(refusal) is ErrorCode.INVALID_BATCH


@pytest.mark.parametrize("offset", [-1, -64, 10_000])
def test_an_offset_outside_the_data_is_refused(offset: int) -> None:
    with pytest.raises(TidemarkError) as refusal:
        parse_envelope(sample(), offset)
    assert code_of(refusal) is ErrorCode.INVALID_BATCH


@pytest.mark.parametrize("length", [0, 56, 63, 65, 0xFFFFFFF8])
def test_a_wrong_length_is_refused(length: int) -> None:
    data = sample()
    with pytest.raises(TidemarkError, match="batch_length") as refusal:
        parse_envelope(data[:16] + length.to_bytes(4, "little") + data[20:])
    assert code_of(refusal) is ErrorCode.INVALID_BATCH


def test_concatenated_batches_are_split_by_their_lengths() -> None:
    first, second = sample(), sample(Codec.ZSTD)
    batches = split_batches(first + second + first)
    assert [batch.data for batch in batches] == [first, second, first]
    assert [batch.envelope.codec for batch in batches] == [0, 2, 0]
    assert split_batches(b"") == ()


@pytest.mark.parametrize("cut_bytes", [1, 8, 400])
def test_an_incomplete_last_batch_is_refused(cut_bytes: int) -> None:
    with pytest.raises(TidemarkError) as refusal:
        split_batches((sample() + sample())[:-cut_bytes])
    assert code_of(refusal) is ErrorCode.INVALID_BATCH


def test_a_stamp_changes_the_first_20_bytes_and_nothing_else() -> None:
    data = sample()
    head = stamp(data, base_offset=1 << 40, leader_epoch=9)
    assert len(head) == STAMP_BYTES
    batch = check_batch(head + data[STAMP_BYTES:])
    assert (batch.envelope.base_offset, batch.envelope.leader_epoch) == (1 << 40, 9)
    before = parse_envelope(data)
    assert batch.envelope == before._replace(base_offset=1 << 40, leader_epoch=9, header_crc=batch.envelope.header_crc)
    assert batch == stamped(Batch(before, data), base_offset=1 << 40, leader_epoch=9)


def test_append_time_is_set_under_a_new_crc() -> None:
    batch = with_append_time(check_batch(sample()), timestamp_us=NOON_US * 2)
    assert check_batch(batch.data) == batch
    assert batch.envelope.attributes == Attributes.APPEND_TIME
    assert batch.envelope.has_append_time
    assert batch.envelope.max_timestamp_us == NOON_US * 2
    assert batch.data[ENVELOPE_BYTES:] == sample()[ENVELOPE_BYTES:]
