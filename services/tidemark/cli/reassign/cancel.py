# SPDX-License-Identifier: Apache-2.0
"""Cancels reassignments. One that was found by topic or --all may end first; the others are cancelled all the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tidemark.cli.reassign.submit import raise_all
from tidemark.core.reassignment.progress import EndedReassignment, ReassignmentOutcome
from tidemark.model import BrokerId, ErrorCode, TidemarkError, TopicPartition

if TYPE_CHECKING:
    from tidemark.client import AdminClient

_GONE: Final = frozenset({ErrorCode.UNKNOWN_TOPIC, ErrorCode.UNKNOWN_PARTITION})
_TRIES_MAX: Final = 5

Originals = Mapping[TopicPartition, tuple[BrokerId, ...]]
"""Replicas before each reassignment; empty if the partition was unknown."""


def cancel(
    client: AdminClient, named: Sequence[TopicPartition], found: Originals
) -> tuple[set[TopicPartition], dict[TopicPartition, TidemarkError]]:
    """Cancel these reassignments; returns those of `found` that had ended before, and the refusals.

    Raises:
        TidemarkError: one of `named` is refused; nothing is cancelled then.
    """
    if named:
        raise_refused(client.alter_partition_reassignments(cancel=named).outcomes)
    outcomes = _cancel_found(client, sorted(found)) if found else []
    refused = {one.partition: one.error for one in outcomes if one.error is not None}
    ended = {partition for partition, error in refused.items() if _has_ended(error, found[partition])}
    return ended, {partition: error for partition, error in refused.items() if partition not in ended}


def _cancel_found(client: AdminClient, found: Sequence[TopicPartition]) -> Sequence[ReassignmentOutcome]:
    tries = 1
    while True:
        try:
            return client.alter_partition_reassignments(cancel=found, allow_partial=True).outcomes
        except TidemarkError as error:
            # One of them ended during the call, so the service cancelled none.
            if error.code is not ErrorCode.NO_REASSIGNMENT_IN_PROGRESS or tries == _TRIES_MAX:
                raise
        tries += 1


def ended_meanwhile(found: Originals, ended: Sequence[EndedReassignment]) -> set[TopicPartition]:
    """Reassignments of `found` that completed before the cancellation."""
    return {
        one.partition
        for one in ended
        if one.partition in found
        and tuple(one.replicas) != found[one.partition]
        and (one.error is None or _has_ended(one.error, found[one.partition]))
    }


def _has_ended(error: TidemarkError, original: tuple[BrokerId, ...]) -> bool:
    gone = error.code in _GONE and bool(original)
    return gone or error.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def raise_refused(outcomes: Sequence[ReassignmentOutcome]) -> None:
    """Raise the refusals among the outcomes, if any."""
    refused = [outcome.error for outcome in outcomes if outcome.error is not None]
    if refused:
        raise_all(refused)
