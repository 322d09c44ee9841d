# SPDX-License-Identifier: Apache-2.0
"""The leader of one partition: appends, replicates, commits and keeps the ISR (rules R1-R9, E1, E6, P1-P4, X1, X2)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

from tidemark.core import isr_change_reasons
from tidemark.core.messages import FetchPosition, PartitionCommand, Report
from tidemark.core.replication.context import LONG_AGO_MS, BrokerContext
from tidemark.core.replication.effects import (
    NoteAppend,
    ProduceResult,
    ReadIsr,
    ReplyToProduce,
    ReportIsrChange,
    ResignLeadership,
    WriteIsr,
)
from tidemark.core.replication.events import MarkerArrived, ProduceArrived
from tidemark.core.replication.leader import isr as isr_rules
from tidemark.core.replication.leader.adding_replicas import AddingReplicas
from tidemark.core.replication.leader.append_backlog import AppendBacklog
from tidemark.core.replication.leader.follower_progress import FollowerProgress
from tidemark.core.replication.leader.follower_session import FollowerSession, PartitionSender
from tidemark.core.replication.leader.isr import Committed, IsrState, PendingExpand
from tidemark.core.replication.leader.produce_validation import (
    ACKS_ALL,
    check_marker_request,
    check_request,
    check_sequences,
)
from tidemark.core.replication.replica_log import ReplicaLog
from tidemark.model import (
    BrokerId,
    ErrorCode,
    IsrEntry,
    IsrReasons,
    LeaderAndIsr,
    LeaderEpoch,
    Offset,
    TidemarkError,
    VersionedState,
)
from tidemark.record.envelope import Batch

_EXPAND_PAUSE_MS: Final = 500
"""Pause after a refused expansion; a broker whose registration was deleted registers again within seconds."""


class _Waiting(NamedTuple):
    """A produce request without an answer; its records have the offsets `base_offset` to `end_offset` (exclusive)."""

    acks: int
    base_offset: Offset
    end_offset: Offset
    append_time_us: int = -1


class PartitionLeader:
    """One leadership, from the beginning to the end of its leader epoch.

    Invariant: the high watermark passes an offset only after each member acknowledged the leader epoch and wrote (with
    group-commit: flushed) the records below. Members are in the ISR or in an ISR change in flight.

    Attributes:
        epoch_start_offset: first offset of this leader epoch. Invariant: exactly the records at or above this offset
            have this leader epoch.
        assigned: assigned replicas as of the last command, preferred leader first.
        began_ms: start time of the leadership.
        followers: by broker, progress of every follower that has fetched in this epoch or is in the ISR.
            Invariant: contains all of `_holding`; a broker that is neither assigned nor in `_holding` is dropped.
        _isr: the ISR as confirmed, with at most one change in flight. Invariant: this broker is always a member.
        _reasons: reasons of the change in flight, for logs; "" if none is in flight.
        _stated: version and reasons of the controller's last change, as in `PartitionCommand.isr_reasons`.
        _newer: state of a command that arrived while a change was in flight, else None; `_settle` adopts it.
        _attached: followers whose streams carry this partition. Invariant: exactly the followers with a `sender`.
        _holding: members other than this broker whose offsets bound the high watermark: the confirmed ISR, the
            proposed one, and that of `_newer` (rule R3). Changes only in `_isr_moved`.
        _outside: assigned replicas that are not in the confirmed ISR. Changes only in `_isr_moved`.
        _waiting: by request id, the produce requests without an answer.
        _by_end: heap of (end offset, request id) of acks=all requests; may name requests that were answered since.
        _appending: for each append in flight, in order, the request to answer (acks=1) or to note (acks=all) after the
            append, None without one.
            Invariant: as long as the appends in flight of `log`.
        check_at_ms: see `ChecksLag`: when an idle partition, whose attached followers may not join, removes a member.
        _resigned_ms: time of the last `ResignLeadership`.
        _expand_at_ms: no expansion before that time, after one that ZooKeeper refused.
        _backlog: sizes of the appends; None before the first append.
        _adding: the replicas that a reassignment adds.
    """

    def __init__(self, ctx: BrokerContext, log: ReplicaLog, command: PartitionCommand, now_ms: int) -> None:
        assert log.quiet, "a leadership begins only without log operations in flight"
        self._ctx = ctx
        self.log = log
        self.leader_epoch: LeaderEpoch = command.state.leader_epoch
        self.epoch_start_offset = log.next_offset
        self.assigned = command.assigned_replicas
        self._isr: IsrState = Committed(VersionedState(command.state, command.partition_epoch))
        self._reasons = ""
        self._stated = (command.partition_epoch, command.isr_reasons)
        self.began_ms = now_ms
        self._newer: VersionedState | None = None
        self.followers: dict[BrokerId, FollowerProgress] = {}
        self._attached: list[FollowerProgress] = []
        self._holding: tuple[FollowerProgress, ...] = ()
        self._outside: frozenset[BrokerId] = frozenset()
        self._waiting: dict[int, _Waiting] = {}
        self._by_end: list[tuple[Offset, int]] = []
        self._appending: deque[int | None] = deque()
        self.check_at_ms = 0
        self._resigned_ms = self._expand_at_ms = LONG_AGO_MS
        self._backlog: AppendBacklog | None = None
        self._adding = AddingReplicas(ctx, command)
        for broker_id in command.state.isr_ids:
            if broker_id != ctx.broker_id:
                self._progress_of(broker_id, now_ms)
        if log.epochs.assign(self.leader_epoch, log.next_offset):
            log.save_epochs()
        if command.isr_reasons:
            self._observe_isr_change(command.isr_reasons)
        self._isr_moved()

    # -- state -------------------------------------------------------------------------------------------------

    @property
    def state(self) -> LeaderAndIsr:
        """Content of the partition's node, as confirmed last."""
        return self._isr.confirmed.state

    @property
    def partition_epoch(self) -> int:
        """Version of the partition's node, as confirmed last; never falls."""
        return self._isr.confirmed.version

    @property
    def isr(self) -> IsrState:
        """The confirmed ISR with the change in flight."""
        return self._isr

    @property
    def newest(self) -> VersionedState:
        """The newest content of the node, with the members only that certainly hold every committed record."""
        return isr_rules.newest(self._isr, self._newer)

    @property
    def may_state_high_watermark(self) -> bool:
        """Whether the high watermark has reached the start of this epoch, as rule E6 requires."""
        return self.log.high_watermark >= self.epoch_start_offset

    @property
    def last_stable_offset(self) -> Offset | None:
        """The last stable offset; None while the high watermark may not be stated (rules E6, X3).

        Then every marker that the log was opened with is below the high watermark.
        """
        return self.log.last_stable_offset if self.may_state_high_watermark else None

    @property
    def in_sync_offset(self) -> Offset:
        """All committed offsets are below this offset (rule R8).

        The high watermark of a new leader may still be lower than its predecessor's.
        """
        return max(self.log.high_watermark, self.epoch_start_offset)

    @property
    def awaits_isr_answer(self) -> bool:
        """Whether a change of this leadership is in flight; an earlier leadership's change does not count."""
        return not isinstance(self._isr, Committed)

    @property
    def bytes_in_per_s(self) -> float:
        """Bytes per second that producers append."""
        return self._backlog.bytes_per_s if self._backlog is not None else 0.0

    @property
    def attached(self) -> Sequence[FollowerProgress]:
        """Followers whose streams carry this partition."""
        return self._attached

    def replicates_to(self, broker_id: BrokerId) -> bool:
        """Whether a broker may fetch: it is assigned, or the high watermark waits for its replica."""
        return broker_id in self.assigned or any(progress.broker_id == broker_id for progress in self._holding)

    def holds_epoch_since(self, since_ms: int) -> bool:
        """Whether no other leader was elected before `since_ms`, without asking ZooKeeper (rule F2).

        Every broker that a clean election could have chosen was still in this leader epoch after that time.
        """
        enough = max(2, self.state.min_isr)
        return len(isr_rules.minimal_isr(self._isr)) >= enough and all(
            progress.confirmed_since(since_ms) for progress in self._holding
        )

    # -- produce -----------------------------------------------------------------------------------------------

    def on_produce(self, event: ProduceArrived) -> None:
        """Check, append, and answer at the time that the request's acks name."""
        try:
            self._check(event)
            fresh, duplicate = check_sequences(
                self.log, self.epoch_start_offset, event.batches, self._ctx.now_ms, self._error
            )
        except TidemarkError as error:
            self._reply(event.request_id, Offset(-1), error)
            return
        if not fresh:  # every batch is in the log already (rule P2)
            assert duplicate is not None, "a request has batches"
            self._await(event.request_id, *duplicate)
            self._answer_committed()
            return
        base, time_us = self._append(fresh), fresh[0].envelope.append_time_us
        end = self.log.next_offset
        if duplicate is not None:
            base, _, time_us = duplicate
        if event.acks == 0:
            self._appending.append(None)
            self._reply(event.request_id, base, None, time_us)
        elif event.acks == ACKS_ALL:
            self._appending.append(event.request_id if event.notes_append else None)
            self._await(event.request_id, base, end, time_us)
        else:
            self._waiting[event.request_id] = _Waiting(event.acks, base, end, time_us)
            self._appending.append(event.request_id)

    def on_marker(self, event: MarkerArrived) -> None:
        """Append a marker, unless repeated, and answer when the high watermark has passed the marker (X2)."""
        in_sync = len(isr_rules.minimal_isr(self._isr))
        full = self.log.is_full(self._ctx.now_ms)
        try:
            marker = check_marker_request(event, self.state, in_sync=in_sync, full=full, refuse=self._error)
            fresh = self.log.producers.check_marker(event.marker.envelope, marker)
        except TidemarkError as error:
            self._reply(event.request_id, Offset(-1), error)
            return
        if not fresh:  # no new marker: every marker in the log is below this end
            self._await(event.request_id, Offset(-1), self.log.next_offset)
            self._answer_committed()
            return
        base = self._append((event.marker,))
        self._appending.append(None)
        self._await(event.request_id, base, self.log.next_offset)

    def _append(self, batches: tuple[Batch, ...]) -> Offset:
        """Append batches; returns the offset of the first record. The caller adds to `_appending`."""
        base = self.log.append_as_leader(batches, self.leader_epoch)
        self._backlog = self._backlog or AppendBacklog(self._ctx)
        self._backlog.add(batches, self.log.next_offset)
        self._ctx.watch(self.log.partition, self)
        return base

    def _await(self, request_id: int, base_offset: Offset, end_offset: Offset, append_time_us: int = -1) -> None:
        """Answer an acks=all request when the high watermark reaches `end_offset`."""
        self._waiting[request_id] = _Waiting(ACKS_ALL, base_offset, end_offset, append_time_us)
        heappush(self._by_end, (end_offset, request_id))

    def _check(self, event: ProduceArrived) -> None:
        if event.request_id in self._waiting:
            raise self._error(ErrorCode.INVALID_REQUEST, "is in the request twice")
        in_sync = len(isr_rules.minimal_isr(self._isr)) if event.acks == ACKS_ALL else 0
        full = self.log.is_full(self._ctx.now_ms)
        check_request(event, self.state, in_sync=in_sync, full=full, refuse=self._error)

    def on_produce_expired(self, request_id: int) -> None:
        """Answer a request whose client waits no longer; the records stay in the log."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None:
            self._reply(
                request_id,
                waiting.base_offset,
                self._error(ErrorCode.REQUEST_TIMED_OUT, "did not replicate the records within the client's timeout"),
            )

    def on_appended(self, log_end_offset: Offset) -> None:
        """The oldest append is in the page cache: answer acks=1, and send the records to the followers."""
        for progress in self._attached:
            progress.leader_end_moves(self.log.log_end_offset)
        self.log.appended(log_end_offset)
        if self._backlog is not None:
            self._backlog.appended(log_end_offset)
        request_id = self._appending.popleft()
        waiting = None if request_id is None else self._waiting.get(request_id)
        if request_id is not None and waiting is not None:
            if waiting.acks == ACKS_ALL:
                self._ctx.effects.append(NoteAppend(request_id))
            else:
                del self._waiting[request_id]
                self._reply(request_id, waiting.base_offset, None, waiting.append_time_us)
        for progress in self._attached:
            assert progress.sender is not None
            progress.sender.send_more()
        self.maybe_advance_high_watermark()

    def on_full(self, error: TidemarkError) -> None:
        """The disk is full: refuse the requests whose records are not in the log.

        No client or follower has seen these records, so producers may retry. The leader also resigns, since another
        in-sync replica may have space.
        """
        self._appending.clear()
        if self._backlog is not None:
            self._backlog.drop_in_flight()
        end = self.log.log_end_offset
        for request_id in [number for number, waiting in self._waiting.items() if waiting.end_offset > end]:
            del self._waiting[request_id]
            self._reply(request_id, Offset(-1), error)
        if self._holding:
            self._resign(self._ctx.now_ms)

    def on_damaged(self, now_ms: int, *, repairable: bool) -> None:
        """A stored batch is damaged here: resign, since another replica may have it (rule T6).

        Below `min_isr` an eligible replica can lead, too, if the batch cannot be repaired here. Otherwise a damaged
        batch, which no follower can pass, would keep every follower out of the ISR.
        """
        if self._holding or (self.state.elr and not repairable):
            self._resign(now_ms, "leader_log_damaged")

    # -- followers ---------------------------------------------------------------------------------------------

    def attach(self, session: FollowerSession, position: FetchPosition, now_ms: int) -> None:
        """Send the partition to a follower from a checked position on."""
        self.detach(session.follower)
        progress = self._progress_of(session.follower, LONG_AGO_MS)
        progress.acknowledged = True
        progress.sender = session.start(self, position)
        self.check_at_ms = 0
        self._attached.append(progress)
        if session.follower in self._outside:
            self._ctx.watch(self.log.partition, self)
        self._adding.place(progress.sender, waited_for=progress in self._holding)
        progress.flushed(position.flushed_offset, position.fetch_offset, now_ms)
        self._follower_moved(progress, position.fetch_offset, now_ms)
        session.send_more(progress.sender)

    def detach(self, follower: BrokerId) -> None:
        """Stop sending the partition to a follower, and note how far the follower was caught up."""
        progress = self.followers.get(follower)
        if progress is None or progress.sender is None:
            return
        progress.caught_up_ms = progress.last_caught_up_ms(self.log.log_end_offset)
        progress.sender.session.stop(self.log.partition)
        progress.sender = None
        self._attached.remove(progress)
        self._ctx.watch(self.log.partition, self)

    def on_report(self, session: FollowerSession, report: Report, now_ms: int) -> None:
        """Note the log end that a follower reported."""
        progress = self.followers.get(session.follower)
        if progress is None or progress.sender is None or progress.sender.session is not session:
            return
        if report.log_end_offset > self.log.log_end_offset:
            self._ctx.observe("report_refused", self.log.partition, follower=session.follower)
            return
        progress.flushed(report.flushed_offset, report.log_end_offset, now_ms)
        self._follower_moved(progress, report.log_end_offset, now_ms)

    def _follower_moved(self, progress: FollowerProgress, log_end_offset: Offset, now_ms: int) -> None:
        progress.reported(log_end_offset, self.log.log_end_offset, now_ms)
        self._is_far_behind(progress)
        if progress.broker_id in self._outside:
            self.maybe_expand()
        self.maybe_advance_high_watermark()

    def _progress_of(self, broker_id: BrokerId, caught_up_ms: int) -> FollowerProgress:
        progress = self.followers.get(broker_id)
        if progress is None:
            progress = self.followers[broker_id] = FollowerProgress(broker_id, caught_up_ms)
        return progress

    # -- high watermark ----------------------------------------------------------------------------------------

    def maybe_advance_high_watermark(self) -> None:
        """Raise the high watermark to the lowest log end, or flushed offset, of the maximal ISR (rules R2-R4).

        The high watermark stays while the confirmed ISR has fewer than `min_isr` members.
        """
        log = self.log
        end, flushes_count = log.safe_offset, log.group_commit
        if end <= log.high_watermark or not isr_rules.confirmed_enough(self._isr):
            return
        for progress in self._holding:
            if not progress.acknowledged:
                return
            if progress.log_end_offset < end:
                end = progress.log_end_offset
            if flushes_count and progress.flushed_offset < end:
                end = progress.flushed_offset
        if log.raise_high_watermark(end):
            for progress in self._attached:
                assert progress.sender is not None
                progress.sender.session.note_high_watermark(progress.sender)
            self._answer_committed()

    def _answer_committed(self) -> None:
        """Answer acks=all up to the high watermark; with fewer than `min_isr` in sync, by an error (rule R4)."""
        heap, high_watermark = self._by_end, self.log.high_watermark
        if not heap or heap[0][0] > high_watermark:
            return
        in_sync = len(isr_rules.minimal_isr(self._isr))
        while heap and heap[0][0] <= high_watermark:
            request_id = heappop(heap)[1]
            waiting = self._waiting.pop(request_id, None)
            if waiting is None:
                continue
            error = None
            if in_sync < self.state.min_isr:
                error = self._error(
                    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
                    f"has appended the records, but has {in_sync} replicas in sync, fewer than {self.state.min_isr}",
                )
            self._reply(request_id, waiting.base_offset, error, waiting.append_time_us)

    # -- ISR ---------------------------------------------------------------------------------------------------

    def check_lag(self, now_ms: int) -> bool:
        """Shrink the ISR by lagging members, or expand it; False when no further check is needed (rules R7, R8).

        No watch is needed for a leader without followers, an absent follower, or an ISR change in flight: `attach` and
        `_settle` watch again. Checks of thousands of partitions would use all of the event loop's time.
        """
        is_idle = self.log.is_idle and not any(progress.is_read_for for progress in self._attached)
        if is_idle and (self.awaits_isr_answer or not (self._holding or self._attached)):
            return False
        end = self.log.log_end_offset
        lag_max_ms = self._ctx.config.replica_lag_time_max_ms
        in_doubt = not is_idle or any(progress.broker_id in self._outside for progress in self._attached)
        kept_out = self._outside & self._ctx.suspected
        can_pause = is_idle and not self.log.group_commit and all(one.broker_id in kept_out for one in self._attached)
        pause_ms = lag_max_ms if can_pause else 0
        late, leaving = self._moved_away(), isr_rules.expected_to_leave(self.state, self._ctx.suspected)
        for progress in self._holding:
            if progress.broker_id in late:
                continue
            patience_ms = isr_rules.patience_ms(lag_max_ms, expected_to_leave=progress.broker_id in leaving)
            left_ms = patience_ms - (now_ms - progress.last_caught_up_ms(end))
            if self._is_far_behind(progress) or left_ms < 0 or self._flush_hangs(progress, now_ms):
                late.append(progress.broker_id)
            pause_ms = min(pause_ms, left_ms) if progress.far_since_ms is None else 0
            in_doubt |= progress.sender is None or progress.log_end_offset < end
            in_doubt |= progress.flush_due_since_ms is not None and self.log.group_commit
        if self._holding and self._my_disk_lags(now_ms):
            self._resign(now_ms)
        elif late and self._may_propose():
            self._shrink(late, now_ms)
        elif self._outside:
            self.maybe_expand()
        self.check_at_ms = 0 if late else now_ms + pause_ms
        return in_doubt or bool(late)

    def _is_far_behind(self, progress: FollowerProgress) -> bool:
        return self._backlog is not None and self._backlog.is_too_far_behind(progress)

    def _flush_hangs(self, progress: FollowerProgress, now_ms: int) -> bool:
        """Whether a member has had data to flush for too long, which would hold the high watermark forever (R3, R7)."""
        since_ms = progress.flush_due_since_ms if self.log.group_commit else None
        lag_max_ms = self._ctx.config.replica_lag_time_max_ms
        return since_ms is not None and now_ms - max(since_ms, self.log.flushes_count_since_ms) > lag_max_ms

    def _my_disk_lags(self, now_ms: int) -> bool:
        """Whether an append, a flush or a read for a follower has taken half of the lag time (rule R7)."""
        since_ms = [self.log.appending_since_ms, self.log.flush_due_since_ms]
        since_ms += [progress.sender.reading_since_ms for progress in self._attached if progress.sender is not None]
        longest_ms = max((now_ms - since for since in since_ms if since is not None), default=0)
        return longest_ms * 2 >= self._ctx.config.replica_lag_time_max_ms

    def _resign(self, now_ms: int, why: str = "leader_disk_lags") -> None:
        """Resign instead of evicting followers that lag because of this broker's disk."""
        if now_ms - self._resigned_ms < self._ctx.config.replica_lag_time_max_ms:
            return
        self._resigned_ms = now_ms
        self._ctx.observe(why, self.log.partition, leader_epoch=self.leader_epoch)
        self._ctx.emit(ResignLeadership(self.log.partition, self.log.identity, self.leader_epoch))

    def _may_propose(self) -> bool:
        return isinstance(self._isr, Committed) and self.log.partition not in self._ctx.isr_answers_due

    def _shrink(self, late: list[BrokerId], now_ms: int) -> None:
        leaving, log = [progress for progress in self._holding if progress.broker_id in late], self.log
        lag_max_ms = self._ctx.config.replica_lag_time_max_ms
        self._reasons = isr_change_reasons.reasons_text(
            (one.broker_id, one.leave_reason(self.assigned, log.log_end_offset, now_ms, lag_max_ms)) for one in leaving
        )
        self._ctx.observe(
            "isr_shrinking",
            log.partition,
            leaving=isr_change_reasons.ids(late),
            reasons=self._reasons,
            log_end_offset=log.log_end_offset,
            leader_epoch=self.leader_epoch,
            **{f"late_{one.broker_id}_ms": one.late_ms(log.log_end_offset, now_ms) for one in leaving},
        )
        change = isr_rules.shrink(self._isr.confirmed, late, unassigned=self._unassigned())
        self._write(change, change.proposed, ())

    def maybe_expand(self) -> None:
        """Expand the ISR by every follower that may join now (rule R8)."""
        if not self._outside or not self._may_propose() or self._ctx.now_ms < self._expand_at_ms:
            return
        joining = [
            IsrEntry(progress.broker_id, progress.sender.session.broker_epoch)
            for progress in self._attached
            if progress.sender is not None
            and progress.broker_id in self._outside
            and self._may_join(progress, progress.sender)
        ]
        if joining:
            change = isr_rules.expand(self._isr.confirmed, joining)
            self._reasons = isr_change_reasons.join_reasons(joining, self._adding.adding)
            self._write(change, change.proposed, joining)

    def _may_join(self, progress: FollowerProgress, sender: PartitionSender) -> bool:
        """Whether a follower may join; a silent follower may not, as the next lag check would evict it (R7, R8)."""
        known = self._ctx.registrations.get(progress.broker_id)
        silent_ms = self._ctx.now_ms - progress.last_caught_up_ms(self.log.log_end_offset)
        return (
            progress.acknowledged
            and silent_ms <= self._ctx.config.replica_lag_time_max_ms
            and progress.log_end_offset >= self.in_sync_offset
            and progress.far_since_ms is None
            and self._is_flushed(progress)
            and progress.broker_id not in self._ctx.suspected
            and (known is None or known.broker_epoch <= sender.session.broker_epoch)
        )

    def _is_flushed(self, progress: FollowerProgress) -> bool:
        """Whether a follower has flushed all committed records, if flushes count (rule R3)."""
        if not self.log.group_commit:
            return True
        return progress.flushed_offset >= self.in_sync_offset and not self._flush_hangs(progress, self._ctx.now_ms)

    def _write(self, change: IsrState, proposed: LeaderAndIsr, joining: tuple[IsrEntry, ...] | list[IsrEntry]) -> None:
        self._isr = change
        self._ctx.isr_answers_due.add(self.log.partition)
        self._isr_moved()
        self._ctx.emit(
            WriteIsr(
                self.log.partition,
                self.log.identity,
                proposed,
                change.confirmed.version,
                {entry.broker_id: entry.broker_epoch for entry in joining},
            )
        )

    def on_isr_written(self, version: int) -> None:
        """ZooKeeper confirmed the change in flight."""
        change = self._isr
        assert not isinstance(change, Committed), "only a change in flight is answered"
        joined = isinstance(change, PendingExpand)
        self._ctx.observe(
            "isr_expanded" if joined else "isr_shrunk",
            self.log.partition,
            isr=isr_change_reasons.ids(change.proposed.isr_ids),
            elr=isr_change_reasons.ids(entry.broker_id for entry in change.proposed.elr),
            before=isr_change_reasons.ids(change.confirmed.state.isr_ids),
            reasons=self._reasons,
            partition_epoch=version,
        )
        self._ctx.emit(ReportIsrChange(self.log.partition))
        self._settle(VersionedState(change.proposed, version))

    def on_isr_write_failed(self, *, unknown: bool) -> None:
        """The write failed, or its outcome is unknown: the change stays in flight until the node is read (R9)."""
        assert not isinstance(self._isr, Committed), "only a change in flight is answered"
        self._ctx.observe("isr_write_failed", self.log.partition, unknown=int(unknown))
        if isinstance(self._isr, PendingExpand) and not unknown:  # a joining broker may not be registered
            self._expand_at_ms = self._ctx.now_ms + _EXPAND_PAUSE_MS
        self.read_isr()

    def read_isr(self) -> None:
        """Ask for the content of the partition's node."""
        self._ctx.isr_answers_due.add(self.log.partition)
        self._ctx.emit(ReadIsr(self.log.partition, self.log.identity, self.leader_epoch))

    def on_isr_read(self, found: VersionedState | None) -> bool:
        """Adopt the content of the node; False when it shows that this leadership is over (rule R9)."""
        if (
            found is None
            or found.state.leader != self._ctx.broker_id
            or found.state.leader_epoch != self.leader_epoch
            or found.version < self.partition_epoch
        ):
            return False
        changed = found.state.isr != self.state.isr
        self._settle(found)
        if changed:
            self._ctx.emit(ReportIsrChange(self.log.partition))
        return True

    def on_command(self, command: PartitionCommand) -> None:
        """Apply a command with the same leader and leader epoch."""
        self.assigned = command.assigned_replicas
        self._adding.on_command(command)
        self._stated = (command.partition_epoch, command.isr_reasons)
        stated = VersionedState(command.state, command.partition_epoch)
        if isinstance(self._isr, Committed):
            self._settle(stated)
        elif stated.version > self.partition_epoch and (self._newer is None or stated.version > self._newer.version):
            self._newer = stated
            self._isr_moved()
        else:
            self._isr_moved()

    def _settle(self, confirmed: VersionedState) -> None:
        """No change is in flight any more: adopt the newest known state."""
        newer, self._newer = self._newer, None
        for candidate in (self._isr.confirmed, newer):
            if candidate is not None and candidate.version > confirmed.version:
                confirmed = candidate
        before, after = self._isr.confirmed.state.isr_ids, confirmed.state.isr_ids
        own, self._reasons = self._reasons, ""
        self._isr = Committed(confirmed)
        if before != after:
            stated = self._stated[1] if self._stated[0] == confirmed.version else ()
            self._observe_isr_change(
                isr_change_reasons.of_change(before, after, isr_change_reasons.parsed(own), stated)
            )
        self._isr_moved()
        self.maybe_advance_high_watermark()
        moved_away = self._moved_away()
        if moved_away and self._may_propose():
            self._shrink(moved_away, self._ctx.now_ms)
        self.maybe_expand()

    def _observe_isr_change(self, reasons: IsrReasons) -> None:
        """The confirmed ISR has changed, by a write of this leader or of the controller."""
        self._ctx.observe(
            "isr_changed",
            self.log.partition,
            isr=isr_change_reasons.ids(self.state.isr_ids),
            reasons=isr_change_reasons.reasons_text(reasons),
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            incarnation=self.log.identity.incarnation,
        )

    def _unassigned(self) -> list[BrokerId]:
        """Members without an assigned replica: a reassignment removed it before the controller knew of the join."""
        return [progress.broker_id for progress in self._holding if progress.broker_id not in self.assigned]

    def _moved_away(self) -> list[BrokerId]:
        """Unassigned members that can leave without dropping below `min_isr`; the controller removes others (R4)."""
        gone = self._unassigned()
        return gone if not gone or len(self.state.isr) - len(gone) >= self.state.min_isr else []

    def _isr_moved(self) -> None:
        """Recompute `_holding` and `_outside`, and drop followers that are in neither the ISR nor the assignment."""
        members, confirmed = isr_rules.maximal_isr(self._isr), self._isr.confirmed.state.isr_ids
        if self._newer is not None:
            members = members.union(self._newer.state.isr_ids)
        others, self._outside = isr_rules.others_and_outside(self._ctx.broker_id, members, confirmed, self.assigned)
        self._holding = tuple([self.followers.get(one) or self._progress_of(one, LONG_AGO_MS) for one in others])
        if self._holding or self._attached:
            self._ctx.watch(self.log.partition, self)
        for broker_id in [one for one in self.followers if one not in others and one not in self.assigned]:
            self._drop(broker_id)
        for progress in self._attached:
            assert progress.sender is not None
            self._adding.place(progress.sender, waited_for=progress in self._holding)

    def _drop(self, broker_id: BrokerId) -> None:
        """Discard the state of a follower whose replica was removed."""
        sender = self.followers[broker_id].sender
        self.detach(broker_id)
        del self.followers[broker_id]
        if sender is not None:
            sender.session.refuse_unassigned(self)

    # -- the end -----------------------------------------------------------------------------------------------

    def stop(self, error: TidemarkError) -> None:
        """End the leadership: answer all waiting requests with `error`, and stop sending to followers."""
        self._ctx.watched.pop(self.log.partition, None)
        self._adding.end()
        for progress in tuple(self._attached):
            assert progress.sender is not None
            progress.sender.session.stop(self.log.partition)
            progress.sender = None
        self._attached.clear()
        for request_id, waiting in self._waiting.items():
            self._reply(request_id, waiting.base_offset, error)
        self._waiting.clear()
        self._by_end.clear()

    def _reply(
        self, request_id: int, base_offset: Offset, error: TidemarkError | None, append_time_us: int = -1
    ) -> None:
        result = ProduceResult(base_offset, self.log.log_start_offset, error, append_time_us)
        self._ctx.effects.append(ReplyToProduce(request_id, self.log.partition, result))

    def _error(self, code: ErrorCode, sentence: str) -> TidemarkError:
        details = {"leader": str(self._ctx.broker_id), "leader_epoch": str(self.leader_epoch)}
        return TidemarkError(code, f"{self.log.partition} {sentence}", details)
