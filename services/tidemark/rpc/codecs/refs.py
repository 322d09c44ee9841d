# SPDX-License-Identifier: Apache-2.0
"""PartitionRef <-> TopicPartition."""

from __future__ import annotations

from tidemark.model import TopicPartition
from tidemark.v1 import record_pb2


def ref_to_proto(partition: TopicPartition) -> record_pb2.PartitionRef:
    """Encode a partition."""
    return record_pb2.PartitionRef(topic=partition.topic, partition=partition.partition)


def ref_from_proto(message: record_pb2.PartitionRef) -> TopicPartition:
    """Decode a partition."""
    return TopicPartition(message.topic, message.partition)
