"""The active controller as a state machine (rules C1-C6, Z2, E5; seed 001): one queue, one writer.

Level-triggered: whatever happens updates what is known and marks the partitions it touches; `decide` then compares
each of them with what should be. At most one write of a partition is under way; what came meanwhile is decided when
it is answered. Commands gather by broker and say only what has been written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tidemark.core import controller_events as ev
from tidemark.core.config import ControllerConfig
from tidemark.core.controller_effects import (
    ControllerEffect,
    DeleteTopic,
    Observed,
    ReadStates,
    Resign,
    StateChange,
    WriteStates,
)
from tidemark.core.controller_links import BrokerLink
from tidemark.core.controller_teller import ControllerTeller
from tidemark.core.election import BrokerFacts, Decision, decide
from tidemark.core.messages import StoppedReplica
from tidemark.core.partition_record import PartitionRecord, TopicPolicy
from tidemark.core.requested_elections import RequestedElections
from tidemark.core.suspicion import Suspicions
from tidemark.core.unclean import UncleanElections
from tidemark.model import (
    NO_EPOCH,
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

_DELETE_RETRY_MS: Final = 500
_MULTI_WRITES: Final = 250


@dataclass(slots=True)
class _Deletion:
    topic: TopicDescription
    waiting: set[BrokerId] = field(default_factory=set)
    under_way: bool = False
    retry_at_ms: int = 0


class ControllerCore:
    """Everything the active controller knows and decides. `policy_of` reads a topic's settings."""

    def __init__(self, config: ControllerConfig, policy_of: Callable[[Mapping[str, str]], TopicPolicy]) -> None:
        self._config = config
        self._policy_of = policy_of
        self._brokers: dict[BrokerId, BrokerRegistration] = {}
        self._epochs: dict[BrokerId, BrokerEpochRecord] = {}
        self._topics: dict[str, TopicDescription] = {}
        self._records: dict[TopicPartition, PartitionRecord] = {}
        self._on_broker: defaultdict[BrokerId, set[TopicPartition]] = defaultdict(set)
        self._links: dict[BrokerId, BrokerLink] = {}
        self._deletions: dict[str, _Deletion] = {}
        self._requested: frozenset[str] = frozenset()
        self._deleted_ids: set[str] = set()
        self._dirty: set[TopicPartition] = set()
        self._suspicions: Suspicions | None = None
        self._unclean = UncleanElections()
        self._elections = RequestedElections()
        self._acted_on: frozenset[BrokerId] = frozenset()
        self._effects: list[ControllerEffect] = []
        self._offline_count: int | None = None
        known = (self._brokers, self._topics, self._records, self._deletions)
        self._teller = ControllerTeller(config.controller_id, config.controller_epoch, config.cluster_id, *known)
        self._handlers: dict[type, Callable[[Any, int], None]] = {
            ev.Elected: self._on_elected,
            ev.BrokersChanged: self._on_brokers_changed,
            ev.TopicsChanged: self._on_topics_changed,
            ev.DeletionsRequested: self._on_deletions_requested,
            ev.ElectionsRequested: self._on_elections_requested,
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
            ev.DirectoriesFailed: self._on_directories_failed,
            ev.Tick: self._on_tick,
        }

    def handle(self, event: ev.ControllerEvent, now_ms: int) -> list[ControllerEffect]:
        """Take in one event; gives what is to be done, in order."""
        self._effects = []
        if not isinstance(event, ev.Tick | ev.BrokerTrusted):
            self._offline_count = None  # an idle cluster costs nothing by the partition
        self._handlers[type(event)](event, now_ms)
        self._decide_dirty(now_ms)
        self._maybe_delete(now_ms)
        for broker, link in self._links.items():
            self._effects += self._teller.tell(broker, link, self._on_broker[broker], self._acted_on, now_ms)
        self._effects += self._unclean.questions() + self._elections.effects()
        return self._effects

    # -- for metrics and people --------------------------------------------------------------------------------

    @property
    def suspected(self) -> frozenset[BrokerId]:
        """Brokers acted against."""
        return self._acted_on

    def counts(self) -> dict[str, int]:
        """Partitions by condition, and commands that wait for their answer."""
        if self._offline_count is None:
            states = (record.state for record in self._records.values())
            self._offline_count = sum(state is None or state.leader == NO_LEADER for state in states)
        return {
            "partitions": len(self._records),
            "offline_partitions": self._offline_count,
            "leader_and_isr_pending": sum(link.leadership.request_id is not None for link in self._links.values()),
            "live_brokers": len(self._brokers),
            "suspected_brokers": len(self._acted_on),
        }

    # -- what happened -----------------------------------------------------------------------------------------

    def _on_elected(self, event: ev.Elected, now_ms: int) -> None:
        self._suspicions = Suspicions(session_timeout_ms=self._config.session_timeout_ms, elected_ms=now_ms)
        self._requested = event.deletions
        self._learn_brokers(event.brokers, event.broker_epochs)
        self._learn_topics(event.topics)
        for partition, found in event.states.items():
            record = self._records.get(partition)
            if record is not None:
                record.state, record.version = found
        self._dirty.update(self._records)
        self._begin_deletions()

    def _on_brokers_changed(self, event: ev.BrokersChanged, now_ms: int) -> None:
        self._learn_brokers(event.brokers, event.broker_epochs)

    def _learn_brokers(
        self,
        brokers: Mapping[BrokerId, BrokerRegistration],
        epochs: Mapping[BrokerId, BrokerEpochRecord],
    ) -> None:
        """Rule C2: compared by epochs, so a bounce is a failure and a return."""
        gone = [broker for broker in self._brokers if broker not in brokers]
        new = [
            broker
            for broker, registration in brokers.items()
            if broker not in self._links or self._links[broker].broker_epoch != registration.broker_epoch
        ]
        self._epochs = dict(epochs)
        for broker in (*gone, *new):
            self._forget_suspicion(broker)
            self._dirty |= self._on_broker[broker]
            for deletion in self._deletions.values():
                deletion.waiting.discard(broker)
        for broker in gone:
            self._observe("broker_failed", None, broker=broker)
            self._brokers.pop(broker)
            self._links.pop(broker, None)
        for broker in new:
            self._observe("broker_registered", None, broker=broker, broker_epoch=brokers[broker].broker_epoch)
            self._links[broker] = BrokerLink(brokers[broker].broker_epoch)
        self._brokers.update(brokers)
        if gone or new:
            for link in self._links.values():
                link.brokers_changed = True

    def _on_topics_changed(self, event: ev.TopicsChanged, now_ms: int) -> None:
        self._learn_topics(event.topics)

    def _learn_topics(self, topics: Mapping[str, TopicDescription]) -> None:
        for name, topic in topics.items():
            if topic.topic_id in self._deleted_ids:
                continue  # read before it was deleted
            known = self._topics.get(name)
            if known is not None and known.topic_id != topic.topic_id:
                self._requested -= {name}  # that was about the one before
                self._forget_topic(name)
            elif known == topic or (known is not None and known.modified_zxid > topic.modified_zxid):
                continue
            self._topics[name] = topic
            policy = self._policy_of(topic.configs)
            if topic.configs_zxid != topic.created_zxid:
                policy = replace(policy, group_commit=False)  # now, but maybe not throughout (rule T1)
            for index, assigned in topic.partitions.items():
                self._learn_partition(TopicPartition(name, index), topic, assigned, policy)
        self._deleted_ids &= {topic.topic_id for topic in topics.values()}
        for name in [name for name in self._topics if name not in topics and name not in self._deletions]:
            self._forget_topic(name)

    def _learn_partition(
        self, partition: TopicPartition, topic: TopicDescription, assigned: tuple[BrokerId, ...], policy: TopicPolicy
    ) -> None:
        record = self._records.get(partition)
        if record is None:
            identity = ReplicaIdentity(topic.topic_id, topic.incarnations.get(partition.partition, ""))
            record = self._records[partition] = PartitionRecord(partition, identity, assigned, policy)
        record.assigned, record.policy = assigned, policy
        if record.state is not None:
            self._mark_changed(record)  # its topic was altered
        for broker in assigned:
            self._on_broker[broker].add(partition)
        self._dirty.add(partition)

    def _forget_topic(self, name: str) -> None:
        topic = self._topics.pop(name, None)
        self._deletions.pop(name, None)
        if topic is None:
            return
        for index in topic.partitions:
            record = self._records.pop(TopicPartition(name, index), None)
            if record is not None:
                for broker in record.assigned:
                    self._on_broker[broker].discard(record.partition)
                self._dirty.discard(record.partition)
        for link in self._links.values():
            link.gone_topics.add(name)

    # -- deletion ----------------------------------------------------------------------------------------------

    def _on_deletions_requested(self, event: ev.DeletionsRequested, now_ms: int) -> None:
        self._requested = event.topics
        self._begin_deletions()

    def _begin_deletions(self) -> None:
        for name in self._requested:
            topic = self._topics.get(name)
            if topic is None or name in self._deletions:
                continue
            deletion = self._deletions[name] = _Deletion(topic)
            self._observe("topic_deletion_begun", None, topic=name)
            for index in topic.partitions:
                self._stop_replicas(self._records[TopicPartition(name, index)], deletion)

    def _stop_replicas(self, record: PartitionRecord, deletion: _Deletion) -> None:
        epoch = record.state.leader_epoch if record.state is not None else NO_EPOCH
        for broker in record.assigned:
            link = self._links.get(broker)
            if link is not None:
                deletion.waiting.add(broker)
                link.partitions.discard(record.partition)
                link.stopping[record.partition] = StoppedReplica(record.partition, record.identity, epoch, True)

    def _maybe_delete(self, now_ms: int) -> None:
        """Every live replica has let go: the nodes may go."""
        for deletion in self._deletions.values():
            if deletion.waiting or deletion.under_way or now_ms < deletion.retry_at_ms:
                continue
            if not any(self._records[partition].busy for partition in partitions_of([deletion.topic])):
                deletion.under_way = True
                self._effects.append(DeleteTopic(deletion.topic))

    def _on_topic_deleted(self, event: ev.TopicDeleted, now_ms: int) -> None:
        deletion = self._deletions.get(event.topic)
        if deletion is None or deletion.topic.topic_id != event.topic_id:
            return
        if event.error is None:
            self._observe("topic_deleted", None, topic=event.topic)
            self._requested -= {event.topic}
            self._deleted_ids.add(deletion.topic.topic_id)
            self._forget_topic(event.topic)
        else:
            deletion.under_way = False
            deletion.retry_at_ms = now_ms + _DELETE_RETRY_MS

    # -- deciding and writing ----------------------------------------------------------------------------------

    def _decide_dirty(self, now_ms: int) -> None:
        self._maybe_act_on_suspicions(now_ms)
        if not self._dirty:
            return
        live = {broker: registration.broker_epoch for broker, registration in self._brokers.items()}
        facts = BrokerFacts(
            live=live,
            unclean_at={broker: record.unclean_at for broker, record in self._epochs.items()},
            lost_at={broker: record.lost_at for broker, record in self._epochs.items()},
            suspected=self._acted_on,
        )
        changes: list[tuple[PartitionRecord, StateChange]] = []
        waiting: set[TopicPartition] = set()
        for partition in self._dirty:
            record = self._records.get(partition)
            if record is None or partition.topic in self._deletions:
                self._unclean.forget(partition)
                self._elections.unknown(partition)
                continue
            if record.busy or now_ms < record.not_before_ms:
                waiting.add(partition)
                continue
            partition_facts = self._elections.facts(partition, record.facts(live), facts, now_ms)
            decision = decide(partition_facts, facts)
            if decision is None:
                decision = self._unclean.decide(partition, record.identity, partition_facts, facts, now_ms)
            if decision is None:
                decision = self._elections.preferred(partition, partition_facts, facts)
            if decision is None:
                record.given_up_epoch = None  # nobody can relieve its leader now; it asks again while it needs to
            else:
                changes.append((record, self._change(record, decision)))
        self._dirty = waiting
        self._write(changes)

    def _change(self, record: PartitionRecord, decision: Decision) -> StateChange:
        state = replace(decision.state, controller_epoch=self._config.controller_epoch)
        record.begin_write(state)
        old = record.state
        if decision.unclean:
            losses = decision.losses
            self._observe("unclean_election", record.partition, leader=state.leader, lineage=state.lineage, **losses)
        elif state.leader == NO_LEADER and (old is None or old.leader != NO_LEADER):
            self._observe("partition_offline", record.partition, leader_epoch=state.leader_epoch)
        elif old is None or old.leader != state.leader or old.leader_epoch != state.leader_epoch:
            self._observe(
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
                self._effects.append(WriteStates(tuple(change for _, change in part)))

    def _on_elections_requested(self, event: ev.ElectionsRequested, now_ms: int) -> None:
        partitions = self._elections.requested(event, now_ms)
        self._dirty |= partitions
        self._read_again(partitions)  # whoever asks may know of an ISR that its leader has not reported yet

    def _on_states_written(self, event: ev.StatesWritten, now_ms: int) -> None:
        hinted = []
        for partition, version in event.written.items():
            record = self._records.get(partition)
            if record is None or record.writing is None:
                continue
            record.wrote(version)
            self._mark_changed(record)
            self._dirty.add(partition)
            if record.hinted:
                hinted.append(partition)
        again = []
        for partition in event.failed:
            record = self._records.get(partition)
            if record is None:
                continue
            record.not_written(now_ms)
            again.append(partition)
        if again:
            self._observe("write_conflict", None, partitions=len(again))
            self._effects.append(ReadStates(tuple(again)))
        self._read_again(hinted)

    def _on_states_read(self, event: ev.StatesRead, now_ms: int) -> None:
        hinted = []
        for partition in event.asked:
            record = self._records.get(partition)
            if record is None:
                continue
            record.reading = False
            self._dirty.add(partition)
            found = event.found.get(partition)
            if found is not None and found.version > record.version:
                self._adopt(record, found)
            record.doubtful = False
            if record.hinted:
                hinted.append(partition)
        self._read_again(hinted)

    def _adopt(self, record: PartitionRecord, found: VersionedState) -> None:
        """A leader knows what it wrote itself; what we wrote without an answer its replicas have to be told."""
        record.adopt(found)
        if record.doubtful:
            self._mark_changed(record)
        else:
            self._mark_shown(record)

    def _on_isr_changes(self, event: ev.IsrChangesReported, now_ms: int) -> None:
        self._read_again(event.partitions)

    def _on_replica_told(self, event: ev.LeadershipGivenUp | ev.ReplicaFailed, now_ms: int) -> None:
        """Of a replica that had better not lead, or has failed."""
        record, link = self._records.get(event.partition), self._links.get(event.broker)
        if record is None or link is None or link.broker_epoch != event.broker_epoch:
            return
        if record.told(event, now_ms, 2 * self._config.session_timeout_ms):
            kind = "replica_failed" if isinstance(event, ev.ReplicaFailed) else "leadership_given_up"
            self._observe(kind, event.partition, broker=event.broker, leader_epoch=event.leader_epoch)
            self._dirty.add(event.partition)

    def _read_again(self, partitions: Iterable[TopicPartition]) -> None:
        """On a leader's hint. What is under way may be older than the hint: then once more when it is answered."""
        again = []
        for partition in partitions:
            record = self._records.get(partition)
            if record is None:
                continue
            record.hinted = record.busy
            if not record.busy:
                record.reading = True
                again.append(partition)
        if again:
            self._effects.append(ReadStates(tuple(again)))

    # -- telling -----------------------------------------------------------------------------------------------

    def _mark_changed(self, record: PartitionRecord) -> None:
        """Its node changed: its replicas get it as a command, everybody as metadata."""
        for broker in record.assigned:
            link = self._links.get(broker)
            if link is not None:
                link.partitions.add(record.partition)
        self._mark_shown(record)

    def _mark_shown(self, record: PartitionRecord) -> None:
        for link in self._links.values():
            link.shown.add(record.partition)

    def _on_control_answered(self, event: ev.ControlAnswered, now_ms: int) -> None:
        link = self._links.get(event.broker)
        if link is None:
            return
        if event.error is not None and event.error.code is ErrorCode.STALE_CONTROLLER_EPOCH:
            self._effects.append(Resign(f"broker {event.broker} knows a newer controller: {event.error.message}"))
        if event.request_id == link.leadership.request_id:
            if event.error is not None:
                link.leadership_failed(now_ms)
                return
            link.leadership.succeeded()
            for partition, error in event.refused:
                self._on_refused(event.broker, link, partition, error, now_ms)
        elif event.request_id == link.metadata.request_id:
            if event.error is not None:
                link.metadata_failed(now_ms)
            else:
                link.metadata.succeeded()
        elif event.request_id == link.stops.request_id:
            self._on_stops_answered(event, link, now_ms)

    def _on_replicas_described(self, event: ev.ReplicasDescribed, now_ms: int) -> None:
        self._dirty |= self._unclean.answered(event, now_ms)

    def _on_stops_answered(self, event: ev.ControlAnswered, link: BrokerLink, now_ms: int) -> None:
        if event.error is not None:
            link.stops.failed(now_ms)
            return
        link.stops.succeeded()
        for partition in link.sent_stops:
            link.stopping.pop(partition, None)
        open_topics = {partition.topic for partition in link.stopping}
        for name, deletion in self._deletions.items():
            if name not in open_topics:
                deletion.waiting.discard(event.broker)

    def _on_refused(
        self, broker: BrokerId, link: BrokerLink, partition: TopicPartition, error: TidemarkError, now_ms: int
    ) -> None:
        record = self._records.get(partition)
        if record is None or record.state is None:
            return
        self._observe("command_refused", partition, broker=broker, code=str(error.code), why=error.message)
        if error.code is ErrorCode.REPLICA_DAMAGED:
            record.damaged |= {entry for entry in (*record.state.isr, *record.state.elr) if entry.broker_id == broker}
            self._dirty.add(partition)
        elif error.code is ErrorCode.STORAGE_ERROR:
            record.offline |= {IsrEntry(broker, link.broker_epoch)}
            self._dirty.add(partition)
        elif record.state.leader != broker:
            return
        elif error.code is ErrorCode.FENCED_LEADER_EPOCH and record.refused(error):
            self._dirty.add(partition)
        else:
            link.partitions.add(partition)
            link.leadership.failed(now_ms)

    def _on_directories_failed(self, event: ev.DirectoriesFailed, now_ms: int) -> None:
        """Told everything once more, the broker refuses to lead what it can no longer open."""
        link = self._links.get(event.broker)
        if link is not None and link.broker_epoch == event.broker_epoch:
            self._observe("directories_failed", None, broker=event.broker)
            link.needs_all_leadership = True

    # -- suspicion ---------------------------------------------------------------------------------------------

    def _on_suspected(self, event: ev.BrokerSuspected, now_ms: int) -> None:
        registration = self._brokers.get(event.broker)
        if registration is None or registration.broker_epoch != event.broker_epoch or self._suspicions is None:
            return
        if self._suspicions.suspect(event.broker, event.broker_epoch, now_ms):
            self._observe("broker_suspected", None, broker=event.broker)
        if self._suspicions.guard(len(self._brokers), now_ms):
            self._effects.append(Resign("too many brokers are suspected at once: it is more likely me"))

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
        suspected = self._suspicions.suspected(now_ms)
        if suspected == self._acted_on:
            return
        for broker in suspected ^ self._acted_on:
            self._dirty |= self._on_broker[broker]
        self._acted_on = suspected
        for link in self._links.values():
            link.suspects_changed = True

    def _on_tick(self, event: ev.Tick, now_ms: int) -> None:
        """Holds, retries and back-offs end; nothing per partition that has what it needs."""
        self._dirty |= self._unclean.due(now_ms) | self._elections.due(now_ms)

    def _observe(self, kind: str, partition: TopicPartition | None, **fields: str | int) -> None:
        self._effects.append(Observed(kind, partition, fields))


def partitions_of(topics: Iterable[TopicDescription]) -> list[TopicPartition]:
    """Every partition of these topics."""
    return [TopicPartition(topic.topic, index) for topic in topics for index in topic.partitions]
