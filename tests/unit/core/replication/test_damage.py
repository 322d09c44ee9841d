# SPDX-License-Identifier: Apache-2.0
"""The end of a replica's damage, and its order with reports to the leader (rule T5)."""

from __future__ import annotations

from tidemark.core.messages import EpochEnd, EpochQuery, FollowerMessage, ReplicaDescription, ReplicaQuestion, Report
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.model import ErrorCode

from tests.unit.core.replication.stage import ID, P, Stage, batch, node

OVER = fx.ClearDamage(P, ID)


def damaged_follower(*, end: int, high_watermark: int, lineage: int = 0, epoch: int = 3) -> Stage:
    """A damaged follower of broker 2 in leader epoch 5, with records of one epoch at most."""
    stage = Stage()
    stage.command(node(2, 5, (2,), lineage=lineage))
    stage.opened(end, *([(epoch, 0)] if end else []), high_watermark=high_watermark, damaged="a hole")
    stage.feed(ev.LeaderConnected(2))
    return stage


def held(stage: Stage) -> ReplicaDescription:
    return stage.core.queries.describe(ReplicaQuestion(P, ID, 5))


def leads_when_asked(stage: Stage) -> bool:
    stage.command(node(1, 6, (2, 1)))
    codes = stage.refusals()
    assert codes in ([], [ErrorCode.REPLICA_DAMAGED])
    return not codes


def test_a_damaged_follower_reports_the_damage_once_and_follows() -> None:
    stage = Stage()
    stage.command(node(2, 5, (2,)))
    stage.opened(60, (3, 0), high_watermark=60, damaged="a hole")
    assert stage.one(fx.ReportLogFailed) == fx.ReportLogFailed(P, ID, 5, damaged=True)
    assert stage.one(fx.ConnectToLeader).leader == 2
    stage.command(node(3, 6, (3,)))
    assert not stage.got(fx.ReportLogFailed)


def test_a_cut_tail_is_reported_and_keeps_the_replica_from_leading() -> None:
    stage = Stage()
    stage.command(node(2, 5, (2,)))
    stage.opened(60, (3, 0), high_watermark=60, damaged="a torn tail", cut=True)
    assert stage.one(fx.ReportLogFailed) == fx.ReportLogFailed(P, ID, 5, damaged=True, cut=True)
    stage.command(node(-1, 5, ()))
    assert not leads_when_asked(stage)
    [reply] = stage.got(fx.ReplyToControl)
    assert [error.metadata["cut"] for _, error in reply.refused] == ["true"]


def test_a_refetched_log_counts_as_whole_again_after_a_cut_tail() -> None:
    stage = Stage()
    stage.command(node(2, 5, (2,)))
    stage.opened(60, (3, 0), high_watermark=60, damaged="a torn tail", cut=True)
    stage.feed(ev.LeaderConnected(2))
    stage.answered(3, 60, in_sync=60)
    assert stage.one(fx.ClearDamage) == OVER
    assert leads_when_asked(stage)


def test_the_in_sync_offset_is_the_greater_of_high_watermark_and_epoch_start() -> None:
    leader = Stage(me=2).leads((2, 3), end=60, epochs=[(3, 0)], high_watermark=40)
    asks = FollowerMessage(queries=(EpochQuery(P, ID, 5, 3),))
    leader.from_follower(1, asks)
    assert leader.one(fx.SendToFollower).message.epoch_ends == ((P, 5, 3, 60, 60, 0),)
    leader.write(batch(5))
    leader.fetches(3, 62, last_epoch=5)
    leader.from_follower(1, asks)
    assert leader.one(fx.SendToFollower).message.epoch_ends == ((P, 5, 3, 60, 62, 0),)


def test_on_an_idle_topic_a_complete_replica_ends_its_damage_before_it_fetches() -> None:
    stage = damaged_follower(end=60, high_watermark=60)
    stage.answered(3, 60, in_sync=60)
    assert stage.said().positions[0].fetch_offset == 60
    order = [effect for effect in stage.out if effect == OVER or isinstance(effect, fx.SendToLeader)]
    assert order[0] == OVER
    assert [one.kind for one in stage.got(fx.Observed)] == ["replica_healed"]
    assert leads_when_asked(stage)


def test_an_append_that_completes_the_log_ends_the_damage_before_the_report() -> None:
    stage = damaged_follower(end=5, high_watermark=5)
    stage.answered(3, 10, in_sync=10)
    stage.chunk(5, batch(2, offset=5, epoch=3), high_watermark=7)
    stage.appended(7)
    assert not stage.got(fx.ClearDamage), "three committed records are missing"
    assert held(stage).damaged
    stage.chunk(7, batch(3, offset=7, epoch=3), high_watermark=7)
    stage.appended(10)
    order = [effect for effect in stage.out if effect == OVER or isinstance(effect, fx.SendToLeader)]
    assert order[0] == OVER
    assert stage.said().reports == (Report(P, 5, 10, 5),)
    assert not held(stage).damaged
    assert leads_when_asked(stage)


def test_the_high_watermark_of_a_leader_that_does_not_know_all_yet_proves_nothing() -> None:
    stage = damaged_follower(end=50, high_watermark=30)
    stage.answered(3, 100, in_sync=100)
    stage.chunk(50, high_watermark=40)
    assert held(stage).damaged, "records 50 to 99 are missing, and were in the leader's log at its epoch start"
    assert not leads_when_asked(stage)


def test_without_an_in_sync_offset_of_the_leader_no_damage_ends() -> None:
    stage = damaged_follower(end=50, high_watermark=30)
    stage.answered(3, 50)
    stage.chunk(50, high_watermark=50)
    assert held(stage).damaged


def test_in_another_lineage_records_committed_in_the_last_one_are_not_missing() -> None:
    stage = damaged_follower(end=60, high_watermark=100, lineage=1)
    assert held(stage) == ReplicaDescription(3, 60, 100, damaged=True, log_start_offset=0)
    stage.answered(3, 60, in_sync=60)
    assert stage.one(fx.ClearDamage) == OVER
    assert held(stage) == ReplicaDescription(3, 60, 60, damaged=False, log_start_offset=0)


def test_a_damaged_log_without_records_queries_its_leader_and_is_not_truncated() -> None:
    stage = damaged_follower(end=0, high_watermark=9)
    assert stage.said().queries == (EpochQuery(P, ID, 5, -1),)
    stage.answered(-1, 0, in_sync=2)
    assert stage.said().positions[0].fetch_offset == 0
    assert not stage.got(fx.ClearDamage)
    stage.chunk(0, batch(2, offset=0, epoch=5), high_watermark=2)
    stage.appended(2)
    assert stage.one(fx.ClearDamage) == OVER


def test_a_lineage_that_begins_with_a_damaged_log_ends_its_damage_for_every_start_after_it() -> None:
    stage = Stage()
    stage.command(node(1, 5, (1,)))
    stage.opened(60, (3, 0), high_watermark=100, damaged="it ends at 60")
    ((_, error),) = stage.one(fx.ReplyToControl).refused
    assert error.code is ErrorCode.REPLICA_DAMAGED
    assert error.metadata == {"lineage": "0", "last_epoch": "3", "log_end_offset": "60", "high_watermark": "100"}
    assert not stage.got(fx.ClearDamage)
    stage.command(node(1, 6, (1,), lineage=1))
    assert stage.one(fx.ClearDamage) == OVER
    stage.command(node(1, 7, (1,), lineage=1))
    assert not stage.got(fx.ClearDamage), "the damage ends once"


def test_a_replica_that_rejoined_the_isr_is_elected_when_its_leader_restarts() -> None:
    """Two replicas, min_isr 1: the other replica led a new lineage without a record, and restarts."""
    leader = Stage(me=2)
    leader.command(node(2, 5, (2,), lineage=1), assigned=(1, 2))
    leader.opened(60, (3, 0), high_watermark=60)
    follower = damaged_follower(end=60, high_watermark=60, lineage=1)
    leader.from_follower(1, follower.said())
    (effect,) = leader.got(fx.SendToFollower)
    follower.feed(ev.LeaderMessageArrived(2, effect.message))
    leader.from_follower(1, follower.said())
    assert leader.one(fx.WriteIsr).state.isr_ids == (2, 1)
    follower.command(node(1, 6, (1,), lineage=1))
    assert follower.refusals() == []


def test_a_replica_that_has_lost_its_first_records_stays_damaged_however_far_it_fetches() -> None:
    """The log start is not proved; as a leader this replica would make all others delete the records below."""
    stage = Stage()
    stage.command(node(2, 5, (2,)))
    stage.opened(200, (3, 100), start=100, damaged="no checkpoint proves that the log starts at 100")
    stage.feed(ev.LeaderConnected(2))
    stage.from_leader(ends=[EpochEnd(P, 5, 3, 200, 200, 0)])
    assert not stage.got(fx.ClearDamage)
    assert stage.one(fx.ResetLog).start_offset == 0
    stage.truncated(0)
    assert [one.fetch_offset for one in stage.said().positions] == [0]


def test_a_damaged_replica_with_the_leaders_log_start_keeps_its_records() -> None:
    stage = Stage()
    stage.command(node(2, 5, (2,)))
    stage.opened(200, (3, 100), start=100, damaged="lost from 200 on")
    stage.feed(ev.LeaderConnected(2))
    stage.from_leader(ends=[EpochEnd(P, 5, 3, 210, 210, 100)])
    assert not stage.got(fx.ResetLog)
    assert [one.fetch_offset for one in stage.said().positions] == [200]
