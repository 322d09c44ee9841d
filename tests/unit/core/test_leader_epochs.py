"""The epoch cache: what it enters, answers and forgets (rules E1, E2)."""

from __future__ import annotations

import pytest
from tidemark.core.leader_epochs import LeaderEpochs

from tests.unit.core.stage import entries


def test_an_epoch_is_entered_once_and_none_older_than_the_last() -> None:
    epochs = LeaderEpochs(entries((3, 0)))
    assert epochs.assign(5, 7)
    assert not epochs.assign(5, 9)
    assert not epochs.assign(4, 9)
    assert epochs.entries == ((3, 0), (5, 7))


def test_an_epoch_without_a_record_gives_way_to_the_next_one() -> None:
    """Nobody may ever be told that it ends where it begins, or below."""
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
    [(90, [(1, 20), (2, 80)]), (80, [(1, 20)]), (20, []), (121, [(1, 20), (2, 80), (3, 120)])],
)
def test_a_cut_at_the_end_forgets_the_epochs_that_begin_there_or_above(end: int, left: list[tuple[int, int]]) -> None:
    epochs = LeaderEpochs(entries((1, 20), (2, 80), (3, 120)))
    assert epochs.truncate_from_end(end) == (len(left) < 3)
    assert list(epochs.entries) == left


@pytest.mark.parametrize(
    ("start", "left"),
    [
        (10, [(1, 20), (2, 80), (3, 120)]),
        (20, [(1, 20), (2, 80), (3, 120)]),
        (50, [(1, 50), (2, 80), (3, 120)]),
        (80, [(2, 80), (3, 120)]),
        (200, [(3, 200)]),
    ],
)
def test_a_new_log_start_keeps_the_epoch_that_spans_it(start: int, left: list[tuple[int, int]]) -> None:
    epochs = LeaderEpochs(entries((1, 20), (2, 80), (3, 120)))
    assert epochs.truncate_from_start(start) == (start > 20)
    assert list(epochs.entries) == left
