# SPDX-License-Identifier: Apache-2.0
"""ZooKeeper and brokers around a `ControllerCore`, in memory: each effect waits until the test answers it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from tidemark.core.cluster_view import ClusterView, MetadataAssembler
from tidemark.core.config import ControllerConfig
from tidemark.core.controller import effects as fx
from tidemark.core.controller import events as ev
from tidemark.core.controller.controller import ControllerCore
from tidemark.core.controller.partition_state import TopicPolicy
from tidemark.core.messages import PartitionCommand, ReplicaDescription
from tidemark.model import (
    FEATURES,
    BrokerEpoch,
    BrokerEpochRecord,
    BrokerId,
    BrokerRegistration,
    ControllerEpoch,
    ElectionKind,
    ElectionRequest,
    ErrorCode,
    IsrEntry,
    LeaderAndIsr,
    LeaderEpoch,
    Offset,
    PartitionReassignment,
    PartitionRequests,
    ReassignmentRequests,
    Refusal,
    ReplicaIdentity,
    StateWrite,
    TidemarkError,
    TopicDescription,
    TopicPartition,
    UncleanElection,
    VersionedState,
)

CONTROLLER_EPOCH = ControllerEpoch(7)
EMPTY = ReplicaDescription(LeaderEpoch(-1), Offset(0), Offset(0), damaged=False)
Effect = TypeVar("Effect")
Sends = (fx.SendLeaderAndIsr, fx.SendStopReplica, fx.SendUpdateMetadata)


def policy_of(configs: Mapping[str, str]) -> TopicPolicy:
    return TopicPolicy(
        int(configs.get("min.insync.replicas", "2")), configs.get("unclean") == "true", configs.get("flush") == "group"
    )


def node_of(kind: ElectionKind) -> ElectionKind:
    """The node of an election request; both kinds of unclean elections share one."""
    return ElectionKind.PREFERRED if kind is ElectionKind.PREFERRED else ElectionKind.LAST_KNOWN


class BrokerKnows:
    """Commands to one broker process since its registration."""

    def __init__(self, registration: BrokerRegistration) -> None:
        self.registration = registration
        self.commands: dict[TopicPartition, PartitionCommand] = {}
        self.view = ClusterView()
        self.parts = MetadataAssembler()
        self.complete = False
        self.suspected: frozenset[BrokerId] = frozenset()
        self.stopped: set[TopicPartition] = set()


class Asked:
    """Nodes below /admin that request reassignments and changes of partition counts, and the refusals."""

    def __init__(self) -> None:
        self.moves: dict[TopicPartition, PartitionReassignment] = {}
        self.added: dict[TopicPartition, tuple[BrokerId, ...]] = {}
        self.removed: dict[TopicPartition, bool] = {}
        self.malformed: list[Refusal] = []
        self.refusals: list[Refusal] = []

    def move_requests(self) -> ReassignmentRequests:
        malformed = tuple(one for one in self.malformed if one.kind == "reassign")
        return ReassignmentRequests(tuple(self.moves.values()), malformed, version=0)

    def partition_requests(self) -> PartitionRequests:
        malformed = tuple(one for one in self.malformed if one.kind != "reassign")
        return PartitionRequests(dict(self.added), dict(self.removed), malformed)

    def finish_moves(self, effect: fx.FinishReassignments) -> None:
        """Remove entries as the store does: only those that were not changed."""
        for move in effect.finished:
            if self.moves.get(move.partition) == move:
                del self.moves[move.partition]
        self.malformed = [one for one in self.malformed if one.kind != "reassign"]
        self.refusals += effect.refused

    def finish_partitions(self, effect: fx.FinishPartitionRequests) -> None:
        for partition in effect.added:
            self.added.pop(partition, None)
        for partition, force in effect.removed.items():
            if force or not self.removed.get(partition):
                self.removed.pop(partition, None)
        self.malformed = [one for one in self.malformed if one not in effect.refused]
        self.refusals += effect.refused


class World:
    """ZooKeeper, the live brokers, and the effects that the controller waits for (`pending`, in order)."""

    def __init__(self, **settings: int) -> None:
        self.now_ms = 1_000_000
        self.states: dict[TopicPartition, VersionedState] = {}
        self.damaged: set[TopicPartition] = set()
        """Partitions whose node an operator has damaged; writes of it fail."""
        self.topics: dict[str, TopicDescription] = {}
        self.deletions: set[str] = set()
        self.epochs: dict[BrokerId, BrokerEpochRecord] = {}
        self.brokers: dict[BrokerId, BrokerKnows] = {}
        self.pending: list[Any] = []
        self.effects: list[Any] = []
        self.observed: list[fx.Observed] = []
        self.logs: dict[tuple[int, TopicPartition], ReplicaDescription] = {}
        self.requests: dict[ElectionKind, ElectionRequest] = {}
        self.reports: list[UncleanElection] = []
        self.asked = Asked()
        self.released: list[tuple[BrokerId, BrokerEpoch]] = []
        self.goes_on = True
        """After an event, `MoreToDo` is handled immediately as long as there is more; False: the test does that."""
        self._zxid = 0
        self.config = ControllerConfig(BrokerId(100), CONTROLLER_EPOCH, "cluster", **settings)
        self.core = ControllerCore(self.config, policy_of)

    # -- events --------------------------------------------------------------------------------------------------

    def happens(self, event: ev.ControllerEvent) -> list[Any]:
        """Hand an event to the controller; its effects wait in `pending`."""
        self.effects = list(self.core.handle(event, self.now_ms))
        while self.goes_on and self.core.has_more:
            self.effects += self.core.handle(ev.MoreToDo(), self.now_ms)
        self.observed += [effect for effect in self.effects if isinstance(effect, fx.Observed)]
        self.pending += [effect for effect in self.effects if not isinstance(effect, fx.Observed)]
        return self.effects

    def elected(self, *, answering: Collection[int] | None = None) -> None:
        """A controller begins its term; then these brokers answer its heartbeats, or else all of them."""
        effects = self.happens(
            ev.Elected(
                self.registrations(),
                dict(self.epochs),
                dict(self.topics),
                dict(self.states),
                frozenset(self.deletions),
                reassignments=self.asked.move_requests(),
            )
        )
        self.effects = effects + self.answer_heartbeats(answering)

    def answer_heartbeats(self, answering: Collection[int] | None = None) -> list[Any]:
        """These brokers, or all that are registered, answer; returns the effects."""
        brokers = self.brokers if answering is None else answering
        return [effect for broker in tuple(brokers) for effect in self.answers_heartbeat(broker)]

    def answers_heartbeat(self, broker: int) -> list[Any]:
        broker_id = BrokerId(broker)
        return self.happens(ev.BrokerTrusted(broker_id, self.epochs[broker_id].broker_epoch))

    def fails_heartbeat(self, broker: int) -> None:
        broker_id = BrokerId(broker)
        self.happens(ev.BrokerSuspected(broker_id, self.epochs[broker_id].broker_epoch))

    def passes(self, ms: int) -> list[Any]:
        self.now_ms += ms
        return self.happens(ev.Tick())

    def register(
        self,
        broker: int,
        *,
        clean: bool = True,
        flushed_kept: bool = False,
        crashed: bool = False,
        features: Mapping[str, int] = FEATURES,
    ) -> None:
        """A broker registers; the controller has yet to read that."""
        broker_id = BrokerId(broker)
        before = self.epochs.get(broker_id, BrokerEpochRecord(BrokerEpoch(-1)))
        epoch = BrokerEpoch(before.broker_epoch + 1)
        self.epochs[broker_id] = BrokerEpochRecord(
            epoch,
            unclean_at=before.unclean_at if clean else epoch,
            lost_at=before.lost_at if clean or flushed_kept else epoch,
            crashed_at=epoch if crashed else before.crashed_at,
        )
        self.brokers[broker_id] = BrokerKnows(
            BrokerRegistration(broker_id, "host", 9000 + broker, epoch, features=features)
        )

    def registrations(self) -> dict[BrokerId, BrokerRegistration]:
        return {broker: knows.registration for broker, knows in self.brokers.items()}

    def identity(self, partition: TopicPartition) -> ReplicaIdentity:
        topic = self.topics[partition.topic]
        return ReplicaIdentity(topic.topic_id, topic.incarnations[partition.partition])

    def brokers_seen(self) -> list[Any]:
        return self.happens(ev.BrokersChanged(self.registrations(), dict(self.epochs)))

    def up(self, *brokers: int, clean: bool = True, flushed_kept: bool = False, crashed: bool = False) -> None:
        for broker in brokers:
            self.register(broker, clean=clean, flushed_kept=flushed_kept, crashed=crashed)
        self.brokers_seen()

    def down(self, *brokers: int) -> None:
        for broker in brokers:
            del self.brokers[BrokerId(broker)]
        self.brokers_seen()

    def make_topic(self, name: str, *assignments: Sequence[int], **configs: str) -> TopicDescription:
        """Create a topic in ZooKeeper; the controller has yet to read that."""
        self._zxid += 1
        topic = TopicDescription(
            topic=name,
            topic_id=f"id-{self._zxid}",
            partitions={
                index: tuple(BrokerId(broker) for broker in assigned) for index, assigned in enumerate(assignments)
            },
            incarnations={index: f"incarnation-{self._zxid}-{index}" for index in range(len(assignments))},
            configs={"min.insync.replicas" if key == "m" else key: value for key, value in configs.items()},
            created_zxid=self._zxid,
            modified_zxid=self._zxid,
            configs_zxid=self._zxid,
            version=0,
        )
        self.topics[name] = topic
        return topic

    def topics_seen(self) -> list[Any]:
        return self.happens(ev.TopicsChanged(dict(self.topics)))

    def topic(self, name: str, *assignments: Sequence[int], **configs: str) -> list[Any]:
        self.make_topic(name, *assignments, **configs)
        return self.topics_seen()

    def delete(self, name: str) -> list[Any]:
        self.deletions.add(name)
        return self.happens(ev.DeletionsRequested(frozenset(self.deletions)))

    def request(self, kind: ElectionKind, *partitions: TopicPartition, **fields: Any) -> list[Any]:
        """Elections are requested, and the controller reads that."""
        self._zxid += 1
        node = node_of(kind)
        self.requests[node] = ElectionRequest(kind, partitions, modified_zxid=self._zxid, version=0, **fields)
        return self.happens(ev.ElectionsRequested(node, self.requests[node]))

    # -- reassignments, and partitions that are added and removed --------------------------------------------------

    def move(self, partition: TopicPartition, *replicas: int, **fields: Any) -> list[Any]:
        """An entry is written into /admin/reassign_partitions, and the controller reads it."""
        self.asked.moves[partition] = PartitionReassignment(
            partition, tuple(BrokerId(one) for one in replicas), **fields
        )
        return self.asked_seen()

    def cancel(self, *partitions: TopicPartition) -> list[Any]:
        for partition in partitions:
            self.asked.moves[partition] = replace(self.asked.moves[partition], cancel=True)
        return self.asked_seen()

    def add(self, added: Mapping[TopicPartition, Sequence[int]]) -> list[Any]:
        """Additions of partitions are requested, and the controller reads that."""
        self.asked.added.update({one: tuple(map(BrokerId, replicas)) for one, replicas in added.items()})
        return self.asked_seen()

    def remove(self, *partitions: TopicPartition, force: bool = False) -> list[Any]:
        """Removals of partitions are requested, and the controller reads that."""
        self.asked.removed.update(dict.fromkeys(partitions, force))
        return self.asked_seen()

    def asked_seen(self, *, resumed: bool = False) -> list[Any]:
        """Read as controller/term.py does: topics first, so that requests are about known topics."""
        self.topics_seen()
        self.happens(ev.DeletionsRequested(frozenset(self.deletions)))
        self.happens(ev.ReassignmentsRequested(self.asked.move_requests()))
        return self.happens(ev.PartitionsRequested(self.asked.partition_requests(), resumed))

    def fails_over(self, *, answering: Collection[int] | None = None) -> None:
        """Another controller is elected, with a new core; answers to the old one are dropped."""
        self.pending = []
        epoch = ControllerEpoch(self.config.controller_epoch + 1)
        self.config = replace(self.config, controller_epoch=epoch)
        self.core = ControllerCore(self.config, policy_of)
        self.elected(answering=answering)
        self.asked_seen(resumed=True)

    def configure(self, name: str, **configs: str) -> list[Any]:
        """A topic's settings are changed, and the controller reads that."""
        self._zxid += 1
        changed = {"min.insync.replicas" if key == "m" else key: value for key, value in configs.items()}
        topic = self.topics[name]
        self.topics[name] = replace(topic, configs={**topic.configs, **changed}, configs_zxid=self._zxid)
        return self.topics_seen()

    def catch_up(self) -> None:
        """Leaders add the assigned replicas of their last command to the ISR, if those follow in this epoch."""
        changed = []
        for partition, (state, _) in sorted(self.states.items()):
            leader = self.brokers.get(state.leader)
            told = None if leader is None else leader.commands.get(partition)
            if leader is None or told is None or told.state.leader_epoch != state.leader_epoch:
                continue
            if any(self.epochs[one.broker_id].broker_epoch != one.broker_epoch for one in state.isr):
                continue  # the controller removes restarted brokers first
            outside = [one for one in told.assigned_replicas if one not in state.isr_ids]
            joining = [one for one in outside if one not in leader.suspected and self._follows(one, told)]
            if joining:
                self.leader_writes(partition, *state.isr_ids, *joining)
                changed.append(partition)
        if changed:
            self.happens(ev.IsrChangesReported(tuple(changed)))

    def _follows(self, broker: BrokerId, told: PartitionCommand) -> bool:
        knows = self.brokers.get(broker)
        own = None if knows is None else knows.commands.get(told.partition)
        return own is not None and own.state.leader_epoch == told.state.leader_epoch

    def leader_writes(self, partition: TopicPartition, *isr: int) -> None:
        """A leader writes another ISR; the controller has yet to read that."""
        found = self.states[partition]
        entries = tuple(IsrEntry(BrokerId(one), self.epochs[BrokerId(one)].broker_epoch) for one in isr)
        left = tuple(one for one in (*found.state.elr, *found.state.isr) if one.broker_id not in isr)
        elr = () if len(entries) >= found.state.min_isr else tuple({one.broker_id: one for one in left}.values())
        self.states[partition] = VersionedState(replace(found.state, isr=entries, elr=elr), found.version + 1)

    # -- answers -------------------------------------------------------------------------------------------------

    def take(self, kind: type[Effect]) -> Effect:
        """The first effect of that kind that waits."""
        effect: Effect = next(one for one in self.pending if isinstance(one, kind))
        self.pending.remove(effect)
        return effect

    def waiting(self, kind: type[Effect]) -> list[Effect]:
        return [one for one in self.pending if isinstance(one, kind)]

    def settle(self, limit: int = 10_000, *, catching_up: bool = False) -> None:
        """Answer everything as a healthy cluster would, time included, until nothing is left."""
        for _ in range(limit):
            if catching_up and not self.pending:
                self.catch_up()
            if self.pending:
                self.answer(self.pending.pop(0))
            elif not any(not isinstance(one, fx.Observed) for one in self.passes(20_000)):
                return
        raise AssertionError(f"effects never end: {self.pending[:3]}")

    def answer(self, effect: Any, *, lost: bool = False) -> list[Any]:
        """Carry an effect out; `lost`: answer that it failed."""
        if isinstance(effect, fx.WriteStates):
            return self.happens(self._write(effect, lost))
        if isinstance(effect, fx.ReadStates):
            there = [one for one in effect.partitions if one not in self.damaged]
            found = {one: self.states[one] for one in there if one in self.states}
            return self.happens(
                ev.StatesRead(effect.partitions, found, frozenset(self.damaged.intersection(effect.partitions)))
            )
        if isinstance(effect, fx.DeleteTopic):
            return self.happens(self._delete(effect, lost))
        if isinstance(effect, fx.FinishElections):
            return self.happens(self._finish(effect, lost))
        if isinstance(effect, fx.WriteTopic):
            return self.happens(self._write_topic(effect, lost))
        if isinstance(effect, fx.DeletePartitions):
            return self.happens(self._delete_partitions(effect, lost))
        if isinstance(effect, fx.FinishReassignments | fx.FinishPartitionRequests):
            return self._finish_asked(effect, lost)
        if isinstance(effect, fx.ReleaseBroker):
            self.released.append((effect.broker, effect.broker_epoch))
            return []
        if isinstance(effect, fx.DescribeReplicas):
            return self.happens(self._describe(effect, lost))
        if isinstance(effect, Sends):
            error = self._tell(effect)
            if lost:
                error = TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "the answer was lost")
            return self.happens(ev.ControlAnswered(effect.broker, effect.request_id, error))
        raise AssertionError(f"no component answers {effect}")

    def fail(self, effect: Any, code: ErrorCode = ErrorCode.BROKER_NOT_AVAILABLE) -> list[Any]:
        """A command that never arrived."""
        return self.happens(ev.ControlAnswered(effect.broker, effect.request_id, TidemarkError(code, "no")))

    def comes_again(self, effect: fx.SendUpdateMetadata) -> None:
        """A message that was sent once arrives again; its answer is dropped."""
        self._tell(effect)

    def _finish(self, effect: fx.FinishElections, lost: bool) -> ev.ElectionsRequested:
        kind = node_of(effect.request.kind)
        found = self.requests.get(kind)
        if not lost and found is not None and found.modified_zxid == effect.request.modified_zxid:
            del self.requests[kind]
        return ev.ElectionsRequested(kind, self.requests.get(kind))

    def _finish_asked(self, effect: fx.FinishReassignments | fx.FinishPartitionRequests, lost: bool) -> list[Any]:
        """Remove finished requests, with retries as in controller/term.py; then requests are read again."""
        if isinstance(effect, fx.FinishReassignments):
            self.asked.finish_moves(effect)
            done: ev.ControllerEvent = ev.ReassignmentsFinished(effect.finished)
        else:
            self.asked.finish_partitions(effect)
            done = ev.PartitionRequestsFinished(effect.added, tuple(effect.removed))
        if lost:
            self.pending.append(effect if isinstance(effect, fx.FinishReassignments) else replace(effect, refused=()))
            return []
        self.happens(done)
        return self.asked_seen()

    def _write_topic(self, effect: fx.WriteTopic, lost: bool) -> ev.TopicWritten:
        name, wanted = effect.topic.topic, effect.topic
        found = self.topics.get(name)
        if found is None or (found.topic_id, found.version) != (wanted.topic_id, wanted.version):
            return ev.TopicWritten(name, None)
        self._zxid += 1
        stat = {"modified_zxid": self._zxid, "version": found.version + 1}
        self.topics[name] = replace(wanted, configs=found.configs, configs_zxid=found.configs_zxid, **stat)
        if lost:
            self.topics_seen()
        return ev.TopicWritten(name, None if lost else replace(wanted, **stat))

    def _delete_partitions(self, effect: fx.DeletePartitions, lost: bool) -> ev.PartitionsDeleted:
        name = effect.topic.topic
        for index in effect.partitions:
            known = self.topics.get(name)
            assert known is None or index not in known.partitions, "the nodes of an existing partition are deleted"
            self.states.pop(TopicPartition(name, index), None)
        error = TidemarkError(ErrorCode.COORDINATION_UNAVAILABLE, "the answer was lost") if lost else None
        return ev.PartitionsDeleted(name, effect.partitions, error)

    def _describe(self, effect: fx.DescribeReplicas, lost: bool) -> ev.ReplicasDescribed:
        knows = self.brokers.get(effect.broker)
        if lost or knows is None or knows.registration.broker_epoch != effect.broker_epoch:
            error = TidemarkError(ErrorCode.STALE_BROKER_EPOCH, "another broker epoch")
            return ev.ReplicasDescribed(effect.broker, effect.request_id, error)
        described, refused = {}, {}
        for question in effect.partitions:
            told = knows.commands.get(question.partition)
            if told is None or told.state.leader_epoch < question.leader_epoch:
                refused[question.partition] = TidemarkError(ErrorCode.OFFSET_NOT_AVAILABLE, "not sent yet")
            else:
                described[question.partition] = self.logs.get((effect.broker, question.partition), EMPTY)
        return ev.ReplicasDescribed(effect.broker, effect.request_id, None, described, refused)

    def _write(self, effect: fx.WriteStates, lost: bool) -> ev.StatesWritten:
        changes = effect.changes
        everything = tuple(change.partition for change in changes)
        if not all(self._may_write(change) for change in changes):
            return ev.StatesWritten({}, everything)
        for change in changes:
            self.states[change.partition] = VersionedState(change.state, change.expected_version + 1)
            self.reports += [change.report] if change.report is not None else []
        if lost:
            return ev.StatesWritten({}, everything)
        return ev.StatesWritten({change.partition: change.expected_version + 1 for change in changes}, ())

    def _may_write(self, change: StateWrite) -> bool:
        topic = self.topics.get(change.partition.topic)
        if change.partition in self.damaged:
            return False
        if topic is None or topic.topic_id != change.identity.topic_id:
            return False
        found = self.states.get(change.partition)
        version = -1 if found is None else found.version
        epochs = all(self.epochs[broker].broker_epoch == epoch for broker, epoch in change.broker_epochs.items())
        if found is not None and version == change.expected_version:
            assert change.state.leader_epoch >= found.state.leader_epoch, "a leader epoch falls"
        return version == change.expected_version and epochs

    def _delete(self, effect: fx.DeleteTopic, lost: bool) -> ev.TopicDeleted:
        name = effect.topic.topic
        if name in self.topics and self.topics[name].topic_id != effect.topic.topic_id:
            return ev.TopicDeleted(name, effect.topic.topic_id)  # a new one of that name, which the store leaves alone
        self.topics.pop(name, None)
        self.deletions.discard(name)
        for partition in [one for one in self.states if one.topic == name]:
            del self.states[partition]
        error = TidemarkError(ErrorCode.COORDINATION_UNAVAILABLE, "the answer was lost") if lost else None
        return ev.TopicDeleted(name, effect.topic.topic_id, error)

    def _tell(self, effect: Any) -> TidemarkError | None:
        knows = self.brokers.get(effect.broker)
        epoch = effect.commands[0].broker_epoch if isinstance(effect, fx.SendLeaderAndIsr) else None
        if isinstance(effect, fx.SendStopReplica):
            epoch = effect.command.broker_epoch
        elif isinstance(effect, fx.SendUpdateMetadata):
            epoch = effect.broker_epoch
        if knows is None or knows.registration.broker_epoch != epoch:
            return TidemarkError(ErrorCode.STALE_BROKER_EPOCH, "another broker epoch")
        if isinstance(effect, fx.SendUpdateMetadata):
            try:
                knows.view = knows.parts.take(knows.view, effect.view) or knows.view
            except TidemarkError as error:
                return error
        elif isinstance(effect, fx.SendStopReplica):
            for replica in effect.command.replicas:
                known = knows.commands.get(replica.partition)
                if known is None or known.identity == replica.identity:
                    knows.stopped.add(replica.partition)
                    knows.commands.pop(replica.partition, None)
        else:
            self._command(knows, effect)
        return None

    def _command(self, knows: BrokerKnows, effect: fx.SendLeaderAndIsr) -> None:
        for command in effect.commands:
            assert command.controller_epoch == self.config.controller_epoch
            for one in command.partitions:
                known = knows.commands.get(one.partition)
                assert knows.registration.broker_id in one.assigned_replicas
                if known is None or known.identity != one.identity or known.partition_epoch <= one.partition_epoch:
                    knows.commands[one.partition] = one
            knows.suspected = command.suspected
            if command.complete:
                knows.complete = True
                named = {one.partition for part in effect.commands for one in part.partitions}
                knows.commands = {key: value for key, value in knows.commands.items() if key in named}

    # -- questions -----------------------------------------------------------------------------------------------

    def state(self, name: str, index: int = 0) -> LeaderAndIsr:
        return self.states[TopicPartition(name, index)].state
