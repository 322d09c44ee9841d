"""Which partition a record goes to: murmur2 of its key, so that a key lands where Kafka's clients would put it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import murmurhash2
import pyarrow as pa

Partitioner = Callable[[str, bytes | None, bytes | None, int], int]
"""(topic, key, value, number of partitions) to a partition, from 0; the same for the same arguments."""

_SEED: Final = 0x9747B28C
_POSITIVE: Final = 0x7FFFFFFF


def partition_of(key: bytes, partitions: int) -> int:
    """Partition of a key, from 0; `partitions` > 0."""
    return int(murmurhash2.murmurhash2(key, _SEED) & _POSITIVE) % partitions


def partitions_of(keys: pa.Array[Any], partitions: int) -> pa.Array[Any]:
    """Partition of each key of a binary column, shape (rows,), int32; a null key gives null.

    Each distinct key is hashed once.
    """
    encoded = keys.dictionary_encode()
    keys_of: list[Any] = encoded.dictionary.to_pylist()
    hashed = [partition_of(key, partitions) for key in keys_of]
    return pa.array(hashed, pa.int32()).take(encoded.indices)
