# SPDX-License-Identifier: Apache-2.0
"""flush.policy=group-commit: high watermark, acks=all and ISR follow flushed offsets (rules R3, R7, R8, P2)."""

from __future__ import annotations

import pytest
from tidemark.core.messages import FetchPosition, FollowerMessage, Refusal, Report
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.model import ErrorCode, TidemarkError

from tests.unit.core.replication.stage import ID, P, Stage, batch, node

GROUP_COMMIT = {"flush.policy": "group-commit"}


@pytest.fixture
def stage() -> Stage:
    stage = Stage()
    stage.topic_configs = GROUP_COMMIT
    return stage


def flushed(stage: Stage, end: int) -> None:
    stage.feed(ev.LogFlushed(P, ID, end))


def fetches(stage: Stage, follower: int, end: int, *, flushed: int, last_epoch: int = -1) -> None:
    position = FetchPosition(P, ID, 5, end, last_epoch, 0, flushed)
    stage.from_follower(follower, FollowerMessage(positions=(position,)))


def reports(stage: Stage, follower: int, end: int, *, flushed: int) -> None:
    stage.from_follower(follower, FollowerMessage(reports=(Report(P, 5, end, flushed),)))


def test_the_high_watermark_waits_for_the_flush_of_every_follower_in_sync(stage: Stage) -> None:
    stage.leads((1, 2, 3))
    fetches(stage, 2, 0, flushed=0)
    fetches(stage, 3, 0, flushed=0)
    request = stage.write()
    flushed(stage, 1)
    reports(stage, 2, 1, flushed=1)
    reports(stage, 3, 1, flushed=0)
    assert stage.high_watermark() == 0
    assert stage.replies() == []
    reports(stage, 3, 1, flushed=1)
    assert stage.high_watermark() == 1
    assert stage.replies() == [(request, 0, None)]


def test_the_high_watermark_waits_for_the_leaders_own_flush(stage: Stage) -> None:
    stage.leads((1, 2))
    fetches(stage, 2, 0, flushed=0)
    request = stage.write(batch(3))
    reports(stage, 2, 3, flushed=3)
    assert (stage.high_watermark(), stage.replies()) == (0, [])
    flushed(stage, 3)
    assert stage.replies() == [(request, 0, None)]


def test_the_lowest_flushed_offset_bounds_the_high_watermark_in_any_order(stage: Stage) -> None:
    stage.leads((1, 2, 3))
    fetches(stage, 2, 0, flushed=0)
    fetches(stage, 3, 0, flushed=0)
    stage.write(batch(3))
    flushed(stage, 3)
    reports(stage, 3, 3, flushed=2)
    reports(stage, 2, 3, flushed=1)
    assert stage.high_watermark() == 1
    reports(stage, 2, 3, flushed=3)
    assert stage.high_watermark() == 2


def test_without_group_commit_no_request_waits_for_a_flush() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    request = stage.write()
    reports(stage, 2, 1, flushed=0)
    assert stage.replies() == [(request, 0, None)]


def test_a_flush_reported_before_its_append_commits_no_unwritten_record(stage: Stage) -> None:
    stage.leads((1,))
    request = stage.produce(batch(2))
    flushed(stage, 2)
    assert (stage.high_watermark(), stage.replies()) == (0, [])
    stage.appended(2)
    assert stage.replies() == [(request, 0, None)]


def test_with_acks_one_the_leaders_page_cache_is_enough(stage: Stage) -> None:
    stage.leads((1, 2))
    request = stage.write(acks=1)
    assert stage.replies() == [(request, 0, None)]


def test_a_duplicate_waits_for_the_flush_as_its_original_does(stage: Stage) -> None:
    stage.leads((1, 2))
    fetches(stage, 2, 0, flushed=0)
    original = stage.write(batch(sequence=0, producer_id=7))
    again = stage.produce(batch(sequence=0, producer_id=7))
    reports(stage, 2, 1, flushed=1)
    assert stage.replies() == []
    flushed(stage, 1)
    assert stage.replies() == [(original, 0, None), (again, 0, None)]


def test_a_follower_joins_only_after_flushing_every_committed_record(stage: Stage) -> None:
    stage.leads((1,))
    stage.write(batch(4))
    flushed(stage, 4)
    assert stage.high_watermark() == 4
    fetches(stage, 2, 4, flushed=3, last_epoch=5)
    assert stage.got(fx.WriteIsr) == []
    reports(stage, 2, 4, flushed=4)
    assert stage.one(fx.WriteIsr).state.isr_ids == (1, 2)


def test_a_follower_that_is_joining_holds_the_high_watermark_by_its_flushes(stage: Stage) -> None:
    stage.leads((1,))
    fetches(stage, 2, 0, flushed=0)
    assert stage.one(fx.WriteIsr).state.isr_ids == (1, 2)
    stage.write()
    flushed(stage, 1)
    reports(stage, 2, 1, flushed=0)
    assert stage.high_watermark() == 0
    reports(stage, 2, 1, flushed=1)
    assert stage.high_watermark() == 1


def test_a_report_of_an_earlier_stream_does_not_count_on_a_new_one(stage: Stage) -> None:
    stage.leads((1, 2))
    fetches(stage, 2, 0, flushed=0)
    reports(stage, 2, 0, flushed=0)
    stage.write(batch(2))
    reports(stage, 2, 2, flushed=2)
    fetches(stage, 2, 0, flushed=0)  # its machine restarted with an empty log
    reports(stage, 2, 2, flushed=0)
    flushed(stage, 2)
    assert stage.high_watermark() == 0


def test_a_leader_that_recovered_unflushed_records_commits_them_once_they_are_flushed(stage: Stage) -> None:
    stage.command(node(1, 5, (1,)))
    stage.opened(10, (2, 0), flushed=4, high_watermark=3)
    assert stage.high_watermark() == 4
    flushed(stage, 10)
    assert stage.high_watermark() == 10


def test_a_follower_reports_a_flush_without_other_changes() -> None:
    follower = Stage()
    follower.topic_configs = GROUP_COMMIT
    follower.follows(2)
    follower.chunk(0, batch(3, epoch=5))
    follower.appended(3)
    assert follower.said().reports == (Report(P, 5, 3, 0),)
    flushed(follower, 3)
    assert follower.said().reports == (Report(P, 5, 3, 3),)


def test_a_follower_starts_with_its_flushed_offset() -> None:
    follower = Stage()
    follower.topic_configs = GROUP_COMMIT
    follower.command(node(2, 5, (1, 2)))
    follower.opened(0, start=0)
    follower.feed(ev.LeaderConnected(2))
    (position,) = follower.said().positions
    assert position.flushed_offset == 0
    follower.chunk(0, batch(3, epoch=5))
    follower.appended(3)
    flushed(follower, 2)
    follower.feed(ev.LeaderDisconnected(2))
    follower.feed(ev.LeaderConnected(2))
    (position,) = follower.said().positions
    assert (position.fetch_offset, position.flushed_offset) == (3, 2)


def test_a_flush_reported_during_a_truncation_is_ignored() -> None:
    follower = Stage()
    follower.topic_configs = GROUP_COMMIT
    follower.command(node(2, 5, (1, 2)))
    follower.opened(10, (4, 0), flushed=0)
    follower.feed(ev.LeaderConnected(2))
    follower.answered(4, 6)
    assert follower.one(fx.TruncateLog).end_offset == 6
    flushed(follower, 10)
    follower.truncated(6)
    (position,) = follower.said().positions
    assert (position.fetch_offset, position.flushed_offset) == (6, 0)


def lag_passes(stage: Stage, *, speaking: int, end: int, flushed: int) -> None:
    """A follower repeats the same report for twelve seconds."""
    for _ in range(24):
        stage.feed(ev.Tick(), after_ms=500)
        if stage.got(fx.WriteIsr) or stage.got(fx.ResignLeadership):
            return
        reports(stage, speaking, end, flushed=flushed)


def test_a_follower_whose_flush_hangs_is_evicted_though_it_appends(stage: Stage) -> None:
    stage.leads((1, 2))
    fetches(stage, 2, 0, flushed=0)
    request = stage.write()
    flushed(stage, 1)
    lag_passes(stage, speaking=2, end=1, flushed=0)
    assert stage.one(fx.WriteIsr).state.isr_ids == (1,)
    stage.feed(ev.IsrWritten(P, 7))
    assert stage.replies() == [(request, 0, None)]
    reports(stage, 2, 1, flushed=0)
    assert stage.got(fx.WriteIsr) == [], "the follower joins once it has flushed every committed record"
    reports(stage, 2, 1, flushed=1)
    assert stage.one(fx.WriteIsr).state.isr_ids == (1, 2)


def test_a_leader_whose_flush_hangs_resigns_and_evicts_no_follower(stage: Stage) -> None:
    stage.leads((1, 2))
    fetches(stage, 2, 0, flushed=0)
    stage.write()
    lag_passes(stage, speaking=2, end=1, flushed=0)
    assert stage.one(fx.ResignLeadership).partition == P
    assert stage.got(fx.WriteIsr) == []


def test_a_failed_flush_ends_the_leadership_and_acknowledges_nothing(stage: Stage) -> None:
    stage.leads((1,))
    request = stage.write()
    stage.feed(ev.LogFailed(P, ID, TidemarkError(ErrorCode.STORAGE_ERROR, "fdatasync: input/output error")))
    assert stage.replies() == [(request, 0, ErrorCode.STORAGE_ERROR)]
    flushed(stage, 1)
    assert stage.out == []


def test_a_follower_joins_a_new_leader_only_when_all_that_may_have_been_committed_is_on_its_disk(stage: Stage) -> None:
    stage.leads((1,), min_isr=2, end=10, epochs=((4, 0),), high_watermark=3)
    fetches(stage, 2, 10, flushed=9, last_epoch=4)
    assert stage.got(fx.WriteIsr) == [], "the high watermark of this leader, 3, may be old"
    reports(stage, 2, 10, flushed=10)
    assert stage.one(fx.WriteIsr).state.isr_ids == (1, 2)


def test_a_follower_that_starts_empty_past_its_end_has_nothing_left_to_flush(stage: Stage) -> None:
    """The follower flushes no more before the next batch, and would stay outside the ISR until then."""
    stage.follows(end=10, epochs=[(3, 0), (4, 6)])
    stage.answered(4, 10)
    stage.from_leader(refusals=[Refusal(P, ErrorCode.OFFSET_OUT_OF_RANGE, "gone", 5, 30)])
    assert stage.one(fx.ResetLog).start_offset == 30
    stage.truncated(30, start=30)
    (position,) = stage.said().positions
    assert (position.fetch_offset, position.flushed_offset) == (30, 30)
