# SPDX-License-Identifier: Apache-2.0
"""The RPCs about log directories: translate, call, translate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from grpc.aio import ServicerContext

from tidemark.admin.auditing import AuditedCalls, observed
from tidemark.admin.log_dirs import LogDirAdministration
from tidemark.model import BrokerId
from tidemark.rpc.broker_log_dirs import BrokerLogDirs, broker_to_proto, placed_to_proto, places_from_proto
from tidemark.rpc.refs import ref_from_proto
from tidemark.v1 import admin_log_dirs_pb2 as pb

_LOGGED_MAX: Final = 100
"""Of one request, in its line of the audit log."""


class LogDirCalls(AuditedCalls):
    """Works with `_log_dirs`."""

    _log_dirs: LogDirAdministration

    async def DescribeLogDirs(  # noqa: N802 - named by the contract
        self, request: pb.DescribeBrokerLogDirsRequest, context: ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.DescribeBrokerLogDirsResponse]:
        """What lies in the log directories of brokers now."""
        async with observed("DescribeLogDirs", context):
            found = await self._log_dirs.describe(
                [BrokerId(broker) for broker in request.brokers],
                list(request.topics),
                [ref_from_proto(ref) for ref in request.partitions],
            )
            for broker in found:
                for message in await asyncio.to_thread(_messages, broker):
                    yield message

    async def AlterReplicaLogDirs(  # noqa: N802 - named by the contract
        self, request: pb.AlterBrokerLogDirsRequest, context: ServicerContext[Any, Any]
    ) -> pb.AlterBrokerLogDirsResponse:
        """Moves replicas between the log directories of their brokers."""
        facts: dict[str, object] = {
            "replicas": [
                f"{one.partition.topic}-{one.partition.partition} on {one.broker_id}: {one.log_dir}"
                for one in request.replicas[:_LOGGED_MAX]
            ],
            "replicas_count": len(request.replicas),
            "throttle_bytes_per_s": request.throttle_bytes_per_s,
        }
        async with observed("AlterReplicaLogDirs", context, None if request.validate_only else facts):
            placed = await self._log_dirs.alter(
                places_from_proto(request.replicas),
                throttle_bytes_per_s=request.throttle_bytes_per_s,
                validate_only=request.validate_only,
            )
            facts["refused"] = sum(one.error is not None for one in placed)
            return pb.AlterBrokerLogDirsResponse(replicas=placed_to_proto(placed))


def _messages(found: BrokerLogDirs) -> tuple[pb.DescribeBrokerLogDirsResponse, ...]:
    return tuple(broker_to_proto(found))
