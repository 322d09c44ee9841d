# SPDX-License-Identifier: Apache-2.0
"""The topics in which coordinators store their state, and the partition of a key in them."""

from __future__ import annotations

from typing import Final

import murmurhash2

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
"""Topics to which only coordinators write."""

_SEED: Final = 0x9747B28C
_POSITIVE: Final = 0x7FFFFFFF


def partition_of(key: str, partition_count: int) -> int:
    """The partition of a group or transactional id, by murmur2 of the id; `partition_count` > 0."""
    return int(murmurhash2.murmurhash2(key.encode("utf-8", "surrogatepass"), _SEED) & _POSITIVE) % partition_count
