# SPDX-License-Identifier: Apache-2.0
"""The last leaderAndISR of a partition whose node was damaged or deleted, from the replicas that hold it (rule Z4).

The leader of the newest leader epoch knows the newest ISR, and each member of that ISR has every committed record. So
the rule requires two proofs: this leader has answered, and no later leader epoch can have committed a record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from tidemark.core.messages import HeldState
from tidemark.model import NO_EPOCH, NO_LEADER, BrokerId, IsrEntry, LeaderAndIsr, LeaderEpoch, VersionedState

EPOCHS_ABOVE: Final = 100
"""Distance of a rebuilt state's leader epoch from the newest known one. A silent replica may know of later leader
epochs without committed records, and no leader epoch may have two leaders.
"""

Known = tuple[VersionedState, LeaderEpoch]
"""The state that this controller read or wrote last, and the highest leader epoch that it decided on."""


class Memory(NamedTuple):
    """The last known state of a partition, as far as this controller knows it.

    Attributes:
        known: content of the node; None: this controller has read no content, or only one older than replicas know.
        proven: a replica has refused a command, since it knows of this leader epoch.
        older: a node of up to this leader epoch was set back manually.
    """

    known: Known | None = None
    proven: LeaderEpoch = NO_EPOCH
    older: LeaderEpoch = NO_EPOCH


def overwritten(known: Known | None, damaged_version: int) -> LeaderAndIsr | None:
    """The content that one damaging write replaced; None: not known. A write raises the version by one."""
    if known is None or damaged_version < 0 or known[0].version + 1 != damaged_version:
        return None
    return known[0].state


def rebuilt(
    assigned: Sequence[BrokerId],
    min_isr: int,
    known: Known | None,
    held: Mapping[BrokerId, HeldState],
    proven: LeaderEpoch = NO_EPOCH,
) -> LeaderAndIsr | str:
    """The state to write, without a leader: its ISR is proven, and the ordinary election follows. A text: why not.

    Args:
        min_isr: `min.insync.replicas` of the topic's settings.
        known: the state that this controller knows; None: it never read the node.
        held: the states that live assigned replicas know.
        proven: a replica has refused a command, since it knows of this leader epoch. A replica that knows only an
            earlier epoch may have restarted, and may know this epoch from the node that was set back.
    """
    held = {broker: one for broker, one in held.items() if one.command.state.leader_epoch >= proven}
    newest = max((one.command.state.leader_epoch for one in held.values()), default=NO_EPOCH)
    if not held:
        return "no live replica knows the state"
    if known is not None and known[0].state.leader_epoch > newest:
        return f"no live replica knows of leader epoch {known[0].state.leader_epoch}"
    leaders = {one.command.state.leader for one in held.values() if one.command.state.leader_epoch == newest}
    if len(leaders) > 1:
        return f"the replicas know different leaders of leader epoch {newest}"
    states = [one.command.state for one in held.values() if one.command.state.leader_epoch == newest]
    led = next((one for one in held.values() if one.led and one.command.state.leader_epoch == newest), None)
    if led is None:
        leader = states[0].leader
        if leader == NO_LEADER:
            return _without_leader(assigned, min_isr, known, held, states)
        return f"the newest leader, broker {leader} of leader epoch {newest}, is down or has restarted since"
    why = _why_not_newest(assigned, min_isr, known, held, led.command.state)
    return why or _above(led.command.state, newest)


def untrusted(
    assigned: Sequence[BrokerId], min_isr: int, newest: LeaderEpoch, entries: Sequence[IsrEntry]
) -> LeaderAndIsr:
    """A state in which no replica is eligible. An unclean election follows if the topic allows it (rule T4).

    Args:
        newest: the highest leader epoch that a replica or the controller knows.
        entries: the assigned replicas with their present broker epochs.
    """
    # A lineage starts with an election, so that it never exceeds the leader epoch.
    epoch = LeaderEpoch(newest + EPOCHS_ABOVE)
    return LeaderAndIsr(
        leader=NO_LEADER,
        leader_epoch=epoch,
        isr=(),
        last_known=tuple(entries),
        min_isr=min(min_isr, len(assigned)),
        lineage=epoch,
    )


def _without_leader(
    assigned: Sequence[BrokerId],
    min_isr: int,
    known: Known | None,
    held: Mapping[BrokerId, HeldState],
    states: Sequence[LeaderAndIsr],
) -> LeaderAndIsr | str:
    """The last state that was sent in a leader epoch without a leader: only the controller changes the node then."""
    newest = states[0].leader_epoch
    if len(set(states)) > 1:
        return f"the replicas know different states of leader epoch {newest}"
    return _why_not_newest(assigned, min_isr, known, held, states[0]) or _above(states[0], newest)


def _why_not_newest(
    assigned: Sequence[BrokerId],
    min_isr: int,
    known: Known | None,
    held: Mapping[BrokerId, HeldState],
    state: LeaderAndIsr,
) -> str | None:
    """Why a later leader epoch may have committed records; None: it cannot have any.

    In its term, only this controller begins leader epochs. This controller does not know leader epochs of an earlier
    term: then the replicas without an answer must be a minority, and too few to commit a record by themselves (rule
        R4).
    """
    if known is not None and known[1] == state.leader_epoch:
        return None
    silent = [broker for broker in assigned if broker not in held]
    enough = min(min_isr, state.min_isr, len(assigned))
    if len(silent) < enough and 2 * len(silent) < len(assigned):
        return None
    named = ", ".join(map(str, silent))
    return f"brokers {named} do not answer, or restarted since, and may hold acknowledged records of a later leader"


def _above(state: LeaderAndIsr, newest: LeaderEpoch) -> LeaderAndIsr:
    return replace(state, leader=NO_LEADER, leader_epoch=LeaderEpoch(newest + EPOCHS_ABOVE))
