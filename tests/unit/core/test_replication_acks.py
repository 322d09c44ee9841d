"""Which answer a producer gets when, request by request (rules R3, R4, P2)."""

from __future__ import annotations

from tidemark.core import effects as fx
from tidemark.core import events as ev
from tidemark.core.producer_state import ProducerStates
from tidemark.model import ErrorCode, TidemarkError

from tests.unit.core.stage import ID, P, Stage, batch
from tests.unit.core.test_replication_leader import numbered


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


def test_a_request_that_begins_with_what_the_log_holds_already_gets_the_offset_of_that() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    stage.write(batch(3))
    stage.write(numbered(0))
    both = stage.produce(numbered(0), numbered(1))
    assert [one.envelope.base_sequence for one in stage.one(fx.AppendToLog).batches] == [1]
    stage.appended(5)
    stage.reports(2, 4)
    assert [reply for reply in stage.replies() if reply[0] == both] == [], "half of it is not committed"
    stage.reports(2, 5)
    assert stage.replies() == [(both, 3, None)]


def test_a_partition_that_is_named_twice_in_one_request_is_refused_the_second_time() -> None:
    stage = Stage().leads((1, 2))
    stage.fetches(2, 0)
    request = stage.write()
    stage.feed(ev.ProduceArrived(request, P, "", -1, -1, (batch(),)))
    assert stage.replies() == [(request, -1, ErrorCode.INVALID_REQUEST)]
    assert not stage.got(fx.AppendToLog)


def test_who_was_answered_is_told_nothing_when_the_time_is_over() -> None:
    stage = Stage().leads((1,))
    request = stage.write()
    assert stage.replies() == [(request, 0, None)]
    stage.feed(ev.ProduceExpired(request, P))
    assert stage.out == []


def test_whose_time_was_over_is_told_nothing_when_the_record_is_written() -> None:
    stage = Stage().leads((1,))
    request = stage.produce(acks=1)
    stage.feed(ev.ProduceExpired(request, P))
    assert stage.replies() == [(request, 0, ErrorCode.REQUEST_TIMED_OUT)]
    stage.appended(1)
    assert stage.replies() == []


def test_after_a_full_disk_each_append_answers_its_own_request() -> None:
    stage = Stage().leads((1,))
    stage.produce()
    full = TidemarkError(ErrorCode.DISK_FULL, "no space")
    stage.feed(ev.LogFull(P, ID, 0, ProducerStates(), full))
    stage.now += 1_000
    request = stage.produce(acks=1)
    stage.appended(1)
    assert stage.replies() == [(request, 0, None)]
