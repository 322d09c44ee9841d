# SPDX-License-Identifier: Apache-2.0
"""A follower of one partition: reconcile, fetch, append, report (rules R1, R5, R6, E2-E4, F3, L1).

    idle --connected--> reconciling --(E2: ask, cut, ask again)--> fetching --refused--> paused --tick--> ...

Reconciliation goes by leader epochs, never by the high watermark (KIP-101).
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
"""After a refusal that a command of the controller will settle, or a chunk that did not fit."""
STRANGER_PAUSE_MS_MAX = 5_000
"""A leader that was not told yet that this broker holds a replica is asked again after pauses that double up to this;
so is one that has been told that it holds none any more."""


class Phase(Enum):
    """Where a follower stands."""

    IDLE = "idle"  # no stream to the leader
    ASKING = "asking"  # an epoch query is out
    CUTTING = "cutting"  # the log is being truncated; then asking or fetching
    DRAINING = "draining"  # the position waits for appends under way
    FETCHING = "fetching"
    PAUSED = "paused"  # tries again at `retry_at_ms`


class PartitionFollower:
    """One followership: one leader epoch from its beginning to its end.

    Invariant: while fetching, chunks are appended in the order of their offsets, without a gap (rule L1).
    """

    __slots__ = (
        "_accepted",
        "_added",
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
        """`spares_high_watermark`: the lineage is the one this replica reconciled in before, so nothing below its
        own high watermark may go (rule E3)."""
        assert log.quiet, "a followership begins on a quiet log"
        self._ctx = ctx
        self.log = log
        self.leader: BrokerId = command.state.leader
        self.leader_epoch: LeaderEpoch = command.state.leader_epoch
        self.assigned = command.assigned_replicas
        self._added = ctx.broker_id in command.adding_replicas
        self.link: LeaderLink | None = None
        self.phase = Phase.IDLE
        self.spares_high_watermark = self._same_lineage = spares_high_watermark
        self.may_hold_holes = may_hold_holes
        self.ask_again = False
        self._reconciled = False
        self._accepted = False
        self._in_sync_offset: Offset | None = None
        """Of a damaged log: with all below it there is nothing missing any more; None until the leader has said it."""
        self._leader_high_watermark = Offset(0)
        self._leader_log_start = Offset(0)
        self._pause_ms = PAUSE_MS
        self._retry_at_ms = 0
        self._chunk_bytes: deque[int] = deque()

    @property
    def reconciled(self) -> bool:
        """The log was brought in line with the leader's in this epoch."""
        return self._reconciled

    @property
    def offset_lag(self) -> int:
        """Records below the leader's high watermark, as last heard, that are not in this log."""
        return max(0, self._leader_high_watermark - self.log.log_end_offset)

    @property
    def leader_high_watermark(self) -> Offset:
        """As last heard in this epoch; 0 before."""
        return self._leader_high_watermark

    @property
    def committed_offset(self) -> Offset:
        """What a consumer may be given here ends there (rule K1): what lies below is in this log, and this epoch's
        leader has said that it is committed. An own high watermark of an earlier lineage says nothing of this one."""
        return min(self.log.high_watermark, self._leader_high_watermark)

    def in_contact(self, silence_ms: int, now_ms: int) -> bool:
        """It fetches, and the leader has said something within that time.

        That the leader has sent something from where this log ends comes first: one whose log begins there cannot say
        where an older epoch ends, and refuses a log that would have had to be cut (rule E3).
        """
        contact = self._ctx.leader_contacts.get(self.leader)
        fetching = self.phase is Phase.FETCHING and self._accepted and self._connected
        return fetching and contact is not None and contact.within(silence_ms, now_ms)

    # -- the stream --------------------------------------------------------------------------------------------

    def on_connected(self, link: LeaderLink) -> None:
        """The stream to the leader is up."""
        self.link = link
        if self.phase is not Phase.CUTTING:
            self._begin()

    def on_gone(self) -> None:
        """The stream ended; what is under way to the log goes on, its credit was of that stream."""
        self._chunk_bytes = deque(0 for _ in self._chunk_bytes)
        if self.phase is not Phase.CUTTING:
            self.phase = Phase.IDLE

    def retry(self, now_ms: int) -> bool:
        """Try again after a pause; False while it is too early."""
        if self.phase is Phase.PAUSED:
            if now_ms < self._retry_at_ms:
                return False
            self._begin()
        return True

    def leave(self, newer_leader_epoch: LeaderEpoch) -> None:
        """Follow no more; the leader hears of a newer epoch (rule F3)."""
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
        """Reconcile unless that is done in this epoch, then fetch."""
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
        self._maybe_heal()
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
        """The controller has news in this epoch; a leader that did not know this replica may know it now."""
        self.assigned = command.assigned_replicas
        self._added = self._ctx.broker_id in command.adding_replicas
        self._pause_ms = PAUSE_MS
        self._retry_at_ms = min(self._retry_at_ms, self._ctx.now_ms + PAUSE_MS)

    # -- reconciliation ----------------------------------------------------------------------------------------

    def on_epoch_end(self, answer: EpochEnd) -> None:
        """One round of rule E2: cut to the nearer end, ask again while the epochs differ."""
        if self.phase is not Phase.ASKING or answer.current_leader_epoch != self.leader_epoch:
            return
        log = self.log
        self._in_sync_offset = answer.in_sync_offset
        own = log.epochs.end_of(answer.leader_epoch, log.log_end_offset)
        end = min(answer.end_offset, own.start_offset) if log.epochs.latest != NO_EPOCH else log.log_end_offset
        self.ask_again = own.leader_epoch != answer.leader_epoch
        if end < log.log_start_offset or self._lacks_front(answer):
            end = Offset(0)
        self._cut(Offset(end), answer.leader_epoch)

    def _lacks_front(self, answer: EpochEnd) -> bool:
        """Whether the leader has records below where this log starts that it never held, or has lost: there is nothing
        to keep, it is to start where the leader's does (rules E3, T5)."""
        log = self.log
        if self.spares_high_watermark:
            return False
        told = answer.log_start_offset
        lost = log.damaged is not None and told is not None and told < log.log_start_offset
        enough = answer.in_sync_offset
        # a leader of the lineage in which it was let go has committed that far
        is_short = enough is not None and enough < log.log_start_offset
        return lost or is_short or answer.leader_epoch < log.let_go_epoch

    def _cut(self, end: Offset, answered_epoch: LeaderEpoch) -> None:
        log = self.log
        if end >= log.log_end_offset:
            # an epoch in which this replica led without writing a record is unknown to the leader
            if log.epochs.latest > answered_epoch and log.epochs.truncate_from_end(end):
                log.save_epochs()
            self._after_cut()
            return
        below = log.high_watermark - end
        assert below <= 0 or not self.spares_high_watermark, (
            f"{log.partition}: a cut at {end} below the high watermark {log.high_watermark} in one lineage"
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
        self.phase = Phase.CUTTING
        if end < log.log_start_offset:
            self.ask_again = False
            log.reset(end)  # a leader that starts above refuses what is fetched from there, and says where it starts
        else:
            log.truncate(end)

    def on_truncated(self) -> None:
        """The cut is done; the log's offsets are those after it."""
        self._after_cut()

    def _after_cut(self) -> None:
        if not self._connected:
            self.phase = Phase.IDLE
        elif self.ask_again and self.log.epochs.latest != NO_EPOCH:
            self._ask()
        else:
            self._fetch()

    # -- fetching ----------------------------------------------------------------------------------------------

    def on_chunk(self, chunk: Chunk, now_ms: int) -> None:
        """Append what continues the log; take over the high watermark (rules R5, L1)."""
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
            link.give_back(chunk)  # of an older position: it is all there
            return
        self._leader_high_watermark = max(self._leader_high_watermark, chunk.high_watermark)
        self._leader_log_start = max(self._leader_log_start, chunk.log_start_offset)
        if chunk.batches:
            self._chunk_bytes.append(chunk.size_bytes)
            self._ctx.replicated_bytes_in += self._chunk_bytes[-1]
            if self._added:
                self._ctx.added_bytes_in += self._chunk_bytes[-1]
            self._let_go()  # at once: consumers may ask here from now on
            log.append_as_follower(chunk.batches)
        else:
            self._advance_high_watermark()

    def _misfit(self, chunk: Chunk) -> str | None:
        """Why a chunk does not continue this log, None when it does or is an old one."""
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
        """A chunk is in the page cache: report it (rule R1) and let the leader send more."""
        log = self.log
        used_bytes = self._chunk_bytes.popleft() if self._chunk_bytes else 0
        self._maybe_heal()
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
        """There was no space for a chunk: it is asked for again in a while; this replica lags meanwhile (rule R7)."""
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
        """Tell the leader the log end and what is flushed."""
        if self.phase is Phase.FETCHING and self._connected:
            assert self.link is not None
            log = self.log
            ends = log.log_end_offset, log.flushed_offset
            self.link.report(Report(log.partition, self.leader_epoch, *ends, log.log_start_offset))

    def _advance_high_watermark(self) -> None:
        """Rule R2: the lesser of the own log end and the leader's high watermark."""
        log = self.log
        log.raise_high_watermark(min(log.log_end_offset, self._leader_high_watermark))
        self._let_go()

    def _maybe_heal(self) -> None:
        """Always before the leader hears of a log end with which it would let this replica into the ISR (rule T5)."""
        log, enough = self.log, self._in_sync_offset
        if log.damaged is not None and enough is not None and log.log_end_offset >= enough:
            self._ctx.observe("replica_healed", log.partition, was=log.damaged, log_end_offset=log.log_end_offset)
            log.end_damage(enough)

    def _let_go(self) -> None:
        """The front goes as it went at the leader, but not past what is known here to be committed (rule L1)."""
        log = self.log
        if self._leader_log_start > log.log_start_offset < log.high_watermark:
            log.trim(min(self._leader_log_start, log.high_watermark))
            self.report()

    # -- refusals ----------------------------------------------------------------------------------------------

    def on_refusal(self, refusal: Refusal, now_ms: int) -> None:
        """Start empty where the leader starts (rule E3), reconcile again, or wait for the controller."""
        if self.phase not in (Phase.ASKING, Phase.FETCHING):
            return
        log = self.log
        same_epoch = refusal.current_leader_epoch == self.leader_epoch
        too_old = refusal.code is ErrorCode.OFFSET_OUT_OF_RANGE and refusal.log_start_offset >= log.log_end_offset
        if same_epoch and too_old and log.quiet and self._is_committed_up_to(refusal.log_start_offset):
            log.trim(refusal.log_start_offset)  # its producers stay known
            self._fetch()
            return
        if same_epoch and too_old and log.quiet:
            self._ctx.observe(
                "log_reset", log.partition, log_end_offset=log.log_end_offset, start_offset=refusal.log_start_offset
            )
            self.phase = Phase.CUTTING
            self.ask_again = False
            log.reset(refusal.log_start_offset, refusal.log_start_epoch)
            return
        if same_epoch and refusal.code is ErrorCode.LOG_DIVERGED:
            self._reconciled = False
        if refusal.code is ErrorCode.NOT_A_REPLICA:
            self._pause_ms = min(2 * self._pause_ms, STRANGER_PAUSE_MS_MAX)
        self._pause(now_ms)

    def _is_committed_up_to(self, offset: Offset) -> bool:
        """Whether all of the log that lies below was committed in this lineage."""
        return self._same_lineage and self.log.log_start_offset < offset <= self.log.high_watermark
