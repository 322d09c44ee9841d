# SPDX-License-Identifier: Apache-2.0
"""Effects of the active controller: the output of `ControllerCore.handle`, one closed union, in order.

Durable first, then RPC (rule C1): what a `Send…` tells has been written before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemark.core.cluster_view import ClusterView
from tidemark.core.messages import LeaderAndIsrCommand, ReplicaQuestion, StopReplicaCommand
from tidemark.model import (
    BrokerEpoch,
    BrokerId,
    ElectionRequest,
    LeaderAndIsr,
    Move,
    Refusal,
    ReplicaIdentity,
    TopicDescription,
    TopicPartition,
    UncleanElection,
)


@dataclass(frozen=True, slots=True)
class StateChange:
    """One node to write at `expected_version` (-1: to create), with /brokers/epochs/<id> at these versions (T2).

    `report`: of an unclean election, to be kept with it (T4).
    """

    partition: TopicPartition
    identity: ReplicaIdentity
    state: LeaderAndIsr
    expected_version: int
    broker_epochs: Mapping[BrokerId, BrokerEpoch] = field(default_factory=dict)
    report: UncleanElection | None = None


@dataclass(frozen=True, slots=True)
class WriteStates:
    """Write these nodes in multis that check the term (rule Z1); answered by `StatesWritten`."""

    changes: tuple[StateChange, ...]


@dataclass(frozen=True, slots=True)
class ReadStates:
    """Sync, then read these nodes; answered by `StatesRead`."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class SendLeaderAndIsr:
    """One command, in parts below the message limit, sent in order; answered by one `ControlAnswered`."""

    broker: BrokerId
    request_id: int
    commands: tuple[LeaderAndIsrCommand, ...]


@dataclass(frozen=True, slots=True)
class SendStopReplica:
    """Answered by `ControlAnswered`."""

    broker: BrokerId
    request_id: int
    command: StopReplicaCommand


@dataclass(frozen=True, slots=True)
class SendUpdateMetadata:
    """The view or the change, for one broker epoch; answered by `ControlAnswered`."""

    broker: BrokerId
    request_id: int
    broker_epoch: BrokerEpoch
    view: ClusterView


@dataclass(frozen=True, slots=True)
class DescribeReplicas:
    """Before an unclean election (rule T4); answered by `ReplicasDescribed`."""

    broker: BrokerId
    request_id: int
    broker_epoch: BrokerEpoch
    partitions: tuple[ReplicaQuestion, ...]


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Delete the topic's nodes; answered by `TopicDeleted`."""

    topic: TopicDescription


@dataclass(frozen=True, slots=True)
class FinishElections:
    """Everything this request asks for is done or refused: remove its node, if it is still the same."""

    request: ElectionRequest


@dataclass(frozen=True, slots=True)
class WriteTopic:
    """Write the topic's node if it still is at `topic.version`; answered by `TopicWritten`."""

    topic: TopicDescription


@dataclass(frozen=True, slots=True)
class FinishMoves:
    """Take these out of /admin/reassign_partitions if they are word for word the same, and all that is malformed; keep
    the refusals. Answered by `MovesFinished`, tried until it is."""

    finished: tuple[Move, ...]
    refused: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True)
class DeletePartitions:
    """Delete the nodes of these partitions, which the topic does not have any more; answered by `PartitionsDeleted`."""

    topic: TopicDescription
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FinishPartitionRequests:
    """Remove these requests and those refused; keep the refusals. Answered by `PartitionRequestsFinished`, tried until
    it is."""

    added: tuple[TopicPartition, ...] = ()
    removed: tuple[TopicPartition, ...] = ()
    refused: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True)
class ReleaseBroker:
    """Tell this broker, which wants to shut down, that it may."""

    broker: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True)
class Resign:
    """Give /controller up."""

    why: str


@dataclass(frozen=True, slots=True)
class Observed:
    """Something people want to know, for log and metric; `kind` is a stable name such as "leader_elected",
    "unclean_election", "partition_offline", "broker_failed", "broker_suspected", "write_conflict",
    "directories_failed", "election_refused", "election_request_invalid", "move_begun", "move_cancelled", "move_ended",
    "request_refused", "partitions_added", "partitions_removed"; one election is one of the first two. An
    "unclean_election" carries `leader` and `lineage` and, where replicas were asked, what the heir holds
    (`last_epoch`, `log_end_offset`), the highest high watermark any replica knows (`high_watermark`) and
    what is missing to it (`records_maybe_lost`)."""

    kind: str
    partition: TopicPartition | None
    fields: Mapping[str, str | int]


ControllerEffect = (
    WriteStates
    | ReadStates
    | SendLeaderAndIsr
    | SendStopReplica
    | SendUpdateMetadata
    | DescribeReplicas
    | DeleteTopic
    | FinishElections
    | WriteTopic
    | FinishMoves
    | DeletePartitions
    | FinishPartitionRequests
    | ReleaseBroker
    | Resign
    | Observed
)
