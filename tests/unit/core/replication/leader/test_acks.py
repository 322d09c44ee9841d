# SPDX-License-Identifier: Apache-2.0
"""The answer to each produce request, and its time (rules R3, R4, P2)."""

from __future__ import annotations

import pytest
from tidemark.core.producer_state import ProducerStates
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.model import REMEMBERED_BATCHES, ErrorCode, TidemarkError
from tidemark.record.envelope import Attributes, Batch

from tests.unit.core.replication.leader.test_partition_leader import numbered
from tests.unit.core.replication.stage import ID, P, Stage, batch, node


def test_only_the_requests_that_the_high_watermark_has_passed_are_answered() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    first, second = stage.write(batch(2)), stage.write(batch(3))
    stage.reports(2, 1)
    assert stage.replies() == []
    stage.reports(2, 2)
    assert stage.replies() == [(first, 0, None)]
    stage.reports(2, 4)
    assert stage.replies() == []
    stage.reports(2, 5)
    assert stage.replies() == [(second, 2, None)]


def test_a_request_that_begins_with_a_duplicate_gets_the_offset_of_the_duplicate() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    stage.write(batch(3))
    stage.write(numbered(0))
    both = stage.produce(numbered(0), numbered(1))
    assert [one.envelope.base_sequence for one in stage.one(fx.AppendToLog).batches] == [1]
    stage.appended(5)
    stage.reports(2, 4)
    assert [reply for reply in stage.replies() if reply[0] == both] == [], "half of the request is not committed"
    stage.reports(2, 5)
    assert stage.replies() == [(both, 3, None)]


def stamped(sequence: int, time_us: int) -> Batch:
    """A numbered batch as the driver passes it to the core for message.timestamp.type=LogAppendTime."""
    found = batch(sequence=sequence, producer_id=7)
    attributes = int(Attributes.APPEND_TIME)
    return found._replace(envelope=found.envelope._replace(attributes=attributes, max_timestamp_us=time_us))


def test_a_duplicate_gets_the_append_time_of_its_original() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    stage.write(stamped(0, 50))
    stage.produce(stamped(0, 60))
    stage.write(numbered(1))
    stage.produce(stamped(1, 70))
    stage.reports(2, 2)
    times = [reply.result.append_time_us for reply in stage.got(fx.ReplyToProduce)]
    assert times == [50, 50, -1, -1], "the topic had CreateTime when batch 1 was appended"


def test_several_batches_that_are_sent_again_get_the_offset_of_the_first_and_wait_for_the_last() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    stage.write(batch(3))
    stage.write(numbered(0), numbered(1))
    again = stage.produce(numbered(0), numbered(1))
    assert not stage.got(fx.AppendToLog)
    stage.reports(2, 4)
    assert stage.replies() == [(1, 0, None)]
    stage.reports(2, 5)
    assert stage.replies() == [(2, 3, None), (again, 3, None)]


def test_a_batch_twice_in_one_request_is_appended_once() -> None:
    stage = Stage().leads((1,))
    stage.write(batch(3))
    request = stage.produce(numbered(0), numbered(0))
    assert len(stage.one(fx.AppendToLog).batches) == 1
    stage.appended(4)
    assert stage.replies() == [(request, 3, None)]


def test_an_idempotent_batch_is_checked_beside_others_that_are_not() -> None:
    stage = Stage().leads((1,))
    stage.write(numbered(0))
    stage.produce(batch(2), numbered(0))
    assert [one.envelope.record_count for one in stage.one(fx.AppendToLog).batches] == [2]


def test_a_partition_twice_in_one_request_is_refused_the_second_time() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    request = stage.write()
    stage.feed(ev.ProduceArrived(request, P, "", -1, -1, (batch(),)))
    assert stage.replies() == [(request, -1, ErrorCode.INVALID_REQUEST)]
    assert not stage.got(fx.AppendToLog)


def test_an_answered_request_gets_no_second_answer_at_its_timeout() -> None:
    stage = Stage().leads((1,))
    request = stage.write()
    assert stage.replies() == [(request, 0, None)]
    stage.feed(ev.ProduceExpired(request, P))
    assert stage.out == []


def test_a_request_that_timed_out_gets_no_second_answer_after_the_append() -> None:
    stage = Stage().leads((1,))
    request = stage.produce(acks=1)
    stage.feed(ev.ProduceExpired(request, P))
    assert stage.replies() == [(request, 0, ErrorCode.REQUEST_TIMED_OUT)]
    stage.appended(1)
    assert stage.replies() == []


def test_a_leader_notes_an_append_before_its_answer_if_the_request_asks() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    for request, notes in ((1, True), (2, False)):
        stage.feed(ev.ProduceArrived(request, P, "", -1, -1, (batch(),), notes_append=notes))
        assert not stage.got(fx.NoteAppend)
        stage.appended(request)
        assert stage.got(fx.NoteAppend) == ([fx.NoteAppend(1)] if notes else [])
        assert stage.replies() == []
    stage.reports(2, 2)
    assert stage.replies() == [(1, 0, None), (2, 1, None)]
    assert not stage.got(fx.NoteAppend)


def test_a_leader_notes_no_append_of_a_request_that_timed_out() -> None:
    stage = Stage().leads((1, 2))
    stage.feed(ev.ProduceArrived(1, P, "", -1, -1, (batch(),), notes_append=True))
    stage.feed(ev.ProduceExpired(1, P))
    stage.appended(1)
    assert not stage.got(fx.NoteAppend)


def test_a_leader_notes_no_append_that_the_disk_had_no_space_for() -> None:
    stage = Stage().leads((1, 2))
    stage.feed(ev.ProduceArrived(1, P, "", -1, -1, (batch(),), notes_append=True))
    stage.feed(ev.LogFull(P, ID, 0, ProducerStates(), TidemarkError(ErrorCode.DISK_FULL, "no space")))
    assert stage.replies() == [(1, -1, ErrorCode.DISK_FULL)]
    stage.now += 1_000
    stage.write()
    assert not stage.got(fx.NoteAppend)


def test_after_a_full_disk_each_append_answers_its_own_request() -> None:
    stage = Stage().leads((1,))
    stage.produce()
    full = TidemarkError(ErrorCode.DISK_FULL, "no space")
    stage.feed(ev.LogFull(P, ID, 0, ProducerStates(), full))
    stage.now += 1_000
    request = stage.produce(acks=1)
    stage.appended(1)
    assert stage.replies() == [(request, 0, None)]


# -- producers, after a failover and a cut -------------------------------------------------------------------------


def follower_of_a_producer(batches: int) -> Stage:
    """A replica with some batches of one producer, one record each, none of them known to be committed."""
    stage = Stage().follows()
    stage.chunk(0, *(numbered_at(offset) for offset in range(batches)))
    stage.feed(ev.LogAppended(P, ID, batches))
    return stage


def numbered_at(offset: int) -> Batch:
    return batch(offset=offset, epoch=5, sequence=offset, producer_id=7)


def test_a_follower_that_becomes_leader_recognises_the_retries_of_a_producer() -> None:
    stage = follower_of_a_producer(3)
    stage.command(node(1, 6, (1,)))
    request = stage.produce(numbered(2))
    assert not stage.got(fx.AppendToLog)
    assert stage.replies() == [(request, 2, None)]
    stage.produce(numbered(3))
    assert stage.got(fx.AppendToLog)


def test_a_producer_may_retry_batches_that_were_truncated() -> None:
    stage = follower_of_a_producer(3)
    stage.command(node(2, 6, (1, 2)))
    stage.answered(5, 1, current=6)
    left = ProducerStates()
    left.observe(numbered_at(0).envelope)
    stage.feed(ev.LogTruncated(P, ID, 0, 1, left))
    stage.command(node(1, 7, (1,)))
    stage.produce(numbered(1))
    assert stage.one(fx.AppendToLog).base_offset == 1


def test_a_batch_that_an_earlier_leader_appended_is_not_in_flight_here() -> None:
    """The limit of uncommitted batches of one producer held at the last leader (rule P1)."""
    stage = follower_of_a_producer(REMEMBERED_BATCHES)
    stage.command(node(1, 6, (1, 2)))
    assert stage.high_watermark() == 0
    stage.produce(numbered(REMEMBERED_BATCHES))
    assert stage.one(fx.AppendToLog).base_offset == REMEMBERED_BATCHES


@pytest.mark.parametrize("acks", [0, 1])
def test_one_idempotent_batch_among_others_requires_acks_all(acks: int) -> None:
    stage = Stage().leads((1,))
    stage.produce(batch(), numbered(0), acks=acks)
    assert [code for _, _, code in stage.replies()] == [ErrorCode.INVALID_ACKS]
    assert not stage.got(fx.AppendToLog)


def test_a_request_without_a_batch_is_refused() -> None:
    stage = Stage().leads((1,))
    stage.feed(ev.ProduceArrived(1, P, "", -1, -1, ()))
    assert stage.replies() == [(1, -1, ErrorCode.INVALID_REQUEST)]
