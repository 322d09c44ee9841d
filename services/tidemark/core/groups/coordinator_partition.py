# SPDX-License-Identifier: Apache-2.0
"""Maps a group to its partition of `__consumer_offsets`."""

from __future__ import annotations

from typing import Final

import murmurhash2

OFFSETS_TOPIC: Final = "__consumer_offsets"
_SEED: Final = 0x9747B28C
_POSITIVE: Final = 0x7FFFFFFF


def partition_of_group(group_id: str, partition_count: int) -> int:
    """The partition of a group, by murmur2 of its id; `partition_count` > 0."""
    return int(murmurhash2.murmurhash2(group_id.encode("utf-8", "surrogatepass"), _SEED) & _POSITIVE) % partition_count
