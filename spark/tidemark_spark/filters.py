# SPDX-License-Identifier: Apache-2.0
"""Narrows a batch read by filters on topic, partition, offset or timestamp. Pure.

Spark applies every filter again, so a narrowing is correct if it excludes no row that passes the filters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Bounds of a read; rows outside of them pass no filter.

    Attributes:
        topics: names of topics; None: all.
        partitions: indexes of partitions; None: all.
        offset_min: lowest offset, inclusive.
        offset_end: end of the offsets, exclusive; None: no bound.
        timestamp_ms: milliseconds since 1970; records before the first record at or after this time do not pass.
            There is no upper bound, since a later record may have an earlier timestamp.
    """

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offset_min: int = 0
    offset_end: int | None = None
    timestamp_ms: int | None = None

    def offsets(self, topic: str, partition: int, start: int, end: int) -> tuple[int, int]:
        """The part of offsets [start, end) of a partition within the bounds."""
        out = (self.topics is not None and topic not in self.topics) or (
            self.partitions is not None and partition not in self.partitions
        )
        if out:
            return start, start
        return max(start, self.offset_min), end if self.offset_end is None else min(end, self.offset_end)


EVERYTHING = Narrowing()


@dataclass(frozen=True, slots=True)
class Comparison:
    """A condition for every row: column, one of "=", "<", "<=", ">", ">=", "in", and a value."""

    column: str
    operator: str
    value: Any


def narrow(comparisons: Iterable[Comparison]) -> Narrowing:
    """Bounds from all conditions; conditions that do not narrow the range are ignored."""
    found = EVERYTHING
    for one in comparisons:
        if one.column in ("topic", "partition"):
            found = _narrow_set(found, one)
        elif one.column == "offset" and type(one.value) is int:
            found = _narrow_offsets(found, one.operator, one.value)
        elif one.column == "timestamp" and isinstance(one.value, datetime) and one.operator in ("=", ">", ">="):
            at = one.value if one.value.tzinfo is not None else one.value.replace(tzinfo=UTC)
            ms = int(at.timestamp() * 1000) - 1  # never above the true value, despite rounding
            if ms > 0:  # earlier times set no bound
                found = replace(found, timestamp_ms=max(ms, found.timestamp_ms or 0))
    return found


def _narrow_set(found: Narrowing, one: Comparison) -> Narrowing:
    if one.operator not in ("=", "in"):
        return found
    values = frozenset(one.value if one.operator == "in" else (one.value,))
    if one.column == "topic":
        return replace(found, topics=values if found.topics is None else found.topics & values)
    return replace(found, partitions=values if found.partitions is None else found.partitions & values)


def _narrow_offsets(found: Narrowing, operator: str, value: int) -> Narrowing:
    least = {"=": value, ">=": value, ">": value + 1}.get(operator, found.offset_min)
    end = {"=": value + 1, "<=": value + 1, "<": value}.get(operator)
    if end is not None and found.offset_end is not None:
        end = min(end, found.offset_end)
    return replace(found, offset_min=max(found.offset_min, least), offset_end=found.offset_end if end is None else end)
