# SPDX-License-Identifier: Apache-2.0
"""Reads the state of a broker's replicas for its services (rules K1, E2, E4, E6, F2, T4).

Fetching from followers (rule K1, KIP-392): a leader names an in-sync follower in the consumer's rack. A follower
returns records that its leader has committed, in the leader epoch in which it follows, while it is in sync and in
contact. A follower refuses all other requests with the id of the leader, since only a leader can decide that an offset
does not exist.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NoReturn

from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.core.messages import HeldState, ReplicaDescription, ReplicaQuestion
from tidemark.core.replication.context import BrokerContext, MoveTraffic
from tidemark.core.replication.follower.partition_follower import PartitionFollower
from tidemark.core.replication.leader import isr as isr_rules
from tidemark.core.replication.leader.follower_progress import FollowerProgress
from tidemark.core.replication.leader.partition_leader import PartitionLeader
from tidemark.core.replication.replica import (
    OpenTransaction,
    OpenTransactions,
    ReadableRange,
    Replica,
    ReplicaRole,
    ReplicaView,
    StatedOffsets,
    check_epoch,
    diverging_end,
    log_truncated,
    not_leader,
)
from tidemark.core.replication.replica_stats import ReplicaFigures, figures_of
from tidemark.core.replication.streams import BrokerStreams
from tidemark.model import (
    NO_EPOCH,
    NO_LEADER,
    BrokerEpoch,
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

CONTACT_HEARTBEATS: Final = 3
"""Heartbeat intervals without a message after which contact is lost; a controller suspects a broker later."""


class BrokerQueries:
    """Reads the state of one broker core, between events."""

    def __init__(self, ctx: BrokerContext, replicas: Mapping[TopicPartition, Replica], streams: BrokerStreams) -> None:
        self._ctx = ctx
        self._replicas = replicas
        self._streams = streams

    def leader(self, partition: TopicPartition, topic_id: str, current_leader_epoch: LeaderEpoch) -> PartitionLeader:
        """The leadership of a partition, if it matches the caller's request; see `Replica.led_in`."""
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
        committed_only: bool = False,
    ) -> ReadableRange:
        """The range that a consumer may read (rules K1, E4, E6, X4); empty between its end and the log end.

        Args:
            committed_only: of a read_committed consumer: the range ends at the last stable offset, and is empty while
                that is unknown.

        Raises:
            TidemarkError: NOT_LEADER (metadata leader, leader_epoch), UNKNOWN_TOPIC_ID, FENCED_LEADER_EPOCH,
                UNKNOWN_LEADER_EPOCH. OFFSET_OUT_OF_RANGE below the log start. LOG_TRUNCATED above the log end or if the
                caller's log diverges from the leader's.
        """
        replica = self._replica(partition)
        leader = replica.led_in(topic_id, incarnation, current_leader_epoch)
        return replica.readable(leader, fetch_offset, last_fetched_epoch, committed_only=committed_only)

    def preferred_replica(
        self,
        partition: TopicPartition,
        *,
        rack: str,
        brokers: Mapping[BrokerId, BrokerRegistration],
        fetch_offset: Offset,
        now_ms: int,
    ) -> BrokerId | None:
        """The follower with the highest log end that may serve a consumer in this rack; None: the leader serves it.

        Args:
            brokers: the live brokers, with their racks.
            fetch_offset: next offset of the consumer, which the leader has found readable.

        Raises:
            TidemarkError: NOT_LEADER.
        """
        ctx, leader = self._ctx, self._replica(partition).leading()
        own = brokers.get(ctx.broker_id)
        if not ctx.config.rack_aware_reads or not rack or (own is not None and own.rack == rack):
            return None
        if not leader.may_state_high_watermark:
            return None  # some in-sync replica has not reached the start of this epoch (rule E6)
        in_rack = {broker_id for broker_id, broker in brokers.items() if broker.rack == rack}
        sure = isr_rules.minimal_isr(leader.isr) & in_rack - ctx.suspected
        fit = [
            one
            for one in leader.attached
            if one.broker_id in sure
            and _may_serve(one, fetch_offset, brokers[one.broker_id].broker_epoch, now_ms - contact_timeout_ms(ctx))
        ]
        return max(fit, key=lambda one: (one.log_end_offset, -one.broker_id)).broker_id if fit else None

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
        committed_only: bool = False,
    ) -> ReadableRange:
        """The range that a consumer may read from this follower, with the high watermark that the leader sent last.

        Args:
            identity: identity that the consumer knows; identity and leader epoch must equal the replica's.
            in_sync_replicas: the ISR in that epoch, from the metadata of this broker.
            committed_only: see `readable`; a follower that does not know its last stable offset refuses.

        Raises:
            TidemarkError: UNKNOWN_TOPIC_ID, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH. NOT_LEADER if this broker does
                not follow, or serves no reads as a follower. OFFSET_NOT_AVAILABLE if the consumer must ask the leader.
                LOG_TRUNCATED if the consumer's log diverges from this one.
        """
        ctx, replica = self._ctx, self._replica(partition)
        follower = replica.role
        if not ctx.config.rack_aware_reads or not isinstance(follower, PartitionFollower):
            _refuse(replica, ErrorCode.NOT_LEADER, "cannot be read from this broker")
        if identity != replica.identity:
            _refuse(replica, ErrorCode.UNKNOWN_TOPIC_ID, "has another topic id or incarnation here")
        check_epoch(replica, current_leader_epoch, follower.leader_epoch)
        log = follower.log
        if ctx.broker_id not in in_sync_replicas or not follower.reconciled or log.damaged is not None:
            _refuse(replica, ErrorCode.OFFSET_NOT_AVAILABLE, "is not in sync at this broker, as far as it knows")
        if not follower.in_contact(contact_timeout_ms(ctx), now_ms):
            _refuse(
                replica,
                ErrorCode.OFFSET_NOT_AVAILABLE,
                "is followed by this broker, which is out of contact with the leader",
            )
        if not log.log_start_offset <= fetch_offset <= log.log_end_offset:
            there = f"{log.log_start_offset} to {log.log_end_offset}, not {fetch_offset}"
            _refuse(replica, ErrorCode.OFFSET_NOT_AVAILABLE, f"has the offsets {there} at this broker")
        end = diverging_end(follower, fetch_offset, last_fetched_epoch)
        if end is not None:
            raise log_truncated(partition, fetch_offset, end)
        stable = follower.last_stable_offset
        if committed_only and stable is None:
            _refuse(replica, ErrorCode.OFFSET_NOT_AVAILABLE, "has no known last stable offset at this broker yet")
        limit = stable if committed_only and stable is not None else follower.committed_offset
        return ReadableRange(
            max(limit, fetch_offset),
            follower.leader_high_watermark,
            log.log_start_offset,
            log.log_end_offset,
            stable,
        )

    def stated_offsets(
        self, partition: TopicPartition, *, topic_id: str, current_leader_epoch: LeaderEpoch, now_ms: int
    ) -> StatedOffsets:
        """The offsets that ListOffsets returns.

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
        log, stable = leader.log, leader.last_stable_offset
        assert stable is not None, "the high watermark has passed the start of the leader epoch"
        return StatedOffsets(log.log_start_offset, log.high_watermark, leader.leader_epoch, stable)

    def needs_verification(self, partition: TopicPartition, producer_id: int, producer_epoch: int) -> bool:
        """Whether a pending batch of this producer would begin a transaction in the partition (rule X11).

        False while the log has an open transaction of the producer in this epoch.

        Raises:
            TidemarkError: NOT_LEADER.
        """
        log = self._replica(partition).leading().log
        return not log.producers.has_open(producer_id, producer_epoch)

    def open_transactions(self, partition: TopicPartition) -> OpenTransactions:
        """The open transactions in the log of a partition that this broker leads.

        Raises:
            TidemarkError: NOT_LEADER.
        """
        leader = self._replica(partition).leading()
        log, entries = leader.log, leader.log.producers.entries
        opened = tuple(
            OpenTransaction(
                producer_id,
                one.producer_epoch,
                one.open_offset,
                one.last_timestamp_us,
                one.coordinator_epoch,
                Offset(one.batches[-1].last_offset + 1) if one.batches else None,
            )
            for producer_id, one in ((found, entries[found]) for found in log.producers.open_producers)
        )
        return OpenTransactions(leader.last_stable_offset, log.high_watermark, opened)

    def epoch_end(
        self, partition: TopicPartition, *, current_leader_epoch: LeaderEpoch, leader_epoch: LeaderEpoch
    ) -> EpochEntry:
        """OffsetsForLeaderEpoch (rule E2): the largest epoch not above `leader_epoch`, and its end offset."""
        leader = self.leader(partition, "", current_leader_epoch)
        return leader.log.epochs.end_of(leader_epoch, leader.log.log_end_offset)

    def epochs(self, partition: TopicPartition) -> LeaderEpochs | None:
        """A copy of the leader epoch cache; None while the log is not open."""
        replica = self._replicas.get(partition)
        return None if replica is None or replica.log is None else LeaderEpochs(replica.log.epochs.entries)

    def holds_epoch_since(self, partition: TopicPartition, since_ms: int) -> bool:
        """Whether this leader may serve after the end of its session lease (rule F2).

        True if every replica that can be elected cleanly was in this leader epoch after `since_ms`.
        """
        replica = self._replicas.get(partition)
        role = replica.role if replica is not None else None
        return isinstance(role, PartitionLeader) and role.holds_epoch_since(since_ms)

    def log_starts(
        self, partition: TopicPartition, leader_epoch: LeaderEpoch
    ) -> tuple[Offset, Mapping[BrokerId, Offset]] | None:
        """Log start offsets: the leader's, and by id of each follower that fetches here.

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

    def last_stable_offsets(self) -> dict[TopicPartition, Offset]:
        """The last stable offset of every open log that knows it, for the cleaner (rule X6)."""
        found: dict[TopicPartition, Offset] = {}
        for partition, replica in self._replicas.items():
            stable = replica.log.last_stable_offset if replica.log is not None else None
            if stable is not None:
                found[partition] = stable
        return found

    def replicas(self) -> Iterable[ReplicaView]:
        """Every replica; with thousands that takes tens of milliseconds."""
        return [replica.view(self._ctx) for replica in self._replicas.values()]

    def partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions of which this broker has a replica."""
        return tuple(self._replicas)

    def replica(self, partition: TopicPartition) -> ReplicaView | None:
        """One replica; None if this broker has no replica of the partition."""
        replica = self._replicas.get(partition)
        return replica.view(self._ctx) if replica is not None else None

    def role(self, partition: TopicPartition) -> ReplicaRole | None:
        """Role of one replica; None if this broker has no replica of the partition."""
        replica = self._replicas.get(partition)
        return replica.stated_role(self._ctx) if replica is not None else None

    def figures(self, partition: TopicPartition, now_ms: int) -> ReplicaFigures | None:
        """Offsets, lag and role of one replica, for metrics; None if this broker has no replica of the partition."""
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
                and as a leader has committed all of it. FENCED_LEADER_EPOCH after that epoch. UNKNOWN_TOPIC_ID;
                STORAGE_ERROR.
        """
        replica = self._replicas.get(question.partition)
        if replica is None:
            sentence = f"{question.partition}: this broker does not know of a replica yet; retry"
            raise TidemarkError(ErrorCode.OFFSET_NOT_AVAILABLE, sentence)
        return replica.describe(question)

    def held(self, questions: Iterable[ReplicaQuestion]) -> dict[TopicPartition, HeldState]:
        """The leaderAndISR that replicas know, of questions in no epoch (rule Z4)."""
        found: dict[TopicPartition, HeldState] = {}
        for question in questions:
            replica = self._replicas.get(question.partition)
            if question.leader_epoch != NO_EPOCH or replica is None or replica.identity != question.identity:
                continue
            held = replica.held()
            if held is not None:
                found[question.partition] = held
        return found

    def _replica(self, partition: TopicPartition) -> Replica:
        replica = self._replicas.get(partition)
        if replica is None:
            raise not_leader(partition, NO_LEADER, NO_EPOCH)
        return replica


def _may_serve(progress: FollowerProgress, fetch_offset: Offset, broker_epoch: BrokerEpoch, since_ms: int) -> bool:
    """Whether a follower has the fetch offset or ends there, has got a high watermark, and sent a message since."""
    sender = progress.sender
    return (
        sender is not None
        and progress.acknowledged
        and sender.sent_high_watermark >= 0
        and sender.follower_log_start <= fetch_offset <= progress.log_end_offset
        and sender.session.broker_epoch == broker_epoch
        and sender.session.last_message_ms >= since_ms
    )


def contact_timeout_ms(ctx: BrokerContext) -> int:
    """The longest silence of a leader, or of a follower, that is in contact."""
    return CONTACT_HEARTBEATS * ctx.config.replica_heartbeat_interval_ms


def _refuse(replica: Replica, code: ErrorCode, sentence: str) -> NoReturn:
    raise TidemarkError(
        code,
        f"{replica.partition} {sentence}; ask its leader, broker {replica.leader}",
        {"leader": str(replica.leader), "leader_epoch": str(replica.leader_epoch)},
    )
