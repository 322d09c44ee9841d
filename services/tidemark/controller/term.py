# SPDX-License-Identifier: Apache-2.0
"""One term of an active controller: the driver of `ControllerCore`, from election to end (rules C1, C3).

The term reaches ZooKeeper, brokers, time and tasks through ports only, so that the simulator runs this code.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from tidemark.controller.epoch_keeper import EpochKeeper
from tidemark.controller.lost_states import LostStates
from tidemark.controller.ports import BrokerChannels, BrokerHeartbeats, ControllerObserver, Submit
from tidemark.core.controller import effects as fx
from tidemark.core.controller import events as ev
from tidemark.core.controller.controller import ControllerCore, partitions_of
from tidemark.core.controller.partition_state import TopicPolicy
from tidemark.model import (
    REQUESTED_ELECTIONS,
    BrokerId,
    BrokerRegistration,
    ElectionKind,
    ElectionRequest,
    ErrorCode,
    Refusal,
    TidemarkError,
    TopicPartition,
)
from tidemark.ports import Clock, ControllerTerm, Scheduler, StoreEvent, WriteOutcome
from tidemark.runtime.configuration.settings import topic_settings, usable_topic_configs
from tidemark.zookeeper.store import MetadataStore

_log = logging.getLogger(__name__)
_TICK_MS: Final = 100
_RETRY_MS: Final = 200
_SLICE_S: Final = 0.004
"""Longest time for a burst of events; then the scheduler runs other tasks, so that streams and timers continue."""
_NODE_CHECK_MS: Final = 5000
"""Interval of the check of /controller, and of the epoch node of every live broker; no watch covers these nodes."""


_STATE_CHECK_MS: Final = 10_000
_STATES_CHECKED: Final = 2_000
"""States read in each interval: ZooKeeper answers 200 of these reads per second at most."""


class ActiveTerm:
    """Runs until `ended` is set: fenced, resigned, failed or stopped.

    Args:
        scheduler: of this term alone; `stop` cancels all its tasks.
        heartbeats: makes the failure detector, which submits events to the function it is given.
        stopwatch_s: seconds on any clock, for the metrics and the slices of the queue.
    """

    def __init__(
        self,
        term: ControllerTerm,
        core: ControllerCore,
        *,
        store: MetadataStore,
        channels: BrokerChannels,
        heartbeats: Callable[[Submit], BrokerHeartbeats],
        clock: Clock,
        scheduler: Scheduler,
        observer: ControllerObserver,
        stopwatch_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.term = term
        self.core = core
        self.ended = scheduler.signal()
        self._store = store
        self._channels = channels
        self._heartbeats = heartbeats(self.submit)
        self._clock = clock
        self._scheduler = scheduler
        self._observer = observer
        self._stopwatch_s = stopwatch_s
        self._epochs = EpochKeeper(term, store)
        self._lost_states = LostStates(term, store, channels.describe_replicas, policy_of, core)
        self._events: deque[tuple[ev.ControllerEvent, float]] = deque()
        """Events in order of arrival, each with its arrival time on the stopwatch."""
        self._draining = False
        self._has_begun = False
        self._early: set[StoreEvent] = set()
        """Notifications before the end of the first read in `start`; they are processed after it."""
        self._requests_unread = True
        """Whether no partition request has been read in this term."""
        self._told: dict[str, str] = {}
        """The reason logged last for each topic whose nodes were not deleted."""
        self._finished: list[ev.ControllerEvent] = []
        """Submitted with the first read that begins later: a read in flight may still return finished requests."""
        topics = _Reread(self._read_topics, self._retry_pause, self._spawn)
        self._reads = {
            StoreEvent.BROKERS: _Reread(self._read_brokers, self._retry_pause, self._spawn),
            StoreEvent.TOPICS: topics,
            StoreEvent.DELETIONS: topics,
            StoreEvent.ELECTIONS: topics,
            StoreEvent.MOVES: topics,
            StoreEvent.PARTITION_REQUESTS: topics,
        }
        self._effects: dict[type, Callable[[Any], None]] = {
            fx.WriteStates: self._spawning(self._write_states),
            fx.ReadStates: self._spawning(self._read_states),
            fx.SendLeaderAndIsr: self._spawning(self._send_leader_and_isr),
            fx.SendStopReplica: self._spawning(self._send_stop_replica),
            fx.SendUpdateMetadata: self._spawning(self._send_update_metadata),
            fx.DescribeReplicas: self._spawning(self._describe_replicas),
            fx.DeleteTopic: self._spawning(self._delete_topic),
            fx.FinishElections: self._spawning(self._finish_elections),
            fx.WriteTopic: self._spawning(self._write_topic),
            fx.FinishReassignments: self._spawning(self._finish_moves),
            fx.DeletePartitions: self._spawning(self._delete_partitions),
            fx.FinishPartitionRequests: self._spawning(self._finish_partition_requests),
            fx.ReleaseBroker: lambda effect: self._heartbeats.release(effect.broker, effect.broker_epoch),
            fx.Resign: self._resign,
            fx.Observed: observer.observed,
        }

    async def start(self) -> None:
        """Set watches, read all state, and decide (rule C3)."""
        brokers = await self._store.live_brokers(watch=True)
        epochs = await self._epochs.read(brokers)
        moves = await self._store.move_requests(watch=True)
        bad_topics: set[str] = set()
        bad_states: set[TopicPartition] = set()
        topics = await self._store.topics(watch=True, unreadable=bad_topics)
        deletions = await self._store.requested_deletions(watch=True)
        states = await self._store.states(partitions_of(topics.values()), sync=True, unreadable=bad_states)
        self._channels.follow(brokers)
        self.submit(
            ev.Elected(brokers, epochs, topics, states, deletions, frozenset(bad_topics), frozenset(bad_states), moves)
        )
        self._heartbeats.follow(brokers)  # called after that event, so that no answer of a broker precedes it
        if bad_states:
            self._spawn(self._read_states(fx.ReadStates(tuple(bad_states))))
        self._spawn(self._tick())
        self._spawn(self._check_nodes())
        self._spawn(self._check_states())
        self._has_begun = True
        for event in StoreEvent:  # a fixed order, so that a seed gives the same run
            if event in self._early or event is StoreEvent.ELECTIONS:
                self.on_store_event(event)

    @property
    def has_begun(self) -> bool:
        """Whether `start` has read all state; the core would lose events submitted earlier."""
        return self._has_begun

    async def stop(self) -> None:
        """Cancel all work; the next controller reads all state again."""
        self.ended.set()
        await self._scheduler.stop()
        await self._heartbeats.stop()  # stopped after the reads, which start new heartbeats
        await self._channels.stop()

    def on_store_event(self, event: StoreEvent) -> None:
        """Read the changed nodes of ZooKeeper again, after the reads of `start`."""
        if not self._has_begun:
            self._early.add(event)
            return
        reread = self._reads.get(event)
        if reread is not None and not self.ended.is_set():
            reread.request()

    def submit(self, event: ev.ControllerEvent) -> None:
        """Handle an event now, or after the queued events."""
        if self.ended.is_set():
            return
        self._events.append((event, self._stopwatch_s()))
        if not self._draining:
            self._draining = True
            self._drain()

    def queue_size(self) -> int:
        """Number of queued events."""
        return len(self._events)

    async def describe_replicas(self, question: fx.DescribeReplicas) -> ev.ReplicasDescribed:
        """Send DescribeReplicas for another component, bypassing the core."""
        return await self._channels.describe_replicas(question)

    def _drain(self) -> None:
        now_s = self._stopwatch_s
        until_s = now_s() + _SLICE_S
        while self._events and not self.ended.is_set():
            event, arrived_s = self._events.popleft()
            began_s = now_s()
            self._observer.waited(began_s - arrived_s)
            try:
                for effect in self.core.handle(event, self._clock.now_ms()):
                    self._effects[type(effect)](effect)
            except Exception as error:  # noqa: BLE001 - any defect ends the term: the next controller reads all state
                self._fail(error, event)
                return
            self._observer.handled(event, now_s() - began_s)
            if self.core.has_more and not self._events:
                self._events.append((ev.MoreToDo(), now_s()))
            if self._events and now_s() > until_s:
                self._scheduler.call_soon(self._drain)
                return
        self._draining = False

    async def _tick(self) -> None:
        while True:
            await self._scheduler.sleep_ms(_TICK_MS)
            self.submit(ev.Tick())
            self._observer.counts(self.core.counts())
            self._observer.left_isrs(self.core.take_left_isrs())

    async def _check_nodes(self) -> None:
        """End the term without its own node; restore parent nodes and broker epochs that were changed manually."""
        while True:
            try:
                if await self._has_lost_node():
                    _log.error("/controller was deleted or overwritten manually: this controller resigns")
                    self.ended.set()
                    return
                for path in await self._store.restore_parents():
                    _log.error("a parent node was deleted manually; restored", extra={"path": path})
                if await self._epochs.restore():
                    self.on_store_event(StoreEvent.BROKERS)
            except TidemarkError as error:
                if self._fenced(error):
                    return
                _log.warning("nodes not checked", extra={"why": error.message})
            await self._scheduler.sleep_ms(_NODE_CHECK_MS)

    async def _has_lost_node(self) -> bool:
        """Whether other processes do not find this controller in /controller: the next election writes the node."""
        try:
            holder = await self._store.controller()
        except TidemarkError as error:
            if error.code is ErrorCode.COORDINATION_UNAVAILABLE:
                raise
            return True  # the node does not parse
        return holder is None or holder.controller_id != self.term.controller_id

    def _resign(self, effect: fx.Resign) -> None:
        _log.warning("this controller resigns", extra={"why": effect.why, "controller_epoch": self.term.epoch})
        self.ended.set()

    # -- reads of ZooKeeper ------------------------------------------------------------------------------------

    async def _read_brokers(self) -> None:
        brokers = await self._store.live_brokers(watch=True)
        epochs = await self._epochs.read(brokers)
        self._follow(brokers)
        self.submit(ev.BrokersChanged(brokers, epochs))

    async def _read_topics(self) -> None:
        """Read requests, topics, then deletions, and submit them together: `DeletionsRequested` states why in this
        order.

        Elections and reassignments are requested for topics that exist, so that the topics read afterwards include
        those topics.
        """
        finished = list(self._finished)
        elections = {kind: await self._read_elections(kind) for kind in REQUESTED_ELECTIONS}
        moves = await self._store.move_requests(watch=True)
        partitions = await self._store.partition_requests(watch=True)
        unreadable: set[str] = set()
        topics = await self._store.topics(watch=True, unreadable=unreadable)
        deletions = await self._store.requested_deletions(watch=True)
        self.submit(ev.TopicsChanged(topics, frozenset(unreadable)))
        self.submit(ev.DeletionsRequested(deletions))
        for kind, request in elections.items():
            self.submit(ev.ElectionsRequested(kind, request))
        for event in finished:
            self._finished.remove(event)
            self.submit(event)
        self.submit(ev.ReassignmentsRequested(moves))
        self.submit(ev.PartitionsRequested(partitions, self._requests_unread))
        self._requests_unread = False

    async def _read_elections(self, kind: ElectionKind) -> ElectionRequest | None:
        """Leave out partitions with a loss report of this request: an earlier controller has elected their leaders."""
        request = await self._store.requested_elections(kind, watch=True)
        if request is None or kind is ElectionKind.PREFERRED:
            return request
        kept = await self._store.unclean_elections(request.partitions)
        held = {one.partition for reports in kept.values() for one in reports if one.request_id == request.request_id}
        return replace(request, partitions=tuple(one for one in request.partitions if one not in held))

    async def _read_states(self, effect: fx.ReadStates) -> None:
        """Read leaderAndISR nodes and submit them; then write damaged and missing nodes again where possible (Z4)."""
        left = effect.partitions
        while left:
            try:
                left = await self._read_some(left)
            except TidemarkError as error:
                if self._fenced(error):
                    return
                _log.warning("states not read", extra={"count": len(left), "why": str(error)})
                await self._retry_pause()

    async def _read_some(self, partitions: tuple[TopicPartition, ...]) -> tuple[TopicPartition, ...]:
        """Submit the nodes that are read; returns the partitions whose nodes were written again, to be read once
        more."""
        unreadable: set[TopicPartition] = set()
        found = await self._store.states(partitions, sync=True, unreadable=unreadable)
        unreadable.update(one for one, node in found.items() if self.core.is_older(one, node.state))
        found = {one: node for one, node in found.items() if one not in unreadable}
        readable = tuple(one for one in partitions if one not in unreadable)
        if readable:
            self.submit(ev.StatesRead(readable, found))
        rest = tuple(one for one in partitions if one in unreadable)
        if not rest:
            return ()
        if await self._lost_states.make(rest):
            return rest
        self.submit(ev.StatesRead(rest, {}, frozenset(rest)))
        return ()

    async def _check_states(self) -> None:
        """Find nodes that were damaged manually while their leaders still know the ISR. No watch covers these nodes."""
        partitions: list[TopicPartition] = []
        while True:
            await self._scheduler.sleep_ms(_STATE_CHECK_MS)
            partitions = partitions or partitions_of(self.core.topics())
            some, partitions = partitions[:_STATES_CHECKED], partitions[_STATES_CHECKED:]
            unreadable: set[TopicPartition] = set()
            try:
                found = await self._store.states(some, unreadable=unreadable)
                unreadable.update(one for one, node in found.items() if self.core.is_older(one, node.state))
            except TidemarkError as error:
                _log.info("states not checked", extra={"why": error.message})
            if unreadable:
                self.submit(ev.IsrChangesReported(tuple(sorted(unreadable))))

    def _follow(self, brokers: Mapping[BrokerId, BrokerRegistration]) -> None:
        self._channels.follow(brokers)
        self._heartbeats.follow(brokers)

    # -- writes to ZooKeeper -----------------------------------------------------------------------------------

    async def _write_states(self, effect: fx.WriteStates) -> None:
        writes = [
            replace(change, report=replace(change.report, elected_at_ms=self._clock.wall_us() // 1000))
            if change.report is not None
            else change
            for change in effect.changes
        ]
        try:
            results = await self._store.write_states(self.term, writes)
        except TidemarkError as error:
            if self._fenced(error, not_written=[write.partition for write in writes]):
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

    async def _delete_topic(self, effect: fx.DeleteTopic) -> None:
        failure: TidemarkError | None = None
        try:
            await self._store.delete_topic(self.term, effect.topic)
        except TidemarkError as error:
            if self._fenced(error):
                return
            failure = error
        self._tell_refused("topic not deleted", effect.topic.topic, failure)
        self.submit(ev.TopicDeleted(effect.topic.topic, effect.topic.topic_id, failure))

    async def _finish_elections(self, effect: fx.FinishElections) -> None:
        try:
            await self._store.finish_elections(self.term, effect.request)
        except TidemarkError as error:
            if self._fenced(error):
                return
            _log.warning("election request not removed", extra={"why": str(error)})
            await self._retry_pause()
            self.on_store_event(StoreEvent.ELECTIONS)

    async def _write_topic(self, effect: fx.WriteTopic) -> None:
        name, written = effect.topic.topic, None
        try:
            written = await self._store.write_topic(self.term, effect.topic)
        except TidemarkError as error:
            if self._fenced(error):
                return
            _log.warning("topic not written", extra={"topic": name, "why": str(error)})
        if written is None:
            self.on_store_event(StoreEvent.TOPICS)
        self.submit(ev.TopicWritten(name, written))

    async def _delete_partitions(self, effect: fx.DeletePartitions) -> None:
        failure: TidemarkError | None = None
        try:
            await self._store.delete_partitions(self.term, effect.topic, effect.partitions)
        except TidemarkError as error:
            if self._fenced(error):
                return
            failure = error
        self._tell_refused("partitions not deleted", effect.topic.topic, failure)
        self.submit(ev.PartitionsDeleted(effect.topic.topic, effect.partitions, failure))

    def _tell_refused(self, message: str, topic: str, error: TidemarkError | None) -> None:
        """Log each reason once: a deletion that fails is repeated twice a second."""
        if error is None:
            self._told.pop(topic, None)
        elif self._told.get(topic) != error.message:
            self._told[topic] = error.message
            _log.warning(message, extra={"topic": topic, "why": error.message})

    async def _finish_moves(self, effect: fx.FinishReassignments) -> None:
        refused = self._dated(effect.refused)
        await self._finish(
            partial(self._store.finish_moves, self.term, effect.finished, refused),
            ev.ReassignmentsFinished(effect.finished),
            StoreEvent.MOVES,
        )

    async def _finish_partition_requests(self, effect: fx.FinishPartitionRequests) -> None:
        added, removed, refused = effect.added, effect.removed, self._dated(effect.refused)
        await self._finish(
            partial(self._store.finish_partition_requests, self.term, added=added, removed=removed, refused=refused),
            ev.PartitionRequestsFinished(added, tuple(removed)),
            StoreEvent.PARTITION_REQUESTS,
        )

    def _dated(self, refusals: Sequence[Refusal]) -> list[Refusal]:
        return [replace(one, at_ms=self._clock.wall_us() // 1000) for one in refusals]

    async def _finish(
        self, remove: Callable[[], Awaitable[None]], event: ev.ControllerEvent, requests: StoreEvent
    ) -> None:
        """Remove finished requests, retrying, then read the requests again.

        A request that is repeated before the removal would equal the finished request.
        """
        while True:
            try:
                await remove()
            except TidemarkError as error:
                if self._fenced(error):
                    return
                _log.warning("finished requests not removed", extra={"why": str(error)})
                await self._retry_pause()
            else:
                self._finished.append(event)
                self.on_store_event(requests)
                return

    # -- calls to brokers --------------------------------------------------------------------------------------

    async def _send_leader_and_isr(self, effect: fx.SendLeaderAndIsr) -> None:
        answer = await self._channels.send_leader_and_isr(effect)
        if answer.error is None:
            refused = {partition for partition, _ in answer.refused}
            accepted = [one for part in effect.commands for one in part.partitions if one.partition not in refused]
            self._observer.leaders_confirmed(effect.broker, accepted)
        self._submit_answer(answer)

    async def _send_stop_replica(self, effect: fx.SendStopReplica) -> None:
        self._submit_answer(await self._channels.send_stop_replica(effect))

    async def _send_update_metadata(self, effect: fx.SendUpdateMetadata) -> None:
        self._submit_answer(await self._channels.send_update_metadata(effect))

    async def _describe_replicas(self, effect: fx.DescribeReplicas) -> None:
        self._submit_answer(await self._channels.describe_replicas(effect))

    def _submit_answer(self, answer: ev.ControlAnswered | ev.ReplicasDescribed) -> None:
        if answer.error is not None:
            _log.info("broker refused a command", extra={"broker": answer.broker, "why": str(answer.error)})
        self.submit(answer)

    # -- tasks and errors --------------------------------------------------------------------------------------

    async def _retry_pause(self) -> None:
        await self._scheduler.sleep_ms(_RETRY_MS)

    def _spawning(self, carry_out: Callable[[Any], Coroutine[None, None, None]]) -> Callable[[Any], None]:
        return lambda effect: self._spawn(carry_out(effect))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        self._scheduler.spawn(work, self._fail)

    def _fenced(self, error: TidemarkError, not_written: Sequence[TopicPartition] = ()) -> bool:
        """Whether another controller was elected; the term ends in that case."""
        if error.code is not ErrorCode.CONTROLLER_NOT_ACTIVE:
            return False
        extra: dict[str, object] = {"why": error.message, "controller_epoch": self.term.epoch}
        if not_written:
            extra |= {"not_written": len(not_written), "first": str(not_written[0])}
        _log.warning("fenced, not written: another controller was elected", extra=extra)
        self.ended.set()
        return True

    def _fail(self, error: BaseException, event: ev.ControllerEvent | None = None) -> None:
        self.ended.set()
        self._observer.failed(error, event)


class _Reread:
    """Runs one read at a time until a read that began after the last request has succeeded."""

    def __init__(
        self,
        read: Callable[[], Awaitable[None]],
        retry_pause: Callable[[], Awaitable[None]],
        spawn: Callable[[Coroutine[None, None, None]], None],
    ) -> None:
        self._read = read
        self._retry_pause = retry_pause
        self._spawn = spawn
        self._requested = False
        self._reading = False

    def request(self) -> None:
        self._requested = True
        if not self._reading:
            self._reading = True
            self._spawn(self._run())

    async def _run(self) -> None:
        while self._requested:
            self._requested = False
            try:
                await self._read()
            except TidemarkError as error:
                _log.warning("cannot read ZooKeeper", extra={"why": str(error)})
                self._requested = True
                await self._retry_pause()
        self._reading = False


def policy_of(configs: Mapping[str, str]) -> TopicPolicy:
    """The settings of a topic that the controller needs; a setting that does not parse has its default."""
    try:
        settings = topic_settings(configs)
    except TidemarkError:
        usable, errors = usable_topic_configs(configs)
        for error in errors:
            _log.error("topic setting ignored", extra={"why": str(error)})
        settings = topic_settings(usable)
    return TopicPolicy(
        settings.min_insync_replicas,
        settings.unclean_leader_election_enable,
        group_commit=settings.flush_policy == "group-commit",
    )
