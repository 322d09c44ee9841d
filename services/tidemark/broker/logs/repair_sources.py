# SPDX-License-Identifier: Apache-2.0
"""The other replicas of a damaged log, as sources of its batches (rule T6).

A batch is the same on every replica that has a batch of the same leader epoch at the same offset. So a batch of any
replica may replace a damaged one, if its leader epoch is the one in the leader epoch cache of the damaged replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.model import NO_EPOCH, BrokerId, ErrorCode, Offset, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.record.envelope import Batch
from tidemark.storage.log.segment_repair import DamagedRange, Patch


class ReplicaPart(NamedTuple):
    """The batches that another broker read from its replica; the end offset is exclusive."""

    log_start_offset: int
    log_end_offset: int
    batches: tuple[Batch, ...]


class ReplicaPeers(Protocol):
    """The other brokers, as a repair asks them."""

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
        refusals: for each broker that could not help, the reason.
    """

    def __init__(
        self,
        peers: ReplicaPeers,
        partition: TopicPartition,
        identity: ReplicaIdentity,
        epochs: LeaderEpochs,
        *,
        may_hold_holes: bool,
    ) -> None:
        self._peers = peers
        self._partition = partition
        self._identity = identity
        self._epochs = epochs
        self._may_hold_holes = may_hold_holes
        self.refusals: dict[BrokerId, str] = {}

    async def patch(self, damaged: DamagedRange) -> Patch | None:
        """The batches of the range, from the first replica that has them all; None if no replica has."""
        for broker in self._peers.sources(self._partition):
            try:
                return Patch(damaged, await self._batches(broker, damaged))
            except TidemarkError as error:
                self.refusals[broker] = error.message
        return None

    async def _batches(self, broker: BrokerId, damaged: DamagedRange) -> list[Batch]:
        found: list[Batch] = []
        at, end = damaged.start_offset, damaged.end_offset
        while at < end:
            part = await self._peers.read(broker, self._partition, self._identity, at, end)
            if part.log_start_offset > at or part.log_end_offset < end:
                raise _unfit(f"its log has the offsets [{part.log_start_offset}, {part.log_end_offset}) only")
            for batch in part.batches:
                self._check(batch, at, end)
                at = batch.envelope.next_offset
            found += part.batches
            if not part.batches:
                break
        if at < end and not self._may_hold_holes:
            raise _unfit(f"it has no record at offset {at}")
        return found

    def _check(self, batch: Batch, at: int, end: int) -> None:
        envelope = batch.envelope
        gap = envelope.base_offset - at
        if gap < 0 or envelope.next_offset > end or (gap and not self._may_hold_holes):
            raise _unfit(f"its batch at offset {envelope.base_offset} does not fit the offsets [{at}, {end})")
        epoch = self._epochs.epoch_at(Offset(envelope.base_offset))
        if epoch not in (NO_EPOCH, envelope.leader_epoch):
            raise _unfit(f"its batch at offset {envelope.base_offset} has leader epoch {envelope.leader_epoch}")


def _unfit(reason: str) -> TidemarkError:
    return TidemarkError(ErrorCode.INVALID_BATCH, reason)
