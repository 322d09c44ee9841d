# SPDX-License-Identifier: Apache-2.0
"""RPCs whose answer was lost: the caller repeats the call, and the audit log has the requested change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from tidemark.admin.acls import AclAdministration
from tidemark.admin.partitions import PartitionAdministration
from tidemark.admin.quotas import QuotaAdministration
from tidemark.admin.reassignments import ReassignmentAdministration
from tidemark.admin.requests import AnsweredOnce
from tidemark.admin.servicer import AdminServicer
from tidemark.core.security.acls import Acl, Operation, Pattern, Permission, ResourceType
from tidemark.model import ErrorCode, TidemarkError, TopicDescription, TopicPartition
from tidemark.rpc.codecs.acl import acl_to_proto
from tidemark.rpc.codecs.refs import ref_to_proto
from tidemark.runtime.clock import SystemClock
from tidemark.v1 import (
    admin_acls_pb2,
    admin_brokers_pb2,
    admin_partitions_pb2,
    admin_quotas_pb2,
    admin_reassignments_pb2,
)

from tests.fakes.contexts import PlainContext
from tests.refusals import raises_code
from tests.unit.admin.moving import Cluster, Sizes, ids
from tests.unit.rpc.security.pem import facts_of

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
READ = Acl(
    ResourceType.TOPIC, Pattern.LITERAL, "t", "User:token:alice", "*", Operation.READ, Permission.ALLOW
)  # fmt: skip


class Context(PlainContext):
    """The context of a call of an anonymous caller."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def time_remaining(self) -> float:
        return 10.0


CONTEXT: Any = Context()


class CertifiedContext(Context):
    """The context of a call with a certificate."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def auth_context(self) -> dict[str, list[bytes]]:
        return facts_of(self._uri)


class Hurried(Context):
    """A caller that waits for a moment only."""

    def time_remaining(self) -> float:
        return 0.05


HURRIED: Any = Hurried()


@pytest.fixture
async def cluster() -> Cluster:
    cluster = Cluster()
    await cluster.start(brokers=4)
    await cluster.topic("t", (0, 1), (1, 2))
    return cluster


@pytest.fixture
def servicer(cluster: Cluster) -> AdminServicer:
    unused: Any = None
    return AdminServicer(
        unused,
        unused,
        descriptions=unused,
        configs=unused,
        requests=AnsweredOnce(cluster.store, SystemClock()),
        reassignments=ReassignmentAdministration(cluster.store, Sizes()),
        partitions=PartitionAdministration(cluster.store, asyncio.Lock()),
        brokers=unused,
        log_dirs=unused,
        acls=AclAdministration(cluster.store, ()),
        quotas=QuotaAdministration(cluster.store),
        schemas=unused,
        audit_lines=unused,
        of_callers=unused,
        request_timeout_ms=10_000,
    )


def without_answer(write: Callable[..., Awaitable[bool]]) -> Callable[..., Awaitable[bool]]:
    """A write that succeeds, and whose answer is lost."""

    async def lost(*arguments: Any, **named: Any) -> bool:
        await write(*arguments, **named)
        raise TidemarkError(ErrorCode.COORDINATION_UNAVAILABLE, "no answer in time")

    return lost


async def audited(caplog: pytest.LogCaptureFixture, call: Awaitable[object]) -> dict[str, Any]:
    """The line of the audit log of a call without an answer from ZooKeeper."""
    with caplog.at_level(logging.INFO, "tidemark.audit"), pytest.raises(TidemarkError):
        await call
    return vars(caplog.records[-1])


async def test_audit_line_of_access_rules_written_without_an_answer_has_the_rules(
    cluster: Cluster, servicer: AdminServicer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster.store, "write_acls", without_answer(cluster.store.write_acls))
    request = admin_acls_pb2.AlterAclsRequest(add=[acl_to_proto(READ)])
    line = await audited(caplog, servicer.AlterAcls(request, CONTEXT))
    assert (line["outcome"], line["add"], line["remove"]) == ("COORDINATION_UNAVAILABLE", [str(READ)], [])
    assert (await cluster.store.acls()).acls == (READ,), "the rule is in effect"


async def test_audit_line_of_quotas_written_without_an_answer_has_the_quotas(
    cluster: Cluster, servicer: AdminServicer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster.store, "write_quotas", without_answer(cluster.store.write_quotas))
    change = admin_quotas_pb2.ClientQuotasChange(
        entity=admin_quotas_pb2.QuotaEntity(client_id="app"),
        set={"producer_byte_rate": 1000.0},
        remove=["consumer_byte_rate"],
    )
    request = admin_quotas_pb2.AlterClientQuotasRequest(changes=[change])
    line = await audited(caplog, servicer.AlterClientQuotas(request, CONTEXT))
    assert line["outcome"] == "COORDINATION_UNAVAILABLE"
    assert line["changes"] == ["client id app: consumer_byte_rate=none, producer_byte_rate=1000"]


def moves(
    *moves: tuple[TopicPartition, tuple[int, ...]], cancel: tuple[TopicPartition, ...] = ()
) -> admin_reassignments_pb2.AlterPartitionReassignmentsRequest:
    return admin_reassignments_pb2.AlterPartitionReassignmentsRequest(
        moves=[
            admin_reassignments_pb2.ReplicaMove(partition=ref_to_proto(partition), replicas=replicas)
            for partition, replicas in moves
        ],
        cancel=[ref_to_proto(one) for one in cancel],
        request_id="r",
    )


async def alter(
    servicer: AdminServicer, request: admin_reassignments_pb2.AlterPartitionReassignmentsRequest
) -> list[bool]:
    response = await servicer.AlterPartitionReassignments(request, CONTEXT)
    return [result.HasField("error") for result in response.results]


async def carry_out(cluster: Cluster) -> None:
    """Complete or cancel every requested reassignment."""
    assert cluster.term is not None
    wanted = (await cluster.store.move_requests()).moves
    for move in wanted:
        topic = (await cluster.store.topics(["t"]))["t"]
        replicas = topic.partitions[move.partition.partition] if move.cancel else move.replicas
        await cluster.rewrite(replace(topic, partitions={**topic.partitions, move.partition.partition: replicas}))
    await cluster.store.finish_moves(cluster.term, wanted, [])


async def test_repeated_cancellation_of_an_ended_reassignment_gets_its_first_answer(
    cluster: Cluster, servicer: AdminServicer
) -> None:
    assert await alter(servicer, moves((T0, (2, 1)))) == [False]
    assert await alter(servicer, moves(cancel=(T0,))) == [False]
    await carry_out(cluster)
    assert await alter(servicer, moves(cancel=(T0,))) == [False]
    assert (await cluster.store.topics(["t"]))["t"].partitions[0] == ids(0, 1)


async def test_new_access_rule_with_a_name_that_no_topic_can_have_is_refused_and_an_old_one_removed(
    cluster: Cluster, servicer: AdminServicer
) -> None:
    never = READ._replace(name="shop*")
    await cluster.store.write_acls({never}, version=(await cluster.store.acls()).generation)
    with pytest.raises(TidemarkError, match="give the prefix 'shop' instead"):
        await servicer.AlterAcls(admin_acls_pb2.AlterAclsRequest(add=[acl_to_proto(never)]), CONTEXT)
    removed = await servicer.AlterAcls(admin_acls_pb2.AlterAclsRequest(remove=[acl_to_proto(never)]), CONTEXT)
    assert [one.name for one in removed.removed] == ["shop*"]


async def test_repeated_reassignment_does_not_undo_a_later_one(cluster: Cluster, servicer: AdminServicer) -> None:
    first, later = moves((T0, (2, 1))), moves((T0, (3, 1)))
    later.request_id = "later"
    assert await alter(servicer, first) == [False]
    await carry_out(cluster)
    assert await alter(servicer, later) == [False]
    await carry_out(cluster)
    assert await alter(servicer, first) == [False]
    assert (await cluster.store.move_requests()).moves == ()


async def test_parts_of_a_reassignment_have_one_id(cluster: Cluster, servicer: AdminServicer) -> None:
    assert await alter(servicer, moves((T0, (2, 1)))) == [False]
    assert await alter(servicer, moves((T1, (3, 2)))) == [False]
    wanted = (await cluster.store.move_requests()).moves
    assert [(one.partition, one.request_id) for one in wanted] == [(T0, "r"), (T1, "r")]


async def remove_last(servicer: AdminServicer) -> list[int]:
    request = admin_partitions_pb2.DeletePartitionsRequest(topic="t", count=1, force=True, request_id="r")
    return list((await servicer.DeletePartitions(request, HURRIED)).removed)


async def carry_out_removals(cluster: Cluster) -> None:
    """Remove the requested partitions as the controller does."""
    assert cluster.term is not None
    requested = (await cluster.store.partition_requests()).removed
    topic = (await cluster.store.topics(["t"]))["t"]
    left = {
        index: replicas for index, replicas in topic.partitions.items() if TopicPartition("t", index) not in requested
    }
    await cluster.rewrite(replace(topic, partitions=left, incarnations={index: f"t{index}" for index in left}))
    await cluster.store.finish_partition_requests(cluster.term, removed=requested)


async def test_repeated_removal_of_partitions_names_the_removed_ones(cluster: Cluster, servicer: AdminServicer) -> None:
    with pytest.raises(TidemarkError, match="not all are deleted"):
        await remove_last(servicer)
    await carry_out_removals(cluster)
    assert await remove_last(servicer) == [1]
    assert await remove_last(servicer) == [1]
    assert list((await cluster.store.topics(["t"]))["t"].partitions) == [0]


async def test_repeated_removal_of_partitions_spares_the_next_topic_of_that_name(
    cluster: Cluster, servicer: AdminServicer
) -> None:
    with pytest.raises(TidemarkError, match="not all are deleted"):
        await remove_last(servicer)
    assert cluster.term is not None
    await cluster.store.delete_topic(cluster.term, (await cluster.store.topics(["t"]))["t"])
    await cluster.store.create_topic(TopicDescription("t", "next", {0: ids(0), 1: ids(1)}, {0: "n0", 1: "n1"}))
    with raises_code(ErrorCode.UNKNOWN_TOPIC, "recreated"):
        await remove_last(servicer)
    assert (await cluster.store.partition_requests()).removed == {}


async def test_refused_reassignment_is_checked_again_when_it_is_repeated(
    cluster: Cluster, servicer: AdminServicer
) -> None:
    await cluster.kill_broker(3)
    assert await alter(servicer, moves((T0, (3, 1)))) == [True]
    await cluster.start_broker(3)
    assert await alter(servicer, moves((T0, (3, 1)))) == [False]


async def test_a_broker_claims_only_its_own_restart(servicer: AdminServicer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the claims of one stolen certificate would block the restart of every broker."""
    asked = watch_restarts(servicer, monkeypatch)

    async def ask(uri: str, broker: int, *, claim: bool) -> None:
        request = admin_brokers_pb2.SafeToRestartRequest(broker_id=broker, claim=claim)
        context: Any = CertifiedContext(uri)
        await servicer.SafeToRestart(request, context)

    with raises_code(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "may not act as broker 2"):
        await ask("tidemark://shop/broker/1", 2, claim=True)
    await ask("tidemark://shop/broker/1", 1, claim=True)
    await ask("tidemark://shop/broker/1", 2, claim=False)
    await ask("tidemark://shop/user/root", 2, claim=True)
    assert asked == [(1, True), (2, False), (2, True)]


async def test_safe_to_restart_of_a_client_of_0_1_0_is_about_broker_0(
    servicer: AdminServicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a client sends no id of broker 0, and no claim: also in the preStop hook of its pods, during an upgrade."""
    asked = watch_restarts(servicer, monkeypatch)
    context: Any = CertifiedContext("tidemark://shop/user/root")
    await servicer.SafeToRestart(admin_brokers_pb2.SafeToRestartRequest(), context)
    with raises_code(ErrorCode.INVALID_REQUEST, "set broker_id"):
        await servicer.SafeToRestart(admin_brokers_pb2.SafeToRestartRequest(claim=True), context)
    assert asked == [(0, False)]


def watch_restarts(servicer: AdminServicer, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """The broker and the claim of each call from now on."""
    asked: list[tuple[int, bool]] = []

    class Brokers:
        async def obstacles_to_restart(self, broker: int, *, claim: bool) -> list[Any]:
            asked.append((broker, claim))
            return []

    monkeypatch.setattr(servicer, "_brokers", Brokers())
    return asked
