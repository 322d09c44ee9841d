# SPDX-License-Identifier: Apache-2.0
"""Effects of the active controller: the output of `ControllerCore.handle`, one closed union, in order.

Durable first, then RPC (rule C1): each `Send…` carries only states that have been written to ZooKeeper.
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
    PartitionReassignment,
    Refusal,
    StateWrite,
    TopicDescription,
    TopicPartition,
)


@dataclass(frozen=True, slots=True)
class WriteStates:
    """Write these nodes in multis that check /controller_epoch (rule Z1); answered by `StatesWritten`."""

    changes: tuple[StateWrite, ...]


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
    """Stop replicas at a broker; answered by `ControlAnswered`."""

    broker: BrokerId
    request_id: int
    command: StopReplicaCommand


@dataclass(frozen=True, slots=True)
class SendUpdateMetadata:
    """A part of a metadata snapshot, or changes, for one broker epoch; answered by `ControlAnswered`."""

    broker: BrokerId
    request_id: int
    broker_epoch: BrokerEpoch
    view: ClusterView


@dataclass(frozen=True, slots=True)
class DescribeReplicas:
    """Ask replicas about their logs before an unclean election (rule T4); answered by `ReplicasDescribed`."""

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
    """Every partition of this request is elected or refused: delete the request's node, unless the node was changed."""

    request: ElectionRequest


@dataclass(frozen=True, slots=True)
class WriteTopic:
    """Write the topic's node at version `topic.version`; answered by `TopicWritten`."""

    topic: TopicDescription


@dataclass(frozen=True, slots=True)
class FinishReassignments:
    """Remove these entries from /admin/reassign_partitions, unless they were changed, and malformed entries; keep
    the refusals. Answered by `ReassignmentsFinished`; retried until it succeeds.
    """

    finished: tuple[PartitionReassignment, ...]
    refused: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True)
class DeletePartitions:
    """Delete the nodes of these partitions, which the topic's node no longer names; answered by `PartitionsDeleted`."""

    topic: TopicDescription
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FinishPartitionRequests:
    """Delete the nodes of these requests, including refused requests; keep the refusals. Answered by
    `PartitionRequestsFinished`; retried until it succeeds.

    Attributes:
        removed: each removal with whether it was forced: a forced one may have replaced one that was not.
    """

    added: tuple[TopicPartition, ...] = ()
    removed: Mapping[TopicPartition, bool] = field(default_factory=dict)
    refused: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True)
class ReleaseBroker:
    """Permit this broker to shut down."""

    broker: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True)
class Resign:
    """Resign: delete /controller."""

    why: str


@dataclass(frozen=True, slots=True)
class Observed:
    """An observation for log and metrics.

    Attributes:
        kind: a stable name: "leader_elected", "unclean_election", "partition_offline", "broker_failed",
            "broker_suspected", "write_conflict", "directories_failed", "election_refused", "election_request_invalid",
            "move_begun", "move_ended", "request_refused", "partitions_added", "partitions_removed" and more. Each
            election has one of the first two kinds, and is reported after its write.
        fields: of an election, `write_ms` is the time from the decision to the answer of its write. An
            "unclean_election" carries `leader` and `lineage`. If replicas were asked, the report also has the elected
            log (`last_epoch`, `log_end_offset`). The observation then has the highest high watermark that a replica
            knows (`high_watermark`), and the offsets between (`records_maybe_lost`).
    """

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
    | FinishReassignments
    | DeletePartitions
    | FinishPartitionRequests
    | ReleaseBroker
    | Resign
    | Observed
)
