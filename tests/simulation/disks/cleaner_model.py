# SPDX-License-Identifier: Apache-2.0
"""A model of the log cleaner for logs in memory, by rule L1: `storage.log.cleaner` does the same to files."""

from __future__ import annotations

from collections.abc import Set

from tidemark.core.producer_state import ProducerStates
from tidemark.record.envelope import Attributes, Batch

from tests.simulation.disks.machine import StoredLog
from tests.simulation.records import is_tombstone, key_of, values_of, without


def clean(log: StoredLog, end: int, *, now_s: int, horizon_s: int) -> None:
    """Keep only the latest record below `end` of each key; `end` is the end of a batch that is not the last one.

    `horizon_s`: the time at which tombstones that this pass finds first may be removed.
    """
    latest: dict[str, int] = {}
    for offset, value in enumerate(log.values[:end]):
        if value is not None:
            latest[key_of(value)] = offset
    kept = _kept(log, end)
    left: list[Batch] = []
    for batch in log.batches:
        cleaned: Batch | None = batch
        if batch.envelope.next_offset <= end:
            cleaned = _cleaned(batch, latest, kept, now_s=now_s, horizon_s=horizon_s)
            base = batch.envelope.base_offset
            log.values[base : batch.envelope.next_offset] = (
                values_of(cleaned) if cleaned is not None else [None] * (batch.envelope.next_offset - base)
            )
        if cleaned is not None:
            left.append(cleaned)
    log.batches = left
    log.flushed = max(log.flushed, end)
    log.cleanings += 1


def _kept(log: StoredLog, end: int) -> Set[int]:
    """Base offsets of batches that stay without any of their records."""
    kept: set[int] = set()
    producers, epoch, last = ProducerStates(), -1, -1
    for batch in log.batches:
        envelope = batch.envelope
        if envelope.next_offset > end:
            break
        last = envelope.base_offset
        if envelope.leader_epoch > epoch:
            kept.add(last)
            epoch = envelope.leader_epoch
        producers.observe(envelope)
    kept.add(last)
    for entry in producers.entries.values():
        kept.update(batch.first_offset for batch in entry.batches)
    return kept


def _cleaned(batch: Batch, latest: dict[str, int], kept: Set[int], *, now_s: int, horizon_s: int) -> Batch | None:
    envelope = batch.envelope
    due = envelope.has_delete_horizon and envelope.delete_horizon_s <= now_s
    gone, tombstones, left = set(), 0, 0
    for number, value in enumerate(values_of(batch)):
        if value is None:
            continue
        if latest[key_of(value)] > envelope.base_offset + number or (due and is_tombstone(value)):
            gone.add(number)
            continue
        left += 1
        tombstones += is_tombstone(value)
    if not left and envelope.base_offset not in kept:
        return None
    found = without(batch, gone) if gone else batch
    if tombstones and not envelope.has_delete_horizon:
        attributes = found.envelope.attributes | Attributes.DELETE_HORIZON
        found = found._replace(envelope=found.envelope._replace(attributes=attributes, delete_horizon_s=horizon_s))
    return found
