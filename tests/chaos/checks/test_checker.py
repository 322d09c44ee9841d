# SPDX-License-Identifier: Apache-2.0
"""The checker against forged histories: each anomaly is found by its name, and a good history passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.chaos.checks.checker import Anomaly, check
from tests.chaos.checks.history import Deleted, History, Outcome, Polled, Sent, ToldEnd


def good() -> History:
    """Two senders, two readers; two records have unknown outcomes, and one of them is in the log; one record failed."""
    history = History()
    history.sent = [
        Sent("a0", "a", 0, Outcome.ACKNOWLEDGED, 0),
        Sent("b0", "b", 0, Outcome.ACKNOWLEDGED, 1),
        Sent("a1", "a", 0, Outcome.UNKNOWN),
        Sent("b1", "b", 0, Outcome.UNKNOWN),
        Sent("a2", "a", 0, Outcome.ACKNOWLEDGED, 3),
        Sent("a3", "a", 1, Outcome.ACKNOWLEDGED, 0),
        Sent("b2", "b", 0, Outcome.FAILED),
    ]
    history.final = {0: [(0, "a0"), (1, "b0"), (2, "a1"), (3, "a2")], 1: [(0, "a3")]}
    history.readers = ("x", "y")
    history.polled = [
        Polled(reader, partition, offset, value)
        for reader in history.readers
        for partition, records in history.final.items()
        for offset, value in records
    ]
    history.ends = [ToldEnd(0, 2, 0.0, 0.1), ToldEnd(0, 4, 0.2, 0.5), ToldEnd(0, 3, 0.3, 0.4), ToldEnd(0, 4, 0.6, 0.7)]
    return history


def leave_a_record_unread(history: History) -> None:
    history.readers, history.polled = (), []


def lose(history: History) -> None:
    history.final[1] = []


def double(history: History) -> None:
    history.final[0].append((4, "a2"))
    leave_a_record_unread(history)


def reorder(history: History) -> None:
    history.final[0] = [(0, "a0"), (1, "b0"), (2, "a2"), (3, "a1")]
    history.sent[4] = replace(history.sent[4], offset=2)
    leave_a_record_unread(history)


def acknowledge_elsewhere(history: History) -> None:
    history.sent[5] = replace(history.sent[5], offset=7)


def show_two_values(history: History) -> None:
    history.polled.append(Polled("z", 0, 0, "b0"))
    history.polled = [one for one in history.polled if one.reader != "y"]
    history.readers = ("x",)


def show_deleted_records(history: History) -> None:
    history.polled.append(Polled("x", 0, 4, "b1"))


def skip(history: History) -> None:
    del history.polled[1]


def begin_behind_the_front(history: History) -> None:
    del history.polled[0]


def end_before_the_end(history: History) -> None:
    history.polled.remove(Polled("y", 0, 3, "a2"))


def read_nothing_of_a_partition(history: History) -> None:
    history.polled.remove(Polled("y", 1, 0, "a3"))


def go_back(history: History) -> None:
    history.polled.append(Polled("x", 0, 3, "a2"))


def tell_a_lower_end(history: History) -> None:
    history.ends.append(ToldEnd(0, 3, 0.8, 0.9))


def keep_a_failed_record(history: History) -> None:
    history.sent[2] = replace(history.sent[2], outcome=Outcome.FAILED)


def show_a_failed_record(history: History) -> None:
    history.polled.append(Polled("x", 0, 4, "b2"))


def invent(history: History) -> None:
    history.final[1].append((1, "unsent"))
    leave_a_record_unread(history)


def give_up(history: History) -> None:
    history.add_failure("the reader stopped")


def bring_back(history: History) -> None:
    history.deleted.append(Deleted(0, 2, 0.5))
    history.killed += [(0.4, "broker-0"), (0.6, "broker-1"), (0.6, "broker-2")]


FORGED: dict[Callable[[History], None], Anomaly] = {
    lose: Anomaly.LOST,
    double: Anomaly.DUPLICATE,
    reorder: Anomaly.REORDERED,
    acknowledge_elsewhere: Anomaly.DIVERGED,
    show_two_values: Anomaly.DIVERGED,
    show_deleted_records: Anomaly.UNCOMMITTED,
    skip: Anomaly.SKIPPED,
    begin_behind_the_front: Anomaly.SKIPPED,
    end_before_the_end: Anomaly.UNSEEN,
    read_nothing_of_a_partition: Anomaly.UNSEEN,
    go_back: Anomaly.WENT_BACK,
    tell_a_lower_end: Anomaly.END_WENT_BACK,
    keep_a_failed_record: Anomaly.ABORTED_READ,
    show_a_failed_record: Anomaly.ABORTED_READ,
    invent: Anomaly.NEVER_SENT,
    bring_back: Anomaly.CAME_BACK,
    give_up: Anomaly.GAVE_UP,
}


def test_a_good_history_passes() -> None:
    assert check(good()) == []


@pytest.mark.parametrize("forge", FORGED, ids=lambda forge: forge.__name__)
def test_a_forged_history_is_detected(forge: Callable[[History], None]) -> None:
    history = good()
    forge(history)
    found = {finding.anomaly for finding in check(history)}
    assert FORGED[forge] in found
    assert found <= {FORGED[forge], Anomaly.UNCOMMITTED}, (
        "the checker reports no other anomaly, except for a wrong value"
    )


def test_every_anomaly_has_a_forged_history() -> None:
    assert set(FORGED.values()) == set(Anomaly)


def test_only_records_that_timed_out_may_appear_late() -> None:
    history = good()
    reorder(history)
    history.hasty = True
    assert check(history) == []
    history.sent[2] = replace(history.sent[2], outcome=Outcome.ACKNOWLEDGED, offset=3)
    assert {finding.anomaly for finding in check(history)} == {Anomaly.REORDERED}


def compacted() -> History:
    """Two keys, each written twice.

    The cleaner removed the first records, which were acknowledged, and read by one reader.
    """
    history = History()
    history.sent = [
        Sent(f"a{number}", "a", 0, Outcome.ACKNOWLEDGED, number, key=f"k{number % 2}") for number in range(4)
    ]
    history.final = {0: [(2, "a2"), (3, "a3")]}
    history.polled = [Polled("x", 0, 0, "a0"), Polled("x", 0, 2, "a2"), Polled("x", 0, 3, "a3")]
    history.readers = ("x",)
    return history


def test_a_record_covered_by_a_later_one_of_its_key_may_be_missing() -> None:
    assert check(compacted()) == []


def test_the_latest_record_of_a_key_may_not_be_gone() -> None:
    history = compacted()
    history.final = {0: [(2, "a2")]}
    assert {finding.anomaly for finding in check(history)} == {Anomaly.LOST, Anomaly.UNCOMMITTED}


def test_all_consumers_miss_the_same_records() -> None:
    history = compacted()
    history.polled[0] = Polled("x", 0, 0, "a1")
    assert Anomaly.DIVERGED in {finding.anomaly for finding in check(history)}


def test_only_records_below_the_log_start_may_be_missing() -> None:
    history = good()
    history.starts = {0: 2}
    history.final[0] = history.final[0][2:]
    history.deleted.append(Deleted(0, 2, 0.5))
    assert check(history) == []
    history.final[0] = history.final[0][1:]
    assert {finding.anomaly for finding in check(history)} == {Anomaly.UNCOMMITTED}


@pytest.mark.parametrize("first", [1, 2, 3])
def test_a_reader_begins_with_the_first_record_that_is_left(first: int) -> None:
    history = good()
    history.starts = {0: 2}
    history.final[0] = history.final[0][2:]
    history.polled = [one for one in history.polled if one.partition == 1 or one.offset >= first]
    assert {finding.anomaly for finding in check(history)} == (set() if first <= 2 else {Anomaly.SKIPPED})


def test_a_consumer_that_starts_after_compaction_misses_no_record() -> None:
    history = compacted()
    del history.polled[0]
    assert check(history) == []


def test_a_consumer_with_a_bound_may_end_anywhere() -> None:
    history = good()
    history.readers = ("x",)
    end_before_the_end(history)
    assert check(history) == []
