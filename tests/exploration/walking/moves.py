# SPDX-License-Identifier: Apache-2.0
"""Successors of a hundred thousand rows at a time: computed once for all rows that agree in the columns read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tests.exploration.model.cluster import Cluster
from tests.exploration.model.state import NeedError
from tests.exploration.walking.columns import CONTROL, LEFT, PROCESS, SESSIONS, WIDTH, Columns, Facts
from tests.exploration.walking.partial import Evaluator, Group, Outcome, groups
from tests.exploration.walking.table import Costs, Marks, Numbers, Rows, Table, joined


class Successors(NamedTuple):
    """States that moves lead to.

    Attributes:
        parents: the row of which each is; `which`: number of the outcome that leads to it (see `Moves`).
        costs: number of deferred deliveries of the story, including those of the parent; None without a count.
    """

    parents: Numbers
    which: Numbers
    costs: Costs | None = None

    def of(self, some: Numbers) -> Successors:
        return Successors(self.parents[some], self.which[some], None if self.costs is None else self.costs[some])


class Moves:
    """Outcomes of each group of moves, by the columns that it reads.

    Attributes, of outcomes by their number:
        sums: differences that they make to the sums of a row (see `Columns.sums`).
        left: number of the remaining faults after a fault or a batch, -1 after anything else.
        seen: whether an invariant reads any of the changed values; `now`: whether the controller must decide before any
            other move, -1: unchanged.
        acked: number of the acknowledged batches.
    """

    def __init__(self, cluster: Cluster, columns: Columns) -> None:
        self._columns = columns
        self._evaluator = Evaluator(cluster, columns)
        self._table = Table()
        self._paths: dict[tuple[int, ...], int] = {}
        self._columns_of: list[tuple[int, ...]] = []
        self._sets: dict[tuple[Outcome, ...], int] = {}
        self._starts, self._counts = Facts(dtype=np.int64), Facts(dtype=np.int64)
        self._deltas, self._were, self.acked, self._broken = Facts(WIDTH), Facts(WIDTH), Facts(), Facts()
        self.sums, self.left = Facts(6, dtype=np.uint64), Facts()
        self.seen, self.now = Facts(dtype=np.bool_), Facts(dtype=np.int8)
        self.broken: list[str] = []
        self.of_control, self.others = groups(cluster, columns)
        self._groups = (*self.of_control, *self.others)

    def __len__(self) -> int:
        return len(self._table)

    def acknowledged(self, number: int) -> Sequence[tuple[int, int]]:
        """(offset, label) of the acknowledged batches."""
        return list(self._evaluator.acked)[number]

    def successors(self, rows: Rows, group: Group, among: Numbers | None = None) -> Successors | None:
        """All states that a group of moves leads to, from some rows or from all; None if there are none.

        Raises:
            BrokenError: one of the moves breaks an invariant.
        """
        mine = np.arange(len(rows)) if among is None else among
        if group.only is not None:
            mine = mine[group.only.array[rows[mine, group.first[0]]] == 1]
        if not len(mine):
            return None
        rows = rows[mine]
        sets = self._look_up(rows, group)
        counts = self._counts.array[sets]
        total = int(counts.sum())
        if not total:
            return None
        before = np.repeat(np.cumsum(counts) - counts, counts)
        which = np.repeat(self._starts.array[sets], counts) + np.arange(total) - before
        parents = np.repeat(mine, counts)
        broken = self._broken.array[which]
        if broken.max() >= 0:
            at = int(np.argmax(broken >= 0))
            raise BrokenError(self.broken[int(broken[at])], int(parents[at]))
        self._note()
        return Successors(parents, which)

    def rows(self, before: Rows, found: Successors) -> Rows:
        """The states, before the check of any invariant."""
        deltas = self._deltas.array[found.which]
        rows: Rows = np.where(deltas < 0, before[found.parents], deltas)
        return rows

    def _note(self) -> None:
        """Compute the facts of new outcomes for arrays of rows."""
        start, count, columns = len(self.sums), len(self._deltas), self._columns
        if start == count:
            return
        columns.learn()
        deltas, were = self._deltas.array[start:count], self._were.array[start:count]
        sums = np.zeros((count - start, 6), np.uint64)
        seen, now = self.acked.array[start:count] != 0, np.full(count - start, -1, np.int8)
        for column in range(WIDTH):
            some = np.flatnonzero(deltas[:, column] >= 0)
            new, old = deltas[some, column], were[some, column]
            sums[some] += columns.added(column, new, old)
            if column in PROCESS:
                seen[some] |= columns.visible.array[new] != columns.visible.array[old]
            elif column == CONTROL:
                seen[some] |= columns.node.array[new] != columns.node.array[old]
                now[some] = columns.now.array[new]
            elif column == SESSIONS:
                seen[some] = True
        for facts, more in ((self.sums, sums), (self.left, deltas[:, LEFT]), (self.seen, seen), (self.now, now)):
            facts.extend(more, count - start)

    def _look_up(self, rows: Rows, group: Group) -> Numbers:
        """The number of the set of outcomes of each row."""
        keys = np.full(len(rows), self._groups.index(group) + 1, np.uint64)
        for column in group.first:
            keys = joined(keys, column, rows[:, column])
        paths = np.full(len(rows), self._path(group.first), np.int64)
        found = np.full(len(rows), -1, np.int64)
        open_rows = np.arange(len(rows))
        while len(open_rows):
            values = self._table.find(keys[open_rows])
            missing = open_rows[values == -1]
            if len(missing):
                self._learn(rows, keys, paths, missing, group)
                values = self._table.find(keys[open_rows])
            found[open_rows] = values
            open_rows = open_rows[values < -1]
            paths[open_rows] = -2 - found[open_rows]
            for path in np.unique(paths[open_rows]):
                column = self._columns_of[path][-1]
                those = open_rows[paths[open_rows] == path]
                keys[those] = joined(keys[those], column, rows[those, column])
        return found

    def _path(self, columns: tuple[int, ...]) -> int:
        number = self._paths.setdefault(columns, len(self._paths))
        if number == len(self._columns_of):
            self._columns_of.append(columns)
        return number

    def _learn(self, rows: Rows, keys: Marks, paths: Numbers, missing: Numbers, group: Group) -> None:
        """Compute the unknown outcomes, once for each key."""
        new, first = np.unique(keys[missing], return_index=True)
        values = np.empty(len(new), np.int64)
        for number, at in enumerate(missing[first]):
            path = self._columns_of[paths[at]]
            row = rows[at]
            try:
                outcomes = self._evaluator.outcomes(group, {column: int(row[column]) for column in path})
            except NeedError as need:
                values[number] = -2 - self._path((*path, need.column))
            else:
                values[number] = self._set(tuple(outcomes))
        self._table.add(new, values)

    def _set(self, outcomes: tuple[Outcome, ...]) -> int:
        known = self._sets.get(outcomes)
        if known is not None:
            return known
        self._starts.append(len(self._deltas))
        self._counts.append(len(outcomes))
        for outcome in outcomes:
            self._deltas.append(outcome.delta)
            self._were.append(outcome.was)
            self.acked.append(outcome.acked)
            self._broken.append(-1 if outcome.broken is None else len(self.broken))
            if outcome.broken is not None:
                self.broken.append(outcome.broken)
        return self._sets.setdefault(outcomes, len(self._sets))


class BrokenError(Exception):
    """An invariant that does not hold, after a move of the row with this number."""

    def __init__(self, sentence: str, row: int) -> None:
        super().__init__(sentence)
        self.row = row
