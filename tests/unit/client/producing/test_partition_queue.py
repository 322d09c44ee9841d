# SPDX-License-Identifier: Apache-2.0
"""Order, sequences and unknown outcomes of one partition's batches, without brokers (rules P1, P2, P4)."""

from __future__ import annotations

import random

import pytest
from tidemark.client.producing.batch_format import BytesFormat
from tidemark.client.producing.batching import PendingBatch
from tidemark.client.producing.partition_queue import PartitionQueue
from tidemark.core.producer_state import ProducerStates
from tidemark.core.transactions.state import ProducerIdentity
from tidemark.model import REMEMBERED_BATCHES, ErrorCode, TidemarkError, TopicPartition
from tidemark.record.envelope import Batch, Codec, parse_envelope, stamped
from tidemark.record.payload import read_batch

T0 = TopicPartition("t", 0)
LOST = TidemarkError(ErrorCode.BROKER_NOT_AVAILABLE, "the stream broke")


def refusal(code: ErrorCode) -> TidemarkError:
    return TidemarkError(code, "refused")


def queue_of(count: int, *, idempotent: bool = True, max_in_flight: int = 5) -> PartitionQueue:
    queue = PartitionQueue(T0, "id", max_in_flight=max_in_flight, idempotent=idempotent, codec=Codec.NONE)
    for number in range(count):
        batch = PendingBatch(T0, opened_s=0, deadline_s=10 + number)
        batch.add(None, str(number).encode(), 7, None)
        queue.put(batch)
    queue.identity = ProducerIdentity(1, 0)
    return queue


def take_all(queue: PartitionQueue) -> list[PendingBatch]:
    """Take every batch that may be sent now."""
    taken = []
    while queue.can_send:
        batch = queue.take(object())
        assert batch is not None
        taken.append(batch)
    return taken


def sequences(batches: list[PendingBatch]) -> list[int]:
    return [parse_envelope(batch.data or b"").base_sequence for batch in batches]


def outcomes(queue: PartitionQueue) -> list[ErrorCode | None]:
    return [told.error.code if told.error else None for told in queue.take_resolved()]


@pytest.mark.parametrize("remembered", [5, REMEMBERED_BATCHES])
def test_no_more_batches_are_in_flight_than_brokers_remember(remembered: int) -> None:
    queue = queue_of(remembered + 2, max_in_flight=REMEMBERED_BATCHES)
    queue.window = remembered
    first = take_all(queue)
    assert sequences(first) == list(range(remembered))
    queue.acknowledged(first[1], first[1].attempt, base_offset=1, append_time_us=-1)
    assert take_all(queue) == []
    queue.acknowledged(first[0], first[0].attempt, base_offset=0, append_time_us=-1)
    assert sequences(take_all(queue)) == [remembered, remembered + 1]


def test_retries_keep_to_the_window_of_a_broker_that_has_come_meanwhile() -> None:
    """A leader of 0.1.0 refuses a sixth batch without acknowledgement, also a retry; its records then fail."""
    queue = queue_of(12, max_in_flight=REMEMBERED_BATCHES)
    assert len(take_all(queue)) == REMEMBERED_BATCHES
    queue.lose_all(refusal(ErrorCode.NOT_LEADER))
    queue.window = 5
    again = take_all(queue)
    assert sequences(again) == list(range(5))
    queue.acknowledged(again[0], again[0].attempt, base_offset=0, append_time_us=-1)
    assert sequences(take_all(queue)) == [5]


class RowsOf(BytesFormat):
    """Rows in a schema version of the topic with this id."""

    def __init__(self, topic_id: str) -> None:
        self.topic_id = topic_id


def test_rows_of_a_deleted_topic_do_not_go_to_the_topic_that_has_its_name_now() -> None:
    queue = queue_of(1)
    rows = {of: PendingBatch(T0, opened_s=0, deadline_s=10, batch_format=RowsOf(of)) for of in ("id", "deleted")}
    for batch in rows.values():
        batch.add(None, b"row", 7, None)
    assert queue.put(rows["id"])
    assert not queue.put(rows["deleted"])
    assert outcomes(queue) == [ErrorCode.UNKNOWN_TOPIC_ID]
    assert take_all(queue)[1:] == [rows["id"]]


def test_rows_that_precede_the_metadata_are_sent_to_the_topic_of_their_schema_only() -> None:
    queue = PartitionQueue(T0, "", max_in_flight=5, idempotent=True, codec=Codec.NONE)
    batch = PendingBatch(T0, opened_s=0, deadline_s=10, batch_format=RowsOf("id"))
    batch.add(None, b"row", 7, None)
    assert queue.put(batch)
    assert queue.topic_id == "id"


def test_retry_of_a_delayed_batch_is_within_the_window() -> None:
    queue = queue_of(20)
    log: list[bytes] = []
    states = ProducerStates()
    oldest, *others = take_all(queue)
    held = oldest.attempt
    _append(queue, oldest, object(), log, states, answered=True)  # appended; the response is delayed
    while others:
        _append(queue, others[0], others[0].attempt, log, states, answered=True)
        others = others[1:] + take_all(queue)
    queue.refused(oldest, held, LOST, lost=True)
    while again := take_all(queue):
        for batch in again:
            _append(queue, batch, batch.attempt, log, states, answered=True)
    assert outcomes(queue) == [None] * 20
    assert [int(value) for value in log] == list(range(20))


def test_retries_start_after_every_attempt_ended_and_keep_the_order() -> None:
    queue = queue_of(7)
    batches = take_all(queue)
    queue.refused(batches[1], batches[1].attempt, refusal(ErrorCode.NOT_LEADER))
    assert not queue.can_send
    queue.acknowledged(batches[0], batches[0].attempt, base_offset=0, append_time_us=-1)
    queue.refused(batches[3], batches[3].attempt, refusal(ErrorCode.OUT_OF_ORDER_SEQUENCE))
    queue.refused(batches[2], batches[2].attempt, refusal(ErrorCode.OUT_OF_ORDER_SEQUENCE))
    assert not queue.can_send
    queue.refused(batches[4], batches[4].attempt, LOST, lost=True)
    assert sequences(take_all(queue)) == [1, 2, 3, 4, 5]
    assert outcomes(queue) == [None]


def test_response_of_an_abandoned_attempt_has_no_effect() -> None:
    queue = queue_of(1)
    (batch,) = take_all(queue)
    old = batch.attempt
    queue.lose_all(LOST)
    assert take_all(queue) == [batch]
    queue.acknowledged(batch, old, base_offset=9, append_time_us=-1)
    queue.refused(batch, old, refusal(ErrorCode.INVALID_BATCH))
    assert outcomes(queue) == []
    queue.acknowledged(batch, batch.attempt, base_offset=0, append_time_us=-1)
    assert outcomes(queue) == [None]


@pytest.mark.parametrize("code", [ErrorCode.OUT_OF_ORDER_SEQUENCE, ErrorCode.UNKNOWN_PRODUCER_ID])
def test_gap_fails_a_batch_in_doubt_and_resequences_the_others(code: ErrorCode) -> None:
    queue = queue_of(7)
    batches = take_all(queue)
    queue.lose_all(LOST)
    assert take_all(queue) == batches
    for batch in batches:
        queue.refused(batch, batch.attempt, refusal(code))
    assert outcomes(queue) == [code] * 5
    assert queue.wants_identity
    queue.identity = ProducerIdentity(2, 0)
    assert sequences(take_all(queue)) == [0, 1]


def test_gap_without_doubt_resequences_all_batches() -> None:
    queue = queue_of(2)
    for batch in take_all(queue):
        queue.refused(batch, batch.attempt, refusal(ErrorCode.UNKNOWN_PRODUCER_ID))
    assert outcomes(queue) == []
    assert queue.wants_identity
    queue.identity = ProducerIdentity(2, 0)
    again = take_all(queue)
    assert sequences(again) == [0, 1]
    assert parse_envelope(again[0].data or b"").producer_id == 2


def test_expired_batch_fails_later_batches_in_doubt() -> None:
    queue = queue_of(3)
    batches = take_all(queue)
    queue.refused(batches[0], batches[0].attempt, refusal(ErrorCode.NOT_ENOUGH_REPLICAS))
    queue.expire(10.5, lambda: "too late")
    assert outcomes(queue) == [ErrorCode.REQUEST_TIMED_OUT] * 3
    assert not len(queue)


def test_unsent_batch_expires_alone() -> None:
    queue = queue_of(2)
    queue.identity = None
    queue.expire(10.5, lambda: "no producer id")
    assert outcomes(queue) == [ErrorCode.REQUEST_TIMED_OUT]
    queue.identity = ProducerIdentity(1, 0)
    assert sequences(take_all(queue)) == [0]


def test_batch_of_a_version_that_a_broker_does_not_know_yet_is_sent_again_with_its_sequence() -> None:
    queue = queue_of(2)
    first, second = take_all(queue)
    data = first.data
    queue.refused(first, first.attempt, refusal(ErrorCode.UNKNOWN_SCHEMA_VERSION))
    queue.refused(second, second.attempt, refusal(ErrorCode.OUT_OF_ORDER_SEQUENCE))
    assert outcomes(queue) == []
    assert not first.in_doubt
    again = queue.take(object())
    assert again is first
    assert again.data is data


def test_batch_of_other_columns_fails_and_was_certainly_not_appended() -> None:
    queue = queue_of(1)
    (batch,) = take_all(queue)
    queue.refused(batch, batch.attempt, refusal(ErrorCode.SCHEMA_MISMATCH))
    (resolved,) = queue.take_resolved()
    assert resolved.error is not None
    assert (resolved.error.code, resolved.error.metadata["in_doubt"]) == (ErrorCode.SCHEMA_MISMATCH, "False")


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("idempotent", [False, True])
def test_missing_right_fails_all_batches_and_none_was_appended(shared: bool, idempotent: bool) -> None:
    queue = queue_of(7, idempotent=idempotent)
    taken = take_all(queue)
    for batch in taken:
        queue.refused(batch, batch.attempt, refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED), shared=shared)
    told = [(one.error.code, one.error.metadata["in_doubt"]) for one in queue.take_resolved() if one.error]
    assert told == [(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "False")] * 7
    assert not len(queue)


def test_without_idempotence_one_refusal_fails_one_batch() -> None:
    queue = queue_of(3, idempotent=False)
    batches = take_all(queue)
    assert sequences(batches) == [-1, -1, -1]
    queue.refused(batches[1], batches[1].attempt, refusal(ErrorCode.INVALID_TIMESTAMP))
    for batch in (batches[0], batches[2]):
        queue.acknowledged(batch, batch.attempt, base_offset=0, append_time_us=-1)
    assert sorted(outcomes(queue), key=str) == [ErrorCode.INVALID_TIMESTAMP, None, None]


@pytest.mark.parametrize("seed", range(60))
def test_acknowledged_batches_are_in_the_log_once_and_in_order(seed: int) -> None:
    """A broker that appends or not, and answers, refuses or does not answer; its own rules check the log."""
    world = random.Random(seed)
    queue = queue_of(30)
    batches = list(queue._ready)
    log: list[bytes] = []
    states = ProducerStates()
    identities = 1
    while len(queue):
        if queue.wants_identity:
            identities += 1
            queue.identity = ProducerIdentity(identities, 0)
        under_way = take_all(queue)
        for batch in [batch for batch in batches if batch.attempt is not None]:
            attempt = batch.attempt
            fate = world.random()
            if fate < 0.2:
                queue.refused(batch, attempt, LOST, lost=True)
            elif fate < 0.3:
                queue.refused(batch, attempt, refusal(ErrorCode.NOT_ENOUGH_REPLICAS))
            elif fate < 0.33:
                queue.refused(batch, attempt, refusal(ErrorCode.INVALID_TIMESTAMP))
            else:
                _append(queue, batch, attempt, log, states, answered=fate < 0.8)
        assert under_way or queue.failing or queue.wants_identity or not len(queue)
    told = queue.take_resolved()
    assert {id(one.batch) for one in told} == {id(batch) for batch in batches}
    assert len(told) == len(batches)
    acknowledged = [batches.index(one.batch) for one in told if one.error is None]
    numbers = [int(value) for value in log]
    assert len(numbers) == len(set(numbers))
    assert set(acknowledged) <= set(numbers)
    kept = [number for number in numbers if number in set(acknowledged)]
    assert kept == sorted(kept)


@pytest.mark.parametrize("seed", range(60))
def test_grouped_batches_are_in_the_log_once_and_in_order(seed: int) -> None:
    """First attempts are sent in groups here, and brokers refuse some batches permanently."""
    world = random.Random(seed)
    queue = queue_of(30)
    batches = list(queue._ready)
    poison = {id(batch) for batch in batches if world.random() < 0.1}
    log: list[bytes] = []
    states = ProducerStates()
    identities = 1
    while len(queue):
        if queue.wants_identity:
            identities += 1
            queue.identity = ProducerIdentity(identities, 0)
        for group in take_groups(queue):
            shared = len(group) > 1
            fate = world.random()
            if fate < 0.2:
                for batch in group:
                    queue.refused(batch, batch.attempt, LOST, lost=True, shared=shared)
            elif any(id(batch) in poison for batch in group):
                for batch in group:
                    queue.refused(batch, batch.attempt, refusal(ErrorCode.INVALID_TIMESTAMP), shared=shared)
            else:
                _append_all(queue, group, log, states, answered=fate < 0.8)
    told = queue.take_resolved()
    assert len(told) == len({id(one.batch) for one in told}) == len(batches)
    acknowledged = [batches.index(one.batch) for one in told if one.error is None]
    assert acknowledged
    assert not any(id(batches[number]) in poison for number in acknowledged)
    numbers = [int(value) for value in log]
    assert len(numbers) == len(set(numbers))
    assert set(acknowledged) <= set(numbers)
    kept = [number for number in numbers if number in set(acknowledged)]
    assert kept == sorted(kept)
    blamed = [one for one in told if one.error is not None and one.error.code is ErrorCode.INVALID_TIMESTAMP]
    assert all(id(one.batch) in poison or one.batch.in_doubt for one in blamed)


def take_groups(queue: PartitionQueue) -> list[list[PendingBatch]]:
    """Send as the sender does."""
    groups: list[list[PendingBatch]] = []
    while queue.can_send:
        again = queue.next_goes_again
        if again or not groups or groups[-1][-1].refusal is not None:
            groups.append([])
        batch = queue.take(object())
        assert batch is not None
        groups[-1].append(batch)
    return groups


def _append_all(
    queue: PartitionQueue, group: list[PendingBatch], log: list[bytes], states: ProducerStates, *, answered: bool
) -> None:
    """Append a group as a leader does: a gap before its first batch refuses all of it."""
    try:
        states.check(parse_envelope(group[0].data or b""))
    except TidemarkError as error:
        for batch in group:
            queue.refused(batch, batch.attempt, error, shared=len(group) > 1)
        return
    for batch in group:
        _append(queue, batch, batch.attempt, log, states, answered=answered)


def _append(
    queue: PartitionQueue,
    batch: PendingBatch,
    attempt: object,
    log: list[bytes],
    states: ProducerStates,
    *,
    answered: bool,
) -> None:
    data = batch.data or b""
    try:
        known = states.check(parse_envelope(data))
    except TidemarkError as error:
        queue.refused(batch, attempt, error)
        return
    offset = len(log)
    if known is None:
        written = stamped(Batch(parse_envelope(data), data), base_offset=offset, leader_epoch=0)
        states.observe(written.envelope)
        log.append(_value(data))
    else:
        offset = known.first_offset
    if answered:
        queue.acknowledged(batch, attempt, base_offset=offset, append_time_us=-1)
    else:
        queue.refused(batch, attempt, LOST, lost=True)


def _value(data: bytes) -> bytes:
    value = read_batch(Batch(parse_envelope(data), data)).column(1)[0].as_py()
    assert isinstance(value, bytes)
    return value
