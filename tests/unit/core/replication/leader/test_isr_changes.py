# SPDX-License-Identifier: Apache-2.0
"""One ISR change at a time, decided by the node; an answer belongs to its leadership (rules R4, R8, R9)."""

from __future__ import annotations

import pytest
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.model import ErrorCode, LeaderAndIsr

from tests.unit.core.replication.leader.test_partition_leader import in_flight_shrink, late_follower_leaves
from tests.unit.core.replication.stage import P, Stage, node


def test_no_change_is_proposed_while_another_is_in_flight() -> None:
    stage = Stage().leads((1, 3))
    stage.fetches(3, 0)
    stage.write(acks=1)
    assert late_follower_leaves(stage, reporting=2).state.isr_ids == (1,)
    stage.fetches(2, 1, last_epoch=5)
    assert not stage.got(fx.WriteIsr), "2 has everything, and waits for the answer about 3"
    stage.feed(ev.IsrWritten(P, 2))
    write = stage.one(fx.WriteIsr)
    assert (write.state.isr_ids, write.expected_version) == ((1, 2), 2)


def test_a_change_with_a_lost_answer_is_reported_to_the_controller_if_the_node_has_it() -> None:
    stage = in_flight_shrink()
    stage.feed(ev.IsrWriteFailed(P, unknown=True))
    stage.isr_read(node(1, 5, (1, 2)), 2)
    assert stage.one(fx.ReportIsrChange).partition == P
    assert not stage.got(fx.WriteIsr)


def test_a_lost_change_is_proposed_again_and_not_reported() -> None:
    stage = in_flight_shrink()
    stage.feed(ev.IsrWriteFailed(P, unknown=True))
    stage.isr_read(node(1, 5, (1, 2, 3)), 1)
    assert not stage.got(fx.ReportIsrChange)
    assert not stage.got(fx.LeadershipChanged)
    write = late_follower_leaves(stage, reporting=2)
    assert (write.state.isr_ids, write.expected_version) == ((1, 2), 1)


@pytest.mark.parametrize(
    ("state", "version"),
    [(node(2, 5, (1, 2)), 7), (node(-1, 5, (1, 2)), 7), (node(1, 4, (1, 2)), 7), (node(1, 5, (1, 2, 3)), 0)],
    ids=["another leader", "no leader", "an older epoch", "an older version"],
)
def test_a_node_that_this_leader_cannot_have_left_so_ends_the_leadership(state: LeaderAndIsr, version: int) -> None:
    stage = in_flight_shrink()
    stage.feed(ev.IsrWriteFailed(P, unknown=True))
    stage.isr_read(state, version)
    assert stage.replies() == [(1, 0, ErrorCode.NOT_LEADER)]
    assert stage.one(fx.LeadershipChanged).leading is False


def test_a_later_write_of_the_controller_stands_though_the_answer_to_the_change_arrives_later() -> None:
    stage = in_flight_shrink()
    stage.command(node(1, 5, (1, 2), min_isr=2), version=3)
    (view,) = stage.core.queries.replicas()
    assert (view.isr, view.min_isr) == ((1, 2, 3), 1)
    stage.feed(ev.IsrWritten(P, 2))
    (view,) = stage.core.queries.replicas()
    assert (view.isr, view.min_isr) == ((1, 2), 2)
    stage.reports(3, 1)
    assert stage.one(fx.WriteIsr).expected_version == 3


def test_a_new_leadership_writes_only_after_the_answer_to_the_earlier_one() -> None:
    stage = in_flight_shrink()
    stage.command(node(1, 6, (1, 2)))
    for follower in (2, 3):
        stage.fetches(follower, 1, epoch=6, last_epoch=5)
    assert not stage.got(fx.WriteIsr), "3 may join, but the answer that comes next is for another question"
    stage.feed(ev.IsrWritten(P, 9))
    write = stage.one(fx.WriteIsr)
    assert (write.state.isr_ids, write.state.leader_epoch, write.expected_version) == ((1, 2, 3), 6, 2)


def test_a_node_read_for_an_earlier_leadership_does_not_count_for_the_next() -> None:
    stage = in_flight_shrink()
    stage.feed(ev.IsrWriteFailed(P, unknown=True))
    assert stage.got(fx.ReadIsr)
    stage.command(node(1, 6, (1, 2)))
    for follower in (2, 3):
        stage.fetches(follower, 1, epoch=6, last_epoch=5)
    assert not stage.got(fx.WriteIsr)
    stage.isr_read(node(1, 5, (1, 2, 3)), 1)
    assert not stage.got(fx.LeadershipChanged)
    assert stage.one(fx.WriteIsr).expected_version == 2


@pytest.mark.parametrize(("min_isr", "leaves"), [(1, True), (2, True), (3, False)])
def test_an_unassigned_member_leaves_the_isr_at_once_if_min_isr_members_stay(min_isr: int, leaves: bool) -> None:
    stage = Stage().leads((1, 2, 3), min_isr=min_isr)
    stage.command(node(1, 5, (1, 2, 3), min_isr=min_isr), version=1, assigned=(1, 2, 4))
    assert [write.state.isr_ids for write in stage.got(fx.WriteIsr)] == ([(1, 2)] if leaves else [])


def test_an_unassigned_replica_may_fetch_while_the_high_watermark_waits_for_it() -> None:
    stage = Stage().leads((1, 2, 3), min_isr=3)
    stage.command(node(1, 5, (1, 2, 3), min_isr=3), version=1, assigned=(1, 2, 4))
    stage.fetches(3, 0)
    assert stage.refused_followers() == []
    stage.fetches(5, 0)
    assert stage.refused_followers() == [ErrorCode.NOT_A_REPLICA]
