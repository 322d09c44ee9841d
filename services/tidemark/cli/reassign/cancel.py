# SPDX-License-Identifier: Apache-2.0
"""Gives moves up. One that was not named but found in the list may end before: that holds up no other."""

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
"""The replicas before their moves; none where nobody knew the partition."""


def give_up(
    client: AdminClient, named: Sequence[TopicPartition], found: Originals
) -> tuple[set[TopicPartition], dict[TopicPartition, TidemarkError]]:
    """Have the moves of these partitions given up; those of `found` that had ended by themselves, and refusals.

    Raises:
        TidemarkError: where any that was named is refused; nothing is given up then.
    """
    if named:
        raise_refused(client.alter_partition_reassignments(cancel=named).outcomes)
    outcomes = _give_up_found(client, sorted(found)) if found else []
    refused = {one.partition: one.error for one in outcomes if one.error is not None}
    ended = {partition for partition, error in refused.items() if _has_ended(error, found[partition])}
    return ended, {partition: error for partition, error in refused.items() if partition not in ended}


def _give_up_found(client: AdminClient, found: Sequence[TopicPartition]) -> Sequence[ReassignmentOutcome]:
    tries = 1
    while True:
        try:
            return client.alter_partition_reassignments(cancel=found, allow_partial=True).outcomes
        except TidemarkError as error:
            # A move ended after the service had looked, and it wrote nothing.
            if error.code is not ErrorCode.NO_REASSIGNMENT_IN_PROGRESS or tries == _TRIES_MAX:
                raise
        tries += 1


def ended_meanwhile(found: Originals, ended: Sequence[EndedReassignment]) -> set[TopicPartition]:
    """Those of `found` that were at their end when they were to be given up."""
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
    """What was refused, if anything was."""
    refused = [outcome.error for outcome in outcomes if outcome.error is not None]
    if refused:
        raise_all(refused)
