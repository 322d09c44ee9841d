# SPDX-License-Identifier: Apache-2.0
"""One test for each reason to refuse a batch, with its error code."""

from __future__ import annotations

import re
import struct

import pytest
from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.arrow_message import UNCOMPRESSED_CEILING_BYTES
from tidemark.record.checks import ProduceLimits, check_batch, check_batches, check_produced
from tidemark.record.envelope import ENVELOPE_BYTES, Attributes, Codec, parse_envelope, stamped
from tidemark.record.payload import build_batch, from_columns, read_batch

from tests.refusals import raises_code
from tests.unit.record.samples import (
    METADATA_AT,
    NOON_US,
    body_start,
    buffer_at,
    compacted_sample,
    compression_field_at,
    header_field_at,
    message_field_at,
    patched,
    resealed,
    sample,
    three_records,
    vector_at,
    with_fields,
    with_payload,
)

CODECS = list(Codec)


def refused(data: bytes, code: ErrorCode, sentence: str | None = None) -> None:
    with raises_code(code, sentence) as refusal:
        check_batch(data)
    assert re.search(r"\w+ \w+ \w+", refusal.value.message), "a refusal is a sentence"


# --- accepted batches ---


@pytest.mark.parametrize("codec", CODECS)
def test_a_valid_batch_is_accepted_and_returned_unchanged(codec: Codec) -> None:
    data = sample(codec)
    batch = check_batch(data)
    assert batch.data is data
    assert batch.envelope == parse_envelope(data)


def test_a_batch_is_checked_in_place() -> None:
    data = sample()
    batch = check_batch(b"?" * 40 + data + b"?" * 9, 40)
    assert batch.data == data


def test_concatenated_batches_are_each_checked() -> None:
    first, second = sample(), compacted_sample(Codec.LZ4)
    assert [batch.data for batch in check_batches(first + second)] == [first, second]
    assert check_batches(b"") == ()
    with raises_code(ErrorCode.CORRUPT_BATCH):
        check_batches(first + patched(second, len(second) - 1, b"\x7f"))


# --- the envelope ---


@pytest.mark.parametrize("at", [0, 8, 12])
def test_a_damaged_header_fails_its_crc(at: int) -> None:
    refused(patched(sample(), at, b"\x55"), ErrorCode.CORRUPT_BATCH, "header_crc")


@pytest.mark.parametrize("at", [20, 24, 28, 63, 64, 300, -1])
def test_a_damaged_body_fails_its_crc(at: int) -> None:
    data = bytearray(sample())
    data[at] ^= 0x10
    refused(bytes(data), ErrorCode.CORRUPT_BATCH, "crc does not match")


def test_a_truncated_batch_is_refused() -> None:
    refused(sample()[:-8], ErrorCode.INVALID_BATCH, "incomplete")


def test_bytes_after_the_only_batch_are_refused() -> None:
    refused(sample() + bytes(8), ErrorCode.INVALID_BATCH, "follow the batch")


@pytest.mark.parametrize(
    "fields",
    [
        {"magic": 0},
        {"magic": 2},
        {"codec": 3},
        {"codec": 255},
        {"attributes": 1 << 5},
        {"attributes": 1 << 15},
        {"delete_horizon_s": 1},
        {"base_offset": -1},
        {"base_offset": (1 << 63) - 1},
        {"leader_epoch": -2},
        {"producer_id": -2},
        {"producer_id": 5},
        {"producer_epoch": 5},
        {"base_sequence": 0},
        {"base_sequence": -2},
    ],
    ids=lambda fields: "-".join(f"{name}={value}" for name, value in fields.items()),
)
def test_a_field_outside_its_range_is_refused(fields: dict[str, int]) -> None:
    refused(with_fields(sample(), **fields), ErrorCode.INVALID_BATCH)


@pytest.mark.parametrize(
    "fields",
    [
        {"producer_id": 0, "producer_epoch": 0, "base_sequence": 0},
        {"producer_id": 0, "producer_epoch": 0, "base_sequence": -1},
        {"base_offset": (1 << 63) - 4},
        {"leader_epoch": 0},
    ],
    ids=lambda fields: "-".join(f"{name}={value}" for name, value in fields.items()),
)
def test_a_field_at_the_end_of_its_range_is_accepted(fields: dict[str, int]) -> None:
    assert check_batch(with_fields(sample(), **fields)).envelope._asdict().items() >= fields.items()


@pytest.mark.parametrize("bit", [bit for bit in Attributes if bit != Attributes.COMPACTED])
def test_every_known_attribute_is_accepted(bit: Attributes) -> None:
    assert check_batch(with_fields(sample(), attributes=int(bit))).envelope.attributes == bit


# --- the Arrow message ---


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("other", CODECS)
def test_the_codec_is_the_one_of_the_arrow_message(codec: Codec, other: Codec) -> None:
    data = with_fields(sample(codec), codec=other)
    if codec is other:
        assert check_batch(data).envelope.codec == codec
    else:
        refused(data, ErrorCode.INVALID_BATCH, "codec")


@pytest.mark.parametrize("count", [0, 1, 2, 4, 0xFFFFFFFF])
def test_the_record_count_is_the_number_of_rows(count: int) -> None:
    data = with_fields(sample(), record_count=count, last_offset_delta=max(count - 1, 0))
    refused(data, ErrorCode.RECORD_COUNT_MISMATCH, "3 rows")


def test_records_fit_the_offsets_of_their_batch() -> None:
    refused(with_fields(sample(), last_offset_delta=1), ErrorCode.RECORD_COUNT_MISMATCH, "last_offset_delta")


@pytest.mark.parametrize("codec", CODECS)
def test_a_truncated_arrow_message_is_refused_at_every_length(codec: Codec) -> None:
    payload = sample(codec)[ENVELOPE_BYTES:]
    for length in range(0, len(payload), 8):
        refused(with_payload(sample(codec), payload[:length]), ErrorCode.INVALID_PAYLOAD)


def test_a_second_arrow_message_is_refused() -> None:
    payload = sample()[ENVELOPE_BYTES:]
    refused(with_payload(sample(), payload + payload), ErrorCode.INVALID_PAYLOAD, "more follows")


def test_a_schema_message_is_no_payload() -> None:
    message = three_records().schema.serialize().to_pybytes()
    refused(with_payload(sample(), message), ErrorCode.INVALID_PAYLOAD, "RecordBatch")


def test_rows_of_other_columns_are_no_payload() -> None:
    message = three_records().select(["key", "value"]).serialize().to_pybytes()
    refused(with_payload(sample(), message), ErrorCode.INVALID_PAYLOAD, "nodes")


def test_a_compacted_batch_has_the_column_that_its_attribute_promises() -> None:
    refused(with_fields(sample(), attributes=Attributes.COMPACTED), ErrorCode.INVALID_PAYLOAD, "nodes")
    plain = with_fields(compacted_sample(), attributes=0, delete_horizon_s=0)
    refused(plain, ErrorCode.INVALID_PAYLOAD, "nodes")


def test_a_missing_continuation_marker_is_refused() -> None:
    refused(resealed(patched(sample(), ENVELOPE_BYTES, bytes(4))), ErrorCode.INVALID_PAYLOAD, "continuation")


@pytest.mark.parametrize("size", [-(1 << 31), -8, 0, 4, 1 << 20, (1 << 31) - 8])
def test_a_wrong_metadata_length_is_refused(size: int) -> None:
    data = patched(sample(), ENVELOPE_BYTES + 4, struct.pack("<i", size))
    refused(resealed(data), ErrorCode.INVALID_PAYLOAD, "metadata")


@pytest.mark.parametrize("root", [0, 1 << 31, 0xFFFFFFFF, 10_000])
def test_a_metadata_root_that_points_outside_is_refused(root: int) -> None:
    data = patched(sample(), METADATA_AT, struct.pack("<I", root))
    refused(resealed(data), ErrorCode.INVALID_PAYLOAD, "outside")


@pytest.mark.parametrize("field", [1, 2])
@pytest.mark.parametrize("count", [0, 1, 6, 18, 0xFFFFFFFF])
def test_a_wrong_vector_length_is_refused(field: int, count: int) -> None:
    data = sample()
    refused(resealed(patched(data, vector_at(data, field) - 4, struct.pack("<I", count))), ErrorCode.INVALID_PAYLOAD)


def test_another_metadata_version_is_refused() -> None:
    data = sample()
    refused(resealed(patched(data, message_field_at(data, 0), b"\x03\x00")), ErrorCode.INVALID_PAYLOAD, "version")


@pytest.mark.parametrize("body_bytes", [-8, 0, 8, 1 << 62])
def test_a_wrong_body_length_is_refused(body_bytes: int) -> None:
    data = sample()
    data = patched(data, message_field_at(data, 3), struct.pack("<q", body_bytes))
    refused(resealed(data), ErrorCode.INVALID_PAYLOAD, "body")


@pytest.mark.parametrize(("codec", "method", "accepted"), [(0, 0, True), (0, 1, False), (1, 0, False), (7, 0, False)])
def test_the_compression_is_lz4_or_zstd_buffer_by_buffer(codec: int, method: int, accepted: bool) -> None:
    data = sample(Codec.LZ4)
    metadata, body = data[METADATA_AT : body_start(data)], data[body_start(data) :]
    # Another BodyCompression table, with both fields, after the old metadata: vtable, then table.
    table = struct.pack("<4H", 8, 6, 4, 5) + struct.pack("<iBBH", 8, codec, method, 0)
    pointer_at = header_field_at(data, 3) - METADATA_AT
    metadata = patched(metadata, pointer_at, struct.pack("<I", len(metadata) + 8 - pointer_at)) + table
    lying = with_payload(data, struct.pack("<Ii", 0xFFFFFFFF, len(metadata)) + metadata + body)
    if accepted:
        assert read_batch(check_batch(lying)).equals(three_records())
    else:
        refused(lying, ErrorCode.INVALID_PAYLOAD if method else ErrorCode.INVALID_BATCH)


NODE_LIES = {
    "a column is shorter": (0, 2, 0),
    "a column is longer": (1, 4, 1),
    "a negative length": (2, -1, 0),
    "more nulls than values": (0, 3, 4),
    "a negative null count": (1, 3, -1),
    "a null timestamp": (2, 3, 1),
    "a null header entry": (4, 2, 1),
    "a null header name": (5, 2, 1),
    "header names that differ in number": (5, 3, 0),
    "more header entries than there is room for": (4, 1 << 40, 0),
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("lie", NODE_LIES.values(), ids=NODE_LIES.keys())
def test_a_wrong_node_is_refused(codec: Codec, lie: tuple[int, int, int]) -> None:
    node, length, null_count = lie
    data = sample(codec)
    data = patched(data, vector_at(data, 1) + 16 * node, struct.pack("<qq", length, null_count))
    refused(resealed(data), ErrorCode.INVALID_PAYLOAD)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("index", range(17))
def test_a_buffer_outside_the_body_is_refused(codec: Codec, index: int) -> None:
    data = sample(codec)
    entry = vector_at(data, 2) + 16 * index
    body_bytes = len(data) - body_start(data)
    for offset, size in ((body_bytes + 8, 8), (0, body_bytes + 1), (-8, 8), (0, -1), (1 << 62, 1 << 62)):
        refused(resealed(patched(data, entry, struct.pack("<qq", offset, size))), ErrorCode.INVALID_PAYLOAD)


def test_a_buffer_over_another_is_refused() -> None:
    data = sample()
    values = vector_at(data, 2) + 16 * 5
    key_offset, _ = struct.unpack_from("<qq", data, vector_at(data, 2) + 16 * 2)
    refused(resealed(patched(data, values, struct.pack("<q", key_offset))), ErrorCode.INVALID_PAYLOAD, "over another")


def test_an_unaligned_buffer_is_refused() -> None:
    data = sample()
    entry = vector_at(data, 2) + 16 * 2
    offset, size = struct.unpack_from("<qq", data, entry)
    lie = struct.pack("<qq", offset + 1, size - 1)
    refused(resealed(patched(data, entry, lie)), ErrorCode.INVALID_PAYLOAD, "unaligned")


@pytest.mark.parametrize("index", [0, 1, 4, 7, 8, 9, 12, 15])
def test_a_buffer_too_short_for_its_column_is_refused(index: int) -> None:
    data = sample()
    refused(
        resealed(patched(data, vector_at(data, 2) + 16 * index + 8, bytes(8))), ErrorCode.INVALID_PAYLOAD, "bytes long"
    )


def test_bytes_that_belong_to_no_buffer_are_refused() -> None:
    data = sample()
    hidden = with_payload(data, data[ENVELOPE_BYTES:] + bytes(128))
    body_bytes = len(hidden) - body_start(hidden)
    hidden = patched(hidden, message_field_at(hidden, 3), struct.pack("<q", body_bytes))
    refused(resealed(hidden), ErrorCode.INVALID_PAYLOAD, "no buffer")


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("declared", [UNCOMPRESSED_CEILING_BYTES, 1 << 62, -2])
def test_a_declared_uncompressed_size_over_the_ceiling_is_refused(codec: Codec, declared: int) -> None:
    data = sample(codec)
    at, _ = buffer_at(data, 5)
    refused(resealed(patched(data, at, struct.pack("<q", declared))), ErrorCode.INVALID_PAYLOAD, "uncompressed")


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_wrong_declared_uncompressed_size_is_found_by_the_reader(codec: Codec) -> None:
    data = build_batch(from_columns(None, [b"a" * 5000], [1]), codec=codec)
    at, _ = buffer_at(data, 5)
    for declared in (4999, 5001, 100 << 20):
        batch = check_batch(resealed(patched(data, at, struct.pack("<q", declared))))
        with raises_code(ErrorCode.INVALID_PAYLOAD):
            read_batch(batch)


def test_the_compression_that_arrow_names_is_found_where_arrow_puts_it() -> None:
    data = sample(Codec.ZSTD)
    assert data[compression_field_at(data, 0)] == 1


# --- values that lie ---

OFFSET_LIES = {
    "far outside": (0, 1 << 30, (1 << 31) - 1, 5),
    "negative": (0, -5, -(1 << 31), 5),
    "falling": (8, 6, 4, 2),
    "first far outside": (1 << 30, (1 << 30) + 1, (1 << 30) + 2, (1 << 30) + 3),
}


@pytest.mark.parametrize("index", [1, 4, 9])
@pytest.mark.parametrize("offsets", OFFSET_LIES.values(), ids=OFFSET_LIES.keys())
def test_a_wrong_offset_buffer_is_refused_before_it_is_used(index: int, offsets: tuple[int, ...]) -> None:
    data = sample()
    at, size = buffer_at(data, index)
    assert size == 16
    refused(resealed(patched(data, at, struct.pack("<4i", *offsets))), ErrorCode.INVALID_PAYLOAD)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("index", [1, 4, 9])
@pytest.mark.parametrize("offsets", OFFSET_LIES.values(), ids=OFFSET_LIES.keys())
def test_a_wrong_offset_buffer_is_refused_by_the_reader_of_a_compressed_batch(
    codec: Codec, index: int, offsets: tuple[int, ...]
) -> None:
    data = sample(codec)
    at, size = buffer_at(data, index)
    # Under 17 bytes Arrow may store the buffer uncompressed, marked by -1; that length can be wrong, too.
    assert size >= 24
    lie = struct.pack("<q4i", -1, *offsets)
    data = patched(data, at, lie)
    data = patched(data, vector_at(data, 2) + 16 * index + 8, struct.pack("<q", len(lie)))
    batch = check_batch(resealed(data))
    with raises_code(ErrorCode.INVALID_PAYLOAD):
        read_batch(batch)


def test_a_wrong_null_count_is_refused() -> None:
    data = sample()
    data = patched(data, vector_at(data, 1) + 8, struct.pack("<q", 2))
    refused(resealed(data), ErrorCode.INVALID_PAYLOAD)


def test_a_header_name_that_is_no_utf8_is_refused() -> None:
    data = sample()
    at, size = buffer_at(data, 13)
    assert size == len(b"sourcesource")
    refused(resealed(patched(data, at, b"\xff\xfe")), ErrorCode.INVALID_PAYLOAD, "UTF")


@pytest.mark.parametrize("deltas", [(1, 1, 2), (4, 3, 5), (0, 1, 10)], ids=["twice", "falling", "past the last"])
@pytest.mark.parametrize("codec", CODECS)
def test_offset_deltas_that_do_not_rise_within_the_batch_are_refused(
    codec: Codec, deltas: tuple[int, int, int]
) -> None:
    data = compacted_sample(codec, deltas)
    if codec is Codec.NONE:
        refused(data, ErrorCode.INVALID_PAYLOAD, "offset_delta")
    else:
        with pytest.raises(TidemarkError, match="offset_delta"):
            read_batch(check_batch(data))


# --- rules of producers alone ---


def produced(data: bytes, limits: ProduceLimits, code: ErrorCode, sentence: str | None = None) -> None:
    batch = check_batch(data)
    with raises_code(code, sentence):
        check_produced(batch, limits, now_us=NOON_US)


@pytest.mark.parametrize("codec", CODECS)
def test_a_valid_produced_batch_is_accepted(codec: Codec) -> None:
    rows = from_columns([b"k"], [b"v"], [NOON_US])
    data = build_batch(rows, codec=codec, producer_id=4, producer_epoch=0, base_sequence=0)
    limits = ProduceLimits(
        max_message_bytes=len(data), compacted=True, timestamp_before_max_us=0, timestamp_after_max_us=0
    )
    check_produced(check_batch(data), limits, now_us=NOON_US)


def test_a_batch_over_max_message_bytes_is_refused() -> None:
    data = sample()
    produced(data, ProduceLimits(max_message_bytes=len(data) - 1), ErrorCode.BATCH_TOO_LARGE, "max.message.bytes")


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_too_large_once_decompressed_is_refused(codec: Codec) -> None:
    data = build_batch(from_columns(None, [b"a" * 100_000], [1]), codec=codec)
    limits = ProduceLimits(max_uncompressed_bytes=100_000)
    produced(data, limits, ErrorCode.BATCH_TOO_LARGE, "max.message.uncompressed.bytes")
    check_produced(check_batch(data), ProduceLimits(max_uncompressed_bytes=100_100), now_us=NOON_US)


def test_a_producer_does_not_stamp() -> None:
    batch = check_batch(sample())
    for forged in (stamped(batch, base_offset=1, leader_epoch=-1), stamped(batch, base_offset=0, leader_epoch=0)):
        produced(forged.data, ProduceLimits(), ErrorCode.INVALID_BATCH, "leader")


@pytest.mark.parametrize("bit", [bit for bit in Attributes if bit not in (Attributes.COMPACTED, Attributes.PENDING)])
def test_a_producer_sets_no_attribute_but_that_of_transactions(bit: Attributes) -> None:
    produced(with_fields(sample(), attributes=int(bit)), ProduceLimits(), ErrorCode.INVALID_BATCH, "attributes")


def test_a_batch_of_a_transaction_needs_a_producer() -> None:
    pending = with_fields(sample(), attributes=int(Attributes.PENDING))
    produced(pending, ProduceLimits(), ErrorCode.INVALID_BATCH, "a producer_id and a base_sequence")


def test_a_producer_sends_at_least_one_record() -> None:
    rows = from_columns(None, [], [])
    data = with_payload(with_fields(sample(), record_count=0, last_offset_delta=0), rows.serialize().to_pybytes())
    produced(data, ProduceLimits(), ErrorCode.INVALID_BATCH, "at least one record")


def test_a_producer_leaves_no_gap() -> None:
    data = with_fields(sample(), last_offset_delta=3)
    produced(data, ProduceLimits(), ErrorCode.RECORD_COUNT_MISMATCH, "last_offset_delta")


@pytest.mark.parametrize("codec", CODECS)
def test_a_compacted_topic_takes_no_record_without_a_key(codec: Codec) -> None:
    produced(sample(codec), ProduceLimits(compacted=True), ErrorCode.NULL_KEY, "1 records have no key")
    check_produced(check_batch(sample(codec)), ProduceLimits(), now_us=NOON_US)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_compacted_topic_takes_no_batch_that_does_not_decompress(codec: Codec) -> None:
    data = build_batch(from_columns([b"k" * 400], [b"v" * 400], [NOON_US]), codec=codec)
    at, size_bytes = buffer_at(data, 2)
    damaged = resealed(patched(data, at + 8, b"\xff" * (size_bytes - 8)))
    produced(damaged, ProduceLimits(compacted=True), ErrorCode.INVALID_PAYLOAD, "cannot be read")
    check_produced(check_batch(damaged), ProduceLimits(), now_us=NOON_US)


@pytest.mark.parametrize("codec", CODECS)
def test_a_refusal_for_single_records_names_them_or_their_bound(codec: Codec) -> None:
    rows = from_columns([None, b"k", None, None], [b""] * 4, [NOON_US + 1001, NOON_US, NOON_US + 1000, NOON_US + 1002])
    batch = check_batch(build_batch(rows, codec=codec))
    named = {"0,2-3", "0,3"} if codec == Codec.NONE else {None}
    limits = ProduceLimits(timestamp_before_max_us=1000, timestamp_after_max_us=1000)
    for one in (ProduceLimits(compacted=True), limits):
        with pytest.raises(TidemarkError) as refused:
            check_produced(batch, one, now_us=NOON_US)
        assert refused.value.metadata.get("records") in named
    assert refused.value.metadata["timestamp_max_us"] == str(NOON_US + 1000)


def test_a_timestamp_too_old_or_too_new_is_refused() -> None:
    early = build_batch(from_columns(None, [b"v"], [NOON_US - 1001]))
    late = build_batch(from_columns(None, [b"v"], [NOON_US + 1001]))
    limits = ProduceLimits(timestamp_before_max_us=1000, timestamp_after_max_us=1000)
    produced(early, limits, ErrorCode.INVALID_TIMESTAMP, "before")
    produced(late, limits, ErrorCode.INVALID_TIMESTAMP, "after")
    by_append_time = ProduceLimits(timestamp_before_max_us=1000, timestamp_after_max_us=1000, append_time=True)
    check_produced(check_batch(late), by_append_time, now_us=NOON_US)
