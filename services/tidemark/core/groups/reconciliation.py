# SPDX-License-Identifier: Apache-2.0
"""Moves a member from its current to its target assignment (docs/groups.md, step G4; KIP-848).

A partition goes to its new member only after the old one has confirmed the revocation, or has left the group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tidemark.core.groups.state import NO_PARTITIONS, CurrentAssignment, GroupPartition, MemberState, Partitions


def next_assignment(
    current: CurrentAssignment,
    target: Partitions,
    target_epoch: int,
    *,
    owned: Partitions | None,
    joins: bool = False,
    is_free: Callable[[GroupPartition], bool],
) -> CurrentAssignment:
    """The current assignment of a member after a heartbeat.

    Args:
        current: the current assignment before.
        target: the target assignment of the member.
        target_epoch: group epoch of the target assignment.
        owned: partitions that the member reported; None: no report.
        joins: the member joins and no answer is in flight, so the member does not have to revoke partitions that it
            does not own.
        is_free: whether no other member holds a partition.
    """
    if current.state is MemberState.UNREVOKED:
        if owned is None or owned & current.revoking:
            return current
        current = replace(current, revoking=NO_PARTITIONS)
        return _advance(current, target, target_epoch, owned if joins else None, is_free)
    if current.state is MemberState.STABLE and current.epoch == target_epoch:
        return current
    return _advance(current, target, target_epoch, owned if joins else None, is_free)


def _advance(
    current: CurrentAssignment,
    target: Partitions,
    target_epoch: int,
    owns_no_more_than: Partitions | None,
    is_free: Callable[[GroupPartition], bool],
) -> CurrentAssignment:
    """Revoke first; only then enter the new epoch and take the free partitions."""
    kept, to_revoke = current.assigned & target, current.assigned - target
    if owns_no_more_than is not None:
        to_revoke &= owns_no_more_than
    if to_revoke:
        return replace(current, state=MemberState.UNREVOKED, assigned=kept, revoking=to_revoke)
    wanted = target - kept
    free = frozenset(one for one in wanted if is_free(one))
    return replace(
        current,
        epoch=target_epoch,
        previous_epoch=current.epoch if current.epoch != target_epoch else current.previous_epoch,
        state=MemberState.STABLE if len(free) == len(wanted) else MemberState.UNRELEASED,
        assigned=kept | free,
        revoking=NO_PARTITIONS,
    )
