# SPDX-License-Identifier: Apache-2.0
"""The async AdminClient: each method is one call of AdminService, except `delete_records`."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from tidemark.client.aio.admin.acls import AclCalls
from tidemark.client.aio.admin.config_values import ConfigValue, config_texts
from tidemark.client.aio.admin.connection import TIMEOUT_S, AdminConnection
from tidemark.client.aio.admin.delete_records import delete_records_at
from tidemark.client.aio.admin.partitions import PartitionCalls
from tidemark.client.aio.admin.quotas import QuotaCalls
from tidemark.client.aio.admin.results import (
    AlteredReassignments,
    ClusterDescription,
    DeletedRecords,
    PlannedMoves,
    Reassignments,
    ReassignmentUpdate,
    RemovalProgress,
)
from tidemark.client.aio.admin.topic_schemas import SchemaCalls
from tidemark.client.argument_types import (
    flag,
    instance,
    instances,
    int32,
    int32s,
    int64,
    moves_of,
    partition_of,
    partitions_of,
    replicas_of,
    texts,
)
from tidemark.client.created_topic import CreatedTopic, check_schema_was_made
from tidemark.client.lifecycle import Lifecycle
from tidemark.client.metadata.backoff import Backoff
from tidemark.client.metadata.bootstrap import Bootstrap
from tidemark.client.metadata.cluster import Leader, leader_in
from tidemark.client.metadata.tls import Credentials
from tidemark.client.metadata.unknown_topics import note_creation
from tidemark.client.schemas import SchemaGiven, schema_text
from tidemark.core.cluster_view import TopicView
from tidemark.core.config_resource import ConfigResource
from tidemark.core.planning.restart_safety import RestartObstacle
from tidemark.core.reassignment.log_dir_placement import ReplicaLogDir, ReplicaLogDirOutcome
from tidemark.core.schemas.refusals import naming
from tidemark.model import (
    NO_LEADER,
    BrokerId,
    ElectionKind,
    ElectionOutcome,
    ErrorCode,
    PartitionReassignment,
    TidemarkError,
    TopicPartition,
    UncleanElection,
    unknown_partition,
    unknown_topic,
)
from tidemark.rpc.broker_log_dirs import BrokerLogDirs, BrokersFromProto, placed_from_proto, places_to_proto
from tidemark.rpc.codecs.broker_plan import obstacle_from_proto, plan_from_proto
from tidemark.rpc.codecs.config import change_from_proto, entry_from_proto, resource_to_proto
from tidemark.rpc.codecs.election import kind_to_proto, outcome_from_proto, unclean_from_proto
from tidemark.rpc.codecs.metadata import topic_from_proto, view_from_proto
from tidemark.rpc.codecs.reassignment import ended_from_proto, move_to_proto, progress_from_proto, refusal_from_proto
from tidemark.rpc.codecs.reassignment import outcome_from_proto as reassignment_outcome_from_proto
from tidemark.rpc.codecs.refs import ref_to_proto
from tidemark.rpc.codecs.topic_answers import TopicReader
from tidemark.rpc.request_limits import CONFIG_RESOURCES_MAX, in_requests
from tidemark.rpc.security.paths import TlsFiles
from tidemark.rpc.security.token_source import TokenGiven
from tidemark.runtime.configuration.entries import ConfigChange, ConfigEntry
from tidemark.v1 import admin_brokers_pb2, admin_configs_pb2, admin_log_dirs_pb2, admin_reassignments_pb2
from tidemark.v1 import admin_service_pb2 as pb

P = ParamSpec("P")
T = TypeVar("T")
Part = TypeVar("Part")

_TIMEOUT_S_MIN: Final = 0.1
_PARTS: Final = (AclCalls, PartitionCalls, QuotaCalls, SchemaCalls)


def _of(
    part: type[Part], method: Callable[Concatenate[Part, P], Coroutine[Any, Any, T]]
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A method of AdminClient that is a method of one of its parts: the same signature, types and docstring."""

    @functools.wraps(method)
    async def call(self: AdminClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        own: Part = self._parts[part]
        return await method(own, *args, **kwargs)

    return call


class AdminClient(Lifecycle):
    """Manages topics, schemas, settings, reassignments, log directories, brokers, elections, access rules and quotas.

    Methods raise TidemarkError. `request_id` makes a retry of the same call safe: the admin service answers a completed
    request id from its records. The service refuses the same id with different arguments: REQUEST_ID_REUSED.

    Args:
        bootstrap: "host:port[,host:port...]" of any brokers, which know the admin service, or a list of such texts. The
            address of the admin service is accepted too. None: TIDEMARK_BOOTSTRAP.
        admin: host:port of the admin service; None: found with `bootstrap`.
        timeout_s: timeout of each call, and of the wait for each update of a stream.
        tls: the TLS files; None: those that the environment names (docs/security.md), or plain text.
        token_file: path of a file with a bearer token, or a callable that returns one; None: TIDEMARK_TOKEN_FILE.
        client_id: a name of this client, for quotas.
    """

    def __init__(
        self,
        bootstrap: Bootstrap | None = None,
        *,
        admin: str | None = None,
        timeout_s: float = TIMEOUT_S,
        tls: TlsFiles | None = None,
        token_file: TokenGiven | None = None,
        client_id: str = "",
    ) -> None:
        self._connection = AdminConnection(bootstrap, admin, timeout_s, Credentials(tls, token_file), client_id)
        self._timeout_s = timeout_s
        self._topics = TopicReader()
        self._parts: Mapping[type, Any] = {part: part(self._connection) for part in _PARTS}

    async def start(self) -> None:
        """Find the admin service.

        Raises:
            TidemarkError: BROKER_NOT_AVAILABLE: no broker answers, or the brokers have no address of an admin service.
        """
        await self._connection.open()

    async def close(self) -> None:
        """Close the connection to the admin service; also after a failed start."""
        await self._connection.close()

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int = 0,
        configs: Mapping[str, ConfigValue] | None = None,
        schema: SchemaGiven | None = None,
        key: Iterable[str] = (),
        event_time: str | None = None,
        validate_only: bool = False,
        request_id: str = "",
    ) -> CreatedTopic:
        """Create a topic and wait until every partition has a leader.

        Args:
            name: name of 1 to 249 characters of [a-zA-Z0-9._-], not "." or "..".
            partitions: number of partitions, 1 or more.
            replication_factor: replicas of each partition; 0: the default of the cluster.
            configs: topic settings by key; values are text, numbers or booleans.
            schema: the columns of a typed topic (`SchemaGiven`); None: records are bytes. A topic stays as created.
            key: names of the key columns, for a schema without a key, such as a `pyarrow.Schema` or a class.
            event_time: name of the column with the event time, for such a schema.
            validate_only: check the request and compute the result, change nothing.
            request_id: makes a retry safe.

        Returns:
            The topic. Its `warnings` describe the effects of a broker restart on users of the topic.

        Raises:
            TidemarkError: the topic is refused. INVALID_REQUEST: an admin service of 0.1.0 created it without `schema`.

        Example: `await admin.create_topic("orders", partitions=3, configs={"retention.ms": 86_400_000})`
        """
        with naming(name):
            stated = schema_text(schema, texts("key", key), event_time)
        request = pb.CreateTopicRequest(
            topic=name,
            partitions=int32("partitions", partitions),
            replication_factor=int32("replication_factor", replication_factor),
            configs=config_texts("configs", configs),
            schema=stated,
            validate_only=flag("validate_only", validate_only),
            request_id=request_id,
        )
        response = await self._connection.call(lambda stub: stub.CreateTopic, request)
        note_creation()
        created = CreatedTopic.of(topic_from_proto(response.topic))
        if stated:
            check_schema_was_made(created, validate_only=validate_only)
        return created

    async def delete_topic(self, name: str, *, validate_only: bool = False, request_id: str = "") -> None:
        """Delete a topic and wait until the deletion is complete.

        Args:
            name: name of the topic.
            validate_only: check the request, change nothing.
            request_id: makes a retry safe.

        Raises:
            TidemarkError: UNKNOWN_TOPIC; INVALID_REQUEST for an internal topic; REQUEST_TIMED_OUT: the controller
                continues to delete the topic.

        Example: `await admin.delete_topic("orders")`
        """
        request = pb.DeleteTopicRequest(
            topic=name, validate_only=flag("validate_only", validate_only), request_id=request_id
        )
        await self._connection.call(lambda stub: stub.DeleteTopic, request)

    async def list_topics(self) -> list[str]:
        """List the names of all topics, sorted.

        Example: `await admin.list_topics()`
        """
        response = await self._connection.call(lambda stub: stub.ListTopics, pb.ListTopicsRequest())
        return list(response.topics)

    async def describe_topics(self, names: Sequence[str] = ()) -> list[TopicView]:
        """Describe topics with their partitions, leaders, replicas and settings.

        Args:
            names: names of topics; empty: all topics.

        Returns:
            The topics in the order of `names`; a topic that does not exist has `error` set.

        Example: `(topic,) = await admin.describe_topics(["orders"])`
        """
        request = pb.DescribeTopicsRequest(topics=texts("names", names))
        response = await self._connection.call(lambda stub: stub.DescribeTopics, request)
        return await self._topics.read(response.topics, complete=not names)

    async def leader_of(self, partition: TopicPartition) -> Leader:
        """Find the leader of a partition.

        Args:
            partition: the partition.

        Raises:
            TidemarkError: UNKNOWN_TOPIC, UNKNOWN_PARTITION, LEADER_NOT_AVAILABLE.

        Example: `leader = await admin.leader_of(TopicPartition("orders", 0))`
        """
        (topic,) = await self.describe_topics([partition.topic])
        if topic.error is not None:
            raise unknown_topic(partition.topic) if topic.error.code is ErrorCode.UNKNOWN_TOPIC else topic.error
        view = topic.partitions.get(partition.partition)
        if view is None:
            raise unknown_partition(*partition, len(topic.partitions))
        brokers = {} if view.leader == NO_LEADER else (await self.describe_cluster()).view.brokers
        leader = leader_in(topic, partition.partition, brokers)
        if leader is None:
            sentence = f"{partition} has no leader that can be reached: retry when it has one"
            raise TidemarkError(ErrorCode.LEADER_NOT_AVAILABLE, sentence)
        return leader

    async def delete_records(self, topic: str, partition: int, before_offset: int) -> DeletedRecords:
        """Delete the records of a partition before an offset, on all its replicas.

        The request goes to the partition's leader, and is retried after a failover until the client's timeout.

        Args:
            topic: name of the topic.
            partition: index of the partition.
            before_offset: the first offset to keep; -1: the high watermark, which deletes all committed records.

        Raises:
            TidemarkError: OFFSET_OUT_OF_RANGE beyond the high watermark, INVALID_REQUEST, UNKNOWN_TOPIC,
                UNKNOWN_PARTITION; UNKNOWN_TOPIC_ID if the topic was recreated during the call.

        Example: `await admin.delete_records("orders", 0, before_offset=42)`
        """
        where, before_offset = partition_of("partition", (topic, partition)), int64("before_offset", before_offset)
        deadline_s = time.monotonic() + self._timeout_s
        backoff = Backoff()
        first: Leader | None = None
        while True:
            try:
                leader = await self.leader_of(where)
                first = first or leader
                left_s = max(deadline_s - time.monotonic(), _TIMEOUT_S_MIN)
                return await delete_records_at(leader, first, where, before_offset, left_s, self._connection.identity)
            except TidemarkError as error:
                if not error.retriable or time.monotonic() >= deadline_s:
                    raise
            await asyncio.sleep(backoff.next_s())

    async def alter_configs(
        self,
        resource: ConfigResource,
        set_: Mapping[str, ConfigValue] | None = None,
        *,
        delete: Collection[str] = (),
        validate_only: bool = False,
        request_id: str = "",
    ) -> list[ConfigChange]:
        """Change settings of a resource, either all of them or none.

        Args:
            resource: a topic, a broker, or every broker.
            set_: values by key: text, numbers or booleans.
            delete: keys whose override is removed.
            validate_only: check the request and compute the changes, change nothing.
            request_id: makes a retry safe.

        Returns:
            The changes, by key; none for a setting that had the requested value already.

        Raises:
            TidemarkError: UNKNOWN_CONFIG, INVALID_CONFIG, UNKNOWN_TOPIC, INVALID_TOPIC_NAME, INVALID_REQUEST,
                REQUEST_ID_REUSED.

        Example: `await admin.alter_configs(ConfigResource(ConfigKind.TOPIC, "orders"), {"retention.ms": 86_400_000})`
        """
        request = admin_configs_pb2.AlterConfigsRequest(
            resource=resource_to_proto(instance("resource", resource, ConfigResource)),
            set=config_texts("set_", set_),
            delete=sorted(texts("delete", delete)),
            validate_only=flag("validate_only", validate_only),
            request_id=request_id,
        )
        response = await self._connection.call(lambda stub: stub.AlterConfigs, request)
        return [change_from_proto(change) for change in response.changes]

    async def describe_configs(
        self, resources: Sequence[ConfigResource], keys: Sequence[str] = ()
    ) -> dict[ConfigResource, list[ConfigEntry]]:
        """Describe settings: their values, the source of each value, and the defaults.

        Args:
            resources: topics, brokers, or every broker.
            keys: settings to describe; empty: all settings.

        Raises:
            TidemarkError: BROKER_NOT_AVAILABLE, UNKNOWN_CONFIG, UNKNOWN_TOPIC, INVALID_TOPIC_NAME, INVALID_REQUEST.

        Example: `await admin.describe_configs([CLUSTER_DEFAULT], ["retention.ms"])`
        """
        described: dict[ConfigResource, list[ConfigEntry]] = {}
        for some in in_requests(instances("resources", resources, ConfigResource), CONFIG_RESOURCES_MAX):
            request = admin_configs_pb2.DescribeConfigsRequest(
                resources=map(resource_to_proto, some), keys=texts("keys", keys)
            )
            response = await self._connection.call(lambda stub: stub.DescribeConfigs, request)
            for resource, found in zip(some, response.resources, strict=True):
                described[resource] = list(map(entry_from_proto, found.entries))
        return described

    async def describe_cluster(self) -> ClusterDescription:
        """Describe the brokers and the controller, and count unhealthy partitions.

        Example: `(await admin.describe_cluster()).offline_count`
        """
        response = await self._connection.call(lambda stub: stub.DescribeCluster, pb.DescribeClusterRequest())
        return ClusterDescription(
            view_from_proto(response.metadata),
            response.topic_count,
            response.partition_count,
            response.under_replicated_count,
            response.under_min_isr_count,
            response.offline_count,
            tuple(BrokerId(broker) for broker in response.draining_brokers),
            response.election_wait_ms if response.HasField("election_wait_ms") else None,
        )

    async def elect_leaders(
        self,
        kind: ElectionKind,
        partitions: Sequence[TopicPartition] = (),
        *,
        topics: Sequence[str] = (),
        validate_only: bool = False,
        request_id: str = "",
    ) -> list[ElectionOutcome]:
        """Hold leader elections and wait for their outcomes.

        Args:
            kind: PREFERRED loses no records. LAST_KNOWN, for partitions without a leader, may lose records. So may
                REBUILD_STATE, for partitions whose ZooKeeper node is unreadable.
            partitions: partitions to elect leaders of.
            topics: topics, with all their partitions, for PREFERRED only. PREFERRED without topics and partitions
                means all topics.
            validate_only: check the request and report the records that might be lost, as far as replicas answer;
                change nothing.
            request_id: makes a retry safe.

        Returns:
            One outcome for each partition; `error` is set if its election failed.

        Example: `await admin.elect_leaders(ElectionKind.PREFERRED, topics=["orders"])`
        """
        request = pb.ElectLeadersRequest(
            type=kind_to_proto(instance("kind", kind, ElectionKind)),
            partitions=[ref_to_proto(one) for one in partitions_of("partitions", partitions)],
            topics=texts("topics", topics),
            validate_only=flag("validate_only", validate_only),
            request_id=request_id,
        )
        response = await self._connection.call(lambda stub: stub.ElectLeaders, request)
        return [outcome_from_proto(result) for result in response.results]

    async def list_unclean_elections(self, topics: Sequence[str] = ()) -> list[UncleanElection]:
        """List the loss reports of unclean elections, by partition, the oldest first.

        Args:
            topics: names of topics; empty: all topics.

        Raises:
            TidemarkError: UNKNOWN_TOPIC.

        Example: `await admin.list_unclean_elections(["orders"])`
        """
        request = pb.ListUncleanElectionsRequest(topics=texts("topics", topics))
        response = await self._connection.call(lambda stub: stub.ListUncleanElections, request)
        return [unclean_from_proto(report) for report in response.elections]

    async def alter_partition_reassignments(
        self,
        moves: Sequence[PartitionReassignment] = (),
        *,
        cancel: Sequence[TopicPartition] = (),
        throttle_bytes_per_s: int = 0,
        validate_only: bool = False,
        request_id: str = "",
        allow_partial: bool = False,
    ) -> AlteredReassignments:
        """Start or cancel reassignments; returns when they are stored, before they complete.

        Args:
            moves: target replicas of each partition, the preferred leader first; the throttle and request id of a
                move are replaced by those below.
            cancel: partitions that return to their original replicas.
            throttle_bytes_per_s: limit, for each broker, of bytes sent to the replicas that these reassignments add;
                0: no limit. The throttle ends with the reassignments.
            validate_only: check the request, change nothing.
            request_id: makes a retry safe.
            allow_partial: start the reassignments that are not refused; otherwise one refusal prevents all of them.

        Example: `await admin.alter_partition_reassignments([PartitionReassignment(partition, replicas=(1, 2))])`
        """
        request = admin_reassignments_pb2.AlterPartitionReassignmentsRequest(
            moves=[move_to_proto(one) for one in moves_of("moves", moves)],
            cancel=[ref_to_proto(one) for one in partitions_of("cancel", cancel)],
            throttle_bytes_per_s=int64("throttle_bytes_per_s", throttle_bytes_per_s),
            validate_only=flag("validate_only", validate_only),
            request_id=request_id,
            allow_partial=flag("allow_partial", allow_partial),
        )
        response = await self._connection.call(lambda stub: stub.AlterPartitionReassignments, request)
        inbound = response.inbound_bytes_per_s
        return AlteredReassignments(
            [reassignment_outcome_from_proto(result) for result in response.results], inbound if inbound >= 0 else None
        )

    async def list_partition_reassignments(self, partitions: Sequence[TopicPartition] = ()) -> Reassignments:
        """List requested and running reassignments with their progress, and recent refusals.

        Args:
            partitions: partitions; empty: all reassignments.

        Example: `(await admin.list_partition_reassignments()).reassignments`
        """
        request = admin_reassignments_pb2.ListPartitionReassignmentsRequest(
            partitions=[ref_to_proto(one) for one in partitions_of("partitions", partitions)]
        )
        response = await self._connection.call(lambda stub: stub.ListPartitionReassignments, request)
        return Reassignments(
            [progress_from_proto(moved) for moved in response.reassignments],
            [refusal_from_proto(refusal) for refusal in response.refusals],
        )

    async def watch_partition_reassignments(
        self,
        partitions: Sequence[TopicPartition] = (),
        *,
        interval_ms: int = 1000,
        request_id: str = "",
    ) -> AsyncGenerator[ReassignmentUpdate, None]:
        """Yield updates until all of these reassignments have ended.

        Args:
            partitions: partitions; empty: all partitions with a reassignment now.
            interval_ms: shortest time between two updates, in milliseconds.
            request_id: id of the request that started the reassignments; includes earlier refusals of that request.

        Example: `async for update in admin.watch_partition_reassignments(interval_ms=500): ...`
        """
        request = admin_reassignments_pb2.WatchPartitionReassignmentsRequest(
            partitions=[ref_to_proto(one) for one in partitions_of("partitions", partitions)],
            interval_ms=int32("interval_ms", interval_ms),
            request_id=request_id,
        )
        updates = self._connection.stream(
            lambda stub: stub.WatchPartitionReassignments, request, interval_ms=interval_ms
        )
        async with aclosing(updates):
            async for response in updates:
                yield ReassignmentUpdate(
                    [progress_from_proto(moved) for moved in response.reassignments],
                    [ended_from_proto(ended) for ended in response.ended],
                )

    async def describe_log_dirs(
        self,
        brokers: Sequence[int] = (),
        *,
        topics: Sequence[str] = (),
        partitions: Sequence[TopicPartition] = (),
        include_isr_changes: bool = False,
    ) -> list[BrokerLogDirs]:
        """Describe the content of the brokers' log directories.

        Args:
            brokers: broker ids; empty: all live brokers.
            topics: topics whose replicas are listed, in addition to those of `partitions`; without both: all replicas.
            partitions: partitions whose replicas are listed.
            include_isr_changes: whether replicas have the last ISR changes that their broker noted as the leader.

        Returns:
            The log directories, by broker; a broker that does not answer has `error` set.

        Raises:
            TidemarkError: UNKNOWN_TOPIC, INVALID_TOPIC_NAME.

        Example: `await admin.describe_log_dirs([0], topics=["orders"])`
        """
        request = admin_log_dirs_pb2.DescribeBrokerLogDirsRequest(
            brokers=int32s("brokers", brokers),
            topics=texts("topics", topics),
            partitions=[ref_to_proto(one) for one in partitions_of("partitions", partitions)],
            include_isr_changes=flag("include_isr_changes", include_isr_changes),
        )
        found = BrokersFromProto()
        async for response in self._connection.stream(lambda stub: stub.DescribeLogDirs, request):
            found.add(response)
        return found.result()

    async def alter_replica_log_dirs(
        self, replicas: Sequence[ReplicaLogDir], *, throttle_bytes_per_s: int = 0, validate_only: bool = False
    ) -> list[ReplicaLogDirOutcome]:
        """Move replicas between log directories of their brokers; returns when the brokers have accepted the moves.

        Args:
            replicas: each with its broker, and the path or uuid of one of that broker's directories. Naming the
                replica's current directory cancels its move.
            throttle_bytes_per_s: limit of bytes that a broker copies in a second for all these moves; 0: the broker's
                setting.
            validate_only: check the request, change nothing.

        Returns:
            The replicas in the order of the request. A refused move has `error` set: LOG_DIR_NOT_FOUND,
            LOG_DIR_OFFLINE, REPLICA_OFFLINE, NOT_A_REPLICA, BROKER_NOT_AVAILABLE, UNKNOWN_TOPIC or UNKNOWN_PARTITION.

        Example: `await admin.alter_replica_log_dirs([ReplicaLogDir(1, TopicPartition("orders", 0), "/data/2")])`
        """
        request = admin_log_dirs_pb2.AlterBrokerLogDirsRequest(
            replicas=places_to_proto(replicas_of("replicas", replicas)),
            throttle_bytes_per_s=int64("throttle_bytes_per_s", throttle_bytes_per_s),
            validate_only=flag("validate_only", validate_only),
        )
        response = await self._connection.call(lambda stub: stub.AlterReplicaLogDirs, request)
        return placed_from_proto(response.replicas)

    async def plan_brokers(
        self,
        *,
        add: Sequence[int] = (),
        remove: Sequence[int] = (),
        topics: Sequence[str] = (),
        spread: Sequence[int] = (),
    ) -> PlannedMoves:
        """Compute the reassignments that adding or removing brokers would start, and their cost, without a change.

        Args:
            add: ids of brokers that get their share of the replicas.
            remove: ids of brokers that all replicas move away from.
            topics: topics to place again as if they were created now, at any cost of copying.
            spread: ids of the brokers to place `topics` on; empty: all live brokers.

        Example: `await admin.plan_brokers(add=[3])`
        """
        request = admin_brokers_pb2.PlanBrokersRequest(
            add=int32s("add", add),
            remove=int32s("remove", remove),
            topics=texts("topics", topics),
            spread=int32s("spread", spread),
        )
        response = await self._connection.call(lambda stub: stub.PlanBrokers, request)
        return PlannedMoves(*plan_from_proto(response.plan))

    async def add_brokers(
        self,
        brokers: Sequence[int],
        *,
        throttle_bytes_per_s: int = 0,
        validate_only: bool = False,
        request_id: str = "",
    ) -> PlannedMoves:
        """Reassign to live brokers a share of the replicas; returns when the reassignments are stored.

        Args:
            brokers: broker ids.
            throttle_bytes_per_s: see `alter_partition_reassignments`.
            validate_only: compute the plan, change nothing.
            request_id: makes a retry safe.

        Example: `await admin.add_brokers([3], throttle_bytes_per_s=50_000_000)`
        """
        request = admin_brokers_pb2.AddBrokersRequest(
            broker_ids=int32s("brokers", brokers),
            throttle_bytes_per_s=int64("throttle_bytes_per_s", throttle_bytes_per_s),
            validate_only=flag("validate_only", validate_only),
            request_id=request_id,
        )
        response = await self._connection.call(lambda stub: stub.AddBrokers, request)
        return PlannedMoves(*plan_from_proto(response.plan), response.begun)

    async def remove_brokers(
        self,
        brokers: Sequence[int],
        *,
        throttle_bytes_per_s: int = 0,
        validate_only: bool = False,
        request_id: str = "",
        interval_ms: int = 1000,
    ) -> AsyncGenerator[RemovalProgress, None]:
        """Drain brokers and deregister them; yields updates. Reassignments continue if the iteration is left early.

        Args:
            brokers: broker ids; a repeated call resumes a removal that was left early.
            throttle_bytes_per_s: see `alter_partition_reassignments`.
            validate_only: compute the plan and yield one update, change nothing.
            request_id: request id of the reassignments.
            interval_ms: shortest time between two updates, in milliseconds.

        Example: `async for update in admin.remove_brokers([2]): ...`
        """
        request = admin_brokers_pb2.RemoveBrokersRequest(
            broker_ids=int32s("brokers", brokers),
            throttle_bytes_per_s=int64("throttle_bytes_per_s", throttle_bytes_per_s),
            validate_only=flag("validate_only", validate_only),
            request_id=request_id,
            interval_ms=int32("interval_ms", interval_ms),
        )
        updates = self._connection.stream(lambda stub: stub.RemoveBrokers, request, interval_ms=interval_ms)
        async with aclosing(updates):
            async for response in updates:
                planned = PlannedMoves(*plan_from_proto(response.plan)) if response.HasField("plan") else None
                yield RemovalProgress(
                    [progress_from_proto(moved) for moved in response.reassignments],
                    response.partitions_left,
                    planned,
                    tuple(BrokerId(broker) for broker in response.removed),
                )

    async def obstacles_to_restart(self, broker: int, *, claim: bool = False) -> list[RestartObstacle]:
        """List the reasons why a broker must not be restarted now, the most severe first; empty: a restart is safe.

        Args:
            broker: broker id.
            claim: if the list is empty, other brokers get OTHER_BROKER_RESTARTS until this broker has left, or for 30
                s.

        Raises:
            TidemarkError: UNKNOWN_BROKER if no broker with this id has registered.

        Example: `await admin.obstacles_to_restart(2)`
        """
        request = admin_brokers_pb2.SafeToRestartRequest(broker_id=int32("broker", broker), claim=flag("claim", claim))
        response = await self._connection.call(lambda stub: stub.SafeToRestart, request)
        return [obstacle_from_proto(obstacle) for obstacle in response.obstacles]

    create_partitions = _of(PartitionCalls, PartitionCalls.create_partitions)
    delete_partitions = _of(PartitionCalls, PartitionCalls.delete_partitions)
    alter_topic_schema = _of(SchemaCalls, SchemaCalls.alter_topic_schema)
    describe_topic_schemas = _of(SchemaCalls, SchemaCalls.describe_topic_schemas)
    list_acls = _of(AclCalls, AclCalls.list_acls)
    alter_acls = _of(AclCalls, AclCalls.alter_acls)
    check_access = _of(AclCalls, AclCalls.check_access)
    list_audit_lines = _of(AclCalls, AclCalls.list_audit_lines)
    describe_client_quotas = _of(QuotaCalls, QuotaCalls.describe_client_quotas)
    alter_client_quotas = _of(QuotaCalls, QuotaCalls.alter_client_quotas)
