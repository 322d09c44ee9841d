# SPDX-License-Identifier: Apache-2.0
"""One controller process: the shipping core, its terms of office, heartbeats and calls in simulated time.

As services/tidemark/controller does it: elect (Z1), read everything (C3), then one queue, one writer (C1).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from tidemark.core.config import ControllerConfig
from tidemark.core.controller import effects as fx
from tidemark.core.controller import events as ev
from tidemark.core.controller.controller import ControllerCore, partitions_of
from tidemark.core.controller.partition_state import TopicPolicy
from tidemark.core.messages import LeaderAndIsrCommand
from tidemark.model import (
    BrokerId,
    BrokerRegistration,
    ControllerEpoch,
    ElectionKind,
    ElectionRequest,
    ErrorCode,
    TidemarkError,
)
from tidemark.ports import ControllerTerm, StateWrite, StoreEvent, WriteOutcome

from tests.simulation.engine import Node

if TYPE_CHECKING:
    from tests.simulation.nodes.broker import BrokerNode
    from tests.simulation.world import World

T = TypeVar("T")

_DEADLINE_MS = 700
"""Of a call to a broker."""
_HEARTBEAT_MS = 250
_HEARTBEAT_DEADLINE_MS = 500
_BROKER_EVENTS = (StoreEvent.BROKERS,)
_TOLD = frozenset(
    {
        "leader_elected",
        "unclean_election",
        "partition_offline",
        "broker_suspected",
        "broker_leaving",
        "move_begun",
        "move_ended",
        "request_refused",
        "partitions_added",
        "partitions_removed",
        "topic_deleted",
    }
)
"""Kinds of `Observed` that a story tells."""
_TOPIC_EVENTS = (
    StoreEvent.TOPICS,
    StoreEvent.DELETIONS,
    StoreEvent.ELECTIONS,
    StoreEvent.MOVES,
    StoreEvent.PARTITION_REQUESTS,
)


def policy_of(configs: Mapping[str, str]) -> TopicPolicy:
    unclean = configs.get("unclean.leader.election.enable") == "true"
    group_commit = configs.get("flush.policy") == "group-commit"
    return TopicPolicy(int(configs.get("min.insync.replicas", "1")), unclean, group_commit=group_commit)


class Term:
    """One term of office."""

    def __init__(self, node: ControllerNode, won: ControllerTerm) -> None:
        self.node = node
        self.world = node.world
        self.won = won
        self.over = False
        config = ControllerConfig(
            node.controller_id, won.epoch, "cluster", session_timeout_ms=node.world.session_timeout_ms
        )
        self.core = ControllerCore(config, policy_of)
        self._dice = node.engine.dice(f"term {node.name}")
        self._queue: list[ev.ControllerEvent] = []
        self._busy = False
        self._started = False
        self._early: list[StoreEvent] = []
        self._wanted: set[str] = set()
        self._reading: set[str] = set()
        self._watched: dict[BrokerId, int] = {}
        self._told_failed: set[tuple[BrokerId, int]] = set()
        self._resumed = True
        self._finished: list[ev.ControllerEvent] = []
        self._effects: dict[type, Callable[[Any], None]] = {
            fx.WriteStates: lambda effect: node.spawn(self._write(effect)),
            fx.ReadStates: lambda effect: node.spawn(self._read(effect)),
            fx.SendLeaderAndIsr: self._send_leader_and_isr,
            fx.SendStopReplica: self._send_stop_replica,
            fx.SendUpdateMetadata: self._send_metadata,
            fx.DescribeReplicas: self._describe,
            fx.FinishElections: lambda effect: node.spawn(self._finish_elections(effect)),
            fx.DeleteTopic: lambda effect: node.spawn(self._delete_topic(effect)),
            fx.WriteTopic: lambda effect: node.spawn(self._write_topic(effect)),
            fx.DeletePartitions: lambda effect: node.spawn(self._delete_partitions(effect)),
            fx.FinishReassignments: lambda effect: node.spawn(self._finish_moves(effect)),
            fx.FinishPartitionRequests: lambda effect: node.spawn(self._finish_partition_requests(effect)),
            fx.ReleaseBroker: self._release,
            fx.Resign: self._resign,
            fx.Observed: self._observed,
        }

    async def start(self) -> None:
        """Rule C3."""
        store = self.node.store
        brokers = await store.live_brokers(watch=True)
        epochs = await store.broker_epochs()
        moves = await store.move_requests(watch=True)
        topics = await store.topics(watch=True)
        deletions = await store.requested_deletions(watch=True)
        states = await store.states(partitions_of(topics.values()), sync=True)
        self._follow(brokers)
        self.feed(ev.Elected(brokers, epochs, topics, states, deletions, reassignments=moves))
        self._tick()
        self._started = True
        for event in (*self._early, StoreEvent.ELECTIONS):
            self.hint(event)

    @property
    def has_begun(self) -> bool:
        return self._started

    def feed(self, event: ev.ControllerEvent) -> None:
        if self.over or not self.node.alive:
            return
        self._queue.append(event)
        if self._busy:
            return
        self._busy = True
        while self._queue and not self.over:
            one = self._queue.pop(0)
            self.world.stepped(self.node, one)
            for effect in self.core.handle(one, self.node.engine.now):
                self.world.trace(self.node, "->", effect)
                self._effects[type(effect)](effect)
            if self.core.has_more and not self._queue:
                self._queue.append(ev.MoreToDo())
        self._busy = False

    def _tick(self) -> None:
        if not self.over:
            self.feed(ev.Tick())
            self.node.after(100, self._tick)

    def _observed(self, effect: fx.Observed) -> None:
        if effect.kind in _TOLD:
            fields = ", ".join(f"{key} {value}" for key, value in effect.fields.items())
            self.world.tell(f"controller {self.won.epoch}: {effect.kind} ({fields})")

    def _resign(self, effect: fx.Resign) -> None:
        self.world.tell(f"controller {self.won.epoch} resigns: {effect.why}")
        self.over = True

    # -- ZooKeeper ---------------------------------------------------------------------------------------------------

    def hint(self, event: StoreEvent) -> None:
        if not self._started:
            self._early.append(event)
        elif event in _BROKER_EVENTS:
            self._reread("brokers")
        elif event in _TOPIC_EVENTS:
            self._reread("topics")

    def _reread(self, what: str) -> None:
        self._wanted.add(what)
        if what not in self._reading:
            self._reading.add(what)
            self.node.spawn(self._read_again(what))

    async def _read_again(self, what: str) -> None:
        while what in self._wanted and not self.over:
            self._wanted.discard(what)
            try:
                await (self._read_brokers() if what == "brokers" else self._read_topics())
            except TidemarkError:
                self._wanted.add(what)
                await self.node.sleep(100)
        self._reading.discard(what)

    async def _read_brokers(self) -> None:
        brokers = await self.node.store.live_brokers(watch=True)
        epochs = await self.node.store.broker_epochs()
        self._follow(brokers)
        self.feed(ev.BrokersChanged(brokers, epochs))

    async def _read_topics(self) -> None:
        store, finished = self.node.store, list(self._finished)
        elections = {kind: await self._read_elections(kind) for kind in ElectionKind}
        moves = await store.move_requests(watch=True)
        partitions = await store.partition_requests(watch=True)
        topics = await store.topics(watch=True)
        deletions = await store.requested_deletions(watch=True)
        self.feed(ev.TopicsChanged(topics))
        self.feed(ev.DeletionsRequested(deletions))
        for kind, request in elections.items():
            self.feed(ev.ElectionsRequested(kind, request))
        for event in finished:
            self._finished.remove(event)
            self.feed(event)
        self.feed(ev.ReassignmentsRequested(moves))
        self.feed(ev.PartitionsRequested(partitions, self._resumed))
        self._resumed = False

    async def _read_elections(self, kind: ElectionKind) -> ElectionRequest | None:
        """Without what has a report of this request already."""
        request = await self.node.store.requested_elections(kind, watch=True)
        if request is None or kind is not ElectionKind.LAST_KNOWN:
            return request
        kept = await self.node.store.unclean_elections(request.partitions)
        held = {one.partition for reports in kept.values() for one in reports if one.request_id == request.request_id}
        return replace(request, partitions=tuple(one for one in request.partitions if one not in held))

    async def _finish_elections(self, effect: fx.FinishElections) -> None:
        try:
            await self.node.store.finish_elections(self.won, effect.request)
        except TidemarkError as error:
            if error.code is ErrorCode.CONTROLLER_NOT_ACTIVE:
                self.over = True
                return
            await self.node.sleep(100)
            self.hint(StoreEvent.ELECTIONS)

    async def _try(self, call: Coroutine[Any, Any, T]) -> tuple[T | None, TidemarkError | None]:
        """What it gives, or why not; the term ends where another controller has been elected."""
        try:
            return await call, None
        except TidemarkError as error:
            if error.code is ErrorCode.CONTROLLER_NOT_ACTIVE:
                self.over = True
            return None, error

    async def _until_done(self, work: Callable[[], Coroutine[Any, Any, None]], event: ev.ControllerEvent) -> None:
        """Tell of it with the first read that begins after it was done."""
        while not self.over:
            _, error = await self._try(work())
            if error is None:
                self._finished.append(event)
                self.hint(StoreEvent.TOPICS)
                return
            await self.node.sleep(100)

    async def _finish_moves(self, effect: fx.FinishReassignments) -> None:
        store = self.node.store
        await self._until_done(
            lambda: store.finish_moves(self.won, effect.finished, effect.refused),
            ev.ReassignmentsFinished(effect.finished),
        )

    async def _finish_partition_requests(self, effect: fx.FinishPartitionRequests) -> None:
        added, removed, refused = effect.added, effect.removed, effect.refused
        store = self.node.store
        await self._until_done(
            lambda: store.finish_partition_requests(self.won, added=added, removed=removed, refused=refused),
            ev.PartitionRequestsFinished(added, removed),
        )

    async def _write_topic(self, effect: fx.WriteTopic) -> None:
        written, _ = await self._try(self.node.store.write_topic(self.won, effect.topic))
        if written is None:
            self.hint(StoreEvent.TOPICS)
        self.feed(ev.TopicWritten(effect.topic.topic, written))

    async def _delete_topic(self, effect: fx.DeleteTopic) -> None:
        _, error = await self._try(self.node.store.delete_topic(self.won, effect.topic))
        self.feed(ev.TopicDeleted(effect.topic.topic, effect.topic.topic_id, error))

    async def _delete_partitions(self, effect: fx.DeletePartitions) -> None:
        _, error = await self._try(self.node.store.delete_partitions(self.won, effect.topic, effect.partitions))
        self.feed(ev.PartitionsDeleted(effect.topic.topic, effect.partitions, error))

    async def _write(self, effect: fx.WriteStates) -> None:
        writes = [
            StateWrite(
                change.partition,
                change.identity,
                change.state,
                change.expected_version,
                change.broker_epochs,
                change.report and replace(change.report, elected_at_ms=self.node.engine.now),
            )
            for change in effect.changes
        ]
        try:
            results = await self.node.store.write_states(self.won, writes)
        except TidemarkError as error:
            if error.code is ErrorCode.CONTROLLER_NOT_ACTIVE:
                self.over = True
                return
            self.feed(ev.StatesWritten({}, tuple(write.partition for write in writes)))
            return
        written = {
            write.partition: result.version
            for write, result in zip(writes, results, strict=True)
            if result.outcome is WriteOutcome.WRITTEN
        }
        self.world.check()
        failed = tuple(write.partition for write in writes if write.partition not in written)
        self.feed(ev.StatesWritten(written, failed))

    async def _read(self, effect: fx.ReadStates) -> None:
        while not self.over:
            try:
                found = await self.node.store.states(effect.partitions, sync=True)
            except TidemarkError:
                await self.node.sleep(100)
                continue
            self.feed(ev.StatesRead(effect.partitions, found))
            return

    # -- heartbeats (rule C5) ----------------------------------------------------------------------------------------

    def _follow(self, brokers: Mapping[BrokerId, BrokerRegistration]) -> None:
        for broker in [one for one in self._watched if one not in brokers]:
            del self._watched[broker]
        for broker, registration in brokers.items():
            if self._watched.get(broker) != registration.broker_epoch:
                self._watched[broker] = registration.broker_epoch
                self._ping(registration, self.node.engine.now)

    def _ping(self, broker: BrokerRegistration, answered_ms: int) -> None:
        """A process that is gone refuses; one that is silent misses its deadline."""
        if self.over or self._watched.get(broker.broker_id) != broker.broker_epoch:
            return
        now = self.node.engine.now
        process = self.world.brokers.get(broker.broker_id)
        reachable = process is not None and self.world.network.both_ways(self.node.name, process.name)
        if reachable and process is not None and not process.paused and process.broker_epoch == broker.broker_epoch:
            answered_ms = now
            self.feed(ev.BrokerTrusted(broker.broker_id, broker.broker_epoch))
            if process.wants_shutdown:
                self.feed(ev.ControlledShutdownRequested(broker.broker_id, broker.broker_epoch))
            if process.machine.failed and (broker.broker_id, broker.broker_epoch) not in self._told_failed:
                self._told_failed.add((broker.broker_id, broker.broker_epoch))
                self.feed(ev.DirectoriesFailed(broker.broker_id, broker.broker_epoch))
        elif process is None or now - answered_ms > _HEARTBEAT_DEADLINE_MS:
            self.feed(ev.BrokerSuspected(broker.broker_id, broker.broker_epoch))
        delay_ms = _HEARTBEAT_MS + self._dice.randrange(0, 30)
        self.node.after(delay_ms, lambda: self._ping(broker, answered_ms))

    # -- calls to brokers --------------------------------------------------------------------------------------------

    def _call(
        self,
        broker: BrokerId,
        deliver: Callable[[BrokerNode, Callable[[Any], None]], None],
        answer: Callable[[Any], None],
        failed: Callable[[TidemarkError], None],
    ) -> None:
        """One call over the network: late, twice, or lost on the way there or back."""
        engine, network, name = self.node.engine, self.world.network, f"b{broker}"
        done = False

        def settle(then: Callable[[], None]) -> None:
            nonlocal done
            if not done:
                done = True
                then()

        def come_back(value: Any) -> None:
            if network.carries(name, self.node.name):
                delay_ms = network.delay_ms(name, self.node.name)
                self.node.after(delay_ms, lambda: settle(lambda: answer(value)))

        def arrive() -> None:
            process = self.world.brokers.get(broker)
            if not network.carries(self.node.name, name):
                return
            if process is None:
                error = TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "nobody listens")
                self.node.after(2, lambda: settle(lambda: failed(error)))
                return
            process.run(lambda: deliver(process, come_back))

        delays = [network.delay_ms(self.node.name, name)]
        dice = self._dice
        if dice.random() < self.world.recipe.repeated_calls:
            delays.append(dice.choice((20, 100, 500, 900)))
        if dice.random() < self.world.recipe.late_calls:
            delays[0] += dice.choice((60, 200, 800))
        for delay_ms in delays:
            engine.after(delay_ms, arrive)
        late = TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "no answer in time")
        self.node.after(_DEADLINE_MS, lambda: settle(lambda: failed(late)))

    def _answered(self, effect: Any, error: TidemarkError | None, refused: Any = ()) -> None:
        self.feed(ev.ControlAnswered(effect.broker, effect.request_id, error, refused))

    def _send_leader_and_isr(self, effect: fx.SendLeaderAndIsr) -> None:
        (command,) = effect.commands

        def deliver(process: BrokerNode, answer: Callable[[Any], None]) -> None:
            process.command(_copy(command), lambda error, refused: answer((error, refused)))

        self._call(
            effect.broker,
            deliver,
            lambda value: self._answered(effect, *value),
            lambda error: self._answered(effect, error),
        )

    def _send_stop_replica(self, effect: fx.SendStopReplica) -> None:
        def deliver(process: BrokerNode, answer: Callable[[Any], None]) -> None:
            process.command(replace(effect.command), lambda error, refused: answer((error, refused)))

        self._call(
            effect.broker,
            deliver,
            lambda value: self._answered(effect, *value),
            lambda error: self._answered(effect, error),
        )

    def _release(self, effect: fx.ReleaseBroker) -> None:
        def deliver(process: BrokerNode, answer: Callable[[Any], None]) -> None:
            if process.broker_epoch == effect.broker_epoch:
                process.may_go()

        self._call(effect.broker, deliver, lambda value: None, lambda error: None)

    def _send_metadata(self, effect: fx.SendUpdateMetadata) -> None:
        def deliver(process: BrokerNode, answer: Callable[[Any], None]) -> None:
            answer(process.refuses(self.won.epoch, effect.broker_epoch))

        self._call(
            effect.broker,
            deliver,
            lambda error: self._answered(effect, error),
            lambda error: self._answered(effect, error),
        )

    def _describe(self, effect: fx.DescribeReplicas) -> None:
        def deliver(process: BrokerNode, answer: Callable[[Any], None]) -> None:
            refusal = process.refuses(self.won.epoch, effect.broker_epoch)
            answer((refusal, {}, {}) if refusal is not None else (None, *process.describe(effect.partitions)))

        def described(error: TidemarkError | None, found: Any = None, refused: Any = None) -> None:
            self.feed(ev.ReplicasDescribed(effect.broker, effect.request_id, error, found or {}, refused or {}))

        self._call(effect.broker, deliver, lambda value: described(*value), described)


def _copy(command: LeaderAndIsrCommand) -> LeaderAndIsrCommand:
    """What arrives is another object than what was sent."""
    return replace(command, partitions=tuple(command.partitions))


class ControllerNode(Node):
    """From its start to its death: stands by, is elected, ends its term, stands by."""

    def __init__(self, world: World, controller_id: BrokerId) -> None:
        super().__init__(world.engine, f"c{controller_id}")
        self.world = world
        self.controller_id = controller_id
        self.store = world.ensemble.sim_store(self, world.session_timeout_ms)
        self.term: Term | None = None
        self._expired = False
        self._news = False
        self.store.listen(self._on_store_event)
        self.after(self.engine.dice(self.name).randrange(40, 90), lambda: self.spawn(self._run()))

    @property
    def epoch(self) -> ControllerEpoch | None:
        return self.term.won.epoch if self.term is not None else None

    def holds_office(self) -> bool:
        """As controller/service.py has it."""
        return self.term is not None and self.engine.now < self.store.lease_valid_until_ms()

    async def _run(self) -> None:
        while True:
            try:
                await self.store.start()
                break
            except TidemarkError:
                await self.sleep(100)
        while True:
            try:
                await self._one_round()
            except TidemarkError:
                await self.sleep(100)

    async def _one_round(self) -> None:
        if self._expired:
            await self.store.new_session()
            self._expired = False
        self._news = False
        holder = await self.store.controller(watch=True)
        won = None
        if holder is None or holder.controller_id == self.controller_id:
            won = await self.store.elect_controller(self.controller_id, self.name)
        if won is None:
            await self._wait(lambda: self._news, 2000)
            return
        self.world.tell(f"controller {self.controller_id} is elected, epoch {won.epoch}")
        term = self.term = Term(self, won)
        try:
            await term.start()
            await self._wait(lambda: term.over, None)
        finally:
            self.term = None
            term.over = True
        if not self._expired:
            await self.store.resign(won)
        await self.sleep(50)

    async def _wait(self, until: Callable[[], bool], limit_ms: int | None) -> None:
        began_ms = self.engine.now
        while not until() and (limit_ms is None or self.engine.now - began_ms < limit_ms):
            await self.sleep(40)

    def _on_store_event(self, event: StoreEvent) -> None:
        if event is StoreEvent.SESSION_EXPIRED:
            self._expired = True
            if self.term is not None:
                self.term.over = True
        self._news = True
        if self.term is not None:
            self.term.hint(event)

    def die(self) -> None:
        self.alive = False
