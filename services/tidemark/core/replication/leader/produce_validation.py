# SPDX-License-Identifier: Apache-2.0
"""Checks a produce request before its sequence numbers (rules R4, C7, P1)."""

from __future__ import annotations

from tidemark.core.producer_state import is_idempotent
from tidemark.core.replication.events import ProduceArrived
from tidemark.core.replication.leader.sequence_validation import Refuse
from tidemark.model import ErrorCode, LeaderAndIsr

ACKS_ALL = -1


def check_request(event: ProduceArrived, state: LeaderAndIsr, *, in_sync: int, full: bool, refuse: Refuse) -> None:
    """Raise the error of a request that the leader cannot accept.

    Args:
        event: the request.
        state: the last leaderAndISR that ZooKeeper confirmed.
        in_sync: for acks=all, the number of replicas in both the confirmed and the proposed ISR.
        full: the last append found no disk space, and the retry pause has not passed.
        refuse: makes the error.

    Raises:
        TidemarkError: PARTITION_SEALED, INVALID_ACKS, INVALID_REQUEST, DISK_FULL, NOT_ENOUGH_REPLICAS.
    """
    if state.sealed:
        raise refuse(ErrorCode.PARTITION_SEALED, "is being removed and accepts no more records")
    if event.acks not in (ACKS_ALL, 0, 1):
        raise refuse(ErrorCode.INVALID_ACKS, f"cannot be produced to with acks {event.acks}: 0, 1 or -1 (all)")
    if not event.batches:
        raise refuse(ErrorCode.INVALID_REQUEST, "needs at least one batch in a request")
    if full:
        raise refuse(ErrorCode.DISK_FULL, "accepts no records while the disk of its leader is full; retry")
    if event.acks == ACKS_ALL:
        if in_sync < state.min_isr:
            raise refuse(
                ErrorCode.NOT_ENOUGH_REPLICAS, f"has {in_sync} replicas in sync and needs {state.min_isr} for acks=all"
            )
    elif any(is_idempotent(batch.envelope) for batch in event.batches):
        raise refuse(ErrorCode.INVALID_ACKS, "accepts batches of an idempotent producer with acks=all only")
