"""The async clients."""

from tidemark.client.aio.admin import AdminClient, ClusterDescription
from tidemark.client.aio.consumer import Consumer
from tidemark.client.aio.groups import Groups
from tidemark.client.aio.producer import Producer

__all__ = ["AdminClient", "ClusterDescription", "Consumer", "Groups", "Producer"]
