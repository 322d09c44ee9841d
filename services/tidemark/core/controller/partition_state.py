# SPDX-License-Identifier: Apache-2.0
"""The controller's state of one partition and of its topic's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tidemark.core.controller.events import LeadershipResigned, ReplicaFailed
from tidemark.core.controller.leader_election import PartitionFacts, losses_of
from tidemark.model import (
    NO_EPOCH,
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    IsrEntry,
    IsrReasons,
    LeaderAndIsr,
    LeaderEpoch,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
    VersionedState,
)

NO_LIMIT: Final = 1 << 30
_CONFLICTS_AT_ONCE: Final = 10
"""Number of successive conflicts without a back-off: enough to halve the largest group down to single writes."""
_RETRY_FIRST_MS: Final = 100
_RETRY_MAX_MS: Final = 2_000


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """The settings of a topic that elections use; `group_commit`: the topic was created with that flush.policy."""

    min_insync_replicas: int
    unclean_allowed: bool
    group_commit: bool = False


@dataclass(frozen=True, slots=True)
class Announcement:
    """Facts that the log and metrics get once a decision is written; `decided_ms`: start of the write."""

    kind: str
    fields: Mapping[str, str | int]
    decided_ms: int


@dataclass(slots=True)
class PartitionState:
    """The controller's state of one partition.

    Attributes:
        assigned: the assigned replicas that count: after step 7 of a reassignment only its target.
        policy: the topic's settings.
        state: leaderAndISR as last read or written; None: the node does not exist yet.
        version: version of that node; -1: the node does not exist yet.
        writing: the leaderAndISR whose write is in flight; None: no write is in flight. Invariant: no second write
            begins before the first is answered.
        reading: a read is in flight. Invariant: not while `writing`.
        outcome_unknown: a write failed or was not answered: replicas may lack the state that is read next.
        hinted: the leader reported an ISR change during a write or read that may not show that change.
        limit: how many writes one multi may hold, halved by each conflict (rule Z2).
        group: the size of the last multi that wrote this partition, to be halved.
        conflicts: number of successive failed writes; above `_CONFLICTS_AT_ONCE` the next write waits for a back-off.
        not_before_ms: the end of that back-off.
        epoch_floor: replicas know of this leader epoch; a new leader epoch is higher.
        older_epoch: a node of up to this leader epoch is older than the state that replicas know (rule Z4).
        refused_epoch: the leader refused to lead in this leader epoch (rule E5); None: it did not refuse the present
            leader epoch.
        resigned_epoch: the leader of this leader epoch resigned (rule R7); None: it did not resign, or no replica can
            replace it.
        resigned_ms: time when a leader last resigned; leadership does not circulate among slow disks.
        offline: brokers that could not open their log, with the broker epoch in which they reported that.
        replication_factor: the number of original replicas during a reassignment, else of the assigned replicas (rule
            R4).
        throttle_bytes_per_s: bytes per second of its reassignment (rule M2); 0: no limit.
        log_dirs: log directory by broker, as its reassignment names them (rule M3).
        damaged: see `PartitionFacts`, until a decision made with it is written.
        damage_decided: the damaged entries that the last decision used.
        cut: see `PartitionFacts`, until a decision that removes the entry is written.
        cut_removed: the entries of `cut` that the last decision removed; with a new lineage all of them.
        decided_epoch: leader epoch of the last decision; a node of that epoch or later shows that it was written.
        losses: the records that a single replica lacks that refused to lead (rule T4); empty: not known.
        isr_reasons: see `PartitionCommand`, of the present version.
        chosen: the leaderAndISR of the last decision, with its announcement; None: it is announced, or was never
            written.
    """

    partition: TopicPartition
    identity: ReplicaIdentity
    assigned: tuple[BrokerId, ...]
    policy: TopicPolicy
    state: LeaderAndIsr | None = None
    version: int = -1
    writing: LeaderAndIsr | None = None
    reading: bool = False
    outcome_unknown: bool = False
    hinted: bool = False
    limit: int = NO_LIMIT
    group: int = 1
    conflicts: int = 0
    not_before_ms: int = 0
    epoch_floor: LeaderEpoch = NO_EPOCH
    older_epoch: LeaderEpoch = NO_EPOCH
    refused_epoch: LeaderEpoch | None = None
    resigned_epoch: LeaderEpoch | None = None
    resigned_ms: int | None = None
    offline: frozenset[IsrEntry] = frozenset()
    replication_factor: int = 0
    throttle_bytes_per_s: int = 0
    log_dirs: Mapping[BrokerId, str] = field(default_factory=dict)
    damaged: frozenset[IsrEntry] = frozenset()
    damage_decided: frozenset[IsrEntry] = frozenset()
    cut: frozenset[IsrEntry] = frozenset()
    cut_removed: frozenset[IsrEntry] = frozenset()
    decided_epoch: LeaderEpoch = NO_EPOCH
    losses: Mapping[str, int] = field(default_factory=dict)
    isr_reasons: IsrReasons = ()
    chosen: tuple[LeaderAndIsr, Announcement] | None = None

    @property
    def busy(self) -> bool:
        """Whether a write or read is in flight; the next decision waits for its answer."""
        return self.writing is not None or self.reading

    def begin_write(self, state: LeaderAndIsr) -> None:
        """The write of this leaderAndISR begins."""
        self.writing, self.damage_decided, self.decided_epoch = state, self.damaged, state.leader_epoch
        kept = (*state.isr, *state.elr) if self.state is not None and self.state.lineage == state.lineage else ()
        self.cut_removed = self.cut.difference(kept)

    def take_announcement(self) -> Announcement | None:
        """The announcement of a decision that the node holds, once, after the node was written or read.

        A write without an answer may have been written. Its decision has this controller's epoch in it, so no other
        writer of the node can have written the same leader and leader epoch.
        """
        chosen, self.chosen = self.chosen, None
        if chosen is None or self.state is None:
            return None
        decided, announcement = chosen
        written = (self.state.leader, self.state.leader_epoch, self.state.controller_epoch)
        return announcement if written == (decided.leader, decided.leader_epoch, decided.controller_epoch) else None

    def write_succeeded(self, version: int, isr_reasons: IsrReasons = ()) -> None:
        """The write succeeded. A damaged replica may join the ISR again after it has fetched from the leader."""
        assert self.writing is not None
        self.state, self.version, self.writing = self.writing, version, None
        self.isr_reasons = isr_reasons
        self.limit, self.conflicts, self.not_before_ms = NO_LIMIT, 0, 0
        self.refused_epoch = None
        self._damage_is_over()

    def _damage_is_over(self) -> None:
        if self.damage_decided or self.cut_removed:
            self.damaged, self.losses = self.damaged - self.damage_decided, {}
            self.cut -= self.cut_removed
            self.damage_decided = self.cut_removed = frozenset()

    def write_failed(self, now_ms: int) -> None:
        """The write failed, or its outcome is unknown: read, decide again, and write in a smaller multi."""
        self.writing, self.reading, self.outcome_unknown = None, True, True
        self.limit = max(1, self.group // 2)
        self.conflicts += 1
        excess = self.conflicts - _CONFLICTS_AT_ONCE
        self.not_before_ms = 0 if excess <= 0 else now_ms + min(_RETRY_FIRST_MS << min(excess, 10), _RETRY_MAX_MS)

    def epoch_refused(self, error: TidemarkError) -> bool:
        """Note that the leader needs a higher leader epoch; False if it refused an epoch older than the present one."""
        assert self.state is not None
        highest = error.metadata.get("leader_epoch", "")
        if highest.isdecimal() and int(highest) < self.state.leader_epoch:
            return False
        if highest.isdecimal():
            self.epoch_floor = max(self.epoch_floor, LeaderEpoch(int(highest)))
        self.refused_epoch = self.state.leader_epoch
        return True

    def found_older(self, error: TidemarkError) -> bool:
        """Whether a replica knows a later leader than the node has: the node was set back manually (rule Z4)."""
        assert self.state is not None
        epoch, leader = (error.metadata.get(key, "") for key in ("known_leader_epoch", "known_leader"))
        if not epoch.isdecimal():
            return False
        known = LeaderEpoch(int(epoch))
        another = known == self.state.leader_epoch and leader not in (str(NO_LEADER), str(self.state.leader))
        if known <= self.state.leader_epoch and not another:
            return False
        self.epoch_floor = max(self.epoch_floor, known)
        # a write in flight was decided from the older state
        in_flight = NO_EPOCH if self.writing is None else self.writing.leader_epoch
        self.older_epoch = max(self.older_epoch, in_flight, known if another else LeaderEpoch(known - 1))
        self.forget_older()
        return True

    def forget_older(self) -> None:
        """Drop a state that is older than the state that replicas know, after the write in flight."""
        if self.writing is None and self.state is not None and self.state.leader_epoch <= self.older_epoch:
            self.state, self.version = None, -1

    def is_older(self, found: LeaderAndIsr) -> bool:
        """Whether a node is older than the state that this controller or a replica knows, by its leader epoch."""
        known = NO_EPOCH if self.state is None else self.state.leader_epoch
        return found.leader_epoch < known or found.leader_epoch <= self.older_epoch

    def damage_refused(self, broker: BrokerId, error: TidemarkError) -> None:
        """The leader refuses to lead with its damaged log. For a single replica, the refusal states the possible
        loss.
        """
        assert self.state is not None
        found = {entry for entry in (*self.state.isr, *self.state.elr) if entry.broker_id == broker}
        if error.metadata.get("cut") == "true":
            self.cut |= found
        else:
            self.damaged |= found
        reported = [error.metadata.get(key, "") for key in ("last_epoch", "log_end_offset", "high_watermark")]
        if len(self.assigned) == 1 and all(one.removeprefix("-").isdecimal() for one in reported):
            self.losses = losses_of(*map(int, reported))

    def replica_reported(self, event: LeadershipResigned | ReplicaFailed, now_ms: int, pause_ms: int) -> bool:
        """The leader resigns (rule R7), at most once in `pause_ms`, or a replica's log has failed.

        Returns:
            False where that is known, or of another leader epoch: replicas open their logs again for each.
        """
        state = self.state
        if state is not None and isinstance(event, ReplicaFailed) and event.damaged:
            return self._found_damaged(event, state)
        if state is None or state.leader_epoch != event.leader_epoch:
            return False
        if isinstance(event, ReplicaFailed):
            entry = IsrEntry(event.broker, event.broker_epoch)
            known, self.offline = self.offline, self.offline | {entry}
            return entry not in known
        if state.leader != event.broker or (self.resigned_ms is not None and now_ms - self.resigned_ms < pause_ms):
            return False
        self.resigned_epoch, self.resigned_ms = event.leader_epoch, now_ms
        return True

    def _found_damaged(self, event: ReplicaFailed, state: LeaderAndIsr) -> bool:
        """A broker reports damage from before its registration. Entries of later broker epochs are not concerned."""
        own = [one for one in (*state.isr, *state.elr) if one.broker_id == event.broker]
        lost = {one for one in own if one.broker_epoch < event.broker_epoch}
        known = self.cut if event.cut else self.damaged
        if event.cut:
            self.cut |= lost
        else:
            self.damaged |= lost
        return not lost <= known

    def is_news(self, found: VersionedState) -> bool:
        """Whether the node differs from the one known. After a failed write, or with a higher leader epoch, a lower
        version means that the node was deleted and created again."""
        if self.state is not None and found.state.leader_epoch > self.state.leader_epoch:
            return True
        return found.version > self.version or (self.outcome_unknown and found.version < self.version)

    def adopt(self, found: VersionedState) -> None:
        """The node as it was read. A replica that its leader added to the ISR has its log open. A node that was created
        again needs a new leader epoch, since its leader writes at the version of the deleted node."""
        if found.version < self.version:
            self.refused_epoch = found.state.leader_epoch
        before, epoch = ((), NO_EPOCH) if self.state is None else (self.state.isr_ids, self.state.leader_epoch)
        self.state, self.version = found
        self.isr_reasons = ()
        if self.writing is None and epoch < self.decided_epoch <= self.state.leader_epoch:
            self._damage_is_over()  # the write succeeded, and its answer was lost
        if self.offline:
            after = self.state.isr_ids
            self.offline = frozenset(
                entry for entry in self.offline if entry.broker_id in before or entry.broker_id not in after
            )

    def min_isr_of(self, replicas: tuple[BrokerId, ...]) -> int:
        """min_isr of a partition with these replicas (rule R4)."""
        return min(self.policy.min_insync_replicas, len(replicas))

    def facts(self, live: Mapping[BrokerId, BrokerEpoch]) -> PartitionFacts:
        """The input of `decide`. A broker that registered again may have its log back."""
        offline: frozenset[BrokerId] = frozenset()
        if self.offline:
            offline = frozenset(one.broker_id for one in self.offline if live.get(one.broker_id) == one.broker_epoch)
        return PartitionFacts(
            assigned=self.assigned,
            min_isr=min(self.policy.min_insync_replicas, self.replication_factor or len(self.assigned)),
            state=self.state,
            unclean_allowed=self.policy.unclean_allowed,
            flushed=self.policy.group_commit,
            damaged=self.damaged,
            cut=self.cut,
            offline=offline,
            refused_epoch=self.refused_epoch,
            resigned_epoch=self.resigned_epoch,
        )
