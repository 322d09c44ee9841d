# SPDX-License-Identifier: Apache-2.0
"""Delay-bounded exploration: one move has the turn, and any other move defers it (Emmi, Qadeer, Rakamaric 2011).

In each state one move has its turn: decisions first, then ZooKeeper, commands, deliveries to leaders, deliveries to
followers, moves of processes by themselves, and last sessions and suspicions; among brokers leaders first. The cost of
another move is the number of moves whose turn comes before it: each of them is deferred. Faults and batches cost
nothing, because they are not predictable. Choices that are not about order cost nothing either: a decision of the
controller, or the first of two brokers that are alike.

So few states are reached without deferring a move. Each deferred delivery adds states, and enough of them reach all
orders. Names of brokers do not matter, and the turn is the same in twins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tests.exploration.model.state import ALL_BROKERS
from tests.exploration.walking.columns import PROCESS, Columns
from tests.exploration.walking.moves import Moves, Successors
from tests.exploration.walking.partial import Group
from tests.exploration.walking.table import Costs, Marks, Numbers, Rows, Table

TURNS: Final = ("decision", "coordination", "command", "up", "down", "process", "session", "suspicion", "client")
"""Kinds of moves, in the order of their turns."""
SURPRISING: Final = ("coordination", "down", "process", "session", "suspicion", "client")
"""Kinds of moves that may be faults or batches."""


class Schedule:
    """The selected moves, and their costs."""

    def __init__(self, columns: Columns, moves: Moves, *, surprises_count: bool) -> None:
        self._columns = columns
        self._moves = moves
        self._surprises_count = surprises_count

    def made(self, rows: Rows, groups: Sequence[Group], spent: Costs, most: int) -> list[Successors]:
        """Successors by moves that defer at most that number of deliveries in total, with the number of deferred ones.

        Args:
            spent: of each row, the number of deferred deliveries so far.

        Raises:
            BrokenError: one of the moves breaks an invariant; the move may defer more than the limit.
        """
        places = self._places(rows)
        least, busy = spent, np.zeros(len(rows), bool)
        deliveries: list[Successors] = []
        surprises: list[Successors] = []
        for kind in TURNS:
            mine = [group for group in groups if group.kind == kind]
            may = least <= most
            if kind in SURPRISING:
                may |= spent + (busy & self._surprises_count) <= most
            by_group, can = self._successors(rows, mine, np.flatnonzero(may))
            costs = self._costs(places, mine, can)
            for found, cost in zip(by_group, costs, strict=True):
                if found is not None:
                    is_surprise = self._moves.left.array[found.which] >= 0
                    surprises.append(found.of(np.flatnonzero(is_surprise)))
                    found = found.of(np.flatnonzero(~is_surprise))
                    deliveries.append(found._replace(costs=(least + cost)[found.parents]))
            for some in can:
                least, busy = least + some, busy | some
        for number, found in enumerate(surprises):
            counted = busy[found.parents] & self._surprises_count
            surprises[number] = found._replace(costs=spent[found.parents] + counted.astype(np.int32))
        every = (*deliveries, *surprises)
        affordable = [one.of(np.flatnonzero(one.costs <= most)) for one in every if one.costs is not None]
        return [one for one in affordable if len(one.which)]

    def _successors(
        self, rows: Rows, groups: Sequence[Group], among: Numbers
    ) -> tuple[list[Successors | None], list[NDArray[np.bool_]]]:
        """The successors of each group, and where it has a move that is neither a fault nor a batch."""
        found = [self._moves.successors(rows, group, among) for group in groups]
        can = [np.zeros(len(rows), bool) for _ in groups]
        for one, some in zip(found, can, strict=True):
            if one is not None:
                some[one.parents[self._moves.left.array[one.which] < 0]] = True
        return found, can

    def _costs(self, places: Sequence[Costs], groups: Sequence[Group], can: Sequence[NDArray[np.bool_]]) -> list[Costs]:
        """The number of groups of one kind that have their turn before each of them."""
        turns = [self._turn(places, group.places) for group in groups]
        costs = []
        for turn in turns:
            cost = np.zeros(len(turn), np.int32)
            for other, some in zip(turns, can, strict=True):
                cost += some & (other < turn)
            costs.append(cost)
        return costs

    def _places(self, rows: Rows) -> list[Costs]:
        """The number of brokers before each broker, for each row."""
        standing = self._columns.standing.array[rows[:, : len(PROCESS)]]
        return [(standing < standing[:, [place]]).sum(axis=1, dtype=np.int32) for place in ALL_BROKERS]

    @staticmethod
    def _turn(places: Sequence[Costs], whose: tuple[int, ...]) -> Costs:
        turn = np.zeros(len(places[0]), np.int32)
        for place in whose:
            turn = turn * len(places) + places[place]
        return turn


class PutOff:
    """States that need this number of deferred deliveries, until their turn; each once per cost."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._marks = [Table(numbered=False) for _ in range(most + 1)]
        self._rows: list[list[tuple[Rows, Numbers | None]]] = [[] for _ in range(most + 1)]

    def new(self, marks: Marks, costs: Costs, spent: int) -> NDArray[np.bool_]:
        """Whether each row does not wait yet, at that cost or less but more than `spent`."""
        new = np.ones(len(marks), bool)
        for cost in range(spent + 1, int(costs.max(initial=0)) + 1):
            new &= (costs < cost) | (self._marks[cost].places(marks) < 0)
        return new

    def add(self, cost: int, rows: Rows, marks: Marks, came_from: Numbers | None) -> None:
        """Add new states to those that wait."""
        self._marks[cost].add(marks)
        self._rows[cost].append((rows, came_from))

    def take(self, cost: int) -> list[tuple[Rows, Numbers | None]]:
        """Remove and return all states that wait at this cost."""
        rows, self._rows[cost], self._marks[cost] = self._rows[cost], [], Table(numbered=False)
        return rows

    def bytes(self) -> int:
        """Memory of the waiting states."""
        rows = sum(rows.nbytes for pieces in self._rows for rows, _ in pieces)
        return rows + sum(table.bytes_with(0) for table in self._marks)

    def __len__(self) -> int:
        return sum(len(rows) for pieces in self._rows for rows, _ in pieces)
