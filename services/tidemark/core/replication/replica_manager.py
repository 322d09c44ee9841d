# SPDX-License-Identifier: Apache-2.0
"""Opens and closes the logs of one broker's replicas, and begins and ends their roles (rules E5, F2-F4, T5, C8)."""

from __future__ import annotations

from tidemark.core.messages import PartitionCommand
from tidemark.core.replication.context import UNREGISTERED, BrokerContext
from tidemark.core.replication.effects import CloseLog, LeadershipChanged, OpenLog, ReplyToControl, ReportLogFailed
from tidemark.core.replication.events import BrokerRegistered, SessionExpired
from tidemark.core.replication.follower.partition_follower import PartitionFollower
from tidemark.core.replication.leader.partition_leader import PartitionLeader
from tidemark.core.replication.replica import CommandReply, Replica, WaitingCommand, fenced_leader_epoch, not_leader
from tidemark.core.replication.replica_log import ReplicaLog
from tidemark.core.replication.stray_replicas import StrayReplicas
from tidemark.core.replication.streams import BrokerStreams
from tidemark.model import NO_EPOCH, NO_LEADER, ErrorCode, LeaderEpoch, ReplicaIdentity, TidemarkError, TopicPartition


class ReplicaManager:
    """The replicas of one broker.

    Attributes:
        replicas: by partition, every replica that a command has named since and that was not closed.
        streams: the streams to leaders and from followers; a stream may fence a leadership of this manager.
        strays: replicas on disk that no command has named yet.
        _fences: by partition and identity, the highest leader epoch in which this process may not lead, for replicas
            that are on disk only, or closed. Invariant: an entry never falls; a stray or deleted replica has no entry.
    """

    def __init__(self, ctx: BrokerContext) -> None:
        self._ctx = ctx
        self.replicas: dict[TopicPartition, Replica] = {}
        self.streams = BrokerStreams(ctx, self.replicas, self.fence)
        self.strays = StrayReplicas(ctx)
        self._fences: dict[tuple[TopicPartition, ReplicaIdentity], LeaderEpoch] = {}

    # -- registration ------------------------------------------------------------------------------------------

    def on_registered(self, event: BrokerRegistered, now_ms: int) -> None:
        """Fence every leader epoch known so far: a new registration never leads in it again (rule E5)."""
        self._stop_leading_everything()
        self._ctx.broker_epoch = event.broker_epoch
        for partition, (identity, leader_epoch) in event.known_leader_epochs.items():
            self.strays.found(partition, identity)
            self._raise_fence(partition, identity, leader_epoch)
        for replica in self.replicas.values():
            replica.fenced_epoch = max(replica.fenced_epoch, replica.leader_epoch)
        self.strays.forget_names()
        self.streams.reconnect()

    def on_session_expired(self, event: SessionExpired, now_ms: int) -> None:
        """End every leadership, and the streams from followers (rule F2)."""
        self._ctx.broker_epoch = UNREGISTERED
        self._stop_leading_everything()
        self.streams.disconnect_followers()

    def _stop_leading_everything(self) -> None:
        for replica in self.replicas.values():
            if isinstance(replica.role, PartitionLeader):
                self.fence(replica, "session_expired")
            elif replica.waiting is not None and replica.waiting.command.state.leader == self._ctx.broker_id:
                self.refuse_waiting(replica, ErrorCode.STALE_BROKER_EPOCH, "the session of the command has expired")

    def _raise_fence(self, partition: TopicPartition, identity: ReplicaIdentity, leader_epoch: LeaderEpoch) -> None:
        key = (partition, identity)
        self._fences[key] = max(self._fences.get(key, NO_EPOCH), leader_epoch)

    def fence(self, replica: Replica, why: str) -> None:
        """End a leadership; the replica leads again only in a higher leader epoch."""
        self._ctx.observe("fenced", replica.partition, why=why, leader_epoch=replica.leader_epoch)
        self.end_role(replica, NO_EPOCH)

    # -- logs --------------------------------------------------------------------------------------------------

    def open(self, partition: TopicPartition, identity: ReplicaIdentity, failed: Replica | None) -> Replica:
        """Open the log of a replica; `failed`: the same replica with the failed log, if any."""
        replica = Replica(partition, identity, self._fences.get((partition, identity), NO_EPOCH))
        if failed is not None:
            replica.fenced_epoch = max(replica.fenced_epoch, failed.fenced_epoch)
            replica.led = failed.led
            replica.leader, replica.leader_epoch = failed.leader, failed.leader_epoch
        self.strays.opened(partition)
        self.replicas[partition] = replica
        self._ctx.emit(OpenLog(partition, identity))
        return replica

    def close(self, replica: Replica, set_aside: str | None, newer_epoch: LeaderEpoch = NO_EPOCH) -> None:
        """Close the log of a replica; `set_aside`: see `CloseLog`."""
        self.refuse_waiting(replica, ErrorCode.NOT_A_REPLICA, "the replica was closed")
        self.end_role(replica, newer_epoch)
        self._raise_fence(replica.partition, replica.identity, max(replica.fenced_epoch, replica.leader_epoch))
        if set_aside is not None:
            self._fences.pop((replica.partition, replica.identity), None)
        del self.replicas[replica.partition]
        self._ctx.emit(CloseLog(replica.partition, replica.identity, set_aside))

    def fail(self, replica: Replica, error: TidemarkError) -> None:
        """Take a replica offline whose log has failed."""
        self._ctx.observe("log_failed", replica.partition, why=error.message)
        self.end_role(replica, NO_EPOCH, error=error)
        self.refuse_waiting(replica, ErrorCode.STORAGE_ERROR, error.message)
        replica.log = None
        replica.failed = True
        if replica.leader_epoch != NO_EPOCH:
            self._ctx.emit(ReportLogFailed(replica.partition, replica.identity, replica.leader_epoch))

    # -- roles -------------------------------------------------------------------------------------------------

    def maybe_begin_role(self, replica: Replica, now_ms: int) -> None:
        """Begin the role of the latest command, once the log is open and quiet."""
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
            report = ReportLogFailed(replica.partition, replica.identity, state.leader_epoch, damaged=True, cut=log.cut)
            self._ctx.emit(report)
        self._settle(waiting, error)
        self.streams.answer_early_requests(replica, now_ms)

    def _begin_leading(
        self, replica: Replica, log: ReplicaLog, command: PartitionCommand, now_ms: int
    ) -> TidemarkError | None:
        state = command.state
        if state.leader_epoch <= max(replica.fenced_epoch, log.epochs.latest):
            return fenced_leader_epoch(replica, state.leader_epoch)
        if log.damaged is not None and (replica.refused_lineage < 0 or state.lineage <= replica.refused_lineage):
            return TidemarkError(
                ErrorCode.REPLICA_DAMAGED,
                f"{replica.partition}: the log is damaged ({log.damaged}) and valid up to offset {log.log_end_offset}",
                {
                    "lineage": str(state.lineage),
                    "last_epoch": str(log.last_record_epoch),
                    "log_end_offset": str(log.log_end_offset),
                    "high_watermark": str(log.known_high_watermark),
                    **({"cut": "true"} if log.cut else {}),
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
        self.streams.follow(follower)

    def end_role(self, replica: Replica, newer_epoch: LeaderEpoch, error: TidemarkError | None = None) -> None:
        """End the role of a replica.

        Args:
            replica: a replica in any role, or in none.
            newer_epoch: of a follower, the newer leader epoch to report to its leader (rule F3); -1: none.
            error: error of a leader, the answer to its waiting producers; None: NOT_LEADER.
        """
        role, replica.role = replica.role, None
        if isinstance(role, PartitionLeader):
            replica.fenced_epoch = max(replica.fenced_epoch, role.leader_epoch)
            replica.led = role.newest
            role.stop(error or not_leader(replica.partition, NO_LEADER, replica.leader_epoch))
            self._ctx.emit(LeadershipChanged(replica.partition, leading=False))
        elif role is not None:
            if role.reconciled and replica.command is not None:
                replica.reconciled_lineage = replica.command.state.lineage
            role.leave(newer_epoch)
            self.streams.unfollow(role)

    # -- answers to commands -----------------------------------------------------------------------------------

    def refuse_waiting(self, replica: Replica, code: ErrorCode, sentence: str) -> None:
        """Refuse the command that waits for the log of a replica, if any."""
        waiting, replica.waiting = replica.waiting, None
        if waiting is not None:
            self._settle(waiting, TidemarkError(code, f"{replica.partition}: {sentence}"))

    def _settle(self, waiting: WaitingCommand, error: TidemarkError | None) -> None:
        reply = waiting.reply
        if reply is None:
            return
        if error is not None:
            reply.refused.append((waiting.command.partition, error))
        reply.open_partitions -= 1
        self.maybe_reply(reply)

    def maybe_reply(self, reply: CommandReply) -> None:
        """Answer a command once all its partitions have been settled."""
        if reply.complete:
            self._ctx.emit(ReplyToControl(reply.request_id, None, tuple(reply.refused)))
