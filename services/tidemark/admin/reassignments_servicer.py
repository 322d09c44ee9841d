# SPDX-License-Identifier: Apache-2.0
"""The RPCs about moves of replicas: translate, call, translate."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from grpc.aio import ServicerContext

from tidemark.admin.auditing import AuditedCalls, observed
from tidemark.admin.reassignments import MovesQuery, ReassignmentAdministration, interval_of
from tidemark.rpc.reassignment_codec import (
    ended_to_proto,
    move_from_proto,
    outcome_to_proto,
    progress_to_proto,
    refusal_to_proto,
)
from tidemark.rpc.refs import ref_from_proto
from tidemark.v1 import admin_reassignments_pb2 as pb

_LOGGED_MAX: Final = 100
"""Of one request, in its line of the audit log."""


class ReassignmentCalls(AuditedCalls):
    """Works with `_reassignments`."""

    _reassignments: ReassignmentAdministration

    async def AlterPartitionReassignments(  # noqa: N802 - named by the contract
        self, request: pb.AlterPartitionReassignmentsRequest, context: ServicerContext[Any, Any]
    ) -> pb.AlterPartitionReassignmentsResponse:
        """Begins moves of replicas, or gives them up."""
        facts: dict[str, object] = {
            "moves": [
                f"{one.partition.topic}-{one.partition.partition}:{list(one.replicas)}"
                + (f" in {list(one.log_dirs)}" if one.log_dirs else "")
                for one in request.moves[:_LOGGED_MAX]
            ],
            "moves_count": len(request.moves),
            "cancel": [f"{ref.topic}-{ref.partition}" for ref in request.cancel[:_LOGGED_MAX]],
            "cancel_count": len(request.cancel),
            "throttle_bytes_per_s": request.throttle_bytes_per_s,
            "request_id": request.request_id,
        }
        async with observed("AlterPartitionReassignments", context, None if request.validate_only else facts):
            query = MovesQuery(
                moves=[move_from_proto(one) for one in request.moves],
                cancel=[ref_from_proto(ref) for ref in request.cancel],
                throttle_bytes_per_s=request.throttle_bytes_per_s,
                request_id=request.request_id,
                allow_partial=request.allow_partial,
            )
            answer = await self._reassignments.alter(query, validate_only=request.validate_only)
            facts["refused"] = sum(outcome.error is not None for outcome in answer.outcomes)
            inbound = answer.inbound_bytes_per_s
            return pb.AlterPartitionReassignmentsResponse(
                results=[outcome_to_proto(outcome) for outcome in answer.outcomes],
                inbound_bytes_per_s=-1 if inbound is None else round(inbound),
            )

    async def ListPartitionReassignments(  # noqa: N802 - named by the contract
        self, request: pb.ListPartitionReassignmentsRequest, context: ServicerContext[Any, Any]
    ) -> pb.ListPartitionReassignmentsResponse:
        """Moves that are wanted or under way, and what was refused lately."""
        async with observed("ListPartitionReassignments", context):
            wanted = frozenset(ref_from_proto(ref) for ref in request.partitions)
            moves, refusals = await self._reassignments.list_moves(wanted)
            return pb.ListPartitionReassignmentsResponse(
                reassignments=[progress_to_proto(moved) for moved in moves],
                refusals=[refusal_to_proto(refusal) for refusal in refusals],
            )

    async def WatchPartitionReassignments(  # noqa: N802 - named by the contract
        self, request: pb.WatchPartitionReassignmentsRequest, context: ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.WatchPartitionReassignmentsResponse]:
        """News of moves until they are done."""
        async with observed("WatchPartitionReassignments", context):
            wanted = frozenset(ref_from_proto(ref) for ref in request.partitions)
            interval_s = interval_of(request.interval_ms)
            async for news in self._reassignments.watch(wanted, interval_s=interval_s, request_id=request.request_id):
                yield pb.WatchPartitionReassignmentsResponse(
                    reassignments=[progress_to_proto(moved) for moved in news.moves],
                    ended=[ended_to_proto(ended) for ended in news.ended],
                )
