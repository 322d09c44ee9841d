"""What everybody names: ids, offsets, epochs, partition state and error codes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, NewType

BrokerId = NewType("BrokerId", int)
"""Id of a broker, >= 0; also the id of its replicas (seed 001: at most one replica a broker)."""

Offset = NewType("Offset", int)
"""Position of a record in a partition. End offsets (LEO, HW) are exclusive, start offsets inclusive."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Raised by the controller at every change of leadership; -1 where none is known."""

BrokerEpoch = NewType("BrokerEpoch", int)
"""Version of /brokers/epochs/<id>: raised by every registration (rule Z3)."""

ControllerEpoch = NewType("ControllerEpoch", int)
"""Raised with every controller election (rule Z1)."""

NO_LEADER = BrokerId(-1)
NO_EPOCH = LeaderEpoch(-1)
NO_PRODUCER = -1

REQUEST_ID_CHARACTERS_MAX = 128
"""Of the id of a request for elections: loss reports keep it."""


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class ReplicaIdentity(NamedTuple):
    """What tells a partition from an earlier one of the same name (rules F4, C7): two uuids in hex."""

    topic_id: str
    incarnation: str


class IsrEntry(NamedTuple):
    """A member of an ISR or ELR, with its broker epoch on joining (rule T2)."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch


class EpochEntry(NamedTuple):
    """A leader epoch and the first offset written in it (rule E1)."""

    leader_epoch: LeaderEpoch
    start_offset: Offset


@dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """The content of a leaderAndISR node (docs/formats.md)."""

    leader: BrokerId
    leader_epoch: LeaderEpoch
    isr: tuple[IsrEntry, ...]
    elr: tuple[IsrEntry, ...] = ()
    last_known: tuple[IsrEntry, ...] = ()
    min_isr: int = 1
    lineage: int = 0
    sealed: bool = False
    controller_epoch: ControllerEpoch = ControllerEpoch(0)

    @property
    def isr_ids(self) -> tuple[BrokerId, ...]:
        """Broker ids of the ISR, in its order."""
        return tuple(entry.broker_id for entry in self.isr)


class VersionedState(NamedTuple):
    """A leaderAndISR node and the version of the node (the partition epoch) it was read at."""

    state: LeaderAndIsr
    version: int


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """The content of /brokers/ids/<id>."""

    broker_id: BrokerId
    host: str
    port: int
    broker_epoch: BrokerEpoch = BrokerEpoch(-1)
    rack: str = ""
    directory_ids: tuple[str, ...] = ()
    boot_id: str = ""
    features: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BrokerEpochRecord:
    """The content of /brokers/epochs/<id>; `broker_epoch` is the version of the node (rules T1, T2).

    Attributes:
        unclean_at: broker epoch of the last registration after which what was written is not trusted.
        lost_at: broker epoch of the last one after which what was flushed is not trusted either.
    """

    broker_epoch: BrokerEpoch
    directory_ids: tuple[str, ...] = ()
    unclean_at: BrokerEpoch = BrokerEpoch(-1)
    lost_at: BrokerEpoch = BrokerEpoch(-1)


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """The content of /brokers/topics/<topic>, with the transaction ids of the node (rule K2).

    `configs_zxid`: of the last change of the topic's settings; `created_zxid` while they are those it was created with.
    """

    topic: str
    topic_id: str
    partitions: Mapping[int, tuple[BrokerId, ...]]
    incarnations: Mapping[int, str]
    adding: Mapping[int, tuple[BrokerId, ...]] = field(default_factory=dict)
    removing: Mapping[int, tuple[BrokerId, ...]] = field(default_factory=dict)
    original: Mapping[int, tuple[BrokerId, ...]] = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=dict)
    created_zxid: int = -1
    modified_zxid: int = -1
    configs_zxid: int = -1
    version: int = -1


class ElectionKind(StrEnum):
    """What somebody may ask the controller for; the value is part of metrics and logs."""

    PREFERRED = "preferred"  # the first assigned replica leads again
    LAST_KNOWN = "last_known"  # the furthest live replica leads a partition that nobody leads (rule T4)


@dataclass(frozen=True, slots=True)
class ElectionRequest:
    """A node by which somebody asked for elections (docs/formats.md).

    Attributes:
        request_id: names it in loss reports; made up of `modified_zxid` where nobody gave one.
        modified_zxid: tells one request from a later one; `version` is what the node is removed at.
        error: why it cannot be understood; then `partitions` is empty.
    """

    kind: ElectionKind
    partitions: tuple[TopicPartition, ...]
    request_id: str = ""
    modified_zxid: int = -1
    version: int = -1
    error: TidemarkError | None = None


@dataclass(frozen=True, slots=True)
class UncleanElection:
    """The loss report of one unclean election (rule T4): what a new lineage began with, and what it may lack.

    Attributes:
        lineage: the new one.
        leader_epoch: the new leader's.
        elected_at_ms: since 1970, UTC; 0 until it is written.
        last_epoch: leader epoch of the new leader's last record; None where it was not asked.
        log_end_offset: of the new leader, exclusive; None where it was not asked.
        high_watermark: the highest one, exclusive, that any replica asked knew; None where none was asked.
        unheard: assigned replicas that did not answer; what only they knew is not in this report.
        request_id: of the request that asked for it; "" where the topic's setting allowed it.
    """

    partition: TopicPartition
    topic_id: str
    lineage: int
    leader: BrokerId
    leader_epoch: LeaderEpoch
    elected_at_ms: int = 0
    last_epoch: LeaderEpoch | None = None
    log_end_offset: Offset | None = None
    high_watermark: Offset | None = None
    unheard: tuple[BrokerId, ...] = ()
    request_id: str = ""

    @property
    def records_maybe_lost(self) -> int | None:
        """Committed records from `log_end_offset` to `high_watermark`, as far as it is known; None: it is not."""
        if self.log_end_offset is None or self.high_watermark is None:
            return None
        return max(0, self.high_watermark - self.log_end_offset)


@dataclass(frozen=True, slots=True)
class ElectionOutcome:
    """What became of one partition of a request for elections, or would.

    Attributes:
        partition: index -1 stands for a topic that is unknown.
        leader_before: NO_LEADER for none; so is `leader`, the one there is now or would be.
        leader_epoch: NO_EPOCH where the leader is not elected yet.
        changed: whether another leads now than before.
        unclean: the loss report, where the election was unclean.
        error: why nothing was changed.
    """

    partition: TopicPartition
    leader_before: BrokerId = NO_LEADER
    leader: BrokerId = NO_LEADER
    leader_epoch: LeaderEpoch = NO_EPOCH
    changed: bool = False
    unclean: UncleanElection | None = None
    error: TidemarkError | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """One entry of /admin/reassign_partitions (seed 002, rule M1): a partition and the replicas it shall have.

    Attributes:
        replicas: the target (RAR), the preferred leader first; what is asked for even where `cancel` is set.
        log_dirs: one for each of `replicas`, "any" or a path; empty means "any" for all.
        throttle_bytes_per_s: what each broker may send to replicas that are being added by all moves that name the
            same figure; 0 for no limit. It is gone when the move is (rule M2).
        cancel: the original replicas are wanted back (KIP-455).
        request_id: of whoever asked; "" for a node that was written by hand.
    """

    partition: TopicPartition
    replicas: tuple[BrokerId, ...]
    log_dirs: tuple[str, ...] = ()
    throttle_bytes_per_s: int = 0
    cancel: bool = False
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something asked for through a node of /admin that was refused and removed; kept for people to find.

    Attributes:
        kind: "reassign", "partitions_add", "partitions_remove".
        partition: None where the node as a whole could not be understood.
        at_ms: since 1970, UTC.
    """

    kind: str
    partition: TopicPartition | None
    error: TidemarkError
    request_id: str = ""
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class MoveRequests:
    """The node /admin/reassign_partitions as it is: moves that are wanted or under way, and what of it is malformed.

    `version` is the node's; -1 where there is none.
    """

    moves: tuple[Move, ...] = ()
    malformed: tuple[Refusal, ...] = ()
    version: int = -1


@dataclass(frozen=True, slots=True)
class PartitionRequests:
    """Partitions to be added to topics (with their assigned replicas) and removed (True: even if not empty), rule C7.

    Nodes below /admin/partitions_add/<topic> and /admin/partitions_remove/<topic>.
    """

    added: Mapping[TopicPartition, tuple[BrokerId, ...]] = field(default_factory=dict)
    removed: Mapping[TopicPartition, bool] = field(default_factory=dict)
    malformed: tuple[Refusal, ...] = ()


class ErrorCode(StrEnum):
    """Stable codes of refusals. The value never changes; new ones are added."""

    # what a client sent
    CORRUPT_BATCH = "CORRUPT_BATCH"  # a CRC does not match
    INVALID_BATCH = "INVALID_BATCH"  # lengths, magic, codec or attributes lie
    INVALID_PAYLOAD = "INVALID_PAYLOAD"  # the Arrow message is truncated or lies
    RECORD_COUNT_MISMATCH = "RECORD_COUNT_MISMATCH"
    BATCH_TOO_LARGE = "BATCH_TOO_LARGE"
    INVALID_TIMESTAMP = "INVALID_TIMESTAMP"
    NULL_KEY = "NULL_KEY"
    INVALID_REQUEST = "INVALID_REQUEST"
    INVALID_ACKS = "INVALID_ACKS"
    INVALID_TOPIC_NAME = "INVALID_TOPIC_NAME"
    INVALID_PARTITIONS = "INVALID_PARTITIONS"
    INVALID_REPLICATION_FACTOR = "INVALID_REPLICATION_FACTOR"
    UNKNOWN_CONFIG = "UNKNOWN_CONFIG"
    INVALID_CONFIG = "INVALID_CONFIG"
    TOPIC_ALREADY_EXISTS = "TOPIC_ALREADY_EXISTS"
    UNKNOWN_TOPIC = "UNKNOWN_TOPIC"
    UNKNOWN_PARTITION = "UNKNOWN_PARTITION"
    UNKNOWN_TOPIC_ID = "UNKNOWN_TOPIC_ID"  # the topic or partition was recreated
    # where things are
    NOT_LEADER = "NOT_LEADER"
    LEADER_NOT_AVAILABLE = "LEADER_NOT_AVAILABLE"
    FENCED_LEADER_EPOCH = "FENCED_LEADER_EPOCH"  # the caller's epoch is older
    UNKNOWN_LEADER_EPOCH = "UNKNOWN_LEADER_EPOCH"  # the caller's epoch is newer
    NOT_A_REPLICA = "NOT_A_REPLICA"
    OFFSET_OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"
    OFFSET_NOT_AVAILABLE = "OFFSET_NOT_AVAILABLE"
    LOG_TRUNCATED = "LOG_TRUNCATED"
    LOG_DIVERGED = "LOG_DIVERGED"
    PARTITION_SEALED = "PARTITION_SEALED"
    # elections that people ask for
    ELECTION_NOT_NEEDED = "ELECTION_NOT_NEEDED"  # it has a leader
    PREFERRED_LEADER_NOT_AVAILABLE = "PREFERRED_LEADER_NOT_AVAILABLE"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = "ELIGIBLE_LEADERS_NOT_AVAILABLE"  # no replica lives
    # moves of replicas and changes of topics that people ask for
    UNSUPPORTED_VERSION = "UNSUPPORTED_VERSION"  # of the JSON
    EMPTY_REPLICAS = "EMPTY_REPLICAS"
    DUPLICATE_REPLICA = "DUPLICATE_REPLICA"
    DUPLICATE_PARTITION = "DUPLICATE_PARTITION"
    LOG_DIRS_MISMATCH = "LOG_DIRS_MISMATCH"  # not as many as replicas
    LOG_DIR_NOT_FOUND = "LOG_DIR_NOT_FOUND"
    LOG_DIR_OFFLINE = "LOG_DIR_OFFLINE"
    REPLICA_OFFLINE = "REPLICA_OFFLINE"  # its log failed
    REASSIGNMENT_IN_PROGRESS = "REASSIGNMENT_IN_PROGRESS"
    NO_REASSIGNMENT_IN_PROGRESS = "NO_REASSIGNMENT_IN_PROGRESS"
    THROTTLE_TOO_LOW = "THROTTLE_TOO_LOW"  # below the inbound rate: the move would never end
    NOT_HIGHEST_PARTITION = "NOT_HIGHEST_PARTITION"
    PARTITION_NOT_EMPTY = "PARTITION_NOT_EMPTY"
    REQUEST_ID_REUSED = "REQUEST_ID_REUSED"  # for something else
    # durability
    NOT_ENOUGH_REPLICAS = "NOT_ENOUGH_REPLICAS"
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = "NOT_ENOUGH_REPLICAS_AFTER_APPEND"
    REQUEST_TIMED_OUT = "REQUEST_TIMED_OUT"
    STORAGE_ERROR = "STORAGE_ERROR"
    DISK_FULL = "DISK_FULL"  # nothing was written; it goes on when there is space
    REPLICA_DAMAGED = "REPLICA_DAMAGED"
    # producers
    OUT_OF_ORDER_SEQUENCE = "OUT_OF_ORDER_SEQUENCE"
    UNKNOWN_PRODUCER_ID = "UNKNOWN_PRODUCER_ID"
    PRODUCER_FENCED = "PRODUCER_FENCED"
    DUPLICATE_SEQUENCE = "DUPLICATE_SEQUENCE"  # a duplicate older than what is remembered
    # consumer groups
    INVALID_GROUP_ID = "INVALID_GROUP_ID"
    GROUP_NOT_FOUND = "GROUP_NOT_FOUND"
    GROUP_NOT_EMPTY = "GROUP_NOT_EMPTY"  # it has members
    GROUP_SUBSCRIBED_TO_TOPIC = "GROUP_SUBSCRIBED_TO_TOPIC"  # its members read what is to be forgotten
    GROUP_FULL = "GROUP_FULL"
    INCONSISTENT_GROUP_PROTOCOL = "INCONSISTENT_GROUP_PROTOCOL"  # the id is in use by another kind of group
    UNSUPPORTED_ASSIGNOR = "UNSUPPORTED_ASSIGNOR"
    UNKNOWN_MEMBER = "UNKNOWN_MEMBER"  # join again
    FENCED_MEMBER_EPOCH = "FENCED_MEMBER_EPOCH"  # give everything up and join again
    STALE_MEMBER_EPOCH = "STALE_MEMBER_EPOCH"  # heartbeat first, then commit again
    PARTITION_NOT_ASSIGNED = "PARTITION_NOT_ASSIGNED"  # the member does not read it, or not any more
    FENCED_INSTANCE_ID = "FENCED_INSTANCE_ID"  # another member has it now
    UNRELEASED_INSTANCE_ID = "UNRELEASED_INSTANCE_ID"  # its member is still there
    NOT_COORDINATOR = "NOT_COORDINATOR"
    COORDINATOR_NOT_AVAILABLE = "COORDINATOR_NOT_AVAILABLE"
    COORDINATOR_LOADING = "COORDINATOR_LOADING"  # it still reads what it remembers
    OFFSET_METADATA_TOO_LARGE = "OFFSET_METADATA_TOO_LARGE"
    # fencing
    STALE_CONTROLLER_EPOCH = "STALE_CONTROLLER_EPOCH"
    STALE_BROKER_EPOCH = "STALE_BROKER_EPOCH"
    BROKER_ID_TAKEN = "BROKER_ID_TAKEN"
    CONTROLLER_NOT_ACTIVE = "CONTROLLER_NOT_ACTIVE"
    # the rest
    BROKER_NOT_AVAILABLE = "BROKER_NOT_AVAILABLE"
    COORDINATION_UNAVAILABLE = "COORDINATION_UNAVAILABLE"  # ZooKeeper cannot be reached
    SHUTTING_DOWN = "SHUTTING_DOWN"
    INTERNAL = "INTERNAL"


RETRIABLE: frozenset[ErrorCode] = frozenset(
    {
        ErrorCode.CORRUPT_BATCH,
        ErrorCode.NOT_LEADER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.STORAGE_ERROR,
        ErrorCode.DISK_FULL,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.COORDINATION_UNAVAILABLE,
        ErrorCode.CONTROLLER_NOT_ACTIVE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOADING,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.SHUTTING_DOWN,
    }
)
"""Codes that may go away when the same thing is tried again, perhaps after new metadata."""


class TidemarkError(Exception):
    """A refusal: a stable code, a sentence for people, facts for programs.

    Attributes:
        code: what kind of refusal.
        message: what was wrong and what to do next.
        metadata: facts a client can act on, e.g. {"leader": "2", "leader_epoch": "7"}.
    """

    def __init__(self, code: ErrorCode, message: str, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.metadata: Mapping[str, str] = dict(metadata or {})

    @property
    def retriable(self) -> bool:
        """Whether the same thing may succeed when tried again."""
        return self.code in RETRIABLE

    def __reduce__(self) -> tuple[type[TidemarkError], tuple[ErrorCode, str, dict[str, str]]]:
        return TidemarkError, (self.code, self.message, dict(self.metadata))
