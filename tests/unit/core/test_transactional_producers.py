# SPDX-License-Identifier: Apache-2.0
"""Open transactions in one partition's producer state (rules X1, X2, X7)."""

from __future__ import annotations

import pytest
from tidemark.core.producer_state import NO_TRANSACTION, EndedTransaction, ProducerStates
from tidemark.model import ErrorCode, Offset, TidemarkError
from tidemark.record.envelope import Attributes, Envelope
from tidemark.record.markers import EndMarker

from tests.unit.core.test_producer_state import envelope, refusal

COMMIT = EndMarker(True, 4)
ABORT = EndMarker(False, 4)


def pending(sequence: int, *, offset: int = 0, producer_id: int = 7, producer_epoch: int = 0) -> Envelope:
    plain = envelope(sequence, offset=offset, producer_id=producer_id, producer_epoch=producer_epoch)
    return plain._replace(attributes=int(Attributes.PENDING))


def marker(*, offset: int = 0, producer_id: int = 7, producer_epoch: int = 1) -> Envelope:
    attributes = int(Attributes.PENDING | Attributes.CONTROL)
    plain = envelope(-1, offset=offset, producer_id=producer_id, producer_epoch=producer_epoch)
    return plain._replace(attributes=attributes)


def marker_refusal(states: ProducerStates, one: Envelope, content: EndMarker) -> ErrorCode:
    with pytest.raises(TidemarkError) as caught:
        states.check_marker(one, content)
    return caught.value.code


def test_a_pending_batch_opens_a_transaction_that_a_marker_ends() -> None:
    states = ProducerStates()
    assert states.first_open_offset is None
    states.observe(pending(0, offset=10))
    states.observe(pending(1, offset=11))
    assert states.first_open_offset == 10
    assert states.has_open(7, 0)
    assert not states.has_open(7, 1)
    assert not states.has_open(8, 0)
    ended = states.observe(marker(offset=12), marker=COMMIT)
    assert ended == EndedTransaction(7, 10, 12, True)
    assert states.first_open_offset is None
    assert not states.has_open(7, 0)


def test_the_oldest_of_several_open_transactions_comes_first() -> None:
    states = ProducerStates()
    for number, producer_id in enumerate((5, 9, 2)):
        states.observe(pending(0, offset=number, producer_id=producer_id))
    assert states.open_producers == (5, 9, 2)
    states.observe(marker(offset=3, producer_id=5), marker=ABORT)
    states.observe(pending(0, offset=4, producer_id=5, producer_epoch=1))
    assert states.open_producers == (9, 2, 5)
    assert states.first_open_offset == 1
    assert ProducerStates(states.entries).open_producers == (9, 2, 5), "a snapshot has no order of its own"


def test_a_marker_fences_late_batches_of_its_transaction() -> None:
    states = ProducerStates()
    states.observe(pending(0))
    states.observe(marker(offset=1), marker=ABORT)
    assert refusal(states, pending(1)) is ErrorCode.PRODUCER_FENCED
    assert refusal(states, pending(0)) is ErrorCode.PRODUCER_FENCED, "a retry of a batch of the ended transaction"
    assert states.check(pending(0, producer_epoch=1)) is None
    assert refusal(states, pending(1, producer_epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE


def test_a_marker_fences_a_first_batch_that_comes_after_it() -> None:
    states = ProducerStates()
    assert states.check_marker(marker(), ABORT)
    assert states.observe(marker(), marker=ABORT) is None
    assert refusal(states, pending(0)) is ErrorCode.PRODUCER_FENCED


def test_a_batch_that_is_not_of_the_open_transaction_is_refused() -> None:
    states = ProducerStates()
    states.observe(pending(0))
    assert refusal(states, envelope(1)) is ErrorCode.INVALID_TXN_STATE
    assert refusal(states, pending(0, producer_epoch=1)) is ErrorCode.INVALID_TXN_STATE
    assert states.check(pending(1)) is None


def test_the_abort_of_the_next_transaction_ends_one_whose_marker_was_lost() -> None:
    """An unclean election truncated the marker, epoch 1; the batch of the next transaction has that epoch."""
    states = ProducerStates()
    states.observe(pending(0, offset=3))
    assert refusal(states, pending(0, producer_epoch=1)) is ErrorCode.INVALID_TXN_STATE
    end = marker(offset=4, producer_epoch=2)
    assert states.check_marker(end, ABORT)
    assert states.observe(end, marker=ABORT) == EndedTransaction(7, Offset(3), Offset(4), commit=False)
    assert states.check(pending(0, producer_epoch=2)) is None


def test_pending_batches_of_a_coordinator_need_no_sequence() -> None:
    states = ProducerStates()
    assert states.check(pending(-1)) is None
    states.observe(pending(-1, offset=3))
    states.observe(pending(-1, offset=4))
    assert states.first_open_offset == 3
    assert states.check(pending(-1)) is None
    states.observe(marker(offset=5), marker=COMMIT)
    assert refusal(states, pending(-1)) is ErrorCode.PRODUCER_FENCED


def test_a_repeated_marker_is_found_also_after_the_next_transaction_has_begun() -> None:
    states = ProducerStates()
    states.observe(pending(0))
    assert states.check_marker(marker(), COMMIT)
    states.observe(marker(offset=1), marker=COMMIT)
    assert not states.check_marker(marker(), COMMIT)
    states.observe(pending(0, offset=2, producer_epoch=1))
    assert not states.check_marker(marker(), COMMIT)
    assert states.observe(marker(offset=1), marker=COMMIT) is None, "a replay"
    assert states.first_open_offset == 2


def test_markers_of_older_coordinators_and_older_epochs_are_fenced() -> None:
    states = ProducerStates()
    states.observe(pending(0, producer_epoch=5))
    states.observe(marker(offset=1, producer_epoch=6), marker=COMMIT)
    assert marker_refusal(states, marker(producer_epoch=7), EndMarker(False, 3)) is ErrorCode.COORDINATOR_FENCED
    assert marker_refusal(states, marker(producer_epoch=5), COMMIT) is ErrorCode.PRODUCER_FENCED
    assert states.check_marker(marker(producer_epoch=7), EndMarker(False, 5))
    entry = states.entry(7)
    assert entry is not None
    assert (entry.producer_epoch, entry.batches, entry.open_offset) == (6, (), NO_TRANSACTION)
    assert entry.coordinator_epoch == 4


def test_a_producer_keeps_its_coordinator_epoch_over_later_batches() -> None:
    states = ProducerStates()
    states.observe(marker(), marker=EndMarker(True, 8))
    states.observe(pending(0, offset=1, producer_epoch=1))
    states.observe(pending(0, offset=2, producer_epoch=2))
    assert marker_refusal(states, marker(producer_epoch=3), EndMarker(True, 7)) is ErrorCode.COORDINATOR_FENCED


def test_a_batch_of_a_newer_epoch_ends_the_transaction_whose_marker_is_missing() -> None:
    """The cleaner removed the marker before this replica returned."""
    states = ProducerStates()
    states.observe(pending(0, offset=1))
    states.observe(pending(0, offset=2, producer_id=8))
    states.observe(pending(0, offset=9, producer_epoch=1))
    assert states.open_producers == (8, 7)
    states.observe(envelope(0, offset=10, producer_id=8, producer_epoch=1))
    assert states.open_producers == (7,)
    assert states.first_open_offset == 9


def test_a_producer_with_an_open_transaction_does_not_expire() -> None:
    states = ProducerStates().expiring(100, 0)
    states.observe(pending(0, producer_id=1), 0)
    states.observe(envelope(0, offset=1, producer_id=2), 0)
    states.observe(envelope(0, offset=2, producer_id=3), 200)
    assert set(states.entries) == {1, 3}
    states.observe(marker(offset=3, producer_id=1), 250, COMMIT)
    states.observe(envelope(0, offset=4, producer_id=4), 500)
    assert set(states.entries) == {4}, "its transaction has ended"


def test_replaying_a_log_over_a_snapshot_changes_nothing() -> None:
    log: list[tuple[Envelope, EndMarker | None]] = [
        (pending(0, offset=0), None),
        (pending(0, offset=1, producer_id=8), None),
        (pending(-1, offset=2, producer_id=9), None),
        (marker(offset=3), COMMIT),
        (pending(0, offset=4, producer_epoch=1), None),
        (marker(offset=5, producer_id=8), ABORT),
        (pending(0, offset=6, producer_id=8, producer_epoch=1), None),
    ]
    states = ProducerStates()
    for one, content in log:
        states.observe(one, marker=content)
    replayed = states.copy()
    for one, content in log:
        replayed.observe(one, marker=content)
    assert replayed == states
    assert replayed.open_producers == states.open_producers == (9, 7, 8)


def test_an_undone_batch_leaves_no_open_transaction() -> None:
    states = ProducerStates()
    states.observe(envelope(0, producer_id=3))
    for producer_id in (3, 7):
        before = states.entry(producer_id)
        sequence = 1 if before else 0
        states.observe(pending(sequence, offset=1, producer_id=producer_id))
        states.restore(producer_id, before)
    assert states.open_producers == ()
    assert states.first_open_offset is None
