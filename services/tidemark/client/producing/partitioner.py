# SPDX-License-Identifier: Apache-2.0
"""The partition of a record: murmur2 of its key, as Kafka's clients compute it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import murmurhash2
import pyarrow as pa
import pyarrow.compute as pc

Partitioner = Callable[[str, bytes | None, bytes | None, int], int]
"""Function of topic, key, value and number of partitions that returns a partition, from 0; deterministic."""

_SEED: Final = 0x9747B28C
_BULK_ROWS: Final = 512
"""Smallest column that is hashed as a whole, which imports numpy."""
_BULK_KEY_BYTES: Final = 64
"""Largest mean key length, and a quarter of the largest key length, of a column that is hashed as a whole."""
_POSITIVE: Final = 0x7FFFFFFF


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key, from 0; `partitions` > 0."""
    return hash_of(key) % partitions


def hash_of(key: bytes) -> int:
    """The hash of a key, not negative. The key's partition is the hash modulo the number of partitions."""
    return int(murmurhash2.murmurhash2(key, _SEED) & _POSITIVE)


def partitions_of(keys: pa.Array[Any], partitions: int) -> pa.Array[Any]:
    """Return the partition of each key of a binary column, shape (rows,), int32; null for a null key.

    With numpy, many short keys are hashed as one column; otherwise each distinct key is hashed once.
    """
    hashed = _hashed_as_a_column(keys, partitions)
    if hashed is not None:
        return hashed
    encoded = keys.dictionary_encode()
    keys_of: list[Any] = encoded.dictionary.to_pylist()
    return pa.array([partition_of(key, partitions) for key in keys_of], pa.int32()).take(encoded.indices)


def _hashed_as_a_column(keys: pa.Array[Any], partitions: int) -> pa.Array[Any] | None:
    if len(keys) < _BULK_ROWS:
        return None
    column: Any = keys
    lengths = pc.binary_length(column)
    content_bytes = pc.sum(lengths).as_py() or 0
    longest_bytes = pc.max(lengths).as_py() or 0
    if content_bytes > len(keys) * _BULK_KEY_BYTES or longest_bytes > 4 * _BULK_KEY_BYTES:
        return None
    try:
        from tidemark.client.producing.murmur2 import hashes_of
    except ImportError:  # numpy is optional
        return None
    chosen = (hashes_of(keys) & _POSITIVE) % partitions
    nulls = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    return pa.array(chosen.astype("int32"), pa.int32(), mask=nulls)
