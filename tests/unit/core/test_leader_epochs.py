# SPDX-License-Identifier: Apache-2.0
"""The epoch cache: additions, answers and truncation (rules E1, E2)."""

from __future__ import annotations

import random

import pytest
from tidemark.core.leader_epochs import LeaderEpochs

from tests.unit.core.replication.stage import entries


def test_an_epoch_is_added_once_and_none_older_than_the_last() -> None:
    epochs = LeaderEpochs(entries((3, 0)))
    assert epochs.assign(5, 7)
    assert not epochs.assign(5, 9)
    assert not epochs.assign(4, 9)
    assert epochs.entries == ((3, 0), (5, 7))


def test_an_epoch_without_a_record_is_replaced_by_the_next() -> None:
    """No answer may state an end at or below its start."""
    epochs = LeaderEpochs(entries((1, 0), (2, 7), (3, 9)))
    assert epochs.assign(5, 9)
    assert epochs.entries == ((1, 0), (2, 7), (5, 9))
    assert epochs.assign(6, 7)
    assert epochs.entries == ((1, 0), (6, 7))


def test_with_no_epoch_there_is_neither_a_first_nor_a_last() -> None:
    epochs = LeaderEpochs()
    assert (epochs.earliest, epochs.latest, epochs.epoch_at(0)) == (-1, -1, -1)
    epochs.assign(0, 4)
    assert (epochs.earliest, epochs.latest, epochs.epoch_at(3), epochs.epoch_at(4)) == (0, 0, -1, 0)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [(0, (0, 20)), (1, (1, 80)), (2, (2, 120)), (3, (3, 150)), (9, (3, 150))],
)
def test_seed_003_an_epoch_ends_where_the_next_one_begins(asked: int, answer: tuple[int, int]) -> None:
    assert LeaderEpochs(entries((1, 20), (2, 80), (3, 120))).end_of(asked, 150) == answer


def test_a_leader_without_epochs_answers_with_its_log_end() -> None:
    assert LeaderEpochs().end_of(4, 33) == (4, 33)


@pytest.mark.parametrize(
    ("end", "left"),
    [
        (90, [(1, 20), (2, 80)]),
        (80, [(1, 20)]),
        (20, [(1, 20)]),
        (19, [(1, 19)]),
        (0, []),
        (121, [(1, 20), (2, 80), (3, 120)]),
    ],
)
def test_a_truncation_removes_the_epochs_that_begin_there_or_above(end: int, left: list[tuple[int, int]]) -> None:
    epochs = LeaderEpochs(entries((1, 20), (2, 80), (3, 120)))
    assert epochs.truncate_from_end(end) == (end < 121)
    assert list(epochs.entries) == left


@pytest.mark.parametrize(
    ("start", "left"),
    [
        (0, [(1, 20), (2, 80), (3, 120)]),
        (10, [(-1, 10), (1, 20), (2, 80), (3, 120)]),
        (20, [(1, 20), (2, 80), (3, 120)]),
        (50, [(1, 50), (2, 80), (3, 120)]),
        (80, [(1, 80), (2, 80), (3, 120)]),
        (81, [(2, 81), (3, 120)]),
        (200, [(3, 200)]),
    ],
)
def test_a_new_log_start_keeps_the_epoch_of_the_last_record_below_it(start: int, left: list[tuple[int, int]]) -> None:
    epochs = LeaderEpochs(entries((1, 20), (2, 80), (3, 120)))
    assert epochs.truncate_from_start(start) == (start not in (0, 20))
    assert list(epochs.entries) == left


def test_the_epoch_of_deleted_records_may_be_unknown() -> None:
    epochs = LeaderEpochs()
    epochs.truncate_from_start(10)
    assert (epochs.entries, epochs.latest, epochs.earliest, epochs.let_go) == (((-1, 10),), -1, -1, -1)
    assert epochs.end_of(4, 12) == (4, 12)
    epochs.assign(5, 10)
    assert LeaderEpochs(epochs.entries).entries == epochs.entries == ((-1, 10), (5, 10))
    assert (epochs.latest, epochs.earliest, epochs.let_go) == (5, 5, -1)
    assert (epochs.end_of(4, 12), epochs.end_of(5, 12)) == ((4, 10), (5, 12))
    epochs.truncate_from_end(10)
    assert epochs.entries == ((-1, 10),)
    epochs.assign(6, 10)
    epochs.truncate_from_start(11)
    assert (epochs.entries, epochs.let_go) == (((6, 11),), 6)


@pytest.mark.parametrize("seed", range(100))
def test_after_random_changes_the_epochs_match_the_records(seed: int) -> None:
    """The cache is compared with a list of the epoch of every record; below the start only the last epoch is known."""
    dice = random.Random(seed)
    epochs, records, start = LeaderEpochs(), [0], 0
    epochs.assign(0, 0)
    for _ in range(60):
        step = dice.random()
        if step < 0.4:
            epoch = max(records[-1], epochs.latest) + dice.randint(0, 1)
            epochs.assign(epoch, len(records))
            records += [epoch] * dice.randint(1, 5)
        elif step < 0.5:
            epochs.assign(epochs.latest + 1, len(records))  # led without a record
        elif step < 0.75 and len(records) > start > 0:
            end = dice.randint(start, len(records))
            epochs.truncate_from_end(end)
            del records[end:]
        else:
            start = dice.randint(start, len(records))
            epochs.truncate_from_start(start)
        assert LeaderEpochs(epochs.entries).entries == epochs.entries
        assert [epochs.epoch_at(offset) for offset in range(start, len(records))] == records[start:]
        if start:
            assert epochs.earliest == records[start - 1]
        for asked in range(epochs.earliest, epochs.latest + 1):
            end = epochs.end_of(asked, len(records))
            held = [n for n, epoch in enumerate(records) if epoch <= asked]
            assert end.start_offset == held[-1] + 1
            assert end.leader_epoch == records[held[-1]] or (asked == epochs.latest and end.leader_epoch == asked)
