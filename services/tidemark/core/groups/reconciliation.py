# SPDX-License-Identifier: Apache-2.0
"""Step by step from what a member has to what it shall have (docs/groups.md, step G4; KIP-848).

A partition goes to its new reader only when the old one has said that it stopped, or is out of the group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tidemark.core.groups.state import NO_PARTITIONS, GroupPartition, Holding, MemberState, Partitions


def next_holding(
    holding: Holding,
    target: Partitions,
    target_epoch: int,
    *,
    owned: Partitions | None,
    joins: bool = False,
    is_free: Callable[[GroupPartition], bool],
) -> Holding:
    """What a member holds after a sign of life.

    Args:
        holding: now.
        target: what it shall read.
        target_epoch: of the assignment that the target is part of.
        owned: what the member says it has; None: it did not say.
        joins: it joins, with no answer of ours under way: what it does not own then it need not give up.
        is_free: whether nobody else holds a partition.
    """
    if holding.state is MemberState.UNREVOKED:
        if owned is None or owned & holding.revoking:
            return holding
        holding = replace(holding, revoking=NO_PARTITIONS)
        return _advance(holding, target, target_epoch, owned if joins else None, is_free)
    if holding.state is MemberState.STABLE and holding.epoch == target_epoch:
        return holding
    return _advance(holding, target, target_epoch, owned if joins else None, is_free)


def _advance(
    holding: Holding,
    target: Partitions,
    target_epoch: int,
    owns_no_more_than: Partitions | None,
    is_free: Callable[[GroupPartition], bool],
) -> Holding:
    """First give up, and only then come to the new epoch and take what is free."""
    kept, to_revoke = holding.assigned & target, holding.assigned - target
    if owns_no_more_than is not None:
        to_revoke &= owns_no_more_than
    if to_revoke:
        return replace(holding, state=MemberState.UNREVOKED, assigned=kept, revoking=to_revoke)
    wanted = target - kept
    free = frozenset(one for one in wanted if is_free(one))
    return replace(
        holding,
        epoch=target_epoch,
        previous_epoch=holding.epoch if holding.epoch != target_epoch else holding.previous_epoch,
        state=MemberState.STABLE if len(free) == len(wanted) else MemberState.UNRELEASED,
        assigned=kept | free,
        revoking=NO_PARTITIONS,
    )
