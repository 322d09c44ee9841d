# SPDX-License-Identifier: Apache-2.0
"""A follower ignores messages that are late, do not fit or answer no request: they neither truncate, append nor end
damage (rules E2-E4, L1, R6, T5)."""

from __future__ import annotations

import pytest
from tidemark.core.messages import Chunk, EpochEnd, EpochQuery, FetchPosition, Refusal
from tidemark.core.producer_state import ProducerStates
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.model import ErrorCode, TidemarkError

from tests.unit.core.replication.stage import ID, P, Stage, batch, node

CHANGES = (fx.AppendToLog, fx.TruncateLog, fx.ResetLog, fx.AdvanceLogStart)


def fetching(**log: object) -> Stage:
    """A fetching follower with ten records that the leader has too."""
    stage = Stage().follows(end=10, epochs=[(4, 0)], **log)
    stage.answered(4, 10)
    assert [one.fetch_offset for one in stage.said().positions] == [10]
    return stage


def fetching_again() -> Stage:
    """The same follower in the next epoch of the lineage, with all ten records known to be committed."""
    stage = fetching(high_watermark=10)
    stage.command(node(2, 6, (1, 2)))
    stage.answered(4, 10, current=6)
    assert [one.fetch_offset for one in stage.said().positions] == [10]
    return stage


def nothing_changes(stage: Stage) -> bool:
    return not any(stage.got(kind) for kind in CHANGES)


def credited(stage: Stage) -> int:
    said = stage.got(fx.SendToLeader)
    return sum(credit.credit_bytes for effect in said for credit in effect.message.credits)


# -- answers about epochs --------------------------------------------------------------------------------------


def test_an_epoch_end_of_an_older_leader_epoch_truncates_nothing() -> None:
    stage = Stage().follows(end=10, epochs=[(4, 0)])
    stage.answered(4, 3, current=4)
    assert stage.out == []
    stage.answered(4, 7, current=5)
    assert stage.one(fx.TruncateLog).end_offset == 7


def test_an_unexpected_epoch_end_truncates_nothing() -> None:
    stage = fetching()
    stage.answered(4, 3)
    assert stage.out == []


def test_after_reconciliation_a_truncation_below_the_high_watermark_fails_an_assertion_in_any_lineage() -> None:
    stage = fetching(high_watermark=8)
    stage.from_leader(refusals=[Refusal(P, ErrorCode.LOG_DIVERGED, "", 5, 0)])
    stage.feed(ev.Tick(), after_ms=100)
    with pytest.raises(AssertionError, match="below the high watermark"):
        stage.answered(4, 5)


@pytest.mark.parametrize(
    ("entries", "answer"),
    [([(4, 6)], (4, 2)), ([(4, 6)], (3, 2)), ([(4, 6)], (3, 6)), ([(4, 6)], (3, 9)), ([(2, 6), (4, 6)], (2, 5))],
)
def test_a_log_that_leaves_the_leaders_below_its_start_is_dropped_whole(
    entries: list[tuple[int, int]], answer: tuple[int, int]
) -> None:
    """The leader has records below the log start that this log never held, so the log starts again at the leader's."""
    stage = Stage()
    stage.command(node(2, 5, (1, 2)))
    stage.opened(10, *entries, start=6)
    stage.feed(ev.LeaderConnected(2))
    stage.answered(*answer)
    assert stage.one(fx.ResetLog).start_offset == 0
    stage.truncated(0)
    assert stage.said().positions == (FetchPosition(P, ID, 5, 0, -1, 0),)
    stage.from_leader(refusals=[Refusal(P, ErrorCode.OFFSET_OUT_OF_RANGE, "gone", 5, 1, 0)])
    assert stage.one(fx.ResetLog).start_offset == 1
    stage.truncated(1, start=1)
    assert stage.one(fx.SaveEpochs).entries == ((0, 1),)


def test_a_log_truncated_to_its_log_start_still_knows_its_last_epoch() -> None:
    stage = Stage()
    stage.command(node(2, 5, (1, 2)))
    stage.opened(10, (2, 6), (4, 6), start=6)
    stage.feed(ev.LeaderConnected(2))
    stage.answered(3, 6)
    assert stage.one(fx.TruncateLog).end_offset == 6
    stage.truncated(6, start=6)
    assert stage.one(fx.SaveEpochs).entries == ((2, 6),)
    assert stage.said().queries == (EpochQuery(P, ID, 5, 2),)
    stage.answered(2, 6)
    assert stage.said().positions == (FetchPosition(P, ID, 5, 6, -1, 0, log_start_offset=6),)


def test_a_replica_that_starts_above_the_log_end_of_another_lineage_starts_empty() -> None:
    """The replica was reset to the log start of an emptied topic; then an unclean election chose a stale replica.

    Without the reset the replica would join the ISR without the records that this leader acknowledges below.
    """
    stage = fetching(high_watermark=10)
    stage.from_leader(refusals=[Refusal(P, ErrorCode.OFFSET_OUT_OF_RANGE, "gone", 5, 100, 4)])
    stage.truncated(100, start=100)
    stage.chunk(100, high_watermark=100)
    stage.command(node(3, 7, (3,), lineage=1))
    stage.feed(ev.LeaderConnected(3))
    assert stage.said().queries == (EpochQuery(P, ID, 7, 4),)
    stage.from_leader(leader=3, ends=[EpochEnd(P, 7, 4, 10)])
    assert stage.one(fx.ResetLog).start_offset == 0


def empty_from_100_on() -> Stage:
    """A log with an unknown epoch below its start; the leader is of another lineage."""
    stage = Stage()
    stage.command(node(3, 7, (3,), lineage=1))
    stage.opened(100, (-1, 100), start=100, high_watermark=100)
    stage.feed(ev.LeaderConnected(3))
    return stage


def test_with_an_unknown_epoch_below_the_start_a_leader_with_less_committed_is_of_another_lineage() -> None:
    """Without the reset the follower would retry until the leader's log has grown, and lack the records below."""
    stage = empty_from_100_on()
    assert stage.said().queries == (EpochQuery(P, ID, 7, -1),)
    stage.from_leader(leader=3, ends=[EpochEnd(P, 7, -1, 0, 60, 0)])
    assert stage.one(fx.ResetLog).start_offset == 0


def test_with_an_unknown_epoch_below_the_start_a_leader_with_as_much_committed_is_fetched_from() -> None:
    stage = empty_from_100_on()
    stage.from_leader(leader=3, ends=[EpochEnd(P, 7, -1, 0, 100, 0)])
    assert stage.said().positions == (FetchPosition(P, ID, 7, 100, -1, 0, log_start_offset=100),)


def test_a_reset_lowers_the_high_watermark_only_when_it_is_done() -> None:
    """A checkpoint in between would name a high watermark that the old log never had."""
    stage = fetching(high_watermark=5)
    stage.from_leader(refusals=[Refusal(P, ErrorCode.OFFSET_OUT_OF_RANGE, "gone", 5, 100, 4)])
    assert stage.high_watermark() == 5
    stage.truncated(100, start=100)
    assert stage.high_watermark() == 100


def test_the_first_epoch_of_an_emptied_log_survives_an_append_without_disk_space() -> None:
    stage = fetching(high_watermark=10)
    stage.from_leader(refusals=[Refusal(P, ErrorCode.OFFSET_OUT_OF_RANGE, "gone", 5, 100, 4)])
    stage.truncated(100, start=100)
    stage.chunk(100, batch(5, offset=100, epoch=5))
    stage.feed(ev.LogFull(P, ID, 100, ProducerStates(), TidemarkError(ErrorCode.DISK_FULL, "full")))
    assert stage.one(fx.SaveEpochs).entries == ((4, 100),)


def test_after_a_broken_stream_a_follower_asks_only_once_connected_and_truncated() -> None:
    stage = Stage().follows(end=10, epochs=[(4, 0)])
    stage.answered(4, 7)
    stage.feed(ev.LeaderDisconnected(2))
    stage.truncated(7)
    assert not stage.got(fx.SendToLeader)
    stage.feed(ev.LeaderConnected(2))
    assert stage.said().queries == (EpochQuery(P, ID, 5, 4),)
    stage.answered(4, 7)
    assert stage.said().positions == (FetchPosition(P, ID, 5, 7, 4, 0),)


def test_a_leadership_waits_for_a_truncation_in_flight() -> None:
    stage = Stage().follows(end=10, epochs=[(4, 0)])
    stage.answered(4, 7)
    assert stage.one(fx.TruncateLog).end_offset == 7
    stage.command(node(1, 6, (1,)))
    assert not stage.got(fx.LeadershipChanged)
    stage.truncated(7)
    assert stage.got(fx.LeadershipChanged)
    assert stage.got(fx.SaveEpochs)[-1].entries == ((4, 0), (6, 7))


# -- chunks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize(
    ("continues_from", "base", "records"),
    [(12, 12, 1), (10, 8, 2), (10, 9, 2), (10, 9, 1)],
    ids=["a gap", "below the log end", "across the log end", "up to the log end"],
)
def test_only_a_chunk_that_continues_the_log_is_appended_compacted_or_not(
    continues_from: int, base: int, records: int, *, compacted: bool
) -> None:
    stage = Stage()
    stage.topic_configs = {"cleanup.policy": "compact"} if compacted else {}
    stage.follows(end=10, epochs=[(4, 0)])
    stage.answered(4, 10)
    stage.chunk(continues_from, batch(records, offset=base, epoch=5))
    assert nothing_changes(stage)
    assert stage.one(fx.Observed).kind == "chunk_refused"
    assert credited(stage) == 100


@pytest.mark.parametrize(("base", "records", "fits"), [(65, 5, False), (65, 6, True), (70, 1, True)])
def test_an_empty_log_accepts_a_batch_that_spans_its_start_and_none_that_ends_there(
    base: int, records: int, *, fits: bool
) -> None:
    stage = Stage().follows(end=5, epochs=[(3, 0)])
    stage.answered(3, 5)
    stage.from_leader(refusals=[Refusal(P, ErrorCode.OFFSET_OUT_OF_RANGE, "", 5, 70)])
    stage.truncated(70, start=70)
    stage.chunk(70, batch(records, offset=base, epoch=5))
    assert bool(stage.got(fx.AppendToLog)) == fits


def test_a_chunk_for_an_older_position_is_ignored_and_fetching_continues() -> None:
    stage = fetching()
    stage.chunk(10, batch(2, offset=10, epoch=5))
    stage.chunk(10, batch(2, offset=10, epoch=5))
    assert nothing_changes(stage)
    assert not stage.got(fx.Observed)
    assert credited(stage) == 100
    stage.chunk(12, batch(1, offset=12, epoch=5))
    assert stage.one(fx.AppendToLog).base_offset == 12


@pytest.mark.parametrize("size_bytes", [100, 2 << 20], ids=["small", "larger than replica.fetch.max.bytes"])
def test_the_credit_of_a_chunk_of_damaged_batches_is_returned_exactly(size_bytes: int) -> None:
    stage = fetching()
    stage.from_leader(chunks=[Chunk(P, 5, 10, 10, 0, (), ErrorCode.CORRUPT_BATCH, size_bytes)])
    assert stage.one(fx.Observed).kind == "chunk_refused"
    assert credited(stage) == size_bytes


def test_the_credit_of_a_chunk_of_an_older_epoch_is_returned() -> None:
    stage = fetching()
    stage.command(node(2, 6, (1, 2)))
    stage.chunk(10, batch(offset=10, epoch=5), epoch=5)
    assert nothing_changes(stage)
    assert credited(stage) == 100


def test_a_leaving_follower_returns_the_credit_of_appends_in_flight_once() -> None:
    stage = fetching()
    stage.chunk(10, batch(offset=10, epoch=5))
    stage.chunk(11, batch(offset=11, epoch=5))
    stage.command(node(2, 6, (1, 2)))
    assert credited(stage) == 200
    stage.feed(ev.LogAppended(P, ID, 11))
    stage.feed(ev.LogAppended(P, ID, 12))
    assert credited(stage) == 0


def test_the_credit_of_an_append_without_disk_space_is_returned_once() -> None:
    stage = fetching()
    stage.chunk(10, batch(offset=10, epoch=5))
    stage.chunk(11, batch(offset=11, epoch=5))
    stage.feed(ev.LogFull(P, ID, 10, ProducerStates(), TidemarkError(ErrorCode.DISK_FULL, "no space")))
    assert credited(stage) == 200
    stage.feed(ev.Tick(), after_ms=10_000)
    stage.chunk(10, batch(offset=10, epoch=5))
    stage.feed(ev.LogAppended(P, ID, 11))
    assert credited(stage) == 100
    stage.command(node(2, 6, (1, 2)))
    assert credited(stage) == 0


# -- the front, and healing ------------------------------------------------------------------------------------


def test_the_log_start_stays_while_no_record_above_is_known_to_be_committed() -> None:
    stage = fetching()
    stage.from_leader(chunks=[chunk_with_start(5, high_watermark=0)])
    assert nothing_changes(stage)
    stage.from_leader(chunks=[chunk_with_start(5, high_watermark=3)])
    assert stage.one(fx.AdvanceLogStart).start_offset == 3
    stage.from_leader(chunks=[chunk_with_start(5, high_watermark=9)])
    assert stage.one(fx.AdvanceLogStart).start_offset == 5


def chunk_with_start(start: int, *, high_watermark: int) -> Chunk:
    return Chunk(P, 5, 10, high_watermark, start, (), None)


# -- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "epoch", "start"),
    [
        (ErrorCode.OFFSET_OUT_OF_RANGE, 5, 70),
        (ErrorCode.OFFSET_OUT_OF_RANGE, 5, 10),
        (ErrorCode.OFFSET_OUT_OF_RANGE, 6, 3),
        (ErrorCode.NOT_LEADER, 6, 70),
        (ErrorCode.NOT_LEADER, 6, 10),
        (ErrorCode.STORAGE_ERROR, 6, 10),
    ],
)
def test_a_refusal_moves_the_log_start_only_in_this_epoch_and_if_the_log_ends_below_the_leaders(
    code: ErrorCode, epoch: int, start: int
) -> None:
    stage = fetching_again()
    stage.from_leader(refusals=[Refusal(P, code, "", epoch, start)])
    assert nothing_changes(stage)
    stage.feed(ev.Tick(), after_ms=100)
    assert [one.fetch_offset for one in stage.said().positions] == [10], "the follower fetches again"


@pytest.mark.parametrize("start", [10, 70])
def test_a_refusal_during_an_append_deletes_nothing_and_leads_to_a_retry(start: int) -> None:
    stage = fetching_again()
    stage.chunk(10, batch(offset=10, epoch=6), epoch=6)
    stage.from_leader(refusals=[Refusal(P, ErrorCode.OFFSET_OUT_OF_RANGE, "", 6, start)])
    assert nothing_changes(stage)
    stage.feed(ev.LogAppended(P, ID, 11))
    stage.feed(ev.Tick(), after_ms=100)
    assert [one.fetch_offset for one in stage.said().positions] == [11]


def test_nothing_is_appended_to_a_log_that_is_being_dropped() -> None:
    stage = fetching()
    stage.from_leader(refusals=[Refusal(P, ErrorCode.OFFSET_OUT_OF_RANGE, "", 5, 70)])
    assert stage.one(fx.ResetLog).start_offset == 70
    stage.chunk(10, batch(offset=10, epoch=5))
    assert nothing_changes(stage)
    stage.truncated(70, start=70)
    assert [one.fetch_offset for one in stage.said().positions] == [70]


def test_only_a_log_that_diverged_is_reconciled_again() -> None:
    stage = fetching()
    stage.from_leader(refusals=[Refusal(P, ErrorCode.LOG_DIVERGED, "", 4, 0)])
    stage.feed(ev.Tick(), after_ms=100)
    assert stage.said().queries == ()
    assert credited(stage) == 0, "a stream gives the credit of a log directory once"
    stage.from_leader(refusals=[Refusal(P, ErrorCode.LOG_DIVERGED, "", 5, 0)])
    stage.feed(ev.Tick(), after_ms=100)
    assert stage.said().queries == (EpochQuery(P, ID, 5, 4),)
