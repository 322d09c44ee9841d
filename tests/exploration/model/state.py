# SPDX-License-Identifier: Apache-2.0
"""One state of a small cluster as a tuple of numbers, and its twins under other names of the brokers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tests.exploration.model.brokers import Brokers, Record
from tests.exploration.model.frozen import BROKERS, ORDERS, RENAMES

FIRST: Final = BROKERS[0]
ALL_BROKERS: Final = range(len(BROKERS))
PAIRS: Final = tuple((one, other) for one in ALL_BROKERS for other in ALL_BROKERS if one != other)
"""(follower, leader), as places."""
PLACE: Final = {pair: number for number, pair in enumerate(PAIRS)}
DEAD: Final = -1
NO_BROKERS: Final = (-1, -1, -1)
MORE: Final = ("more",)
"""Stands after a command, or instead of one: another command follows the answer."""
IDLE: Final = 0
DUE: Final = 1
NOW: Final = 2
END: Final = -1
"""The end of a stream, in the queue after the messages of the stream."""

UNKNOWN: Final = object()
"""The value of a field that is not in a known column."""


class NeedError(Exception):
    """The move read a column of a row (see `columns`) that is not known."""

    def __init__(self, column: int) -> None:
        super().__init__(column)
        self.column = column


class Cells(list[Any]):
    """The values of one field by broker or pair, some of them UNKNOWN; `columns`: where each would be found."""

    def __init__(self, values: Iterable[Any], columns: tuple[int, ...]) -> None:
        super().__init__(values)
        self.columns = columns

    def __getitem__(self, place: Any) -> Any:
        value = super().__getitem__(place)
        if value is UNKNOWN:
            raise NeedError(self.columns[place])
        return value

    def __setitem__(self, place: Any, value: Any) -> None:
        _ = self[place]  # the parts of one column are known together
        super().__setitem__(place, value)

    def __iter__(self) -> Iterator[Any]:
        return (self[place] for place in range(len(self)))


def raw(values: Sequence[Any]) -> list[Any]:
    """A plain copy, with UNKNOWN for unknown values."""
    return list.copy(values) if isinstance(values, list) else list(values)


def own(values: Sequence[Any]) -> list[Any]:
    """A copy that a move may change; cells stay cells."""
    return Cells(raw(values), values.columns) if isinstance(values, Cells) else list(values)


@dataclass(frozen=True, slots=True)
class Scope:
    """Limits of a story: the number of times of each fault.

    Attributes:
        lags: number of times, at any moment, that a follower sends nothing for `replica.lag.time.max.ms`.
        breaks: streams that break, with the loss of all messages in flight.
        expiries: sessions that end while their process lives; the process learns this later, and registers again.
        cuts: simultaneous crashes of all brokers, in which one log loses its last batch (rule T7).
        unnoticed: the cut log ends at the end of a batch, so its start detects no cut; else its tail is torn.
        acks: of every batch, -1 (all), 0 or 1.
        reduced: decisions and idle messages happen eagerly (see `cluster`); else they may happen at any time, too.
        slow_disks: an append or a truncation takes time; else it completes before any other move.
    """

    batches: int = 1
    crashes: int = 0
    suspicions: int = 0
    lost_answers: int = 0
    lags: int = 0
    breaks: int = 0
    expiries: int = 0
    cuts: int = 0
    unnoticed: bool = False
    min_isr: int = 2
    acks: int = -1
    slow_disks: bool = False
    reduced: bool = True

    def __post_init__(self) -> None:
        assert not (self.cuts and self.expiries), "with cuts every later registration of a broker follows a crash"


class Left(NamedTuple):
    """Faults and batches that may still happen; `produced` counts up, as labels of batches."""

    produced: int
    crashes: int
    suspicions: int
    lost_answers: int
    lags: int
    breaks: int
    expiries: int
    cuts: int


class Stream(NamedTuple):
    """The streams of one follower to one leader, past and present, as two queues.

    Attributes:
        wanted: broker epoch of the leader that the follower wants a stream to, -1 for none.
        hello: broker epoch that the follower gave on the open stream, -1 while none is open.
        up: (message, hello) or (END, hello), oldest first; entries behind the last END are of the open stream.
        down: messages of the open stream.
        attached: the leader has read from the open stream, so its messages go there.
    """

    wanted: int = -1
    hello: int = -1
    up: tuple[tuple[int, int], ...] = ()
    down: tuple[int, ...] = ()
    attached: bool = False


class State(NamedTuple):
    """All of a cluster. Tuples of three are by broker; broker ids within are those of `BROKERS`.

    Attributes:
        cores: number of each process's core, DEAD for none.
        disks: number of each disk.
        work: the pending work of each disk (slow disks only).
        epochs, live: /brokers/epochs/<id>, and whether /brokers/ids/<id> is there.
        node: number of the leaderAndISR node with its version.
        commands: of the controller to each broker: the one in flight, and MORE if there was a change since.
        streams: by `PAIRS`.
        asked: the request to ZooKeeper of each broker, or the answer in flight; () for none.
        due: whether the controller has something to decide: IDLE, DUE, or NOW (before any other move).
        has_changed: suspicions changed since it last decided.
        suspected: brokers.
        refused: the leader epoch that its leader refused, -1 for none.
        cut: (broker, broker epoch) of the entries whose broker reported a cut tail.
        committed: the records that any leader has ever served, in the order of offsets.
        stated: (leader epoch, high watermark) as leaders stated it, without those that an older epoch stated.
        led: (leader epoch, broker, broker epoch) of the last leadership that was seen to begin.
    """

    cores: tuple[int, ...]
    disks: tuple[int, ...]
    work: tuple[tuple[Any, ...], ...]
    epochs: tuple[int, ...]
    live: tuple[bool, ...]
    node: int
    commands: tuple[tuple[Any, ...], ...]
    streams: tuple[Stream, ...]
    asked: tuple[tuple[Any, ...], ...]
    due: int
    has_changed: bool
    suspected: tuple[int, ...]
    refused: int
    cut: tuple[tuple[int, int], ...]
    left: Left
    committed: tuple[Record, ...] = ()
    stated: tuple[tuple[int, int], ...] = ()
    led: tuple[int, int, int] = NO_BROKERS

    @property
    def dead(self) -> tuple[bool, ...]:
        """For each broker, whether it has no process."""
        return tuple(core == DEAD for core in self.cores)


class Names:
    """Twins: states that differ in the names of the brokers only.

    Sound because no part depends on the order of names: the cores do not, the controller of this explorer tries every
    order of the assigned replicas, and each invariant states the same of all brokers. So each state that can follow
    from a state can follow from its twin, under the other names. The search needs only one of the twins.
    """

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self.orders = ORDERS
        self._renames = RENAMES
        self.pairs = tuple(tuple(PLACE[order[f], order[o]] for f, o in PAIRS) for order in self.orders)
        self._which = {order: which for which, order in enumerate(self.orders)}
        self._known: tuple[dict[Any, Any], ...] = tuple({} for _ in self.orders)
        self._marks: dict[Any, int] = {}
        self._core_marks: dict[int, int] = {}

    def canonical(self, state: State) -> State:
        """The twin that represents all of its twins."""
        marks = [self._mark(state, place) for place in ALL_BROKERS]
        order = sorted(ALL_BROKERS, key=marks.__getitem__)
        if marks[order[0]] != marks[order[1]] != marks[order[2]]:
            return self._twin(state, self._which[tuple(order)])
        alike = [one for one in self.orders if [marks[place] for place in one] == [marks[place] for place in order]]
        return min((self._twin(state, self._which[one]) for one in alike), key=hash)

    def _mark(self, state: State, place: int) -> int:
        """A number that does not depend on names and differs for most brokers."""
        core = state.cores[place]
        mark = self._core_marks.get(core)
        if mark is None:
            view = self._brokers.views[core] if core != DEAD else None
            key: Any = None
            if view is not None:
                key = (*[getattr(view, name) for name in view.__slots__][:-3], len(view.may_shrink), len(view.aged))
            mark = self._core_marks[core] = self._marks.setdefault(key, len(self._marks))
        key = (
            mark,
            state.disks[place],
            state.epochs[place],
            state.live[place],
            len(state.commands[place]),
            len(state.asked[place]),
            self._brokers.values[state.node].state.leader == BROKERS[place],
        )
        return self._marks.setdefault(key, len(self._marks))

    def _twin(self, state: State, which: int) -> State:
        if which == 0:
            return state
        x, y, z = self.orders[which]
        rename, streams = self.term, state.streams
        brokers, names = self._brokers, self._renames[which]
        epoch, broker, broker_epoch = state.led
        return State(
            tuple(
                DEAD if core == DEAD else brokers.twin(core, which)
                for core in (state.cores[x], state.cores[y], state.cores[z])
            ),
            (state.disks[x], state.disks[y], state.disks[z]),
            (state.work[x], state.work[y], state.work[z]),
            (state.epochs[x], state.epochs[y], state.epochs[z]),
            (state.live[x], state.live[y], state.live[z]),
            brokers.values.renamed(state.node, which, names),
            tuple(rename(state.commands[place], which) for place in (x, y, z)),
            tuple(rename(streams[pair], which) for pair in self.pairs[which]),
            tuple(rename(state.asked[place], which) for place in (x, y, z)),
            state.due,
            state.has_changed,
            tuple(sorted(names[one] for one in state.suspected)),
            state.refused,
            self.entries(state.cut, which),
            state.left,
            state.committed,
            state.stated,
            (epoch, names.get(broker, broker), broker_epoch),
        )

    def core(self, number: int, which: int) -> int:
        """A process under other names."""
        return self._brokers.twin(number, which)

    def value(self, number: int, which: int) -> int:
        """A message or a node under other names."""
        return self._brokers.values.renamed(number, which, self._renames[which])

    def broker(self, broker: int, which: int) -> int:
        """A broker's other name."""
        return self._renames[which].get(broker, broker)

    def brokers(self, brokers: tuple[int, ...], which: int) -> tuple[int, ...]:
        """The other names of some brokers, in order."""
        return tuple(sorted(self.broker(one, which) for one in brokers))

    def entries(self, entries: tuple[tuple[int, int], ...], which: int) -> tuple[tuple[int, int], ...]:
        """Entries of brokers under their other names, in order."""
        return tuple(sorted((self.broker(one, which), epoch) for one, epoch in entries))

    def term(self, term: Any, which: int) -> Any:
        """A stream, or the messages that wait for a broker, under other names."""
        if not term:
            return term
        known = self._known[which]
        found = known.get(term)
        if found is None:
            found = known[term] = self._renamed(term, which)
        return found

    def _renamed(self, term: Any, which: int) -> Any:
        names, number = self._renames[which], self._brokers.values.renamed
        match term:
            case Stream():
                up = tuple((one if one == END else number(one, which, names), hello) for one, hello in term.up)
                return term._replace(up=up, down=tuple(number(one, which, names) for one in term.down))
            case ("command", node, registered, suspected):
                registered = tuple(sorted((names[one], epoch) for one, epoch in registered))
                suspected = tuple(sorted(names[one] for one in suspected))
                return ("command", number(node, which, names), registered, suspected)
            case ("write", node, version, joining):
                joining = tuple(sorted((names[one], epoch) for one, epoch in joining))
                return ("write", number(node, which, names), version, joining)
            case ("isr read", node):
                return ("isr read", number(node, which, names))
            case (tuple(), *_):
                return tuple(self.term(one, which) for one in term)
        return term
