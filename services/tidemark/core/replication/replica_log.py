# SPDX-License-Identifier: Apache-2.0
"""The log of one replica in the core: offsets, epochs, producers and operations in flight (rules R1, R3, L1, X3).

Operations are pipelined: storage carries them out in order and answers each once. A log is *quiet* when no operation
is in flight. Roles change, and leader epochs begin, only on a quiet log.
"""

from __future__ import annotations

from collections import deque

from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.core.producer_state import ProducerStates
from tidemark.core.replication.context import BrokerContext
from tidemark.core.replication.effects import (
    AdvanceLogStart,
    AppendToLog,
    ClearDamage,
    HighWatermarkAdvanced,
    ResetLog,
    ResumeLog,
    SaveEpochs,
    TruncateLog,
)
from tidemark.core.replication.events import LogFull, LogTruncated, RecoveredLog
from tidemark.core.replication.unstable_transactions import UncommittedEnds
from tidemark.model import NO_EPOCH, LeaderEpoch, Offset, ReplicaIdentity, TopicPartition
from tidemark.record.envelope import Batch, Envelope
from tidemark.record.markers import EndMarker, read_marker

FULL_PAUSE_MS = 1_000
"""Pause before the next append after an append that found no disk space."""


class ReplicaLog:
    """The state of one log; end offsets are exclusive.

    Invariant: log_start_offset <= high_watermark <= log_end_offset <= next_offset.

    Attributes:
        directory: index of the log directory that holds the log.
        log_start_offset: never falls, except when the log is truncated or reset.
        log_end_offset: end of the records that storage has confirmed.
        next_offset: log end after all operations in flight.
        high_watermark: see the invariant; falls only when the log is truncated below it.
        recovered_high_watermark: high watermark of the checkpoint. Invariant: above the log end only if committed
            records of this lineage were lost (rule T5).
        epochs, producers: leader epochs and producer states as of `next_offset`.
        damaged: reason why records may be missing below the log end, None if no records are missing.
        cut: of a damaged log: only its torn tail was cut off (rule T7).
        truncating: a truncation or reset is in flight. Invariant: then no append is.
        group_commit: the topic has flush.policy=group-commit: only flushed records count for the high watermark (R3).
        flushed_offset: everything below is on disk; up to date only with `group_commit`. May be ahead of the log end
            for a moment, since the answer to a flush may overtake the answer to its append.
        flushes_count_since_ms: time at which `group_commit` last became True.
        flush_due_since_ms: time since which records have waited for a flush without any flush being reported; None if
            there are no such records, or without `group_commit`.
        full_until_ms: end of the pause after an append that found no disk space; None if no lack of space is known.
        _uncommitted_ends: transactions that ended at or above the high watermark, as of `next_offset`.
        uncommitted_since_ms: the later of the high watermark's last move and of the time when the log end passed it.
            The time is meaningful only while the log end is ahead.
        _in_flight: (log end, start time) of each append in flight, in order.
    """

    __slots__ = (
        "_ctx",
        "_in_flight",
        "_uncommitted_ends",
        "cut",
        "damaged",
        "directory",
        "epochs",
        "flush_due_since_ms",
        "flushed_offset",
        "flushes_count_since_ms",
        "full_until_ms",
        "group_commit",
        "high_watermark",
        "identity",
        "log_end_offset",
        "log_start_offset",
        "next_offset",
        "partition",
        "producers",
        "recovered_high_watermark",
        "truncating",
        "uncommitted_since_ms",
    )

    def __init__(
        self, ctx: BrokerContext, partition: TopicPartition, identity: ReplicaIdentity, found: RecoveredLog
    ) -> None:
        self._ctx = ctx
        self.partition = partition
        self.identity = identity
        self.directory = found.directory
        self.log_start_offset = found.log_start_offset
        self.log_end_offset = found.log_end_offset
        self.next_offset = found.log_end_offset
        self.flushed_offset = found.flushed_offset
        self.high_watermark = max(found.log_start_offset, min(found.high_watermark, found.log_end_offset))
        self.recovered_high_watermark = found.high_watermark
        self.epochs = LeaderEpochs(found.epochs)
        self.epochs.truncate_from_start(found.log_start_offset)
        self.producers = self._expiring(found.producers)
        self._uncommitted_ends = UncommittedEnds(found.log_end_offset)
        self.damaged = found.damaged
        self.cut = found.cut
        self.truncating = False
        self.full_until_ms: int | None = None
        self.group_commit = False
        self.flushes_count_since_ms = 0
        self.flush_due_since_ms: int | None = None
        self.uncommitted_since_ms = ctx.now_ms
        self._in_flight: deque[tuple[Offset, int]] = deque()

    @property
    def quiet(self) -> bool:
        """Whether no operation is in flight."""
        return not self._in_flight and not self.truncating

    @property
    def is_idle(self) -> bool:
        """Whether neither an operation nor a flush is due."""
        return self.quiet and self.flush_due_since_ms is None

    @property
    def appending_since_ms(self) -> int | None:
        """Start time of the oldest append in flight, None without any."""
        return self._in_flight[0][1] if self._in_flight else None

    @property
    def safe_offset(self) -> Offset:
        """End of the records that count for the high watermark: written, or flushed with `group_commit` (rule R3)."""
        return min(self.flushed_offset, self.log_end_offset) if self.group_commit else self.log_end_offset

    @property
    def last_record_epoch(self) -> LeaderEpoch:
        """Leader epoch of the last written record, -1 for an empty log."""
        if self.log_end_offset <= self.log_start_offset:
            return NO_EPOCH
        return self.epochs.epoch_at(Offset(self.log_end_offset - 1))

    @property
    def epoch_below_start(self) -> LeaderEpoch:
        """Leader epoch of the last record below the log start; -1 if there was no record, or if its epoch is
        unknown.
        """
        return self.epochs.let_go if self.log_start_offset else NO_EPOCH

    @property
    def furthest_epoch(self) -> LeaderEpoch:
        """Leader epoch of the last record that this log has held, even if it was deleted; -1: no record so far."""
        return self.last_record_epoch if self.log_end_offset > self.log_start_offset else self.epoch_below_start

    @property
    def known_high_watermark(self) -> Offset:
        """The highest high watermark of this log in its lineage, even if records below were lost."""
        return max(self.high_watermark, self.recovered_high_watermark)

    @property
    def last_stable_offset(self) -> Offset | None:
        """End (exclusive) of the committed records whose transactions have committed ends (rule X3).

        At most the high watermark, and at least the log start. None while a transaction's end above the high watermark
        may be unknown, because the log was opened with it.
        """
        stable = self._uncommitted_ends.stable_offset(self.high_watermark, self.producers)
        return None if stable is None else max(stable, self.log_start_offset)

    def forget_recovered(self) -> None:
        """Begin a lineage with this log: lost records belong to another lineage."""
        self.recovered_high_watermark = self.high_watermark

    def end_damage(self, in_sync_offset: Offset) -> None:
        """The log has every committed record of its lineage; all are below `in_sync_offset` (rule T5)."""
        self.damaged, self.cut = None, False
        self.recovered_high_watermark = min(self.recovered_high_watermark, in_sync_offset)
        self._ctx.emit(ClearDamage(self.partition, self.identity))

    def append_as_leader(self, batches: tuple[Batch, ...], leader_epoch: LeaderEpoch) -> Offset:
        """Append batches; returns the offset of the first record."""
        assert not self.truncating, "the log of a leader is never truncated"
        base = self.next_offset
        end: int = base
        for batch in batches:
            envelope = batch.envelope
            if envelope.producer_id >= 0:
                self._observe(envelope._replace(base_offset=end), read_marker(batch))
            end += envelope.last_offset_delta + 1
        self._append(base, Offset(end), leader_epoch, batches, stamp=True)
        return base

    def append_as_follower(self, batches: tuple[Batch, ...]) -> None:
        """Append replicated batches; the caller has checked that they continue from `next_offset`."""
        assert not self.truncating, "nothing is appended during a truncation"
        new_epoch = False
        for batch in batches:
            envelope = batch.envelope
            if envelope.leader_epoch > self.epochs.latest:
                new_epoch |= self.epochs.assign(
                    LeaderEpoch(envelope.leader_epoch), Offset(max(envelope.base_offset, self.log_start_offset))
                )
            if envelope.producer_id >= 0:
                self._observe(envelope, read_marker(batch))
        last = batches[-1].envelope
        self._append(self.next_offset, Offset(last.next_offset), LeaderEpoch(last.leader_epoch), batches, stamp=False)
        if new_epoch:
            self.save_epochs()

    def _observe(self, envelope: Envelope, marker: EndMarker | None) -> None:
        ended = self.producers.observe(envelope, self._ctx.now_ms, marker)
        if ended is not None:
            self._uncommitted_ends.add(ended)

    def _append(
        self, base: Offset, end: Offset, leader_epoch: LeaderEpoch, batches: tuple[Batch, ...], *, stamp: bool
    ) -> None:
        self._in_flight.append((end, self._ctx.now_ms))
        self.next_offset = end
        self._ctx.effects.append(AppendToLog(self.partition, self.identity, base, leader_epoch, batches, stamp))

    def appended(self, log_end_offset: Offset) -> None:
        """Note that the oldest append in flight is written."""
        expected, _ = self._in_flight.popleft()
        assert log_end_offset == expected, f"{self.partition}: log end {log_end_offset} after an append to {expected}"
        if self.log_end_offset == self.high_watermark:
            self.uncommitted_since_ms = self._ctx.now_ms
        self.log_end_offset = log_end_offset
        if self.flush_due_since_ms is None:
            self._note_flush_due()
        if self.full_until_ms is not None:
            self.full_until_ms = None
            self._ctx.observe("disk_has_space", self.partition, log_end_offset=log_end_offset)

    def is_full(self, now_ms: int) -> bool:
        """Whether the pause after a full disk lasts."""
        return self.full_until_ms is not None and now_ms < self.full_until_ms

    def full(self, event: LogFull) -> None:
        """The disk is full: drop the appends in flight, and take the producer states of the log from the event."""
        assert event.log_end_offset == self.log_end_offset, "appends before the one that failed have been answered"
        if self.full_until_ms is None:
            self._ctx.observe("disk_full", self.partition, why=event.error.message)
        self.full_until_ms = self._ctx.now_ms + FULL_PAUSE_MS
        self._in_flight.clear()
        self.next_offset = self.log_end_offset
        self.producers = self._expiring(event.producers)
        self._uncommitted_ends.truncate(self.log_end_offset)
        self._ctx.emit(ResumeLog(self.partition, self.identity))

    def flushed(self, flushed_offset: Offset) -> None:
        """Note that all records below `flushed_offset` are on disk; no effect during a truncation."""
        if not self.truncating and flushed_offset > self.flushed_offset:
            self.flushed_offset = flushed_offset
            self._note_flush_due()

    def counts_flushes(self, group_commit: bool) -> None:
        """Set `group_commit`: a role begins, or the topic's flush.policy has changed."""
        if group_commit and not self.group_commit:
            self.flushes_count_since_ms = self._ctx.now_ms
        self.group_commit = group_commit
        self._note_flush_due()

    def _note_flush_due(self) -> None:
        behind = self.group_commit and self.flushed_offset < self.log_end_offset
        self.flush_due_since_ms = self._ctx.now_ms if behind else None

    def _expiring(self, producers: ProducerStates) -> ProducerStates:
        states = producers.expiring(self._ctx.config.producer_id_expiration_ms, self._ctx.now_ms)
        states.close_deleted(self.log_start_offset)
        return states

    def truncate(self, end_offset: Offset) -> None:
        """Truncate the log to `end_offset`; every other operation waits for the answer."""
        assert self.quiet, "a truncation begins only without log operations in flight"
        assert self.log_start_offset <= end_offset < self.log_end_offset
        self.truncating = True
        self._ctx.emit(TruncateLog(self.partition, self.identity, end_offset))

    def reset(self, start_offset: Offset, epoch_below: LeaderEpoch = NO_EPOCH) -> None:
        """Delete all records and start at `start_offset`; the record before it had the epoch `epoch_below` (E3)."""
        assert self.quiet, "a truncation begins only without log operations in flight"
        self.truncating = True
        self.epochs.begin_at(start_offset, epoch_below)
        self._ctx.emit(ResetLog(self.partition, self.identity, start_offset, epoch_below))

    def advance_log_start(self, start_offset: Offset) -> None:
        """Raise the log start: delete the records below `start_offset` (rule L1)."""
        assert self.log_start_offset < start_offset <= self.high_watermark, "only committed records are deleted"
        assert not self.truncating, "the log start stays during a truncation"
        self.log_start_offset = start_offset
        self.producers.close_deleted(start_offset)
        self._ctx.emit(AdvanceLogStart(self.partition, self.identity, start_offset))
        if self.epochs.truncate_from_start(start_offset):
            self.save_epochs()

    def truncated(self, event: LogTruncated) -> None:
        """Note that the truncation or reset is done."""
        assert self.truncating, "an answer follows a truncation"
        self.truncating = False
        self.log_start_offset = event.log_start_offset
        self.log_end_offset = self.next_offset = event.log_end_offset
        flushed = max(self.flushed_offset, event.log_start_offset)  # all records above the log start are flushed
        self.flushed_offset = Offset(min(flushed, event.log_end_offset))
        self._note_flush_due()
        self.high_watermark = max(event.log_start_offset, min(self.high_watermark, event.log_end_offset))
        if self.damaged is None:  # after that, only another lineage truncates below the high watermark
            self.forget_recovered()
        self.producers = self._expiring(event.producers)
        self._uncommitted_ends.truncate(event.log_end_offset)
        self.epochs.truncate_from_end(event.log_end_offset)
        self.save_epochs()

    def raise_high_watermark(self, to: Offset) -> bool:
        """Raise the high watermark, at most to the log end, never lower it (HW-MONOTONIC); returns whether it rose."""
        if to <= self.high_watermark:
            return False
        assert to <= self.log_end_offset, "committed records are written"
        self.high_watermark = to
        self._uncommitted_ends.commit(to)
        self.uncommitted_since_ms = self._ctx.now_ms
        self._ctx.effects.append(HighWatermarkAdvanced(self.partition, to))
        return True

    def save_epochs(self) -> None:
        """Save the leader epochs in the background."""
        self._ctx.emit(SaveEpochs(self.partition, self.identity, self.epochs.entries))
