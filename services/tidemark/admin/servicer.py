# SPDX-License-Identifier: Apache-2.0
"""`tidemark.v1.AdminService` on the wire: translate, call, translate."""

from __future__ import annotations

from typing import Any, Final

from grpc.aio import ServicerContext

from tidemark.admin.auditing import observed
from tidemark.admin.brokers import BrokerAdministration
from tidemark.admin.brokers_servicer import BrokerCalls
from tidemark.admin.configs import ConfigAdministration
from tidemark.admin.configs_servicer import ConfigsServicer
from tidemark.admin.elections import ElectionAdministration, ElectionQuery
from tidemark.admin.log_dirs import LogDirAdministration
from tidemark.admin.log_dirs_servicer import LogDirCalls
from tidemark.admin.partitions import PartitionAdministration
from tidemark.admin.partitions_servicer import PartitionCalls
from tidemark.admin.planning import TopicRequest, new_topic_id
from tidemark.admin.reassignments import ReassignmentAdministration
from tidemark.admin.reassignments_servicer import ReassignmentCalls
from tidemark.admin.requests import AnsweredOnce, Facts
from tidemark.admin.topics import TopicAdministration
from tidemark.rpc import errors
from tidemark.rpc.election_codec import kind_from_proto, outcome_to_proto, unclean_to_proto
from tidemark.rpc.metadata_codec import topic_to_proto, view_to_proto
from tidemark.rpc.refs import ref_from_proto
from tidemark.v1 import admin_service_pb2 as pb
from tidemark.v1 import admin_service_pb2_grpc

SERVICE_NAME: Final = "tidemark.v1.AdminService"


class AdminServicer(
    ConfigsServicer,
    ReassignmentCalls,
    PartitionCalls,
    BrokerCalls,
    LogDirCalls,
    admin_service_pb2_grpc.AdminServiceServicer,
):
    """Refusals are raised; the server makes status of them.

    Args:
        topics: does the work on topics.
        elections: does that on elections.
        configs: does that on settings.
        requests: keeps the answers of what changes something.
        reassignments: does that on moves of replicas.
        partitions: does that on the number of a topic's partitions.
        brokers: does that on brokers.
        log_dirs: does that on log directories.
        request_timeout_ms: admin.request.timeout.ms; the caller's deadline counts where it is shorter.
    """

    def __init__(
        self,
        topics: TopicAdministration,
        elections: ElectionAdministration,
        *,
        configs: ConfigAdministration,
        requests: AnsweredOnce,
        reassignments: ReassignmentAdministration,
        partitions: PartitionAdministration,
        brokers: BrokerAdministration,
        log_dirs: LogDirAdministration,
        request_timeout_ms: int,
    ) -> None:
        super().__init__(request_timeout_ms=request_timeout_ms)
        self._topics = topics
        self._elections = elections
        self._configs = configs
        self._requests = requests
        self._reassignments = reassignments
        self._partitions = partitions
        self._brokers = brokers
        self._log_dirs = log_dirs

    async def CreateTopic(  # noqa: N802 - named by the contract
        self, request: pb.CreateTopicRequest, context: ServicerContext[Any, Any]
    ) -> pb.CreateTopicResponse:
        """Creates a topic and waits until every partition has a leader."""
        facts = {
            "topic": request.topic,
            "partitions": request.partitions,
            "replication_factor": request.replication_factor,
            "configs": dict(request.configs),
            "request_id": request.request_id,
        }

        async def look() -> Facts:
            return {"topic_id": new_topic_id()}

        async def work(seen: Facts) -> pb.CreateTopicResponse:
            view = await self._topics.create_topic(
                TopicRequest(
                    topic=request.topic,
                    partitions=request.partitions,
                    replication_factor=request.replication_factor,
                    configs=dict(request.configs),
                    topic_id=seen["topic_id"],
                ),
                validate_only=request.validate_only,
                timeout_s=self._timeout_s(context),
            )
            return pb.CreateTopicResponse(topic=topic_to_proto(view))

        async with observed("CreateTopic", context, None if request.validate_only else facts):
            response = await self._requests.once("CreateTopic", request, pb.CreateTopicResponse, work, look)
            facts["topic_id"] = response.topic.topic_id
            return response

    async def DeleteTopic(  # noqa: N802 - named by the contract
        self, request: pb.DeleteTopicRequest, context: ServicerContext[Any, Any]
    ) -> pb.DeleteTopicResponse:
        """Deletes a topic and waits until its nodes are gone."""
        facts: dict[str, object] = {"topic": request.topic, "request_id": request.request_id}

        async def look() -> Facts:
            return {"topic_id": await self._topics.topic_id(request.topic)}

        async def work(seen: Facts) -> pb.DeleteTopicResponse:
            facts["topic_id"] = seen["topic_id"]
            if not request.validate_only:
                await self._topics.delete_topic(request.topic, seen["topic_id"], timeout_s=self._timeout_s(context))
            return pb.DeleteTopicResponse()

        async with observed("DeleteTopic", context, None if request.validate_only else facts):
            return await self._requests.once("DeleteTopic", request, pb.DeleteTopicResponse, work, look)

    async def ListTopics(  # noqa: N802 - named by the contract
        self, request: pb.ListTopicsRequest, context: ServicerContext[Any, Any]
    ) -> pb.ListTopicsResponse:
        """Names of all topics."""
        async with observed("ListTopics", context):
            return pb.ListTopicsResponse(topics=await self._topics.list_topics())

    async def DescribeTopics(  # noqa: N802 - named by the contract
        self, request: pb.DescribeTopicsRequest, context: ServicerContext[Any, Any]
    ) -> pb.DescribeTopicsResponse:
        """Topics with their partitions, from ZooKeeper."""
        async with observed("DescribeTopics", context):
            views = await self._topics.describe_topics(list(request.topics))
            return pb.DescribeTopicsResponse(topics=[topic_to_proto(view) for view in views])

    async def DescribeCluster(  # noqa: N802 - named by the contract
        self, request: pb.DescribeClusterRequest, context: ServicerContext[Any, Any]
    ) -> pb.DescribeClusterResponse:
        """Brokers, controller and counts."""
        async with observed("DescribeCluster", context):
            view, counts = await self._topics.describe_cluster()
            return pb.DescribeClusterResponse(
                metadata=view_to_proto(view),
                topic_count=counts.topics,
                partition_count=counts.partitions,
                under_replicated_count=counts.under_replicated,
                under_min_isr_count=counts.under_min_isr,
                offline_count=counts.offline,
                draining_brokers=await self._topics.draining_brokers(),
            )

    async def ElectLeaders(  # noqa: N802 - named by the contract
        self, request: pb.ElectLeadersRequest, context: ServicerContext[Any, Any]
    ) -> pb.ElectLeadersResponse:
        """Holds elections and waits for what comes of them."""
        facts: dict[str, object] = {
            "type": int(request.type),
            "partitions": [f"{ref.topic}-{ref.partition}" for ref in request.partitions],
            "topics": list(request.topics),
            "request_id": request.request_id,
        }

        async def work(_: Facts) -> pb.ElectLeadersResponse:
            query = ElectionQuery(
                kind=kind_from_proto(request.type),
                partitions=tuple(ref_from_proto(ref) for ref in request.partitions),
                topics=tuple(request.topics),
                request_id=request.request_id,
            )
            outcomes = await self._elections.elect(
                query, validate_only=request.validate_only, timeout_s=self._timeout_s(context)
            )
            return pb.ElectLeadersResponse(results=[outcome_to_proto(outcome) for outcome in outcomes])

        async with observed("ElectLeaders", context, None if request.validate_only else facts):
            response = await self._requests.once(
                "ElectLeaders", request, pb.ElectLeadersResponse, work, is_final=_all_settled
            )
            facts["leaders_changed"] = sum(result.changed for result in response.results)
            facts["refused"] = sum(result.HasField("error") for result in response.results)
            return response

    async def ListUncleanElections(  # noqa: N802 - named by the contract
        self, request: pb.ListUncleanElectionsRequest, context: ServicerContext[Any, Any]
    ) -> pb.ListUncleanElectionsResponse:
        """The loss reports kept."""
        async with observed("ListUncleanElections", context):
            reports = await self._elections.unclean_elections(list(request.topics))
            return pb.ListUncleanElectionsResponse(elections=[unclean_to_proto(report) for report in reports])


def _all_settled(response: pb.ElectLeadersResponse) -> bool:
    return not any(
        result.HasField("error") and errors.from_proto(result.error).retriable for result in response.results
    )
