# SPDX-License-Identifier: Apache-2.0
"""Every reassignment in the cluster (rules M1, M2): which inputs reach the table of `reassignment`, and its effects.

A reassignment is checked when its entry, its topic's node, its leaderAndISR, a broker or a slot changes, never on a
tick.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from typing import Final

from tidemark.core.controller import events as ev
from tidemark.core.controller.context import ControllerContext
from tidemark.core.controller.effects import FinishReassignments
from tidemark.core.controller.leader_election import BrokerFacts, Decision, PartitionFacts, settle
from tidemark.core.controller.partition_state import PartitionState
from tidemark.core.controller.reassignment import BEFORE_STEP_1, Effect, Fence, Input, Phase, Reassignment
from tidemark.core.controller.reassignment_entries import ReassignmentEntries
from tidemark.core.reassignment.log_dir_placement import PRESENT_LOG_DIR
from tidemark.core.reassignment.request import named_log_dirs
from tidemark.core.reassignment.status import status
from tidemark.core.reassignment.topic_draft import TopicDraft
from tidemark.model import (
    BrokerId,
    ErrorCode,
    PartitionReassignment,
    ReassignmentRequests,
    TidemarkError,
    TopicDescription,
    TopicPartition,
)

_DRAFTS: Final[Mapping[Effect, Callable[[TopicDraft, int, tuple[BrokerId, ...]], None]]] = {
    Effect.DRAFT_ADDING: lambda draft, index, target: draft.add(index, target),
    Effect.DRAFT_REVERT: lambda draft, index, target: draft.revert(index),
    Effect.DRAFT_TARGET: lambda draft, index, target: draft.complete(index, target),
}

_NAMED_AGAIN_MS: Final = 500


class Reassignments:
    """The reassignments by partition, and the questions of the controller's other parts about them.

    Attributes:
        _by_partition: every partition that an entry or the topic's node names.
        _by_topic: the same by topic, so that a topic's change needs no check of other topics' reassignments.
        _queue: reassignments in phase QUEUED, in the order in which they get slots.
        _pending_dirs: partitions, each with a broker that has not begun the copy into its log directory, and the
            time when that directory is named to the broker again.
        _slots_changed: a queued reassignment may find slots that it did not find when slots were given out last.
    """

    def __init__(self, ctx: ControllerContext) -> None:
        self._ctx = ctx
        self._by_partition: dict[TopicPartition, Reassignment] = {}
        self._by_topic: defaultdict[str, dict[int, Reassignment]] = defaultdict(dict)
        self._queue: dict[TopicPartition, None] = {}
        self._pending_dirs: dict[tuple[TopicPartition, BrokerId], int] = {}
        self._slots_changed = False
        self._entries = ReassignmentEntries(ctx, self._by_partition)
        self._carry_out: Mapping[Effect, Callable[[Reassignment], None]] = {
            Effect.ENQUEUE: self._enqueue,
            Effect.REWRITE_TOPIC: lambda one: ctx.rewritten.add(one.partition.topic),
            Effect.REPORT_BEGIN: self._report_begin,
            Effect.REPORT_END: self._report_end,
            Effect.NAME_LOG_DIRS: self._name_log_dirs,
            Effect.ASSIGN_TARGET: self._assign_target,
            Effect.STOP_REPLICAS: self._stop_replicas,
            Effect.FINISH_ENTRY: self._finish_entry,
        }

    # -- entries of /admin/reassign_partitions -----------------------------------------------------------------

    def requested(self, requests: ReassignmentRequests, *, resumed: bool = False) -> None:
        """Process the present node; `resumed`: this controller reads the node for the first time."""
        entries = self._entries.accept(requests, resumed=resumed)
        known = [one.partition for one in self._by_partition.values() if one.entry is not None]
        for partition in {**dict.fromkeys(known), **entries}:
            one, entry = self._by_partition.get(partition), entries.get(partition)
            if one is None:
                one = self._new(partition)
            elif one.entry == entry:
                continue
            self._set_entry(one, entry)
            self._ctx.dirty.add(partition)

    def _set_entry(self, one: Reassignment, entry: PartitionReassignment | None) -> None:
        one.take_entry(entry)
        self._throttle(one)
        self._name_log_dirs(one)
        self._keep_indexes(one)

    def _throttle(self, one: Reassignment) -> None:
        partition_state = self._ctx.partitions.get(one.partition)
        bytes_per_s = 0 if one.entry is None else one.entry.throttle_bytes_per_s
        if partition_state is not None and partition_state.throttle_bytes_per_s != bytes_per_s:
            partition_state.throttle_bytes_per_s = bytes_per_s
            if one.named_in_node or not bytes_per_s:
                self._ctx.send_leader_and_isr(partition_state)

    def _name_log_dirs(self, one: Reassignment) -> None:
        """Name log directories from step 1 on, or immediately where the replicas stay; until then commands name none.

        A cancelled entry has the replicas stay where they are.
        """
        partition_state, entry = self._ctx.partitions.get(one.partition), one.entry
        if partition_state is not None:
            begun = entry is not None and (entry.cancel or one.named_in_node or self._entries.is_at_target(entry))
            name_log_dirs(self._ctx, one, partition_state, entry if begun else None)

    def log_dir_refused(self, broker: BrokerId, partition: TopicPartition, error: TidemarkError) -> None:
        """A broker has adopted the partition and rejected the log directory: reported once."""
        one = self._by_partition.get(partition)
        if one is not None and one.entry is not None and is_first_refusal(one, broker):
            self._entries.report(one.entry, log_dir_refusal(broker, error))

    def log_dirs_answered(
        self, broker: BrokerId, named: Iterable[TopicPartition], pending: Iterable[TopicPartition], now_ms: int
    ) -> None:
        """A broker has answered a command that named these partitions; it has not begun the copies of `pending`."""
        if self._pending_dirs:
            for partition in named:
                self._pending_dirs.pop((partition, broker), None)
        for partition in pending:
            self._pending_dirs[partition, broker] = now_ms + _NAMED_AGAIN_MS

    def due(self, now_ms: int) -> None:
        """Name log directories again to the brokers that have not begun their copies."""
        for (partition, broker), at_ms in list(self._pending_dirs.items()):
            one, commands = self._by_partition.get(partition), self._ctx.commands.get(broker)
            if one is None or one.log_dirs_known_by is None or commands is None:
                del self._pending_dirs[partition, broker]
            elif now_ms >= at_ms:
                self._pending_dirs[partition, broker] = now_ms + _NAMED_AGAIN_MS
                commands.partitions.add(partition)

    def finished(self, event: ev.ReassignmentsFinished) -> None:
        """Note that these entries have left the node."""
        self._entries.finished(event.finished)

    def effects(self) -> Iterator[FinishReassignments]:
        """Entries that have to leave the node."""
        return self._entries.effects()

    # -- topics' nodes -----------------------------------------------------------------------------------------

    def topic_learned(self, topic: TopicDescription) -> None:
        """Process the present node, by which reassignments begin, revert or end."""
        for index in topic.original:
            partition, found = TopicPartition(topic.topic, index), status(topic, index, None)
            assert found is not None
            one = self._by_partition.get(partition) or self._new(partition)
            self._perform(one, one.take_node(found))
        for one in [one for index, one in self._by_topic.get(topic.topic, {}).items() if index not in topic.original]:
            if one.named_in_node:
                self._perform(one, one.leave_node(Input.NODE_ENDS))
            if one.partition.partition not in topic.partitions:
                self.unknown(one.partition)
        self._slots_changed = True  # a slot may be free

    def topic_gone(self, topic: str) -> None:
        """The topic was deleted; its entries are refused when their partitions are decided next."""
        for one in list(self._by_topic.get(topic, {}).values()):
            one.log_dirs_known_by = None
            one.leave_node(Input.TOPIC_GONE)
            self._keep_indexes(one)
            if one.entry is not None:
                self._ctx.dirty.add(one.partition)

    def unknown(self, partition: TopicPartition) -> None:
        """The partition does not exist any more: its entry is refused."""
        one = self._by_partition.get(partition)
        if one is not None and one.entry is not None:
            error = TidemarkError(ErrorCode.UNKNOWN_PARTITION, f"there is no partition {partition} any more")
            self._entries.refuse(one.entry, error)
            self._set_entry(one, None)

    def assigned(self, topic: TopicDescription, index: int) -> tuple[BrokerId, ...]:
        """The assigned replicas that count: after step 7 only RAR, even if the node still names other replicas."""
        one = self._by_partition.get(TopicPartition(topic.topic, index))
        return one.target if one is not None and one.committed else topic.partitions[index]

    def replication_factor(self, topic: TopicDescription, index: int) -> int:
        """The number of original replicas until step 7, then of the target (rule R4)."""
        one = self._by_partition.get(TopicPartition(topic.topic, index))
        if one is not None and one.committed:
            return len(one.target)
        return len(topic.original.get(index, topic.partitions[index]))

    def rewrite(self, topic: TopicDescription) -> TopicDescription:
        """The node to write next (steps 1 and 10, and reverting)."""
        draft = TopicDraft(topic)
        for index, one in self._by_topic.get(topic.topic, {}).items():
            if index in topic.partitions:
                for effect in one.take(Input.COMPOSE):
                    _DRAFTS[effect](draft, index, one.target)
        return draft.result()

    # -- deciding ----------------------------------------------------------------------------------------------

    def look(self, partition_state: PartitionState) -> None:
        """Before a partition is decided, even during a write or read, check whether step 7 is written."""
        one = self._by_partition.get(partition_state.partition)
        if one is None or partition_state.state is None or not one.named_in_node or one.committed:
            return
        if (
            one.fence is not None
            and not partition_state.busy
            and partition_state.state.leader_epoch < one.fence.leader_epoch
        ):
            one.fence = None  # the write of step 7 has failed
        if one.is_commit(partition_state.state, partition_state.min_isr_of(one.target)):
            self._perform(one, one.take(Input.COMMIT))

    def next(self, partition_state: PartitionState, facts: PartitionFacts, brokers: BrokerFacts) -> Decision | None:
        """Advance the reassignment of this partition as far as possible; returns a leaderAndISR to write, if any."""
        one = self._by_partition.get(partition_state.partition)
        before = None
        while one is not None and one.phase is not before:
            before, happened = one.phase, self._input_of(one, partition_state)
            effects = () if happened is None else one.take(happened)
            if Effect.COMMIT_TARGET in effects:
                return self._commit_target(one, partition_state, facts, brokers)
            self._perform(one, effects)
        return None

    def _input_of(self, one: Reassignment, partition_state: PartitionState) -> Input | None:
        """The input that the phase of a reassignment waits for, if the cluster shows it; None: not yet."""
        state = partition_state.state
        match one.phase:
            case Phase.REQUESTED | Phase.INFORMING | Phase.QUEUED | Phase.ADMITTED:
                assert one.entry is not None
                if not one.entry.cancel and not self._entries.is_at_target(one.entry):
                    return Input.OFF_TARGET
                if one.phase is not Phase.INFORMING:
                    return Input.AT_TARGET
                away = partition_state.log_dirs.keys() - self._ctx.brokers.keys() if one.entry.cancel else ()
                return Input.INFORMED if are_known(one, partition_state, away) else None
            case Phase.ADDING | Phase.CANCEL_PENDING:
                return Input.UNWRITTEN
            case Phase.COPYING | Phase.CANCELLING:
                # A target that answers no heartbeats must not become the only replica.
                waits = one.phase is Phase.COPYING and not self._ctx.avoided.isdisjoint(one.target)
                return Input.IN_SYNC if state is not None and one.is_in_sync(state) and not waits else None
            case Phase.COMMITTED | Phase.STOPPING | Phase.COMPLETING if state is not None and not set(
                state.isr_ids
            ) <= set(one.target):
                return Input.OUTSIDER
            case Phase.COMMITTED:
                return Input.LEADER_INFORMED if self._ctx.leader_acknowledged(partition_state) else None
            case Phase.STOPPING:
                return None if self._ctx.is_stopping(one.partition) else Input.STOPPED
        return None

    def _commit_target(
        self, one: Reassignment, partition_state: PartitionState, facts: PartitionFacts, brokers: BrokerFacts
    ) -> Decision | None:
        """Steps 5, 6 and 7: the node without replicas outside the target; None if no replica of the target can lead."""
        assert partition_state.state is not None
        fences = not one.is_fenced(partition_state.state.leader_epoch)
        decision = settle(facts, brokers, one.target, partition_state.min_isr_of(one.target), fences=fences)
        if decision is not None and fences:
            one.fence = Fence(one.target, decision.state.leader_epoch)
        return decision

    def acknowledged(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that brokers have acknowledged commands about these partitions."""
        for partition in self._by_partition.keys() & set(partitions):
            one, partition_state = self._by_partition[partition], self._ctx.partitions.get(partition)
            if partition_state is not None:
                note_acknowledged(self._ctx, one, partition_state, self._pending_dirs)
            if one.committed or one.log_dirs_known_by is not None:
                self._ctx.dirty.add(partition)

    def brokers_changed(self) -> None:
        """Check the reassignments that wait for a broker: the broker may have failed or returned."""
        self._ctx.dirty.update(
            one.partition for one in self._by_partition.values() if one.committed or one.log_dirs_known_by is not None
        )
        self._slots_changed = True

    # -- slots -------------------------------------------------------------------------------------------------

    def give_slots(self, removed: Container[TopicPartition]) -> None:
        """Admit queued reassignments: each broker copies for `moves_per_broker_max` of them at a time. A partition in
        `removed` has to wait."""
        if not self._slots_changed:
            return
        self._slots_changed = False
        limit = self._ctx.config.moves_per_broker_max
        load: Counter[BrokerId] = Counter()
        for one in self._by_partition.values():
            if one.phase is Phase.ADMITTED or one.phase not in BEFORE_STEP_1:
                load.update(self._copying_brokers(one))
        for partition in list(self._queue):
            one = self._by_partition[partition]
            if partition in removed:
                self._slots_changed = True  # the removal may be refused, or may not be known yet
                continue
            copying = self._copying_brokers(one)
            topic = partition.topic
            live = all(broker in self._ctx.brokers and self._ctx.may_hold(broker, topic) for broker in one.target)
            if live and all(load[broker] < limit for broker in copying):
                load.update(copying)
                self._perform(one, one.take(Input.SLOT))
            elif all(load[broker] >= limit for broker in self._ctx.brokers):
                return

    def _copying_brokers(self, one: Reassignment) -> set[BrokerId]:
        """The brokers that need a slot: brokers that add a replica, and the leader that sends to them."""
        partition_state = self._ctx.partitions.get(one.partition)
        if partition_state is None or one.committed:
            return set()
        adding = set(one.adding) if one.named_in_node else set(one.target) - set(partition_state.assigned)
        return adding | {partition_state.state.leader} if adding and partition_state.state is not None else adding

    # -- effects -----------------------------------------------------------------------------------------------

    def _perform(self, one: Reassignment, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self._carry_out[effect](one)
        self._keep_indexes(one)

    def _new(self, partition: TopicPartition) -> Reassignment:
        one = self._by_partition[partition] = self._by_topic[partition.topic][partition.partition] = Reassignment(
            partition
        )
        return one

    def _keep_indexes(self, one: Reassignment) -> None:
        if one.phase is not Phase.QUEUED:
            self._queue.pop(one.partition, None)
        if one.phase is Phase.ENDED and self._by_partition.pop(one.partition, None) is not None:
            siblings = self._by_topic[one.partition.topic]
            del siblings[one.partition.partition]
            if not siblings:
                del self._by_topic[one.partition.topic]

    def _enqueue(self, one: Reassignment) -> None:
        self._queue.setdefault(one.partition)
        self._slots_changed = True

    def _report_begin(self, one: Reassignment) -> None:
        self._ctx.observe("move_begun", one.partition, to=str(self._in_node(one)))

    def _report_end(self, one: Reassignment) -> None:
        self._ctx.observe("move_ended", one.partition, replicas=str(self._in_node(one)))

    def _in_node(self, one: Reassignment) -> list[BrokerId]:
        return list(self._ctx.topics[one.partition.topic].partitions.get(one.partition.partition, ()))

    def _assign_target(self, one: Reassignment) -> None:
        partition_state = self._ctx.partitions[one.partition]
        self._ctx.assign(partition_state, one.target)
        partition_state.replication_factor = len(one.target)
        self._ctx.send_leader_and_isr(partition_state)
        self._slots_changed = True

    def _stop_replicas(self, one: Reassignment) -> None:
        self._ctx.stop_replicas(self._ctx.partitions[one.partition], one.removing)

    def _finish_entry(self, one: Reassignment) -> None:
        assert one.entry is not None
        self._entries.finish(one.entry)
        self._set_entry(one, None)

    # -- for metrics and other parts ---------------------------------------------------------------------------

    def __contains__(self, partition: object) -> bool:
        """Whether the partition is being reassigned, or about to be."""
        one = self._by_partition.get(partition) if isinstance(partition, TopicPartition) else None
        return one is not None and (one.phase is Phase.ADMITTED or one.phase not in BEFORE_STEP_1)

    def wanted_count(self) -> int:
        """Reassignments that an entry asks for or that have begun."""
        return sum(one.entry is not None or one.named_in_node for one in self._by_partition.values())

    def replicas_left(self) -> int:
        """Target replicas that are not in sync yet."""
        left = 0
        for one in self._by_partition.values():
            partition_state = self._ctx.partitions.get(one.partition)
            state = partition_state.state if partition_state is not None else None
            if one.entry is not None and not one.entry.cancel and state is not None:
                left += len(set(one.entry.replicas).difference(state.isr_ids))
        return left


def name_log_dirs(
    ctx: ControllerContext, one: Reassignment, partition_state: PartitionState, entry: PartitionReassignment | None
) -> None:
    """Commands name the log directories of this entry from now on; None: commands name none, and none are sent for
    this.

    Every LeaderAndIsr to a broker names the log directory of its replica. The broker creates a new replica there, and
    moves an existing one there (rules M1, M3). The entry leaves its node once each of these brokers has acknowledged
    them. A copy from one log directory to another continues on its broker without the controller.
    """
    named = {} if entry is None else named_log_dirs(entry)
    if entry is not None and entry.cancel:
        has_replicas = () if partition_state.state is None else partition_state.assigned
        named = {broker: PRESENT_LOG_DIR for broker in named if broker in has_replicas}
    if named == partition_state.log_dirs:
        return
    partition_state.log_dirs = named
    one.log_dirs_known_by = set() if named else None
    one.log_dirs_refused_by.clear()
    if named:
        ctx.send_leader_and_isr(partition_state)
        ctx.dirty.add(partition_state.partition)


def note_acknowledged(
    ctx: ControllerContext,
    one: Reassignment,
    partition_state: PartitionState,
    pending_dirs: Container[tuple[TopicPartition, BrokerId]],
) -> None:
    """Brokers have acknowledged commands about this partition, apart from those with pending log directories."""
    if one.log_dirs_known_by is None or partition_state.state is None:
        return
    for broker in partition_state.log_dirs:
        pending = ctx.commands.get(broker)
        is_known = pending is not None and pending.is_acknowledged(partition_state.partition)
        if is_known and (partition_state.partition, broker) not in pending_dirs:
            one.log_dirs_known_by.add(broker)


def are_known(one: Reassignment, partition_state: PartitionState, away: Collection[BrokerId]) -> bool:
    """Whether every broker that is not in `away` has acknowledged the log directory named for it."""
    return partition_state.log_dirs.keys() <= {*(one.log_dirs_known_by or ()), *away}


def is_first_refusal(one: Reassignment, broker: BrokerId) -> bool:
    """Whether this refusal of a log directory has to be reported; each broker's is reported once."""
    if one.log_dirs_known_by is None or broker in one.log_dirs_refused_by:
        return False
    one.log_dirs_refused_by.add(broker)
    return True


def log_dir_refusal(broker: BrokerId, error: TidemarkError) -> TidemarkError:
    """The refusal to keep: the reassignment continues, only the log directory differs."""
    return TidemarkError(
        error.code,
        f"broker {broker} rejected the log directory named for its replica: {error.message}. The reassignment "
        "continues with a log directory that the broker chose. Change it with: tidemark log-dirs move",
        {**error.metadata, "broker": str(broker)},
    )
