# SPDX-License-Identifier: Apache-2.0
"""Brokers' answers to LeaderAndIsr, StopReplica and UpdateMetadata (rules C1, F4)."""

from __future__ import annotations

from tidemark.core.controller import events as ev
from tidemark.core.controller.context import ControllerContext
from tidemark.core.controller.effects import Resign
from tidemark.core.controller.partition_count import PartitionCountChanges
from tidemark.core.controller.pending_commands import PendingCommands
from tidemark.core.controller.reassignments import Reassignments
from tidemark.core.controller.topic_deletion import TopicDeletions
from tidemark.core.reassignment.log_dir_placement import LOG_DIR_PENDING, LOG_DIR_REFUSALS
from tidemark.model import BrokerId, ErrorCode, IsrEntry, TidemarkError, TopicPartition


class CommandAnswers:
    """Updates `PendingCommands`, and notifies the parts that wait for an acknowledgement."""

    def __init__(
        self,
        ctx: ControllerContext,
        deletions: TopicDeletions,
        reassignments: Reassignments,
        partition_count: PartitionCountChanges,
    ) -> None:
        self._ctx = ctx
        self._deletions = deletions
        self._reassignments = reassignments
        self._partition_count = partition_count

    def control_answered(self, event: ev.ControlAnswered, now_ms: int) -> None:
        """The answer to the command with this request id; an answer to an older one is ignored."""
        pending = self._ctx.commands.get(event.broker)
        if pending is None:
            return
        if event.error is not None and event.error.code is ErrorCode.STALE_CONTROLLER_EPOCH:
            self._ctx.effects.append(Resign(f"broker {event.broker} knows a newer controller: {event.error.message}"))
        if event.request_id == pending.leader_and_isr.request_id:
            self._first_answer(event.broker)
            if event.error is not None:
                pending.leader_and_isr_failed(now_ms)
                return
            pending.leader_and_isr_succeeded()
            copies = [partition for partition, error in event.refused if error.code is LOG_DIR_PENDING]
            self._reassignments.log_dirs_answered(event.broker, pending.sent_partitions, copies, now_ms)
            self._reassignments.acknowledged(pending.sent_partitions)
            self._partition_count.acknowledged()
            for partition, error in event.refused:
                if error.code is not LOG_DIR_PENDING:
                    self._refused(event.broker, pending, partition, error, now_ms)
        elif event.request_id == pending.update_metadata.request_id:
            if event.error is not None:
                pending.metadata_failed(now_ms)
            else:
                pending.metadata_succeeded()
        elif event.request_id == pending.stop_replica.request_id:
            self._stops_answered(event, pending, now_ms)

    def _first_answer(self, broker: BrokerId) -> None:
        """Note the first answer of a broker, for which a refused leader may wait (rule Z4).

        An error counts, too, so that no election waits for retries.
        """
        if broker in self._ctx.unconfirmed:
            self._ctx.unconfirmed.remove(broker)
            self._ctx.dirty.update(one for one in self._ctx.on_broker[broker] if self._ctx.is_refused(one))

    def _stops_answered(self, event: ev.ControlAnswered, pending: PendingCommands, now_ms: int) -> None:
        if event.error is not None:
            pending.stop_replica.failed(now_ms)
            return
        pending.stop_replica.succeeded()
        for partition in pending.sent_stops:
            pending.stopping.pop(partition, None)
        self._deletions.stopped(event.broker, pending)
        self._reassignments.acknowledged(pending.sent_stops)

    def _refused(
        self, broker: BrokerId, pending: PendingCommands, partition: TopicPartition, error: TidemarkError, now_ms: int
    ) -> None:
        partition_state = self._ctx.partitions.get(partition)
        if partition_state is None or partition_state.state is None:
            return
        self._ctx.observe("command_refused", partition, broker=broker, code=str(error.code), why=error.message)
        if error.code is ErrorCode.REPLICA_DAMAGED:
            partition_state.damage_refused(broker, error)
            self._ctx.dirty.add(partition)
        elif error.code is ErrorCode.STORAGE_ERROR:
            partition_state.offline |= {IsrEntry(broker, pending.broker_epoch)}
            self._ctx.dirty.add(partition)
        elif error.code in LOG_DIR_REFUSALS:
            self._reassignments.log_dir_refused(broker, partition, error)
        elif error.code is ErrorCode.FENCED_LEADER_EPOCH and partition_state.found_older(error):
            self._ctx.states_read((), [partition])  # no decision until the node is read, and written again
        elif partition_state.state.leader != broker:
            return
        elif error.code is ErrorCode.FENCED_LEADER_EPOCH and partition_state.epoch_refused(error):
            self._ctx.dirty.add(partition)
        else:
            pending.partitions.add(partition)
            pending.leader_and_isr.failed(now_ms)
