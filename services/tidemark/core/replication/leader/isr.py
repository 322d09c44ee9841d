# SPDX-License-Identifier: Apache-2.0
"""The in-sync replica set of one partition as its leader sees it, a change in flight included (rules R3, R4, R9, T3).

What ZooKeeper holds is either what was confirmed last or what was proposed since. So the high watermark is held by
the union of both, and what is promised to producers counts on the intersection only (KIP-497, KIP-966).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tidemark.model import BrokerId, IsrEntry, LeaderAndIsr, VersionedState


@dataclass(frozen=True, slots=True)
class Committed:
    """Nothing is in flight: ZooKeeper holds `confirmed`, unless somebody else wrote."""

    confirmed: VersionedState


@dataclass(frozen=True, slots=True)
class PendingExpand:
    """A write that adds `joining` is in flight, or its outcome is unknown."""

    confirmed: VersionedState
    proposed: LeaderAndIsr
    joining: tuple[IsrEntry, ...]


@dataclass(frozen=True, slots=True)
class PendingShrink:
    """A write that takes `leaving` out is in flight, or its outcome is unknown."""

    confirmed: VersionedState
    proposed: LeaderAndIsr
    leaving: tuple[IsrEntry, ...]


IsrState = Committed | PendingExpand | PendingShrink


def holding_high_watermark(isr: IsrState) -> frozenset[BrokerId]:
    """Members whose log ends bound the high watermark: the union (rule R3)."""
    members = frozenset(isr.confirmed.state.isr_ids)
    return members if isinstance(isr, Committed) else members.union(isr.proposed.isr_ids)


def surely_in_sync(isr: IsrState) -> frozenset[BrokerId]:
    """Members that a promise to a producer may count on: the intersection (rule R4)."""
    members = frozenset(isr.confirmed.state.isr_ids)
    return members if isinstance(isr, Committed) else members.intersection(isr.proposed.isr_ids)


def confirmed_enough(isr: IsrState) -> bool:
    """Whether the ISR that ZooKeeper has confirmed holds at least m members (rule R4)."""
    state = isr.confirmed.state
    return len(state.isr) >= state.min_isr


def shrink(
    confirmed: VersionedState, leaving: Collection[BrokerId], *, unassigned: Collection[BrokerId] = ()
) -> PendingShrink:
    """Take brokers out; those who leave fewer than m behind stay eligible (rule T3), but not `unassigned` ones: a
    replica that was moved away is being deleted."""
    state = confirmed.state
    assert state.leader not in leaving, "a leader never takes itself out"
    gone = tuple(entry for entry in state.isr if entry.broker_id in leaving)
    isr = tuple(entry for entry in state.isr if entry.broker_id not in leaving)
    assert gone, "a shrink takes somebody out"
    elr: tuple[IsrEntry, ...] = ()
    if len(isr) < state.min_isr:
        ids = {entry.broker_id for entry in gone}
        kept = (entry for entry in gone if entry.broker_id not in unassigned)
        elr = (*(entry for entry in state.elr if entry.broker_id not in ids), *kept)
    return PendingShrink(confirmed, replace(state, isr=isr, elr=elr), gone)


def expand(confirmed: VersionedState, joining: Sequence[IsrEntry]) -> PendingExpand:
    """Take caught-up replicas in; with m members or more nobody else is eligible any longer (rule T3)."""
    state = confirmed.state
    ids = {entry.broker_id for entry in joining}
    assert ids, "an expansion takes somebody in"
    assert ids.isdisjoint(state.isr_ids), "who joins is not in yet"
    isr = (*state.isr, *joining)
    elr: tuple[IsrEntry, ...] = ()
    if len(isr) < state.min_isr:
        elr = tuple(entry for entry in state.elr if entry.broker_id not in ids)
    return PendingExpand(confirmed, replace(state, isr=isr, elr=elr), tuple(joining))
