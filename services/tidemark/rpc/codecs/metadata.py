# SPDX-License-Identifier: Apache-2.0
"""ClusterMetadata <-> core.cluster_view.ClusterView.

In a change (`complete` unset) `brokers` is complete and every TopicMetadata holds only the partitions that changed:
receivers merge with `core.cluster_view.apply`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, Protocol, TypeVar

from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView
from tidemark.core.security.listeners import for_services_of
from tidemark.model import BrokerEpoch, BrokerId, BrokerRegistration, ControllerEpoch, LeaderEpoch
from tidemark.rpc import errors
from tidemark.rpc.channel import listener_of_services
from tidemark.rpc.codecs.shared import STATES_KEPT, ids_from_proto
from tidemark.runtime.slices import Pace
from tidemark.v1 import metadata_pb2

LARGE_PARTITIONS: Final = 50
"""Topics of at least this number of partitions are cached as written or read."""
_CACHED_TOPICS: Final = 64


class Answer(Protocol):
    """A response that has a view."""

    @property
    def metadata(self) -> metadata_pb2.ClusterMetadata:
        """The message with the cluster view."""


_Answer = TypeVar("_Answer", bound=Answer)


class ViewWriter:
    """Writes responses. A response with a large topic is written once, and its requests share one object, since a
    server holds the last response of each stream."""

    def __init__(self) -> None:
        self._written: OrderedDict[tuple[Hashable, ...], tuple[ClusterView, asyncio.Task[Any]]] = OrderedDict()
        """Responses by the identity of unchanging parts; each keeps its view, so that no identity is reused."""

    async def answer(self, kind: type[_Answer], view: ClusterView) -> _Answer:
        """A response of that kind, which must not be changed; many topics are written in slices."""
        topics = view.topics.values()
        if any(one.error for one in topics) or all(len(one.partitions) < LARGE_PARTITIONS for one in topics):
            return await _filled(kind, view)  # an error is of one request: no other could share the response
        key = (
            *(kind, view.cluster_id, view.controller_id, view.controller_epoch, view.admin_address),
            *(view.complete, view.deleted_topics, view.hidden_topics, id(view.brokers)),
            *(view.sequence, view.more_parts),
            *((name, id(topic)) for name, topic in view.topics.items()),
        )
        known = self._written.get(key)
        if known is None:
            known = self._written[key] = (view, asyncio.create_task(_filled(kind, view), name="metadata answer"))
            if len(self._written) > _CACHED_TOPICS:
                self._written.popitem(last=False)
        else:
            self._written.move_to_end(key)
        answer: _Answer = await asyncio.shield(known[1])  # other requests wait for the event loop, too
        return answer


async def _filled(kind: type[_Answer], view: ClusterView) -> _Answer:
    answer = kind()
    answer.metadata.CopyFrom(view_to_proto(replace(view, topics={})))
    pace = Pace()
    for topic in view.topics.values():
        if pace.is_due:
            await pace.give_way()
        answer.metadata.topics.append(topic_to_proto(topic))
    return answer


def view_to_proto(view: ClusterView) -> metadata_pb2.ClusterMetadata:
    """The message of a view or a change."""
    return metadata_pb2.ClusterMetadata(
        cluster_id=view.cluster_id,
        controller_id=view.controller_id,
        controller_epoch=view.controller_epoch,
        admin_address=view.admin_address,
        brokers=[broker_to_proto(broker) for broker in view.brokers.values()],
        topics=[topic_to_proto(topic) for topic in view.topics.values()],
        deleted_topics=list(view.deleted_topics),
        complete=view.complete,
        part=view.part,
        more_parts=view.more_parts,
        hidden_topics=view.hidden_topics,
        sequence=view.sequence,
    )


def view_from_proto(message: metadata_pb2.ClusterMetadata, *, shared: bool = False) -> ClusterView:
    """The view or change of a message; `shared`: readers of the same large topic in this process share one object."""
    read = _shared_topic if shared else topic_from_proto
    return ClusterView(
        cluster_id=message.cluster_id,
        controller_id=BrokerId(message.controller_id),
        controller_epoch=ControllerEpoch(message.controller_epoch),
        admin_address=message.admin_address,
        brokers={BrokerId(broker.broker_id): broker_from_proto(broker) for broker in message.brokers},
        topics={topic.topic: read(topic) for topic in message.topics},
        deleted_topics=tuple(message.deleted_topics),
        complete=message.complete,
        part=message.part,
        more_parts=message.more_parts,
        hidden_topics=tuple(message.hidden_topics),
        sequence=message.sequence,
    )


def broker_to_proto(broker: BrokerRegistration) -> metadata_pb2.BrokerEndpoint:
    """Encode the address of a broker."""
    return metadata_pb2.BrokerEndpoint(
        broker_id=broker.broker_id,
        host=broker.host,
        port=broker.port,
        rack=broker.rack,
        broker_epoch=broker.broker_epoch,
        endpoints=broker.endpoints,
        features=broker.features,
    )


def broker_from_proto(message: metadata_pb2.BrokerEndpoint) -> BrokerRegistration:
    """Decode the address of a broker, without its directories: at the listener that this process uses."""
    broker = BrokerRegistration(
        broker_id=BrokerId(message.broker_id),
        host=message.host,
        port=message.port,
        rack=message.rack,
        broker_epoch=BrokerEpoch(message.broker_epoch),
        endpoints=tuple(message.endpoints),
        features=dict(message.features),
    )
    return for_services_of(listener_of_services(), broker)


def topic_to_proto(
    topic: TopicView, encoded: Callable[[PartitionView], metadata_pb2.PartitionMetadata] | None = None
) -> metadata_pb2.TopicMetadata:
    """One topic with the partitions of the view.

    Args:
        encoded: returns the message of a partition, for example a message made before; None: each message is made.
    """
    encoded = encoded or partition_to_proto
    return metadata_pb2.TopicMetadata(
        topic=topic.topic,
        topic_id=topic.topic_id,
        created_zxid=topic.created_zxid,
        modified_zxid=topic.modified_zxid,
        partitions=[encoded(topic.partitions[index]) for index in sorted(topic.partitions)],
        configs=dict(topic.configs),
        error=None if topic.error is None else errors.to_proto(topic.error),
        partition_count=topic.partition_count,
        schema_version=topic.schema_version,
    )


def topic_from_proto(message: metadata_pb2.TopicMetadata) -> TopicView:
    """One topic with the partitions of the message."""
    return TopicView(
        topic=message.topic,
        topic_id=message.topic_id,
        created_zxid=message.created_zxid,
        modified_zxid=message.modified_zxid,
        partitions={partition.partition: _partition_from_proto(partition) for partition in message.partitions},
        configs=dict(message.configs),
        error=errors.error_in(message),
        partition_count=message.partition_count,
        schema_version=message.schema_version,
    )


def _shared_topic(message: metadata_pb2.TopicMetadata) -> TopicView:
    if len(message.partitions) < LARGE_PARTITIONS:
        return topic_from_proto(message)
    return _topic_of(message.SerializeToString(deterministic=True))


@lru_cache(maxsize=_CACHED_TOPICS)
def _topic_of(serialized: bytes) -> TopicView:
    return topic_from_proto(metadata_pb2.TopicMetadata.FromString(serialized))


def partition_to_proto(partition: PartitionView) -> metadata_pb2.PartitionMetadata:
    """Encode the metadata of one partition."""
    return metadata_pb2.PartitionMetadata(
        partition=partition.partition,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        assigned_replicas=partition.assigned_replicas,
        in_sync_replicas=partition.in_sync_replicas,
        incarnation=partition.incarnation,
        lineage=partition.lineage,
        eligible_leader_replicas=partition.eligible_leader_replicas,
        partition_epoch=partition.partition_epoch,
        state_unreadable=partition.state_unreadable,
    )


def _partition_from_proto(message: metadata_pb2.PartitionMetadata) -> PartitionView:
    """Decode a partition; partitions with the same other fields share one decoding of them."""
    index, incarnation, partition_epoch = message.partition, message.incarnation, message.partition_epoch
    message.incarnation = ""
    message.partition = message.partition_epoch = 0
    same = _same_fields(message.SerializePartialToString())
    message.partition, message.incarnation, message.partition_epoch = index, incarnation, partition_epoch
    return PartitionView(
        index,
        same.leader,
        same.leader_epoch,
        same.assigned_replicas,
        same.in_sync_replicas,
        incarnation,
        same.lineage,
        same.eligible_leader_replicas,
        partition_epoch,
        same.state_unreadable,
    )


@lru_cache(STATES_KEPT)
def _same_fields(serialized: bytes) -> PartitionView:
    """A view without the fields that differ between partitions: index, incarnation and partition epoch."""
    message = metadata_pb2.PartitionMetadata.FromString(serialized)
    return PartitionView(
        partition=0,
        leader=BrokerId(message.leader),
        leader_epoch=LeaderEpoch(message.leader_epoch),
        assigned_replicas=ids_from_proto(message.assigned_replicas),
        in_sync_replicas=ids_from_proto(message.in_sync_replicas),
        lineage=message.lineage,
        eligible_leader_replicas=ids_from_proto(message.eligible_leader_replicas),
        state_unreadable=message.state_unreadable,
    )
