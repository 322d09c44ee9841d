# SPDX-License-Identifier: Apache-2.0
"""A small cluster whose every possible next move is tried: moves, and the state after each of them.

Time is abstract: a follower may lag, a stream break and a session end at any moment that the scope allows. Some events
happen within the move that caused them. No different state is missed, for these reasons:

- a read for a follower: the leader's log is not truncated, so the same records come whenever the leader reads them, and
  a high watermark that would have advanced meanwhile still goes to the follower alone, at a tick;
- the creation of a stream: until a message is delivered on it only the follower's end changes, and a stream without
delivered messages has the same effect as no stream;
- at a broker that sends a follower nothing and was not asked to, the end of that follower's stream and its messages
  that ask nothing: only later messages on the same stream could give them a meaning;
- the opening of a log, and the answer to the controller's command: as if the command had come later;
- at the follower's end, the end of a stream whose leader's process died: messages in flight could as well have
  been delivered before. At the leader's end the messages of a dead follower stay in flight, in order;
- a decision of the controller, once a registration, the end of a session or a suspicion asks for one: only the
  controller and the conditions of a ZooKeeper write read these, so a late cause replaces a late decision; several
  causes may still occur together. Late decisions are tried where the cause shows elsewhere too: when a command was
  refused, or a process runs without its session;
- appends and truncations, unless the scope has slow disks. This omits the other events that reach a broker
  while its log is not quiet; scopes with slow disks try them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, combinations, permutations
from typing import Any, Final

from tidemark.core.controller.events import ReplicasDescribed
from tidemark.core.controller.leader_election import BrokerFacts, Decision, PartitionFacts, decide
from tidemark.core.controller.log_comparison import LogComparisons
from tidemark.core.messages import ReplicaDescription
from tidemark.model import NO_LEADER, BrokerEpoch, BrokerId, IsrEntry, LeaderAndIsr, LeaderEpoch, VersionedState

from tests.exploration.model.brokers import IDENTITY, PARTITION, Brokers, Disk, View
from tests.exploration.model.frozen import BROKERS
from tests.exploration.model.invariants import InvariantError
from tests.exploration.model.state import ALL_BROKERS, DEAD, FIRST, MORE, NOW, PAIRS, PLACE, Left, Scope, State, Stream
from tests.exploration.model.turn import Disks, Move, Setting, Turn

Chain = tuple[tuple[Move, State], ...]
"""Moves, each with the state after it."""
_WAIT_MS: Final = 1_000
"""`leader.election.wait.ms`: any value: moves take no time."""


def compared(
    partition: PartitionFacts, brokers: BrokerFacts, heard: Mapping[BrokerId, ReplicaDescription], *, waits: bool
) -> Decision | None:
    """The election by the shipping comparison of logs, of what these brokers answer; None: none yet.

    `waits`: until all have answered; else the wait for them is over.
    """
    comparisons = LogComparisons(_WAIT_MS)
    assert comparisons.decide(PARTITION, IDENTITY, partition, brokers, 0) is None
    for ask in comparisons.questions():
        if ask.broker in heard:
            answer = {PARTITION: heard[ask.broker]}
            comparisons.answered(ReplicasDescribed(ask.broker, ask.request_id, None, answer), 0)
    return comparisons.decide(PARTITION, IDENTITY, partition, brokers, 0 if waits else _WAIT_MS)


class Cluster:
    """The moves of a scope; `brokers` has steps of another cluster, which are not computed again."""

    def __init__(self, scope: Scope, brokers: Brokers | None = None) -> None:
        self.scope = scope
        self.brokers = Brokers() if brokers is None else brokers
        self.disks = Disks()
        self.setting = Setting(scope, self.brokers, self.disks)
        self._decisions: dict[Any, tuple[int, ...]] = {}
        self._elections: dict[Any, tuple[int, ...]] = {}

    def initial(self) -> State:
        """All brokers are in sync, followers follow the first broker, and no message is in flight."""
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
            has_changed=True,
            suspected=(),
            refused=-1,
            cut=(),
            left=Left(0, 0, 0, 0, 0, 0, 0, 0),
        )
        turn = Turn(self.setting, state)
        for place in ALL_BROKERS:
            turn.feed(place, ("registered", 1, -1))
        state = turn.end()
        while True:
            move = next((one for one in self.moves(state) if one[0] not in ("produce", "tick")), None)
            if move is None:
                break
            after = self.after(state, move)
            assert after is not None
            state = after
        left = Left(
            produced=0,
            crashes=scope.crashes,
            suspicions=scope.suspicions,
            lost_answers=scope.lost_answers,
            lags=scope.lags,
            breaks=scope.breaks,
            expiries=scope.expiries,
            cuts=scope.cuts,
        )
        return state._replace(left=left)

    # -- the possible moves ------------------------------------------------------------------------------------

    def moves(self, state: State) -> Iterator[Move]:
        """Every move; some change nothing (then `after` gives None)."""
        yield from self.of_controller(state)
        for place in ALL_BROKERS:
            yield from self.of_session(state, place)
            yield from self.of_suspicion(state, place)
        if state.due == NOW:
            return
        for pair in range(len(PAIRS)):
            yield from self.of_leader_end(state, pair)
            yield from self.of_follower_end(state, pair)
        for place in ALL_BROKERS:
            yield from self.of_coordination(state, place)
            yield from self.of_command(state, place)
            yield from self.of_client(state, place)
            yield from self.of_process(state, place)

    def of_controller(self, state: State) -> Iterator[Move]:
        """Decisions of the controller."""
        if state.due:
            for node in self.decisions(state):
                yield ("decide", node)
        elif self.scope.cuts and self.brokers.values[state.node].state.leader == NO_LEADER:
            for node in self.elections(state):
                yield ("decide", node)

    def of_leader_end(self, state: State, pair: int) -> Iterator[Move]:
        """A leader receives a message of a stream."""
        follower, leader = PAIRS[pair]
        if state.streams[pair].up and state.cores[leader] != DEAD:
            yield ("up", follower, leader)

    def of_follower_end(self, state: State, pair: int) -> Iterator[Move]:
        """A follower receives a message of a stream, or the end of the stream."""
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
        """A broker is suspected, or not suspected any more."""
        if not self.scope.suspicions:
            return
        if state.left.suspicions and not state.suspected and state.live[place]:
            yield ("suspect", place)
        if BROKERS[place] in state.suspected:
            yield ("trust", place)

    def of_coordination(self, state: State, place: int) -> Iterator[Move]:
        """ZooKeeper handles a request, or its answer arrives."""
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
        """A client sends a batch to a leader."""
        if state.cores[place] == DEAD or self.brokers.views[state.cores[place]].leader_epoch is None:
            return
        if self.scope.batches and state.left.produced < self.scope.batches:
            yield ("produce", place)

    def of_process(self, state: State, place: int) -> Iterator[Move]:
        """Moves of a process by itself, and its faults."""
        if state.cores[place] == DEAD:
            return
        view = self.brokers.views[state.cores[place]]
        if self.scope.expiries and not state.live[place] and view.broker_epoch >= 0:
            yield ("learn", place)
        if state.work[place]:
            yield ("disk", place)
        if self.brokers.step(state.cores[place], ("tick",)).effects:
            yield ("tick", place)
        yield from self._crashes(state, place, view)
        if self.scope.lags and view.may_shrink and state.left.lags:
            for follower in view.may_shrink:
                yield ("lag", place, follower)
        for follower in view.aged:
            stream = state.streams[PLACE[BROKERS.index(BrokerId(follower)), place]]
            if stream.attached and not stream.up:
                yield ("heartbeat", place, follower)

    def _crashes(self, state: State, place: int, view: View) -> Iterator[Move]:
        """Crashes of processes.

        A cut below the checkpoint of the high watermark is damage (rule T5), and omitted here.
        """
        if self.scope.crashes and state.left.crashes:
            yield ("crash", place, False)
            disk = self.disks[state.disks[place]]
            if (view.high_watermark, view.epochs) != (disk.high_watermark, disk.epochs):
                yield ("crash", place, True)
        if self.scope.cuts and state.left.cuts:
            disk = self.disks[state.disks[place]]
            if len(disk.records) > disk.high_watermark:
                yield ("crash all", place, False)
                yield ("crash all", place, True)

    def decisions(self, state: State) -> tuple[int, ...]:
        """Nodes that the controller may write now, one for each order of preference.

        The current node stands for no write.
        """
        key = self._known_to_controller(state)
        found = self._decisions.get(key)
        if found is None:
            found = self._decisions[key] = self._decide(state)
        return found

    @staticmethod
    def _known_to_controller(state: State) -> Any:
        return (state.node, tuple(state.live), tuple(state.epochs), state.suspected, state.refused, state.cut)

    def _decide(self, state: State) -> tuple[int, ...]:
        brokers = self._broker_facts(state)
        return self._nodes(state, [decide(partition, brokers) for partition in self._partition_facts(state)])

    def elections(self, state: State) -> tuple[int, ...]:
        """Nodes that the controller may write after it has compared the logs (rule T7) of any brokers that answered.

        If a start detects a cut tail, the wait for the other brokers may end at any moment. Otherwise all of them have
        answered, so no wait is too short.
        """
        epoch, answers = self.brokers.values[state.node].state.leader_epoch, dict[BrokerId, ReplicaDescription]()
        for place in ALL_BROKERS:
            if state.live[place] and state.cores[place] != DEAD:
                answer = self.brokers.described(state.cores[place], epoch)
                if answer is not None:
                    answers[BROKERS[place]] = answer
        key = (self._known_to_controller(state), tuple(answers.items()))
        found = self._elections.get(key)
        if found is None:
            found = self._elections[key] = self._compare(state, answers)
        return found

    def _compare(self, state: State, answers: Mapping[BrokerId, ReplicaDescription]) -> tuple[int, ...]:
        brokers, partitions, waits = self._broker_facts(state), self._partition_facts(state), self.scope.unnoticed
        some = chain.from_iterable(combinations(answers.items(), count) for count in range(1, len(answers) + 1))
        elected = [compared(one, brokers, dict(heard), waits=waits) for heard in some for one in partitions]
        return self._nodes(state, [one for one in elected if one is not None])

    def _broker_facts(self, state: State) -> BrokerFacts:
        live = {BROKERS[place]: BrokerEpoch(state.epochs[place]) for place in ALL_BROKERS if state.live[place]}
        crashed: dict[BrokerId, BrokerEpoch] = {}
        if self.scope.cuts:  # the first registrations are clean, and all later ones follow a crash
            crashed = {BROKERS[place]: BrokerEpoch(epoch) for place, epoch in enumerate(state.epochs) if epoch > 1}
        return BrokerFacts(live, crashed_at=crashed, suspected=frozenset(map(BrokerId, state.suspected)))

    def _partition_facts(self, state: State) -> list[PartitionFacts]:
        """Facts of the partition, one for each order of preference."""
        node = self.brokers.values[state.node].state
        refused = LeaderEpoch(state.refused) if state.refused >= 0 else None
        cut = frozenset(IsrEntry(BrokerId(broker), BrokerEpoch(epoch)) for broker, epoch in state.cut)
        return [
            PartitionFacts(assigned, node.min_isr, node, refused_epoch=refused, cut=cut)
            for assigned in permutations(BROKERS)
        ]

    def _nodes(self, state: State, decisions: Iterable[Decision | None]) -> tuple[int, ...]:
        """Each different node once.

        Raises:
            InvariantError: an unclean election, though a replica with all committed records may come back.
        """
        values, found = self.brokers.values, dict[int, None]()
        for decision in decisions:
            if decision is not None and decision.unclean:
                raise InvariantError(f"CLEAN: {decision.state} is elected uncleanly")
            version = values[state.node].version
            node = state.node if decision is None else values.number(VersionedState(decision.state, version + 1))
            found[node] = None
        return tuple(found)

    # -- their effects -----------------------------------------------------------------------------------------

    def after(self, state: State, move: Move) -> State | None:
        """The state that a move leads to, None when nothing changes.

        Raises:
            InvariantError: an invariant does not hold there, or an assertion of the core failed.
        """
        turn = Turn(self.setting, state)
        return turn.end() if turn.take(move) else None

    def ahead(self, state: State) -> Iterator[Chain]:
        """The possible next states, up to those in which the controller has no decision to make first.

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
