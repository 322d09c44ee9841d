# SPDX-License-Identifier: Apache-2.0
"""One step of one broker process, computed once: (core before, event) -> (core after, effects).

A process is a deterministic machine. Millions of cluster states contain only some thousands of different broker states.
So each broker state is stored once, under a number, and the shipping core computes each of its steps once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple

from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.core.messages import (
    FollowerMessage,
    LeaderAndIsrCommand,
    PartitionCommand,
    ReplicaDescription,
    ReplicaQuestion,
)
from tidemark.core.producer_state import ProducerStates
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.core.replication.broker import BrokerCore
from tidemark.core.replication.leader.isr import Committed
from tidemark.core.replication.leader.partition_leader import PartitionLeader
from tidemark.model import (
    NO_EPOCH,
    BrokerEpoch,
    BrokerId,
    BrokerRegistration,
    ControllerEpoch,
    EpochEntry,
    LeaderEpoch,
    Offset,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
    VersionedState,
)

from tests.exploration.model.frozen import (
    BROKERS,
    CONFIG,
    NOW_MS,
    RENAMES,
    Rename,
    aged,
    freeze_value,
    make_batch,
    thaw_value,
)
from tests.exploration.model.orbits import BACK, EACH, Orbits

PARTITION = TopicPartition("flights", 0)
IDENTITY = ReplicaIdentity("a" * 32, "b" * 32)
Record = tuple[int, int]
"""(label, leader epoch) of a record; its offset is its index in the log."""
Event = tuple[Any, ...]
"""("name", ints and numbers of values): the argument of `Brokers.step`, cheap to compare."""
Effect = tuple[Any, ...]


class Cut(IntEnum):
    """The cut tail of a log after a crash, until the log is complete again; a start detects only a torn tail."""

    NONE = 0
    TORN = 1
    UNNOTICED = 2


class Disk(NamedTuple):
    """A replica's log on disk after a crash of its process; checkpoints are written later, so they may be old."""

    records: tuple[Record, ...] = ()
    high_watermark: int = 0
    epochs: tuple[EpochEntry, ...] = ()
    cut: Cut = Cut.NONE

    def recovered(self) -> ev.RecoveredLog:
        """The log as storage finds it: epochs from the records, and checkpoint entries that begin at the log end."""
        epochs, end = written_epochs(self.records), Offset(len(self.records))
        for entry in self.epochs:
            if entry.start_offset >= end:
                epochs.assign(entry.leader_epoch, end)
        high_watermark = Offset(min(self.high_watermark, end))
        torn = self.cut is Cut.TORN
        why = "a torn tail was cut off" if torn else None
        return ev.RecoveredLog(Offset(0), end, end, high_watermark, epochs.entries, ProducerStates(), why, torn)


def written_epochs(records: tuple[Record, ...]) -> LeaderEpochs:
    """The epoch entries that the records themselves prove."""
    epochs = LeaderEpochs()
    for offset, (_, leader_epoch) in enumerate(records):
        epochs.assign(leader_epoch, offset)  # type: ignore[arg-type]
    return epochs


@dataclass(frozen=True, slots=True)
class View:
    """The visible part of a core, computed once.

    Attributes:
        may_shrink: members of the ISR that the leader may evict now; `aged`: followers whose last message is old.
        engaged: followers that get messages, or will get them once this broker has received their epoch.
    """

    broker_epoch: int
    leader_epoch: int | None
    log_end: int | None
    high_watermark: int
    states_high_watermark: bool
    quiet: bool
    epochs: tuple[EpochEntry, ...]
    may_shrink: tuple[int, ...]
    aged: tuple[int, ...]
    engaged: tuple[int, ...]

    def renamed(self, rename: Rename) -> View:
        """The same view with other names of the brokers."""

        def named(some: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(sorted(rename[one] for one in some))

        return replace(self, may_shrink=named(self.may_shrink), aged=named(self.aged), engaged=named(self.engaged))


class Step(NamedTuple):
    """`after`: number of the core after the step; `broken`: a failed assertion of the core."""

    after: int
    effects: tuple[Effect, ...]
    broken: str | None = None


class Values:
    """Stores messages, nodes and commands under numbers; renames each of them once."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self.frozen: list[bytes] = []
        self._thawed: list[Any] = []
        self._renamed: dict[tuple[int, int], int] = {}

    def number(self, value: object) -> int:
        """The number of a value; equal values have one number."""
        frozen = freeze_value(value)
        number = self._numbers.get(frozen)
        if number is None:
            number = self._numbers[frozen] = len(self.frozen)
            self.frozen.append(frozen)
            self._thawed.append(thaw_value(frozen))
        return number

    def __getitem__(self, number: int) -> Any:
        return self._thawed[number]

    def renamed(self, number: int, which: int, rename: Rename) -> int:
        """The number of the same value with other names; `which` is the number of the renaming."""
        key = (number, which)
        found = self._renamed.get(key)
        if found is None:
            found = self._renamed[key] = self.number(thaw_value(self.frozen[number], rename))
        return found


class Brokers:
    """Every state of a broker process that was found. `sound`: views and logs that passed the check of agreement."""

    def __init__(self) -> None:
        self.values = Values()
        self.views: list[View] = []
        self.sound: set[tuple[View, tuple[Record, ...]]] = set()
        self._orbits = Orbits()
        self._steps: dict[tuple[int, Event], Step] = {}
        self._fresh: dict[BrokerId, int] = {}
        self._described: dict[tuple[int, LeaderEpoch], ReplicaDescription | None] = {}
        self.empty_message = self.values.number(FollowerMessage())

    def __len__(self) -> int:
        return len(self.views)

    @property
    def steps_taken(self) -> int:
        """The number of different steps of the core that were computed."""
        return len(self._steps)

    def asks(self, message: int) -> bool:
        """Whether a message of a follower requests messages, or the end of an epoch."""
        return bool(self.values[message].queries or self.values[message].positions)

    def fresh(self, broker_id: BrokerId) -> int:
        """A process right after its start."""
        number = self._fresh.get(broker_id)
        if number is None:
            number = self._fresh[broker_id] = self._number(BrokerCore(broker_id, CONFIG))
        return number

    def _number(self, core: BrokerCore) -> int:
        number = self._orbits.number(core)
        if len(self._orbits) > len(self.views):
            view, way = view_of(core), BACK[number % EACH]
            first = view.renamed(RENAMES[way])
            self.views += [first.renamed(rename) for rename in RENAMES]
        return number

    def core(self, number: int) -> BrokerCore:
        """The core of a process, for further steps."""
        return self._orbits.core(number)

    def twin(self, number: int, which: int) -> int:
        """The same process with other names of the brokers: those of `RENAMES`."""
        return self._orbits.twin(number, which)

    def described(self, number: int, leader_epoch: LeaderEpoch) -> ReplicaDescription | None:
        """The answer of a process to a question about its log in this leader epoch; None: it has no answer yet."""
        key = (number, leader_epoch)
        if key not in self._described:
            try:
                found = self.core(number).queries.describe(ReplicaQuestion(PARTITION, IDENTITY, leader_epoch))
            except TidemarkError:
                found = None
            self._described[key] = found
        return self._described[key]

    def step(self, number: int, event: Event) -> Step:
        key = (number, event)
        found = self._steps.get(key)
        if found is None:
            found = self._steps[key] = self._take(number, event)
        return found

    def _take(self, number: int, event: Event) -> Step:
        core = self.core(number)
        if event[0] == "late":
            aged(core, event[1])
        try:
            done = core.handle(self._event(core, event), NOW_MS)
            effects = tuple(one for effect in done if (one := self._effect(effect)) is not None)
        except AssertionError as error:
            return Step(number, (), f"{type(error).__name__}: {error}")
        return Step(self._number(core), effects)

    def _event(self, core: BrokerCore, event: Event) -> ev.Event:
        match event:
            case ("tick",) | ("late", _):
                return ev.Tick()
            case ("expired",):
                return ev.SessionExpired()
            case ("registered", broker_epoch, leader_epoch):
                return ev.BrokerRegistered(broker_epoch, {PARTITION: (IDENTITY, leader_epoch)})
            case ("command", node, registered, suspected):
                return ev.LeaderAndIsrArrived(0, self._command(core, self.values[node], registered, suspected))
            case ("produce", label, acks):
                return ev.ProduceArrived(label, PARTITION, "", NO_EPOCH, acks, (make_batch(label),))
            case ("written", version):
                return ev.IsrWritten(PARTITION, version)
            case ("not written", unknown):
                return ev.IsrWriteFailed(PARTITION, unknown=unknown)
            case ("isr read", node):
                return ev.IsrRead(PARTITION, self.values[node])
        return _disk_event(event) or self._stream_event(event)

    def _stream_event(self, event: Event) -> ev.Event:
        values = self.values
        match event:
            case ("up", follower, broker_epoch, message):
                return ev.FollowerMessageArrived(follower, broker_epoch, values[message])
            case ("down", leader, message):
                return ev.LeaderMessageArrived(leader, values[message])
            case ("connected", leader):
                return ev.LeaderConnected(leader)
            case ("leader gone", leader):
                return ev.LeaderDisconnected(leader)
            case ("follower gone", follower, broker_epoch):
                return ev.FollowerDisconnected(follower, broker_epoch)
        raise AssertionError(f"no such event: {event}")

    def _command(
        self,
        core: BrokerCore,
        node: VersionedState,
        registered: tuple[tuple[int, int], ...],
        suspected: tuple[int, ...],
    ) -> LeaderAndIsrCommand:
        brokers = tuple(
            BrokerRegistration(BrokerId(one), "h", 1, broker_epoch=BrokerEpoch(epoch)) for one, epoch in registered
        )
        mine = BrokerEpoch(dict(registered).get(core._ctx.broker_id, -1))
        partition = PartitionCommand(PARTITION, IDENTITY, BROKERS, node.state, node.version)
        return LeaderAndIsrCommand(
            BrokerId(9),
            ControllerEpoch(1),
            mine,
            (partition,),
            brokers,
            frozenset(map(BrokerId, suspected)),
            complete=True,
        )

    def _effect(self, effect: fx.Effect) -> Effect | None:
        """The part of an effect that concerns the cluster; None for observations and checkpoints."""
        values = self.values
        match effect:
            case fx.SendToLeader(leader, message):
                return ("to leader", leader, values.number(message))
            case fx.SendToFollower(follower, message):
                return ("to follower", follower, values.number(message))
            case fx.WriteIsr(_, _, state, version, joining):
                return ("write", values.number(state), version, tuple(sorted(joining.items())))
            case fx.ReadIsr():
                return ("read isr",)
            case fx.ReplyToProduce(label, _, result):
                return ("reply", label, result.base_offset, None if result.error is None else result.error.code.name)
            case fx.ReplyToControl(_, error, refused):
                return ("refused",) if refused and error is None else None
            case fx.ConnectToLeader(leader, _, _, broker_epoch):
                return ("connect", leader, broker_epoch)
            case fx.DisconnectFromLeader(leader):
                return ("disconnect", leader)
            case fx.DisconnectFollower(follower):
                return ("drop follower", follower)
        return _disk_effect(effect)


def _disk_event(event: Event) -> ev.Event | None:
    match event:
        case ("opened", disk):
            return ev.LogOpened(PARTITION, IDENTITY, disk.recovered())
        case ("appended", end):
            return ev.LogAppended(PARTITION, IDENTITY, end)
        case ("truncated", end):
            return ev.LogTruncated(PARTITION, IDENTITY, Offset(0), end, ProducerStates())
        case ("read", follower, leader_epoch, offset, records):
            batches = tuple(make_batch(one, offset + n, epoch) for n, (one, epoch) in enumerate(records))
            return ev.FollowerReadDone(follower, PARTITION, leader_epoch, offset, batches)
    return None


def _disk_effect(effect: fx.Effect) -> Effect | None:
    match effect:
        case fx.OpenLog():
            return ("open",)
        case fx.AppendToLog(_, _, base, epoch, batches, stamp):
            records = tuple((int(batch.data), epoch if stamp else batch.envelope.leader_epoch) for batch in batches)
            return ("append", base, records)
        case fx.TruncateLog(_, _, end):
            return ("truncate", end)
        case fx.ReportLogFailed(damaged=True, cut=True):
            return ("tail cut",)
        case fx.ClearDamage():
            return ("whole again",)
        case fx.ReadForFollower(follower, _, leader_epoch, offset, end, _):
            return ("read", follower, leader_epoch, offset, end)
        case fx.ResetLog() | fx.CloseLog() | fx.ReportLogFailed():
            raise AssertionError(f"nothing is reset or closed here, and no log fails: {effect}")
    return None


def view_of(core: BrokerCore) -> View:
    """The visible part of a core."""
    replica = core._replicas.get(PARTITION)
    log = replica.log if replica is not None else None
    role = replica.role if replica is not None else None
    leader = role if isinstance(role, PartitionLeader) else None
    may_shrink: tuple[int, ...] = ()
    if leader is not None and isinstance(leader.isr, Committed) and not core._ctx.isr_answers_due:
        may_shrink = tuple(sorted(one.broker_id for one in leader._holding))
    long_ago = NOW_MS - CONFIG.replica_lag_time_max_ms
    sessions = core._streams._sessions.values()
    return View(
        broker_epoch=core._ctx.broker_epoch,
        leader_epoch=leader.leader_epoch if leader is not None else None,
        log_end=log.log_end_offset if log is not None else None,
        high_watermark=log.high_watermark if log is not None else 0,
        states_high_watermark=leader is not None and leader.may_state_high_watermark,
        quiet=log is not None and log.quiet,
        epochs=log.epochs.entries if log is not None else (),
        may_shrink=may_shrink,
        aged=tuple(sorted(one.follower for one in sessions if leader and one.last_message_ms < long_ago)),
        engaged=tuple(sorted(one.follower for one in sessions if one.senders or one.early)),
    )
