# SPDX-License-Identifier: Apache-2.0
"""One move of a cluster: its changes at brokers, on streams, in ZooKeeper and at the controller.

The effects of a broker core happen within the same move, as far as `cluster` proves that no different state is missed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tidemark.model import BrokerId, VersionedState

from tests.exploration.model.brokers import Brokers, Cut, Disk, Effect, Event
from tests.exploration.model.frozen import BROKERS
from tests.exploration.model.invariants import InvariantError, Seen, look
from tests.exploration.model.state import (
    ALL_BROKERS,
    DEAD,
    DUE,
    END,
    IDLE,
    MORE,
    NOW,
    PAIRS,
    PLACE,
    Scope,
    State,
    Stream,
    own,
    raw,
)

Move = tuple[Any, ...]


class Disks:
    """Every content of a disk that was found, under a number."""

    def __init__(self) -> None:
        self._numbers: dict[Disk, int] = {}
        self._disks: list[Disk] = []

    def number(self, disk: Disk) -> int:
        """Equal disks have one number."""
        number = self._numbers.setdefault(disk, len(self._disks))
        if number == len(self._disks):
            self._disks.append(disk)
        return number

    def __getitem__(self, number: int) -> Disk:
        return self._disks[number]


@dataclass(frozen=True, slots=True)
class Setting:
    """Tables and options that all states of a search share."""

    scope: Scope
    brokers: Brokers
    disks: Disks


class Turn:
    """One move: the state while it changes."""

    def __init__(self, setting: Setting, state: State) -> None:
        self._setting = setting
        self._brokers = setting.brokers
        self._soon = NOW if setting.scope.reduced else DUE
        self._before = state
        self.cores = own(state.cores)
        self.disks = own(state.disks)
        self.work = own(state.work)
        self.epochs = own(state.epochs)
        self.live = own(state.live)
        self.dead = own(state.dead)
        self.commands = own(state.commands)
        self.streams = own(state.streams)
        self.asked = own(state.asked)
        self._were = (raw(state.cores), raw(state.streams))
        self._take_over(state)
        self._inbox: deque[tuple[int, Event]] = deque()
        self._reading: tuple[int, int] | None = None
        self.acked: list[tuple[int, int]] = []

    def _take_over(self, state: State) -> None:
        self.node = state.node
        self.due = state.due
        self.has_changed = state.has_changed
        self.suspected = state.suspected
        self.refused = state.refused
        self.cut = state.cut
        self.left = state.left

    def take(self, move: Move) -> bool:
        """Make the move; False when it changes nothing."""
        handler = getattr(self, "_" + move[0].replace(" ", "_"))
        outcome: bool | None = handler(*move[1:])
        return outcome is not False

    def end(self) -> State:
        """The state now, after a check of every invariant."""
        self.settle()
        before = self._before
        state = State(
            tuple(self.cores),
            tuple(self.disks),
            tuple(self.work),
            tuple(self.epochs),
            tuple(self.live),
            self.node,
            tuple(self.commands),
            tuple(self.streams),
            tuple(self.asked),
            self.due,
            self.has_changed,
            self.suspected,
            self.refused,
            self.cut,
            self.left,
        )
        seen = look(
            self._brokers,
            [self._setting.disks[one] for one in self.disks],
            state,
            Seen(before.committed, before.stated, before.led),
            self.acked,
        )
        return state._replace(committed=seen.committed, stated=seen.stated, led=seen.led)

    def settle(self) -> None:
        """Take the eager steps that this move has made possible."""
        self._connect()
        while self._setting.scope.reduced and self._deliver_idle_messages():
            self._connect()

    def _changed(self) -> list[int]:
        """The pairs whose stream has changed, or whose two ends see it in another way.

        Only on these streams can this move have made eager steps possible.
        """
        cores, streams = self._were
        were = [self._ends(now, was) for now, was in zip(raw(self.cores), cores, strict=True)]
        return [
            pair
            for pair, (now, was) in enumerate(zip(raw(self.streams), streams, strict=True))
            if now is not was or were[PAIRS[pair][0]][0] or BROKERS[PAIRS[pair][0]] in were[PAIRS[pair][1]][1]
        ]

    def _ends(self, now: int, was: int) -> tuple[bool, Collection[int]]:
        """Whether a process has changed for the leader it follows, and for which followers."""
        if now is was:
            return False, ()
        if DEAD in (now, was):
            return True, BROKERS
        new, old = (self._brokers.views[core] for core in (now, was))
        if new.broker_epoch != old.broker_epoch:
            return True, BROKERS
        return False, set(new.engaged) ^ set(old.engaged)

    # -- brokers -----------------------------------------------------------------------------------------------

    def feed(self, place: int, event: Event) -> bool:
        """Give a process an event, then carry out all effects; False if nothing changes."""
        self._inbox.append((place, event))
        anything = False
        while self._inbox:
            at, one = self._inbox.popleft()
            core = self.cores[at]
            if core == DEAD:
                continue
            step = self._brokers.step(core, one)
            if step.broken is not None:
                raise InvariantError(f"broker {at + 1}: {step.broken}")
            views = self._brokers.views
            if views[step.after].high_watermark < views[core].high_watermark:
                raise InvariantError(f"HW-MONOTONIC: the high watermark of broker {at + 1} went back")
            anything |= step.after != core or bool(step.effects)
            self.cores[at] = step.after
            for effect in step.effects:
                self._carry_out(at, effect)
        return anything

    def _carry_out(self, place: int, effect: Effect) -> None:
        match effect:
            case ("append", *_) | ("truncate", *_):
                self.work[place] = (*self.work[place], effect)
                if not self._setting.scope.slow_disks:
                    self._do_work(place)
            case ("read", follower, leader_epoch, offset, end):
                records = self._setting.disks[self.disks[place]].records[offset:end]
                self._inbox.append((place, ("read", follower, leader_epoch, offset, records)))
            case ("open",):
                self._inbox.append((place, ("opened", self._setting.disks[self.disks[place]])))
            case ("reply", label, offset, error):
                if error is None and self._setting.scope.acks == -1:
                    self.acked.append((offset, label))
            case ("refused",):
                self.due = max(self.due, DUE)
                self.refused = self._brokers.values[self.node].state.leader_epoch
            case ("tail cut",):
                self._report_cut(place)
            case ("whole again",):
                self._change_disk(place, cut=Cut.NONE)
            case ("write", *_) | ("read isr",):
                if self.asked[place]:
                    raise InvariantError(f"R9: broker {place + 1} asks {effect} before it was answered")
                self.asked[place] = effect
            case _:
                self._carry_out_on_streams(place, effect)

    def _report_cut(self, place: int) -> None:
        """The entries from before the registration do not count for the controller any more (rule T7)."""
        node, broker = self._brokers.values[self.node].state, BROKERS[place]
        mine = [one.broker_epoch for one in (*node.isr, *node.elr) if one.broker_id == broker]
        lost = {(broker, epoch) for epoch in mine if epoch < self.epochs[place]}
        self.cut = tuple(sorted({*self.cut, *lost}))
        self.due = max(self.due, DUE)

    def _change_disk(self, place: int, **fields: Any) -> None:
        disks = self._setting.disks
        self.disks[place] = disks.number(disks[self.disks[place]]._replace(**fields))

    def _do_work(self, place: int) -> None:
        first, *rest = self.work[place]
        self.work[place] = tuple(rest)
        disks = self._setting.disks
        disk = disks[self.disks[place]]
        match first:
            case ("append", base, records):
                if base != len(disk.records):
                    raise InvariantError(f"broker {place + 1}: an append at {base} does not continue its log")
                cut = Cut.NONE if disk.cut is Cut.UNNOTICED else disk.cut
                disk = disk._replace(records=disk.records + records, cut=cut)
                event: Event = ("appended", len(disk.records))
            case ("truncate", end):
                disk = disk._replace(records=disk.records[:end])
                event = ("truncated", end)
            case _:
                raise AssertionError(f"no work for a disk: {first}")
        self.disks[place] = disks.number(disk)
        self._inbox.append((place, event))

    def _disk(self, place: int) -> None:
        self._do_work(place)
        self.feed(*self._inbox.popleft())

    def _produce(self, place: int) -> bool:
        label = self.left.produced + 1
        before = self.cores[place]
        self.left = self.left._replace(produced=label)
        self.feed(place, ("produce", label, self._setting.scope.acks))
        return bool(self.cores[place] != before)

    def _tick(self, place: int) -> None:
        self.feed(place, ("tick",))

    def _lag(self, place: int, follower: int) -> bool:
        self.left = self.left._replace(lags=self.left.lags - 1)
        return self.feed(place, ("late", follower))

    def _heartbeat(self, place: int, follower: int) -> None:
        stream = self.streams[PLACE[BROKERS.index(BrokerId(follower)), place]]
        self.feed(place, ("up", follower, stream.hello, self._brokers.empty_message))
        self.feed(place, ("tick",))

    # -- streams -----------------------------------------------------------------------------------------------

    def _carry_out_on_streams(self, place: int, effect: Effect) -> None:
        match effect:
            case ("to leader", leader, message):
                pair = PLACE[place, BROKERS.index(leader)]
                stream = self.streams[pair]
                if stream.hello >= 0:
                    self.streams[pair] = stream._replace(up=(*stream.up, (message, stream.hello)))
            case ("to follower", follower, message):
                pair = PLACE[BROKERS.index(follower), place]
                stream = self.streams[pair]
                if stream.attached:
                    self.streams[pair] = stream._replace(down=(*stream.down, message))
            case ("connect", leader, broker_epoch):
                pair = PLACE[place, BROKERS.index(leader)]
                self.streams[pair] = self.streams[pair]._replace(wanted=broker_epoch)
            case ("disconnect", leader):
                pair = PLACE[place, BROKERS.index(leader)]
                self.streams[pair] = _closed(self.streams[pair])._replace(wanted=-1)
            case ("drop follower", follower):
                self._drop(PLACE[BROKERS.index(follower), place])
            case _:
                raise AssertionError(f"no handler of {effect}")

    def _connect(self) -> None:
        """Make every stream that is wanted and possible."""
        views = self._brokers.views
        for pair in self._changed():
            follower, leader = PAIRS[pair]
            stream = self.streams[pair]
            if stream.wanted < 0 or stream.hello >= 0 or self.cores[leader] == DEAD or self.cores[follower] == DEAD:
                continue
            hello = views[self.cores[follower]].broker_epoch
            if hello >= 0 and views[self.cores[leader]].broker_epoch == stream.wanted:
                self.streams[pair] = stream._replace(hello=hello)
                self.feed(follower, ("connected", BROKERS[leader]))

    def _deliver_idle_messages(self) -> bool:
        """Deliver messages that change nothing; False if there are none."""
        for pair in self._changed():
            follower, leader = PAIRS[pair]
            up = self.streams[pair].up
            if not up or self.cores[leader] == DEAD:
                continue
            view = self._brokers.views[self.cores[leader]]
            idle = up[0][0] == END or not self._brokers.asks(up[0][0])
            if idle and view.broker_epoch >= 0 and BROKERS[follower] not in view.engaged:
                self._up(follower, leader)
                return True
        return False

    def _up(self, follower: int, leader: int) -> None:
        pair = PLACE[follower, leader]
        stream = self.streams[pair]
        (message, hello), rest = stream.up[0], stream.up[1:]
        if message == END:
            self.streams[pair] = stream._replace(up=rest)
            self.feed(leader, ("follower gone", BROKERS[follower], hello))
            return
        present = stream.hello >= 0 and all(one != END for one, _ in rest)
        self.streams[pair] = stream._replace(up=rest, attached=present)
        self._reading = (pair, present)
        self.feed(leader, ("up", BROKERS[follower], hello, message))
        self._reading = None

    def _down(self, follower: int, leader: int) -> None:
        pair = PLACE[follower, leader]
        stream = self.streams[pair]
        self.streams[pair] = stream._replace(down=stream.down[1:])
        self.feed(follower, ("down", BROKERS[leader], stream.down[0]))

    def _drop(self, pair: int) -> None:
        """The leader ends the stream that it reads from."""
        stream = self.streams[pair]
        follower, leader = PAIRS[pair]
        if self._reading is not None and not self._reading[1]:
            ends = [number for number, (one, _) in enumerate(stream.up) if one == END]
            self.streams[pair] = stream._replace(up=stream.up[ends[0] :])
            return
        if stream.hello >= 0:
            self.streams[pair] = Stream(wanted=stream.wanted)
            self._inbox.append((leader, ("follower gone", BROKERS[follower], stream.hello)))
            self._inbox.append((follower, ("leader gone", BROKERS[leader])))

    def _break(self, follower: int, leader: int) -> None:
        pair = PLACE[follower, leader]
        stream = self.streams[pair]
        self.left = self.left._replace(breaks=self.left.breaks - 1)
        ends = [number for number, (one, _) in enumerate(stream.up) if one == END]
        older = stream.up[: ends[-1] + 1] if ends else ()
        self.streams[pair] = _closed(stream._replace(up=older))
        self.feed(follower, ("leader gone", BROKERS[leader]))

    # -- ZooKeeper and the controller --------------------------------------------------------------------------

    def _zookeeper(self, place: int, how: str) -> None:
        asked = self.asked[place]
        answer: Event
        if asked[0] == "read isr":
            answer = ("isr read", self.node)
        else:
            _, node, version, joining = asked
            values = self._brokers.values
            done = values[self.node].version == version
            done &= all(self.epochs[BROKERS.index(broker)] == epoch for broker, epoch in joining)
            if done and how != "loses the request":
                self.node = values.number(VersionedState(values[node], version + 1))
            answer = ("written", version + 1) if done else ("not written", False)
            if how != "answers":
                self.left = self.left._replace(lost_answers=self.left.lost_answers - 1)
                answer = ("not written", True)
        self.asked[place] = answer if not self.dead[place] else ()

    def _answer(self, place: int) -> None:
        answer, self.asked[place] = self.asked[place], ()
        self.feed(place, answer)

    def _decide(self, node: int) -> None:
        """Decisions are written, then sent: changes to all replicas, the whole state to new replicas."""
        has_changed = self.has_changed or node != self.node
        self.node, self.due, self.has_changed, self.refused = node, IDLE, False, -1
        state = self._brokers.values[node].state
        kept = {(one.broker_id, one.broker_epoch) for one in (*state.isr, *state.elr)}
        self.cut = tuple(one for one in self.cut if one in kept)
        for place in ALL_BROKERS:
            waiting = self.commands[place]
            if self.live[place] and not self.dead[place] and (has_changed or waiting == (MORE,)):
                self.commands[place] = (waiting[0], MORE) if waiting and waiting[0] != MORE else (self._telling(),)

    def _telling(self) -> Event:
        registered = tuple((BROKERS[place], self.epochs[place]) for place in ALL_BROKERS if self.live[place])
        return ("command", self.node, registered, self.suspected)

    def _command(self, place: int) -> None:
        command, *more = self.commands[place]
        self.commands[place] = (self._telling(),) if more and self.live[place] else ()
        self.feed(place, command)

    def _suspect(self, place: int) -> None:
        self.left = self.left._replace(suspicions=self.left.suspicions - 1)
        self.suspected, self.due, self.has_changed = (BROKERS[place],), self._soon, True

    def _trust(self, place: int) -> None:
        self.suspected, self.due, self.has_changed = (), self._soon, True

    def _forget_suspicion(self, place: int) -> None:
        if BROKERS[place] in self.suspected:
            self.suspected, self.has_changed = (), True

    # -- processes ---------------------------------------------------------------------------------------------

    def _crash(self, place: int, written_behind: bool) -> None:
        """`kill -9`: written bytes stay; a pending checkpoint was written, or was not."""
        self.left = self.left._replace(crashes=self.left.crashes - 1)
        self._die(place, written_behind)

    def _crash_all(self, place: int, written_behind: bool) -> None:
        """Every process is killed, and the log of one broker has lost its last batch (rule T7).

        Its checkpoints are those from before: newer ones would show that a batch is missing (rule T5).
        """
        self.left = self.left._replace(cuts=self.left.cuts - 1)
        for other in ALL_BROKERS:
            if self.cores[other] != DEAD:
                self._die(other, written_behind and other != place)
        records = self._setting.disks[self.disks[place]].records[:-1]
        self._change_disk(place, records=records, cut=Cut.UNNOTICED if self._setting.scope.unnoticed else Cut.TORN)

    def _die(self, place: int, written_behind: bool) -> None:
        view = self._brokers.views[self.cores[place]]
        if written_behind:
            self._change_disk(place, high_watermark=view.high_watermark, epochs=view.epochs)
        self.cores[place] = DEAD
        self.dead[place] = True
        self.commands[place] = self.work[place] = ()
        if self.asked[place] and self.asked[place][0] != "write":
            self.asked[place] = ()
        for other in ALL_BROKERS:
            if other == place:
                continue
            mine = PLACE[place, other]
            self.streams[mine] = _closed(self.streams[mine])._replace(wanted=-1)
            theirs = self.streams[PLACE[other, place]]
            self.streams[PLACE[other, place]] = Stream(wanted=theirs.wanted)
            if theirs.hello >= 0:
                self.feed(other, ("leader gone", BROKERS[place]))

    def _restart(self, place: int) -> None:
        """Rule Z3: the new registration replaces the old one, even if the old one is gone."""
        self.cores[place] = self._brokers.fresh(BROKERS[place])
        self.dead[place] = False
        self.asked[place] = ()
        self._register(place)
        self.due = self._soon

    def _expire(self, place: int) -> None:
        """The session ends; messages in flight to the process still arrive."""
        self.left = self.left._replace(expiries=self.left.expiries - 1)
        asked = self.asked[place]
        on_its_way = tuple(one for one in self.commands[place] if one != MORE)
        due = self.due
        self._session_ends(place)
        self.due = max(due, DUE)
        self.commands[place] = on_its_way
        if asked:
            self.asked[place] = ("not written", True) if asked[0] == "write" else asked

    def _learn(self, place: int) -> None:
        self.feed(place, ("expired",))

    def _register(self, place: int) -> None:
        self.epochs[place] += 1
        self.live[place] = True
        self.commands[place] = (*self.commands[place], MORE)
        self.due = max(self.due, DUE)
        self._forget_suspicion(place)
        leader_epoch = self._brokers.values[self.node].state.leader_epoch
        self.feed(place, ("registered", self.epochs[place], leader_epoch))

    def _session_ends(self, place: int) -> None:
        self.live[place] = False
        self.asked[place] = ()
        self.due = self._soon
        self._forget_suspicion(place)


def _closed(stream: Stream) -> Stream:
    """The follower ends the stream: its messages are still in flight, the leader's messages are lost."""
    if stream.hello < 0:
        return stream
    return Stream(stream.wanted, up=(*stream.up, (END, stream.hello)))
