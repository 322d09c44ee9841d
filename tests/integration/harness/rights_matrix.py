# SPDX-License-Identifier: Apache-2.0
"""One call of every RPC, and its outcome for a caller: allowed, or the kind of its denial."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any, Final

import grpc
import tidemark.v1
from google.protobuf.message_factory import GetMessageClass
from tidemark.model import ErrorCode
from tidemark.rpc.errors import from_rpc_error

TOPIC, GROUP = "open-topic", "open-group"
CALL_S: Final = 20.0
_REF: Final = {"topic": TOPIC, "partition": 0}
_TRANSACTION: Final = {"transactional_id": "open-transaction"}
_HEADER: Final = {"header": {"controller_id": 101, "controller_epoch": 0}}
_ACL: Final = {"resource_type": "TOPIC", "pattern": "LITERAL", "name": TOPIC, "principal": "User:token:a", "host": "*"}

REQUESTS: Final[dict[str, dict[str, Any]]] = {
    "BrokerService/GetMetadata": {"topics": [TOPIC]},
    "BrokerService/WatchMetadata": {"topics": [TOPIC]},
    "BrokerService/Produce": {"acks": 1, "timeout_ms": 1000, "partitions": [{**_REF, "batches": [b"no batch"]}]},
    "BrokerService/Fetch": {"partitions": [{**_REF, "current_leader_epoch": 0}]},
    "BrokerService/FetchStream": {"partitions": [{**_REF, "current_leader_epoch": 0}]},
    "BrokerService/ListOffsets": {"partitions": [{**_REF, "latest": True}]},
    "BrokerService/OffsetsForLeaderEpoch": {"partitions": [_REF]},
    "BrokerService/DeleteRecords": {**_REF, "topic_id": "none"},
    "BrokerService/ReadReplica": {**_REF, "topic_id": "none"},
    "BrokerService/GetTopicSchemas": {"topic": TOPIC},
    "GroupService/FindCoordinator": {"group_ids": [GROUP]},
    "GroupService/GroupHeartbeat": {
        "group_id": GROUP,
        "member_id": "m",
        "member_epoch": -1,
        "subscription": {"topics": [TOPIC]},
    },
    "GroupService/CommitOffsets": {"group_id": GROUP, "offsets": [_REF]},
    "GroupService/FetchOffsets": {"group_id": GROUP, "partitions": [_REF]},
    "GroupService/DescribeGroups": {"group_ids": [GROUP]},
    "GroupService/AlterGroupOffsets": {"group_id": GROUP, "offsets": [_REF], "validate_only": True},
    "GroupService/DeleteGroup": {"group_id": GROUP},
    "GroupService/DeleteGroupOffsets": {"group_id": GROUP, "partitions": [_REF]},
    "TransactionService/FindTransactionCoordinator": _TRANSACTION,
    "TransactionService/InitTransactions": {**_TRANSACTION, "timeout_ms": -1},
    "TransactionService/EndTransaction": _TRANSACTION,
    "TransactionService/JoinTransaction": _TRANSACTION,
    "TransactionService/KeepTransaction": _TRANSACTION,
    "TransactionService/CommitMembers": _TRANSACTION,
    "TransactionService/AbortTransaction": _TRANSACTION,
    "TransactionService/DescribeTransactions": {"transactional_ids": ["open-transaction"]},
    "TransactionService/DescribeProducers": {"partitions": [_REF]},
    "AdminService/CreateTopic": {"topic": TOPIC, "partitions": 1, "replication_factor": 1, "validate_only": True},
    "AdminService/DeleteTopic": {"topic": TOPIC, "validate_only": True},
    "AdminService/DescribeTopics": {"topics": [TOPIC]},
    "AdminService/ElectLeaders": {"type": 1, "partitions": [_REF], "validate_only": True},
    "AdminService/AlterConfigs": {"resource": {"type": 1, "name": TOPIC}, "validate_only": True},
    "AdminService/DescribeConfigs": {"resources": [{"type": 1, "name": TOPIC}]},
    "AdminService/AlterTopicSchema": {"topic": TOPIC, "validate_only": True},
    "AdminService/DescribeTopicSchemas": {"topic": TOPIC},
    "AdminService/AlterPartitionReassignments": {
        "moves": [{"partition": _REF, "replicas": [0]}],
        "validate_only": True,
    },
    "AdminService/CreatePartitions": {"topic": TOPIC, "total_count": 2, "validate_only": True},
    "AdminService/DeletePartitions": {"topic": TOPIC, "count": 1, "validate_only": True},
    "AdminService/PlanBrokers": {"add": [0]},
    "AdminService/AddBrokers": {"broker_ids": [0], "validate_only": True},
    "AdminService/RemoveBrokers": {"broker_ids": [0], "validate_only": True},
    "AdminService/SafeToRestart": {"broker_id": 0},
    "AdminService/AlterAcls": {"add": [{**_ACL, "operation": "READ", "permission": "ALLOW"}], "validate_only": True},
    "AdminService/CheckAccess": {
        "principal": "User:token:a",
        "operation": "READ",
        "resource_type": "TOPIC",
        "name": TOPIC,
    },
    "AdminService/AlterClientQuotas": {
        "changes": [{"entity": {"client_id": "loader"}, "set": {"producer_byte_rate": 1.0}}],
        "validate_only": True,
    },
    "BrokerControlService/LeaderAndIsr": _HEADER,
    "BrokerControlService/StopReplica": _HEADER,
    "BrokerControlService/UpdateMetadata": _HEADER,
    "BrokerControlService/DescribeReplicas": _HEADER,
    "BrokerControlService/Heartbeat": _HEADER,
    "ControllerService/ReportIsrChanges": {"broker_id": 1},
    "ReplicaService/Replicate": {"hello": {"broker_id": 1}},
}
"""Requests of RPCs that need certain contents; an allowed one changes nothing."""

_KINDS: Final = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "group",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transactional id",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "cluster",
}


def methods() -> Iterator[tuple[str, Any]]:
    """Each RPC of each service: "BrokerService/Fetch", and its descriptor."""
    for module in pkgutil.iter_modules(tidemark.v1.__path__):
        if module.name.endswith("_pb2"):
            services = importlib.import_module(f"tidemark.v1.{module.name}").DESCRIPTOR.services_by_name.values()
            for service in services:
                for method in service.methods:
                    yield f"{service.name}/{method.name}", method


def outcome(channel: grpc.Channel, name: str, method: Any) -> str:
    """ "allowed", or "topic", "group", "transactional id", "cluster", "hidden": the kind of the denial."""
    request = GetMessageClass(method.input_type)(**REQUESTS.get(name, {}))
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    response = GetMessageClass(method.output_type)
    call = getattr(channel, kind)(f"/tidemark.v1.{name}", type(request).SerializeToString, response.FromString)
    try:
        if method.server_streaming:
            answers = call(iter([request]) if method.client_streaming else request, timeout=CALL_S)
            answer = next(answers, None)
            answers.cancel()
        else:
            answer = call(request, timeout=CALL_S)
    except grpc.RpcError as raised:
        error = from_rpc_error(raised, address=name)
        return _kind(str(error.code), error.message)
    errors = [] if answer is None else list(_errors(answer))
    kinds = {_kind(error.code, error.message) for error in errors}
    return kinds.pop() if kinds else "allowed"


def _errors(message: Any) -> Iterator[Any]:
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for one in value if field.is_repeated else (value,):
            if field.message_type.full_name == "tidemark.v1.Error":
                yield one
            else:
                yield from _errors(one)


def _kind(code: str, sentence: str) -> str:
    if code == ErrorCode.UNKNOWN_TOPIC:
        return "hidden" if "may not DESCRIBE" in sentence else "allowed"
    if "may not act as" in sentence:
        return "allowed"  # the role may make the call, if not under this id
    return _KINDS.get(ErrorCode(code), "allowed")
