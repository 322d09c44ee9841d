# SPDX-License-Identifier: Apache-2.0
"""One partition's reassignment: its phase, and the table (phase, input) → (next phase, effects) (rule M1).

OAR, RAR and AR are the original replicas, the target replicas and the assigned replicas. `TRANSITIONS` has the twelve
steps from top to bottom. Every input is read from ZooKeeper and the brokers' answers, so that a new controller resumes
a reassignment where the last controller stopped. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import Final, NamedTuple

from tidemark.core.reassignment.status import ReassignmentStatus
from tidemark.model import NO_LEADER, BrokerId, LeaderAndIsr, LeaderEpoch, PartitionReassignment, TopicPartition


class Phase(StrEnum):
    """Phases of a reassignment. The topic's node names it in `NAMED_IN_NODE`, and in no other phase."""

    REQUESTED = auto()  # its entry is not compared with the assigned replicas yet
    INFORMING = auto()  # AR is the target of the entry; brokers must acknowledge the log directories it names
    QUEUED = auto()  # waits for a slot on every broker that copies
    ADMITTED = auto()  # has its slots; step 1 is not composed yet
    ADDING = auto()  # step 1 was composed: written or not, the topic's node does not show it yet
    COPYING = auto()  # AR is RAR + OAR; waits until all of RAR are in sync
    CANCEL_PENDING = auto()  # as COPYING, but the entry is cancelled and the topic's node does not show it yet
    CANCELLING = auto()  # the target is OAR again
    COMMITTED = auto()  # step 7 is written; the leader has not acknowledged it yet
    STOPPING = auto()  # live brokers must delete the removed replicas
    COMPLETING = auto()  # step 10 is being written
    ENDED = auto()  # a partition is forgotten if neither an entry nor the topic's node names it


BEFORE_STEP_1: Final = (Phase.REQUESTED, Phase.INFORMING, Phase.QUEUED, Phase.ADMITTED)
BEFORE_COMMIT: Final = (Phase.COPYING, Phase.CANCEL_PENDING, Phase.CANCELLING)
AFTER_COMMIT: Final = (Phase.COMMITTED, Phase.STOPPING, Phase.COMPLETING)
NAMED_IN_NODE: Final = (*BEFORE_COMMIT, *AFTER_COMMIT)


class Input(StrEnum):
    """Inputs that change the phase of a reassignment."""

    # its entry in /admin/reassign_partitions
    REQUEST = auto()  # is new, or has changed
    CANCEL = auto()  # cancels, or was changed to a cancel
    WITHDRAW = auto()  # was removed, finished or refused
    # the entry compared with the assigned replicas
    OFF_TARGET = auto()  # they differ
    AT_TARGET = auto()  # entry and assigned replicas are equal, or the entry cancels a reassignment that did not begin
    INFORMED = auto()  # entry and assigned replicas are equal, and every broker has acknowledged its log directory
    SLOT = auto()  # every broker that gets a copy has a free slot
    # the topic's node
    COMPOSE = auto()  # is being composed
    UNWRITTEN = auto()  # does not show yet the change that this phase waits for
    NODE_ADDS = auto()  # names RAR as the target
    NODE_REVERTS = auto()  # names OAR as the target
    NODE_ENDS = auto()  # names no reassignment of the partition
    TOPIC_GONE = auto()  # was deleted
    # leaderAndISR
    IN_SYNC = auto()  # step 4 is over
    COMMIT = auto()  # holds the result of step 7
    OUTSIDER = auto()  # holds a removed replica again: edited manually
    # answers of brokers
    LEADER_INFORMED = auto()  # the leader has acknowledged the present leaderAndISR
    STOPPED = auto()  # every live broker has deleted the removed replicas


class Effect(StrEnum):
    """Requests of a transition to the controller, in order."""

    ENQUEUE = auto()  # wait for a slot, behind reassignments that already wait
    REWRITE_TOPIC = auto()  # have the topic's node composed and written
    DRAFT_ADDING = auto()  # in the node that is being composed: AR = RAR + OAR
    DRAFT_REVERT = auto()  # in the node that is being composed: the target is OAR
    DRAFT_TARGET = auto()  # in the node that is being composed: AR = RAR, and no reassignment
    REPORT_BEGIN = auto()
    REPORT_END = auto()
    NAME_LOG_DIRS = auto()  # every LeaderAndIsr names the entry's log directories
    COMMIT_TARGET = auto()  # write leaderAndISR: ISR within RAR, its leader, RAR's min_isr, a new leader epoch
    ASSIGN_TARGET = auto()  # RAR alone is assigned: sent to RAR by LeaderAndIsr, to all by UpdateMetadata
    STOP_REPLICAS = auto()  # StopReplica with delete, to the live brokers among the removed replicas
    FINISH_ENTRY = auto()  # take the entry out of /admin/reassign_partitions


Transition = tuple[Phase, tuple[Effect, ...]]

TRANSITIONS: Final[Mapping[tuple[Phase, Input], Transition]] = {
    # An entry is compared with the assigned replicas, then waits for its slots.
    (Phase.REQUESTED, Input.OFF_TARGET): (Phase.QUEUED, (Effect.ENQUEUE,)),
    (Phase.INFORMING, Input.OFF_TARGET): (Phase.QUEUED, (Effect.ENQUEUE,)),
    (Phase.QUEUED, Input.OFF_TARGET): (Phase.QUEUED, (Effect.ENQUEUE,)),
    (Phase.QUEUED, Input.SLOT): (Phase.ADMITTED, (Effect.REWRITE_TOPIC,)),
    # 1: AR becomes RAR + OAR in the topic's node. A write whose outcome is unknown is repeated.
    (Phase.ADMITTED, Input.COMPOSE): (Phase.ADDING, (Effect.DRAFT_ADDING,)),
    (Phase.ADDING, Input.UNWRITTEN): (Phase.ADDING, (Effect.REWRITE_TOPIC,)),
    (Phase.ADDING, Input.COMPOSE): (Phase.ADDING, (Effect.DRAFT_ADDING,)),
    # 2, 3: a change of AR sends LeaderAndIsr to all of AR; RAR - OAR are New. No decision is needed.
    **{
        (phase, Input.NODE_ADDS): (Phase.COPYING, (Effect.REPORT_BEGIN, Effect.NAME_LOG_DIRS))
        for phase in (*BEFORE_STEP_1, Phase.ADDING)
    },
    # 4: wait for RAR. 5, 6, 7: then one leaderAndISR write, repeated until that node shows it.
    (Phase.COPYING, Input.IN_SYNC): (Phase.COPYING, (Effect.COMMIT_TARGET,)),
    (Phase.CANCELLING, Input.IN_SYNC): (Phase.CANCELLING, (Effect.COMMIT_TARGET,)),
    (Phase.COPYING, Input.COMMIT): (Phase.COMMITTED, (Effect.ASSIGN_TARGET,)),
    (Phase.CANCELLING, Input.COMMIT): (Phase.COMMITTED, (Effect.ASSIGN_TARGET,)),
    **{(phase, Input.OUTSIDER): (phase, (Effect.COMMIT_TARGET,)) for phase in AFTER_COMMIT},
    # 8, 9: the leader can add no removed replica to the ISR any more: they are Offline, then NonExistent.
    (Phase.COMMITTED, Input.LEADER_INFORMED): (Phase.STOPPING, (Effect.STOP_REPLICAS,)),
    # 10: AR becomes RAR in the topic's node.
    (Phase.STOPPING, Input.STOPPED): (Phase.COMPLETING, (Effect.REWRITE_TOPIC,)),
    (Phase.COMPLETING, Input.COMPOSE): (Phase.COMPLETING, (Effect.DRAFT_TARGET,)),
    **{(phase, Input.NODE_ENDS): (Phase.REQUESTED, (Effect.REPORT_END,)) for phase in NAMED_IN_NODE},
    # 11: the entry is removed when the brokers know its log directories. 12: UpdateMetadata follows each change of AR.
    **{
        (phase, Input.AT_TARGET): (Phase.INFORMING, (Effect.NAME_LOG_DIRS,))
        for phase in (Phase.REQUESTED, Phase.QUEUED, Phase.ADMITTED)
    },
    (Phase.INFORMING, Input.INFORMED): (Phase.ENDED, (Effect.FINISH_ENTRY,)),
    # A cancelled reassignment runs the same steps from 1 with OAR as its target. After step 7 a cancel is too late.
    (Phase.COPYING, Input.CANCEL): (Phase.CANCEL_PENDING, ()),
    (Phase.CANCEL_PENDING, Input.REQUEST): (Phase.COPYING, ()),
    (Phase.CANCEL_PENDING, Input.WITHDRAW): (Phase.COPYING, ()),
    (Phase.CANCEL_PENDING, Input.UNWRITTEN): (Phase.CANCEL_PENDING, (Effect.REWRITE_TOPIC,)),
    (Phase.CANCEL_PENDING, Input.COMPOSE): (Phase.CANCEL_PENDING, (Effect.DRAFT_REVERT,)),
    (Phase.CANCEL_PENDING, Input.NODE_REVERTS): (Phase.CANCELLING, ()),
    (Phase.COPYING, Input.NODE_REVERTS): (Phase.CANCELLING, ()),
    (Phase.CANCELLING, Input.NODE_ADDS): (Phase.COPYING, ()),
    **{
        (phase, Input.NODE_REVERTS): (Phase.CANCELLING, (Effect.REPORT_BEGIN, Effect.NAME_LOG_DIRS))
        for phase in (*BEFORE_STEP_1, Phase.ADDING)
    },
    # Before step 1 is composed, only the entry applies.
    **{(phase, Input.REQUEST): (Phase.REQUESTED, ()) for phase in BEFORE_STEP_1},
    **{(phase, Input.CANCEL): (Phase.REQUESTED, ()) for phase in BEFORE_STEP_1},
    **{(phase, Input.WITHDRAW): (Phase.ENDED, ()) for phase in BEFORE_STEP_1},
    # The deletion of a topic ends its reassignments. An entry is then compared with the next topic of that name.
    **{(phase, Input.TOPIC_GONE): (Phase.REQUESTED, ()) for phase in (Phase.INFORMING, Phase.ADDING, *NAMED_IN_NODE)},
}
"""An input without a row has no effect in that phase."""


class Fence(NamedTuple):
    """The write of step 7: from `leader_epoch` on, leaders know no replica outside `target`."""

    target: tuple[BrokerId, ...]
    leader_epoch: LeaderEpoch


@dataclass(slots=True)
class Reassignment:
    """One partition that is named by an entry, the topic's node, or both.

    Attributes:
        entry: the entry of /admin/reassign_partitions. None after the entry was withdrawn; never None in
            `BEFORE_STEP_1`.
        target: RAR. Before step 1 the entry's; in ADDING as composed; then the node's; fixed from COMMITTED on.
        original: OAR, in its order; empty before the topic's node names it.
        adding: RAR - OAR as the node has it.
        removing: AR - RAR as the node has it; fixed from COMMITTED on.
        fence: the last write of step 7 that may have succeeded; None: no such write.
        log_dirs_known_by: brokers that have acknowledged the log directory named for them; None: no log directory is
            named now.
        log_dirs_refused_by: brokers whose refusal of a named log directory has been reported.
    """

    partition: TopicPartition
    entry: PartitionReassignment | None = None
    phase: Phase = Phase.REQUESTED
    target: tuple[BrokerId, ...] = ()
    original: tuple[BrokerId, ...] = ()
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()
    fence: Fence | None = None
    log_dirs_known_by: set[BrokerId] | None = None
    log_dirs_refused_by: set[BrokerId] = field(default_factory=set)

    @property
    def named_in_node(self) -> bool:
        """Whether the topic's node names it: AR holds replicas of both RAR and OAR."""
        return self.phase in NAMED_IN_NODE

    @property
    def committed(self) -> bool:
        """Whether step 7 is written, so that only RAR counts as assigned."""
        return self.phase in AFTER_COMMIT

    def take(self, happened: Input) -> tuple[Effect, ...]:
        """Take one row of the table: the phase and the input give the next phase and the effects."""
        self.phase, effects = TRANSITIONS.get((self.phase, happened), (self.phase, ()))
        return effects

    def take_entry(self, entry: PartitionReassignment | None) -> None:
        """Take the present entry of the partition; None: the entry was removed."""
        self.entry = entry
        if entry is None:
            self.take(Input.WITHDRAW)
            return
        self.take(Input.CANCEL if entry.cancel else Input.REQUEST)
        if self.phase in BEFORE_STEP_1:
            self.target = entry.replicas

    def take_node(self, found: ReassignmentStatus) -> tuple[Effect, ...]:
        """Take the status of this reassignment in the topic's node; a later target is ignored after step 7."""
        if self.committed:
            return ()
        self.original, self.target = found.original, found.target
        self.adding, self.removing = found.adding, found.removing
        effects = self.take(Input.NODE_REVERTS if found.cancelled else Input.NODE_ADDS)
        if self.entry is not None and self.entry.cancel:
            self.take(Input.CANCEL)
        return effects

    def leave_node(self, happened: Input) -> tuple[Effect, ...]:
        """The topic's node no longer names this reassignment (NODE_ENDS), or there is no topic (TOPIC_GONE).

        An entry that still exists is compared with the replicas again.
        """
        effects = self.take(happened)
        if self.phase is Phase.REQUESTED:
            self.original = self.adding = self.removing = ()
            self.fence = None
            self.take_entry(self.entry)
        return effects

    # -- conditions of the inputs ------------------------------------------------------------------------------

    def is_in_sync(self, state: LeaderAndIsr) -> bool:
        """Step 4 is over: all of RAR are in sync.

        To revert, step 7 must drop no replica that the partition needs. That holds if min_isr of OAR are in sync, or no
        other replica is in the ISR or the ELR.
        """
        if state.leader == NO_LEADER:
            return False
        in_sync = set(state.isr_ids)
        if self.target != self.original:
            return in_sync.issuperset(self.target)
        kept = in_sync.intersection(self.target)
        others = (in_sync | {entry.broker_id for entry in state.elr}) - set(self.target)
        return bool(kept) and (len(kept) >= state.min_isr or not others)

    def is_commit(self, state: LeaderAndIsr, min_isr: int) -> bool:
        """Whether leaderAndISR has the state that step 7 writes; `min_isr` is RAR's."""
        inside = set(state.isr_ids) <= set(self.target) and state.leader in self.target and state.min_isr == min_isr
        return inside and self.is_in_sync(state) and self.is_fenced(state.leader_epoch)

    def is_fenced(self, leader_epoch: LeaderEpoch) -> bool:
        """Whether no leader of this or a later epoch was sent a replica outside the target."""
        if not self.removing:
            return True
        return self.fence is not None and self.fence.target == self.target and leader_epoch >= self.fence.leader_epoch
