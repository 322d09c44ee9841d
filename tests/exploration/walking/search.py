# SPDX-License-Identifier: Apache-2.0
"""Every state of a scope, nearest first, so that the first story that breaks an invariant is a shortest one."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.exploration.model.cluster import Chain, Cluster
from tests.exploration.model.invariants import InvariantError, at_rest
from tests.exploration.model.state import NOW, Names, Scope, State
from tests.exploration.model.turn import Move


@dataclass
class Report:
    """How far a search went.

    Attributes:
        states: different ones, twins counted once; `merged`: times that a move led to the twin of a known or new one.
        transitions: moves that were made; `depth`: moves of the longest shortest story.
        dropped: states that were found and left out by a beam.
        complete: every state of the scope was visited.
        at_rest: states in which only faults and batches can still happen.
        waiting: states that were found, and whose moves were not made.
        delays, surprises_count, at_once: which stories are walked (see `Walk`).
    """

    scope: Scope
    states: int = 1
    transitions: int = 0
    merged: int = 0
    known: int = 0
    depth: int = 0
    at_rest: int = 0
    waiting: int = 0
    delays: int | None = None
    surprises_count: bool = False
    at_once: str | None = None
    dropped: int = 0
    cores: int = 0
    steps: int = 0
    seconds: float = 0.0
    memory_mb: int = 0
    complete: bool = False
    violation: str | None = None
    story: list[tuple[Move, State]] = field(default_factory=list)

    def measure(self, cluster: Cluster, started_s: float, *, waiting: int) -> None:
        """Note the time, the memory and the work until now."""
        self.seconds = time.monotonic() - started_s
        self.waiting = waiting
        self.cores, self.steps = len(cluster.brokers), cluster.brokers.steps_taken
        self.memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


class Search:
    """A search breadth first, through a cluster of the scope."""

    def __init__(self, scope: Scope, cluster: Cluster | None = None) -> None:
        self.cluster = Cluster(scope) if cluster is None else cluster
        self.names = Names(self.cluster.brokers)
        self.report = Report(scope)
        self._from: dict[int, int] = {}
        self._visit: Callable[[State], object] | None = None
        self._started_s = time.monotonic()

    def run(
        self,
        *,
        seconds: float = float("inf"),
        beam: int | None = None,
        seed: int = 0,
        visit: Callable[[State], object] | None = None,
        progress: Callable[[Report], None] | None = None,
        progress_every_s: float = 10.0,
    ) -> Report:
        """Search until all states are visited, an invariant breaks, or the time is over.

        With a `beam` it continues from this many states per depth, chosen by the `seed`: the search then misses states,
        but visits long stories. `visit` gets each state that is reached, including intermediate ones; it may get a
        state several times.
        """
        self._visit = visit
        chance = random.Random(seed)
        report = self.report
        root = self.names.canonical(self.cluster.initial())
        self._from[hash(root)] = 0
        level = [root]
        next_progress_s = progress_every_s
        while level:
            following: list[State] = []
            for number, state in enumerate(level):
                if not self._continue(state, following):
                    return self._done(waiting=0)
                if number % 256 == 0:
                    passed_s = time.monotonic() - self._started_s
                    if passed_s > seconds:
                        return self._done(waiting=len(level) - number - 1 + len(following))
                    if progress is not None and passed_s > next_progress_s:
                        next_progress_s = passed_s + progress_every_s
                        self.report.measure(
                            self.cluster, self._started_s, waiting=len(level) - number - 1 + len(following)
                        )
                        progress(report)
                level[number] = root  # frees the state
            if beam is not None and len(following) > beam:
                report.dropped += len(following) - beam
                following = chance.sample(following, beam)
            level = following
            report.depth += bool(following)
        report.complete = report.dropped == 0
        return self._done(waiting=0)

    def _continue(self, state: State, following: list[State]) -> bool:
        """Make every move of one state; False when an invariant breaks."""
        cluster, names, report, came_from = self.cluster, self.names, self.report, self._from
        here, at_end = hash(state), True
        try:
            for chain in cluster.ahead(state):
                at_end &= chain[0][1].left != state.left
                report.transitions += 1
                if self._visit is not None:
                    for _, state_on_the_way in chain:
                        self._visit(state_on_the_way)
                after = chain[-1][1]
                twin = names.canonical(after)
                report.merged += twin is not after
                mark = hash(twin)
                if mark in came_from:
                    report.known += 1
                else:
                    came_from[mark] = here
                    report.states += 1
                    following.append(twin)
            if at_end:
                report.at_rest += 1
                at_rest(cluster.brokers, [cluster.disks[one].records for one in state.disks], state)
        except InvariantError as error:
            report.violation = str(error)
            report.story = self._story(here)
            return False
        return True

    def _story(self, last: int) -> list[tuple[Move, State]]:
        marks = [last]
        while self._from[marks[-1]]:
            marks.append(self._from[marks[-1]])
        return retold(self.cluster, marks[-2::-1], lambda state: hash(self.names.canonical(state)))

    def _done(self, waiting: int) -> Report:
        self.report.measure(self.cluster, self._started_s, waiting=waiting)
        return self.report


def retold(cluster: Cluster, marks: Sequence[int], mark_of: Callable[[State], int]) -> list[tuple[Move, State]]:
    """The moves from the beginning through the states with these marks, and from the last of them to the violation.

    All moves use the names of the first state.
    """
    state = cluster.initial()
    story: list[tuple[Move, State]] = []
    for mark in marks:
        story += next(one for one in _ahead_of(cluster, state) if mark_of(one[-1][1]) == mark)
        state = story[-1][1]
    return [*story, *_last_words(cluster, state)]


def _ahead_of(cluster: Cluster, state: State) -> Iterator[Chain]:
    """As `Cluster.ahead`, for a state that the search passed without a violation."""
    try:
        yield from cluster.ahead(state)
    except InvariantError as error:
        raise AssertionError("the story cannot be replayed") from error


def _last_words(cluster: Cluster, state: State) -> list[tuple[Move, State]]:
    """The moves that break an invariant, each with the last state that is right."""
    at_end = True
    for move in cluster.moves(state):
        try:
            after = cluster.after(state, move)
        except InvariantError:
            return [(move, state)]
        at_end &= after is None or after.left != state.left
        if after is not None and after.due == NOW:
            more = _last_words(cluster, after)
            if more:
                return [(move, after), *more]
    return [(("rest",), state)] if at_end else []
