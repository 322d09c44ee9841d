# SPDX-License-Identifier: Apache-2.0
"""The partition of a key is the one that Kafka's clients choose."""

from __future__ import annotations

import random
import sys

import murmurhash2
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark.client.producing import partitioner
from tidemark.client.producing.partitioner import partition_of, partitions_of
from tidemark.client.producing.table import by_partition
from tidemark.record.schema import SCHEMA


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hash_matches_kafkas_test_vectors(key: bytes, expected: int) -> None:
    assert murmurhash2.murmurhash2(key, partitioner._SEED) == expected % (1 << 32)
    for partitions in (1, 3, 7, 1000):
        assert partition_of(key, partitions) == (expected & 0x7FFFFFFF) % partitions


@given(st.lists(st.none() | st.binary(max_size=12), max_size=50), st.integers(1, 20))
def test_column_is_partitioned_as_its_keys(keys: list[bytes | None], partitions: int) -> None:
    found = partitions_of(pa.array(keys, pa.binary()), partitions)
    assert found.type == pa.int32()
    assert found.to_pylist() == [None if key is None else partition_of(key, partitions) for key in keys]


def test_distinct_keys_are_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []

    def counting(key: bytes, partitions: int) -> int:
        hashed.append(key)
        return partition_of(key, partitions)

    monkeypatch.setattr(partitioner, "partition_of", counting)
    partitions_of(pa.array([b"a", b"b", b"a", None, b"b"] * 100, pa.binary()), 3)
    assert sorted(hashed) == [b"a", b"b"]


def many(rows: int = 2000) -> list[bytes | None]:
    """Make keys of every length up to 70 bytes, every tenth null."""
    chance = random.Random(7)
    return [None if row % 10 == 9 else chance.randbytes(row % 71) for row in range(rows)]


@pytest.mark.parametrize("first", [0, 3, 1001])
def test_bulk_hash_matches_single_hashes(first: int) -> None:
    keys = many()
    column = pa.array(keys, pa.binary()).slice(first)
    assert partitions_of(column, 7).to_pylist() == [
        None if key is None else partition_of(key, 7) for key in keys[first:]
    ]


def test_many_keys_are_hashed_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    column = pa.array(many(), pa.binary())
    expected = partitions_of(column, 7)
    monkeypatch.setitem(sys.modules, "tidemark.client.producing.murmur2", None)
    assert partitions_of(column, 7).equals(expected)


@pytest.mark.parametrize("keys", [[b"k" * 1000, *many()], [b"k" * 100] * 600, [b""] * 600, [None] * 599 + [b"k"]])
def test_long_and_empty_keys_match_single_hashes(keys: list[bytes | None]) -> None:
    found = partitions_of(pa.array(keys, pa.binary()), 7).to_pylist()
    assert found == [None if key is None else partition_of(key, 7) for key in keys]


def test_rows_of_a_partition_keep_their_order() -> None:
    keys, count = many(), 2000
    values = [b"%d" % row for row in range(count)]
    columns = [pa.array(keys, pa.binary()), pa.array(values, pa.binary()), pa.array([0] * count, SCHEMA.field(2).type)]
    rows = pa.RecordBatch.from_arrays([*columns, pa.nulls(count, SCHEMA.field(3).type)], schema=SCHEMA)
    found = {target: part.column(1).to_pylist() for target, part in by_partition(rows, 3)}
    targets = [None if key is None else partition_of(key, 3) for key in keys]
    assert found == {
        wanted: [value for value, target in zip(values, targets, strict=True) if target == wanted]
        for wanted in (0, 1, 2, None)
    }


def test_rows_with_and_without_keys_keep_their_order_in_a_single_partition() -> None:
    rows = pa.record_batch({"key": pa.array([None, b"a", None, b"b"], pa.binary()), "value": pa.array([1, 2, 3, 4])})
    ((target, part),) = by_partition(rows, 1)
    assert (target, part.column(1).to_pylist()) == (0, [1, 2, 3, 4])
