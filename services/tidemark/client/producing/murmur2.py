# SPDX-License-Identifier: Apache-2.0
"""murmur2 of a column of keys, as Kafka's clients compute it; needs numpy.

Makes one pass for each four bytes of the longest key, over the rows that are long enough, and no Python object for a
key.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

_SEED: Final = 0x9747B28C

_M: Final = np.uint32(0x5BD1E995)
_WORD_BYTES: Final = 4


def hashes_of(keys: pa.Array[Any]) -> Any:
    """Return the hash of each key of a binary column, shape (rows,), uint32; undefined for null keys."""
    buffers: list[Any] = keys.buffers()
    _, ends, content = buffers
    offsets = np.frombuffer(ends, np.int32, len(keys) + 1, keys.offset * 4).astype(np.int64)
    data = np.frombuffer(content or b"", np.uint8)
    starts, lengths = offsets[:-1], np.diff(offsets)
    hashed = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    words = lengths // _WORD_BYTES
    # A view of the four-byte words that begin at each byte: they overlap and are not aligned.
    every = np.ndarray((max(0, len(data) - 3),), np.dtype("<u4"), data, strides=(1,))
    rows: Any = np.arange(len(keys))
    for word in range(int(words.max(initial=0))):
        rows = rows[words[rows] > word]
        mixed = every[starts[rows] + _WORD_BYTES * word] * _M
        mixed ^= mixed >> 24
        hashed[rows] = hashed[rows] * _M ^ mixed * _M
    rest = lengths % _WORD_BYTES
    tails = starts + words * _WORD_BYTES
    for byte in range(_WORD_BYTES - 1):
        rows = np.flatnonzero(rest > byte)
        hashed[rows] ^= data[tails[rows] + byte].astype(np.uint32) << (8 * byte)
    hashed[rest > 0] *= _M
    hashed ^= hashed >> 13
    hashed *= _M
    hashed ^= hashed >> 15
    return hashed
