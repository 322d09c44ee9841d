# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N802 - RPC names
"""TransactionCoordination: the calls of brokers to coordinators and of coordinators to partition leaders."""

from __future__ import annotations

import asyncio
from typing import Any

from tidemark.broker.transactions.marker_writer import MarkerWriter
from tidemark.broker.transactions.requests import Requests
from tidemark.model import TidemarkError
from tidemark.rpc import errors
from tidemark.rpc.codecs.transaction import addition_from_proto
from tidemark.rpc.request_limits import check_named
from tidemark.v1 import transaction_service_pb2 as pb
from tidemark.v1.transaction_service_pb2_grpc import TransactionCoordinationServicer

_COMPLETION_WAIT_S = 0.2
"""Time to wait for a completion, shorter than a client waits: one call has the additions of several producers."""


class TransactionCoordinationService(TransactionCoordinationServicer):
    """RPCs between transaction coordinators and leaders; the server's interceptor maps the errors of unary calls."""

    def __init__(self, requests: Requests, writer: MarkerWriter) -> None:
        self._requests = requests
        self._writer = writer

    async def AddPartitions(self, request: pb.AddPartitionsRequest, context: Any) -> pb.AddPartitionsResponse:
        """Add partitions to open transactions (rule X11)."""
        return await self.add_partitions(request)

    async def add_partitions(self, request: pb.AddPartitionsRequest) -> pb.AddPartitionsResponse:
        """Like AddPartitions, for the partitions that this broker leads."""
        check_named(request.additions, "transactions")
        outcomes = await asyncio.gather(*(self._add(one) for one in request.additions))
        return pb.AddPartitionsResponse(outcomes=outcomes)

    async def WriteMarkers(self, request: pb.WriteMarkersRequest, context: Any) -> pb.WriteMarkersResponse:
        """Write markers to partitions that this broker leads (rule X12)."""
        return await self._writer.write(request)

    async def _add(self, message: pb.TransactionAddition) -> pb.AdditionOutcome:
        try:
            addition = addition_from_proto(message)
            await self._requests.change(
                addition.transactional_id,
                lambda coordinator, now: coordinator.add_partitions(addition, now),
                wait_s=_COMPLETION_WAIT_S,
            )
        except TidemarkError as error:
            return pb.AdditionOutcome(error=errors.to_proto(error))
        return pb.AdditionOutcome()
