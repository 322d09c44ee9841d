# SPDX-License-Identifier: Apache-2.0
"""The search for the coordinator of a group among brokers with stale metadata (docs/groups.md)."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from tidemark.client.group import coordinator
from tidemark.client.group.coordinator import Coordinator
from tidemark.client.metadata.cluster import Cluster
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc import errors
from tidemark.v1 import group_service_pb2 as pb

from tests.refusals import raises_code


class Brokers:
    """Brokers by address: the coordinator that each names, and the refusals of all but one.

    Args:
        hints: coordinators that brokers name in their NOT_COORDINATOR refusals.
    """

    headers = (("receiver-cluster", "c"),)

    def __init__(
        self, names: dict[str, str], looks_after: str, refusal: TidemarkError, hints: dict[str, str] | None = None
    ) -> None:
        self.names = names
        self.asked: list[str] = []
        self.refreshed = 0
        self._looks_after = looks_after
        self._refusal = refusal
        self._hints = hints or {}
        self.hold: asyncio.Event | None = None

    def refusal_of(self, address: str) -> TidemarkError:
        if address not in self._hints:
            return self._refusal
        host, _, port = self._hints[address].rpartition(":")
        return TidemarkError(ErrorCode.NOT_COORDINATOR, "elsewhere", {"host": host, "port": port})

    def addresses(self) -> tuple[str, ...]:
        return tuple(self.names)

    def used(self, address: str) -> None:
        self.asked.append(f"asked {address}")

    def refresh(self) -> None:
        self.refreshed += 1

    def stub(self, cluster: object, address: str) -> Stub:
        return Stub(self, address)


class Stub:
    def __init__(self, brokers: Brokers, address: str) -> None:
        self._brokers = brokers
        self._address = address

    async def FindCoordinator(  # noqa: N802
        self, request: pb.FindCoordinatorRequest, metadata: object, **_: float
    ) -> pb.FindCoordinatorResponse:
        assert metadata == Brokers.headers, "a broker of another cluster would answer"
        self._brokers.asked.append(f"find {self._address}")
        named = self._brokers.names[self._address]
        found = pb.GroupCoordinator(group_id=request.group_ids[0])
        if named:
            host, _, port = named.rpartition(":")
            found.host, found.port = host, int(port)
        else:
            found.error.CopyFrom(errors.to_proto(TidemarkError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "stale metadata")))
        return pb.FindCoordinatorResponse(coordinators=[found])

    async def GroupHeartbeat(  # noqa: N802
        self, request: pb.GroupHeartbeatRequest, metadata: object, **_: float
    ) -> pb.GroupHeartbeatResponse:
        assert metadata == Brokers.headers, "a member would join a group of another cluster"
        if request.member_id == "held" and self._brokers.hold is not None:
            await self._brokers.hold.wait()
        if self._address != self._brokers._looks_after:
            raise self._brokers.refusal_of(self._address)
        return pb.GroupHeartbeatResponse(member_id=self._address)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOADING,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
    ],
)
@pytest.mark.parametrize(
    "names",
    [
        {"a:1": "a:1", "b:1": "c:1", "c:1": "c:1"},
        {"a:1": "a:1", "b:1": "a:1", "c:1": "c:1"},
        {"a:1": "", "b:1": "a:1", "c:1": "c:1"},
        {"a:1": "d:1", "b:1": "d:1", "c:1": "c:1"},
    ],
)
async def test_brokers_with_stale_metadata_do_not_hide_the_coordinator(
    names: dict[str, str], code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = Brokers(names, "c:1", TidemarkError(code, "not here"))
    monkeypatch.setattr(coordinator, "group_stub", brokers.stub)
    group = Coordinator(cast(Cluster, brokers), "g")
    request = pb.GroupHeartbeatRequest(group_id="g")

    async def beat() -> Any:
        return await group.call(lambda stub: stub.GroupHeartbeat, request, timeout_s=5)

    assert (await beat()).member_id == "c:1"
    assert brokers.refreshed
    before = len(brokers.asked)
    assert (await beat()).member_id == "c:1"
    assert brokers.asked[before:] == ["asked c:1"]


async def test_all_brokers_are_asked_again_if_all_named_a_wrong_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(
        {"a:1": "d:1", "b:1": "d:1"}, "c:1", TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "the broker is dead")
    )
    monkeypatch.setattr(coordinator, "group_stub", brokers.stub)
    with raises_code(ErrorCode.REQUEST_TIMED_OUT):
        await Coordinator(cast(Cluster, brokers), "g").call(
            lambda stub: stub.GroupHeartbeat, pb.GroupHeartbeatRequest(group_id="g"), timeout_s=0.8
        )
    assert brokers.asked[:6] == ["find a:1", "asked d:1", "find b:1", "asked d:1", "find a:1", "asked d:1"]


@pytest.mark.parametrize("hints", [{"x:1": "d:1"}, {"x:1": "y:1", "y:1": "x:1"}])
async def test_circular_hints_are_not_followed(hints: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    dead = TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "the broker is dead")
    brokers = Brokers({"a:1": "x:1", "b:1": "c:1", "c:1": "c:1"}, "c:1", dead, hints)
    monkeypatch.setattr(coordinator, "group_stub", brokers.stub)
    group, request = Coordinator(cast(Cluster, brokers), "g"), pb.GroupHeartbeatRequest(group_id="g")
    assert (await group.call(lambda stub: stub.GroupHeartbeat, request, timeout_s=5)).member_id == "c:1"


async def test_hint_in_a_refusal_is_followed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    dead = TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "the broker is dead")
    brokers = Brokers({"a:1": "x:1", "b:1": "x:1"}, "c:1", dead, {"x:1": "c:1"})
    monkeypatch.setattr(coordinator, "group_stub", brokers.stub)
    group, request = Coordinator(cast(Cluster, brokers), "g"), pb.GroupHeartbeatRequest(group_id="g")
    await group.call(lambda stub: stub.GroupHeartbeat, request, timeout_s=5)
    assert brokers.asked == ["find a:1", "asked x:1", "asked c:1"]


async def test_late_refusal_does_not_change_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    dead = TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "the broker is dead")
    brokers = Brokers({"a:1": "x:1"}, "c:1", dead, {"x:1": "c:1"})
    brokers.hold = asyncio.Event()
    monkeypatch.setattr(coordinator, "group_stub", brokers.stub)
    group = Coordinator(cast(Cluster, brokers), "g")

    def beat(member_id: str) -> asyncio.Task[Any]:
        request = pb.GroupHeartbeatRequest(group_id="g", member_id=member_id)
        return asyncio.create_task(group.call(lambda stub: stub.GroupHeartbeat, request, timeout_s=5))

    held = beat("held")
    while "asked x:1" not in brokers.asked:  # noqa: ASYNC110 - the next turns
        await asyncio.sleep(0)
    await beat("quick")
    brokers.hold.set()
    await held
    assert brokers.asked == ["find a:1", "asked x:1", "asked x:1", "asked c:1", "asked c:1"]
    assert not brokers.refreshed
