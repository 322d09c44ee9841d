# SPDX-License-Identifier: Apache-2.0
"""Findings of an audit: ranges of offsets with a kind and a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame

_SHOWN: Final = 1000


@dataclass(frozen=True)
class Finding:
    """A defect of a topic or archive.

    Attributes:
        kind: gap, duplicate, mismatch, or unread (no answer from a replica).
        first, last: offsets, both inclusive; -1 for a finding without offsets.
        records: number of these offsets.
    """

    kind: str
    topic: str
    partition: int
    first: int
    last: int
    records: int
    sentence: str


NOT_IN_TOPIC: Final = "not in topic"
NOT_IN_TOPIC_BUT_ARCHIVED: Final = "not in topic but archived"
NOT_ARCHIVED: Final = "not archived"
TWICE: Final = "twice"
DIFFERS: Final = "differs"
LOST: Final = "lost"
_SENTENCES: Final = {
    NOT_IN_TOPIC: ("gap", "not in the topic"),
    NOT_IN_TOPIC_BUT_ARCHIVED: ("mismatch", "in the archive and not in the topic"),
    NOT_ARCHIVED: ("gap", "in the topic and not in the archive"),
    TWICE: ("duplicate", "in the archive more than once"),
    DIFFERS: ("mismatch", "different in the topic and in the archive"),
    LOST: ("gap", "not in the archive, and deleted from the topic"),
}
"""Kind of finding, and the sentence, for each problem."""


def findings_of(parts: list[DataFrame]) -> list[Finding]:
    """The first 1,000 ranges, by partition and offset."""
    if not parts:
        return []
    rows = (
        reduce(DataFrame.unionByName, parts).orderBy("topic", "partition", "first", "problem").limit(_SHOWN).collect()
    )
    found = []
    for row in rows:
        kind, sentence = _SENTENCES[row["problem"]]
        one = row["records"] == 1
        where = f"offset {row['first']} is" if one else f"offsets {row['first']} to {row['last']} are each"
        place = row["topic"], row["partition"], row["first"], row["last"], row["records"]
        found.append(Finding(kind, *place, f"{where} {sentence}"))
    return found
