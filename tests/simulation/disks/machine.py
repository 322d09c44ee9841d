# SPDX-License-Identifier: Apache-2.0
"""The machine under a broker: its logs in memory, their synced parts, its boot, and the faults of its disk.

A killed process leaves everything it wrote; a power loss truncates unsynced bytes anywhere and tears the last batch.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.core.producer_state import ProducerStates
from tidemark.core.replication.events import RecoveredLog
from tidemark.model import EpochEntry, LeaderEpoch, Offset, ReplicaIdentity, TopicPartition
from tidemark.record.envelope import Batch
from tidemark.storage.log.log_segments import NOT_TRUNCATED
from tidemark.storage.recovery.damage import NO_END

from tests.simulation.records import Values, flipped, stamp_at, values_of


@dataclass
class StoredLog:
    """One replica's log; offsets are exclusive ends.

    Invariant: `values` has one entry for each offset up to the end. Records below `start` may still be on disk; a start
        of the broker finds them if `durable_start` is the latest log start on disk.
    """

    identity: ReplicaIdentity
    batches: list[Batch] = field(default_factory=list)
    values: Values = field(default_factory=list)
    start: int = 0
    durable_start: int = 0
    clean_point: int = 0
    flushed: int = 0
    epochs: tuple[EpochEntry, ...] = ()
    high_watermark: int = 0
    recovery_point: int = 0
    cut_point: int = NOT_TRUNCATED
    """The offset of a truncation that no checkpoint knows yet."""
    uncovered_cut: int = NOT_TRUNCATED
    """After this truncation a leader's stated high watermark may be older, and commits no record past it."""
    damaged_until: int | None = None
    damage_over: bool = False
    torn: bool = False
    """The log's tail was cut within a batch, on a machine that did not reboot, and no start has found that yet."""
    torn_at_reboot: bool = False
    """The log's file was torn with the power, and no start has opened it yet.

    A later start on the same boot treats the tear as a cut tail (rule T7) in one case. An earlier process of that boot
    registered, and was killed before it opened the log.
    """
    cut: bool = False
    """A damaged log has lost only a torn tail (rule T7)."""
    fresh: bool = True
    flipped: set[int] = field(default_factory=set)
    """Base offsets of batches with a flipped bit that was not found yet."""
    cuts: int = 0
    cleanings: int = 0

    @property
    def end(self) -> int:
        return len(self.values)

    @property
    def is_damaged(self) -> bool:
        """Whether records are missing, found or not; a start that finds all records ends the damage."""
        if self.torn or self.flipped:
            return True
        if self.damage_over:
            return False
        end = len(self.values)
        return self.damaged_until is not None or self.high_watermark > end or self.recovery_point > end

    @property
    def lost_until(self) -> int:
        return max(self.high_watermark, self.recovery_point)

    def append(self, batches: tuple[Batch, ...], leader_epoch: LeaderEpoch, *, stamp: bool) -> None:
        for batch in batches:
            written = batch
            if stamp:
                written = stamp_at(batch, self.end, leader_epoch)
            base = written.envelope.base_offset
            if base < self.end:
                assert not self.batches, "only an empty log takes a batch that spans its start"
                assert self.start == self.end < written.envelope.next_offset, "the batch spans the log start"
                del self.values[base:]
            self.values.extend([None] * (base - self.end))
            self.batches.append(written)
            self.values.extend(values_of(written))

    def truncate(self, end: int) -> None:
        self.cuts += 1
        while self.batches and self.batches[-1].envelope.next_offset > end:
            end = min(end, self.batches.pop().envelope.base_offset)
        end = max(self.batches[-1].envelope.next_offset if self.batches else 0, min(self.start, end))
        del self.values[end:]
        self.flipped = {one for one in self.flipped if one < end}
        self.start = min(self.start, self.end)
        self.durable_start = min(self.durable_start, self.end)
        self.clean_point = min(self.clean_point, self.end)
        self.flushed = min(self.flushed, self.end)
        self.high_watermark = min(self.high_watermark, self.end)
        self.recovery_point = min(self.recovery_point, self.end)

    def reset(self, start: int, epoch_below: LeaderEpoch) -> None:
        self.cuts += 1
        self.batches.clear()
        self.flipped.clear()
        self.values = [None] * start
        self.start = self.durable_start = self.flushed = start
        self.high_watermark = min(self.high_watermark, start)
        self.recovery_point = min(self.recovery_point, start)
        self.clean_point = min(self.clean_point, start)
        self.epochs = (EpochEntry(epoch_below, Offset(start)),) if start else ()

    def trim(self, start: int) -> None:
        """The log starts there from now on; before a checkpoint, records below are not missed."""
        assert start <= self.end, f"a log that ends at {self.end} cannot start at {start}"
        self.start = max(self.start, start)

    def read(self, offset: int, end_offset: int, max_bytes: int) -> tuple[Batch, ...]:
        found: list[Batch] = []
        size = 0
        for batch in self.batches:
            envelope = batch.envelope
            inside = offset < envelope.next_offset and envelope.next_offset <= end_offset
            if inside and (not found or size < max_bytes):
                found.append(flipped(batch) if envelope.base_offset in self.flipped else batch)
                size += envelope.batch_length
        return tuple(found)

    def producers(self) -> ProducerStates:
        states = ProducerStates()
        for batch in self.batches:
            if batch.envelope.producer_id >= 0:
                states.observe_batch(batch)
        return states

    def mark_cut(self, end: int) -> None:
        """The mark of a truncation names the log start too: a start prefers the mark to the older checkpoint."""
        self.durable_start = self.start
        self.cut_point, self.uncovered_cut = min(self.cut_point, end), min(self.uncovered_cut, end)

    def rot(self, kept: int) -> None:
        """The disk loses the records past `kept`, though they were synced; checkpoints name higher offsets."""
        points = self.high_watermark, self.recovery_point
        self.truncate(kept)
        self.high_watermark, self.recovery_point = points
        self.damage_over = False

    def checkpointed(self, told: int | None) -> None:
        high_watermark = self.high_watermark if told is None else told
        self.high_watermark = min(high_watermark, self.end, self.uncovered_cut)
        self.recovery_point, self.durable_start, self.cut_point = self.end, self.start, NOT_TRUNCATED
        if told is not None and self.end > self.uncovered_cut:
            self.uncovered_cut = NOT_TRUNCATED
        if self.damage_over or (self.damaged_until is not None and self.end >= self.damaged_until):
            self.damaged_until, self.damage_over, self.cut = None, False, False

    def _cut_where_it_is_bad(self) -> None:
        """Past the recovery point every batch is checked; the batches from a bad one on are set aside."""
        bad = min((one for one in self.flipped if one >= self.recovery_point), default=None)
        if bad is not None:
            until = self.end
            self.rot(bad)
            self.damaged_until = max(until, self.damaged_until or 0)

    def _find_damage(self) -> str | None:
        """Known damage stays until a leader reports that it is over, or the log is refetched (rule T5)."""
        self.damage_over = False
        torn, self.torn = self.torn and self.recovery_point <= self.end, False
        if torn:
            self.cut, self.damaged_until = self.cut or self.damaged_until is None, NO_END
        if self.lost_until > self.end:
            self.cut, self.damaged_until = False, max(self.lost_until, self.damaged_until or 0)
        elif self.damaged_until is not None and self.end >= self.damaged_until:
            self.damaged_until = None
        return f"ends at {self.end}, below {self.damaged_until}" if self.damaged_until is not None else None

    def recovered(self) -> RecoveredLog:
        """The log as storage opens it: epochs come from the batches, and above their end from the checkpoint."""
        self.start, self.uncovered_cut = self.durable_start, self.cut_point
        self._cut_where_it_is_bad()
        told = LeaderEpochs(self.epochs)
        told.truncate_from_start(Offset(self.start))
        epochs = LeaderEpochs(told.entries[:1])  # only the checkpoint has the epochs of deleted records
        if epochs.entries and epochs.entries[0].start_offset > self.start:
            epochs = LeaderEpochs()
        for batch in self.batches:
            epochs.assign(LeaderEpoch(batch.envelope.leader_epoch), Offset(batch.envelope.base_offset))
        for entry in self.epochs:
            if entry.start_offset == self.end:
                epochs.assign(entry.leader_epoch, entry.start_offset)
        if self.epochs and not epochs.entries:
            epochs.begin_at(Offset(self.end), self.epochs[0].leader_epoch)
        epochs.truncate_from_start(Offset(self.start))
        self.epochs = tuple(epochs.entries)  # an entry above the log end is gone, even after records are fetched again
        fresh, self.fresh = self.fresh, False
        return RecoveredLog(
            Offset(self.start),
            Offset(self.end),
            Offset(self.flushed),
            Offset(self.high_watermark),
            epochs.entries,
            self.producers(),
            damaged=self._find_damage(),
            cut=self.cut,
            fresh=fresh,
        )


class Machine:
    """Outlives the processes of one broker."""

    def __init__(self, broker: int, dice: random.Random) -> None:
        self.directory_id = f"directory-{broker}"
        self.boot = 1
        self.path: Path | None = None
        """The log directory, in worlds with real files."""
        self.incarnation: tuple[int, int] | None = None
        """(boot, broker epoch) as the last confirmed registration wrote it, with fsync."""
        self.logs: dict[TopicPartition, StoredLog] = {}
        self.busy_until_ms = 0
        self.slow_until_ms = 0
        self.failed = False
        """An operation failed: the directory is offline until the process restarts."""
        self.failing = self.failing_syncs = self.failing_reads = False
        """Every write, sync and read is refused."""
        self.full = False
        """There is no space for an append."""
        self.lost = False
        """A power loss removed records, and no process has registered since."""
        self.lost_at_epoch = -1
        """Records that this broker acknowledged under this broker epoch, or an earlier one, may be missing."""
        self._dice = dice

    @property
    def boot_id(self) -> str:
        return f"boot-{self.boot}"

    def log(self, partition: TopicPartition, identity: ReplicaIdentity) -> StoredLog:
        """The log of a partition, opened or created."""
        return self.logs.setdefault(partition, StoredLog(identity))

    @property
    def ails(self) -> bool:
        return self.failing or self.failing_syncs or self.failing_reads

    def repair(self) -> None:
        self.failing = self.failing_syncs = self.failing_reads = False

    def registered(self, broker_epoch: int) -> None:
        """After a power loss, records acknowledged under earlier broker epochs count as lost, if any record is lost."""
        if self.lost:
            self.lost, self.lost_at_epoch = False, broker_epoch - 1

    def keeps_promise_of(self, broker_epoch: int) -> bool:
        """No record of a damaged log is expected: the controller learns of the damage at an election (rule T5)."""
        if self.lost or broker_epoch <= self.lost_at_epoch:
            return False
        for log in self.logs.values():  # noqa: SIM110 - asked after each event: half the time of a generator
            if log.is_damaged:
                return False
        return True

    def lose_power(self, *, counted_on: bool) -> int:
        """Cut the power; returns the number of lost records. `counted_on`: acknowledgements did not wait for syncs."""
        self.boot += 1
        lost = 0
        for log in self.logs.values():
            log.start = log.durable_start  # a start that no checkpoint has is lost
            kept = self._dice.randint(log.flushed, log.end)
            before, high_watermark = log.end, log.high_watermark
            log.truncate(kept)
            log.flushed = log.end
            log.high_watermark = high_watermark  # its file was synced, and stays
            lost += before - log.end
        self.lost = self.lost or (counted_on and lost > 0)
        return lost
