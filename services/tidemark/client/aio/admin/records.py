# SPDX-License-Identifier: Apache-2.0
"""What the async admin client can do about records: delete the oldest ones; the partition's leader is asked itself."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import grpc

from tidemark.client.metadata.backoff import Backoff
from tidemark.client.metadata.cluster import Leader, unknown_partition
from tidemark.core.cluster_view import ClusterView, TopicView
from tidemark.model import NO_LEADER, BrokerId, ErrorCode, Offset, TidemarkError, TopicPartition, unknown_topic
from tidemark.rpc import errors
from tidemark.rpc.channel import close_channels, open_channel
from tidemark.v1 import delete_records_pb2 as pb
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceStub

if TYPE_CHECKING:
    from tidemark.v1.broker_service_pb2_grpc import BrokerServiceAsyncStub

EVERYTHING_COMMITTED = -1


class DeletedRecords(NamedTuple):
    """What became of a partition's front.

    Attributes:
        low_watermark: no replica that answers holds anything below.
        log_start_offset: the first offset that the leader has.
        behind: assigned replicas that have not confirmed it: away, or too slow; they follow when they are back.
    """

    low_watermark: Offset
    log_start_offset: Offset
    behind: tuple[BrokerId, ...]


class RecordCalls(ABC):
    """Part of `AdminClient`."""

    _timeout_s: float

    @abstractmethod
    async def describe_topics(self, names: Sequence[str] = ()) -> list[TopicView]:
        """Topics in the order asked for."""

    @abstractmethod
    async def _brokers(self) -> ClusterView:
        """The brokers there are."""

    async def leader_of(self, partition: TopicPartition) -> Leader:
        """Who leads a partition now.

        Raises:
            TidemarkError: UNKNOWN_TOPIC, UNKNOWN_PARTITION, LEADER_NOT_AVAILABLE.
        """
        (topic,) = await self.describe_topics([partition.topic])
        if topic.error is not None:
            raise unknown_topic(partition.topic) if topic.error.code is ErrorCode.UNKNOWN_TOPIC else topic.error
        view = topic.partitions.get(partition.partition)
        if view is None:
            raise unknown_partition(partition, len(topic.partitions))
        broker = None if view.leader == NO_LEADER else (await self._brokers()).brokers.get(view.leader)
        if broker is None:
            sentence = f"{partition} has no leader that could be reached: wait until it has one, and ask again"
            raise TidemarkError(ErrorCode.LEADER_NOT_AVAILABLE, sentence)
        return Leader(view.leader, f"{broker.host}:{broker.port}", view.leader_epoch, topic.topic_id, view.incarnation)

    async def delete_records(self, topic: str, partition: int, before_offset: int) -> DeletedRecords:
        """Delete the records of a partition before an offset, on all its replicas; a failover meanwhile is waited out.

        Args:
            topic: its name.
            partition: its index.
            before_offset: the first one to keep; -1: the high watermark, so that everything committed goes.

        Raises:
            TidemarkError: OFFSET_OUT_OF_RANGE beyond the high watermark, INVALID_REQUEST, UNKNOWN_TOPIC,
                UNKNOWN_PARTITION; UNKNOWN_TOPIC_ID when it was made anew meanwhile.
        """
        meant = TopicPartition(topic, partition)
        until_s = time.monotonic() + self._timeout_s
        backoff = Backoff()
        first: Leader | None = None
        while True:
            try:
                leader = await self.leader_of(meant)
                first = first or leader
                return await self._delete_at(leader, first, meant, before_offset, until_s)
            except TidemarkError as error:
                if not error.retriable or time.monotonic() >= until_s:
                    raise
            await asyncio.sleep(backoff.next_s())

    async def _delete_at(
        self, leader: Leader, first: Leader, partition: TopicPartition, before_offset: int, until_s: float
    ) -> DeletedRecords:
        left_s = max(until_s - time.monotonic(), 0.1)
        request = pb.DeleteRecordsRequest(
            topic=partition.topic,
            partition=partition.partition,
            topic_id=first.topic_id,
            incarnation=first.incarnation,
            current_leader_epoch=-1,
            before_offset=before_offset,
            timeout_ms=int(left_s * 500),
        )
        channel = open_channel(leader.address)
        try:
            stub = cast("BrokerServiceAsyncStub", BrokerServiceStub(channel))
            response = await stub.DeleteRecords(request, timeout=left_s, wait_for_ready=False)
        except grpc.aio.AioRpcError as error:
            raise errors.from_rpc_error(error, address=leader.address) from None
        finally:
            await close_channels([channel])
        return DeletedRecords(
            Offset(response.low_watermark),
            Offset(response.log_start_offset),
            tuple(BrokerId(one) for one in response.behind),
        )
