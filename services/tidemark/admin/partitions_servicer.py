# SPDX-License-Identifier: Apache-2.0
"""The RPCs about the number of a topic's partitions: translate, call, translate."""

from __future__ import annotations

from typing import Any

from grpc.aio import ServicerContext

from tidemark.admin.auditing import AuditedCalls, observed
from tidemark.admin.partitions import PartitionAdministration, PartitionsToRemove
from tidemark.admin.requests import AnsweredOnce, Facts
from tidemark.model import BrokerId
from tidemark.rpc.metadata_codec import topic_to_proto
from tidemark.v1 import admin_partitions_pb2 as pb


class PartitionCalls(AuditedCalls):
    """Works with `_partitions` and `_requests`."""

    _partitions: PartitionAdministration
    _requests: AnsweredOnce

    async def CreatePartitions(  # noqa: N802 - named by the contract
        self, request: pb.CreatePartitionsRequest, context: ServicerContext[Any, Any]
    ) -> pb.CreatePartitionsResponse:
        """Adds partitions to a topic and waits until every one has a leader."""
        facts: dict[str, object] = {
            "topic": request.topic,
            "total_count": request.total_count,
            "request_id": request.request_id,
        }

        async def work(_: Facts) -> pb.CreatePartitionsResponse:
            view = await self._partitions.create_partitions(
                request.topic,
                request.total_count,
                [tuple(BrokerId(broker) for broker in one.replicas) for one in request.assignments],
                validate_only=request.validate_only,
                timeout_s=self._timeout_s(context),
            )
            return pb.CreatePartitionsResponse(topic=topic_to_proto(view))

        async with observed("CreatePartitions", context, None if request.validate_only else facts):
            return await self._requests.once("CreatePartitions", request, pb.CreatePartitionsResponse, work)

    async def DeletePartitions(  # noqa: N802 - named by the contract
        self, request: pb.DeletePartitionsRequest, context: ServicerContext[Any, Any]
    ) -> pb.DeletePartitionsResponse:
        """Removes the highest-numbered partitions of a topic and waits until they are gone."""
        which = PartitionsToRemove(
            count=request.count if request.HasField("count") else None,
            total_count=request.total_count if request.HasField("total_count") else None,
            partitions=tuple(request.partitions),
        )
        facts: dict[str, object] = {
            "topic": request.topic,
            "which": str(which),
            "force": request.force,
            "request_id": request.request_id,
        }

        async def look() -> Facts:
            return {"total_count": str(await self._partitions.count_to_keep(request.topic, which))}

        async def work(seen: Facts) -> pb.DeletePartitionsResponse:
            removed = await self._partitions.delete_partitions(
                request.topic,
                int(seen["total_count"]),
                force=request.force,
                validate_only=request.validate_only,
                timeout_s=self._timeout_s(context),
            )
            return pb.DeletePartitionsResponse(topic=topic_to_proto(removed.topic), removed=removed.partitions)

        async with observed("DeletePartitions", context, None if request.validate_only else facts):
            response = await self._requests.once("DeletePartitions", request, pb.DeletePartitionsResponse, work, look)
            facts["removed"] = list(response.removed)
            return response
