# SPDX-License-Identifier: Apache-2.0
"""The ISR of one partition in the view of its leader, with a change in flight (rules R3, R4, R9, T3).

ZooKeeper holds either the confirmed ISR or the proposed one. So the union of both bounds the high watermark, and
acknowledgements count on the intersection only (KIP-497, KIP-966).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from tidemark.model import BrokerId, IsrEntry, LeaderAndIsr, VersionedState

CONTROLLER_MS: Final = 8_000
"""Time for the controller to remove a broker from thousands of ISRs. With the default lag time it changes nothing."""


@dataclass(frozen=True, slots=True)
class Committed:
    """No change is in flight: ZooKeeper holds `confirmed`, unless another writer has changed the node."""

    confirmed: VersionedState


@dataclass(frozen=True, slots=True)
class PendingExpand:
    """A write that adds `joining` is in flight, or its outcome is unknown."""

    confirmed: VersionedState
    proposed: LeaderAndIsr
    joining: tuple[IsrEntry, ...]


@dataclass(frozen=True, slots=True)
class PendingShrink:
    """A write that removes `leaving` is in flight, or its outcome is unknown."""

    confirmed: VersionedState
    proposed: LeaderAndIsr
    leaving: tuple[IsrEntry, ...]


IsrState = Committed | PendingExpand | PendingShrink


def maximal_isr(isr: IsrState) -> frozenset[BrokerId]:
    """The union of both ISRs: the log ends of these members bound the high watermark (rule R3)."""
    ids = isr.confirmed.state.isr_ids
    return _union(ids, ids if isinstance(isr, Committed) else isr.proposed.isr_ids)


@lru_cache(1_024)
def _union(one: tuple[BrokerId, ...], another: tuple[BrokerId, ...]) -> frozenset[BrokerId]:
    return frozenset(one).union(another)


def minimal_isr(isr: IsrState) -> frozenset[BrokerId]:
    """The intersection of both ISRs: acknowledgements to producers count on these members only (rule R4)."""
    members = frozenset(isr.confirmed.state.isr_ids)
    return members if isinstance(isr, Committed) else members.intersection(isr.proposed.isr_ids)


def newest(isr: IsrState, newer: VersionedState | None) -> VersionedState:
    """The node as it is after the change in flight, without members that may lack a committed record.

    Args:
        newer: a later content of the node, from the controller; None: no later content.
    """
    state, version = isr.confirmed
    if isinstance(isr, PendingShrink):
        state = isr.proposed
    sure = minimal_isr(isr)
    if newer is not None and newer.version > version:
        state, version = newer
        sure = sure.intersection(newer.state.isr_ids)
    return VersionedState(replace(state, isr=tuple(one for one in state.isr if one.broker_id in sure)), version)


def confirmed_enough(isr: IsrState) -> bool:
    """Whether the confirmed ISR has at least `min_isr` members (rule R4)."""
    state = isr.confirmed.state
    return len(state.isr) >= state.min_isr


def expected_to_leave(state: LeaderAndIsr, suspected: frozenset[BrokerId]) -> frozenset[BrokerId]:
    """The suspected brokers, if the controller removes them: at least m other members stay (rule C6)."""
    if suspected and len(state.isr_ids) - len(suspected.intersection(state.isr_ids)) >= max(state.min_isr, 1):
        return suspected
    return frozenset()


def patience_ms(lag_max_ms: int, *, expected_to_leave: bool) -> int:
    """Time that a leader waits for a member without progress.

    The controller removes a suspected broker itself, and of the two writes only one succeeds. On a slow machine the
    controller takes seconds for thousands of partitions.
    """
    return lag_max_ms + max(lag_max_ms, CONTROLLER_MS) if expected_to_leave else lag_max_ms


def shrink(
    confirmed: VersionedState, leaving: Collection[BrokerId], *, unassigned: Collection[BrokerId] = ()
) -> PendingShrink:
    """Remove brokers from the ISR.

    If fewer than `min_isr` members stay, those that leave stay eligible for election (ELR, rule T3). `unassigned`
    brokers never do, since their replicas are being deleted.
    """
    state = confirmed.state
    assert state.leader not in leaving, "a leader never removes itself"
    gone = tuple(entry for entry in state.isr if entry.broker_id in leaving)
    isr = tuple(entry for entry in state.isr if entry.broker_id not in leaving)
    assert gone, "a shrink removes a member"
    elr: tuple[IsrEntry, ...] = ()
    if len(isr) < state.min_isr:
        ids = {entry.broker_id for entry in gone}
        kept = (entry for entry in gone if entry.broker_id not in unassigned)
        elr = (*(entry for entry in state.elr if entry.broker_id not in ids), *kept)
    return PendingShrink(confirmed, replace(state, isr=isr, elr=elr), gone)


def expand(confirmed: VersionedState, joining: Sequence[IsrEntry]) -> PendingExpand:
    """Add caught-up replicas to the ISR; from `min_isr` members on the ELR is empty (rule T3)."""
    entries = tuple(joining)
    return PendingExpand(confirmed, _expanded(confirmed.state, entries), entries)


@lru_cache(1_024)
def _expanded(state: LeaderAndIsr, joining: tuple[IsrEntry, ...]) -> LeaderAndIsr:
    """Thousands of partitions have the same state when a broker returns."""
    ids = {entry.broker_id for entry in joining}
    assert ids, "an expansion adds a member"
    assert ids.isdisjoint(state.isr_ids), "a joining broker is not a member yet"
    isr = (*state.isr, *joining)
    elr: tuple[IsrEntry, ...] = ()
    if len(isr) < state.min_isr:
        elr = tuple(entry for entry in state.elr if entry.broker_id not in ids)
    return replace(state, isr=isr, elr=elr)


@lru_cache(1_024)
def others_and_outside(
    me: BrokerId, members: frozenset[BrokerId], confirmed: tuple[BrokerId, ...], assigned: tuple[BrokerId, ...]
) -> tuple[tuple[BrokerId, ...], frozenset[BrokerId]]:
    """The members without the leader `me`, sorted, and the assigned brokers outside the confirmed ISR.

    Thousands of partitions have the same brokers.
    """
    assert me in members, "a leader is in its ISR"
    return tuple(sorted(members - {me})), frozenset(assigned).difference(confirmed, (me,))
