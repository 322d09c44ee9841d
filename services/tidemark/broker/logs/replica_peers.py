# SPDX-License-Identifier: Apache-2.0
"""Reads other brokers' replicas over ReadReplica, for repairs (rule T6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tidemark.broker.logs.repair_sources import ReplicaPart
from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.model import BrokerId, ErrorCode, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.record.checks import check_batches
from tidemark.rpc.channel import channel_for_call
from tidemark.rpc.receiver import receiver_headers
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceStub
from tidemark.v1.replica_reads_pb2 import ReadReplicaRequest

_TIMEOUT_S: Final = 5.0
_NO_END: Final = (1 << 63) - 1


class GrpcReplicaPeers:
    """Reads replicas of other brokers, for repairs. Each call has a channel of its own, since repairs are rare."""

    def __init__(self, broker_id: BrokerId, metadata: MetadataCache) -> None:
        self._broker_id = broker_id
        self._metadata = metadata

    def sources(self, partition: TopicPartition) -> Sequence[BrokerId]:
        """Live brokers with a replica of the partition, without this one: the leader, then the ISR, then the others."""
        view = self._metadata.view
        topic = view.topics.get(partition.topic)
        known = topic.partitions.get(partition.partition) if topic is not None else None
        if known is None:
            return ()
        ranked = dict.fromkeys((known.leader, *known.in_sync_replicas, *known.assigned_replicas))
        return [broker for broker in ranked if broker in view.brokers and broker != self._broker_id]

    async def read(
        self, broker: BrokerId, partition: TopicPartition, identity: ReplicaIdentity, start: int, end: int
    ) -> ReplicaPart:
        """Whole batches from the one that holds `start` on, below `end` (exclusive), checked on both sides.

        Raises:
            TidemarkError: CORRUPT_BATCH if that replica is damaged, too; the errors of ReadReplica and of the call.
        """
        response = await self._ask(
            broker,
            ReadReplicaRequest(
                topic=partition.topic,
                partition=partition.partition,
                topic_id=identity.topic_id,
                incarnation=identity.incarnation,
                start_offset=start,
                end_offset=end,
            ),
        )
        batches = check_batches(response.batches)
        return ReplicaPart(response.log_start_offset, response.log_end_offset, response.clean_offset, batches)

    async def have_checked(self, broker: BrokerId, partition: TopicPartition, offset: int) -> None:
        """Request a broker to check its batches from `offset` on; the broker repairs its own log if one is damaged.

        The refused chunk may have good batches before the damaged one. The broker checks as much as one read returns.

        Raises:
            TidemarkError: the errors of `read`.
        """
        await self._ask(
            broker,
            ReadReplicaRequest(
                topic=partition.topic,
                partition=partition.partition,
                start_offset=offset,
                end_offset=_NO_END,
                envelopes_only=True,
                repair=True,
            ),
        )

    async def _ask(self, broker: BrokerId, request: ReadReplicaRequest) -> Any:
        registration = self._metadata.view.brokers.get(broker)
        if registration is None:
            raise TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker} is not registered")
        headers = receiver_headers(self._metadata.view.cluster_id, broker)
        async with channel_for_call(registration.address) as channel:
            stub: Any = BrokerServiceStub(channel)
            return await stub.ReadReplica(request, timeout=_TIMEOUT_S, metadata=headers, wait_for_ready=False)
