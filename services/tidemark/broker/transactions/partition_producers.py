# SPDX-License-Identifier: Apache-2.0
"""The open transactions in partitions that this broker leads, as their logs have them."""

from __future__ import annotations

from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.broker.node.session_lease import Lease
from tidemark.core.replication.queries import BrokerQueries
from tidemark.model import TidemarkError, TopicPartition
from tidemark.rpc import errors
from tidemark.v1 import transaction_service_pb2 as pb


class PartitionProducers:
    """Describes the open transactions that producers have in partitions of this broker."""

    def __init__(self, queries: BrokerQueries, metadata: MetadataCache, lease: Lease) -> None:
        self._queries = queries
        self._metadata = metadata
        self._lease = lease

    def describe(self, partition: TopicPartition) -> pb.PartitionProducers:
        """The answer for a partition, which may be an error."""
        answer = pb.PartitionProducers(
            topic=partition.topic, partition=partition.partition, last_stable_offset=-1, high_watermark=-1
        )
        try:
            found = self._queries.open_transactions(partition)
            self._lease.check(partition)
        except TidemarkError as error:
            answer.error.CopyFrom(errors.to_proto(self._metadata.explain(error, partition)))
            return answer
        answer.high_watermark = found.high_watermark
        if found.last_stable_offset is not None:
            answer.last_stable_offset = found.last_stable_offset
        for one in found.transactions:
            answer.open.add(
                producer=pb.ProducerIdentity(producer_id=one.producer_id, producer_epoch=one.producer_epoch),
                first_offset=one.first_offset,
                last_timestamp_us=one.last_timestamp_us,
                coordinator_epoch=one.coordinator_epoch,
                end_offset=one.end_offset,
            )
        return answer
