# SPDX-License-Identifier: Apache-2.0
"""Values of open transactions: the coordinator's state equals that of a replay of the log (rule X17)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark.core.pending_writes import PendingWrites, Writer

KEYS = "ab"
EVENTS = st.lists(
    st.tuples(st.sampled_from(["plain", "write", "commit", "abort"]), st.integers(1, 3), st.sampled_from(KEYS)),
    max_size=30,
)


def last_in_the_log(events: list[tuple[str, int, str]]) -> dict[str, int]:
    """The last value of each key, in the order of the log, that is neither pending nor aborted."""
    outcome: dict[tuple[int, int], str] = {}
    turns = {1: 0, 2: 0, 3: 0}
    records: list[tuple[str, int, tuple[int, int] | None]] = []
    for number, (kind, producer, key) in enumerate(events):
        if kind == "plain":
            records.append((key, number, None))
        elif kind == "write":
            records.append((key, number, (producer, turns[producer])))
        else:
            outcome[producer, turns[producer]] = kind
            turns[producer] += 1
    return {key: number for key, number, of in records if of is None or outcome.get(of) == "commit"}


@given(EVENTS)
def test_the_values_in_force_are_the_last_ones_of_the_log(events: list[tuple[str, int, str]]) -> None:
    pending: PendingWrites[str, int] = PendingWrites()
    in_force: dict[str, int] = {}
    epochs = {1: 0, 2: 0, 3: 0}
    written: dict[int, set[str]] = {1: set(), 2: set(), 3: set()}
    for number, (kind, producer, key) in enumerate(events):
        if kind == "plain":
            pending.overwrite(key)
            in_force[key] = number
        elif kind == "write":
            pending.add(Writer(producer, epochs[producer]), [(key, number)])
            written[producer].add(key)
        else:
            epochs[producer] += 1
            in_force.update(pending.end(producer, epochs[producer], commit=kind == "commit"))
            written[producer].clear()
        assert set(pending.keys) <= set().union(*written.values())
    assert in_force == last_in_the_log(events)

    copied: PendingWrites[str, int] = PendingWrites()
    for writer, values in pending.by_producer():
        copied.add(writer, values)
    for producer in epochs:
        committed = pending.end(producer, epochs[producer] + 1, commit=True)
        assert sorted(copied.end(producer, epochs[producer] + 1, commit=True)) == sorted(committed)
    assert not pending
    assert not copied


def test_a_marker_of_the_transaction_before_ends_no_later_one() -> None:
    pending: PendingWrites[str, int] = PendingWrites()
    pending.add(Writer(1, 4), [("a", 7)])
    assert pending.end(1, 4, commit=True) == []
    assert pending.end(1, 5, commit=True) == [("a", 7)]
    assert pending.end(1, 5, commit=True) == []


def test_values_that_were_not_written_leave_the_earlier_ones_of_their_producer() -> None:
    pending: PendingWrites[str, int] = PendingWrites()
    pending.add(Writer(1, 0), [("a", 1)])
    undo = pending.add(Writer(1, 0), [("a", 2), ("b", 3)])
    pending.undo(Writer(1, 0), undo)
    assert set(pending.keys) == {"a"}
    assert pending.end(1, 1, commit=True) == [("a", 1)]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_values_of_which_none_was_written_leave_none(order: tuple[int, ...]) -> None:
    pending: PendingWrites[str, int] = PendingWrites()
    undos = [pending.add(Writer(1, 0), [("a", value)]) for value in range(3)]
    for one in order:
        pending.undo(Writer(1, 0), undos[one])
    assert not pending
    assert pending.end(1, 1, commit=True) == []
