# SPDX-License-Identifier: Apache-2.0
"""What the async admin client can do about brokers: add, remove, ask whether one can be restarted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

from tidemark.client.aio.admin.reassignments import WATCH_INTERVAL_MS
from tidemark.core.planning.broker_plans import Plan
from tidemark.core.planning.restart_safety import RestartObstacle
from tidemark.core.reassignment.progress import MoveProgress
from tidemark.model import BrokerId
from tidemark.rpc.broker_plan_codec import obstacle_from_proto, plan_from_proto
from tidemark.rpc.reassignment_codec import progress_from_proto
from tidemark.v1 import admin_brokers_pb2 as pb


class PlannedMoves(NamedTuple):
    """A plan and what it costs.

    Attributes:
        plan: the moves; `plan.current` takes it back.
        unknown_sizes: of so many of its partitions nobody told the size: their bytes are not in it.
        begun: moves that are under way by this call.
    """

    plan: Plan
    unknown_sizes: int
    begun: int = 0


class RemovalProgress(NamedTuple):
    """News of a removal.

    Attributes:
        moves: still wanted or under way.
        partitions_left: that still have a replica on one of the brokers.
        planned: in the first news only.
        removed: at the end: these hold nothing and are deregistered; stop their processes.
    """

    moves: list[MoveProgress]
    partitions_left: int
    planned: PlannedMoves | None
    removed: tuple[BrokerId, ...]


class BrokerCalls(ABC):
    """Part of `AdminClient`."""

    @abstractmethod
    async def _call(self, method: Callable[[Any], Any], request: Any) -> Any:
        """One unary call; raises TidemarkError."""

    @abstractmethod
    def _stream(self, method: Callable[[Any], Any], request: Any, *, interval_ms: int = 0) -> AsyncGenerator[Any, None]:
        """One call that is answered by a stream, each answer an interval after the one before; raises TidemarkError."""

    async def plan_brokers(
        self,
        *,
        add: Sequence[int] = (),
        remove: Sequence[int] = (),
        topics: Sequence[str] = (),
        spread: Sequence[int] = (),
    ) -> PlannedMoves:
        """What would move, and what that costs; nothing is changed.

        Args:
            add: brokers that get their share.
            remove: brokers that give everything away.
            topics: topics that are spread anew, as if they were created now; nothing is spared.
            spread: brokers they are spread over; none: all live ones.
        """
        request = pb.PlanBrokersRequest(add=add, remove=remove, topics=topics, spread=spread)
        response = await self._call(lambda stub: stub.PlanBrokers, request)
        return PlannedMoves(*plan_from_proto(response.plan))

    async def add_brokers(
        self,
        brokers: Sequence[int],
        *,
        throttle_bytes_per_s: int = 0,
        validate_only: bool = False,
        request_id: str = "",
    ) -> PlannedMoves:
        """Give live brokers their share of the replicas; returns when the moves are begun, not when they are done.

        Args:
            brokers: ids.
            throttle_bytes_per_s: as in `alter_partition_reassignments`.
            validate_only: plan only.
            request_id: makes a retry harmless.
        """
        request = pb.AddBrokersRequest(
            broker_ids=brokers,
            throttle_bytes_per_s=throttle_bytes_per_s,
            validate_only=validate_only,
            request_id=request_id,
        )
        response = await self._call(lambda stub: stub.AddBrokers, request)
        return PlannedMoves(*plan_from_proto(response.plan), response.begun)

    async def remove_brokers(
        self,
        brokers: Sequence[int],
        *,
        throttle_bytes_per_s: int = 0,
        validate_only: bool = False,
        request_id: str = "",
        interval_ms: int = WATCH_INTERVAL_MS,
    ) -> AsyncGenerator[RemovalProgress, None]:
        """Drain brokers and deregister them, with news; what is under way goes on when you stop listening.

        Args:
            brokers: ids; the same call takes up what another has begun.
            throttle_bytes_per_s: as in `alter_partition_reassignments`.
            validate_only: plan only: one piece of news.
            request_id: names the moves.
            interval_ms: how often news come, at most.
        """
        request = pb.RemoveBrokersRequest(
            broker_ids=brokers,
            throttle_bytes_per_s=throttle_bytes_per_s,
            validate_only=validate_only,
            request_id=request_id,
            interval_ms=interval_ms,
        )
        news = self._stream(lambda stub: stub.RemoveBrokers, request, interval_ms=interval_ms)
        async with aclosing(news):
            async for response in news:
                planned = PlannedMoves(*plan_from_proto(response.plan)) if response.HasField("plan") else None
                yield RemovalProgress(
                    [progress_from_proto(moved) for moved in response.reassignments],
                    response.partitions_left,
                    planned,
                    tuple(BrokerId(broker) for broker in response.removed),
                )

    async def obstacles_to_restart(self, broker: int) -> list[RestartObstacle]:
        """Why the broker must not be restarted now, the gravest first; none: it is safe."""
        response = await self._call(lambda stub: stub.SafeToRestart, pb.SafeToRestartRequest(broker_id=broker))
        return [obstacle_from_proto(obstacle) for obstacle in response.obstacles]
