# SPDX-License-Identifier: Apache-2.0
"""Plans the offset ranges of the tasks of a batch read. Pure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tidemark.model import NO_EPOCH

from tidemark_spark.filters import EVERYTHING, Narrowing
from tidemark_spark.options import ReadOptions
from tidemark_spark.places import EARLIEST, LATEST, Place

_log = logging.getLogger("tidemark.spark")

SMALL_OFFSETS: Final = 1000
"""Largest number of offsets of a task with several ranges."""
TASKS_MIN: Final = 32
"""Without minPartitions, a read of more ranges has at least this number of tasks, to occupy the cores of a cluster."""


@dataclass(frozen=True, slots=True)
class PartitionBounds:
    """Offsets of a partition at the time of planning: `start` inclusive, `end` (the high watermark) exclusive.

    `epoch` is that of the leader that stated the end; -1: unknown.
    """

    start: int
    end: int
    epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of one partition for one task: `start` inclusive, `end` exclusive."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


Bounds = Mapping[str, Mapping[int, PartitionBounds]]
ByTime = Mapping[tuple[str, int, int], int]
"""First offset at or after a time, by (topic, partition, milliseconds since 1970); -1: there is no such record."""


def times_of(options: ReadOptions, bounds: Bounds, narrowing: Narrowing = EVERYTHING) -> set[tuple[str, int, int]]:
    """Lookups that `plan_ranges` needs: (topic, partition, milliseconds since 1970)."""
    wanted = set()
    for topic, held in bounds.items():
        for partition in held:
            for place in (options.starting, options.ending):
                time_ms = place.timestamp_of(topic, partition)
                if time_ms is not None:
                    wanted.add((topic, partition, time_ms))
            if narrowing.timestamp_ms is not None:
                wanted.add((topic, partition, narrowing.timestamp_ms))
    return wanted


def plan_ranges(
    options: ReadOptions, bounds: Bounds, by_time: ByTime | None = None, narrowing: Narrowing = EVERYTHING
) -> list[OffsetRange]:
    """Non-empty ranges to read; at least `min_partitions`, if there are enough offsets.

    Args:
        options: options of the read.
        bounds: bounds of every partition to read.
        by_time: results of the lookups of `times_of`.
        narrowing: bounds by filters.

    Raises:
        ValueError: for a topic or partition that does not exist, or an offset outside of the partition's bounds.
    """
    ranges = []
    for place in (options.starting, options.ending):
        check_named(place, bounds)
    for topic, held in bounds.items():
        wanted = options.topics.get(topic)
        for partition in sorted(held if wanted is None else wanted):
            part = _range(options, topic, partition, held[partition], by_time or {})
            ranges.append(_narrowed(part, narrowing, by_time or {}))
    return split([part for part in ranges if part.end > part.start], options)


def resolve(
    place: Place, topic: str, partition: int, held: PartitionBounds, by_time: ByTime, *, strict: bool = True
) -> int:
    """The start or end offset of a read in one partition.

    Args:
        place: start or end, from the options.
        topic: topic name.
        partition: partition index.
        held: bounds of the partition.
        by_time: see `plan_ranges`.
        strict: whether an offset outside of the bounds is an error; otherwise the nearest offset within the bounds is
            used.

    Raises:
        ValueError: names the option and the partition.
    """
    time_ms = place.timestamp_of(topic, partition)
    if time_ms is not None:
        found = by_time[topic, partition, time_ms]
        if found >= 0:
            return found
        if place.young_is_latest:
            return held.end
        raise ValueError(
            f"{place.name} names time {time_ms} ms of {topic}-{partition}, where all records are older; "
            "startingOffsetsByTimestampStrategy=latest starts at the end"
        )
    offset = place.offset_of(topic, partition)
    if offset in (EARLIEST, LATEST):
        return held.start if offset == EARLIEST else held.end
    if held.start <= offset <= held.end:
        return offset
    if strict:
        raise ValueError(
            f"{place.name} names offset {offset} of {topic}-{partition}, which has {held.start} to {held.end}"
        )
    nearest = min(max(offset, held.start), held.end)
    _log.warning(
        "%s names offset %d of %s-%d: not available, using %d",
        place.name,
        offset,
        topic,
        partition,
        nearest,
    )
    return nearest


def check_named(place: Place, held: Mapping[str, Collection[int]]) -> None:
    """Check that the topics and partitions that a place names exist; raises ValueError.

    Args:
        place: start or end, from the options.
        held: partitions of each topic of the read.
    """
    for topic, partitions in place.named().items():
        if topic not in held:
            raise ValueError(f"{place.name} names topic {topic}, which does not exist")
        check_partitions(place.name, topic, partitions, held[topic])


def check_partitions(name: str, topic: str, partitions: Collection[int], held: Collection[int]) -> None:
    """Check that the partitions that an option names exist; raises ValueError."""
    unknown = sorted(set(partitions) - set(held))
    if unknown:
        raise ValueError(f"{name} names partitions of {topic} that do not exist: {unknown}; it has {len(held)}")


def split(ranges: Sequence[OffsetRange], options: ReadOptions) -> list[OffsetRange]:
    """Split each range by its share of all offsets, rounded up, and below the bound of a task."""
    total = sum(part.end - part.start for part in ranges)
    least, most = options.min_partitions or 1, options.max_records_per_partition
    pieces = []
    for part in ranges:
        length = part.end - part.start
        count = 1 if len(ranges) >= least else min(length, -(-least * length // total))
        if most is not None:
            count = max(count, -(-length // most))
        cuts = [part.start + length * index // count for index in range(count + 1)]
        pieces += [OffsetRange(part.topic, part.partition, start, end) for start, end in pairwise(cuts)]
    return pieces


def pack(
    ranges: Sequence[OffsetRange], options: ReadOptions, leader_of: Callable[[OffsetRange], int]
) -> list[list[OffsetRange]]:
    """Divide ranges among tasks: small ranges of one leader share a task, without fewer tasks than `min_partitions`.

    Spark starts tasks in this order, so the largest come first: other cores then wait less for the last task. Tasks of
    about the same size stay in the order of their ranges.

    Args:
        ranges: non-empty ranges.
        options: options of the read.
        leader_of: returns the broker id of the leader.
    """
    most = min(SMALL_OFFSETS, options.max_records_per_partition or SMALL_OFFSETS)
    least = TASKS_MIN if options.min_partitions is None else options.min_partitions
    small = sum(part.end - part.start < most for part in ranges)
    count_max = small // max(1, least - (len(ranges) - small))
    tasks: list[list[OffsetRange]] = []
    open_tasks: dict[int, tuple[list[OffsetRange], int]] = {}
    for part in ranges:
        leader, length = leader_of(part), part.end - part.start
        task, held = open_tasks.get(leader, ([], most))
        if held + length > most or len(task) >= count_max:
            task, held = [], 0
            tasks.append(task)
        task.append(part)
        if length < most:
            open_tasks[leader] = task, held + length
    return sorted(tasks, key=_size_class, reverse=True)


def _size_class(task: Sequence[OffsetRange]) -> int:
    """Logarithm of the number of offsets, to base 2."""
    return sum(part.end - part.start for part in task).bit_length()


def _range(options: ReadOptions, topic: str, partition: int, held: PartitionBounds, by_time: ByTime) -> OffsetRange:
    strict = options.fail_on_data_loss
    # A lookup by time follows that of the bounds, and may find a record that was appended in between.
    start = min(held.end, resolve(options.starting, topic, partition, held, by_time, strict=strict))
    end = min(held.end, resolve(options.ending, topic, partition, held, by_time, strict=strict))
    if end < start:
        raise ValueError(f"{topic}-{partition}: {options.ending.name} {end} is below {options.starting.name} {start}")
    return OffsetRange(topic, partition, start, end)


def _narrowed(part: OffsetRange, narrowing: Narrowing, by_time: ByTime) -> OffsetRange:
    start, end = narrowing.offsets(part.topic, part.partition, part.start, part.end)
    if narrowing.timestamp_ms is not None:
        first = by_time[part.topic, part.partition, narrowing.timestamp_ms]
        start = end if first < 0 else max(start, first)
    return OffsetRange(part.topic, part.partition, start, end)
