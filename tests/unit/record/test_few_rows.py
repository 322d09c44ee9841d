# SPDX-License-Identifier: Apache-2.0
"""A batch of a few records, written without Arrow, is the batch that Arrow writes."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark.client.producing.batch_format import BYTES, Sealing
from tidemark.client.producing.batching import PendingBatch
from tidemark.model import TidemarkError, TopicPartition
from tidemark.record.envelope import Batch, Codec, parse_envelope
from tidemark.record.few_rows import FEW, encode_few
from tidemark.record.payload import build_batch, build_few, from_columns, read_batch

_BYTES = st.none() | st.binary(max_size=20)
_TIMES_US = st.integers(-(2**63), 2**63 - 1)
_ROWS = st.lists(st.tuples(_BYTES, _BYTES, _TIMES_US), min_size=1, max_size=FEW)
_SEALING = Sealing(producer_id=7, producer_epoch=2, base_sequence=40, pending=True)


@given(_ROWS, st.booleans())
def test_few_rows_are_the_bytes_that_arrow_writes(rows: list[tuple[Any, Any, int]], keyed: bool) -> None:
    columns = [list(column) for column in zip(*rows, strict=True)]
    keys, values, times_us = columns[0] if keyed else None, columns[1], columns[2]
    few = build_few(keys, values, times_us, **_SEALING)
    assert few == build_batch(from_columns(keys, values, times_us), **_SEALING)
    assert read_batch(Batch(parse_envelope(few), few)).column(1).to_pylist() == values


@pytest.mark.parametrize(
    ("keys", "values", "times_us", "error"),
    [
        (None, ["text"], [0], TypeError),
        ([1], [b""], [0], TypeError),
        (None, [b""], [2**63], struct.error),
        (None, [b""], [None], struct.error),
        (None, [b"", b""], [0], struct.error),
        ([b""], [b"", b""], [0, 0], struct.error),
    ],
)
def test_few_rows_refuse_other_values_and_lengths(
    keys: Any, values: Any, times_us: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        encode_few(keys, values, times_us)


@pytest.mark.parametrize("count", [1, FEW, FEW + 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("headers", [None, [("name", b"value")]])
def test_a_pending_batch_of_any_builder_has_its_records(count: int, codec: Codec, headers: Any) -> None:
    batch = PendingBatch(TopicPartition("t", 0), opened_s=0, deadline_s=1)
    for number in range(count):
        batch.add(None, b"%d" % number, number, headers)
    batch.build(codec, _SEALING)
    assert batch.data is not None
    envelope = parse_envelope(batch.data)
    rows = read_batch(Batch(envelope, batch.data))
    assert rows.column(1).to_pylist() == [b"%d" % number for number in range(count)]
    assert rows.column(3).to_pylist() == [headers] * count
    assert (envelope.codec, envelope.base_sequence, envelope.max_timestamp_us) == (codec, 40, count - 1)


def test_a_pending_batch_of_a_wrong_value_is_refused_with_a_sentence() -> None:
    batch = PendingBatch(TopicPartition("t", 0), opened_s=0, deadline_s=1)
    batch.add(None, 7, 0, None)
    with pytest.raises(TidemarkError, match="INVALID_PAYLOAD: the columns make no records"):
        batch.build(Codec.NONE, _SEALING)
    assert BYTES.build_few([None], [b""], [2**63], None, codec=Codec.NONE, **_SEALING) is None
