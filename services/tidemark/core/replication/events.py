# SPDX-License-Identifier: Apache-2.0
"""The events of a broker core: the input of `core.replication.broker.BrokerCore.handle` (one closed union)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemark.core.config import ReplicationConfig
from tidemark.core.messages import FollowerMessage, LeaderAndIsrCommand, LeaderMessage, StopReplicaCommand
from tidemark.core.producer_state import ProducerStates
from tidemark.model import (
    BrokerEpoch,
    BrokerId,
    EpochEntry,
    LeaderEpoch,
    Offset,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
    VersionedState,
)
from tidemark.record.envelope import Batch


@dataclass(frozen=True, slots=True)
class BrokerRegistered:
    """The registration of this broker is confirmed in ZooKeeper (rules Z3, E5).

    Attributes:
        known_leader_epochs: leader epochs of the replicas on disk, from their leaderAndISR nodes at start-up. This
            process never leads in these leader epochs. Replicas on disk that a complete command omits are stray.
    """

    broker_epoch: BrokerEpoch
    known_leader_epochs: Mapping[TopicPartition, tuple[ReplicaIdentity, LeaderEpoch]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SessionExpired:
    """The ZooKeeper session of this broker has expired: every leadership ends (rules F2, E5)."""


@dataclass(frozen=True, slots=True)
class LeaderAndIsrArrived:
    """A LeaderAndIsr command of the controller; answered by `ReplyToControl(request_id)`."""

    request_id: int
    command: LeaderAndIsrCommand


@dataclass(frozen=True, slots=True)
class StopReplicaArrived:
    """A StopReplica command of the controller; answered by `ReplyToControl(request_id)`."""

    request_id: int
    command: StopReplicaCommand


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """The state of a replica's log after storage opened it (rule T5). End offsets are exclusive.

    Attributes:
        high_watermark: high watermark of the checkpoint, 0 without a checkpoint; above `log_end_offset` only if
            `damaged`.
        damaged: reason why records may be missing; None if no records are missing.
        cut: the only damage is a torn tail that was cut off (rule T7).
        fresh: the log did not exist and was created now.
        directory: index of the log directory that holds it.
    """

    log_start_offset: Offset
    log_end_offset: Offset
    flushed_offset: Offset
    high_watermark: Offset
    epochs: tuple[EpochEntry, ...]
    producers: ProducerStates
    damaged: str | None = None
    cut: bool = False
    fresh: bool = False
    directory: int = 0


@dataclass(frozen=True, slots=True)
class LogOpened:
    """Answer to `OpenLog`."""

    partition: TopicPartition
    identity: ReplicaIdentity
    log: RecoveredLog


@dataclass(frozen=True, slots=True)
class LogAppended:
    """Answer to `AppendToLog`, in order: all records below this offset are in the page cache (rule R1)."""

    partition: TopicPartition
    identity: ReplicaIdentity
    log_end_offset: Offset


@dataclass(frozen=True, slots=True)
class LogFlushed:
    """An fdatasync succeeded: all records below this offset are on disk."""

    partition: TopicPartition
    identity: ReplicaIdentity
    flushed_offset: Offset


@dataclass(frozen=True, slots=True)
class LogTruncated:
    """Answer to `TruncateLog` and `ResetLog`, with the producer state rebuilt from the remaining log (rule P3)."""

    partition: TopicPartition
    identity: ReplicaIdentity
    log_start_offset: Offset
    log_end_offset: Offset
    producers: ProducerStates


@dataclass(frozen=True, slots=True)
class LogFailed:
    """An effect on the log failed; the replica is offline until it is opened again."""

    partition: TopicPartition
    identity: ReplicaIdentity
    error: TidemarkError


@dataclass(frozen=True, slots=True)
class LogFull:
    """An append found no disk space: this append and all in flight after it are not in the log, which stays usable.

    Storage drops all appends until `ResumeLog`. `producers`: producer states of the log.
    """

    partition: TopicPartition
    identity: ReplicaIdentity
    log_end_offset: Offset
    producers: ProducerStates
    error: TidemarkError


@dataclass(frozen=True, slots=True)
class LogDamaged:
    """A stored batch is damaged, and another replica may have it (rule T6).

    `repairable`: this broker has begun to repair its log; otherwise it cannot.
    """

    partition: TopicPartition
    identity: ReplicaIdentity
    repairable: bool = False


@dataclass(frozen=True, slots=True)
class LogMoved:
    """The log was moved to the log directory with the index `directory` (rule M3)."""

    partition: TopicPartition
    identity: ReplicaIdentity
    directory: int


@dataclass(frozen=True, slots=True)
class LogStartRequested:
    """Retention, or a DeleteRecords request, asks to raise the log start to `start_offset` (rule L1).

    Valid only for the leader in that epoch. The log start never passes the high watermark, and never falls.
    """

    partition: TopicPartition
    identity: ReplicaIdentity
    leader_epoch: LeaderEpoch
    start_offset: Offset


@dataclass(frozen=True, slots=True)
class ProduceArrived:
    """Batches for one partition, already checked byte by byte (record.validation).

    Attributes:
        transactional_id: transactional id of the producer, needed for pending batches (rule X1); empty if there is
            none.
        notes_append: with acks=all: `NoteAppend` precedes the answer.
    """

    request_id: int
    partition: TopicPartition
    topic_id: str  # empty: the client has no topic id
    current_leader_epoch: LeaderEpoch  # -1: the client has no leader epoch
    acks: int  # 0, 1 or -1
    batches: tuple[Batch, ...]
    transactional_id: str = ""
    notes_append: bool = False


@dataclass(frozen=True, slots=True)
class MarkerArrived:
    """A transaction coordinator ends a producer's transaction in a partition (rule X2).

    Answered as a produce request with acks=all, with base offset -1 if the log has the marker already.
    """

    request_id: int
    partition: TopicPartition
    topic_id: str  # empty: any
    current_leader_epoch: LeaderEpoch  # -1: any
    marker: Batch


@dataclass(frozen=True, slots=True)
class ProduceExpired:
    """The timeout of a produce request has passed."""

    request_id: int
    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class FollowerMessageArrived:
    """A message on the stream from a follower; `broker_epoch` as in its hello."""

    follower: BrokerId
    broker_epoch: BrokerEpoch
    message: FollowerMessage


@dataclass(frozen=True, slots=True)
class FollowerDisconnected:
    """The stream from a follower ended."""

    follower: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True)
class LeaderConnected:
    """Answer to `ConnectToLeader`: the stream to a leader is up."""

    leader: BrokerId


@dataclass(frozen=True, slots=True)
class LeaderMessageArrived:
    """A message on the stream to a leader."""

    leader: BrokerId
    message: LeaderMessage


@dataclass(frozen=True, slots=True)
class LeaderDisconnected:
    """The stream to a leader ended; the driver reconnects with back-off until `DisconnectFromLeader`."""

    leader: BrokerId


@dataclass(frozen=True, slots=True)
class FollowerReadDone:
    """Answer to `ReadForFollower`: whole batches from `offset` on, empty if the read failed."""

    follower: BrokerId
    partition: TopicPartition
    leader_epoch: LeaderEpoch
    offset: Offset
    batches: tuple[Batch, ...]
    error: TidemarkError | None = None


@dataclass(frozen=True, slots=True)
class IsrWritten:
    """Answer to `WriteIsr`: the write succeeded with this version."""

    partition: TopicPartition
    version: int


@dataclass(frozen=True, slots=True)
class IsrWriteFailed:
    """Answer to `WriteIsr`: a version conflict or another failed check, or (`unknown`) no answer (rule R9)."""

    partition: TopicPartition
    unknown: bool


@dataclass(frozen=True, slots=True)
class IsrRead:
    """Answer to `ReadIsr`: the node after a sync; None if the node, or this incarnation, does not exist any more."""

    partition: TopicPartition
    found: VersionedState | None


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """The settings of replication have changed."""

    config: ReplicationConfig


@dataclass(frozen=True, slots=True)
class PreferredReplicaNamed:
    """This leader has named a follower to a consumer as its preferred replica (rule K1)."""

    partition: TopicPartition
    follower: BrokerId


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; sent about every 100 ms."""


Event = (
    BrokerRegistered
    | SessionExpired
    | LeaderAndIsrArrived
    | StopReplicaArrived
    | LogOpened
    | LogAppended
    | LogFlushed
    | LogTruncated
    | LogFailed
    | LogFull
    | LogDamaged
    | LogMoved
    | LogStartRequested
    | ProduceArrived
    | MarkerArrived
    | ProduceExpired
    | FollowerMessageArrived
    | FollowerDisconnected
    | LeaderConnected
    | LeaderMessageArrived
    | LeaderDisconnected
    | FollowerReadDone
    | IsrWritten
    | IsrWriteFailed
    | IsrRead
    | SettingsChanged
    | PreferredReplicaNamed
    | Tick
)
