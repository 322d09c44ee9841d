# SPDX-License-Identifier: Apache-2.0
"""A leader: acknowledgements, high watermark, ISR (rules R1-R9, E1, E6, P1, P2, T3), as scenarios."""

from __future__ import annotations

import pytest
from tidemark.core.config import ReplicationConfig
from tidemark.core.messages import FollowerMessage
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.model import REMEMBERED_BATCHES, ErrorCode, IsrEntry, LeaderEpoch, TidemarkError

from tests.refusals import raises_code
from tests.unit.core.replication.stage import ID, P, Stage, batch, node


def test_a_new_leader_enters_its_epoch_at_its_log_end() -> None:
    stage = Stage().leads(end=7, epochs=[(3, 0)])
    assert stage.one(fx.SaveEpochs).entries == ((3, 0), (5, 7))
    assert stage.one(fx.LeadershipChanged) == fx.LeadershipChanged(P, leading=True)
    assert stage.one(fx.ReplyToControl) == fx.ReplyToControl(1, None)


def test_acks_0_is_answered_at_once_acks_1_when_written_acks_all_when_replicated() -> None:
    stage = Stage().leads()
    stage.fetches(2, 0)
    stage.produce(batch(2), acks=0)
    assert [type(effect) for effect in stage.out] == [fx.AppendToLog, fx.ReplyToProduce]
    stage.produce(batch(3), acks=1)
    assert [type(effect) for effect in stage.out] == [fx.AppendToLog]
    assert stage.one(fx.AppendToLog).base_offset == 2
    stage.produce(batch(1), acks=-1)
    stage.appended(2)
    assert stage.replies() == []
    stage.appended(5)
    assert stage.replies() == [(2, 2, None)]
    stage.appended(6)
    assert stage.replies() == []
    stage.reports(2, 5)
    assert stage.replies() == []
    assert stage.one(fx.HighWatermarkAdvanced).high_watermark == 5
    stage.reports(2, 6)
    assert stage.replies() == [(3, 5, None)]


def test_several_batches_of_one_request_are_one_append() -> None:
    stage = Stage().leads((1,))
    stage.produce(batch(2), batch(3))
    append = stage.one(fx.AppendToLog)
    assert len(append.batches) == 2
    assert append.stamp
    stage.appended(5)
    assert stage.replies() == [(1, 0, None)]


def test_a_member_that_has_not_acknowledged_the_epoch_holds_the_high_watermark() -> None:
    stage = Stage().leads((1, 2, 3))
    stage.fetches(2, 0)
    stage.write(acks=-1)
    stage.reports(2, 1)
    assert stage.high_watermark() == 0
    stage.fetches(3, 1, last_epoch=5)
    assert stage.high_watermark() == 1


def test_a_diverged_follower_or_one_in_another_epoch_is_refused() -> None:
    stage = Stage().leads(end=10, epochs=[(3, 0), (4, 6)], high_watermark=2)
    stage.fetches(2, 8, last_epoch=3)
    assert stage.refused_followers() == [ErrorCode.LOG_DIVERGED]
    stage.fetches(2, 11, last_epoch=4)
    assert stage.refused_followers() == [ErrorCode.LOG_DIVERGED]
    stage.fetches(2, 10, last_epoch=4, epoch=4)
    assert stage.refused_followers() == [ErrorCode.FENCED_LEADER_EPOCH]
    assert stage.high_watermark() == 2


def test_a_follower_in_a_newer_epoch_is_served_once_the_leader_is_in_that_epoch() -> None:
    stage = Stage().leads((1, 2), epoch=5)
    stage.fetches(2, 0, epoch=6)
    assert not stage.got(fx.SendToFollower)
    stage.command(node(1, 6, (1, 2)))
    stage.write(acks=-1)
    assert stage.one(fx.ReadForFollower).leader_epoch == 6


def test_records_are_sent_with_the_present_high_watermark_and_within_credit_only() -> None:
    stage = Stage()
    stage.command(node(1, 5, (1,)), suspected=(2,))
    stage.opened()
    stage.fetches(2, 0, credit=150)
    stage.write(batch(4))
    read = stage.one(fx.ReadForFollower)
    assert (read.offset, read.end_offset) == (0, 4)
    stage.write(batch(1))
    assert not stage.got(fx.ReadForFollower), "one read at a time"
    stage.feed(ev.FollowerReadDone(2, P, 5, 0, (batch(4, offset=0, epoch=5),)))
    (chunk,) = stage.one(fx.SendToFollower).message.chunks
    assert (chunk.continues_from, chunk.high_watermark, len(chunk.batches)) == (0, 5, 1)
    assert stage.one(fx.ReadForFollower).offset == 4
    stage.feed(ev.FollowerReadDone(2, P, 5, 4, (batch(1, offset=4, epoch=5),)))
    stage.write(batch(1))
    assert not stage.got(fx.ReadForFollower), "no credit is left"
    stage.fetches(2, 5, last_epoch=5, credit=200)
    assert stage.one(fx.ReadForFollower).offset == 5


@pytest.mark.parametrize(("setting_bytes", "read_bytes"), [(1 << 20, 1 << 20), (64 << 20, 4 << 20)])
def test_a_leader_reads_no_chunk_that_is_larger_than_a_message(setting_bytes: int, read_bytes: int) -> None:
    stage = Stage()
    stage.feed(ev.SettingsChanged(ReplicationConfig(replica_fetch_max_bytes=setting_bytes)))
    stage.command(node(1, 5, (1,)), suspected=(2,))
    stage.opened()
    stage.fetches(2, 0, credit=150)
    stage.write(batch(4))
    assert stage.one(fx.ReadForFollower).max_bytes == read_bytes


def test_a_high_watermark_without_records_is_sent_with_the_next_tick() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    stage.write(batch(1))
    stage.feed(ev.FollowerReadDone(2, P, 5, 0, (batch(1, offset=0, epoch=5),)))
    stage.reports(2, 1)
    assert not stage.got(fx.SendToFollower)
    stage.feed(ev.Tick(), after_ms=100)
    (chunk,) = stage.one(fx.SendToFollower).message.chunks
    assert (chunk.continues_from, chunk.high_watermark, chunk.batches) == (1, 1, ())


def test_a_follower_gets_a_refusal_when_the_read_fails_and_may_fetch_again() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    stage.write(batch(1))
    failed = TidemarkError(ErrorCode.STORAGE_ERROR, "the disk is gone")
    stage.feed(ev.FollowerReadDone(2, P, 5, 0, (), failed))
    assert stage.refused_followers() == [ErrorCode.STORAGE_ERROR]
    stage.fetches(2, 0)
    assert stage.one(fx.ReadForFollower).offset == 0


# -- min ISR (R4) ----------------------------------------------------------------------------------------------


def test_below_min_isr_acks_all_is_refused_and_acks_1_is_accepted_but_not_visible() -> None:
    stage = Stage().leads((1,), min_isr=2)
    stage.produce(acks=-1)
    assert stage.replies() == [(1, -1, ErrorCode.NOT_ENOUGH_REPLICAS)]
    assert not stage.got(fx.AppendToLog)
    stage.write(acks=1)
    assert stage.replies() == [(2, 0, None)]
    assert stage.high_watermark() == 0


def test_min_isr_is_looked_at_again_when_a_record_is_acknowledged() -> None:
    stage = Stage().leads((1, 2, 3), min_isr=3)
    stage.fetches(2, 0)
    stage.fetches(3, 0)
    stage.write(acks=-1)
    stage.reports(2, 1)
    late_follower_leaves(stage, reporting=2)
    stage.reports(3, 1)
    assert stage.replies() == [(1, 0, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)]


# -- the ISR (R3, R7-R9, T3) -----------------------------------------------------------------------------------


def late_follower_leaves(stage: Stage, *, reporting: int) -> fx.WriteIsr:
    """Time passes with messages of one follower only; returns the shrink that follows."""
    stage.disk_answers()
    for _ in range(120):
        stage.reports(reporting, stage.core.queries.replicas()[0].log_end_offset)
        stage.feed(ev.Tick(), after_ms=100)
        if stage.got(fx.WriteIsr):
            return stage.one(fx.WriteIsr)
    pytest.fail("no follower left the ISR")


def test_a_silent_follower_leaves_after_the_lag_time_and_holds_the_high_watermark_until_that_is_confirmed() -> None:
    stage = Stage().leads((1, 2, 3), min_isr=2)
    stage.fetches(2, 0)
    stage.fetches(3, 0)
    stage.write(acks=-1)
    began = stage.now
    write = late_follower_leaves(stage, reporting=2)
    assert 10_000 < stage.now - began <= 11_000
    assert write.state.isr_ids == (1, 2)
    assert write.state.elr == ()
    assert write.expected_version == 1
    assert stage.high_watermark() == 0
    stage.feed(ev.IsrWritten(P, 2))
    assert stage.high_watermark() == 1
    assert stage.replies() == [(1, 0, None)]
    assert stage.one(fx.ReportIsrChange).partition == P


def test_an_idle_follower_stays_in_sync_by_heartbeats_alone() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    stage.write(acks=-1)
    stage.disk_answers()
    stage.reports(2, 1)
    for _ in range(300):
        stage.from_follower(2, FollowerMessage())
        stage.feed(ev.Tick(), after_ms=100)
        assert not stage.got(fx.WriteIsr)
    for _ in range(100):
        stage.feed(ev.Tick(), after_ms=100)
    assert not stage.got(fx.WriteIsr), "the lag time since the last heartbeat has not passed"
    for _ in range(12):
        stage.feed(ev.Tick(), after_ms=100)
        if stage.got(fx.WriteIsr):
            break
    assert stage.one(fx.WriteIsr).state.isr_ids == (1,)


def test_a_follower_always_behind_a_busy_leader_is_in_sync_while_it_follows() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    stage.write(acks=1)
    for end in range(1, 60):
        stage.write(acks=1)
        stage.disk_answers()
        stage.reports(2, end)
        stage.feed(ev.Tick(), after_ms=500)
        assert not stage.got(fx.WriteIsr)
        assert not stage.got(fx.ResignLeadership)


def test_a_process_that_stood_still_does_not_judge_its_followers_by_that() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    stage.feed(ev.Tick(), after_ms=100)
    stage.feed(ev.Tick(), after_ms=20_000)
    assert not stage.got(fx.WriteIsr)


def test_a_member_leaving_fewer_than_min_isr_stays_eligible_until_one_returns() -> None:
    stage = Stage().leads((1, 2, 3), min_isr=3)
    stage.fetches(2, 0)
    stage.fetches(3, 0)
    stage.write(acks=1)
    write = late_follower_leaves(stage, reporting=2)
    assert write.state.elr == (IsrEntry(3, 13),)
    stage.feed(ev.IsrWritten(P, 2))
    assert stage.high_watermark() == 0
    stage.reports(3, 1)
    write = stage.one(fx.WriteIsr)
    assert write.state.isr_ids == (1, 2, 3)
    assert write.state.elr == ()
    assert write.joining == {3: 13}
    stage.feed(ev.IsrWritten(P, 3))
    assert stage.high_watermark() == 1


def test_a_replica_joins_only_once_it_reached_the_high_watermark_and_the_epochs_start() -> None:
    stage = Stage().leads((1,), end=10, epochs=[(3, 0)], high_watermark=4)
    assert stage.high_watermark() == 10
    stage.fetches(2, 6, last_epoch=3)
    assert not stage.got(fx.WriteIsr)
    stage.reports(2, 10)
    assert stage.one(fx.WriteIsr).joining == {2: 12}


def test_the_epochs_start_counts_even_above_the_high_watermark() -> None:
    stage = Stage().leads((1, 3), end=10, epochs=[(3, 0)], high_watermark=4)
    stage.fetches(2, 6, last_epoch=3)
    assert not stage.got(fx.WriteIsr)
    stage.reports(2, 10)
    assert stage.one(fx.WriteIsr).state.isr_ids == (1, 3, 2)


def test_a_broker_joins_only_when_it_is_no_longer_suspected() -> None:
    stage = Stage()
    stage.command(node(1, 5, (1,)), suspected=(2,))
    stage.opened()
    stage.fetches(2, 0)
    assert not stage.got(fx.WriteIsr)
    stage.command(node(1, 5, (1,)), version=1)
    assert stage.one(fx.WriteIsr).joining == {2: 12}


def test_a_follower_in_an_older_broker_epoch_is_sent_away() -> None:
    stage = Stage().leads((1, 2))
    stage.from_follower(2, FollowerMessage(), broker_epoch=11)
    assert stage.one(fx.DisconnectFollower).error.code is ErrorCode.STALE_BROKER_EPOCH


def test_while_a_join_is_in_flight_the_joiner_holds_the_high_watermark_but_does_not_count() -> None:
    stage = Stage().leads((1,), min_isr=2)
    stage.fetches(2, 0)
    assert stage.got(fx.WriteIsr)
    stage.produce(acks=-1)
    assert stage.replies() == [(1, -1, ErrorCode.NOT_ENOUGH_REPLICAS)]
    stage.feed(ev.IsrWritten(P, 2))
    stage.write(acks=-1)
    assert stage.high_watermark() == 0
    stage.reports(2, 1)
    assert stage.replies() == [(2, 0, None)]


def in_flight_shrink() -> Stage:
    stage = Stage().leads((1, 2, 3), min_isr=1)
    stage.fetches(2, 0)
    stage.fetches(3, 0)
    stage.write(acks=-1)
    late_follower_leaves(stage, reporting=2)
    return stage


@pytest.mark.parametrize("unknown", [False, True])
def test_a_change_that_failed_or_got_lost_stays_in_flight_until_the_node_was_read(unknown: bool) -> None:
    stage = in_flight_shrink()
    stage.feed(ev.IsrWriteFailed(P, unknown=unknown))
    assert stage.one(fx.ReadIsr) == fx.ReadIsr(P, ID, LeaderEpoch(5))
    assert stage.high_watermark() == 0
    assert not stage.feed(ev.Tick(), after_ms=1000) or not stage.got(fx.WriteIsr)


def test_a_lost_change_that_the_node_holds_has_succeeded() -> None:
    stage = in_flight_shrink()
    stage.feed(ev.IsrWriteFailed(P, unknown=True))
    stage.isr_read(node(1, 5, (1, 2)), 2)
    assert stage.replies() == [(1, 0, None)]
    assert stage.high_watermark() == 1


def test_after_a_conflict_the_change_is_computed_from_the_content_of_the_node() -> None:
    stage = in_flight_shrink()
    stage.feed(ev.IsrWriteFailed(P, unknown=False))
    stage.isr_read(node(1, 5, (1, 3)), 7)
    assert stage.high_watermark() == 0, "the controller removed 2, and 3 is still a member"
    write = stage.one(fx.WriteIsr)
    assert (write.expected_version, write.state.isr_ids) == (7, (1, 3, 2))


@pytest.mark.parametrize("state", [node(2, 6, (2, 3)), node(1, 6, (1, 2))])
def test_a_node_with_another_leader_or_epoch_fences_the_leader(state: object) -> None:
    stage = in_flight_shrink()
    stage.feed(ev.IsrWriteFailed(P, unknown=False))
    stage.isr_read(state, 7)
    assert stage.replies() == [(1, 0, ErrorCode.NOT_LEADER)]
    assert stage.one(fx.LeadershipChanged) == fx.LeadershipChanged(P, leading=False)
    stage.produce()
    assert stage.replies() == [(2, -1, ErrorCode.NOT_LEADER)]
    stage.command(node(1, 5, (1, 2, 3)))
    assert stage.refusals() == [ErrorCode.FENCED_LEADER_EPOCH]


def test_a_deleted_partition_fences_the_leader() -> None:
    stage = in_flight_shrink()
    stage.feed(ev.IsrWriteFailed(P, unknown=True))
    stage.feed(ev.IsrRead(P, None))
    assert stage.one(fx.LeadershipChanged).leading is False


def test_the_controllers_write_in_the_same_epoch_is_adopted_once_nothing_is_in_flight() -> None:
    stage = in_flight_shrink()
    stage.command(node(1, 5, (1, 2)), version=3)
    assert stage.high_watermark() == 0
    stage.feed(ev.IsrWriteFailed(P, unknown=False))
    stage.isr_read(node(1, 5, (1, 2)), 3)
    assert stage.high_watermark() == 1
    (view,) = stage.core.queries.replicas()
    assert view.isr == (1, 2)
    assert stage.led().under_replicated


# -- stating the high watermark (E6, K1) -----------------------------------------------------------------------


def read_range(stage: Stage, offset: int, *, epoch: int = -1, last_epoch: int = -1) -> object:
    return stage.core.queries.readable(
        P,
        topic_id="",
        incarnation="",
        current_leader_epoch=epoch,
        fetch_offset=offset,
        last_fetched_epoch=last_epoch,
        now_ms=stage.now,
    )


def refused_read(stage: Stage, offset: int, **more: int) -> ErrorCode:
    with pytest.raises(TidemarkError) as caught:
        read_range(stage, offset, **more)
    return caught.value.code


def test_a_new_leader_serves_committed_records_but_states_no_high_watermark_before_its_epoch_start() -> None:
    stage = Stage().leads((1, 2), end=10, epochs=[(3, 0)], high_watermark=4)
    assert read_range(stage, 0) == (4, -1, 0, 10, None)
    with raises_code(ErrorCode.OFFSET_NOT_AVAILABLE):
        stage.core.queries.stated_offsets(P, topic_id="", current_leader_epoch=-1, now_ms=stage.now)
    stage.fetches(2, 10, last_epoch=3)
    assert read_range(stage, 4) == (10, 10, 0, 10, None)
    assert stage.core.queries.stated_offsets(P, topic_id="", current_leader_epoch=5, now_ms=stage.now) == (0, 10, 5, 10)


def test_a_consumer_gets_no_records_between_hw_and_leo_and_an_error_beyond_or_when_diverged() -> None:
    stage = Stage().leads((1, 2), end=10, epochs=[(1, 0), (3, 6)], high_watermark=4)
    assert read_range(stage, 7) == (7, -1, 0, 10, None)
    assert refused_read(stage, 11) is ErrorCode.LOG_TRUNCATED
    assert refused_read(stage, 8, last_epoch=1) is ErrorCode.LOG_TRUNCATED
    assert refused_read(stage, 8, epoch=4) is ErrorCode.FENCED_LEADER_EPOCH
    assert refused_read(stage, 8, epoch=6) is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert stage.core.queries.epoch_end(P, current_leader_epoch=-1, leader_epoch=2) == (1, 6)


# -- refusals of produce ---------------------------------------------------------------------------------------


def test_a_produce_with_a_stale_epoch_another_topic_or_to_a_sealed_partition_changes_nothing() -> None:
    stage = Stage().leads((1,))
    for want, more in (
        (ErrorCode.FENCED_LEADER_EPOCH, {"epoch": 4}),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, {"epoch": 6}),
        (ErrorCode.UNKNOWN_TOPIC_ID, {"topic_id": "c" * 32}),
        (ErrorCode.INVALID_ACKS, {"acks": 2}),
    ):
        stage.produce(**more)
        assert [code for _, _, code in stage.replies()] == [want]
        assert not stage.got(fx.AppendToLog)
    sealed = Stage().leads((1,), sealed=True)
    sealed.produce()
    assert sealed.replies() == [(1, -1, ErrorCode.PARTITION_SEALED)]


def test_a_request_that_expires_is_answered_once_and_its_records_stay() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    stage.write()
    stage.feed(ev.ProduceExpired(1, P))
    assert stage.replies() == [(1, 0, ErrorCode.REQUEST_TIMED_OUT)]
    stage.reports(2, 1)
    assert stage.replies() == []
    assert stage.high_watermark() == 1


# -- idempotent producers (P1, P2, P4) -------------------------------------------------------------------------


def numbered(sequence: int, records: int = 1) -> object:
    return batch(records, sequence=sequence, producer_id=7)


def test_a_duplicate_waits_like_its_original_and_gets_the_same_offset() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    stage.write(batch(3))
    stage.write(numbered(0))
    stage.produce(numbered(0))
    assert not stage.got(fx.AppendToLog)
    assert stage.replies() == []
    stage.reports(2, 4)
    assert stage.replies() == [(1, 0, None), (2, 3, None), (3, 3, None)]
    stage.produce(numbered(0))
    assert stage.replies() == [(4, 3, None)]


def test_a_duplicate_of_an_append_in_flight_is_recognised() -> None:
    stage = Stage().leads((1,))
    stage.produce(numbered(0))
    stage.produce(numbered(0))
    assert not stage.got(fx.AppendToLog)
    stage.appended(1)
    assert stage.replies() == [(1, 0, None), (2, 0, None)]


def test_a_request_is_refused_whole_and_leaves_no_trace() -> None:
    stage = Stage().leads((1,))
    stage.produce(numbered(0), numbered(2))
    assert stage.replies() == [(1, -1, ErrorCode.OUT_OF_ORDER_SEQUENCE)]
    stage.produce(numbered(0), numbered(1))
    assert len(stage.one(fx.AppendToLog).batches) == 2, "a refused batch leaves no duplicate"


def test_an_idempotent_batch_needs_acks_all_and_no_more_may_wait_than_are_remembered() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    stage.produce(numbered(0), acks=1)
    assert stage.replies() == [(1, -1, ErrorCode.INVALID_ACKS)]
    for sequence in range(REMEMBERED_BATCHES):
        stage.write(numbered(sequence))
    stage.produce(numbered(REMEMBERED_BATCHES))
    assert stage.replies() == [(REMEMBERED_BATCHES + 2, -1, ErrorCode.INVALID_REQUEST)]
    stage.reports(2, 1)
    stage.produce(numbered(REMEMBERED_BATCHES))
    assert stage.got(fx.AppendToLog)


# -- the end of a leadership (E5, F2, F3, F4) ------------------------------------------------------------------


def test_a_newer_epoch_at_a_follower_fences_the_leader() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    stage.write()
    stage.stops(2, 6)
    assert stage.replies() == [(1, 0, ErrorCode.NOT_LEADER)]
    assert stage.one(fx.LeadershipChanged).leading is False


def test_a_follower_that_stops_without_a_newer_epoch_fences_no_leader() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    stage.stops(2, -1)
    stage.produce()
    assert stage.got(fx.AppendToLog)


def test_a_lost_session_ends_every_leadership_and_no_epoch_is_resumed() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    stage.write()
    stage.feed(ev.SessionExpired())
    assert stage.replies() == [(1, 0, ErrorCode.NOT_LEADER)]
    assert stage.one(fx.DisconnectFollower).follower == 2
    stage.command(node(1, 6, (1, 2)))
    assert stage.one(fx.ReplyToControl).error.code is ErrorCode.STALE_BROKER_EPOCH
    stage.feed(ev.BrokerRegistered(21))
    stage.command(node(1, 5, (1, 2)), broker_epoch=21)
    assert stage.refusals() == [ErrorCode.FENCED_LEADER_EPOCH]
    stage.command(node(1, 6, (1, 2)), broker_epoch=21)
    assert stage.refusals() == []
    assert stage.one(fx.LeadershipChanged).leading


def test_a_new_process_does_not_lead_in_the_epoch_of_the_node_at_its_start() -> None:
    stage = Stage()
    stage.feed(ev.BrokerRegistered(11, {P: (ID, 5)}))
    stage.leads(epoch=5)
    assert stage.refusals() == [ErrorCode.FENCED_LEADER_EPOCH]
    stage.command(node(1, 6, (1, 2)))
    assert stage.one(fx.LeadershipChanged).leading


def test_a_storage_failure_answers_waiting_producers_and_ends_the_leadership() -> None:
    stage = Stage().leads((1,))
    stage.produce()
    stage.feed(ev.LogFailed(P, ID, TidemarkError(ErrorCode.STORAGE_ERROR, "the disk is gone")))
    assert stage.replies() == [(1, 0, ErrorCode.STORAGE_ERROR)]
    (view,) = stage.core.queries.replicas()
    assert view.role == "offline"
    stage.command(node(1, 6, (1,)))
    assert stage.one(fx.OpenLog).partition == P


def test_a_new_epoch_begins_only_after_the_appends_in_flight() -> None:
    stage = Stage().leads((1,))
    stage.produce()
    stage.command(node(1, 6, (1,)))
    assert stage.replies() == [(1, 0, ErrorCode.NOT_LEADER)]
    assert not stage.got(fx.ReplyToControl)
    stage.produce()
    assert stage.replies() == [(2, -1, ErrorCode.NOT_LEADER)]
    stage.appended(1)
    assert stage.one(fx.SaveEpochs).entries == ((5, 0), (6, 1))
    assert stage.refusals() == []


def test_an_idle_producer_expires_once_another_one_appends() -> None:
    stage = Stage().leads((1,))
    stage.write(batch(sequence=0, producer_id=1))
    stage.now += 24 * 3600 * 1000
    stage.write(batch(sequence=0, producer_id=2))
    stage.produce(batch(sequence=1, producer_id=1))
    assert [code for _, _, code in stage.replies()] == [ErrorCode.UNKNOWN_PRODUCER_ID]
    stage.write(batch(sequence=0, producer_id=1))
    assert [code for _, _, code in stage.replies()] == [None]
