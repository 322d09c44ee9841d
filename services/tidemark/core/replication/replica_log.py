# SPDX-License-Identifier: Apache-2.0
"""A replica's log as the core knows it: its offsets, epochs and producers, what is under way to it (rules R1, R3, L1).

Operations are pipelined: storage carries them out in order and answers each once. A log is *quiet* when nothing is
under way; roles change, and epochs begin, only on a quiet log.
"""

from __future__ import annotations

from collections import deque

from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.core.producer_state import ProducerStates, is_idempotent
from tidemark.core.replication.context import BrokerContext
from tidemark.core.replication.effects import (
    AppendToLog,
    DamageOver,
    HighWatermarkAdvanced,
    ResetLog,
    ResumeLog,
    SaveEpochs,
    TrimLog,
    TruncateLog,
)
from tidemark.core.replication.events import LogFull, LogTruncated, RecoveredLog
from tidemark.model import NO_EPOCH, LeaderEpoch, Offset, ReplicaIdentity, TopicPartition
from tidemark.record.envelope import Batch

FULL_PAUSE_MS = 1_000
"""After an append that found no space."""


class ReplicaLog:
    """Offsets: ends are exclusive.

    Invariants: log_start <= high_watermark <= log_end <= next_offset; `epochs` and `producers` are those of
    `next_offset`, that is with everything under way. `recovered_high_watermark`, as checkpointed, lies above the log
    end where committed records were lost (rule T5).

    Attributes:
        group_commit: the topic's flush.policy: only what is flushed counts for the high watermark (rule R3).
        flushed_offset: everything below is on disk; known, and kept up to date, only with `group_commit`. May be ahead
            of the log end for an instant: the flush of an append can be heard of before the append.
        flush_due_since_ms: since when something has been written that is not flushed and no flush was heard of; None
            while there is no such thing, and without `group_commit`.
        full_until_ms: there was no space for the last append, and the next is not worth a try before; None while there
            is space as far as is known.
        uncommitted_since_ms: when the high watermark last moved, or the log end went ahead of it; says something only
            while it is ahead.
    """

    __slots__ = (
        "_ctx",
        "_under_way",
        "cutting",
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
        self.damaged = found.damaged
        self.cutting = False
        self.full_until_ms: int | None = None
        self.group_commit = False
        self.flushes_count_since_ms = 0
        self.flush_due_since_ms: int | None = None
        self.uncommitted_since_ms = ctx.now_ms
        self._under_way: deque[tuple[Offset, int]] = deque()

    @property
    def quiet(self) -> bool:
        """Nothing is under way."""
        return not self._under_way and not self.cutting

    @property
    def appending_since_ms(self) -> int | None:
        """When the oldest append under way was asked for, None while there is none."""
        return self._under_way[0][1] if self._under_way else None

    @property
    def safe_offset(self) -> Offset:
        """End of what this replica has as safely as the topic wants it: written, or flushed too (rule R3)."""
        return min(self.flushed_offset, self.log_end_offset) if self.group_commit else self.log_end_offset

    @property
    def last_record_epoch(self) -> LeaderEpoch:
        """Leader epoch of the last written record, -1 for an empty log."""
        if self.log_end_offset <= self.log_start_offset:
            return NO_EPOCH
        return self.epochs.epoch_at(Offset(self.log_end_offset - 1))

    @property
    def let_go_epoch(self) -> LeaderEpoch:
        """Leader epoch of the last record that was let go; -1 where none was, or nobody knows."""
        return self.epochs.let_go if self.log_start_offset else NO_EPOCH

    @property
    def furthest_epoch(self) -> LeaderEpoch:
        """Leader epoch of the last record that this log held, also where it was let go; -1 where it never held one."""
        return self.last_record_epoch if self.log_end_offset > self.log_start_offset else self.let_go_epoch

    @property
    def known_high_watermark(self) -> Offset:
        """The highest one this log ever knew in its lineage, even where it lost records below it."""
        return max(self.high_watermark, self.recovered_high_watermark)

    def forget_recovered(self) -> None:
        """This log is its lineage's from here on: what it lost belongs to another one."""
        self.recovered_high_watermark = self.high_watermark

    def end_damage(self, in_sync_offset: Offset) -> None:
        """It holds all that its lineage has committed, which lies below `in_sync_offset` (exclusive, rule T5)."""
        self.damaged = None
        self.recovered_high_watermark = min(self.recovered_high_watermark, in_sync_offset)
        self._ctx.emit(DamageOver(self.partition, self.identity))

    def append_as_leader(self, batches: tuple[Batch, ...], leader_epoch: LeaderEpoch) -> Offset:
        """Put batches at the end; gives the offset of the first record."""
        assert not self.cutting, "a leader's log is never cut"
        base = self.next_offset
        end: int = base
        for batch in batches:
            envelope = batch.envelope
            if is_idempotent(envelope):
                self.producers.observe(envelope._replace(base_offset=end), self._ctx.now_ms)
            end += envelope.last_offset_delta + 1
        self._append(base, Offset(end), leader_epoch, batches, stamp=True)
        return base

    def append_as_follower(self, batches: tuple[Batch, ...]) -> None:
        """Put replicated batches at the end; they continue from `next_offset`, as the caller has checked."""
        assert not self.cutting, "nothing is appended while the log is cut"
        new_epoch = False
        for batch in batches:
            envelope = batch.envelope
            if envelope.leader_epoch > self.epochs.latest:
                new_epoch |= self.epochs.assign(
                    LeaderEpoch(envelope.leader_epoch), Offset(max(envelope.base_offset, self.log_start_offset))
                )
            if is_idempotent(envelope):
                self.producers.observe(envelope, self._ctx.now_ms)
        last = batches[-1].envelope
        self._append(self.next_offset, Offset(last.next_offset), LeaderEpoch(last.leader_epoch), batches, stamp=False)
        if new_epoch:
            self.save_epochs()

    def _append(
        self, base: Offset, end: Offset, leader_epoch: LeaderEpoch, batches: tuple[Batch, ...], *, stamp: bool
    ) -> None:
        self._under_way.append((end, self._ctx.now_ms))
        self.next_offset = end
        self._ctx.effects.append(AppendToLog(self.partition, self.identity, base, leader_epoch, batches, stamp))

    def appended(self, log_end_offset: Offset) -> None:
        """The oldest append under way is written."""
        expected, _ = self._under_way.popleft()
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
        """Whether an append is not worth a try yet."""
        return self.full_until_ms is not None and now_ms < self.full_until_ms

    def full(self, event: LogFull) -> None:
        """What was under way is not in the log; producers and epochs are those of what is."""
        assert event.log_end_offset == self.log_end_offset, "appends before the one that failed have been answered"
        if self.full_until_ms is None:
            self._ctx.observe("disk_full", self.partition, why=event.error.message)
        self.full_until_ms = self._ctx.now_ms + FULL_PAUSE_MS
        self._under_way.clear()
        self.next_offset = self.log_end_offset
        self.producers = self._expiring(event.producers)
        self._ctx.emit(ResumeLog(self.partition, self.identity))

    def flushed(self, flushed_offset: Offset) -> None:
        """Everything below is on disk. What was flushed of a log that is being cut may be what is cut off."""
        if not self.cutting and flushed_offset > self.flushed_offset:
            self.flushed_offset = flushed_offset
            self._note_flush_due()

    def counts_flushes(self, group_commit: bool) -> None:
        """A role begins, or the topic's flush.policy has changed; whether it is group-commit."""
        if group_commit and not self.group_commit:
            self.flushes_count_since_ms = self._ctx.now_ms
        self.group_commit = group_commit
        self._note_flush_due()

    def _note_flush_due(self) -> None:
        behind = self.group_commit and self.flushed_offset < self.log_end_offset
        self.flush_due_since_ms = self._ctx.now_ms if behind else None

    def _expiring(self, producers: ProducerStates) -> ProducerStates:
        return producers.expiring(self._ctx.config.producer_id_expiration_ms, self._ctx.now_ms)

    def truncate(self, end_offset: Offset) -> None:
        """Cut the end off; everything but the answer must wait."""
        assert self.quiet, "a log is cut only while nothing is under way"
        assert self.log_start_offset <= end_offset < self.log_end_offset
        self.cutting = True
        self._ctx.emit(TruncateLog(self.partition, self.identity, end_offset))

    def reset(self, start_offset: Offset, epoch_below: LeaderEpoch = NO_EPOCH) -> None:
        """Drop everything and start at another offset; what lies below was of that epoch (rule E3)."""
        assert self.quiet, "a log is cut only while nothing is under way"
        self.cutting = True
        self.epochs.begin_at(start_offset, epoch_below)
        self._ctx.emit(ResetLog(self.partition, self.identity, start_offset, epoch_below))

    def trim(self, start_offset: Offset) -> None:
        """Let go of what lies below `start_offset` (rule L1)."""
        assert self.log_start_offset < start_offset <= self.high_watermark, "only what is committed may go"
        assert not self.cutting, "a log is not cut at both ends at once"
        self.log_start_offset = start_offset
        self._ctx.emit(TrimLog(self.partition, self.identity, start_offset))
        if self.epochs.truncate_from_start(start_offset):
            self.save_epochs()

    def truncated(self, event: LogTruncated) -> None:
        """The log was cut."""
        assert self.cutting, "only a cut that was asked for is answered"
        self.cutting = False
        self.log_start_offset = event.log_start_offset
        self.log_end_offset = self.next_offset = event.log_end_offset
        flushed = max(self.flushed_offset, event.log_start_offset)  # below the start nothing is left to flush
        self.flushed_offset = Offset(min(flushed, event.log_end_offset))
        self._note_flush_due()
        self.high_watermark = max(event.log_start_offset, min(self.high_watermark, event.log_end_offset))
        if self.damaged is None:  # then only another lineage cuts below what was committed
            self.forget_recovered()
        self.producers = self._expiring(event.producers)
        self.epochs.truncate_from_end(event.log_end_offset)
        self.save_epochs()

    def raise_high_watermark(self, to: Offset) -> bool:
        """Never back (HW-MONOTONIC), never past the log end; True when it moved."""
        if to <= self.high_watermark:
            return False
        assert to <= self.log_end_offset, "what is not written is not committed"
        self.high_watermark = to
        self.uncommitted_since_ms = self._ctx.now_ms
        self._ctx.effects.append(HighWatermarkAdvanced(self.partition, to))
        return True

    def save_epochs(self) -> None:
        """Have the epoch checkpoint written behind."""
        self._ctx.emit(SaveEpochs(self.partition, self.identity, self.epochs.entries))
