"""A state of the cluster as a row of numbers, so that arrays can hold millions: one column for each part of it.

A part is what moves read and change together: of each broker its process with its disk, what is on its way to it from
the controller, and from ZooKeeper; each stream; all registrations, and who is dead; what ZooKeeper and the controller
know; what may still happen; what was seen along the story. Different parts have different numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tests.exploration.cluster import Cluster
from tests.exploration.frozen import BROKERS
from tests.exploration.state import DEAD, NOW, Names, State
from tests.exploration.table import Marks, Rows, joined, stirred

PROCESS: Final = (0, 1, 2)
COMMANDS: Final = (3, 4, 5)
ASKED: Final = (6, 7, 8)
STREAM: Final = (9, 10, 11, 12, 13, 14)
SESSIONS: Final = 15
CONTROL: Final = 16
LEFT: Final = 17
SEEN: Final = 18
WIDTH: Final = 19
KIND: Final = (0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 3, 4, 5, 6, 7)
"""Of each column, whose numbers it has."""
_KINDS: Final = 8
_ORDERS: Final = 6


def parts(state: State) -> tuple[Any, ...]:
    """The parts, by column."""
    return (
        *zip(state.cores, state.disks, state.work, strict=True),
        *state.commands,
        *state.asked,
        *state.streams,
        (state.epochs, state.live, state.dead),
        (state.node, state.due, state.news, state.suspected, state.refused),
        state.left,
        (state.committed, state.stated, state.led),
    )


def whole(row: Sequence[Any]) -> State:
    """The state of which these are the parts."""
    cores, disks, work = zip(*row[:3], strict=True)
    epochs, live, _ = row[SESSIONS]
    node, due, news, suspected, refused = row[CONTROL]
    return State(
        cores, disks, work, epochs, live, node, tuple(row[3:6]), tuple(row[9:15]), tuple(row[6:9]),
        due, news, suspected, refused, row[LEFT], *row[SEEN],
    )  # fmt: skip


class Facts:
    """One number for each part of a kind, in an array that grows."""

    def __init__(self, *width: int, dtype: type = np.int32) -> None:
        self.array: NDArray[Any] = np.full((64, *width), -1, np.int64).astype(dtype)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, value: Any) -> None:
        """The facts of the next part."""
        if self._count == len(self.array):
            self.array = np.concatenate((self.array, np.full(self.array.shape, -1, np.int64).astype(self.array.dtype)))
        self.array[self._count] = value
        self._count += 1


class Columns:
    """Every part that was met, under a number, and what the walk must know of it at a glance.

    Attributes:
        visible: of a process with its disk, what invariants look at; `node`, `now`: of control; `up`, `down`: whether
            a stream holds messages.
    """

    def __init__(self, cluster: Cluster, names: Names) -> None:
        self._cluster = cluster
        self._names = names
        self._numbers: tuple[dict[Any, int], ...] = tuple({} for _ in range(_KINDS))
        self._parts: tuple[list[Any], ...] = tuple([] for _ in range(_KINDS))
        self._renamed = tuple(Facts(_ORDERS) for _ in range(_KINDS))
        self._process_mark = Facts(dtype=np.uint64)
        self._commands_mark, self._asked_mark = Facts(dtype=np.uint64), Facts(dtype=np.uint64)
        self._session_mark = Facts(3, dtype=np.uint64)
        self.visible, self._visible = Facts(), dict[Any, int]()
        self.leader, self.node, self.now = Facts(), Facts(), Facts()
        self.up, self.down = Facts(), Facts()
        self.told, self.asked = Facts(), Facts()
        self._notes = (
            self._of_process,
            self._of_commands,
            self._of_asked,
            self._of_stream,
            self._of_sessions,
            self._of_control,
            None,
            None,
        )

    # -- numbers -----------------------------------------------------------------------------------------------

    def number(self, column: int, part: Any) -> int:
        """The number of a part."""
        kind = KIND[column]
        numbers = self._numbers[kind]
        number = numbers.get(part)
        if number is None:
            number = numbers[part] = len(numbers)
            self._parts[kind].append(part)
            self._renamed[kind].append(-1)
            note = self._notes[kind]
            if note is not None:
                note(part)
        return number

    def part(self, column: int, number: int) -> Any:
        """The part again."""
        return self._parts[KIND[column]][number]

    def row(self, state: State) -> Rows:
        """A state as a row."""
        return np.array([self.number(column, part) for column, part in enumerate(parts(state))], np.int32)

    def state(self, row: Sequence[int]) -> State:
        """The state again."""
        return whole([self.part(column, int(number)) for column, number in enumerate(row)])

    def _of_process(self, part: Any) -> None:
        core, disk, _ = part
        view = self._cluster.brokers.views[core] if core != DEAD else None
        about = None
        if view is not None:
            about = (*[getattr(view, name) for name in view.__slots__][:-3], len(view.may_shrink), len(view.aged))
        self._process_mark.append(_mark((about, disk)))
        key = (about and about[:-2], self._cluster.disks[disk].records)
        self.visible.append(self._visible.setdefault(key, len(self._visible)))

    def _of_commands(self, part: Any) -> None:
        self._commands_mark.append(_mark(("commands", len(part))))
        self.told.append(bool(part))

    def _of_asked(self, part: Any) -> None:
        self._asked_mark.append(_mark(("asked", len(part))))
        self.asked.append(bool(part))

    def _of_stream(self, part: Any) -> None:
        self.up.append(bool(part.up))
        self.down.append(bool(part.down))

    def _of_sessions(self, part: Any) -> None:
        self._session_mark.append([_mark(("session", *one)) for one in zip(*part, strict=True)])

    def _of_control(self, part: Any) -> None:
        node, due, *_ = part
        leader = self._cluster.brokers.values[node].state.leader
        self.leader.append(BROKERS.index(leader) if leader in BROKERS else -1)
        self.node.append(node)
        self.now.append(due == NOW)

    # -- twins -------------------------------------------------------------------------------------------------

    def canonical(self, rows: Rows) -> tuple[Rows, Marks]:
        """Of each row the one of all its twins that stands for them, with its mark."""
        marks = self._broker_marks(rows)
        which = np.full(len(rows), -1, np.int64)
        distinct = (marks[:, 0] != marks[:, 1]) & (marks[:, 1] != marks[:, 2]) & (marks[:, 0] != marks[:, 2])
        for number, (x, y, z) in enumerate(self._names.orders):
            which[distinct & (marks[:, x] < marks[:, y]) & (marks[:, y] < marks[:, z])] = number
        chosen = rows.copy()
        for number in range(1, _ORDERS):
            mine = np.flatnonzero(which == number)
            if len(mine):
                chosen[mine] = self.renamed(rows[mine], number)
        best = self.marks(chosen)
        alike = np.flatnonzero(which < 0)
        if len(alike):
            chosen[alike], best[alike] = self._least(rows[alike], marks[alike])
        return chosen, best

    def _least(self, rows: Rows, marks: Marks) -> tuple[Rows, Marks]:
        """Where brokers look alike: of all orders that sort their marks, that with the least mark of the whole."""
        chosen, best = rows.copy(), np.full(len(rows), np.iinfo(np.uint64).max, np.uint64)
        for number, (x, y, z) in enumerate(self._names.orders):
            sorts = np.flatnonzero((marks[:, x] <= marks[:, y]) & (marks[:, y] <= marks[:, z]))
            twins = self.renamed(rows[sorts], number)
            those = self.marks(twins)
            better = those < best[sorts]
            chosen[sorts[better]], best[sorts[better]] = twins[better], those[better]
        return chosen, best

    def _broker_marks(self, rows: Rows) -> Marks:
        """Marks that do not depend on names and tell most brokers apart."""
        marks = self._process_mark.array[rows[:, 0:3]] + self._commands_mark.array[rows[:, 3:6]]
        marks += self._asked_mark.array[rows[:, 6:9]]
        marks += self._session_mark.array[rows[:, SESSIONS]]
        leader = self.leader.array[rows[:, CONTROL]]
        marks += (leader[:, None] == np.arange(3)).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        result: Marks = marks
        return result

    def renamed(self, rows: Rows, which: int) -> Rows:
        """The twins under other names."""
        if which == 0:
            return rows
        order, streams = self._names.orders[which], self._names.pairs[which]
        twins = np.empty_like(rows)
        of_brokers = (3 * kind + place for kind in range(3) for place in order)
        sources = (*of_brokers, *(STREAM[pair] for pair in streams), SESSIONS, CONTROL, LEFT, SEEN)
        for column, source in enumerate(sources):
            kind, numbers = KIND[column], rows[:, source]
            found = self._renamed[kind].array[numbers, which]
            missing = found < 0
            if missing.any():
                for number in np.unique(numbers[missing]):
                    part = self._rename(kind, self._parts[kind][number], which)
                    self._renamed[kind].array[number, which] = self.number(column, part)  # after it may have grown
                found = self._renamed[kind].array[numbers, which]
            twins[:, column] = found
        return twins

    def _rename(self, kind: int, part: Any, which: int) -> Any:
        names = self._names
        if kind == 0:
            core, disk, work = part
            return (core if core == DEAD else names.core(core, which), disk, work)
        if kind in (1, 2, 3):
            return names.term(part, which)
        if kind == 4:
            return tuple(tuple(each[place] for place in names.orders[which]) for each in part)
        if kind == 5:
            node, due, news, suspected, refused = part
            return (names.value(node, which), due, news, names.brokers(suspected, which), refused)
        if kind == 6:
            return part
        committed, stated, (epoch, broker, broker_epoch) = part
        return (committed, stated, (epoch, names.broker(broker, which), broker_epoch))

    def marks(self, rows: Rows) -> Marks:
        """A mark of each row, never 0: different rows have different ones, but for one in 2^64."""
        marks = np.zeros(len(rows), np.uint64)
        for column in range(WIDTH):
            marks = joined(marks, column, rows[:, column])
        marks[marks == 0] = 1
        return marks


def _mark(value: Any) -> np.uint64:
    return np.uint64(stirred(np.array([hash(value) & 0xFFFFFFFFFFFFFFFF], np.uint64))[0])
