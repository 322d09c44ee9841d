# SPDX-License-Identifier: Apache-2.0
"""One term of an active controller: the driver of `ControllerCore`, from its election to its end (rules C1, C3)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from tidemark.controller.epoch_keeper import EpochKeeper
from tidemark.controller.heartbeats import Heartbeats
from tidemark.controller.lost_states import LostStates
from tidemark.controller.metrics import ControllerMetrics
from tidemark.controller.peers import BrokerPeers
from tidemark.core.config import ControllerConfig
from tidemark.core.controller import effects as fx
from tidemark.core.controller import events as ev
from tidemark.core.controller.controller import ControllerCore, partitions_of
from tidemark.core.controller.partition_state import TopicPolicy
from tidemark.model import (
    BrokerId,
    BrokerRegistration,
    ElectionKind,
    ElectionRequest,
    ErrorCode,
    Refusal,
    TidemarkError,
    TopicPartition,
)
from tidemark.ports import Clock, ControllerTerm, MetadataStore, StateWrite, StoreEvent, WriteOutcome
from tidemark.runtime.configuration import ControllerSettings, topic_settings

_log = logging.getLogger(__name__)
_TICK_S: Final = 0.1
_REREAD_S: Final = 0.2
_SLICE_S: Final = 0.004
_LOOK_S: Final = 5.0
"""So often it is looked whether the nodes of the brokers' epochs are there: no watch tells of them."""


class ActiveTerm:
    """Runs until `ended` is set: fenced, resigned, or told to stop."""

    def __init__(
        self,
        term: ControllerTerm,
        cluster_id: str,
        settings: ControllerSettings,
        store: MetadataStore,
        clock: Clock,
        metrics: ControllerMetrics,
    ) -> None:
        self.term = term
        self.ended = asyncio.Event()
        self._store = store
        self._clock = clock
        self._metrics = metrics
        config = ControllerConfig(
            term.controller_id,
            term.epoch,
            cluster_id,
            session_timeout_ms=settings.zookeeper_session_timeout_ms,
            moves_per_broker_max=settings.reassignment_moves_per_broker_max,
            leader_rebalance_interval_ms=settings.leader_imbalance_check_interval_ms,
            leader_imbalance_percent=settings.leader_imbalance_per_broker_percentage,
        )
        self.core = ControllerCore(config, _policy_of)
        self._peers = BrokerPeers(term.controller_id, term.epoch)
        self._epochs = EpochKeeper(term, store)
        self._lost_states = LostStates(term, store, self.ask, _policy_of)
        self._heartbeats = Heartbeats(
            term.controller_id,
            term.epoch,
            self.submit,
            interval_ms=settings.controller_heartbeat_interval_ms,
            timeout_ms=settings.controller_heartbeat_timeout_ms,
        )
        self._events: deque[tuple[ev.ControllerEvent, float]] = deque()
        """With the time at which each came."""
        self._draining = False
        self._started = False
        self._early: set[StoreEvent] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        topics = _Reread(self._read_topics, self._spawn)
        self._reads = {
            StoreEvent.BROKERS: _Reread(self._read_brokers, self._spawn),
            StoreEvent.TOPICS: topics,
            StoreEvent.DELETIONS: topics,
            StoreEvent.ELECTIONS: topics,
            StoreEvent.MOVES: topics,
            StoreEvent.PARTITION_REQUESTS: topics,
        }
        self._resumed = True
        self._answered: list[ev.ControllerEvent] = []
        """Told with the first read that begins after it: one that is under way may still show what was answered."""
        self._effects: dict[type, Callable[[Any], None]] = {
            fx.WriteStates: lambda effect: self._spawn(self._write_states(effect)),
            fx.ReadStates: lambda effect: self._spawn(self._read_states(effect)),
            fx.SendLeaderAndIsr: lambda effect: self._spawn(self._command(effect)),
            fx.SendStopReplica: lambda effect: self._spawn(self._tell(self._peers.send_stop_replica(effect))),
            fx.SendUpdateMetadata: lambda effect: self._spawn(self._tell(self._peers.send_update_metadata(effect))),
            fx.DescribeReplicas: lambda effect: self._spawn(self._tell(self._peers.describe_replicas(effect))),
            fx.DeleteTopic: lambda effect: self._spawn(self._delete_topic(effect)),
            fx.FinishElections: lambda effect: self._spawn(self._finish_elections(effect)),
            fx.WriteTopic: lambda effect: self._spawn(self._write_topic(effect)),
            fx.FinishReassignments: lambda effect: self._spawn(self._until_done(partial(self._finish_moves, effect))),
            fx.DeletePartitions: lambda effect: self._spawn(self._delete_partitions(effect)),
            fx.FinishPartitionRequests: lambda effect: self._spawn(
                self._until_done(partial(self._finish_partition_requests, effect))
            ),
            fx.ReleaseBroker: lambda effect: self._heartbeats.release(effect.broker, effect.broker_epoch),
            fx.Resign: self._resign,
            fx.Observed: self._metrics.observed,
        }

    async def start(self) -> None:
        """Rule C3: read everything, watches armed first, and decide."""
        brokers = await self._store.live_brokers(watch=True)
        epochs = await self._epochs.read(brokers)
        moves = await self._store.move_requests(watch=True)
        bad_topics: set[str] = set()
        bad_states: set[TopicPartition] = set()
        topics = await self._store.topics(watch=True, unreadable=bad_topics)
        deletions = await self._store.requested_deletions(watch=True)
        states = await self._store.states(partitions_of(topics.values()), sync=True, unreadable=bad_states)
        self._follow(brokers)
        self.submit(
            ev.Elected(brokers, epochs, topics, states, deletions, frozenset(bad_topics), frozenset(bad_states), moves)
        )
        if bad_states:
            self._spawn(self._read_states(fx.ReadStates(tuple(bad_states))))
        self._spawn(self._ticking())
        self._spawn(self._keeping_epochs())
        self._started = True
        for event in self._early | {StoreEvent.ELECTIONS}:
            self.hint(event)

    @property
    def has_begun(self) -> bool:
        """Whether the core knows what there is; what it is told before that it would forget."""
        return self._started

    async def stop(self) -> None:
        """No more events; what is under way is left: the next controller reads everything."""
        self.ended.set()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._heartbeats.stop()  # after the reads, which begin new ones
        await self._peers.stop()

    def hint(self, event: StoreEvent) -> None:
        """Something changed in ZooKeeper: read it again; but nothing comes before what `start` has read."""
        if not self._started:
            self._early.add(event)
            return
        reread = self._reads.get(event)
        if reread is not None and not self.ended.is_set():
            reread.wanted()

    def submit(self, event: ev.ControllerEvent) -> None:
        """Take in an event now, or right after those before it."""
        if self.ended.is_set():
            return
        self._events.append((event, time.perf_counter()))
        if not self._draining:
            self._draining = True
            self._drain()

    def queue_size(self) -> int:
        """How many events wait."""
        return len(self._events)

    async def ask(self, question: fx.DescribeReplicas) -> ev.ReplicasDescribed:
        """Put somebody else's question to a broker; the core does not hear of it."""
        return await self._peers.describe_replicas(question)

    def _drain(self) -> None:
        until_s = time.perf_counter() + _SLICE_S
        while self._events and not self.ended.is_set():
            event, came_s = self._events.popleft()
            began_s = time.perf_counter()
            self._metrics.waited(began_s - came_s)
            try:
                for effect in self.core.handle(event, self._clock.now_ms()):
                    self._effects[type(effect)](effect)
            except Exception:  # noqa: BLE001 - a mistake of ours, whatever it is
                # Better no controller than a wrong one; the next one reads everything.
                _log.exception("the term ends: unexpected error", extra={"event": type(event).__name__})
                self.ended.set()
                return
            self._metrics.handled(event, time.perf_counter() - began_s)
            if self.core.has_more and not self._events:
                self._events.append((ev.MoreToDo(), time.perf_counter()))
            if self._events and time.perf_counter() > until_s:
                asyncio.get_running_loop().call_soon(self._drain)
                return
        self._draining = False

    async def _ticking(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self.submit(ev.Tick())
            self._metrics.counts(self.core.counts())
            self._metrics.left_isrs(self.core.take_left_isrs())

    async def _keeping_epochs(self) -> None:
        while True:
            try:
                await self._epochs.restore()
            except TidemarkError as error:
                if error.code is ErrorCode.CONTROLLER_NOT_ACTIVE:
                    self._fenced(error)
                    return
                _log.warning("broker epochs not looked after", extra={"why": error.message})
            await asyncio.sleep(_LOOK_S)

    def _resign(self, effect: fx.Resign) -> None:
        _log.warning("resigning", extra={"why": effect.why, "controller_epoch": self.term.epoch})
        self.ended.set()

    # -- ZooKeeper ---------------------------------------------------------------------------------------------

    async def _read_brokers(self) -> None:
        brokers = await self._store.live_brokers(watch=True)
        epochs = await self._epochs.read(brokers)
        self._follow(brokers)
        self.submit(ev.BrokersChanged(brokers, epochs))

    async def _read_topics(self) -> None:
        """What is asked for, topics, then deletions, taken in together: see `DeletionsRequested` for why in this order.

        Elections and moves are asked for of topics that exist, so that those read afterwards are known.
        """
        answered = list(self._answered)
        elections = {kind: await self._read_elections(kind) for kind in ElectionKind}
        moves = await self._store.move_requests(watch=True)
        partitions = await self._store.partition_requests(watch=True)
        unreadable: set[str] = set()
        topics = await self._store.topics(watch=True, unreadable=unreadable)
        deletions = await self._store.requested_deletions(watch=True)
        self.submit(ev.TopicsChanged(topics, frozenset(unreadable)))
        self.submit(ev.DeletionsRequested(deletions))
        for kind, request in elections.items():
            self.submit(ev.ElectionsRequested(kind, request))
        for event in answered:
            self._answered.remove(event)
            self.submit(event)
        self.submit(ev.ReassignmentsRequested(moves))
        self.submit(ev.PartitionsRequested(partitions, self._resumed))
        self._resumed = False

    async def _read_elections(self, kind: ElectionKind) -> ElectionRequest | None:
        """Without what has a report of this request: a controller before us has held that, and nobody asked twice."""
        request = await self._store.requested_elections(kind, watch=True)
        if request is None or kind is not ElectionKind.LAST_KNOWN:
            return request
        kept = await self._store.unclean_elections(request.partitions)
        held = {one.partition for reports in kept.values() for one in reports if one.request_id == request.request_id}
        return replace(request, partitions=tuple(one for one in request.partitions if one not in held))

    def _follow(self, brokers: Mapping[BrokerId, BrokerRegistration]) -> None:
        self._peers.follow(brokers)
        self._heartbeats.follow(brokers)

    async def _write_states(self, effect: fx.WriteStates) -> None:
        writes = [
            StateWrite(
                change.partition,
                change.identity,
                change.state,
                change.expected_version,
                change.broker_epochs,
                change.report and replace(change.report, elected_at_ms=self._clock.wall_us() // 1000),
            )
            for change in effect.changes
        ]
        try:
            results = await self._store.write_states(self.term, writes)
        except TidemarkError as error:
            if error.code is ErrorCode.CONTROLLER_NOT_ACTIVE:
                self._fenced(error)
                return
            _log.warning("states not written", extra={"count": len(writes), "why": str(error)})
            self.submit(ev.StatesWritten({}, tuple(write.partition for write in writes)))
            return
        written = {
            write.partition: result.version
            for write, result in zip(writes, results, strict=True)
            if result.outcome is WriteOutcome.WRITTEN
        }
        failed = tuple(write.partition for write in writes if write.partition not in written)
        self.submit(ev.StatesWritten(written, failed))

    async def _read_states(self, effect: fx.ReadStates) -> None:
        while True:
            unreadable: set[TopicPartition] = set()
            try:
                found = await self._store.states(effect.partitions, sync=True, unreadable=unreadable)
                if unreadable and await self._lost_states.make(unreadable):
                    found = await self._store.states(effect.partitions, sync=True)
            except TidemarkError as error:
                if error.code is ErrorCode.CONTROLLER_NOT_ACTIVE:
                    self._fenced(error)
                    return
                _log.warning("states not read", extra={"count": len(effect.partitions), "why": str(error)})
                await asyncio.sleep(_REREAD_S)
                continue
            self.submit(ev.StatesRead(effect.partitions, found))
            return

    async def _delete_topic(self, effect: fx.DeleteTopic) -> None:
        failure: TidemarkError | None = None
        try:
            await self._store.delete_topic(self.term, effect.topic)
        except TidemarkError as error:
            if error.code is ErrorCode.CONTROLLER_NOT_ACTIVE:
                self._fenced(error)
                return
            failure = error
        self.submit(ev.TopicDeleted(effect.topic.topic, effect.topic.topic_id, failure))

    async def _finish_elections(self, effect: fx.FinishElections) -> None:
        try:
            await self._store.finish_elections(self.term, effect.request)
        except TidemarkError as error:
            if error.code is ErrorCode.CONTROLLER_NOT_ACTIVE:
                self._fenced(error)
                return
            _log.warning("election request not removed", extra={"why": str(error)})
            await asyncio.sleep(_REREAD_S)
            self.hint(StoreEvent.ELECTIONS)

    async def _write_topic(self, effect: fx.WriteTopic) -> None:
        name, written = effect.topic.topic, None
        try:
            written = await self._store.write_topic(self.term, effect.topic)
        except TidemarkError as error:
            if error.code is ErrorCode.CONTROLLER_NOT_ACTIVE:
                self._fenced(error)
                return
            _log.warning("topic not written", extra={"topic": name, "why": str(error)})
        if written is None:
            self.hint(StoreEvent.TOPICS)
        self.submit(ev.TopicWritten(name, written))

    async def _delete_partitions(self, effect: fx.DeletePartitions) -> None:
        failure: TidemarkError | None = None
        try:
            await self._store.delete_partitions(self.term, effect.topic, effect.partitions)
        except TidemarkError as error:
            if error.code is ErrorCode.CONTROLLER_NOT_ACTIVE:
                self._fenced(error)
                return
            failure = error
        self.submit(ev.PartitionsDeleted(effect.topic.topic, effect.partitions, failure))

    async def _finish_moves(self, effect: fx.FinishReassignments) -> None:
        await self._store.finish_moves(self.term, effect.finished, self._dated(effect.refused))
        self._answered.append(ev.ReassignmentsFinished(effect.finished))
        self.hint(StoreEvent.MOVES)  # what was asked for again meanwhile looked like what is finished

    async def _finish_partition_requests(self, effect: fx.FinishPartitionRequests) -> None:
        await self._store.finish_partition_requests(
            self.term, added=effect.added, removed=effect.removed, refused=self._dated(effect.refused)
        )
        self._answered.append(ev.PartitionRequestsFinished(effect.added, effect.removed))
        self.hint(StoreEvent.PARTITION_REQUESTS)

    def _dated(self, refusals: Sequence[Refusal]) -> list[Refusal]:
        return [replace(one, at_ms=self._clock.wall_us() // 1000) for one in refusals]

    async def _until_done(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except TidemarkError as error:
                if error.code is ErrorCode.CONTROLLER_NOT_ACTIVE:
                    self._fenced(error)
                    return
                _log.warning("requests not answered yet", extra={"why": str(error)})
                await asyncio.sleep(_REREAD_S)
            else:
                return

    def _fenced(self, error: TidemarkError) -> None:
        _log.warning("fenced: another controller was elected", extra={"why": error.message})
        self.ended.set()

    async def _command(self, effect: fx.SendLeaderAndIsr) -> None:
        answered = await self._peers.send_leader_and_isr(effect)
        if answered.error is None:
            refused = {partition for partition, _ in answered.refused}
            told = [one for part in effect.commands for one in part.partitions if one.partition not in refused]
            self._metrics.took_office(effect.broker, told)
        self._hear(answered)

    async def _tell(self, answering: Coroutine[None, None, ev.ControlAnswered | ev.ReplicasDescribed]) -> None:
        self._hear(await answering)

    def _hear(self, answered: ev.ControlAnswered | ev.ReplicasDescribed) -> None:
        if answered.error is not None:
            _log.info("command not taken", extra={"broker": answered.broker, "why": str(answered.error)})
        self.submit(answered)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("the term ends: unexpected error", exc_info=task.exception())
            self.ended.set()


class _Reread:
    """Reads again as often as wanted, once at a time, until it succeeds."""

    def __init__(
        self, read: Callable[[], Awaitable[None]], spawn: Callable[[Coroutine[None, None, None]], None]
    ) -> None:
        self._read = read
        self._spawn = spawn
        self._wanted = False
        self._reading = False

    def wanted(self) -> None:
        self._wanted = True
        if not self._reading:
            self._reading = True
            self._spawn(self._run())

    async def _run(self) -> None:
        while self._wanted:
            self._wanted = False
            try:
                await self._read()
            except TidemarkError as error:
                _log.warning("ZooKeeper not read", extra={"why": str(error)})
                self._wanted = True
                await asyncio.sleep(_REREAD_S)
        self._reading = False


def _policy_of(configs: Mapping[str, str]) -> TopicPolicy:
    try:
        settings = topic_settings(configs)
    except TidemarkError as error:
        _log.error("topic settings not understood; the defaults hold", extra={"why": str(error)})
        settings = topic_settings({})
    return TopicPolicy(
        settings.min_insync_replicas,
        settings.unclean_leader_election_enable,
        group_commit=settings.flush_policy == "group-commit",
    )
