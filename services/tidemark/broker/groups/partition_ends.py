# SPDX-License-Identifier: Apache-2.0
"""High watermarks of partitions that other brokers lead, for the lag of groups.

The broker fetches high watermarks after it has read the committed offsets. A committed offset is never above the high
watermark of its time, so no lag is negative (docs/groups.md, step G10).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, NamedTuple

from tidemark.broker.coordination.broker_calls import BrokerCalls
from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.model import NO_LEADER, BrokerId, ErrorCode, TidemarkError, TopicPartition, unknown_partition
from tidemark.rpc import errors
from tidemark.rpc.request_limits import in_requests
from tidemark.v1 import broker_service_pb2 as pb
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceStub

_TRIES: Final = 3
_BETWEEN_S: Final = 0.15
_DEADLINE_S: Final = 2.0
_RETRIED: Final = frozenset({ErrorCode.NOT_LEADER, ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.LEADER_NOT_AVAILABLE})

ListOffsets = Callable[[pb.ListOffsetsRequest], Awaitable[pb.ListOffsetsResponse]]


class Ends(NamedTuple):
    """Log start offset, inclusive, and high watermark, exclusive, of a partition."""

    log_start_offset: int
    high_watermark: int


class PartitionEnds:
    """Sends ListOffsets to leaders, this broker among them.

    Args:
        own: ListOffsets of this broker.
        between_s: time between two attempts.
    """

    def __init__(
        self, broker_id: BrokerId, metadata: MetadataCache, own: ListOffsets, *, between_s: float = _BETWEEN_S
    ) -> None:
        self._metadata = metadata
        self._between_s = between_s
        self._brokers = BrokerCalls(
            broker_id, metadata, own, lambda channel: BrokerServiceStub(channel).ListOffsets, _DEADLINE_S
        )

    async def close(self) -> None:
        """Close the channels to other brokers."""
        await self._brokers.close()

    async def ask(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Ends | TidemarkError]:
        """The ends of each partition, or the error; answers within some seconds."""
        found: dict[TopicPartition, Ends | TidemarkError] = {}
        left = set(partitions)
        for attempt in range(_TRIES):
            if attempt:
                await asyncio.sleep(self._between_s)
            by_leader: dict[BrokerId, list[TopicPartition]] = {}
            for partition in left:
                leader = self._leader(partition)
                if isinstance(leader, TidemarkError):
                    found[partition] = leader
                else:
                    by_leader.setdefault(leader, []).append(partition)
            for answers in await asyncio.gather(*(self._ask(*asked) for asked in by_leader.items())):
                found.update(answers)
            left = {one for one in left if _is_retriable(found[one])}
            if not left:
                break
        return found

    def _leader(self, partition: TopicPartition) -> BrokerId | TidemarkError:
        topic = self._metadata.view.topics.get(partition.topic)
        if topic is None:
            return self._metadata.unknown(partition.topic)
        known = topic.partitions.get(partition.partition)
        if known is None:
            return unknown_partition(*partition, len(topic.partitions))
        if known.leader == NO_LEADER or known.leader not in self._metadata.view.brokers:
            return TidemarkError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader now; retry")
        return known.leader

    async def _ask(
        self, leader: BrokerId, partitions: list[TopicPartition]
    ) -> Mapping[TopicPartition, Ends | TidemarkError]:
        partitions = sorted(partitions)
        parts = []
        for topic, index in partitions:  # the log start first: a log start never passes an end that is read later
            parts += [
                pb.PartitionListOffsets(topic=topic, partition=index, current_leader_epoch=-1, earliest=True),
                pb.PartitionListOffsets(topic=topic, partition=index, current_leader_epoch=-1, latest=True),
            ]
        try:
            requests = [pb.ListOffsetsRequest(partitions=some) for some in in_requests(parts)]
            answers = [await self._brokers.call(leader, request) for request in requests]
        except TidemarkError as error:
            return dict.fromkeys(partitions, error)
        results = (result for answer in answers for result in answer.partitions)
        found: dict[TopicPartition, Ends | TidemarkError] = {}
        for partition, (start, end) in zip(partitions, zip(results, results, strict=True), strict=True):
            found[partition] = errors.error_in(start) or errors.error_in(end) or Ends(start.offset, end.offset)
        return found


def _is_retriable(found: Ends | TidemarkError) -> bool:
    return isinstance(found, TidemarkError) and found.code in _RETRIED
