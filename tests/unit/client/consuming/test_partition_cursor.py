# SPDX-License-Identifier: Apache-2.0
"""A cursor returns every record from its position on once, even if buffers are discarded."""

from __future__ import annotations

import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark.client.consuming.partition_cursor import Cursor
from tidemark.errors import InvalidRecordError
from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.record.envelope import ENVELOPE_BYTES, Batch, Codec, parse_envelope, seal, stamped
from tidemark.record.payload import build_batch, from_columns

LZ4_MAGIC = bytes.fromhex("04224d18")
"""The first bytes of each compressed buffer."""


def batches(sizes: list[int], *, epochs: list[int] | None = None) -> list[bytes]:
    """Make batches with these numbers of records; record n has offset n and value n."""
    found, offset = [], 0
    for index, size in enumerate(sizes):
        values: list[bytes | None] = [str(number).encode() for number in range(offset, offset + size)]
        data = build_batch(from_columns(None, values, [7] * size))
        epoch = 0 if epochs is None else epochs[index]
        found.append(stamped(Batch(parse_envelope(data), data), base_offset=offset, leader_epoch=epoch).data)
        offset += size
    return found


def cursor_at(position: int) -> Cursor:
    return Cursor(TopicPartition("t", 0), position, topic_id="id", incarnation="i")


def give_out(cursor: Cursor) -> list[int]:
    offsets: list[int] = []
    while (rows := cursor.next_rows()) is not None:
        offsets += rows.column("offset").to_pylist()
        cursor.passed()
    return offsets


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.data())
def test_each_offset_is_returned_once_for_any_position_and_fetches(sizes: list[int], data: st.DataObject) -> None:
    log = batches(sizes)
    end = sum(sizes)
    cursor = cursor_at(data.draw(st.integers(0, end)))
    start = cursor.position
    offsets: list[int] = []
    while cursor.position < end:
        following = [item for item in log if parse_envelope(item).next_offset > cursor.fetch_offset]
        cursor.take(b"".join(following[: data.draw(st.integers(1, 2))]))
        if data.draw(st.booleans()):
            cursor.forget_buffer()
        offsets += give_out(cursor)
    assert offsets == list(range(start, end))


def truncated(end_offset: int) -> TidemarkError:
    ends = {"diverging_epoch": "3", "diverging_end_offset": str(end_offset)}
    return TidemarkError(ErrorCode.LOG_TRUNCATED, "the log was truncated", ends)


def test_only_a_stated_epoch_whose_offset_the_log_has_is_lowered_and_only_once() -> None:
    cursor = cursor_at(4)
    assert not cursor.lowers_epoch(truncated(9)), "no epoch was stated"
    cursor.follows(7)
    assert (cursor.last_epoch, cursor.position_epoch, cursor.processed_epoch) == (7, 7, 7)
    assert not cursor.lowers_epoch(truncated(3)), "the record before the position is lost"
    assert cursor.lowers_epoch(truncated(4))
    assert cursor.last_epoch == 3
    assert not cursor.lowers_epoch(truncated(4)), "the log has contradicted its own answer"
    cursor.follows(7)
    cursor.take(b"".join(batches([6])))
    assert not cursor.lowers_epoch(truncated(9)), "a batch proves the epoch"
    cursor.follows(7)
    cursor.seek(0)
    assert cursor.last_epoch == -1
    assert not cursor.lowers_epoch(truncated(9))


def test_refetched_batches_are_no_progress() -> None:
    (first, second) = batches([2, 2])
    cursor = cursor_at(0)
    assert cursor.take(first)
    assert not cursor.take(first)
    assert cursor.take(first + second)
    assert give_out(cursor) == [0, 1, 2, 3]


def test_last_fetched_epoch_is_that_of_the_previous_record() -> None:
    cursor = cursor_at(0)
    assert cursor.last_epoch == -1
    cursor.take(b"".join(batches([2, 2, 2], epochs=[1, 4, 6])))
    assert (cursor.fetch_offset, cursor.last_epoch) == (6, 6)
    cursor.next_rows()
    cursor.passed()
    cursor.forget_buffer()
    assert (cursor.fetch_offset, cursor.last_epoch) == (2, 1)
    cursor.take(b"".join(batches([2, 2, 2], epochs=[1, 4, 6])))
    cursor.advance(3)
    cursor.forget_buffer()
    assert (cursor.fetch_offset, cursor.last_epoch) == (3, 4)
    cursor.seek(1)
    assert (cursor.fetch_offset, cursor.last_epoch, cursor.buffered_bytes) == (1, -1, 0)


def test_damaged_batch_is_fetched_again_and_then_raises() -> None:
    (good,) = batches([2])
    bad = good[:-1] + bytes([good[-1] ^ 1])
    cursor = cursor_at(0)
    for _ in range(2):
        cursor.take(bad)
        assert cursor.next_rows() is None
        assert cursor.fetch_offset == 0
    cursor.take(good)
    assert give_out(cursor) == [0, 1]
    cursor.seek(0)
    for _ in range(2):
        cursor.take(bad)
        assert cursor.next_rows() is None
    cursor.take(bad)
    for _ in range(2):
        with pytest.raises(TidemarkError) as refusal:
            cursor.next_rows()
        assert refusal.value.code == ErrorCode.CORRUPT_BATCH
        assert "seek" not in refusal.value.message, "another replica may have the records"


def test_the_error_of_a_batch_that_no_reader_can_decompress_has_its_place_and_the_offset_after_it() -> None:
    data = build_batch(from_columns(None, [b"v" * 100] * 3, [7] * 3), codec=Codec.LZ4)
    envelope = parse_envelope(data)._replace(base_offset=40)
    bad = seal(envelope, data[ENVELOPE_BYTES:].replace(LZ4_MAGIC, b"none"))
    cursor = cursor_at(40)
    for _ in range(2):
        cursor.take(bad)
        assert cursor.next_rows() is None
    cursor.take(bad)
    with pytest.raises(InvalidRecordError, match=r"t-0: .* offset 40 .* seek to offset 43 to skip") as refusal:
        cursor.next_rows()
    assert refusal.value.code is ErrorCode.INVALID_PAYLOAD
    assert refusal.value.metadata == {"topic": "t", "partition": "0", "offset": "40"}


def test_a_damaged_header_moves_no_offset_and_is_fetched_again() -> None:
    """After a flipped bit in base_offset, the next fetch could request any offset."""
    first, second, third = batches([2, 2, 2])
    bad = bytes([second[0], second[1] ^ 1, *second[2:]])
    cursor = cursor_at(0)

    assert cursor.take(first + bad + third)
    assert cursor.fetch_offset == 2
    assert not cursor.is_damaged
    assert not cursor.take(bad + third)
    assert cursor.is_damaged
    assert cursor.fetch_offset == 2
    assert cursor.take(second + third)

    assert give_out(cursor) == [0, 1, 2, 3, 4, 5]


def test_a_header_that_stays_damaged_ends_the_partition_after_its_good_rows() -> None:
    first, second = batches([2, 2])
    bad = bytes([second[0], second[1] ^ 1, *second[2:]])
    cursor = cursor_at(0)
    cursor.take(first)
    for _ in range(3):
        assert not cursor.take(bad)

    rows = cursor.next_rows()
    assert rows is not None
    assert rows.column("offset").to_pylist() == [0, 1]
    cursor.passed()
    with pytest.raises(TidemarkError, match="t-0: the batch at offset 2 cannot be read: header_crc"):
        cursor.next_rows()


def test_error_is_raised_after_the_buffered_rows() -> None:
    cursor = cursor_at(0)
    cursor.take(b"".join(batches([1, 1])))
    cursor.error = TidemarkError(ErrorCode.OFFSET_OUT_OF_RANGE, "gone")
    for offset in (0, 1):
        rows = cursor.next_rows()
        assert rows is not None
        assert rows.column("offset").to_pylist() == [offset]
        cursor.passed()
    with pytest.raises(TidemarkError):
        cursor.next_rows()


def test_high_watermark_rises_within_one_lineage() -> None:
    cursor = cursor_at(0)
    assert cursor.saw_high_watermark(9, lineage=0) == 9
    assert cursor.saw_high_watermark(7, lineage=0) == 9
    assert cursor.saw_high_watermark(7, lineage=1) == 7


def test_repeated_error_collects_no_tracebacks() -> None:
    cursor = cursor_at(0)
    cursor.error = TidemarkError(ErrorCode.OFFSET_OUT_OF_RANGE, "gone")
    depths = set()
    for _ in range(3):
        with pytest.raises(TidemarkError) as refusal:
            cursor.next_rows()
        depths.add(len(traceback.extract_tb(refusal.value.__traceback__)))
    assert len(depths) == 1
