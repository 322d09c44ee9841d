# SPDX-License-Identifier: Apache-2.0
"""Every error: its stable code and its class, the same in each process. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, Final, Self

_INVALID: Final = "INVALID_ARGUMENT"
_PRECONDITION: Final = "FAILED_PRECONDITION"
_UNAVAILABLE: Final = "UNAVAILABLE"
_NOT_FOUND: Final = "NOT_FOUND"
_DENIED: Final = "PERMISSION_DENIED"
_DATA_LOSS: Final = "DATA_LOSS"
_ABORTED: Final = "ABORTED"
_RETRIABLE: Final = True


class ErrorCode(StrEnum):
    """Stable error codes. A value never changes; later versions add codes.

    Attributes:
        status: name of the gRPC status; INVALID_ARGUMENT is an error of the caller.
        retriable: whether a retry may clear the error, possibly after a metadata refresh.
    """

    status: str
    retriable: bool

    def __new__(cls, code: str, status: str = _INVALID, retriable: bool = False) -> Self:
        """Create the code with its facts."""
        made = str.__new__(cls, code)
        made._value_ = code
        made.status, made.retriable = status, retriable
        return made

    # a client's request or batch
    CORRUPT_BATCH = "CORRUPT_BATCH", _INVALID, _RETRIABLE  # a CRC does not match
    INVALID_BATCH = "INVALID_BATCH"  # lengths, magic, codec or attributes are wrong
    INVALID_PAYLOAD = "INVALID_PAYLOAD"  # the Arrow message is truncated or inconsistent
    RECORD_COUNT_MISMATCH = "RECORD_COUNT_MISMATCH"
    BATCH_TOO_LARGE = "BATCH_TOO_LARGE"
    INVALID_TIMESTAMP = "INVALID_TIMESTAMP"
    NULL_KEY = "NULL_KEY"
    SCHEMA_MISMATCH = "SCHEMA_MISMATCH"  # records do not fit the topic's schema; metadata names row and column
    UNKNOWN_SCHEMA_VERSION = "UNKNOWN_SCHEMA_VERSION", _PRECONDITION, _RETRIABLE  # not made, or not known here yet
    INVALID_SCHEMA = "INVALID_SCHEMA"  # the schema cannot be stored
    INCOMPATIBLE_SCHEMA = "INCOMPATIBLE_SCHEMA", _PRECONDITION  # schema.compatibility forbids the change
    SCHEMA_CONFLICT = "SCHEMA_CONFLICT", _ABORTED  # another change of the schema was first
    INVALID_REQUEST = "INVALID_REQUEST"
    INVALID_ACKS = "INVALID_ACKS"
    INVALID_TOPIC_NAME = "INVALID_TOPIC_NAME"
    INVALID_PARTITIONS = "INVALID_PARTITIONS"
    INVALID_REPLICATION_FACTOR = "INVALID_REPLICATION_FACTOR"
    UNKNOWN_CONFIG = "UNKNOWN_CONFIG"
    INVALID_CONFIG = "INVALID_CONFIG"
    TOPIC_ALREADY_EXISTS = "TOPIC_ALREADY_EXISTS", "ALREADY_EXISTS"
    UNKNOWN_TOPIC = "UNKNOWN_TOPIC", _NOT_FOUND
    UNKNOWN_PARTITION = "UNKNOWN_PARTITION", _NOT_FOUND
    UNKNOWN_TOPIC_ID = "UNKNOWN_TOPIC_ID", _PRECONDITION  # the topic or partition was recreated
    # leaders and coordinators
    NOT_LEADER = "NOT_LEADER", _PRECONDITION, _RETRIABLE
    LEADER_NOT_AVAILABLE = "LEADER_NOT_AVAILABLE", _UNAVAILABLE, _RETRIABLE
    FENCED_LEADER_EPOCH = "FENCED_LEADER_EPOCH", _PRECONDITION, _RETRIABLE  # the caller's epoch is older
    UNKNOWN_LEADER_EPOCH = "UNKNOWN_LEADER_EPOCH", _PRECONDITION, _RETRIABLE  # the caller's epoch is newer
    NOT_A_REPLICA = "NOT_A_REPLICA", _PRECONDITION
    OFFSET_OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE", "OUT_OF_RANGE"
    OFFSET_NOT_AVAILABLE = "OFFSET_NOT_AVAILABLE", _UNAVAILABLE, _RETRIABLE
    LOG_TRUNCATED = "LOG_TRUNCATED", _DATA_LOSS
    LOG_DIVERGED = "LOG_DIVERGED", _DATA_LOSS
    PARTITION_SEALED = "PARTITION_SEALED", _PRECONDITION
    # requested elections
    ELECTION_NOT_NEEDED = "ELECTION_NOT_NEEDED", _PRECONDITION  # the partition has a leader
    PREFERRED_LEADER_NOT_AVAILABLE = "PREFERRED_LEADER_NOT_AVAILABLE", _PRECONDITION
    ELIGIBLE_LEADERS_NOT_AVAILABLE = "ELIGIBLE_LEADERS_NOT_AVAILABLE", _PRECONDITION  # no live replica
    # reassignments and changes of topics
    UNSUPPORTED_VERSION = "UNSUPPORTED_VERSION"  # the version of the JSON
    EMPTY_REPLICAS = "EMPTY_REPLICAS"
    DUPLICATE_REPLICA = "DUPLICATE_REPLICA"
    DUPLICATE_PARTITION = "DUPLICATE_PARTITION"
    LOG_DIRS_MISMATCH = "LOG_DIRS_MISMATCH"  # the number differs from that of the replicas
    LOG_DIR_NOT_FOUND = "LOG_DIR_NOT_FOUND"
    LOG_DIR_OFFLINE = "LOG_DIR_OFFLINE"
    REPLICA_OFFLINE = "REPLICA_OFFLINE"  # the replica's log failed
    REASSIGNMENT_IN_PROGRESS = "REASSIGNMENT_IN_PROGRESS"
    NO_REASSIGNMENT_IN_PROGRESS = "NO_REASSIGNMENT_IN_PROGRESS"
    THROTTLE_TOO_LOW = "THROTTLE_TOO_LOW"  # the throttle is below the inbound rate, so the reassignment would never end
    NOT_HIGHEST_PARTITION = "NOT_HIGHEST_PARTITION"
    PARTITION_NOT_EMPTY = "PARTITION_NOT_EMPTY"
    REQUEST_ID_REUSED = "REQUEST_ID_REUSED"  # the id was used for another request
    THROTTLING_QUOTA_EXCEEDED = "THROTTLING_QUOTA_EXCEEDED", "RESOURCE_EXHAUSTED", _RETRIABLE  # metadata has the wait
    # durability
    NOT_ENOUGH_REPLICAS = "NOT_ENOUGH_REPLICAS", _UNAVAILABLE, _RETRIABLE
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = "NOT_ENOUGH_REPLICAS_AFTER_APPEND", _UNAVAILABLE, _RETRIABLE
    REQUEST_TIMED_OUT = "REQUEST_TIMED_OUT", "DEADLINE_EXCEEDED", _RETRIABLE
    STORAGE_ERROR = "STORAGE_ERROR", _UNAVAILABLE, _RETRIABLE
    DISK_FULL = "DISK_FULL", _UNAVAILABLE, _RETRIABLE  # no record was written; writes continue once there is space
    REPLICA_DAMAGED = "REPLICA_DAMAGED", _DATA_LOSS
    # producers
    OUT_OF_ORDER_SEQUENCE = "OUT_OF_ORDER_SEQUENCE", _PRECONDITION
    UNKNOWN_PRODUCER_ID = "UNKNOWN_PRODUCER_ID", _PRECONDITION
    PRODUCER_FENCED = "PRODUCER_FENCED", _PRECONDITION
    DUPLICATE_SEQUENCE = "DUPLICATE_SEQUENCE", _PRECONDITION  # a duplicate older than the remembered batches
    # transactions
    INVALID_TXN_STATE = "INVALID_TXN_STATE", _PRECONDITION  # the call does not fit the state of the transaction
    CONCURRENT_TRANSACTIONS = "CONCURRENT_TRANSACTIONS", _ABORTED, _RETRIABLE  # the last one is being completed
    COORDINATOR_FENCED = "COORDINATOR_FENCED", _PRECONDITION  # a newer transaction coordinator wrote a marker
    INVALID_TRANSACTION_TIMEOUT = "INVALID_TRANSACTION_TIMEOUT"
    INVALID_TRANSACTIONAL_ID = "INVALID_TRANSACTIONAL_ID"
    TRANSACTION_NOT_FOUND = "TRANSACTION_NOT_FOUND", _NOT_FOUND
    TRANSACTION_ABORTABLE = "TRANSACTION_ABORTABLE", _PRECONDITION  # the transaction cannot commit any more; abort it
    # consumer groups
    INVALID_GROUP_ID = "INVALID_GROUP_ID"
    GROUP_NOT_FOUND = "GROUP_NOT_FOUND", _NOT_FOUND
    GROUP_NOT_EMPTY = "GROUP_NOT_EMPTY", _PRECONDITION  # the group has members
    GROUP_SUBSCRIBED_TO_TOPIC = "GROUP_SUBSCRIBED_TO_TOPIC", _PRECONDITION  # a member reads the partitions
    GROUP_FULL = "GROUP_FULL", _PRECONDITION
    INCONSISTENT_GROUP_PROTOCOL = "INCONSISTENT_GROUP_PROTOCOL", _PRECONDITION  # another kind of group uses the id
    UNSUPPORTED_ASSIGNOR = "UNSUPPORTED_ASSIGNOR"
    UNKNOWN_MEMBER = "UNKNOWN_MEMBER", _PRECONDITION  # join again
    FENCED_MEMBER_EPOCH = "FENCED_MEMBER_EPOCH", _PRECONDITION  # revoke all partitions and join again
    STALE_MEMBER_EPOCH = "STALE_MEMBER_EPOCH", _PRECONDITION, _RETRIABLE  # heartbeat first, then commit again
    PARTITION_NOT_ASSIGNED = "PARTITION_NOT_ASSIGNED", _PRECONDITION  # the member does not hold the partition
    FENCED_INSTANCE_ID = "FENCED_INSTANCE_ID", _PRECONDITION  # another member has that instance id now
    UNRELEASED_INSTANCE_ID = "UNRELEASED_INSTANCE_ID", _PRECONDITION  # the member with this instance id has not left
    NOT_COORDINATOR = "NOT_COORDINATOR", _PRECONDITION, _RETRIABLE
    COORDINATOR_NOT_AVAILABLE = "COORDINATOR_NOT_AVAILABLE", _UNAVAILABLE, _RETRIABLE
    COORDINATOR_LOADING = "COORDINATOR_LOADING", _UNAVAILABLE, _RETRIABLE  # the coordinator is still loading its log
    OFFSET_METADATA_TOO_LARGE = "OFFSET_METADATA_TOO_LARGE"
    # broker start
    ADVERTISED_ADDRESS_UNREACHABLE = "ADVERTISED_ADDRESS_UNREACHABLE"
    # fencing
    STALE_CONTROLLER_EPOCH = "STALE_CONTROLLER_EPOCH", _PRECONDITION
    STALE_BROKER_EPOCH = "STALE_BROKER_EPOCH", _PRECONDITION
    BROKER_ID_TAKEN = "BROKER_ID_TAKEN", _PRECONDITION
    CONTROLLER_NOT_ACTIVE = "CONTROLLER_NOT_ACTIVE", _UNAVAILABLE, _RETRIABLE
    # security
    AUTHENTICATION_FAILED = "AUTHENTICATION_FAILED", "UNAUTHENTICATED"  # the peer's identity could not be proved
    CLUSTER_AUTHORIZATION_FAILED = "CLUSTER_AUTHORIZATION_FAILED", _DENIED  # the caller lacks a right on the cluster
    TOPIC_AUTHORIZATION_FAILED = "TOPIC_AUTHORIZATION_FAILED", _DENIED  # the caller lacks a right on the topic
    GROUP_AUTHORIZATION_FAILED = "GROUP_AUTHORIZATION_FAILED", _DENIED  # the caller lacks a right on the group
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", _DENIED  # no right on the id
    AUTHORIZER_NOT_READY = "AUTHORIZER_NOT_READY", _UNAVAILABLE, _RETRIABLE  # the access rules have not been read yet
    # others
    BROKER_NOT_AVAILABLE = "BROKER_NOT_AVAILABLE", _UNAVAILABLE, _RETRIABLE
    UNKNOWN_BROKER = "UNKNOWN_BROKER", _NOT_FOUND  # no broker with this id has registered
    COORDINATION_UNAVAILABLE = "COORDINATION_UNAVAILABLE", _UNAVAILABLE, _RETRIABLE  # ZooKeeper cannot be reached
    SHUTTING_DOWN = "SHUTTING_DOWN", _UNAVAILABLE, _RETRIABLE
    CLIENT_CLOSED = "CLIENT_CLOSED"  # the client object is closed, or was not started
    INTERNAL = "INTERNAL", "INTERNAL"


TOKEN_EXPIRED: str = "expired"
"""Reason in the metadata of AUTHENTICATION_FAILED."""


class TidemarkError(Exception):
    """An error with a stable code, a sentence for the reader and facts for programs.

    The code selects the class, as an errno does for OSError; this holds for errors from other processes, too.

    Attributes:
        code: kind of error.
        message: the cause, and the next step.
        metadata: facts that a client can act on, such as {"leader": "2", "leader_epoch": "7"}.
    """

    _classes: ClassVar[dict[ErrorCode, type[TidemarkError]]] = {}

    def __init_subclass__(cls, *, codes: tuple[ErrorCode, ...] = (), **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        for code in codes:
            assert code not in cls._classes, f"{code} has a class"
            cls._classes[code] = cls

    def __new__(cls, code: ErrorCode, message: str = "", metadata: Mapping[str, str] | None = None) -> Self:
        """Create an instance of the code's class, where that is a subclass of `cls`."""
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
        """Whether a retry may succeed; after an expired token, a retry with a new one."""
        if self.code is ErrorCode.AUTHENTICATION_FAILED:
            return self.metadata.get("reason") == TOKEN_EXPIRED
        return self.code.retriable

    def __reduce__(self) -> tuple[type[TidemarkError], tuple[ErrorCode, str, dict[str, str]]]:
        return type(self), (self.code, self.message, dict(self.metadata))


class InvalidRequestError(
    TidemarkError, codes=(ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_PARTITIONS, ErrorCode.INVALID_REPLICATION_FACTOR)
):
    """An argument is wrong; the request had no effect."""


class InvalidConfigError(
    TidemarkError,
    codes=(
        ErrorCode.INVALID_CONFIG,
        ErrorCode.UNKNOWN_CONFIG,
        ErrorCode.INVALID_ACKS,
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        ErrorCode.INVALID_TRANSACTIONAL_ID,
    ),
):
    """A setting is wrong; the request had no effect."""


class InvalidTopicNameError(TidemarkError, codes=(ErrorCode.INVALID_TOPIC_NAME,)):
    """The topic name is not 1 to 249 characters of [a-zA-Z0-9._-], or is "." or ".."."""


class InvalidGroupIdError(TidemarkError, codes=(ErrorCode.INVALID_GROUP_ID,)):
    """The group id is invalid."""


class InvalidRecordError(
    TidemarkError,
    codes=(
        ErrorCode.INVALID_BATCH,
        ErrorCode.INVALID_PAYLOAD,
        ErrorCode.RECORD_COUNT_MISMATCH,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.NULL_KEY,
        ErrorCode.SCHEMA_MISMATCH,
    ),
):
    """Records are invalid: wrong type, wrong timestamp, no key for a compacted topic, or columns that do not match
    the topic's schema.
    """


class SchemaError(
    TidemarkError,
    codes=(
        ErrorCode.INVALID_SCHEMA,
        ErrorCode.INCOMPATIBLE_SCHEMA,
        ErrorCode.SCHEMA_CONFLICT,
        ErrorCode.UNKNOWN_SCHEMA_VERSION,
    ),
):
    """A topic's schema cannot be stored or changed as requested, or a version of the schema is not known."""


class CorruptBatchError(TidemarkError, codes=(ErrorCode.CORRUPT_BATCH,)):
    """A checksum does not match: damaged in transit, where a retry helps, or on a disk."""


class BatchTooLargeError(TidemarkError, codes=(ErrorCode.BATCH_TOO_LARGE,)):
    """A record, or a batch, is larger than its topic or a request allows."""


class TopicAlreadyExistsError(TidemarkError, codes=(ErrorCode.TOPIC_ALREADY_EXISTS,)):
    """The topic exists already."""


class UnknownTopicError(TidemarkError, codes=(ErrorCode.UNKNOWN_TOPIC,)):
    """The topic does not exist: it was never created, or was deleted."""


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
    """The partition has no leader now, or the called broker is not the leader."""


class OffsetOutOfRangeError(TidemarkError, codes=(ErrorCode.OFFSET_OUT_OF_RANGE,)):
    """The offset is below the log start offset: its records were deleted."""


class OffsetNotAvailableError(TidemarkError, codes=(ErrorCode.OFFSET_NOT_AVAILABLE,)):
    """This broker does not know the offset yet; another broker does, or this broker will soon."""


class LogTruncatedError(TidemarkError, codes=(ErrorCode.LOG_TRUNCATED, ErrorCode.LOG_DIVERGED)):
    """The offset is above the leader's log end offset, or the log diverged from the records read before (rule K1)."""


class NotEnoughReplicasError(
    TidemarkError, codes=(ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
):
    """Too few replicas are in sync for acks='all'."""


class RequestTimedOutError(TidemarkError, codes=(ErrorCode.REQUEST_TIMED_OUT,)):
    """The request got no answer within its time limit."""


class StorageError(
    TidemarkError,
    codes=(ErrorCode.STORAGE_ERROR, ErrorCode.DISK_FULL, ErrorCode.REPLICA_DAMAGED, ErrorCode.REPLICA_OFFLINE),
):
    """A disk failed to write or to read."""


class ProducerSequenceError(
    TidemarkError, codes=(ErrorCode.OUT_OF_ORDER_SEQUENCE, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.DUPLICATE_SEQUENCE)
):
    """The partition lacks an earlier batch of this producer, so a retry could become a duplicate."""


class ProducerFencedError(TidemarkError, codes=(ErrorCode.PRODUCER_FENCED,)):
    """A newer producer has the same producer id or transactional id: stop this one."""


class TransactionAbortedError(TidemarkError, codes=(ErrorCode.TRANSACTION_ABORTABLE,)):
    """The transaction was aborted, or can only be aborted; the cause may be over: run the transaction again."""


class TransactionStateError(TidemarkError, codes=(ErrorCode.INVALID_TXN_STATE,)):
    """The call does not fit the state of the transaction, such as a send outside of a transaction: correct the
    program.
    """


class TransactionNotFoundError(TidemarkError, codes=(ErrorCode.TRANSACTION_NOT_FOUND,)):
    """There is no such transactional id: no producer of the id ever started, or the id expired."""


class ConcurrentTransactionsError(TidemarkError, codes=(ErrorCode.CONCURRENT_TRANSACTIONS,)):
    """The last transaction of the id is still being completed; the clients retry."""


class GroupNotFoundError(TidemarkError, codes=(ErrorCode.GROUP_NOT_FOUND,)):
    """The group does not exist."""


class GroupNotEmptyError(TidemarkError, codes=(ErrorCode.GROUP_NOT_EMPTY, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)):
    """The group has members, and the request needs an empty group."""


class GroupFullError(TidemarkError, codes=(ErrorCode.GROUP_FULL,)):
    """The group has its largest number of members."""


class InconsistentGroupProtocolError(TidemarkError, codes=(ErrorCode.INCONSISTENT_GROUP_PROTOCOL,)):
    """A group of another kind has this id."""


class UnsupportedAssignorError(TidemarkError, codes=(ErrorCode.UNSUPPORTED_ASSIGNOR,)):
    """The brokers do not have this assignor."""


class FencedMemberError(TidemarkError, codes=(ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER)):
    """The member was fenced: other members may have its partitions; nothing was committed."""


class FencedInstanceError(TidemarkError, codes=(ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNRELEASED_INSTANCE_ID)):
    """Another member of the group has this instance_id."""


class PartitionNotAssignedError(TidemarkError, codes=(ErrorCode.PARTITION_NOT_ASSIGNED,)):
    """The partition is not, or no longer, assigned to the member."""


class CoordinatorNotAvailableError(
    TidemarkError, codes=(ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOADING)
):
    """The coordinator of the group, or of the transactional id, is not available yet."""


class BrokerNotAvailableError(
    TidemarkError, codes=(ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.SHUTTING_DOWN, ErrorCode.AUTHORIZER_NOT_READY)
):
    """No broker that could answer was reached; `metadata` has the cause for each address."""


class AuthenticationError(TidemarkError, codes=(ErrorCode.AUTHENTICATION_FAILED,)):
    """One side did not accept the certificate or the token of the other side."""


class AuthorizationError(
    TidemarkError,
    codes=(
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
):
    """The caller's identity has no right to do this; `metadata` has principal, operation and resource."""


class QuotaExceededError(TidemarkError, codes=(ErrorCode.THROTTLING_QUOTA_EXCEEDED,)):
    """The user has used up its quota; `metadata` has the wait, `throttle_time_ms`."""


class ClientClosedError(TidemarkError, codes=(ErrorCode.CLIENT_CLOSED,)):
    """This client is closed, or was not started."""


class InternalError(TidemarkError, codes=(ErrorCode.INTERNAL,)):
    """A defect in Tidemark, or a code of a later version."""


def error_of(code: str, message: str, metadata: Mapping[str, str] | None = None) -> TidemarkError:
    """The error of another process; a code of a later version becomes INTERNAL, with its name in the message."""
    try:
        return TidemarkError(ErrorCode(code), message, metadata)
    except ValueError:
        return TidemarkError(ErrorCode.INTERNAL, f"{code}: {message}", metadata)


def invalid_request(sentence: str) -> TidemarkError:
    """The error for a request that no retry makes valid."""
    return TidemarkError(ErrorCode.INVALID_REQUEST, sentence)


def invalid_config(name: str, sentence: str) -> TidemarkError:
    """The error for a setting with an invalid value."""
    return TidemarkError(ErrorCode.INVALID_CONFIG, sentence, {"config": name})


def unknown_partition(topic: str, partition: int, count: int) -> TidemarkError:
    """The error for a partition that a topic of `count` partitions does not have."""
    return TidemarkError(
        ErrorCode.UNKNOWN_PARTITION,
        f"topic {topic} has no partition {partition}; it has {count}, from 0",
        {"topic": topic, "partition": str(partition), "partitions": str(count)},
    )


def unknown_topic(topic: str, metadata: Mapping[str, str] | None = None) -> TidemarkError:
    """The error for a topic that does not exist; `metadata` may hold more facts."""
    return TidemarkError(
        ErrorCode.UNKNOWN_TOPIC,
        f"there is no topic {topic!r}; `tidemark topic list` shows the topics, `tidemark topic create` makes one",
        metadata or {"topic": topic},
    )
