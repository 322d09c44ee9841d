# SPDX-License-Identifier: Apache-2.0
"""Writes markers to partitions that this broker leads (rules X2, X12)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tidemark.broker.clients.internal_appends import InternalAppends
from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.broker.node.session_lease import Lease
from tidemark.core.transactions.state import LAST_EPOCH
from tidemark.model import TidemarkError, TopicPartition, invalid_request
from tidemark.record.markers import EndMarker
from tidemark.rpc import errors
from tidemark.v1 import transaction_service_pb2 as pb

_TIMEOUT_S: Final = 5.0
_AT_ONCE: Final = 50
"""Number of markers that are built before the event loop gets control back."""


class MarkerWriter:
    """Answers when every in-sync replica has the markers.

    Args:
        appends: appends of this broker to partitions that it leads.
        wall_us: the wall clock.
    """

    def __init__(
        self, appends: InternalAppends, metadata: MetadataCache, lease: Lease, wall_us: Callable[[], int]
    ) -> None:
        self._appends = appends
        self._metadata = metadata
        self._lease = lease
        self._wall_us = wall_us

    async def write(self, request: pb.WriteMarkersRequest) -> pb.WriteMarkersResponse:
        """The outcome for each partition of each marker; repeated markers have no further effect."""
        writing: list[asyncio.Task[pb.MarkerOutcome]] = []
        for marker in request.markers:
            for partition in marker.partitions:
                writing.append(asyncio.create_task(self._write_one(marker, partition)))
                if len(writing) % _AT_ONCE == 0:
                    await asyncio.sleep(0)
        return pb.WriteMarkersResponse(outcomes=await asyncio.gather(*writing))

    async def _write_one(self, marker: pb.TransactionMarker, wanted: pb.TransactionPartition) -> pb.MarkerOutcome:
        partition = TopicPartition(wanted.topic, wanted.partition)
        try:
            if not 0 <= marker.producer.producer_epoch <= LAST_EPOCH + 1:
                raise invalid_request(f"a marker has a producer_epoch from 0 to {LAST_EPOCH + 1}")
            self._lease.check(partition)
            await self._appends.append_marker(
                partition,
                wanted.topic_id,
                producer_id=marker.producer.producer_id,
                producer_epoch=marker.producer.producer_epoch,
                marker=EndMarker(marker.commit, marker.coordinator_epoch),
                timestamp_us=self._wall_us(),
                timeout_s=_TIMEOUT_S,
            )
            self._lease.check(partition)  # as for an acknowledgement: another leader may not have the marker
        except TidemarkError as error:
            return pb.MarkerOutcome(error=errors.to_proto(self._metadata.explain(error, partition)))
        return pb.MarkerOutcome()
