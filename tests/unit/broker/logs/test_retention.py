# SPDX-License-Identifier: Apache-2.0
"""Deletion of records from the front of a log: by retention, and by DeleteRecords (rule L1)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tidemark.broker.clients.delete_records import DeleteRecords
from tidemark.broker.logs.retention import Retention, limits_of
from tidemark.broker.node.topic_settings import TopicTable
from tidemark.core.replication.effects import LowWatermarkMoved
from tidemark.core.replication.events import Event, LogStartRequested
from tidemark.core.replication.replica import StatedOffsets
from tidemark.model import ErrorCode, LeaderEpoch, Offset, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.ports import RetentionLimits
from tidemark.runtime.configuration.settings import topic_settings
from tidemark.v1 import delete_records_pb2 as pb

from tests.refusals import raises_code

P = TopicPartition("flights", 0)
ID = ReplicaIdentity("t" * 32, "a" * 32)


def test_a_topic_without_delete_policy_or_limits_has_no_limits() -> None:
    assert limits_of(topic_settings({})) == RetentionLimits(604_800_000, -1)
    assert limits_of(topic_settings({"retention.ms": "-1"})) is None
    assert limits_of(topic_settings({"retention.ms": "-1", "retention.bytes": "7"})) == RetentionLimits(-1, 7)
    assert limits_of(topic_settings({"cleanup.policy": "compact"})) is None


class Log:
    """A log with the answers of the test."""

    def __init__(self, *, start: int = 0, old: bool = False) -> None:
        self.start, self.old = start, old
        self.asked: list[RetentionLimits] = []

    def may_roll_by_time(self, now_ms: int) -> bool:
        return self.old

    def expired_until(self, limits: RetentionLimits, *, high_watermark: Offset, now_ms: int) -> Offset:
        self.asked.append(limits)
        return Offset(min(self.start, high_watermark))


def view(role: str, *, partition: TopicPartition = P) -> Any:
    return SimpleNamespace(
        partition=partition,
        identity=ID,
        role=role,
        leader=1,
        leader_epoch=LeaderEpoch(5),
        log_start_offset=Offset(0),
        high_watermark=Offset(10),
        assigned=(1, 2, 3),
        isr=(1, 2),
    )


class Threads:
    """Open logs, and the partitions that were rolled."""

    def __init__(self, logs: dict[TopicPartition, Log]) -> None:
        self.logs = logs
        self.rolled: list[TopicPartition] = []

    def log(self, partition: TopicPartition) -> Log | None:
        return self.logs.get(partition)

    def roll_by_time(self, partition: TopicPartition, now_ms: int) -> None:
        self.rolled.append(partition)


async def test_leaders_decide_deletions_and_every_replica_rolls_by_itself() -> None:
    led, followed, closed = (TopicPartition("flights", index) for index in range(3))
    views = {led: view("leader", partition=led), followed: view("follower", partition=followed)}
    core: Any = SimpleNamespace(partitions=lambda: (led, followed, closed), replica=views.get)
    threads: Any = Threads({led: Log(start=8), followed: Log(start=8, old=True)})
    events: list[Event] = []
    retention = Retention(core, threads, TopicTable(), events.append, 1000, lambda: 77, lambda error: None)
    await retention.check()
    assert events == [LogStartRequested(led, ID, LeaderEpoch(5), Offset(8))]
    assert threads.rolled == [followed]
    assert threads.logs[followed].asked == []


class Leadership:
    """A leader with two followers; one of them is down."""

    def __init__(self) -> None:
        self.starts: tuple[Offset, dict[int, Offset]] | None = (Offset(0), {2: Offset(0)})
        self.now_ms = 0
        self.released: list[Event] = []
        self.service = DeleteRecords(
            self,  # type: ignore[arg-type]
            self.release,
            SimpleNamespace(check=lambda partition: None),  # type: ignore[arg-type]
            lambda: self.now_ms,
        )

    def release(self, event: Event) -> None:
        self.released.append(event)
        assert isinstance(event, LogStartRequested)
        assert self.starts is not None
        self.starts = (event.start_offset, self.starts[1])

    def stated_offsets(self, partition: TopicPartition, **_: Any) -> StatedOffsets:
        return StatedOffsets(Offset(0), Offset(10), LeaderEpoch(5), Offset(10))

    def replica(self, partition: TopicPartition) -> Any:
        return view("leader")

    def log_starts(self, partition: TopicPartition, leader_epoch: LeaderEpoch) -> Any:
        return self.starts

    def ask(self, before: int, **more: Any) -> Any:
        return self.service.delete(pb.DeleteRecordsRequest(topic="flights", before_offset=before, **more))


async def refused(leadership: Leadership, before: int, **more: Any) -> TidemarkError:
    with pytest.raises(TidemarkError) as caught:
        await leadership.ask(before, **more)
    assert leadership.released == []
    return caught.value


async def test_impossible_deletions_are_refused_with_the_possible_offset() -> None:
    error = await refused(Leadership(), 11)
    assert error.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert error.metadata == {"high_watermark": "10", "log_start_offset": "0"}
    assert (await refused(Leadership(), -2)).code is ErrorCode.INVALID_REQUEST
    assert (await refused(Leadership(), 3, incarnation="b" * 32)).code is ErrorCode.UNKNOWN_TOPIC_ID


async def test_the_answer_waits_for_followers_in_contact_and_names_the_others() -> None:
    leadership = Leadership()
    leadership.starts = (Offset(0), {2: Offset(7)})
    response = await leadership.ask(7)
    assert (response.low_watermark, response.log_start_offset, list(response.behind)) == (7, 7, [3])


async def test_progress_of_a_follower_ends_the_wait() -> None:
    leadership = Leadership()
    released = leadership.release

    def follow(event: Event) -> None:
        released(event)
        leadership.starts = (Offset(10), {2: Offset(10)})
        leadership.service.on_low_watermark(LowWatermarkMoved(P))

    leadership.service._submit = follow
    response = await leadership.ask(-1)
    assert response.low_watermark == 10


async def test_a_follower_that_is_too_slow_is_named_in_the_answer() -> None:
    leadership = Leadership()
    now_ms = iter(range(0, 1_000_000, 5_000))
    leadership.service._now_ms = lambda: next(now_ms)
    response = await leadership.ask(4, timeout_ms=1)
    assert (response.low_watermark, response.log_start_offset, list(response.behind)) == (0, 4, [2, 3])


async def test_a_leadership_that_ends_meanwhile_is_refused() -> None:
    leadership = Leadership()

    def lose(event: Event) -> None:
        leadership.starts = None

    leadership.service._submit = lose
    with raises_code(ErrorCode.NOT_LEADER):
        await leadership.ask(4)


async def test_the_service_keeps_no_state_of_answered_deletions() -> None:
    answered, late, ended = Leadership(), Leadership(), Leadership()
    answered.starts = (Offset(0), {2: Offset(7)})
    await answered.ask(7)
    now_ms = iter(range(0, 1_000_000, 5_000))
    late.service._now_ms = lambda: next(now_ms)
    await late.ask(4, timeout_ms=1)
    ended.service._submit = lambda event: setattr(ended, "starts", None)
    with raises_code(ErrorCode.NOT_LEADER):
        await ended.ask(4)
    assert [one.service._waiting._by_partition for one in (answered, late, ended)] == [{}, {}, {}]
