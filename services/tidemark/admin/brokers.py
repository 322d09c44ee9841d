# SPDX-License-Identifier: Apache-2.0
"""Adds brokers to the cluster, drains and removes them, and decides whether one can be restarted.

Draining is level-triggered: each round reads the replicas left on the brokers, requests the missing reassignments, and
ends when no replica is left. A repeated call therefore resumes an interrupted one, also at another admin service.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from tidemark.admin.reassignments import MovesQuery, ReassignmentAdministration
from tidemark.admin.replica_sizes import ReplicaSizes, sizes_of
from tidemark.admin.restart_claims import RestartClaims
from tidemark.admin.views import partitions_of
from tidemark.core.planning.broker_plans import Plan, add_brokers, generate, remove_brokers
from tidemark.core.planning.restart_safety import Obstacle, RestartObstacle, claimed_meanwhile, obstacles_to_restart
from tidemark.core.planning.topic_names import named
from tidemark.core.reassignment.progress import ReassignmentProgress
from tidemark.core.reassignment.status import status
from tidemark.model import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    BrokerRegistration,
    ErrorCode,
    PartitionReassignment,
    TidemarkError,
    TopicDescription,
    TopicPartition,
    invalid_request,
    unknown_topic,
)
from tidemark.ports import Clock
from tidemark.rpc.security.access import may_name
from tidemark.runtime.clock import SystemClock
from tidemark.zookeeper.store import MetadataStore

_PLANS_MAX: Final = 5
_LASTING: Final = frozenset({ErrorCode.THROTTLE_TOO_LOW, ErrorCode.INVALID_REQUEST})
"""Refusals of a move that a removal reports: other refusals come from concurrent changes, and the plan is made again.
INVALID_REQUEST is that of a broker of an older version, which may hold no typed topic."""
_DELETED: Final = frozenset({ErrorCode.UNKNOWN_TOPIC, ErrorCode.UNKNOWN_PARTITION})
"""Refusals of a plan with partitions that were deleted after they were read: the plan is made again."""


@dataclass(frozen=True, slots=True)
class PlanQuery:
    """Brokers to add, or to remove, or topics to place again; empty: balance the cluster."""

    add: tuple[BrokerId, ...] = ()
    remove: tuple[BrokerId, ...] = ()
    topics: tuple[str, ...] = ()
    spread: tuple[BrokerId, ...] = ()


class CostedPlan(NamedTuple):
    """A plan, and the number of its partitions with unknown size, whose bytes it omits."""

    plan: Plan
    unknown_sizes: int


class RemovalUpdate(NamedTuple):
    """Progress of a removal; `removed`, in the last update: brokers that hold nothing and are deregistered."""

    moves: Sequence[ReassignmentProgress] = ()
    partitions_left: int = 0
    plan: CostedPlan | None = None
    removed: tuple[BrokerId, ...] = ()


class _Snapshot(NamedTuple):
    topics: Mapping[str, TopicDescription]
    live: Mapping[BrokerId, BrokerRegistration]
    draining: frozenset[BrokerId]
    busy: frozenset[TopicPartition]
    wanted: Mapping[TopicPartition, tuple[BrokerId, ...]]
    """Replicas of each partition; during a reassignment, its target replicas."""
    cancelled: frozenset[TopicPartition]
    """Partitions whose reassignment is cancelled."""
    unreadable: frozenset[str] = frozenset()
    """Topics whose node cannot be read, so that their replicas are not known."""

    def racks(self, without: Collection[BrokerId] = (), but: Collection[BrokerId] = ()) -> dict[BrokerId, str]:
        """Return the racks of the live brokers that may get replicas."""
        closed = {*(self.draining - set(but)), *without}
        return {broker: found.rack for broker, found in self.live.items() if broker not in closed}

    def epochs(self) -> dict[BrokerId, BrokerEpoch]:
        """Return the live brokers with their broker epochs."""
        return {broker: found.broker_epoch for broker, found in self.live.items()}

    def left_on(self, brokers: Collection[BrokerId]) -> list[TopicPartition]:
        """List partitions with an assigned, original or target replica on one of these brokers."""
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

    def endless(self, brokers: Collection[BrokerId]) -> list[TopicPartition]:
        """List reassignments, not cancelled, whose target has one of these brokers, which is not live."""
        offline = set(brokers) - self.live.keys()
        running = sorted(self.busy - self.cancelled)
        return [partition for partition in running if not offline.isdisjoint(self.wanted[partition])]


class BrokerAdministration:
    """Brokers that are added, removed or restarted.

    Args:
        store: started.
        reassignments: starts the planned reassignments.
        sizes: reports the replicas of brokers.
        clock: clock that gives the age of a restart claim.
    """

    def __init__(
        self,
        store: MetadataStore,
        reassignments: ReassignmentAdministration,
        sizes: ReplicaSizes,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._reassignments = reassignments
        self._sizes = sizes
        self._claims = RestartClaims(store, clock or SystemClock())

    async def plan(self, query: PlanQuery) -> CostedPlan:
        """Plan reassignments and compute their cost, without a change of the cluster.

        Raises:
            TidemarkError: INVALID_REQUEST, UNKNOWN_TOPIC, BROKER_NOT_AVAILABLE or INVALID_REPLICATION_FACTOR.
        """
        if bool(query.add) + bool(query.remove) + bool(query.topics or query.spread) > 1:
            raise invalid_request("plan one thing: brokers to add, brokers to remove, or topics to spread")
        return await self._plan(query, await self._read())

    async def add(
        self, brokers: Sequence[BrokerId], *, throttle_bytes_per_s: int, validate_only: bool, request_id: str
    ) -> tuple[CostedPlan, int]:
        """Reassign replicas to live brokers; returns the plan and the number of reassignments started.

        Raises:
            TidemarkError: INVALID_REQUEST, BROKER_NOT_AVAILABLE, THROTTLE_TOO_LOW, REASSIGNMENT_IN_PROGRESS.
        """
        _check_ids(brokers)
        request_id = request_id or uuid.uuid4().hex
        tries = 0
        while True:
            tries += 1
            costed = await self._plan(PlanQuery(add=tuple(brokers)), await self._read())
            query = MovesQuery(
                list(costed.plan.moves),
                throttle_bytes_per_s=throttle_bytes_per_s,
                request_id=request_id,
                adding=tuple(brokers),
            )
            try:
                begun = await self._begin_all(query, validate_only=True)
                if not validate_only:
                    await self._store.end_draining(brokers)  # a refused addition leaves a running removal alone
                    begun = await self._begin_all(query, validate_only=False)
            except TidemarkError as error:
                if error.code not in _DELETED or tries == _PLANS_MAX:
                    raise
            else:
                return costed, begun

    async def remove(
        self,
        brokers: Sequence[BrokerId],
        *,
        throttle_bytes_per_s: int,
        validate_only: bool,
        request_id: str,
        interval_s: float,
    ) -> AsyncIterator[RemovalUpdate]:
        """Drain brokers and deregister them; yields the plan, then updates; with `validate_only` only the plan.

        Raises:
            TidemarkError: INVALID_REQUEST, also if brokers of an older version would have to hold a typed topic;
                THROTTLE_TOO_LOW; UNKNOWN_BROKER for a broker that never registered.
                INVALID_REPLICATION_FACTOR if too few brokers would be left. NO_REASSIGNMENT_IN_PROGRESS if another
                request adds one of the brokers again. INTERNAL while the node of a topic cannot be read.
        """
        _check_ids(brokers)
        snapshot = await self._read()
        await self._check_known(brokers, snapshot)
        _check_readable(brokers, snapshot)
        costed = await self._plan(PlanQuery(remove=tuple(brokers)), snapshot)
        yield RemovalUpdate(partitions_left=len(snapshot.left_on(brokers)), plan=costed)
        if validate_only:
            return
        await self._store.begin_draining(brokers)
        name = request_id or uuid.uuid4().hex
        empty_looks = 0
        # Read twice: a placement by a process that had not read the draining mark is visible in the second read.
        while empty_looks < 2:
            snapshot = await self._read()
            _check_readable(brokers, snapshot)
            left = snapshot.left_on(brokers)
            empty_looks = 0 if left or await self._is_asked_for_on(brokers) else empty_looks + 1
            if not snapshot.draining.issuperset(brokers):
                raise _added_again(brokers)
            if endless := snapshot.endless(brokers):
                await self._reassignments.alter(MovesQuery(cancel=endless, allow_partial=True), validate_only=False)
            if left and not snapshot.busy.issuperset(left):
                await self._ask_for_missing(brokers, snapshot, throttle_bytes_per_s, name)
            moves = (await self._reassignments.list_moves(left))[0] if left else ()
            yield RemovalUpdate(moves, len(left))
            if empty_looks < 2:
                await asyncio.sleep(interval_s)
        for broker in brokers:
            await self._store.forget_broker_configs(broker)
        yield RemovalUpdate(removed=tuple(brokers))

    async def obstacles_to_restart(self, broker: BrokerId, *, claim: bool = False) -> list[RestartObstacle]:
        """List why the broker must not be restarted now.

        Args:
            broker: id of the broker to be restarted.
            claim: without obstacles, other brokers must not be restarted until this broker has left, for 30 s at most.

        Raises:
            TidemarkError: UNKNOWN_BROKER if no broker with this id has registered.
        """
        snapshot = await self._read()
        await self._check_known([broker], snapshot)
        if not claim or broker not in snapshot.live:
            return await self._obstacles(broker, snapshot)
        taken = await self._claims.take(broker, snapshot.epochs())
        obstacles = await self._obstacles(broker, await self._read())
        if taken is not None and obstacles:
            await self._claims.give_up(taken)
        return obstacles if taken is not None or obstacles else [claimed_meanwhile()]

    async def _obstacles(self, broker: BrokerId, snapshot: _Snapshot) -> list[RestartObstacle]:
        epochs = snapshot.epochs()
        restarting = await self._claims.holder(epochs)
        states = await self._store.states(partitions_of(snapshot.topics.values()), sync=True)
        topics = snapshot.topics.values()
        found = obstacles_to_restart(broker, epochs, topics, states, snapshot.busy, restarting, may_name)
        if snapshot.unreadable:
            found.append(RestartObstacle(Obstacle.TOPIC_UNREADABLE, _unreadable([broker], snapshot)))
        return found

    async def _is_asked_for_on(self, brokers: Sequence[BrokerId]) -> bool:
        """Whether a requested partition will have a replica on one of these brokers."""
        added = (await self._store.partition_requests()).added
        return any(broker in replicas for replicas in added.values() for broker in brokers)

    async def _ask_for_missing(
        self, brokers: Sequence[BrokerId], snapshot: _Snapshot, throttle_bytes_per_s: int, request_id: str
    ) -> None:
        """Request reassignments of the replicas left on these brokers, except of partitions being reassigned."""
        costed = await self._plan(PlanQuery(remove=tuple(brokers)), snapshot)
        missing = [move for move in costed.plan.moves if move.partition not in snapshot.busy]
        if not missing:
            return
        query = MovesQuery(
            missing, throttle_bytes_per_s=throttle_bytes_per_s, request_id=request_id, allow_partial=True
        )
        _, refused = await self._begin(query, validate_only=False)
        for error in refused:
            if error.code in _LASTING:
                raise error

    async def _begin_all(self, query: MovesQuery, *, validate_only: bool) -> int:
        """As `_begin`; raises the first refusal."""
        begun, refused = await self._begin(query, validate_only=validate_only) if query.moves else (0, [])
        if refused:
            raise refused[0]
        return begun

    async def _begin(self, query: MovesQuery, *, validate_only: bool) -> tuple[int, list[TidemarkError]]:
        """Start all reassignments, or as many as fit into the znode; returns their number, and the refusals."""
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

    async def _plan(self, query: PlanQuery, snapshot: _Snapshot) -> CostedPlan:
        sizes, unknown = await self._sizes_bytes(snapshot)
        if query.remove:
            racks = snapshot.racks(without=query.remove)
            if not racks:
                raise invalid_request("after the removal no live broker could get replicas: keep at least one")
            plan = remove_brokers(snapshot.wanted, sizes, racks, query.remove, may_name=may_name)
        elif query.topics or query.spread:
            plan = _spread(query, snapshot, sizes)
        else:
            plan = add_brokers(snapshot.wanted, sizes, snapshot.racks(but=query.add), query.add)
        return CostedPlan(plan, sum(move.partition in unknown for move in plan.moves))

    async def _sizes_bytes(self, snapshot: _Snapshot) -> tuple[dict[TopicPartition, int], set[TopicPartition]]:
        """Size of each partition by its leader, or else by any replica; and the partitions without a report."""
        partitions = partitions_of(snapshot.topics.values())
        states, found = await asyncio.gather(self._store.states(partitions), self._sizes.of(partitions, snapshot.live))
        sizes: dict[TopicPartition, int] = {}
        for partition in partitions:
            reported = sizes_of(partition, found)
            leader = states[partition].state.leader if partition in states else NO_LEADER
            if reported:
                sizes[partition] = reported.get(leader, max(reported.values()))
        return sizes, set(partitions) - set(sizes)

    async def _read(self) -> _Snapshot:
        unreadable: set[str] = set()
        topics, live, draining, requests = await asyncio.gather(
            self._store.topics(unreadable=unreadable),
            self._store.live_brokers(),
            self._store.draining_brokers(),
            self._store.move_requests(),
        )
        wanted: dict[TopicPartition, tuple[BrokerId, ...]] = {}
        running: dict[TopicPartition, bool] = {}
        for partition in partitions_of(topics.values()):
            topic = topics[partition.topic]
            moved = status(topic, partition.partition, None)
            wanted[partition] = topic.partitions[partition.partition] if moved is None else moved.target
            if moved is not None:
                running[partition] = moved.cancelled
        for move in requests.moves:
            if move.partition in wanted:
                running[move.partition] = move.cancel
                wanted[move.partition] = _destination(move, topics[move.partition.topic])
        cancelled = frozenset(partition for partition, is_cancelled in running.items() if is_cancelled)
        return _Snapshot(topics, live, draining, frozenset(running), wanted, cancelled, frozenset(unreadable))

    async def _check_known(self, brokers: Sequence[BrokerId], snapshot: _Snapshot) -> None:
        epochs = await self._store.broker_epochs()
        for broker in brokers:
            if broker not in snapshot.live and broker not in epochs:
                known = ", ".join(str(one) for one in sorted({*snapshot.live, *epochs})) or "none"
                raise TidemarkError(
                    ErrorCode.UNKNOWN_BROKER,
                    f"broker {broker} never registered in this cluster; there are {known}",
                    {"broker": str(broker)},
                )


def _check_readable(brokers: Sequence[BrokerId], snapshot: _Snapshot) -> None:
    """Refuse to call a broker empty that may hold replicas of a topic whose node cannot be read."""
    if snapshot.unreadable:
        topics = ", ".join(sorted(filter(may_name, snapshot.unreadable)))
        raise TidemarkError(ErrorCode.INTERNAL, _unreadable(brokers, snapshot), {"topics": topics})


def _unreadable(brokers: Sequence[BrokerId], snapshot: _Snapshot) -> str:
    listed, topics = ", ".join(str(broker) for broker in brokers), named(snapshot.unreadable, may_name)
    nodes = "its ZooKeeper node" if len(snapshot.unreadable) == 1 else "their ZooKeeper nodes"
    return f"broker {listed} may hold replicas of {topics}, because {nodes} cannot be read: restore that first"


def _added_again(brokers: Sequence[BrokerId]) -> TidemarkError:
    listed = ", ".join(str(broker) for broker in brokers)
    return TidemarkError(
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        f"the removal of broker {listed} was cancelled, because a request added the broker again; to remove "
        "the broker, run the removal again",
        {"brokers": listed},
    )


def _destination(move: PartitionReassignment, topic: TopicDescription) -> tuple[BrokerId, ...]:
    index = move.partition.partition
    return topic.original.get(index, topic.partitions[index]) if move.cancel else move.replicas


def _spread(query: PlanQuery, snapshot: _Snapshot, sizes: Mapping[TopicPartition, int]) -> Plan:
    for name in query.topics:
        if name not in snapshot.topics:
            raise unknown_topic(name)
    chosen = set(query.topics or snapshot.topics)
    racks = snapshot.racks(but=query.spread)
    return generate(
        {partition: replicas for partition, replicas in snapshot.wanted.items() if partition.topic in chosen},
        query.spread or tuple(racks),
        racks,
        others=[replicas for partition, replicas in snapshot.wanted.items() if partition.topic not in chosen],
        sizes_bytes=sizes,
        may_name=may_name,
    )


def _check_ids(brokers: Sequence[BrokerId]) -> None:
    if not brokers:
        raise invalid_request("name at least one broker")
    if len(set(brokers)) < len(brokers):
        raise invalid_request("name each broker once")
