# SPDX-License-Identifier: Apache-2.0
"""The calls of the admin service that are about settings, on the wire: translate, call, translate."""

from __future__ import annotations

from typing import Any

from grpc.aio import ServicerContext

from tidemark.admin.auditing import AuditedCalls, observed
from tidemark.admin.configs import Alteration, ConfigAdministration
from tidemark.admin.requests import AnsweredOnce
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.config_codec import change_from_proto, change_to_proto, entry_to_proto, resource_from_proto
from tidemark.v1 import admin_configs_pb2 as pb

_RACES_MAX = 100


class ConfigsServicer(AuditedCalls):
    """AlterConfigs and DescribeConfigs.

    Attributes:
        _configs: does the work.
        _requests: keeps the answers.
    """

    _configs: ConfigAdministration
    _requests: AnsweredOnce

    async def AlterConfigs(  # noqa: N802 - named by the contract
        self, request: pb.AlterConfigsRequest, context: ServicerContext[Any, Any]
    ) -> pb.AlterConfigsResponse:
        """Changes settings, all or none."""
        facts: dict[str, object] = {
            "resource": f"{_kind(request.resource.type)} {request.resource.name}",
            "set": dict(request.set),
            "delete": list(request.delete),
            "request_id": request.request_id,
        }
        async with observed("AlterConfigs", context, None if request.validate_only else facts):
            response = await self._altered(request)
            facts["diff"] = [change_from_proto(change)._asdict() for change in response.changes]
            return response

    async def _altered(self, request: pb.AlterConfigsRequest) -> pb.AlterConfigsResponse:
        alteration = Alteration(resource_from_proto(request.resource), dict(request.set), frozenset(request.delete))
        for _ in range(_RACES_MAX):
            if not request.validate_only:
                answer = await self._requests.answer_to("AlterConfigs", request, pb.AlterConfigsResponse)
                if answer is not None:
                    return answer
            plan = await self._configs.plan(alteration)
            response = pb.AlterConfigsResponse(changes=[change_to_proto(change) for change in plan.changes])
            if request.validate_only:
                return response
            if await self._configs.carry_out(plan, self._requests.receipt("AlterConfigs", request, response)):
                return response
        raise TidemarkError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"others kept changing the settings of {request.resource.name}; nothing was changed: run it again",
        )

    async def DescribeConfigs(  # noqa: N802 - named by the contract
        self, request: pb.DescribeConfigsRequest, context: ServicerContext[Any, Any]
    ) -> pb.DescribeConfigsResponse:
        """Settings with what they mean and where they come from."""
        async with observed("DescribeConfigs", context):
            found = []
            for resource in request.resources:
                entries = await self._configs.describe(resource_from_proto(resource), list(request.keys))
                shown = [entry_to_proto(entry) for entry in entries]
                found.append(pb.ResourceConfigs(resource=resource, entries=shown))
            return pb.DescribeConfigsResponse(resources=found)


def _kind(number: int) -> str:
    """For the audit log; the number of what only a later version knows."""
    known = pb.ConfigResourceType.DESCRIPTOR.values_by_number.get(number)
    return str(number) if known is None else str(known.name).rpartition("_")[2].lower()
