# SPDX-License-Identifier: Apache-2.0
"""Carries out the controller's commands LeaderAndIsr and StopReplica, and fences stale ones (rules F4, C6, C8)."""

from __future__ import annotations

from collections.abc import Mapping

from tidemark.core.messages import LeaderAndIsrCommand, PartitionCommand, StopReplicaCommand
from tidemark.core.replication.context import UNREGISTERED, BrokerContext
from tidemark.core.replication.effects import ReplyToControl
from tidemark.core.replication.events import LeaderAndIsrArrived, StopReplicaArrived
from tidemark.core.replication.leader.partition_leader import PartitionLeader
from tidemark.core.replication.replica import (
    CommandReply,
    Replica,
    WaitingCommand,
    fenced_leader_epoch,
    later_leadership_known,
)
from tidemark.core.replication.replica_manager import ReplicaManager
from tidemark.model import NO_EPOCH, NO_LEADER, BrokerEpoch, ControllerEpoch, ErrorCode, TidemarkError, TopicPartition


class ControllerCommands:
    """The commands of the controller to one broker.

    Attributes:
        _controller_epoch: highest controller epoch of a command so far; never falls. Commands with a lower one are
            refused.
        _last_command: (controller epoch, sequence) of the last numbered command; never falls. A numbered command below
            this is late and is refused.
    """

    def __init__(self, ctx: BrokerContext, manager: ReplicaManager) -> None:
        self._ctx = ctx
        self._manager = manager
        self._controller_epoch = ControllerEpoch(-1)
        self._last_command = (ControllerEpoch(-1), 0)

    def on_leader_and_isr(self, event: LeaderAndIsrArrived, now_ms: int) -> None:
        """Apply roles, registrations and suspected brokers; close the replicas that a complete command omits."""
        command, manager = event.command, self._manager
        error = self._stale(command.controller_epoch, command.broker_epoch) or self._overtaken(command)
        if error is not None:
            self._ctx.emit(ReplyToControl(event.request_id, error))
            return
        self._ctx.suspect(command.suspected)
        changed = self._ctx.learn(command.brokers)
        reply = CommandReply(event.request_id)
        for one in command.partitions:
            configs = command.topic_configs.get(one.partition.topic, {})
            self._on_partition(one, reply, configs, now_ms)
        manager.streams.registrations_changed(changed)
        for partition in manager.strays.take(command, manager.replicas):
            manager.close(manager.replicas[partition], "stray")
        reply.closed = True
        manager.maybe_reply(reply)

    def on_stop_replica(self, event: StopReplicaArrived, now_ms: int) -> None:
        """Close replicas, and delete those that the command marks for deletion."""
        command, manager = event.command, self._manager
        error = self._stale(command.controller_epoch, command.broker_epoch) or self._overtaken(command)
        refused: list[tuple[TopicPartition, TidemarkError]] = []
        for one in command.replicas if error is None else ():
            replica = manager.replicas.get(one.partition)
            if replica is None:
                if one.delete:
                    manager.strays.deleted(one.partition, one.identity)
            elif replica.identity != one.identity:
                sentence = f"{one.partition} has another topic id or incarnation here"
                refused.append((one.partition, TidemarkError(ErrorCode.UNKNOWN_TOPIC_ID, sentence)))
            elif one.leader_epoch != NO_EPOCH and one.leader_epoch < replica.leader_epoch:
                refused.append((one.partition, fenced_leader_epoch(replica, one.leader_epoch)))
            else:
                manager.close(replica, "delete" if one.delete else None, newer_epoch=one.leader_epoch)
        self._ctx.emit(ReplyToControl(event.request_id, error, tuple(refused)))

    def _stale(self, controller_epoch: ControllerEpoch, broker_epoch: BrokerEpoch) -> TidemarkError | None:
        """The refusal of a stale command as a whole (rule F4)."""
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
        """Refuse a command that a later command has overtaken (rule F4).

        A late command would restore an old set of suspected brokers, restart stopped replicas, and stop new replicas.
        """
        number = (command.controller_epoch, command.sequence)
        if command.sequence and number < self._last_command:
            sentence = f"command {number} comes after {self._last_command}"
            return TidemarkError(ErrorCode.REQUEST_TIMED_OUT, sentence)
        self._last_command = number
        return None

    def _on_partition(
        self, command: PartitionCommand, reply: CommandReply, configs: Mapping[str, str], now_ms: int
    ) -> None:
        partition, state, manager = command.partition, command.state, self._manager
        replica = manager.replicas.get(partition)
        if replica is not None and replica.identity != command.identity:
            manager.close(replica, "stray")
            replica = None
        if replica is None or (replica.failed and replica.waiting is None):
            replica = manager.open(partition, command.identity, replica)
        another = state.leader_epoch == replica.leader_epoch and replica.leader not in (NO_LEADER, state.leader)
        if state.leader_epoch < replica.leader_epoch or another:  # one epoch has one leader
            reply.refused.append((partition, later_leadership_known(replica, state.leader_epoch)))
            return
        if state.leader_epoch == replica.leader_epoch and self._repeats(replica, command):
            replica.take_settings(configs)
            return
        if state.leader_epoch > replica.leader_epoch:
            manager.end_role(replica, state.leader_epoch)
        manager.refuse_waiting(replica, ErrorCode.FENCED_LEADER_EPOCH, "a newer command replaced this one")
        replica.leader = state.leader
        replica.leader_epoch = state.leader_epoch
        replica.assigned = command.assigned_replicas
        replica.command = command
        leads = state.leader == self._ctx.broker_id
        replica.waiting = WaitingCommand(command, reply if leads else None, configs)
        reply.open_partitions += leads
        manager.maybe_begin_role(replica, now_ms)

    def _repeats(self, replica: Replica, command: PartitionCommand) -> bool:
        """Apply a command in the present leader epoch; True when no further step is needed (rule F4)."""
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
