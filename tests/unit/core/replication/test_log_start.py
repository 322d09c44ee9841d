# SPDX-License-Identifier: Apache-2.0
"""The leader decides the log start of a partition, which never passes the high watermark (rules L1, E3)."""

from __future__ import annotations

from tidemark.core.messages import Chunk, FetchPosition, FollowerMessage, Refusal, Report
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.model import ErrorCode

from tests.unit.core.replication.stage import ID, P, Stage, batch, entries, node


def release(stage: Stage, start: int, *, epoch: int = 5) -> list[fx.Effect]:
    return stage.feed(ev.LogStartRequested(P, ID, epoch, start))


def led(*, committed: int = 10) -> Stage:
    stage = Stage().leads(isr=(1, 2), end=committed, epochs=[(3, 0), (4, 6)])
    stage.fetches(2, committed, last_epoch=4)
    assert stage.high_watermark() == committed
    return stage


def sent_starts(stage: Stage) -> list[int]:
    return [chunk.log_start_offset for effect in stage.got(fx.SendToFollower) for chunk in effect.message.chunks]


def test_a_leader_advances_its_log_start_and_drops_the_epochs_below() -> None:
    stage = led()
    release(stage, 8)
    assert stage.one(fx.AdvanceLogStart) == fx.AdvanceLogStart(P, ID, 8)
    assert stage.one(fx.SaveEpochs).entries == entries((4, 8), (5, 10))
    (view,) = stage.core.queries.replicas()
    assert view.log_start_offset == 8


def test_the_log_start_passes_neither_the_high_watermark_nor_itself() -> None:
    stage = led()
    stage.write()
    release(stage, 11)
    assert stage.one(fx.AdvanceLogStart).start_offset == 10, "the record at 10 is not committed"
    release(stage, 10)
    assert stage.out == []
    release(stage, 4)
    assert stage.out == []


def test_only_the_leader_in_the_named_epoch_advances_the_log_start() -> None:
    stage = led()
    release(stage, 5, epoch=4)
    assert stage.out == []
    follower = Stage().follows(end=10, epochs=[(4, 0)], high_watermark=10)
    release(follower, 5)
    assert follower.out == []


def test_followers_get_the_log_start_with_the_next_tick_and_report_theirs() -> None:
    stage = led()
    stage.feed(ev.Tick())
    release(stage, 8)
    stage.feed(ev.Tick())
    assert sent_starts(stage) == [8]
    assert stage.core.queries.log_starts(P, 5) == (8, {2: 0})
    stage.from_follower(2, FollowerMessage(reports=(Report(P, 5, 10, 10, 8),)))
    assert stage.one(fx.LowWatermarkMoved).partition == P
    assert stage.core.queries.log_starts(P, 5) == (8, {2: 8})
    stage.from_follower(2, FollowerMessage(reports=(Report(P, 5, 10, 10, 8),)))
    assert not stage.got(fx.LowWatermarkMoved)
    assert stage.core.queries.log_starts(P, 4) is None


def test_the_log_start_in_a_fetch_position_counts_too() -> None:
    stage = led()
    position = FetchPosition(P, ID, 5, 10, 4, 0, log_start_offset=7)
    stage.from_follower(2, FollowerMessage(positions=(position,)))
    assert stage.core.queries.log_starts(P, 5) == (0, {2: 7})


def following(*, end: int = 10, high_watermark: int = 10) -> Stage:
    stage = Stage().follows(end=end, epochs=[(3, 0), (4, 6)], high_watermark=high_watermark)
    stage.answered(4, 10)
    return stage


def news(stage: Stage, *, log_start: int, high_watermark: int) -> None:
    stage.from_leader(chunks=[Chunk(P, 5, 10, high_watermark, log_start)])


def test_a_follower_advances_its_log_start_to_the_leaders_and_reports_it() -> None:
    stage = following()
    news(stage, log_start=8, high_watermark=10)
    assert stage.one(fx.AdvanceLogStart).start_offset == 8
    assert stage.one(fx.SaveEpochs).entries == entries((4, 8))
    assert stage.said().reports == (Report(P, 5, 10, 10, 8),)
    news(stage, log_start=8, high_watermark=10)
    assert not stage.got(fx.AdvanceLogStart)


def test_a_follower_keeps_records_above_its_high_watermark() -> None:
    stage = following(high_watermark=4)
    news(stage, log_start=8, high_watermark=6)
    assert stage.one(fx.AdvanceLogStart).start_offset == 6
    news(stage, log_start=8, high_watermark=9)
    assert stage.one(fx.AdvanceLogStart).start_offset == 8


def test_a_follower_whose_log_ends_below_the_log_start_starts_empty_there() -> None:
    stage = following()
    stage.from_leader(refusals=[Refusal(P, ErrorCode.OFFSET_OUT_OF_RANGE, "gone", 5, 30)])
    assert stage.one(fx.ResetLog).start_offset == 30
    stage.truncated(30, start=30)
    (position,) = stage.said().positions
    assert (position.fetch_offset, position.log_start_offset) == (30, 30)


def test_a_follower_below_the_log_start_is_refused_with_the_log_start() -> None:
    stage = led()
    release(stage, 10)
    stage.fetches(3, 4, last_epoch=3)
    (message,) = [effect.message for effect in stage.got(fx.SendToFollower)]
    (refusal,) = message.refusals
    assert (refusal.code, refusal.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 10)


def test_a_follower_at_the_log_start_in_an_unknown_epoch_starts_empty_there() -> None:
    """The follower's records may never have been committed: the leader does not know this below its log start."""
    stage = led()
    release(stage, 10)
    stage.fetches(3, 10, last_epoch=3)
    assert stage.refused_followers() == [ErrorCode.OFFSET_OUT_OF_RANGE]
    stage.fetches(3, 10)
    assert stage.refused_followers() == [], "an empty log holds no doubtful record"
    follower = following(high_watermark=6)
    follower.from_leader(refusals=[Refusal(P, ErrorCode.OFFSET_OUT_OF_RANGE, "gone", 5, 10)])
    assert follower.one(fx.ResetLog).start_offset == 10


def test_a_follower_with_only_committed_records_below_the_log_start_keeps_its_producers() -> None:
    gone = Refusal(P, ErrorCode.OFFSET_OUT_OF_RANGE, "gone", 6, 10)
    follower = following(high_watermark=10)
    follower.command(node(2, 6, (1, 2)))
    follower.answered(4, 10, current=6)
    follower.from_leader(refusals=[gone])
    assert follower.one(fx.AdvanceLogStart).start_offset == 10
    (position,) = follower.said().positions
    assert (position.fetch_offset, position.last_epoch, position.log_start_offset) == (10, -1, 10)
    stranger = following(high_watermark=10)
    stranger.from_leader(refusals=[gone._replace(current_leader_epoch=5)])
    assert stranger.one(fx.ResetLog).start_offset == 10, "its high watermark may be of another lineage"


def test_epochs_below_the_log_start_are_dropped_at_opening() -> None:
    stage = Stage()
    stage.command(node(1, 5, (1,)))
    stage.opened(10, (3, 0), (4, 6), high_watermark=10, start=8)
    assert stage.one(fx.SaveEpochs).entries == entries((4, 8), (5, 10))


def test_a_leader_appends_after_its_whole_log_was_deleted() -> None:
    stage = led()
    release(stage, 10)
    stage.write(batch(3))
    stage.reports(2, 13)
    assert stage.high_watermark() == 13
