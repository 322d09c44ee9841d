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
from tests.exploration.columns import CONTROL, LEFT, PROCESS, SEEN, SESSIONS, WIDTH, Columns, Facts, marks
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
        parents: the row of which each is; `which`: number of the outcome that leads to it (see `Moves`).
    """

    parents: Numbers
    which: Numbers

    def of(self, some: Numbers) -> Successors:
        """Some of them."""
        return Successors(self.parents[some], self.which[some])


class Moves:
    """What each group of moves leads to, by what it looks at.

    Attributes, of outcomes by their number:
        sums: what they add to the sums of a row (see `Columns.sums`).
        left: number of what may happen after a misfortune or a batch, -1 after anything else.
        seen: whether anything changes that an invariant looks at; `now`: whether the controller has to decide
            at once, -1 for as before.
        acked: number of what was acknowledged.
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
        self.sums: Marks = np.zeros((0, 6), np.uint64)
        self.left, self.seen, self.now = np.zeros(0, np.int32), np.zeros(0, bool), np.zeros(0, np.int8)
        self.broken: list[str] = []
        self.of_control, self.others = groups(cluster, columns)
        self._groups = (*self.of_control, *self.others)

    def __len__(self) -> int:
        return len(self._table)

    def acknowledged(self, number: int) -> Sequence[tuple[int, int]]:
        """(offset, label) of what was acknowledged."""
        return list(self._evaluator.acked)[number]

    def successors(self, rows: Rows, group: Group) -> Successors | None:
        """All that a group of moves leads to, None for nothing.

        Raises:
            BrokenError: one of the moves broke something.
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
        parents = np.repeat(mine, counts)
        broken = self._broken.array[which]
        if broken.max() >= 0:
            at = int(np.argmax(broken >= 0))
            raise BrokenError(self.broken[int(broken[at])], int(parents[at]))
        self._note()
        return Successors(parents, which)

    def rows(self, before: Rows, found: Successors) -> Rows:
        """The states, before anybody looked at them."""
        deltas = self._deltas.array[found.which]
        rows: Rows = np.where(deltas < 0, before[found.parents], deltas)
        return rows

    def _note(self) -> None:
        """Work out of new outcomes what is asked of them at a glance."""
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
        self.sums = np.concatenate((self.sums, sums))
        self.left = np.concatenate((self.left, deltas[:, LEFT]))
        self.seen, self.now = np.concatenate((self.seen, seen)), np.concatenate((self.now, now))

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


class Walk:
    """Breadth first.

    Args:
        parents: remember of each state the one it was first come to from, as its story needs.
        thrifty: leave out states in which less may still happen than in one that was met and is the same otherwise:
            whatever can come of them can come of that one.
    """

    def __init__(self, scope: Scope, *, parents: bool = False, thrifty: bool = True) -> None:
        self.cluster = Cluster(scope)
        self.report = Report(scope)
        self._names = Names(self.cluster.brokers)
        self.columns = Columns(self.cluster, self._names)
        self._moves = Moves(self.cluster, self.columns)
        self._looks = Table()
        self._known = Table(bits=16, numbered=parents)
        self._parents = parents
        self._thrifty = thrifty
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
        rows = self.columns.row(self.cluster.initial())[None, :]
        sums = self.columns.sums(rows)
        rows = self.columns.tidy(rows)
        self._known.add(marks(sums), np.zeros(1, np.int64))
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
        report, columns = self.report, self.columns
        sums = columns.sums(rows)
        origins = marks(sums)
        ends = np.ones(len(rows), bool)
        for group in (*self._moves.of_control, *self._moves.others):
            found = self._moves.successors(rows, group)
            if found is not None:
                ends[found.parents[self._moves.left[found.which] < 0]] = False
                yield from self._arrive(rows, sums, origins, found)
        resting = np.flatnonzero(ends)
        report.at_rest += len(resting)
        for at in resting:
            state = columns.state(rows[at])
            try:
                at_rest(self.cluster.brokers, self._logs(state), state)
            except InvariantError as error:
                raise BrokenError(str(error), int(at)) from error

    def _arrive(self, rows: Rows, sums: Marks, origins: Marks, found: Successors) -> Iterator[Rows]:
        """Enter what moves lead to, past states in which the controller has to decide before anything else happens.

        `origins`: marks of the states that were gone on from, of which these rows came.
        """
        now = self._moves.now[found.which]
        now = np.where(now < 0, self.columns.now.array[rows[found.parents, CONTROL]], now) == 1
        settled = found.of(np.flatnonzero(~now))
        if len(settled.which):
            yield from self._enter(rows, sums, origins, settled)
        passed = found.of(np.flatnonzero(now))
        if not len(passed.which):
            return
        after = self._moves.rows(rows, passed)
        after[:, SEEN] = self._looked_at(after, passed)
        self._show(after)
        sums = self.columns.sums(after)
        try:
            for group in self._moves.of_control:
                more = self._moves.successors(after, group)
                if more is not None:
                    yield from self._arrive(after, sums, origins[passed.parents], more)
        except BrokenError as error:
            raise BrokenError(str(error), int(passed.parents[error.row])) from error

    def _enter(self, rows: Rows, sums: Marks, origins: Marks, found: Successors) -> Iterator[Rows]:
        """Those of the states that moves lead to that are new, twins counted once."""
        report, moves, columns = self.report, self._moves, self.columns
        report.transitions += len(found.which)
        sums = sums[found.parents] + moves.sums[found.which]
        seen = rows[found.parents, SEEN]
        to_look_at = np.flatnonzero(moves.seen[found.which])
        if len(to_look_at):
            those = found.of(to_look_at)
            now = self._looked_at(moves.rows(rows, those), those)
            columns.learn()
            sums[to_look_at] += columns.added(SEEN, now, seen[to_look_at])
            seen[to_look_at] = now
        if self._visit is not None:
            after = moves.rows(rows, found)
            after[:, SEEN] = seen
            self._show(after)
        known = marks(sums)
        report.merged += int((sums[:, 0] != known).sum())
        new = np.flatnonzero(self._known.places(known) < 0)
        if len(new) and self._thrifty:
            left = np.where((now := moves.left[found.which[new]]) >= 0, now, rows[found.parents[new], LEFT])
            new = new[~self._is_poorer(sums[new], left)]
        if len(new):
            different, first = np.unique(known[new], return_index=True)
            new = new[first]
            came_from = origins[found.parents[new]].view(np.int64) if self._parents else None
            self._known.add(different, came_from)
            report.states += len(new)
            after = moves.rows(rows, found.of(new))
            after[:, SEEN] = seen[new]
            yield columns.tidy(after)
        report.known += len(found.which) - len(new)

    def _is_poorer(self, sums: Marks, left: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Whether a state was met that is the same but for more that may still happen."""
        poorer, columns = np.zeros(len(left), bool), self.columns
        for number in np.unique(left):
            mine = np.flatnonzero(left == number)
            for richer in columns.richer(int(number)):
                others = np.full(len(mine), richer, np.int32)
                poorer[mine] |= self._known.places(marks(sums[mine] + columns.added(LEFT, others, left[mine]))) >= 0
        return poorer

    def _show(self, rows: Rows) -> None:
        if self._visit is not None:
            for row in rows:
                self._visit(self.columns.state(row.tolist()))

    def _looked_at(self, rows: Rows, found: Successors) -> NDArray[np.int32]:
        """What was seen, these states included, as numbers of that part.

        Raises:
            BrokenError: an invariant does not hold.
        """
        columns, acked = self.columns, self._moves.acked.array[found.which]
        keys = (acked + 1).astype(np.uint64)
        for column in PROCESS:
            keys = joined(keys, column, columns.visible.array[rows[:, column]])
        keys = joined(keys, SESSIONS, rows[:, SESSIONS])
        keys = joined(keys, CONTROL, columns.node.array[rows[:, CONTROL]])
        keys = joined(keys, SEEN, rows[:, SEEN])
        seen = self._looks.find(keys)
        missing = np.flatnonzero(seen < 0)
        if len(missing):
            new, first = np.unique(keys[missing], return_index=True)
            values = [self._look(rows[at], int(acked[at]), int(found.parents[at])) for at in missing[first]]
            self._looks.add(new, np.array(values, np.int64))
            seen[missing] = self._looks.find(keys[missing])
        return seen.astype(np.int32)

    def _look(self, row: NDArray[np.int32], acked: int, parent: int) -> int:
        state = self.columns.state(row.tolist())
        seen = Seen(state.committed, state.stated, state.led)
        try:
            seen = look(self.cluster.brokers, self._logs(state), state, seen, self._moves.acknowledged(acked))
        except InvariantError as error:
            raise BrokenError(str(error), parent) from error
        return self.columns.number(SEEN, tuple(seen))

    def _logs(self, state: State) -> list[Any]:
        return [self.cluster.disks[one].records for one in state.disks]

    # -- what is said of it ------------------------------------------------------------------------------------

    def _broken(self, sentence: str, row: NDArray[np.int32]) -> Report:
        """Report a violation and its story; without parents, walk again with them."""
        report = self.report
        if not self._parents:
            again = Walk(report.scope, parents=True, thrifty=self._thrifty)
            self.cluster, self.report = again.cluster, again.report
            return again.run()
        story = [marks(self.columns.sums(row[None, :]))]
        while True:
            parent = self._known.find(story[-1])
            if parent[0] == 0:
                break
            story.append(parent.view(np.uint64))
        report.violation = sentence
        report.story = retold(self.cluster, [int(mark[0]) for mark in reversed(story[:-1])], self._mark_of)
        self._measure(0)
        return report

    def _bytes(self, *levels: list[Rows]) -> int:
        """What grows with the number of states: marks, and the rows that wait."""
        return self._known.bytes_with(20 * _AT_ONCE) + sum(rows.nbytes for level in levels for rows in level)

    def _mark_of(self, state: State) -> int:
        return int(marks(self.columns.sums(self.columns.row(state)[None, :]))[0])

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
