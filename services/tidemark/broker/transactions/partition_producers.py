# SPDX-License-Identifier: Apache-2.0
"""The open transactions in partitions that this broker leads, as their logs have them."""

from __future__ import annotations

from collections.abc import Callable

from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.broker.node.session_lease import Lease
from tidemark.core.replication.queries import BrokerQueries
from tidemark.model import NO_EPOCH, TidemarkError, TopicPartition
from tidemark.rpc import errors
from tidemark.v1 import transaction_service_pb2 as pb


class PartitionProducers:
    """Reads the state of producers."""

    def __init__(
        self, queries: BrokerQueries, metadata: MetadataCache, lease: Lease, now_ms: Callable[[], int]
    ) -> None:
        self._queries = queries
        self._metadata = metadata
        self._lease = lease
        self._now_ms = now_ms

    def describe(self, partition: TopicPartition) -> pb.PartitionProducers:
        """The answer for a partition, which may be an error."""
        answer = pb.PartitionProducers(
            topic=partition.topic, partition=partition.partition, last_stable_offset=-1, high_watermark=-1
        )
        try:
            stated = self._queries.stated_offsets(
                partition, topic_id="", current_leader_epoch=NO_EPOCH, now_ms=self._now_ms()
            )
            self._lease.check(partition)
        except TidemarkError as error:
            answer.error.CopyFrom(errors.to_proto(self._metadata.explain(error, partition)))
            return answer
        answer.high_watermark = answer.last_stable_offset = stated.high_watermark
        return answer
