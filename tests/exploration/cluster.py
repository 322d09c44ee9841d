# SPDX-License-Identifier: Apache-2.0
"""A small cluster in which everything that can happen next is tried: moves, and the state that each one leads to.

Time is abstract: a follower lags, a stream breaks, a session ends whenever the scope allows it. What is taken
eagerly, within the move that brought it about, and why nothing is lost by that:

- a read for a follower: the log of a leader is not cut, so the same records come whenever it is made, and a high
  watermark that would have moved meanwhile still goes to the follower alone, at a tick;
- the making of a stream: until a message is delivered on it nothing but the follower's end changes, and a stream
  whose messages are not delivered is as good as none;
- at a broker that sends a follower nothing and was not asked to, the end of that follower's stream and its messages
  that ask nothing: only what follows on the same stream could give them a meaning;
- the opening of a log, and the answer to the controller's command: as if the command had come later;
- a stream that ends because the leader's process died, at the follower's end: what was on its way could as well have
  been delivered before. At the leader's end the messages of a dead follower stay on their way, in order;
- a decision of the controller, once a registration, the end of a session or a suspicion asks for one: only the
  controller and the conditions of a ZooKeeper write look at these, so instead of a late decision there is a late
  cause; several causes may still come together. Late decisions are tried where the cause shows elsewhere too: when
  a command was refused, or a process lives on without its session;
- appends and cuts, unless the scope has slow disks. This one does leave something out: what else reaches a broker
  while its log is not quiet. Scopes with slow disks look at it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any

from tidemark.core.controller.leader_election import BrokerFacts, PartitionFacts, decide
from tidemark.model import BrokerId, IsrEntry, LeaderAndIsr, VersionedState

from tests.exploration.brokers import Brokers, Disk
from tests.exploration.frozen import BROKERS
from tests.exploration.state import (
    DEAD,
    EVERYBODY,
    FIRST,
    MORE,
    NOW,
    PAIRS,
    PLACE,
    Left,
    Scope,
    State,
    Stream,
)
from tests.exploration.turn import Disks, Move, Setting, Turn

Chain = tuple[tuple[Move, State], ...]
"""Moves, each with the state after it."""


class Cluster:
    """What can happen in a scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.brokers = Brokers()
        self.disks = Disks()
        self.setting = Setting(scope, self.brokers, self.disks)
        self._decisions: dict[Any, tuple[int, ...]] = {}

    def initial(self) -> State:
        """Everybody is in sync, follows the first broker, and nothing is on its way."""
        entries = tuple(IsrEntry(broker, 1) for broker in BROKERS)  # type: ignore[arg-type]
        node = VersionedState(LeaderAndIsr(FIRST, 0, entries, min_isr=self.scope.min_isr), 0)  # type: ignore[arg-type]
        scope, nothing = self.scope, ((), (), ())
        state = State(
            cores=tuple(self.brokers.fresh(broker) for broker in BROKERS),
            disks=(self.disks.number(Disk()),) * 3,
            work=nothing,
            epochs=(1, 1, 1),
            live=(True, True, True),
            node=self.brokers.values.number(node),
            commands=((MORE,),) * 3,
            streams=(Stream(),) * len(PAIRS),
            asked=nothing,
            due=NOW,
            news=True,
            suspected=(),
            refused=-1,
            left=Left(0, 0, 0, 0, 0, 0, 0),
        )
        turn = Turn(self.setting, state)
        for place in EVERYBODY:
            turn.feed(place, ("registered", 1, -1))
        state = turn.end()
        while True:
            move = next((one for one in self.moves(state) if one[0] not in ("produce", "tick")), None)
            if move is None:
                break
            after = self.after(state, move)
            assert after is not None
            state = after
        faults = (scope.crashes, scope.suspicions, scope.lost_answers, scope.lags, scope.breaks, scope.expiries)
        return state._replace(left=Left(0, *faults))

    # -- what can happen ---------------------------------------------------------------------------------------

    def moves(self, state: State) -> Iterator[Move]:
        """Every move; some lead nowhere (`after` gives None)."""
        yield from self.of_controller(state)
        for place in EVERYBODY:
            yield from self.of_session(state, place)
            yield from self.of_suspicion(state, place)
        if state.due == NOW:
            return
        for pair in range(len(PAIRS)):
            yield from self.of_leader_end(state, pair)
            yield from self.of_follower_end(state, pair)
        for place in EVERYBODY:
            yield from self.of_coordination(state, place)
            yield from self.of_command(state, place)
            yield from self.of_client(state, place)
            yield from self.of_process(state, place)

    def of_controller(self, state: State) -> Iterator[Move]:
        """Its decisions."""
        if state.due:
            for node in self.decisions(state):
                yield ("decide", node)

    def of_leader_end(self, state: State, pair: int) -> Iterator[Move]:
        """What a leader hears on a stream."""
        follower, leader = PAIRS[pair]
        if state.streams[pair].up and state.cores[leader] != DEAD:
            yield ("up", follower, leader)

    def of_follower_end(self, state: State, pair: int) -> Iterator[Move]:
        """What a follower hears on a stream, and the end of it."""
        stream = state.streams[pair]
        if stream.down:
            yield ("down", *PAIRS[pair])
        if stream.hello >= 0 and self.scope.breaks and state.left.breaks:
            yield ("break", *PAIRS[pair])

    def of_session(self, state: State, place: int) -> Iterator[Move]:
        """The beginnings and ends of a broker's registrations."""
        if state.dead[place]:
            yield ("restart", place)
            if state.live[place]:
                yield ("session ends", place)
        elif not state.live[place]:
            if self.brokers.views[state.cores[place]].broker_epoch < 0:
                yield ("register", place)
        elif self.scope.expiries and state.left.expiries:
            yield ("expire", place)

    def of_suspicion(self, state: State, place: int) -> Iterator[Move]:
        """A broker is suspected, or trusted again."""
        if not self.scope.suspicions:
            return
        if state.left.suspicions and not state.suspected and state.live[place]:
            yield ("suspect", place)
        if BROKERS[place] in state.suspected:
            yield ("trust", place)

    def of_coordination(self, state: State, place: int) -> Iterator[Move]:
        """What ZooKeeper does with a request, and its answers."""
        asked = state.asked[place]
        if not asked:
            return
        if asked[0] == "write":
            yield ("zookeeper", place, "answers")
            if self.scope.lost_answers and state.left.lost_answers and not state.dead[place]:
                yield ("zookeeper", place, "writes, and the answer is lost")
                yield ("zookeeper", place, "loses the request")
        elif asked[0] == "read isr":
            yield ("zookeeper", place, "answers")
        else:
            yield ("answer", place)

    def of_command(self, state: State, place: int) -> Iterator[Move]:
        """Commands of the controller to a broker."""
        if state.commands[place] and state.commands[place][0] != MORE and state.cores[place] != DEAD:
            yield ("command", place)

    def of_client(self, state: State, place: int) -> Iterator[Move]:
        """A batch for a leader."""
        if state.cores[place] == DEAD or self.brokers.views[state.cores[place]].leader_epoch is None:
            return
        if self.scope.batches and state.left.produced < self.scope.batches:
            yield ("produce", place)

    def of_process(self, state: State, place: int) -> Iterator[Move]:
        """What a process does by itself or suffers."""
        if state.cores[place] == DEAD:
            return
        view = self.brokers.views[state.cores[place]]
        if self.scope.expiries and not state.live[place] and view.broker_epoch >= 0:
            yield ("learn", place)
        if state.work[place]:
            yield ("disk", place)
        if self.brokers.step(state.cores[place], ("tick",)).effects:
            yield ("tick", place)
        if self.scope.crashes and state.left.crashes:
            yield ("crash", place, False)
            disk = self.disks[state.disks[place]]
            if (view.high_watermark, view.epochs) != (disk.high_watermark, disk.epochs):
                yield ("crash", place, True)
        if self.scope.lags and view.may_shrink and state.left.lags:
            for follower in view.may_shrink:
                yield ("lag", place, follower)
        for follower in view.aged:
            stream = state.streams[PLACE[BROKERS.index(BrokerId(follower)), place]]
            if stream.attached and not stream.up:
                yield ("heartbeat", place, follower)

    def decisions(self, state: State) -> tuple[int, ...]:
        """Nodes that the controller may write now, one for each order of preference; the present one: no write."""
        key = (state.node, tuple(state.live), tuple(state.epochs), state.suspected, state.refused)
        found = self._decisions.get(key)
        if found is None:
            found = self._decisions[key] = self._decide(state)
        return found

    def _decide(self, state: State) -> tuple[int, ...]:
        values = self.brokers.values
        node, version = values[state.node]
        live = {BROKERS[place]: state.epochs[place] for place in EVERYBODY if state.live[place]}
        facts = BrokerFacts(live, suspected=frozenset(map(BrokerId, state.suspected)))  # type: ignore[arg-type]
        refused = state.refused if state.refused >= 0 else None
        found: dict[int, None] = {}
        for assigned in permutations(BROKERS):
            partition = PartitionFacts(assigned, node.min_isr, node, refused_epoch=refused)  # type: ignore[arg-type]
            decision = decide(partition, facts)
            found[state.node if decision is None else values.number(VersionedState(decision.state, version + 1))] = None
        return tuple(found)

    # -- what comes of it --------------------------------------------------------------------------------------

    def after(self, state: State, move: Move) -> State | None:
        """The state that a move leads to, None when nothing changes.

        Raises:
            InvariantError: an invariant does not hold there, or an assertion of the core failed.
        """
        turn = Turn(self.setting, state)
        return turn.end() if turn.take(move) else None

    def ahead(self, state: State) -> Iterator[Chain]:
        """What can happen next, up to a state in which the controller has nothing to decide at once.

        Raises:
            InvariantError: as `after`.
        """
        for move in self.moves(state):
            after = self.after(state, move)
            if after is None:
                continue
            if after.due != NOW:
                yield ((move, after),)
            else:
                for more in self.ahead(after):
                    yield ((move, after), *more)
