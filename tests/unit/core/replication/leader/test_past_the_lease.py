# SPDX-License-Identifier: Apache-2.0
"""Leaderships that may continue without ZooKeeper, by the confirmations of their followers (rule F2)."""

from __future__ import annotations

from tidemark.core.messages import Credit, FetchPosition, FollowerMessage, LeaderMessage, StopFetch
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.model import TopicPartition

from tests.unit.core.replication.stage import ID, P, Stage


def echoed(stage: Stage, follower: int, echo_ms: int, *, epoch: int = 5) -> None:
    """The follower fetches, or continues fetching, and echoes the leader's clock."""
    position = FetchPosition(P, ID, epoch, 0, -1, 0)
    stage.from_follower(follower, FollowerMessage((), (position,), credits=(Credit(0, 100),), echo_ms=echo_ms))


def held_since(stage: Stage, since_ms: int) -> bool:
    return stage.core.queries.holds_epoch_since(P, since_ms)


def test_a_leadership_holds_since_the_oldest_confirmation_of_an_in_sync_follower() -> None:
    stage = Stage().leads((1, 2, 3), min_isr=2)
    stage.now += 500
    echoed(stage, 2, 1_300)
    assert not held_since(stage, 0), "follower 3 has sent nothing in this epoch"
    echoed(stage, 3, 1_200)
    assert held_since(stage, 1_199)
    assert not held_since(stage, 1_200)
    stage.from_follower(3, FollowerMessage(echo_ms=1_400))
    assert held_since(stage, 1_299)
    assert not held_since(stage, 1_300)


def test_a_message_that_waited_while_the_leader_was_stopped_confirms_nothing() -> None:
    stage = Stage().leads((1, 2), min_isr=2)
    echoed(stage, 2, 1_000)
    stage.now += 60_000
    stage.from_follower(2, FollowerMessage(echo_ms=1_000))
    assert held_since(stage, 999)
    assert not held_since(stage, 1_000)


def test_an_echo_from_the_future_counts_as_now() -> None:
    stage = Stage().leads((1, 2), min_isr=2)
    echoed(stage, 2, 1 << 60)
    assert held_since(stage, stage.now - 1)
    assert not held_since(stage, stage.now)


def test_a_leader_alone_in_sync_stops_at_the_lease() -> None:
    stage = Stage().leads((1,), min_isr=1)
    echoed(stage, 2, 1_000)
    assert not held_since(stage, 0)


def test_a_leader_with_fewer_than_min_isr_stops_at_the_lease() -> None:
    stage = Stage().leads((1, 2), min_isr=3)
    echoed(stage, 2, 1_000)
    assert not held_since(stage, 0)


def test_a_follower_that_left_or_whose_stream_broke_confirms_nothing() -> None:
    for gone in (
        lambda stage: stage.feed(ev.FollowerDisconnected(2, 12)),
        lambda stage: stage.from_follower(2, FollowerMessage(stops=(StopFetch(P, 5),), echo_ms=1_000)),
    ):
        stage = Stage().leads((1, 2), min_isr=2)
        echoed(stage, 2, 1_000)
        assert held_since(stage, 0)
        gone(stage)
        assert not held_since(stage, 0)


def test_a_member_leaving_the_isr_must_still_confirm_the_epoch() -> None:
    stage = Stage().leads((1, 2, 3), min_isr=2)
    echoed(stage, 2, 1_000)
    while not stage.got(fx.WriteIsr):
        stage.from_follower(2, FollowerMessage(echo_ms=stage.now))
        stage.feed(ev.Tick(), after_ms=100)
    assert stage.one(fx.WriteIsr).state.isr_ids == (1, 2)
    assert not held_since(stage, 0), "follower 3 may still be in the ISR, and be elected"
    stage.feed(ev.IsrWritten(P, 2))
    assert held_since(stage, 1_000)


def test_an_expired_session_ends_the_leadership() -> None:
    stage = Stage().leads((1, 2), min_isr=2)
    echoed(stage, 2, 1_000)
    stage.feed(ev.SessionExpired())
    assert not held_since(stage, 0)
    assert not stage.core.queries.holds_epoch_since(TopicPartition("other", 0), 0)


def test_a_follower_echoes_the_last_clock_of_its_leader_and_none_on_a_new_stream() -> None:
    stage = Stage(me=2).follows(1)
    assert stage.got(fx.SendToLeader) == [] or stage.one(fx.SendToLeader).message.echo_ms == 0
    stage.feed(ev.LeaderMessageArrived(1, LeaderMessage(clock_ms=777)))
    stage.feed(ev.Tick(), after_ms=600)
    assert stage.one(fx.SendToLeader).message.echo_ms == 777
    stage.feed(ev.LeaderDisconnected(1))
    stage.feed(ev.LeaderConnected(1))
    assert stage.one(fx.SendToLeader).message.echo_ms == 0


def test_a_leader_sends_its_clock_with_every_message() -> None:
    stage = Stage().leads((1, 2), min_isr=2)
    echoed(stage, 2, 0)
    stage.feed(ev.Tick(), after_ms=600)
    assert stage.one(fx.SendToFollower).message.clock_ms == stage.now
