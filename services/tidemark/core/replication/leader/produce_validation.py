# SPDX-License-Identifier: Apache-2.0
"""Whether a leader takes a produce request at all, before it looks at sequences (rules R4, C7, P1)."""

from __future__ import annotations

from tidemark.core.producer_state import is_idempotent
from tidemark.core.replication.events import ProduceArrived
from tidemark.core.replication.leader.sequence_validation import Refuse
from tidemark.model import ErrorCode, LeaderAndIsr

ACKS_ALL = -1


def check_request(event: ProduceArrived, state: LeaderAndIsr, *, in_sync: int, full: bool, refuse: Refuse) -> None:
    """Raises what speaks against it.

    Args:
        event: the request.
        state: the partition's node as last confirmed.
        in_sync: replicas that surely are.
        full: there was no space a moment ago.
        refuse: makes the refusal.

    Raises:
        TidemarkError: PARTITION_SEALED, INVALID_ACKS, INVALID_REQUEST, DISK_FULL, NOT_ENOUGH_REPLICAS.
    """
    if state.sealed:
        raise refuse(ErrorCode.PARTITION_SEALED, "is being removed and takes no more records")
    if event.acks not in (ACKS_ALL, 0, 1):
        raise refuse(ErrorCode.INVALID_ACKS, f"cannot be produced to with acks {event.acks}: 0, 1 or -1 (all)")
    if not event.batches:
        raise refuse(ErrorCode.INVALID_REQUEST, "was sent no batch")
    if full:
        raise refuse(ErrorCode.DISK_FULL, "takes no records, as its leader's disk is full; try again")
    if event.acks == ACKS_ALL:
        if in_sync < state.min_isr:
            raise refuse(
                ErrorCode.NOT_ENOUGH_REPLICAS, f"has {in_sync} replicas in sync and needs {state.min_isr} for acks=all"
            )
    elif any(is_idempotent(batch.envelope) for batch in event.batches):
        raise refuse(ErrorCode.INVALID_ACKS, "takes batches of an idempotent producer with acks=all only")
