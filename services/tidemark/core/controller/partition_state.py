# SPDX-License-Identifier: Apache-2.0
"""One partition, and its topic's policy, as the controller knows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tidemark.core.controller.events import LeadershipGivenUp, ReplicaFailed
from tidemark.core.controller.leader_election import PartitionFacts, losses_of
from tidemark.model import (
    NO_EPOCH,
    BrokerEpoch,
    BrokerId,
    IsrEntry,
    LeaderAndIsr,
    LeaderEpoch,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
    VersionedState,
)

NO_LIMIT: Final = 1 << 30
_CONFLICTS_AT_ONCE: Final = 10
"""More than halving from the largest group to single writes takes."""
_RETRY_FIRST_MS: Final = 100
_RETRY_MAX_MS: Final = 2_000


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """The settings of a topic that elections go by; `group_commit`: it has had that flush.policy from the first."""

    min_insync_replicas: int
    unclean_allowed: bool
    group_commit: bool = False


@dataclass(slots=True)
class PartitionRecord:
    """One partition as the controller knows it.

    Attributes:
        state: the node; None: it has none yet. `version` is the node's.
        writing: what is being written, None when nothing is; no second write begins before it is answered.
        reading: it is being read; decided afresh when that is answered.
        doubtful: a write failed or was not answered, so what is read is news to its replicas too.
        hinted: its leader reported a change while it was being written or read: what is under way may not show it.
        limit: how many writes may go together, halved by each conflict (rule Z2).
        conflicts: writes in a row that failed; many of them are not followed by the next one at once.
        offline: brokers that could not open their log, with the broker epoch in which they said so.
        given_up_ms: when a leader last asked to be relieved: a partition is not passed round among slow disks.
        replication_factor: replicas it shall have; of the original ones during a move (rule R4).
        throttle_bytes_per_s: of its move (rule M2).
        log_dirs: where these brokers shall hold it, while its move says so (rule M3).
        losses: what is missing to the log of a single replica that refused to lead with it (rule T4).
        damaged: as in `PartitionFacts`, until a decision that took it in (`damage_decided`) is written, in that epoch.
    """

    partition: TopicPartition
    identity: ReplicaIdentity
    assigned: tuple[BrokerId, ...]
    policy: TopicPolicy
    state: LeaderAndIsr | None = None
    version: int = -1
    writing: LeaderAndIsr | None = None
    reading: bool = False
    doubtful: bool = False
    hinted: bool = False
    limit: int = NO_LIMIT
    group: int = 1
    conflicts: int = 0
    not_before_ms: int = 0
    refused_epoch: LeaderEpoch | None = None
    given_up_epoch: LeaderEpoch | None = None
    given_up_ms: int | None = None
    offline: frozenset[IsrEntry] = frozenset()
    replication_factor: int = 0
    throttle_bytes_per_s: int = 0
    log_dirs: Mapping[BrokerId, str] = field(default_factory=dict)
    damaged: frozenset[IsrEntry] = frozenset()
    damage_decided: frozenset[IsrEntry] = frozenset()
    decided_epoch: LeaderEpoch = NO_EPOCH
    losses: Mapping[str, int] = field(default_factory=dict)

    @property
    def busy(self) -> bool:
        """Whether its next decision waits for an answer."""
        return self.writing is not None or self.reading

    def begin_write(self, state: LeaderAndIsr) -> None:
        """This is being written."""
        self.writing, self.damage_decided, self.decided_epoch = state, self.damaged, state.leader_epoch

    def wrote(self, version: int) -> None:
        """What was being written is the node now. A damaged replica may join again once it has fetched afresh."""
        assert self.writing is not None
        self.state, self.version, self.writing = self.writing, version, None
        self.limit, self.conflicts, self.not_before_ms = NO_LIMIT, 0, 0
        self.refused_epoch = None
        self._damage_is_over()

    def _damage_is_over(self) -> None:
        if self.damage_decided:
            self.damaged, self.losses = self.damaged - self.damage_decided, {}
            self.damage_decided = frozenset()

    def not_written(self, now_ms: int) -> None:
        """It failed, or nobody knows: to be read, then decided afresh, in a smaller group."""
        self.writing, self.reading, self.doubtful = None, True, True
        self.limit = max(1, self.group // 2)
        self.conflicts += 1
        excess = self.conflicts - _CONFLICTS_AT_ONCE
        self.not_before_ms = 0 if excess <= 0 else now_ms + min(_RETRY_FIRST_MS << min(excess, 10), _RETRY_MAX_MS)

    def refused(self, error: TidemarkError) -> bool:
        """Its leader needs a higher epoch; False: it refused an older one, and its answer came late."""
        assert self.state is not None
        highest = error.metadata.get("leader_epoch", "")
        if highest.isdecimal() and int(highest) < self.state.leader_epoch:
            return False
        self.refused_epoch = self.state.leader_epoch
        return True

    def refused_damaged(self, broker: BrokerId, error: TidemarkError) -> None:
        """It does not lead with the log that it has. A single replica is not asked what it holds: this says it."""
        assert self.state is not None
        self.damaged |= {entry for entry in (*self.state.isr, *self.state.elr) if entry.broker_id == broker}
        told = [error.metadata.get(key, "") for key in ("last_epoch", "log_end_offset", "high_watermark")]
        if len(self.assigned) == 1 and all(one.removeprefix("-").isdecimal() for one in told):
            self.losses = losses_of(*map(int, told))

    def told(self, event: LeadershipGivenUp | ReplicaFailed, now_ms: int, pause_ms: int) -> bool:
        """Its leader asks to be relieved (rule R7), at most once in `pause_ms`, or a log of it has failed.

        Returns:
            False where that is no news, or of another leadership: with a new one, logs are opened again.
        """
        state = self.state
        if state is not None and isinstance(event, ReplicaFailed) and event.damaged:
            return self._found_damaged(event.broker, event.broker_epoch, state)
        if state is None or state.leader_epoch != event.leader_epoch:
            return False
        if isinstance(event, ReplicaFailed):
            entry = IsrEntry(event.broker, event.broker_epoch)
            known, self.offline = self.offline, self.offline | {entry}
            return entry not in known
        if state.leader != event.broker or (self.given_up_ms is not None and now_ms - self.given_up_ms < pause_ms):
            return False
        self.given_up_epoch, self.given_up_ms = event.leader_epoch, now_ms
        return True

    def _found_damaged(self, broker: BrokerId, broker_epoch: BrokerEpoch, state: LeaderAndIsr) -> bool:
        """Of what a broker may have lost before it registered; whoever joined afterwards had everything again."""
        lost = {one for one in (*state.isr, *state.elr) if one.broker_id == broker and one.broker_epoch < broker_epoch}
        known, self.damaged = self.damaged, self.damaged | lost
        return not lost <= known

    def is_news(self, found: VersionedState) -> bool:
        """Whether the node is another than is known. One of a lower version, after a write that failed, was deleted and
        put back by hand: what is read then is never older than what is known."""
        return found.version > self.version or (self.doubtful and found.version < self.version)

    def adopt(self, found: VersionedState) -> None:
        """The node as it was read. Whom its leader took in has opened its log. One that was put back gets another
        leader epoch: its leader goes by the version that it knows."""
        if found.version < self.version:
            self.refused_epoch = found.state.leader_epoch
        before, epoch = ((), NO_EPOCH) if self.state is None else (self.state.isr_ids, self.state.leader_epoch)
        self.state, self.version = found
        if self.writing is None and epoch < self.decided_epoch <= self.state.leader_epoch:
            self._damage_is_over()  # it was written, though nobody said so
        self.offline = frozenset(
            entry for entry in self.offline if entry.broker_id in before or entry.broker_id not in self.state.isr_ids
        )

    def min_isr_of(self, replicas: tuple[BrokerId, ...]) -> int:
        """With these as its replicas (rule R4)."""
        return min(self.policy.min_insync_replicas, len(replicas))

    def facts(self, live: Mapping[BrokerId, BrokerEpoch]) -> PartitionFacts:
        """What `decide` goes by; a broker that registered anew may have its log back."""
        return PartitionFacts(
            assigned=self.assigned,
            min_isr=min(self.policy.min_insync_replicas, self.replication_factor or len(self.assigned)),
            state=self.state,
            unclean_allowed=self.policy.unclean_allowed,
            flushed=self.policy.group_commit,
            damaged=self.damaged,
            offline=frozenset(
                entry.broker_id for entry in self.offline if live.get(entry.broker_id) == entry.broker_epoch
            ),
            refused_epoch=self.refused_epoch,
            given_up_epoch=self.given_up_epoch,
        )
