# SPDX-License-Identifier: Apache-2.0
"""A move computed from the parts of a state that it reads, and from no others.

A move of one broker reads few of the columns of a row (see `columns`), so its changes are the same in all states
that agree on these. The columns are not listed manually. The move first runs on a state with few known columns; a read
of another column raises `NeedError`. Then the move runs again on a state in which that column is known, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, cast

from tests.exploration.model.cluster import Cluster
from tests.exploration.model.invariants import InvariantError
from tests.exploration.model.state import ALL_BROKERS, PAIRS, UNKNOWN, Cells, NeedError, State, raw
from tests.exploration.model.turn import Move, Turn
from tests.exploration.walking.columns import (
    ASKED,
    COMMANDS,
    CONTROL,
    LEFT,
    PROCESS,
    SESSIONS,
    STREAM,
    WIDTH,
    Columns,
    Facts,
)

_CONTROLS: Final = ("node", "due", "has_changed", "suspected", "refused", "cut")
_SCALARS: Final = {**dict.fromkeys(_CONTROLS, CONTROL), "left": LEFT}
_CELLS: Final = (
    (("cores", "disks", "work"), PROCESS),
    (("epochs", "live", "dead"), (SESSIONS,) * 3),
)
_WHOLE_CELLS: Final = (("commands", COMMANDS), ("asked", ASKED), ("streams", STREAM))
_NO_COLUMN: Final = (-1,) * WIDTH


class Partial:
    """A state with some known columns, and the fields of a `State`."""

    def __init__(self, columns: Columns, known: dict[int, int]) -> None:
        self._scalars = {column: columns.part(column, known[column]) for column in (CONTROL, LEFT) if column in known}
        for names, places in _CELLS:
            found = [columns.part(column, known[column]) if column in known else None for column in places]
            for number, name in enumerate(names):
                cells = [
                    UNKNOWN if part is None else part[number][place] if places[0] == SESSIONS else part[number]
                    for place, part in enumerate(found)
                ]
                setattr(self, name, Cells(cells, places))
        for name, at in _WHOLE_CELLS:
            values = [columns.part(column, known[column]) if column in known else UNKNOWN for column in at]
            setattr(self, name, Cells(values, at))

    def __getattr__(self, name: str) -> Any:
        column = _SCALARS.get(name)
        if column is None:
            raise AttributeError(name)
        if column not in self._scalars:
            raise NeedError(column)
        part = self._scalars[column]
        return part if column == LEFT else part[_CONTROLS.index(name)]


class PartialTurn(Turn):
    """A move of a partial state; after the move, it has the changes."""

    def _take_over(self, state: State) -> None:
        """The parts of ZooKeeper and the controller are read when the move needs them."""

    def __getattr__(self, name: str) -> Any:
        if name in _SCALARS:
            value = getattr(self._before, name)
            setattr(self, name, value)
            return value
        raise AttributeError(name)

    def changes(self, columns: Columns) -> dict[int, int]:
        """The new numbers of the columns that have changed."""
        before, found = self._before, dict[int, int]()

        def changed(column: int, now: Any, was: Any) -> None:
            if now != was:
                found[column] = columns.number(column, now)

        now, was = ([raw(getattr(one, name)) for name in _CELLS[0][0]] for one in (self, before))
        for place, column in enumerate(PROCESS):
            changed(column, tuple(one[place] for one in now), tuple(one[place] for one in was))
        for name, places in _WHOLE_CELLS:
            for column, one, old in zip(places, raw(getattr(self, name)), raw(getattr(before, name)), strict=True):
                if one is not old:
                    changed(column, one, old)
        for names, _ in _CELLS[1:]:
            changed(SESSIONS, *(tuple(tuple(raw(getattr(one, name))) for name in names) for one in (self, before)))
        if any(name in self.__dict__ for name in _CONTROLS):
            changed(CONTROL, *(tuple(getattr(one, name) for name in _CONTROLS) for one in (self, before)))
        if "left" in self.__dict__:
            changed(LEFT, self.left, before.left)
        return found


class Outcome(NamedTuple):
    """The outcome of one move.

    Attributes:
        delta: new numbers by column, -1 where nothing changes; `was`: the old ones there.
        acked: number of the acknowledged batches, 0 for none.
        broken: an invariant that the move breaks.
    """

    delta: tuple[int, ...]
    was: tuple[int, ...]
    acked: int
    broken: str | None = None


class Group(NamedTuple):
    """Moves of one kind that read almost the same columns.

    Attributes:
        first: columns that each of the moves reads.
        only: facts without which no such move exists.
        places: the brokers that make the moves; for streams the leader, then the follower.
    """

    kind: str
    moves: Callable[[State], Iterator[Move]]
    first: tuple[int, ...]
    only: Facts | None = None
    places: tuple[int, ...] = ()


def groups(cluster: Cluster, columns: Columns) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
    """(groups of the controller and the causes of its decisions, all other groups)."""

    def bound(moves: Callable[[State, int], Iterator[Move]], at: int) -> Callable[[State], Iterator[Move]]:
        return lambda state: moves(state, at)

    of_control = [Group("decision", cluster.of_controller, (CONTROL, SESSIONS))]
    of_streams: list[Group] = []
    others: list[Group] = []
    for place in ALL_BROKERS:
        process, mine = PROCESS[place], (place,)
        of_control.append(Group("session", bound(cluster.of_session, place), (SESSIONS,), None, mine))
        if cluster.scope.suspicions:
            of_control.append(Group("suspicion", bound(cluster.of_suspicion, place), (CONTROL, LEFT), None, mine))
        asked, told = (ASKED[place],), (COMMANDS[place], process)
        others.append(Group("coordination", bound(cluster.of_coordination, place), asked, columns.asked, mine))
        others.append(Group("command", bound(cluster.of_command, place), told, columns.told, mine))
        if cluster.scope.batches:
            others.append(Group("client", bound(cluster.of_client, place), (process,), None, mine))
        others.append(Group("process", bound(cluster.of_process, place), (process,), None, mine))
    for pair, (follower, leader) in enumerate(PAIRS):
        heard = (STREAM[pair], PROCESS[leader])
        of_streams.append(Group("up", bound(cluster.of_leader_end, pair), heard, columns.up, (leader, follower)))
    for pair, (follower, leader) in enumerate(PAIRS):
        heard = (STREAM[pair], PROCESS[follower])
        only = None if cluster.scope.breaks else columns.down
        of_streams.append(Group("down", bound(cluster.of_follower_end, pair), heard, only, (leader, follower)))
    return tuple(of_control), (*of_streams, *others)


class Evaluator:
    """Outcomes of a group of moves in a state of which some columns are known."""

    def __init__(self, cluster: Cluster, columns: Columns) -> None:
        self._setting = cluster.setting
        self._columns = columns
        self.acked: dict[tuple[tuple[int, int], ...], int] = {(): 0}

    def outcomes(self, group: Group, known: dict[int, int]) -> list[Outcome]:
        """The outcome of every move that changes the state.

        Raises:
            NeedError: the move reads an unknown column.
        """
        state = cast("State", Partial(self._columns, known))
        found: list[Outcome] = []
        for move in group.moves(state):
            turn = PartialTurn(self._setting, state)
            try:
                if not turn.take(move):
                    continue
                turn.settle()
            except InvariantError as error:
                found.append(Outcome(_NO_COLUMN, _NO_COLUMN, 0, str(error)))
                continue
            changes = turn.changes(self._columns)
            acked = self.acked.setdefault(tuple(turn.acked), len(self.acked))
            delta = tuple(changes.get(column, -1) for column in range(WIDTH))
            was = tuple(known[column] if column in changes else -1 for column in range(WIDTH))
            found.append(Outcome(delta, was, acked))
        return found
