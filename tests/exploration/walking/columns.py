# SPDX-License-Identifier: Apache-2.0
"""A state of the cluster as a row of numbers, so that arrays can hold millions: one column for each part of it.

Moves read and change the values of one part together. The parts: each broker's process with its disk, the messages in
flight to it from the controller, and from ZooKeeper; each stream; all registrations and dead brokers; the state of
ZooKeeper and the controller; remaining faults; facts seen along the story. Different parts have different numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tests.exploration.model.brokers import Disk, View
from tests.exploration.model.cluster import Cluster
from tests.exploration.model.frozen import ONE_AFTER_ANOTHER
from tests.exploration.model.state import DEAD, NOW, Names, State
from tests.exploration.walking.table import Marks, Rows, joined

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
"""The kind of each column; columns of one kind share their numbers."""
_KINDS: Final = 8
_ORDERS: Final = 6
_NOTHING: Final = np.zeros(1, np.uint64)


def parts(state: State) -> tuple[Any, ...]:
    return (
        *zip(state.cores, state.disks, state.work, strict=True),
        *state.commands,
        *state.asked,
        *state.streams,
        (state.epochs, state.live, state.dead),
        (state.node, state.due, state.has_changed, state.suspected, state.refused, state.cut),
        state.left,
        (state.committed, state.stated, state.led),
    )


def whole(row: Sequence[Any]) -> State:
    """The state of which these are the parts."""
    cores, disks, work = zip(*row[:3], strict=True)
    epochs, live, _ = row[SESSIONS]
    node, due, has_changed, suspected, refused, cut = row[CONTROL]
    return State(
        cores, disks, work, epochs, live, node, tuple(row[3:6]), tuple(row[9:15]), tuple(row[6:9]),
        due, has_changed, suspected, refused, cut, row[LEFT], *row[SEEN],
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
        self.extend(value, 1)

    def extend(self, values: Any, count: int) -> None:
        """The facts of the next parts."""
        while self._count + count > len(self.array):
            self.array = np.concatenate((self.array, np.full(self.array.shape, -1, np.int64).astype(self.array.dtype)))
        self.array[self._count : self._count + count] = values
        self._count += count


class Columns:
    """Every part that was found, under a number, with the facts that the walk reads most often.

    Attributes:
        visible: of a process with its disk, the part that invariants read; `standing`: its place in a fixed order of
            values, leaders first; `node`, `now`: of control; `up`, `down`: whether a stream holds messages.
    """

    def __init__(self, cluster: Cluster, names: Names) -> None:
        self._cluster = cluster
        self._names = names
        self._numbers: tuple[dict[Any, int], ...] = tuple({} for _ in range(_KINDS))
        self._parts: tuple[list[Any], ...] = tuple([] for _ in range(_KINDS))
        self._renamed = tuple(Facts(_ORDERS) for _ in range(_KINDS))
        self._which = np.zeros((len(PROCESS), len(PROCESS)), np.int64)
        for which, (first, second, _) in enumerate(names.orders):
            self._which[first, second] = which
        self._kin = Facts()
        self._addends = [Facts(_ORDERS, dtype=np.uint64) for _ in range(WIDTH)]
        self.visible, self._visible = Facts(), dict[Any, int]()
        self.standing = Facts(dtype=np.int64)
        self.node, self.now = Facts(), Facts()
        self.up, self.down = Facts(), Facts()
        self.told, self.asked = Facts(), Facts()
        self._notes = (
            self._of_process,
            self._of_commands,
            self._of_asked,
            self._of_stream,
            None,
            self._of_control,
            None,
            None,
        )

    # -- numbers -----------------------------------------------------------------------------------------------

    def number(self, column: int, part: Any) -> int:
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
        return self._parts[KIND[column]][number]

    def count(self, column: int) -> int:
        """The number of parts of this column's kind that were found."""
        return len(self._parts[KIND[column]])

    def twin(self, column: int, number: int, which: int) -> int:
        """The number of a part under other names."""
        self.learn()
        return int(self._renamed[KIND[column]].array[number, which])

    def part_renamed(self, column: int, number: int, which: int) -> Any:
        """A part under other names, computed again."""
        return self._rename(KIND[column], self.part(column, number), which)

    def row(self, state: State) -> Rows:
        return np.array([self.number(column, part) for column, part in enumerate(parts(state))], np.int32)

    def state(self, row: Sequence[int]) -> State:
        return whole([self.part(column, int(number)) for column, number in enumerate(row)])

    def _of_process(self, part: Any) -> None:
        core, disk, work = part
        view = self._cluster.brokers.views[core] if core != DEAD else None
        about = None
        if view is not None:
            about = tuple(getattr(view, name) for name in view.__slots__[:-3])
        key = (about, self._cluster.disks[disk].records, self._cluster.disks[disk].cut)
        self.visible.append(self._visible.setdefault(key, len(self._visible)))
        self.standing.append(_standing(view, self._cluster.disks[disk], work))

    def _of_commands(self, part: Any) -> None:
        self.told.append(bool(part))

    def _of_asked(self, part: Any) -> None:
        self.asked.append(bool(part))

    def _of_stream(self, part: Any) -> None:
        self.up.append(bool(part.up))
        self.down.append(bool(part.down))

    def _of_control(self, part: Any) -> None:
        node, due, *_ = part
        self.node.append(node)
        self.now.append(due == NOW)

    # -- twins -------------------------------------------------------------------------------------------------

    def sums(self, rows: Rows) -> Marks:
        """Six numbers of each row, one for each order of the names; a twin has the same ones, in another order.

        Each is the sum of one for each column, so the difference by a move depends only on the columns that it changes.
        """
        self.learn()
        sums: Marks = np.zeros((len(rows), _ORDERS), np.uint64)
        for column in range(WIDTH):
            sums += self._addends[column].array[rows[:, column]]
        return sums

    def added(self, column: int, now: NDArray[np.int32], was: NDArray[np.int32]) -> Marks:
        """The difference of the sums if a column holds another part than before; `learn` comes first."""
        addends = self._addends[column].array
        difference: Marks = addends[now] - addends[was]
        return difference

    def richer(self, number: int) -> list[int]:
        """Of all remaining faults that were found: those with more of at least one fault, and not fewer of any."""
        lefts = self._parts[KIND[LEFT]]
        left = lefts[number]
        return [
            other
            for other, more in enumerate(lefts)
            if other != number and more[0] == left[0] and all(one >= few for one, few in zip(more, left, strict=True))
        ]

    def learn(self) -> None:
        """Give the new parts their twins and addends."""
        for kind, renamed in enumerate(self._renamed):
            number = len(self._addends[KIND.index(kind)])
            if number == len(renamed):
                continue
            while number < len(renamed):  # the loop extends `renamed`
                if renamed.array[number, 0] < 0:
                    self._meet_twins(kind, number)
                number += 1
        for column, kind in enumerate(KIND):
            known, renamed = self._addends[column], self._renamed[kind]
            if len(known) < len(renamed):
                twins = renamed.array[len(known) : len(renamed)]
                more = [joined(_NOTHING, self._target(column, which), twins[:, which]) for which in range(_ORDERS)]
                known.extend(np.stack(more, axis=1), len(twins))

    def _meet_twins(self, kind: int, number: int) -> None:
        column, part = KIND.index(kind), self._parts[kind][number]
        twins = [number, *(self.number(column, self._rename(kind, part, which)) for which in range(1, _ORDERS))]
        array = self._renamed[kind].array
        for twin, after in zip(twins, ONE_AFTER_ANOTHER, strict=True):
            array[twin] = [twins[which] for which in after]

    def _target(self, source: int, which: int) -> int:
        """The column to which a part of this one goes under other names."""
        return self._sources(which).index(source)

    def _sources(self, which: int) -> tuple[int, ...]:
        order, streams = self._names.orders[which], self._names.pairs[which]
        of_brokers = (3 * kind + place for kind in range(3) for place in order)
        return (*of_brokers, *(STREAM[pair] for pair in streams), SESSIONS, CONTROL, LEFT, SEEN)

    def renamed(self, rows: Rows, which: int) -> Rows:
        """The twins under other names."""
        if which == 0:
            return rows
        self.learn()
        twins = np.empty_like(rows)
        for column, source in enumerate(self._sources(which)):
            twins[:, column] = self._renamed[KIND[column]].array[rows[:, source], which]
        return twins

    def tidy(self, rows: Rows) -> Rows:
        """For each row a twin with the brokers in an order that follows from their processes, so that few different
        parts are met. If two brokers are alike, either twin may result."""
        self.learn()
        twins = self._renamed[KIND[PROCESS[0]]]
        more = twins.array[len(self._kin) : len(twins)]
        self._kin.extend(more.min(axis=1), len(more))
        kin = self._kin.array[rows[:, : len(PROCESS)]]
        places = np.argsort(kin, axis=1, kind="stable")
        which = self._which[places[:, 0], places[:, 1]]
        chosen = rows.copy()
        for number in range(1, _ORDERS):
            mine = np.flatnonzero(which == number)
            if len(mine):
                chosen[mine] = self.renamed(rows[mine], number)
        return chosen

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
            node, due, has_changed, suspected, refused, cut = part
            suspected, cut = names.brokers(suspected, which), names.entries(cut, which)
            return (names.value(node, which), due, has_changed, suspected, refused, cut)
        if kind == 6:
            return part
        committed, stated, (epoch, broker, broker_epoch) = part
        return (committed, stated, (epoch, names.broker(broker, which), broker_epoch))


def _standing(view: View | None, disk: Disk, work: Any) -> int:
    """Leaders first, of the latest epoch, the dead last; else in a fixed order of their values."""
    if view is None:
        first, about = 255, ()
    else:
        first = 254 if view.leader_epoch is None else 253 - view.leader_epoch
        engaged = len(view.may_shrink), len(view.aged), len(view.engaged)
        about = (*(getattr(view, name) for name in view.__slots__[:-3]), *engaged)
    last = hashlib.blake2b(repr((about, disk, work)).encode(), digest_size=6).digest()
    return first << 48 | int.from_bytes(last)


def marks(sums: Marks) -> Marks:
    """A mark of each row from its sums, never 0: equal for all twins.

    Two other states have the same mark with a probability of 3 in 2^64.
    """
    least: Marks = sums.min(axis=1)
    least[least == 0] = 1
    return least
