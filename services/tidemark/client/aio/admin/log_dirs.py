# SPDX-License-Identifier: Apache-2.0
"""What the async admin client can do about the log directories of brokers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from tidemark.core.reassignment.log_dir_placement import PlacedReplica, ReplicaPlace
from tidemark.model import TopicPartition
from tidemark.rpc.broker_log_dirs import BrokerLogDirs, BrokersFromProto, placed_from_proto, places_to_proto
from tidemark.rpc.refs import ref_to_proto
from tidemark.v1 import admin_log_dirs_pb2 as pb


class LogDirCalls(ABC):
    """Part of `AdminClient`."""

    @abstractmethod
    async def _call(self, method: Callable[[Any], Any], request: Any) -> Any:
        """One unary call; raises TidemarkError."""

    @abstractmethod
    def _stream(self, method: Callable[[Any], Any], request: Any, *, interval_ms: int = 0) -> AsyncGenerator[Any, None]:
        """One call that is answered by a stream, each answer an interval after the one before; raises TidemarkError."""

    async def describe_log_dirs(
        self,
        brokers: Sequence[int] = (),
        *,
        topics: Sequence[str] = (),
        partitions: Sequence[TopicPartition] = (),
    ) -> list[BrokerLogDirs]:
        """What lies in the log directories of brokers now, by broker; one that does not answer carries an error.

        Args:
            brokers: which; none: all that are live.
            topics: replicas of these, and of `partitions`; neither: all replicas.
            partitions: which.

        Raises:
            TidemarkError: UNKNOWN_TOPIC, INVALID_TOPIC_NAME.
        """
        request = pb.DescribeBrokerLogDirsRequest(
            brokers=brokers, topics=topics, partitions=[ref_to_proto(partition) for partition in partitions]
        )
        found = BrokersFromProto()
        async for response in self._stream(lambda stub: stub.DescribeLogDirs, request):
            found.add(response)
        return found.result()

    async def alter_replica_log_dirs(
        self, replicas: Sequence[ReplicaPlace], *, throttle_bytes_per_s: int = 0, validate_only: bool = False
    ) -> list[PlacedReplica]:
        """Move replicas between the log directories of their brokers; returns when that is noted, not when it is done.

        Args:
            replicas: each with its broker and the path or uuid of one of the broker's directories; the one that it lies
                in gives up a move under way.
            throttle_bytes_per_s: what the copying of all of them on one broker together may write in a second; 0: what
                the broker is set to.
            validate_only: check, change nothing.

        Returns:
            In the order asked for; one with an error stays as it is: LOG_DIR_NOT_FOUND, LOG_DIR_OFFLINE,
            REPLICA_OFFLINE, NOT_A_REPLICA, BROKER_NOT_AVAILABLE, UNKNOWN_TOPIC, UNKNOWN_PARTITION.
        """
        request = pb.AlterBrokerLogDirsRequest(
            replicas=places_to_proto(replicas),
            throttle_bytes_per_s=throttle_bytes_per_s,
            validate_only=validate_only,
        )
        response = await self._call(lambda stub: stub.AlterReplicaLogDirs, request)
        return placed_from_proto(response.replicas)
