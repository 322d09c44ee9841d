"""Producer, Consumer and AdminClient; async ones in `tidemark.client.aio`."""

from tidemark.client.batching import SendHandle, TableHandle
from tidemark.client.records import ConsumerRecord, PartitionBatch, RecordMetadata, Timestamp
from tidemark.client.sync import AdminClient, Consumer, Producer

__all__ = [
    "AdminClient",
    "Consumer",
    "ConsumerRecord",
    "PartitionBatch",
    "Producer",
    "RecordMetadata",
    "SendHandle",
    "TableHandle",
    "Timestamp",
]
