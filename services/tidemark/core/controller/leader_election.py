# SPDX-License-Identifier: Apache-2.0
"""Who leads, and who is in sync, after the set of brokers changed (rules C2, C6, E5, T2-T4, R4): short pure functions.

`decide` is level-triggered: it compares a leaderAndISR node with the brokers as they are and gives the node as it
should be. Given its own result it changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tidemark.model import NO_LEADER, BrokerEpoch, BrokerId, IsrEntry, LeaderAndIsr, LeaderEpoch

FIRST_EPOCH = LeaderEpoch(0)


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """The brokers as ZooKeeper and the heartbeats have them.

    Attributes:
        live: broker epoch of each registered broker.
        unclean_at: broker epoch of the last unclean registration of each broker that had one (rule T2).
        lost_at: of the last one of them that lacked a log directory, which spares nothing (rule T1).
        suspected: registered, and not answering heartbeats (rule C6).
    """

    live: Mapping[BrokerId, BrokerEpoch]
    unclean_at: Mapping[BrokerId, BrokerEpoch] = field(default_factory=dict)
    lost_at: Mapping[BrokerId, BrokerEpoch] = field(default_factory=dict)
    suspected: frozenset[BrokerId] = frozenset()

    def is_live(self, broker: BrokerId) -> bool:
        """Whether it is registered; not if it has registered uncleanly since: then `live` is not the latest."""
        return broker in self.live and not self.is_void(IsrEntry(broker, self.live[broker]))

    def is_void(self, entry: IsrEntry, *, flushed: bool = False) -> bool:
        """Whether the broker may have lost what the entry stands for (rule T2), which was `flushed` or just written."""
        lost_at = self.lost_at if flushed else self.unclean_at
        return entry.broker_epoch < lost_at.get(entry.broker_id, BrokerEpoch(-1))

    def is_present(self, entry: IsrEntry) -> bool:
        """Whether the broker lives in the very epoch in which it joined: a bounce is a failure and a return (C2)."""
        return self.live.get(entry.broker_id) == entry.broker_epoch


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One partition as the controller has it.

    Attributes:
        min_isr: m of rule R4, as the topic's settings and its replication factor have it now.
        state: its node; None: it has none yet.
        flushed: what was committed had been flushed by all in sync: flush.policy=group-commit throughout (rule T1).
        damaged: entries of replicas whose log was found damaged; out of ISR and ELR (rule T5).
        offline: brokers that live but cannot open their log of this partition; out of the ISR, not out of the ELR.
        refused_epoch: the leader refused to lead in this leader epoch: it needs a higher one (rule E5).
        given_up_epoch: the leader of this leader epoch asks that another one in sync leads (rule R7).
    """

    assigned: tuple[BrokerId, ...]
    min_isr: int
    state: LeaderAndIsr | None
    unclean_allowed: bool = False
    flushed: bool = False
    damaged: frozenset[IsrEntry] = frozenset()
    offline: frozenset[BrokerId] = frozenset()
    refused_epoch: LeaderEpoch | None = None
    given_up_epoch: LeaderEpoch | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The node as it should be, brokers whose epoch the write must check (T2), and whether it elected uncleanly.

    `losses`: what an unclean election may lose, where it is known (see `Observed`); `unheard`: assigned replicas that
    did not say what they hold.
    """

    state: LeaderAndIsr
    checked: Mapping[BrokerId, BrokerEpoch] = field(default_factory=dict)
    unclean: bool = False
    losses: Mapping[str, int] = field(default_factory=dict)
    unheard: tuple[BrokerId, ...] = ()


def losses_of(last_epoch: int, log_end_offset: int, high_watermark: int) -> Mapping[str, int]:
    """What an unclean election of this log may lose, of what is known to have been committed (rule T4)."""
    return {
        "last_epoch": last_epoch,
        "log_end_offset": log_end_offset,
        "high_watermark": high_watermark,
        "records_maybe_lost": max(0, high_watermark - log_end_offset),
    }


def decide(partition: PartitionFacts, brokers: BrokerFacts) -> Decision | None:
    """The next node of a partition; None when it is as it should be."""
    if partition.state is None:
        return initial(partition, brokers)
    min_isr = partition.min_isr
    isr = _without_suspected(_surviving_isr(partition, brokers), min_isr, brokers)
    elr = _elr_after(partition, brokers, isr)
    leader = _leader_from_isr(partition, brokers, isr)
    if leader is not None:
        return _changed(partition, brokers, leader, isr, () if min_isr < partition.state.min_isr else elr)
    heir = _first(partition.assigned, {entry.broker_id for entry in elr} - partition.offline, brokers)
    if heir is not None:
        own = (IsrEntry(heir, brokers.live[heir]),)
        return _changed(partition, brokers, heir, own, _elr_beside(elr, own, min_isr))
    return _without_trusted(partition, brokers, elr)


def settle(
    partition: PartitionFacts, brokers: BrokerFacts, target: tuple[BrokerId, ...], min_isr: int, *, fences: bool
) -> Decision | None:
    """The seventh step of a move (rule M1): those of its target who are in sync are the ISR, one of them leads, and
    `min_isr` is the target's; None while none of them lives.

    `fences`: in a new leader epoch even where the leader stays, so that what it was told in the old one,
    or has under way there, takes nobody back in.
    """
    old = partition.state
    assert old is not None
    isr = tuple(entry for entry in old.isr if entry.broker_id in target)
    in_sync = {entry.broker_id for entry in isr}
    leader = old.leader if old.leader in in_sync else _first(target, in_sync, brokers)
    if leader is None:
        return None
    elr = tuple(entry for entry in old.elr if entry.broker_id in target)
    ended = old.leader_epoch if fences else partition.refused_epoch
    aimed = replace(partition, min_isr=min_isr, refused_epoch=ended)
    return _changed(aimed, brokers, leader, isr, _elr_beside(elr, isr, min_isr))


def initial(partition: PartitionFacts, brokers: BrokerFacts) -> Decision | None:
    """A new partition: every live assigned replica is in sync (but rule C6), the first one leads; None: none lives."""
    alive = [broker for broker in partition.assigned if brokers.is_live(broker)]
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
        and entry.broker_id not in partition.offline
    )


def _without_suspected(isr: tuple[IsrEntry, ...], min_isr: int, brokers: BrokerFacts) -> tuple[IsrEntry, ...]:
    """Rule C6: a suspected member leaves where at least m others stay, and stays where they would not."""
    trusted = tuple(entry for entry in isr if entry.broker_id not in brokers.suspected)
    return trusted if len(trusted) >= max(min_isr, 1) else isr


def _elr_after(partition: PartitionFacts, brokers: BrokerFacts, isr: tuple[IsrEntry, ...]) -> tuple[IsrEntry, ...]:
    """Rule T3: below m, whoever leaves is remembered; at m or more nobody is."""
    assert partition.state is not None
    old = partition.state
    trusted = [
        entry
        for entry in (*old.elr, *old.isr)
        if not brokers.is_void(entry, flushed=partition.flushed) and entry not in partition.damaged
    ]
    return _elr_beside(tuple(trusted), isr, partition.min_isr)


def _elr_beside(elr: tuple[IsrEntry, ...], isr: tuple[IsrEntry, ...], min_isr: int) -> tuple[IsrEntry, ...]:
    if len(isr) >= min_isr:
        return ()
    in_sync = {entry.broker_id for entry in isr}
    latest = {entry.broker_id: entry for entry in elr if entry.broker_id not in in_sync}
    return tuple(latest.values())


def _leader_from_isr(partition: PartitionFacts, brokers: BrokerFacts, isr: tuple[IsrEntry, ...]) -> BrokerId | None:
    """The old leader while it may and will go on, else the first assigned replica in sync; the unsuspected first."""
    assert partition.state is not None
    in_sync = {entry.broker_id for entry in isr}
    trusted = in_sync - brokers.suspected
    old_leader = partition.state.leader
    if partition.given_up_epoch == partition.state.leader_epoch:
        heir = _first(partition.assigned, trusted - {old_leader}, brokers)
        if heir is not None:
            return heir
    if old_leader in trusted or (old_leader in in_sync and not trusted):
        return old_leader
    return _first(partition.assigned, in_sync, brokers)


def _first(assigned: tuple[BrokerId, ...], wanted: set[BrokerId], brokers: BrokerFacts) -> BrokerId | None:
    """The first assigned replica of those wanted that lives; the unsuspected first."""
    alive = [broker for broker in assigned if broker in wanted and brokers.is_live(broker)]
    return next((broker for broker in alive if broker not in brokers.suspected), alive[0] if alive else None)


def _without_trusted(partition: PartitionFacts, brokers: BrokerFacts, elr: tuple[IsrEntry, ...]) -> Decision | None:
    """Rule T4: no live replica is trusted, so the partition stays offline; `unclean_election` may elect one.

    A single replica needs no choice, and no leave once its entry is void.
    """
    assert partition.state is not None
    old = partition.state
    if len(partition.assigned) == 1 and (partition.unclean_allowed or not elr):
        heir = _first(partition.assigned, set(partition.assigned) - partition.offline, brokers)
        if heir is not None:
            return elect_uncleanly(partition, brokers, heir)
    last_known = old.last_known
    if old.leader != NO_LEADER:
        last_known = tuple(entry for entry in old.isr if entry.broker_id == old.leader) or old.last_known
    epoch = old.leader_epoch if old.leader == NO_LEADER else LeaderEpoch(old.leader_epoch + 1)
    state = replace(
        old, leader=NO_LEADER, leader_epoch=epoch, isr=(), elr=elr, last_known=last_known, min_isr=partition.min_isr
    )
    return None if state == old else Decision(state)


def elect_uncleanly(partition: PartitionFacts, brokers: BrokerFacts, heir: BrokerId) -> Decision:
    """This live replica leads, whatever it lacks, and with it a new lineage begins (rule T4)."""
    assert partition.state is not None
    old = partition.state
    state = replace(
        old,
        leader=heir,
        leader_epoch=LeaderEpoch(old.leader_epoch + 1),
        isr=(IsrEntry(heir, brokers.live[heir]),),
        elr=(),
        last_known=(),
        lineage=old.lineage + 1,
    )
    return Decision(state, {heir: brokers.live[heir]}, unclean=True)


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
    epoch = old.leader_epoch if same else LeaderEpoch(old.leader_epoch + 1)
    state = replace(old, leader=leader, leader_epoch=epoch, isr=isr, elr=elr, last_known=(), min_isr=partition.min_isr)
    if state == old:
        return None
    return Decision(state, {} if same else {leader: brokers.live[leader]})
