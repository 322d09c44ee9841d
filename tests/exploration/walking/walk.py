# SPDX-License-Identifier: Apache-2.0
"""Every state of a scope, nearest first, many at a time: rows of numbers, moves looked up, a mark of each state kept.

The shipping core computes the changes of one move once for all states that agree on the columns that it reads (see
`partial`); each invariant is checked once for all states with the same values of its columns. `search` does the same
for one state at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tests.exploration.model.cluster import Cluster
from tests.exploration.model.invariants import InvariantError, Seen, at_rest, look
from tests.exploration.model.state import Names, Scope, State
from tests.exploration.walking.at_once import KINDS
from tests.exploration.walking.at_once import made as without_delay
from tests.exploration.walking.columns import CONTROL, LEFT, PROCESS, SEEN, SESSIONS, Columns, marks
from tests.exploration.walking.delays import PutOff, Schedule
from tests.exploration.walking.moves import BrokenError, Moves, Successors
from tests.exploration.walking.partial import Group
from tests.exploration.walking.search import Report, retold
from tests.exploration.walking.table import Costs, Marks, Numbers, Rows, Table, joined

_AT_ONCE: Final = 100_000
"""Number of rows in one step; the bound limits the memory of a step."""


class _BrokenRowError(Exception):
    """`BrokenError` with the row itself."""

    def __init__(self, sentence: str, row: NDArray[np.int32]) -> None:
        super().__init__(sentence)
        self.sentence, self.row = sentence, row


class _Bounds:
    """Limits of a walk, and the interval of its progress lines."""

    def __init__(
        self, seconds: float, memory_bytes: float, progress: Callable[[Report], None] | None, every_s: float
    ) -> None:
        self._seconds, self._memory_bytes = seconds, memory_bytes
        self._progress, self._every_s, self._next_s = progress, every_s, every_s

    def reached(self, report: Report, memory_bytes: int) -> bool:
        """Whether to stop now; prints a progress line when due."""
        if report.seconds > self._seconds or memory_bytes > self._memory_bytes:
            return True
        if self._progress is not None and report.seconds > self._next_s:
            self._next_s = report.seconds + self._every_s
            self._progress(report)
        return False


class Walk:
    """Breadth first.

    Args:
        parents: note the predecessor by which each state was first reached, as its story needs.
        thrifty: omit states with fewer remaining faults than one that was met and is the same otherwise:
            each state that can follow from them can follow from that one.
        delays: only stories with at most this number of deferred deliveries (see `delays`); first those in which none
            is, then those with one, so that each state is reached with as few as possible. None for all stories.
        surprises_count: a fault or a batch while a message is in flight counts as a deferred delivery.
        at_once: only stories in which these messages have no delay, one of `at_once.KINDS`; without `delays`.
        after: a walk of the same scope whose moves need not be computed again.
        cluster: of the scope; without `after`.
    """

    def __init__(
        self,
        scope: Scope,
        *,
        parents: bool = False,
        thrifty: bool = True,
        delays: int | None = None,
        surprises_count: bool = False,
        at_once: str | None = None,
        after: Walk | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        assert delays is None or at_once is None
        self.cluster: Cluster = after.cluster if after is not None else cluster or Cluster(scope)
        self.report = Report(scope, delays=delays, surprises_count=surprises_count, at_once=at_once)
        self.columns: Columns = Columns(self.cluster, Names(self.cluster.brokers)) if after is None else after.columns
        self._moves: Moves = Moves(self.cluster, self.columns) if after is None else after._moves
        self._looks: Table = Table() if after is None else after._looks
        self._known = Table(bits=16, numbered=parents)
        self._parents = parents
        self._thrifty = thrifty
        self._schedule = Schedule(self.columns, self._moves, surprises_count=surprises_count)
        self._put_off = None if delays is None else PutOff(delays)
        self._spent = 0
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
        """Walk until all states are visited, an invariant breaks, the time is over, or the walk would need more memory.

        `visit` gets each reached state, also intermediate states; some states several times.
        """
        self._visit = visit
        report, put_off = self.report, self._put_off
        bounds = _Bounds(seconds, memory_bytes_max, progress, progress_every_s)
        rows = self.columns.row(self.cluster.initial())[None, :]
        sums = self.columns.sums(rows)
        rows = self.columns.tidy(rows)
        self._known.add(marks(sums), np.zeros(1, np.int64))
        level = [rows]
        for spent in range(1 if put_off is None else put_off.most + 1):
            if put_off is not None and spent:
                self._spent = spent
                level = _together(list(self._take_up(put_off.take(spent))))
            try:
                if not self._exhaust(level, bounds):
                    return report
            except _BrokenRowError as found:
                return self._broken(found.sentence, found.row)
        report.complete = True
        self.report.measure(self.cluster, self._started_s, waiting=0)
        return report

    def _exhaust(self, level: list[Rows], bounds: _Bounds) -> bool:
        """Continue from all of them, and from states reached without deferred deliveries; False at the bound."""
        report, rounds = self.report, 0
        while level:
            following: list[Rows] = []
            waiting = sum(map(len, level))
            while level:
                rows = level.pop()
                for start in range(0, len(rows), _AT_ONCE):
                    some = rows[start : start + _AT_ONCE]
                    try:
                        following += self._continue(some)
                    except BrokenError as error:
                        raise _BrokenRowError(str(error), some[error.row]) from error
                    waiting -= len(some)
                    self.report.measure(self.cluster, self._started_s, waiting=waiting + sum(map(len, following)))
                    if bounds.reached(report, self._bytes(level, following)):
                        return False
            level = _together(following)
            rounds += bool(level)
            report.depth = max(report.depth, rounds)
        return True

    def _continue(self, rows: Rows) -> Iterator[Rows]:
        """Make every move of some states; returns those that were not known."""
        report, columns = self.report, self.columns
        sums = columns.sums(rows)
        origins = marks(sums)
        ends = np.ones(len(rows), bool)
        for found in self._made(rows, (*self._moves.of_control, *self._moves.others), self._spent):
            ends[found.parents[self._moves.left.array[found.which] < 0]] = False
            yield from self._arrive(rows, sums, origins, found)
        resting = np.flatnonzero(ends)
        report.at_rest += len(resting)
        for at in resting:
            state = columns.state(rows[at])
            try:
                at_rest(self.cluster.brokers, self._logs(state), state)
            except InvariantError as error:
                raise BrokenError(str(error), int(at)) from error

    def _made(self, rows: Rows, groups: Sequence[Group], spent: Costs | int) -> Iterator[Successors]:
        """Successors; with a count of deliveries, only those within the limit.

        `spent`: number of deferred deliveries so far, of each row.
        """
        if self._put_off is not None:
            so_far = np.broadcast_to(np.int32(spent), len(rows)) if isinstance(spent, int) else spent
            yield from self._schedule.made(rows, groups, so_far, self._put_off.most)
            return
        if self.report.at_once is not None:
            yield from without_delay(self._moves, rows, groups, KINDS[self.report.at_once])
            return
        for group in groups:
            found = self._moves.successors(rows, group)
            if found is not None:
                yield found

    def _arrive(self, rows: Rows, sums: Marks, origins: Marks, found: Successors) -> Iterator[Rows]:
        """Enter successors; for a state in which the controller must decide first, enter the states after the decision.

        `origins`: marks of the states from which these rows came.
        """
        now = self._moves.now.array[found.which]
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
            spent = 0 if passed.costs is None else passed.costs
            for more in self._made(after, self._moves.of_control, spent):
                yield from self._arrive(after, sums, origins[passed.parents], more)
        except BrokenError as error:
            raise BrokenError(str(error), int(passed.parents[error.row])) from error

    def _enter(self, rows: Rows, sums: Marks, origins: Marks, found: Successors) -> Iterator[Rows]:
        """The new ones among the successors, twins counted once."""
        report, moves, columns = self.report, self._moves, self.columns
        report.transitions += len(found.which)
        sums = sums[found.parents] + moves.sums.array[found.which]
        seen = rows[found.parents, SEEN]
        to_look_at = np.flatnonzero(moves.seen.array[found.which])
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
            left = np.where((now := moves.left.array[found.which[new]]) >= 0, now, rows[found.parents[new], LEFT])
            new = new[~self._is_poorer(sums[new], left)]
        if found.costs is not None:
            new = self._afford(new, known, found.costs)
        if len(new):
            different, first = np.unique(known[new], return_index=True)
            new = new[first]
            after = moves.rows(rows, found.of(new))
            after[:, SEEN] = seen[new]
            after = columns.tidy(after)
            came_from = origins[found.parents[new]].view(np.int64) if self._parents else None
            if found.costs is None:
                yield self._met(after, different, came_from)
            else:
                yield from self._met_or_put_off(after, different, came_from, found.costs[new])
        report.known += len(found.which) - len(new)

    def _met(self, rows: Rows, known: Marks, came_from: Numbers | None) -> Rows:
        self._known.add(known, came_from)
        self.report.states += len(rows)
        return rows

    def _afford(self, new: Numbers, known: Marks, costs: Costs) -> Numbers:
        """The successors that do not wait yet, the cheapest way to each first."""
        assert self._put_off is not None
        new = new[self._put_off.new(known[new], costs[new], self._spent)]
        return new[np.argsort(costs[new], kind="stable")]

    def _met_or_put_off(self, rows: Rows, known: Marks, came_from: Numbers | None, costs: Costs) -> Iterator[Rows]:
        """The states that are visited now; keeps those with more deferred deliveries until their turn comes."""
        assert self._put_off is not None
        for cost in np.unique(costs):
            mine = np.flatnonzero(costs == cost)
            some = rows[mine], known[mine], None if came_from is None else came_from[mine]
            if cost == self._spent:
                yield self._met(*some)
            else:
                self._put_off.add(int(cost), *some)

    def _take_up(self, pieces: list[tuple[Rows, Numbers | None]]) -> Iterator[Rows]:
        """The waiting states that were not visited in the meantime."""
        for rows, came_from in pieces:
            sums = self.columns.sums(rows)
            known = marks(sums)
            new = np.flatnonzero(self._known.places(known) < 0)
            if len(new) and self._thrifty:
                new = new[~self._is_poorer(sums[new], rows[new, LEFT])]
            if len(new):
                yield self._met(rows[new], known[new], None if came_from is None else came_from[new])

    def _is_poorer(self, sums: Marks, left: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Whether an equal state with more remaining faults was visited."""
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
        """The facts seen, with those of these states, as numbers of that part.

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
            disks = [self.cluster.disks[one] for one in state.disks]
            seen = look(self.cluster.brokers, disks, state, seen, self._moves.acknowledged(acked))
        except InvariantError as error:
            raise BrokenError(str(error), parent) from error
        return self.columns.number(SEEN, tuple(seen))

    def _logs(self, state: State) -> list[Any]:
        return [self.cluster.disks[one].records for one in state.disks]

    # -- its report ----------------------------------------------------------------------------------------------

    def _broken(self, sentence: str, row: NDArray[np.int32]) -> Report:
        """Report a violation and its story; without parents, walk again with them."""
        report = self.report
        if not self._parents:
            again = Walk(
                report.scope,
                parents=True,
                thrifty=self._thrifty,
                delays=report.delays,
                surprises_count=report.surprises_count,
                at_once=report.at_once,
            )
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
        self.report.measure(self.cluster, self._started_s, waiting=0)
        return report

    def _bytes(self, *levels: list[Rows]) -> int:
        """Memory in use, with the marks of the next rows; or the memory of the process, if that is larger."""
        waiting = 0 if self._put_off is None else self._put_off.bytes()
        marks_bytes = self._known.bytes_with(20 * _AT_ONCE)
        of_states = marks_bytes + waiting + sum(rows.nbytes for some in levels for rows in some)
        return max(of_states, self.report.memory_mb * 1_000_000 + marks_bytes - self._known.bytes_with(0))

    def _mark_of(self, state: State) -> int:
        return int(marks(self.columns.sums(self.columns.row(state)[None, :]))[0])


def _together(level: list[Rows]) -> list[Rows]:
    """The same rows in large pieces."""
    pieces: list[Rows] = []
    while level:
        some, count = [level.pop()], 0
        while level and (count := count + len(some[-1])) < _AT_ONCE:
            some.append(level.pop())
        pieces.append(np.concatenate(some))
    return pieces
