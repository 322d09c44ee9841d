"""Producer, Consumer and AdminClient; async ones in `tidemark.client.aio`."""

from tidemark.client.batching import SendHandle, TableHandle
from tidemark.client.partitioner import Partitioner
from tidemark.client.records import ConsumerRecord, PartitionBatch, RecordMetadata, Timestamp
from tidemark.client.sync import AdminClient, Consumer, Producer
from tidemark.client.sync_groups import Groups
from tidemark.core.config_resource import CLUSTER_DEFAULT, ConfigKind, ConfigResource
from tidemark.core.replica_place import ReplicaPlace
from tidemark.model import ErrorCode, TidemarkError, TopicPartition

__all__ = [
    "CLUSTER_DEFAULT",
    "AdminClient",
    "ConfigKind",
    "ConfigResource",
    "Consumer",
    "ConsumerRecord",
    "ErrorCode",
    "Groups",
    "PartitionBatch",
    "Partitioner",
    "Producer",
    "RecordMetadata",
    "ReplicaPlace",
    "SendHandle",
    "TableHandle",
    "TidemarkError",
    "Timestamp",
    "TopicPartition",
]
