# SPDX-License-Identifier: Apache-2.0
"""Times of a coordinator's answers, and its behaviour after a failed write (docs/groups.md, G8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import cast

import pytest
from tidemark.broker.coordination.state_log import InTransaction, StateLog
from tidemark.broker.groups.coordinators import GroupCoordinators
from tidemark.broker.groups.group_shard import GroupShard
from tidemark.broker.groups.metrics import GroupMetrics
from tidemark.broker.groups.offsets import GroupOffsets
from tidemark.broker.groups.service import GroupService
from tidemark.core.groups.coordinator import GroupCoordinator, Outcome
from tidemark.core.groups.heartbeat import Heartbeat, HeartbeatAnswer, Situation
from tidemark.core.groups.offsets import Commit, Refusals
from tidemark.core.groups.settings import GroupSettings
from tidemark.core.groups.state import UNNUMBERED, Change, Committed, OffsetKey, TopicFacts, Turn
from tidemark.core.pending_writes import Writer
from tidemark.errors import ConcurrentTransactionsError
from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.runtime.metrics import Metrics
from tidemark.v1 import group_service_pb2 as pb

from tests.refusals import raises_code
from tests.turns import turns
from tests.unit.broker.coordination.held_log import HeldLog, loaded

PARTITION = TopicPartition("__consumer_offsets", 3)
AT_0 = TopicPartition("a", 0)
Log = HeldLog[Change]


def situation() -> Situation:
    return Situation({"a": TopicFacts("a-id", 2)}, GroupSettings(), 0, 1_000)


@pytest.fixture
def log() -> Log:
    return HeldLog(PARTITION)


@pytest.fixture
async def shard(log: Log) -> AsyncIterator[GroupShard]:
    made = GroupShard(cast(StateLog[Change], log), situation, 1.0, GroupMetrics(Metrics()))
    await loaded(made)
    yield made
    made.close()


def commit(shard: GroupShard, offset: int, group_id: str = "g") -> asyncio.Task[Refusals]:
    asked = Commit(group_id, "", -1, "", {AT_0: Committed(offset, -1, "", "a-id", "", 0)})

    def change(coordinator: GroupCoordinator, now: Situation) -> Outcome[Refusals]:
        return coordinator.commit(asked, now)

    return asyncio.create_task(shard.change(change))


def beat(shard: GroupShard, member_id: str, epoch: int) -> asyncio.Task[HeartbeatAnswer]:
    request = Heartbeat("g", member_id, epoch, topics=("a",), rebalance_timeout_ms=1)
    return asyncio.create_task(shard.change(lambda coordinator, now: coordinator.heartbeat(request, now)))


def remembered(shard: GroupShard) -> int:
    return shard.coordinator.group("g").offsets[AT_0].offset


async def added(transaction: InTransaction, partition: TopicPartition) -> None:
    """The transaction coordinator adds the partition."""


async def test_an_answer_waits_for_the_writes_of_all_state_that_it_depends_on(log: Log, shard: GroupShard) -> None:
    committing = commit(shard, 1)
    await turns()
    looking = asyncio.create_task(shard.read(lambda coordinator: coordinator.group("g").offsets[AT_0].offset))
    await turns()
    assert not committing.done()
    assert not looking.done(), "the state that it read is not committed yet"
    await log.finish_write()
    assert await committing == {}
    assert await looking == 1


async def test_changes_during_a_write_are_written_together_afterwards(log: Log, shard: GroupShard) -> None:
    first = commit(shard, 1)
    await turns()
    others = [commit(shard, 2 + number, f"g{number}") for number in range(5)]
    await turns()
    assert len(await log.finish_write()) == 1
    await first
    assert len(await log.finish_write()) == 5
    await asyncio.gather(*others)


async def test_after_a_failed_write_the_state_is_loaded_from_the_log(log: Log, shard: GroupShard) -> None:
    kept = commit(shard, 1)
    await log.finish_write()
    await kept
    failing = commit(shard, 2)
    await turns()
    behind = commit(shard, 3)
    await turns()
    log.may_read.clear()
    await log.finish_write(TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "the outcome is unknown"))
    for task in (failing, behind):
        with raises_code(ErrorCode.REQUEST_TIMED_OUT):
            await task
    with raises_code(ErrorCode.COORDINATOR_LOADING):
        await commit(shard, 4)
    log.may_read.set()
    await loaded(shard)
    assert remembered(shard) == 1


async def test_an_expired_lease_while_the_state_is_loaded_does_not_end_the_loading(log: Log) -> None:
    log.records.append(Change(OffsetKey("g", *AT_0), Committed(7, -1, "", "a-id", "", 0)))
    log.refusal = log.over()
    shard = GroupShard(cast(StateLog[Change], log), situation, 1.0, GroupMetrics(Metrics()))
    await turns()
    assert shard.is_loading
    log.refusal = None
    await loaded(shard)
    assert remembered(shard) == 7
    shard.close()


async def test_a_change_that_could_not_be_written_is_refused(log: Log, shard: GroupShard) -> None:
    log.unwritable = TidemarkError(ErrorCode.NOT_ENOUGH_REPLICAS, "one is missing")
    with raises_code(ErrorCode.NOT_ENOUGH_REPLICAS):
        await commit(shard, 1)
    shard.sweep()
    await shard.expire(1_000)
    assert shard.coordinator.find("g") is None
    assert log.writes.empty()


async def test_an_expired_offset_is_deleted_by_a_record(log: Log, shard: GroupShard) -> None:
    committing = commit(shard, 1)
    await log.finish_write()
    await committing
    await shard.expire(1_000)
    assert log.writes.empty()
    log.records.clear()
    log.refusal = None
    long_after = situation()._replace(wall_ms=10 * GroupSettings().offsets_retention_ms)
    made = GroupShard(cast(StateLog[Change], log), lambda: long_after, 1.0, GroupMetrics(Metrics()))
    await loaded(made)
    committing = commit(made, 1)
    await log.finish_write()
    await committing
    await made.expire(1_000)
    assert log.writes.empty(), "the clock may have jumped ahead"
    await made.expire(2 * long_after.wall_ms)
    (change,) = await log.finish_write()
    assert change.value is None
    assert made.coordinator.find("g") is None
    made.close()


async def test_an_answer_after_the_leadership_is_a_refusal(log: Log, shard: GroupShard) -> None:
    committing = commit(shard, 1)
    await turns()
    log.refusal = log.over()
    await log.finish_write()
    with raises_code(ErrorCode.NOT_COORDINATOR):
        await committing


async def test_members_are_woken_by_changes_of_their_own_group_only(log: Log, shard: GroupShard) -> None:
    joining = beat(shard, "m1", 0)
    await log.finish_write()
    await joining
    mine, other = shard.event_of("g"), shard.event_of("another")
    committing = commit(shard, 1, "another")
    await log.finish_write()
    await committing
    assert not mine.is_set()
    assert not other.is_set(), "committed offsets do not wake members"
    joining = beat(shard, "m2", 0)
    await log.finish_write()
    await joining
    assert mine.is_set()
    assert not other.is_set()
    shard.close()
    assert other.is_set(), "a former coordinator keeps no request waiting"


async def test_a_heartbeat_without_a_change_writes_nothing(log: Log, shard: GroupShard) -> None:
    joining = beat(shard, "m1", 0)
    await log.finish_write()
    epoch = (await joining).member_epoch
    answer = await beat(shard, "m1", epoch)
    assert (answer.member_epoch, answer.is_news) == (epoch, False)
    assert log.writes.empty()


async def test_an_unexpected_error_discards_a_partial_change(log: Log, shard: GroupShard) -> None:
    def change(coordinator: GroupCoordinator, now: Situation) -> Outcome[None]:
        coordinator.commit(Commit("g", "", -1, "", {AT_0: Committed(5, -1, "", "a-id", "", 0)}), now)
        raise RuntimeError("unexpected")

    with pytest.raises(RuntimeError):
        await shard.change(change)
    await loaded(shard)
    assert shard.coordinator.find("g") is None


async def test_a_join_that_waits_for_the_first_topics_is_answered_when_they_arrive(log: Log) -> None:
    known, metrics = [situation()._replace(topics=None)], GroupMetrics(Metrics())
    shard = GroupShard(cast(StateLog[Change], log), lambda: known[0], 1.0, metrics)
    await loaded(shard)
    groups = SimpleNamespace(settings=GroupSettings(), shard_of=lambda group_id: shard, metrics=metrics)
    service = GroupService(cast(GroupCoordinators, groups), cast(GroupOffsets, None), added)
    join = pb.GroupHeartbeatRequest(group_id="g", member_id="m", rebalance_timeout_ms=1, max_wait_ms=60_000, sequence=1)
    join.subscription.topics.append("a")
    joining = asyncio.create_task(service.GroupHeartbeat(join, SimpleNamespace(peer=lambda: "here")))
    await log.finish_write()
    await turns()
    assert not joining.done()
    known[0] = situation()
    shard.refresh_topics()
    async with asyncio.timeout(5):
        while not joining.done():
            await asyncio.wait({joining, asyncio.create_task(log.finish_write())}, return_when=asyncio.FIRST_COMPLETED)
    answer = joining.result()
    assert answer.member_epoch > 0
    assert [list(one.partitions) for one in answer.assignment.topics] == [[0, 1]]
    shard.close()


# -- offsets in transactions (rule X17) --------------------------------------------------------------------------------

LOADER = InTransaction("loader", Writer(40, 0))


def commit_in_transaction(
    shard: GroupShard, offset: int, transaction: InTransaction = LOADER, turn: Turn = UNNUMBERED
) -> asyncio.Task[Refusals]:
    asked = Commit("g", "", -1, "", {AT_0: Committed(offset, -1, "", "a-id", "", 0)}, turn)
    return asyncio.create_task(shard.commit_in_transaction(asked, transaction))


def offset_of(shard: GroupShard) -> int | None:
    group = shard.coordinator.find("g")
    found = None if group is None else group.offsets.get(AT_0)
    return None if found is None else found.offset


def is_stable(shard: GroupShard) -> bool:
    try:
        shard.coordinator.check_stable("g", [AT_0])
        shard.coordinator.check_stable("g", None)
    except ConcurrentTransactionsError:
        return False
    return True


async def test_an_unstable_group_is_refused_without_the_names_of_topics_that_were_not_asked_for(
    log: Log, shard: GroupShard
) -> None:
    pending = commit_in_transaction(shard, 5)
    await turns()
    with pytest.raises(ConcurrentTransactionsError) as refused:
        shard.coordinator.check_stable("g", None)
    assert "in one of its partitions" in refused.value.message
    with pytest.raises(ConcurrentTransactionsError, match=r"in a-0: retry"):
        shard.coordinator.check_stable("g", [AT_0])
    await log.finish_write()
    await pending


@pytest.mark.parametrize("decision", ["commit", "abort"])
async def test_an_offset_of_a_transaction_is_in_force_after_its_commit_marker_only(
    log: Log, shard: GroupShard, decision: str
) -> None:
    before = commit(shard, 1)
    await log.finish_write()
    await before
    pending = commit_in_transaction(shard, 5)
    await turns()
    assert not pending.done()
    await log.finish_write()
    assert await pending == {}
    assert offset_of(shard) == 1
    assert not is_stable(shard)
    ((writer, committed),) = shard.coordinator.pending_offsets("g")[AT_0]
    assert (writer, committed.offset) == (LOADER.writer, 5)
    assert shard.coordinator.pending_offsets("other") == {}
    shard.on_marker(40, 0, commit=True)  # the marker of the transaction before
    assert offset_of(shard) == 1
    for _ in range(2):
        shard.on_marker(40, 1, commit=decision == "commit")
    assert offset_of(shard) == (5 if decision == "commit" else 1)
    assert is_stable(shard)
    assert shard.coordinator.pending_offsets("g") == {}
    assert log.writes.empty()


async def test_an_offset_committed_after_the_one_of_a_transaction_stays(log: Log, shard: GroupShard) -> None:
    pending = commit_in_transaction(shard, 5)
    later = commit(shard, 7)
    await log.finish_write()
    await log.finish_write()
    await asyncio.gather(pending, later)
    shard.on_marker(40, 1, commit=True)
    assert offset_of(shard) == 7
    assert [len(changes) for _, changes in log.pending] == [1]
    assert len(log.records) == 1


async def test_a_late_commit_of_a_transaction_undoes_no_later_one_of_its_client(log: Log, shard: GroupShard) -> None:
    for offset, sequence in ((5, 1), (8, 2)):
        pending = commit_in_transaction(shard, offset, turn=Turn("reader", sequence))
        await log.finish_write()
        await pending
    assert await commit_in_transaction(shard, 5, turn=Turn("reader", 1)) == {}, "the first one arrives again"
    assert log.writes.empty()
    repeated = commit_in_transaction(shard, 8, turn=Turn("reader", 2))
    await turns()
    assert not repeated.done(), "its first write may fail yet"
    await log.finish_write()
    await repeated
    shard.on_marker(40, 1, commit=True)
    assert offset_of(shard) == 8


async def test_a_fenced_transaction_fails_alone_and_leaves_no_offset(log: Log, shard: GroupShard) -> None:
    first = commit(shard, 1)
    await turns()
    fenced = commit_in_transaction(shard, 5)
    last = commit(shard, 2)
    await log.finish_write()
    await log.finish_write(TidemarkError(ErrorCode.PRODUCER_FENCED, "an older epoch"))
    await log.finish_write()
    await asyncio.gather(first, last)
    with raises_code(ErrorCode.PRODUCER_FENCED):
        await fenced
    assert offset_of(shard) == 2
    await turns()
    assert is_stable(shard)


async def test_a_client_that_has_gone_leaves_no_offset_of_a_fenced_transaction(log: Log, shard: GroupShard) -> None:
    fenced = commit_in_transaction(shard, 5)
    await turns()
    fenced.cancel()
    await turns()
    assert not is_stable(shard)
    await log.finish_write(TidemarkError(ErrorCode.PRODUCER_FENCED, "an older epoch"))
    await turns()
    assert is_stable(shard)


async def test_open_transactions_and_markers_survive_a_reload(log: Log, shard: GroupShard) -> None:
    pending = commit_in_transaction(shard, 5)
    await log.finish_write()
    await pending
    other = commit_in_transaction(shard, 6, InTransaction("other", Writer(41, 0)))
    await log.finish_write()
    await other
    log.may_read.clear()
    failing = commit(shard, 9)
    await log.finish_write(TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "the outcome is unknown"))
    with pytest.raises(TidemarkError):
        await failing
    await turns()
    assert shard.is_loading
    shard.on_marker(40, 1, commit=True)
    log.may_read.set()
    await loaded(shard)
    assert offset_of(shard) == 5
    assert not is_stable(shard), "the other transaction is open"
    shard.on_marker(41, 1, commit=True)
    assert offset_of(shard) == 6


async def test_a_member_that_was_fenced_commits_no_offset_in_a_transaction(log: Log, shard: GroupShard) -> None:
    asked = Commit("g", "gone", 3, "", {AT_0: Committed(5, -1, "", "a-id", "", 0)})
    with raises_code(ErrorCode.UNKNOWN_MEMBER):
        await shard.commit_in_transaction(asked, LOADER)
    assert is_stable(shard)
    assert log.writes.empty()
