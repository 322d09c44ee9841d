"""Producer, Consumer and AdminClient; async ones in `tidemark.client.aio`."""

from tidemark.client.batching import SendHandle, TableHandle
from tidemark.client.records import ConsumerRecord, PartitionBatch, RecordMetadata, Timestamp
from tidemark.client.sync import AdminClient, Consumer, Producer
from tidemark.client.sync_groups import Groups
from tidemark.core.config_resource import CLUSTER_DEFAULT, ConfigKind, ConfigResource
from tidemark.core.replica_place import ReplicaPlace

__all__ = [
    "CLUSTER_DEFAULT",
    "AdminClient",
    "ConfigKind",
    "ConfigResource",
    "Consumer",
    "ConsumerRecord",
    "Groups",
    "PartitionBatch",
    "Producer",
    "RecordMetadata",
    "ReplicaPlace",
    "SendHandle",
    "TableHandle",
    "Timestamp",
]
