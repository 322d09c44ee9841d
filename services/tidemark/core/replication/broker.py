# SPDX-License-Identifier: Apache-2.0
"""One broker's replication core: takes events to the replica they are for (rules E5, F2-F4, C6, C8; design section 2).

`BrokerCore.handle` is the only thing that changes anything. It has no clock, no randomness and does no I/O: what it
wants done comes out as effects, in order. The session half of it is in `broker_streams`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tidemark.core.config import ReplicationConfig
from tidemark.core.messages import (
    LeaderAndIsrCommand,
    PartitionCommand,
    StopReplicaCommand,
)
from tidemark.core.replication import events as ev
from tidemark.core.replication.context import UNREGISTERED, BrokerContext
from tidemark.core.replication.effects import (
    CloseLog,
    Effect,
    LeadershipChanged,
    OpenLog,
    ProduceResult,
    ReplyToControl,
    ReplyToProduce,
    ReportLogFailed,
)
from tidemark.core.replication.follower.partition_follower import PartitionFollower
from tidemark.core.replication.leader.partition_leader import PartitionLeader
from tidemark.core.replication.queries import BrokerQueries
from tidemark.core.replication.replica import (
    CommandReply,
    Replica,
    WaitingCommand,
    not_leader,
)
from tidemark.core.replication.replica_log import ReplicaLog
from tidemark.core.replication.stray_replicas import StrayReplicas
from tidemark.core.replication.streams import BrokerStreams
from tidemark.model import (
    NO_EPOCH,
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    ErrorCode,
    LeaderEpoch,
    Offset,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
)


class BrokerCore(BrokerQueries):
    """All replicas of one broker."""

    def __init__(self, broker_id: BrokerId, config: ReplicationConfig) -> None:
        super().__init__(BrokerContext(broker_id, config))
        self._streams = BrokerStreams(self._ctx, self._replicas, self._fence)
        self._controller_epoch = ControllerEpoch(-1)
        self._last_command = (ControllerEpoch(-1), 0)
        self._fences: dict[tuple[TopicPartition, ReplicaIdentity], LeaderEpoch] = {}
        self._strays = StrayReplicas(self._ctx)
        self._handlers: dict[type, Callable[[Any, int], None]] = {
            ev.BrokerRegistered: self._on_registered,
            ev.SessionExpired: self._on_session_expired,
            ev.LeaderAndIsrArrived: self._on_leader_and_isr,
            ev.StopReplicaArrived: self._on_stop_replica,
            ev.LogOpened: self._on_log_opened,
            ev.LogAppended: self._on_log_appended,
            ev.LogFlushed: self._on_log_flushed,
            ev.LogTruncated: self._on_log_truncated,
            ev.LogFailed: self._on_log_failed,
            ev.LogFull: self._on_log_full,
            ev.LogMoved: self._on_log_moved,
            ev.FrontReleased: self._on_front_released,
            ev.ProduceArrived: self._on_produce,
            ev.ProduceExpired: self._on_produce_expired,
            ev.IsrWritten: self._on_isr_written,
            ev.IsrWriteFailed: self._on_isr_write_failed,
            ev.IsrRead: self._on_isr_read,
            ev.SettingsChanged: self._ctx.on_settings_changed,
            **self._streams.handlers,
        }

    @property
    def broker_epoch(self) -> BrokerEpoch:
        """Of the registration that it leads in; -1 while there is none."""
        return self._ctx.broker_epoch

    def handle(self, event: ev.Event, now_ms: int) -> list[Effect]:
        """Take in one event; gives what is to be done, in order."""
        ctx = self._ctx
        ctx.effects = []
        ctx.now_ms = now_ms
        self._handlers[type(event)](event, now_ms)
        if ctx.links_to_flush or ctx.sessions_to_flush:
            self._streams.flush(now_ms)
        self._streams.drop_unused_links()
        return ctx.effects

    # -- registration ------------------------------------------------------------------------------------------

    def _on_registered(self, event: ev.BrokerRegistered, now_ms: int) -> None:
        """Rule E5: what was led before is not led again in the same epoch."""
        self._stop_leading_everything()
        self._ctx.broker_epoch = event.broker_epoch
        for partition, (identity, leader_epoch) in event.known_leader_epochs.items():
            self._strays.found(partition, identity)
            self._raise_fence(partition, identity, leader_epoch)
        for replica in self._replicas.values():
            replica.fenced_epoch = max(replica.fenced_epoch, replica.leader_epoch)
        self._strays.forget_names()
        self._streams.reconnect()

    def _on_session_expired(self, event: ev.SessionExpired, now_ms: int) -> None:
        self._ctx.broker_epoch = UNREGISTERED
        self._stop_leading_everything()
        self._streams.disconnect_followers()

    def _stop_leading_everything(self) -> None:
        for replica in self._replicas.values():
            if isinstance(replica.role, PartitionLeader):
                self._fence(replica, "session_expired")
            elif replica.waiting is not None and replica.waiting.command.state.leader == self._ctx.broker_id:
                self._refuse_waiting(replica, ErrorCode.STALE_BROKER_EPOCH, "the session it was sent under is gone")

    def _raise_fence(self, partition: TopicPartition, identity: ReplicaIdentity, leader_epoch: LeaderEpoch) -> None:
        key = (partition, identity)
        self._fences[key] = max(self._fences.get(key, NO_EPOCH), leader_epoch)

    def _fence(self, replica: Replica, why: str) -> None:
        """Stop leading, until the controller brings a higher epoch."""
        self._ctx.observe("fenced", replica.partition, why=why, leader_epoch=replica.leader_epoch)
        self._stop_role(replica, NO_EPOCH)

    def _stop_role(self, replica: Replica, newer_epoch: LeaderEpoch, error: TidemarkError | None = None) -> None:
        role, replica.role = replica.role, None
        if isinstance(role, PartitionLeader):
            replica.fenced_epoch = max(replica.fenced_epoch, role.leader_epoch)
            role.stop(error or not_leader(replica.partition, NO_LEADER, replica.leader_epoch))
            self._ctx.emit(LeadershipChanged(replica.partition, leading=False))
        elif role is not None:
            if role.reconciled and replica.command is not None:
                replica.reconciled_lineage = replica.command.state.lineage
            role.leave(newer_epoch)
            self._streams.unfollow(role)

    # -- commands of the controller ----------------------------------------------------------------------------

    def _stale(self, controller_epoch: ControllerEpoch, broker_epoch: BrokerEpoch) -> TidemarkError | None:
        """Rule F4 for a command as a whole."""
        if controller_epoch < self._controller_epoch:
            return TidemarkError(
                ErrorCode.STALE_CONTROLLER_EPOCH,
                f"controller epoch {controller_epoch} is older than {self._controller_epoch}",
                {"controller_epoch": str(self._controller_epoch)},
            )
        if broker_epoch != self._ctx.broker_epoch or broker_epoch == UNREGISTERED:
            return TidemarkError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"the command is for broker epoch {broker_epoch}; this broker's is {self._ctx.broker_epoch}",
                {"broker_epoch": str(self._ctx.broker_epoch)},
            )
        self._controller_epoch = controller_epoch
        return None

    def _overtaken(self, command: LeaderAndIsrCommand | StopReplicaCommand) -> TidemarkError | None:
        """A late command would bring back old suspicions and replicas that were stopped since, and stop or set aside
        replicas that came since (rule F4)."""
        number = (command.controller_epoch, command.sequence)
        if command.sequence and number < self._last_command:
            sentence = f"command {number} comes after {self._last_command}"
            return TidemarkError(ErrorCode.REQUEST_TIMED_OUT, sentence)
        self._last_command = number
        return None

    def _on_leader_and_isr(self, event: ev.LeaderAndIsrArrived, now_ms: int) -> None:
        command = event.command
        error = self._stale(command.controller_epoch, command.broker_epoch) or self._overtaken(command)
        if error is not None:
            self._ctx.emit(ReplyToControl(event.request_id, error))
            return
        self._ctx.suspected = command.suspected
        changed = self._ctx.learn(command.brokers)
        reply = CommandReply(event.request_id)
        for one in command.partitions:
            configs = command.topic_configs.get(one.partition.topic, {})
            self._on_partition_command(one, reply, configs, now_ms)
        self._streams.registrations_changed(changed)
        for partition in self._strays.take(command, self._replicas):
            self._close(self._replicas[partition], "stray")
        reply.said_all = True
        self._maybe_reply(reply)

    def _maybe_reply(self, reply: CommandReply | None) -> None:
        if reply is not None and reply.complete:
            self._ctx.emit(ReplyToControl(reply.request_id, None, tuple(reply.refused)))

    def _on_partition_command(
        self, command: PartitionCommand, reply: CommandReply, configs: Mapping[str, str], now_ms: int
    ) -> None:
        partition, state = command.partition, command.state
        replica = self._replicas.get(partition)
        if replica is not None and replica.identity != command.identity:
            self._close(replica, "stray")
            replica = None
        if replica is None or (replica.failed and replica.waiting is None):
            replica = self._open(partition, command.identity, replica)
        another = state.leader_epoch == replica.leader_epoch and replica.leader not in (NO_LEADER, state.leader)
        if state.leader_epoch < replica.leader_epoch or another:  # one epoch has one leader
            reply.refused.append((partition, self._fenced(replica, state.leader_epoch)))
            return
        if state.leader_epoch == replica.leader_epoch and self._repeat(replica, command):
            replica.take_settings(configs)
            return
        if state.leader_epoch > replica.leader_epoch:
            self._stop_role(replica, state.leader_epoch)
        self._refuse_waiting(replica, ErrorCode.FENCED_LEADER_EPOCH, "a newer command came before it was carried out")
        replica.leader = state.leader
        replica.leader_epoch = state.leader_epoch
        replica.assigned = command.assigned_replicas
        replica.command = command
        leads = state.leader == self._ctx.broker_id
        replica.waiting = WaitingCommand(command, reply if leads else None, configs)
        reply.open_partitions += leads
        self._maybe_begin(replica, now_ms)

    def _repeat(self, replica: Replica, command: PartitionCommand) -> bool:
        """A command in the epoch this replica is in already; True when there is nothing more to do (rule F4)."""
        role, known = replica.role, replica.command
        if role is None and replica.waiting is None:
            return False
        if role is not None and role.leader_epoch != command.state.leader_epoch:
            return False
        if known is not None and command.partition_epoch < known.partition_epoch:
            return True
        if replica.waiting is not None:
            return False
        replica.command = command
        replica.assigned = command.assigned_replicas
        if isinstance(role, PartitionLeader):
            assert command.state.leader == self._ctx.broker_id, "an epoch has one leader"
            role.on_command(command)
        elif role is not None:
            role.on_command(command)
        return True

    def _fenced(self, replica: Replica, leader_epoch: LeaderEpoch) -> TidemarkError:
        highest = max(replica.leader_epoch, replica.fenced_epoch)
        return TidemarkError(
            ErrorCode.FENCED_LEADER_EPOCH,
            f"{replica.partition}: leader epoch {leader_epoch} is not above {highest}, which this replica had",
            {"leader_epoch": str(highest)},
        )

    def _refuse_waiting(self, replica: Replica, code: ErrorCode, sentence: str) -> None:
        waiting, replica.waiting = replica.waiting, None
        if waiting is not None:
            self._settled(waiting, TidemarkError(code, f"{replica.partition}: {sentence}"))

    def _settled(self, waiting: WaitingCommand, error: TidemarkError | None) -> None:
        reply = waiting.reply
        if reply is None:
            return
        if error is not None:
            reply.refused.append((waiting.command.partition, error))
        reply.open_partitions -= 1
        self._maybe_reply(reply)

    def _maybe_begin(self, replica: Replica, now_ms: int) -> None:
        """Take the role that the latest command asks for, once the log is open and quiet."""
        waiting, log = replica.waiting, replica.log
        if waiting is None or log is None or not log.quiet:
            return
        replica.waiting = None
        log.counts_flushes(waiting.group_commit)
        state = waiting.command.state
        error = None
        if state.leader == self._ctx.broker_id:
            error = self._begin_leading(replica, log, waiting.command, now_ms)
        elif state.leader != NO_LEADER:
            self._begin_following(replica, log, waiting)
        if replica.refused_lineage < 0 and log.damaged is not None:
            replica.refused_lineage = state.lineage
            self._ctx.emit(ReportLogFailed(replica.partition, state.leader_epoch, damaged=True))
        self._settled(waiting, error)
        self._streams.take_up_early(replica, now_ms)

    def _begin_leading(
        self, replica: Replica, log: ReplicaLog, command: PartitionCommand, now_ms: int
    ) -> TidemarkError | None:
        state = command.state
        if state.leader_epoch <= max(replica.fenced_epoch, log.epochs.latest):
            return self._fenced(replica, state.leader_epoch)
        if log.damaged is not None and (replica.refused_lineage < 0 or state.lineage <= replica.refused_lineage):
            return TidemarkError(
                ErrorCode.REPLICA_DAMAGED,
                f"{replica.partition}: the log is damaged ({log.damaged}) and good to offset {log.log_end_offset}",
                {
                    "lineage": str(state.lineage),
                    "last_epoch": str(log.last_record_epoch),
                    "log_end_offset": str(log.log_end_offset),
                    "high_watermark": str(log.known_high_watermark),
                },
            )
        leader = PartitionLeader(self._ctx, log, command, now_ms)
        replica.role = leader
        log.forget_recovered()
        if log.damaged is not None:
            log.end_damage(log.log_end_offset)
        replica.reconciled_lineage = state.lineage
        self._ctx.emit(LeadershipChanged(replica.partition, leading=True))
        self._ctx.observe(
            "became_leader",
            replica.partition,
            leader_epoch=state.leader_epoch,
            epoch_start_offset=leader.epoch_start_offset,
            high_watermark=log.high_watermark,
            lineage=state.lineage,
        )
        leader.maybe_advance_high_watermark()
        return None

    def _begin_following(self, replica: Replica, log: ReplicaLog, waiting: WaitingCommand) -> None:
        state = waiting.command.state
        follower = PartitionFollower(
            self._ctx,
            log,
            waiting.command,
            spares_high_watermark=replica.reconciled_lineage == state.lineage and log.damaged is None,
            may_hold_holes=waiting.may_hold_holes,
        )
        replica.role = follower
        self._ctx.observe(
            "became_follower",
            replica.partition,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            log_end_offset=log.log_end_offset,
        )
        self._streams.follow(follower)

    def _on_stop_replica(self, event: ev.StopReplicaArrived, now_ms: int) -> None:
        command: StopReplicaCommand = event.command
        error = self._stale(command.controller_epoch, command.broker_epoch) or self._overtaken(command)
        refused: list[tuple[TopicPartition, TidemarkError]] = []
        for one in command.replicas if error is None else ():
            replica = self._replicas.get(one.partition)
            if replica is None:
                if one.delete:
                    self._strays.deleted(one.partition, one.identity)
            elif replica.identity != one.identity:
                sentence = f"{one.partition} is another incarnation here"
                refused.append((one.partition, TidemarkError(ErrorCode.UNKNOWN_TOPIC_ID, sentence)))
            elif one.leader_epoch != NO_EPOCH and one.leader_epoch < replica.leader_epoch:
                refused.append((one.partition, self._fenced(replica, one.leader_epoch)))
            else:
                self._close(replica, "delete" if one.delete else None, newer_epoch=one.leader_epoch)
        self._ctx.emit(ReplyToControl(event.request_id, error, tuple(refused)))

    # -- logs --------------------------------------------------------------------------------------------------

    def _open(self, partition: TopicPartition, identity: ReplicaIdentity, failed: Replica | None) -> Replica:
        replica = Replica(partition, identity, self._fences.get((partition, identity), NO_EPOCH))
        if failed is not None:
            replica.fenced_epoch = max(replica.fenced_epoch, failed.fenced_epoch)
            replica.leader, replica.leader_epoch = failed.leader, failed.leader_epoch
        self._strays.opened(partition)
        self._replicas[partition] = replica
        self._ctx.emit(OpenLog(partition, identity))
        return replica

    def _close(self, replica: Replica, set_aside: str | None, newer_epoch: LeaderEpoch = NO_EPOCH) -> None:
        self._refuse_waiting(replica, ErrorCode.NOT_A_REPLICA, "the replica was closed")
        self._stop_role(replica, newer_epoch)
        self._raise_fence(replica.partition, replica.identity, max(replica.fenced_epoch, replica.leader_epoch))
        if set_aside is not None:
            self._fences.pop((replica.partition, replica.identity), None)
        del self._replicas[replica.partition]
        self._ctx.emit(CloseLog(replica.partition, replica.identity, set_aside))

    def _of(self, partition: TopicPartition, identity: ReplicaIdentity) -> Replica | None:
        """The replica an answer of storage is for, None when that is closed."""
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
                "replica_damaged", event.partition, why=event.log.damaged, log_end_offset=event.log.log_end_offset
            )
        self._maybe_begin(replica, now_ms)

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
            self._maybe_begin(replica, now_ms)

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
            self._maybe_begin(replica, now_ms)

    def _on_log_failed(self, event: ev.LogFailed, now_ms: int) -> None:
        replica = self._of(event.partition, event.identity)
        if replica is None:
            return
        self._ctx.observe("log_failed", event.partition, why=event.error.message)
        self._stop_role(replica, NO_EPOCH, error=event.error)
        self._refuse_waiting(replica, ErrorCode.STORAGE_ERROR, event.error.message)
        replica.log = None
        replica.failed = True
        if replica.leader_epoch != NO_EPOCH:
            self._ctx.emit(ReportLogFailed(event.partition, replica.leader_epoch))

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
            self._maybe_begin(replica, now_ms)

    def _on_log_moved(self, event: ev.LogMoved, now_ms: int) -> None:
        replica = self._of(event.partition, event.identity)
        if replica is not None and replica.log is not None:
            replica.log.directory = event.directory

    def _on_front_released(self, event: ev.FrontReleased, now_ms: int) -> None:
        replica = self._of(event.partition, event.identity)
        role = replica.role if replica is not None else None
        if not isinstance(role, PartitionLeader) or role.leader_epoch != event.leader_epoch:
            return
        start = min(event.start_offset, role.log.high_watermark)
        if start > role.log.log_start_offset:
            role.log.trim(start)
            self._ctx.observe("log_trimmed", event.partition, log_start_offset=start, leader_epoch=role.leader_epoch)
            self._streams.front_moved(role)

    def log_starts(
        self, partition: TopicPartition, leader_epoch: LeaderEpoch
    ) -> tuple[Offset, Mapping[BrokerId, Offset]] | None:
        """Where the log starts here and at the followers that fetch from here; None when that leadership is over."""
        replica = self._replicas.get(partition)
        role = replica.role if replica is not None else None
        if not isinstance(role, PartitionLeader) or role.leader_epoch != leader_epoch:
            return None
        return role.log.log_start_offset, self._streams.log_starts(role)

    # -- clients -----------------------------------------------------------------------------------------------

    def _on_produce(self, event: ev.ProduceArrived, now_ms: int) -> None:
        try:
            leader = self._replica(event.partition).led_in(event.topic_id, "", event.current_leader_epoch)
        except TidemarkError as error:
            result = ProduceResult(Offset(-1), Offset(-1), error)
            self._ctx.emit(ReplyToProduce(event.request_id, event.partition, result))
            return
        leader.on_produce(event)

    def _on_produce_expired(self, event: ev.ProduceExpired, now_ms: int) -> None:
        replica = self._replicas.get(event.partition)
        if replica is not None and isinstance(replica.role, PartitionLeader):
            replica.role.on_produce_expired(event.request_id)

    # -- the ISR in ZooKeeper ----------------------------------------------------------------------------------

    def _asker(self, partition: TopicPartition) -> tuple[Replica, PartitionLeader] | None:
        """Who a late answer about the ISR is for: the leadership that asked, if it still is one."""
        self._ctx.isr_answers_due.discard(partition)
        replica = self._replicas.get(partition)
        if replica is None or not isinstance(replica.role, PartitionLeader):
            return None
        if not replica.role.awaits_isr_answer:
            replica.role.maybe_expand()
            return None
        return replica, replica.role

    def _on_isr_written(self, event: ev.IsrWritten, now_ms: int) -> None:
        asker = self._asker(event.partition)
        if asker is not None:
            asker[1].on_isr_written(event.version)

    def _on_isr_write_failed(self, event: ev.IsrWriteFailed, now_ms: int) -> None:
        asker = self._asker(event.partition)
        if asker is not None:
            asker[1].on_isr_write_failed(unknown=event.unknown)

    def _on_isr_read(self, event: ev.IsrRead, now_ms: int) -> None:
        asker = self._asker(event.partition)
        if asker is not None and not asker[1].on_isr_read(event.found):
            self._fence(asker[0], "isr_changed_by_another")
