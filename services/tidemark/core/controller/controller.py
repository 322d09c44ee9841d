# SPDX-License-Identifier: Apache-2.0
"""The active controller as a state machine (rules C1-C7, Z2, E5): one queue, one writer.

Level-triggered: whatever happens updates what is known and marks the partitions it touches; `decide` then compares
each of them with what should be. At most one write of a partition is under way; what came meanwhile is decided when
it is answered. Commands gather by broker and say only what has been written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from tidemark.core.config import ControllerConfig
from tidemark.core.controller import events as ev
from tidemark.core.controller.command_builder import ControllerTeller
from tidemark.core.controller.context import ControllerContext
from tidemark.core.controller.controlled_shutdown import Departures
from tidemark.core.controller.effects import ControllerEffect, ReadStates, Resign, StateChange, WriteStates
from tidemark.core.controller.failure_detector import Suspicions
from tidemark.core.controller.leader_election import BrokerFacts, Decision, decide
from tidemark.core.controller.partition_count import PartitionChanges
from tidemark.core.controller.partition_counts import ControllerCounts
from tidemark.core.controller.partition_state import PartitionRecord, TopicPolicy
from tidemark.core.controller.pending_commands import BrokerLink
from tidemark.core.controller.preferred_leader_rebalance import LeaderBalance
from tidemark.core.controller.reassignment_log_dirs import LOG_DIR_REFUSALS
from tidemark.core.controller.reassignments import Reassignments
from tidemark.core.controller.requested_elections import RequestedElections, elect_preferred
from tidemark.core.controller.topic_deletion import TopicDeletions
from tidemark.core.controller.topic_updates import TopicWrites
from tidemark.core.controller.unclean_election import UncleanElections
from tidemark.model import (
    NO_LEADER,
    BrokerEpochRecord,
    BrokerId,
    BrokerRegistration,
    ErrorCode,
    IsrEntry,
    ReplicaIdentity,
    TidemarkError,
    TopicDescription,
    TopicPartition,
    VersionedState,
)

_MULTI_WRITES: Final = 250
_LOOK_AGAIN_MS: Final = 2_000
"""At nodes that could not be understood."""


class ControllerCore:
    """Everything the active controller knows and decides. `policy_of` reads a topic's settings."""

    def __init__(self, config: ControllerConfig, policy_of: Callable[[Mapping[str, str]], TopicPolicy]) -> None:
        self._ctx = ctx = ControllerContext(config)
        self._policy_of = policy_of
        self._suspicions: Suspicions | None = None
        self._departures = Departures(ctx)
        self._deletions = TopicDeletions(ctx)
        self._reassignments = Reassignments(ctx)
        self._changes = PartitionChanges(ctx, self._reassignments)
        self._topic_writes = TopicWrites(ctx, [self._reassignments.rewrite, self._changes.rewrite])
        self._unclean = UncleanElections()
        self._elections = RequestedElections()
        self._balance = LeaderBalance(ctx)
        self._counts = ControllerCounts(ctx, self._reassignments)
        self._look_again_ms = 0
        self._teller = ControllerTeller(ctx, self._deletions)
        self._handlers: dict[type, Callable[[Any, int], None]] = {
            ev.Elected: self._on_elected,
            ev.BrokersChanged: lambda event, now_ms: self._learn_brokers(event.brokers, event.broker_epochs),
            ev.TopicsChanged: lambda event, now_ms: self._learn_topics(event.topics, event.unreadable),
            ev.DeletionsRequested: self._on_deletions_requested,
            ev.ElectionsRequested: self._on_elections_requested,
            ev.MovesRequested: lambda event, now_ms: self._reassignments.requested(event.requests),
            ev.MovesFinished: lambda event, now_ms: self._reassignments.finished(event),
            ev.PartitionsRequested: lambda event, now_ms: self._changes.requested(event, now_ms),
            ev.PartitionRequestsFinished: lambda event, now_ms: self._changes.finished(event),
            ev.PartitionsDeleted: lambda event, now_ms: self._changes.deleted(event, now_ms),
            ev.TopicWritten: self._on_topic_written,
            ev.StatesWritten: self._on_states_written,
            ev.StatesRead: self._on_states_read,
            ev.IsrChangesReported: self._on_isr_changes,
            ev.LeadershipGivenUp: self._on_replica_told,
            ev.ReplicaFailed: self._on_replica_told,
            ev.ControlAnswered: self._on_control_answered,
            ev.ReplicasDescribed: self._on_replicas_described,
            ev.TopicDeleted: self._on_topic_deleted,
            ev.BrokerSuspected: self._on_suspected,
            ev.BrokerTrusted: self._on_trusted,
            ev.ShutdownWanted: lambda event, now_ms: self._departures.wanted(event.broker, event.broker_epoch),
            ev.DirectoriesFailed: self._on_directories_failed,
            ev.Tick: self._on_tick,
            ev.WentOn: lambda event, now_ms: None,
        }

    def handle(self, event: ev.ControllerEvent, now_ms: int) -> list[ControllerEffect]:
        """Take in one event; gives what is to be done, in order."""
        ctx = self._ctx
        ctx.effects = []
        if not isinstance(event, ev.Tick | ev.BrokerTrusted | ev.WentOn):
            self._counts.changed()
        self._handlers[type(event)](event, now_ms)
        self._decide_dirty(now_ms)
        self._reassignments.give_slots(self._changes)
        self._topic_writes.write(now_ms)
        self._deletions.go_on(now_ms)
        ctx.effects += self._teller.tell_all(now_ms)
        ctx.effects += self._unclean.questions() + self._elections.effects()
        ctx.effects += (*self._reassignments.effects(), *self._changes.effects())
        self._departures.release()
        return ctx.effects

    # -- for metrics and people --------------------------------------------------------------------------------

    @property
    def suspected(self) -> frozenset[BrokerId]:
        """Brokers acted against because they do not answer."""
        return self._ctx.unwanted - self._departures.leaving

    @property
    def has_more(self) -> bool:
        """More can be decided or told at once; `WentOn` does the next part of it."""
        return bool(self._ctx.undecided) or self._teller.has_more

    def counts(self) -> dict[str, int]:
        """Partitions by condition, and commands that wait for their answer."""
        return self._counts.now(self.suspected)

    def take_left_isrs(self) -> Mapping[str, int]:
        """Replicas that elections took out of ISRs since this was last asked, by reason."""
        return self._counts.take_left()

    # -- what happened -----------------------------------------------------------------------------------------

    def _on_elected(self, event: ev.Elected, now_ms: int) -> None:
        ctx = self._ctx
        self._suspicions = Suspicions(session_timeout_ms=ctx.config.session_timeout_ms, elected_ms=now_ms)
        self._learn_brokers(event.brokers, event.broker_epochs)
        ctx.unreadable_states = event.unreadable_states
        for partition in event.unreadable_states:
            ctx.observe("node_unreadable", partition)
        self._learn_topics(event.topics, event.unreadable_topics)
        for partition, found in event.states.items():
            record = ctx.records.get(partition)
            if record is not None:
                record.state, record.version = found
        ctx.dirty.update(ctx.records)
        self._deletions.requested(event.deletions)
        self._reassignments.requested(event.moves, resumed=True)

    def _learn_brokers(
        self,
        brokers: Mapping[BrokerId, BrokerRegistration],
        epochs: Mapping[BrokerId, BrokerEpochRecord],
    ) -> None:
        """Rule C2: compared by epochs, so a bounce is a failure and a return."""
        gone = [broker for broker in self._ctx.brokers if broker not in brokers]
        new = [
            broker
            for broker, registration in brokers.items()
            if broker not in self._ctx.links or self._ctx.links[broker].broker_epoch != registration.broker_epoch
        ]
        self._ctx.epochs = dict(epochs)
        for broker in (*gone, *new):
            self._forget_suspicion(broker)
            self._departures.forget(broker)
            self._ctx.dirty |= self._ctx.on_broker[broker]
            self._deletions.broker_left(broker)
        for broker in gone:
            self._ctx.observe("broker_failed", None, broker=broker)
            self._ctx.brokers.pop(broker)
            self._ctx.links.pop(broker, None)
        for broker in new:
            self._ctx.observe("broker_registered", None, broker=broker, broker_epoch=brokers[broker].broker_epoch)
            self._ctx.links[broker] = BrokerLink(brokers[broker].broker_epoch)
        self._ctx.brokers.update(brokers)
        if gone or new:
            self._reassignments.brokers_changed()
            for link in self._ctx.links.values():
                link.brokers_changed = True

    def _on_topic_written(self, event: ev.TopicWritten, now_ms: int) -> None:
        self._topic_writes.answered(event.topic, event.written is not None, now_ms)
        if event.written is not None:
            known, written = self._ctx.topics.get(event.topic), event.written
            if known is not None and known.configs_zxid > written.configs_zxid:  # they changed since it was composed
                written = replace(written, configs=known.configs, configs_zxid=known.configs_zxid)
            self._learn_topic(written)

    def _learn_topics(self, topics: Mapping[str, TopicDescription], unreadable: frozenset[str]) -> None:
        """All there are. One that is gone without having been deleted by us was deleted by the controller before us;
        one that cannot be understood any more stays as it was known."""
        self._ctx.learn_unreadable(unreadable, topics)
        for topic in topics.values():
            self._learn_topic(topic)
        self._deletions.forget_ids({topic.topic_id for topic in topics.values()})
        kept = {*topics, *unreadable}
        for name in [name for name in self._ctx.topics if name not in kept and name not in self._deletions]:
            self._forget_topic(name)

    def _learn_topic(self, topic: TopicDescription) -> None:
        ctx, name = self._ctx, topic.topic
        known = ctx.topics.get(name)
        if self._deletions.was_deleted(topic):
            return  # read before it was deleted
        if known is not None and known.topic_id != topic.topic_id:
            self._deletions.recreated(name)
            self._forget_topic(name)
            known = None
        elif known == topic or (known is not None and known.modified_zxid > topic.modified_zxid):
            return
        ctx.topics[name] = topic
        policy = self._policy_of(topic.configs)
        if topic.configs_zxid != topic.created_zxid:
            policy = replace(policy, group_commit=False)  # now, but maybe not throughout (rule T1)
        for index in () if known is None else set(known.partitions) - set(topic.partitions):
            self._forget_partition(TopicPartition(name, index))
        altered = known is not None and known.configs != topic.configs
        for index in topic.partitions:
            self._learn_partition(topic, index, policy, altered=altered or not _moves_alike(known, topic, index))
        self._reassignments.topic_learned(topic)
        self._changes.topic_learned(topic)
        ctx.rewritten.add(name)

    def _learn_partition(self, topic: TopicDescription, index: int, policy: TopicPolicy, *, altered: bool) -> None:
        ctx, partition = self._ctx, TopicPartition(topic.topic, index)
        assigned = self._reassignments.assigned(topic, index)
        record = ctx.records.get(partition)
        if record is None:
            identity = ReplicaIdentity(topic.topic_id, topic.incarnations.get(index, ""))
            record = ctx.records[partition] = PartitionRecord(partition, identity, (), policy)
        record.replication_factor = self._reassignments.replication_factor(topic, index)
        if record.assigned == assigned and record.policy == policy and not altered:
            return
        ctx.assign(record, assigned)
        record.policy = policy
        if record.state is not None:
            ctx.mark_changed(record)
        ctx.dirty.add(partition)

    def _forget_partition(self, partition: TopicPartition) -> None:
        """It was removed: its replicas go, and everybody hears of how many there are (rule C7)."""
        record = self._ctx.records.pop(partition)
        self._ctx.stop_replicas(record, record.assigned)
        self._ctx.assign(record, ())
        self._ctx.dirty.discard(partition)
        self._ctx.mark_shown(self._ctx.records[TopicPartition(partition.topic, 0)])

    def _forget_topic(self, name: str) -> None:
        topic = self._ctx.topics.pop(name, None)
        self._deletions.forget(name)
        if topic is None:
            return
        for index in topic.partitions:
            record = self._ctx.records.pop(TopicPartition(name, index), None)
            if record is not None:
                self._ctx.assign(record, ())
                self._ctx.dirty.discard(record.partition)
        self._reassignments.topic_gone(name)
        self._changes.topic_gone(name)
        for link in self._ctx.links.values():
            link.gone_topics.add(name)

    def _on_deletions_requested(self, event: ev.DeletionsRequested, now_ms: int) -> None:
        self._deletions.requested(event.topics)

    def _on_topic_deleted(self, event: ev.TopicDeleted, now_ms: int) -> None:
        if self._deletions.answered(event, now_ms):
            self._forget_topic(event.topic)

    # -- deciding and writing ----------------------------------------------------------------------------------

    def _decide_dirty(self, now_ms: int) -> None:
        self._maybe_act_on_suspicions(now_ms)
        ctx = self._ctx
        dirty = ctx.next_to_decide()
        if not dirty:
            return
        facts = ctx.broker_facts()
        changes: list[tuple[PartitionRecord, StateChange]] = []
        for partition in dirty:
            record = ctx.records.get(partition)
            if record is None or partition.topic in self._deletions:
                self._unclean.forget(partition)
                self._elections.unknown(partition)
                self._reassignments.unknown(partition)
                continue
            if record.state is None and partition in ctx.unreadable_states:
                continue  # it is looked at again every now and then
            self._reassignments.look(record)
            if record.busy or now_ms < record.not_before_ms:
                ctx.dirty.add(partition)
                continue
            decision = self._decide(record, facts, now_ms)
            if decision is None:
                record.given_up_epoch = None  # nobody can relieve its leader now; it asks again while it needs to
            else:
                changes.append((record, self._change(record, decision)))
        self._write(changes)

    def _decide(self, record: PartitionRecord, brokers: BrokerFacts, now_ms: int) -> Decision | None:
        """The first that wants something: what brokers can do comes before what people ask for."""
        partition = record.partition
        facts = self._elections.facts(partition, record.facts(brokers.live), brokers, now_ms)
        decision = (
            decide(facts, brokers)
            or self._unclean.decide(partition, record.identity, facts, brokers, now_ms)
            or self._elections.preferred(partition, facts, brokers)
            or self._reassignments.next(record, facts, brokers)
            or self._changes.next(record, now_ms)
        )
        if decision is None and self._balance.wants(partition):
            elected = elect_preferred(facts, brokers)
            return None if isinstance(elected, str) else elected
        return decision

    def _change(self, record: PartitionRecord, decision: Decision) -> StateChange:
        state = replace(decision.state, controller_epoch=self._ctx.config.controller_epoch)
        record.begin_write(state)
        old = record.state
        if decision.unclean:
            decision = replace(decision, losses=decision.losses or record.losses)
            chosen = {"leader": state.leader, "lineage": state.lineage, **decision.losses}
            self._ctx.observe("unclean_election", record.partition, **chosen)
        elif state.leader == NO_LEADER and (old is None or old.leader != NO_LEADER):
            self._ctx.observe("partition_offline", record.partition, leader_epoch=state.leader_epoch)
        elif old is None or old.leader != state.leader or old.leader_epoch != state.leader_epoch:
            self._balance.elected()
            self._ctx.observe(
                "leader_elected",
                record.partition,
                leader=state.leader,
                leader_epoch=state.leader_epoch,
                before=NO_LEADER if old is None else old.leader,
            )
        report = self._elections.report(record.partition, record.identity.topic_id, decision)
        return StateChange(record.partition, record.identity, state, record.version, decision.checked, report)

    def _write(self, changes: list[tuple[PartitionRecord, StateChange]]) -> None:
        """Together, but those that met conflicts in smaller groups (rule Z2)."""
        by_limit: defaultdict[int, list[tuple[PartitionRecord, StateChange]]] = defaultdict(list)
        for record, change in changes:
            by_limit[record.limit].append((record, change))
        for limit, group in by_limit.items():
            for start in range(0, len(group), limit):
                part = group[start : start + limit]
                for record, _ in part:
                    record.group = min(len(part), _MULTI_WRITES)
                self._ctx.effects.append(WriteStates(tuple(change for _, change in part)))

    def _on_elections_requested(self, event: ev.ElectionsRequested, now_ms: int) -> None:
        partitions = self._elections.requested(event, now_ms)
        self._ctx.dirty |= partitions
        self._read_again(partitions)  # whoever asks may know of an ISR that its leader has not reported yet

    def _on_states_written(self, event: ev.StatesWritten, now_ms: int) -> None:
        hinted = []
        for partition, version in event.written.items():
            record = self._ctx.records.get(partition)
            if record is None or record.writing is None:
                continue
            self._counts.isr_written(record, self._departures.leaving)
            record.wrote(version)
            self._ctx.mark_changed(record)
            self._ctx.dirty.add(partition)
            if record.hinted:
                hinted.append(partition)
        again = []
        for partition in event.failed:
            record = self._ctx.records.get(partition)
            if record is None:
                continue
            record.not_written(now_ms)
            again.append(partition)
        if again:
            self._ctx.observe("write_conflict", None, partitions=len(again))
            self._ctx.effects.append(ReadStates(tuple(again)))
        self._read_again(hinted)

    def _on_states_read(self, event: ev.StatesRead, now_ms: int) -> None:
        hinted = []
        for partition in event.asked:
            record = self._ctx.records.get(partition)
            if record is None:
                continue
            record.reading = False
            self._ctx.dirty.add(partition)
            found = event.found.get(partition)
            if found is not None and record.is_news(found):
                self._adopt(record, found)
            record.doubtful = False
            if record.hinted:
                hinted.append(partition)
        self._read_again(hinted)

    def _adopt(self, record: PartitionRecord, found: VersionedState) -> None:
        """A leader knows what it wrote itself; its replicas have to be told what we wrote without an answer, and what
        was not understood before."""
        untold = record.doubtful or record.state is None
        record.adopt(found)
        if untold:
            self._ctx.mark_changed(record)
        else:
            self._ctx.mark_shown(record)

    def _on_isr_changes(self, event: ev.IsrChangesReported, now_ms: int) -> None:
        self._read_again(event.partitions)

    def _on_replica_told(self, event: ev.LeadershipGivenUp | ev.ReplicaFailed, now_ms: int) -> None:
        """Of a replica that had better not lead, or has failed."""
        record, link = self._ctx.records.get(event.partition), self._ctx.links.get(event.broker)
        if record is None or link is None or link.broker_epoch != event.broker_epoch:
            return
        if record.told(event, now_ms, 2 * self._ctx.config.session_timeout_ms):
            kind = "replica_failed" if isinstance(event, ev.ReplicaFailed) else "leadership_given_up"
            self._ctx.observe(kind, event.partition, broker=event.broker, leader_epoch=event.leader_epoch)
            self._ctx.dirty.add(event.partition)

    def _read_again(self, partitions: Iterable[TopicPartition]) -> None:
        """On a leader's hint. What is under way may be older than the hint: then once more when it is answered."""
        again = []
        for partition in partitions:
            record = self._ctx.records.get(partition)
            if record is None:
                continue
            record.hinted = record.busy
            if not record.busy:
                record.reading = True
                again.append(partition)
        if again:
            self._ctx.effects.append(ReadStates(tuple(again)))

    # -- what brokers answer -----------------------------------------------------------------------------------

    def _on_control_answered(self, event: ev.ControlAnswered, now_ms: int) -> None:
        link = self._ctx.links.get(event.broker)
        if link is None:
            return
        if event.error is not None and event.error.code is ErrorCode.STALE_CONTROLLER_EPOCH:
            self._ctx.effects.append(Resign(f"broker {event.broker} knows a newer controller: {event.error.message}"))
        if event.request_id == link.leadership.request_id:
            if event.error is not None:
                link.leadership_failed(now_ms)
                return
            link.leadership.succeeded()
            self._reassignments.acknowledged(link.sent_partitions)
            self._changes.told()
            for partition, error in event.refused:
                self._on_refused(event.broker, link, partition, error, now_ms)
        elif event.request_id == link.metadata.request_id:
            if event.error is not None:
                link.metadata_failed(now_ms)
            else:
                link.metadata_succeeded()
        elif event.request_id == link.stops.request_id:
            self._on_stops_answered(event, link, now_ms)

    def _on_replicas_described(self, event: ev.ReplicasDescribed, now_ms: int) -> None:
        if not self._changes.answered(event, now_ms):
            self._ctx.dirty |= self._unclean.answered(event, now_ms)

    def _on_stops_answered(self, event: ev.ControlAnswered, link: BrokerLink, now_ms: int) -> None:
        if event.error is not None:
            link.stops.failed(now_ms)
            return
        link.stops.succeeded()
        for partition in link.sent_stops:
            link.stopping.pop(partition, None)
        self._deletions.stopped(event.broker, link)
        self._reassignments.acknowledged(link.sent_stops)

    def _on_refused(
        self, broker: BrokerId, link: BrokerLink, partition: TopicPartition, error: TidemarkError, now_ms: int
    ) -> None:
        record = self._ctx.records.get(partition)
        if record is None or record.state is None:
            return
        self._ctx.observe("command_refused", partition, broker=broker, code=str(error.code), why=error.message)
        if error.code is ErrorCode.REPLICA_DAMAGED:
            record.refused_damaged(broker, error)
            self._ctx.dirty.add(partition)
        elif error.code is ErrorCode.STORAGE_ERROR:
            record.offline |= {IsrEntry(broker, link.broker_epoch)}
            self._ctx.dirty.add(partition)
        elif error.code in LOG_DIR_REFUSALS:
            self._reassignments.log_dir_refused(broker, partition, error)
        elif record.state.leader != broker:
            return
        elif error.code is ErrorCode.FENCED_LEADER_EPOCH and record.refused(error):
            self._ctx.dirty.add(partition)
        else:
            link.partitions.add(partition)
            link.leadership.failed(now_ms)

    def _on_directories_failed(self, event: ev.DirectoriesFailed, now_ms: int) -> None:
        """Told everything once more, the broker refuses to lead what it can no longer open."""
        link = self._ctx.links.get(event.broker)
        if link is not None and link.broker_epoch == event.broker_epoch:
            self._ctx.observe("directories_failed", None, broker=event.broker)
            link.needs_all_leadership = True

    # -- suspicion ---------------------------------------------------------------------------------------------

    def _on_suspected(self, event: ev.BrokerSuspected, now_ms: int) -> None:
        registration = self._ctx.brokers.get(event.broker)
        if registration is None or registration.broker_epoch != event.broker_epoch or self._suspicions is None:
            return
        if self._suspicions.suspect(event.broker, event.broker_epoch, now_ms):
            self._ctx.observe("broker_suspected", None, broker=event.broker)
        if self._suspicions.guard(len(self._ctx.brokers), now_ms):
            self._ctx.effects.append(Resign("too many brokers are suspected at once: it is more likely me"))

    def _on_trusted(self, event: ev.BrokerTrusted, now_ms: int) -> None:
        if self._suspicions is not None:
            self._suspicions.trust(event.broker, event.broker_epoch, now_ms)

    def _forget_suspicion(self, broker: BrokerId) -> None:
        if self._suspicions is not None:
            self._suspicions.forget(broker)

    def _maybe_act_on_suspicions(self, now_ms: int) -> None:
        if self._suspicions is None:
            return
        self._suspicions.on_time(now_ms)
        unwanted = self._suspicions.suspected(now_ms) | self._departures.leaving
        if unwanted == self._ctx.unwanted:
            return
        for broker in unwanted ^ self._ctx.unwanted:
            self._ctx.dirty |= self._ctx.on_broker[broker]
        self._ctx.unwanted = unwanted
        for link in self._ctx.links.values():
            link.suspects_changed = True

    def _on_tick(self, event: ev.Tick, now_ms: int) -> None:
        """Holds, retries and back-offs end; nothing per partition that has what it needs."""
        self._ctx.dirty |= self._unclean.due(now_ms) | self._elections.due(now_ms)
        self._changes.due(now_ms)
        self._balance.due(now_ms)
        if self._ctx.unreadable_states and now_ms >= self._look_again_ms:
            self._look_again_ms = now_ms + _LOOK_AGAIN_MS
            self._read_again([one for one in self._ctx.unreadable_states if self._ctx.is_hidden(one)])


def _moves_alike(known: TopicDescription | None, topic: TopicDescription, index: int) -> bool:
    return known is None or (known.adding.get(index), known.removing.get(index)) == (
        topic.adding.get(index),
        topic.removing.get(index),
    )


def partitions_of(topics: Iterable[TopicDescription]) -> list[TopicPartition]:
    """Every partition of these topics."""
    return [TopicPartition(topic.topic, index) for topic in topics for index in topic.partitions]
