# SPDX-License-Identifier: Apache-2.0
"""Comparing a log with its copy in another log directory (rule M3)."""

from __future__ import annotations

from typing import NamedTuple

from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.core.producer_state import ProducerStates
from tidemark.model import NO_EPOCH, EpochEntry, Offset


class LogState(NamedTuple):
    """The state of a log in addition to its batches, at one instant; equal in a complete copy."""

    log_start_offset: Offset
    log_end_offset: Offset
    epochs: tuple[EpochEntry, ...]
    producers: ProducerStates


def shared_end(copy: LogState, log: LogState) -> Offset:
    """End (exclusive) of the records that a copy found after a start shares with its log.

    A leader epoch and an offset identify a record, so the records agree where the epochs agree (as in rule E2).
    """
    epochs, end = LeaderEpochs(copy.epochs), copy.log_end_offset
    theirs = LeaderEpochs(log.epochs)
    while (latest := epochs.latest) >= 0 and end > copy.log_start_offset:
        answer = theirs.end_of(latest, log.log_end_offset)
        own = epochs.end_of(answer.leader_epoch, end)
        end = Offset(min(end, answer.start_offset, own.start_offset))
        if own.leader_epoch == answer.leader_epoch:
            break
        epochs.truncate_from_end(end)
    return Offset(min(end, log.log_end_offset))


def disagreement(copy: LogState, log: LogState) -> str | None:
    """The first difference between the epochs and producers of a copy and its log; None if there is no difference."""
    if (copy.log_start_offset, copy.log_end_offset) != (log.log_start_offset, log.log_end_offset):
        return f"it holds [{copy.log_start_offset}, {copy.log_end_offset})"
    epochs, copied = LeaderEpochs(log.epochs), LeaderEpochs(copy.epochs)
    copied.truncate_from_start(log.log_start_offset)
    for entry in copied.entries:
        at = Offset(max(entry.start_offset, log.log_start_offset))
        epoch = copied.epoch_at(at)
        if epoch not in (NO_EPOCH, epochs.epoch_at(at)) and at < log.log_end_offset:
            return f"it has leader epoch {epoch} at {at}"
    known = log.producers.entries
    for producer_id, found in copy.producers.entries.items():
        if producer_id in known and known[producer_id].batches[-1:] != found.batches[-1:]:
            return f"its last batch of producer {producer_id} differs"
    return None
