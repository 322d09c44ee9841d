# SPDX-License-Identifier: Apache-2.0
"""Every refusal: its stable code, and the class that stands for it, wherever it was said. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, Self


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
    # starts of brokers
    ADVERTISED_ADDRESS_UNREACHABLE = "ADVERTISED_ADDRESS_UNREACHABLE"
    # fencing
    STALE_CONTROLLER_EPOCH = "STALE_CONTROLLER_EPOCH"
    STALE_BROKER_EPOCH = "STALE_BROKER_EPOCH"
    BROKER_ID_TAKEN = "BROKER_ID_TAKEN"
    CONTROLLER_NOT_ACTIVE = "CONTROLLER_NOT_ACTIVE"
    # the rest
    BROKER_NOT_AVAILABLE = "BROKER_NOT_AVAILABLE"
    COORDINATION_UNAVAILABLE = "COORDINATION_UNAVAILABLE"  # ZooKeeper cannot be reached
    SHUTTING_DOWN = "SHUTTING_DOWN"
    CLIENT_CLOSED = "CLIENT_CLOSED"  # it is our own that is closed, or was not started
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

    Made with a code that has a class of its own it is of that class, as OSError is with an errno: also what came over
    the wire or from another process.

    Attributes:
        code: what kind of refusal.
        message: what was wrong and what to do next.
        metadata: facts a client can act on, e.g. {"leader": "2", "leader_epoch": "7"}.
    """

    _classes: ClassVar[dict[ErrorCode, type[TidemarkError]]] = {}

    def __init_subclass__(cls, *, codes: tuple[ErrorCode, ...] = (), **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        for code in codes:
            assert code not in cls._classes, f"{code} has a class"
            cls._classes[code] = cls

    def __new__(cls, code: ErrorCode, message: str = "", metadata: Mapping[str, str] | None = None) -> Self:
        """Of the class that the code has, where that is one of these."""
        own = cls._classes.get(code, cls)
        return super().__new__(own if issubclass(own, cls) else cls)

    def __init__(self, code: ErrorCode, message: str, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.metadata: Mapping[str, str] = dict(metadata or {})

    def __repr__(self) -> str:
        facts = f", {dict(self.metadata)!r}" if self.metadata else ""
        return f"{type(self).__name__}({self.code}, {self.message!r}{facts})"

    @property
    def retriable(self) -> bool:
        """Whether the same thing may succeed when tried again."""
        return self.code in RETRIABLE

    def __reduce__(self) -> tuple[type[TidemarkError], tuple[ErrorCode, str, dict[str, str]]]:
        return type(self), (self.code, self.message, dict(self.metadata))


class InvalidRequestError(
    TidemarkError, codes=(ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_PARTITIONS, ErrorCode.INVALID_REPLICATION_FACTOR)
):
    """An argument is wrong; nothing was done."""


class InvalidConfigError(
    TidemarkError, codes=(ErrorCode.INVALID_CONFIG, ErrorCode.UNKNOWN_CONFIG, ErrorCode.INVALID_ACKS)
):
    """A setting is wrong; nothing was done."""


class InvalidTopicNameError(TidemarkError, codes=(ErrorCode.INVALID_TOPIC_NAME,)):
    """No topic can have that name."""


class InvalidGroupIdError(TidemarkError, codes=(ErrorCode.INVALID_GROUP_ID,)):
    """No group can have that id."""


class InvalidRecordError(
    TidemarkError,
    codes=(
        ErrorCode.INVALID_BATCH,
        ErrorCode.INVALID_PAYLOAD,
        ErrorCode.RECORD_COUNT_MISMATCH,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.NULL_KEY,
    ),
):
    """Records cannot be written as they are: of a wrong type, time, or without the key that compaction needs."""


class CorruptBatchError(TidemarkError, codes=(ErrorCode.CORRUPT_BATCH,)):
    """A checksum does not match: on the way, where another try helps, or on a disk."""


class BatchTooLargeError(TidemarkError, codes=(ErrorCode.BATCH_TOO_LARGE,)):
    """A record, or a batch, is larger than its topic or a request allows."""


class TopicAlreadyExistsError(TidemarkError, codes=(ErrorCode.TOPIC_ALREADY_EXISTS,)):
    """The topic is there already."""


class UnknownTopicError(TidemarkError, codes=(ErrorCode.UNKNOWN_TOPIC,)):
    """There is no such topic: it was never created, or it was deleted."""


class UnknownPartitionError(TidemarkError, codes=(ErrorCode.UNKNOWN_PARTITION,)):
    """The topic has no such partition."""


class TopicRecreatedError(TidemarkError, codes=(ErrorCode.UNKNOWN_TOPIC_ID,)):
    """The topic, or the partition, was deleted and created again under the same name."""


class NotLeaderError(
    TidemarkError,
    codes=(
        ErrorCode.NOT_LEADER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    ),
):
    """The partition has no leader at the moment, or another one than was asked."""


class OffsetOutOfRangeError(TidemarkError, codes=(ErrorCode.OFFSET_OUT_OF_RANGE,)):
    """The records at that offset were deleted: it is below the start of the log."""


class OffsetNotAvailableError(TidemarkError, codes=(ErrorCode.OFFSET_NOT_AVAILABLE,)):
    """The broker asked cannot tell yet; another one can, or the same in a moment."""


class LogTruncatedError(TidemarkError, codes=(ErrorCode.LOG_TRUNCATED, ErrorCode.LOG_DIVERGED)):
    """The offset is above the leader's log end, or the log has other records than were read before (rule K1)."""


class NotEnoughReplicasError(
    TidemarkError, codes=(ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
):
    """Too few replicas are in sync for acks='all'."""


class RequestTimedOutError(TidemarkError, codes=(ErrorCode.REQUEST_TIMED_OUT,)):
    """It was not done in the time it had."""


class StorageError(
    TidemarkError,
    codes=(ErrorCode.STORAGE_ERROR, ErrorCode.DISK_FULL, ErrorCode.REPLICA_DAMAGED, ErrorCode.REPLICA_OFFLINE),
):
    """A disk does not take or give what it should."""


class ProducerSequenceError(
    TidemarkError, codes=(ErrorCode.OUT_OF_ORDER_SEQUENCE, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.DUPLICATE_SEQUENCE)
):
    """The partition lacks what this producer sent before, so that a retry could not be told from a duplicate."""


class ProducerFencedError(TidemarkError, codes=(ErrorCode.PRODUCER_FENCED,)):
    """Another producer has this one's identity now."""


class GroupNotFoundError(TidemarkError, codes=(ErrorCode.GROUP_NOT_FOUND,)):
    """There is no such group."""


class GroupNotEmptyError(TidemarkError, codes=(ErrorCode.GROUP_NOT_EMPTY, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)):
    """The group has members, and what is asked for must not happen to those."""


class GroupFullError(TidemarkError, codes=(ErrorCode.GROUP_FULL,)):
    """The group has as many members as it may have."""


class InconsistentGroupProtocolError(TidemarkError, codes=(ErrorCode.INCONSISTENT_GROUP_PROTOCOL,)):
    """The id is in use by a group of another kind."""


class UnsupportedAssignorError(TidemarkError, codes=(ErrorCode.UNSUPPORTED_ASSIGNOR,)):
    """The brokers know no such assignor."""


class FencedMemberError(TidemarkError, codes=(ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER)):
    """The partitions may be another member's by now; nothing was committed."""


class FencedInstanceError(TidemarkError, codes=(ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNRELEASED_INSTANCE_ID)):
    """Another member has this instance_id."""


class PartitionNotAssignedError(TidemarkError, codes=(ErrorCode.PARTITION_NOT_ASSIGNED,)):
    """The member does not read that partition, or not any more."""


class CoordinatorNotAvailableError(
    TidemarkError, codes=(ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOADING)
):
    """The coordinator of the group cannot answer yet."""


class BrokerNotAvailableError(TidemarkError, codes=(ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.SHUTTING_DOWN)):
    """No broker that could answer is reached; `metadata` has the cause of each endpoint that was tried."""


class ClientClosedError(TidemarkError, codes=(ErrorCode.CLIENT_CLOSED,)):
    """This client is closed, or was not started."""


class InternalError(TidemarkError, codes=(ErrorCode.INTERNAL,)):
    """A mistake of Tidemark's own, or a code of a later version."""


def unknown_topic(topic: str, metadata: Mapping[str, str] | None = None) -> TidemarkError:
    """The refusal of a topic that does not exist; `metadata` holds more than its name where there is more to tell."""
    return TidemarkError(
        ErrorCode.UNKNOWN_TOPIC,
        f"there is no topic {topic!r}; `tidemark topic list` shows those there are, `tidemark topic create` makes one",
        metadata or {"topic": topic},
    )
