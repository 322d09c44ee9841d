# SPDX-License-Identifier: Apache-2.0
"""Writes markers to partitions that this broker leads (rules X2, X12)."""

from __future__ import annotations

from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc import errors
from tidemark.v1 import transaction_service_pb2 as pb


class MarkerWriter:
    """Answers when every in-sync replica has the markers."""

    async def write(self, request: pb.WriteMarkersRequest) -> pb.WriteMarkersResponse:
        """The outcome for each partition of each marker."""
        refusal = TidemarkError(ErrorCode.LEADER_NOT_AVAILABLE, "this broker writes no markers yet; retry")
        count = sum(len(marker.partitions) for marker in request.markers)
        return pb.WriteMarkersResponse(outcomes=[pb.MarkerOutcome(error=errors.to_proto(refusal))] * count)
