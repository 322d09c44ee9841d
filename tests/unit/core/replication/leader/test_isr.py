# SPDX-License-Identifier: Apache-2.0
"""The ELR when an ISR shrinks or grows (rule T3), and the members that bound the high watermark and acks (R3, R4)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidemark.core.replication.leader.isr import Committed, confirmed_enough, expand, maximal_isr, minimal_isr, shrink
from tidemark.model import IsrEntry, VersionedState

from tests.unit.core.replication.stage import node


def confirmed(isr: tuple[int, ...], *, elr: tuple[int, ...] = (), min_isr: int = 2) -> VersionedState:
    return VersionedState(node(1, 5, isr, elr=elr, min_isr=min_isr), 7)


@pytest.mark.parametrize(
    ("isr", "elr", "leaving", "min_isr", "eligible"),
    [
        ((1, 2, 3), (), (3,), 2, []),
        ((1, 2, 3), (), (2, 3), 2, [2, 3]),
        ((1, 2), (3,), (2,), 2, [3, 2]),
        ((1, 2, 3), (4,), (3,), 2, []),
        ((1, 2), (3,), (2,), 1, []),
    ],
)
def test_a_member_that_leaves_fewer_than_min_isr_joins_the_elr(
    isr: tuple[int, ...], elr: tuple[int, ...], leaving: tuple[int, ...], min_isr: int, eligible: list[int]
) -> None:
    pending = shrink(confirmed(isr, elr=elr, min_isr=min_isr), leaving)
    assert [entry.broker_id for entry in pending.proposed.elr] == eligible
    assert pending.proposed.isr_ids == tuple(one for one in isr if one not in leaving)


def test_a_leaving_member_is_eligible_once_with_the_broker_epoch_of_its_isr_entry() -> None:
    """A node may name a broker in both lists; the entry of the ISR counts."""
    state = node(1, 5, (1, 2), elr=(3,), min_isr=2)
    older = IsrEntry(2, 4)
    pending = shrink(VersionedState(replace(state, elr=(*state.elr, older)), 7), (2,))
    assert pending.proposed.elr == (IsrEntry(3, 13), IsrEntry(2, 12))


def test_an_unassigned_replica_is_not_eligible_when_it_leaves() -> None:
    pending = shrink(confirmed((1, 2, 3)), (2, 3), unassigned=(3,))
    assert [entry.broker_id for entry in pending.proposed.elr] == [2]


@pytest.mark.parametrize(
    ("min_isr", "eligible"),
    [(2, []), (3, [4]), (1, [])],
)
def test_a_joining_replica_leaves_the_elr_and_min_isr_members_empty_it(min_isr: int, eligible: list[int]) -> None:
    pending = expand(confirmed((1,), elr=(4, 2), min_isr=min_isr), [IsrEntry(2, 12)])
    assert pending.proposed.isr_ids == (1, 2)
    assert [entry.broker_id for entry in pending.proposed.elr] == eligible


def test_a_change_in_flight_bounds_the_high_watermark_by_the_union_and_acks_by_the_intersection() -> None:
    at = confirmed((1, 2))
    grows, shrinks = expand(at, [IsrEntry(3, 13)]), shrink(at, (2,))
    assert [maximal_isr(one) for one in (Committed(at), grows, shrinks)] == [{1, 2}, {1, 2, 3}, {1, 2}]
    assert [minimal_isr(one) for one in (Committed(at), grows, shrinks)] == [{1, 2}, {1, 2}, {1}]


@pytest.mark.parametrize(("min_isr", "enough"), [(1, True), (2, True), (3, False)])
def test_min_isr_is_counted_on_the_confirmed_isr(min_isr: int, enough: bool) -> None:
    at = confirmed((1, 2), min_isr=min_isr)
    assert confirmed_enough(Committed(at)) == enough
    assert confirmed_enough(expand(at, [IsrEntry(3, 13)])) == enough
