"""The machine under a broker: its logs in memory, what of them was synced, its boot, and what ails the disk.

A killed process leaves everything it wrote; a power loss takes what was not synced, cut somewhere, the last batch torn.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from tidemark.core.events import RecoveredLog
from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.core.producer_state import ProducerStates
from tidemark.model import EpochEntry, LeaderEpoch, Offset, ReplicaIdentity, TopicPartition
from tidemark.record.envelope import Batch, Envelope, parse_envelope, stamped
from tidemark.record.payload import build_batch, from_columns


def make_batch(value: str, *, records: int = 1, sequence: int = -1, producer_id: int = -1) -> Batch:
    """An unstamped batch; `value` stands for its payload."""
    producer_epoch = 0 if producer_id >= 0 else -1
    envelope = Envelope(0, -1, 0, 100, 0, 1, 0, 0, records, records - 1, sequence, 0, producer_id, producer_epoch, 0)
    return Batch(envelope, value.encode())


_VALUES: dict[int, str] = {}
"""Of real batches, by the CRC of what no stamp changes."""


def make_real_batch(value: str, *, records: int = 1, sequence: int = -1, producer_id: int = -1) -> Batch:
    """As `make_batch`, as the bytes that a producer sends."""
    rows = from_columns(keys=None, values=[value.encode()] * records, timestamps_us=range(records))
    epoch = 0 if producer_id >= 0 else -1
    data = bytes(build_batch(rows, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence))
    batch = Batch(parse_envelope(data), data)
    _VALUES[batch.envelope.crc] = value
    return batch


def value_of(batch: Batch) -> str:
    """What a batch stands for."""
    return _VALUES[batch.envelope.crc] if batch.envelope.crc else batch.data.decode()


def stamp_at(batch: Batch, base_offset: int, leader_epoch: LeaderEpoch) -> Batch:
    """As a leader's append does it."""
    if batch.envelope.crc:
        return stamped(batch, base_offset=base_offset, leader_epoch=leader_epoch)
    return Batch(batch.envelope._replace(base_offset=base_offset, leader_epoch=leader_epoch), batch.data)


@dataclass
class StoredLog:
    """One replica's log; offsets are exclusive ends. `values` has one entry for each record."""

    identity: ReplicaIdentity
    batches: list[Batch] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    start: int = 0
    flushed: int = 0
    epochs: tuple[EpochEntry, ...] = ()
    high_watermark: int = 0
    fresh: bool = True
    cuts: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.values)

    def append(self, batches: tuple[Batch, ...], leader_epoch: LeaderEpoch, *, stamp: bool) -> None:
        for batch in batches:
            written = batch
            if stamp:
                written = stamp_at(batch, self.end, leader_epoch)
            assert written.envelope.base_offset == self.end, "logs have no gaps"
            self.batches.append(written)
            value = value_of(batch)
            self.values.extend(f"{value}.{n}" for n in range(batch.envelope.last_offset_delta + 1))

    def truncate(self, end: int) -> None:
        self.cuts += 1
        while self.batches and self.batches[-1].envelope.next_offset > end:
            self.batches.pop()
        kept = self.batches[-1].envelope.next_offset if self.batches else self.start
        del self.values[kept - self.start :]
        self.flushed = min(self.flushed, self.end)
        self.high_watermark = min(self.high_watermark, self.end)

    def reset(self, start: int) -> None:
        self.cuts += 1
        self.batches.clear()
        self.values.clear()
        self.start = self.flushed = self.high_watermark = start
        self.epochs = ()

    def read(self, offset: int, end_offset: int, max_bytes: int) -> tuple[Batch, ...]:
        found: list[Batch] = []
        size = 0
        for batch in self.batches:
            envelope = batch.envelope
            inside = offset < envelope.next_offset and envelope.next_offset <= end_offset
            if inside and (not found or size < max_bytes):
                found.append(batch)
                size += envelope.batch_length
        return tuple(found)

    def producers(self) -> ProducerStates:
        states = ProducerStates()
        for batch in self.batches:
            if batch.envelope.producer_id >= 0:
                states.observe(batch.envelope)
        return states

    def recovered(self) -> RecoveredLog:
        """As storage opens it: the batches carry the truth about epochs, the checkpoint what lies past their end."""
        epochs = LeaderEpochs()
        for batch in self.batches:
            epochs.assign(LeaderEpoch(batch.envelope.leader_epoch), Offset(batch.envelope.base_offset))
        for entry in self.epochs:
            if entry.start_offset == self.end:
                epochs.assign(entry.leader_epoch, entry.start_offset)
        damaged = f"ends at {self.end}, below {self.high_watermark}" if self.high_watermark > self.end else None
        fresh, self.fresh = self.fresh, False
        return RecoveredLog(
            Offset(self.start),
            Offset(self.end),
            Offset(self.flushed),
            Offset(self.high_watermark),
            epochs.entries,
            self.producers(),
            damaged=damaged,
            fresh=fresh,
        )


class Machine:
    """Outlives the processes of one broker."""

    def __init__(self, broker: int, dice: random.Random) -> None:
        self.directory_id = f"directory-{broker}"
        self.boot = 1
        self.path: Path | None = None
        """Of the log directory, in worlds with real files."""
        self.incarnation: tuple[int, int] | None = None
        """(boot, broker epoch) as the last confirmed registration wrote it, with fsync."""
        self.logs: dict[TopicPartition, StoredLog] = {}
        self.busy_until_ms = 0
        self.slow_until_ms = 0
        self.failed = False
        """An operation failed: the directory is offline until the process starts anew."""
        self.failing = False
        self.full = False
        """Appends are refused, and nothing else."""
        self.lost = False
        """Records went with the power, and no process has registered since."""
        self.lost_at_epoch = -1
        """What this broker promised up to and under this broker epoch may be gone."""
        self._dice = dice

    @property
    def boot_id(self) -> str:
        return f"boot-{self.boot}"

    def log(self, partition: TopicPartition, identity: ReplicaIdentity) -> StoredLog:
        """Open or make."""
        return self.logs.setdefault(partition, StoredLog(identity))

    def registered(self, broker_epoch: int) -> None:
        """What was promised under earlier broker epochs went with the power, where any went."""
        if self.lost:
            self.lost, self.lost_at_epoch = False, broker_epoch - 1

    def keeps_promise_of(self, broker_epoch: int) -> bool:
        return not self.lost and broker_epoch > self.lost_at_epoch

    def lose_power(self, *, counted_on: bool) -> int:
        """Gives how many records went; `counted_on`: acknowledgements did not wait for the disk."""
        self.boot += 1
        lost = 0
        for log in self.logs.values():
            kept = self._dice.randint(log.flushed, log.end)
            before, high_watermark = log.end, log.high_watermark
            log.truncate(kept)
            log.flushed = log.end
            log.high_watermark = high_watermark  # it was written with a sync, and stays
            lost += before - log.end
        self.lost = self.lost or (counted_on and lost > 0)
        return lost
