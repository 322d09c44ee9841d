# SPDX-License-Identifier: Apache-2.0
"""Wrong types for each argument of each method: a typed error at the call, and the same client continues."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tidemark.client import AdminClient, ConfigKind, ConfigResource, Consumer, Groups, Producer, ReplicaLogDir
from tidemark.client.acls import AclFilter, Operation, allow_rule, topic
from tidemark.client.quotas import QuotaChange, QuotaEntity
from tidemark.errors import InvalidRequestError
from tidemark.local.cluster import LocalCluster
from tidemark.model import BrokerId, ElectionKind, ErrorCode, PartitionReassignment, TidemarkError, TopicPartition

from tests.unit.client.wrong_values import WRONG, is_typed

TOPIC: Final = "wrong-types"
ZERO: Final = TopicPartition(TOPIC, 0)
CALL_S: Final = 20.0


class Clients(NamedTuple):
    """One client of each class, for all examples of a test."""

    producer: Producer
    consumer: Consumer
    member: Consumer
    groups: Groups
    admin: AdminClient


@pytest.fixture(scope="module")
def clients(cluster: LocalCluster) -> Iterator[Clients]:
    with (
        AdminClient(cluster.bootstrap, timeout_s=10) as admin,
        Producer(cluster.bootstrap, linger_ms=0) as producer,
        Consumer(cluster.bootstrap) as consumer,
        Consumer(cluster.bootstrap, group="wrong-types") as member,
        Groups(cluster.bootstrap) as groups,
    ):
        admin.create_topic(TOPIC)
        producer.send(TOPIC, b"first", partition=0).result(30)
        consumer.assign(TOPIC, [0])
        member.subscribe([TOPIC])
        yield Clients(producer, consumer, member, groups, admin)
        with contextlib.suppress(Exception):
            member.subscribe([])
        admin.delete_topic(TOPIC)


DRY: Final = {"validate_only": True}
CALLS: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("producer", "send"): {
        "topic": TOPIC,
        "value": b"v",
        "key": b"k",
        "headers": [("a", b"b")],
        "timestamp_us": None,
        "partition": 0,
    },
    ("producer", "send_many"): {"topic": TOPIC, "records": [(b"k", b"v")]},
    ("producer", "send_table"): {
        "topic": TOPIC,
        "table": pa.table({"key": ["a"], "value": ["b"], "at": [7]}),
        "key": "key",
        "value": "value",
        "timestamp": "at",
        "partition": 0,
    },
    ("producer", "flush"): {"timeout_s": 5.0},
    ("consumer", "assign"): {"topic": TOPIC, "partitions": [0], "start": 0},
    ("consumer", "unassign"): {"partitions": [("x", 0)]},
    ("consumer", "pause"): {"partitions": [ZERO]},
    ("consumer", "resume"): {"partitions": [ZERO]},
    ("consumer", "seek"): {"partition": ZERO, "start": 0},
    ("consumer", "position"): {"partition": ZERO},
    ("consumer", "poll"): {"timeout_s": 0.01},
    ("consumer", "poll_records"): {"timeout_s": 0.01, "max_records": 5},
    ("consumer", "batches"): {"columns": ["delay"]},
    ("consumer", "end_offsets"): {"partitions": [ZERO]},
    ("consumer", "offset_for_timestamp"): {"partition": ZERO, "timestamp_us": 0},
    ("member", "subscribe"): {"topics": [TOPIC], "on_assigned": print, "on_revoked": print, "on_lost": print},
    ("member", "commit"): {"offsets": {ZERO: 0}},
    ("member", "committed"): {"partitions": [ZERO]},
    ("groups", "describe_groups"): {"groups": ["wrong-types"], "offsets": True},
    ("groups", "set_offsets"): {"group": "wrong-types-2", "offsets": {ZERO: 0}, **DRY},
    ("groups", "plan_reset"): {"group": "wrong-types-2", "start": 0, "topics": [TOPIC], "partitions": [ZERO]},
    ("groups", "delete"): {"group": "wrong-types-3"},
    ("groups", "delete_offsets"): {"group": "wrong-types-3", "partitions": [ZERO]},
    ("admin", "create_topic"): {
        "name": "wrong-types-2",
        "partitions": 1,
        "replication_factor": 1,
        "configs": {"retention.ms": 1},
        "request_id": "",
        **DRY,
    },
    ("admin", "alter_topic_schema"): {
        "topic": TOPIC,
        "schema": "a INT",
        "expected_version": 0,
        "request_id": "",
        **DRY,
    },
    ("admin", "describe_topic_schemas"): {"topic": TOPIC},
    ("admin", "delete_topic"): {"name": "wrong-types-no", "request_id": "", **DRY},
    ("admin", "describe_topics"): {"names": [TOPIC]},
    ("admin", "create_partitions"): {"topic": TOPIC, "total_count": 2, "assignments": [[0]], "request_id": "", **DRY},
    ("admin", "delete_partitions"): {
        "topic": TOPIC,
        "count": None,
        "total_count": None,
        "partitions": [0],
        "force": False,
        "request_id": "",
        **DRY,
    },
    ("admin", "delete_records"): {"topic": TOPIC, "partition": 0, "before_offset": 0},
    ("admin", "alter_configs"): {
        "resource": ConfigResource(ConfigKind.TOPIC, TOPIC),
        "set_": {},
        "delete": ["retention.ms"],
        "request_id": "",
        **DRY,
    },
    ("admin", "describe_configs"): {
        "resources": [ConfigResource(ConfigKind.TOPIC, TOPIC)],
        "keys": ["retention.ms"],
    },
    ("admin", "elect_leaders"): {
        "kind": ElectionKind.PREFERRED,
        "partitions": [ZERO],
        "topics": [TOPIC],
        "request_id": "",
        **DRY,
    },
    ("admin", "list_unclean_elections"): {"topics": [TOPIC]},
    ("admin", "alter_partition_reassignments"): {
        "moves": [PartitionReassignment(TopicPartition("no", 0), (BrokerId(0),))],
        "cancel": [],
        "throttle_bytes_per_s": 0,
        "request_id": "",
        "allow_partial": False,
        **DRY,
    },
    ("admin", "list_partition_reassignments"): {"partitions": [ZERO]},
    ("admin", "watch_partition_reassignments"): {"partitions": [ZERO], "interval_ms": 10, "request_id": ""},
    ("admin", "describe_log_dirs"): {
        "brokers": [0],
        "topics": [TOPIC],
        "partitions": [ZERO],
        "include_isr_changes": True,
    },
    ("admin", "alter_replica_log_dirs"): {
        "replicas": [ReplicaLogDir(BrokerId(0), TopicPartition("no", 0), "/nowhere")],
        "throttle_bytes_per_s": 0,
        **DRY,
    },
    ("admin", "plan_brokers"): {"add": [], "remove": [], "topics": [], "spread": []},
    ("admin", "add_brokers"): {"brokers": [999], "throttle_bytes_per_s": 0, "request_id": "", **DRY},
    ("admin", "remove_brokers"): {
        "brokers": [999],
        "throttle_bytes_per_s": 0,
        "request_id": "",
        "interval_ms": 10,
        **DRY,
    },
    ("admin", "obstacles_to_restart"): {"broker": 0},
    ("admin", "list_acls"): {"wanted": AclFilter(name=TOPIC)},
    ("admin", "alter_acls"): {"add": [allow_rule("User:token:x", Operation.READ, topic(TOPIC))], "remove": [], **DRY},
    ("admin", "check_access"): {
        "principal": "User:token:x",
        "operation": Operation.READ,
        "resource": topic(TOPIC),
        "host": "",
    },
    ("admin", "list_audit_lines"): {"principal": "x", "resource": "", "outcome": "OK", "limit": 1},
    ("admin", "describe_client_quotas"): {},
    ("admin", "alter_client_quotas"): {"changes": [QuotaChange(QuotaEntity(client_id="x"), {})], **DRY},
}
ARGUMENTS: Final = [(*call, name) for call, arguments in CALLS.items() for name in arguments]


@pytest.mark.usefixtures("impatient")
@settings(
    max_examples=700,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(argument=st.sampled_from(ARGUMENTS), wrong=WRONG)
@example(argument=("admin", "alter_configs", "validate_only"), wrong=1 << 63)
@example(argument=("admin", "elect_leaders", "kind"), wrong="x")
@example(argument=("admin", "describe_topics", "names"), wrong=TOPIC)
def test_a_wrong_argument_has_a_typed_error_and_the_client_continues(
    clients: Clients, argument: tuple[str, str, str], wrong: Any
) -> None:
    client, method, name = argument
    if name == "timeout_s" and isinstance(wrong, int | float) and wrong > 1:
        return  # a valid time that the call may need
    began_s = time.monotonic()
    try:
        found = getattr(getattr(clients, client), method)(**(CALLS[client, method] | {name: wrong}))
        if method == "send":
            found.exception(timeout_s=10)
        elif method in ("watch_partition_reassignments", "remove_brokers"):
            next(found, None)
    except Exception as error:
        if not is_typed(error):
            raise
    assert time.monotonic() - began_s < CALL_S
    if client == "producer":
        clients.producer.send(TOPIC, b"neighbour", partition=0).result(timeout_s=10)


@pytest.mark.parametrize("number", [1 << 70, -(1 << 70)])
@pytest.mark.parametrize(
    ("client", "method", "name"),
    [
        argument
        for argument in ARGUMENTS
        if type(CALLS[argument[:2]][argument[2]]) is int and argument[1] not in ("send", "poll_records")
    ],
)
def test_an_integer_beyond_64_bits_is_refused_by_its_name(
    clients: Clients, client: str, method: str, name: str, number: int
) -> None:
    call = getattr(getattr(clients, client), method)
    with pytest.raises(TidemarkError, match=f"{name}|partition") as caught:
        list(call(**(CALLS[client, method] | {name: number})))
    assert caught.value.code in (ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_PARTITION)


@pytest.mark.parametrize("index", [1 << 70, 1 << 31, -1])
def test_an_impossible_partition_is_refused_without_a_call(clients: Clients, index: int) -> None:
    where = TopicPartition(TOPIC, index)
    calls: list[Callable[[], object]] = [
        lambda: clients.consumer.end_offsets([where]),
        lambda: clients.consumer.offset_for_timestamp(where, 0),
        lambda: clients.member.commit({where: 0}),
        lambda: clients.member.committed([where]),
        lambda: clients.groups.set_offsets("wrong-types-2", {where: 0}),
        lambda: clients.groups.plan_reset("wrong-types-2", 0, partitions=[where]),
        lambda: clients.admin.elect_leaders(ElectionKind.PREFERRED, [where]),
        lambda: clients.admin.alter_partition_reassignments([PartitionReassignment(where, (BrokerId(0),))]),
        lambda: clients.admin.alter_replica_log_dirs([ReplicaLogDir(BrokerId(0), where, "/nowhere")]),
    ]
    for call in calls:
        with pytest.raises(InvalidRequestError, match=f"is {index}: expected 0 to 2147483647"):
            call()


@pytest.mark.parametrize("wrong", [b"value", (b"key",), (b"k", b"v", b"more"), None])
@pytest.mark.parametrize("collect", [list, iter], ids=["a list", "an iterator"])
def test_send_many_sends_the_records_before_one_that_is_not_a_pair(
    clients: Clients, collect: Callable[[list[Any]], Any], wrong: object
) -> None:
    before = sum(clients.consumer.end_offsets([ZERO]).values())
    with pytest.raises(TypeError, match="records are pairs of key and value, not "):
        clients.producer.send_many(TOPIC, collect([(b"k", b"1"), (b"k", b"2"), wrong, (b"k", b"3")]))
    clients.producer.flush()
    assert sum(clients.consumer.end_offsets([ZERO]).values()) == before + 2


def test_every_method_with_arguments_is_called() -> None:
    kinds = {"producer": Producer, "consumer": Consumer, "member": Consumer, "groups": Groups, "admin": AdminClient}
    called = {(kinds[client], method) for client, method in CALLS}
    without = {"close", "metrics", "lag", "health", "assignment", "transaction", "seek_to_committed"}
    without |= {"list_groups", "list_topics", "describe_cluster"}
    for kind in set(kinds.values()):
        methods = {name for name, part in vars(kind).items() if not name.startswith("_") and hasattr(part, "__get__")}
        assert {(kind, name) for name in methods - without} <= called
