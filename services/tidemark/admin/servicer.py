# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N802 - RPC names
"""The RPCs of `tidemark.v1.AdminService`: each decodes its request, calls one administration, encodes the result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final, TypeAlias

from grpc.aio import ServicerContext

from tidemark.admin.acls import AclAdministration, compare_and_set
from tidemark.admin.auditing import AuditLines, changing, observed
from tidemark.admin.brokers import BrokerAdministration, PlanQuery
from tidemark.admin.configs import Alteration, ConfigAdministration
from tidemark.admin.descriptions import Descriptions
from tidemark.admin.elections import ElectionAdministration, ElectionQuery
from tidemark.admin.log_dirs import LogDirAdministration
from tidemark.admin.partitions import PartitionAdministration, PartitionsToRemove, TopicCounts
from tidemark.admin.planning import TopicRequest, new_topic_id
from tidemark.admin.quotas import QuotaAdministration
from tidemark.admin.reassignments import MovesQuery, ReassignmentAdministration, interval_of
from tidemark.admin.requests import AnsweredOnce, Facts, by_content
from tidemark.admin.schema_requests import alter_schema, schema_to_proto
from tidemark.admin.schemas import SchemaAdministration, compatibility_of
from tidemark.admin.topics import TopicAdministration
from tidemark.core.quotas.quotas import QuotaKind
from tidemark.core.schemas.refusals import naming
from tidemark.core.security.acls import Operation, Resource, ResourceType, option
from tidemark.core.security.principals import Role
from tidemark.model import BrokerId, invalid_request
from tidemark.rpc import errors
from tidemark.rpc.broker_log_dirs import BrokerLogDirs, broker_to_proto, placed_to_proto, places_from_proto
from tidemark.rpc.codecs import audit
from tidemark.rpc.codecs.acl import acl_from_proto, acl_to_proto, filter_from_proto
from tidemark.rpc.codecs.broker_plan import obstacle_to_proto, plan_to_proto
from tidemark.rpc.codecs.config import change_from_proto, change_to_proto, entry_to_proto, resource_from_proto
from tidemark.rpc.codecs.election import kind_from_proto, outcome_to_proto, unclean_to_proto
from tidemark.rpc.codecs.metadata import topic_to_proto
from tidemark.rpc.codecs.reassignment import ended_to_proto, move_from_proto, progress_to_proto, refusal_to_proto
from tidemark.rpc.codecs.reassignment import outcome_to_proto as reassignment_outcome_to_proto
from tidemark.rpc.codecs.refs import ref_from_proto
from tidemark.rpc.quotas.codec import change_from_proto as quota_change_from_proto
from tidemark.rpc.quotas.codec import changed_to_proto, quotas_to_proto
from tidemark.rpc.quotas.enforcement import ClientQuotas
from tidemark.rpc.request_limits import CONFIG_RESOURCES_MAX, check_named
from tidemark.rpc.security.access import Accesses
from tidemark.rpc.security.callers import caller_of, check_id, listener_of_call
from tidemark.runtime.slices import InSlices, Pace
from tidemark.v1 import admin_acls_pb2 as acls_pb
from tidemark.v1 import admin_brokers_pb2 as brokers_pb
from tidemark.v1 import admin_configs_pb2 as configs_pb
from tidemark.v1 import admin_log_dirs_pb2 as log_dirs_pb
from tidemark.v1 import admin_partitions_pb2 as partitions_pb
from tidemark.v1 import admin_quotas_pb2 as quotas_pb
from tidemark.v1 import admin_reassignments_pb2 as reassignments_pb
from tidemark.v1 import admin_service_pb2 as pb
from tidemark.v1 import admin_service_pb2_grpc
from tidemark.v1 import audit_pb2 as audit_pb
from tidemark.v1 import topic_schemas_pb2 as schemas_pb

SERVICE_NAME: Final = "tidemark.v1.AdminService"

_LOGGED_MAX: Final = 100
"""Items of one request that its line of the audit log names."""
_MARGIN_S: Final = 0.25
"""Time for a REQUEST_TIMED_OUT with its cause to arrive before the caller's own deadline."""

Context: TypeAlias = ServicerContext[Any, Any]


class AdminServicer(admin_service_pb2_grpc.AdminServiceServicer):
    """The RPCs of the admin service. The RPCs raise TidemarkError; the server maps it to a gRPC status.

    Each RPC is counted, and each RPC with effects writes a line of the audit log (`observed`).

    Args:
        topics: creates and deletes topics.
        elections: holds leader elections.
        descriptions: lists and describes topics, and describes the cluster.
        configs: alters and describes settings.
        requests: stores the responses of requests with a request id.
        reassignments: starts, cancels and watches reassignments.
        partitions: changes the partition counts of topics.
        brokers: adds and removes brokers.
        log_dirs: describes log directories and moves replicas between them.
        acls: lists, changes and tries out access rules.
        quotas: lists and changes quotas.
        schemas: makes and describes versions of schemas.
        audit_lines: gathers lines of the audit log.
        of_callers: the quotas that calls are counted for.
        accesses: the rights of callers; None: authorization is off.
        request_timeout_ms: admin.request.timeout.ms; a shorter deadline of the caller takes precedence.
    """

    def __init__(
        self,
        topics: TopicAdministration,
        elections: ElectionAdministration,
        *,
        descriptions: Descriptions,
        configs: ConfigAdministration,
        requests: AnsweredOnce,
        reassignments: ReassignmentAdministration,
        partitions: PartitionAdministration,
        brokers: BrokerAdministration,
        log_dirs: LogDirAdministration,
        acls: AclAdministration,
        quotas: QuotaAdministration,
        schemas: SchemaAdministration,
        audit_lines: AuditLines,
        of_callers: ClientQuotas,
        request_timeout_ms: int,
        accesses: Accesses | None = None,
    ) -> None:
        self._accesses = accesses
        self._acls = acls
        self._quotas = quotas
        self._schemas = schemas
        self._audit_lines = audit_lines
        self._of_callers = of_callers
        self._request_timeout_s = request_timeout_ms / 1000
        self._topics = topics
        self._elections = elections
        self._descriptions = descriptions
        self._configs = configs
        self._requests = requests
        self._reassignments = reassignments
        self._partitions = partitions
        self._brokers = brokers
        self._log_dirs = log_dirs

    async def CreateTopic(self, request: pb.CreateTopicRequest, context: Context) -> pb.CreateTopicResponse:
        """Create a topic and wait until every partition has a leader."""

        async def look() -> Facts:
            return {"topic_id": new_topic_id()}

        async def work(seen: Facts) -> pb.CreateTopicResponse:
            with naming(request.topic):
                schema = self._schemas.first(request.schema, request.configs)
            view = await self._topics.create_topic(
                TopicRequest(
                    topic=request.topic,
                    partitions=request.partitions,
                    replication_factor=request.replication_factor,
                    configs=dict(request.configs),
                    topic_id=seen["topic_id"],
                    schema=schema,
                ),
                validate_only=request.validate_only,
                timeout_s=self._timeout_s(context),
                admit=admit,
            )
            return pb.CreateTopicResponse(topic=topic_to_proto(view))

        named = ("topic", "partitions", "replication_factor", "configs")
        async with changing("CreateTopic", context, request, *named, typed=bool(request.schema)) as facts:
            admit = self._admit_partitions(context)
            response = await self._requests.once("CreateTopic", request, pb.CreateTopicResponse, work, look)
            facts["topic_id"] = response.topic.topic_id
            return response

    async def DeleteTopic(self, request: pb.DeleteTopicRequest, context: Context) -> pb.DeleteTopicResponse:
        """Delete a topic and wait until its znodes are deleted."""

        async def look() -> Facts:
            return {"topic_id": await self._topics.topic_id(request.topic)}

        async def work(seen: Facts) -> pb.DeleteTopicResponse:
            facts["topic_id"] = seen["topic_id"]
            if not request.validate_only:
                await self._topics.delete_topic(request.topic, seen["topic_id"], timeout_s=self._timeout_s(context))
            return pb.DeleteTopicResponse()

        async with changing("DeleteTopic", context, request, "topic") as facts:
            return await self._requests.once("DeleteTopic", request, pb.DeleteTopicResponse, work, look)

    async def ListTopics(self, request: pb.ListTopicsRequest, context: Context) -> pb.ListTopicsResponse:
        """Return the names of all topics in ZooKeeper."""
        async with observed("ListTopics", context):
            return pb.ListTopicsResponse(topics=await self._descriptions.topic_names())

    async def DescribeTopics(  # type: ignore[override]  # the response is bytes
        self, request: pb.DescribeTopicsRequest, context: Context
    ) -> bytes:
        """Describe topics with their partitions, from ZooKeeper."""
        access = None if self._accesses is None else self._accesses.of(context)
        async with observed("DescribeTopics", context):
            return await self._descriptions.topics(list(request.topics), access)

    async def CreatePartitions(
        self, request: partitions_pb.CreatePartitionsRequest, context: Context
    ) -> partitions_pb.CreatePartitionsResponse:
        """Add partitions to a topic and wait until each new one has a leader."""

        async def work(_: Facts) -> partitions_pb.CreatePartitionsResponse:
            view = await self._partitions.create_partitions(
                request.topic,
                request.total_count,
                [tuple(BrokerId(broker) for broker in one.replicas) for one in request.assignments],
                validate_only=request.validate_only,
                timeout_s=self._timeout_s(context),
                admit=admit,
            )
            return partitions_pb.CreatePartitionsResponse(topic=topic_to_proto(view))

        async with changing("CreatePartitions", context, request, "topic", "total_count"):
            admit = self._admit_partitions(context)
            return await self._requests.once("CreatePartitions", request, partitions_pb.CreatePartitionsResponse, work)

    async def DeletePartitions(
        self, request: partitions_pb.DeletePartitionsRequest, context: Context
    ) -> partitions_pb.DeletePartitionsResponse:
        """Remove the highest-numbered partitions of a topic and wait until the partitions are deleted."""
        which = PartitionsToRemove(
            count=request.count if request.HasField("count") else None,
            total_count=request.total_count if request.HasField("total_count") else None,
            partitions=tuple(request.partitions),
        )

        async def look() -> Facts:
            found = await self._partitions.counts(request.topic, which)
            return {name: str(value) for name, value in found._asdict().items()}

        async def work(seen: Facts) -> partitions_pb.DeletePartitionsResponse:
            keep = int(seen["total_count"])
            removed = await self._partitions.delete_partitions(
                request.topic,
                keep,
                force=request.force,
                validate_only=request.validate_only,
                timeout_s=self._timeout_s(context),
                before=TopicCounts(seen["topic_id"], int(seen["partition_count"]), keep)
                if "topic_id" in seen
                else None,
            )
            return partitions_pb.DeletePartitionsResponse(
                topic=topic_to_proto(removed.topic), removed=removed.partitions
            )

        async with changing("DeletePartitions", context, request, "topic", "force", which=str(which)) as facts:
            response = await self._requests.once(
                "DeletePartitions", request, partitions_pb.DeletePartitionsResponse, work, look
            )
            facts["removed"] = list(response.removed)
            return response

    async def AlterConfigs(
        self, request: configs_pb.AlterConfigsRequest, context: Context
    ) -> configs_pb.AlterConfigsResponse:
        """Change settings of a resource, either all or none of them."""
        resource = f"{_kind(request.resource.type)} {request.resource.name}"
        async with changing("AlterConfigs", context, request, "set", "delete", resource=resource) as facts:
            response = await self._alter_configs(request)
            facts["diff"] = [change_from_proto(change)._asdict() for change in response.changes]
            return response

    async def _alter_configs(self, request: configs_pb.AlterConfigsRequest) -> configs_pb.AlterConfigsResponse:
        """Plan and write the change; plan again if another request changed the settings in between."""
        alteration = Alteration(resource_from_proto(request.resource), dict(request.set), frozenset(request.delete))

        async def attempt() -> configs_pb.AlterConfigsResponse | None:
            if not request.validate_only:
                answer = await self._requests.answer_to("AlterConfigs", request, configs_pb.AlterConfigsResponse)
                if answer is not None:
                    return answer
            plan = await self._configs.plan(alteration)
            response = configs_pb.AlterConfigsResponse(changes=[change_to_proto(change) for change in plan.changes])
            if request.validate_only:
                return response
            receipt = self._requests.receipt("AlterConfigs", request, response)
            return response if await self._configs.carry_out(plan, receipt) else None

        return await compare_and_set(attempt, f"settings of {request.resource.name}")

    async def DescribeConfigs(
        self, request: configs_pb.DescribeConfigsRequest, context: Context
    ) -> configs_pb.DescribeConfigsResponse:
        """Describe settings, their sources and defaults."""
        async with observed("DescribeConfigs", context):
            check_named(request.resources, "resources", CONFIG_RESOURCES_MAX)
            response, pace, keys = configs_pb.DescribeConfigsResponse(), Pace(), list(dict.fromkeys(request.keys))
            for resource in request.resources:
                if pace.is_due:
                    await pace.give_way()
                entries = await self._configs.describe(resource_from_proto(resource), keys)
                response.resources.add(resource=resource, entries=map(entry_to_proto, entries))
            return response

    async def DescribeCluster(  # type: ignore[override]  # the response is bytes
        self, request: pb.DescribeClusterRequest, context: Context
    ) -> bytes:
        """Describe brokers and controller, and count unhealthy partitions."""
        async with observed("DescribeCluster", context):
            return await self._descriptions.cluster(listener_of_call())

    async def ElectLeaders(self, request: pb.ElectLeadersRequest, context: Context) -> pb.ElectLeadersResponse:
        """Hold leader elections and wait for their outcomes."""

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
            return pb.ElectLeadersResponse(results=[outcome_to_proto(one) async for one in InSlices(outcomes)])

        async with changing(
            "ElectLeaders",
            context,
            request,
            "type",
            partitions=[f"{ref.topic}-{ref.partition}" for ref in request.partitions[:_LOGGED_MAX]],
            partitions_count=len(request.partitions),
            topics=list(request.topics[:_LOGGED_MAX]),
            topics_count=len(request.topics),
        ) as facts:
            response = await self._requests.once(
                "ElectLeaders", request, pb.ElectLeadersResponse, work, is_final=_all_settled
            )
            facts["leaders_changed"] = sum(result.changed for result in response.results)
            facts["refused"] = sum(result.HasField("error") for result in response.results)
            return response

    async def ListUncleanElections(
        self, request: pb.ListUncleanElectionsRequest, context: Context
    ) -> pb.ListUncleanElectionsResponse:
        """List the stored loss reports."""
        async with observed("ListUncleanElections", context):
            reports = await self._elections.unclean_elections(list(request.topics))
            return pb.ListUncleanElectionsResponse(elections=[unclean_to_proto(report) for report in reports])

    async def AlterPartitionReassignments(
        self, request: reassignments_pb.AlterPartitionReassignmentsRequest, context: Context
    ) -> reassignments_pb.AlterPartitionReassignmentsResponse:
        """Start or cancel reassignments."""
        moves = [
            f"{one.partition.topic}-{one.partition.partition}:{list(one.replicas)}"
            + (f" in {list(one.log_dirs)}" if one.log_dirs else "")
            for one in request.moves[:_LOGGED_MAX]
        ]
        async with changing(
            "AlterPartitionReassignments",
            context,
            request,
            "throttle_bytes_per_s",
            moves=moves,
            moves_count=len(request.moves),
            cancel=[f"{ref.topic}-{ref.partition}" for ref in request.cancel[:_LOGGED_MAX]],
            cancel_count=len(request.cancel),
        ) as facts:
            response = await self._requests.once(
                "AlterPartitionReassignments",
                by_content(request),
                reassignments_pb.AlterPartitionReassignmentsResponse,
                lambda _: self._alter_reassignments(request),
                is_final=lambda answer: not any(result.HasField("error") for result in answer.results),
            )
            facts["refused"] = sum(result.HasField("error") for result in response.results)
            return response

    async def _alter_reassignments(
        self, request: reassignments_pb.AlterPartitionReassignmentsRequest
    ) -> reassignments_pb.AlterPartitionReassignmentsResponse:
        query = MovesQuery(
            moves=[move_from_proto(one) for one in request.moves],
            cancel=[ref_from_proto(ref) for ref in request.cancel],
            throttle_bytes_per_s=request.throttle_bytes_per_s,
            request_id=request.request_id,
            allow_partial=request.allow_partial,
        )
        answer = await self._reassignments.alter(query, validate_only=request.validate_only)
        inbound = answer.inbound_bytes_per_s
        return reassignments_pb.AlterPartitionReassignmentsResponse(
            results=[reassignment_outcome_to_proto(outcome) for outcome in answer.outcomes],
            inbound_bytes_per_s=-1 if inbound is None else round(inbound),
        )

    async def ListPartitionReassignments(
        self, request: reassignments_pb.ListPartitionReassignmentsRequest, context: Context
    ) -> reassignments_pb.ListPartitionReassignmentsResponse:
        """List requested and running reassignments, and recent refusals."""
        async with observed("ListPartitionReassignments", context):
            wanted = frozenset(ref_from_proto(ref) for ref in request.partitions)
            moves, refusals = await self._reassignments.list_moves(wanted)
            return reassignments_pb.ListPartitionReassignmentsResponse(
                reassignments=[progress_to_proto(moved) for moved in moves],
                refusals=[refusal_to_proto(refusal) for refusal in refusals],
            )

    async def WatchPartitionReassignments(
        self, request: reassignments_pb.WatchPartitionReassignmentsRequest, context: Context
    ) -> AsyncIterator[reassignments_pb.WatchPartitionReassignmentsResponse]:
        """Send updates about reassignments until these reassignments have ended."""
        async with observed("WatchPartitionReassignments", context):
            wanted = frozenset(ref_from_proto(ref) for ref in request.partitions)
            interval_s = interval_of(request.interval_ms)
            async for update in self._reassignments.watch(wanted, interval_s=interval_s, request_id=request.request_id):
                yield reassignments_pb.WatchPartitionReassignmentsResponse(
                    reassignments=[progress_to_proto(moved) for moved in update.moves],
                    ended=[ended_to_proto(ended) for ended in update.ended],
                )

    async def DescribeLogDirs(
        self, request: log_dirs_pb.DescribeBrokerLogDirsRequest, context: Context
    ) -> AsyncIterator[log_dirs_pb.DescribeBrokerLogDirsResponse]:
        """Describe the content of the brokers' log directories."""
        async with observed("DescribeLogDirs", context):
            found = await self._log_dirs.describe(
                [BrokerId(broker) for broker in request.brokers],
                list(request.topics),
                [ref_from_proto(ref) for ref in request.partitions],
                include_isr_changes=request.include_isr_changes,
            )
            for broker in found:
                for message in await asyncio.to_thread(_messages, broker):
                    yield message

    async def AlterReplicaLogDirs(
        self, request: log_dirs_pb.AlterBrokerLogDirsRequest, context: Context
    ) -> log_dirs_pb.AlterBrokerLogDirsResponse:
        """Move replicas between log directories of their brokers."""
        replicas = [
            f"{one.partition.topic}-{one.partition.partition} on {one.broker_id}: {one.log_dir}"
            for one in request.replicas[:_LOGGED_MAX]
        ]
        count = len(request.replicas)
        async with changing(
            "AlterReplicaLogDirs", context, request, "throttle_bytes_per_s", replicas=replicas, replicas_count=count
        ) as facts:
            placed = await self._log_dirs.alter(
                places_from_proto(request.replicas),
                throttle_bytes_per_s=request.throttle_bytes_per_s,
                validate_only=request.validate_only,
            )
            facts["refused"] = sum(one.error is not None for one in placed)
            return log_dirs_pb.AlterBrokerLogDirsResponse(replicas=placed_to_proto(placed))

    async def PlanBrokers(
        self, request: brokers_pb.PlanBrokersRequest, context: Context
    ) -> brokers_pb.PlanBrokersResponse:
        """Compute the reassignments of adding or removing brokers, and their cost."""
        async with observed("PlanBrokers", context):
            query = PlanQuery(
                add=_ids(request.add),
                remove=_ids(request.remove),
                topics=tuple(request.topics),
                spread=_ids(request.spread),
            )
            return brokers_pb.PlanBrokersResponse(plan=plan_to_proto(*await self._brokers.plan(query)))

    async def AddBrokers(
        self, request: brokers_pb.AddBrokersRequest, context: Context
    ) -> brokers_pb.AddBrokersResponse:
        """Reassign replicas to live brokers, until each broker has its share."""
        async with changing("AddBrokers", context, request, "broker_ids", "throttle_bytes_per_s") as facts:
            costed, begun = await self._brokers.add(
                _ids(request.broker_ids),
                throttle_bytes_per_s=request.throttle_bytes_per_s,
                validate_only=request.validate_only,
                request_id=request.request_id,
            )
            facts["moves_begun"] = begun
            return brokers_pb.AddBrokersResponse(plan=plan_to_proto(*costed), begun=begun)

    async def RemoveBrokers(
        self, request: brokers_pb.RemoveBrokersRequest, context: Context
    ) -> AsyncIterator[brokers_pb.RemoveBrokersResponse]:
        """Drain brokers, deregister them, and send updates."""
        named = ("broker_ids", "throttle_bytes_per_s")
        async with changing("RemoveBrokers", context, request, *named, removed=[]) as facts:
            updates = self._brokers.remove(
                _ids(request.broker_ids),
                throttle_bytes_per_s=request.throttle_bytes_per_s,
                validate_only=request.validate_only,
                request_id=request.request_id,
                interval_s=interval_of(request.interval_ms),
            )
            async for update in updates:
                facts["removed"] = list(update.removed)
                yield brokers_pb.RemoveBrokersResponse(
                    plan=None if update.plan is None else plan_to_proto(*update.plan),
                    reassignments=[progress_to_proto(moved) for moved in update.moves],
                    partitions_left=update.partitions_left,
                    removed=update.removed,
                )

    async def SafeToRestart(
        self, request: brokers_pb.SafeToRestartRequest, context: Context
    ) -> brokers_pb.SafeToRestartResponse:
        """List the reasons why a broker must not be restarted now, and claim the restart if the request has `claim`."""
        async with observed("SafeToRestart", context):
            if request.claim and not request.HasField("broker_id"):
                raise invalid_request("the request names no broker: set broker_id")
            broker, caller = BrokerId(request.broker_id), caller_of(context)
            if request.claim and caller is not None and caller.role is Role.BROKER:
                check_id(context, broker)
            obstacles = await self._brokers.obstacles_to_restart(broker, claim=request.claim)
            return brokers_pb.SafeToRestartResponse(
                safe=not obstacles, obstacles=[obstacle_to_proto(obstacle) for obstacle in obstacles]
            )

    async def ListAcls(self, request: acls_pb.ListAclsRequest, context: Context) -> acls_pb.ListAclsResponse:
        """List access rules."""
        async with observed("ListAcls", context):
            found, generation = await self._acls.list_acls(filter_from_proto(request.filter))
            return acls_pb.ListAclsResponse(acls=map(acl_to_proto, found), generation=generation)

    async def AlterAcls(self, request: acls_pb.AlterAclsRequest, context: Context) -> acls_pb.AlterAclsResponse:
        """Add and remove access rules in one write."""
        async with changing("AlterAcls", context, request) as facts:
            add, remove = list(map(acl_from_proto, request.add)), list(map(acl_from_proto, request.remove))
            facts["add"], facts["remove"] = ([str(acl) for acl in asked[:_LOGGED_MAX]] for asked in (add, remove))
            changed = await self._acls.alter(add, remove, validate_only=request.validate_only)
            facts["added"] = [str(acl) for acl in changed.added[:_LOGGED_MAX]]
            facts["removed"] = [str(acl) for acl in changed.removed[:_LOGGED_MAX]]
            facts["changed_count"] = len(changed.added) + len(changed.removed)
            return acls_pb.AlterAclsResponse(
                added=map(acl_to_proto, changed.added),
                removed=map(acl_to_proto, changed.removed),
                generation=changed.generation,
            )

    async def CheckAccess(self, request: acls_pb.CheckAccessRequest, context: Context) -> acls_pb.CheckAccessResponse:
        """Report whether an operation would be allowed, and which rule decides."""
        async with observed("CheckAccess", context):
            resource = Resource(option(ResourceType, request.resource_type), request.name)
            operation = option(Operation, request.operation)
            decision, generation = await self._acls.check(request.principal, request.host, operation, resource)
            return acls_pb.CheckAccessResponse(
                allowed=decision.allowed,
                rule=None if decision.rule is None else acl_to_proto(decision.rule),
                reason=decision.reason,
                generation=generation,
            )

    async def ListAuditLines(
        self, request: audit_pb.ListAuditLinesRequest, context: Context
    ) -> AsyncIterator[audit_pb.ListAuditLinesResponse]:
        """List lines of the audit log that services have in memory."""
        async with observed("ListAuditLines", context):
            for found in await self._audit_lines.gather(audit.filter_from_proto(request.filter)):
                yield audit.response_to_proto(found)

    async def DescribeClientQuotas(
        self, request: quotas_pb.DescribeClientQuotasRequest, context: Context
    ) -> quotas_pb.DescribeClientQuotasResponse:
        """Return the limits of all entities, with their generation."""
        async with observed("DescribeClientQuotas", context):
            found = await self._quotas.describe()
            return quotas_pb.DescribeClientQuotasResponse(
                quotas=quotas_to_proto(found.limits), generation=found.generation
            )

    async def AlterClientQuotas(
        self, request: quotas_pb.AlterClientQuotasRequest, context: Context
    ) -> quotas_pb.AlterClientQuotasResponse:
        """Set and remove quotas in one write."""
        async with changing("AlterClientQuotas", context, request) as facts:
            check_named(request.changes, "changes")
            changes = [quota_change_from_proto(one) for one in request.changes]
            facts["changes"] = [str(one) for one in changes[:_LOGGED_MAX]]
            done = await self._quotas.alter(changes, validate_only=request.validate_only)
            facts["changed"] = [str(one) for one in done.changed[:_LOGGED_MAX]]
            facts["changed_count"] = len(done.changed)
            return quotas_pb.AlterClientQuotasResponse(
                changed=map(changed_to_proto, done.changed), generation=done.generation
            )

    async def AlterTopicSchema(
        self, request: schemas_pb.AlterTopicSchemaRequest, context: Context
    ) -> schemas_pb.AlterTopicSchemaResponse:
        """Make a new version of a topic's schema."""
        async with changing("AlterTopicSchema", context, request, "topic", "expected_version") as facts:
            response = await alter_schema(self._schemas, self._requests, request, self._timeout_s(context))
            facts["version"] = response.schema.version
            facts["diff"] = list(response.differences[:_LOGGED_MAX])
            return response

    async def DescribeTopicSchemas(
        self, request: schemas_pb.DescribeTopicSchemasRequest, context: Context
    ) -> schemas_pb.DescribeTopicSchemasResponse:
        """Describe every version of a topic's schema."""
        async with observed("DescribeTopicSchemas", context):
            topic = await self._schemas.describe(request.topic)
            return schemas_pb.DescribeTopicSchemasResponse(
                topic_id=topic.topic_id,
                schemas=[schema_to_proto(version, one) for version, one in topic.schemas.items()],
                compatibility=compatibility_of(topic.configs),
            )

    def _admit_partitions(self, context: Context) -> Callable[[int], None]:
        """Counts partitions that are to be created for the caller's quota, or raises THROTTLING_QUOTA_EXCEEDED."""
        caller = self._of_callers.of(context)
        return lambda count: caller.admit(QuotaKind.PARTITION_CREATION_RATE, count, "partitions")

    def _timeout_s(self, context: Context) -> float:
        """Time for the work of a call, in seconds: less than the time until the caller's deadline."""
        remaining_s = context.time_remaining()
        if remaining_s is None:
            return self._request_timeout_s
        return min(self._request_timeout_s, max(remaining_s - _MARGIN_S, remaining_s / 2))


def _all_settled(response: pb.ElectLeadersResponse) -> bool:
    return not any(
        result.HasField("error") and errors.from_proto(result.error).retriable for result in response.results
    )


def _ids(numbers: Iterable[int]) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(number) for number in numbers)


def _kind(number: int) -> str:
    """Name of a resource type; the number of a type that only a later version defines."""
    known = configs_pb.ConfigResourceType.DESCRIPTOR.values_by_number.get(number)
    return str(number) if known is None else str(known.name).rpartition("_")[2].lower()


def _messages(found: BrokerLogDirs) -> tuple[log_dirs_pb.DescribeBrokerLogDirsResponse, ...]:
    return tuple(broker_to_proto(found))
