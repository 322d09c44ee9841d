# SPDX-License-Identifier: Apache-2.0
"""The RPCs about brokers that are added, removed and restarted: translate, call, translate."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

from grpc.aio import ServicerContext

from tidemark.admin.auditing import AuditedCalls, observed
from tidemark.admin.brokers import BrokerAdministration, PlanQuery
from tidemark.admin.reassignments import interval_of
from tidemark.model import BrokerId
from tidemark.rpc.broker_plan_codec import obstacle_to_proto, plan_to_proto
from tidemark.rpc.reassignment_codec import progress_to_proto
from tidemark.v1 import admin_brokers_pb2 as pb


class BrokerCalls(AuditedCalls):
    """Works with `_brokers`."""

    _brokers: BrokerAdministration

    async def PlanBrokers(  # noqa: N802 - named by the contract
        self, request: pb.PlanBrokersRequest, context: ServicerContext[Any, Any]
    ) -> pb.PlanBrokersResponse:
        """What adding and removing brokers would move, and what that costs."""
        async with observed("PlanBrokers", context):
            query = PlanQuery(
                add=_ids(request.add),
                remove=_ids(request.remove),
                topics=tuple(request.topics),
                spread=_ids(request.spread),
            )
            return pb.PlanBrokersResponse(plan=plan_to_proto(*await self._brokers.plan(query)))

    async def AddBrokers(  # noqa: N802 - named by the contract
        self, request: pb.AddBrokersRequest, context: ServicerContext[Any, Any]
    ) -> pb.AddBrokersResponse:
        """Gives brokers that run already their share of the replicas."""
        facts: dict[str, object] = {
            "broker_ids": list(request.broker_ids),
            "throttle_bytes_per_s": request.throttle_bytes_per_s,
            "request_id": request.request_id,
        }
        async with observed("AddBrokers", context, None if request.validate_only else facts):
            costed, begun = await self._brokers.add(
                _ids(request.broker_ids),
                throttle_bytes_per_s=request.throttle_bytes_per_s,
                validate_only=request.validate_only,
                request_id=request.request_id,
            )
            facts["moves_begun"] = begun
            return pb.AddBrokersResponse(plan=plan_to_proto(*costed), begun=begun)

    async def RemoveBrokers(  # noqa: N802 - named by the contract
        self, request: pb.RemoveBrokersRequest, context: ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.RemoveBrokersResponse]:
        """Takes all replicas off brokers, waits, and deregisters them."""
        facts: dict[str, object] = {
            "broker_ids": list(request.broker_ids),
            "throttle_bytes_per_s": request.throttle_bytes_per_s,
            "request_id": request.request_id,
            "removed": [],
        }
        async with observed("RemoveBrokers", context, None if request.validate_only else facts):
            news = self._brokers.remove(
                _ids(request.broker_ids),
                throttle_bytes_per_s=request.throttle_bytes_per_s,
                validate_only=request.validate_only,
                request_id=request.request_id,
                interval_s=interval_of(request.interval_ms),
            )
            async for one in news:
                facts["removed"] = list(one.removed)
                yield pb.RemoveBrokersResponse(
                    plan=None if one.plan is None else plan_to_proto(*one.plan),
                    reassignments=[progress_to_proto(moved) for moved in one.moves],
                    partitions_left=one.partitions_left,
                    removed=one.removed,
                )

    async def SafeToRestart(  # noqa: N802 - named by the contract
        self, request: pb.SafeToRestartRequest, context: ServicerContext[Any, Any]
    ) -> pb.SafeToRestartResponse:
        """Whether a broker can be restarted without anybody noticing."""
        async with observed("SafeToRestart", context):
            obstacles = await self._brokers.obstacles_to_restart(BrokerId(request.broker_id))
            return pb.SafeToRestartResponse(
                safe=not obstacles, obstacles=[obstacle_to_proto(obstacle) for obstacle in obstacles]
            )


def _ids(numbers: Iterable[int]) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(number) for number in numbers)
