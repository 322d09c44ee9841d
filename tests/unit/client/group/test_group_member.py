# SPDX-License-Identifier: Apache-2.0
"""Heartbeats and commits of a group member (docs/groups.md); the test acts as coordinator."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidemark.client.group import membership
from tidemark.client.group.coordinator import Coordinator
from tidemark.client.group.membership import LEAVING, Membership
from tidemark.client.group.offset_commits import Commits, GroupPosition
from tidemark.client.group.settings import group_settings
from tidemark.errors import ErrorCode, RequestTimedOutError, TidemarkError
from tidemark.model import TopicPartition
from tidemark.rpc import request_limits
from tidemark.v1 import group_service_pb2 as pb

Asked = tuple[pb.GroupHeartbeatRequest, asyncio.Future[pb.GroupHeartbeatResponse]]


class ByHand:
    """A coordinator with responses from the test."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[Asked] = asyncio.Queue()

    async def call(self, method: Callable[[Any], Any], request: Any, *, timeout_s: float, wait_s: float = 0.0) -> Any:
        answer: asyncio.Future[pb.GroupHeartbeatResponse] = asyncio.get_running_loop().create_future()
        self.asked.put_nowait((request, answer))
        return await answer

    async def beat(self) -> Asked:
        async with asyncio.timeout(5):
            while True:
                request, answer = await self.asked.get()
                if not answer.cancelled():
                    return request, answer

    async def assign(self, epoch: int, *partitions: int) -> pb.GroupHeartbeatRequest:
        """Answer the next heartbeat with an assignment; returns the heartbeat after it."""
        _, answer = await self.beat()
        answer.set_result(response(epoch, *partitions))
        async with asyncio.timeout(5):
            while True:
                request, answer = await self.beat()
                if request.HasField("owned"):
                    self.asked.put_nowait((request, answer))
                    return request


class SlowReader:
    """A reader that takes and releases partitions when the test allows it."""

    def __init__(self) -> None:
        self.may_take = asyncio.Event()
        self.may_take.set()
        self.may_release = asyncio.Event()
        self.may_release.set()
        self.idle_s = 0.0
        self.refusal: TidemarkError | None = None
        self.position: int | None = None
        self.without_leader: set[int] = set()
        self.events: list[str] = []
        self.released: list[frozenset[TopicPartition]] = []
        self.lost: list[TopicPartition] = []
        """Partitions that were dropped without a release."""

    async def release(self, partitions: frozenset[TopicPartition]) -> None:
        self.released.append(partitions)
        await self.may_release.wait()

    def processed(self) -> Mapping[TopicPartition, GroupPosition]:
        if self.position is None:
            return {}
        return {TopicPartition("a", 0): GroupPosition(TopicPartition("a", 0), self.position, 0, "i", "")}

    async def take_up(self, partitions: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        self.events.append("take up")
        await self.may_take.wait()
        if self.refusal is not None:
            raise self.refusal
        return frozenset(one for one in partitions if one.partition not in self.without_leader)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        if partitions:
            self.events.append("drop")
        self.lost += [one for one in partitions if one not in frozenset().union(*self.released)]

    def suspend(self, *, suspended: bool) -> None:
        return

    def fail(self, error: TidemarkError) -> None:
        raise error


def response(epoch: int, *partitions: int) -> pb.GroupHeartbeatResponse:
    return pb.GroupHeartbeatResponse(
        member_epoch=epoch,
        heartbeat_interval_ms=50,
        session_timeout_ms=45_000,
        assignment=pb.GroupPartitions(topics=[pb.GroupTopicPartitions(topic="a", topic_id="i", partitions=partitions)]),
    )


def owned(request: pb.GroupHeartbeatRequest) -> list[int]:
    return [index for topic in request.owned.topics for index in topic.partitions]


@pytest.fixture
async def coordinator() -> ByHand:
    return ByHand()


@pytest.fixture
async def reader() -> SlowReader:
    return SlowReader()


@pytest.fixture
async def member(coordinator: ByHand, reader: SlowReader) -> AsyncIterator[Membership]:
    made = Membership(cast(Coordinator, coordinator), group_settings("g", auto_commit_interval_ms=0), reader)
    made.start(["a"])
    yield made
    made._may_be_in = False  # so that `stop` sends no heartbeat
    await made.stop(commit=False)


async def test_assignment_without_changes_is_confirmed(coordinator: ByHand, member: Membership) -> None:
    assert owned(await coordinator.assign(1, 0, 1)) == [0, 1]
    assert owned(await coordinator.assign(1, 0, 1)) == [0, 1]


async def test_assigned_partition_unknown_to_brokers_is_retried(
    coordinator: ByHand, reader: SlowReader, member: Membership
) -> None:
    for code in (ErrorCode.UNKNOWN_TOPIC, ErrorCode.UNKNOWN_PARTITION):
        reader.refusal = TidemarkError(code, "not heard of")
        assert not member.owned
        telling = asyncio.create_task(coordinator.assign(1, 0))
        await asyncio.wait({telling}, timeout=0.3)
        assert not member.owned
        reader.refusal = None
        assert owned(await telling) == [0]
        assert owned(await coordinator.assign(1)) == []


async def test_assigned_partitions_are_reported_as_owned_before_they_are_read(
    coordinator: ByHand, reader: SlowReader, member: Membership
) -> None:
    assert owned(await coordinator.assign(1, 0)) == [0]
    reader.may_take.clear()
    _, answer = await coordinator.beat()
    answer.set_result(response(2, 0, 1))
    await coordinator.beat()
    member.subscribe(["a", "b"])
    while True:
        request, _ = await coordinator.beat()
        if request.HasField("subscription"):
            break
    assert owned(request) == [0, 1], "the application may read partition 1 at any time"
    assert member.owned == {TopicPartition("a", 0)}


async def test_a_partition_that_is_revoked_while_it_is_taken_up_is_released_and_not_lost(
    coordinator: ByHand, reader: SlowReader, member: Membership
) -> None:
    """The application has been told of it: `on_lost` would say that another member reads it."""
    assert owned(await coordinator.assign(1, 0)) == [0]
    reader.may_take.clear()
    for epoch, assigned in ((2, (0, 1)), (3, (0,))):
        _, answer = await coordinator.beat()
        answer.set_result(response(epoch, *assigned))
    await coordinator.beat()
    member.subscribe(["a", "b"])
    while True:
        request, _ = await coordinator.beat()
        if request.HasField("subscription"):
            break
    assert owned(request) == [0, 1], "no other member may get partition 1 yet"
    reader.may_take.set()
    while owned(request) != [0]:
        request, _ = await coordinator.beat()
    assert (reader.released, reader.lost) == ([{TopicPartition("a", 1)}], [])
    assert member.owned == {TopicPartition("a", 0)}


async def test_partitions_without_a_leader_keep_a_member_from_no_other_partition(
    coordinator: ByHand, reader: SlowReader, member: Membership, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "_LOOK_S", 0.01)
    reader.without_leader = {1, 2}
    assert owned(await coordinator.assign(1, 0, 1, 2)) == [0, 1, 2]
    assert member.owned == {TopicPartition("a", 0)}
    assert member.waiting == {TopicPartition("a", 1), TopicPartition("a", 2)}
    assert owned(await coordinator.assign(1, 0, 1)) == [0, 1], "the coordinator waits for this confirmation"
    reader.without_leader = set()
    while member.waiting:
        await coordinator.beat()
    assert member.owned == {TopicPartition("a", 0), TopicPartition("a", 1)}


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER, ErrorCode.FENCED_MEMBER_EPOCH])
async def test_member_fenced_during_reconciliation_joins_again(
    coordinator: ByHand, reader: SlowReader, member: Membership, code: ErrorCode
) -> None:
    reader.refusal = TidemarkError(code, "the member sent no heartbeat in time")
    _, answer = await coordinator.beat()
    answer.set_result(response(1, 0))
    while True:
        request, _ = await coordinator.beat()
        if request.member_epoch == 0:
            break
    assert owned(request) == []
    reader.refusal = None
    coordinator.asked.put_nowait((request, _))
    assert owned(await coordinator.assign(2, 0)) == [0]


async def test_a_position_of_a_former_membership_is_not_read_on(
    coordinator: ByHand, reader: SlowReader, member: Membership
) -> None:
    """Another member may have committed a later offset in between."""
    reader.may_take.clear()
    _, answer = await coordinator.beat()
    answer.set_result(response(1, 0))
    _, answer = await coordinator.beat()
    answer.set_exception(TidemarkError(ErrorCode.UNKNOWN_MEMBER, "the member sent no heartbeat in time"))
    request, answer = await coordinator.beat()
    assert request.member_epoch == 0
    answer.set_result(response(2, 0))
    await coordinator.beat()
    assert reader.events == ["take up"]
    reader.may_take.set()
    while not member.owned:
        await coordinator.beat()
    assert reader.events == ["take up", "drop", "take up"]


async def test_a_refused_heartbeat_of_a_former_epoch_is_not_reported_as_an_error_that_was_not_retrieved(
    coordinator: ByHand, member: Membership
) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    await coordinator.assign(1, 0)
    _, answer = await coordinator.beat()
    member._lost(TidemarkError(ErrorCode.UNKNOWN_MEMBER, "the refusal of a commit"))
    answer.set_exception(TidemarkError(ErrorCode.UNKNOWN_MEMBER, "the member sent no heartbeat in time"))
    request, _ = await coordinator.beat()
    assert request.member_epoch == 0
    gc.collect()
    assert reported == []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that the test sets by `now_s`."""
    clock = SimpleNamespace(now_s=float(int(time.monotonic())))  # sums of whole seconds are exact
    monkeypatch.setattr("tidemark.client.group.membership.time", SimpleNamespace(monotonic=lambda: clock.now_s))
    return clock


async def test_member_may_be_out_at_the_end_of_its_session(
    clock: SimpleNamespace, coordinator: ByHand, member: Membership
) -> None:
    await coordinator.assign(1, 0)
    clock.now_s += 45
    assert not member.may_be_out
    clock.now_s += 0.001
    assert member.may_be_out, "nothing had time to look at the clock"


async def test_member_beyond_its_rebalance_timeout_may_be_out_despite_responses(
    clock: SimpleNamespace, coordinator: ByHand, reader: SlowReader, member: Membership
) -> None:
    await coordinator.assign(1, 0, 1)
    reader.may_release.clear()
    clock.now_s += 1
    await _answered(coordinator, response(1, 0, 1))
    _, answer = await coordinator.beat()
    clock.now_s += 1
    answer.set_result(response(1, 0))
    await _answered(coordinator, pb.GroupHeartbeatResponse(member_epoch=1, session_timeout_ms=45_000))
    clock.now_s += 30
    for _ in range(2):
        await _answered(coordinator, pb.GroupHeartbeatResponse(member_epoch=1, session_timeout_ms=45_000))
    clock.now_s += 27.9
    assert not member.may_be_out
    clock.now_s += 1.2
    assert member.may_be_out
    while (await coordinator.beat())[0].member_epoch != 0:
        pass  # then the member joins again
    assert not member.owned


async def test_member_with_confirmed_release_is_in(
    clock: SimpleNamespace, coordinator: ByHand, reader: SlowReader, member: Membership
) -> None:
    await coordinator.assign(1, 0, 1)
    assert owned(await coordinator.assign(1, 0)) == [0]
    await _answered(coordinator, pb.GroupHeartbeatResponse(member_epoch=2, session_timeout_ms=450_000))
    clock.now_s += 100
    assert not member.may_be_out


async def _answered(coordinator: ByHand, response: pb.GroupHeartbeatResponse) -> None:
    """Answer the next heartbeat, and wait for the one after it."""
    _, answer = await coordinator.beat()
    answer.set_result(response)
    request, after = await coordinator.beat()
    coordinator.asked.put_nowait((request, after))


async def test_commit_behind_an_unanswered_one_times_out_by_itself(coordinator: ByHand, member: Membership) -> None:
    position = GroupPosition(TopicPartition("a", 0), 1, 0, "i", "")
    stuck = asyncio.create_task(member.commit([position], timeout_s=60))
    try:
        async with asyncio.timeout(5):
            while not isinstance((await coordinator.asked.get())[0], pb.CommitOffsetsRequest):
                pass
            with pytest.raises(RequestTimedOutError, match="the previous commit is still in flight"):
                await member.commit([position], timeout_s=0.05)
    finally:
        stuck.cancel()
        await asyncio.gather(stuck, return_exceptions=True)


async def test_a_member_that_goes_back_commits_again_after_a_commit_without_an_answer(
    coordinator: ByHand, reader: SlowReader, member: Membership
) -> None:
    """The coordinator may have stored that commit: the next reader would begin after records that are to be read."""
    where = TopicPartition("a", 0)
    member.began_at(where, 1)
    for position in (8, 1):
        reader.position = position
        committing = asyncio.create_task(member._commit_processed(frozenset({where}), 60))
        try:
            assert (await _commit(coordinator)).offsets[0].offset == position
        finally:
            committing.cancel()
            await asyncio.gather(committing, return_exceptions=True)


async def _commit(coordinator: ByHand) -> pb.CommitOffsetsRequest:
    async with asyncio.timeout(5):
        while True:
            request: Any = (await coordinator.asked.get())[0]
            if isinstance(request, pb.CommitOffsetsRequest):
                return request


async def test_a_member_commits_offsets_beyond_the_limit_of_a_request_in_several(
    coordinator: ByHand, member: Membership, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_limits, "NAMED_MAX", 2)
    positions = [GroupPosition(TopicPartition("a", index), 1, 0, "i", "") for index in range(3)]
    commit = asyncio.create_task(member.commit(positions, timeout_s=5))
    for expected in ([0, 1], [2]):
        request, answer = await _next(coordinator, pb.CommitOffsetsRequest)
        assert [one.partition for one in request.offsets] == expected
        answer.set_result(pb.CommitOffsetsResponse())
    await commit


async def test_retried_commit_keeps_its_number() -> None:
    mine, another = Commits(group_settings("g")), Commits(group_settings("g"))
    sent = [mine.request([], member_id, -1) for member_id in ("", "m", "m")] + [another.request([], "", -1)]
    assert [one.sequence for one in sent] == [1, 2, 3, 1]
    assert sent[0].committer_id == sent[2].committer_id != sent[3].committer_id


async def test_heartbeats_and_commits_share_one_sequence(coordinator: ByHand, member: Membership) -> None:
    first, answer = await coordinator.beat()
    answer.set_result(pb.GroupHeartbeatResponse(member_epoch=1))
    second, _ = await coordinator.beat()
    commit = asyncio.create_task(member.commit([GroupPosition(TopicPartition("a", 0), 1, 0, "i", "")], timeout_s=5))
    async with asyncio.timeout(5):
        while not isinstance((asked := (await coordinator.asked.get())[0]), pb.CommitOffsetsRequest):
            pass
    commit.cancel()
    assert 0 < first.sequence < second.sequence < asked.sequence


async def _next(coordinator: ByHand, kind: type, **fields: int) -> tuple[Any, asyncio.Future[Any]]:
    """Take the next pending request of that kind; others stay."""
    others = []
    async with asyncio.timeout(5):
        while True:
            request, answer = await coordinator.asked.get()
            wanted = isinstance(request, kind) and all(getattr(request, name) == at for name, at in fields.items())
            if wanted and not answer.cancelled():
                break
            others.append((request, answer))
    for one in others:
        coordinator.asked.put_nowait(one)
    return request, answer


@pytest.mark.parametrize("waits_its_turn", [False, True])
async def test_records_read_before_a_rejoin_are_not_committed(
    coordinator: ByHand, member: Membership, waits_its_turn: bool
) -> None:
    await coordinator.assign(1, 0)
    position = [GroupPosition(TopicPartition("a", 0), 100, 0, "i", "")]
    first = asyncio.create_task(member.commit(position, timeout_s=5))
    _, answered = await _next(coordinator, pb.CommitOffsetsRequest)
    second = asyncio.create_task(member.commit(position, timeout_s=5))
    _, beat = await _next(coordinator, pb.GroupHeartbeatRequest)
    beat.set_exception(TidemarkError(ErrorCode.FENCED_MEMBER_EPOCH, "the member was away"))
    _, join = await _next(coordinator, pb.GroupHeartbeatRequest, member_epoch=0)
    join.set_result(response(5, 0))
    await _next(coordinator, pb.GroupHeartbeatRequest, member_epoch=5)
    answered.set_exception(TidemarkError(ErrorCode.STALE_MEMBER_EPOCH, "an older one", {"member_epoch": "5"}))
    with pytest.raises(TidemarkError, match="joined again after reading"):
        await (second if waits_its_turn else first)
    await asyncio.gather(first, second, return_exceptions=True)


@pytest.mark.parametrize("waits_its_turn", [False, True])
async def test_records_read_before_a_partition_left_and_came_back_are_not_committed(
    coordinator: ByHand, member: Membership, waits_its_turn: bool
) -> None:
    """Another member had the partition meanwhile, and may have committed a later offset."""
    await coordinator.assign(1, 0, 1)
    stays, leaves = ([GroupPosition(TopicPartition("a", index), 100, 0, "i", "")] for index in (1, 0))
    first = asyncio.create_task(member.commit(stays if waits_its_turn else leaves, timeout_s=5))
    _, answered = await _next(coordinator, pb.CommitOffsetsRequest)
    second = asyncio.create_task(member.commit(leaves, timeout_s=5))
    _, beat = await _next(coordinator, pb.GroupHeartbeatRequest)
    for epoch, assigned in ((1, [1]), (2, [1]), (3, [0, 1])):
        beat.set_result(response(epoch, *assigned))
        while True:
            request, beat = await _next(coordinator, pb.GroupHeartbeatRequest)
            if request.member_epoch == epoch and owned(request) == assigned == sorted(p for _, p in member.owned):
                break
    assert member.owned == {TopicPartition("a", 0), TopicPartition("a", 1)}
    answered.set_exception(TidemarkError(ErrorCode.STALE_MEMBER_EPOCH, "an older one", {"member_epoch": "3"}))
    if waits_its_turn:
        _, answered = await _next(coordinator, pb.CommitOffsetsRequest, member_epoch=3)
        answered.set_result(pb.CommitOffsetsResponse())
        await first
    async with asyncio.timeout(5):
        with pytest.raises(TidemarkError, match="left this member") as refused:
            await (second if waits_its_turn else first)
    assert refused.value.code is ErrorCode.PARTITION_NOT_ASSIGNED
    await asyncio.gather(first, second, return_exceptions=True)


async def test_no_heartbeat_follows_the_leave_of_an_idle_member(
    coordinator: ByHand, reader: SlowReader, member: Membership
) -> None:
    await coordinator.assign(1, 0)
    reader.idle_s = 1e6
    _, beat = await coordinator.beat()
    beat.set_result(pb.GroupHeartbeatResponse(member_epoch=1, session_timeout_ms=450_000))
    leave, gone = await coordinator.beat()
    assert leave.member_epoch == -1
    reader.idle_s = 0.0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.2):  # time for two checks of the heartbeat loop
            await coordinator.asked.get()
    gone.set_result(pb.GroupHeartbeatResponse(member_epoch=-1))
    joins, _ = await coordinator.beat()
    assert joins.member_epoch == 0
    assert joins.sequence > leave.sequence


async def test_an_idle_member_drops_its_partitions_before_other_members_can_get_them(
    coordinator: ByHand, reader: SlowReader, member: Membership
) -> None:
    await coordinator.assign(1, 0)
    _, in_flight = await coordinator.beat()
    reader.idle_s = 1e6
    leave, gone = await _next(coordinator, pb.GroupHeartbeatRequest, member_epoch=LEAVING)
    assert reader.lost == [TopicPartition("a", 0)]
    assert not member.owned
    in_flight.set_result(response(1, 0))
    gone.set_result(pb.GroupHeartbeatResponse(member_epoch=LEAVING))
    reader.idle_s = 0.0
    joins, _ = await _next(coordinator, pb.GroupHeartbeatRequest, member_epoch=0)
    assert joins.sequence > leave.sequence


@pytest.mark.parametrize("failure", [asyncio.CancelledError(), RuntimeError("unforeseen")])
async def test_member_with_a_failed_task_fails(
    coordinator: ByHand, reader: SlowReader, member: Membership, failure: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: asyncio.Future[TidemarkError] = asyncio.get_running_loop().create_future()

    async def take_up(partitions: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        raise failure

    monkeypatch.setattr(reader, "take_up", take_up)
    monkeypatch.setattr(reader, "fail", failed.set_result)
    _, answer = await coordinator.beat()
    answer.set_result(response(1, 0))
    async with asyncio.timeout(5):
        assert (await failed).code is ErrorCode.INTERNAL


async def test_cancelled_stop_drops_all_partitions_and_leaves(coordinator: ByHand, reader: SlowReader) -> None:
    """Otherwise the other members get the partitions only when the session times out."""
    dropped: list[TopicPartition] = []
    reader.drop = dropped.extend  # type: ignore[method-assign]
    member = Membership(cast(Coordinator, coordinator), group_settings("g"), reader)
    member.start(["a"])
    await coordinator.assign(1, 0)
    reader.position = 5
    stopping = asyncio.create_task(member.stop(commit=True))
    while not isinstance((await coordinator.asked.get())[0], pb.CommitOffsetsRequest):
        pass
    stopping.cancel()
    request, answer = await coordinator.beat()
    assert request.member_epoch == LEAVING
    answer.set_result(pb.GroupHeartbeatResponse())
    async with asyncio.timeout(5):
        await asyncio.wait([stopping])
    assert stopping.cancelled()
    assert dropped == [TopicPartition("a", 0)]
    assert not member.owned


async def test_a_member_has_time_to_leave_after_a_stop_that_took_long(
    clock: SimpleNamespace, coordinator: ByHand, reader: SlowReader
) -> None:
    """As when the application blocks the event loop: other members would wait until the session times out."""
    timeouts_s: list[float] = []
    answered = coordinator.call

    async def call(method: Callable[[Any], Any], request: Any, *, timeout_s: float, wait_s: float = 0.0) -> Any:
        timeouts_s.append(timeout_s)
        return await answered(method, request, timeout_s=timeout_s, wait_s=wait_s)

    coordinator.call = call  # type: ignore[method-assign]
    member = Membership(cast(Coordinator, coordinator), group_settings("g"), reader)
    member.start(["a"])
    await coordinator.assign(1, 0)
    reader.position = 5
    stopping = asyncio.create_task(member.stop(commit=True))
    _, committed = await _next(coordinator, pb.CommitOffsetsRequest)
    clock.now_s += 60
    committed.set_result(pb.CommitOffsetsResponse())
    _, left = await _next(coordinator, pb.GroupHeartbeatRequest, member_epoch=LEAVING)
    left.set_result(pb.GroupHeartbeatResponse())
    await stopping
    assert timeouts_s[-1] > 0


async def test_a_member_whose_join_has_no_response_yet_leaves(coordinator: ByHand, reader: SlowReader) -> None:
    """The coordinator may have admitted the member, and would keep its partitions until the session times out."""
    member = Membership(cast(Coordinator, coordinator), group_settings("g"), reader)
    member.start(["a"])
    joins, _ = await coordinator.beat()
    assert joins.member_epoch == 0
    stopping = asyncio.create_task(member.stop(commit=True))
    leave, answer = await coordinator.beat()
    assert (leave.member_epoch, leave.member_id) == (LEAVING, joins.member_id)
    answer.set_result(pb.GroupHeartbeatResponse())
    async with asyncio.timeout(5):
        await stopping


async def test_cancelled_member_has_not_failed(
    coordinator: ByHand, reader: SlowReader, member: Membership, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[TidemarkError] = []
    monkeypatch.setattr(reader, "fail", failed.append)
    await coordinator.assign(1, 0)
    for task in member._tasks:
        task.cancel()
    await asyncio.wait(member._tasks)
    await asyncio.sleep(0)
    assert not failed
