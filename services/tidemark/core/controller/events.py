# SPDX-License-Identifier: Apache-2.0
"""Events of the active controller: the input of `ControllerCore.handle`, one closed union."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemark.core.messages import ReplicaDescription
from tidemark.model import (
    BrokerEpoch,
    BrokerEpochRecord,
    BrokerId,
    BrokerRegistration,
    ElectionKind,
    ElectionRequest,
    LeaderEpoch,
    Move,
    MoveRequests,
    PartitionRequests,
    TidemarkError,
    TopicDescription,
    TopicPartition,
    VersionedState,
)


@dataclass(frozen=True, slots=True)
class Elected:
    """This controller holds /controller; with it comes everything ZooKeeper has (rule C3)."""

    brokers: Mapping[BrokerId, BrokerRegistration]
    broker_epochs: Mapping[BrokerId, BrokerEpochRecord]
    topics: Mapping[str, TopicDescription]
    states: Mapping[TopicPartition, VersionedState]
    deletions: frozenset[str]
    unreadable_topics: frozenset[str] = frozenset()
    unreadable_states: frozenset[TopicPartition] = frozenset()
    """Whose nodes exist and cannot be understood."""
    moves: MoveRequests = field(default_factory=MoveRequests)
    """Perhaps half done, by a controller before this one; known before any broker is told anything, so that the first
    command already names their directories and throttles (rules M2, M3)."""


@dataclass(frozen=True, slots=True)
class BrokersChanged:
    """/brokers/ids and /brokers/epochs as they are now (rule C2)."""

    brokers: Mapping[BrokerId, BrokerRegistration]
    broker_epochs: Mapping[BrokerId, BrokerEpochRecord]


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """/brokers/topics as it is now, all of it but what cannot be understood."""

    topics: Mapping[str, TopicDescription]
    unreadable: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DeletionsRequested:
    """Children of /admin/delete_topics, read after the topics that the last `TopicsChanged` brought.

    In this order a request is never taken for one about a later topic of the same name: a request goes in one multi
    with its topic, so one that is seen is about the topic that was seen before it, or about a newer one.
    """

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class ElectionsRequested:
    """The node by which elections of this kind are asked for, as it is now; None: there is none."""

    kind: ElectionKind
    request: ElectionRequest | None


@dataclass(frozen=True, slots=True)
class MovesRequested:
    """/admin/reassign_partitions as it is now."""

    requests: MoveRequests


@dataclass(frozen=True, slots=True)
class PartitionsRequested:
    """The nodes below /admin/partitions_add and /admin/partitions_remove as they are now; `resumed`: the first time in
    this term, so they may be half done."""

    requests: PartitionRequests
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class TopicWritten:
    """Answer to `WriteTopic`: the node as it is now; None: it was changed meanwhile, or nobody knows."""

    topic: str
    written: TopicDescription | None


@dataclass(frozen=True, slots=True)
class MovesFinished:
    """Answer to `FinishMoves`: these are out of the node, so if one is seen there again it was asked for again."""

    finished: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class PartitionsDeleted:
    """Answer to `DeletePartitions`; `error`: try again later."""

    topic: str
    partitions: tuple[int, ...]
    error: TidemarkError | None = None


@dataclass(frozen=True, slots=True)
class PartitionRequestsFinished:
    """Answer to `FinishPartitionRequests`: these nodes are gone."""

    added: tuple[TopicPartition, ...]
    removed: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class StatesWritten:
    """Answer to `WriteStates`: the versions of those written; the others failed or are in doubt, and are read again."""

    written: Mapping[TopicPartition, int]
    failed: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class StatesRead:
    """Answer to `ReadStates`: what exists of the partitions asked for."""

    asked: tuple[TopicPartition, ...]
    found: Mapping[TopicPartition, VersionedState]


@dataclass(frozen=True, slots=True)
class IsrChangesReported:
    """A leader's hint (rule R9)."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class LeadershipGivenUp:
    """A leader whose disk lags asks that somebody else in sync leads (rule R7)."""

    broker: BrokerId
    broker_epoch: BrokerEpoch
    partition: TopicPartition
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class ReplicaFailed:
    """A broker's log of this partition has failed while the broker lives; `damaged`: it lost records before that."""

    broker: BrokerId
    broker_epoch: BrokerEpoch
    partition: TopicPartition
    leader_epoch: LeaderEpoch
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class ControlAnswered:
    """Answer to a `SendLeaderAndIsr`, `SendStopReplica` or `SendUpdateMetadata`."""

    broker: BrokerId
    request_id: int
    error: TidemarkError | None
    refused: tuple[tuple[TopicPartition, TidemarkError], ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicasDescribed:
    """Answer to `DescribeReplicas`: each replica asked about is described or refused; `error`: none is."""

    broker: BrokerId
    request_id: int
    error: TidemarkError | None
    described: Mapping[TopicPartition, ReplicaDescription] = field(default_factory=dict)
    refused: Mapping[TopicPartition, TidemarkError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """Answer to `DeleteTopic`; `topic_id`: a late answer is not about a later topic; `error`: try again later."""

    topic: str
    topic_id: str
    error: TidemarkError | None = None


@dataclass(frozen=True, slots=True)
class BrokerSuspected:
    """A refused reconnect or a missed heartbeat (rule C5)."""

    broker: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True)
class BrokerTrusted:
    """It answers heartbeats."""

    broker: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True)
class ShutdownWanted:
    """It wants to shut down: nobody shall need it any more (controlled shutdown)."""

    broker: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True)
class DirectoriesFailed:
    """Its heartbeat names log directories that went offline."""

    broker: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True)
class Tick:
    """Time went on; comes about every 100 ms."""


@dataclass(frozen=True, slots=True)
class WentOn:
    """Nothing has happened, but there is more to do: comes after others had their turn."""


ControllerEvent = (
    Elected
    | BrokersChanged
    | TopicsChanged
    | DeletionsRequested
    | ElectionsRequested
    | MovesRequested
    | PartitionsRequested
    | TopicWritten
    | MovesFinished
    | PartitionsDeleted
    | PartitionRequestsFinished
    | StatesWritten
    | StatesRead
    | IsrChangesReported
    | LeadershipGivenUp
    | ReplicaFailed
    | ControlAnswered
    | ReplicasDescribed
    | TopicDeleted
    | BrokerSuspected
    | BrokerTrusted
    | ShutdownWanted
    | DirectoriesFailed
    | Tick
    | WentOn
)
