# SPDX-License-Identifier: Apache-2.0
"""Leader election and ISR changes after the set of brokers changed (rules C2, C6, E5, T2-T4, R4): pure functions.

`decide` is level-triggered: it compares a leaderAndISR node with the present brokers and returns the wanted node.
Applied to its own result, it makes no change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tidemark.model import NO_LEADER, BrokerEpoch, BrokerId, IsrEntry, LeaderAndIsr, LeaderEpoch

FIRST_EPOCH = LeaderEpoch(0)


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """The brokers as ZooKeeper and heartbeats show them.

    Attributes:
        live: broker epoch of each registered broker.
        unclean_at: broker epoch of the last unclean registration of each broker that had one (rule T2).
        lost_at: broker epoch of the last unclean registration with a missing log directory (rule T1).
        crashed_at: broker epoch of the last registration of each broker after a stop that was not clean (rule T7).
        suspected: registered, and not answering heartbeats (rule C6).
        unheard: registered before this controller was elected, and without an answer to it; not elected (rule C9).
        awaited: the brokers of `unheard` whose first heartbeat is not answered and has not failed yet.
    """

    live: Mapping[BrokerId, BrokerEpoch]
    unclean_at: Mapping[BrokerId, BrokerEpoch] = field(default_factory=dict)
    lost_at: Mapping[BrokerId, BrokerEpoch] = field(default_factory=dict)
    crashed_at: Mapping[BrokerId, BrokerEpoch] = field(default_factory=dict)
    suspected: frozenset[BrokerId] = frozenset()
    unheard: frozenset[BrokerId] = frozenset()
    awaited: frozenset[BrokerId] = frozenset()

    def is_live(self, broker: BrokerId) -> bool:
        """Whether the broker is registered. If the broker has registered uncleanly since, `live` is outdated: False."""
        return broker in self.live and not self.is_void(IsrEntry(broker, self.live[broker]))

    def is_void(self, entry: IsrEntry, *, flushed: bool = False) -> bool:
        """Whether the broker may have lost records of this entry (rule T2); `flushed`: the records had been flushed."""
        lost_at = self.lost_at if flushed else self.unclean_at
        return entry.broker_epoch < lost_at.get(entry.broker_id, BrokerEpoch(-1))

    def has_crashed(self, entry: IsrEntry) -> bool:
        """Whether the broker was not stopped cleanly since this entry: the end of its log is in doubt (rule T7)."""
        return entry.broker_epoch < self.crashed_at.get(entry.broker_id, BrokerEpoch(-1))

    def is_present(self, entry: IsrEntry) -> bool:
        """Whether the broker is live in the broker epoch of this entry: a restart counts as a failure (rule C2)."""
        return self.live.get(entry.broker_id) == entry.broker_epoch


class PartitionFacts(NamedTuple):
    """The facts of a partition that elections use. Each decision makes and compares them, so they are a tuple.

    Attributes:
        min_isr: m of rule R4, from the topic's settings and the replication factor.
        state: leaderAndISR; None: the node does not exist yet.
        flushed: every in-sync replica had flushed the committed records: flush.policy=group-commit from the first (T1).
        damaged: entries of replicas with a damaged log: removed from ISR and ELR (rule T5).
        cut: entries of replicas whose torn tail was cut off. These replicas leave the ISR, and stay in the ELR only if
            no other replica is eligible (rule T7).
        offline: live brokers that cannot open their log of this partition: removed from the ISR, kept in the ELR.
        refused_epoch: the leader refused this leader epoch and needs a higher one (rule E5).
        resigned_epoch: the leader of this leader epoch asks that another replica leads (rules R7, T6).
    """

    assigned: tuple[BrokerId, ...]
    min_isr: int
    state: LeaderAndIsr | None
    unclean_allowed: bool = False
    flushed: bool = False
    damaged: frozenset[IsrEntry] = frozenset()
    cut: frozenset[IsrEntry] = frozenset()
    offline: frozenset[BrokerId] = frozenset()
    refused_epoch: LeaderEpoch | None = None
    resigned_epoch: LeaderEpoch | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """A leaderAndISR to write, with the checks of the write.

    Attributes:
        state: the node to write.
        checked: brokers whose broker epoch the write must check (rule T2).
        unclean: the leader may lack committed records.
        losses: committed offsets that an unclean election may lose, as in `Observed`; empty: not known.
        unheard: assigned replicas that did not report their logs.
    """

    state: LeaderAndIsr
    checked: Mapping[BrokerId, BrokerEpoch] = field(default_factory=dict)
    unclean: bool = False
    losses: Mapping[str, int] = field(default_factory=dict)
    unheard: tuple[BrokerId, ...] = ()


def losses_of(last_epoch: int, log_end_offset: int, high_watermark: int) -> Mapping[str, int]:
    """The known committed offsets that an unclean election of this log may lose (rule T4)."""
    return {
        "last_epoch": last_epoch,
        "log_end_offset": log_end_offset,
        "high_watermark": high_watermark,
        "records_maybe_lost": max(0, high_watermark - log_end_offset),
    }


def decide(partition: PartitionFacts, brokers: BrokerFacts) -> Decision | None:
    """The next leaderAndISR of a partition; None: the present one is right."""
    if partition.state is None:
        return initial(partition, brokers)
    min_isr = partition.min_isr
    isr = _without_suspected(_surviving_isr(partition, brokers), min_isr, brokers)
    elr = _elr_after(partition, brokers, isr)
    leader = _leader_from_isr(partition, brokers, isr)
    if leader == partition.state.leader and partition.resigned_epoch == partition.state.leader_epoch:
        isr, elr, leader = _eligible_successor(partition, brokers, isr, elr)
    if leader is not None:
        return _changed(partition, brokers, leader, isr, () if min_isr < partition.state.min_isr else elr)
    elr = _elr_after(partition, brokers, ())
    successor = _leader_from_elr(partition, brokers, elr)
    if successor is not None:
        return _elected_from_elr(partition, brokers, successor, elr)
    return _without_trusted(partition, brokers, elr)


def awaits_answer(partition: PartitionFacts, brokers: BrokerFacts) -> bool:
    """Whether the decision waits until an inherited broker answers its first heartbeat, or fails to (rule C9)."""
    if brokers.awaited.isdisjoint(partition.assigned):
        return False
    if partition.state is None:
        return True
    isr = _without_suspected(_surviving_isr(partition, brokers), partition.min_isr, brokers)
    leader = _leader_from_isr(partition, brokers, isr)
    if leader is None:
        return _leader_from_elr(partition, brokers, _elr_after(partition, brokers, ())) is None
    return leader in brokers.awaited and leader != partition.state.leader


def candidates(partition: PartitionFacts, elr: tuple[IsrEntry, ...]) -> tuple[IsrEntry, ...]:
    """The entries of this ELR that may be elected cleanly, of live and other brokers."""
    return tuple(
        entry
        for entry in elr
        if entry not in partition.cut
        and entry.broker_id in partition.assigned
        and entry.broker_id not in partition.offline
    )


def elect_eligible(partition: PartitionFacts, brokers: BrokerFacts, successor: BrokerId) -> Decision | None:
    """This live candidate leads, after the logs of the candidates were compared (rule T7)."""
    return _elected_from_elr(partition, brokers, successor, _elr_after(partition, brokers, ()))


def settle(
    partition: PartitionFacts, brokers: BrokerFacts, target: tuple[BrokerId, ...], min_isr: int, *, fences: bool
) -> Decision | None:
    """Steps 5 to 7 of a reassignment (rule M1): the ISR shrinks to its members within the target; an in-sync member of
    the target leads.

    Args:
        partition: a partition with a state.
        brokers: the present brokers.
        target: RAR.
        min_isr: the target's.
        fences: begin a new leader epoch even where the leader stays. In the old epoch, an ISR write in flight or a
            leader that has not received this state yet could add a removed replica again.

    Returns:
        None while no in-sync member of the target is live.
    """
    old = partition.state
    assert old is not None
    isr = tuple(entry for entry in old.isr if entry.broker_id in target)
    in_sync = {entry.broker_id for entry in isr}
    leader = old.leader if old.leader in in_sync else _first(target, in_sync - brokers.unheard, brokers)
    if leader is None:
        return None
    elr = tuple(entry for entry in old.elr if entry.broker_id in target)
    ended = old.leader_epoch if fences else partition.refused_epoch
    aimed = partition._replace(min_isr=min_isr, refused_epoch=ended)
    return _changed(aimed, brokers, leader, isr, _elr_beside(elr, isr, min_isr))


def initial(partition: PartitionFacts, brokers: BrokerFacts) -> Decision | None:
    """A new partition: live assigned replicas are in sync, within rules C6, C9; the first one leads. None: no such
    replica.
    """
    alive = [broker for broker in partition.assigned if brokers.is_live(broker) and broker not in brokers.unheard]
    if not alive:
        return None
    leader = next((broker for broker in alive if broker not in brokers.suspected), alive[0])
    everyone = tuple(IsrEntry(broker, brokers.live[broker]) for broker in alive)
    isr = _without_suspected(everyone, partition.min_isr, brokers)
    state = LeaderAndIsr(leader=leader, leader_epoch=FIRST_EPOCH, isr=isr, min_isr=partition.min_isr)
    return Decision(state, {entry.broker_id: entry.broker_epoch for entry in isr})


def _surviving_isr(partition: PartitionFacts, brokers: BrokerFacts) -> tuple[IsrEntry, ...]:
    assert partition.state is not None
    return tuple(
        entry
        for entry in partition.state.isr
        if brokers.is_present(entry)
        and not brokers.is_void(entry, flushed=partition.flushed)
        and entry not in partition.damaged
        and entry not in partition.cut
        and entry.broker_id not in partition.offline
    )


def _without_suspected(isr: tuple[IsrEntry, ...], min_isr: int, brokers: BrokerFacts) -> tuple[IsrEntry, ...]:
    """Remove suspected members (rule C6), unless fewer than m others would stay."""
    trusted = tuple(entry for entry in isr if entry.broker_id not in brokers.suspected)
    return trusted if len(trusted) >= max(min_isr, 1) else isr


def _elr_after(partition: PartitionFacts, brokers: BrokerFacts, isr: tuple[IsrEntry, ...]) -> tuple[IsrEntry, ...]:
    """The ELR after a change of the ISR (rule T3).

    With fewer than m replicas in the ISR, replicas that left stay eligible; with m or more the ELR is empty. A replica
    with a cut tail stays only if no other replica is in sync or eligible (rule T7).
    """
    assert partition.state is not None
    old = partition.state
    trusted = [
        entry
        for entry in (*old.elr, *old.isr)
        if not brokers.is_void(entry, flushed=partition.flushed) and entry not in partition.damaged
    ]
    whole = [entry for entry in trusted if entry not in partition.cut]
    return _elr_beside(tuple(whole if whole or isr else trusted), isr, partition.min_isr)


def _elr_beside(elr: tuple[IsrEntry, ...], isr: tuple[IsrEntry, ...], min_isr: int) -> tuple[IsrEntry, ...]:
    if len(isr) >= min_isr:
        return ()
    in_sync = {entry.broker_id for entry in isr}
    latest = {entry.broker_id: entry for entry in elr if entry.broker_id not in in_sync}
    return tuple(latest.values())


def _leader_from_isr(partition: PartitionFacts, brokers: BrokerFacts, isr: tuple[IsrEntry, ...]) -> BrokerId | None:
    """The leader from this ISR; None if no member may lead.

    The old leader stays while it is in the ISR, and neither resigned nor suspected. Without a live, unsuspected
    successor in the ISR the old leader also stays if it resigned, or if its whole ISR is suspected. Otherwise the first
    live member in assignment order leads, unsuspected members first. A broker that has not answered this controller
    is not elected (C9).
    """
    assert partition.state is not None
    old_leader = partition.state.leader
    silent = brokers.unheard - brokers.awaited - {old_leader}
    in_sync = {entry.broker_id for entry in isr} - silent
    trusted = in_sync - brokers.suspected
    if partition.resigned_epoch == partition.state.leader_epoch:
        successor = _first(partition.assigned, trusted - {old_leader}, brokers)
        if successor is not None:
            return successor
    if old_leader in trusted or (old_leader in in_sync and not trusted):
        return old_leader
    return _first(partition.assigned, in_sync, brokers)


def _leader_from_elr(partition: PartitionFacts, brokers: BrokerFacts, elr: tuple[IsrEntry, ...]) -> BrokerId | None:
    """The unsuspected live candidate that certainly has the end of its log, or the only candidate.

    None: no candidate is live, or several may come back and each live candidate has crashed: `LogComparisons` compares
    their logs first (rule T7).
    """
    eligible = candidates(partition, elr)
    if len(eligible) > 1:
        sure = {entry.broker_id for entry in eligible if not brokers.has_crashed(entry)}
        return _first(partition.assigned, sure - brokers.suspected - brokers.unheard, brokers)
    return _first(partition.assigned, {entry.broker_id for entry in eligible} - brokers.unheard, brokers)


def _elected_from_elr(
    partition: PartitionFacts, brokers: BrokerFacts, successor: BrokerId, elr: tuple[IsrEntry, ...]
) -> Decision | None:
    own = (IsrEntry(successor, brokers.live[successor]),)
    return _changed(partition, brokers, successor, own, _elr_beside(elr, own, partition.min_isr))


def _eligible_successor(
    partition: PartitionFacts, brokers: BrokerFacts, isr: tuple[IsrEntry, ...], elr: tuple[IsrEntry, ...]
) -> tuple[tuple[IsrEntry, ...], tuple[IsrEntry, ...], BrokerId]:
    """ISR, ELR and leader for a leader that resigned without a successor in the ISR (rule T6).

    An unsuspected eligible replica that has not crashed leads alone: it has every committed record (rules T3, T7).
    Without such a replica the partition does not change.
    """
    assert partition.state is not None
    sure = {entry.broker_id for entry in candidates(partition, elr) if not brokers.has_crashed(entry)}
    successor = _first(partition.assigned, sure - brokers.suspected - brokers.unheard, brokers)
    if successor is None:
        return isr, elr, partition.state.leader
    own = (IsrEntry(successor, brokers.live[successor]),)
    return own, _elr_beside((*elr, *isr), own, partition.min_isr), successor


def _first(assigned: tuple[BrokerId, ...], wanted: set[BrokerId], brokers: BrokerFacts) -> BrokerId | None:
    """The first assigned live replica among `wanted`; unsuspected ones first."""
    alive = [broker for broker in assigned if broker in wanted and brokers.is_live(broker)]
    return next((broker for broker in alive if broker not in brokers.suspected), alive[0] if alive else None)


def _without_trusted(partition: PartitionFacts, brokers: BrokerFacts, elr: tuple[IsrEntry, ...]) -> Decision | None:
    """Take the partition offline, since no live replica can be elected cleanly (rule T4).

    `LogComparisons` may elect a replica.

    A single replica is elected immediately: no comparison is needed, and no permission once its entry is void.
    """
    assert partition.state is not None
    old = partition.state
    if len(partition.assigned) == 1 and (partition.unclean_allowed or set(elr) <= partition.cut):
        successor = _first(partition.assigned, set(partition.assigned) - partition.offline - brokers.unheard, brokers)
        if successor is not None:
            return elect_uncleanly(partition, brokers, successor)
    last_known = old.last_known
    if old.leader != NO_LEADER:
        last_known = tuple(entry for entry in old.isr if entry.broker_id == old.leader) or old.last_known
    epoch = old.leader_epoch if old.leader == NO_LEADER else LeaderEpoch(old.leader_epoch + 1)
    state = replace(
        old, leader=NO_LEADER, leader_epoch=epoch, isr=(), elr=elr, last_known=last_known, min_isr=partition.min_isr
    )
    return None if state == old else Decision(state)


def elect_uncleanly(partition: PartitionFacts, brokers: BrokerFacts, successor: BrokerId) -> Decision:
    """Elect this live replica, even if its log lacks committed records; begins a new lineage (rule T4)."""
    assert partition.state is not None
    old = partition.state
    state = replace(
        old,
        leader=successor,
        leader_epoch=LeaderEpoch(old.leader_epoch + 1),
        isr=(IsrEntry(successor, brokers.live[successor]),),
        elr=(),
        last_known=(),
        lineage=old.lineage + 1,
    )
    return Decision(state, {successor: brokers.live[successor]}, unclean=True)


def _changed(
    partition: PartitionFacts,
    brokers: BrokerFacts,
    leader: BrokerId,
    isr: tuple[IsrEntry, ...],
    elr: tuple[IsrEntry, ...],
) -> Decision | None:
    """A write that keeps the leader keeps the leader epoch (R9), unless the leader cannot resume it (E5)."""
    assert partition.state is not None
    old = partition.state
    own = next(entry for entry in isr if entry.broker_id == leader)
    same = leader == old.leader and own in old.isr and partition.refused_epoch != old.leader_epoch
    if same and (isr, elr, (), partition.min_isr) == (old.isr, old.elr, old.last_known, old.min_isr):
        return None
    epoch = old.leader_epoch if same else LeaderEpoch(old.leader_epoch + 1)
    state = replace(old, leader=leader, leader_epoch=epoch, isr=isr, elr=elr, last_known=(), min_isr=partition.min_isr)
    return Decision(state, {} if same else {leader: brokers.live[leader]})
