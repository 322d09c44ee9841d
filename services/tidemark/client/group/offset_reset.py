# SPDX-License-Identifier: Apache-2.0
"""The offsets that a reset of a group sets: a start in each partition, limited to the partition's log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidemark.client.consuming.offset_lookup import OffsetLookup, Start, check_start
from tidemark.client.metadata.cluster import Cluster
from tidemark.client.outputs.record_format import Start as ParsedStart
from tidemark.client.records import Timestamp
from tidemark.model import TidemarkError, TopicPartition, unknown_partition


class OffsetChange(NamedTuple):
    """A committed offset before and after a reset.

    Attributes:
        partition: the partition.
        before: offset of the next record to read, before the reset; -1 for none.
        offset: offset of the next record to read, after the reset.
        topic_id: id of the topic that the offset is of; "": of any topic with this name.
        incarnation: incarnation of the partition that the offset is of; "": of any.
    """

    partition: TopicPartition
    before: int
    offset: int
    topic_id: str = ""
    incarnation: str = ""


def start_of(parsed: ParsedStart) -> Start:
    """The start that a text such as `offset:42` names."""
    if parsed.timestamp_us is not None:
        return Timestamp(parsed.timestamp_us)
    return parsed.position if parsed.offset is None else parsed.offset


def refusal_of(refused: Mapping[TopicPartition, TidemarkError], count: int) -> TidemarkError | None:
    """The error of a reset of `count` offsets, of which these were refused; None: all are set."""
    if not refused:
        return None
    where = min(refused)
    error, done = refused[where], count - len(refused)
    verb = "is" if done == 1 else "are"
    sentence = f"{done} of {count} offsets {verb} set, the others are not" if done else "nothing was changed"
    return TidemarkError(error.code, f"{sentence}: {where}: {error.message}", error.metadata)


class ResetOffsets:
    """Looks up the offsets that a reset sets.

    Args:
        cluster: metadata and channels.
        timeout_s: timeout of each lookup.
    """

    def __init__(self, cluster: Cluster, timeout_s: float) -> None:
        self._cluster = cluster
        self._timeout_s = timeout_s
        self._offsets = OffsetLookup(cluster, timeout_s)

    async def find(
        self, topics: Iterable[str], partitions: Iterable[TopicPartition], start: Start
    ) -> dict[TopicPartition, int]:
        """The offset of `start` in each of these partitions, at least the log start and at most the high watermark.

        Args:
            topics: all of their partitions.
            partitions: more partitions.
            start: "earliest", "latest", an offset, or a Timestamp.

        Raises:
            TidemarkError: INVALID_REQUEST, UNKNOWN_TOPIC, UNKNOWN_PARTITION, REQUEST_TIMED_OUT.
        """
        check_start(start)
        wanted = set(partitions)
        for where in wanted:  # a partition may be new
            count = await self._cluster.partition_count(where.topic, timeout_s=self._timeout_s, beyond=where.partition)
            if where.partition >= count:
                raise unknown_partition(*where, count)
        for topic in topics:
            view = await self._cluster.topic(topic, timeout_s=self._timeout_s)
            wanted |= {TopicPartition(topic, index) for index in range(view.count)}
        named = sorted(wanted)
        found = await self._offsets.find_each(named, start)
        if isinstance(start, str):
            return found
        first, end = await self._offsets.find_each(named, "earliest"), await self._offsets.find_each(named, "latest")
        return {where: max(first[where], min(end[where], found[where])) for where in named}
