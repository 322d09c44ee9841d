# SPDX-License-Identifier: Apache-2.0
"""The open logs of this broker, as repairs see them (rule T6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidemark.broker.logs.append_threads import LogThreads
from tidemark.broker.node.topic_settings import TopicTable
from tidemark.core.leader_epochs import LeaderEpochs
from tidemark.core.replication.queries import BrokerQueries
from tidemark.core.replication.replica import is_compacted
from tidemark.model import ReplicaIdentity, TopicPartition
from tidemark.storage.log.cleaning import CleaningView
from tidemark.storage.log.partition_log import PartitionLog
from tidemark.storage.log.segment_repair import DamagedRange, Patch, find_damage, repair_segment
from tidemark.storage.segments.segment import Segment

_ANY_AGE_MS: Final = 1 << 62
EVERYWHERE: Final = 1 << 62
"""Value of `holes_until` past every offset."""


class OpenSegment:
    """`SuspectSegment` of a log on disk."""

    def __init__(self, log: PartitionLog, view: CleaningView, segment: Segment, *, holes_until: int) -> None:
        self._cleaning = log.cleaning
        self._view = view
        self._segment = segment
        self._holes_until = holes_until

    @property
    def base_offset(self) -> int:
        """First offset of the segment."""
        return self._segment.base_offset

    @property
    def next_offset(self) -> int:
        """First offset after the segment."""
        return self._segment.next_offset

    @property
    def size_bytes(self) -> int:
        """Size of the segment's file."""
        return self._segment.size_bytes

    @property
    def clean_point(self) -> int:
        """Offset (exclusive) below which this replica's log was compacted."""
        return self._view.clean_point

    @property
    def whole(self) -> DamagedRange:
        """The whole segment, as a range to replace."""
        one = self._segment
        return DamagedRange(one.base_offset, 0, one.size_bytes, one.base_offset, one.next_offset, "")

    def find_damage(self) -> list[DamagedRange]:
        """Check every batch of the segment on the disk. Raises OSError."""
        return find_damage(self._cleaning, self._segment, _unpaced)

    def replace(self, patches: Sequence[Patch]) -> bool:
        """Put the patches in place of the damaged ranges, as `repair_segment` does."""
        return repair_segment(
            self._cleaning, self._view, self._segment, patches, holes_until=self._holes_until, pace=_unpaced
        )


class OpenSuspectLog:
    """`SuspectLog` of a log on disk.

    `LogSegments.truncations` is read with the high watermark: a later truncation invalidates it.
    """

    def __init__(
        self,
        log: PartitionLog,
        identity: ReplicaIdentity,
        high_watermark: int,
        epochs: LeaderEpochs,
        *,
        may_hold_holes: bool,
        leads: bool,
    ) -> None:
        self.identity = identity
        self.leads = leads
        self.log_start_offset, self.log_end_offset = int(log.log_start_offset), int(log.log_end_offset)
        self.high_watermark = min(high_watermark, log.log_end_offset)
        self.epochs = epochs
        self.holes_until = EVERYWHERE if may_hold_holes else self.log_start_offset
        self._log = log
        self._truncations = log.segments.truncations

    def is_sealed(self, offset: int) -> bool:
        """Whether the offset lies below the active segment."""
        return offset < self._log.segments.active.base_offset

    def segments(self, offset: int) -> list[OpenSegment]:
        """The sealed segments up to the one with that offset, if the high watermark covers the last one."""
        view = self._log.cleaning.view(self.high_watermark, truncations=self._truncations)
        if view is None or not any(one.base_offset <= offset < one.next_offset for one in view.segments):
            return []
        return [
            OpenSegment(self._log, view, one, holes_until=self.holes_until)
            for one in view.segments
            if one.base_offset <= offset
        ]


class OpenSuspectLogs:
    """Reads core and append threads on the event loop, so that both are of one instant."""

    def __init__(self, queries: BrokerQueries, threads: LogThreads, topics: TopicTable) -> None:
        self._queries = queries
        self._threads = threads
        self._topics = topics

    def find(self, partition: TopicPartition) -> OpenSuspectLog | None:
        """The log of a replica; None while it is not open."""
        view, epochs = self._queries.replica(partition), self._queries.epochs(partition)
        log = self._threads.log(partition)
        if view is None or epochs is None or not isinstance(log, PartitionLog):
            return None
        may_hold_holes = is_compacted(self._topics.configs(partition.topic))
        return OpenSuspectLog(
            log,
            view.identity,
            view.high_watermark,
            epochs,
            may_hold_holes=may_hold_holes,
            leads=view.role == "leader",
        )

    def roll(self, partition: TopicPartition) -> None:
        """Roll the active segment, after the queued appends."""
        self._threads.roll_by_time(partition, _ANY_AGE_MS)


def _unpaced(size_bytes: int) -> None:
    """A repair is not throttled: consumers wait for its records."""
