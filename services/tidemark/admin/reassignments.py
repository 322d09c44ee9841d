# SPDX-License-Identifier: Apache-2.0
"""Validates, starts, cancels and watches reassignments; the controller carries them out (rule M1).

Requested reassignments are in /admin/reassign_partitions, running ones in the topics' znodes. The admin service keeps
only the last sample of each, for its copy rate.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from tidemark.admin.log_dirs import LogDirAdministration
from tidemark.admin.move_tracker import MoveTracker
from tidemark.admin.replica_sizes import OnBrokers, ReplicaSizes, inbound_bytes_per_s, sizes_of
from tidemark.admin.views import no_such_partition
from tidemark.core.reassignment.copy_rates import LOOKS_APART_S
from tidemark.core.reassignment.progress import (
    ClusterFacts,
    EndedReassignment,
    ReassignmentOutcome,
    ReassignmentPhase,
    ReassignmentProgress,
    progress_of,
)
from tidemark.core.reassignment.request import check_reassignments, named_log_dirs
from tidemark.core.reassignment.status import status
from tidemark.model import (
    NO_LEADER,
    REQUEST_ID_CHARACTERS_MAX,
    BrokerId,
    BrokerRegistration,
    ErrorCode,
    PartitionReassignment,
    ReassignmentRequests,
    Refusal,
    TidemarkError,
    TopicDescription,
    TopicPartition,
    VersionedState,
    invalid_request,
)
from tidemark.zookeeper.store import MetadataStore

_INTERVAL_S: Final = 1.0
_INTERVAL_S_MIN: Final = 0.1
_RACES_MAX: Final = 10
_OVERTAKEN: Final = frozenset({ErrorCode.REASSIGNMENT_IN_PROGRESS, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS})
"""Errors of a write whose partitions were read before another request, or an end, changed their reassignments."""


@dataclass(frozen=True, slots=True)
class MovesQuery:
    """Reassignments to start and to cancel.

    Attributes:
        moves: reassignments to start.
        cancel: partitions whose reassignment is cancelled.
        throttle_bytes_per_s: bytes per second of all `moves`; 0: no limit.
        request_id: id of the request; "": a new id.
        allow_partial: start the reassignments that are not refused; otherwise one refusal prevents all.
        adding: brokers that may get replicas although they are still marked as draining.
    """

    moves: Sequence[PartitionReassignment] = ()
    cancel: Sequence[TopicPartition] = ()
    throttle_bytes_per_s: int = 0
    request_id: str = ""
    allow_partial: bool = False
    adding: tuple[BrokerId, ...] = ()


class Answer(NamedTuple):
    """The outcome for each partition, and the highest rate that a leader must send to added replicas to keep up."""

    outcomes: list[ReassignmentOutcome]
    inbound_bytes_per_s: float | None


class ReassignmentUpdate(NamedTuple):
    """Requested and running reassignments, and those that ended since the previous update."""

    moves: list[ReassignmentProgress]
    ended: list[EndedReassignment]


class _Snapshot(NamedTuple):
    """Data read from ZooKeeper and from brokers at about one time."""

    requests: ReassignmentRequests
    topics: Mapping[str, TopicDescription]
    live: Mapping[BrokerId, BrokerRegistration]
    states: Mapping[TopicPartition, VersionedState]
    sizes: OnBrokers
    draining: Collection[BrokerId] = ()

    def assigned(self, partition: TopicPartition) -> tuple[BrokerId, ...]:
        """Return the replicas; empty if the partition does not exist."""
        topic = self.topics.get(partition.topic)
        return () if topic is None else topic.partitions.get(partition.partition, ())

    def leader(self, partition: TopicPartition) -> BrokerId:
        """Return the leader; raises NO_LEADER if the partition has none."""
        return self.states[partition].state.leader if partition in self.states else NO_LEADER


def interval_of(interval_ms: int) -> float:
    """Return the seconds between updates for a request's `interval_ms`; 0 is the default."""
    return max(_INTERVAL_S_MIN, interval_ms / 1000) if interval_ms else _INTERVAL_S


class ReassignmentAdministration:
    """Validates, starts, cancels and watches reassignments.

    Args:
        store: started.
        sizes: reports the replicas of brokers.
        tracker: keeps the last sample of each reassignment.
        pause: sleeps for a number of seconds.
        log_dirs: checks named log directories; None: named log directories are not checked.
    """

    def __init__(
        self,
        store: MetadataStore,
        sizes: ReplicaSizes,
        tracker: MoveTracker | None = None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        log_dirs: LogDirAdministration | None = None,
    ) -> None:
        self._store = store
        self._sizes = sizes
        self._tracker = tracker or MoveTracker()
        self._pause = pause
        self._log_dirs = log_dirs

    async def alter(self, query: MovesQuery, *, validate_only: bool) -> Answer:
        """Check all reassignments, then write them; a refusal prevents all, unless `allow_partial`.

        Raises:
            TidemarkError: INVALID_REQUEST, COORDINATION_UNAVAILABLE; other errors are in the outcomes.
        """
        _check(query)
        request_id = query.request_id or uuid.uuid4().hex
        moves = [
            replace(move, throttle_bytes_per_s=query.throttle_bytes_per_s, request_id=request_id)
            for move in query.moves
        ]
        snapshot, refused, inbound = await self._checked(moves, query)
        for tries_left in reversed(range(_RACES_MAX)):
            if validate_only or (refused and not query.allow_partial):
                break
            try:
                await self._submit(moves, query.cancel, refused, snapshot)
                break
            except TidemarkError as error:
                if error.code not in _OVERTAKEN or not tries_left:
                    raise
            # A reassignment began or ended after it was read: its partition is refused, not the request.
            snapshot, refused, inbound = await self._checked(moves, query)
        outcomes = [
            *(
                ReassignmentOutcome(one.partition, snapshot.assigned(one.partition), False, refused.get(one.partition))
                for one in moves
            ),
            *(ReassignmentOutcome(one, snapshot.assigned(one), True, refused.get(one)) for one in query.cancel),
        ]
        rates = [rate for rate in inbound.values() if rate is not None]
        return Answer(sorted(outcomes, key=lambda one: one.partition), max(rates) if rates else None)

    async def _checked(
        self, moves: Sequence[PartitionReassignment], query: MovesQuery
    ) -> tuple[_Snapshot, dict[TopicPartition, TidemarkError], Mapping[BrokerId, float | None]]:
        """Read the cluster; returns what was read, the refusals, and the rate that each leader must send."""
        snapshot = await self._read([move.partition for move in moves] + list(query.cancel))
        refused = self._refuse(moves, query, snapshot)
        if self._log_dirs is not None:
            placed = [move for move in moves if move.partition not in refused and named_log_dirs(move)]
            refused |= await self._log_dirs.check_reassignments(placed, snapshot.live)
        inbound = _inbound(moves, snapshot)
        refused |= _refuse_throttle(moves, query.throttle_bytes_per_s, inbound, snapshot)
        return snapshot, refused, inbound

    async def list_moves(
        self, partitions: Collection[TopicPartition] = ()
    ) -> tuple[list[ReassignmentProgress], Sequence[Refusal]]:
        """List requested and running reassignments (of these partitions; empty: all), and the latest refusals."""
        moves, refusals = await asyncio.gather(self._moves(), self._store.refusals())
        if any(_lacks_a_rate(moved) for moved in moves):
            await self._pause(LOOKS_APART_S)  # a rate needs two samples
            moves = await self._moves()
        wanted = frozenset(partitions)
        return [moved for moved in moves if not wanted or moved.partition in wanted], refusals

    async def watch(
        self, partitions: Collection[TopicPartition], *, interval_s: float, request_id: str = ""
    ) -> AsyncIterator[ReassignmentUpdate]:
        """Yield updates, the first immediately, until all reassignments of these partitions (empty: all now) have
        ended."""
        seen_before = {
            one.key for one in await self._store.refusals() if not request_id or one.request_id != request_id
        }
        left: dict[TopicPartition, ReassignmentProgress | None] = dict.fromkeys(partitions)
        everything = not partitions
        while True:
            moves = await self._moves()
            now = {moved.partition: moved for moved in moves if everything or moved.partition in left}
            if everything:
                left |= now
                everything = False
            gone = [partition for partition in left if partition not in now]
            ended = await self._endings({one: left[one] for one in gone}, seen_before) if gone else []
            left = dict(now)
            yield ReassignmentUpdate([now[partition] for partition in sorted(now)], ended)
            if not left:
                return
            await asyncio.sleep(interval_s)

    async def _endings(
        self, gone: Mapping[TopicPartition, ReassignmentProgress | None], seen_before: Collection[tuple[object, ...]]
    ) -> list[EndedReassignment]:
        topics, refusals = await asyncio.gather(
            self._store.topics(sorted({partition.topic for partition in gone})), self._store.refusals()
        )
        why = {one.partition: one.error for one in refusals if one.kind == "reassign" and one.key not in seen_before}
        ended = []
        for partition, last in sorted(gone.items(), key=lambda item: item[0]):
            topic = topics.get(partition.topic)
            replicas = () if topic is None else topic.partitions.get(partition.partition, ())
            error = why.get(partition)
            if error is None and not replicas:
                error = no_such_partition(partition, topic)
            elif error is None and last is not None and replicas != last.target:
                listed = ",".join(str(broker) for broker in replicas)
                how = "ended before it could be" if last.phase is ReassignmentPhase.CANCELLING else "was"
                error = TidemarkError(
                    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
                    f"the reassignment of {partition} {how} cancelled; its replicas are {listed}",
                    partition.facts,
                )
            ended.append(EndedReassignment(partition, replicas, error))
        return ended

    async def _moves(self) -> list[ReassignmentProgress]:
        """List requested and running reassignments, by partition, with rates."""
        snapshot, controller = await asyncio.gather(self._read([]), self._store.controller())
        wanted = {move.partition: move for move in snapshot.requests.moves}
        for move in _under_way(snapshot):
            wanted.setdefault(move.partition, move)
        begun = [
            one
            for one in wanted
            if snapshot.topics.get(one.topic) and one.partition in snapshot.topics[one.topic].original
        ]
        sight = ClusterFacts(frozenset(snapshot.live), controller is not None, bool(begun))
        found = [
            progress_of(
                wanted[partition],
                snapshot.topics.get(partition.topic),
                snapshot.states[partition].state if partition in snapshot.states else None,
                sizes_of(partition, snapshot.sizes),
                sight,
            )
            for partition in sorted(wanted)
        ]
        return self._tracker.look(found, {moved.partition: snapshot.leader(moved.partition) for moved in found})

    async def _read(self, asked: Sequence[TopicPartition]) -> _Snapshot:
        """Read requested and running reassignments, and the partitions of this request."""
        requests, topics, live, draining = await asyncio.gather(
            self._store.move_requests(),
            self._store.topics(),
            self._store.live_brokers(),
            self._store.draining_brokers(),
        )
        snapshot = _Snapshot(requests, topics, live, {}, {}, draining)
        concerned = {
            *asked,
            *(move.partition for move in requests.moves),
            *(one.partition for one in _under_way(snapshot)),
        }
        there = sorted(one for one in concerned if snapshot.assigned(one))
        states, sizes = await asyncio.gather(self._store.states(there), self._sizes.of(there, live))
        return snapshot._replace(states=states, sizes=sizes)

    def _refuse(
        self, moves: Sequence[PartitionReassignment], query: MovesQuery, snapshot: _Snapshot
    ) -> dict[TopicPartition, TidemarkError]:
        # Entries of an earlier attempt of the same request do not conflict with it.
        there = set(snapshot.requests.moves)
        new = [move for move in moves if move not in there]
        under_way = {move.partition for move in (*snapshot.requests.moves, *_under_way(snapshot))}
        older = {broker for broker, found in snapshot.live.items() if not found.stores_typed}
        refused = check_reassignments(new, snapshot.topics, snapshot.live, under_way, older)
        refused |= {
            move.partition: _drained(move, broker)
            for move in new
            for broker in move.replicas
            if broker in snapshot.draining
            and broker not in query.adding
            and broker not in snapshot.assigned(move.partition)
        }
        asked = {move.partition for move in moves}
        for partition in query.cancel:
            if partition in asked:
                sentence = f"one request cannot both start and cancel a reassignment of {partition}; send two"
                refused[partition] = TidemarkError(ErrorCode.DUPLICATE_PARTITION, sentence, partition.facts)
            elif not snapshot.assigned(partition):
                refused[partition] = no_such_partition(partition, snapshot.topics.get(partition.topic))
            elif partition not in under_way:
                sentence = f"{partition} has no reassignment to cancel"
                refused[partition] = TidemarkError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, sentence, partition.facts)
        return refused

    async def _submit(
        self,
        moves: Sequence[PartitionReassignment],
        cancel: Sequence[TopicPartition],
        refused: Collection[TopicPartition],
        snapshot: _Snapshot,
    ) -> None:
        given_up = {partition for partition in cancel if partition not in refused}
        entries = {move.partition for move in snapshot.requests.moves}
        if given_up & entries:
            await self._store.cancel_moves(sorted(given_up & entries))
        # The entry of a running reassignment was deleted manually: a new entry cancels it.
        without_entry = given_up - entries
        orphans = [replace(move, cancel=True) for move in _under_way(snapshot) if move.partition in without_entry]
        if orphans:
            await self._store.submit_moves(orphans)
        begun = [
            move
            for move in moves
            if move.partition not in refused
            and (snapshot.assigned(move.partition) != move.replicas or named_log_dirs(move))
        ]
        if begun:
            await self._store.submit_moves(begun)


def _check(query: MovesQuery) -> None:
    why = None
    if len(query.request_id) > REQUEST_ID_CHARACTERS_MAX:
        why = f"a request_id has {REQUEST_ID_CHARACTERS_MAX} characters at most"
    elif not query.moves and not query.cancel:
        why = "name partitions to reassign, or whose reassignment to cancel"
    elif query.throttle_bytes_per_s < 0:
        why = f"a throttle of {query.throttle_bytes_per_s} bytes/s is less than 0 (no limit)"
    if why is not None:
        raise invalid_request(why)


def _lacks_a_rate(moved: ReassignmentProgress) -> bool:
    return moved.phase is ReassignmentPhase.COPYING and moved.rate_bytes_per_s is None and bool(moved.bytes_total)


def _under_way(snapshot: _Snapshot) -> list[PartitionReassignment]:
    """List the running reassignments by the topics' znodes, including those without an entry."""
    found = []
    for topic in snapshot.topics.values():
        for index in topic.original:
            moved = status(topic, index, None)
            if moved is not None:
                found.append(
                    PartitionReassignment(TopicPartition(topic.topic, index), moved.target, cancel=moved.cancelled)
                )
    return found


def _inbound(moves: Sequence[PartitionReassignment], snapshot: _Snapshot) -> dict[BrokerId, float | None]:
    """Return for each leader the rate that it must send to replicas added by these moves, to keep up with producers."""
    rates: defaultdict[BrokerId, float | None] = defaultdict(lambda: None)
    for move in moves:
        leader = snapshot.leader(move.partition)
        added = sum(broker not in snapshot.assigned(move.partition) for broker in move.replicas)
        rate = inbound_bytes_per_s(move.partition, leader, snapshot.sizes)
        if rate is not None and added:
            rates[leader] = (rates[leader] or 0.0) + rate * added
    return dict(rates)


def _refuse_throttle(
    moves: Sequence[PartitionReassignment], throttle: int, inbound: Mapping[BrokerId, float | None], snapshot: _Snapshot
) -> dict[TopicPartition, TidemarkError]:
    """Refuse a throttle below the inbound rate, with which no reassignment would end (rule M2)."""
    refused: dict[TopicPartition, TidemarkError] = {}
    for move in moves:
        leader = snapshot.leader(move.partition)
        rate = inbound.get(leader) or 0.0
        added = any(broker not in snapshot.assigned(move.partition) for broker in move.replicas)
        if throttle and added and throttle <= rate:
            refused[move.partition] = TidemarkError(
                ErrorCode.THROTTLE_TOO_LOW,
                f"a throttle of {throttle} bytes/s is no more than the {rate:.0f} bytes/s that broker {leader} must "
                f"send to keep up with its producers. The reassignment of {move.partition} would never end: raise the "
                "throttle, or reassign fewer partitions at the same time",
                {**move.partition.facts, "inbound_bytes_per_s": f"{rate:.0f}", "broker": str(leader)},
            )
    return refused


def _drained(move: PartitionReassignment, broker: BrokerId) -> TidemarkError:
    return TidemarkError(
        ErrorCode.BROKER_NOT_AVAILABLE,
        f"{move.partition} cannot be reassigned to broker {broker}, which is being removed: name another, or add it "
        f"again with tidemark cluster add-brokers {broker}",
        {**move.partition.facts, "broker": str(broker)},
    )
