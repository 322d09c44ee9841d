# SPDX-License-Identifier: Apache-2.0
"""The key bytes of typed rows: golden ones, the same for a row and a column, and different for different keys."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark.record.typed.key_bytes import key_bytes, key_encoder

NOON = datetime(2023, 11, 14, 12, 0, 0, 5, tzinfo=UTC)
GOLDEN: list[tuple[list[tuple[Any, Any]], str]] = [
    ([(pa.string(), "UA")], "5541"),
    ([(pa.string(), "é")], "c3a9"),
    ([(pa.binary(), b"\x00\xff")], "00ff"),
    ([(pa.bool_(), True)], "01"),
    ([(pa.int8(), -2)], "fe"),
    ([(pa.int16(), 258)], "0102"),
    ([(pa.int32(), 1)], "00000001"),
    ([(pa.int64(), -1)], "ffffffffffffffff"),
    ([(pa.date32(), date(1970, 1, 2))], "00000001"),
    ([(pa.timestamp("us", "UTC"), NOON)], "00060a1b86aad005"),
    ([(pa.decimal128(10, 2), Decimal("1.50"))], "00000000000000000000000000000096"),
    ([(pa.decimal128(10, 2), Decimal("-1.5"))], "ffffffffffffffffffffffffffffff6a"),
    ([(pa.string(), "UA"), (pa.int32(), 7)], "00000002554100000007"),
    ([(pa.int32(), 7), (pa.string(), "UA")], "000000075541"),
    ([(pa.string(), ""), (pa.binary(), b"")], "00000000"),
]
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    pa.string(): st.text(max_size=6),
    pa.binary(): st.binary(max_size=6),
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(UTC)),
    pa.decimal128(38, 3): st.decimals(-(10**20), 10**20, places=3),
}


def rows_of(kinds: list[Any], keys: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [pa.array([key[n] for key in keys], kind) for n, kind in enumerate(kinds)]
    return pa.RecordBatch.from_arrays(columns, [f"k{n}" for n in range(len(kinds))])


def names_of(kinds: list[Any]) -> list[str]:
    return [f"k{n}" for n in range(len(kinds))]


@pytest.mark.parametrize(("key", "wanted"), GOLDEN, ids=[wanted for _, wanted in GOLDEN])
def test_the_golden_keys(key: list[tuple[Any, Any]], wanted: str) -> None:
    """A change here moves keys to other partitions, and breaks the cleaning of compacted topics."""
    kinds, values = [kind for kind, _ in key], tuple(value for _, value in key)
    found = key_bytes(rows_of(kinds, [values]), names_of(kinds))
    assert found is not None
    assert [one.hex() for one in found.to_pylist()] == [wanted]
    assert key_encoder(kinds)(values).hex() == wanted


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_rows_and_columns_have_one_encoding_that_tells_keys_apart(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3))
    keys = data.draw(st.lists(st.tuples(*(VALUES[kind] for kind in kinds)), min_size=1, max_size=6))
    rows = rows_of(kinds, keys)
    found = key_bytes(rows, names_of(kinds))
    assert found is not None
    found.validate(full=True)
    encode = key_encoder(kinds)
    assert found.to_pylist() == [encode(key) for key in keys]
    assert len(set(found.to_pylist())) == len(set(keys))
    tail = key_bytes(rows.slice(1), names_of(kinds))
    assert tail is not None
    assert tail.to_pylist() == found.to_pylist()[1:]


def test_dictionaries_have_the_bytes_of_their_values() -> None:
    plain = pa.RecordBatch.from_pydict({"k": ["UA", "AA", "UA"]})
    encoded = pa.RecordBatch.from_arrays([plain.column("k").dictionary_encode()], ["k"])
    assert key_bytes(encoded, ["k"]) == key_bytes(plain, ["k"])


def test_a_schema_without_key_columns_gives_no_key() -> None:
    assert key_bytes(pa.RecordBatch.from_pydict({"k": ["UA"]}), []) is None
