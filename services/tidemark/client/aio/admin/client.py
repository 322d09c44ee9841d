# SPDX-License-Identifier: Apache-2.0
"""The async admin client: AdminService in the words of the domain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import grpc

from tidemark.client.aio.admin.brokers import BrokerCalls
from tidemark.client.aio.admin.configs import ConfigCalls
from tidemark.client.aio.admin.log_dirs import LogDirCalls
from tidemark.client.aio.admin.reassignments import ReassignmentCalls
from tidemark.client.aio.admin.records import RecordCalls
from tidemark.client.created_topic import CreatedTopic
from tidemark.client.lifecycle import Lifecycle
from tidemark.client.metadata.cluster import Cluster
from tidemark.core.cluster_view import ClusterView, TopicView
from tidemark.model import (
    BrokerId,
    ElectionKind,
    ElectionOutcome,
    ErrorCode,
    TidemarkError,
    TopicPartition,
    UncleanElection,
)
from tidemark.rpc import errors
from tidemark.rpc.channel import close_channels, open_channel
from tidemark.rpc.election_codec import kind_to_proto, outcome_from_proto, unclean_from_proto
from tidemark.rpc.metadata_codec import topic_from_proto, view_from_proto
from tidemark.rpc.refs import ref_to_proto
from tidemark.v1 import admin_service_pb2 as pb
from tidemark.v1.admin_service_pb2_grpc import AdminServiceStub

_TIMEOUT_S: Final = 30.0


class ClusterDescription(NamedTuple):
    """The cluster, and how its partitions fare."""

    view: ClusterView
    topic_count: int
    partition_count: int
    under_replicated_count: int
    under_min_isr_count: int
    offline_count: int
    draining_brokers: tuple[BrokerId, ...] = ()
    """On which nothing new is placed: they are being removed, or are."""


class AdminClient(ConfigCalls, ReassignmentCalls, BrokerCalls, RecordCalls, LogDirCalls, Lifecycle):
    """Creates, deletes and describes topics, changes settings, moves replicas between brokers and between
    directories, adds and removes brokers, and holds elections.

    Args:
        admin: host:port of the admin service; None: asked of the brokers.
        bootstrap: "host:port[,host:port...]" of any brokers; None: TIDEMARK_BOOTSTRAP.
        timeout_s: bound of each call, and of the silence before each piece of news.
    """

    def __init__(
        self, admin: str | None = None, *, bootstrap: str | None = None, timeout_s: float = _TIMEOUT_S
    ) -> None:
        self._admin = admin
        self._bootstrap = bootstrap
        self._timeout_s = timeout_s
        self._channel: grpc.aio.Channel | None = None

    async def start(self) -> None:
        """Find the admin service; raises BROKER_NOT_AVAILABLE when no broker answers or knows it."""
        if self._admin is None:
            cluster = Cluster(self._bootstrap, timeout_s=self._timeout_s)
            try:
                await cluster.start()
                self._admin = cluster.view.admin_address
            finally:
                await cluster.close()
            if not self._admin:
                raise TidemarkError(
                    ErrorCode.BROKER_NOT_AVAILABLE, "the brokers know no admin service: name it (admin='host:port')"
                )
        self._channel = open_channel(self._admin)

    async def close(self) -> None:
        """Close the connection."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await close_channels([channel])

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int = 0,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
        request_id: str = "",
    ) -> CreatedTopic:
        """Create a topic and wait until every partition has a leader; its `warnings` are worth showing to its maker.

        Args:
            name: 1 to 249 of [a-zA-Z0-9._-], not "." or "..".
            partitions: how many, 1 or more.
            replication_factor: 0: the default of the cluster.
            configs: topic settings.
            validate_only: check and compute, change nothing.
            request_id: makes a retry harmless.
        """
        request = pb.CreateTopicRequest(
            topic=name,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=dict(configs or {}),
            validate_only=validate_only,
            request_id=request_id,
        )
        response = await self._call(lambda stub: stub.CreateTopic, request)
        return CreatedTopic.of(topic_from_proto(response.topic))

    async def delete_topic(self, name: str, *, validate_only: bool = False, request_id: str = "") -> None:
        """Delete a topic and wait until it is gone; raises UNKNOWN_TOPIC. With `validate_only` nothing is changed."""
        request = pb.DeleteTopicRequest(topic=name, validate_only=validate_only, request_id=request_id)
        await self._call(lambda stub: stub.DeleteTopic, request)

    async def list_topics(self) -> list[str]:
        """All names, sorted."""
        response = await self._call(lambda stub: stub.ListTopics, pb.ListTopicsRequest())
        return list(response.topics)

    async def describe_topics(self, names: Sequence[str] = ()) -> list[TopicView]:
        """Topics in the order asked for (none: all); one that does not exist carries an error."""
        response = await self._call(lambda stub: stub.DescribeTopics, pb.DescribeTopicsRequest(topics=names))
        return [topic_from_proto(topic) for topic in response.topics]

    async def describe_cluster(self) -> ClusterDescription:
        """Brokers, controller and counts."""
        response = await self._call(lambda stub: stub.DescribeCluster, pb.DescribeClusterRequest())
        return ClusterDescription(
            view_from_proto(response.metadata),
            response.topic_count,
            response.partition_count,
            response.under_replicated_count,
            response.under_min_isr_count,
            response.offline_count,
            tuple(BrokerId(broker) for broker in response.draining_brokers),
        )

    async def _brokers(self) -> ClusterView:
        return (await self.describe_cluster()).view

    async def elect_leaders(
        self,
        kind: ElectionKind,
        partitions: Sequence[TopicPartition] = (),
        *,
        topics: Sequence[str] = (),
        validate_only: bool = False,
        request_id: str = "",
    ) -> list[ElectionOutcome]:
        """Hold elections and wait for what comes of them; each partition succeeds or carries an error.

        Args:
            kind: PREFERRED loses nothing; LAST_KNOWN, for partitions that nobody leads, may lose records.
            partitions: which.
            topics: topics meant with all their partitions; PREFERRED with neither means every topic.
            validate_only: check, and foresee what would be lost as far as replicas tell; change nothing.
            request_id: makes a retry harmless.
        """
        request = pb.ElectLeadersRequest(
            type=kind_to_proto(kind),
            partitions=[ref_to_proto(partition) for partition in partitions],
            topics=topics,
            validate_only=validate_only,
            request_id=request_id,
        )
        response = await self._call(lambda stub: stub.ElectLeaders, request)
        return [outcome_from_proto(result) for result in response.results]

    async def list_unclean_elections(self, topics: Sequence[str] = ()) -> list[UncleanElection]:
        """The loss reports kept (no topics: of all), by partition, the oldest first; raises UNKNOWN_TOPIC."""
        request = pb.ListUncleanElectionsRequest(topics=topics)
        response = await self._call(lambda stub: stub.ListUncleanElections, request)
        return [unclean_from_proto(report) for report in response.elections]

    async def _call(self, method: Callable[[Any], Any], request: Any) -> Any:
        if self._channel is None:
            raise TidemarkError(ErrorCode.CLIENT_CLOSED, "the admin client is not started, or closed")
        try:
            return await method(AdminServiceStub(self._channel))(request, timeout=self._timeout_s, wait_for_ready=False)
        except grpc.RpcError as error:
            raise errors.from_rpc_error(error, address=f"admin service {self._admin}") from None

    async def _stream(
        self, method: Callable[[Any], Any], request: Any, *, interval_ms: int = 0
    ) -> AsyncGenerator[Any, None]:
        if self._channel is None:
            raise TidemarkError(ErrorCode.CLIENT_CLOSED, "the admin client is not started, or closed")
        silence_s = self._timeout_s + interval_ms / 1000
        call = method(AdminServiceStub(self._channel))(request, wait_for_ready=False)
        try:
            while (response := await _within(silence_s, call.read())) is not grpc.aio.EOF:
                yield response
        except TimeoutError:
            raise TidemarkError(
                ErrorCode.REQUEST_TIMED_OUT, f"admin service {self._admin}: silent for {silence_s:g} s"
            ) from None
        except grpc.RpcError as error:
            raise errors.from_rpc_error(error, address=f"admin service {self._admin}") from None
        finally:
            call.cancel()


async def _within(timeout_s: float, answer: Awaitable[Any]) -> Any:
    async with asyncio.timeout(timeout_s):
        return await answer
