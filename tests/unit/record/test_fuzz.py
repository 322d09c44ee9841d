# SPDX-License-Identifier: Apache-2.0
"""A batch with any damage is refused with a code, or it reads back whole; nothing crashes.

Most damage is put under valid CRCs, as from a faulty writer: other damage does not pass the first check.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.checks import check_batch, check_batches
from tidemark.record.envelope import ENVELOPE_BYTES, Batch, Codec
from tidemark.record.payload import build_batch, from_columns, read_batch, with_offsets

from tests.refusals import raises_code
from tests.unit.record.samples import body_start, compacted_sample, patched, resealed, rows_of, sample, with_payload

_MANY = from_columns(
    [b"%d" % i for i in range(40)],
    [b"v" * i if i % 7 else None for i in range(40)],
    list(range(40)),
    [[("name", b"x" * i)] * (i % 3) for i in range(40)],
)
BATCHES: Final = (
    *(sample(codec) for codec in Codec),
    *(compacted_sample(codec) for codec in Codec),
    *(build_batch(_MANY, codec=codec) for codec in Codec),
)
REFUSALS: Final = frozenset(
    {
        ErrorCode.CORRUPT_BATCH,
        ErrorCode.INVALID_BATCH,
        ErrorCode.INVALID_PAYLOAD,
        ErrorCode.RECORD_COUNT_MISMATCH,
    }
)
_EDGES: Final = (0, 1, 2, 7, 8, 127, 255, (1 << 15) - 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 63) - 1)

batches = st.sampled_from(BATCHES)
words = st.tuples(
    st.integers(min_value=0),
    st.sampled_from((1, 2, 4, 8)),
    st.one_of(st.sampled_from(_EDGES), st.integers(-300, 3000), st.integers(0, (1 << 64) - 1)),
)
quick = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def reading(data: bytes) -> tuple[Batch, pa.RecordBatch] | TidemarkError:
    try:
        batch = check_batch(data)
        return batch, with_offsets(batch)
    except TidemarkError as refusal:
        return refusal


def refused_or_read_back(data: bytes) -> None:
    outcome = reading(data)
    if isinstance(outcome, TidemarkError):
        assert outcome.code in REFUSALS
        assert outcome.message
        return
    batch, rows = outcome
    rows.validate(full=True)
    offsets = rows_of(batch, rows)[4]
    assert isinstance(offsets, list)
    assert len(offsets) == batch.envelope.record_count
    assert offsets == sorted(set(offsets))
    assert all(batch.envelope.base_offset <= offset < batch.envelope.next_offset for offset in offsets)


def overwritten(data: bytes, lies: list[tuple[int, int, int]], low: int, high: int) -> bytes:
    for where, width, value in lies:
        at = low + where % max(high - low - width, 1)
        data = patched(data, at - at % width, (value % (1 << (8 * width))).to_bytes(width, "little"))
    return data


@quick
@given(batches, st.integers(min_value=0), st.integers(0, 7))
def test_a_flipped_bit_is_always_refused(data: bytes, where: int, bit: int) -> None:
    damaged = bytearray(data)
    damaged[where % len(data)] ^= 1 << bit
    with pytest.raises(TidemarkError) as refusal:
        check_batch(bytes(damaged))
    assert refusal.value.code in REFUSALS


@quick
@given(batches, st.lists(words, min_size=1, max_size=4))
def test_wrong_words_in_the_arrow_metadata_crash_nothing(data: bytes, lies: list[tuple[int, int, int]]) -> None:
    refused_or_read_back(resealed(overwritten(data, lies, ENVELOPE_BYTES, body_start(data))))


@quick
@given(batches, st.lists(words, min_size=1, max_size=4))
def test_wrong_words_in_the_arrow_body_crash_nothing(data: bytes, lies: list[tuple[int, int, int]]) -> None:
    refused_or_read_back(resealed(overwritten(data, lies, body_start(data), len(data))))


@quick
@given(batches, st.lists(words, min_size=1, max_size=2))
def test_wrong_words_in_the_envelope_crash_nothing(data: bytes, lies: list[tuple[int, int, int]]) -> None:
    damaged = overwritten(data, lies, 24, ENVELOPE_BYTES)
    refused_or_read_back(resealed(damaged))
    refused_or_read_back(overwritten(data, lies, 0, ENVELOPE_BYTES))


@quick
@given(batches, st.integers(min_value=0))
def test_a_truncated_payload_crashes_nothing(data: bytes, where: int) -> None:
    payload = data[ENVELOPE_BYTES:]
    kept_bytes = where % len(payload) // 8 * 8
    refused_or_read_back(with_payload(data, payload[:kept_bytes]))
    refused_or_read_back(data[: where % len(data)])


@quick
@given(batches, batches, st.integers(min_value=0), st.integers(min_value=0))
def test_a_payload_spliced_of_two_crashes_nothing(one: bytes, other: bytes, where: int, whence: int) -> None:
    head = ENVELOPE_BYTES + where % (len(one) - ENVELOPE_BYTES)
    tail = ENVELOPE_BYTES + whence % (len(other) - ENVELOPE_BYTES)
    spliced = one[ENVELOPE_BYTES : head // 8 * 8] + other[tail // 8 * 8 :]
    refused_or_read_back(with_payload(one, spliced))


@quick
@given(st.binary(max_size=300))
@example(b"")
@example(bytes(64))
@example(b"\xff" * 128)
def test_random_bytes_are_no_batches(data: bytes) -> None:
    refused_or_read_back(data)
    if data:
        with pytest.raises(TidemarkError):
            check_batches(data)


@quick
@given(st.binary(max_size=300))
def test_a_random_payload_is_refused(payload: bytes) -> None:
    payload = payload[: len(payload) // 8 * 8]
    with raises_code(ErrorCode.INVALID_PAYLOAD):
        check_batch(with_payload(sample(), payload))


columns = st.integers(1, 17).flatmap(  # null bitmaps of one, two and three bytes
    lambda count: st.tuples(
        st.lists(st.none() | st.binary(max_size=30), min_size=count, max_size=count),
        st.lists(st.none() | st.binary(max_size=300), min_size=count, max_size=count),
        st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=count, max_size=count),
        st.none()
        | st.lists(
            st.none() | st.lists(st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=9)), max_size=3),
            min_size=count,
            max_size=count,
        ),
    )
)


@quick
@given(columns, st.sampled_from(Codec))
def test_any_records_read_back_equal(
    parts: tuple[
        list[bytes | None],
        list[bytes | None],
        list[int],
        list[list[tuple[str, bytes | None]] | None] | None,
    ],
    codec: Codec,
) -> None:
    keys, values, timestamps_us, headers = parts
    batch = check_batch(build_batch(from_columns(keys, values, timestamps_us, headers), codec=codec))
    assert batch.envelope.max_timestamp_us == max(timestamps_us)
    assert rows_of(batch, read_batch(batch)) == [keys, values, timestamps_us, headers or [None] * len(keys)]
