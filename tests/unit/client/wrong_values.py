# SPDX-License-Identifier: Apache-2.0
"""Values of wrong types and of wrong ranges, for any argument."""

from __future__ import annotations

import math
from typing import Final

from hypothesis import strategies as st
from tidemark.model import ErrorCode, TidemarkError, TopicPartition

_PLAIN: Final = (
    *(None, True, 0, 1, -1, 1 << 31, 1 << 63, 1 << 70, 0.5, 1.0, math.nan, math.inf),
    *("", "x", "\ud800", "a b", "x" * 300, b"", b"x", bytearray(b"x"), memoryview(b"x")),
    *(object(), len, int, ..., 1j, range(2), TopicPartition("x", -1)),
)
_HASHABLE: Final = tuple(one for one in _PLAIN if not isinstance(one, bytearray | memoryview))
WRONG: Final = st.one_of(
    st.sampled_from(_PLAIN),
    st.lists(st.sampled_from(_PLAIN), max_size=2),
    st.lists(st.sampled_from(_PLAIN), max_size=2).map(tuple),
    st.lists(st.tuples(st.sampled_from(_PLAIN), st.sampled_from(_PLAIN)), min_size=1, max_size=2),
    st.dictionaries(st.sampled_from(_HASHABLE), st.sampled_from(_PLAIN), max_size=2),
)


def is_typed(error: Exception) -> bool:
    """Whether the error is one that an application may expect of a wrong argument."""
    if isinstance(error, TidemarkError):
        return error.code is not ErrorCode.INTERNAL
    return isinstance(error, TypeError | ValueError) and "out of range" not in str(error)
