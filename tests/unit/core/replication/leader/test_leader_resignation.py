# SPDX-License-Identifier: Apache-2.0
"""A leader whose own disk is too slow resigns and evicts no follower (the last sentence of rule R7)."""

from __future__ import annotations

import itertools

from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev

from tests.unit.core.replication.stage import ID, P, Stage

LAG_MAX_MS = 10_000


def behind(stage: Stage) -> Stage:
    """Both followers have fetched a record that the leader's disk does not return."""
    stage.leads((1, 2, 3), min_isr=2)
    stage.fetches(2, 0)
    stage.fetches(3, 0)
    stage.write(acks=-1)
    return stage


def wait(stage: Stage, until_ms: int) -> list[tuple[int, fx.Effect]]:
    """Time passes with live followers; returns the ISR effects of the leader with their times."""
    began = stage.now
    done: list[tuple[int, fx.Effect]] = []
    while stage.now - began < until_ms:
        stage.reports(2, 0)
        stage.reports(3, 0)
        stage.feed(ev.Tick(), after_ms=100)
        done += [(stage.now - began, one) for one in stage.out if isinstance(one, fx.WriteIsr | fx.ResignLeadership)]
    return done


def test_a_leader_that_cannot_read_for_its_followers_resigns_and_evicts_none() -> None:
    stage = behind(Stage())
    told = wait(stage, 3 * LAG_MAX_MS)
    assert [effect for _, effect in told] == [fx.ResignLeadership(P, ID, 5)] * 3
    times_ms = [at_ms for at_ms, _ in told]
    assert LAG_MAX_MS / 2 <= times_ms[0] <= LAG_MAX_MS * 0.6, "before any follower has lagged for too long"
    assert all(later - earlier >= LAG_MAX_MS for earlier, later in itertools.pairwise(times_ms))


def test_a_leader_that_cannot_append_resigns() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    stage.produce(acks=-1)
    assert [effect for _, effect in wait(stage, LAG_MAX_MS)] == [fx.ResignLeadership(P, ID, 5)]


def test_once_the_disk_answers_again_lagging_followers_are_evicted() -> None:
    stage = behind(Stage())
    wait(stage, LAG_MAX_MS)
    stage.disk_answers()
    (at_ms, write), *_ = wait(stage, 2 * LAG_MAX_MS)
    assert isinstance(write, fx.WriteIsr), "the followers got the record and do not report it"
    assert write.state.isr_ids == (1,)
    assert at_ms <= LAG_MAX_MS


def test_a_leader_with_a_slow_disk_that_keeps_up_does_not_resign() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    for end in range(1, 6):
        stage.write(acks=-1)
        assert wait(stage, LAG_MAX_MS // 3) == []
        stage.disk_answers()
        stage.reports(2, end)


def test_a_leader_alone_in_sync_does_not_resign() -> None:
    stage = Stage().leads((1,))
    stage.produce(acks=-1)
    assert wait(stage, 2 * LAG_MAX_MS) == []
