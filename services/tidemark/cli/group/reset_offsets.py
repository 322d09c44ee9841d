# SPDX-License-Identifier: Apache-2.0
"""Current and new offsets of `tidemark group reset-offsets`."""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.client import Consumer, Timestamp
from tidemark.client.outputs.record_format import Start
from tidemark.client.sync.groups import Groups
from tidemark.model import ErrorCode, TidemarkError, TopicPartition


def current_offsets(client: Groups, group: str) -> dict[TopicPartition, int]:
    """Committed offsets of the group; none for a group that does not exist."""
    try:
        (found,) = client.describe_groups([group])
    except TidemarkError as error:
        if error.code is ErrorCode.GROUP_NOT_FOUND:
            return {}
        raise
    return {one.partition: one.committed for one in found.partitions if one.committed >= 0}


def wanted_offsets(bootstrap: str, places: Sequence[tuple[str, int | None]], where: Start) -> dict[TopicPartition, int]:
    """The offset of `where` in each of these partitions (None: all of the topic), limited to its log.

    Raises:
        TidemarkError: UNKNOWN_TOPIC, UNKNOWN_PARTITION.
    """
    start: str | int | Timestamp = where.position or "earliest"
    if where.offset is not None:
        start = where.offset
    elif where.timestamp_us is not None:
        start = Timestamp(where.timestamp_us)
    found: dict[TopicPartition, int] = {}
    with Consumer(bootstrap) as consumer:
        for topic, index in places:
            indexes = None if index is None else [index]
            starts = {one: consumer.position(one) for one in consumer.assign(topic, indexes, start="earliest")}
            ends = consumer.end_offsets(starts)
            positions = {one: consumer.position(one) for one in consumer.assign(topic, indexes, start=start)}
            found.update((one, max(starts[one], min(ends[one], positions[one]))) for one in positions)
    return found
