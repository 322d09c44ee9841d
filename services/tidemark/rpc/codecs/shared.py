# SPDX-License-Identifier: Apache-2.0
"""Lists of brokers, and states, in messages: thousands of partitions have the same few, and share one value of each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, cast

from tidemark.model import BrokerEpoch, BrokerId, IsrEntry, IsrReasons, LeaderAndIsr
from tidemark.v1 import record_pb2

STATES_KEPT: Final = 8192


def ids_from_proto(ids: Sequence[int]) -> tuple[BrokerId, ...]:
    """Decode broker ids, in their order."""
    return _shared_ids(tuple(ids)) if ids else ()


def entries_from_proto(entries: Sequence[record_pb2.IsrEntry]) -> tuple[IsrEntry, ...]:
    """Decode members of an ISR or ELR, in their order."""
    if not entries:
        return ()
    return _shared_entries(tuple([(entry.broker_id, entry.broker_epoch) for entry in entries]))


@lru_cache(STATES_KEPT)
def entries_to_proto(entries: tuple[IsrEntry, ...]) -> tuple[record_pb2.IsrEntry, ...]:
    """The messages of members of an ISR or ELR, to be copied, never changed."""
    return tuple([record_pb2.IsrEntry(broker_id=one.broker_id, broker_epoch=one.broker_epoch) for one in entries])


shared_state: Final = lru_cache(STATES_KEPT)(LeaderAndIsr)
"""The state with these attributes, in their order."""


def reasons_from_proto(reasons: Sequence[record_pb2.ReplicaReason]) -> IsrReasons:
    """Decode replicas that joined or left an ISR."""
    return _shared_reasons(tuple([(one.broker_id, one.reason) for one in reasons])) if reasons else ()


def reasons_to_proto(reasons: IsrReasons) -> list[record_pb2.ReplicaReason]:
    """Encode replicas that joined or left an ISR."""
    return [record_pb2.ReplicaReason(broker_id=broker_id, reason=reason) for broker_id, reason in reasons]


@lru_cache(STATES_KEPT)
def _shared_ids(ids: tuple[int, ...]) -> tuple[BrokerId, ...]:
    return cast("tuple[BrokerId, ...]", ids)


@lru_cache(STATES_KEPT)
def _shared_reasons(pairs: tuple[tuple[int, str], ...]) -> IsrReasons:
    return cast("IsrReasons", pairs)


@lru_cache(STATES_KEPT)
def _shared_entries(pairs: tuple[tuple[int, int], ...]) -> tuple[IsrEntry, ...]:
    return tuple(IsrEntry(BrokerId(broker_id), BrokerEpoch(broker_epoch)) for broker_id, broker_epoch in pairs)
