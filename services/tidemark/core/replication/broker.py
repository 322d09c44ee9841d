# SPDX-License-Identifier: Apache-2.0
"""The replication core of one broker: routes each event to the part or replica that handles the event.

`BrokerCore.handle` is the only method that changes state. The core has no clock, no randomness and no I/O: the work of
the driver is returned as effects, in order. `BrokerCore.queries` reads the state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemark.core.config import ReplicationConfig
from tidemark.core.replication import events as ev
from tidemark.core.replication.context import BrokerContext
from tidemark.core.replication.controller_commands import ControllerCommands
from tidemark.core.replication.effects import Effect, ProduceResult, ReplyToProduce, ReportIsrChange
from tidemark.core.replication.follower.partition_follower import PartitionFollower
from tidemark.core.replication.leader.partition_leader import PartitionLeader
from tidemark.core.replication.queries import BrokerQueries
from tidemark.core.replication.replica import Replica
from tidemark.core.replication.replica_log import ReplicaLog
from tidemark.core.replication.replica_manager import ReplicaManager
from tidemark.model import BrokerEpoch, BrokerId, Offset, ReplicaIdentity, TidemarkError, TopicPartition


class BrokerCore:
    """All replicas of one broker.

    Attributes:
        queries: reads the state between events, without changes.
    """

    def __init__(self, broker_id: BrokerId, config: ReplicationConfig) -> None:
        self._ctx = ctx = BrokerContext(broker_id, config)
        self._manager = manager = ReplicaManager(ctx)
        self._replicas = manager.replicas
        self._streams = streams = manager.streams
        self._commands = commands = ControllerCommands(ctx, manager)
        self.queries = BrokerQueries(ctx, self._replicas, streams)
        self._handlers: dict[type, Callable[[Any, int], None]] = {
            # registration, settings, time
            ev.BrokerRegistered: manager.on_registered,
            ev.SessionExpired: manager.on_session_expired,
            ev.SettingsChanged: ctx.on_settings_changed,
            ev.Tick: streams.on_tick,
            # commands of the controller
            ev.LeaderAndIsrArrived: commands.on_leader_and_isr,
            ev.StopReplicaArrived: commands.on_stop_replica,
            # answers of storage
            ev.LogOpened: self._on_log_opened,
            ev.LogAppended: self._on_log_appended,
            ev.LogFlushed: self._on_log_flushed,
            ev.LogTruncated: self._on_log_truncated,
            ev.LogFailed: self._on_log_failed,
            ev.LogFull: self._on_log_full,
            ev.LogDamaged: self._on_log_damaged,
            ev.LogMoved: self._on_log_moved,
            ev.LogStartRequested: self._on_log_start_requested,
            # clients of a leader
            ev.ProduceArrived: self._on_produce,
            ev.MarkerArrived: self._on_produce,
            ev.ProduceExpired: self._on_produce_expired,
            ev.PreferredReplicaNamed: streams.on_preferred_replica_named,
            # answers of ZooKeeper about the ISR
            ev.IsrWritten: self._on_isr_written,
            ev.IsrWriteFailed: self._on_isr_write_failed,
            ev.IsrRead: self._on_isr_read,
            # streams from followers
            ev.FollowerMessageArrived: streams.on_follower_message,
            ev.FollowerDisconnected: streams.on_follower_disconnected,
            ev.FollowerReadDone: streams.on_read_done,
            # streams to leaders
            ev.LeaderConnected: streams.on_leader_connected,
            ev.LeaderMessageArrived: streams.on_leader_message,
            ev.LeaderDisconnected: streams.on_leader_disconnected,
        }

    @property
    def broker_epoch(self) -> BrokerEpoch:
        """Broker epoch of the present registration; -1 while there is none."""
        return self._ctx.broker_epoch

    def handle(self, event: ev.Event, now_ms: int) -> list[Effect]:
        """Apply one event; returns the effects that the driver carries out, in order."""
        ctx = self._ctx
        ctx.effects = []
        ctx.now_ms = now_ms
        self._handlers[type(event)](event, now_ms)
        if ctx.links_to_flush or ctx.sessions_to_flush:
            self._streams.flush(now_ms)
        if self._streams.unused_links:
            self._streams.drop_unused_links()
        return ctx.effects

    # -- answers of storage ------------------------------------------------------------------------------------

    def _of(self, partition: TopicPartition, identity: ReplicaIdentity) -> Replica | None:
        """The replica that storage answers for, None when the replica was closed since."""
        replica = self._replicas.get(partition)
        return replica if replica is not None and replica.identity == identity else None

    def _on_log_opened(self, event: ev.LogOpened, now_ms: int) -> None:
        replica = self._of(event.partition, event.identity)
        if replica is None or replica.log is not None:
            return
        replica.failed = False
        replica.log = ReplicaLog(self._ctx, event.partition, event.identity, event.log)
        if event.log.damaged is not None:
            self._ctx.observe(
                "tail_cut" if event.log.cut else "replica_damaged",
                event.partition,
                why=event.log.damaged,
                log_end_offset=event.log.log_end_offset,
            )
        self._manager.maybe_begin_role(replica, now_ms)

    def _on_log_appended(self, event: ev.LogAppended, now_ms: int) -> None:
        replica = self._of(event.partition, event.identity)
        if replica is None or replica.log is None:
            return
        role = replica.role
        if isinstance(role, PartitionLeader):
            role.on_appended(event.log_end_offset)
            return
        replica.log.appended(event.log_end_offset)
        if role is not None:
            role.on_appended()
        elif replica.log.quiet:
            self._manager.maybe_begin_role(replica, now_ms)

    def _on_log_flushed(self, event: ev.LogFlushed, now_ms: int) -> None:
        replica = self._of(event.partition, event.identity)
        if replica is None or replica.log is None:
            return
        replica.log.flushed(event.flushed_offset)
        if isinstance(replica.role, PartitionLeader):
            replica.role.maybe_advance_high_watermark()
        elif replica.role is not None:
            replica.role.report()

    def _on_log_truncated(self, event: ev.LogTruncated, now_ms: int) -> None:
        replica = self._of(event.partition, event.identity)
        if replica is None or replica.log is None:
            return
        replica.log.truncated(event)
        if isinstance(replica.role, PartitionFollower):
            replica.role.on_truncated()
        else:
            self._manager.maybe_begin_role(replica, now_ms)

    def _on_log_failed(self, event: ev.LogFailed, now_ms: int) -> None:
        replica = self._of(event.partition, event.identity)
        if replica is not None:
            self._manager.fail(replica, event.error)

    def _on_log_full(self, event: ev.LogFull, now_ms: int) -> None:
        replica = self._of(event.partition, event.identity)
        if replica is None or replica.log is None:
            return
        replica.log.full(event)
        if isinstance(replica.role, PartitionLeader):
            replica.role.on_full(event.error)
        elif replica.role is not None:
            replica.role.on_full(now_ms)
        else:
            if replica.log.epochs.truncate_from_end(event.log_end_offset):
                replica.log.save_epochs()
            self._manager.maybe_begin_role(replica, now_ms)

    def _on_log_damaged(self, event: ev.LogDamaged, now_ms: int) -> None:
        replica = self._of(event.partition, event.identity)
        if replica is not None and isinstance(replica.role, PartitionLeader):
            replica.role.on_damaged(now_ms, repairable=event.repairable)

    def _on_log_moved(self, event: ev.LogMoved, now_ms: int) -> None:
        replica = self._of(event.partition, event.identity)
        if replica is not None and replica.log is not None:
            replica.log.directory = event.directory

    def _on_log_start_requested(self, event: ev.LogStartRequested, now_ms: int) -> None:
        replica = self._of(event.partition, event.identity)
        role = replica.role if replica is not None else None
        if not isinstance(role, PartitionLeader) or role.leader_epoch != event.leader_epoch:
            return
        start = min(event.start_offset, role.log.high_watermark)
        if start > role.log.log_start_offset:
            role.log.advance_log_start(start)
            self._ctx.observe(
                "log_start_advanced", event.partition, log_start_offset=start, leader_epoch=role.leader_epoch
            )
            self._streams.log_start_moved(role)

    # -- clients -----------------------------------------------------------------------------------------------

    def _on_produce(self, event: ev.ProduceArrived | ev.MarkerArrived, now_ms: int) -> None:
        try:
            leader = self.queries.leader(event.partition, event.topic_id, event.current_leader_epoch)
        except TidemarkError as error:
            result = ProduceResult(Offset(-1), Offset(-1), error)
            self._ctx.emit(ReplyToProduce(event.request_id, event.partition, result))
            return
        if isinstance(event, ev.MarkerArrived):
            leader.on_marker(event)
        else:
            leader.on_produce(event)

    def _on_produce_expired(self, event: ev.ProduceExpired, now_ms: int) -> None:
        replica = self._replicas.get(event.partition)
        if replica is not None and isinstance(replica.role, PartitionLeader):
            replica.role.on_produce_expired(event.request_id)

    # -- the ISR in ZooKeeper ----------------------------------------------------------------------------------

    def _awaiting(self, partition: TopicPartition) -> tuple[Replica, PartitionLeader] | None:
        """The leadership that awaits an answer about the ISR, None when that leadership is over."""
        self._ctx.isr_answers_due.discard(partition)
        replica = self._replicas.get(partition)
        if replica is None or not isinstance(replica.role, PartitionLeader):
            return None
        if not replica.role.awaits_isr_answer:
            replica.role.maybe_expand()
            return None
        return replica, replica.role

    def _on_isr_written(self, event: ev.IsrWritten, now_ms: int) -> None:
        awaiting = self._awaiting(event.partition)
        if awaiting is not None:
            awaiting[1].on_isr_written(event.version)

    def _on_isr_write_failed(self, event: ev.IsrWriteFailed, now_ms: int) -> None:
        awaiting = self._awaiting(event.partition)
        if awaiting is not None:
            awaiting[1].on_isr_write_failed(unknown=event.unknown)

    def _on_isr_read(self, event: ev.IsrRead, now_ms: int) -> None:
        awaiting = self._awaiting(event.partition)
        if awaiting is not None and not awaiting[1].on_isr_read(event.found):
            self._manager.fence(awaiting[0], "isr_changed_by_another")
            if event.found is None:  # deleted manually, or the partition was removed: the controller reads the node
                self._ctx.emit(ReportIsrChange(event.partition))
