"""The admin service's calls, for commands that make one and end."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from tidemark.core.cluster_state import ClusterView, TopicView
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.channel import open_channel
from tidemark.rpc.errors import from_rpc_error
from tidemark.rpc.metadata_codec import topic_from_proto, view_from_proto
from tidemark.v1 import admin_service_pb2 as pb
from tidemark.v1 import broker_service_pb2
from tidemark.v1.admin_service_pb2_grpc import AdminServiceStub
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceStub

_METADATA_TIMEOUT_S = 5.0
_CALL_TIMEOUT_S = 35.0

Response = TypeVar("Response")


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster, and how many of its partitions are in trouble."""

    view: ClusterView
    topic_count: int
    partition_count: int
    under_replicated_count: int
    under_min_isr_count: int
    offline_count: int


class AdminCalls:
    """Blocking; each call opens a channel of its own.

    Args:
        bootstrap: addresses of brokers, separated by commas; asked where the admin service is.
        admin: its address, where it is known.

    Every call raises the TidemarkError that the service answers, or BROKER_NOT_AVAILABLE.
    """

    def __init__(self, bootstrap: str, admin: str) -> None:
        self._bootstrap = [address.strip() for address in bootstrap.split(",") if address.strip()]
        self._admin = admin

    def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str],
        validate_only: bool,
    ) -> TopicView:
        """The topic made, or that would be made."""
        request = pb.CreateTopicRequest(
            topic=name,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=configs,
            validate_only=validate_only,
            request_id=uuid.uuid4().hex,
        )
        return topic_from_proto(self._call("CreateTopic", request, pb.CreateTopicResponse).topic)

    def delete_topic(self, name: str) -> None:
        """Returns when it is gone."""
        request = pb.DeleteTopicRequest(topic=name, request_id=uuid.uuid4().hex)
        self._call("DeleteTopic", request, pb.DeleteTopicResponse)

    def list_topics(self) -> list[str]:
        """All names, sorted."""
        return list(self._call("ListTopics", pb.ListTopicsRequest(), pb.ListTopicsResponse).topics)

    def describe_topics(self, names: Sequence[str]) -> list[TopicView]:
        """Topics in the order asked for, or all; one that does not exist carries an error."""
        request = pb.DescribeTopicsRequest(topics=names)
        return [
            topic_from_proto(topic) for topic in self._call("DescribeTopics", request, pb.DescribeTopicsResponse).topics
        ]

    def describe_cluster(self) -> ClusterDescription:
        """Brokers, controller and counts."""
        answer = self._call("DescribeCluster", pb.DescribeClusterRequest(), pb.DescribeClusterResponse)
        return ClusterDescription(
            view=view_from_proto(answer.metadata),
            topic_count=answer.topic_count,
            partition_count=answer.partition_count,
            under_replicated_count=answer.under_replicated_count,
            under_min_isr_count=answer.under_min_isr_count,
            offline_count=answer.offline_count,
        )

    def _call(self, method: str, request: object, _: type[Response]) -> Response:
        answer: Response = asyncio.run(self._call_async(method, request))
        return answer

    async def _call_async(self, method: str, request: object) -> Any:
        address = self._admin or await self._find_admin()
        async with open_channel(address) as channel:
            try:
                return await getattr(AdminServiceStub(channel), method)(request, timeout=_CALL_TIMEOUT_S)
            except grpc.RpcError as error:
                raise from_rpc_error(error, address=f"admin service {address}") from error

    async def _find_admin(self) -> str:
        """From the metadata of the first broker that knows."""
        failure = TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "no broker is given")
        for address in self._bootstrap:
            async with open_channel(address) as channel:
                stub: Any = BrokerServiceStub(channel)
                try:
                    answer = await stub.GetMetadata(
                        broker_service_pb2.GetMetadataRequest(), timeout=_METADATA_TIMEOUT_S
                    )
                except grpc.RpcError as error:
                    failure = from_rpc_error(error, address=f"broker {address}")
                    continue
            if answer.metadata.admin_address:
                return str(answer.metadata.admin_address)
            failure = TidemarkError(
                ErrorCode.BROKER_NOT_AVAILABLE,
                f"broker {address} does not know where the admin service is; say so with --admin HOST:PORT",
            )
        raise failure
