# SPDX-License-Identifier: Apache-2.0
"""One broker process: the shipping core and drivers, and the parts around them in simulated time.

Written here, as services/tidemark/broker does: ordered work on logs, streams (R6), and the comparison of the lease
before an answer (F1, F2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tidemark.broker.clients.topic_schemas import SchemaReads
from tidemark.broker.lifecycle.registration import Registration, identity_of
from tidemark.broker.node.core_driver import BrokerDriver
from tidemark.broker.node.metadata_cache import MetadataCache
from tidemark.broker.node.own_epoch import UNREGISTERED, OwnEpoch
from tidemark.broker.node.session_lease import Lease
from tidemark.broker.node.topic_settings import TopicTable
from tidemark.broker.replication.control_epochs import ControlEpochs
from tidemark.broker.replication.isr_store import IsrStore
from tidemark.core.cluster_view import ClusterView
from tidemark.core.messages import (
    HeldState,
    LeaderAndIsrCommand,
    ReplicaDescription,
    ReplicaQuestion,
    StopReplicaCommand,
)
from tidemark.core.replication import effects as fx
from tidemark.core.replication import events as ev
from tidemark.core.replication.broker import BrokerCore
from tidemark.core.replication.leader.partition_leader import PartitionLeader
from tidemark.core.replication.replica import Replica
from tidemark.core.replication.replica_log import ReplicaLog
from tidemark.model import BrokerEpoch, BrokerId, ControllerEpoch, ErrorCode, Offset, TidemarkError, TopicPartition

from tests.simulation.disks.filed_logs import FiledLogs
from tests.simulation.disks.machine_directories import MachineDirectories
from tests.simulation.disks.machine_logs import MachineLogs
from tests.simulation.disks.repairs import SimRepairs
from tests.simulation.disks.retention import keep_house
from tests.simulation.engine import Node
from tests.simulation.network.links import Stream
from tests.simulation.nodes.broker_links import SimControllerHints
from tests.simulation.scheduler import SimScheduler

if TYPE_CHECKING:
    from tests.simulation.world import World

_TOLD = frozenset(
    {
        "truncated",
        "became_leader",
        "fenced",
        "replica_damaged",
        "log_start_advanced",
        "log_reset",
        "disk_full",
        "disk_has_space",
    }
)
Answered = Callable[[TidemarkError | None, tuple[tuple[TopicPartition, TidemarkError], ...]], None]


class _TracedCore(BrokerCore):
    """Counts and traces events and effects; checks the invariants when an event's effects have been carried out."""

    def __init__(self, node: BrokerNode) -> None:
        super().__init__(node.broker_id, node.world.replication)
        self._node = node

    def handle(self, event: ev.Event, now_ms: int) -> Iterator[fx.Effect]:  # type: ignore[override]
        """Handle an event as a generator, which ends after the driver has carried out the last effect."""
        node, world = self._node, self._node.world
        if not node.alive:
            return
        try:
            world.stepped(node, event)
            tracing = world.lines is not None
            for effect in super().handle(event, now_ms):
                if tracing:
                    world.trace(node, "->", effect)
                yield effect
            world.check()
        except Exception as error:
            world.engine.fail(error)  # the driver catches errors, as in production
            raise


class BrokerNode(Node):
    """A broker process, from its start to its death."""

    def __init__(self, world: World, broker_id: BrokerId, life: int) -> None:
        super().__init__(world.engine, f"b{broker_id}")
        self.world = world
        self.broker_id = broker_id
        self.life = life
        self.machine = world.machines[broker_id]
        self.machine.failed = False
        self.core = _TracedCore(self)
        self.driver = BrokerDriver(
            self.core, world.clock, SimScheduler(self), self._fail, lambda: world.engine.now / 1000
        )
        self._own_epoch = OwnEpoch()
        self._control_epochs = ControlEpochs(self._own_epoch)
        self.store = world.ensemble.sim_store(self, world.session_timeout_ms)
        self.lease = Lease(
            world.clock,
            self.store,
            self.core.queries.holds_epoch_since,
            lambda: self.broker_epoch == self.core.broker_epoch,
        )
        self.repairs = SimRepairs(self)
        self.table = TopicTable()
        """The schemas of topics; logs have the settings."""
        self.metadata = MetadataCache("")
        """The metadata, in worlds with a typed topic; nothing else reads it."""
        self.schema_reads = SchemaReads(self.table, self.metadata, self.store)
        self.logs = FiledLogs(self) if world.recipe.files else MachineLogs(self)
        self.wants_shutdown = False
        """True until the controller releases the broker; each heartbeat has it."""
        self.may_go: Callable[[], None] = lambda: None
        self.inbound: dict[BrokerId, Stream] = {}
        self.outbound: dict[BrokerId, Stream] = {}
        self._wanted: dict[BrokerId, BrokerEpoch] = {}
        self._connecting: set[BrokerId] = set()
        self._control: dict[int, Answered] = {}
        self._request_id = 0
        self._isr = IsrStore(
            self.store, SimControllerHints(self), SimScheduler(self), self._on_isr_event, self.driver.fail
        )
        self._isr_writes: dict[TopicPartition, fx.WriteIsr] = {}
        self._registration = Registration(
            identity_of(broker_id, f"host{broker_id}", 1, ""),
            "simulated",
            self.store,
            MachineDirectories(self),
            self.driver,
            SimScheduler(self),
            self._on_epoch,
            boot_id=lambda: self.machine.boot_id,
            trust_boot_id=True,
        )
        handlers: dict[type[fx.Effect], Callable[[Any], None]] = {
            fx.ReplyToProduce: self._release,
            fx.ReplyToControl: self._reply_to_control,
            fx.WriteIsr: self._write_isr,
            fx.ReadIsr: self._isr.read,
            fx.ReportIsrChange: self._isr.report,
            fx.ResignLeadership: self._isr.resign,
            fx.ReportLogFailed: self._isr.report_failed,
            fx.ConnectToLeader: self._connect,
            fx.DisconnectFromLeader: self._disconnect,
            fx.SendToLeader: lambda effect: self._send(True, self.outbound.get(effect.leader), effect.message),
            fx.SendToFollower: lambda effect: self._send(False, self.inbound.get(effect.follower), effect.message),
            fx.DisconnectFollower: self._disconnect_follower,
            fx.HighWatermarkAdvanced: lambda effect: None,
            fx.LowWatermarkMoved: lambda effect: None,
            fx.LeadershipChanged: lambda effect: None,
            fx.Observed: self._observed,
            **self.logs.handlers,
        }
        self.driver.wire(handlers)
        dice = self.engine.dice(self.name)
        self.after(dice.randrange(1, 30), self.driver.start)
        self.after(dice.randrange(1, world.recipe.checkpoint_ms), self._checkpoint)
        self.after(dice.randrange(1, 20), lambda: self.spawn(self._start()))
        keep_house(self)

    # -- facts for other nodes ---------------------------------------------------------------------------------------

    @property
    def broker_epoch(self) -> BrokerEpoch:
        """The registered epoch; -1 as soon as the session has expired."""
        return self._own_epoch.value

    def replica(self, partition: TopicPartition) -> Replica | None:
        return self.core._replicas.get(partition)

    def leading(self, partition: TopicPartition) -> PartitionLeader | None:
        replica = self.replica(partition)
        return replica.role if replica is not None and isinstance(replica.role, PartitionLeader) else None

    def replica_log(self, partition: TopicPartition) -> ReplicaLog | None:
        replica = self.replica(partition)
        return replica.log if replica is not None else None

    def throttles(self) -> dict[TopicPartition, int]:
        """Throttles in the commands of the replicas."""
        commands = {
            view.partition: self.core._replicas[view.partition].command for view in self.core.queries.replicas()
        }
        throttles = {one: command.throttle_bytes_per_s for one, command in commands.items() if command is not None}
        return {one: throttle for one, throttle in throttles.items() if throttle}

    # -- events and effects ------------------------------------------------------------------------------------------

    def feed(self, event: ev.Event) -> None:
        if self.alive:
            self.driver.submit(event)

    def _observed(self, effect: fx.Observed) -> None:
        self.repairs.refused_chunks.observe(effect)
        if effect.kind in _TOLD:
            fields = ", ".join(f"{key} {value}" for key, value in effect.fields.items())
            self.world.tell(f"broker {self.broker_id}: {effect.kind} ({fields})")

    def _release(self, effect: fx.ReplyToProduce) -> None:
        """Acknowledge as broker/clients/produce.py does: the lease is compared now."""
        error = effect.result.error
        if error is None and self.world.acks_of(effect.request_id) != 0 and not self.lease.covers(effect.partition):
            error = self.lease.refusal(effect.partition)
        self.world.released(self, effect, error)

    # -- registration ------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        while True:
            try:
                await self.store.start()
                break
            except TidemarkError:
                await self.sleep(100)
        try:
            await self._registration.start()
        except TidemarkError as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, TidemarkError) and error.code is ErrorCode.BROKER_ID_TAKEN:
            self.world.exits(self, error)
        else:
            self.engine.fail(error)

    def _on_epoch(self, broker_epoch: BrokerEpoch) -> None:
        self._own_epoch.value = broker_epoch
        registered = broker_epoch != UNREGISTERED
        story = f"registers, broker epoch {broker_epoch}" if registered else "learns that its session has expired"
        self.world.tell(f"broker {self.broker_id} {story}")

    def _checkpoint(self) -> None:
        marks = self._marks()
        self.after(self.engine.dice(self.name).choice((0, 5, 60)), lambda: self._write_checkpoint(marks))
        self.after(self.world.recipe.checkpoint_ms, self._checkpoint)

    def _marks(self) -> dict[TopicPartition, Offset]:
        return {view.partition: view.high_watermark for view in self.core.queries.replicas() if view.role != "opening"}

    def _write_checkpoint(self, marks: dict[TopicPartition, Offset]) -> None:
        if self.logs.can_sync():
            self.logs.checkpoint(marks)

    # -- the ISR in ZooKeeper ----------------------------------------------------------------------------------------

    def _write_isr(self, effect: fx.WriteIsr) -> None:
        self._isr_writes[effect.partition] = effect
        self._isr.write(effect)

    def _on_isr_event(self, event: ev.Event) -> None:
        if isinstance(event, ev.IsrWritten):
            state = self._isr_writes[event.partition].state
            self.world.tell(f"broker {self.broker_id}: ISR {list(state.isr_ids)}, ELR {_ids(state.elr)}")
        self.feed(event)

    # -- the controller's calls (rule F4) ----------------------------------------------------------------------------

    def refuses(
        self, controller_epoch: ControllerEpoch, broker_epoch: BrokerEpoch, sequence: int = 0
    ) -> TidemarkError | None:
        try:
            self._control_epochs.check(controller_epoch, broker_epoch, sequence)
        except TidemarkError as error:
            return error
        return None

    def command(self, command: LeaderAndIsrCommand | StopReplicaCommand, answered: Answered) -> None:
        refusal = self.refuses(command.controller_epoch, command.broker_epoch, command.sequence)
        if refusal is not None:
            answered(refusal, ())
            return
        self._request_id += 1
        self._control[self._request_id] = answered
        if isinstance(command, LeaderAndIsrCommand):
            self.logs.configure(command.topic_configs)
            topic_ids = {one.partition.topic: one.identity.topic_id for one in command.partitions}
            self.table.update_schemas(topic_ids, command.schemas)
            self.feed(ev.LeaderAndIsrArrived(self._request_id, command))
        else:
            self.feed(ev.StopReplicaArrived(self._request_id, command))

    def update_metadata(self, view: ClusterView) -> TidemarkError | None:
        """Apply the metadata; returns the refusal, if any."""
        try:
            self.metadata.update(view)
        except TidemarkError as error:
            return error
        return None

    def _reply_to_control(self, effect: fx.ReplyToControl) -> None:
        self._control.pop(effect.request_id)(effect.error, effect.refused)

    def describe(
        self, questions: tuple[ReplicaQuestion, ...]
    ) -> tuple[
        dict[TopicPartition, ReplicaDescription], dict[TopicPartition, TidemarkError], dict[TopicPartition, HeldState]
    ]:
        described: dict[TopicPartition, ReplicaDescription] = {}
        refused: dict[TopicPartition, TidemarkError] = {}
        for question in questions:
            try:
                described[question.partition] = self.core.queries.describe(question)
            except TidemarkError as error:
                refused[question.partition] = error
        return described, refused, self.core.queries.held(questions)

    # -- streams -----------------------------------------------------------------------------------------------------

    def _connect(self, effect: fx.ConnectToLeader) -> None:
        self._wanted[effect.leader] = effect.broker_epoch
        self._connect_soon(effect.leader, 10)

    def _connect_soon(self, leader: BrokerId, within_ms: int) -> None:
        if leader not in self._connecting:
            self._connecting.add(leader)
            self.after(self.engine.dice(self.name).randrange(1, within_ms), lambda: self._try_connect(leader))

    def _try_connect(self, leader_id: BrokerId) -> None:
        """Connect as broker/replication/stream_transport.py does: a newer stream of a follower ends its older one."""
        self._connecting.discard(leader_id)
        if leader_id not in self._wanted or leader_id in self.outbound:
            return
        leader = self.world.brokers.get(leader_id)
        reachable = self.world.network.both_ways(self.name, f"b{leader_id}")
        meant = leader is not None and not leader.paused and leader.broker_epoch == self._wanted[leader_id]
        old = leader.inbound.get(self.broker_id) if leader is not None else None
        stale = old is not None and old.broker_epoch > self.broker_epoch
        if leader is None or not reachable or not meant or stale or self.broker_epoch < 0:
            self._connect_soon(leader_id, 80)
            return
        if old is not None:
            old.break_()
        stream = Stream(self.engine, self.world.network, self, leader)
        leader.inbound[self.broker_id] = stream
        self.outbound[leader_id] = stream
        self.feed(ev.LeaderConnected(leader_id))

    def _disconnect(self, effect: fx.DisconnectFromLeader) -> None:
        """Messages sent before are still delivered."""
        self._wanted.pop(effect.leader, None)
        stream = self.outbound.pop(effect.leader, None)
        if stream is not None:
            self.engine.after(40, stream.break_)

    def _disconnect_follower(self, effect: fx.DisconnectFollower) -> None:
        stream = self.inbound.pop(effect.follower, None)
        if stream is not None:
            stream.break_()

    def _send(self, to_leader: bool, stream: Stream | None, message: Any) -> None:
        if stream is not None:
            stream.send(to_leader, message)

    def follower_gone(self, stream: Stream) -> None:
        if self.inbound.get(stream.follower.broker_id) is stream:
            del self.inbound[stream.follower.broker_id]
            self.feed(ev.FollowerDisconnected(stream.follower.broker_id, stream.broker_epoch))

    def leader_gone(self, stream: Stream) -> None:
        if self.outbound.get(stream.leader.broker_id) is stream:
            del self.outbound[stream.leader.broker_id]
            self.feed(ev.LeaderDisconnected(stream.leader.broker_id))
            self._connect_soon(stream.leader.broker_id, 60)

    def die(self) -> None:
        self.alive = False
        self.logs.die()
        for stream in [*self.inbound.values(), *self.outbound.values()]:
            stream.break_()


def _ids(entries: Any) -> list[int]:
    return [entry.broker_id for entry in entries]
