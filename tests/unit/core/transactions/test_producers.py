# SPDX-License-Identifier: Apache-2.0
"""The producer of an id: its start, decisions, retries, races and fencing (rules X10-X15)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from tidemark.core.transactions.phases import TRANSITIONS, Input, Phase
from tidemark.core.transactions.requests import Abort, Addition, End, Init, Marker, TransactionSettings
from tidemark.core.transactions.state import (
    LAST_EPOCH,
    Change,
    EndReason,
    ProducerIdentity,
    TransactionKey,
    TransactionPartition,
)
from tidemark.model import ErrorCode, TidemarkError

from tests.refusals import raises_code
from tests.unit.core.transactions.transaction_world import (
    COORDINATOR_EPOCH,
    FIRST_PRODUCER_ID,
    NAME,
    ORDERS,
    PAYMENTS,
    TIMEOUT_MS,
    TransactionWorld,
)

FIRST = ProducerIdentity(FIRST_PRODUCER_ID, 0)
DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def world() -> TransactionWorld:
    return TransactionWorld()


@contextmanager
def refused(world: TransactionWorld, code: ErrorCode) -> Iterator[None]:
    """The request is refused with that code, and changes nothing."""
    before, records = world.coordinator.summaries(world.now), len(world.log)
    with raises_code(code):
        yield
    assert (world.coordinator.summaries(world.now), len(world.log)) == (before, records)


def raised(producer: ProducerIdentity, by: int = 1) -> ProducerIdentity:
    return ProducerIdentity(producer.producer_id, producer.producer_epoch + by)


def test_a_transaction_runs_through_its_phases(world: TransactionWorld) -> None:
    producer = world.init().producer
    assert (producer, world.phase) == (FIRST, Phase.EMPTY)
    world.add(producer, ORDERS)
    world.add(producer, PAYMENTS, ORDERS)
    assert (world.phase, world.markers()) == (Phase.ONGOING, [])
    following = world.end(producer)
    assert (following, world.phase) == (raised(producer), Phase.PREPARE_COMMIT)
    assert world.markers() == [Marker(NAME, raised(producer), True, COORDINATOR_EPOCH, (ORDERS, PAYMENTS))]
    world.written(world.coordinator.marked(NAME, raised(producer), [ORDERS], world.now))
    assert (world.phase, world.markers()[0].partitions) == (Phase.PREPARE_COMMIT, (PAYMENTS,))
    world.written(world.coordinator.marked(NAME, raised(producer), [PAYMENTS], world.now))
    assert (world.phase, world.markers()) == (Phase.COMPLETE_COMMIT, [])
    world.add(following, ORDERS)
    assert world.phase is Phase.ONGOING


def test_an_abort_sends_markers_that_abort(world: TransactionWorld) -> None:
    producer = world.init().producer
    world.add(producer, ORDERS)
    world.end(producer, commit=False)
    assert [marker.commit for marker in world.markers()] == [False]
    world.mark()
    assert (world.phase, world.metadata.end_reason) == (Phase.COMPLETE_ABORT, EndReason.PRODUCER)


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_without_partitions_ends_without_markers(world: TransactionWorld, commit: bool) -> None:
    producer = world.init().producer
    assert world.end(producer, commit=commit) == raised(producer)
    assert world.end(producer, commit=commit) == raised(producer), "a repeated end is answered alike"
    assert world.phase is (Phase.COMPLETE_COMMIT if commit else Phase.COMPLETE_ABORT)
    assert world.coordinator.prepared == set()


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("complete", [True, False])
def test_a_repeated_end_is_answered_alike_until_the_next_transaction(
    world: TransactionWorld, commit: bool, complete: bool
) -> None:
    producer = world.init().producer
    world.add(producer, ORDERS)
    following = world.end(producer, commit=commit)
    if complete:
        world.mark()
    world.replay()
    records = len(world.log)
    assert world.end(producer, commit=commit) == following
    assert len(world.log) == records
    with refused(world, ErrorCode.INVALID_TXN_STATE):
        world.end(producer, commit=not commit)
    world.mark()
    world.add(following, ORDERS)
    with refused(world, ErrorCode.PRODUCER_FENCED):
        world.end(producer, commit=commit)


def test_requests_of_the_next_transaction_wait_for_the_markers(world: TransactionWorld) -> None:
    producer = world.init().producer
    world.add(producer, ORDERS)
    following = world.end(producer)
    with refused(world, ErrorCode.CONCURRENT_TRANSACTIONS):
        world.add(following, ORDERS)
    with refused(world, ErrorCode.CONCURRENT_TRANSACTIONS):
        world.end(following)
    with refused(world, ErrorCode.CONCURRENT_TRANSACTIONS):
        world.init()
    with refused(world, ErrorCode.CONCURRENT_TRANSACTIONS):
        world.init(following)


def test_a_late_write_of_an_ended_transaction_is_fenced(world: TransactionWorld) -> None:
    """KIP-890: such a write must neither join the next transaction nor open one that never ends."""
    producer = world.init().producer
    world.add(producer, ORDERS)
    following = world.end(producer, commit=False)
    with refused(world, ErrorCode.PRODUCER_FENCED):
        world.add(producer, PAYMENTS)
    world.mark()
    with refused(world, ErrorCode.PRODUCER_FENCED):
        world.add(producer, PAYMENTS)
    world.add(following, ORDERS)
    with refused(world, ErrorCode.PRODUCER_FENCED):
        world.add(producer, PAYMENTS)


def test_a_repeated_addition_writes_nothing(world: TransactionWorld) -> None:
    producer = world.init().producer
    world.add(producer, ORDERS, PAYMENTS)
    records = len(world.log)
    world.add(producer, PAYMENTS)
    assert len(world.log) == records


def test_an_addition_without_partitions_begins_no_transaction(world: TransactionWorld) -> None:
    world.add(world.init().producer)
    assert world.phase is Phase.EMPTY


# -- starts ------------------------------------------------------------------------------------------------------


def test_another_producer_of_the_id_fences_the_first_one(world: TransactionWorld) -> None:
    first = world.init()
    second = world.init()
    assert second.producer == raised(first.producer)
    assert second.generation > first.generation
    for request in (lambda: world.add(first.producer, ORDERS), lambda: world.end(first.producer)):
        with refused(world, ErrorCode.PRODUCER_FENCED):
            request()
    with refused(world, ErrorCode.PRODUCER_FENCED):
        world.init(first.producer)


def test_a_start_aborts_the_open_transaction_first(world: TransactionWorld) -> None:
    first = world.init()
    world.add(first.producer, ORDERS)
    with pytest.raises(TidemarkError, match="is aborted first"):
        world.init()
    assert (world.phase, world.metadata.end_reason) == (Phase.PREPARE_ABORT, EndReason.INIT)
    with refused(world, ErrorCode.PRODUCER_FENCED):
        world.end(first.producer)
    with refused(world, ErrorCode.CONCURRENT_TRANSACTIONS):
        world.init()
    assert world.markers() == [Marker(NAME, raised(first.producer), False, COORDINATOR_EPOCH, (ORDERS,))]
    world.mark()
    second = world.init()
    assert second.producer == raised(first.producer, by=2)
    with refused(world, ErrorCode.PRODUCER_FENCED):
        world.init(first.producer)


def test_a_producer_that_continues_gets_the_same_answer_again(world: TransactionWorld) -> None:
    """KIP-360: the first answer may have been lost."""
    first = world.init()
    again = world.init(first.producer)
    assert again.producer == raised(first.producer)
    assert world.init(first.producer) == again
    assert world.init(first.producer) == again
    world.add(again.producer, ORDERS)
    with refused(world, ErrorCode.PRODUCER_FENCED):
        world.init(first.producer)


def test_a_producer_that_continues_during_a_transaction_aborts_it(world: TransactionWorld) -> None:
    first = world.init()
    world.add(first.producer, ORDERS)
    with pytest.raises(TidemarkError):
        world.init(first.producer)
    world.mark()
    again = world.init(first.producer)
    assert again.producer == raised(first.producer), "partitions have this epoch from the marker"
    assert again.generation > first.generation
    world.add(again.producer, ORDERS)


def test_a_producer_whose_end_was_not_answered_may_start_again(world: TransactionWorld) -> None:
    producer = world.init().producer
    world.add(producer, ORDERS)
    following = world.end(producer)
    world.mark()
    assert world.init(producer).producer == following


def test_a_zombie_does_not_start_after_its_successor_in_any_order(world: TransactionWorld) -> None:
    zombie = world.init().producer
    world.add(zombie, ORDERS)
    world.ms += TIMEOUT_MS
    world.sweep()
    world.mark()
    world.init()
    with refused(world, ErrorCode.PRODUCER_FENCED):
        world.init(zombie)


def test_the_identity_of_an_expired_id_is_fenced(world: TransactionWorld) -> None:
    with refused(world, ErrorCode.PRODUCER_FENCED):
        world.init(FIRST)
    with raises_code(ErrorCode.TRANSACTION_NOT_FOUND):
        world.add(FIRST, ORDERS)


@pytest.mark.parametrize("timeout_ms", [-1, 0, 900_001])
def test_a_timeout_out_of_range_is_refused(world: TransactionWorld, timeout_ms: int) -> None:
    with refused(world, ErrorCode.INVALID_TRANSACTION_TIMEOUT):
        world.init(timeout_ms=timeout_ms)


@pytest.mark.parametrize("name", ["", "x" * 250, "line\nbreak"])
def test_an_invalid_id_is_refused(world: TransactionWorld, name: str) -> None:
    with refused(world, ErrorCode.INVALID_TRANSACTIONAL_ID):
        world.coordinator.init(Init(name, TIMEOUT_MS, None, 7), world.now)
    with refused(world, ErrorCode.INVALID_TRANSACTIONAL_ID):
        world.coordinator.describe(name)


# -- epochs ------------------------------------------------------------------------------------------------------


def at_the_last_epoch(world: TransactionWorld) -> ProducerIdentity:
    world.init()
    last = ProducerIdentity(FIRST_PRODUCER_ID, LAST_EPOCH)
    before = replace(world.metadata, producer=ProducerIdentity(FIRST_PRODUCER_ID, LAST_EPOCH - 1))
    world.log.append(Change(TransactionKey(NAME), before))
    world.replay()
    assert world.end(before.producer) == last
    return last


def test_an_end_at_the_last_epoch_gives_a_new_producer_id(world: TransactionWorld) -> None:
    last = at_the_last_epoch(world)
    world.add(last, ORDERS)
    with refused(world, ErrorCode.CONCURRENT_TRANSACTIONS):  # no fresh id is left
        world.coordinator.end(End(NAME, last, commit=True), world.now)
    following = world.end(last)
    assert following == ProducerIdentity(FIRST_PRODUCER_ID + 1, 0)
    assert [marker.producer for marker in world.markers()] == [raised(last)]
    assert world.end(last) == following
    world.mark()
    world.add(following, ORDERS)
    with refused(world, ErrorCode.PRODUCER_FENCED):
        world.add(last, ORDERS)


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_start_after_an_abort_of_the_last_epoch_gives_a_new_producer_id(
    world: TransactionWorld, goes_on: bool
) -> None:
    last = at_the_last_epoch(world)
    world.add(last, ORDERS)
    world.ms += TIMEOUT_MS
    world.sweep()
    assert [marker.producer.producer_epoch for marker in world.markers()] == [LAST_EPOCH + 1]
    world.mark()
    beyond = raised(last)
    with refused(world, ErrorCode.PRODUCER_FENCED):
        world.add(beyond, ORDERS)
    following = world.init(last if goes_on else None)
    assert following.producer.producer_epoch == 0
    assert following.producer.producer_id != last.producer_id
    if goes_on:
        assert world.init(last) == following


# -- timeouts, operators -----------------------------------------------------------------------------------------


def test_a_transaction_is_aborted_at_its_timeout(world: TransactionWorld) -> None:
    producer = world.init().producer
    world.add(producer, ORDERS)
    world.ms += TIMEOUT_MS - 1
    assert world.sweep() == ()
    world.ms += 1
    assert world.sweep() == (NAME,)
    assert (world.phase, world.metadata.end_reason) == (Phase.PREPARE_ABORT, EndReason.TIMEOUT)
    for complete in (False, True):
        if complete:
            world.mark()
        for commit in (True, False):
            with refused(world, ErrorCode.PRODUCER_FENCED):
                world.end(producer, commit=commit)
        with refused(world, ErrorCode.PRODUCER_FENCED):
            world.add(producer, ORDERS)
    assert world.init(producer).producer == raised(producer)


def test_an_end_before_the_sweep_wins(world: TransactionWorld) -> None:
    producer = world.init().producer
    world.add(producer, ORDERS)
    world.ms += TIMEOUT_MS
    world.end(producer)
    assert world.sweep() == ()
    assert world.phase is Phase.PREPARE_COMMIT


def test_a_stopped_coordinator_extends_timeouts(world: TransactionWorld) -> None:
    world.add(world.init().producer, ORDERS)
    world.ms += TIMEOUT_MS
    world.coordinator.excuse(1)
    assert world.sweep() == ()


def test_an_operator_aborts_and_fences(world: TransactionWorld) -> None:
    first = world.init()
    with refused(world, ErrorCode.INVALID_TXN_STATE):
        world.coordinator.abort(Abort(NAME), world.now)
    world.add(first.producer, ORDERS)
    for _ in range(2):  # a repeated request is answered alike
        world.written(world.coordinator.abort(Abort(NAME), world.now))
        assert (world.phase, world.metadata.end_reason) == (Phase.PREPARE_ABORT, EndReason.OPERATOR)
    world.mark()
    world.written(world.coordinator.abort(Abort(NAME), world.now))
    with refused(world, ErrorCode.PRODUCER_FENCED):
        world.end(first.producer)
    with refused(world, ErrorCode.PRODUCER_FENCED):
        world.init(first.producer)
    assert world.init().producer == raised(first.producer, by=2)


def test_a_repeated_abort_of_an_operator_ends_no_later_transaction(world: TransactionWorld) -> None:
    first = world.init()
    world.add(first.producer, ORDERS)
    asked = Abort(NAME, world.metadata.generation, world.metadata.started_ms)
    for _ in range(2):
        world.written(world.coordinator.abort(asked, world.now))
    world.mark()
    second = world.init()
    with refused(world, ErrorCode.INVALID_TXN_STATE):
        world.coordinator.abort(asked, world.now)
    world.ms += 1
    world.add(second.producer, ORDERS)
    with refused(world, ErrorCode.INVALID_TXN_STATE):
        world.coordinator.abort(asked, world.now)
    with refused(world, ErrorCode.INVALID_TXN_STATE):
        world.coordinator.abort(asked._replace(generation=world.metadata.generation), world.now)
    assert world.phase is Phase.ONGOING


def test_an_operator_cannot_abort_a_decided_transaction(world: TransactionWorld) -> None:
    producer = world.init().producer
    world.add(producer, ORDERS)
    world.end(producer)
    with refused(world, ErrorCode.INVALID_TXN_STATE):
        world.coordinator.abort(Abort(NAME), world.now)


def test_unused_ids_expire_oldest_first(world: TransactionWorld) -> None:
    world.settings = TransactionSettings(expiration_ms=7 * DAY_MS)
    for name in ("a", "b", "c"):
        world.written(world.coordinator.init(Init(name, TIMEOUT_MS, None, 7), world.now))
        world.ms += DAY_MS
    first = world.init()
    world.add(first.producer, ORDERS)
    world.end(first.producer)
    world.ms += 6 * DAY_MS - 1
    assert world.written(world.coordinator.expire(world.now, limit=1)) == ("a",)
    assert world.written(world.coordinator.expire(world.now, limit=1)) == ("b",)
    assert world.written(world.coordinator.expire(world.now)) == ()
    world.ms += DAY_MS * 90
    assert world.written(world.coordinator.expire(world.now)) == ("c",), "an id with markers to send stays"
    world.mark()
    world.ms += 7 * DAY_MS
    assert world.written(world.coordinator.expire(world.now)) == (NAME,)
    world.replay()
    assert len(world.coordinator) == 0
    assert world.init().generation > first.generation


# -- markers, replay ---------------------------------------------------------------------------------------------


def test_late_and_repeated_answers_of_partitions_change_nothing(world: TransactionWorld) -> None:
    producer = world.init().producer
    world.add(producer, ORDERS, PAYMENTS)
    world.end(producer)
    marker = raised(producer)
    for partitions in ([ORDERS], [ORDERS], [ORDERS, TransactionPartition("orders", "another-id", 0)]):
        assert not world.written(world.coordinator.marked(NAME, marker, partitions, world.now))
    assert not world.written(world.coordinator.marked(NAME, raised(marker), [PAYMENTS], world.now))
    assert not world.written(world.coordinator.marked("unknown", marker, [PAYMENTS], world.now))
    assert world.phase is Phase.PREPARE_COMMIT
    assert world.written(world.coordinator.marked(NAME, marker, [PAYMENTS], world.now))
    assert not world.written(world.coordinator.marked(NAME, marker, [PAYMENTS], world.now))
    world.add(marker, PAYMENTS)
    world.end(marker)
    assert not world.written(world.coordinator.marked(NAME, marker, [PAYMENTS], world.now)), "of the transaction before"
    assert world.phase is Phase.PREPARE_COMMIT


def test_a_new_coordinator_sends_every_marker_again_with_its_epoch(world: TransactionWorld) -> None:
    producer = world.init().producer
    world.add(producer, ORDERS, PAYMENTS)
    world.end(producer)
    world.written(world.coordinator.marked(NAME, raised(producer), [ORDERS], world.now))
    world.replay()
    assert list(world.coordinator.prepared) == [NAME]
    assert world.markers() == [Marker(NAME, raised(producer), True, COORDINATOR_EPOCH + 1, (ORDERS, PAYMENTS))]


def test_a_new_coordinator_gives_open_transactions_a_full_timeout(world: TransactionWorld) -> None:
    producer = world.init().producer
    world.add(producer, ORDERS)
    world.ms += TIMEOUT_MS
    world.replay()
    assert world.sweep() == ()
    world.ms += TIMEOUT_MS
    assert world.sweep() == (NAME,)


def test_a_decision_that_was_not_written_was_not_made(world: TransactionWorld) -> None:
    producer = world.init().producer
    world.add(producer, ORDERS)
    written = len(world.log)
    world.end(producer)
    world.replay(written)
    assert (world.phase, world.markers()) == (Phase.ONGOING, [])
    assert world.end(producer, commit=False) == raised(producer)


def test_markers_leave_only_when_the_decision_is_committed(world: TransactionWorld) -> None:
    producer = world.init().producer
    begun = world.coordinator.add_partitions(Addition(NAME, producer, (ORDERS,)), world.now)
    decided = world.coordinator.end(End(NAME, producer, commit=True), world.now)
    assert (world.phase, world.markers()) == (Phase.PREPARE_COMMIT, [])
    assert world.coordinator.prepared == set()
    assert world.coordinator.committed(begun.changes) == ()
    assert world.markers() == [], "the record of the decision is not committed yet"
    assert world.coordinator.committed(decided.changes) == (NAME,)
    assert [marker.partitions for marker in world.markers()] == [(ORDERS,)]
    world.mark()
    assert world.coordinator.committed(decided.changes) == (), "the transaction is complete"
    world.add(raised(producer), ORDERS)
    world.coordinator.end(End(NAME, raised(producer), commit=False), world.now)
    assert world.coordinator.committed(decided.changes) == (), "this decision is of an earlier transaction"
    assert world.markers() == []


def test_a_timeout_has_markers_only_when_its_record_is_committed(world: TransactionWorld) -> None:
    producer = world.init().producer
    world.add(producer, ORDERS)
    world.ms += TIMEOUT_MS
    overdue = world.coordinator.abort_overdue(world.now)
    assert (overdue.answer, world.markers()) == ((NAME,), [])
    assert world.coordinator.committed(overdue.changes) == (NAME,)
    assert [marker.commit for marker in world.markers()] == [False]


def test_every_phase_but_a_prepared_one_has_a_row_for_every_request() -> None:
    requests = (Input.INIT, Input.WRITE, Input.COMMIT, Input.ABORT)
    for phase in Phase:
        rows = {happened for happened in requests if (phase, happened) in TRANSITIONS}
        assert rows == (set() if phase.name.startswith("PREPARE") else set(requests)), phase


@pytest.mark.parametrize(
    "request_of",
    [
        lambda world: world.add(FIRST, ORDERS),
        lambda world: world.end(FIRST),
        lambda world: world.join(1),
        lambda world: world.coordinator.keep(NAME, 1, world.now),
        lambda world: world.commit_members(1),
        lambda world: world.coordinator.abort(Abort(NAME), world.now),
        lambda world: world.coordinator.describe(NAME),
    ],
)
def test_a_request_for_an_unknown_id_is_refused(
    world: TransactionWorld, request_of: Callable[[TransactionWorld], object]
) -> None:
    with refused(world, ErrorCode.TRANSACTION_NOT_FOUND):
        request_of(world)


def test_ids_are_listed_by_phase_and_age(world: TransactionWorld) -> None:
    world.written(world.coordinator.init(Init("idle", TIMEOUT_MS, None, 7), world.now))
    world.add(world.init().producer, ORDERS)
    world.ms += 1000
    assert [name for name, _ in world.coordinator.summaries(world.now)] == [NAME, "idle"]
    assert [name for name, _ in world.coordinator.summaries(world.now, (Phase.EMPTY,))] == ["idle"]
    assert [name for name, _ in world.coordinator.summaries(world.now, (), 999)] == [NAME]
    assert world.coordinator.summaries(world.now, (), 1000) == []
    described = world.coordinator.describe(NAME)
    assert list(described.partitions) == [(ORDERS, FIRST)]
