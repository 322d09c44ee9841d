# SPDX-License-Identifier: Apache-2.0
"""The methods of the async AdminClient for the partition counts of topics."""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.client.aio.admin.connection import AdminConnection
from tidemark.client.aio.admin.results import RemovedPartitions
from tidemark.client.argument_types import flag, int32, int32s
from tidemark.client.metadata.unknown_topics import note_creation
from tidemark.core.cluster_view import TopicView
from tidemark.rpc.codecs.metadata import topic_from_proto
from tidemark.v1 import admin_partitions_pb2


class PartitionCalls:
    """Partition counts of topics. A part of `AdminClient`, which has its methods."""

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    async def create_partitions(
        self,
        topic: str,
        total_count: int,
        *,
        assignments: Sequence[Sequence[int]] = (),
        validate_only: bool = False,
        request_id: str = "",
    ) -> TopicView:
        """Add partitions until the topic has `total_count`, and wait until each new one has a leader.

        Args:
            topic: name of the topic.
            total_count: number of partitions afterwards; a retry with the same number is safe.
            assignments: broker ids of each new partition, the preferred leader first; empty: the admin service
                chooses brokers as for a new topic (rule C4).
            validate_only: check the request and compute the result, change nothing.
            request_id: makes a retry safe.

        Example: `await admin.create_partitions("orders", 6)`
        """
        request = admin_partitions_pb2.CreatePartitionsRequest(
            topic=topic,
            total_count=int32("total_count", total_count),
            assignments=[
                admin_partitions_pb2.ReplicaAssignment(replicas=int32s("an item of assignments", replicas))
                for replicas in assignments
            ],
            validate_only=flag("validate_only", validate_only),
            request_id=request_id,
        )
        response = await self._connection.call(lambda stub: stub.CreatePartitions, request)
        note_creation()
        return topic_from_proto(response.topic)

    async def delete_partitions(
        self,
        topic: str,
        *,
        count: int | None = None,
        total_count: int | None = None,
        partitions: Sequence[int] = (),
        force: bool = False,
        validate_only: bool = False,
        request_id: str = "",
    ) -> RemovedPartitions:
        """Remove the highest-numbered partitions of a topic and wait until the partitions are deleted.

        Give exactly one of `count`, `total_count` and `partitions`.

        Args:
            topic: name of the topic.
            count: number of partitions to remove.
            total_count: number of partitions to keep.
            partitions: indexes to remove; NOT_HIGHEST_PARTITION unless they are the highest-numbered ones.
            force: also remove partitions that have records, which are otherwise refused with PARTITION_NOT_EMPTY.
            validate_only: check the request and compute the result, change nothing.
            request_id: makes a retry safe.

        Example: `await admin.delete_partitions("orders", total_count=3, validate_only=True)`
        """
        request = admin_partitions_pb2.DeletePartitionsRequest(
            topic=topic,
            count=None if count is None else int32("count", count),
            total_count=None if total_count is None else int32("total_count", total_count),
            partitions=int32s("partitions", partitions),
            force=flag("force", force),
            validate_only=flag("validate_only", validate_only),
            request_id=request_id,
        )
        response = await self._connection.call(lambda stub: stub.DeletePartitions, request)
        return RemovedPartitions(topic_from_proto(response.topic), tuple(response.removed))
