# SPDX-License-Identifier: Apache-2.0
"""Pending batches and markers at the leader of a partition (rules X1, X2, X11)."""

from __future__ import annotations

import pytest
from tidemark.core.producer_state import ProducerStates
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.model import ErrorCode, TidemarkError
from tidemark.record.envelope import Batch, stamped

from tests.refusals import raises_code
from tests.unit.core.replication.stage import ID, P, Stage, batch, entries, marker, node, pending

TXN_ID = "pipeline"


class Transactions(Stage):
    def send(self, *batches: Batch, acks: int = -1, transactional_id: str = TXN_ID) -> int:
        """Produce as a transactional producer; the append is answered if there is one."""
        self.requests += 1
        self.feed(ev.ProduceArrived(self.requests, P, "", -1, acks, batches, transactional_id))
        self._answer_append()
        return self.requests

    def end(self, one: Batch) -> int:
        """A coordinator's marker."""
        self.requests += 1
        self.feed(ev.MarkerArrived(self.requests, P, "", -1, one))
        self._answer_append()
        return self.requests

    def _answer_append(self) -> None:
        for append in self.got(fx.AppendToLog):
            self.appended(append.base_offset + sum(one.envelope.last_offset_delta + 1 for one in append.batches))

    def open(self) -> list[tuple[int, int, int, int]]:
        found = self.core.queries.open_transactions(P).transactions
        return [(one.producer_id, one.producer_epoch, one.first_offset, one.coordinator_epoch) for one in found]


@pytest.fixture
def stage() -> Transactions:
    stage = Transactions()
    stage.leads((1, 2))
    stage.fetches(2, 0)
    return stage


def test_a_marker_is_answered_when_the_high_watermark_covers_it(stage: Transactions) -> None:
    stage.send(pending(records=3))
    ended = stage.end(marker())
    assert stage.replies() == []
    stage.reports(2, 3)
    assert [reply for reply in stage.replies() if reply[0] == ended] == []
    stage.reports(2, 4)
    assert stage.replies() == [(ended, 3, None)]


def lso(stage: Transactions, offset: int = 0) -> int | None:
    """The last stable offset that a read_committed fetch gets; it bounds the range."""
    found = stage.core.queries.readable(
        P,
        topic_id="",
        incarnation="",
        current_leader_epoch=-1,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        now_ms=stage.now,
        committed_only=True,
    )
    assert found.end_offset == max(offset, found.last_stable_offset or 0)
    return found.last_stable_offset


def test_the_last_stable_offset_stays_below_a_transaction_until_its_marker_is_committed(stage: Transactions) -> None:
    assert lso(stage) == 0
    stage.send(batch(2), transactional_id="")
    stage.send(pending(records=3))
    stage.reports(2, 5)
    assert lso(stage) == 2
    stage.send(batch(2), transactional_id="")
    stage.end(marker())
    assert lso(stage) == 2
    stage.reports(2, 7)
    assert lso(stage) == 2, "the marker is above the high watermark"
    stage.reports(2, 8)
    assert lso(stage) == 8
    assert lso(stage, offset=7) == 8


def test_the_oldest_of_several_unstable_transactions_bounds_the_last_stable_offset(stage: Transactions) -> None:
    for producer_id in (7, 8, 9):
        stage.send(pending(producer_id=producer_id))
    stage.reports(2, 3)
    stage.end(marker(producer_id=8))
    stage.end(marker(producer_id=7))
    assert lso(stage) == 0
    stage.reports(2, 4)
    assert lso(stage) == 0
    stage.reports(2, 5)
    assert lso(stage) == 2
    stage.end(marker(producer_id=9))
    stage.reports(2, 6)
    assert lso(stage) == 6


def test_a_new_leader_states_no_last_stable_offset_before_its_high_watermark_covers_all_markers() -> None:
    stage = Transactions()
    stage.leads((1, 2), end=10, epochs=[(3, 0)], high_watermark=4)
    assert lso(stage, 2) is None
    stage.fetches(2, 8, last_epoch=3)
    assert lso(stage, 2) is None
    stage.reports(2, 10)
    assert lso(stage, 2) == 10


def test_the_last_stable_offset_is_never_below_the_log_start(stage: Transactions) -> None:
    stage.send(pending(records=4))
    stage.send(batch(4), transactional_id="")
    stage.reports(2, 8)
    stage.feed(ev.LogStartRequested(P, ID, 5, 3))
    assert lso(stage, 3) == 3
    assert stage.core.queries.open_transactions(P).last_stable_offset == 3


def test_a_transaction_whose_records_are_deleted_holds_no_reader_back(stage: Transactions) -> None:
    """No coordinator ends a transaction of a lost `__transaction_state`; an operator deletes the records instead."""
    stage.send(pending(records=4))
    stage.send(pending(producer_id=8, records=2))
    stage.reports(2, 6)
    assert [one.end_offset for one in stage.core.queries.open_transactions(P).transactions] == [4, 6]
    stage.feed(ev.LogStartRequested(P, ID, 5, 3))
    assert stage.open() == [(7, 0, 0, -1), (8, 0, 4, -1)]
    stage.feed(ev.LogStartRequested(P, ID, 5, 4))
    assert stage.open() == [(8, 0, 4, -1)]
    stage.feed(ev.LogStartRequested(P, ID, 5, 6))
    assert stage.open() == []
    stage.send(batch(4), transactional_id="")
    stage.reports(2, 10)
    assert lso(stage, 6) == 10
    stage.send(pending(records=1, sequence=4))
    stage.reports(2, 11)
    assert lso(stage, 10) == 10, "the producer continues its transaction"
    stage.end(marker())
    stage.reports(2, 12)
    assert lso(stage, 10) == 12


def test_a_restarted_leader_is_not_held_back_by_a_transaction_whose_records_are_deleted() -> None:
    producers = ProducerStates()
    producers.observe(pending(records=4).envelope)
    stage = Transactions()
    stage.command(node(stage.me, 5, (1, 2)))
    stage.feed(ev.LogOpened(P, ID, ev.RecoveredLog(6, 10, 10, 10, entries((3, 0)), producers, None, False)))
    stage.fetches(2, 10, last_epoch=3)
    assert lso(stage, 6) == 10


def test_a_full_disk_opens_the_transactions_again_whose_markers_were_dropped(stage: Transactions) -> None:
    stage.send(pending(records=4))
    stage.reports(2, 4)
    before = stage.core.queries._replicas[P].log.producers.copy()
    stage.feed(ev.MarkerArrived(99, P, "", -1, marker()))
    full = TidemarkError(ErrorCode.DISK_FULL, "no space")
    stage.feed(ev.LogFull(P, ID, 4, before, full))
    assert lso(stage) == 0
    assert stage.open() == [(7, 0, 0, -1)]


def test_latest_of_read_committed_is_the_last_stable_offset(stage: Transactions) -> None:
    stage.send(batch(2), transactional_id="")
    stage.send(pending())
    stage.reports(2, 3)
    stated = stage.core.queries.stated_offsets(P, topic_id="", current_leader_epoch=-1, now_ms=stage.now)
    assert (stated.high_watermark, stated.last_stable_offset) == (3, 2)


def test_a_producer_needs_verification_until_its_transaction_is_open_and_after_its_end(stage: Transactions) -> None:
    queries = stage.core.queries
    assert queries.needs_verification(P, 7, 0)
    stage.send(pending())
    assert not queries.needs_verification(P, 7, 0)
    assert queries.needs_verification(P, 7, 1)
    assert stage.open() == [(7, 0, 0, -1)]
    stage.end(marker())
    assert stage.open() == []
    stage.send(pending(producer_epoch=1))
    assert stage.open() == [(7, 1, 2, 4)]
    assert not queries.needs_verification(P, 7, 1)


def test_a_repeated_marker_is_answered_alike_and_appended_once(stage: Transactions) -> None:
    stage.send(pending())
    first, second = stage.end(marker()), stage.end(marker())
    assert not stage.got(fx.AppendToLog)
    stage.reports(2, 1)
    assert [reply for reply in stage.replies() if reply[0] in (first, second)] == []
    stage.reports(2, 2)
    assert stage.replies() == [(first, 1, None), (second, -1, None)]
    third = stage.end(marker())
    assert stage.replies() == [(third, -1, None)]


def test_fenced_markers_are_refused_and_change_nothing(stage: Transactions) -> None:
    stage.send(pending())
    stage.end(marker(coordinator_epoch=4))
    stage.send(pending(producer_epoch=1))
    old_coordinator = stage.end(marker(producer_epoch=2, coordinator_epoch=3))
    assert stage.replies() == [(old_coordinator, -1, ErrorCode.COORDINATOR_FENCED)]
    old_epoch = stage.end(marker(producer_epoch=0))
    assert stage.replies() == [(old_epoch, -1, ErrorCode.PRODUCER_FENCED)]
    assert stage.open() == [(7, 1, 2, 4)]


def test_a_control_batch_of_another_kind_is_no_marker(stage: Transactions) -> None:
    request = stage.end(pending())
    assert stage.replies() == [(request, -1, ErrorCode.INVALID_REQUEST)]


def test_a_marker_needs_enough_replicas_in_sync() -> None:
    stage = Transactions()
    stage.leads((1,), min_isr=2)
    request = stage.end(marker())
    assert stage.replies() == [(request, -1, ErrorCode.NOT_ENOUGH_REPLICAS)]


def test_a_marker_at_a_follower_names_the_leader() -> None:
    stage = Transactions()
    stage.follows()
    request = stage.end(marker())
    assert stage.replies() == [(request, -1, ErrorCode.NOT_LEADER)]
    with raises_code(ErrorCode.NOT_LEADER):
        stage.core.queries.needs_verification(P, 7, 0)


@pytest.mark.parametrize(
    ("one", "acks", "transactional_id", "code"),
    [
        (pending(), -1, "", ErrorCode.INVALID_REQUEST),
        (pending(), 1, TXN_ID, ErrorCode.INVALID_ACKS),
        (pending(), 0, TXN_ID, ErrorCode.INVALID_ACKS),
        (marker(), -1, TXN_ID, ErrorCode.INVALID_REQUEST),
        (marker(), -1, "", ErrorCode.INVALID_REQUEST),
        (batch(sequence=0, producer_id=7), -1, TXN_ID, ErrorCode.INVALID_TXN_STATE),
        (batch(), -1, TXN_ID, ErrorCode.INVALID_TXN_STATE),
    ],
)
def test_batches_that_break_rule_x1_are_refused(
    stage: Transactions, one: Batch, acks: int, transactional_id: str, code: ErrorCode
) -> None:
    request = stage.send(one, acks=acks, transactional_id=transactional_id)
    assert stage.replies() == [(request, -1, code)]
    assert stage.open() == []


def test_a_batch_outside_the_open_transaction_of_its_producer_is_refused(stage: Transactions) -> None:
    stage.send(pending())
    request = stage.send(batch(sequence=1, producer_id=7), transactional_id="")
    assert stage.replies() == [(request, -1, ErrorCode.INVALID_TXN_STATE)]


def test_a_request_that_is_refused_halfway_opens_no_transaction(stage: Transactions) -> None:
    request = stage.send(pending(0), pending(5))
    assert stage.replies() == [(request, -1, ErrorCode.OUT_OF_ORDER_SEQUENCE)]
    assert stage.open() == []


def test_a_follower_that_becomes_the_leader_knows_the_open_transactions() -> None:
    stage = Transactions()
    stage.follows(2, epoch=5)
    plain = [
        one._replace(envelope=one.envelope._replace(base_offset=number, leader_epoch=5))
        for number, one in enumerate((pending(producer_id=8), pending()))
    ]
    end = stamped(marker(producer_id=8, coordinator_epoch=6), base_offset=2, leader_epoch=5)
    stage.chunk(0, *plain, end, high_watermark=3)
    stage.appended(3)
    stage.leads((1, 2), epoch=6)
    assert stage.open() == [(7, 0, 1, -1)]
    request = stage.end(marker(producer_id=8, producer_epoch=2, coordinator_epoch=5))
    assert stage.replies() == [(request, -1, ErrorCode.COORDINATOR_FENCED)]


def test_the_pending_batch_of_a_coordinator_states_no_end() -> None:
    """The batch has no sequence, so the leader remembers the open transaction without batches."""
    stage = Transactions()
    stage.follows(2, epoch=5)
    one = pending(sequence=-1)
    stage.chunk(0, one._replace(envelope=one.envelope._replace(leader_epoch=5)), high_watermark=1)
    stage.appended(1)
    stage.leads((1, 2), epoch=6)
    (found,) = stage.core.queries.open_transactions(P).transactions
    assert (found.first_offset, found.end_offset) == (0, None)
