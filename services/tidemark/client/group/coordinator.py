# SPDX-License-Identifier: Apache-2.0
"""Calls to the coordinator of a consumer group (docs/groups.md)."""

from __future__ import annotations

from typing import Any, cast

from tidemark.client.metadata.closed_calls import unary_calls
from tidemark.client.metadata.cluster import Cluster
from tidemark.client.metadata.coordinator_calls import CoordinatorCalls, answer_of
from tidemark.model import host_port
from tidemark.rpc import errors
from tidemark.v1 import group_service_pb2 as pb
from tidemark.v1.group_service_pb2_grpc import GroupServiceStub


class Coordinator(CoordinatorCalls):
    """Calls of a member to the coordinator of its group."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        async def find(address: str, timeout_s: float) -> str:
            request = pb.FindCoordinatorRequest(group_ids=[group])
            call = group_stub(cluster, address).FindCoordinator(request, timeout=timeout_s, metadata=cluster.headers)
            found = (await answer_of(call, address)).coordinators[0]
            errors.raise_error_in(found)
            return host_port(found.host, found.port)

        super().__init__(cluster, f"group {group}", find=find, stub=lambda address: group_stub(cluster, address))


def group_stub(cluster: Cluster, address: str) -> Any:
    """Return the stub of the group service at an address."""
    return cast("Any", GroupServiceStub(unary_calls(cluster.channel(address))))
