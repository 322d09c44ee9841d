# SPDX-License-Identifier: Apache-2.0
"""Moves of replicas that people ask for: checked here, carried out by the controller, watched to their end (rule M1).

What is wanted is in /admin/reassign_partitions, what is under way in the topics' nodes; nothing is kept here but the
last look at each, for its rate.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

from tidemark.admin.move_tracker import LOOKS_APART_S, MoveTracker
from tidemark.admin.replica_sizes import OnBrokers, ReplicaSizes, inbound_bytes_per_s, sizes_of
from tidemark.core.reassignment.progress import EndedMove, MoveOutcome, MovePhase, MoveProgress, Sight, progress_of
from tidemark.core.reassignment.request import check_moves, named_directories
from tidemark.core.reassignment.status import status
from tidemark.model import (
    NO_LEADER,
    REQUEST_ID_CHARACTERS_MAX,
    BrokerId,
    BrokerRegistration,
    ErrorCode,
    Move,
    MoveRequests,
    Refusal,
    TidemarkError,
    TopicDescription,
    TopicPartition,
    VersionedState,
    unknown_topic,
)
from tidemark.ports import MetadataStore

_INTERVAL_S: Final = 1.0
_INTERVAL_S_MIN: Final = 0.1


@dataclass(frozen=True, slots=True)
class MovesQuery:
    """What is asked for: moves to begin, all under one throttle (0: none), and partitions whose move is given up.

    `adding`: brokers that are, or are about to be, drained no more.
    """

    moves: Sequence[Move] = ()
    cancel: Sequence[TopicPartition] = ()
    throttle_bytes_per_s: int = 0
    request_id: str = ""
    allow_partial: bool = False
    adding: tuple[BrokerId, ...] = ()


class Answer(NamedTuple):
    """What became of each, by name, and what comes in to the moved partitions of the leader that gets most."""

    outcomes: list[MoveOutcome]
    inbound_bytes_per_s: float | None


class News(NamedTuple):
    """Moves still wanted or under way, and those that have ended since the news before."""

    moves: list[MoveProgress]
    ended: list[EndedMove]


class _Scene(NamedTuple):
    """What ZooKeeper and the brokers said, at about one time."""

    requests: MoveRequests
    topics: Mapping[str, TopicDescription]
    live: Mapping[BrokerId, BrokerRegistration]
    states: Mapping[TopicPartition, VersionedState]
    sizes: OnBrokers
    draining: Collection[BrokerId] = ()

    def assigned(self, partition: TopicPartition) -> tuple[BrokerId, ...]:
        """Its replicas; none where it does not exist."""
        topic = self.topics.get(partition.topic)
        return () if topic is None else topic.partitions.get(partition.partition, ())

    def leader(self, partition: TopicPartition) -> BrokerId:
        """Who leads it."""
        return self.states[partition].state.leader if partition in self.states else NO_LEADER


class LogDirs(Protocol):
    """Knows the log directories of brokers."""

    async def check_moves(
        self, moves: Sequence[Move], live: Mapping[BrokerId, BrokerRegistration]
    ) -> Mapping[TopicPartition, TidemarkError]:
        """Why brokers cannot hold replicas where these moves say."""

    async def stay(self, moves: Sequence[Move], live: Mapping[BrokerId, BrokerRegistration]) -> None:
        """Have brokers give up what they copy into directories that these moves name."""


def interval_of(interval_ms: int) -> float:
    """Seconds between news, of what a request says; 0 is the default."""
    return max(_INTERVAL_S_MIN, interval_ms / 1000) if interval_ms else _INTERVAL_S


class ReassignmentAdministration:
    """The calls of the admin service that are about moves of replicas.

    Args:
        store: started.
        sizes: asks brokers what they hold.
        tracker: remembers the last look.
        pause: for so many seconds.
        log_dirs: asks brokers for theirs; None: moves that name directories are not checked for them.
    """

    def __init__(
        self,
        store: MetadataStore,
        sizes: ReplicaSizes,
        tracker: MoveTracker | None = None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        log_dirs: LogDirs | None = None,
    ) -> None:
        self._store = store
        self._sizes = sizes
        self._tracker = tracker or MoveTracker()
        self._pause = pause
        self._log_dirs = log_dirs

    async def alter(self, query: MovesQuery, *, validate_only: bool) -> Answer:
        """Check all, then write what is wanted; nothing where any is refused, unless partial is allowed.

        Raises:
            TidemarkError: INVALID_REQUEST, COORDINATION_UNAVAILABLE; all else is said of each partition.
        """
        _check(query)
        request_id = query.request_id or uuid.uuid4().hex
        moves = [
            replace(move, throttle_bytes_per_s=query.throttle_bytes_per_s, request_id=request_id)
            for move in query.moves
        ]
        scene = await self._look([move.partition for move in moves] + list(query.cancel))
        refused = self._refuse(moves, query, scene)
        if self._log_dirs is not None:
            placed = [move for move in moves if move.partition not in refused and named_directories(move)]
            refused |= await self._log_dirs.check_moves(placed, scene.live)
        inbound = _inbound(moves, scene)
        refused |= _refuse_throttle(moves, query.throttle_bytes_per_s, inbound, scene)
        if not validate_only and (query.allow_partial or not refused):
            await self._submit(moves, query.cancel, refused, scene)
        outcomes = [
            *(
                MoveOutcome(one.partition, scene.assigned(one.partition), False, refused.get(one.partition))
                for one in moves
            ),
            *(MoveOutcome(one, scene.assigned(one), True, refused.get(one)) for one in query.cancel),
        ]
        rates = [rate for rate in inbound.values() if rate is not None]
        return Answer(sorted(outcomes, key=lambda one: one.partition), max(rates) if rates else None)

    async def list_moves(
        self, partitions: Collection[TopicPartition] = ()
    ) -> tuple[list[MoveProgress], Sequence[Refusal]]:
        """Moves that are wanted or under way (of these partitions, if any is named), and the latest refusals."""
        moves, refusals = await asyncio.gather(self._moves(), self._store.refusals())
        if any(_lacks_a_rate(moved) for moved in moves):
            await self._pause(LOOKS_APART_S)  # a rate takes two looks
            moves = await self._moves()
        return [moved for moved in moves if not partitions or moved.partition in partitions], refusals

    async def watch(
        self, partitions: Collection[TopicPartition], *, interval_s: float, request_id: str = ""
    ) -> AsyncIterator[News]:
        """News until none of these (none: of all there are now) is wanted or under way; the first at once."""
        seen_before = {
            _name(one) for one in await self._store.refusals() if not request_id or one.request_id != request_id
        }
        left: dict[TopicPartition, MoveProgress | None] = dict.fromkeys(partitions)
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
            yield News([now[partition] for partition in sorted(now)], ended)
            if not left:
                return
            await asyncio.sleep(interval_s)

    async def _endings(
        self, gone: Mapping[TopicPartition, MoveProgress | None], seen_before: Collection[tuple[object, ...]]
    ) -> list[EndedMove]:
        topics, refusals = await asyncio.gather(
            self._store.topics(sorted({partition.topic for partition in gone})), self._store.refusals()
        )
        why = {one.partition: one.error for one in refusals if one.kind == "reassign" and _name(one) not in seen_before}
        ended = []
        for partition, last in sorted(gone.items(), key=lambda item: item[0]):
            topic = topics.get(partition.topic)
            replicas = () if topic is None else topic.partitions.get(partition.partition, ())
            error = why.get(partition)
            if error is None and not replicas:
                error = _unknown(partition, topic)
            elif error is None and last is not None and replicas != last.target:
                listed = ",".join(str(broker) for broker in replicas)
                what = "had ended before it could be" if last.phase is MovePhase.CANCELLING else "was"
                error = TidemarkError(
                    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
                    f"the move of {partition} {what} given up; its replicas are {listed}",
                    _where(partition),
                )
            ended.append(EndedMove(partition, replicas, error))
        return ended

    async def _moves(self) -> list[MoveProgress]:
        """Every move that is wanted or under way, by name, with rates."""
        scene, controller = await asyncio.gather(self._look([]), self._store.controller())
        wanted = {move.partition: move for move in scene.requests.moves}
        for move in _under_way(scene):
            wanted.setdefault(move.partition, move)
        begun = [
            one for one in wanted if scene.topics.get(one.topic) and one.partition in scene.topics[one.topic].original
        ]
        sight = Sight(frozenset(scene.live), controller is not None, bool(begun))
        found = [
            progress_of(
                wanted[partition],
                scene.topics.get(partition.topic),
                scene.states[partition].state if partition in scene.states else None,
                sizes_of(partition, scene.sizes),
                sight,
            )
            for partition in sorted(wanted)
        ]
        return self._tracker.look(found, {moved.partition: scene.leader(moved.partition) for moved in found})

    async def _look(self, asked: Sequence[TopicPartition]) -> _Scene:
        """At what is wanted, under way, or asked about."""
        requests, topics, live, draining = await asyncio.gather(
            self._store.move_requests(),
            self._store.topics(),
            self._store.live_brokers(),
            self._store.draining_brokers(),
        )
        scene = _Scene(requests, topics, live, {}, {}, draining)
        concerned = {
            *asked,
            *(move.partition for move in requests.moves),
            *(one.partition for one in _under_way(scene)),
        }
        there = sorted(one for one in concerned if scene.assigned(one))
        states, sizes = await asyncio.gather(self._store.states(there), self._sizes.of(there, live))
        return scene._replace(states=states, sizes=sizes)

    def _refuse(self, moves: Sequence[Move], query: MovesQuery, scene: _Scene) -> dict[TopicPartition, TidemarkError]:
        # What an earlier try of the same request has written already is no obstacle to itself.
        there = set(scene.requests.moves)
        new = [move for move in moves if move not in there]
        under_way = {move.partition for move in (*scene.requests.moves, *_under_way(scene))}
        refused = check_moves(new, scene.topics, scene.live, under_way)
        refused |= {
            move.partition: _drained(move, broker)
            for move in new
            for broker in move.replicas
            if broker in scene.draining and broker not in query.adding and broker not in scene.assigned(move.partition)
        }
        asked = {move.partition for move in moves}
        for partition in query.cancel:
            if partition in asked:
                sentence = f"{partition} cannot be moved and its move be given up by one request; send two"
                refused[partition] = TidemarkError(ErrorCode.DUPLICATE_PARTITION, sentence, _where(partition))
            elif not scene.assigned(partition):
                refused[partition] = _unknown(partition, scene.topics.get(partition.topic))
            elif partition not in under_way:
                sentence = f"no move of {partition} is wanted or under way: there is nothing to give up"
                refused[partition] = TidemarkError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, sentence, _where(partition))
        return refused

    async def _submit(
        self,
        moves: Sequence[Move],
        cancel: Sequence[TopicPartition],
        refused: Collection[TopicPartition],
        scene: _Scene,
    ) -> None:
        given_up = {partition for partition in cancel if partition not in refused}
        entries = {move.partition for move in scene.requests.moves}
        if given_up & entries:
            await self._store.cancel_moves(sorted(given_up & entries))
            placed = [one for one in scene.requests.moves if one.partition in given_up and named_directories(one)]
            if self._log_dirs is not None and placed:
                await self._log_dirs.stay(placed, scene.live)
        # Somebody has removed the entry of a move that goes on: it is given up by a new one.
        orphans = [replace(move, cancel=True) for move in _under_way(scene) if move.partition in given_up - entries]
        if orphans:
            await self._store.submit_moves(orphans)
        begun = [
            move
            for move in moves
            if move.partition not in refused
            and (scene.assigned(move.partition) != move.replicas or named_directories(move))
        ]
        if begun:
            await self._store.submit_moves(begun)


def _check(query: MovesQuery) -> None:
    why = None
    if len(query.request_id) > REQUEST_ID_CHARACTERS_MAX:
        why = f"a request_id has {REQUEST_ID_CHARACTERS_MAX} characters at most"
    elif not query.moves and not query.cancel:
        why = "name partitions to move, or whose move is given up"
    elif query.throttle_bytes_per_s < 0:
        why = f"a throttle of {query.throttle_bytes_per_s} bytes/s is less than 0, which means none"
    if why is not None:
        raise TidemarkError(ErrorCode.INVALID_REQUEST, why)


def _lacks_a_rate(moved: MoveProgress) -> bool:
    return moved.phase is MovePhase.COPYING and moved.rate_bytes_per_s is None and bool(moved.bytes_total)


def _under_way(scene: _Scene) -> list[Move]:
    """Moves that the topics' nodes tell of, whether or not they are still in the node that asked for them."""
    found = []
    for topic in scene.topics.values():
        for index in topic.original:
            moved = status(topic, index, None)
            if moved is not None:
                found.append(Move(TopicPartition(topic.topic, index), moved.target, cancel=moved.cancelled))
    return found


def _inbound(moves: Sequence[Move], scene: _Scene) -> dict[BrokerId, float | None]:
    """By leader: what it must send in a second, only to keep up, to replicas that these moves add to what it leads."""
    rates: defaultdict[BrokerId, float | None] = defaultdict(lambda: None)
    for move in moves:
        leader = scene.leader(move.partition)
        added = sum(broker not in scene.assigned(move.partition) for broker in move.replicas)
        rate = inbound_bytes_per_s(move.partition, leader, scene.sizes)
        if rate is not None and added:
            rates[leader] = (rates[leader] or 0.0) + rate * added
    return dict(rates)


def _refuse_throttle(
    moves: Sequence[Move], throttle: int, inbound: Mapping[BrokerId, float | None], scene: _Scene
) -> dict[TopicPartition, TidemarkError]:
    """A throttle that what comes in uses up would let no move end (rule M2)."""
    refused: dict[TopicPartition, TidemarkError] = {}
    for move in moves:
        leader = scene.leader(move.partition)
        rate = inbound.get(leader) or 0.0
        added = any(broker not in scene.assigned(move.partition) for broker in move.replicas)
        if throttle and added and throttle <= rate:
            refused[move.partition] = TidemarkError(
                ErrorCode.THROTTLE_TOO_LOW,
                f"a throttle of {throttle} bytes/s is no more than the {rate:.0f} bytes/s that broker {leader} must "
                f"send for what is being produced: the move of {move.partition} would never end; raise it, or move "
                "fewer at once",
                {**_where(move.partition), "inbound_bytes_per_s": f"{rate:.0f}", "broker": str(leader)},
            )
    return refused


def _drained(move: Move, broker: BrokerId) -> TidemarkError:
    return TidemarkError(
        ErrorCode.BROKER_NOT_AVAILABLE,
        f"{move.partition} cannot go to broker {broker}, which is being removed: name another, or add it again with "
        f"tidemark cluster add-brokers {broker}",
        {**_where(move.partition), "broker": str(broker)},
    )


def _where(partition: TopicPartition) -> dict[str, str]:
    return {"topic": partition.topic, "partition": str(partition.partition)}


def _name(refusal: Refusal) -> tuple[object, ...]:
    """Tells one refusal from another."""
    return refusal.kind, refusal.partition, refusal.request_id, refusal.at_ms, refusal.error.code


def _unknown(partition: TopicPartition, topic: TopicDescription | None) -> TidemarkError:
    if topic is None:
        return unknown_topic(partition.topic, _where(partition))
    return TidemarkError(
        ErrorCode.UNKNOWN_PARTITION,
        f"{topic.topic} has no partition {partition.partition}: it has {len(topic.partitions)}, from 0 on",
        _where(partition),
    )
