# SPDX-License-Identifier: Apache-2.0
"""What the async admin client can do about moves of replicas and the number of a topic's partitions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, Final, NamedTuple

from tidemark.core.cluster_view import TopicView
from tidemark.core.reassignment.progress import EndedMove, MoveOutcome, MoveProgress
from tidemark.model import Move, Refusal, TopicPartition
from tidemark.rpc.metadata_codec import topic_from_proto
from tidemark.rpc.reassignment_codec import (
    ended_from_proto,
    move_to_proto,
    outcome_from_proto,
    progress_from_proto,
    refusal_from_proto,
)
from tidemark.rpc.refs import ref_to_proto
from tidemark.v1 import admin_partitions_pb2 as partitions_pb
from tidemark.v1 import admin_reassignments_pb2 as pb

WATCH_INTERVAL_MS: Final = 1000


class AlteredReassignments(NamedTuple):
    """What became of each move and cancellation, by name.

    Attributes:
        outcomes: each under way, or refused.
        inbound_bytes_per_s: what the leader that gets most must send in a second, only to keep up, to the replicas that
            are added; None where no leader told. A throttle must exceed it.
    """

    outcomes: list[MoveOutcome]
    inbound_bytes_per_s: int | None


class Reassignments(NamedTuple):
    """Moves that are wanted or under way, and the latest refusals of all kinds, the oldest first."""

    moves: list[MoveProgress]
    refusals: list[Refusal]


class ReassignmentNews(NamedTuple):
    """Moves still wanted or under way, and those that have ended since the news before."""

    moves: list[MoveProgress]
    ended: list[EndedMove]


class RemovedPartitions(NamedTuple):
    """The topic without them, and which they were."""

    topic: TopicView
    partitions: tuple[int, ...]


class ReassignmentCalls(ABC):
    """Part of `AdminClient`."""

    @abstractmethod
    async def _call(self, method: Callable[[Any], Any], request: Any) -> Any:
        """One unary call; raises TidemarkError."""

    @abstractmethod
    def _stream(self, method: Callable[[Any], Any], request: Any, *, interval_ms: int = 0) -> AsyncGenerator[Any, None]:
        """One call that is answered by a stream, each answer an interval after the one before; raises TidemarkError."""

    async def alter_partition_reassignments(
        self,
        moves: Sequence[Move] = (),
        *,
        cancel: Sequence[TopicPartition] = (),
        throttle_bytes_per_s: int = 0,
        validate_only: bool = False,
        request_id: str = "",
        allow_partial: bool = False,
    ) -> AlteredReassignments:
        """Begin moves of replicas, or give them up; returns when they are written down, not when they are done.

        Args:
            moves: where partitions shall go, the preferred leader first; throttle and request id are taken from below.
            cancel: partitions that get their original replicas back.
            throttle_bytes_per_s: what each broker may send in a second to replicas that these moves add; 0: no limit.
                It ends with them.
            validate_only: check, change nothing.
            request_id: makes a retry harmless.
            allow_partial: do what is not refused; else nothing is done where anything is refused.
        """
        request = pb.AlterPartitionReassignmentsRequest(
            moves=[move_to_proto(move) for move in moves],
            cancel=[ref_to_proto(partition) for partition in cancel],
            throttle_bytes_per_s=throttle_bytes_per_s,
            validate_only=validate_only,
            request_id=request_id,
            allow_partial=allow_partial,
        )
        response = await self._call(lambda stub: stub.AlterPartitionReassignments, request)
        inbound = response.inbound_bytes_per_s
        return AlteredReassignments(
            [outcome_from_proto(result) for result in response.results], inbound if inbound >= 0 else None
        )

    async def list_partition_reassignments(self, partitions: Sequence[TopicPartition] = ()) -> Reassignments:
        """Moves that are wanted or under way (none named: all), with progress and what each waits for; refusals."""
        request = pb.ListPartitionReassignmentsRequest(partitions=[ref_to_proto(partition) for partition in partitions])
        response = await self._call(lambda stub: stub.ListPartitionReassignments, request)
        return Reassignments(
            [progress_from_proto(moved) for moved in response.reassignments],
            [refusal_from_proto(refusal) for refusal in response.refusals],
        )

    async def watch_partition_reassignments(
        self,
        partitions: Sequence[TopicPartition] = (),
        *,
        interval_ms: int = WATCH_INTERVAL_MS,
        request_id: str = "",
    ) -> AsyncGenerator[ReassignmentNews, None]:
        """News until none of these (none named: of those there are now) is wanted or under way any more.

        Args:
            partitions: which.
            interval_ms: how often, at most.
            request_id: of the request that began them: what was refused of it before is told too.
        """
        request = pb.WatchPartitionReassignmentsRequest(
            partitions=[ref_to_proto(partition) for partition in partitions],
            interval_ms=interval_ms,
            request_id=request_id,
        )
        news = self._stream(lambda stub: stub.WatchPartitionReassignments, request, interval_ms=interval_ms)
        async with aclosing(news):
            async for response in news:
                yield ReassignmentNews(
                    [progress_from_proto(moved) for moved in response.reassignments],
                    [ended_from_proto(ended) for ended in response.ended],
                )

    async def create_partitions(
        self,
        topic: str,
        total_count: int,
        *,
        assignments: Sequence[Sequence[int]] = (),
        validate_only: bool = False,
        request_id: str = "",
    ) -> TopicView:
        """Add partitions until the topic has `total_count`, and wait until every one has a leader.

        Args:
            topic: its name.
            total_count: with those it has; a retry is harmless.
            assignments: brokers of each new partition, the preferred leader first; none: they are placed by rule C4.
            validate_only: check and compute, change nothing.
            request_id: makes a retry harmless.
        """
        request = partitions_pb.CreatePartitionsRequest(
            topic=topic,
            total_count=total_count,
            assignments=[partitions_pb.ReplicaAssignment(replicas=replicas) for replicas in assignments],
            validate_only=validate_only,
            request_id=request_id,
        )
        response = await self._call(lambda stub: stub.CreatePartitions, request)
        return topic_from_proto(response.topic)

    async def delete_partitions(
        self,
        topic: str,
        *,
        count: int | None = None,
        total_count: int | None = None,
        partitions: Sequence[int] = (),
        force: bool = False,
        validate_only: bool = False,
        request_id: str = "",
    ) -> RemovedPartitions:
        """Remove the highest-numbered partitions and wait until they are gone; say one of the first three.

        Args:
            topic: its name.
            count: how many to remove.
            total_count: how many to keep.
            partitions: which; refused with NOT_HIGHEST_PARTITION unless they are the highest-numbered ones.
            force: with what is in them; else one that is not empty is refused with PARTITION_NOT_EMPTY.
            validate_only: check, and say which would go; change nothing.
            request_id: makes a retry harmless.
        """
        request = partitions_pb.DeletePartitionsRequest(
            topic=topic,
            count=count,
            total_count=total_count,
            partitions=partitions,
            force=force,
            validate_only=validate_only,
            request_id=request_id,
        )
        response = await self._call(lambda stub: stub.DeletePartitions, request)
        return RemovedPartitions(topic_from_proto(response.topic), tuple(response.removed))
