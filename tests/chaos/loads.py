# SPDX-License-Identifier: Apache-2.0
"""The topics of a round: their retention, and their senders and readers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_SAFE = {"min.insync.replicas": "2"}


@dataclass(frozen=True, slots=True)
class Load:
    """One topic.

    Attributes:
        keys: number of keys of its records, 0 for none.
        shrinks: records at its start are deleted.
        burst: number of records that each sender sends at a time.
        grows_to: partitions are added, up to this number; 0: none.
        patience_ms: time after which its senders stop waiting for a record; 0: never.
    """

    topic: str
    partitions: int
    senders: tuple[str, ...]
    readers: tuple[str, ...]
    keys: int = 0
    shrinks: bool = False
    burst: int = 40
    grows_to: int = 0
    patience_ms: int = 0
    configs: Mapping[str, str] = field(default_factory=dict)

    @property
    def topic_configs(self) -> dict[str, str]:
        return {**_SAFE, **self.configs}


PLAIN = Load("round", 6, ("a", "b"), ("x", "y"), configs={"segment.bytes": "65536"})
COMPACTED = Load(
    "compacted",
    2,
    ("c",),
    ("z",),
    keys=60,
    burst=15,
    configs={"cleanup.policy": "compact", "segment.bytes": "16384", "min.cleanable.dirty.ratio": "0.1"},
)
SHRINKING = Load(
    "shrinking",
    2,
    ("d",),
    ("w",),
    shrinks=True,
    burst=15,
    configs={"retention.bytes": "60000", "segment.bytes": "8192", "file.delete.delay.ms": "100"},
)
SHARED = Load("shared", 4, ("e",), (), burst=6, grows_to=8)
"""A topic that a consumer group reads."""
HASTY = Load("hasty", 2, ("h",), ("v",), burst=6, patience_ms=1500)
LOADS = (PLAIN, COMPACTED, SHRINKING, SHARED, HASTY)
WITH_TOKEN = ("b", "c", "h")
"""Senders that have a token in a secure round; the others have a certificate."""
