# SPDX-License-Identifier: Apache-2.0
"""A follower: reconciliation by epochs, fetching, reporting (rules R1, R5, E2-E4, F3, L1), as scenarios."""

from __future__ import annotations

import pytest
from tidemark.core.messages import EpochQuery, FetchPosition, FollowerMessage, Refusal, Report, StopFetch
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.model import ErrorCode

from tests.unit.core.replication.stage import ID, P, Stage, batch, node


def test_an_empty_follower_fetches_from_zero_and_gives_credit() -> None:
    stage = Stage().follows()
    message = stage.said()
    assert message.positions == (FetchPosition(P, ID, 5, 0, -1, 0),)
    assert [credit.credit_bytes for credit in message.credits] == [8 << 20]
    assert message.queries == ()


def test_a_broker_connects_once_to_a_leader_and_disconnects_without_followers() -> None:
    stage = Stage()
    stage.command(node(2, 5, (1, 2)))
    stage.opened()
    assert stage.one(fx.ConnectToLeader) == fx.ConnectToLeader(2, "host2", 9192, 12)
    stage.feed(ev.LeaderConnected(2))
    stage.command(node(3, 6, (1, 3)))
    assert stage.said().stops == (StopFetch(P, 6),)
    assert stage.one(fx.DisconnectFromLeader).leader == 2
    assert stage.one(fx.ConnectToLeader).leader == 3
    kinds = [type(effect) for effect in stage.out]
    assert kinds.index(fx.SendToLeader) < kinds.index(fx.DisconnectFromLeader)


def test_chunks_are_appended_in_a_pipeline_and_each_is_reported_when_written() -> None:
    stage = Stage().follows()
    stage.chunk(0, batch(3, offset=0, epoch=5), high_watermark=0)
    append = stage.one(fx.AppendToLog)
    assert (append.base_offset, append.stamp) == (0, False)
    assert stage.one(fx.SaveEpochs).entries == ((5, 0),)
    stage.chunk(3, batch(2, offset=3, epoch=5), high_watermark=3)
    assert stage.got(fx.AppendToLog)
    assert not stage.got(fx.SendToLeader), "a report follows only when the append is done"
    stage.feed(ev.LogAppended(P, ID, 3))
    assert stage.said().reports == (Report(P, 5, 3, 0),)
    assert [credit.credit_bytes for credit in stage.said().credits] == [100]
    assert stage.one(fx.HighWatermarkAdvanced).high_watermark == 3
    stage.feed(ev.LogAppended(P, ID, 5))
    assert stage.said().reports == (Report(P, 5, 5, 0),)


def test_a_followers_high_watermark_is_the_lower_of_its_log_end_and_the_leaders_and_never_falls() -> None:
    stage = Stage().follows(end=4, epochs=[(5, 0)], high_watermark=3)
    stage.answered(5, 9)
    stage.chunk(4, high_watermark=9)
    assert stage.one(fx.HighWatermarkAdvanced).high_watermark == 4
    stage.chunk(4, high_watermark=2)
    assert stage.high_watermark() == 4


def test_the_answer_for_epoch_1_is_where_epoch_2_begins() -> None:
    leader = Stage(me=2).leads((2, 1), end=150, epochs=[(1, 20), (2, 80), (3, 120)], epoch=4)
    leader.from_follower(1, FollowerMessage(queries=(EpochQuery(P, ID, 4, 1),)))
    (end,) = leader.one(fx.SendToFollower).message.epoch_ends
    assert (end.leader_epoch, end.end_offset) == (1, 80)
    follower = Stage().follows(end=100, epochs=[(1, 20)])
    assert follower.said().queries == (EpochQuery(P, ID, 5, 1),)
    follower.answered(1, 80)
    assert follower.one(fx.TruncateLog).end_offset == 80
    follower.truncated(80)
    assert follower.said().positions[0].fetch_offset == 80


def test_no_data_is_lost_when_a_follower_with_an_old_high_watermark_restarts() -> None:
    follower = Stage().follows(end=2, epochs=[(0, 0)], high_watermark=1)
    assert follower.said().queries == (EpochQuery(P, ID, 5, 0),)
    follower.answered(0, 2)
    assert not follower.got(fx.TruncateLog)
    assert follower.said().positions == (FetchPosition(P, ID, 5, 2, 0, 0),)
    follower.command(node(1, 6, (1,)))
    assert follower.high_watermark() == 2


def test_logs_do_not_diverge_when_both_high_watermarks_are_equal() -> None:
    old_leader = Stage().follows(epoch=1, end=2, epochs=[(0, 0)], high_watermark=2)
    old_leader.answered(0, 1, current=1)
    assert old_leader.one(fx.TruncateLog).end_offset == 1
    old_leader.truncated(1)
    old_leader.chunk(1, batch(offset=1, epoch=1), epoch=1, high_watermark=2)
    assert old_leader.one(fx.SaveEpochs).entries == ((0, 0), (1, 1))


def test_kip_279_a_follower_asks_until_the_epochs_agree_and_each_round_removes_one() -> None:
    stage = Stage().follows(epoch=7, end=50, epochs=[(1, 0), (3, 10), (6, 30)])
    assert stage.said().queries[0].last_epoch == 6
    stage.answered(5, 40, current=7)
    assert stage.one(fx.TruncateLog).end_offset == 30
    stage.truncated(30)
    assert stage.said().queries[0].last_epoch == 3
    stage.answered(2, 20, current=7)
    assert stage.one(fx.TruncateLog).end_offset == 10
    stage.truncated(10)
    assert stage.said().queries[0].last_epoch == 1
    stage.answered(1, 15, current=7)
    assert stage.said().positions == (FetchPosition(P, ID, 7, 10, 1, 0),)


def test_an_epoch_led_without_a_record_is_dropped() -> None:
    stage = Stage().follows(end=10, epochs=[(1, 0), (4, 10)])
    assert stage.said().queries[0].last_epoch == 4
    stage.answered(1, 10)
    assert stage.one(fx.SaveEpochs).entries == ((1, 0),)
    assert stage.said().positions == (FetchPosition(P, ID, 5, 10, 1, 0),)


def test_a_truncation_below_the_high_watermark_in_one_lineage_fails_an_assertion() -> None:
    stage = Stage().follows(end=10, epochs=[(4, 0)], high_watermark=8)
    stage.answered(4, 10)
    stage.command(node(2, 6, (1, 2)))
    with pytest.raises(AssertionError, match="below the high watermark"):
        stage.answered(4, 5, current=6)


def test_after_an_unclean_election_such_a_truncation_is_observed() -> None:
    stage = Stage().follows(end=10, epochs=[(4, 0)], high_watermark=8)
    stage.answered(4, 10)
    stage.command(node(2, 6, (2,), lineage=1))
    stage.answered(4, 5, current=6)
    assert stage.one(fx.TruncateLog).end_offset == 5
    assert stage.one(fx.Observed).fields["below_high_watermark"] == 3


@pytest.mark.parametrize(
    "bad",
    [
        (5, (batch(offset=5, epoch=5),), None),
        (0, (batch(offset=0, epoch=6),), None),
        (0, (batch(offset=0, epoch=5), batch(offset=2, epoch=5)), None),
        (0, (), ErrorCode.CORRUPT_BATCH),
    ],
    ids=["gap", "epoch of the future", "hole", "bad bytes"],
)
def test_a_chunk_that_does_not_fit_is_fetched_again(bad: tuple[int, tuple[object, ...], ErrorCode | None]) -> None:
    stage = Stage().follows()
    offset, batches, error = bad
    stage.chunk(offset, *batches, error=error)
    assert not stage.got(fx.AppendToLog)
    assert stage.one(fx.Observed).kind == "chunk_refused"
    assert sum(credit.credit_bytes for credit in stage.said().credits) > 0
    stage.chunk(1, batch(offset=1, epoch=5))
    assert not stage.got(fx.AppendToLog), "the chunk after the bad one is ignored"
    stage.feed(ev.Tick(), after_ms=100)
    assert stage.said().positions == (FetchPosition(P, ID, 5, 0, -1, 0),)
    stage.chunk(0, batch(offset=0, epoch=5))
    assert stage.got(fx.AppendToLog)


def test_a_follower_below_the_leaders_log_start_starts_empty_there() -> None:
    stage = Stage().follows(end=5, epochs=[(3, 0)], high_watermark=5)
    stage.answered(3, 90)
    stage.from_leader(refusals=[Refusal(P, ErrorCode.OFFSET_OUT_OF_RANGE, "", 5, 70)])
    assert stage.one(fx.ResetLog).start_offset == 70
    stage.truncated(70, start=70)
    assert stage.said().positions == (FetchPosition(P, ID, 5, 70, -1, 0, log_start_offset=70),)
    stage.chunk(70, batch(10, offset=65, epoch=4), high_watermark=75)
    assert stage.one(fx.SaveEpochs).entries == ((-1, 70), (4, 70))
    stage.feed(ev.LogAppended(P, ID, 75))
    assert stage.high_watermark() == 75


def test_a_diverged_follower_reconciles_again_and_a_refused_one_retries() -> None:
    stage = Stage().follows(end=5, epochs=[(3, 0)])
    stage.answered(3, 5)
    stage.from_leader(refusals=[Refusal(P, ErrorCode.LOG_DIVERGED, "", 5, 0)])
    stage.feed(ev.Tick(), after_ms=100)
    assert stage.said().queries == (EpochQuery(P, ID, 5, 3),)
    stage.from_leader(refusals=[Refusal(P, ErrorCode.NOT_LEADER, "", -1, 0)])
    stage.feed(ev.Tick(), after_ms=100)
    assert stage.said().queries == (EpochQuery(P, ID, 5, 3),)


def test_after_a_broken_stream_a_follower_fetches_from_its_log_end_once_appends_are_done() -> None:
    stage = Stage().follows()
    stage.chunk(0, batch(3, offset=0, epoch=5))
    stage.feed(ev.LeaderDisconnected(2))
    stage.feed(ev.LeaderConnected(2))
    assert not stage.got(fx.SendToLeader)
    stage.feed(ev.LogAppended(P, ID, 3))
    message = stage.said()
    assert message.positions == (FetchPosition(P, ID, 5, 3, 5, 0),)
    assert [credit.credit_bytes for credit in message.credits] == [8 << 20]


def test_messages_of_an_older_epoch_change_nothing() -> None:
    stage = Stage().follows()
    stage.command(node(2, 6, (1, 2)))
    stage.chunk(0, batch(offset=0, epoch=5), epoch=5)
    assert not stage.got(fx.AppendToLog)
    stage.answered(5, 0, current=5)
    assert not stage.got(fx.SendToLeader)


def test_a_follower_sends_a_message_at_least_every_heartbeat_interval() -> None:
    stage = Stage().follows()
    said = 0
    for _ in range(20):
        stage.feed(ev.Tick(), after_ms=100)
        said += len(stage.got(fx.SendToLeader))
    assert said == 4


def test_a_follower_becomes_leader_only_after_its_appends_in_flight() -> None:
    stage = Stage().follows()
    stage.chunk(0, batch(3, offset=0, epoch=5))
    stage.command(node(1, 6, (1,)))
    assert not stage.got(fx.LeadershipChanged)
    stage.feed(ev.LogAppended(P, ID, 3))
    assert stage.one(fx.SaveEpochs).entries == ((5, 0), (6, 3))
    assert stage.high_watermark() == 3
