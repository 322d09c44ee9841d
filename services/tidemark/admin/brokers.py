# SPDX-License-Identifier: Apache-2.0
"""Brokers added to the cluster, drained and removed from it, and whether one can be restarted.

Draining is level-triggered: each round looks at what still is on the brokers, asks for the moves that are missing, and
goes on until nothing is. So a call that was cut off is taken up by the same call, or by another admin service.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tidemark.admin.reassignments import MovesQuery, ReassignmentAdministration
from tidemark.admin.replica_sizes import ReplicaSizes, sizes_of
from tidemark.admin.views import partitions_of
from tidemark.core.planning.broker_plans import Plan, add_brokers, generate, remove_brokers
from tidemark.core.planning.restart_safety import RestartObstacle, obstacles_to_restart
from tidemark.core.reassignment.progress import MoveProgress
from tidemark.core.reassignment.status import status
from tidemark.model import (
    NO_LEADER,
    BrokerId,
    BrokerRegistration,
    ErrorCode,
    Move,
    TidemarkError,
    TopicDescription,
    TopicPartition,
    unknown_topic,
)
from tidemark.ports import MetadataStore


@dataclass(frozen=True, slots=True)
class PlanQuery:
    """Brokers to add, or to remove, or topics to spread over brokers; nothing of it: the cluster is evened out."""

    add: tuple[BrokerId, ...] = ()
    remove: tuple[BrokerId, ...] = ()
    topics: tuple[str, ...] = ()
    spread: tuple[BrokerId, ...] = ()


class CostedPlan(NamedTuple):
    """A plan, and how many of its partitions are of unknown size: their bytes are not in it."""

    plan: Plan
    unknown_sizes: int


class RemovalNews(NamedTuple):
    """How far a removal is; `removed` at the end: these hold nothing and are deregistered."""

    moves: Sequence[MoveProgress] = ()
    partitions_left: int = 0
    plan: CostedPlan | None = None
    removed: tuple[BrokerId, ...] = ()


class _Scene(NamedTuple):
    topics: Mapping[str, TopicDescription]
    live: Mapping[BrokerId, BrokerRegistration]
    draining: frozenset[BrokerId]
    busy: frozenset[TopicPartition]
    wanted: Mapping[TopicPartition, tuple[BrokerId, ...]]
    """What each partition has, or will have when its move is done."""

    def racks(self, without: Collection[BrokerId] = (), but: Collection[BrokerId] = ()) -> dict[BrokerId, str]:
        """Of the live brokers on which something may be placed."""
        closed = {*(self.draining - set(but)), *without}
        return {broker: found.rack for broker, found in self.live.items() if broker not in closed}

    def left_on(self, brokers: Collection[BrokerId]) -> list[TopicPartition]:
        """Partitions that have, had or will have a replica on one of these."""
        gone = set(brokers)
        return [
            partition
            for partition in partitions_of(self.topics.values())
            if gone
            & {
                *self.topics[partition.topic].partitions[partition.partition],
                *self.topics[partition.topic].original.get(partition.partition, ()),
                *self.wanted[partition],
            }
        ]


class BrokerAdministration:
    """The calls of the admin service that are about brokers.

    Args:
        store: started.
        reassignments: moves what is planned.
        sizes: asks brokers what they hold.
    """

    def __init__(self, store: MetadataStore, reassignments: ReassignmentAdministration, sizes: ReplicaSizes) -> None:
        self._store = store
        self._reassignments = reassignments
        self._sizes = sizes

    async def plan(self, query: PlanQuery) -> CostedPlan:
        """What would move, and what that costs; nothing is changed.

        Raises:
            TidemarkError: INVALID_REQUEST, UNKNOWN_TOPIC, BROKER_NOT_AVAILABLE or INVALID_REPLICATION_FACTOR.
        """
        if bool(query.add) + bool(query.remove) + bool(query.topics or query.spread) > 1:
            raise TidemarkError(
                ErrorCode.INVALID_REQUEST, "plan one thing: brokers to add, or to remove, or topics to spread"
            )
        return await self._plan(query, await self._look())

    async def add(
        self, brokers: Sequence[BrokerId], *, throttle_bytes_per_s: int, validate_only: bool, request_id: str
    ) -> tuple[CostedPlan, int]:
        """Give live brokers their share; the plan, and how many of its moves are begun.

        Raises:
            TidemarkError: INVALID_REQUEST, BROKER_NOT_AVAILABLE, THROTTLE_TOO_LOW, REASSIGNMENT_IN_PROGRESS.
        """
        _check_ids(brokers)
        scene = await self._look()
        costed = await self._plan(PlanQuery(add=tuple(brokers)), scene)
        if not validate_only:
            await self._store.end_draining(brokers)
        moves = list(costed.plan.moves)
        if not moves:
            return costed, 0
        query = MovesQuery(
            moves,
            throttle_bytes_per_s=throttle_bytes_per_s,
            request_id=request_id or uuid.uuid4().hex,
            adding=tuple(brokers),
        )
        begun, refused = await self._begin(query, validate_only=validate_only)
        if refused:
            raise refused[0]
        return costed, begun

    async def remove(
        self,
        brokers: Sequence[BrokerId],
        *,
        throttle_bytes_per_s: int,
        validate_only: bool,
        request_id: str,
        interval_s: float,
    ) -> AsyncIterator[RemovalNews]:
        """Drain brokers and deregister them, with news; the plan first, and only that with `validate_only`.

        Raises:
            TidemarkError: INVALID_REQUEST, BROKER_NOT_AVAILABLE for one that never was, INVALID_REPLICATION_FACTOR
                where too few would be left, THROTTLE_TOO_LOW, NO_REASSIGNMENT_IN_PROGRESS when somebody adds one of
                them again meanwhile.
        """
        _check_ids(brokers)
        scene = await self._look()
        await self._check_known(brokers, scene)
        costed = await self._plan(PlanQuery(remove=tuple(brokers)), scene)
        yield RemovalNews(partitions_left=len(scene.left_on(brokers)), plan=costed)
        if validate_only:
            return
        await self._store.begin_draining(brokers)
        name = request_id or uuid.uuid4().hex
        empty_looks = 0
        # Two looks: what was placed by somebody who had not seen the mark yet is there by the second.
        while empty_looks < 2:
            scene = await self._look()
            left = scene.left_on(brokers)
            empty_looks = 0 if left or await self._is_asked_for_on(brokers) else empty_looks + 1
            if not scene.draining.issuperset(brokers):
                raise _added_again(brokers)
            if left and not scene.busy.issuperset(left):
                await self._ask_for_missing(brokers, scene, throttle_bytes_per_s, name)
            moves = (await self._reassignments.list_moves(left))[0] if left else ()
            yield RemovalNews(moves, len(left))
            if empty_looks < 2:
                await asyncio.sleep(interval_s)
        for broker in brokers:
            await self._store.forget_broker_configs(broker)
        yield RemovalNews(removed=tuple(brokers))

    async def obstacles_to_restart(self, broker: BrokerId) -> list[RestartObstacle]:
        """Why it must not be restarted now; none: it is safe. Raises BROKER_NOT_AVAILABLE for one that never was."""
        scene = await self._look()
        await self._check_known([broker], scene)
        states = await self._store.states(partitions_of(scene.topics.values()), sync=True)
        epochs = {live: registration.broker_epoch for live, registration in scene.live.items()}
        return obstacles_to_restart(broker, epochs, scene.topics.values(), states, scene.busy)

    async def _is_asked_for_on(self, brokers: Sequence[BrokerId]) -> bool:
        """Whether a partition is to be added that will have a replica on one of these."""
        added = (await self._store.partition_requests()).added
        return any(broker in replicas for replicas in added.values() for broker in brokers)

    async def _ask_for_missing(
        self, brokers: Sequence[BrokerId], scene: _Scene, throttle_bytes_per_s: int, request_id: str
    ) -> None:
        """What no move takes off these brokers yet; what is moved just now is looked at when that has ended."""
        costed = await self._plan(PlanQuery(remove=tuple(brokers)), scene)
        missing = [move for move in costed.plan.moves if move.partition not in scene.busy]
        if not missing:
            return
        query = MovesQuery(
            missing, throttle_bytes_per_s=throttle_bytes_per_s, request_id=request_id, allow_partial=True
        )
        _, refused = await self._begin(query, validate_only=False)
        for error in refused:
            # A broker may die, or somebody move the same, in between: the next round plans anew.
            if error.code is ErrorCode.THROTTLE_TOO_LOW:
                raise error

    async def _begin(self, query: MovesQuery, *, validate_only: bool) -> tuple[int, list[TidemarkError]]:
        """Begin them, or as many as fit; how many are, and what was refused."""
        try:
            answer = await self._reassignments.alter(query, validate_only=validate_only)
        except TidemarkError as error:
            fitting = error.metadata.get("moves_max", "")
            if error.code is not ErrorCode.INVALID_REQUEST or not fitting.isdecimal():
                raise
            under_way, _ = await self._reassignments.list_moves()
            room = min(int(fitting) - len(under_way), len(query.moves) - 1)
            if room < 1:
                return 0, []
            some = replace(query, moves=query.moves[:room])
            return await self._begin(some, validate_only=validate_only)
        refused = [outcome.error for outcome in answer.outcomes if outcome.error is not None]
        return (0 if validate_only else len(answer.outcomes) - len(refused)), refused

    async def _plan(self, query: PlanQuery, scene: _Scene) -> CostedPlan:
        sizes, unknown = await self._sizes_bytes(scene)
        if query.remove:
            racks = scene.racks(without=query.remove)
            if not racks:
                raise TidemarkError(
                    ErrorCode.INVALID_REQUEST, "no live broker would be left that may hold anything: keep one at least"
                )
            plan = remove_brokers(scene.wanted, sizes, racks, query.remove)
        elif query.topics or query.spread:
            plan = _spread(query, scene, sizes)
        else:
            plan = add_brokers(scene.wanted, sizes, scene.racks(but=query.add), query.add)
        return CostedPlan(plan, sum(move.partition in unknown for move in plan.moves))

    async def _sizes_bytes(self, scene: _Scene) -> tuple[dict[TopicPartition, int], set[TopicPartition]]:
        """Of one replica, as its leader says, else as any says; and the partitions of which nobody told."""
        partitions = partitions_of(scene.topics.values())
        states, found = await asyncio.gather(self._store.states(partitions), self._sizes.of(partitions, scene.live))
        sizes: dict[TopicPartition, int] = {}
        for partition in partitions:
            told = sizes_of(partition, found)
            leader = states[partition].state.leader if partition in states else NO_LEADER
            if told:
                sizes[partition] = told.get(leader, max(told.values()))
        return sizes, set(partitions) - set(sizes)

    async def _look(self) -> _Scene:
        topics, live, draining, requests = await asyncio.gather(
            self._store.topics(),
            self._store.live_brokers(),
            self._store.draining_brokers(),
            self._store.move_requests(),
        )
        wanted: dict[TopicPartition, tuple[BrokerId, ...]] = {}
        busy: set[TopicPartition] = set()
        for partition in partitions_of(topics.values()):
            topic = topics[partition.topic]
            moved = status(topic, partition.partition, None)
            wanted[partition] = topic.partitions[partition.partition] if moved is None else moved.target
            if moved is not None:
                busy.add(partition)
        for move in requests.moves:
            if move.partition in wanted:
                busy.add(move.partition)
                wanted[move.partition] = _destination(move, topics[move.partition.topic])
        return _Scene(topics, live, draining, frozenset(busy), wanted)

    async def _check_known(self, brokers: Sequence[BrokerId], scene: _Scene) -> None:
        epochs = await self._store.broker_epochs()
        for broker in brokers:
            if broker not in scene.live and broker not in epochs:
                known = ", ".join(str(one) for one in sorted({*scene.live, *epochs})) or "none"
                raise TidemarkError(
                    ErrorCode.BROKER_NOT_AVAILABLE,
                    f"no broker {broker} has ever been in this cluster; there are {known}",
                    {"broker": str(broker)},
                )


def _added_again(brokers: Sequence[BrokerId]) -> TidemarkError:
    listed = ", ".join(str(broker) for broker in brokers)
    return TidemarkError(
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        f"the removal of broker {listed} has ended before its end: somebody has added it again; if that was a mistake, "
        "run it again",
        {"brokers": listed},
    )


def _destination(move: Move, topic: TopicDescription) -> tuple[BrokerId, ...]:
    index = move.partition.partition
    return topic.original.get(index, topic.partitions[index]) if move.cancel else move.replicas


def _spread(query: PlanQuery, scene: _Scene, sizes: Mapping[TopicPartition, int]) -> Plan:
    for name in query.topics:
        if name not in scene.topics:
            raise unknown_topic(name)
    chosen = set(query.topics or scene.topics)
    racks = scene.racks(but=query.spread)
    return generate(
        {partition: replicas for partition, replicas in scene.wanted.items() if partition.topic in chosen},
        query.spread or tuple(racks),
        racks,
        others=[replicas for partition, replicas in scene.wanted.items() if partition.topic not in chosen],
        sizes_bytes=sizes,
    )


def _check_ids(brokers: Sequence[BrokerId]) -> None:
    if not brokers:
        raise TidemarkError(ErrorCode.INVALID_REQUEST, "name one broker at least")
    if len(set(brokers)) < len(brokers):
        raise TidemarkError(ErrorCode.INVALID_REQUEST, "name each broker once")
