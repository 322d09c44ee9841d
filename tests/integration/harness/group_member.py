# SPDX-License-Identifier: Apache-2.0
"""A member of a group that sends the messages of docs/groups.md without a client; `reading` has its partitions."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import grpc
from tidemark.model import ErrorCode, TidemarkError
from tidemark.rpc import errors
from tidemark.rpc.channel import open_channel
from tidemark.v1 import group_service_pb2 as pb
from tidemark.v1.group_service_pb2_grpc import GroupServiceStub

_T = TypeVar("_T")
_ELSEWHERE = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOADING,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.SHUTTING_DOWN,
)


async def call(call: Callable[[], Awaitable[_T]], address: str = "") -> _T:
    """Return the answer, or raise its refusal."""
    try:
        return await call()
    except grpc.RpcError as error:
        raise errors.from_rpc_error(error, address=address) from error


class Groups:
    """Calls of GroupService, each to the group's coordinator; a call that another broker refuses is sent again."""

    def __init__(self, addresses: list[str]) -> None:
        self.addresses = addresses
        self._channels = {address: open_channel(address) for address in addresses}
        self._coordinator: dict[str, str] = {}

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()

    def stub(self, address: str) -> Any:
        return cast(Any, GroupServiceStub(self._channels.setdefault(address, open_channel(address))))

    async def find(self, group_id: str, timeout_s: float = 20) -> pb.GroupCoordinator:
        deadline_s = time.monotonic() + timeout_s
        while True:
            for address in self.addresses:
                try:
                    request = pb.FindCoordinatorRequest(group_ids=[group_id])
                    found = (await call(lambda: self.stub(address).FindCoordinator(request, timeout=5))).coordinators[0]  # noqa: B023
                except TidemarkError:
                    continue
                if not found.HasField("error"):
                    return cast(pb.GroupCoordinator, found)
            assert time.monotonic() < deadline_s, f"no coordinator: {found.error}"
            await asyncio.sleep(0.05)

    async def ask(
        self,
        group_id: str,
        method: str,
        request: Any,
        *,
        timeout_s: float = 20,
        call_s: float = 5,
        done: ErrorCode | None = None,
    ) -> Any:
        """`done`: the refusal of a retry whose first call succeeded, and whose answer was lost; returns None then."""
        deadline_s = time.monotonic() + timeout_s
        in_doubt = False
        while True:
            address = self._coordinator.get(group_id)
            if address is None:
                found = await self.find(group_id)
                address = self._coordinator[group_id] = f"{found.host}:{found.port}"
            try:
                return await call(lambda: getattr(self.stub(address), method)(request, timeout=call_s))  # noqa: B023
            except TidemarkError as error:
                if in_doubt and error.code is done:
                    return None
                if error.code not in _ELSEWHERE or time.monotonic() > deadline_s:
                    raise
                in_doubt = True
                self._coordinator.pop(group_id, None)
                await asyncio.sleep(0.05)

    async def commit(self, group_id: str, topic: str, offsets: dict[int, int], **member: Any) -> dict[int, str]:
        request = pb.CommitOffsetsRequest(group_id=group_id, **{"member_epoch": -1, **member})
        for partition, offset in offsets.items():
            request.offsets.add(topic=topic, partition=partition, offset=offset, leader_epoch=-1)
        answer = await self.ask(group_id, "CommitOffsets", request)
        return {one.partition: one.error.code for one in answer.partitions}

    async def committed(self, group_id: str) -> dict[tuple[str, int], int]:
        answer = await self.ask(group_id, "FetchOffsets", pb.FetchOffsetsRequest(group_id=group_id, member_epoch=-1))
        return {(one.topic, one.partition): one.offset for one in answer.offsets}

    async def describe(self, group_id: str) -> pb.GroupDescription:
        deadline_s = time.monotonic() + 20
        while True:
            request = pb.DescribeGroupsRequest(group_ids=[group_id])
            found = (await self.ask(group_id, "DescribeGroups", request)).groups[0]
            if found.error.code not in _ELSEWHERE or time.monotonic() > deadline_s:
                return cast(pb.GroupDescription, found)
            self._coordinator.pop(group_id, None)


class Member:
    """Sends heartbeats in the background, once started; the coordinator may hold them back."""

    def __init__(self, groups: Groups, group_id: str, *topics: str, instance_id: str = "", assignor: str = "") -> None:
        self.groups = groups
        self.group_id = group_id
        self.topics = topics
        self.instance_id = instance_id
        self.assignor = assignor
        self.member_id = uuid.uuid4().hex
        self.epoch = 0
        self.reading: set[tuple[str, int]] = set()
        self.lost: list[set[tuple[str, int]]] = []
        self.refusals: list[ErrorCode] = []
        self._ids: dict[str, str] = {}
        self._whole = True
        self._task: asyncio.Task[None] | None = None

    def start(self) -> Member:
        self._task = asyncio.create_task(self._run())
        return self

    async def stop(self) -> None:
        """Send no heartbeat any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def leave(self, epoch: int = -1) -> None:
        await self.stop()
        self.reading = set()
        await self.groups.ask(
            self.group_id,
            "GroupHeartbeat",
            pb.GroupHeartbeatRequest(
                group_id=self.group_id, member_id=self.member_id, member_epoch=epoch, instance_id=self.instance_id
            ),
            done=ErrorCode.UNKNOWN_MEMBER,
        )

    async def beat(self, max_wait_ms: int = 0) -> pb.GroupHeartbeatResponse:
        request = pb.GroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            max_wait_ms=max_wait_ms,
            owned=self._owned(),
        )
        if self._whole:
            request.rebalance_timeout_ms = 10_000
            request.subscription.CopyFrom(pb.GroupSubscription(topics=self.topics))
            request.assignor = self.assignor
        try:
            answer = await self.groups.ask(self.group_id, "GroupHeartbeat", request, call_s=10)
        except TidemarkError as error:
            self.refusals.append(error.code)
            if error.code in (ErrorCode.UNKNOWN_MEMBER, ErrorCode.FENCED_MEMBER_EPOCH):
                self.epoch, self._whole, self.reading = 0, True, set()
            raise
        self._whole = False
        self.epoch = answer.member_epoch
        if answer.HasField("assignment"):
            self._ids.update({topic.topic: topic.topic_id for topic in answer.assignment.topics})
            assigned = {(topic.topic, index) for topic in answer.assignment.topics for index in topic.partitions}
            if self.reading - assigned:
                self.lost.append(self.reading - assigned)
            self.reading = assigned
        return cast(pb.GroupHeartbeatResponse, answer)

    async def beat_until(self, partitions: set[tuple[str, int]], timeout_s: float = 20) -> None:
        """Send heartbeats until the member reads these: a coordinator may learn of a new topic after its creator."""
        deadline_s = time.monotonic() + timeout_s
        while self.reading != partitions:
            assert time.monotonic() < deadline_s, f"{self.reading} is not {partitions}"
            await self.beat(max_wait_ms=100)

    async def until(self, partitions: set[tuple[str, int]], timeout_s: float = 20) -> None:
        """Wait until the member reads these partitions and no others."""
        await until(lambda: self.reading == partitions, lambda: f"{self.reading} is not {partitions}", timeout_s)

    async def commit(self, topic: str, offsets: dict[int, int]) -> dict[int, str]:
        return await self.groups.commit(
            self.group_id,
            topic,
            offsets,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
        )

    def _owned(self) -> pb.GroupPartitions:
        owned = pb.GroupPartitions()
        for topic in sorted({name for name, _ in self.reading}):
            owned.topics.add(
                topic=topic,
                topic_id=self._ids[topic],
                partitions=sorted(index for name, index in self.reading if name == topic),
            )
        return owned

    async def _run(self) -> None:
        while True:
            try:
                await self.beat(max_wait_ms=1000)
            except TidemarkError:
                await asyncio.sleep(0.05)


async def until(holds: Callable[[], bool], what: Callable[[], str], timeout_s: float = 20) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, what()
        await asyncio.sleep(0.01)
