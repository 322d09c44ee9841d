# SPDX-License-Identifier: Apache-2.0
"""An append to a full disk leaves no record, and the replica continues once there is space (rules R1, R7)."""

from __future__ import annotations

from tidemark.core.producer_state import ProducerStates
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.model import ErrorCode, TidemarkError

from tests.unit.core.replication.stage import ID, P, Stage, batch, entries, node

FULL = TidemarkError(ErrorCode.DISK_FULL, "no space")


def full(stage: Stage, end: int) -> list[fx.Effect]:
    return stage.feed(ev.LogFull(P, ID, end, ProducerStates(), FULL))


def test_a_leader_with_a_full_disk_refuses_appends_in_flight_and_new_ones_until_the_next_try() -> None:
    stage = Stage().leads(isr=(1,))
    first = stage.produce(batch(2), acks=-1)
    second = stage.produce(acks=1)
    third = stage.produce(acks=0)
    full(stage, 0)
    assert sorted(stage.replies()) == [(first, -1, ErrorCode.DISK_FULL), (second, -1, ErrorCode.DISK_FULL)]
    assert third
    assert stage.one(fx.ResumeLog) == fx.ResumeLog(P, ID)
    assert [one.kind for one in stage.got(fx.Observed)] == ["disk_full"]
    refused = stage.produce()
    assert stage.replies() == [(refused, -1, ErrorCode.DISK_FULL)]
    assert not stage.got(fx.AppendToLog)
    stage.now += 1_000
    again = stage.produce(batch(3))
    assert stage.one(fx.AppendToLog).base_offset == 0
    stage.appended(3)
    assert stage.replies() == [(again, 0, None)]
    assert [one.kind for one in stage.got(fx.Observed)] == ["disk_has_space"]


def test_records_written_before_the_disk_was_full_are_acknowledged_once_replicated() -> None:
    stage = Stage().leads(isr=(1, 2))
    stage.fetches(2, 0)
    written = stage.produce(batch(2))
    lost = stage.produce(batch(2))
    stage.appended(2)
    full(stage, 2)
    assert stage.replies() == [(lost, -1, ErrorCode.DISK_FULL)]
    stage.reports(2, 2)
    assert stage.replies() == [(written, 0, None)]


def test_a_leader_with_damage_that_it_cannot_repair_asks_for_another_leader_if_one_is_in_sync() -> None:
    stage = Stage().leads(isr=(1, 2))
    stage.feed(ev.LogDamaged(P, ID))
    assert stage.one(fx.ResignLeadership).partition == P
    assert [one.kind for one in stage.got(fx.Observed)] == ["leader_log_damaged"]
    stage.feed(ev.LogDamaged(P, ID))
    assert not stage.got(fx.ResignLeadership), "the controller knows"
    alone = Stage().leads(isr=(1,))
    alone.feed(ev.LogDamaged(P, ID))
    assert not alone.got(fx.ResignLeadership)


def test_a_leader_with_damage_and_no_replica_in_sync_asks_for_an_eligible_leader() -> None:
    stage = Stage()
    stage.command(node(1, 5, (1,), elr=(2,), min_isr=2))
    stage.opened(0)
    stage.feed(ev.LogDamaged(P, ID, repairable=True))
    assert not stage.got(fx.ResignLeadership), "the eligible leader would lack the records that are not committed"
    stage.feed(ev.LogDamaged(P, ID))
    assert stage.one(fx.ResignLeadership).partition == P


def test_a_leader_without_space_asks_for_another_leader_if_one_is_in_sync() -> None:
    stage = Stage().leads(isr=(1, 2))
    stage.produce()
    full(stage, 0)
    assert stage.one(fx.ResignLeadership).partition == P
    alone = Stage().leads(isr=(1,))
    alone.produce()
    full(alone, 0)
    assert not alone.got(fx.ResignLeadership)


def test_an_idempotent_producer_may_send_the_refused_batch_again() -> None:
    stage = Stage().leads(isr=(1,))
    stage.produce(batch(2, sequence=0, producer_id=7))
    full(stage, 0)
    stage.now += 1_000
    again = stage.produce(batch(2, sequence=0, producer_id=7))
    stage.appended(2)
    assert stage.replies() == [(again, 0, None)]


def test_a_follower_with_a_full_disk_returns_the_credit_pauses_and_fetches_from_its_log_end() -> None:
    stage = Stage().follows(end=10, epochs=[(4, 0)], high_watermark=10)
    stage.answered(4, 10)
    stage.chunk(10, batch(1, offset=10, epoch=4))
    stage.chunk(11, batch(2, offset=11, epoch=5))
    stage.appended(11)
    full(stage, 11)
    assert [credit.credit_bytes for credit in stage.said().credits] == [100]
    assert stage.one(fx.SaveEpochs).entries == entries((4, 0))
    stage.chunk(13, batch(1, offset=13, epoch=5))
    assert not stage.got(fx.AppendToLog)
    stage.feed(ev.Tick(), after_ms=999)
    assert not stage.got(fx.SendToLeader) or not stage.said().positions
    stage.feed(ev.Tick(), after_ms=1)
    (position,) = stage.said().positions
    assert (position.fetch_offset, position.last_epoch) == (11, 4)
    stage.chunk(11, batch(2, offset=11, epoch=5))
    assert stage.one(fx.AppendToLog).base_offset == 11


def test_a_leadership_that_waits_for_a_failed_append_begins_without_it() -> None:
    stage = Stage().follows(end=10, epochs=[(4, 0)], high_watermark=10)
    stage.answered(4, 10)
    stage.chunk(10, batch(1, offset=10, epoch=5))
    stage.command(node(1, 6, (1, 2)))
    assert not stage.got(fx.LeadershipChanged)
    full(stage, 10)
    assert stage.one(fx.LeadershipChanged).leading
