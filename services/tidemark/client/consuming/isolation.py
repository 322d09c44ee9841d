# SPDX-License-Identifier: Apache-2.0
"""The isolation level of a reader, and the fields of a fetch's answer that depend on it (rule X4)."""

from __future__ import annotations

from typing import Final

from tidemark.client.isolation_levels import check_isolation_level
from tidemark.model import invalid_request
from tidemark.record.transactions import AbortedBatches, AbortedTransaction
from tidemark.rpc.codecs.fetch import Fetched
from tidemark.v1 import broker_service_pb2 as pb

NONE_ABORTED: Final = AbortedBatches(())


def level_of(isolation_level: str) -> pb.IsolationLevel.ValueType:
    """The level of a request; raises TypeError for another type than text, INVALID_CONFIG for an unknown level."""
    check_isolation_level(isolation_level)
    return pb.READ_COMMITTED if isolation_level == "read_committed" else pb.READ_UNCOMMITTED


def check_level(level: pb.IsolationLevel.ValueType, fetched: Fetched, address: str) -> None:
    """Raise INVALID_REQUEST for read_committed records from a broker without transactions, which ignores the level.

    A broker with transactions states the last stable offset with each record that it returns at this level.
    """
    if level == pb.READ_COMMITTED and fetched.batches and not fetched.facts.HasField("last_stable_offset"):
        sentence = "has a version without transactions, so it also returns records of open and aborted transactions"
        raise invalid_request(
            f"the broker {address} {sentence}: upgrade this broker, or read with isolation level read_uncommitted"
        )


def aborted_in(result: pb.PartitionFetchResult) -> AbortedBatches:
    """The aborted transactions that overlap the batches of a fetch; none for a read_uncommitted fetch."""
    if not result.aborted_transactions:
        return NONE_ABORTED
    return AbortedBatches(
        AbortedTransaction(one.producer_id, one.first_offset, one.last_offset) for one in result.aborted_transactions
    )


def readable_end(result: pb.PartitionFetchResult, high_watermark: int) -> int:
    """End (exclusive) of the records that the reader may read: the last stable offset if the answer states it."""
    return result.last_stable_offset if result.HasField("last_stable_offset") else high_watermark
