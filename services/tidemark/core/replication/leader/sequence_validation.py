# SPDX-License-Identifier: Apache-2.0
"""Which batches of a produce request are new, and which are in the log already (rules P1, P2, P4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tidemark.core.producer_state import REMEMBERED_BATCHES, ProducerEntry, is_idempotent
from tidemark.core.replication.replica_log import ReplicaLog
from tidemark.model import ErrorCode, Offset, TidemarkError
from tidemark.record.envelope import Batch

Refuse = Callable[[ErrorCode, str], TidemarkError]
"""Makes the refusal of a partition: a code, and the sentence after its name."""


class Retried(NamedTuple):
    """What of a request is in the log already: from the first such record to the end of the last (exclusive)."""

    base_offset: Offset
    end_offset: Offset


def check_sequences(
    log: ReplicaLog, epoch_start_offset: Offset, batches: tuple[Batch, ...], now_ms: int, refuse: Refuse
) -> tuple[tuple[Batch, ...], Retried | None]:
    """The batches to append, and what there is to wait for because of duplicates. All or nothing.

    Raises:
        TidemarkError: what `ProducerStates.check` refuses; INVALID_REQUEST for a sixth batch in flight.
    """
    producers = log.producers
    if not any(is_idempotent(batch.envelope) for batch in batches):
        return batches, None
    undo: dict[int, ProducerEntry | None] = {}
    fresh: list[Batch] = []
    first: Offset | None = None
    end: int = 0
    next_offset: int = log.next_offset
    try:
        for batch in batches:
            envelope = batch.envelope
            duplicate = producers.check(envelope)
            if duplicate is not None:
                first = duplicate.first_offset if first is None else first
                end = max(end, duplicate.last_offset + 1)
                continue
            fresh.append(batch)
            if is_idempotent(envelope):
                entry = producers.entry(envelope.producer_id)
                _check_in_flight(log, epoch_start_offset, entry, refuse)
                undo.setdefault(envelope.producer_id, entry)
                producers.observe(envelope._replace(base_offset=next_offset), now_ms)
            next_offset += envelope.last_offset_delta + 1
    finally:
        # the append itself folds them in; here they only had to be checked one after the other
        for producer_id, known in undo.items():
            producers.restore(producer_id, known)
    return tuple(fresh), None if first is None else Retried(first, Offset(end))


def _check_in_flight(log: ReplicaLog, epoch_start_offset: Offset, entry: ProducerEntry | None, refuse: Refuse) -> None:
    """Rule P1: a sixth batch would push out one that may still be sent again."""
    if entry is None or len(entry.batches) < REMEMBERED_BATCHES:
        return
    oldest = entry.batches[0]
    if oldest.first_offset >= epoch_start_offset and oldest.last_offset >= log.high_watermark:
        raise refuse(
            ErrorCode.INVALID_REQUEST,
            f"takes at most {REMEMBERED_BATCHES} unacknowledged batches of one idempotent producer",
        )
