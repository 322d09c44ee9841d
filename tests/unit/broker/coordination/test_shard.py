# SPDX-License-Identifier: Apache-2.0
"""Writes of a coordinator that wait for followers at the same time (docs/groups.md, G8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest
from tidemark.broker.coordination.state_log import InTransaction, StateLog
from tidemark.broker.groups.group_shard import GroupShard
from tidemark.broker.groups.metrics import GroupMetrics
from tidemark.core.groups.coordinator import GroupCoordinator, Outcome
from tidemark.core.groups.heartbeat import Situation
from tidemark.core.groups.offsets import Commit, Refusals
from tidemark.core.groups.settings import GroupSettings
from tidemark.core.groups.state import Change, Committed, TopicFacts
from tidemark.core.pending_writes import Writer
from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.runtime.metrics import Metrics

from tests.turns import turns
from tests.unit.broker.coordination.held_log import HeldLog, loaded

AT_0 = TopicPartition("a", 0)
TIMED_OUT = TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "the outcome is unknown")
Log = HeldLog[Change]


@pytest.fixture
def log() -> Log:
    return HeldLog(TopicPartition("__consumer_offsets", 3))


@pytest.fixture
async def shard(log: Log) -> AsyncIterator[GroupShard]:
    def situation() -> Situation:
        return Situation({"a": TopicFacts("a-id", 2)}, GroupSettings(), 0, 1_000)

    made = GroupShard(cast(StateLog[Change], log), situation, 1.0, GroupMetrics(Metrics()))
    await loaded(made)
    yield made
    made.close()


async def commit(shard: GroupShard, offset: int) -> asyncio.Task[Refusals]:
    asked = Commit("g", "", -1, "", {AT_0: Committed(offset, -1, "", "a-id", "", 0)})

    def change(coordinator: GroupCoordinator, now: Situation) -> Outcome[Refusals]:
        return coordinator.commit(asked, now)

    committing = asyncio.create_task(shard.change(change))
    await turns()
    return committing


async def appended(log: Log) -> None:
    """The leader's log has the records of the last write."""
    log.appends[-1]()
    await turns()


async def test_a_write_starts_when_the_leader_has_appended_the_one_before(log: Log, shard: GroupShard) -> None:
    tasks = [await commit(shard, offset) for offset in range(3)]
    assert len(log.appends) == 1, "the log might refuse the first write, and accept the second"
    await appended(log)
    assert len(log.appends) == 2
    tasks.append(await commit(shard, 3))
    await appended(log)
    assert [len(await log.finish_write()) for _ in range(3)] == [1, 2, 1]
    await asyncio.gather(*tasks)
    assert [change.value.offset for change in log.records if isinstance(change.value, Committed)] == [0, 1, 2, 3]


async def test_writes_beyond_the_third_wait_for_an_answer(log: Log, shard: GroupShard) -> None:
    tasks = []
    for offset in range(5):
        tasks.append(await commit(shard, offset))
        await appended(log)
    assert len(log.appends) == 3
    await log.finish_write()
    await turns()
    assert len(log.appends) == 4
    assert [task.done() for task in tasks] == [True, False, False, False, False]
    assert [len(await log.finish_write()) for _ in range(3)] == [1, 1, 2]
    await asyncio.gather(*tasks)


async def test_no_answer_overtakes_the_one_of_an_earlier_write(log: Log, shard: GroupShard) -> None:
    first = await commit(shard, 1)
    await appended(log)
    second = await commit(shard, 2)
    (_, earlier), (_, later) = log.writes.get_nowait(), log.writes.get_nowait()
    later.set_result(None)
    await turns()
    assert not second.done()
    earlier.set_exception(TIMED_OUT)
    for task in (first, second):
        with pytest.raises(TidemarkError, match="unknown"):
            await task


async def test_after_a_failed_write_the_shard_reads_the_log_when_no_write_is_left(log: Log, shard: GroupShard) -> None:
    first = await commit(shard, 1)
    await appended(log)
    second = await commit(shard, 2)
    await log.finish_write(TIMED_OUT)
    await turns()
    assert first.done()
    assert second.done()
    for _ in range(100):
        await turns()
    assert shard.is_loading, "the records of the second write may still be appended"
    await log.finish_write()
    await loaded(shard)
    assert shard.coordinator.group("g").offsets[AT_0].offset == 2
    with pytest.raises(TidemarkError, match="unknown"):
        await first
    with pytest.raises(TidemarkError, match="unknown"):
        await second


async def test_after_an_unexpected_error_the_shard_reads_the_log_behind_the_writes_that_wait(
    log: Log, shard: GroupShard
) -> None:
    def breaks(coordinator: GroupCoordinator, now: Situation) -> Outcome[Refusals]:
        raise ZeroDivisionError

    first = await commit(shard, 1)
    second = await commit(shard, 2)
    with pytest.raises(ZeroDivisionError):
        await shard.change(breaks)
    await log.finish_write()
    for _ in range(100):
        await turns()
    assert shard.is_loading
    await log.finish_write()
    await asyncio.gather(first, second)
    await loaded(shard)
    assert shard.coordinator.group("g").offsets[AT_0].offset == 2


async def test_a_write_of_a_transaction_runs_alone(log: Log, shard: GroupShard) -> None:
    """The log may refuse it, and accept the next one."""
    asked = Commit("g", "", -1, "", {AT_0: Committed(5, -1, "", "a-id", "", 0)})
    transaction = InTransaction("t", Writer(40, 0))
    before = await commit(shard, 1)
    await appended(log)
    pending = asyncio.create_task(
        shard.change_in_transaction(
            lambda coordinator, now: coordinator.commit_in_transaction(asked, transaction.writer, now),
            lambda coordinator, answer: coordinator.take_back(answer),
            transaction,
        )
    )
    await turns()
    after = await commit(shard, 2)
    for number in (1, 2, 3):
        assert len(log.appends) == number
        await appended(log)
        await log.finish_write()
        await turns()
    await asyncio.gather(before, pending, after)
