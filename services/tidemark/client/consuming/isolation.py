# SPDX-License-Identifier: Apache-2.0
"""The isolation level of a reader, and the batches that hold no records for it (rule X4)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from tidemark.client.settings import check_isolation_level
from tidemark.record.envelope import Envelope
from tidemark.v1 import broker_service_pb2 as pb

Aborted = Mapping[int, Iterable[range]]
"""Aborted transactions by producer id: the offsets from the first record to the marker, exclusive."""
NONE_ABORTED: Final[Aborted] = {}


def level_of(isolation_level: str) -> pb.IsolationLevel.ValueType:
    """The level of a request; raises TypeError for another type than text, INVALID_CONFIG for an unknown level."""
    check_isolation_level(isolation_level)
    return pb.READ_COMMITTED if isolation_level == "read_committed" else pb.READ_UNCOMMITTED


def aborted_in(result: pb.PartitionFetchResult) -> Aborted:
    """The aborted transactions that overlap the batches of a fetch; none of a read_uncommitted one."""
    if not result.aborted_transactions:
        return NONE_ABORTED
    found: defaultdict[int, list[range]] = defaultdict(list)
    for one in result.aborted_transactions:
        found[one.producer_id].append(range(one.first_offset, one.last_offset))
    return found


def has_records(envelope: Envelope, aborted: Aborted) -> bool:
    """Whether a batch holds records for the application: neither a marker nor an aborted one does."""
    if envelope.is_control:
        return False
    if not aborted or not envelope.is_pending:
        return True
    return not any(envelope.base_offset in offsets for offsets in aborted.get(envelope.producer_id, ()))


def readable_end(result: pb.PartitionFetchResult, high_watermark: int) -> int:
    """The end of what this reader may read: the last stable offset if the answer states one."""
    return result.last_stable_offset if result.HasField("last_stable_offset") else high_watermark
