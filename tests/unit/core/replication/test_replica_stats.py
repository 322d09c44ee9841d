# SPDX-License-Identifier: Apache-2.0
"""Views of a replica: reads, descriptions for the controller, and figures (rules E4, E6, K1, T4)."""

from __future__ import annotations

import pytest
from tidemark.core.messages import ReplicaDescription, ReplicaQuestion
from tidemark.core.producer_state import ProducerStates
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.core.replication.replica import ReplicaView
from tidemark.model import ErrorCode, ReplicaIdentity, TidemarkError

from tests.refusals import raises_code
from tests.unit.core.replication.leader.test_partition_leader import read_range, refused_read
from tests.unit.core.replication.stage import ID, P, Stage, batch, node


def describe(stage: Stage, *, epoch: int = 5, identity: ReplicaIdentity = ID) -> ReplicaDescription | ErrorCode:
    try:
        return stage.core.queries.describe(ReplicaQuestion(P, identity, epoch))
    except TidemarkError as error:
        return error.code


def seen(stage: Stage) -> ReplicaView:
    (view,) = stage.core.queries.replicas()
    return view


# -- reads -----------------------------------------------------------------------------------------------------


def test_a_read_below_the_log_start_is_refused_and_one_at_the_log_end_waits() -> None:
    stage = Stage()
    stage.command(node(1, 5, (1,)))
    stage.opened(10, (4, 3), start=3, high_watermark=10)
    with raises_code(ErrorCode.OFFSET_OUT_OF_RANGE) as caught:
        read_range(stage, 2)
    assert caught.value.metadata["log_start_offset"] == "3"
    assert "starts at offset 3" in caught.value.message
    assert caught.value.message.endswith("continue at that offset or above"), "the error has the next step"
    assert read_range(stage, 3) == (10, 10, 3, 10, None)
    assert read_range(stage, 10) == (10, 10, 3, 10, None)
    assert refused_read(stage, 11) is ErrorCode.LOG_TRUNCATED


@pytest.mark.parametrize(("offset", "last_epoch", "parts_at"), [(8, 1, ("1", "6")), (11, 3, ("3", "10"))])
def test_a_reader_of_truncated_records_gets_the_diverging_end(
    offset: int, last_epoch: int, parts_at: tuple[str, str]
) -> None:
    stage = Stage()
    stage.command(node(1, 3, (1,)))
    stage.opened(10, (1, 0), (2, 6), high_watermark=4)
    with raises_code(ErrorCode.LOG_TRUNCATED) as caught:
        read_range(stage, offset, last_epoch=last_epoch)
    told = caught.value.metadata
    assert (told["diverging_epoch"], told["diverging_end_offset"]) == parts_at


def test_the_error_above_the_log_end_names_the_end_and_assumes_no_truncation() -> None:
    stage = Stage()
    stage.command(node(1, 3, (1,)))
    stage.opened(10, (1, 0), (2, 6), high_watermark=4)
    with pytest.raises(TidemarkError, match=r"ends at offset 10; 11 is above: .* the offset. Continue at"):
        read_range(stage, 11)


@pytest.mark.parametrize(("topic_id", "incarnation"), [("c" * 32, ""), ("", "c" * 32), (ID.topic_id, "c" * 32)])
def test_a_read_of_another_topic_or_incarnation_of_that_name_is_refused(topic_id: str, incarnation: str) -> None:
    stage = Stage().leads((1,))
    with raises_code(ErrorCode.UNKNOWN_TOPIC_ID):
        stage.core.queries.readable(
            P,
            topic_id=topic_id,
            incarnation=incarnation,
            current_leader_epoch=-1,
            fetch_offset=0,
            last_fetched_epoch=-1,
            now_ms=stage.now,
        )


def test_an_unknown_partition_answers_not_leader() -> None:
    stage = Stage()
    assert refused_read(stage, 0) is ErrorCode.NOT_LEADER
    request = stage.produce()
    assert stage.replies() == [(request, -1, ErrorCode.NOT_LEADER)]
    assert describe(stage) is ErrorCode.OFFSET_NOT_AVAILABLE
    assert stage.core.queries.replica(P) is None
    assert stage.core.queries.figures(P, stage.now) is None
    assert not stage.core.queries.holds_epoch_since(P, 0)
    assert stage.core.queries.leader_count() == 0


def test_checkpoints_get_the_high_watermarks_of_the_logs_that_are_open() -> None:
    stage = Stage()
    stage.command(node(1, 5, (1,)))
    assert stage.core.queries.high_watermarks() == {}
    stage.opened(3, (4, 0), high_watermark=2)
    assert stage.core.queries.high_watermarks() == {P: 3}
    assert stage.core.queries.leader_count() == 1
    assert stage.core.queries.figures(P, stage.now) is not None


# -- questions of the controller -------------------------------------------------------------------------------


def test_a_replica_describes_its_log_only_in_the_epoch_of_the_question() -> None:
    stage = Stage().follows(end=10, epochs=[(4, 0)], high_watermark=7)
    assert describe(stage) == ReplicaDescription(4, 10, 7, damaged=False, log_start_offset=0)
    assert describe(stage, epoch=4) is ErrorCode.FENCED_LEADER_EPOCH
    assert describe(stage, epoch=6) is ErrorCode.OFFSET_NOT_AVAILABLE
    assert describe(stage, identity=ReplicaIdentity("c" * 32, "b" * 32)) is ErrorCode.UNKNOWN_TOPIC_ID


def test_a_replica_describes_its_log_only_while_the_log_is_quiet() -> None:
    stage = Stage().follows()
    stage.chunk(0, batch(2, offset=0, epoch=5))
    assert describe(stage) is ErrorCode.OFFSET_NOT_AVAILABLE
    stage.command(node(-1, 6, ()))
    assert describe(stage, epoch=6) is ErrorCode.OFFSET_NOT_AVAILABLE
    stage.feed(ev.LogAppended(P, ID, 2))
    assert describe(stage, epoch=6) == ReplicaDescription(5, 2, 0, damaged=False, log_start_offset=0)


def test_an_opening_replica_asks_for_a_retry_and_a_failed_one_reports_the_failure() -> None:
    stage = Stage()
    stage.command(node(-1, 5, ()))
    assert describe(stage) is ErrorCode.OFFSET_NOT_AVAILABLE
    stage.feed(ev.LogFailed(P, ID, TidemarkError(ErrorCode.STORAGE_ERROR, "it smokes")))
    assert describe(stage) is ErrorCode.STORAGE_ERROR


def test_a_leader_describes_its_log_once_every_record_is_committed() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    stage.write()
    assert describe(stage) is ErrorCode.OFFSET_NOT_AVAILABLE
    stage.reports(2, 1)
    assert describe(stage) == ReplicaDescription(5, 1, 1, damaged=False, log_start_offset=0)


def test_a_damaged_replica_reports_its_highest_high_watermark_after_a_truncation_too() -> None:
    stage = Stage()
    stage.command(node(2, 5, (2,)))
    stage.opened(10, (4, 0), high_watermark=15, damaged="a hole")
    stage.feed(ev.LeaderConnected(2))
    stage.answered(4, 6)
    assert stage.one(fx.TruncateLog).end_offset == 6
    stage.truncated(6)
    assert stage.one(fx.SaveEpochs).entries == ((4, 0),)
    assert describe(stage) == ReplicaDescription(4, 6, 15, damaged=True, log_start_offset=0)


def test_a_sound_replica_truncated_in_another_lineage_drops_the_old_high_watermark() -> None:
    stage = Stage().follows(end=10, epochs=[(4, 0)], high_watermark=8)
    stage.answered(4, 5)
    stage.truncated(5)
    assert describe(stage) == ReplicaDescription(4, 5, 5, damaged=False, log_start_offset=0)


# -- figures ---------------------------------------------------------------------------------------------------


def test_the_view_of_a_replica_names_its_role() -> None:
    stage = Stage()
    stage.command(node(-1, 5, (), min_isr=2))
    assert (seen(stage).role, seen(stage).min_isr, seen(stage).log_end_offset) == ("opening", 2, 0)
    stage.opened(3, (4, 0), high_watermark=2)
    assert (seen(stage).role, seen(stage).log_end_offset, seen(stage).high_watermark) == ("none", 3, 2)
    assert seen(stage).assigned == (1, 2, 3)
    stage.command(node(2, 6, (2, 3), min_isr=2))
    assert (seen(stage).role, seen(stage).isr, seen(stage).min_isr) == ("follower", (2, 3), 2)
    stage.command(node(1, 7, (1, 3), min_isr=2))
    assert (seen(stage).role, seen(stage).isr, stage.led().under_replicated) == ("leader", (1, 3), True)
    stage.feed(ev.LogFailed(P, ID, TidemarkError(ErrorCode.STORAGE_ERROR, "it smokes")))
    assert (seen(stage).role, seen(stage).log_end_offset) == ("offline", 0)


def test_a_followers_lag_counts_the_committed_records_that_it_lacks() -> None:
    stage = Stage().follows()
    stage.chunk(0, batch(2, offset=0, epoch=5), high_watermark=7)
    assert seen(stage).offset_lag == 7
    stage.feed(ev.LogAppended(P, ID, 2))
    assert seen(stage).offset_lag == 5
    stage.chunk(2, batch(6, offset=2, epoch=5), high_watermark=7)
    stage.feed(ev.LogAppended(P, ID, 8))
    assert seen(stage).offset_lag == 0


def test_disk_space_found_again_is_observed_once() -> None:
    stage = Stage().leads((1,))
    full = TidemarkError(ErrorCode.DISK_FULL, "no space")
    told: list[str] = []

    def tell() -> None:
        told.extend(one.kind for one in stage.got(fx.Observed) if one.kind.startswith("disk_"))

    for _ in range(2):
        stage.produce()
        stage.feed(ev.LogFull(P, ID, 0, ProducerStates(), full))
        tell()
        stage.now += 1_000
    for end in (1, 2):
        stage.produce()
        stage.appended(end)
        tell()
    assert told == ["disk_full", "disk_has_space"]


def test_only_the_settings_of_a_compacted_topic_let_holes_in() -> None:
    stage = Stage().follows()
    stage.topic_configs = {"cleanup.policy": "delete"}
    stage.command(node(2, 5, (1, 2)), version=1)
    stage.chunk(0, batch(offset=0, epoch=5), batch(offset=2, epoch=5))
    assert not stage.got(fx.AppendToLog)
