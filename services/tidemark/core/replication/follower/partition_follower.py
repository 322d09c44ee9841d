# SPDX-License-Identifier: Apache-2.0
"""The follower of one partition: reconciles, fetches, appends, reports (rules R1, R5, R6, E2-E4, F3, L1).

    idle --connected--> asking --(E2: truncate, ask again)--> fetching --refused--> paused --tick--> asking or fetching

Reconciliation follows leader epochs, never the high watermark (KIP-101).
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from tidemark.core.messages import (
    Chunk,
    EpochEnd,
    EpochQuery,
    FetchPosition,
    PartitionCommand,
    Refusal,
    Report,
    StopFetch,
)
from tidemark.core.replication.context import BrokerContext
from tidemark.core.replication.follower.leader_link import LeaderLink
from tidemark.core.replication.replica_log import FULL_PAUSE_MS, ReplicaLog
from tidemark.model import NO_EPOCH, BrokerId, ErrorCode, LeaderEpoch, Offset

PAUSE_MS = 50
"""Pause after a refusal that a command of the controller will settle, or after a chunk that did not fit."""
UNASSIGNED_PAUSE_MS_MAX = 5_000
"""Longest pause after NOT_A_REPLICA; pauses double up to it. The leader may not know of a new assignment yet, or may
know of a removal before this broker."""


class Phase(Enum):
    """Phases of a follower between the start of following and fetching."""

    IDLE = "idle"  # no stream to the leader
    ASKING = "asking"  # an epoch query is in flight
    TRUNCATING = "truncating"  # the log is being truncated; then asking or fetching
    DRAINING = "draining"  # waits for appends in flight before it asks or fetches
    FETCHING = "fetching"
    PAUSED = "paused"  # retries at `_retry_at_ms`


class PartitionFollower:
    """One followership, from the beginning to the end of its leader epoch.

    Invariant: while fetching, chunks are appended in the order of their offsets, without a gap (rule L1).

    Attributes:
        phase: see `Phase`. Invariant: FETCHING only after reconciliation in this epoch.
        link: the link to the leader, None before the first connection.
        assigned: assigned replicas as of the last command.
        spares_high_watermark: the log was reconciled in this lineage before, so a truncation below the high watermark
            would be a mistake (rule E3). Invariant: never becomes False again.
        may_hold_holes: compaction may have left holes in the log (rule L1).
        ask_again: the truncation in progress is followed by another epoch query.
        _adding: a reassignment adds this replica.
        _same_lineage: this replica reconciled in this lineage before this epoch.
        _reconciled: the log is in line with the leader's; False again only after the leader answered LOG_DIVERGED.
        _accepted: the leader has sent a chunk for the present fetch position.
        _in_sync_offset: a damaged log is complete again from this log end on; None before the leader's first answer.
        _leader_high_watermark, _leader_log_start: the highest that the leader has sent in this epoch; never fall.
        _pause_ms: length of the next pause.
        _retry_at_ms: end of the present pause.
        _chunk_bytes: credit of each append in flight, in order; 0 for chunks of an earlier stream.
    """

    __slots__ = (
        "_accepted",
        "_adding",
        "_chunk_bytes",
        "_ctx",
        "_in_sync_offset",
        "_leader_high_watermark",
        "_leader_log_start",
        "_pause_ms",
        "_reconciled",
        "_retry_at_ms",
        "_same_lineage",
        "ask_again",
        "assigned",
        "leader",
        "leader_epoch",
        "link",
        "log",
        "may_hold_holes",
        "phase",
        "spares_high_watermark",
    )

    def __init__(
        self,
        ctx: BrokerContext,
        log: ReplicaLog,
        command: PartitionCommand,
        *,
        spares_high_watermark: bool,
        may_hold_holes: bool = False,
    ) -> None:
        """Start to follow; no operation of the log is in flight.

        Args:
            spares_high_watermark: whether the log was reconciled with a leader of this lineage before.
        """
        assert log.quiet, "a follower role begins only without log operations in flight"
        self._ctx = ctx
        self.log = log
        self.leader: BrokerId = command.state.leader
        self.leader_epoch: LeaderEpoch = command.state.leader_epoch
        self.assigned = command.assigned_replicas
        self._adding = ctx.broker_id in command.adding_replicas
        self.link: LeaderLink | None = None
        self.phase = Phase.IDLE
        self.spares_high_watermark = self._same_lineage = spares_high_watermark
        self.may_hold_holes = may_hold_holes
        self.ask_again = False
        self._reconciled = False
        self._accepted = False
        self._in_sync_offset: Offset | None = None
        self._leader_high_watermark = Offset(0)
        self._leader_log_start = Offset(0)
        self._pause_ms = PAUSE_MS
        self._retry_at_ms = 0
        self._chunk_bytes: deque[int] = deque()

    @property
    def reconciled(self) -> bool:
        """Whether the log was reconciled with the leader's log in this epoch."""
        return self._reconciled

    @property
    def offset_lag(self) -> int:
        """Number of records below the leader's last high watermark that are not in this log."""
        return max(0, self._leader_high_watermark - self.log.log_end_offset)

    @property
    def leader_high_watermark(self) -> Offset:
        """The leader's high watermark, as sent last in this epoch; 0 before."""
        return self._leader_high_watermark

    @property
    def committed_offset(self) -> Offset:
        """End of the records that consumers may read here (rule K1), exclusive.

        The records below are in this log, and committed by the leader of this epoch. The follower's own high watermark
        is not enough, since it may be of an earlier lineage.
        """
        return min(self.log.high_watermark, self._leader_high_watermark)

    @property
    def last_stable_offset(self) -> Offset | None:
        """End of the records that read_committed consumers may read here (rule X3), exclusive; None where unknown.

        Known once the leader of this epoch has committed all that this log knows as committed.
        """
        known = self._leader_high_watermark >= self.log.high_watermark
        return self.log.last_stable_offset if known else None

    def in_contact(self, silence_ms: int, now_ms: int) -> bool:
        """Whether this follower fetches, and its leader sent a message within `silence_ms`.

        The leader must have accepted the fetch position first. A leader whose log starts there cannot know the end of
        an older epoch, and refuses a log that should have been truncated (rule E3).
        """
        contact = self._ctx.leader_contacts.get(self.leader)
        fetching = self.phase is Phase.FETCHING and self._accepted and self._connected
        return fetching and contact is not None and contact.within(silence_ms, now_ms)

    # -- the stream --------------------------------------------------------------------------------------------

    def on_connected(self, link: LeaderLink) -> None:
        """Start on a new stream to the leader."""
        self.link = link
        if self.phase is not Phase.TRUNCATING:
            self._begin()

    def on_disconnected(self) -> None:
        """Stop, as the stream ended; appends in flight continue, and their credit ended with the stream."""
        self._chunk_bytes = deque(0 for _ in self._chunk_bytes)
        if self.phase is not Phase.TRUNCATING:
            self.phase = Phase.IDLE

    def retry(self, now_ms: int) -> bool:
        """Retry after the pause; False while the pause lasts."""
        if self.phase is Phase.PAUSED:
            if now_ms < self._retry_at_ms:
                return False
            self._begin()
        return True

    def leave(self, newer_leader_epoch: LeaderEpoch) -> None:
        """Stop following, and report the newer leader epoch to the leader (rule F3)."""
        if self._connected:
            assert self.link is not None
            self.link.stop(StopFetch(self.log.partition, newer_leader_epoch))
            self.link.give_credit(self.link.credit_directory(self.log), sum(self._chunk_bytes))
        self._chunk_bytes.clear()
        self.phase = Phase.IDLE

    @property
    def _connected(self) -> bool:
        return self.link is not None and self.link.connected

    def _begin(self) -> None:
        """Reconcile, unless the log was reconciled in this epoch; then fetch."""
        if not self._connected:
            self.phase = Phase.IDLE
        elif not self.log.quiet:
            self.phase = Phase.DRAINING
        elif self._reconciled or self._has_held_nothing:
            self._fetch()
        else:
            self._ask()

    @property
    def _has_held_nothing(self) -> bool:
        log = self.log
        return log.log_end_offset == 0 and log.epochs.latest == NO_EPOCH and log.damaged is None

    def _ask(self) -> None:
        assert self.link is not None
        self.phase = Phase.ASKING
        self.link.query(EpochQuery(self.log.partition, self.log.identity, self.leader_epoch, self.log.epochs.latest))

    def _fetch(self) -> None:
        assert self.link is not None
        log = self.log
        self._maybe_end_damage()
        self._reconciled = True
        self._accepted = False
        self.spares_high_watermark = True
        self.phase = Phase.FETCHING
        self.link.fetch(
            FetchPosition(
                log.partition,
                log.identity,
                self.leader_epoch,
                log.log_end_offset,
                log.last_record_epoch,
                self.link.credit_directory(log),
                log.flushed_offset if log.group_commit else Offset(0),
                log.log_start_offset,
            )
        )

    def _pause(self, now_ms: int) -> None:
        self.phase = Phase.PAUSED
        self._retry_at_ms = now_ms + self._pause_ms
        self._ctx.paused[self] = None

    def on_command(self, command: PartitionCommand) -> None:
        """Apply a command in this epoch, and retry soon, as the leader may know of this replica now."""
        self.assigned = command.assigned_replicas
        self._adding = self._ctx.broker_id in command.adding_replicas
        self._pause_ms = PAUSE_MS
        self._retry_at_ms = min(self._retry_at_ms, self._ctx.now_ms + PAUSE_MS)

    # -- reconciliation ----------------------------------------------------------------------------------------

    def on_epoch_end(self, answer: EpochEnd) -> None:
        """One round of rule E2: truncate to the lower end of the epoch, and ask again while the epochs differ."""
        if self.phase is not Phase.ASKING or answer.current_leader_epoch != self.leader_epoch:
            return
        log = self.log
        self._in_sync_offset = answer.in_sync_offset
        own = log.epochs.end_of(answer.leader_epoch, log.log_end_offset)
        end = min(answer.end_offset, own.start_offset) if log.epochs.latest != NO_EPOCH else log.log_end_offset
        self.ask_again = own.leader_epoch != answer.leader_epoch
        if end < log.log_start_offset or self._lacks_log_start(answer):
            end = Offset(0)
        self._truncate(Offset(end), answer.leader_epoch)

    def _lacks_log_start(self, answer: EpochEnd) -> bool:
        """Whether this log never held, or has lost, records of the leader below its own log start (rules E3, T5).

        The log then keeps no records and starts again at the leader's log start.
        """
        log = self.log
        if self.spares_high_watermark:
            return False
        leader_start = answer.log_start_offset
        lost = log.damaged is not None and leader_start is not None and leader_start < log.log_start_offset
        enough = answer.in_sync_offset
        # a leader of the lineage that advanced this log start has committed that far
        is_short = enough is not None and enough < log.log_start_offset
        return lost or is_short or answer.leader_epoch < log.epoch_below_start

    def _truncate(self, end: Offset, answered_epoch: LeaderEpoch) -> None:
        log = self.log
        if end >= log.log_end_offset:
            # an epoch in which this replica led without writing a record is unknown to the leader
            if log.epochs.latest > answered_epoch and log.epochs.truncate_from_end(end):
                log.save_epochs()
            self._after_truncation()
            return
        below = log.high_watermark - end
        assert below <= 0 or not self.spares_high_watermark, (
            f"{log.partition}: a truncation to {end} below the high watermark {log.high_watermark} in one lineage"
        )
        self._ctx.observe(
            "truncated",
            log.partition,
            log_end_offset=log.log_end_offset,
            end_offset=end,
            leader=self.leader,
            leader_epoch=self.leader_epoch,
            below_high_watermark=max(0, below),
        )
        self.phase = Phase.TRUNCATING
        if end < log.log_start_offset:
            self.ask_again = False
            log.reset(end)  # a leader whose log starts above refuses the next fetch with its log start
        else:
            log.truncate(end)

    def on_truncated(self) -> None:
        """Continue after a truncation or reset."""
        self._after_truncation()

    def _after_truncation(self) -> None:
        if not self._connected:
            self.phase = Phase.IDLE
        elif self.ask_again and self.log.epochs.latest != NO_EPOCH:
            self._ask()
        else:
            self._fetch()

    # -- fetching ----------------------------------------------------------------------------------------------

    def on_chunk(self, chunk: Chunk, now_ms: int) -> None:
        """Append a chunk that continues the log, and take in the leader's high watermark (rules R5, L1)."""
        link = self.link
        assert link is not None, "chunks come over a link"
        if chunk.current_leader_epoch != self.leader_epoch or self.phase is not Phase.FETCHING:
            link.give_back(chunk)
            return
        log = self.log
        reason = chunk.error.value if chunk.error is not None else self._misfit(chunk)
        if reason is not None:
            link.give_back(chunk)
            self._ctx.observe(
                "chunk_refused",
                log.partition,
                reason=reason,
                leader=self.leader,
                continues_from=chunk.continues_from,
                log_end_offset=log.next_offset,
            )
            self._pause(now_ms)
            return
        self._pause_ms = PAUSE_MS
        self._accepted = True
        if chunk.continues_from < log.next_offset:
            link.give_back(chunk)  # the chunk is for an older position: the log has its records
            return
        self._leader_high_watermark = max(self._leader_high_watermark, chunk.high_watermark)
        self._leader_log_start = max(self._leader_log_start, chunk.log_start_offset)
        if chunk.batches:
            self._chunk_bytes.append(chunk.size_bytes)
            self._ctx.replicated_bytes_in += self._chunk_bytes[-1]
            if self._adding:
                self._ctx.added_bytes_in += self._chunk_bytes[-1]
            self._advance_log_start()  # the log start advances now, since consumers may read from it
            log.append_as_follower(chunk.batches)
        else:
            self._advance_high_watermark()

    def _misfit(self, chunk: Chunk) -> str | None:
        """The reason why a chunk does not continue this log, None if the chunk continues the log or is an old chunk."""
        log = self.log
        if chunk.continues_from > log.next_offset:
            return "gap"
        if chunk.continues_from < log.next_offset:
            return None
        expected: int = log.next_offset
        epoch: int = log.epochs.latest
        spans = log.next_offset == log.log_start_offset
        for batch in chunk.batches:
            envelope = batch.envelope
            if envelope.next_offset <= expected:
                return "batch below the log end"
            if envelope.base_offset < expected and not spans:
                return "batch overlaps the log end"
            if envelope.base_offset > expected and not self.may_hold_holes:
                return "hole"
            if not epoch <= envelope.leader_epoch <= self.leader_epoch:
                return "leader epoch out of order"
            expected, epoch, spans = envelope.next_offset, envelope.leader_epoch, False
        return None

    def on_appended(self) -> None:
        """A chunk is in the page cache: report the log end (rule R1) and give credit for more."""
        log = self.log
        used_bytes = self._chunk_bytes.popleft() if self._chunk_bytes else 0
        self._maybe_end_damage()
        self._advance_high_watermark()
        if not self._connected:
            return
        assert self.link is not None
        if used_bytes:
            self.link.give_credit(self.link.credit_directory(log), used_bytes)
        if self.phase is Phase.FETCHING:
            self.report()
        elif self.phase is Phase.DRAINING and log.quiet:
            self._begin()

    def on_full(self, now_ms: int) -> None:
        """The disk is full: fetch again after a pause; this replica lags meanwhile (rule R7)."""
        log = self.log
        if log.epochs.truncate_from_end(log.log_end_offset):
            log.save_epochs()
        if self._connected:
            assert self.link is not None
            self.link.give_credit(self.link.credit_directory(log), sum(self._chunk_bytes))
        self._chunk_bytes.clear()
        if self.phase in (Phase.FETCHING, Phase.DRAINING):
            self._pause(now_ms)
            self._retry_at_ms = now_ms + FULL_PAUSE_MS

    def report(self) -> None:
        """Report the log end, the flushed offset and the log start to the leader."""
        if self.phase is Phase.FETCHING and self._connected:
            assert self.link is not None
            log = self.log
            ends = log.log_end_offset, log.flushed_offset
            self.link.report(Report(log.partition, self.leader_epoch, *ends, log.log_start_offset))

    def _advance_high_watermark(self) -> None:
        """Raise the high watermark to the lower of the log end and the leader's high watermark (rule R2)."""
        log = self.log
        log.raise_high_watermark(min(log.log_end_offset, self._leader_high_watermark))
        self._advance_log_start()

    def _maybe_end_damage(self) -> None:
        """End the damage before the leader gets a log end with which this replica may join the ISR (rule T5)."""
        log, enough = self.log, self._in_sync_offset
        if log.damaged is not None and enough is not None and log.log_end_offset >= enough:
            self._ctx.observe("replica_healed", log.partition, was=log.damaged, log_end_offset=log.log_end_offset)
            log.end_damage(enough)

    def _advance_log_start(self) -> None:
        """Advance the log start to the leader's, but not past the high watermark of this log (rule L1)."""
        log = self.log
        if self._leader_log_start > log.log_start_offset < log.high_watermark:
            log.advance_log_start(min(self._leader_log_start, log.high_watermark))
            self.report()

    # -- refusals ----------------------------------------------------------------------------------------------

    def on_refusal(self, refusal: Refusal, now_ms: int) -> None:
        """Start empty at the leader's log start (rule E3), reconcile again, or wait for the controller."""
        if self.phase not in (Phase.ASKING, Phase.FETCHING):
            return
        log = self.log
        same_epoch = refusal.current_leader_epoch == self.leader_epoch
        too_old = refusal.code is ErrorCode.OFFSET_OUT_OF_RANGE and refusal.log_start_offset >= log.log_end_offset
        if same_epoch and too_old and log.quiet and self._is_committed_up_to(refusal.log_start_offset):
            log.advance_log_start(refusal.log_start_offset)  # the producers' states are kept
            self._fetch()
            return
        if same_epoch and too_old and log.quiet:
            self._ctx.observe(
                "log_reset", log.partition, log_end_offset=log.log_end_offset, start_offset=refusal.log_start_offset
            )
            self.phase = Phase.TRUNCATING
            self.ask_again = False
            log.reset(refusal.log_start_offset, refusal.log_start_epoch)
            return
        if same_epoch and refusal.code is ErrorCode.LOG_DIVERGED:
            self._reconciled = False
        if refusal.code is ErrorCode.NOT_A_REPLICA:
            self._pause_ms = min(2 * self._pause_ms, UNASSIGNED_PAUSE_MS_MAX)
        self._pause(now_ms)

    def _is_committed_up_to(self, offset: Offset) -> bool:
        """Whether all records of this log below `offset` were committed in this lineage."""
        return self._same_lineage and self.log.log_start_offset < offset <= self.log.high_watermark
