"""Delay-bounded exploration: whose turn it is, and what is put off that has its turn (Emmi, Qadeer, Rakamaric 2011).

In each state one move has its turn: decisions first, then ZooKeeper, commands, what leaders hear, what followers hear,
what processes do by themselves, and at last sessions and suspicions; among brokers leaders first. To make another move
than that costs as much as there are moves that would have had their turn before it: each of them is put off. What
cannot be foreseen, misfortunes and batches, costs nothing, and neither does a choice that is not one of order: what the
controller decides, or which of two brokers that are alike goes first.

So the states that are come to by putting off nothing are few; each delivery that is put off adds others, and when
enough are all orders are walked. No name of a broker is looked at, and the turn is the same in twins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tests.exploration.columns import PROCESS, Columns
from tests.exploration.partial import Group
from tests.exploration.state import EVERYBODY
from tests.exploration.table import Marks, Numbers, Rows, Table

Costs = NDArray[np.int32]

TURNS: Final = ("decision", "coordination", "command", "up", "down", "process", "session", "suspicion", "client")
"""Kinds of moves, in the order of their turns."""


class Schedule:
    """What moves cost."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def costs(self, rows: Rows, groups: Sequence[Group], can: Sequence[NDArray[np.bool_] | None]) -> list[Costs]:
        """Of each group in each row, how many groups have their turn before it.

        Args:
            can: of each group and row, whether it has a move that is neither a misfortune nor a batch; None for no.
        """
        standing = self._columns.standing.array[rows[:, : len(PROCESS)]]
        places = [(standing < standing[:, [place]]).sum(axis=1, dtype=np.int32) for place in EVERYBODY]
        before = np.zeros(len(rows), np.int32)
        costs = [before] * len(groups)
        for kind in TURNS:
            mine = [at for at, group in enumerate(groups) if group.kind == kind]
            turns = {at: self._turn(places, groups[at].places) for at in mine}
            waiting = before
            for at in mine:
                some = can[at]
                if some is None:
                    continue
                waiting = waiting + some
                for other in mine:
                    if other != at:
                        costs[other] = costs[other] + (some & (turns[at] < turns[other]))
            for at in mine:
                costs[at] = costs[at] + before
            before = waiting
        return costs

    @staticmethod
    def _turn(places: Sequence[Costs], whose: tuple[int, ...]) -> Costs:
        turn = np.zeros(len(places[0]), np.int32)
        for place in whose:
            turn = turn * len(places) + places[place]
        return turn


class PutOff:
    """States that are come to only by putting off so much, until their turn comes; each once for each cost."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._marks = [Table(numbered=False) for _ in range(most + 1)]
        self._rows: list[list[tuple[Rows, Numbers | None]]] = [[] for _ in range(most + 1)]

    def new(self, marks: Marks, costs: Costs, spent: int) -> NDArray[np.bool_]:
        """Which of them do not wait yet, at that cost or less but more than is `spent`."""
        new = np.ones(len(marks), bool)
        for cost in range(spent + 1, int(costs.max(initial=0)) + 1):
            new &= (costs < cost) | (self._marks[cost].places(marks) < 0)
        return new

    def add(self, cost: int, rows: Rows, marks: Marks, came_from: Numbers | None) -> None:
        """Let different ones that do not wait yet wait."""
        self._marks[cost].add(marks)
        self._rows[cost].append((rows, came_from))

    def take(self, cost: int) -> list[tuple[Rows, Numbers | None]]:
        """All that waits at this cost."""
        rows, self._rows[cost], self._marks[cost] = self._rows[cost], [], Table(numbered=False)
        return rows

    def bytes(self) -> int:
        """Memory that it takes."""
        rows = sum(rows.nbytes for pieces in self._rows for rows, _ in pieces)
        return rows + sum(table.bytes_with(0) for table in self._marks)

    def __len__(self) -> int:
        return sum(len(rows) for pieces in self._rows for rows, _ in pieces)
