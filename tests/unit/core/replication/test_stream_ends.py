# SPDX-License-Identifier: Apache-2.0
"""The leader's end of a stream: credit, abandoned reads, heartbeats, and many partitions (rules R5, R6)."""

from __future__ import annotations

import itertools

import pytest
from tidemark.core.messages import (
    Chunk,
    Credit,
    FetchPosition,
    FollowerMessage,
    LeaderAndIsrCommand,
    PartitionCommand,
    Refusal,
    Report,
)
from tidemark.core.producer_state import ProducerStates
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.model import BrokerRegistration, ErrorCode, TidemarkError, TopicPartition

from tests.unit.core.replication.stage import ID, P, Stage, batch, node


def chunks(stage: Stage) -> list[Chunk]:
    return [chunk for effect in stage.got(fx.SendToFollower) for chunk in effect.message.chunks]


def read_done(stage: Stage, offset: int, records: int, *, epoch: int = 5) -> None:
    event = ev.FollowerReadDone(2, P, epoch, offset, (batch(records, offset=offset, epoch=epoch),))
    stage.feed(event)


def test_credit_adds_up_and_bytes_sent_beyond_it_are_a_debt() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0, credit=50)
    stage.write(acks=1)
    read_done(stage, 0, 1)
    stage.write(acks=1)
    assert not stage.got(fx.ReadForFollower), "a batch of 100 bytes used a credit of 50"
    stage.from_follower(2, FollowerMessage(credits=(Credit(0, 40),)))
    assert not stage.got(fx.ReadForFollower)
    stage.from_follower(2, FollowerMessage(credits=(Credit(1, 1000),)))
    assert not stage.got(fx.ReadForFollower), "the credit is for another log directory"
    stage.from_follower(2, FollowerMessage(credits=(Credit(0, 40),)))
    assert stage.one(fx.ReadForFollower).offset == 1
    stage.from_follower(2, FollowerMessage(credits=(Credit(0, 1000),)))
    assert not stage.got(fx.ReadForFollower), "one read at a time"


def test_a_read_for_an_abandoned_position_is_not_sent() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    stage.write(batch(5), acks=1)
    stage.fetches(2, 3, last_epoch=5)
    assert stage.one(fx.ReadForFollower).offset == 3
    read_done(stage, 0, 3)
    assert chunks(stage) == []
    read_done(stage, 3, 2)
    assert [chunk.continues_from for chunk in chunks(stage)] == [3]
    read_done(stage, 5, 1)
    assert chunks(stage) == [], "no fetch position is at this offset"


def test_a_read_of_an_earlier_leadership_is_not_sent_in_the_next() -> None:
    stage = Stage().leads((1, 2))
    stage.write(batch(5), acks=1)
    stage.fetches(2, 0)
    stage.command(node(1, 6, (1, 2)))
    stage.fetches(2, 0, epoch=6)
    assert stage.one(fx.ReadForFollower).leader_epoch == 6
    read_done(stage, 0, 5, epoch=5)
    assert chunks(stage) == []


def test_a_failed_read_is_refused_once_and_sending_stops_until_the_next_fetch() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    stage.write(acks=1)
    error = TidemarkError(ErrorCode.CORRUPT_BATCH, "rotten")
    stage.feed(ev.FollowerReadDone(2, P, 5, 0, (), error))
    (sent,) = stage.got(fx.SendToFollower)
    assert sent.message.refusals == (Refusal(P, ErrorCode.CORRUPT_BATCH, "rotten", 5, 0),)
    stage.write(acks=1)
    assert not stage.got(fx.ReadForFollower)
    stage.fetches(2, 0)
    stage.feed(ev.FollowerReadDone(2, P, 5, 0, ()))
    assert stage.refused_followers() == [ErrorCode.STORAGE_ERROR], "an empty read is an error too"


def test_a_leader_sends_one_message_per_heartbeat_interval_when_idle() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    said: list[int] = []
    for _ in range(20):
        stage.feed(ev.Tick(), after_ms=100)
        said += [stage.now] * len(stage.got(fx.SendToFollower))
    assert len(said) == 4
    assert {later - earlier for earlier, later in itertools.pairwise(said)} == {500}


# -- many partitions -------------------------------------------------------------------------------------------

MANY = tuple(TopicPartition("many", index) for index in range(3))


def leading_many() -> Stage:
    """A leader of three partitions that one follower fetches on one stream; each has a high watermark to send."""
    stage = Stage()
    state = node(1, 5, (1, 2))
    partitions = tuple(PartitionCommand(one, ID, (1, 2), state, 1, (), (), 0) for one in MANY)
    brokers = tuple(BrokerRegistration(one, f"host{one}", 9192, broker_epoch=10 + one) for one in (1, 2))
    stage.feed(ev.LeaderAndIsrArrived(1, LeaderAndIsrCommand(9, 1, 11, partitions, brokers)))
    for one in MANY:
        stage.feed(ev.LogOpened(one, ID, ev.RecoveredLog(0, 1, 1, 0, (), ProducerStates())))
    positions = tuple(FetchPosition(one, ID, 5, 1, -1, 0) for one in MANY)
    stage.from_follower(2, FollowerMessage(positions=positions))
    return stage


@pytest.mark.parametrize(("bytes_max", "messages"), [(4 << 20, 1), (0, 3)])
def test_updates_of_all_partitions_share_one_message_unless_its_size_forbids(
    bytes_max: int, messages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.core.replication.leader.follower_session.MESSAGE_BYTES_MAX", bytes_max)
    monkeypatch.setattr(Chunk, "size_bytes", property(lambda _: 1))
    stage = leading_many()
    stage.feed(ev.Tick(), after_ms=100)
    assert [(chunk.partition, chunk.high_watermark) for chunk in chunks(stage)] == [(one, 1) for one in MANY]
    assert len(stage.got(fx.SendToFollower)) == messages
    stage.feed(ev.Tick(), after_ms=100)
    assert chunks(stage) == [], "each high watermark is sent once"


# -- the other end ---------------------------------------------------------------------------------------------


def fetching(stage: Stage) -> set[int]:
    """Followers whose streams carry the partition."""
    (view,) = stage.core.queries.replicas()
    starts = stage.core.queries.log_starts(P, view.leader_epoch)
    assert starts is not None
    return set(starts[1])


def turned_away(stage: Stage) -> list[ErrorCode]:
    return [effect.error.code for effect in stage.got(fx.DisconnectFollower)]


def test_a_broker_without_a_session_refuses_followers_until_it_has_registered() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    stage.feed(ev.SessionExpired())
    assert turned_away(stage) == [ErrorCode.NOT_LEADER]
    stage.from_follower(2, FollowerMessage())
    assert turned_away(stage) == [ErrorCode.NOT_LEADER]
    stage.feed(ev.BrokerRegistered(21))
    stage.from_follower(2, FollowerMessage())
    assert turned_away(stage) == []


def test_reports_of_an_earlier_registration_do_not_count_for_the_next() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    stage.write()
    stage.from_follower(2, FollowerMessage(), broker_epoch=20)
    assert fetching(stage) == set()
    stage.from_follower(2, FollowerMessage(reports=(Report(P, 5, 1, 1),)), broker_epoch=20)
    assert stage.high_watermark() == 0, "the follower has not fetched since"
    stage.from_follower(2, FollowerMessage(reports=(Report(P, 5, 1, 1),)), broker_epoch=12)
    assert turned_away(stage) == [ErrorCode.STALE_BROKER_EPOCH]
    position = FetchPosition(P, ID, 5, 1, 5, 0)
    stage.from_follower(2, FollowerMessage(positions=(position,)), broker_epoch=20)
    assert stage.high_watermark() == 1
    stage.feed(ev.FollowerDisconnected(2, 12))
    assert fetching(stage) == {2}, "the stream of the earlier registration ended"
    stage.feed(ev.FollowerDisconnected(2, 20))
    assert fetching(stage) == set()


def test_the_stream_of_an_earlier_registration_ends_with_all_its_partitions() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    anew = BrokerRegistration(2, "host2", 9192, broker_epoch=20)
    stage.feed(ev.LeaderAndIsrArrived(1, LeaderAndIsrCommand(9, 1, 11, (), (anew,))))
    stage.write()
    stage.reports(2, 1)
    assert turned_away(stage) == [ErrorCode.STALE_BROKER_EPOCH]
    assert fetching(stage) == set()
    assert stage.high_watermark() == 0


def test_a_report_of_another_leader_epoch_moves_nothing() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    stage.write()
    for epoch in (4, 6):
        stage.reports(2, 1, epoch=epoch)
        assert stage.high_watermark() == 0
    stage.reports(2, 9)
    assert stage.high_watermark() == 0, "a report beyond the leader's log is ignored"
    stage.reports(2, 1)
    assert stage.high_watermark() == 1


def test_a_stop_without_a_newer_epoch_fences_no_leader_and_drops_an_early_request() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    stage.stops(2, 5)
    assert not stage.got(fx.LeadershipChanged)
    assert fetching(stage) == set()
    stage.fetches(2, 0, epoch=6)
    assert stage.refused_followers() == []
    stage.stops(2, 7)
    stage.command(node(1, 6, (1, 2)))
    assert fetching(stage) == set()


def test_an_early_follower_is_served_once_the_new_leader_is_ready() -> None:
    stage = Stage().leads((1, 2))
    stage.produce(acks=1)
    stage.command(node(1, 6, (1, 2)))
    stage.fetches(2, 0, epoch=6)
    assert stage.refused_followers() == []
    stage.appended(1)
    assert fetching(stage) == {2}
    assert stage.one(fx.ReadForFollower).leader_epoch == 6


@pytest.mark.parametrize(
    ("offset", "last_epoch", "code"),
    [
        (3, -1, None),
        (3, 4, None),
        (3, 3, ErrorCode.OFFSET_OUT_OF_RANGE),
        (2, -1, ErrorCode.OFFSET_OUT_OF_RANGE),
        (10, 4, None),
        (10, 3, ErrorCode.LOG_DIVERGED),
        (11, -1, ErrorCode.LOG_DIVERGED),
        (11, 4, ErrorCode.LOG_DIVERGED),
    ],
)
def test_only_a_position_that_continues_the_leaders_log_is_served(
    offset: int, last_epoch: int, code: ErrorCode | None
) -> None:
    stage = Stage()
    stage.command(node(1, 5, (1, 2)))
    stage.opened(10, (4, 3), start=3, high_watermark=10)
    stage.fetches(2, offset, last_epoch=last_epoch)
    assert stage.refused_followers() == ([] if code is None else [code])
    assert fetching(stage) == ({2} if code is None else set())
