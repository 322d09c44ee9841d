# SPDX-License-Identifier: Apache-2.0
"""The active controller as a state machine (rules C1-C7, Z2, E5): one queue, one writer.

Level-triggered: an event updates the state and marks the partitions that it concerns as dirty. `decide` then compares
each dirty partition with the node that it should have. At most one write of a partition is in flight; later changes are
decided when that write is answered. Commands gather by broker and carry only written states.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from tidemark.core.config import ControllerConfig
from tidemark.core.controller import events as ev
from tidemark.core.controller.broker_registry import BrokerRegistry
from tidemark.core.controller.command_answers import CommandAnswers
from tidemark.core.controller.command_builder import CommandBuilder
from tidemark.core.controller.context import ControllerContext
from tidemark.core.controller.controlled_shutdown import ControlledShutdowns
from tidemark.core.controller.effects import ControllerEffect, ReadStates, WriteStates
from tidemark.core.controller.leader_election import BrokerFacts, Decision, PartitionFacts, awaits_answer, decide
from tidemark.core.controller.log_comparison import LogComparisons
from tidemark.core.controller.partition_count import PartitionCountChanges
from tidemark.core.controller.partition_counts import PartitionCounts
from tidemark.core.controller.partition_state import Announcement, PartitionState, TopicPolicy
from tidemark.core.controller.preferred_leader_rebalance import PreferredLeaderRebalance
from tidemark.core.controller.reassignments import Reassignments
from tidemark.core.controller.requested_elections import RequestedElections, elect_preferred
from tidemark.core.controller.state_rebuild import Memory
from tidemark.core.controller.topic_deletion import TopicDeletions
from tidemark.core.controller.topic_registry import TopicRegistry
from tidemark.core.controller.topic_updates import TopicUpdates
from tidemark.model import (
    NO_LEADER,
    BrokerId,
    LeaderAndIsr,
    LeaderEpoch,
    ReplicaIdentity,
    StateWrite,
    TopicDescription,
    TopicPartition,
    VersionedState,
)

_MULTI_WRITES: Final = 250
_REREAD_MS: Final = 2_000
"""Interval between reads of leaderAndISR nodes that do not parse."""
_COUNTS_STAY: Final = (ev.Tick, ev.BrokerTrusted, ev.MoreToDo)
"""Events that change no partition count by themselves."""


class ControllerCore:
    """The active controller: `handle` takes an event and returns effects.

    Each part has its own state; state that several parts need is in `ControllerContext`. The order of the parts in
    `handle` and `_decide` is part of the protocol.

    Attributes:
        _reread_at_ms: time when nodes that do not parse are read next.
        _decided: the decisions of one round by partition and `id` of the brokers, with these brokers. Invariant: empty
            between rounds.
        _handlers: the handler of each event.
    """

    def __init__(self, config: ControllerConfig, policy_of: Callable[[Mapping[str, str]], TopicPolicy]) -> None:
        self._ctx = ctx = ControllerContext(config)
        self._controlled_shutdowns = ControlledShutdowns(ctx)
        self._deletions = TopicDeletions(ctx)
        self._reassignments = Reassignments(ctx)
        self._partition_count = PartitionCountChanges(ctx, self._reassignments)
        self._brokers = BrokerRegistry(ctx, self._controlled_shutdowns, self._deletions, self._reassignments)
        self._topics = TopicRegistry(ctx, policy_of, self._deletions, self._reassignments, self._partition_count)
        self._topic_updates = TopicUpdates(ctx, [self._reassignments.rewrite, self._partition_count.rewrite])
        self._comparisons = LogComparisons(ctx.config.election_wait_ms)
        self._elections = RequestedElections()
        self._preferred_rebalance = PreferredLeaderRebalance(ctx)
        self._counts = PartitionCounts(ctx, self._reassignments)
        self._reread_at_ms = 0
        self._decided: dict[tuple[PartitionFacts, int], tuple[BrokerFacts, Decision | None]] = {}
        self._commands = CommandBuilder(ctx, self._deletions)
        self._answers = CommandAnswers(ctx, self._deletions, self._reassignments, self._partition_count)
        self._handlers: dict[type, Callable[[Any, int], None]] = {
            ev.Elected: self._on_elected,
            ev.BrokersChanged: lambda event, now_ms: self._brokers.learn(event.brokers, event.broker_epochs),
            ev.TopicsChanged: lambda event, now_ms: self._topics.learn_all(event.topics, event.unreadable),
            ev.DeletionsRequested: self._on_deletions_requested,
            ev.ElectionsRequested: self._on_elections_requested,
            ev.ReassignmentsRequested: lambda event, now_ms: self._reassignments.requested(event.requests),
            ev.ReassignmentsFinished: lambda event, now_ms: self._reassignments.finished(event),
            ev.PartitionsRequested: lambda event, now_ms: self._partition_count.requested(event, now_ms),
            ev.PartitionRequestsFinished: lambda event, now_ms: self._partition_count.finished(event),
            ev.PartitionsDeleted: lambda event, now_ms: self._partition_count.deleted(event, now_ms),
            ev.TopicWritten: self._on_topic_written,
            ev.StatesWritten: self._on_states_written,
            ev.StatesRead: self._on_states_read,
            ev.IsrChangesReported: self._on_isr_changes,
            ev.LeadershipResigned: self._on_replica_reported,
            ev.ReplicaFailed: self._on_replica_reported,
            ev.ControlAnswered: self._answers.control_answered,
            ev.ReplicasDescribed: self._on_replicas_described,
            ev.TopicDeleted: self._on_topic_deleted,
            ev.BrokerSuspected: self._brokers.suspected,
            ev.BrokerTrusted: self._brokers.trusted,
            ev.ControlledShutdownRequested: lambda event, now_ms: self._controlled_shutdowns.requested(
                event.broker, event.broker_epoch
            ),
            ev.DirectoriesFailed: self._brokers.directories_failed,
            ev.Tick: self._on_tick,
            ev.MoreToDo: lambda event, now_ms: None,
        }

    def handle(self, event: ev.ControllerEvent, now_ms: int) -> list[ControllerEffect]:
        """Process one event; returns the effects to carry out, in order."""
        ctx = self._ctx
        ctx.effects = []
        if not isinstance(event, _COUNTS_STAY):
            self._counts.changed()
        self._handlers[type(event)](event, now_ms)
        self._decide_dirty(now_ms)
        self._reassignments.give_slots(self._partition_count)
        self._topic_updates.write(now_ms)
        self._deletions.go_on(now_ms)
        ctx.effects += self._commands.build_all(now_ms)
        ctx.effects += self._comparisons.questions() + self._elections.effects()
        ctx.effects += (*self._reassignments.effects(), *self._partition_count.effects())
        self._controlled_shutdowns.release()
        return ctx.effects

    # -- for metrics -------------------------------------------------------------------------------------------

    @property
    def suspected(self) -> frozenset[BrokerId]:
        """Brokers that the controller treats as failed because they do not answer heartbeats."""
        return self._ctx.avoided - self._controlled_shutdowns.shutting_down

    @property
    def has_more(self) -> bool:
        """Whether a `MoreToDo` can decide or send more now."""
        return bool(self._ctx.undecided) or self._commands.has_more

    def topics(self) -> list[TopicDescription]:
        """The topics whose nodes were read or written."""
        return list(self._ctx.topics.values())

    def memory(self, partition: TopicPartition, identity: ReplicaIdentity) -> Memory:
        """The last known state of a partition (rule Z4)."""
        partition_state = self._ctx.partitions.get(partition)
        if partition_state is None or partition_state.identity != identity:
            return Memory()
        floor, older = partition_state.epoch_floor, partition_state.older_epoch
        state = partition_state.state
        if state is None or partition_state.is_older(state):
            return Memory(None, floor, older)
        known = VersionedState(state, partition_state.version), max(partition_state.decided_epoch, state.leader_epoch)
        return Memory(known, floor, max(older, LeaderEpoch(state.leader_epoch - 1)))

    def is_older(self, partition: TopicPartition, found: LeaderAndIsr) -> bool:
        """Whether this content of the node is older than the state that the controller or a replica knows (rule Z4)."""
        partition_state = self._ctx.partitions.get(partition)
        return partition_state is not None and partition_state.is_older(found)

    def rebuilds(self, partition: TopicPartition) -> bool:
        """Whether an operator requested to rebuild the state of this partition with possible loss."""
        return self._elections.rebuilds(partition)

    def counts(self) -> dict[str, int]:
        """Partitions by condition, and commands in flight."""
        return self._counts.now(self.suspected)

    def take_left_isrs(self) -> Mapping[str, int]:
        """Replicas that elections removed from ISRs since the last call, by reason."""
        return self._counts.take_left()

    # -- changes in ZooKeeper ----------------------------------------------------------------------------------

    def _on_elected(self, event: ev.Elected, now_ms: int) -> None:
        ctx = self._ctx
        self._brokers.elected(event.brokers, event.broker_epochs, now_ms)
        ctx.states_read((), event.unreadable_states)
        self._topics.learn_all(event.topics, event.unreadable_topics)
        for partition, found in event.states.items():
            partition_state = ctx.partitions.get(partition)
            if partition_state is not None:
                partition_state.state, partition_state.version = found
        ctx.dirty.update(ctx.partitions)
        self._deletions.requested(event.deletions)
        self._reassignments.requested(event.reassignments, resumed=True)

    def _on_topic_written(self, event: ev.TopicWritten, now_ms: int) -> None:
        self._topic_updates.answered(event.topic, event.written is not None, now_ms)
        if event.written is not None:
            known, written = self._ctx.topics.get(event.topic), event.written
            if known is not None and known.configs_zxid > written.configs_zxid:
                # The settings changed after the write was composed.
                written = replace(written, configs=known.configs, configs_zxid=known.configs_zxid)
            self._topics.learn(written)

    def _on_deletions_requested(self, event: ev.DeletionsRequested, now_ms: int) -> None:
        self._deletions.requested(event.topics)

    def _on_topic_deleted(self, event: ev.TopicDeleted, now_ms: int) -> None:
        if self._deletions.answered(event, now_ms):
            self._topics.forget(event.topic)

    # -- deciding and writing ----------------------------------------------------------------------------------

    def _decide_dirty(self, now_ms: int) -> None:
        self._brokers.act_on_suspicions(now_ms)
        ctx = self._ctx
        dirty = ctx.next_to_decide()
        if not dirty:
            return
        facts = ctx.broker_facts()
        changes: list[tuple[PartitionState, StateWrite]] = []
        for partition in dirty:
            partition_state = ctx.partitions.get(partition)
            if partition_state is None or partition.topic in self._deletions:
                self._comparisons.forget(partition)
                self._elections.unknown(partition)
                self._reassignments.unknown(partition)
                continue
            if partition in ctx.unreadable_states:
                self._elections.unreadable(partition, now_ms)
                continue  # the node is read again every `_REREAD_MS`
            self._reassignments.look(partition_state)
            if partition_state.busy:
                continue  # the answer to the write or read marks the partition as dirty again
            if now_ms < partition_state.not_before_ms:
                ctx.dirty.add(partition)
                continue
            decision = self._decide(partition_state, ctx.facts_for(partition_state, facts), now_ms)
            if decision is None:
                partition_state.resigned_epoch = None  # no replica can replace the leader, which may resign again
            else:
                changes.append((partition_state, self._change(partition_state, decision, now_ms)))
        self._decided.clear()
        self._write(changes)

    def _decide(self, partition_state: PartitionState, brokers: BrokerFacts, now_ms: int) -> Decision | None:
        """The first decision in this order: failures first, then requests, then the automatic rebalance."""
        partition = partition_state.partition
        facts = self._elections.facts(partition, partition_state.facts(brokers.live), brokers, now_ms)
        if awaits_answer(facts, brokers) or self._ctx.may_be_older(partition_state):
            return None
        decision = (
            self._decide_once(facts, brokers)
            or self._comparisons.decide(partition, partition_state.identity, facts, brokers, now_ms)
            or self._elections.preferred(partition, facts, brokers)
            or self._reassignments.next(partition_state, facts, brokers)
            or self._partition_count.next(partition_state, now_ms)
        )
        if decision is None and self._preferred_rebalance.wants(partition):
            elected = elect_preferred(facts, brokers)
            return None if isinstance(elected, str) else elected
        return decision

    def _decide_once(self, facts: PartitionFacts, brokers: BrokerFacts) -> Decision | None:
        """`decide`, which is pure, once for all partitions of a round that have equal facts: these may be thousands."""
        key = (facts, id(brokers))
        known = self._decided.get(key)
        if known is None:
            decision = decide(facts, brokers)
            known = self._decided[key] = (brokers, None if decision is None else self._of_my_term(decision))
        return known[1]

    def _of_my_term(self, decision: Decision) -> Decision:
        controller_epoch = self._ctx.config.controller_epoch
        if decision.state.controller_epoch == controller_epoch:
            return decision
        return replace(decision, state=replace(decision.state, controller_epoch=controller_epoch))

    def _change(self, partition_state: PartitionState, decision: Decision, now_ms: int) -> StateWrite:
        decision = self._of_my_term(decision)
        old, state = partition_state.state, decision.state
        if old is not None and old.leader_epoch < state.leader_epoch <= partition_state.epoch_floor:
            state = replace(state, leader_epoch=LeaderEpoch(partition_state.epoch_floor + 1))
            decision = replace(decision, state=state)
        if decision.unclean:
            decision = replace(decision, losses=decision.losses or partition_state.losses)
        told = _announcement(old, state, decision, now_ms)
        partition_state.begin_write(state)
        partition_state.chosen = None if told is None else (state, told)
        if told is not None and told.kind == "leader_elected":
            self._preferred_rebalance.elected()
        report = self._elections.report(partition_state.partition, partition_state.identity.topic_id, decision)
        return StateWrite(
            partition_state.partition,
            partition_state.identity,
            state,
            partition_state.version,
            decision.checked,
            report,
        )

    def _announce(self, partition_state: PartitionState, now_ms: int) -> None:
        """Report an election once its node is known to be written (rule C1)."""
        told = partition_state.take_announcement()
        if told is not None:
            write_ms = now_ms - told.decided_ms
            took = {"write_ms": write_ms} if write_ms > 0 else {}
            self._ctx.observe(told.kind, partition_state.partition, **told.fields, **took)

    def _write(self, changes: list[tuple[PartitionState, StateWrite]]) -> None:
        """Write states in multis; conflicts of a partition make its multi smaller (rule Z2)."""
        by_limit: defaultdict[int, list[tuple[PartitionState, StateWrite]]] = defaultdict(list)
        for partition_state, change in changes:
            by_limit[partition_state.limit].append((partition_state, change))
        for limit, group in by_limit.items():
            for start in range(0, len(group), limit):
                part = group[start : start + limit]
                for partition_state, _ in part:
                    partition_state.group = min(len(part), _MULTI_WRITES)
                self._ctx.effects.append(WriteStates(tuple(change for _, change in part)))

    def _on_elections_requested(self, event: ev.ElectionsRequested, now_ms: int) -> None:
        partitions = self._elections.requested(event, now_ms)
        self._ctx.dirty |= partitions
        self._read_again(partitions)  # the request may rely on an ISR change that is not reported yet

    def _on_states_written(self, event: ev.StatesWritten, now_ms: int) -> None:
        hinted = []
        for partition, version in event.written.items():
            partition_state = self._ctx.partitions.get(partition)
            if partition_state is None or partition_state.writing is None:
                continue
            reasons = self._counts.isr_written(partition_state, self._controlled_shutdowns.shutting_down)
            partition_state.write_succeeded(version, reasons)
            partition_state.forget_older()
            self._announce(partition_state, now_ms)
            self._ctx.send_leader_and_isr(partition_state)
            self._ctx.dirty.add(partition)
            if partition_state.hinted:
                hinted.append(partition)
        again = []
        for partition in event.failed:
            partition_state = self._ctx.partitions.get(partition)
            if partition_state is None:
                continue
            partition_state.write_failed(now_ms)
            again.append(partition)
        if again:
            self._ctx.observe("write_conflict", None, partitions=len(again))
            self._ctx.effects.append(ReadStates(tuple(again)))
        self._read_again(hinted)

    def _on_states_read(self, event: ev.StatesRead, now_ms: int) -> None:
        older = {partition for partition, found in event.found.items() if self.is_older(partition, found.state)}
        unreadable = older.union(one for one in event.unreadable if one in self._ctx.partitions)
        hinted, hidden = [], self._ctx.unreadable_states - unreadable
        self._ctx.states_read(event.asked, unreadable)
        for partition in event.asked:
            partition_state = self._ctx.partitions.get(partition)
            if partition_state is None:
                continue
            partition_state.reading = False
            self._ctx.dirty.add(partition)
            partition_state.outcome_unknown |= partition in hidden
            partition_state.forget_older()
            found = event.found.get(partition) if partition not in older else None
            if found is not None and partition_state.is_news(found):
                self._adopt(partition_state, found)
                self._announce(partition_state, now_ms)
            partition_state.chosen, partition_state.outcome_unknown = None, False
            if partition_state.hinted:
                hinted.append(partition)
        self._read_again(hinted)

    def _adopt(self, partition_state: PartitionState, found: VersionedState) -> None:
        """A leader's own write is sent as metadata only. The replicas need a LeaderAndIsr too after an unknown outcome,
        where the node was unreadable before, and of a rebuilt state: leaders never change their leader epoch."""
        known = partition_state.state
        rebuilt = known is None or known.leader_epoch != found.state.leader_epoch
        unsent = partition_state.outcome_unknown or rebuilt
        partition_state.adopt(found)
        if unsent:
            self._ctx.send_leader_and_isr(partition_state)
        else:
            self._ctx.send_metadata(partition_state)

    def _on_isr_changes(self, event: ev.IsrChangesReported, now_ms: int) -> None:
        self._read_again(event.partitions)

    def _on_replica_reported(self, event: ev.LeadershipResigned | ev.ReplicaFailed, now_ms: int) -> None:
        """A leader resigns, or a replica has failed. A late report may concern a deleted partition of this name."""
        partition_state, pending = self._ctx.partitions.get(event.partition), self._ctx.commands.get(event.broker)
        if partition_state is None or pending is None or pending.broker_epoch != event.broker_epoch:
            return
        if event.identity not in (None, partition_state.identity):
            return
        if partition_state.replica_reported(event, now_ms, 2 * self._ctx.config.session_timeout_ms):
            kind = "replica_failed" if isinstance(event, ev.ReplicaFailed) else "leadership_given_up"
            self._ctx.observe(kind, event.partition, broker=event.broker, leader_epoch=event.leader_epoch)
            self._ctx.dirty.add(event.partition)

    def _read_again(self, partitions: Iterable[TopicPartition]) -> None:
        """Read leaderAndISR; after the write or read in flight, if any, since its result may be older than the hint."""
        again = []
        for partition in partitions:
            partition_state = self._ctx.partitions.get(partition)
            if partition_state is None:
                continue
            partition_state.hinted = partition_state.busy
            if not partition_state.busy:
                partition_state.reading = True
                again.append(partition)
        if again:
            self._ctx.effects.append(ReadStates(tuple(again)))

    def _on_replicas_described(self, event: ev.ReplicasDescribed, now_ms: int) -> None:
        if not self._partition_count.answered(event, now_ms):
            self._ctx.dirty |= self._comparisons.answered(event, now_ms)

    def _on_tick(self, event: ev.Tick, now_ms: int) -> None:
        """End holds, pauses and back-offs whose time is over. A partition that waits for none of these has no cost."""
        self._ctx.dirty |= self._comparisons.due(now_ms) | self._elections.due(now_ms)
        self._partition_count.due(now_ms)
        self._reassignments.due(now_ms)
        self._preferred_rebalance.due(now_ms)
        if self._ctx.unreadable_states and now_ms >= self._reread_at_ms:
            self._reread_at_ms = now_ms + _REREAD_MS
            self._ctx.unreadable_states.intersection_update(self._ctx.partitions)
            self._read_again(sorted(self._ctx.unreadable_states))


def _announcement(
    before: LeaderAndIsr | None, state: LeaderAndIsr, decision: Decision, now_ms: int
) -> Announcement | None:
    if decision.unclean:
        lost = {"leader": state.leader, "lineage": state.lineage, **decision.losses}
        return Announcement("unclean_election", lost, now_ms)
    if state.leader == NO_LEADER:
        offline = Announcement("partition_offline", {"leader_epoch": state.leader_epoch}, now_ms)
        return offline if before is None or before.leader != NO_LEADER else None
    if before is not None and (before.leader, before.leader_epoch) == (state.leader, state.leader_epoch):
        return None
    fields: dict[str, str | int] = {
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "before": NO_LEADER if before is None else before.leader,
    }
    return Announcement("leader_elected", fields, now_ms)


def partitions_of(topics: Iterable[TopicDescription]) -> list[TopicPartition]:
    """Every partition of these topics, with its state."""
    return [TopicPartition(topic.topic, index) for topic in topics for index in topic.partitions]
