# SPDX-License-Identifier: Apache-2.0
"""Rows of numbers encode states, tables find their entries, and a read of an unknown part raises an error."""

from __future__ import annotations

import numpy as np
import pytest

from tests.exploration.model.brokers import view_of
from tests.exploration.model.cluster import Cluster
from tests.exploration.model.frozen import RENAMES, freeze, thaw
from tests.exploration.model.state import UNKNOWN, Cells, Names, NeedError, Scope, own, raw
from tests.exploration.walking.columns import ASKED, COMMANDS, CONTROL, PROCESS, SEEN, SESSIONS, STREAM, Columns, marks
from tests.exploration.walking.partial import Evaluator, groups
from tests.exploration.walking.table import Table, stirred
from tests.exploration.walking.walk import Walk


def test_a_table_finds_each_mark_with_its_number_while_it_grows() -> None:
    table = Table(bits=4)
    marks = stirred(np.arange(1, 5001, dtype=np.uint64))
    for start in range(0, 5000, 700):
        some = np.arange(start, min(start + 700, 5000), dtype=np.int64)
        table.add(marks[some], some)
    assert len(table) == 5000
    assert (table.find(marks) == np.arange(5000)).all()
    assert (table.find(stirred(np.arange(6000, 7000, dtype=np.uint64))) == -1).all()


def test_a_table_without_numbers_knows_its_entries() -> None:
    table = Table(bits=4, numbered=False)
    marks = stirred(np.arange(1, 101, dtype=np.uint64))
    table.add(marks[:50])
    assert ((table.places(marks) >= 0) == (np.arange(100) < 50)).all()
    assert table.bytes_with(10_000) > table.bytes_with(0)


def test_a_row_is_its_state_and_all_twins_have_one_mark() -> None:
    cluster = Cluster(Scope(batches=1, crashes=1))
    columns = Columns(cluster, Names(cluster.brokers))
    state = cluster.initial()
    for _ in range(15):
        row = columns.row(state)
        assert columns.state(row.tolist()) == state
        twins = np.concatenate([columns.renamed(row[None, :], which) for which in range(6)])
        assert len(set(marks(columns.sums(twins)))) == 1
        assert {marks(columns.sums(columns.tidy(twins)))[0]} == set(marks(columns.sums(twins)))
        ahead = [chain[-1][1] for chain in cluster.ahead(state)]
        state = ahead[len(ahead) // 3]


def test_a_part_has_the_same_name_under_every_renaming_of_its_brokers() -> None:
    """A part under two renamings, one after the other, is computed from those of one of its twins."""
    walk = Walk(Scope(batches=0, lags=1))
    assert walk.run().complete
    columns = walk.columns
    for column in (PROCESS[0], COMMANDS[0], ASKED[0], STREAM[0], SESSIONS, CONTROL, SEEN):
        for number in range(columns.count(column)):
            for which in range(1, 6):
                assert columns.twin(column, number, which) == columns.number(
                    column, columns.part_renamed(column, number, which)
                )


def test_a_process_under_other_names_is_worked_out_without_making_it_again() -> None:
    walk = Walk(Scope(batches=1, lags=1, lost_answers=1))
    assert walk.run().complete
    brokers = walk.cluster.brokers
    for number in range(0, len(brokers), 7):
        core = brokers.core(number)
        as_it_is = freeze(core)
        for which, rename in enumerate(RENAMES):
            renamed = thaw(as_it_is, rename)
            assert freeze(core, rename) == freeze(renamed) == freeze(brokers.core(brokers.twin(number, which)))
            assert brokers.views[brokers.twin(number, which)] == view_of(renamed)


def test_a_lookup_of_an_unknown_value_names_the_missing_column() -> None:
    cells = Cells([7, UNKNOWN, 9], (0, 1, 2))
    assert cells[0] == 7
    with pytest.raises(NeedError) as looked:
        _ = cells[1]
    assert looked.value.column == 1
    with pytest.raises(NeedError):
        list(cells)
    with pytest.raises(NeedError):
        own(cells)[1] = 8
    assert raw(cells) == [7, UNKNOWN, 9]


def test_a_batch_for_a_follower_is_refused_by_the_look_at_its_process_alone() -> None:
    """The computation does not read the remaining faults, so its result holds in all states with this process."""
    cluster = Cluster(Scope(batches=1))
    columns = Columns(cluster, Names(cluster.brokers))
    row = columns.row(cluster.initial())
    _, others = groups(cluster, columns)
    produce = next(group for group in others if group.first == (PROCESS[1],))
    evaluator = Evaluator(cluster, columns)
    assert evaluator.outcomes(produce, {PROCESS[1]: int(row[PROCESS[1]])}) == []
    of_control, _ = groups(cluster, columns)
    with pytest.raises(NeedError):
        evaluator.outcomes(of_control[0], {})
    assert evaluator.outcomes(of_control[0], {CONTROL: int(row[CONTROL])}) == []
