# SPDX-License-Identifier: Apache-2.0
"""Replicas report their leaderAndISR, so that the controller can write a damaged node again (rule Z4)."""

from __future__ import annotations

from tidemark.core.messages import HeldState, ReplicaQuestion
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.model import NO_EPOCH, LeaderEpoch, ReplicaIdentity

from tests.unit.core.replication.leader.test_partition_leader import in_flight_shrink, late_follower_leaves
from tests.unit.core.replication.stage import ID, P, Stage, node


def held(stage: Stage, epoch: LeaderEpoch = NO_EPOCH, identity: ReplicaIdentity = ID) -> HeldState | None:
    return stage.core.queries.held([ReplicaQuestion(P, identity, epoch)]).get(P)


def known(stage: Stage) -> tuple[tuple[int, ...], int, bool]:
    found = held(stage)
    assert found is not None
    return found.command.state.isr_ids, found.command.partition_epoch, found.led


def test_a_follower_knows_its_last_command_and_its_log() -> None:
    stage = Stage().follows(2, epoch=5)
    found = held(stage)
    assert found is not None
    assert (found.command.state.leader, found.command.state.leader_epoch, found.led) == (2, 5, False)
    assert found.log is not None


def test_only_questions_in_no_epoch_about_this_incarnation_are_answered() -> None:
    stage = Stage().leads((1, 2, 3))
    assert held(stage, LeaderEpoch(5)) is None
    assert held(stage, identity=ReplicaIdentity("c" * 32, "d" * 32)) is None
    assert held(Stage()) is None


def test_a_leader_knows_the_isr_that_certainly_has_every_committed_record() -> None:
    stage = in_flight_shrink()
    assert known(stage) == ((1, 2), 1, True), "3 may have left"
    stage.feed(ev.IsrWritten(P, 2))
    assert known(stage) == ((1, 2), 2, True)
    stage.reports(3, 1)
    assert stage.one(fx.WriteIsr).state.isr_ids == (1, 2, 3)
    assert known(stage) == ((1, 2), 2, True), "3 may not have joined"


def test_a_leader_takes_a_later_write_of_the_controller_into_account() -> None:
    stage = Stage().leads((1, 3), min_isr=1)
    stage.fetches(3, 0)
    stage.write(acks=1)
    stage.fetches(2, 1, last_epoch=5)
    assert stage.got(fx.WriteIsr), "2 joins"
    stage.command(node(1, 5, (1,)), version=7)
    assert known(stage) == ((1,), 7, True)


def test_the_isr_outlives_the_leadership_until_a_later_epoch() -> None:
    stage = Stage().leads((1, 2, 3), min_isr=1)
    stage.fetches(2, 0)
    stage.fetches(3, 0)
    stage.write(acks=1)
    late_follower_leaves(stage, reporting=2)
    stage.feed(ev.IsrWriteFailed(P, unknown=False))
    stage.feed(ev.IsrRead(P, None))
    assert stage.one(fx.LeadershipChanged).leading is False
    assert stage.one(fx.ReportIsrChange).partition == P, "the controller is to look at the node"
    assert known(stage) == ((1, 2), 1, True)
    stage.command(node(2, 6, (2, 3)))
    assert known(stage)[2] is False


def test_an_expansion_that_zookeeper_refused_pauses_before_it_is_tried_again() -> None:
    """Otherwise the leader retries without pause while the follower's registration is deleted."""
    stage = Stage().leads((1, 3))
    stage.fetches(3, 0)
    stage.write(acks=1)
    stage.fetches(2, 1, last_epoch=5)
    write = stage.one(fx.WriteIsr)
    assert write.state.isr_ids == (1, 3, 2)
    stage.feed(ev.IsrWriteFailed(P, unknown=False))
    stage.isr_read(node(1, 5, (1, 3)), write.expected_version)
    assert not stage.got(fx.WriteIsr)
    for _ in range(4):
        stage.reports(2, 1)
        stage.feed(ev.Tick(), after_ms=100)
        assert not stage.got(fx.WriteIsr)
    stage.feed(ev.Tick(), after_ms=100)
    stage.reports(2, 1)
    assert stage.one(fx.WriteIsr).state.isr_ids == (1, 3, 2)
