# SPDX-License-Identifier: Apache-2.0
"""The gate in front of handlers that record the requests which reach them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from tidemark.core.security.acls import CLUSTER, Acl, Operation, Pattern, Permission, ResourceType
from tidemark.core.security.authorizer import Authorizer, Decision, Rules
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc import errors, request_limits
from tidemark.rpc.security.access import Accesses
from tidemark.rpc.security.audit import Audit
from tidemark.rpc.security.callers import host_of
from tidemark.rpc.security.gate import Gate
from tidemark.runtime import slices
from tidemark.runtime.metrics import Metrics
from tidemark.v1 import admin_brokers_pb2 as brokers_pb
from tidemark.v1 import admin_configs_pb2 as configs_pb
from tidemark.v1 import admin_service_pb2 as admin_pb
from tidemark.v1 import broker_service_pb2 as pb
from tidemark.v1 import controller_service_pb2 as control_pb
from tidemark.v1 import group_service_pb2 as group_pb
from tidemark.v1 import record_pb2

from tests.unit.rpc.security.pem import facts_of

ADMIN = "/tidemark.v1.AdminService"
BROKER, GROUPS = "/tidemark.v1.BrokerService", "/tidemark.v1.GroupService"


class Context:
    """A call of a user, or of a caller without certificate on a plain-text port."""

    def __init__(self, uri: str = "") -> None:
        self._uri = uri
        self.aborted: Any = None

    def auth_context(self) -> dict[str, list[bytes]]:
        return facts_of(self._uri) if self._uri else {}

    def peer(self) -> str:
        return "ipv6:%5B::ffff:10.0.0.1%5D:1234"

    async def abort(self, code: grpc.StatusCode, *rest: Any) -> None:
        raise PermissionError(code)

    abort_with_status = abort


ALICE = "spiffe://shop/alice"


def allow(
    operation: Operation, name: str, kind: ResourceType = ResourceType.TOPIC, *, user: str = f"User:{ALICE}"
) -> Acl:
    return Acl(kind, Pattern.LITERAL, name, user, "10.0.0.1", operation, Permission.ALLOW)


class Guarded:
    """A gate with rules; `seen` are the requests that reached a handler."""

    def __init__(self, *acls: Acl, cluster: str = "shop") -> None:
        self.authorizer = Authorizer(["User:spiffe://shop/root"])
        self.authorizer.use(Rules(acls))
        self._gate = Gate(Accesses(self.authorizer, Audit(), cluster))
        self.seen: list[Any] = []

    async def call(
        self, path: str, request: Any, answer: Any = None, *, uri: str = ALICE, meanwhile: Rules | None = None
    ) -> Any:
        async def serve(request: Any, context: Any) -> Any:
            self.seen.append(request)
            if meanwhile is not None:
                self.authorizer.use(meanwhile)
            return answer

        handler = await self._handler(path, grpc.unary_unary_rpc_method_handler(serve))
        return await handler.unary_unary(request, Context(uri))

    async def _handler(self, path: str, handler: Any) -> Any:
        async def continuation(details: Any) -> Any:
            return handler

        return await self._gate.intercept_service(continuation, SimpleNamespace(method=path))

    async def refusal(self, path: str, request: Any, *, uri: str = ALICE) -> TidemarkError:
        with pytest.raises(TidemarkError) as refused:
            await self.call(path, request, uri=uri)
        assert not self.seen
        return refused.value


async def test_denied_items_do_not_reach_the_service_and_are_answered_at_their_positions() -> None:
    guarded = Guarded(allow(Operation.READ, "a"), allow(Operation.READ, "g", ResourceType.GROUP))
    topics = ["x", "a", "y", "y", "a"]
    request = group_pb.CommitOffsetsRequest(
        group_id="g", offsets=[group_pb.OffsetCommit(topic=topic, partition=n) for n, topic in enumerate(topics)]
    )
    given = [group_pb.GroupPartitionResult(topic="a", partition=n) for n in (1, 4)]
    answer = await guarded.call(f"{GROUPS}/CommitOffsets", request, group_pb.CommitOffsetsResponse(partitions=given))
    assert [(one.topic, one.partition) for one in guarded.seen[0].offsets] == [("a", 1), ("a", 4)]
    assert [(one.topic, one.partition) for one in answer.partitions] == list(zip(topics, range(5), strict=True))
    denied = "TOPIC_AUTHORIZATION_FAILED"
    assert [one.error.code for one in answer.partitions] == ["" if topic == "a" else denied for topic in topics]


async def test_items_that_are_names_are_answered_too() -> None:
    guarded = Guarded(allow(Operation.DESCRIBE, "g", ResourceType.GROUP))
    found = group_pb.FindCoordinatorResponse(coordinators=[group_pb.GroupCoordinator(group_id="g", broker_id=1)])
    answer = await guarded.call(
        f"{GROUPS}/FindCoordinator", group_pb.FindCoordinatorRequest(group_ids=["g", "other"]), found
    )
    assert [(one.group_id, one.error.code) for one in answer.coordinators] == [
        ("g", ""),
        ("other", "GROUP_AUTHORIZATION_FAILED"),
    ]


async def test_items_of_an_answer_that_may_not_be_seen_are_left_out_at_every_depth() -> None:
    guarded = Guarded(allow(Operation.READ, "a"), allow(Operation.READ, "g", ResourceType.GROUP))
    some = [group_pb.GroupTopicPartitions(topic=topic) for topic in ("a", "b")]
    member = group_pb.GroupMember(subscribed_topics=["b", "a"], assignment=group_pb.GroupPartitions(topics=some))
    parts = [group_pb.GroupPartition(topic=topic) for topic in ("b", "a")]
    described = group_pb.GroupDescription(group_id="g", members=[member], partitions=parts)
    answer = await guarded.call(
        f"{GROUPS}/DescribeGroups",
        group_pb.DescribeGroupsRequest(group_ids=["g"]),
        group_pb.DescribeGroupsResponse(groups=[described]),
    )
    (group,) = answer.groups
    assert [one.topic for one in group.partitions] == ["a"]
    assert list(group.members[0].subscribed_topics) == ["a"]
    assert [one.topic for one in group.members[0].assignment.topics] == ["a"]
    listed = await guarded.call(
        f"{GROUPS}/ListGroups",
        group_pb.ListGroupsRequest(),
        group_pb.ListGroupsResponse(groups=[group_pb.GroupListing(group_id=one) for one in ("g", "h")]),
    )
    assert [one.group_id for one in listed.groups] == ["g"]


async def test_a_producer_id_needs_a_right_to_write_any_topic_or_idempotent_write() -> None:
    path, request = f"{BROKER}/InitProducerId", pb.InitProducerIdRequest()
    refused = await Guarded(allow(Operation.READ, "a")).refusal(path, request)
    assert refused.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert "may not WRITE any Topic" in refused.message
    assert refused.message.endswith("--allow write --topic NAME")
    for rule in (
        allow(Operation.WRITE, "a"),
        allow(Operation.IDEMPOTENT_WRITE, "cluster", ResourceType.CLUSTER),
    ):
        await (guarded := Guarded(rule)).call(path, request)
        assert guarded.seen


async def test_services_of_the_same_cluster_need_no_rule_for_their_own_calls_only() -> None:
    guarded = Guarded()
    path, request = f"{BROKER}/DescribeBrokerConfigs", pb.DescribeLogDirsRequest()
    for uri in ("tidemark://other/admin/a", "tidemark://shop/broker/1", "tidemark://shop/user/admin"):
        assert (await guarded.refusal(path, request, uri=uri)).code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    await guarded.call(path, request, uri="tidemark://shop/admin/a")
    assert guarded.seen


@pytest.mark.parametrize(
    ("path", "request_", "answer"),
    [
        ("PlanBrokers", brokers_pb.PlanBrokersRequest(topics=["a", "hidden"]), brokers_pb.PlanBrokersResponse()),
        (
            "ListUncleanElections",
            admin_pb.ListUncleanElectionsRequest(topics=["hidden"]),
            admin_pb.ListUncleanElectionsResponse(),
        ),
    ],
)
async def test_a_named_topic_that_may_not_be_described_is_refused_before_a_lookup_tells_it_from_a_missing_one(
    path: str, request_: Any, answer: Any
) -> None:
    guarded = Guarded(allow(Operation.DESCRIBE, "cluster", ResourceType.CLUSTER), allow(Operation.READ, "a"))
    assert "topic 'hidden' does not exist, or" in (await guarded.refusal(f"{ADMIN}/{path}", request_)).message
    await guarded.call(f"{ADMIN}/{path}", type(request_)(topics=["a"]), answer)
    assert guarded.seen


async def test_a_claim_of_a_restart_needs_alter_and_a_broker_may_claim_its_own() -> None:
    guarded = Guarded(allow(Operation.DESCRIBE, "cluster", ResourceType.CLUSTER))
    path, claim = f"{ADMIN}/SafeToRestart", brokers_pb.SafeToRestartRequest(broker_id=1, claim=True)
    assert "may not ALTER Cluster" in (await guarded.refusal(path, claim)).message
    answer = brokers_pb.SafeToRestartResponse()
    for request, uri in ((brokers_pb.SafeToRestartRequest(broker_id=1), ALICE), (claim, "tidemark://shop/broker/1")):
        await guarded.call(path, request, answer, uri=uri)
        assert guarded.seen.pop() is request


async def test_a_held_heartbeat_is_checked_again_before_its_answer() -> None:
    rules = (allow(Operation.READ, "g", ResourceType.GROUP), allow(Operation.READ, "a"))
    guarded = Guarded(*rules)
    beat = group_pb.GroupHeartbeatRequest(group_id="g", subscription=group_pb.GroupSubscription(topics=["a"]))
    path, answer = f"{GROUPS}/GroupHeartbeat", group_pb.GroupHeartbeatResponse()
    assert await guarded.call(path, beat, answer, meanwhile=Rules(rules, 1)) is answer
    with pytest.raises(TidemarkError, match="may not READ Group:g"):
        await guarded.call(path, beat, answer, meanwhile=Rules(rules[1:], 2))


async def test_internal_calls_on_a_plain_text_port_need_cluster_action() -> None:
    path, request = "/tidemark.v1.BrokerControlService/UpdateMetadata", control_pb.UpdateMetadataRequest()
    refused = await Guarded(cluster="").refusal(path, request, uri="")
    assert refused.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert "User:ANONYMOUS may not CLUSTER_ACTION Cluster" in refused.message
    rule = allow(Operation.CLUSTER_ACTION, "cluster", ResourceType.CLUSTER, user="User:ANONYMOUS")
    await (guarded := Guarded(rule, cluster="")).call(path, request, uri="")
    assert guarded.seen


async def test_a_call_without_a_row_reaches_no_service_and_health_needs_no_right() -> None:
    guarded = Guarded()
    handler = await guarded._handler(f"{BROKER}/Invented", grpc.unary_unary_rpc_method_handler(None))
    with pytest.raises(PermissionError):
        await handler.stream_stream(None, Context())
    probe = grpc.unary_unary_rpc_method_handler(None)
    assert await guarded._handler("/grpc.health.v1.Health/Check", probe) is probe


async def test_nothing_is_allowed_before_the_rules_are_read_except_to_super_users() -> None:
    guarded = Guarded()
    guarded.authorizer.rules = None
    path, request = f"{GROUPS}/DeleteGroup", group_pb.DeleteGroupRequest(group_id="g")
    refused = await guarded.refusal(path, request)
    assert refused.code is ErrorCode.AUTHORIZER_NOT_READY
    await guarded.call(path, request, uri="spiffe://shop/root")
    assert guarded.seen == [request]


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.1:1234", "10.0.0.1"),
        ("ipv6:%5B::1%5D:1234", "::1"),
        ("ipv6:%5B::ffff:10.0.0.1%5D:1234", "10.0.0.1"),
        ("ipv6:[0:0:0:0:0:0:0:2]:1", "::2"),
        ("unix:/tmp/socket", "/tmp/socket"),
    ],
)
def test_the_host_of_a_caller_has_the_form_of_rules(peer: str, host: str) -> None:
    assert host_of(peer) == host


def test_lines_of_denials_are_limited_for_each_principal_and_the_rest_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = 0.0
    metrics = Metrics()
    audit = Audit(metrics, lambda: now_s)
    denied = Decision(False, None, "no rule allows it")
    for principal in ["User:loop"] * 30 + ["User:other"]:
        audit.denied(principal, "::1", Operation.ALTER, CLUSTER, denied)
    assert [record.principal for record in caplog.records] == ["User:loop"] * 20 + ["User:other"]  # type: ignore[attr-defined]
    text = metrics.render().decode()
    assert 'tidemark_authorization_denials_total{operation="ALTER",resource_type="CLUSTER"} 31.0' in text
    assert "tidemark_audit_lines_dropped_total 10.0" in text
    now_s = 10.0
    audit.denied("User:loop", "::1", Operation.ALTER, CLUSTER, denied)
    assert len(caplog.records) == 22


def _named(count: int, *, distinct: bool = True) -> list[str]:
    return [f"t{index if distinct else 0}" for index in range(count)]


def _many(names: list[str]) -> dict[str, Any]:
    kind = configs_pb.CONFIG_RESOURCE_TYPE_TOPIC
    return {
        f"{GROUPS}/FindCoordinator": group_pb.FindCoordinatorRequest(group_ids=names),
        f"{GROUPS}/GroupHeartbeat": group_pb.GroupHeartbeatRequest(
            group_id="g", subscription=group_pb.GroupSubscription(topics=names)
        ),
        f"{BROKER}/ListOffsets": pb.ListOffsetsRequest(
            partitions=[pb.PartitionListOffsets(topic=name) for name in names]
        ),
        "/tidemark.v1.AdminService/DescribeConfigs": configs_pb.DescribeConfigsRequest(
            resources=[configs_pb.ConfigResource(type=kind, name=name) for name in names]
        ),
    }


@pytest.mark.parametrize("path", _many([]))
async def test_a_request_with_too_many_names_is_refused_before_any_decision(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_limits, "NAMED_MAX", 3)
    guarded = Guarded(*(allow(operation, "*", kind) for operation in Operation for kind in ResourceType))
    monkeypatch.setattr(guarded.authorizer, "decide", None)
    refused = await guarded.refusal(path, _many(_named(4))[path])
    assert refused.code is ErrorCode.INVALID_REQUEST
    assert "at most 3 " in refused.message


@pytest.mark.parametrize("path", _many([]))
async def test_other_tasks_run_while_a_request_with_many_names_is_checked(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    guarded = Guarded(
        allow(Operation.READ, "g", ResourceType.GROUP),
        *(allow(Operation.DESCRIBE_CONFIGS, name) for name in _named(100)),
        *(allow(Operation.DESCRIBE, name) for name in _named(100)),
    )
    answers = {
        f"{GROUPS}/FindCoordinator": group_pb.FindCoordinatorResponse(),
        f"{BROKER}/ListOffsets": pb.ListOffsetsResponse(),
        f"{GROUPS}/GroupHeartbeat": group_pb.GroupHeartbeatResponse(),
    }
    call = asyncio.create_task(guarded.call(path, _many(_named(100))[path], answers.get(path)))
    turns = 0
    while not call.done():
        turns += 1
        await asyncio.sleep(0)
    await call
    assert turns > 100


async def test_other_tasks_run_while_items_of_an_answer_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    answer = group_pb.ListGroupsResponse(groups=[group_pb.GroupListing(group_id=name) for name in _named(100)])
    call = asyncio.create_task(Guarded().call(f"{GROUPS}/ListGroups", group_pb.ListGroupsRequest(), answer))
    turns = 0
    while not call.done():
        turns += 1
        await asyncio.sleep(0)
    assert not (await call).groups
    assert turns > 90


async def test_the_error_of_a_name_that_is_denied_many_times_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[TidemarkError] = []

    def to_proto(error: TidemarkError) -> Any:
        written.append(error)
        return record_pb2.Error(code=error.code, message=error.message)

    monkeypatch.setattr(errors, "to_proto", to_proto)
    path = f"{BROKER}/ListOffsets"
    answer = await Guarded().call(path, _many(_named(50, distinct=False))[path], pb.ListOffsetsResponse())
    assert [one.error.code for one in answer.partitions] == [ErrorCode.UNKNOWN_TOPIC] * 50
    assert len(written) == 1
