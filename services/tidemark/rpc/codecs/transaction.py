# SPDX-License-Identifier: Apache-2.0
"""Messages of transaction_service.proto <-> core.transactions."""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.core.transactions.phases import Phase
from tidemark.core.transactions.requests import Addition, Description
from tidemark.core.transactions.state import ProducerIdentity, TransactionMetadata, TransactionPartition
from tidemark.model import invalid_request
from tidemark.v1 import transaction_service_pb2 as pb


def identity_to_proto(producer: ProducerIdentity) -> pb.ProducerIdentity:
    """Encode a producer id and epoch."""
    return pb.ProducerIdentity(producer_id=producer.producer_id, producer_epoch=producer.producer_epoch)


def identity_from_proto(message: pb.ProducerIdentity) -> ProducerIdentity:
    """Decode a producer id and epoch."""
    return ProducerIdentity(message.producer_id, message.producer_epoch)


def phases_from_proto(names: Iterable[str]) -> frozenset[Phase]:
    """Phases by name; raises INVALID_REQUEST for another name."""
    try:
        return frozenset(map(Phase, names))
    except ValueError as error:
        raise invalid_request(f"{error} of a transactional id: give one or more of {', '.join(Phase)}") from error


def partition_to_proto(
    partition: TransactionPartition, producer: ProducerIdentity | None = None
) -> pb.TransactionPartition:
    """Encode a partition of a transaction, with the producer that writes to the partition."""
    return pb.TransactionPartition(
        topic=partition.topic,
        topic_id=partition.topic_id,
        partition=partition.partition,
        producer=None if producer is None else identity_to_proto(producer),
    )


def partition_from_proto(message: pb.TransactionPartition) -> TransactionPartition:
    """Decode a partition of a transaction; raises INVALID_REQUEST."""
    if not message.topic or not message.topic_id or message.partition < 0:
        raise invalid_request(
            f"{message.topic!r}, id {message.topic_id!r}, partition {message.partition}: a partition of a transaction "
            "needs a topic, its topic id, and an index from 0"
        )
    return TransactionPartition(message.topic, message.topic_id, message.partition)


def addition_from_proto(message: pb.TransactionAddition) -> Addition:
    """Decode the partitions that a transaction begins to write to; raises INVALID_REQUEST."""
    return Addition(
        message.transactional_id,
        identity_from_proto(message.producer),
        tuple(map(partition_from_proto, message.partitions)),
    )


def summary_to_proto(transactional_id: str, metadata: TransactionMetadata) -> pb.TransactionSummary:
    """Encode a transactional id as a row of ListTransactions."""
    return pb.TransactionSummary(
        transactional_id=transactional_id,
        phase=str(metadata.phase),
        producer=identity_to_proto(metadata.producer),
        started_at_ms=metadata.started_ms,
    )


def description_to_proto(found: Description) -> pb.TransactionDescription:
    """Encode the state of a transactional id."""
    return pb.TransactionDescription(
        transactional_id=found.transactional_id,
        summary=summary_to_proto(found.transactional_id, found.metadata),
        timeout_ms=found.metadata.timeout_ms,
        updated_at_ms=found.metadata.updated_ms,
        generation=found.metadata.generation,
        last_sequence=found.metadata.last_sequence,
        partitions=[partition_to_proto(*one) for one in found.partitions],
    )
