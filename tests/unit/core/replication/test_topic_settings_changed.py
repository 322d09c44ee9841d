# SPDX-License-Identifier: Apache-2.0
"""Topic settings that change within a leader epoch: committed records stay committed, and no follower is evicted
(rules R3, R7, L1)."""

from __future__ import annotations

from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev

from tests.unit.core.replication.stage import P, Stage, batch, node
from tests.unit.core.replication.test_group_commit import GROUP_COMMIT, flushed, reports

LAG_MAX_MS = 10_000


def policy_becomes(stage: Stage, configs: dict[str, str], leader: int = 1) -> None:
    """The controller sends the same state again, with other settings."""
    stage.topic_configs = configs
    stage.command(node(leader, 5, (1, 2)), version=stage.version)


def leading() -> Stage:
    """A leader with one record committed before flushes counted."""
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    stage.write()
    stage.disk_answers()
    reports(stage, 2, 1, flushed=0)
    assert stage.high_watermark() == 1
    return stage


def test_after_the_change_acknowledgements_wait_for_every_disk_and_committed_records_stay_committed() -> None:
    stage = leading()
    policy_becomes(stage, GROUP_COMMIT)
    assert stage.high_watermark() == 1
    request = stage.write()
    reports(stage, 2, 2, flushed=0)
    assert (stage.high_watermark(), stage.replies()) == (1, [])
    flushed(stage, 2)
    assert stage.replies() == []
    reports(stage, 2, 2, flushed=2)
    assert stage.replies() == [(request, 1, None)]


def test_a_record_waiting_for_a_flush_is_acknowledged_when_flushes_count_no_more() -> None:
    stage = leading()
    policy_becomes(stage, GROUP_COMMIT)
    request = stage.write()
    reports(stage, 2, 2, flushed=0)
    policy_becomes(stage, {})
    assert stage.replies() == [(request, 1, None)]
    assert stage.high_watermark() == 2


def test_flushes_not_required_before_the_change_evict_no_replica() -> None:
    stage = leading()
    for _ in range(30):
        stage.feed(ev.Tick(), after_ms=500)
        reports(stage, 2, 1, flushed=0)
    policy_becomes(stage, GROUP_COMMIT)
    stage.write()
    stage.disk_answers()
    flushed(stage, 2)
    reports(stage, 2, 2, flushed=0)
    for _ in range(LAG_MAX_MS // 500):
        stage.feed(ev.Tick(), after_ms=500)
        assert not stage.got(fx.WriteIsr) + stage.got(fx.ResignLeadership)
        reports(stage, 2, 2, flushed=0)
    stage.feed(ev.Tick(), after_ms=500)
    assert stage.one(fx.WriteIsr).state.isr_ids == (1,), "a flush that hangs after the change evicts"


def test_a_follower_keeps_fetching_and_reports_its_flushes_after_the_change() -> None:
    follower = Stage()
    follower.follows(2)
    follower.chunk(0, batch(3, epoch=5))
    follower.appended(3)
    policy_becomes(follower, GROUP_COMMIT, leader=2)
    assert follower.out == [fx.ReplyToControl(1, None, ())]
    flushed(follower, 3)
    (report,) = follower.said().reports
    assert (report.partition, report.log_end_offset, report.flushed_offset) == (P, 3, 3)


def test_a_follower_accepts_holes_once_its_topic_is_compacted() -> None:
    follower = Stage()
    follower.follows(2)
    follower.chunk(0, batch(3, epoch=5))
    follower.appended(3)
    policy_becomes(follower, {"cleanup.policy": "compact"}, leader=2)
    follower.chunk(3, batch(1, offset=9, epoch=5))
    assert follower.one(fx.AppendToLog).batches[0].envelope.base_offset == 9
