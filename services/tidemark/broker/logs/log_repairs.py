# SPDX-License-Identifier: Apache-2.0
"""Checks segments that a reader or the scrubber suspects, and replaces damaged batches by batches of another replica
(rule T6).

The replica stays in its role while it can be repaired. A repair changes one segment, and only below the high watermark:
the batches there are committed, so every in-sync replica has them. A leader resigns where another replica has a batch
and this disk cannot store it. A leader also resigns where a damaged batch is not committed, so that a new leader makes
this replica truncate the batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from tidemark.broker.logs.repair_sources import DamagedLog, RepairSources, ReplicaPeers
from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.model import Offset, ReplicaIdentity, TidemarkError, TopicPartition
from tidemark.ports import Scheduler, Signal
from tidemark.record.compaction import empty_batch
from tidemark.storage.log.segment_repair import DamagedRange, NotJoined, Patch

_AGAIN_MS: Final = 30_000
"""Interval between attempts to repair damage without a good copy: another replica may be back."""
_QUIET_MS: Final = 5_000
"""After a repair found no good copy, requests for that segment are refused for this time: each request would read the
whole segment.
"""
_RUNNING_MAX: Final = 4
"""Repairs that run at a time; each may hold a copy of its damaged ranges in memory."""
_HAND_OVER_BYTES: Final = 64 << 20
"""A leader resigns before it repairs a larger segment: an election takes less time than to rewrite the segment."""
REPAIR_MS: Final = 5_000
"""Time that a request waits for a repair."""
_ROLL_MS: Final = 20
_ROLLS_MAX: Final = 100
"""Number of checks, at intervals of `_ROLL_MS`, whether the damaged active segment has been rolled."""

_log = logging.getLogger(__name__)


class SuspectSegment(Protocol):
    """A sealed segment that may be damaged; the calls that read or write block."""

    @property
    def base_offset(self) -> int:
        """First offset of the segment."""

    @property
    def next_offset(self) -> int:
        """First offset after the segment."""

    @property
    def size_bytes(self) -> int:
        """Size of the segment's file."""

    @property
    def clean_point(self) -> int:
        """Offset (exclusive) below which this replica's log was compacted."""

    @property
    def whole(self) -> DamagedRange:
        """The whole segment, as a range to replace."""

    def find_damage(self) -> list[DamagedRange]:
        """Check every batch of the segment. Raises OSError."""

    def replace(self, patches: Sequence[Patch]) -> bool:
        """Put the patches in place of the damaged ranges, one for each; False where the log has changed meanwhile.

        Raises:
            NotJoined: the result would have a gap; the segment is unchanged.
            TidemarkError: DISK_FULL, STORAGE_ERROR.
            OSError: a read failed.
        """


class SuspectLog(Protocol):
    """An open log that may be damaged, as of one instant."""

    @property
    def identity(self) -> ReplicaIdentity:
        """Identity of the replica: topic id and incarnation."""

    @property
    def leads(self) -> bool:
        """Whether this replica is the leader."""

    @property
    def log_start_offset(self) -> int:
        """First offset that a consumer can read."""

    @property
    def log_end_offset(self) -> int:
        """Offset (exclusive) at which the next record is appended."""

    @property
    def high_watermark(self) -> int:
        """Offset (exclusive) below which every record is committed."""

    @property
    def epochs(self) -> LeaderEpochs:
        """The leader epoch cache."""

    @property
    def holes_until(self) -> int:
        """Below this offset (exclusive) the log may have holes: compaction (rule L1), or the log start."""

    def is_sealed(self, offset: int) -> bool:
        """Whether the offset lies below the active segment."""

    def segments(self, offset: int) -> Sequence[SuspectSegment]:
        """The sealed segments up to the one with the offset, if the high watermark covers the last of these segments.
        Blocks.
        """


class SuspectLogs(Protocol):
    """The open logs of this broker."""

    def find(self, partition: TopicPartition) -> SuspectLog | None:
        """The log of a replica; None while it is not open."""

    def roll(self, partition: TopicPartition) -> None:
        """Roll the active segment, after the queued appends."""


class RepairMetrics(Protocol):
    """The figures of repairs, for operators."""

    def found(self, count: int) -> None:
        """Count damaged ranges that were found."""

    def repaired(self, count: int) -> None:
        """Count damaged ranges that were replaced."""

    def unrepaired(self, count: int) -> None:
        """The number of damaged ranges that have no good copy now."""


class _Running:
    """A repair of a partition at an offset, waiting or running, and whether the segment is undamaged after it.

    Attributes:
        answered: requests no longer wait: the repair has ended, or another replica is to lead.
    """

    def __init__(self, answered: Signal) -> None:
        self.answered = answered
        self.whole = False


class LogRepairs:
    """Repairs in the order of their requests, at most one of a partition at a time; requests for one offset share it.

    Args:
        give_up: called if this broker should not lead the partition; the broker may be a follower. The last argument:
            whether a repair continues here.
    """

    def __init__(
        self,
        logs: SuspectLogs,
        peers: ReplicaPeers,
        scheduler: Scheduler,
        metrics: RepairMetrics,
        give_up: Callable[[TopicPartition, ReplicaIdentity, bool], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._logs = logs
        self._peers = peers
        self._scheduler = scheduler
        self._metrics = metrics
        self._give_up = give_up
        self._fail = fail
        self._asked: dict[tuple[TopicPartition, int], _Running] = {}
        self._running: set[TopicPartition] = set()
        self._quiet: dict[tuple[TopicPartition, int], int] = {}
        """By partition and first offset of a segment whose repair failed recently: the segment's next offset."""
        self._unrepaired: dict[TopicPartition, dict[int, int]] = {}
        """By partition: first offset of a damaged segment without a good copy, and its number of damaged ranges."""

    def start(self) -> None:
        """Check unrepaired damage again, periodically."""
        self._scheduler.spawn(self._again(), self._fail)

    async def stop(self) -> None:
        """Cancel the repairs; a segment that was not swapped in is discarded."""
        await self._scheduler.stop()

    def suspect(self, partition: TopicPartition, offset: int) -> None:
        """Check the segment that holds `offset` soon, and repair it, unless a repair of this segment failed just
        before.
        """
        if not self._is_quiet(partition, offset):
            self._begin(partition, offset)

    async def repair(self, partition: TopicPartition, offset: int, *, timeout_ms: int = REPAIR_MS) -> bool:
        """Check the segment that holds `offset`, and repair it. After the timeout the repair continues, and after a
        leader has resigned for it.

        Returns:
            Whether every batch of that segment is good now. Also False if the offset is not committed here, or if a
            repair of that segment has failed just before.
        """
        if self._is_quiet(partition, offset):
            return False
        running = self._begin(partition, offset)
        await self._scheduler.wait(running.answered, timeout_ms)
        return running.whole

    def is_running(self, partition: TopicPartition) -> bool:
        """Whether a repair of the partition is running or queued."""
        return any(one == partition for one, _ in self._asked)

    def _is_quiet(self, partition: TopicPartition, offset: int) -> bool:
        return any(
            one == partition and base_offset <= offset < next_offset
            for (one, base_offset), next_offset in self._quiet.items()
        )

    def _begin(self, partition: TopicPartition, offset: int) -> _Running:
        running = self._asked.get((partition, offset))
        if running is None:
            running = self._asked[partition, offset] = _Running(self._scheduler.signal())
            self._run_next()
        return running

    def _run_next(self) -> None:
        for (partition, offset), running in self._asked.items():
            if len(self._running) < _RUNNING_MAX and partition not in self._running:
                self._running.add(partition)
                self._scheduler.spawn(self._run(partition, offset, running), self._fail)

    async def _run(self, partition: TopicPartition, offset: int, running: _Running) -> None:
        try:
            running.whole = await self._repair(partition, offset, running.answered)
        except (TidemarkError, OSError) as error:  # the directory fails, or the segment was removed during the repair
            _log.error("a log could not be repaired", extra={"partition": str(partition), "why": _reason(error)})
        finally:
            self._running.discard(partition)
            del self._asked[partition, offset]
            running.answered.set()
        self._run_next()  # not reached after a cancellation

    async def _again(self) -> None:
        while True:
            await self._scheduler.sleep_ms(_AGAIN_MS)
            for partition, segments in list(self._unrepaired.items()):
                for offset in list(segments):
                    await self._check_again(partition, offset)

    async def _check_again(self, partition: TopicPartition, offset: int) -> None:
        log = self._logs.find(partition)
        if log is None or offset >= log.log_end_offset:  # the damaged log was deleted or truncated
            self._note_unrepaired(partition, offset, 0)
        elif offset < log.high_watermark:
            await self._scheduler.wait(self._begin(partition, offset).answered, _AGAIN_MS)

    async def _repair(self, partition: TopicPartition, offset: int, answered: Signal) -> bool:
        log = await self._sealed(partition, offset)
        segments = await self._scheduler.in_thread(partial(log.segments, offset)) if log is not None else ()
        if log is None or not segments:
            self._note_unrepaired(partition, offset, 0)  # the log was trimmed, truncated or closed
            return False
        segment = segments[-1]
        if await self._hands_over(partition, offset, log, segment):
            answered.set()
        damaged = await self._scheduler.in_thread(segment.find_damage)
        readable = [one for one in damaged if one.end_offset > log.log_start_offset]
        left = await self._replace(partition, log, segments, damaged) if readable else 0
        self._note_unrepaired(partition, segment.base_offset, left)
        if left:
            key = (partition, segment.base_offset)
            self._quiet[key] = segment.next_offset
            self._scheduler.spawn(self._end_quiet(key), self._fail)
        return not left

    async def _hands_over(
        self, partition: TopicPartition, offset: int, log: SuspectLog, segment: SuspectSegment
    ) -> bool:
        """Resign before a long repair, if another replica can read this offset; once for damage that stays."""
        known = segment.base_offset in self._unrepaired.get(partition, {})
        if not log.leads or known or segment.size_bytes <= _HAND_OVER_BYTES:
            return False
        sources = RepairSources(self._peers, partition, _facts_of(log, segment))
        if not await sources.can_read(offset, segment.next_offset):
            return False
        self._give_up(partition, log.identity, True)
        return True

    async def _end_quiet(self, key: tuple[TopicPartition, int]) -> None:
        await self._scheduler.sleep_ms(_QUIET_MS)
        self._quiet.pop(key, None)

    async def _sealed(self, partition: TopicPartition, offset: int) -> SuspectLog | None:
        """The log, once the committed offset lies in a sealed segment; an active segment is rolled first."""
        for count in range(_ROLLS_MAX):
            log = self._logs.find(partition)
            if log is None:
                return None
            if offset >= log.high_watermark:
                self._give_up(partition, log.identity, False)
                return None
            if log.is_sealed(offset):
                return log
            if count == 0:
                self._logs.roll(partition)
            await self._scheduler.sleep_ms(_ROLL_MS)
        return None

    async def _replace(
        self,
        partition: TopicPartition,
        log: SuspectLog,
        segments: Sequence[SuspectSegment],
        damaged: Sequence[DamagedRange],
    ) -> int:
        """Replace the damaged ranges of the last of the segments, as far as other replicas have their batches.

        Returns:
            The number of ranges that stay damaged, without ranges below the log start.
        """
        segment = segments[-1]
        facts = {"partition": str(partition), "offsets": _listed(damaged), "why": damaged[0].reason}
        readable = [one for one in damaged if one.end_offset > log.log_start_offset]
        self._metrics.found(max(0, len(readable) - self._unrepaired.get(partition, {}).get(segment.base_offset, 0)))
        _log.error("damaged batches were found: they are fetched from another replica", extra=facts)
        sources = RepairSources(self._peers, partition, _facts_of(log, segment))
        patches = [await sources.patch(one) if one in readable else Patch(one, None) for one in damaged]
        lost = [one.damaged for one in patches if one.batches is None and one.damaged in readable]
        if lost and await self._adopt(partition, log, segments, sources):
            self._metrics.repaired(len(readable))
            return 0
        if lost:
            asked = {str(broker): reason for broker, reason in sources.refusals.items()}
            extra = {"partition": str(partition), "offsets": _listed(lost), "asked": asked}
            _log.error("no replica has a good copy of damaged batches", extra=extra)
        healed = len(readable) - len(lost)
        if not healed or not await self._put(partition, log, segment, patches):
            return len(readable)
        self._metrics.repaired(healed)
        _log.warning("damaged batches were replaced", extra={**facts, "offsets": _listed(_healed(patches))})
        return len(lost)

    async def _adopt(
        self,
        partition: TopicPartition,
        log: SuspectLog,
        segments: Sequence[SuspectSegment],
        sources: RepairSources,
    ) -> bool:
        """Take over all segments from a replica that is compacted further, if such a replica exists.

        The oldest segment is first: a record is deleted before the tombstone that deletes it (rule L1).
        """
        broker = sources.compacted_further
        if broker is None:
            return False
        _log.warning(
            "the segments up to the damage are fetched from a replica that is compacted further",
            extra={"partition": str(partition), "source": broker, "segments": len(segments)},
        )
        for segment in segments:
            try:
                patch = await sources.contents(broker, segment.whole)
            except TidemarkError as error:
                sources.refusals[broker] = error.message
                return False
            if not await self._put(partition, log, segment, [patch]):
                return False
        return True

    async def _put(
        self, partition: TopicPartition, log: SuspectLog, segment: SuspectSegment, patches: Sequence[Patch]
    ) -> bool:
        """Replace the damaged ranges by the patches; False if the log refuses them or has changed meanwhile."""
        whole = [_until_end(one, log, segment) for one in patches]
        try:
            return await self._scheduler.in_thread(partial(segment.replace, whole))
        except NotJoined as error:
            offsets = _listed(_healed(patches))
            extra = {"partition": str(partition), "offsets": offsets, "why": str(error)}
            _log.error("the batches of another replica do not fit this log", extra=extra)
        except (TidemarkError, OSError) as error:
            extra = {"partition": str(partition), "offsets": _listed(_healed(patches)), "why": _reason(error)}
            _log.error("another replica has the damaged batches, and this disk cannot store them", extra=extra)
            self._give_up(partition, log.identity, False)
        return False

    def _note_unrepaired(self, partition: TopicPartition, base_offset: int, count: int) -> None:
        """Note how many ranges of a segment are damaged."""
        known = self._unrepaired.setdefault(partition, {})
        if count:
            known[base_offset] = count
        else:
            known.pop(base_offset, None)
        if not known:
            del self._unrepaired[partition]
        self._metrics.unrepaired(sum(sum(one.values()) for one in self._unrepaired.values()))


def _facts_of(log: SuspectLog, segment: SuspectSegment) -> DamagedLog:
    return DamagedLog(
        log.identity, log.epochs, log.log_start_offset, log.log_end_offset, log.holes_until, segment.clean_point
    )


def _until_end(patch: Patch, log: SuspectLog, segment: SuspectSegment) -> Patch:
    """The patch, with an empty batch where compaction has removed the last one of the segment (rule L1)."""
    damaged, batches = patch
    end = segment.next_offset
    if batches is None or damaged.end_offset != end or (batches and batches[-1].envelope.next_offset == end):
        return patch
    epoch = max([log.epochs.epoch_at(Offset(end - 1)), 0, *(one.envelope.leader_epoch for one in batches[-1:])])
    return Patch(damaged, [*batches, empty_batch(end - 1, epoch)])


def _healed(patches: Sequence[Patch]) -> list[DamagedRange]:
    return [one.damaged for one in patches if one.batches is not None]


def _listed(ranges: Sequence[DamagedRange]) -> str:
    return ", ".join(f"[{one.start_offset}, {one.end_offset})" for one in ranges)


def _reason(error: TidemarkError | OSError) -> str:
    return error.message if isinstance(error, TidemarkError) else str(error)
