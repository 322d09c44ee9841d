"""Every state of a scope, nearest first, many at a time: rows of numbers, moves looked up, a mark of each state kept.

What one move changes is worked out by the shipping core once for all states that agree on what it looks at (see
`partial`), and what the invariants say once for all that look alike to them. `search` does the same state by state.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.exploration.cells import NeedError
from tests.exploration.cluster import Cluster
from tests.exploration.columns import CONTROL, PROCESS, SEEN, SESSIONS, WIDTH, Columns, Facts
from tests.exploration.invariants import InvariantError, Seen, at_rest, look
from tests.exploration.partial import Evaluator, Group, Outcome, groups
from tests.exploration.search import Report, retold
from tests.exploration.state import Names, Scope, State
from tests.exploration.table import Marks, Numbers, Rows, Table, joined

_AT_ONCE: Final = 100_000
"""Rows that are gone on from together: it bounds the memory that a step of the walk takes."""


class Successors(NamedTuple):
    """What moves lead to.

    Attributes:
        rows: the states, before anybody looked at them; `parents`: the row of which each is.
        acked: number of what the move acknowledged.
    """

    rows: Rows
    parents: Numbers
    acked: Numbers


class Moves:
    """What each group of moves leads to, by what it looks at."""

    def __init__(self, cluster: Cluster, columns: Columns) -> None:
        self._columns = columns
        self._evaluator = Evaluator(cluster, columns)
        self._table = Table()
        self._paths: dict[tuple[int, ...], int] = {}
        self._columns_of: list[tuple[int, ...]] = []
        self._sets: dict[tuple[Outcome, ...], int] = {}
        self._starts, self._counts = Facts(dtype=np.int64), Facts(dtype=np.int64)
        self._deltas, self._acked, self._broken = Facts(WIDTH), Facts(), Facts()
        self.broken: list[str] = []
        self.of_control, self.others = groups(cluster, columns)
        self._groups = (*self.of_control, *self.others)

    def __len__(self) -> int:
        return len(self._table)

    def acked(self, number: int) -> Sequence[tuple[int, int]]:
        """(offset, label) of what was acknowledged."""
        return list(self._evaluator.acked)[number]

    def successors(self, rows: Rows, group: Group) -> Successors | None:
        """All that a group of moves leads to, None for nothing.

        Raises:
            InvariantError: one of the moves broke something.
        """
        mine = np.arange(len(rows))
        if group.only is not None:
            mine = np.flatnonzero(group.only.array[rows[:, group.first[0]]] == 1)
            rows = rows[mine]
        if not len(rows):
            return None
        sets = self._look_up(rows, group)
        counts = self._counts.array[sets]
        total = int(counts.sum())
        if not total:
            return None
        before = np.repeat(np.cumsum(counts) - counts, counts)
        which = np.repeat(self._starts.array[sets], counts) + np.arange(total) - before
        which_rows = np.repeat(np.arange(len(rows)), counts)
        broken = self._broken.array[which]
        if broken.max() >= 0:
            at = int(np.argmax(broken >= 0))
            raise BrokenError(self.broken[int(broken[at])], int(mine[which_rows[at]]))
        deltas = self._deltas.array[which]
        found = np.where(deltas < 0, rows[which_rows], deltas)
        return Successors(found, mine[which_rows], self._acked.array[which].astype(np.int64))

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
        """Work out what is not known yet, once for each key."""
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
            self._acked.append(outcome.acked)
            self._broken.append(-1 if outcome.broken is None else len(self.broken))
            if outcome.broken is not None:
                self.broken.append(outcome.broken)
        return self._sets.setdefault(outcomes, len(self._sets))


class BrokenError(Exception):
    """An invariant that does not hold, after a move of the row with this number."""

    def __init__(self, sentence: str, row: int) -> None:
        super().__init__(sentence)
        self.row = row


class Walk:
    """Breadth first.

    Args:
        parents: remember of each state the one it was first come to from, as its story needs.
    """

    def __init__(self, scope: Scope, *, parents: bool = False) -> None:
        self.cluster = Cluster(scope)
        self.report = Report(scope)
        self._names = Names(self.cluster.brokers)
        self._columns = Columns(self.cluster, self._names)
        self._moves = Moves(self.cluster, self._columns)
        self._looks = Table()
        self._known = Table(bits=16, numbered=parents)
        self._parents = parents
        self._visit: Callable[[State], object] | None = None
        self._started_s = time.monotonic()

    def run(
        self,
        *,
        seconds: float = float("inf"),
        memory_bytes_max: float = float("inf"),
        visit: Callable[[State], object] | None = None,
        progress: Callable[[Report], None] | None = None,
        progress_every_s: float = 10.0,
    ) -> Report:
        """Walk until all is seen, an invariant breaks, or the time is over, or what it keeps would take more memory.

        `visit` is shown each state that is come to, those that are only passed through as well, some of them often.
        """
        self._visit = visit
        report = self.report
        rows, marks = self._columns.canonical(self._columns.row(self.cluster.initial())[None, :])
        self._known.add(marks, np.zeros(1, np.int64))
        level, next_progress_s = [rows], progress_every_s
        while level:
            following: list[Rows] = []
            waiting = sum(map(len, level))
            while level:
                rows = level.pop()
                for start in range(0, len(rows), _AT_ONCE):
                    some = rows[start : start + _AT_ONCE]
                    try:
                        following += self._go_on(some)
                    except BrokenError as error:
                        return self._broken(str(error), some[error.row])
                    waiting -= len(some)
                    self._measure(waiting + sum(map(len, following)))
                    if report.seconds > seconds or self._bytes(level, following) > memory_bytes_max:
                        return report
                    if progress is not None and report.seconds > next_progress_s:
                        next_progress_s = report.seconds + progress_every_s
                        progress(report)
            level = _together(following)
            report.depth += bool(level)
        report.complete = True
        self._measure(0)
        return report

    def _go_on(self, rows: Rows) -> Iterator[Rows]:
        """Make every move of some states; gives those that were not known."""
        report, columns = self.report, self._columns
        ends = np.ones(len(rows), bool)
        for group in (*self._moves.of_control, *self._moves.others):
            found = self._moves.successors(rows, group)
            while found is not None:
                ends[found.parents] = False
                after = self._looked_at(found, rows)
                now = columns.now.array[after[:, CONTROL]] == 1
                settled = np.flatnonzero(~now)
                report.transitions += len(settled)
                if len(settled):
                    yield from self._enter(after[settled], rows, found.parents[settled])
                found = self._decided(after[now], found.parents[now])
        resting = np.flatnonzero(ends)
        report.at_rest += len(resting)
        for at in resting:
            state = columns.state(rows[at])
            try:
                at_rest(self.cluster.brokers, self._logs(state), state)
            except InvariantError as error:
                raise BrokenError(str(error), int(at)) from error

    def _decided(self, rows: Rows, parents: Numbers) -> Successors | None:
        """What comes of states in which the controller has to decide before anything else happens."""
        if not len(rows):
            return None
        found: list[Successors] = []
        for group in self._moves.of_control:
            try:
                some = self._moves.successors(rows, group)
            except BrokenError as error:
                raise BrokenError(str(error), int(parents[error.row])) from error
            if some is not None:
                found.append(some._replace(parents=parents[some.parents]))
        if not found:
            return None
        return Successors(*(np.concatenate(part) for part in zip(*found, strict=True)))

    def _looked_at(self, found: Successors, before: Rows) -> Rows:
        """The states with what was seen in them.

        Raises:
            BrokenError: an invariant does not hold.
        """
        rows, columns = found.rows, self._columns
        keys = (found.acked + 1).astype(np.uint64)
        for column in PROCESS:
            keys = joined(keys, column, columns.visible.array[rows[:, column]])
        keys = joined(keys, SESSIONS, rows[:, SESSIONS])
        keys = joined(keys, CONTROL, columns.node.array[rows[:, CONTROL]])
        keys = joined(keys, SEEN, rows[:, SEEN])
        seen = self._looks.find(keys)
        missing = np.flatnonzero(seen < 0)
        if len(missing):
            new, first = np.unique(keys[missing], return_index=True)
            values = [self._look(rows[at], int(found.acked[at]), int(found.parents[at])) for at in missing[first]]
            self._looks.add(new, np.array(values, np.int64))
            seen[missing] = self._looks.find(keys[missing])
        rows[:, SEEN] = seen
        if self._visit is not None:
            for row in rows:
                self._visit(columns.state(row))
        return rows

    def _look(self, row: NDArray[np.int32], acked: int, parent: int) -> int:
        state = self._columns.state(row.tolist())
        seen = Seen(state.committed, state.stated, state.led)
        try:
            seen = look(self.cluster.brokers, self._logs(state), state, seen, self._moves.acked(acked))
        except InvariantError as error:
            raise BrokenError(str(error), parent) from error
        return self._columns.number(SEEN, tuple(seen))

    def _logs(self, state: State) -> list[Any]:
        return [self.cluster.disks[one].records for one in state.disks]

    def _enter(self, rows: Rows, before: Rows, parents: Numbers) -> Iterator[Rows]:
        """Those of the states that are new, twins counted once."""
        report = self.report
        twins, marks = self._columns.canonical(rows)
        report.merged += int((twins != rows).any(axis=1).sum())
        new = np.flatnonzero(self._known.places(marks) < 0)
        if len(new):
            different, first = np.unique(marks[new], return_index=True)
            new = new[first]
            came_from = self._columns.marks(before[parents[new]]).view(np.int64) if self._parents else None
            self._known.add(different, came_from)
            report.states += len(new)
            yield twins[new]
        report.known += len(rows) - len(new)

    # -- what is said of it ------------------------------------------------------------------------------------

    def _broken(self, sentence: str, row: NDArray[np.int32]) -> Report:
        """Report a violation and its story; without parents, walk again with them."""
        report = self.report
        if not self._parents:
            again = Walk(report.scope, parents=True)
            self.cluster, self.report = again.cluster, again.report
            return again.run()
        marks = [self._columns.marks(row[None, :])]
        while True:
            parent = self._known.find(marks[-1])
            if parent[0] == 0:
                break
            marks.append(parent.view(np.uint64))
        report.violation = sentence
        report.story = retold(self.cluster, [int(mark[0]) for mark in reversed(marks[:-1])], self._mark_of)
        self._measure(0)
        return report

    def _bytes(self, *levels: list[Rows]) -> int:
        """What grows with the number of states: marks, and the rows that wait."""
        return self._known.bytes_with(20 * _AT_ONCE) + sum(rows.nbytes for level in levels for rows in level)

    def _mark_of(self, state: State) -> int:
        return int(self._columns.canonical(self._columns.row(state)[None, :])[1][0])

    def _measure(self, waiting: int) -> None:
        report = self.report
        report.seconds = time.monotonic() - self._started_s
        report.waiting = waiting
        report.cores, report.steps = len(self.cluster.brokers), self.cluster.brokers.steps_taken
        report.memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def _together(level: list[Rows]) -> list[Rows]:
    """The same rows in large pieces."""
    pieces: list[Rows] = []
    while level:
        some, count = [level.pop()], 0
        while level and (count := count + len(some[-1])) < _AT_ONCE:
            some.append(level.pop())
        pieces.append(np.concatenate(some))
    return pieces
