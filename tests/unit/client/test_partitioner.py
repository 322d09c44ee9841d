"""A key's partition is the one Kafka's clients choose."""

from __future__ import annotations

import murmurhash2
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark.client import partitioner
from tidemark.client.partitioner import partition_of, partitions_of


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
def test_the_hash_is_that_of_kafkas_own_test_vectors(key: bytes, expected: int) -> None:
    assert murmurhash2.murmurhash2(key, partitioner._SEED) == expected % (1 << 32)
    for partitions in (1, 3, 7, 1000):
        assert partition_of(key, partitions) == (expected & 0x7FFFFFFF) % partitions


@given(st.lists(st.none() | st.binary(max_size=12), max_size=50), st.integers(1, 20))
def test_a_column_goes_where_its_keys_go_one_by_one(keys: list[bytes | None], partitions: int) -> None:
    found = partitions_of(pa.array(keys, pa.binary()), partitions)
    assert found.type == pa.int32()
    assert found.to_pylist() == [None if key is None else partition_of(key, partitions) for key in keys]


def test_each_distinct_key_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []

    def counting(key: bytes, partitions: int) -> int:
        hashed.append(key)
        return partition_of(key, partitions)

    monkeypatch.setattr(partitioner, "partition_of", counting)
    partitions_of(pa.array([b"a", b"b", b"a", None, b"b"] * 100, pa.binary()), 3)
    assert sorted(hashed) == [b"a", b"b"]
