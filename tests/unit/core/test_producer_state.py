# SPDX-License-Identifier: Apache-2.0
"""Rules P1-P4 of one partition's producer state."""

from __future__ import annotations

import gc
import time

import pytest
from tidemark.core import producer_state
from tidemark.core.producer_state import PRODUCERS_MAX, SEQUENCE_SPACE, ProducerStates
from tidemark.model import REMEMBERED_BATCHES, ErrorCode, TidemarkError
from tidemark.record.envelope import Attributes, Envelope


def envelope(
    sequence: int, *, records: int = 1, offset: int = 0, producer_id: int = 7, producer_epoch: int = 0
) -> Envelope:
    return Envelope(
        base_offset=offset,
        leader_epoch=0,
        header_crc=0,
        batch_length=64,
        crc=0,
        magic=1,
        codec=0,
        attributes=0,
        record_count=records,
        last_offset_delta=records - 1,
        base_sequence=sequence,
        max_timestamp_us=sequence,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        delete_horizon_s=0,
    )


def observed(*envelopes: Envelope) -> ProducerStates:
    states = ProducerStates()
    for one in envelopes:
        assert states.check(one) is None
        states.observe(one)
    return states


def refusal(states: ProducerStates, one: Envelope) -> ErrorCode:
    with pytest.raises(TidemarkError) as caught:
        states.check(one)
    return caught.value.code


def test_a_producer_starts_with_sequence_zero_and_continues_without_a_gap() -> None:
    states = observed(envelope(0, records=3), envelope(3, offset=3))
    assert states.check(envelope(4)) is None
    assert refusal(states, envelope(5)) is ErrorCode.OUT_OF_ORDER_SEQUENCE


def test_an_unknown_producer_that_does_not_start_at_zero_is_refused() -> None:
    assert refusal(ProducerStates(), envelope(4)) is ErrorCode.UNKNOWN_PRODUCER_ID


def test_each_remembered_batch_is_found_with_its_offset() -> None:
    states = observed(*(envelope(2 * n, records=2, offset=10 * n) for n in range(1 + REMEMBERED_BATCHES)))
    for n in range(1, 1 + REMEMBERED_BATCHES):
        duplicate = states.check(envelope(2 * n, records=2))
        assert duplicate is not None
        assert (duplicate.first_offset, duplicate.last_offset) == (10 * n, 10 * n + 1)
    assert refusal(states, envelope(0, records=2)) is ErrorCode.DUPLICATE_SEQUENCE
    entry = states.entry(7)
    assert entry is not None
    assert len(entry.batches) == REMEMBERED_BATCHES


def test_a_batch_that_overlaps_a_remembered_one_is_no_duplicate() -> None:
    states = observed(envelope(0, records=4))
    assert refusal(states, envelope(0, records=2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE
    assert refusal(states, envelope(2, records=4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE


def test_an_older_producer_epoch_is_fenced_and_a_newer_one_starts_over() -> None:
    states = observed(envelope(0, producer_epoch=2))
    assert refusal(states, envelope(1, producer_epoch=1)) is ErrorCode.PRODUCER_FENCED
    assert refusal(states, envelope(1, producer_epoch=3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE
    newer = envelope(0, producer_epoch=3, offset=1)
    assert states.check(newer) is None
    states.observe(newer)
    entry = states.entry(7)
    assert entry is not None
    assert entry.producer_epoch == 3
    assert len(entry.batches) == 1


def test_sequences_wrap_around() -> None:
    last = SEQUENCE_SPACE - 1
    states = ProducerStates()
    states.observe(envelope(last - 1, records=2, offset=0))
    states.observe(envelope(0, records=3, offset=2))
    assert states.check(envelope(3)) is None
    again = states.check(envelope(last - 1, records=2))
    assert again is not None
    assert again.first_offset == 0
    spanning = ProducerStates()
    spanning.observe(envelope(last, records=3, offset=0))
    assert spanning.check(envelope(2)) is None


@pytest.mark.parametrize("shift", [0, 4, 8, 16, SEQUENCE_SPACE - 100])
def test_older_and_newer_sequences_are_distinguished_across_the_wrap_around(shift: int) -> None:
    """Three batches of two records that are forgotten, and all that are remembered; `shift`: of the first sequence."""
    first, end = 6, 6 + 2 * REMEMBERED_BATCHES

    def at(sequence: int) -> int:
        return (sequence - shift) % SEQUENCE_SPACE

    states = ProducerStates()
    for n in range(3 + REMEMBERED_BATCHES):
        states.observe(envelope(at(2 * n), records=2, offset=2 * n))
    assert states.check(envelope(at(end), records=2)) is None
    assert states.check(envelope(at(first), records=2)) is not None
    forgotten = (first - 2, 0, end - SEQUENCE_SPACE // 2)
    written = [refusal(states, envelope(at(sequence), records=2)) for sequence in forgotten]
    assert set(written) == {ErrorCode.DUPLICATE_SEQUENCE}
    unknown = (end + 1, first + 1, end + SEQUENCE_SPACE // 2 - 1)
    others = [refusal(states, envelope(at(sequence), records=2)) for sequence in unknown]
    assert set(others) == {ErrorCode.OUT_OF_ORDER_SEQUENCE}


def test_only_the_same_batch_is_a_duplicate() -> None:
    states = observed(envelope(0, records=2), envelope(2, records=3, offset=2), envelope(5, offset=5))
    for sequence, records in ((3, 2), (2, 2), (1, 4)):
        assert refusal(states, envelope(sequence, records=records)) is ErrorCode.OUT_OF_ORDER_SEQUENCE


def test_producer_zero_is_a_producer_like_any_other() -> None:
    states = observed(envelope(0, producer_id=0))
    assert states.check(envelope(0, producer_id=0)) is not None


def test_batches_without_a_sequence_are_ignored() -> None:
    states = observed(envelope(-1), envelope(0, producer_id=-1))
    assert not states.entries


def test_replaying_a_log_over_a_snapshot_changes_nothing() -> None:
    batches = [envelope(n, offset=n) for n in range(7)]
    states = observed(*batches)
    replayed = states.copy()
    for one in batches:
        replayed.observe(one)
    assert replayed == states
    assert replayed != observed(*batches[:-1])
    replayed.observe(batches[-1])
    replayed.observe(batches[-2])
    assert replayed.entries == states.entries
    newer = observed(envelope(0, producer_epoch=1), envelope(1, offset=9, producer_epoch=1))
    before = dict(newer.entries)
    newer.observe(envelope(2, offset=10, producer_epoch=0))
    assert newer.entries == before, "an older epoch of its producer changes nothing"


def test_a_producers_time_is_that_of_its_latest_record_not_of_its_last_batch() -> None:
    states = observed(envelope(0), envelope(1, offset=1))
    earlier = envelope(2, offset=2)._replace(max_timestamp_us=0)
    states.observe(earlier)
    entry = states.entry(7)
    assert entry is not None
    assert entry.last_timestamp_us == 1


def test_a_copy_is_independent_and_an_entry_can_be_restored() -> None:
    states = observed(envelope(0))
    before = states.entry(7)
    twin = states.copy()
    twin.observe(envelope(1, offset=1))
    assert states.entry(7) == before
    twin.restore(7, before)
    twin.restore(8, None)
    assert twin == states
    twin.restore(7, None)
    assert twin.entries == {}


# -- expiration ------------------------------------------------------------------------------------------------

DAY_MS = 86_400_000


def test_an_expired_producer_is_removed_when_a_new_one_is_added() -> None:
    states = ProducerStates().expiring(DAY_MS, 0)
    states.observe(envelope(0, producer_id=1), 0)
    states.observe(envelope(0, producer_id=2), 1)
    states.observe(envelope(0, producer_id=3), DAY_MS)
    assert set(states.entries) == {2, 3}
    assert refusal(states, envelope(1, producer_id=1)) is ErrorCode.UNKNOWN_PRODUCER_ID
    assert states.check(envelope(1, producer_id=2)) is None


def test_producers_expire_only_when_a_new_one_is_added() -> None:
    states = ProducerStates().expiring(DAY_MS, 0)
    states.observe(envelope(0, producer_id=1), 0)
    states.observe(envelope(0, producer_id=2), 0)
    states.observe(envelope(1, offset=1, producer_id=1), 5 * DAY_MS)
    assert set(states.entries) == {1, 2}
    states.observe(envelope(0, producer_id=3), 5 * DAY_MS)
    assert set(states.entries) == {1, 3}


def test_after_a_restart_the_expiration_time_of_known_producers_begins_again() -> None:
    states = observed(envelope(0, producer_id=1)).expiring(DAY_MS, 7 * DAY_MS)
    states.observe(envelope(0, producer_id=2), 8 * DAY_MS - 1)
    assert set(states.entries) == {1, 2}
    states.observe(envelope(0, producer_id=3), 8 * DAY_MS)
    assert set(states.entries) == {2, 3}


def test_the_longest_idle_producers_make_room_for_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 10)
    states = ProducerStates().expiring(DAY_MS, 0)
    for number in range(100):
        states.observe(envelope(0, producer_id=number + 1), number)
        states.observe(envelope(number + 1 if number else 0, offset=number, producer_id=0), number)
    assert set(states.entries) == {0, *range(92, 101)}, "the busy producer stays"


def test_a_new_producer_at_the_limit_costs_no_search_for_the_longest_idle_one() -> None:
    """A leader adds a thousand in one step, on the event loop."""
    states = ProducerStates().expiring(DAY_MS, 0)

    def cost_s(first: int) -> float:
        batches = [envelope(0, offset=number, producer_id=number) for number in range(first, first + PRODUCERS_MAX)]
        gc.disable()
        try:
            began_s = time.thread_time()
            for batch in batches:
                states.observe(batch, batch.producer_id)
            return time.thread_time() - began_s
        finally:
            gc.enable()

    below_s = cost_s(0)
    assert cost_s(PRODUCERS_MAX) < 4 * below_s


def test_producers_with_an_open_transaction_stay_above_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 10)
    states = ProducerStates().expiring(DAY_MS, 0)
    for number in range(30):
        opened = envelope(0, offset=number, producer_id=number)._replace(attributes=int(Attributes.PENDING))
        states.observe(opened, number)
    assert len(states.entries) == 30
    for number in range(30, 60):
        states.observe(envelope(0, producer_id=number), number)
    assert set(range(30)) <= set(states.entries)
    assert len(states.entries) <= 32


def test_a_log_with_very_many_producers_remembers_the_limit_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 10)
    states = observed(*(envelope(0, producer_id=number) for number in range(1000))).expiring(DAY_MS, 0)
    states.observe(envelope(0, producer_id=1000), 1)
    assert set(states.entries) == set(range(991, 1001))


def test_after_a_restart_a_busy_producer_stays_although_it_is_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may retry a batch whose answer the restart cut off."""
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 10)
    batches = [envelope(0, offset=number, producer_id=number) for number in range(10)]
    restarted = observed(*batches, envelope(1, offset=10, producer_id=0)).expiring(DAY_MS, 0)
    for number in range(10, 15):
        restarted.observe(envelope(0, offset=number + 1, producer_id=number), 1)
    assert set(restarted.entries) == {0, *range(6, 15)}


def test_a_refused_new_producer_leaves_no_state() -> None:
    states = ProducerStates().expiring(DAY_MS, 0)
    states.observe(envelope(0, producer_id=1), 0)
    states.restore(1, None)
    states.observe(envelope(0, producer_id=1), DAY_MS)
    states.observe(envelope(0, producer_id=2), DAY_MS + 1)
    assert set(states.entries) == {1, 2}
