"""Producer, Consumer and AdminClient; async ones in `tidemark.client.aio`."""

from tidemark.client.batching import SendHandle, TableHandle
from tidemark.client.records import ConsumerRecord, RecordMetadata
from tidemark.client.sync import AdminClient, Producer

__all__ = ["AdminClient", "ConsumerRecord", "Producer", "RecordMetadata", "SendHandle", "TableHandle"]
