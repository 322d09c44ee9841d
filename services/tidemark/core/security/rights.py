# SPDX-License-Identifier: Apache-2.0
"""The right that each RPC needs: one row for every RPC of every service. A call without a row is refused.

Rows are data: the gate (`rpc.security.gate`) applies them to requests and responses, and docs/security.md lists them.
Fields are named by paths such as "partitions.topic", through repeated messages too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from tidemark.core.security.acls import Operation, ResourceType
from tidemark.core.security.principals import Role


class Need(NamedTuple):
    """An operation that the caller must be allowed.

    Attributes:
        operation: the operation.
        type: of the resource; None: each `ConfigResource` in `field` decides, a topic or (a broker) the cluster.
        field: request field with the names of the resources; "": the cluster, or any resource of the type.
        when: request field without which the need does not exist; "": always needed.
    """

    operation: Operation
    type: ResourceType | None
    field: str = ""
    when: str = ""


class Hidden(NamedTuple):
    """Items of a response that are omitted unless the caller may DESCRIBE them.

    Attributes:
        items: response field with the items.
        name: field of an item with the name of its resource; "": the item is the name.
    """

    items: str
    name: str = ""
    type: ResourceType = ResourceType.TOPIC


class Items(NamedTuple):
    """A call whose items are refused separately: a denied item does not reach the service.

    Attributes:
        asked: request field with the items.
        answers: response field with one answer for each item, which has an `error`.
        key: fields that an item and its answer share; "": an item is the value of the answer's first key.
    """

    asked: str
    answers: str
    key: tuple[str, ...] = ("topic", "partition")


class Right(NamedTuple):
    """The row of an RPC in the table of rights.

    Attributes:
        needs: all are needed, for each resource that the request names.
        instead: a right that allows the call without `needs`.
        roles: services of the cluster that need no rule.
        internal: only these services may call; on a plain-text port, callers with CLUSTER_ACTION.
        items: see `Items`; the last need is checked for each item.
        hides: see `Hidden`.
        by_service: the service itself checks each resource; the gate checks none.
        held: the call may wait, and is checked again before its answer.
    """

    needs: tuple[Need, ...]
    instead: Need | None = None
    roles: frozenset[Role] = frozenset()
    internal: bool = False
    items: Items | None = None
    hides: tuple[Hidden, ...] = ()
    by_service: bool = False
    held: bool = False


_O, _TOPIC, _GROUP, _CLUSTER = Operation, ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
_TO_ALTER: Final = Need(_O.ALTER, _CLUSTER)
_TO_DESCRIBE: Final = Need(_O.DESCRIBE, _CLUSTER)
_NAMED: Final = Need(_O.DESCRIBE, _TOPIC, "topics")
_NAMED_PARTITIONS: Final = Need(_O.DESCRIBE, _TOPIC, "partitions.topic")
_ADMIN, _BROKER = frozenset({Role.ADMIN}), frozenset({Role.BROKER})
_PARTITIONS: Final = Items("partitions", "partitions")
_COMMITS: Final = Items("offsets", "partitions")
_PLAN: Final = (Hidden("plan.moves", "partition.topic"), Hidden("plan.current", "partition.topic"))
_MOVES: Final = Hidden("reassignments", "partition.topic")
_REPLICAS: Final = Hidden("log_dirs.replicas", "topic")
_OF_MEMBERS: Final = tuple(
    Hidden(f"groups.members.{field}.topics", "topic") for field in ("assignment", "target", "revoking")
)


def _internal(*roles: Role) -> Right:
    return Right((Need(_O.CLUSTER_ACTION, _CLUSTER),), roles=frozenset(roles), internal=True)


def _of_topics(operation: Operation, field: str) -> Right:
    return Right((Need(operation, _TOPIC, field),), by_service=True)


_BROKER_SERVICE: Final = {
    "GetMetadata": _of_topics(_O.DESCRIBE, "topics"),
    "WatchMetadata": _of_topics(_O.DESCRIBE, "topics"),
    "Produce": Right(
        (
            Need(_O.WRITE, _TOPIC, "partitions.topic"),
            Need(_O.WRITE, ResourceType.TRANSACTIONAL_ID, "transactional_id", when="transactional_id"),
        ),
        by_service=True,
    ),
    "Fetch": _of_topics(_O.READ, "partitions.topic"),
    "FetchStream": _of_topics(_O.READ, "partitions.topic"),
    "ListOffsets": Right((Need(_O.DESCRIBE, _TOPIC, "partitions.topic"),), roles=_BROKER, items=_PARTITIONS),
    "OffsetsForLeaderEpoch": Right((Need(_O.DESCRIBE, _TOPIC, "partitions.topic"),), items=_PARTITIONS),
    "InitProducerId": Right((Need(_O.WRITE, _TOPIC),), instead=Need(_O.IDEMPOTENT_WRITE, _CLUSTER)),
    "DescribeLogDirs": Right((_TO_DESCRIBE, _NAMED, _NAMED_PARTITIONS), roles=_ADMIN, hides=(_REPLICAS,)),
    "AlterReplicaLogDirs": Right((_TO_ALTER,), roles=_ADMIN),
    "DeleteRecords": Right((Need(_O.DELETE, _TOPIC, "topic"),)),
    "ReadReplica": Right((_TO_ALTER, Need(_O.READ, _TOPIC, "topic")), roles=_BROKER),
    "GetTopicSchemas": Right((Need(_O.DESCRIBE, _TOPIC, "topic"),)),
    "DescribeBrokerConfigs": Right((Need(_O.DESCRIBE_CONFIGS, _CLUSTER),), roles=_ADMIN),
    "ListBrokerAuditLines": Right((_TO_ALTER,), roles=_ADMIN),
}
_GROUP_SERVICE: Final = {
    "FindCoordinator": Right(
        (Need(_O.DESCRIBE, _GROUP, "group_ids"),), items=Items("group_ids", "coordinators", ("group_id",))
    ),
    "GroupHeartbeat": Right(
        (Need(_O.READ, _GROUP, "group_id"), Need(_O.DESCRIBE, _TOPIC, "subscription.topics")),
        hides=(Hidden("assignment.topics", "topic"),),
        held=True,
    ),
    "CommitOffsets": Right(
        (
            Need(_O.READ, _GROUP, "group_id"),
            Need(_O.WRITE, ResourceType.TRANSACTIONAL_ID, "transactional_id", when="transactional_id"),
            Need(_O.READ, _TOPIC, "offsets.topic"),
        ),
        items=_COMMITS,
    ),
    "FetchOffsets": Right(
        (Need(_O.DESCRIBE, _GROUP, "group_id"), Need(_O.DESCRIBE, _TOPIC, "partitions.topic")),
        hides=(Hidden("offsets", "topic"),),
    ),
    "ListGroups": Right((), hides=(Hidden("groups", "group_id", _GROUP),)),
    "DescribeGroups": Right(
        (Need(_O.DESCRIBE, _GROUP, "group_ids"),),
        items=Items("group_ids", "groups", ("group_id",)),
        hides=(Hidden("groups.partitions", "topic"), Hidden("groups.members.subscribed_topics"), *_OF_MEMBERS),
    ),
    "AlterGroupOffsets": Right(
        (Need(_O.READ, _GROUP, "group_id"), Need(_O.READ, _TOPIC, "offsets.topic")), items=_COMMITS
    ),
    "DeleteGroup": Right((Need(_O.DELETE, _GROUP, "group_id"),)),
    "DeleteGroupOffsets": Right(
        (Need(_O.DELETE, _GROUP, "group_id"), Need(_O.READ, _TOPIC, "partitions.topic")), items=_PARTITIONS
    ),
}
_TO_WRITE_TRANSACTIONS: Final = Right((Need(_O.WRITE, ResourceType.TRANSACTIONAL_ID, "transactional_id"),))
_OF_TRANSACTIONS: Final = (Hidden("transactions.partitions", "topic"),)
_TRANSACTION_SERVICE: Final = {
    "FindTransactionCoordinator": Right((Need(_O.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "transactional_id"),)),
    "InitTransactions": _TO_WRITE_TRANSACTIONS,
    "EndTransaction": _TO_WRITE_TRANSACTIONS,
    "JoinTransaction": _TO_WRITE_TRANSACTIONS,
    "KeepTransaction": _TO_WRITE_TRANSACTIONS,
    "CommitMembers": _TO_WRITE_TRANSACTIONS,
    "AbortTransaction": _TO_WRITE_TRANSACTIONS,
    "ListTransactions": Right((), hides=(Hidden("transactions", "transactional_id", ResourceType.TRANSACTIONAL_ID),)),
    "DescribeTransactions": Right(
        (Need(_O.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "transactional_ids"),),
        items=Items("transactional_ids", "transactions", ("transactional_id",)),
        hides=_OF_TRANSACTIONS,
    ),
    "DescribeProducers": Right((Need(_O.READ, _TOPIC, "partitions.topic"),), items=_PARTITIONS),
}
_ADMIN_SERVICE: Final = {
    "CreateTopic": Right((Need(_O.CREATE, _TOPIC, "topic"),), instead=Need(_O.CREATE, _CLUSTER)),
    "DeleteTopic": Right((Need(_O.DELETE, _TOPIC, "topic"),)),
    "ListTopics": Right((), hides=(Hidden("topics"),)),
    "DescribeTopics": _of_topics(_O.DESCRIBE, "topics"),
    "DescribeCluster": Right((_TO_DESCRIBE,)),
    "ElectLeaders": Right((_TO_ALTER,), hides=(Hidden("results", "partition.topic"),)),
    "ListUncleanElections": Right((_TO_DESCRIBE, _NAMED), hides=(Hidden("elections", "partition.topic"),)),
    "AlterConfigs": Right((Need(_O.ALTER_CONFIGS, None, "resource"),)),
    "DescribeConfigs": Right((Need(_O.DESCRIBE_CONFIGS, None, "resources"),)),
    "AlterPartitionReassignments": Right((_TO_ALTER,)),
    "ListPartitionReassignments": Right((_TO_DESCRIBE,), hides=(_MOVES, Hidden("refusals", "partition.topic"))),
    "WatchPartitionReassignments": Right((_TO_DESCRIBE,), hides=(_MOVES, Hidden("ended", "partition.topic"))),
    "CreatePartitions": Right((Need(_O.ALTER, _TOPIC, "topic"),)),
    "DeletePartitions": Right((Need(_O.DELETE, _TOPIC, "topic"),)),
    "PlanBrokers": Right((_TO_DESCRIBE, _NAMED), hides=_PLAN),
    "AddBrokers": Right((_TO_ALTER,), hides=_PLAN),
    "RemoveBrokers": Right((_TO_ALTER,), hides=(*_PLAN, _MOVES)),
    "SafeToRestart": Right(
        (_TO_DESCRIBE, Need(_O.ALTER, _CLUSTER, when="claim")),
        roles=_BROKER,
        hides=(Hidden("obstacles.partitions", "topic"),),
    ),
    "DescribeLogDirs": Right((_TO_DESCRIBE, _NAMED, _NAMED_PARTITIONS), hides=(_REPLICAS,)),
    "AlterReplicaLogDirs": Right((_TO_ALTER,)),
    "ListAcls": Right((_TO_DESCRIBE,)),
    "AlterAcls": Right((_TO_ALTER,)),
    "CheckAccess": Right((_TO_DESCRIBE,)),
    "DescribeClientQuotas": Right((Need(_O.DESCRIBE_CONFIGS, _CLUSTER),)),
    "AlterClientQuotas": Right((Need(_O.ALTER_CONFIGS, _CLUSTER),)),
    "AlterTopicSchema": Right((Need(_O.ALTER_CONFIGS, _TOPIC, "topic"),)),
    "DescribeTopicSchemas": Right((Need(_O.DESCRIBE_CONFIGS, _TOPIC, "topic"),)),
    "ListAuditLines": Right((_TO_ALTER,)),
}
_CONTROL: Final = ("LeaderAndIsr", "StopReplica", "UpdateMetadata", "Heartbeat", "DescribeReplicas")
_SERVICES: Final[Mapping[str, Mapping[str, Right]]] = {
    "BrokerService": _BROKER_SERVICE,
    "GroupService": _GROUP_SERVICE,
    "TransactionService": _TRANSACTION_SERVICE,
    "TransactionCoordination": {name: _internal(Role.BROKER) for name in ("AddPartitions", "WriteMarkers")},
    "AdminService": _ADMIN_SERVICE,
    "BrokerControlService": {name: _internal(Role.CONTROLLER) for name in _CONTROL},
    "ControllerService": {
        "ReportIsrChanges": _internal(Role.BROKER),
        "AskReplicas": _internal(Role.ADMIN),
        "DescribeController": _internal(*Role),
    },
    "ReplicaService": {"Replicate": _internal(Role.BROKER)},
}

RIGHTS: Final[Mapping[str, Right]] = {
    f"/tidemark.v1.{service}/{name}": right for service, rows in _SERVICES.items() for name, right in rows.items()
}
"""Rows by the path of the RPC."""

OPEN_SERVICES: Final = ("/grpc.health.v1.Health/", "/grpc.reflection.")
"""Beginnings of the paths of RPCs that every caller may make: probes, and the description of the RPCs."""
