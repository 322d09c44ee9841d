# SPDX-License-Identifier: Apache-2.0
"""The effects of a broker core: the output of `core.replication.broker.BrokerCore.handle` (one closed union).

The driver carries out effects in the order given. Effects on one log (`AppendToLog`, `TruncateLog`, `ResetLog`) are
carried out one after the other; each is answered by one event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.core.messages import FollowerMessage, LeaderMessage
from tidemark.model import (
    BrokerEpoch,
    BrokerId,
    EpochEntry,
    LeaderAndIsr,
    LeaderEpoch,
    Offset,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
)
from tidemark.record.envelope import Batch


@dataclass(frozen=True, slots=True)
class OpenLog:
    """Open the log of a replica, or create the log; answered by `LogOpened` or `LogFailed`.

    The log directory of another identity is set aside as stray first (rule F4).
    """

    partition: TopicPartition
    identity: ReplicaIdentity


@dataclass(frozen=True, slots=True)
class CloseLog:
    """Close the log. `set_aside`: None keeps the log; "stray" or "delete" renames its directory so (rule C8)."""

    partition: TopicPartition
    identity: ReplicaIdentity
    set_aside: str | None


@dataclass(frozen=True, slots=True)
class AppendToLog:
    """Append; answered by `LogAppended` or `LogFailed`.

    With `stamp` (a leader's append) the first batch gets `base_offset`, the next ones follow, all get `leader_epoch`.
    Without a stamp (of a follower) the batches already have their offsets and epochs.
    """

    partition: TopicPartition
    identity: ReplicaIdentity
    base_offset: Offset
    leader_epoch: LeaderEpoch
    batches: tuple[Batch, ...]
    stamp: bool


@dataclass(frozen=True, slots=True)
class TruncateLog:
    """Truncate the log to `end_offset`, exclusive; answered by `LogTruncated` or `LogFailed`."""

    partition: TopicPartition
    identity: ReplicaIdentity
    end_offset: Offset


@dataclass(frozen=True, slots=True)
class ResetLog:
    """Delete all records and start empty at `start_offset` (rule E3); answered by `LogTruncated` or `LogFailed`.

    The last record below had the leader epoch `epoch_below`, -1 if unknown.
    """

    partition: TopicPartition
    identity: ReplicaIdentity
    start_offset: Offset
    epoch_below: LeaderEpoch


@dataclass(frozen=True, slots=True)
class AdvanceLogStart:
    """Raise the log start to `start_offset`, at most the log end; the records below are deleted (L1). No answer."""

    partition: TopicPartition
    identity: ReplicaIdentity
    start_offset: Offset


@dataclass(frozen=True, slots=True)
class ResumeLog:
    """Answer to `LogFull`: later appends continue from the log end of that event. No answer."""

    partition: TopicPartition
    identity: ReplicaIdentity


@dataclass(frozen=True, slots=True)
class ClearDamage:
    """The log has every committed record of its lineage again (rule T5). No answer.

    Storage stops treating the log as damaged, after a restart too, once that is safe.
    """

    partition: TopicPartition
    identity: ReplicaIdentity


@dataclass(frozen=True, slots=True)
class SaveEpochs:
    """Write the leader-epoch-checkpoint in the background; the batches themselves carry the epochs. No answer."""

    partition: TopicPartition
    identity: ReplicaIdentity
    entries: tuple[EpochEntry, ...]


@dataclass(frozen=True, slots=True)
class ProduceResult:
    """The result of a produce request for one partition; `append_time_us` of its first batch, as in `Envelope`."""

    base_offset: Offset
    log_start_offset: Offset
    error: TidemarkError | None = None
    append_time_us: int = -1


@dataclass(frozen=True, slots=True)
class ReplyToProduce:
    """Answer a `ProduceArrived`; each request is answered exactly once."""

    request_id: int
    partition: TopicPartition
    result: ProduceResult


@dataclass(frozen=True, slots=True)
class NoteAppend:
    """The records of a `ProduceArrived` are in the leader's log; as long as this broker leads, they stay there.

    This effect does not follow for a request that was answered before.
    """

    request_id: int


@dataclass(frozen=True, slots=True)
class ReplyToControl:
    """Answer a command: the error of the whole command, or the refused partitions."""

    request_id: int
    error: TidemarkError | None
    refused: tuple[tuple[TopicPartition, TidemarkError], ...] = ()


@dataclass(frozen=True, slots=True)
class ConnectToLeader:
    """Keep a stream to this broker connected; answered by `LeaderConnected` at each connection."""

    leader: BrokerId
    host: str
    port: int
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True)
class DisconnectFromLeader:
    """End the stream to this broker, which no replica follows any more."""

    leader: BrokerId


@dataclass(frozen=True, slots=True)
class SendToLeader:
    """Send a message on the stream to a leader; dropped when the stream is down (`LeaderDisconnected` follows)."""

    leader: BrokerId
    message: FollowerMessage


@dataclass(frozen=True, slots=True)
class SendToFollower:
    """Send a message on the stream from a follower; dropped when the stream is down."""

    follower: BrokerId
    message: LeaderMessage


@dataclass(frozen=True, slots=True)
class DisconnectFollower:
    """End the stream from a follower (wrong broker epoch, or this broker is no longer a leader)."""

    follower: BrokerId
    error: TidemarkError


@dataclass(frozen=True, slots=True)
class ReadForFollower:
    """Read whole batches from `offset` up to `end_offset` (exclusive); answered by `FollowerReadDone`.

    The first batch is always read, even if it is larger than `max_bytes`.
    """

    follower: BrokerId
    partition: TopicPartition
    leader_epoch: LeaderEpoch
    offset: Offset
    end_offset: Offset
    max_bytes: int


@dataclass(frozen=True, slots=True)
class WriteIsr:
    """One conditional multi (rule R9), answered by `IsrWritten` or `IsrWriteFailed`. The multi sets the node at
    `expected_version`, and checks the incarnation's node and `/brokers/epochs/<id>` of every broker in `joining`."""

    partition: TopicPartition
    identity: ReplicaIdentity
    state: LeaderAndIsr
    expected_version: int
    joining: Mapping[BrokerId, BrokerEpoch]


@dataclass(frozen=True, slots=True)
class ReadIsr:
    """Sync, then read the node (rule R9); answered by `IsrRead`.

    `leader_epoch`: of the leader. A node of an earlier epoch was set back manually, and counts as unreadable (Z4).
    """

    partition: TopicPartition
    identity: ReplicaIdentity
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class ReportIsrChange:
    """Notify the controller that a leader changed the ISR of its node (rule R9)."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class ResignLeadership:
    """Ask the controller to elect another in-sync replica, since this broker's disk is too slow (rule R7). No answer.

    The leader continues meanwhile, and asks again after a pause.
    """

    partition: TopicPartition
    identity: ReplicaIdentity
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class ReportLogFailed:
    """Report to the controller that the log of this replica has failed, so that the replica leaves the ISR.

    `damaged`: the log was found damaged when it was opened (rule T5), and stays in use. `cut`: only its torn tail was
    cut off (rule T7).
    """

    partition: TopicPartition
    identity: ReplicaIdentity
    leader_epoch: LeaderEpoch
    damaged: bool = False
    cut: bool = False


@dataclass(frozen=True, slots=True)
class HighWatermarkAdvanced:
    """The high watermark rose: consumers may read further, and the driver checkpoints the offset later (rule R5)."""

    partition: TopicPartition
    high_watermark: Offset


@dataclass(frozen=True, slots=True)
class LowWatermarkMoved:
    """A follower reported another log start to its leader, this broker; waiting DeleteRecords requests check again."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class LeadershipChanged:
    """This replica has become leader, or is no longer leader; waiting requests check again."""

    partition: TopicPartition
    leading: bool


@dataclass(frozen=True, slots=True)
class Observed:
    """An observation for logs and metrics.

    `kind` is a stable name such as "isr_shrunk", "isr_expanded", "isr_changed", "isr_write_failed",
    "became_leader", "became_follower", "truncated", "unclean_election", "replica_damaged", "tail_cut", "chunk_refused",
    "leader_disk_lags" or "leader_log_damaged". `fields` are its details.
    """

    kind: str
    partition: TopicPartition | None
    fields: Mapping[str, str | int]


Effect = (
    OpenLog
    | CloseLog
    | AppendToLog
    | TruncateLog
    | ResetLog
    | AdvanceLogStart
    | ResumeLog
    | ClearDamage
    | SaveEpochs
    | ReplyToProduce
    | NoteAppend
    | ReplyToControl
    | ConnectToLeader
    | DisconnectFromLeader
    | SendToLeader
    | SendToFollower
    | DisconnectFollower
    | ReadForFollower
    | WriteIsr
    | ReadIsr
    | ReportIsrChange
    | ResignLeadership
    | ReportLogFailed
    | HighWatermarkAdvanced
    | LowWatermarkMoved
    | LeadershipChanged
    | Observed
)
