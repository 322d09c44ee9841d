"""Which offsets each Spark task reads. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tidemark_spark.options import EARLIEST, LATEST, ReadOptions


@dataclass(frozen=True, slots=True)
class PartitionBounds:
    """What a partition holds when the query is planned: `start` inclusive, `end` (the high watermark) exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of one partition for one task: `start` inclusive, `end` exclusive."""

    topic: str
    partition: int
    start: int
    end: int


def plan_ranges(options: ReadOptions, bounds: Mapping[str, Mapping[int, PartitionBounds]]) -> list[OffsetRange]:
    """The ranges to read, none empty, at least `min_partitions` of them where there are so many offsets.

    Args:
        options: what was asked for.
        bounds: of every partition of every topic asked for.

    Raises:
        ValueError: for a partition that does not exist, or offsets outside of what it holds.
    """
    ranges = []
    for topic, wanted in options.topics.items():
        held = bounds[topic]
        _check_partitions("assign", topic, wanted or (), held)
        _check_partitions("startingOffsets", topic, options.starting.get(topic, {}), held)
        _check_partitions("endingOffsets", topic, options.ending.get(topic, {}), held)
        for partition in sorted(held if wanted is None else wanted):
            ranges.append(_range(options, topic, partition, held[partition]))
    return _split([part for part in ranges if part.end > part.start], options.min_partitions)


def _range(options: ReadOptions, topic: str, partition: int, held: PartitionBounds) -> OffsetRange:
    start = options.starting.get(topic, {}).get(partition, EARLIEST)
    end = options.ending.get(topic, {}).get(partition, LATEST)
    start = held.start if start == EARLIEST else start
    end = held.end if end == LATEST else end
    for name, offset in (("startingOffsets", start), ("endingOffsets", end)):
        if not held.start <= offset <= held.end:
            raise ValueError(
                f"{name} asks for offset {offset} of {topic}-{partition}, which holds {held.start} to {held.end}"
            )
    if end < start:
        raise ValueError(f"{topic}-{partition}: endingOffsets {end} is below startingOffsets {start}")
    return OffsetRange(topic, partition, start, end)


def _check_partitions(
    name: str, topic: str, partitions: Mapping[int, int] | Sequence[int] | frozenset[int], held: Mapping[int, object]
) -> None:
    unknown = sorted(set(partitions) - set(held))
    if unknown:
        raise ValueError(f"{name} names partitions of {topic} that do not exist: {unknown}; it has {len(held)}")


def _split(ranges: Sequence[OffsetRange], least: int) -> list[OffsetRange]:
    """Each range in pieces by its share of all offsets, rounded up."""
    total = sum(part.end - part.start for part in ranges)
    pieces = []
    for part in ranges:
        length = part.end - part.start
        count = 1 if len(ranges) >= least else min(length, -(-least * length // total))
        cuts = [part.start + length * index // count for index in range(count + 1)]
        pieces += [OffsetRange(part.topic, part.partition, start, end) for start, end in pairwise(cuts)]
    return pieces
