# SPDX-License-Identifier: Apache-2.0
"""One replica of this broker, in any role, and the views of it (rules E5, F4, T5, K1).

A role begins on an open, quiet log; until then the last command waits in the replica.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from tidemark.core.messages import HeldState, PartitionCommand, ReplicaDescription, ReplicaQuestion
from tidemark.core.replication.context import BrokerContext
from tidemark.core.replication.follower.partition_follower import PartitionFollower
from tidemark.core.replication.leader.partition_leader import PartitionLeader
from tidemark.core.replication.replica_log import ReplicaLog
from tidemark.model import (
    NO_EPOCH,
    NO_LEADER,
    BrokerId,
    EpochEntry,
    ErrorCode,
    LeaderEpoch,
    Offset,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
    VersionedState,
)

UNKNOWN_HIGH_WATERMARK = Offset(-1)


class ReadableRange(NamedTuple):
    """The range of offsets that a fetch may read; ends are exclusive.

    Attributes:
        end_offset: for a read_committed fetch the last stable offset, else the high watermark; at least the fetch
            offset.
        high_watermark: -1 while rule E6 forbids stating it. At a follower, the value that the leader sent last.
        last_stable_offset: for a read_committed fetch, of this replica; None if unknown (rule X3).
    """

    end_offset: Offset
    high_watermark: Offset
    log_start_offset: Offset
    log_end_offset: Offset
    last_stable_offset: Offset | None = None


class StatedOffsets(NamedTuple):
    """The offsets of a partition from which ListOffsets is answered."""

    log_start_offset: Offset
    high_watermark: Offset
    leader_epoch: LeaderEpoch
    last_stable_offset: Offset


class OpenTransaction(NamedTuple):
    """An open transaction in a log.

    Attributes:
        first_offset: offset of its first record.
        last_timestamp_us: largest timestamp of its batches, since 1970, UTC.
        coordinator_epoch: coordinator epoch of the producer's last marker; -1: none.
        end_offset: end of its last batch, exclusive; None for batches without sequence numbers, as of coordinators.
    """

    producer_id: int
    producer_epoch: int
    first_offset: Offset
    last_timestamp_us: int
    coordinator_epoch: int
    end_offset: Offset | None


class OpenTransactions(NamedTuple):
    """The open transactions of a partition, by their first offsets.

    `last_stable_offset` is None while the leader may not state it (rules E6, X3).
    """

    last_stable_offset: Offset | None
    high_watermark: Offset
    transactions: tuple[OpenTransaction, ...]


class ReplicaView(NamedTuple):
    """One replica, for services of the broker.

    Attributes:
        role: "leader", "follower", "opening", "offline" or "none".
        offset_lag: of a follower, records below the leader's high watermark that it lacks.
        bytes_in_per_s: of a leader, bytes per second that producers append.
        adding: a reassignment adds this replica, which may not be in sync yet.
    """

    partition: TopicPartition
    identity: ReplicaIdentity
    role: str
    leader: BrokerId
    leader_epoch: LeaderEpoch
    log_start_offset: Offset
    log_end_offset: Offset
    high_watermark: Offset
    isr: tuple[BrokerId, ...]
    assigned: tuple[BrokerId, ...]
    min_isr: int
    directory: int
    offset_lag: int = 0
    bytes_in_per_s: float = 0.0
    adding: bool = False


class ReplicaRole(NamedTuple):
    """`role` and `adding` of a `ReplicaView`, for callers that ask thousands of replicas."""

    role: str
    adding: bool


class CommandReply:
    """The answer to one command, sent when the logs of all partitions to lead have opened.

    Attributes:
        refused: refused partitions so far, with their errors.
        open_partitions: partitions to lead whose roles have not begun.
        closed: every partition of the command has been handled, so no further partition is added.
    """

    __slots__ = ("closed", "open_partitions", "refused", "request_id")

    def __init__(self, request_id: int) -> None:
        self.request_id = request_id
        self.refused: list[tuple[TopicPartition, TidemarkError]] = []
        self.open_partitions = 0
        self.closed = False

    @property
    def complete(self) -> bool:
        """Whether the command can be answered."""
        return self.closed and self.open_partitions == 0


class WaitingCommand(NamedTuple):
    """The last command for a replica whose log is not open and quiet yet; `reply` is None for a follower."""

    command: PartitionCommand
    reply: CommandReply | None
    configs: Mapping[str, str]

    @property
    def may_hold_holes(self) -> bool:
        """Whether compaction may have left holes in the log (rule L1)."""
        return is_compacted(self.configs)

    @property
    def group_commit(self) -> bool:
        """Whether only flushed records count for the high watermark (rule R3)."""
        return is_group_commit(self.configs)


def is_compacted(configs: Mapping[str, str]) -> bool:
    """Whether the logs of a topic may hold holes (rule L1)."""
    return "compact" in configs.get("cleanup.policy", "")


def is_group_commit(configs: Mapping[str, str]) -> bool:
    """Whether acknowledged records of a topic are flushed (rule R3)."""
    return configs.get("flush.policy") == "group-commit"


class Replica:
    """One replica.

    Attributes:
        identity: topic id and incarnation; a replica of another identity is another object.
        log: the log; None until the log is open, and after it failed.
        failed: the log has failed, or could not be opened. Invariant: then `log` and `role` are None.
        role: leader or follower; None until the log is ready, and after fencing.
        leader, leader_epoch: as of the last command. Invariant: the leader epoch never falls.
        assigned: assigned replicas as of the last command.
        command: the last command; None before the first.
        led: leaderAndISR as the last leadership here knew it at its end; None: this process has ended no leadership.
        waiting: the last command, while the log is not ready for its role.
        fenced_epoch: this replica leads in no leader epoch up to this one (rules E5, R9, F3). Never falls.
        reconciled_lineage: lineage in which the log was last reconciled with its leader; -1: never in this process.
        refused_lineage: lineage in which this damaged log was reported; the log leads only in a later one (rule T5).
    """

    __slots__ = (
        "assigned",
        "command",
        "failed",
        "fenced_epoch",
        "identity",
        "leader",
        "leader_epoch",
        "led",
        "log",
        "partition",
        "reconciled_lineage",
        "refused_lineage",
        "role",
        "waiting",
    )

    def __init__(self, partition: TopicPartition, identity: ReplicaIdentity, fenced_epoch: LeaderEpoch) -> None:
        self.partition = partition
        self.identity = identity
        self.log: ReplicaLog | None = None
        self.failed = False
        self.role: PartitionLeader | PartitionFollower | None = None
        self.leader: BrokerId = NO_LEADER
        self.leader_epoch: LeaderEpoch = NO_EPOCH
        self.assigned: tuple[BrokerId, ...] = ()
        self.command: PartitionCommand | None = None
        self.led: VersionedState | None = None
        self.fenced_epoch = fenced_epoch
        self.reconciled_lineage = -1
        self.refused_lineage = -1
        self.waiting: WaitingCommand | None = None

    @property
    def _adding(self) -> tuple[BrokerId, ...]:
        """Brokers that a reassignment adds; they make no partition under-replicated (KIP-352)."""
        return self.command.adding_replicas if self.command is not None else ()

    def take_settings(self, configs: Mapping[str, str]) -> None:
        """Apply the settings of the topic within a leader epoch; committed records stay committed."""
        if isinstance(self.role, PartitionFollower) and is_compacted(configs):
            self.role.may_hold_holes = True
        if self.log is None or self.log.group_commit == is_group_commit(configs):
            return
        self.log.counts_flushes(is_group_commit(configs))
        if isinstance(self.role, PartitionLeader):
            self.role.maybe_advance_high_watermark()

    def leading(self) -> PartitionLeader:
        """The leadership of this replica.

        Raises:
            TidemarkError: NOT_LEADER, with the leader that this broker knows.
        """
        if isinstance(self.role, PartitionLeader):
            return self.role
        error = not_leader(self.partition, self.leader, self.leader_epoch)
        raise TidemarkError(error.code, error.message, {**error.metadata, **ids_of(self.identity)})

    def led_in(self, topic_id: str, incarnation: str, current_leader_epoch: LeaderEpoch) -> PartitionLeader:
        """The leadership, if the caller names this topic and leader epoch; empty and -1 match any (rule E4).

        Raises:
            TidemarkError: UNKNOWN_TOPIC_ID, NOT_LEADER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH.
        """
        if (topic_id and topic_id != self.identity.topic_id) or (
            incarnation and incarnation != self.identity.incarnation
        ):
            raise TidemarkError(
                ErrorCode.UNKNOWN_TOPIC_ID,
                f"{self.partition} was deleted and created again since the caller read its metadata",
                {"topic_id": self.identity.topic_id, "incarnation": self.identity.incarnation},
            )
        leader = self.leading()
        if current_leader_epoch != NO_EPOCH:
            check_epoch(self, current_leader_epoch, leader.leader_epoch)
        return leader

    def readable(
        self,
        leader: PartitionLeader,
        fetch_offset: Offset,
        last_fetched_epoch: LeaderEpoch,
        *,
        committed_only: bool = False,
    ) -> ReadableRange:
        """The range that a consumer may read; see `BrokerQueries.readable`."""
        log = leader.log
        if fetch_offset < log.log_start_offset:
            raise TidemarkError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.partition} starts at offset {log.log_start_offset}, and the record at {fetch_offset} was "
                "deleted: continue at that offset or above",
                {"log_start_offset": str(log.log_start_offset), "leader_epoch": str(leader.leader_epoch)},
            )
        diverged = diverging_end(leader, fetch_offset, last_fetched_epoch)
        if diverged is not None:
            raise log_truncated(self.partition, fetch_offset, diverged)
        if fetch_offset > log.log_end_offset:
            raise above_the_end(self.partition, fetch_offset, EpochEntry(log.epochs.latest, log.log_end_offset))
        stated = log.high_watermark if leader.may_state_high_watermark else UNKNOWN_HIGH_WATERMARK
        limit, stable = log.high_watermark, None
        if committed_only:
            stable = leader.last_stable_offset
            limit = Offset(0) if stable is None else stable
        return ReadableRange(max(limit, fetch_offset), stated, log.log_start_offset, log.log_end_offset, stable)

    def describe(self, question: ReplicaQuestion) -> ReplicaDescription:
        """The log of this replica; see `BrokerQueries.describe`."""
        log, code, why = self.log, None, ""
        if question.identity != self.identity:
            code, why = ErrorCode.UNKNOWN_TOPIC_ID, "has another topic id or incarnation here"
        elif question.leader_epoch < self.leader_epoch:
            code, why = ErrorCode.FENCED_LEADER_EPOCH, f"is in leader epoch {self.leader_epoch} already"
        elif self.failed:
            code, why = ErrorCode.STORAGE_ERROR, "cannot be read here"
        if code is not None:
            raise TidemarkError(code, f"{self.partition} {why}", {"leader_epoch": str(self.leader_epoch)})
        settled = log is not None and log.quiet and self.waiting is None and self.leader_epoch == question.leader_epoch
        if isinstance(self.role, PartitionLeader):  # for a sealed partition (rule C7), all records must be committed
            settled &= self.role.may_state_high_watermark
            settled &= self.role.log.high_watermark == self.role.log.log_end_offset
        if log is None or not settled:
            sentence = f"{self.partition} is not ready in leader epoch {question.leader_epoch} yet; retry"
            raise TidemarkError(ErrorCode.OFFSET_NOT_AVAILABLE, sentence)
        return _description(log)

    def held(self) -> HeldState | None:
        """The leaderAndISR that this replica knows; None before the first command."""
        if self.command is None:
            return None
        led = self.role.newest if isinstance(self.role, PartitionLeader) else self.led
        if led is not None and led.state.leader_epoch != self.leader_epoch:
            led = None
        command = self.command if led is None else replace(self.command, state=led.state, partition_epoch=led.version)
        return HeldState(command, led is not None, None if self.log is None else _description(self.log))

    def view(self, ctx: BrokerContext) -> ReplicaView:
        """Role, epochs and offsets of this replica, for services of the broker."""
        log, role, command = self.log, self.role, self.command
        state = role.state if isinstance(role, PartitionLeader) else (command.state if command is not None else None)
        name, adding = self.stated_role(ctx)
        return ReplicaView(
            partition=self.partition,
            identity=self.identity,
            role=name,
            leader=self.leader,
            leader_epoch=self.leader_epoch,
            log_start_offset=log.log_start_offset if log else Offset(0),
            log_end_offset=log.log_end_offset if log else Offset(0),
            high_watermark=log.high_watermark if log else Offset(0),
            isr=state.isr_ids if state is not None else (),
            assigned=self.assigned,
            min_isr=state.min_isr if state is not None else 1,
            directory=log.directory if log else 0,
            offset_lag=role.offset_lag if isinstance(role, PartitionFollower) else 0,
            bytes_in_per_s=role.bytes_in_per_s if isinstance(role, PartitionLeader) else 0.0,
            adding=adding,
        )

    def stated_role(self, ctx: BrokerContext) -> ReplicaRole:
        """The part of the view that states the role of this replica."""
        if isinstance(self.role, PartitionLeader):
            name = "leader"
        elif self.role is not None:
            name = "follower"
        else:
            name = "offline" if self.failed else ("opening" if self.log is None else "none")
        return ReplicaRole(name, ctx.broker_id in self._adding)


def _description(log: ReplicaLog) -> ReplicaDescription:
    return ReplicaDescription(
        log.furthest_epoch,
        log.log_end_offset,
        log.known_high_watermark,
        log.damaged is not None,
        log.log_start_offset,
        log.cut,
    )


def check_epoch(replica: Replica, callers: LeaderEpoch, leader_epoch: LeaderEpoch) -> None:
    """Raise FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH if the caller's leader epoch is not this one (rule E4)."""
    if callers != leader_epoch:
        older = callers < leader_epoch
        raise TidemarkError(
            ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"{replica.partition}: the caller's leader epoch {callers} is "
            f"{'older' if older else 'newer'} than {leader_epoch}",
            {"leader": str(replica.leader), "leader_epoch": str(leader_epoch), **ids_of(replica.identity)},
        )


def ids_of(identity: ReplicaIdentity) -> dict[str, str]:
    """The metadata of a refusal that names a leader epoch: epochs compare within these ids only (rule K2)."""
    return {"topic_id": identity.topic_id, "incarnation": identity.incarnation}


def diverging_end(
    role: PartitionLeader | PartitionFollower, offset: Offset, last_epoch: LeaderEpoch
) -> EpochEntry | None:
    """Epoch end at which a log with a record of `last_epoch` before `offset` diverges from this log, else None (E4)."""
    log = role.log
    if last_epoch == NO_EPOCH or (last_epoch == log.epochs.latest and offset <= log.log_end_offset):
        return None
    end = log.epochs.end_of(last_epoch, log.log_end_offset)
    if end.leader_epoch == last_epoch and offset <= end.start_offset:
        return None
    return end


def log_truncated(partition: TopicPartition, fetch_offset: Offset, end: EpochEntry) -> TidemarkError:
    """The error for a caller whose log diverges from this one at `end`."""
    why = (
        f"has no record at {fetch_offset} that continues the caller's: an unclean election removed records that were "
        f"read. Undo their effects, and continue at {end.start_offset} or below"
    )
    return _truncated(partition, why, end)


def above_the_end(partition: TopicPartition, fetch_offset: Offset, end: EpochEntry) -> TidemarkError:
    """The error for an offset above `end`, the log end; a caller that has read no record states no epoch."""
    why = "the log was truncated, or never reached the offset. Continue at that end or below"
    return _truncated(partition, f"ends at offset {end.start_offset}; {fetch_offset} is above: {why}", end)


def _truncated(partition: TopicPartition, why: str, end: EpochEntry) -> TidemarkError:
    ends = {"diverging_epoch": str(end.leader_epoch), "diverging_end_offset": str(end.start_offset)}
    return TidemarkError(ErrorCode.LOG_TRUNCATED, f"{partition} {why}", ends)


def fenced_leader_epoch(replica: Replica, leader_epoch: LeaderEpoch) -> TidemarkError:
    """The error for a command in a leader epoch that this replica has passed or led before."""
    highest = max(replica.leader_epoch, replica.fenced_epoch)
    return TidemarkError(
        ErrorCode.FENCED_LEADER_EPOCH,
        f"{replica.partition}: leader epoch {leader_epoch} is not above {highest}, the highest of this replica",
        {"leader_epoch": str(highest)},
    )


def later_leadership_known(replica: Replica, leader_epoch: LeaderEpoch) -> TidemarkError:
    """The error for a command whose leader epoch is older than that of an earlier command, or has another leader.

    That command shows that the controller read an older node (rule Z4).
    """
    error = fenced_leader_epoch(replica, leader_epoch)
    known = {"known_leader": str(replica.leader), "known_leader_epoch": str(replica.leader_epoch)}
    return TidemarkError(error.code, error.message, {**error.metadata, **known})


def not_leader(partition: TopicPartition, leader: BrokerId, leader_epoch: LeaderEpoch) -> TidemarkError:
    """The error for a request to a broker that does not lead, with the leader that this broker knows."""
    return TidemarkError(
        ErrorCode.NOT_LEADER,
        f"{partition} is not led by this broker; the known leader is {leader} in epoch {leader_epoch}",
        {"leader": str(leader), "leader_epoch": str(leader_epoch)},
    )
