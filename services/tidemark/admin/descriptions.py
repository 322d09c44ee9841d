# SPDX-License-Identifier: Apache-2.0
"""Descriptions of topics and of the cluster, as responses in bytes; each is encoded once until a change.

Every answer is as fresh as a read of ZooKeeper after a sync (`MetadataStore.cluster_snapshot`), or an error. Writes
never use these descriptions: they check ZooKeeper itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemark.admin.views import Counts, count, topic_view
from tidemark.core.cluster_view import ClusterView, TopicView
from tidemark.core.security.listeners import Listener, ListenerViews
from tidemark.core.topic_name import check_topic_name
from tidemark.model import NO_LEADER, TidemarkError, unknown_topic
from tidemark.ports import ClusterSnapshot, TopicSnapshot
from tidemark.rpc.codecs import wire
from tidemark.rpc.codecs.metadata import topic_to_proto, view_to_proto
from tidemark.rpc.limits.answer_size import ErrorRoom
from tidemark.rpc.request_limits import check_named
from tidemark.rpc.security.access import Access
from tidemark.runtime.slices import InSlices
from tidemark.v1 import admin_service_pb2 as pb
from tidemark.zookeeper.store import MetadataStore


class _Described:
    """A topic's part of the responses, computed when first needed."""

    def __init__(self, name: str, snapshot: TopicSnapshot) -> None:
        self.snapshot = snapshot
        self._name = name
        self._counts: Counts | None = None
        self._field: bytes | None = None

    @property
    def counts(self) -> Counts:
        if self._counts is None:
            topic = self.snapshot.topic
            self._counts = Counts() if topic is None else count([topic], self.snapshot.states)
        return self._counts

    @property
    def field(self) -> bytes:
        """The topic as an item of DescribeTopicsResponse.topics."""
        if self._field is None:
            self._field = _field(self._view())
        return self._field

    def _view(self) -> TopicView:
        topic = self.snapshot.topic
        if topic is None:
            return TopicView(topic=self._name, topic_id="", error=self.snapshot.error)
        return topic_view(topic, self.snapshot.states, self.snapshot.unreadable)


class Descriptions:
    """Describes topics and the cluster.

    Args:
        store: started.
        admin_addresses: host:port at which clients reach this service, by listener.
            Callers at other listeners get the address of Listener.ONLY.
    """

    def __init__(self, store: MetadataStore, admin_addresses: Mapping[str, str]) -> None:
        self._store = store
        self._views = ListenerViews(admin_addresses)
        self._described: dict[str, _Described] = {}
        self._of: ClusterSnapshot | None = None
        """The snapshot that both responses describe."""
        self._clusters: dict[Listener, bytes] = {}
        self._all_topics = b""

    async def topic_names(self) -> list[str]:
        """List the names of all topics that can be read, sorted."""
        snapshot = await self._store.cluster_snapshot()
        return [name for name, one in snapshot.topics.items() if one.topic is not None]

    async def topics(self, names: Sequence[str], access: Access | None = None) -> bytes:
        """Return a DescribeTopicsResponse with topics in the order of `names`.

        Without names, all topics that can be read are described. A topic that cannot be described has `error` set.

        Args:
            access: the caller's rights: topics that it may not see are unknown; None: all rights.

        Raises:
            TidemarkError: INVALID_REQUEST for too many names, COORDINATION_UNAVAILABLE, AUTHORIZER_NOT_READY.
        """
        check_named(names, "topics")
        snapshot = await self._store.cluster_snapshot()
        self._use(snapshot)
        if names:
            return await self._joined(snapshot, names, access)
        readable = [name for name, one in snapshot.topics.items() if one.topic is not None]
        if access is not None:
            visible = await _visible(readable, access)
            if len(visible) < len(readable):
                return await self._joined(snapshot, visible)
        if self._of is snapshot and self._all_topics:  # a later snapshot may have topics that were not checked
            return self._all_topics
        answer = await self._joined(snapshot, readable)
        if self._of is snapshot:
            self._all_topics = answer
        return answer

    async def cluster(self, listener: Listener = Listener.ONLY) -> bytes:
        """Return a DescribeClusterResponse: the live brokers, the controller, and counts of topics and partitions.

        Args:
            listener: listener of the caller, whose addresses the response has.
        """
        snapshot = await self._store.cluster_snapshot()
        self._use(snapshot)
        known = self._clusters.get(listener)
        if known is None:
            view = self._views.of(_cluster_view(snapshot), listener)
            known = _cluster(snapshot, view, await self._counts(snapshot))
            if self._of is snapshot:
                self._clusters[listener] = known
        return known

    def _use(self, snapshot: ClusterSnapshot) -> None:
        if self._of is not snapshot:
            self._of, self._clusters, self._all_topics = snapshot, {}, b""

    async def _counts(self, snapshot: ClusterSnapshot) -> Counts:
        total = Counts()
        async for one in InSlices(await self._each(snapshot, list(snapshot.topics))):
            total = total if one is None else total.plus(one.counts)
        return total

    async def _joined(self, snapshot: ClusterSnapshot, names: Sequence[str], access: Access | None = None) -> bytes:
        described = await self._each(snapshot, names)
        fields: list[bytes] = []
        hidden: dict[str, TopicView] = {}
        room = ErrorRoom()
        async for name, one in InSlices(zip(names, described, strict=True)):
            if access is not None and name not in hidden and not access.may_describe(name):
                hidden[name] = TopicView(topic=name, topic_id="", error=access.hidden(name))
            if name in hidden or one is None:
                fields.append(_field(hidden.get(name) or _missing(name), room))
            else:
                fields.append(one.field)
        return b"".join(fields)

    async def _each(self, snapshot: ClusterSnapshot, names: Sequence[str]) -> list[_Described | None]:
        """The parts of these topics; None for a topic that does not exist."""
        if len(self._described) > 2 * len(snapshot.topics) + 1:
            self._described = {name: one for name, one in self._described.items() if name in snapshot.topics}
        found: list[_Described | None] = []
        async for name in InSlices(names):
            topic = snapshot.topics.get(name)
            if topic is None:
                found.append(None)
                continue
            known = self._described.get(name)
            if known is None or known.snapshot is not topic:
                known = self._described[name] = _Described(name, topic)
            found.append(known)
        return found


async def _visible(names: Sequence[str], access: Access) -> list[str]:
    visible = []
    async for name in InSlices(names):
        if access.may_describe(name):
            visible.append(name)
    return visible


def _missing(name: str) -> TopicView:
    try:
        check_topic_name(name)
    except TidemarkError as error:
        return TopicView(topic=name, topic_id="", error=error)
    return TopicView(topic=name, topic_id="", error=unknown_topic(name))


def _field(view: TopicView, room: ErrorRoom | None = None) -> bytes:
    message = topic_to_proto(view)
    if room is not None:
        message.error.CopyFrom(room.fit(message.error))
    return b"".join(wire.nested(pb.DescribeTopicsResponse.TOPICS_FIELD_NUMBER, [message.SerializeToString()]))


def _cluster_view(snapshot: ClusterSnapshot) -> ClusterView:
    return ClusterView(
        cluster_id=snapshot.cluster_id,
        controller_id=NO_LEADER if snapshot.controller is None else snapshot.controller.controller_id,
        brokers={broker_id: snapshot.brokers[broker_id] for broker_id in sorted(snapshot.brokers)},
    )


def _cluster(snapshot: ClusterSnapshot, view: ClusterView, total: Counts) -> bytes:
    wait_ms = -1 if snapshot.controller is None else snapshot.controller.election_wait_ms
    response = pb.DescribeClusterResponse(
        metadata=view_to_proto(view),
        topic_count=total.topics,
        partition_count=total.partitions,
        under_replicated_count=total.under_replicated,
        under_min_isr_count=total.under_min_isr,
        offline_count=total.offline,
        draining_brokers=sorted(snapshot.draining),
        election_wait_ms=wait_ms if wait_ms >= 0 else None,
    )
    return response.SerializeToString()
