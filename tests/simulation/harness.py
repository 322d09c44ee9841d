"""A deterministic cluster of broker cores: one seed decides delays, losses, crashes and elections.

Streams are FIFO and may break; logs keep what was written (flush.policy=os, no power loss); a stand-in controller
decides leadership over an in-memory store of leaderAndISR nodes.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tidemark.core import effects as fx
from tidemark.core import events as ev
from tidemark.core.broker import BrokerCore
from tidemark.core.config import ReplicationConfig
from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.core.messages import FollowerMessage, LeaderAndIsrCommand, LeaderMessage, PartitionCommand
from tidemark.core.partition_leader import PartitionLeader
from tidemark.core.producer_state import ProducerStates
from tidemark.core.replica_log import ReplicaLog
from tidemark.model import (
    BrokerId,
    BrokerRegistration,
    EpochEntry,
    ErrorCode,
    IsrEntry,
    LeaderAndIsr,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
    VersionedState,
)
from tidemark.record.envelope import Batch, Envelope

from tests.simulation.old_invariants import InvariantError, all_invariants

CONFIG = ReplicationConfig(
    replica_lag_time_max_ms=800,
    replica_fetch_max_bytes=300,
    replica_directory_credit_bytes=1000,
    replica_heartbeat_interval_ms=100,
)
PARTITION = TopicPartition("flights", 0)
IDENTITY = ReplicaIdentity("a" * 32, "b" * 32)


def make_batch(value: str, *, records: int = 1, sequence: int = -1, producer_id: int = -1) -> Batch:
    """An unstamped batch; `value` stands for its payload."""
    envelope = Envelope(0, -1, 0, 100, 0, 1, 0, 0, records, records - 1, sequence, 0, producer_id, 0, 0)
    return Batch(envelope, value.encode())


@dataclass
class Disk:
    """One replica's log, as it survives a crash of its process."""

    batches: list[Batch] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    epochs: tuple[EpochEntry, ...] = ()
    high_watermark: int = 0

    @property
    def end(self) -> int:
        return len(self.values)

    def append(self, batch: Batch) -> None:
        assert batch.envelope.base_offset == self.end, "logs have no gaps"
        self.batches.append(batch)
        self.values.extend(f"{batch.data.decode()}.{n}" for n in range(batch.envelope.last_offset_delta + 1))

    def truncate(self, end: int) -> None:
        while self.batches and self.batches[-1].envelope.next_offset > end:
            self.batches.pop()
        del self.values[self.batches[-1].envelope.next_offset if self.batches else 0 :]

    def producers(self) -> ProducerStates:
        states = ProducerStates()
        for batch in self.batches:
            states.observe(batch.envelope)
        return states

    def recovered(self) -> ev.RecoveredLog:
        epochs = LeaderEpochs()
        for batch in self.batches:
            epochs.assign(batch.envelope.leader_epoch, batch.envelope.base_offset)
        for entry in self.epochs:
            if entry.start_offset >= self.end:
                epochs.assign(entry.leader_epoch, self.end)
        return ev.RecoveredLog(
            0, self.end, self.end, min(self.high_watermark, self.end), epochs.entries, self.producers()
        )


@dataclass
class Store:
    """What ZooKeeper holds."""

    nodes: dict[TopicPartition, VersionedState] = field(default_factory=dict)
    broker_epochs: dict[BrokerId, int] = field(default_factory=dict)
    live: dict[BrokerId, int] = field(default_factory=dict)  # broker -> life of the process that registered

    def write(
        self, partition: TopicPartition, state: LeaderAndIsr, version: int, joining: Mapping[BrokerId, int]
    ) -> bool:
        if self.nodes[partition].version != version:
            return False
        if any(self.broker_epochs[broker] != epoch for broker, epoch in joining.items()):
            return False
        self.nodes[partition] = VersionedState(state, version + 1)
        return True


class Stream:
    """A stream from a follower's process to a leader's; FIFO in both directions until it breaks."""

    def __init__(self, world: World, follower: Process, leader: Process) -> None:
        self.world = world
        self.follower = follower
        self.leader = leader
        self.broker_epoch = follower.broker_epoch
        self.open = True
        self._last = {True: 0, False: 0}

    def send(self, to_leader: bool, message: FollowerMessage | LeaderMessage) -> None:
        at = max(self._last[to_leader], self.world.now + self.world.random.choice((0, 1, 1, 2, 5, 30)))
        self._last[to_leader] = at
        self.world.at(at, lambda: self._deliver(to_leader, message))

    def _deliver(self, to_leader: bool, message: FollowerMessage | LeaderMessage) -> None:
        if not self.open:
            return
        if to_leader:
            assert isinstance(message, FollowerMessage)
            self.leader.feed(ev.FollowerMessageArrived(self.follower.broker_id, self.broker_epoch, message))
        else:
            assert isinstance(message, LeaderMessage)
            self.follower.feed(ev.LeaderMessageArrived(self.leader.broker_id, message))

    def break_(self) -> None:
        if not self.open:
            return
        self.open = False
        world, follower, leader = self.world, self.follower, self.leader
        if leader.inbound.get(follower.broker_id) is self:
            del leader.inbound[follower.broker_id]
            leader.feed(ev.FollowerGone(follower.broker_id, self.broker_epoch))
        if follower.outbound.get(leader.broker_id) is self:
            follower.outbound[leader.broker_id] = None
            follower.feed(ev.LeaderGone(leader.broker_id))
            world.after(world.random.randrange(5, 60), lambda: follower.try_connect(leader.broker_id))


class Process:
    """One life of a broker: a core and the shell around it."""

    def __init__(self, world: World, broker_id: BrokerId, life: int) -> None:
        self.world = world
        self.broker_id = broker_id
        self.life = life
        self.core = BrokerCore(broker_id, CONFIG)
        self.alive = True
        self.broker_epoch = -1
        self.opened: set[TopicPartition] = set()
        self.inbound: dict[BrokerId, Stream] = {}
        self.outbound: dict[BrokerId, Stream | None] = {}
        self.wanted: dict[BrokerId, int] = {}
        self._disk_free_at = 0
        self._queue: list[ev.Event] = []
        self._busy = False

    def leading(self, partition: TopicPartition) -> PartitionLeader | None:
        replica = self.core._replicas.get(partition)
        return replica.role if replica is not None and isinstance(replica.role, PartitionLeader) else None

    def replica_log(self, partition: TopicPartition) -> ReplicaLog | None:
        replica = self.core._replicas.get(partition)
        return replica.log if replica is not None else None

    def feed(self, event: ev.Event) -> None:
        """Events are handled one after the other; one that an effect brings about waits its turn."""
        if not self.alive:
            return
        self._queue.append(event)
        if self._busy:
            return
        self._busy = True
        while self._queue and self.alive:
            one = self._queue.pop(0)
            self.world.trace(f"{self.world.now:6} {self.broker_id}.{self.life} <- {one}")
            for effect in self.core.handle(one, self.world.now):
                self.world.trace(f"{self.world.now:6} {self.broker_id}.{self.life} -> {effect}")
                self._carry_out(effect)
            self.world.check()
        self._busy = False

    def _later(self, event: ev.Event, delay_ms: int | None = None) -> None:
        self.world.after(self.world.random.randrange(0, 4) if delay_ms is None else delay_ms, lambda: self.feed(event))

    def _on_disk(self, work: Callable[[], ev.Event | None]) -> None:
        """Disk work is carried out in order; what was not by the time of a crash never happened."""
        world = self.world
        self._disk_free_at = max(self._disk_free_at, world.now + world.random.choice((0, 0, 1, 3)))

        def run() -> None:
            if self.alive:
                answer = work()
                if answer is not None:
                    self.feed(answer)

        world.at(self._disk_free_at, run)

    def _carry_out(self, effect: fx.Effect) -> None:
        world, me = self.world, self.broker_id
        match effect:
            case fx.OpenLog(partition, identity):
                disk = world.disk(me, partition)
                self._on_disk(lambda: ev.LogOpened(partition, identity, disk.recovered()))
            case fx.AppendToLog(partition):
                self._on_disk(lambda: self._append(effect))
            case fx.TruncateLog(partition, identity, end_offset):
                self._on_disk(lambda: self._truncate(partition, identity, end_offset))
            case fx.SaveEpochs(partition, _, entries):
                if world.random.random() < 0.5:
                    world.disk(me, partition).epochs = entries
            case fx.HighWatermarkAdvanced(partition, high_watermark):
                if world.random.random() < 0.3:
                    world.disk(me, partition).high_watermark = high_watermark
            case fx.ReplyToProduce(request_id, partition, result):
                world.on_reply(self, request_id, partition, result)
            case fx.WriteIsr() | fx.ReadIsr():
                self._coordinate(effect)
            case fx.ResetLog() | fx.CloseLog():
                raise InvariantError(f"nothing is reset or closed here: {effect}")
            case _:
                self._carry_out_on_streams(effect)

    def _carry_out_on_streams(self, effect: fx.Effect) -> None:
        world = self.world
        match effect:
            case fx.ConnectToLeader(leader, _, _, broker_epoch):
                self.wanted[leader] = broker_epoch
                world.after(world.random.randrange(1, 10), lambda: self.try_connect(leader))
            case fx.DisconnectFromLeader(leader):
                self.wanted.pop(leader, None)
                stream = self.outbound.pop(leader, None)
                if stream is not None:
                    world.after(3, stream.break_)
            case fx.SendToLeader(leader, message):
                stream = self.outbound.get(leader)
                if stream is not None:
                    stream.send(True, message)
            case fx.SendToFollower(follower, message):
                stream = self.inbound.get(follower)
                if stream is not None:
                    stream.send(False, message)
            case fx.DisconnectFollower(follower):
                stream = self.inbound.get(follower)
                if stream is not None:
                    stream.break_()
            case fx.ReadForFollower():
                self._later(self._read(effect))
            case _:
                pass

    def _append(self, effect: fx.AppendToLog) -> ev.Event:
        disk = self.world.disk(self.broker_id, effect.partition)
        assert effect.base_offset == disk.end, "appends continue the log"
        for batch in effect.batches:
            stamped = batch
            if effect.stamp:
                envelope = batch.envelope._replace(base_offset=disk.end, leader_epoch=effect.leader_epoch)
                stamped = Batch(envelope, batch.data)
            disk.append(stamped)
        return ev.LogAppended(effect.partition, effect.identity, disk.end)

    def _truncate(self, partition: TopicPartition, identity: ReplicaIdentity, end: int) -> ev.Event:
        disk = self.world.disk(self.broker_id, partition)
        disk.truncate(end)
        return ev.LogTruncated(partition, identity, 0, disk.end, disk.producers())

    def _read(self, effect: fx.ReadForFollower) -> ev.Event:
        batches: list[Batch] = []
        size = 0
        for batch in self.world.disk(self.broker_id, effect.partition).batches:
            inside = effect.offset <= batch.envelope.base_offset and batch.envelope.next_offset <= effect.end_offset
            if inside and (not batches or size < effect.max_bytes):
                batches.append(batch)
                size += batch.envelope.batch_length
        return ev.FollowerReadDone(
            effect.follower, effect.partition, effect.leader_epoch, effect.offset, tuple(batches)
        )

    def _coordinate(self, effect: fx.WriteIsr | fx.ReadIsr) -> None:
        """A request to ZooKeeper: it takes effect some time later, and its answer takes some time more, or is lost."""
        world = self.world

        def act() -> None:
            answer: ev.Event
            if isinstance(effect, fx.ReadIsr):
                answer = ev.IsrRead(effect.partition, world.store.nodes[effect.partition])
            else:
                lost = world.random.random() < world.lost_answers
                mine = world.store.live.get(self.broker_id) == self.life
                done = False
                if mine and not (lost and world.random.random() < 0.5):
                    done = world.store.write(effect.partition, effect.state, effect.expected_version, effect.joining)
                if lost or not done:
                    answer = ev.IsrWriteFailed(effect.partition, unknown=lost)
                else:
                    answer = ev.IsrWritten(effect.partition, effect.expected_version + 1)
                world.check()
            world.after(world.random.choice((1, 5, 50, 200)), lambda: self.feed(answer))

        world.after(world.random.choice((1, 2, 20)), act)

    def try_connect(self, leader_id: BrokerId) -> None:
        world = self.world
        if not self.alive or leader_id not in self.wanted or self.outbound.get(leader_id) is not None:
            return
        leader = world.running.get(leader_id)
        if leader is None or leader.broker_epoch != self.wanted[leader_id] or (self.broker_id, leader_id) in world.cut:
            world.after(world.random.randrange(10, 80), lambda: self.try_connect(leader_id))
            return
        old = leader.inbound.get(self.broker_id)
        if old is not None:
            old.break_()
        stream = Stream(world, self, leader)
        leader.inbound[self.broker_id] = stream
        self.outbound[leader_id] = stream
        self.feed(ev.LeaderConnected(leader_id))


class World:
    """A cluster, its clients and its misfortunes."""

    def __init__(self, seed: int, *, brokers: int = 3, min_isr: int = 2, lost_answers: float = 0.2) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.now = 0
        self.min_isr = min_isr
        self.lost_answers = lost_answers
        self.store = Store()
        self.running: dict[BrokerId, Process] = {}
        self.disks: dict[tuple[BrokerId, TopicPartition], Disk] = {}
        self.cut: set[tuple[BrokerId, BrokerId]] = set()
        self.partitions = [PARTITION]
        self.committed: dict[TopicPartition, list[str]] = {PARTITION: []}
        self.acked: dict[TopicPartition, list[tuple[int, str]]] = {PARTITION: []}
        self.acked_checked = {PARTITION: 0}
        self.lines: list[str] = []
        self.tracing = False
        self.invariants = all_invariants()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._lives = dict.fromkeys((BrokerId(n) for n in range(brokers)), 0)
        self._requests: dict[int, tuple[str, int, Callable[[fx.ProduceResult], None]]] = {}
        self._request_id = 0
        self.replies = 0
        self._registering: set[BrokerId] = set()
        entries = tuple(IsrEntry(broker, 1) for broker in self._lives)
        self.store.nodes[PARTITION] = VersionedState(LeaderAndIsr(BrokerId(0), 0, entries, min_isr=min_isr), 0)
        for broker in self._lives:
            self.store.broker_epochs[broker] = 0
            self.start(broker)

    # -- time --------------------------------------------------------------------------------------------------

    def at(self, time_ms: int, work: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (time_ms, self._sequence, work))

    def after(self, delay_ms: int, work: Callable[[], None]) -> None:
        self.at(self.now + delay_ms, work)

    def run(self, until_ms: int) -> None:
        while self._events and self._events[0][0] <= until_ms:
            self.now, _, work = heapq.heappop(self._events)
            work()
        self.now = until_ms

    def trace(self, line: str) -> None:
        if self.tracing:
            self.lines.append(line)

    def check(self) -> None:
        for partition in self.partitions:
            for invariant in self.invariants:
                invariant.check(self, partition)

    # -- brokers -----------------------------------------------------------------------------------------------

    def processes(self) -> list[Process]:
        return list(self.running.values())

    def disk(self, broker: BrokerId, partition: TopicPartition) -> Disk:
        return self.disks.setdefault((broker, partition), Disk())

    def start(self, broker: BrokerId) -> None:
        if broker in self.running:
            return
        self._lives[broker] += 1
        process = self.running[broker] = Process(self, broker, self._lives[broker])
        self.after(self.random.randrange(1, 30), lambda: self._tick(process))
        self.after(self.random.randrange(1, 20), lambda: self._register(process))

    def _tick(self, process: Process) -> None:
        if process.alive:
            process.feed(ev.Tick())
            self.after(100, lambda: self._tick(process))

    def crash(self, broker: BrokerId) -> None:
        process = self.running.pop(broker, None)
        if process is None:
            return
        process.alive = False
        for stream in [*process.inbound.values(), *process.outbound.values()]:
            if stream is not None:
                stream.break_()
        self.after(self.random.randrange(50, 400), lambda: self._session_ends(process))

    def expire(self, broker: BrokerId) -> None:
        """The session ends while the process lives; it learns of it some time later, then registers anew."""
        process = self.running.get(broker)
        if process is None or self.store.live.get(broker) != process.life:
            return
        self._session_ends(process)

        def learn() -> None:
            process.broker_epoch = -1
            process.feed(ev.SessionExpired())
            self.after(self.random.randrange(1, 100), lambda: self._register(process))

        self.after(self.random.choice((0, 10, 300, 700)), learn)

    def _register(self, process: Process) -> None:
        """Rule Z3: an old registration of the same broker goes in the same step; the controller then sees a bounce."""
        if not process.alive:
            return
        broker = process.broker_id
        known = {name: (IDENTITY, node.state.leader_epoch) for name, node in self.store.nodes.items()}
        self.store.broker_epochs[broker] += 1
        process.broker_epoch = self.store.broker_epochs[broker]
        self.store.live[broker] = process.life
        process.feed(ev.BrokerRegistered(process.broker_epoch, known))
        self.after(self.random.randrange(1, 40), lambda: self.controller_runs(frozenset((broker,))))

    def _session_ends(self, process: Process) -> None:
        if self.store.live.get(process.broker_id) == process.life:
            del self.store.live[process.broker_id]
            self.after(self.random.randrange(1, 40), self.controller_runs)

    # -- the stand-in controller -------------------------------------------------------------------------------

    def controller_runs(self, bounced: frozenset[BrokerId] = frozenset(), move: bool = False) -> None:
        """Decide leadership from what the store holds now, write it, tell every live broker (rules C2, E5, T3)."""
        live = self.store.live
        for partition in self.partitions:
            state, version = self.store.nodes[partition]
            decided = self._decide(state, frozenset(live) - bounced, frozenset(live), move)
            if bounced and decided.leader in bounced and decided.leader_epoch == state.leader_epoch:
                decided = replace(decided, leader_epoch=state.leader_epoch + 1)
            if decided != state:
                assert self.store.write(partition, decided, version, {})
                self.check()
        self._tell()

    def _decide(
        self, state: LeaderAndIsr, steady: frozenset[BrokerId], live: frozenset[BrokerId], move: bool
    ) -> LeaderAndIsr:
        isr = tuple(entry for entry in state.isr if entry.broker_id in steady)
        gone = tuple(entry for entry in state.isr if entry.broker_id not in steady)
        elr = state.elr
        if gone:
            left = {entry.broker_id for entry in gone}
            elr = (*(e for e in elr if e.broker_id not in left), *gone) if len(isr) < state.min_isr else ()
        leader, epoch = state.leader, state.leader_epoch
        if move and isr:
            leader = self.random.choice(isr).broker_id
        elif leader not in {entry.broker_id for entry in isr}:
            leader = isr[0].broker_id if isr else BrokerId(-1)
        if leader < 0:
            eligible = [entry for entry in elr if entry.broker_id in live]
            if eligible:
                leader = eligible[0].broker_id
                isr = (IsrEntry(leader, self.store.broker_epochs[leader]),)
                # T3: with m members or more the high watermark leaves the others behind, so none is eligible any longer
                elr = () if len(isr) >= state.min_isr else tuple(one for one in elr if one.broker_id != leader)
        if leader != state.leader or (leader >= 0 and leader not in state.isr_ids):
            epoch = state.leader_epoch + 1
        return replace(state, leader=leader, leader_epoch=epoch, isr=isr, elr=elr)

    def _tell(self) -> None:
        registrations = tuple(
            BrokerRegistration(broker, f"host{broker}", 1, broker_epoch=self.store.broker_epochs[broker])
            for broker in self.store.live
        )
        for broker in self.store.live:
            process = self.running.get(broker)
            if process is None:
                continue
            commands = tuple(
                PartitionCommand(partition, IDENTITY, tuple(self._lives), node.state, node.version)
                for partition, node in self.store.nodes.items()
            )
            command = LeaderAndIsrCommand(
                BrokerId(9), 1, self.store.broker_epochs[broker], commands, registrations, complete=True
            )
            event = ev.LeaderAndIsrArrived(0, command)
            self.after(self.random.choice((1, 5, 20, 150)), lambda p=process, e=event: p.feed(e))

    # -- clients -----------------------------------------------------------------------------------------------

    def produce(
        self,
        batch: Batch,
        acks: int,
        then: Callable[[fx.ProduceResult], None] = lambda _: None,
        broker: BrokerId | None = None,
    ) -> None:
        """Send to whoever leads as far as the store knows, or to a certain broker."""
        leader = self.store.nodes[PARTITION].state.leader if broker is None else broker
        process = self.running.get(leader)
        if process is None:
            then(fx.ProduceResult(-1, -1, TidemarkError(ErrorCode.LEADER_NOT_AVAILABLE, "nobody there")))
            return
        self._request_id += 1
        request_id = self._request_id
        self._requests[request_id] = (f"{batch.data.decode()}.0", acks, then)
        self.after(
            self.random.randrange(0, 5),
            lambda: process.feed(ev.ProduceArrived(request_id, PARTITION, "", -1, acks, (batch,))),
        )
        self.after(2000, lambda: process.feed(ev.ProduceExpired(request_id, PARTITION)))
        self.after(2500, lambda: self._no_answer(request_id))

    def _no_answer(self, request_id: int) -> None:
        request = self._requests.pop(request_id, None)
        if request is not None:
            request[2](fx.ProduceResult(-1, -1, TidemarkError(ErrorCode.REQUEST_TIMED_OUT, "the broker died")))

    def on_reply(self, process: Process, request_id: int, partition: TopicPartition, result: fx.ProduceResult) -> None:
        request = self._requests.pop(request_id, None)
        if request is None:
            if process.alive:
                raise InvariantError(f"request {request_id} was answered twice, or was never asked")
            return
        value, acks, then = request
        if result.error is None and acks == -1:
            self.replies += 1
            self.acked[partition].append((result.base_offset, value))
        then(result)

    def values_of_leader(self) -> list[str]:
        leader = self.store.nodes[PARTITION].state.leader
        process = self.running[leader]
        log = process.replica_log(PARTITION)
        assert log is not None
        return self.disk(leader, PARTITION).values[: log.high_watermark]
