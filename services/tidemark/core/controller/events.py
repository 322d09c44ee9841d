# SPDX-License-Identifier: Apache-2.0
"""Events of the active controller: the input of `ControllerCore.handle`, one closed union."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemark.core.messages import HeldState, ReplicaDescription
from tidemark.model import (
    BrokerEpoch,
    BrokerEpochRecord,
    BrokerId,
    BrokerRegistration,
    ElectionKind,
    ElectionRequest,
    LeaderEpoch,
    PartitionReassignment,
    PartitionRequests,
    ReassignmentRequests,
    ReplicaIdentity,
    TidemarkError,
    TopicDescription,
    TopicPartition,
    VersionedState,
)


@dataclass(frozen=True, slots=True)
class Elected:
    """This controller holds /controller; the state of ZooKeeper was read after that (rule C3).

    Attributes:
        unreadable_topics: topics whose nodes exist and do not parse.
        unreadable_states: partitions whose leaderAndISR exists and does not parse.
        reassignments: an earlier controller may have begun them. The reassignments come with this event, so that the
            first command to a broker names their log directories and throttles (rules M2, M3).
    """

    brokers: Mapping[BrokerId, BrokerRegistration]
    broker_epochs: Mapping[BrokerId, BrokerEpochRecord]
    topics: Mapping[str, TopicDescription]
    states: Mapping[TopicPartition, VersionedState]
    deletions: frozenset[str]
    unreadable_topics: frozenset[str] = frozenset()
    unreadable_states: frozenset[TopicPartition] = frozenset()
    reassignments: ReassignmentRequests = field(default_factory=ReassignmentRequests)


@dataclass(frozen=True, slots=True)
class BrokersChanged:
    """The present content of /brokers/ids and /brokers/epochs (rule C2)."""

    brokers: Mapping[BrokerId, BrokerRegistration]
    broker_epochs: Mapping[BrokerId, BrokerEpochRecord]


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """The present content of /brokers/topics; `unreadable`: topics whose nodes do not parse."""

    topics: Mapping[str, TopicDescription]
    unreadable: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DeletionsRequested:
    """Children of /admin/delete_topics, read after the topics of the last `TopicsChanged`.

    One multi removes a request with its topic. So a request that is read belongs to the topic that was read before, or
    to a newer topic. No request is applied to a later topic of the same name.
    """

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class ElectionsRequested:
    """The present node that requests elections of this kind; None: the node does not exist."""

    kind: ElectionKind
    request: ElectionRequest | None


@dataclass(frozen=True, slots=True)
class ReassignmentsRequested:
    """The present entries of /admin/reassign_partitions."""

    requests: ReassignmentRequests


@dataclass(frozen=True, slots=True)
class PartitionsRequested:
    """The present nodes below /admin/partitions_add and /admin/partitions_remove; `resumed`: the first read of this
    term, so requests may be partly done.
    """

    requests: PartitionRequests
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class TopicWritten:
    """Answer to `WriteTopic`: the node as written; None: a version conflict, or an unknown outcome."""

    topic: str
    written: TopicDescription | None


@dataclass(frozen=True, slots=True)
class ReassignmentsFinished:
    """Answer to `FinishReassignments`: these entries have left the node; an entry that is read again is a new
    request.
    """

    finished: tuple[PartitionReassignment, ...]


@dataclass(frozen=True, slots=True)
class PartitionsDeleted:
    """Answer to `DeletePartitions`; `error`: retry later."""

    topic: str
    partitions: tuple[int, ...]
    error: TidemarkError | None = None


@dataclass(frozen=True, slots=True)
class PartitionRequestsFinished:
    """Answer to `FinishPartitionRequests`: these nodes were deleted."""

    added: tuple[TopicPartition, ...]
    removed: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class StatesWritten:
    """Answer to `WriteStates`: versions of the nodes written; `failed`: conflicts and unknown outcomes, to be read."""

    written: Mapping[TopicPartition, int]
    failed: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class StatesRead:
    """Answer to `ReadStates`: the nodes that exist, of the partitions in `asked`.

    `unreadable`: partitions whose node does not parse, or was deleted manually, and could not be written again.
    """

    asked: tuple[TopicPartition, ...]
    found: Mapping[TopicPartition, VersionedState]
    unreadable: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class IsrChangesReported:
    """A leader reports that it has changed these ISRs (rule R9)."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class LeadershipResigned:
    """A leader whose disk is too slow asks that another in-sync replica leads (rule R7).

    `identity`: of the replica; None: a broker of version 0.1.0 did not state it.
    """

    broker: BrokerId
    broker_epoch: BrokerEpoch
    partition: TopicPartition
    leader_epoch: LeaderEpoch
    identity: ReplicaIdentity | None = None


@dataclass(frozen=True, slots=True)
class ReplicaFailed:
    """A broker's log of this partition has failed while the broker lives.

    `damaged`: the log lost records before (rule T5); `cut`: the log lost only a torn tail (rule T7). `identity` as in
    `LeadershipResigned`.
    """

    broker: BrokerId
    broker_epoch: BrokerEpoch
    partition: TopicPartition
    leader_epoch: LeaderEpoch
    damaged: bool = False
    cut: bool = False
    identity: ReplicaIdentity | None = None


@dataclass(frozen=True, slots=True)
class ControlAnswered:
    """Answer to a `SendLeaderAndIsr`, `SendStopReplica` or `SendUpdateMetadata`."""

    broker: BrokerId
    request_id: int
    error: TidemarkError | None
    refused: tuple[tuple[TopicPartition, TidemarkError], ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicasDescribed:
    """Answer to `DescribeReplicas`: each replica is described or refused; `error`: the call failed as a whole.

    `held`: of replicas that were asked in no epoch, the states that they know (rule Z4).
    """

    broker: BrokerId
    request_id: int
    error: TidemarkError | None
    described: Mapping[TopicPartition, ReplicaDescription] = field(default_factory=dict)
    refused: Mapping[TopicPartition, TidemarkError] = field(default_factory=dict)
    held: Mapping[TopicPartition, HeldState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """Answer to `DeleteTopic` for the topic with `topic_id`: the answer may be late. `error`: retry later."""

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
    """The broker answers heartbeats again, or for the first time."""

    broker: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True)
class ControlledShutdownRequested:
    """The broker's heartbeat asks for a controlled shutdown."""

    broker: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True)
class DirectoriesFailed:
    """The broker's heartbeat names log directories that went offline."""

    broker: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True)
class Tick:
    """A tick of the clock, about every 100 ms."""


@dataclass(frozen=True, slots=True)
class MoreToDo:
    """`ControllerCore.has_more` was true; comes after the events that were waiting."""


ControllerEvent = (
    Elected
    | BrokersChanged
    | TopicsChanged
    | DeletionsRequested
    | ElectionsRequested
    | ReassignmentsRequested
    | PartitionsRequested
    | TopicWritten
    | ReassignmentsFinished
    | PartitionsDeleted
    | PartitionRequestsFinished
    | StatesWritten
    | StatesRead
    | IsrChangesReported
    | LeadershipResigned
    | ReplicaFailed
    | ControlAnswered
    | ReplicasDescribed
    | TopicDeleted
    | BrokerSuspected
    | BrokerTrusted
    | ControlledShutdownRequested
    | DirectoriesFailed
    | Tick
    | MoreToDo
)
