# SPDX-License-Identifier: Apache-2.0
"""Reads the state of a broker's replicas for its services (rules K1, E2, E4, E6, F2, T4)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tidemark.core.messages import ReplicaDescription, ReplicaQuestion
from tidemark.core.replication.context import BrokerContext, MoveTraffic
from tidemark.core.replication.follower_fetch import preferred_replica, readable_here
from tidemark.core.replication.leader.partition_leader import PartitionLeader
from tidemark.core.replication.replica import ReadableRange, Replica, ReplicaView, StatedOffsets, not_leader
from tidemark.core.replication.replica_stats import ReplicaFigures, figures_of
from tidemark.core.replication.streams import BrokerStreams
from tidemark.model import (
    NO_EPOCH,
    NO_LEADER,
    BrokerId,
    BrokerRegistration,
    EpochEntry,
    ErrorCode,
    LeaderEpoch,
    Offset,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
)


class BrokerQueries:
    """Reads the state of one broker core, between events."""

    def __init__(self, ctx: BrokerContext, replicas: Mapping[TopicPartition, Replica], streams: BrokerStreams) -> None:
        self._ctx = ctx
        self._replicas = replicas
        self._streams = streams

    def leader(self, partition: TopicPartition, topic_id: str, current_leader_epoch: LeaderEpoch) -> PartitionLeader:
        """The leadership of a partition, if it is the one that the caller means; see `Replica.led_in`."""
        return self._replica(partition).led_in(topic_id, "", current_leader_epoch)

    def readable(
        self,
        partition: TopicPartition,
        *,
        topic_id: str,
        incarnation: str,
        current_leader_epoch: LeaderEpoch,
        fetch_offset: Offset,
        last_fetched_epoch: LeaderEpoch,
        now_ms: int,
    ) -> ReadableRange:
        """The range that a consumer may read (rules K1, E4, E6); empty between high watermark and log end.

        Raises:
            TidemarkError: NOT_LEADER (metadata leader, leader_epoch), UNKNOWN_TOPIC_ID, FENCED_LEADER_EPOCH,
                UNKNOWN_LEADER_EPOCH, OFFSET_OUT_OF_RANGE below the log start, LOG_TRUNCATED above the log end or
                if the caller's log diverges from the leader's.
        """
        replica = self._replica(partition)
        leader = replica.led_in(topic_id, incarnation, current_leader_epoch)
        return replica.readable(leader, fetch_offset, last_fetched_epoch)

    def preferred_replica(
        self,
        partition: TopicPartition,
        *,
        rack: str,
        brokers: Mapping[BrokerId, BrokerRegistration],
        fetch_offset: Offset,
        now_ms: int,
    ) -> BrokerId | None:
        """The follower that a consumer in a rack should read from, None for this leader (K1); raises NOT_LEADER."""
        leader = self._replica(partition).leading()
        return preferred_replica(
            self._ctx, leader, rack=rack, brokers=brokers, fetch_offset=fetch_offset, now_ms=now_ms
        )

    def readable_here(
        self,
        partition: TopicPartition,
        *,
        identity: ReplicaIdentity,
        current_leader_epoch: LeaderEpoch,
        fetch_offset: Offset,
        last_fetched_epoch: LeaderEpoch,
        in_sync_replicas: Collection[BrokerId],
        now_ms: int,
    ) -> ReadableRange:
        """The range that a consumer may read from a follower here; see `follower_fetch.readable_here`."""
        return readable_here(
            self._ctx,
            self._replica(partition),
            identity=identity,
            current_leader_epoch=current_leader_epoch,
            fetch_offset=fetch_offset,
            last_fetched_epoch=last_fetched_epoch,
            in_sync_replicas=in_sync_replicas,
            now_ms=now_ms,
        )

    def stated_offsets(
        self, partition: TopicPartition, *, topic_id: str, current_leader_epoch: LeaderEpoch, now_ms: int
    ) -> StatedOffsets:
        """For ListOffsets.

        Raises:
            TidemarkError: OFFSET_NOT_AVAILABLE under rule E6; else as `readable`.
        """
        leader = self.leader(partition, topic_id, current_leader_epoch)
        if not leader.may_state_high_watermark:
            raise TidemarkError(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"{partition}: the new leader has not committed up to the start of its epoch yet; retry",
                {"leader": str(self._ctx.broker_id), "leader_epoch": str(leader.leader_epoch)},
            )
        return StatedOffsets(leader.log.log_start_offset, leader.log.high_watermark, leader.leader_epoch)

    def epoch_end(
        self, partition: TopicPartition, *, current_leader_epoch: LeaderEpoch, leader_epoch: LeaderEpoch
    ) -> EpochEntry:
        """OffsetsForLeaderEpoch (rule E2): the largest epoch not above `leader_epoch`, and its end offset."""
        leader = self.leader(partition, "", current_leader_epoch)
        return leader.log.epochs.end_of(leader_epoch, leader.log.log_end_offset)

    def holds_epoch_since(self, partition: TopicPartition, since_ms: int) -> bool:
        """Whether a leadership may go on past the session lease: no other was elected before `since_ms` (rule F2)."""
        replica = self._replicas.get(partition)
        role = replica.role if replica is not None else None
        return isinstance(role, PartitionLeader) and role.holds_epoch_since(since_ms)

    def log_starts(
        self, partition: TopicPartition, leader_epoch: LeaderEpoch
    ) -> tuple[Offset, Mapping[BrokerId, Offset]] | None:
        """Log start offsets: the leader's, and by follower those of the followers that fetch here.

        None when this broker does not lead the partition in that leader epoch.
        """
        replica = self._replicas.get(partition)
        role = replica.role if replica is not None else None
        if not isinstance(role, PartitionLeader) or role.leader_epoch != leader_epoch:
            return None
        return role.log.log_start_offset, self._streams.log_starts(role)

    def high_watermarks(self) -> dict[TopicPartition, Offset]:
        """The high watermark of every open log, for checkpoints."""
        return {
            partition: replica.log.high_watermark
            for partition, replica in self._replicas.items()
            if replica.log is not None
        }

    def replicas(self) -> Iterable[ReplicaView]:
        """Every replica; with thousands that takes tens of milliseconds."""
        return [replica.view(self._ctx) for replica in self._replicas.values()]

    def partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions of which this broker has a replica."""
        return tuple(self._replicas)

    def replica(self, partition: TopicPartition) -> ReplicaView | None:
        """One replica, None if this broker has none of the partition."""
        replica = self._replicas.get(partition)
        return replica.view(self._ctx) if replica is not None else None

    def figures(self, partition: TopicPartition, now_ms: int) -> ReplicaFigures | None:
        """The figures of one replica, None if this broker has none of the partition."""
        replica = self._replicas.get(partition)
        return figures_of(replica, self._ctx.broker_id, now_ms) if replica is not None else None

    def leader_count(self) -> int:
        """Number of partitions that this broker leads."""
        return sum(isinstance(replica.role, PartitionLeader) for replica in self._replicas.values())

    def move_traffic(self) -> MoveTraffic:
        """Traffic of reassignments, and senders that wait for their throttles."""
        return self._ctx.move_traffic()

    def describe(self, question: ReplicaQuestion) -> ReplicaDescription:
        """The log of a replica without a leader (rule T4), or of a sealed partition led here (rule C7).

        In both cases nothing is appended to the log.

        Raises:
            TidemarkError: OFFSET_NOT_AVAILABLE (retry) until the replica has an open, quiet log in that leader epoch,
                and as a leader has committed all of it; FENCED_LEADER_EPOCH after that epoch; UNKNOWN_TOPIC_ID;
                STORAGE_ERROR.
        """
        replica = self._replicas.get(question.partition)
        if replica is None:
            sentence = f"{question.partition}: this broker does not know of a replica yet; retry"
            raise TidemarkError(ErrorCode.OFFSET_NOT_AVAILABLE, sentence)
        return replica.describe(question)

    def _replica(self, partition: TopicPartition) -> Replica:
        replica = self._replicas.get(partition)
        if replica is None:
            raise not_leader(partition, NO_LEADER, NO_EPOCH)
        return replica
