# SPDX-License-Identifier: Apache-2.0
"""Producer, Consumer, Groups and AdminClient for threads; `tidemark.client.aio` has the same for asyncio.

Each class is imported at its first use, so that an AdminClient does not import Arrow.
"""

from typing import TYPE_CHECKING

from tidemark.core.config_resource import CLUSTER_DEFAULT, ConfigKind, ConfigResource
from tidemark.core.reassignment.log_dir_placement import ReplicaLogDir
from tidemark.errors import (
    AuthenticationError,
    AuthorizationError,
    BatchTooLargeError,
    BrokerNotAvailableError,
    ClientClosedError,
    ConcurrentTransactionsError,
    CoordinatorNotAvailableError,
    CorruptBatchError,
    ErrorCode,
    FencedInstanceError,
    FencedMemberError,
    GroupFullError,
    GroupNotEmptyError,
    GroupNotFoundError,
    InconsistentGroupProtocolError,
    InternalError,
    InvalidConfigError,
    InvalidGroupIdError,
    InvalidRecordError,
    InvalidRequestError,
    InvalidTopicNameError,
    LogTruncatedError,
    NotEnoughReplicasError,
    NotLeaderError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    PartitionNotAssignedError,
    ProducerFencedError,
    ProducerSequenceError,
    QuotaExceededError,
    RequestTimedOutError,
    SchemaError,
    StorageError,
    TidemarkError,
    TopicAlreadyExistsError,
    TopicRecreatedError,
    TransactionAbortedError,
    TransactionNotFoundError,
    TransactionStateError,
    UnknownPartitionError,
    UnknownTopicError,
    UnsupportedAssignorError,
)
from tidemark.model import ElectionKind, PartitionReassignment, TopicPartition
from tidemark.rpc.security.paths import TlsFiles

if TYPE_CHECKING:
    from tidemark.client.producing.batching import SendHandle, TableHandle
    from tidemark.client.producing.partitioner import Partitioner
    from tidemark.client.records import ConsumerRecord, PartitionBatch, RecordMetadata, Timestamp
    from tidemark.client.sync.admin import AdminClient
    from tidemark.client.sync.groups import Groups
    from tidemark.client.sync.producer_consumer import Consumer, Producer
    from tidemark.client.tables.archiver import archive_topic
    from tidemark.client.tables.compaction import compact_archive
    from tidemark.client.tables.polars_scan import scan
    from tidemark.client.tables.table_scan import read_table
else:
    from tidemark.client.lazy_imports import on_demand

    __getattr__ = on_demand(
        __name__,
        {
            "producing.batching": ("SendHandle", "TableHandle"),
            "producing.partitioner": ("Partitioner",),
            "records": ("ConsumerRecord", "PartitionBatch", "RecordMetadata", "Timestamp"),
            "sync.producer_consumer": ("Consumer", "Producer"),
            "sync.admin": ("AdminClient",),
            "sync.groups": ("Groups",),
            "tables.archiver": ("archive_topic",),
            "tables.compaction": ("compact_archive",),
            "tables.polars_scan": ("scan",),
            "tables.table_scan": ("read_table",),
        },
    )

ReplicaPlace = ReplicaLogDir
"""The name of `ReplicaLogDir` in version 0.1.0."""

__all__ = [
    "CLUSTER_DEFAULT",
    "AdminClient",
    "AuthenticationError",
    "AuthorizationError",
    "BatchTooLargeError",
    "BrokerNotAvailableError",
    "ClientClosedError",
    "ConcurrentTransactionsError",
    "ConfigKind",
    "ConfigResource",
    "Consumer",
    "ConsumerRecord",
    "CoordinatorNotAvailableError",
    "CorruptBatchError",
    "ElectionKind",
    "ErrorCode",
    "FencedInstanceError",
    "FencedMemberError",
    "GroupFullError",
    "GroupNotEmptyError",
    "GroupNotFoundError",
    "Groups",
    "InconsistentGroupProtocolError",
    "InternalError",
    "InvalidConfigError",
    "InvalidGroupIdError",
    "InvalidRecordError",
    "InvalidRequestError",
    "InvalidTopicNameError",
    "LogTruncatedError",
    "NotEnoughReplicasError",
    "NotLeaderError",
    "OffsetNotAvailableError",
    "OffsetOutOfRangeError",
    "PartitionBatch",
    "PartitionNotAssignedError",
    "PartitionReassignment",
    "Partitioner",
    "Producer",
    "ProducerFencedError",
    "ProducerSequenceError",
    "QuotaExceededError",
    "RecordMetadata",
    "ReplicaLogDir",
    "RequestTimedOutError",
    "SchemaError",
    "SendHandle",
    "StorageError",
    "TableHandle",
    "TidemarkError",
    "Timestamp",
    "TlsFiles",
    "TopicAlreadyExistsError",
    "TopicPartition",
    "TopicRecreatedError",
    "TransactionAbortedError",
    "TransactionNotFoundError",
    "TransactionStateError",
    "UnknownPartitionError",
    "UnknownTopicError",
    "UnsupportedAssignorError",
    "archive_topic",
    "compact_archive",
    "read_table",
    "scan",
]
