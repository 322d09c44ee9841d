# SPDX-License-Identifier: Apache-2.0
"""The batches that a reader sees (rule X4)."""

from __future__ import annotations

import pytest
from tidemark.record.envelope import Batch, end_of_batches, parse_envelope, stamped
from tidemark.record.markers import EndMarker, build_marker
from tidemark.record.payload import build_batch
from tidemark.record.transactions import AbortedBatches, AbortedTransaction, has_records

from tests.unit.record.samples import NOON_US, three_records


def data(offset: int, *, producer_id: int = 7, pending: bool = True) -> Batch:
    built = build_batch(three_records(), producer_id=producer_id, producer_epoch=0, base_sequence=0, pending=pending)
    return stamped(Batch(parse_envelope(built), built), base_offset=offset, leader_epoch=1)


def marker(offset: int) -> Batch:
    built = build_marker(producer_id=7, producer_epoch=1, marker=EndMarker(False, 1), timestamp_us=NOON_US)
    return stamped(Batch(parse_envelope(built), built), base_offset=offset, leader_epoch=1)


def test_control_batches_are_never_visible() -> None:
    batches = [data(0), marker(3), data(4)]
    assert [has_records(batch.envelope, AbortedBatches(())) for batch in batches] == [True, False, True]


@pytest.mark.parametrize(
    ("aborted", "seen"),
    [
        ((7, 0, 3), [6, 9, 12]),
        ((7, 0, 0), [0, 6, 9, 12]),
        ((7, 1, 10), [0, 6, 12]),
        ((7, 0, 9), [6, 9, 12]),
        ((7, 0, 10), [6, 12]),
        ((8, 0, 20), [0, 6, 9]),
        ((9, 0, 20), [0, 6, 9, 12]),
    ],
)
def test_whole_pending_batches_of_the_producer_within_the_range_are_dropped(
    aborted: tuple[int, int, int], seen: list[int]
) -> None:
    batches = [data(0), marker(3), data(6, pending=False), data(9), data(12, producer_id=8)]
    dropped = AbortedBatches([AbortedTransaction(*aborted)])
    assert [batch.envelope.base_offset for batch in batches if has_records(batch.envelope, dropped)] == seen


def test_each_of_very_many_aborted_transactions_of_a_producer_is_recognized_in_any_order() -> None:
    dropped = AbortedBatches(AbortedTransaction(7, first, first + 3) for first in reversed(range(0, 1_000_000, 10)))
    found = [offset for offset in range(500_000, 500_012) if data(offset).envelope in dropped]
    assert found == [500_000, 500_001, 500_002, 500_010, 500_011]
    assert data(5, producer_id=8).envelope not in dropped


def test_the_end_of_concatenated_batches_is_found_by_their_lengths() -> None:
    together = data(5).data + marker(8).data
    assert end_of_batches(together) == 9
    assert end_of_batches(memoryview(together)[: len(data(5).data)]) == 8
    assert end_of_batches(data(5).data + bytes(100)) == 1, "a damaged length ends the search"
