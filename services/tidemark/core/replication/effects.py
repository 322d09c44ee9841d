# SPDX-License-Identifier: Apache-2.0
"""What a broker does: the output of `core.replication.broker.BrokerCore.handle` (one closed union), in order.

The shell carries effects out in the order given. Effects on one log (`AppendToLog`, `TruncateLog`,
`ResetLog`) are carried out one after the other; each is answered by one event.
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
    """Open the log of a replica, or make it; answered by `LogOpened` or `LogFailed`.

    A directory of another identity is set aside as stray first (rule F4).
    """

    partition: TopicPartition
    identity: ReplicaIdentity


@dataclass(frozen=True, slots=True)
class CloseLog:
    """Close the log. `set_aside`: None keeps it, "stray" or "delete" renames its directory so (rule C8)."""

    partition: TopicPartition
    identity: ReplicaIdentity
    set_aside: str | None


@dataclass(frozen=True, slots=True)
class AppendToLog:
    """Append; answered by `LogAppended` or `LogFailed`.

    With `stamp` (a leader's append) the first batch gets `base_offset`, the next ones follow, all get
    `leader_epoch`; without it (a follower's) the batches carry their offsets and epochs already.
    """

    partition: TopicPartition
    identity: ReplicaIdentity
    base_offset: Offset
    leader_epoch: LeaderEpoch
    batches: tuple[Batch, ...]
    stamp: bool


@dataclass(frozen=True, slots=True)
class TruncateLog:
    """Cut the log at `end_offset`, exclusive; answered by `LogTruncated` or `LogFailed`."""

    partition: TopicPartition
    identity: ReplicaIdentity
    end_offset: Offset


@dataclass(frozen=True, slots=True)
class ResetLog:
    """Drop everything and start empty at `start_offset` (rule E3); answered by `LogTruncated` or `LogFailed`.

    What lies below was of `epoch_below`, -1 where nobody knows.
    """

    partition: TopicPartition
    identity: ReplicaIdentity
    start_offset: Offset
    epoch_below: LeaderEpoch


@dataclass(frozen=True, slots=True)
class AdvanceLogStart:
    """Start the log at `start_offset`, at or below its end; no answer. What lies below is gone from now on (L1)."""

    partition: TopicPartition
    identity: ReplicaIdentity
    start_offset: Offset


@dataclass(frozen=True, slots=True)
class ResumeLog:
    """Answer to `LogFull`: appends that come after this one continue from the log end that it told. No answer."""

    partition: TopicPartition
    identity: ReplicaIdentity


@dataclass(frozen=True, slots=True)
class ClearDamage:
    """The log is in line with its lineage, whatever was lost of it before (rule T5): it is to count as damaged no more,
    after a restart either, once that is safe. No answer."""

    partition: TopicPartition
    identity: ReplicaIdentity


@dataclass(frozen=True, slots=True)
class SaveEpochs:
    """Write the leader-epoch-checkpoint behind (the envelopes carry the truth); no answer."""

    partition: TopicPartition
    identity: ReplicaIdentity
    entries: tuple[EpochEntry, ...]


@dataclass(frozen=True, slots=True)
class ProduceResult:
    """What became of a produce request for one partition."""

    base_offset: Offset
    log_start_offset: Offset
    error: TidemarkError | None = None


@dataclass(frozen=True, slots=True)
class ReplyToProduce:
    """Answer a `ProduceArrived`, exactly once for each."""

    request_id: int
    partition: TopicPartition
    result: ProduceResult


@dataclass(frozen=True, slots=True)
class ReplyToControl:
    """Answer a command: refused as a whole (`error`), or the partitions that were refused."""

    request_id: int
    error: TidemarkError | None
    refused: tuple[tuple[TopicPartition, TidemarkError], ...] = ()


@dataclass(frozen=True, slots=True)
class ConnectToLeader:
    """Keep a stream to this broker up, answered by `LeaderConnected` each time it is."""

    leader: BrokerId
    host: str
    port: int
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True)
class DisconnectFromLeader:
    """No replica follows this broker any more."""

    leader: BrokerId


@dataclass(frozen=True, slots=True)
class SendToLeader:
    """A message on the stream to a leader; dropped when the stream is down (`LeaderDisconnected` has come or will)."""

    leader: BrokerId
    message: FollowerMessage


@dataclass(frozen=True, slots=True)
class SendToFollower:
    """A message on the stream from a follower; dropped when the stream is down."""

    follower: BrokerId
    message: LeaderMessage


@dataclass(frozen=True, slots=True)
class DisconnectFollower:
    """End the stream from a follower (wrong broker epoch, or this broker leads nothing any more)."""

    follower: BrokerId
    error: TidemarkError


@dataclass(frozen=True, slots=True)
class ReadForFollower:
    """Read whole batches from `offset` up to `end_offset` (exclusive); answered by `FollowerReadDone`.

    The first batch always comes, even when larger than `max_bytes`.
    """

    follower: BrokerId
    partition: TopicPartition
    leader_epoch: LeaderEpoch
    offset: Offset
    end_offset: Offset
    max_bytes: int


@dataclass(frozen=True, slots=True)
class WriteIsr:
    """One conditional multi (rule R9): set the node at `expected_version`, check the incarnation's node and
    `/brokers/epochs/<id>` of every broker in `joining`; answered by `IsrWritten` or `IsrWriteFailed`."""

    partition: TopicPartition
    identity: ReplicaIdentity
    state: LeaderAndIsr
    expected_version: int
    joining: Mapping[BrokerId, BrokerEpoch]


@dataclass(frozen=True, slots=True)
class ReadIsr:
    """Sync, then read the node (rule R9); answered by `IsrRead`."""

    partition: TopicPartition
    identity: ReplicaIdentity


@dataclass(frozen=True, slots=True)
class ReportIsrChange:
    """Hint to the controller that a node was changed by its leader (rule R9)."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class ResignLeadership:
    """Ask the controller to let another in-sync replica lead: this broker's disk lags (rule R7). No answer; the
    leader goes on meanwhile, and asks again after a while."""

    partition: TopicPartition
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class ReportLogFailed:
    """Tell the controller that the log of this replica has failed: leader or not, it is not in sync any more.

    `damaged`: it was found damaged when it was opened (rule T5), and is used.
    """

    partition: TopicPartition
    leader_epoch: LeaderEpoch
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class HighWatermarkAdvanced:
    """Consumers may read on; to be checkpointed in time (rule R5)."""

    partition: TopicPartition
    high_watermark: Offset


@dataclass(frozen=True, slots=True)
class LowWatermarkMoved:
    """A follower told its leader, this broker, that its log starts elsewhere now: who waits for that looks again."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class LeadershipChanged:
    """This replica began or ceased to lead: whoever waits on it looks again."""

    partition: TopicPartition
    leading: bool


@dataclass(frozen=True, slots=True)
class Observed:
    """Something people want to know, for log and metric: `kind` is a stable name such as "isr_shrunk",
    "isr_expanded", "isr_write_failed", "became_leader", "became_follower", "truncated", "unclean_election",
    "replica_damaged", "chunk_refused", "leader_disk_lags"; `fields` say which, from what, to what and why."""

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
