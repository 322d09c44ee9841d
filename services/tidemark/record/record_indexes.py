# SPDX-License-Identifier: Apache-2.0
"""Indexes of records in a batch as text, such as "0-3,7": a refusal names the records that caused it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

REFUSED_RECORDS: Final = "records"
"""Key of the indexes in the metadata of an error; the first record of the batch has index 0."""
RANGES_MAX: Final = 1000
"""Largest number of ranges in one error; the next error names further records."""
_RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")

Ranges = Sequence[tuple[int, int]]
"""First and last index (both inclusive) of each range, in ascending order."""


def ranges_of(marked: Iterable[bool | None]) -> Ranges:
    """The ranges of the records that are marked."""
    ranges: list[tuple[int, int]] = []
    for index, mark in enumerate(marked):
        if mark and ranges and ranges[-1][1] == index - 1:
            ranges[-1] = (ranges[-1][0], index)
        elif mark:
            ranges.append((index, index))
    return ranges


def ranges_text(ranges: Ranges) -> str:
    """The text of the first `RANGES_MAX` ranges."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges[:RANGES_MAX])


def parse_ranges(text: str, count: int) -> Ranges:
    """The ranges in the text of an error about a batch of `count` records; empty if the text has no ranges."""
    ranges: list[tuple[int, int]] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            return ()
        first, last = int(match[1]), int(match[2] or match[1])
        if not (ranges[-1][1] if ranges else -1) < first <= last < count:
            return ()
        ranges.append((first, last))
    return ranges
