# SPDX-License-Identifier: Apache-2.0
"""Checks a produce request, and separates its new batches from those in the log already (rules R4, C7, P1-P4, X1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tidemark.core.producer_state import ProducerEntry, RememberedBatch, has_producer_state, is_idempotent
from tidemark.core.replication.events import MarkerArrived, ProduceArrived
from tidemark.core.replication.replica_log import ReplicaLog
from tidemark.model import REMEMBERED_BATCHES, ErrorCode, LeaderAndIsr, Offset, TidemarkError
from tidemark.record.envelope import Batch
from tidemark.record.markers import EndMarker, read_marker

ACKS_ALL = -1

Refuse = Callable[[ErrorCode, str], TidemarkError]
"""Makes the error for a partition from a code and a text that follows the name of the partition."""


class DuplicateRange(NamedTuple):
    """Offsets of the batches that are in the log already: from the first record to the end of the last (exclusive).

    `append_time_us` is that of the first batch.
    """

    base_offset: Offset
    end_offset: Offset
    append_time_us: int


def check_marker_request(
    event: MarkerArrived, state: LeaderAndIsr, *, in_sync: int, full: bool, refuse: Refuse
) -> EndMarker:
    """The content of a marker that the leader can accept (rule X2).

    Raises:
        TidemarkError: PARTITION_SEALED, INVALID_REQUEST, DISK_FULL, NOT_ENOUGH_REPLICAS.
    """
    if state.sealed:
        raise refuse(ErrorCode.PARTITION_SEALED, "is being removed and accepts no more records")
    marker = read_marker(event.marker)
    if marker is None:
        raise refuse(ErrorCode.INVALID_REQUEST, "accepts the markers of transactions only")
    if full:
        raise refuse(ErrorCode.DISK_FULL, "accepts no records while the disk of its leader is full; retry")
    _check_in_sync(state, in_sync, refuse)
    return marker


def check_request(event: ProduceArrived, state: LeaderAndIsr, *, in_sync: int, full: bool, refuse: Refuse) -> None:
    """Raise the error of a request that the leader cannot accept.

    Args:
        event: the request.
        state: the last leaderAndISR that ZooKeeper confirmed.
        in_sync: for acks=all, the number of replicas in both the confirmed and the proposed ISR.
        full: the last append found no disk space, and the retry pause has not passed.
        refuse: makes the error.

    Raises:
        TidemarkError: PARTITION_SEALED, INVALID_ACKS, INVALID_REQUEST, INVALID_TXN_STATE, DISK_FULL,
            NOT_ENOUGH_REPLICAS.
    """
    if state.sealed:
        raise refuse(ErrorCode.PARTITION_SEALED, "is being removed and accepts no more records")
    if event.acks not in (ACKS_ALL, 0, 1):
        raise refuse(ErrorCode.INVALID_ACKS, f"cannot be produced to with acks {event.acks}: 0, 1 or -1 (all)")
    if not event.batches:
        raise refuse(ErrorCode.INVALID_REQUEST, "needs at least one batch in a request")
    _check_transactional(event, refuse)
    if full:
        raise refuse(ErrorCode.DISK_FULL, "accepts no records while the disk of its leader is full; retry")
    if event.acks == ACKS_ALL:
        _check_in_sync(state, in_sync, refuse)
    elif any(is_idempotent(batch.envelope) for batch in event.batches):
        raise refuse(ErrorCode.INVALID_ACKS, "accepts batches of an idempotent producer with acks=all only")


def _check_in_sync(state: LeaderAndIsr, in_sync: int, refuse: Refuse) -> None:
    if in_sync < state.min_isr:
        raise refuse(
            ErrorCode.NOT_ENOUGH_REPLICAS, f"has {in_sync} replicas in sync and needs {state.min_isr} for acks=all"
        )


def _check_transactional(event: ProduceArrived, refuse: Refuse) -> None:
    """Refuse pending batches without a transactional id and acks=all, and other batches with one (rule X1)."""
    for batch in event.batches:
        envelope = batch.envelope
        if envelope.is_control:
            raise refuse(ErrorCode.INVALID_REQUEST, "accepts control batches of coordinators only")
        if envelope.is_pending and not event.transactional_id:
            raise refuse(
                ErrorCode.INVALID_REQUEST, "accepts a batch of a transaction from a producer with a transactional id"
            )
        if envelope.is_pending and event.acks != ACKS_ALL:
            raise refuse(ErrorCode.INVALID_ACKS, "accepts batches of a transaction with acks=all only")
        if event.transactional_id and not envelope.is_pending:
            raise refuse(
                ErrorCode.INVALID_TXN_STATE,
                "accepts batches of a transaction only from a producer with a transactional id; begin one first",
            )


def check_sequences(
    log: ReplicaLog, epoch_start_offset: Offset, batches: tuple[Batch, ...], now_ms: int, refuse: Refuse
) -> tuple[tuple[Batch, ...], DuplicateRange | None]:
    """The batches to append, and the range of the duplicates, None without any. One invalid batch makes the leader
    refuse the request.

    Raises:
        TidemarkError: the errors of `ProducerStates.check`; INVALID_REQUEST for too many batches in flight.
    """
    producers = log.producers
    undo: dict[int, ProducerEntry | None] = {}
    fresh: list[Batch] = []
    first: RememberedBatch | None = None
    end: int = 0
    next_offset: int = log.next_offset
    try:
        for batch in batches:
            envelope = batch.envelope
            duplicate = producers.check(envelope)
            if duplicate is not None:
                first = first or duplicate
                end = max(end, duplicate.last_offset + 1)
                continue
            fresh.append(batch)
            if has_producer_state(envelope):
                entry = producers.entry(envelope.producer_id)
                _check_in_flight(log, epoch_start_offset, entry, refuse)
                if batch is not batches[-1]:
                    undo.setdefault(envelope.producer_id, entry)
                    producers.observe(envelope._replace(base_offset=next_offset), now_ms)
            next_offset += envelope.last_offset_delta + 1
    finally:
        # the append records the batches; here each batch was recorded only to check the next batch
        for producer_id, known in undo.items():
            producers.restore(producer_id, known)
    found = None if first is None else DuplicateRange(first.first_offset, Offset(end), first.append_time_us)
    return tuple(fresh), found


def _check_in_flight(log: ReplicaLog, epoch_start_offset: Offset, entry: ProducerEntry | None, refuse: Refuse) -> None:
    """Refuse a batch that would evict a batch that the producer may still retry (rule P1)."""
    if entry is None or len(entry.batches) < REMEMBERED_BATCHES:
        return
    oldest = entry.batches[0]
    if oldest.first_offset >= epoch_start_offset and oldest.last_offset >= log.high_watermark:
        raise refuse(
            ErrorCode.INVALID_REQUEST,
            f"accepts at most {REMEMBERED_BATCHES} unacknowledged batches of one idempotent producer",
        )
