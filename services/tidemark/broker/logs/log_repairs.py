# SPDX-License-Identifier: Apache-2.0
"""Checks segments that a reader or the scrubber suspects, and replaces damaged batches by those of another replica
(rule T6).

The replica stays in its role. A repair changes one segment, and only below the high watermark: the batches there are
committed, so every in-sync replica has them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from tidemark.broker.logs.repair_sources import RepairSources, ReplicaPeers
from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.model import ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.ports import Scheduler, Signal
from tidemark.storage.log.segment_repair import DamagedRange, NotJoined, Patch

_AGAIN_MS: Final = 30_000
"""Interval at which damage without a good copy is looked at again: another replica may be back."""
REPAIR_MS: Final = 5_000
"""Time that a request waits for a repair."""
_ROLL_MS: Final = 20
_ROLLS_MAX: Final = 100
"""How often, at intervals of `_ROLL_MS`, a repair looks whether the damaged active segment has been rolled."""

_log = logging.getLogger(__name__)


class SuspectSegment(Protocol):
    """A sealed segment that may be damaged; the calls that read or write block."""

    @property
    def base_offset(self) -> int:
        """First offset."""

    def find_damage(self) -> list[DamagedRange]:
        """Check every batch. Raises OSError."""

    def replace(self, patches: Sequence[Patch]) -> bool:
        """Put the patches in place of the damaged ranges; False where the log has changed meanwhile.

        Raises:
            NotJoined: the result would not be whole; nothing was changed.
            TidemarkError: DISK_FULL, STORAGE_ERROR.
            OSError: a read failed.
        """


class SuspectLog(Protocol):
    """An open log that may be damaged, as of one instant."""

    @property
    def identity(self) -> ReplicaIdentity:
        """Of the replica."""

    @property
    def high_watermark(self) -> int:
        """Exclusive."""

    @property
    def epochs(self) -> LeaderEpochs:
        """The leader epoch cache."""

    @property
    def may_hold_holes(self) -> bool:
        """Compaction may have left holes in the log (rule L1)."""

    def is_sealed(self, offset: int) -> bool:
        """Whether the offset lies below the active segment."""

    def segment(self, offset: int) -> SuspectSegment | None:
        """The sealed segment with that offset, if all of it is below the high watermark. Blocks."""


class SuspectLogs(Protocol):
    """The open logs of this broker."""

    def find(self, partition: TopicPartition) -> SuspectLog | None:
        """The log of a replica; None while it is not open."""

    def roll(self, partition: TopicPartition) -> None:
        """Roll the active segment, behind the appends that are queued."""


class RepairMetrics(Protocol):
    """The figures of repairs, for operators."""

    def found(self, count: int) -> None:
        """Damaged ranges were found."""

    def repaired(self, count: int) -> None:
        """Damaged ranges were replaced."""

    def unrepaired(self, count: int) -> None:
        """The number of damaged ranges that have no good copy now."""


class _Running:
    """A repair of a partition at an offset, and whether the segment is whole after it."""

    def __init__(self, offset: int, ended: Signal) -> None:
        self.offset = offset
        self.ended = ended
        self.whole = False


class LogRepairs:
    """At most one repair of a partition runs at a time; requests for the same offset share its result."""

    def __init__(
        self,
        logs: SuspectLogs,
        peers: ReplicaPeers,
        scheduler: Scheduler,
        metrics: RepairMetrics,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._logs = logs
        self._peers = peers
        self._scheduler = scheduler
        self._metrics = metrics
        self._fail = fail
        self._running: dict[TopicPartition, _Running] = {}
        self._unrepaired: dict[TopicPartition, dict[int, int]] = {}
        """By partition: first offset of a damaged segment without a good copy, and its number of damaged ranges."""

    def start(self) -> None:
        """Look at unrepaired damage again from time to time."""
        self._scheduler.spawn(self._again(), self._fail)

    async def stop(self) -> None:
        """Cancel the repairs; a segment that was not swapped in is discarded."""
        await self._scheduler.stop()

    def suspect(self, partition: TopicPartition, offset: int) -> None:
        """Check the segment that holds `offset` soon, and repair it; not while another repair of the partition runs."""
        if partition not in self._running:
            self._begin(partition, offset)

    async def repair(self, partition: TopicPartition, offset: int, *, timeout_ms: int = REPAIR_MS) -> bool:
        """Check the segment that holds `offset`, and repair it. After the timeout the repair continues.

        Returns:
            Whether every batch of that segment is good now. False also if the offset is not committed here.
        """
        running = self._running.get(partition)
        if running is not None and running.offset != offset:
            await self._scheduler.wait(running.ended, timeout_ms)
            running = self._running.get(partition)
        if running is None:
            running = self._begin(partition, offset)
        await self._scheduler.wait(running.ended, timeout_ms)
        return running.offset == offset and running.whole

    def is_running(self, partition: TopicPartition) -> bool:
        """Whether a repair of the partition goes on."""
        return partition in self._running

    def _begin(self, partition: TopicPartition, offset: int) -> _Running:
        running = self._running[partition] = _Running(offset, self._scheduler.signal())
        self._scheduler.spawn(self._run(partition, running), self._fail)
        return running

    async def _run(self, partition: TopicPartition, running: _Running) -> None:
        try:
            running.whole = await self._repair(partition, running.offset)
        except (TidemarkError, OSError) as error:  # the directory fails, or the segment was removed meanwhile
            why = error.message if isinstance(error, TidemarkError) else str(error)
            _log.error("a log could not be repaired", extra={"partition": str(partition), "why": why})
        finally:
            del self._running[partition]
            running.ended.set()

    async def _again(self) -> None:
        while True:
            await self._scheduler.sleep_ms(_AGAIN_MS)
            for partition, segments in list(self._unrepaired.items()):
                if self._logs.find(partition) is None:
                    self._note_unrepaired(partition, None, 0)
                for offset in list(segments):
                    await self.repair(partition, offset)

    async def _repair(self, partition: TopicPartition, offset: int) -> bool:
        log = await self._sealed(partition, offset)
        segment = await self._scheduler.in_thread(partial(log.segment, offset)) if log is not None else None
        if log is None or segment is None:
            self._note_unrepaired(partition, offset, 0)  # trimmed, truncated or closed
            return False
        damaged = await self._scheduler.in_thread(segment.find_damage)
        if damaged:
            self._metrics.found(len(damaged))
            facts = {"partition": str(partition), "offsets": _listed(damaged), "why": damaged[0].reason}
            _log.error("damaged batches were found: they are fetched from another replica", extra=facts)
            if await self._replace(partition, log, segment, damaged):
                self._metrics.repaired(len(damaged))
                _log.warning("damaged batches were replaced", extra=facts)
                damaged = []
        self._note_unrepaired(partition, segment.base_offset, len(damaged))
        return not damaged

    async def _sealed(self, partition: TopicPartition, offset: int) -> SuspectLog | None:
        """The log, once the committed offset lies in a sealed segment; an active segment is rolled first."""
        for count in range(_ROLLS_MAX):
            log = self._logs.find(partition)
            if log is None or offset >= log.high_watermark:
                return None
            if log.is_sealed(offset):
                return log
            if count == 0:
                self._logs.roll(partition)
            await self._scheduler.sleep_ms(_ROLL_MS)
        return None

    async def _replace(
        self, partition: TopicPartition, log: SuspectLog, segment: SuspectSegment, damaged: Sequence[DamagedRange]
    ) -> bool:
        """Whether the damaged ranges were replaced: another replica has all their batches."""
        sources = RepairSources(self._peers, partition, log.identity, log.epochs, may_hold_holes=log.may_hold_holes)
        patches: list[Patch] = []
        for one in damaged:
            patch = await sources.patch(one)
            if patch is None:
                asked = {str(broker): reason for broker, reason in sources.refusals.items()}
                extra = {"partition": str(partition), "offsets": _listed([one]), "asked": asked}
                _log.error("no replica has a good copy of damaged batches", extra=extra)
                return False
            patches.append(patch)
        try:
            return await self._scheduler.in_thread(partial(segment.replace, patches))
        except NotJoined as error:
            extra = {"partition": str(partition), "offsets": _listed(damaged), "why": str(error)}
            _log.error("the batches of another replica do not fit this log", extra=extra)
            return False

    def _note_unrepaired(self, partition: TopicPartition, base_offset: int | None, count: int) -> None:
        """Note how many ranges of a segment are damaged; with None those of the whole partition."""
        known = self._unrepaired.setdefault(partition, {})
        if base_offset is None:
            known.clear()
        elif count:
            known[base_offset] = count
        else:
            known.pop(base_offset, None)
        if not known:
            del self._unrepaired[partition]
        self._metrics.unrepaired(sum(sum(one.values()) for one in self._unrepaired.values()))


def _listed(ranges: Sequence[DamagedRange]) -> str:
    return ", ".join(f"[{one.start_offset}, {one.end_offset})" for one in ranges)
