# SPDX-License-Identifier: Apache-2.0
"""The other replicas of a damaged log, as sources of its batches (rule T6).

A batch is the same on every replica that has a batch of the same leader epoch at the same offset. So a batch of any
replica may replace a damaged one. Its leader epoch must be the one in the leader epoch cache of the damaged replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.model import NO_EPOCH, BrokerId, ErrorCode, Offset, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.record.envelope import Batch
from tidemark.storage.log.segment_repair import DamagedRange, Patch


class ReplicaPart(NamedTuple):
    """The batches that another broker read from its replica; the end offset is exclusive.

    Attributes:
        clean_offset: that replica may lack records below this offset (exclusive), which compaction removed.
    """

    log_start_offset: int
    log_end_offset: int
    clean_offset: int
    batches: tuple[Batch, ...]


class DamagedLog(NamedTuple):
    """The replica to repair, with the facts that its sources are checked against; ends of ranges are exclusive.

    Attributes:
        holes_until: below this offset the log may have holes: compaction (rule L1), or the log start.
        clean_point: this replica has removed the records below this offset that later tombstones delete.
    """

    identity: ReplicaIdentity
    epochs: LeaderEpochs
    log_start_offset: int
    log_end_offset: int
    holes_until: int
    clean_point: int


class ReplicaPeers(Protocol):
    """Calls to the other brokers, for repairs."""

    def sources(self, partition: TopicPartition) -> Sequence[BrokerId]:
        """Live brokers with a replica of the partition, without this one: the leader, then the ISR, then the others."""

    async def read(
        self, broker: BrokerId, partition: TopicPartition, identity: ReplicaIdentity, start: int, end: int
    ) -> ReplicaPart:
        """Whole batches from the one that holds `start` on, below `end` (exclusive), checked on both sides.

        Raises:
            TidemarkError: CORRUPT_BATCH if that replica is damaged, too; the errors of ReadReplica and of the call.
        """


class RepairSources:
    """Reads the batches of damaged ranges of one replica.

    Attributes:
        refusals: the reason for each broker that had no good copy.
        compacted_further: a broker that may have removed tombstones whose deleted records are still in the damaged log.
    """

    def __init__(self, peers: ReplicaPeers, partition: TopicPartition, log: DamagedLog) -> None:
        self._peers = peers
        self._partition = partition
        self._log = log
        self.refusals: dict[BrokerId, str] = {}
        self.compacted_further: BrokerId | None = None

    async def patch(self, damaged: DamagedRange) -> Patch:
        """The batches of the range, from the first replica that has them all; without batches if no replica has."""
        for broker in self._peers.sources(self._partition):
            try:
                found, clean_offset = await self._batches(broker, damaged)
                self._check_compaction(broker, damaged, found, clean_offset)
                return Patch(damaged, found)
            except TidemarkError as error:
                self.refusals[broker] = error.message
        return Patch(damaged, None)

    async def can_read(self, start: int, end: int) -> bool:
        """Whether a replica has a good batch at `start`; it may give more batches, below `end`."""
        for broker in self._peers.sources(self._partition):
            try:
                if (await self._peers.read(broker, self._partition, self._log.identity, start, end)).batches:
                    return True
            except TidemarkError as error:
                self.refusals[broker] = error.message
        return False

    async def contents(self, broker: BrokerId, damaged: DamagedRange) -> Patch:
        """The batches of that broker for the range, even if its replica is compacted further.

        Raises:
            TidemarkError: the broker has no valid batches of the range, or does not answer.
        """
        return Patch(damaged, (await self._batches(broker, damaged))[0])

    async def _batches(self, broker: BrokerId, damaged: DamagedRange) -> tuple[list[Batch], int]:
        """The batches, and the cleaner point of that replica."""
        found: list[Batch] = []
        at, end, clean_offset = damaged.start_offset, damaged.end_offset, 0
        while at < end:
            part = await self._peers.read(broker, self._partition, self._log.identity, at, end)
            if part.log_start_offset > max(at, self._log.log_start_offset) or part.log_end_offset < end:
                raise _unfit(f"its log has the offsets [{part.log_start_offset}, {part.log_end_offset}) only")
            clean_offset = max(clean_offset, part.clean_offset)
            for batch in part.batches:
                self._check(batch, at, end)
                at = batch.envelope.next_offset
            found += part.batches
            if not part.batches:
                break
        if at < end and end > self._log.holes_until:
            raise _unfit(f"it has no record at offset {at}")
        self._check_size(damaged, found)
        if clean_offset > self._log.log_end_offset:
            raise _unfit(f"it is compacted up to offset {clean_offset}, past the end of this log")
        return found, clean_offset

    def _check(self, batch: Batch, at: int, end: int) -> None:
        envelope = batch.envelope
        base = envelope.base_offset
        if base < at or envelope.next_offset > end or (base > at and base > self._log.holes_until):
            raise _unfit(f"its batch at offset {base} does not fit the offsets [{at}, {end})")
        epoch = self._log.epochs.epoch_at(Offset(base))
        if epoch not in (NO_EPOCH, envelope.leader_epoch):
            raise _unfit(f"its batch at offset {base} has leader epoch {envelope.leader_epoch}")

    def _check_size(self, damaged: DamagedRange, found: Sequence[Batch]) -> None:
        """Without compaction a batch has the same bytes on every replica (rule E2)."""
        size_bytes = sum(batch.envelope.batch_length for batch in found)
        stored_bytes = damaged.end_position - damaged.start_position
        if damaged.start_offset >= self._log.holes_until and size_bytes != stored_bytes:
            raise _unfit(f"its batches have {size_bytes} bytes, the damaged ones {stored_bytes}")

    def _check_compaction(
        self, broker: BrokerId, damaged: DamagedRange, found: Sequence[Batch], clean_offset: int
    ) -> None:
        """Deleted records must not reappear in this log because the patch lacks their tombstone (rule L1)."""
        is_complete = sum(one.envelope.record_count for one in found) == damaged.end_offset - damaged.start_offset
        first = max(damaged.start_offset, self._log.log_start_offset)
        if not is_complete and clean_offset > first and self._log.clean_point < damaged.end_offset:
            self.compacted_further = broker
            raise _unfit(
                f"it is compacted up to offset {clean_offset}, this log up to {self._log.clean_point}: "
                "it may lack a tombstone of these offsets"
            )


def _unfit(reason: str) -> TidemarkError:
    return TidemarkError(ErrorCode.INVALID_BATCH, reason)
