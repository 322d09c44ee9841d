# SPDX-License-Identifier: Apache-2.0
"""What brokers and controller say to one another, as values; rpc/ translates them to and from proto.

Follower and leader (rules R5-R8, E2-E4, F3) speak in `FollowerMessage` and `LeaderMessage`;
the controller commands with `LeaderAndIsrCommand` and `StopReplicaCommand` (rule F4).
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
    LeaderAndIsr,
    LeaderEpoch,
    Offset,
    ReplicaIdentity,
    TopicPartition,
)
from tidemark.record.envelope import Batch


class EpochQuery(NamedTuple):
    """Follower: where does my last epoch end with you? (rule E2)"""

    partition: TopicPartition
    identity: ReplicaIdentity
    current_leader_epoch: LeaderEpoch
    last_epoch: LeaderEpoch


class FetchPosition(NamedTuple):
    """Follower: send this partition from here on, in this epoch (rules R8, E4). Also a report of its LEO, and of what
    is flushed where that counts (rule R3)."""

    partition: TopicPartition
    identity: ReplicaIdentity
    current_leader_epoch: LeaderEpoch
    fetch_offset: Offset
    last_epoch: LeaderEpoch
    directory: int
    flushed_offset: Offset = Offset(0)
    log_start_offset: Offset = Offset(0)


class Report(NamedTuple):
    """Follower: my log end (written) and flushed offsets, exclusive, moved (rule R1), or my log start did."""

    partition: TopicPartition
    current_leader_epoch: LeaderEpoch
    log_end_offset: Offset
    flushed_offset: Offset
    log_start_offset: Offset = Offset(0)


class StopFetch(NamedTuple):
    """Follower: I leave this partition; `newer_leader_epoch` is -1 or the epoch I was told of (rule F3)."""

    partition: TopicPartition
    newer_leader_epoch: LeaderEpoch


class Credit(NamedTuple):
    """Follower: you may send so many bytes more for this log directory (rule R6)."""

    directory: int
    credit_bytes: int


@dataclass(frozen=True, slots=True)
class FollowerMessage:
    """One message of the stream from follower to leader; empty is a heartbeat.

    `echo_ms` is `clock_ms` of the leader's last message before it, 0 for none: so the leader knows a time, by its own
    clock, after which this was sent (rule F2).
    """

    queries: tuple[EpochQuery, ...] = ()
    positions: tuple[FetchPosition, ...] = ()
    reports: tuple[Report, ...] = ()
    stops: tuple[StopFetch, ...] = ()
    credits: tuple[Credit, ...] = ()
    echo_ms: int = 0


class EpochEnd(NamedTuple):
    """Leader: answer to an EpochQuery; `end_offset` is exclusive (rule E2).

    `in_sync_offset`: who holds all below it (exclusive), from `log_start_offset` on, holds all that was committed
    before (rules R8, T5); None: the leader is of a version that does not say.
    """

    partition: TopicPartition
    current_leader_epoch: LeaderEpoch
    leader_epoch: LeaderEpoch
    end_offset: Offset
    in_sync_offset: Offset | None = None
    log_start_offset: Offset | None = None


class Chunk(NamedTuple):
    """Leader: news of one partition (rules R5, R6, L1).

    `continues_from` must equal the follower's LEO. `batches` is empty when only the high watermark
    moved. On the follower's side the shell has checked every batch before the core sees the chunk;
    what failed is in `error` and `batches` is empty then.
    """

    partition: TopicPartition
    current_leader_epoch: LeaderEpoch
    continues_from: Offset
    high_watermark: Offset
    log_start_offset: Offset
    batches: tuple[Batch, ...] = ()
    error: ErrorCode | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of the batches."""
        return sum(batch.envelope.batch_length for batch in self.batches)


class Refusal(NamedTuple):
    """Leader: this partition cannot be sent. `log_start_epoch`: of the last record that it let go, as far as known."""

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
    """One partition of a LeaderAndIsr command: its node, its version, its replicas.

    `log_dir`: path or uuid of the directory that the told broker shall hold its replica in; "": any (rule M3).
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


@dataclass(frozen=True, slots=True)
class LeaderAndIsrCommand:
    """Leaderships and followerships of one broker (rules C1, F4).

    `complete`: with this command (its parts together) the broker knows every replica it has;
    whatever else it holds is stray (rule C8).
    `sequence` rises with each command of a controller's term, so that one that was overtaken on its way is known;
    0: not numbered.
    `slice_index` of `slice_count`: a broker takes in a message of many partitions as so many commands, one after the
    other, each of which says all that the message says but of other partitions; `complete` is said by the last one.
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
    slice_index: int = 0
    slice_count: int = 1


class StoppedReplica(NamedTuple):
    """A replica to stop; `delete`: its data goes too."""

    partition: TopicPartition
    identity: ReplicaIdentity
    leader_epoch: LeaderEpoch
    delete: bool


class ReplicaQuestion(NamedTuple):
    """Controller: what does your replica hold, now that in this epoch nobody leads (rule T4), or that you lead it
    sealed (rule C7)?"""

    partition: TopicPartition
    identity: ReplicaIdentity
    leader_epoch: LeaderEpoch


class ReplicaDescription(NamedTuple):
    """What a replica holds; of a damaged log what lies before the damage. The end is exclusive (rule T4).

    `last_epoch` is the leader epoch of the last record, -1 for an empty log. `high_watermark`, the highest one the
    replica knows, lies above the log end where committed records were lost. A partition is empty when the start is the
    end.
    """

    last_epoch: LeaderEpoch
    log_end_offset: Offset
    high_watermark: Offset
    damaged: bool
    log_start_offset: Offset = Offset(0)


@dataclass(frozen=True, slots=True)
class StopReplicaCommand:
    """Replicas that the broker no longer has; `sequence` as of `LeaderAndIsrCommand`, counted together with it."""

    controller_id: BrokerId
    controller_epoch: ControllerEpoch
    broker_epoch: BrokerEpoch
    replicas: tuple[StoppedReplica, ...]
    sequence: int = 0
