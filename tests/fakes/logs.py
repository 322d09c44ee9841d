# SPDX-License-Identifier: Apache-2.0
"""Logs in memory, on which the simulator runs brokers; they pass the contract suite of the real ones.

A `MemoryLogs` outlives its logs as a disk does: `stop_process` is a kill, `lose_power` also loses unsynced bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.core.producer_state import ProducerStates
from tidemark.core.replication.events import RecoveredLog
from tidemark.model import (
    NO_EPOCH,
    EpochEntry,
    ErrorCode,
    LeaderEpoch,
    Offset,
    ReplicaIdentity,
    TidemarkError,
    TopicPartition,
)
from tidemark.ports import RetentionLimits, TakeParts, TimestampOffset, no_check
from tidemark.record.envelope import Batch, stamped
from tidemark.record.payload import with_offsets
from tidemark.record.transactions import AbortedTransaction


@dataclass
class StoredReplica:
    """The bytes that a disk holds of one replica; a power loss leaves those below `flushed` (exclusive)."""

    identity: ReplicaIdentity
    start: int = 0
    end: int = 0
    flushed: int = 0
    batches: list[Batch] = field(default_factory=list)
    next_offsets: list[int] = field(default_factory=list)
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    high_watermark: int = 0
    damaged: str | None = None
    damage_over: bool = False

    def cut(self, end_offset: int) -> None:
        """Drop every batch with a record at or past `end_offset`; the log then ends with its last batch."""
        keep = bisect_right(self.next_offsets, end_offset)
        if keep < len(self.batches):
            end_offset = min(end_offset, self.batches[keep].envelope.base_offset)
        end = max(self.next_offsets[keep - 1] if keep else 0, min(self.start, end_offset))
        del self.batches[keep:], self.next_offsets[keep:]
        self.end = end
        self.start = min(self.start, end)
        self.flushed = min(self.flushed, end)
        self.high_watermark = min(self.high_watermark, end)
        self.epochs.truncate_from_end(Offset(end))

    def producers(self) -> ProducerStates:
        states = ProducerStates()
        for batch in self.batches:
            if batch.envelope.producer_id >= 0:
                states.observe_batch(batch)
        return states


class MemoryLog:
    """The `Log` port over a `StoredReplica`."""

    def __init__(self, stored: StoredReplica) -> None:
        self._stored = stored
        self._closed = False

    @property
    def log_start_offset(self) -> Offset:
        return Offset(self._stored.start)

    @property
    def log_end_offset(self) -> Offset:
        return Offset(self._stored.end)

    def append(
        self, batches: Sequence[Batch], *, base_offset: Offset, leader_epoch: LeaderEpoch, stamp: bool
    ) -> Offset:
        self._check_usable()
        stored = self._stored
        assert not stamp or base_offset == stored.end
        for batch in batches:
            written = stamped(batch, base_offset=stored.end, leader_epoch=leader_epoch) if stamp else batch
            envelope = written.envelope
            spans_start = not stored.batches and stored.end == stored.start < envelope.next_offset
            assert envelope.base_offset >= stored.end or spans_start
            stored.batches.append(written)
            stored.next_offsets.append(envelope.next_offset)
            stored.end = envelope.next_offset
            stored.epochs.assign(LeaderEpoch(envelope.leader_epoch), Offset(envelope.base_offset))
        return Offset(stored.end)

    def read(self, offset: Offset, *, end_offset: int, max_bytes: int, cached_only: bool = False) -> bytes | None:
        self._check_usable()
        stored = self._stored
        if offset < stored.start or offset > stored.end:
            raise TidemarkError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside the log, which holds [{stored.start}, {stored.end})",
                {"log_start_offset": str(stored.start), "log_end_offset": str(stored.end)},
            )
        taken: list[bytes] = []
        size = 0
        for batch in stored.batches[bisect_right(stored.next_offsets, offset) :]:
            fits = not taken or size + len(batch.data) <= max_bytes
            if offset >= end_offset or batch.envelope.next_offset > end_offset or not fits:
                break
            taken.append(batch.data)
            size += len(batch.data)
        return b"".join(taken)

    def read_parts(self, offset: Offset, *, end_offset: int, max_bytes: int, take: TakeParts) -> bytes:
        data = self.read(offset, end_offset=end_offset, max_bytes=max_bytes) or b""
        return take(lambda at, length: data[at : at + length], len(data))

    def aborted_transactions(self, start_offset: Offset, end_offset: Offset) -> Sequence[AbortedTransaction]:
        states, found = ProducerStates(), []
        for batch in self._stored.batches:
            ended = states.observe_batch(batch)
            overlaps = ended is not None and ended.first_offset < end_offset and ended.marker_offset > start_offset
            if ended is not None and overlaps and not ended.commit:
                found.append(AbortedTransaction(ended.producer_id, ended.first_offset, ended.marker_offset))
        return found

    def truncate(self, end_offset: Offset) -> ProducerStates:
        self._check_usable()
        if end_offset < self._stored.start:
            self.reset(end_offset)
        else:
            self._stored.cut(end_offset)
        return self._stored.producers()

    def reset(self, start_offset: Offset, epoch_below: LeaderEpoch = NO_EPOCH) -> None:
        self._check_usable()
        stored = self._stored
        stored.cut(0)
        stored.start = stored.end = stored.flushed = start_offset
        stored.epochs.begin_at(start_offset, epoch_below)

    def trim(self, start_offset: Offset) -> None:
        self._check_usable()
        stored = self._stored
        assert start_offset <= stored.end
        stored.start = max(stored.start, start_offset)
        gone = bisect_right(stored.next_offsets, stored.start)
        del stored.batches[:gone], stored.next_offsets[:gone]

    def may_roll_by_time(self, now_ms: int) -> bool:
        return False

    def roll_by_time(self, now_ms: int) -> None:
        """There are no segments in memory."""

    def expired_until(self, limits: RetentionLimits, *, high_watermark: Offset, now_ms: int) -> Offset:
        return Offset(self._stored.start)

    def end_damage(self) -> None:
        self._stored.damage_over = True

    def save_epochs(self, entries: Sequence[EpochEntry]) -> None:
        self._check_usable()
        self._stored.epochs = LeaderEpochs(entries)

    def flush(self) -> Offset:
        self._check_usable()
        self._stored.flushed = self._stored.end
        return Offset(self._stored.end)

    def offset_for_timestamp(
        self, timestamp_us: int, *, end_offset: Offset, check: Callable[[], None] = no_check
    ) -> TimestampOffset | None:
        for batch in self._stored.batches:
            check()
            envelope = batch.envelope
            if envelope.next_offset > end_offset:
                return None
            if envelope.max_timestamp_us < timestamp_us:
                continue
            rows = with_offsets(batch)
            times = pc.cast(rows.column("timestamp"), pa.int64()).to_pylist()
            for time_us, offset in zip(times, rows.column("offset").to_pylist(), strict=True):
                if time_us >= timestamp_us and offset >= self._stored.start:
                    return TimestampOffset(time_us, Offset(offset))
        return None

    def max_timestamp(self, *, end_offset: Offset, check: Callable[[], None] = no_check) -> TimestampOffset | None:
        below = [batch.envelope for batch in self._stored.batches if batch.envelope.next_offset <= end_offset]
        if not below:
            return None
        newest = max(envelope.max_timestamp_us for envelope in below)
        return self.offset_for_timestamp(newest, end_offset=end_offset, check=check)

    def size_bytes(self) -> int:
        return sum(len(batch.data) for batch in self._stored.batches)

    def configure(self, configs: Mapping[str, str]) -> None:
        """Settings have no effect on logs in memory."""

    def close(self) -> None:
        self._closed = True

    def _check_usable(self) -> None:
        if self._closed:
            raise TidemarkError(ErrorCode.STORAGE_ERROR, "the log is closed")


class MemoryLogs:
    """The `Logs` port; keep the object to "restart" on the same disk."""

    def __init__(self, directory_ids: Sequence[str] = ("memory",)) -> None:
        self._directory_ids = tuple(directory_ids)
        self._stored: dict[TopicPartition, StoredReplica] = {}
        self._logs: dict[TopicPartition, MemoryLog] = {}
        self.set_aside_replicas: list[tuple[TopicPartition, str, StoredReplica]] = []

    @property
    def directory_ids(self) -> tuple[str, ...]:
        return self._directory_ids

    def replicas(self) -> Mapping[TopicPartition, ReplicaIdentity]:
        return {partition: stored.identity for partition, stored in self._stored.items()}

    def directory_of(self, partition: TopicPartition) -> int | None:
        return 0 if partition in self._stored else None

    def open(
        self, partition: TopicPartition, identity: ReplicaIdentity, configs: Mapping[str, str]
    ) -> tuple[MemoryLog, RecoveredLog]:
        found = self._stored.get(partition)
        if found is not None and found.identity != identity:
            self.set_aside(partition, "stray")
            found = None
        stored = self._stored.setdefault(partition, found or StoredReplica(identity))
        if partition in self._logs:
            self._logs[partition].close()
        log = self._logs[partition] = MemoryLog(stored)
        if stored.high_watermark > stored.end:
            stored.damaged = f"the log ends at {stored.end}, below its high watermark {stored.high_watermark}"
        stored.damage_over = False
        return log, RecoveredLog(
            log_start_offset=Offset(stored.start),
            log_end_offset=Offset(stored.end),
            flushed_offset=Offset(stored.flushed),
            high_watermark=Offset(stored.high_watermark),
            epochs=stored.epochs.entries,
            producers=stored.producers(),
            damaged=stored.damaged,
            fresh=found is None,
        )

    def set_aside(self, partition: TopicPartition, suffix: str) -> None:
        assert suffix in ("stray", "delete")
        stored = self._stored.pop(partition, None)
        if stored is not None:
            self.set_aside_replicas.append((partition, suffix, stored))
        log = self._logs.pop(partition, None)
        if log is not None:
            log.close()

    def checkpoint(self, high_watermarks: Mapping[TopicPartition, Offset]) -> None:
        for partition, stored in self._stored.items():
            stored.flushed = stored.end
            if stored.damage_over:
                stored.damaged = None
            stored.high_watermark = min(high_watermarks.get(partition, stored.high_watermark), stored.end)

    def stop_process(self) -> None:
        """Kill the broker process; the page cache stays."""
        for log in self._logs.values():
            log.close()
        self._logs.clear()

    def lose_power(self) -> None:
        """Cut the power: unflushed records are lost; a checkpointed HW stays."""
        self.stop_process()
        for stored in self._stored.values():
            high_watermark = stored.high_watermark
            stored.cut(max(stored.flushed, stored.start))
            stored.high_watermark = high_watermark
