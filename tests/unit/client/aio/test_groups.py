# SPDX-License-Identifier: Apache-2.0
"""The async client for groups: later states, calls before the start, new brokers, recreated topics, lost answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from tidemark.client.aio import groups as groups_module
from tidemark.client.aio import transaction_admin
from tidemark.client.aio.groups import Groups, OffsetChange, _description
from tidemark.client.aio.transaction_admin import TransactionAdmin
from tidemark.client.group import coordinator
from tidemark.client.group.offset_reset import ResetOffsets
from tidemark.client.metadata.cluster import Cluster
from tidemark.core.cluster_view import ClusterView, PartitionView, TopicView
from tidemark.model import BrokerId, BrokerRegistration, ErrorCode, LeaderEpoch, TidemarkError, TopicPartition
from tidemark.rpc import request_limits
from tidemark.rpc.errors import DOMAIN
from tidemark.v1 import group_service_pb2 as pb
from tidemark.v1 import transaction_service_pb2 as transaction_pb

from tests.refusals import raises_code


@pytest.mark.parametrize(
    ("state", "shown"), [(pb.GROUP_STATE_STABLE, "STABLE"), (pb.GROUP_STATE_EMPTY, "EMPTY"), (77, "77")]
)
def test_later_group_state_is_shown_by_its_number(state: int, shown: str) -> None:
    found = pb.GroupDescription(group_id="g", state=cast(Any, state))
    assert (_description(found).group, _description(found).state) == ("g", shown)


@pytest.mark.parametrize(("state", "shown"), [(pb.GROUP_MEMBER_STATE_AWAY, "AWAY"), (77, "77")])
def test_later_member_state_is_shown_by_its_number(state: int, shown: str) -> None:
    found = pb.GroupDescription(members=[pb.GroupMember(member_id="m", state=cast(Any, state))])
    assert [one.state for one in _description(found).members] == [shown]


async def test_offsets_beyond_the_limit_of_a_request_are_set_and_deleted_in_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_limits, "NAMED_MAX", 2)
    asked: list[list[int]] = []

    async def call(self: Any, method: Any, request: Any, **_: float) -> Any:
        of_request = request.offsets if isinstance(request, pb.AlterGroupOffsetsRequest) else request.partitions
        asked.append([one.partition for one in of_request])
        refused = pb.GroupPartitionResult(topic="a", partition=asked[-1][0])
        refused.error.code = "UNKNOWN_PARTITION"
        return pb.AlterGroupOffsetsResponse(partitions=[refused])

    monkeypatch.setattr(coordinator.Coordinator, "call", call)
    many = [TopicPartition("a", index) for index in range(3)]
    plan = [OffsetChange(one, -1, 0, "i", "") for one in many]
    groups = Groups("127.0.0.1:1")
    assert list(await groups.set_offsets("g", plan)) == [many[0], many[2]]
    assert list(await groups.delete_offsets("g", many)) == [many[0], many[2]]
    assert asked == [[0, 1], [2], [0, 1], [2]]


async def test_a_client_that_is_not_started_or_closed_refuses_to_list(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(_: Cluster) -> None:
        return

    monkeypatch.setattr(Cluster, "start", start)
    groups = Groups("127.0.0.1:1")
    with raises_code(ErrorCode.CLIENT_CLOSED):
        await groups.list_groups()
    async with groups:
        assert await groups.list_groups() == ([], [])
    with raises_code(ErrorCode.CLIENT_CLOSED):
        await groups.list_groups()


async def test_a_list_has_the_groups_of_a_broker_that_has_started_since_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The console keeps its client for days.

    Without this check, groups of the new broker would be missing without an error.
    """
    live = {0}

    async def ask_any(cluster: Cluster, **_: float) -> dict[str, TidemarkError] | None:
        brokers = {BrokerId(one): BrokerRegistration(BrokerId(one), f"b{one}", 9) for one in live}
        cluster._merge(ClusterView(brokers=brokers))
        return None

    def stub(_: Cluster, address: str) -> Any:
        async def list_groups(*_: object, **__: object) -> pb.ListGroupsResponse:
            loading = (4, 7) if address == "b0:9" else (7,)
            return pb.ListGroupsResponse(groups=[pb.GroupListing(group_id=f"of {address}")], loading_partitions=loading)

        return SimpleNamespace(ListGroups=list_groups)

    monkeypatch.setattr(Cluster, "_ask_any", ask_any)
    monkeypatch.setattr(groups_module, "group_stub", stub)
    async with Groups("b0:9") as groups:
        live.add(1)
        found, missing = await groups.list_groups()
    assert [one.group for one in found] == ["of b0:9", "of b1:9"]
    assert [one.code for one in missing] == [ErrorCode.COORDINATOR_LOADING]
    assert "2 partitions of __consumer_offsets" in missing[0].message


@pytest.mark.parametrize(("codes", "refused"), [(("INVALID_REQUEST",) * 2, True), (("INVALID_REQUEST", ""), False)])
async def test_a_list_that_every_broker_refuses_is_an_error_and_not_an_empty_list(
    monkeypatch: pytest.MonkeyPatch, codes: tuple[str, str], refused: bool
) -> None:
    async def ask_any(cluster: Cluster, **_: float) -> dict[str, TidemarkError] | None:
        brokers = {BrokerId(one): BrokerRegistration(BrokerId(one), f"b{one}", 9) for one in range(2)}
        cluster._merge(ClusterView(brokers=brokers))
        return None

    def stub(_: Cluster, address: str) -> Any:
        async def list_transactions(*_: object, **__: object) -> transaction_pb.ListTransactionsResponse:
            code = codes[int(address[1])]
            if code:
                raise TidemarkError(ErrorCode(code), "'OPEN' is not a phase")
            return transaction_pb.ListTransactionsResponse()

        return SimpleNamespace(ListTransactions=list_transactions)

    monkeypatch.setattr(Cluster, "_ask_any", ask_any)
    monkeypatch.setattr(transaction_admin, "transaction_stub", stub)
    async with TransactionAdmin("b0:9") as admin:
        if refused:
            with raises_code(ErrorCode.INVALID_REQUEST):
                await admin.list_transactions(["OPEN"])
        else:
            found, missing = await admin.list_transactions(["OPEN"])
            assert (found, [one.code for one in missing]) == ([], [ErrorCode.INVALID_REQUEST])


async def test_a_reset_sets_the_offsets_of_a_plan_in_the_topic_of_the_plan_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An operator answers the question of the command minutes later; the topic may be another one by then."""
    where, topic_ids, asked = TopicPartition("a", 0), ["old"], list[pb.AlterGroupOffsetsRequest]()

    async def topic(name: str, *, timeout_s: float) -> TopicView:
        partition = PartitionView(0, BrokerId(0), LeaderEpoch(0), (), (), incarnation=f"of {topic_ids[-1]}")
        return TopicView(name, topic_ids[-1], partitions={0: partition})

    async def call(_group: str, _method: object, request: Any, *_: object) -> pb.AlterGroupOffsetsResponse:
        asked.append(request)
        return pb.AlterGroupOffsetsResponse()

    async def find(*_: object) -> dict[TopicPartition, int]:
        return {where: 42}

    async def committed(_: str) -> dict[TopicPartition, int]:
        return {where: 7}

    monkeypatch.setattr(ResetOffsets, "find", find)
    groups = Groups("b:1")
    monkeypatch.setattr(groups, "_cluster", SimpleNamespace(topic=topic))
    monkeypatch.setattr(groups, "_call", call)
    monkeypatch.setattr(groups, "_committed", committed)
    plan = await groups.plan_reset("g", "latest", topics=["a"])
    assert [(*one.partition, one.before, one.offset) for one in plan] == [("a", 0, 7, 42)]
    topic_ids.append("new")
    for offsets, wanted in ((plan, "old"), ({where: 42}, "new")):
        await groups.set_offsets("g", offsets)
        (one,) = asked[-1].offsets
        assert (one.offset, one.topic_id, one.incarnation) == (42, wanted, f"of {wanted}")


class Deleting:
    """A coordinator that answers with these results in turn."""

    def __init__(self, results: list[Exception | None]) -> None:
        self._results = results

    async def FindCoordinator(self, *_: object, **__: object) -> pb.FindCoordinatorResponse:  # noqa: N802
        return pb.FindCoordinatorResponse(coordinators=[pb.GroupCoordinator(host="b", port=1)])

    async def DeleteGroup(self, *_: object, **__: object) -> pb.DeleteGroupResponse:  # noqa: N802
        result = self._results.pop(0)
        if result is not None:
            raise result
        return pb.DeleteGroupResponse()


def deleting(monkeypatch: pytest.MonkeyPatch, *results: Exception | None) -> Groups:
    stub = Deleting(list(results))
    monkeypatch.setattr(coordinator, "group_stub", lambda *_: stub)
    groups = Groups("b:1")
    brokers = SimpleNamespace(addresses=lambda: ("b:1",), used=lambda _: None, refresh=lambda: None, headers=())
    monkeypatch.setattr(groups, "_cluster", brokers)
    return groups


def broken(code: grpc.StatusCode) -> Exception:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details="the connection broke")


NOT_FOUND = TidemarkError(ErrorCode.GROUP_NOT_FOUND, "there is no group g")


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED])
async def test_delete_succeeds_if_the_attempt_whose_answer_was_lost_has_deleted_the_group(
    monkeypatch: pytest.MonkeyPatch, code: grpc.StatusCode
) -> None:
    await deleting(monkeypatch, broken(code), NOT_FOUND).delete("g")
    await deleting(monkeypatch, broken(code), None).delete("g")


async def test_delete_refuses_a_group_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    loading = TidemarkError(ErrorCode.COORDINATOR_LOADING, "reads its log")
    for results in ([NOT_FOUND], [loading, NOT_FOUND]):
        with raises_code(ErrorCode.GROUP_NOT_FOUND):
            await deleting(monkeypatch, *results).delete("g")


def refused(code: ErrorCode, **facts: str) -> Exception:
    """A refused call, as gRPC raises it."""
    status = status_pb2.Status(code=grpc.StatusCode.UNAVAILABLE.value[0], message="refused")
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=code, domain=DOMAIN, metadata=facts))
    trailing = grpc.aio.Metadata(("grpc-status-details-bin", status.SerializeToString()))
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), trailing, details="refused")


async def test_delete_succeeds_if_the_coordinator_that_deleted_the_group_was_deposed_before_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await deleting(monkeypatch, refused(ErrorCode.NOT_COORDINATOR), NOT_FOUND).delete("g")
    with raises_code(ErrorCode.GROUP_NOT_FOUND):
        await deleting(monkeypatch, refused(ErrorCode.NOT_COORDINATOR, host="b", port="1"), NOT_FOUND).delete("g")
