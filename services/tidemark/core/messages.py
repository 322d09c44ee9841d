# SPDX-License-Identifier: Apache-2.0
"""Messages between brokers and the controller, as values; rpc/ converts them to and from proto.

Follower and leader (rules R5-R8, E2-E4, F3) exchange `FollowerMessage` and `LeaderMessage`. The controller sends
`LeaderAndIsrCommand` and `StopReplicaCommand` (rule F4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tidemark.model import (
    NO_EPOCH,
    BrokerEpoch,
    BrokerId,
    BrokerRegistration,
    ControllerEpoch,
    ErrorCode,
    IsrReasons,
    LeaderAndIsr,
    LeaderEpoch,
    Offset,
    ReplicaIdentity,
    TopicPartition,
)
from tidemark.record.envelope import Batch


class EpochQuery(NamedTuple):
    """From a follower: asks where the follower's last epoch ends in the leader's log (rule E2)."""

    partition: TopicPartition
    identity: ReplicaIdentity
    current_leader_epoch: LeaderEpoch
    last_epoch: LeaderEpoch


class FetchPosition(NamedTuple):
    """From a follower: fetch this partition from this offset on, in this epoch (rules R8, E4). Also reports the
    follower's LEO and flushed offset (rule R3)."""

    partition: TopicPartition
    identity: ReplicaIdentity
    current_leader_epoch: LeaderEpoch
    fetch_offset: Offset
    last_epoch: LeaderEpoch
    directory: int
    flushed_offset: Offset = Offset(0)
    log_start_offset: Offset = Offset(0)


class Report(NamedTuple):
    """From a follower: its log end (written), flushed offset, both exclusive, or log start has changed (rule R1)."""

    partition: TopicPartition
    current_leader_epoch: LeaderEpoch
    log_end_offset: Offset
    flushed_offset: Offset
    log_start_offset: Offset = Offset(0)


class StopFetch(NamedTuple):
    """From a follower: stops fetching; `newer_leader_epoch`: a newer epoch that the follower knows, or -1 (F3)."""

    partition: TopicPartition
    newer_leader_epoch: LeaderEpoch


class Credit(NamedTuple):
    """From a follower: the leader may send this many more bytes for this log directory (rule R6)."""

    directory: int
    credit_bytes: int


@dataclass(frozen=True, slots=True)
class FollowerMessage:
    """One message of the stream from follower to leader; empty is a heartbeat.

    `echo_ms` is `clock_ms` of the leader's last message before it, 0 if there was none. This message was sent after
    that time of the leader's clock (rule F2).
    """

    queries: tuple[EpochQuery, ...] = ()
    positions: tuple[FetchPosition, ...] = ()
    reports: tuple[Report, ...] = ()
    stops: tuple[StopFetch, ...] = ()
    credits: tuple[Credit, ...] = ()
    echo_ms: int = 0


class EpochEnd(NamedTuple):
    """From a leader: the answer to an EpochQuery; `end_offset` is exclusive (rule E2).

    `in_sync_offset`: a replica with every record from `log_start_offset` up to this offset (exclusive) has every record
    that was committed before (rules R8, T5). None: the leader's version does not send it.
    """

    partition: TopicPartition
    current_leader_epoch: LeaderEpoch
    leader_epoch: LeaderEpoch
    end_offset: Offset
    in_sync_offset: Offset | None = None
    log_start_offset: Offset | None = None


class Chunk(NamedTuple):
    """From a leader: records and offsets of one partition (rules R5, R6, L1).

    `continues_from` must equal the follower's LEO. `batches` is empty if only the high watermark moved. The follower's
    driver checks CRCs and headers of all batches before the core gets the chunk. After a failed check `error` is set,
    `batches` is empty, and `refused_bytes` is the size of the refused batches.
    """

    partition: TopicPartition
    current_leader_epoch: LeaderEpoch
    continues_from: Offset
    high_watermark: Offset
    log_start_offset: Offset
    batches: tuple[Batch, ...] = ()
    error: ErrorCode | None = None
    refused_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of the batches, including refused batches: the credit that the leader used (rule R6)."""
        return self.refused_bytes + sum([batch.envelope.batch_length for batch in self.batches])


class Refusal(NamedTuple):
    """From a leader: cannot send this partition. `log_start_epoch`: of the last record below the log start."""

    partition: TopicPartition
    code: ErrorCode
    message: str
    current_leader_epoch: LeaderEpoch
    log_start_offset: Offset
    log_start_epoch: LeaderEpoch = NO_EPOCH


@dataclass(frozen=True, slots=True)
class LeaderMessage:
    """One message of the stream from leader to follower; empty is a heartbeat. `clock_ms` is the leader's."""

    epoch_ends: tuple[EpochEnd, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    clock_ms: int = 0


@dataclass(frozen=True, slots=True)
class PartitionCommand:
    """One partition of a LeaderAndIsr command: leaderAndISR, its version and the replicas.

    Attributes:
        log_dir: path or uuid of the log directory for the addressed broker's replica; "": any (rule M3).
        isr_reasons: replicas that the controller's write of this version added to the ISR or removed from it; empty if
            a leader wrote this version. For operators only.
    """

    partition: TopicPartition
    identity: ReplicaIdentity
    assigned_replicas: tuple[BrokerId, ...]
    state: LeaderAndIsr
    partition_epoch: int
    adding_replicas: tuple[BrokerId, ...] = ()
    removing_replicas: tuple[BrokerId, ...] = ()
    throttle_bytes_per_s: int = 0
    log_dir: str = ""
    isr_reasons: IsrReasons = ()


class NewSchemas(NamedTuple):
    """Versions of a topic's schema that a broker does not know yet, by number (rule S3)."""

    topic_id: str
    texts: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class LeaderAndIsrCommand:
    """Partitions that one broker leads or follows (rules C1, F4).

    Attributes:
        brokers: every live broker.
        suspected: brokers that no leader may add to an ISR.
        complete: this command and its earlier parts name every replica of the broker; other replicas are stray (rule
            C8).
        part: index of this command among those that were sent together.
        sequence: rises with each command of a controller's term, to detect a late command; 0: not numbered.
        schemas: versions of schemas that the broker has not acknowledged, by topic.
        slice_index, slice_count: a broker handles a message of many partitions in slices, one after the other. Slices
            differ in their partitions; only the last one may be `complete`.
    """

    controller_id: BrokerId
    controller_epoch: ControllerEpoch
    broker_epoch: BrokerEpoch
    partitions: tuple[PartitionCommand, ...]
    brokers: tuple[BrokerRegistration, ...] = ()
    suspected: frozenset[BrokerId] = frozenset()
    complete: bool = False
    part: int = 0
    sequence: int = 0
    topic_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    schemas: Mapping[str, NewSchemas] = field(default_factory=dict)
    slice_index: int = 0
    slice_count: int = 1


class StoppedReplica(NamedTuple):
    """A replica to stop; `delete`: delete its log too."""

    partition: TopicPartition
    identity: ReplicaIdentity
    leader_epoch: LeaderEpoch
    delete: bool


class ReplicaQuestion(NamedTuple):
    """From the controller: asks a replica for the end of its log, in an epoch without a leader (rule T4); or of a
    sealed partition, from its leader (rule C7).
    """

    partition: TopicPartition
    identity: ReplicaIdentity
    leader_epoch: LeaderEpoch


class ReplicaDescription(NamedTuple):
    """The log of a replica; of a damaged log, the part before the damage. The end is exclusive (rule T4).

    `last_epoch` is the leader epoch of the last record, -1 for an empty log. `high_watermark` is the highest one that
    the replica knows; above the log end it shows that committed records were lost. A partition is empty if its log
    start is its log end. `cut`: the log is damaged only in that its torn tail was cut off (rule T7).
    """

    last_epoch: LeaderEpoch
    log_end_offset: Offset
    high_watermark: Offset
    damaged: bool
    log_start_offset: Offset = Offset(0)
    cut: bool = False


class HeldState(NamedTuple):
    """The leaderAndISR that a replica knows (rule Z4).

    `command` is the last command. At the leader, `command` has the newest ISR that certainly holds every committed
    record. `led`: this process leads in that leader epoch, or has led in it since its start.
    `log`: None while the log is not open.
    """

    command: PartitionCommand
    led: bool
    log: ReplicaDescription | None


@dataclass(frozen=True, slots=True)
class StopReplicaCommand:
    """Replicas to stop; `sequence` as in `LeaderAndIsrCommand`, from the same counter."""

    controller_id: BrokerId
    controller_epoch: ControllerEpoch
    broker_epoch: BrokerEpoch
    replicas: tuple[StoppedReplica, ...]
    sequence: int = 0
