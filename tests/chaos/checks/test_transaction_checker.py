# SPDX-License-Identifier: Apache-2.0
"""The checker of transactions against forged histories: each anomaly is found by its name, a good history passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.checks.history import Polled
from tests.chaos.checks.transaction_checker import TransactionAnomaly, check_transactions
from tests.chaos.checks.transaction_history import (
    End,
    Transaction,
    TransactionHistory,
    TransactionJournal,
    read_transactions,
)


def good() -> TransactionHistory:
    """Two producers interleave.

    One transaction is aborted, one has an unknown outcome, and its records are in the log.
    """
    history = TransactionHistory()
    history.transactions = [
        Transaction("a1", "a", 0.0, 1.0, End.COMMITTED, [(0, "a1.0"), (0, "a1.1"), (1, "a1.2")]),
        Transaction("b1", "b", 0.1, 1.1, End.COMMITTED, [(1, "b1.0"), (0, "b1.1")]),
        Transaction("a2", "a", 1.2, 1.5, End.ABORTED, [(0, "a2.0"), (1, "a2.1")]),
        Transaction("b2", "b", 1.6, None, End.UNKNOWN, [(0, "b2.0"), (1, "b2.1")], seen=["a1.0"]),
        Transaction("a3", "a", 1.7, 2.0, End.COMMITTED, [(0, "a3.0")], seen=["b1.0"]),
    ]
    # Offsets 2 of partition 0 and 2 of partition 1 have aborted records, 4 of partition 0 a marker.
    history.final = {
        0: [(0, "a1.0"), (1, "b1.1"), (3, "a1.1"), (6, "b2.0"), (7, "a3.0")],
        1: [(0, "b1.0"), (1, "a1.2"), (5, "b2.1")],
    }
    covers = {"a1": (0, 0, 3), "a2": (0, 3, 9), "b2": (0, 3, 7), "a3": (0, 7, 8), "b1": (1, 0, 2)}
    for tag, cover in covers.items():
        transaction(history, tag).covers.append(cover)
    history.input_offsets = {0: 8, 1: 2, 2: 0}
    history.readers = ("x",)
    read_all(history)
    return history


def read_all(history: TransactionHistory) -> None:
    history.polled = [
        Polled(reader, partition, offset, value)
        for reader in history.readers
        for partition, records in history.final.items()
        for offset, value in records
    ]


def transaction(history: TransactionHistory, tag: str) -> Transaction:
    return next(one for one in history.transactions if one.tag == tag)


def write_before_an_earlier_end(history: TransactionHistory) -> None:
    history.final[0] = [(0, "a1.0"), (1, "b1.1"), (2, "a3.0"), (3, "a1.1"), (6, "b2.0")]
    history.transactions[-1].name = "c"
    read_all(history)


def show_an_aborted_record(history: TransactionHistory) -> None:
    history.polled.insert(3, Polled("x", 0, 5, "a2.0"))


def keep_an_aborted_record(history: TransactionHistory) -> None:
    history.final[0].insert(3, (5, "a2.0"))
    read_all(history)


def show_a_part(history: TransactionHistory) -> None:
    """The reader skips a1.1 in partition 0, though it got a1.0."""
    del history.polled[2]


def read_each_other(history: TransactionHistory) -> None:
    transaction(history, "b2").seen = ["a3.0"]
    transaction(history, "a3").seen = ["b2.0"]


def read_a_later_record(history: TransactionHistory) -> None:
    """Make a cycle by reads and by writes of one id: a1 read b2, b2 read a3, and a3 comes after a1."""
    transaction(history, "a1").seen = ["b2.0"]
    transaction(history, "b2").seen = ["a3.0"]


def tear(history: TransactionHistory) -> None:
    history.final[1].pop()
    read_all(history)


def lose(history: TransactionHistory) -> None:
    history.final[0].pop()
    read_all(history)


def double(history: TransactionHistory) -> None:
    history.final[0].append((8, "a3.0"))
    read_all(history)


def swap(history: TransactionHistory) -> None:
    history.final[0][0], history.final[0][2] = (0, "a1.1"), (3, "a1.0")
    read_all(history)


def invent(history: TransactionHistory) -> None:
    history.final[1].append((9, "no sender"))
    read_all(history)


def change(history: TransactionHistory) -> None:
    history.polled.append(Polled("y", 1, 5, "b2.0"))


def go_back(history: TransactionHistory) -> None:
    history.polled.append(Polled("x", 1, 1, "a1.2"))


def overlook(history: TransactionHistory) -> None:
    history.polled.pop()


def transform_twice(history: TransactionHistory) -> None:
    transaction(history, "a3").covers = [(0, 6, 8)]


def pass_over_input(history: TransactionHistory) -> None:
    transaction(history, "b2").covers = []


def commit_an_offset_alone(history: TransactionHistory) -> None:
    history.input_offsets[1] = 5


def fail(history: TransactionHistory) -> None:
    history.failures.append("a-1: it raised UNKNOWN_TOPIC")


FORGED: list[tuple[Callable[[TransactionHistory], None], TransactionAnomaly]] = [
    (write_before_an_earlier_end, TransactionAnomaly.G0),
    (show_an_aborted_record, TransactionAnomaly.G1A),
    (keep_an_aborted_record, TransactionAnomaly.G1A),
    (show_a_part, TransactionAnomaly.G1B),
    (read_each_other, TransactionAnomaly.G1C),
    (read_a_later_record, TransactionAnomaly.G1C),
    (tear, TransactionAnomaly.TORN),
    (lose, TransactionAnomaly.LOST_WRITE),
    (double, TransactionAnomaly.DUPLICATED),
    (swap, TransactionAnomaly.DISORDERED),
    (invent, TransactionAnomaly.NEVER_SENT),
    (change, TransactionAnomaly.UNREPEATABLE),
    (go_back, TransactionAnomaly.WENT_BACK),
    (overlook, TransactionAnomaly.UNSEEN),
    (transform_twice, TransactionAnomaly.INPUT_TWICE),
    (pass_over_input, TransactionAnomaly.INPUT_LOST),
    (commit_an_offset_alone, TransactionAnomaly.OFFSET_APART),
    (fail, TransactionAnomaly.GAVE_UP),
]


def test_a_good_history_of_transactions_passes() -> None:
    assert check_transactions(good()) == []


@pytest.mark.parametrize(("forge", "anomaly"), FORGED, ids=lambda one: getattr(one, "__name__", ""))
def test_an_anomaly_of_transactions_is_found(
    forge: Callable[[TransactionHistory], None], anomaly: TransactionAnomaly
) -> None:
    history = good()
    forge(history)
    assert anomaly in {finding.anomaly for finding in check_transactions(history)}


def test_every_anomaly_of_transactions_has_a_forged_history() -> None:
    assert {anomaly for _, anomaly in FORGED} == set(TransactionAnomaly)


def test_a_journal_that_a_kill_cut_short_tells_whether_the_commit_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "sender-1.journal"
    journal = TransactionJournal(path)
    journal.add("begin", "s-1", name="s", at_s=1.0, seen=["r"])
    journal.add("cover", "s-1", partition=2, first=4, end=6)
    journal.add("send", "s-1", records=[(0, "s-1.0")])
    journal.add("committing", "s-1")
    journal.add("committed", "s-1", at_s=2.0)
    journal.add("begin", "s-2", name="s", at_s=3.0, seen=[])
    journal.add("send", "s-2", records=[(1, "s-2.0")])
    journal.add("committing", "s-2")
    journal.add("begin", "s-3", name="s", at_s=4.0, seen=[])
    with path.open("ab") as file:
        file.write(b'["committing", "s-3", {')
    found, failures = read_transactions([path])
    assert failures == []
    assert found == [
        Transaction("s-1", "s", 1.0, 2.0, End.COMMITTED, [(0, "s-1.0")], ["r"], [(2, 4, 6)]),
        Transaction("s-2", "s", 3.0, None, End.UNKNOWN, [(1, "s-2.0")]),
        Transaction("s-3", "s", 4.0, None, End.ABORTED),
    ]
