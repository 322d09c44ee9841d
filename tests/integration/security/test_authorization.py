# SPDX-License-Identifier: Apache-2.0
"""A cluster with certificates and access rules: every RPC for every kind of caller, and rules that change."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from tidemark.cli.app import app
from tidemark.client import (
    AdminClient,
    AuthorizationError,
    ConfigKind,
    ConfigResource,
    Consumer,
    InvalidRequestError,
    Producer,
    TlsFiles,
    UnknownTopicError,
)
from tidemark.client.acls import CLUSTER, AclFilter, allow_rule, topic
from tidemark.core.security.acls import Acl, Operation, Pattern, Permission, ResourceType
from tidemark.core.security.rights import RIGHTS
from tidemark.local.cluster import LocalCluster, broker_name
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc.channel import blocking_channels
from tidemark.rpc.errors import from_rpc_error
from tidemark.rpc.security.files import TlsIdentity
from tidemark.rpc.security.paths import FILE_VARIABLES
from tidemark.v1 import admin_service_pb2 as admin_pb
from tidemark.v1 import broker_service_pb2 as pb
from tidemark.v1.admin_service_pb2_grpc import AdminServiceStub
from tidemark.v1.broker_service_pb2_grpc import BrokerServiceStub
from tidemark.v1.replica_reads_pb2 import ReadReplicaRequest
from typer.testing import CliRunner

from tests.channels import opened
from tests.integration.harness.certificates import signed_by
from tests.integration.harness.metrics import samples
from tests.integration.harness.rights_matrix import CALL_S, GROUP, TOPIC, methods, outcome
from tests.integration.harness.waiting import wait_for

URIS = {
    "anonymous": None,
    "unknown": "tidemark://local/user/unknown",
    "reader": "tidemark://local/user/reader",
    "writer": "tidemark://local/user/writer",
    "admin": "tidemark://local/user/root",
    "broker": "tidemark://local/broker/1",
    "controller": "tidemark://local/controller/101",
}
PRIVATE = "private-topic"

TOPICS_ALLOWED = "reader writer admin"
EXPECTED: dict[str, tuple[str, str]] = {
    "BrokerService/GetMetadata": ("hidden", TOPICS_ALLOWED),
    "BrokerService/WatchMetadata": ("hidden", TOPICS_ALLOWED),
    "BrokerService/Produce": ("topic", "writer admin"),
    "BrokerService/Fetch": ("topic", "reader admin"),
    "BrokerService/FetchStream": ("topic", "reader admin"),
    "BrokerService/ListOffsets": ("hidden", "reader writer admin broker"),
    "BrokerService/OffsetsForLeaderEpoch": ("hidden", TOPICS_ALLOWED),
    "BrokerService/InitProducerId": ("topic", "writer admin"),
    "BrokerService/DescribeLogDirs": ("cluster", "admin"),
    "BrokerService/AlterReplicaLogDirs": ("cluster", "admin"),
    "BrokerService/DeleteRecords": ("topic", "admin"),
    "BrokerService/ReadReplica": ("cluster", "admin broker"),
    "BrokerService/DescribeBrokerConfigs": ("cluster", "admin"),
    "BrokerService/ListBrokerAuditLines": ("cluster", "admin"),
    "BrokerService/GetTopicSchemas": ("hidden", TOPICS_ALLOWED),
    "GroupService/FindCoordinator": ("group", "reader admin"),
    "GroupService/GroupHeartbeat": ("group", "reader admin"),
    "GroupService/CommitOffsets": ("group", "reader admin"),
    "GroupService/FetchOffsets": ("group", "reader admin"),
    "GroupService/ListGroups": ("", " ".join(URIS)),
    "GroupService/DescribeGroups": ("group", "reader admin"),
    "GroupService/AlterGroupOffsets": ("group", "reader admin"),
    "GroupService/DeleteGroup": ("group", "admin"),
    "GroupService/DeleteGroupOffsets": ("group", "admin"),
    "TransactionService/FindTransactionCoordinator": ("transactional id", "writer admin"),
    "TransactionService/InitTransactions": ("transactional id", "writer admin"),
    "TransactionService/EndTransaction": ("transactional id", "writer admin"),
    "TransactionService/JoinTransaction": ("transactional id", "writer admin"),
    "TransactionService/KeepTransaction": ("transactional id", "writer admin"),
    "TransactionService/CommitMembers": ("transactional id", "writer admin"),
    "TransactionService/AbortTransaction": ("transactional id", "writer admin"),
    "TransactionService/ListTransactions": ("", " ".join(URIS)),
    "TransactionService/DescribeTransactions": ("transactional id", "writer admin"),
    "TransactionService/DescribeProducers": ("topic", "reader admin"),
    "TransactionCoordination/AddPartitions": ("cluster", "broker"),
    "TransactionCoordination/WriteMarkers": ("cluster", "broker"),
    "AdminService/CreateTopic": ("topic", "admin"),
    "AdminService/DeleteTopic": ("topic", "admin"),
    "AdminService/ListTopics": ("", " ".join(URIS)),
    "AdminService/DescribeTopics": ("hidden", TOPICS_ALLOWED),
    "AdminService/DescribeCluster": ("cluster", "admin"),
    "AdminService/ElectLeaders": ("cluster", "admin"),
    "AdminService/ListUncleanElections": ("cluster", "admin"),
    "AdminService/AlterConfigs": ("topic", "admin"),
    "AdminService/DescribeConfigs": ("topic", "admin"),
    "AdminService/AlterPartitionReassignments": ("cluster", "admin"),
    "AdminService/ListPartitionReassignments": ("cluster", "admin"),
    "AdminService/WatchPartitionReassignments": ("cluster", "admin"),
    "AdminService/CreatePartitions": ("topic", "admin"),
    "AdminService/DeletePartitions": ("topic", "admin"),
    "AdminService/PlanBrokers": ("cluster", "admin"),
    "AdminService/AddBrokers": ("cluster", "admin"),
    "AdminService/RemoveBrokers": ("cluster", "admin"),
    "AdminService/SafeToRestart": ("cluster", "admin broker"),
    "AdminService/DescribeLogDirs": ("cluster", "admin"),
    "AdminService/AlterReplicaLogDirs": ("cluster", "admin"),
    "AdminService/ListAcls": ("cluster", "admin"),
    "AdminService/AlterAcls": ("cluster", "admin"),
    "AdminService/CheckAccess": ("cluster", "admin"),
    "AdminService/DescribeClientQuotas": ("cluster", "admin"),
    "AdminService/AlterClientQuotas": ("cluster", "admin"),
    "AdminService/AlterTopicSchema": ("topic", "admin"),
    "AdminService/DescribeTopicSchemas": ("topic", "admin"),
    "AdminService/ListAuditLines": ("cluster", "admin"),
    "BrokerControlService/LeaderAndIsr": ("cluster", "controller"),
    "BrokerControlService/StopReplica": ("cluster", "controller"),
    "BrokerControlService/UpdateMetadata": ("cluster", "controller"),
    "BrokerControlService/Heartbeat": ("cluster", "controller"),
    "BrokerControlService/DescribeReplicas": ("cluster", "controller"),
    "ControllerService/ReportIsrChanges": ("cluster", "broker"),
    "ControllerService/AskReplicas": ("cluster", ""),
    "ControllerService/DescribeController": ("cluster", "broker controller"),
    "ReplicaService/Replicate": ("cluster", "broker"),
}
"""The kind of denial of each RPC, and the callers that are allowed; written manually from Kafka's rights."""


def allow(caller: str, operation: Operation, name: str = "open-", *, kind: ResourceType = ResourceType.TOPIC) -> Acl:
    return Acl(kind, Pattern.PREFIXED, name, f"User:{URIS[caller]}", "*", operation, Permission.ALLOW)


RULES = [
    allow("reader", Operation.READ),
    allow("reader", Operation.READ, kind=ResourceType.GROUP),
    allow("writer", Operation.WRITE),
    allow("writer", Operation.WRITE, kind=ResourceType.TRANSACTIONAL_ID),
]


def change_rules(cluster: LocalCluster, rules: Iterable[Acl]) -> None:
    """Replace all rules, and wait until every process has them."""
    with AdminClient(cluster.bootstrap, tls=OPERATOR[0]) as admin:
        wanted, found = set(rules), set(admin.list_acls())
        generation = admin.alter_acls(add=sorted(wanted - found), remove=sorted(found - wanted)).generation
    wait_for(lambda: all(generation_at(cluster, name) >= generation for name in SERVERS), "the rules at every process")


OPERATOR: list[TlsFiles] = []
"""Files of the super user."""
SERVERS = ("broker-0", "broker-1", "broker-2", "admin")


def generation_at(cluster: LocalCluster, name: str) -> float:
    return samples(cluster, name)["tidemark_acl_rules_generation"]


class Callers:
    """Channels and files of every kind of caller."""

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        self.cluster = cluster
        self.files = {
            name: signed_by(cluster.directory / "certs", directory / name, uris=[] if uri is None else [uri])
            for name, uri in URIS.items()
        }
        OPERATOR[:] = [self.files["admin"]]
        self.channels = {name: blocking_channels(TlsIdentity(files)) for name, files in self.files.items()}

    def to(self, caller: str, service: str) -> Any:
        return opened(self.channels[caller], self.cluster.address(service))

    def close(self) -> None:
        for channels in self.channels.values():
            channels.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    flags = {"authorization.enabled": "true", "super.users": f"User:{URIS['admin']}"}
    with LocalCluster(
        tmp_path_factory.mktemp("guarded"), secure=True, settings={"broker": flags, "admin": flags}
    ) as started:
        yield started


@pytest.fixture(scope="module")
def callers(guarded: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callers]:
    made = Callers(guarded, tmp_path_factory.mktemp("callers"))
    with AdminClient(guarded.bootstrap, tls=made.files["admin"]) as admin:
        for name in (TOPIC, PRIVATE):
            admin.create_topic(name, partitions=1, replication_factor=3)
    yield made
    made.close()


@pytest.fixture
def rules(guarded: LocalCluster, callers: Callers) -> None:
    """Wait until every process uses `RULES`."""
    change_rules(guarded, RULES)


def server_of(rpc: str) -> str:
    return {"AdminService": "admin", "ControllerService": "controller-100"}.get(rpc.partition("/")[0], "broker-0")


def test_the_expected_outcomes_cover_every_rpc() -> None:
    assert EXPECTED.keys() == dict(methods()).keys() == {path.removeprefix("/tidemark.v1.") for path in RIGHTS}


@pytest.mark.usefixtures("rules")
@pytest.mark.parametrize("caller", URIS)
def test_every_rpc_is_allowed_to_the_callers_of_the_table_only(callers: Callers, caller: str) -> None:
    def call(named: tuple[str, Any]) -> tuple[str, str]:
        rpc, method = named
        return rpc, outcome(callers.to(caller, server_of(rpc)), rpc, method)

    with ThreadPoolExecutor(8) as pool:
        found = dict(pool.map(call, methods()))
    expected = {rpc: "allowed" if caller in allowed.split() else kind for rpc, (kind, allowed) in EXPECTED.items()}
    assert found == expected


def refusal_of(call: Any) -> TidemarkError:
    with pytest.raises(grpc.RpcError) as raised:
        call()
    return from_rpc_error(raised.value, address="server")


@pytest.mark.usefixtures("rules")
def test_a_topic_that_may_not_be_described_looks_like_one_that_does_not_exist(callers: Callers) -> None:
    broker = BrokerServiceStub(callers.to("reader", "broker-0"))
    admin = AdminServiceStub(callers.to("reader", "admin"))

    def told(name: str) -> list[bytes]:
        answers = [
            broker.GetMetadata(pb.GetMetadataRequest(topics=[name]), timeout=CALL_S),
            next(broker.WatchMetadata(pb.WatchMetadataRequest(topics=[name]), timeout=CALL_S)),
            admin.DescribeTopics(admin_pb.DescribeTopicsRequest(topics=[name]), timeout=CALL_S),
            broker.ListOffsets(
                pb.ListOffsetsRequest(partitions=[pb.PartitionListOffsets(topic=name, latest=True)]), timeout=CALL_S
            ),
        ]
        errors = [refusal_of(lambda: admin.DeleteTopic(admin_pb.DeleteTopicRequest(topic=name), timeout=CALL_S))]
        texts = [str(one) for one in answers] + [f"{one}{one.metadata}" for one in errors]
        return [text.replace(name, "TOPIC").encode() for text in texts]

    assert told(PRIVATE) == told("missing-topic")


@pytest.mark.usefixtures("rules")
def test_lists_and_metadata_have_the_topics_that_may_be_described(callers: Callers) -> None:
    for caller, expected in {"reader": {TOPIC}, "writer": {TOPIC}, "unknown": set()}.items():
        broker = BrokerServiceStub(callers.to(caller, "broker-0"))
        admin = AdminServiceStub(callers.to(caller, "admin"))
        metadata = broker.GetMetadata(pb.GetMetadataRequest(all_topics=True), timeout=CALL_S).metadata
        watched = next(broker.WatchMetadata(pb.WatchMetadataRequest(), timeout=CALL_S)).metadata
        described = admin.DescribeTopics(admin_pb.DescribeTopicsRequest(), timeout=CALL_S)
        for topics in (metadata.topics, watched.topics, described.topics):
            assert {one.topic for one in topics} == expected
        assert set(admin.ListTopics(admin_pb.ListTopicsRequest(), timeout=CALL_S).topics) == expected
        assert all(one.port for one in metadata.brokers)


@pytest.mark.usefixtures("rules")
def test_open_streams_look_again_when_the_rules_change(guarded: LocalCluster, callers: Callers) -> None:
    leader = leader_of(guarded, callers)
    broker = BrokerServiceStub(callers.to("reader", f"broker-{leader.leader}"))
    watch = broker.WatchMetadata(pb.WatchMetadataRequest(), timeout=60)
    assert [one.topic for one in next(watch).metadata.topics] == [TOPIC]
    part = pb.PartitionFetch(topic=TOPIC, partition=0, current_leader_epoch=leader.leader_epoch)
    waiting = pb.FetchRequest(partitions=[part], min_bytes=1 << 20, max_wait_ms=25_000)
    fetches = broker.FetchStream(iter([waiting]), timeout=60)
    change_rules(guarded, [])
    refused = next(fetches).partitions[0]
    assert refused.error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert not refused.batches
    while next(watch).metadata.topics:
        continue
    change_rules(guarded, RULES)
    while [one.topic for one in next(watch).metadata.topics] != [TOPIC]:
        continue
    watch.cancel()


def leader_of(cluster: LocalCluster, callers: Callers) -> Any:
    broker = BrokerServiceStub(callers.to("admin", "broker-0"))
    response = broker.GetMetadata(pb.GetMetadataRequest(topics=[TOPIC]), timeout=CALL_S)
    return response.metadata.topics[0].partitions[0]


@pytest.mark.usefixtures("rules")
def test_clients_read_and_write_with_their_rights_and_get_the_missing_right_in_the_error(
    guarded: LocalCluster, callers: Callers
) -> None:
    reader, writer = callers.files["reader"], callers.files["writer"]
    with Producer(guarded.bootstrap, tls=writer) as producer:
        producer.send(TOPIC, b"hello").result(CALL_S)
    with Consumer(guarded.bootstrap, tls=reader, group=GROUP, offset_reset="earliest") as consumer:
        consumer.subscribe(TOPIC)
        assert next(iter(consumer)).value == b"hello"
        consumer.commit()
    principal = f"User:{URIS['reader']}"
    with Producer(guarded.bootstrap, tls=reader) as producer, pytest.raises(AuthorizationError) as denied:
        producer.send(TOPIC, b"no").result(CALL_S)
    assert f"{principal} may not WRITE any Topic (no rule allows it); an operator can run" in denied.value.message
    change_rules(guarded, [*RULES, allow("reader", Operation.WRITE, "other-")])
    with Producer(guarded.bootstrap, tls=reader) as producer, pytest.raises(AuthorizationError) as denied:
        producer.send(TOPIC, b"no").result(CALL_S)
    assert f"{principal} may not WRITE Topic:{TOPIC} (no rule allows it); an operator can run" in denied.value.message
    assert denied.value.metadata["principal"] == principal
    assert denied.value.metadata["operation"] == "WRITE"
    with Producer(guarded.bootstrap, tls=writer) as producer, pytest.raises(UnknownTopicError) as hidden:
        producer.send(PRIVATE, b"no").result(CALL_S)
    assert "tidemark acl add" in hidden.value.message


@pytest.mark.usefixtures("rules")
def test_a_stored_answer_is_given_to_the_principal_of_the_request_only(callers: Callers) -> None:
    request = admin_pb.CreateTopicRequest(topic="once", partitions=1, replication_factor=1, request_id="the-same")
    admin = AdminServiceStub(callers.to("admin", "admin"))
    first = admin.CreateTopic(request, timeout=CALL_S)
    assert admin.CreateTopic(request, timeout=CALL_S) == first
    denied = refusal_of(lambda: AdminServiceStub(callers.to("writer", "admin")).CreateTopic(request, timeout=CALL_S))
    assert denied.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_denials_are_counted_and_in_the_audit_log(guarded: LocalCluster, tmp_path: Path) -> None:
    uri = "spiffe://example/audited"  # other principals may have caused all their lines of ten seconds
    files = signed_by(guarded.directory / "certs", tmp_path, uris=[uri])
    name = 'tidemark_authorization_denials_total{operation="ALTER",resource_type="CLUSTER"}'
    before = samples(guarded, "admin").get(name, 0)
    channels = blocking_channels(TlsIdentity(files))
    admin = AdminServiceStub(opened(channels, guarded.address("admin")))
    refusal_of(lambda: admin.ElectLeaders(admin_pb.ElectLeadersRequest(), timeout=CALL_S))
    channels.close()
    assert samples(guarded, "admin")[name] == before + 1
    lines = [
        json.loads(line)
        for line in (guarded.directory / "logs" / "admin.log").read_text().splitlines()
        if '"DENIED"' in line
    ]
    (last,) = [line for line in lines if line["principal"] == f"User:{uri}"]
    assert (last["operation"], last["resource"], last["rule"], last["host"]) == (
        "ALTER",
        "Cluster",
        "no rule allows it",
        "127.0.0.1",
    )


@pytest.mark.usefixtures("rules")
def test_an_admin_lists_audit_lines_of_all_services(guarded: LocalCluster, callers: Callers, tmp_path: Path) -> None:
    uri = "spiffe://example/listed"
    channels = blocking_channels(TlsIdentity(signed_by(guarded.directory / "certs", tmp_path, uris=[uri])))
    stub = BrokerServiceStub(opened(channels, guarded.address(broker_name(1))))
    refusal_of(lambda: stub.ReadReplica(ReadReplicaRequest(topic=TOPIC), timeout=CALL_S))
    channels.close()
    with AdminClient(guarded.bootstrap, tls=callers.files["admin"]) as admin:
        change_rules(guarded, [*RULES, allow("writer", Operation.ALTER_CONFIGS)])
        found = {one.service: one for one in admin.list_audit_lines()}
        denied = {one.service: one.lines for one in admin.list_audit_lines(principal="LISTED", outcome="DENIED")}
    assert {"admin", "broker 0", "broker 1"} <= found.keys()
    assert all(one.error is None and one.authorization_enabled and one.since_ms for one in found.values())
    assert "AlterAcls" in [line.event for line in found["admin"].lines]
    (line,) = denied.pop("broker 1")
    assert (line.operation, line.resource, line.principal) == ("ALTER", "Cluster", f"User:{uri}")
    assert not any(denied.values())


@pytest.mark.usefixtures("rules")
def test_an_admin_changes_lists_and_tries_out_rules_which_take_effect_within_a_second(
    guarded: LocalCluster, callers: Callers
) -> None:
    principal = f"User:{URIS['unknown']}"
    more = [allow_rule(principal, Operation.WRITE, topic(name)) for name in (PRIVATE, "other")]
    denied = more[1]._replace(permission=Permission.DENY)
    broker = BrokerServiceStub(callers.to("unknown", "broker-1"))

    def is_visible() -> bool:
        answer = broker.GetMetadata(pb.GetMetadataRequest(topics=[PRIVATE]), timeout=CALL_S)
        return not answer.metadata.topics[0].HasField("error")

    with AdminClient(guarded.bootstrap, tls=callers.files["admin"]) as admin:
        before = admin.list_acls()
        assert admin.alter_acls(add=more, validate_only=True).added == tuple(sorted(more))
        assert admin.list_acls() == before
        changed = admin.alter_acls(add=[*more, denied, before[0]])
        written_s = time.monotonic()
        assert changed.added == tuple(sorted([*more, denied]))
        wait_for(is_visible, "the topic is visible")
        assert time.monotonic() - written_s < 1
        assert admin.alter_acls(add=more) == ((), (), changed.generation)
        assert admin.check_access(principal, Operation.DESCRIBE, topic(PRIVATE)) == (
            *(True, more[0], "a rule allows it", changed.generation),
        )
        assert admin.check_access(principal, Operation.WRITE, topic("other")).rule == denied
        assert admin.check_access(f"User:{URIS['admin']}", Operation.ALTER, CLUSTER).reason == "super user"
        matching = AclFilter("TOPIC", "MATCH", PRIVATE)
        assert admin.list_acls(matching) == [more[0]]
        assert admin.list_acls(AclFilter(principal=principal)) == sorted([*more, denied])
        removed = admin.alter_acls(remove=[*more, denied, denied])
        assert removed.removed == tuple(sorted([*more, denied]))
        assert admin.list_acls() == before
        for wrong in ({"add": more, "remove": more}, {"add": [more[0]._replace(host="localhost")]}):
            with pytest.raises(InvalidRequestError):
                admin.alter_acls(**wrong)
        assert admin.list_acls() == before


@pytest.mark.usefixtures("rules")
def test_the_command_adds_lists_checks_and_removes_rules(
    guarded: LocalCluster, callers: Callers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TIDEMARK_BOOTSTRAP", guarded.bootstrap)
    for variable, path in zip(FILE_VARIABLES, callers.files["admin"], strict=True):
        monkeypatch.setenv(variable, path)

    def run(*arguments: str, status: int = 0) -> str:
        result = CliRunner().invoke(app, ["acl", *arguments])
        assert result.exit_code == status, (result.output, result.exception)
        return result.stdout

    of = ("--principal", "User:token:zoe", "--allow", "read", "--topic-prefix", "zoo-", "--group", "zoo")
    assert run("add", *of, "--dry-run").endswith("2 rules to change\n")
    assert "+ ALLOW User:token:zoe from * to READ Topic:zoo-*" in run("add", *of)
    assert run("add", *of) == "nothing to change\n"
    check = ("check", "--principal", "User:token:zoe", "--topic", "zoo-animals", "--operation")
    by = "(a rule allows it: ALLOW User:token:zoe from * to READ Topic:zoo-*)"
    assert run(*check, "describe") == f"User:token:zoe may DESCRIBE Topic:zoo-animals {by}\n"
    assert run(*check, "write", status=1) == "User:token:zoe may not WRITE Topic:zoo-animals (no rule allows it)\n"
    listed = json.loads(run("list", "--topic", "zoo-animals", "--output", "json"))
    assert [(one["principal"], one["name"], one["pattern"]) for one in listed] == [
        ("User:token:zoe", "zoo-", "PREFIXED")
    ]
    assert "zoo-" in run("list", "--principal", "User:token:zoe")
    assert run("remove", *of).endswith("2 rules changed\n")
    assert run("list", "--principal", "User:token:zoe") == "there is no such rule\n"
    file = tmp_path / "cluster.yaml"
    file.write_text("acls: {'User:token:zoe': [{allow: read, topic: [a, b]}]}")
    result = CliRunner().invoke(app, ["apply", "-f", str(file)])
    assert "~ access rules: 2 to add, 0 to remove" in result.stdout, result.output
    assert CliRunner().invoke(app, ["apply", "-f", str(file), "--check"]).exit_code == 0
    file.write_text("acls: {'User:token:zoe': []}")
    assert CliRunner().invoke(app, ["apply", "-f", str(file)]).exit_code == 0
    assert run("list", "--principal", "User:token:zoe") == "there is no such rule\n"


@pytest.mark.usefixtures("rules")
def test_an_administrative_act_has_an_audit_line_with_the_rule_that_allowed_it(
    guarded: LocalCluster, callers: Callers
) -> None:
    may_alter = allow("writer", Operation.ALTER_CONFIGS)
    change_rules(guarded, [*RULES, may_alter])
    with AdminClient(guarded.bootstrap, tls=callers.files["writer"]) as admin:
        admin.alter_configs(ConfigResource(ConfigKind.TOPIC, TOPIC), {"retention.ms": 86_400_000})
    log = (guarded.directory / "logs" / "admin.log").read_text()
    line = [json.loads(one) for one in log.splitlines() if '"AlterConfigs"' in one and "tidemark.audit" in one][-1]
    assert (line["principal"], line["host"]) == (f"User:{URIS['writer']}", "127.0.0.1")
    assert (line["rule"], line["outcome"]) == (str(may_alter), "OK")
