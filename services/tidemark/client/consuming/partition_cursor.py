# SPDX-License-Identifier: Apache-2.0
"""The position of a consumer in one partition, and the batches read ahead. No event loop, no clock.

Invariant: `position` <= the buffered offsets < `fetch_offset`, and the buffer holds every batch in between. A discarded
buffer is fetched again, so no record is skipped or returned twice (rules K1, E4).
"""

from __future__ import annotations

from collections import deque
from copy import copy
from typing import Any, Final

import pyarrow as pa

from tidemark.client.consuming.isolation import NONE_ABORTED
from tidemark.client.consuming.unreadable import placed
from tidemark.client.typed.batch_rows import BatchRows, UnknownVersionError
from tidemark.core.cluster_view import TopicView
from tidemark.model import NO_EPOCH, ErrorCode, TidemarkError, TopicPartition
from tidemark.record.checks import split_until_damage
from tidemark.record.envelope import Batch
from tidemark.record.payload import with_offsets
from tidemark.record.transactions import AbortedBatches, has_records

_BAD_READS_MAX: Final = 3


class Cursor:
    """The position in one assigned partition, and the batches read ahead of it.

    Attributes:
        position: offset of the next record to return.
        fetch_offset: offset of the next record to fetch.
        last_epoch: leader epoch of the record before `fetch_offset`; -1 if unknown.
        topic_id: id of the assigned topic; a recreated topic has another one (rule C7).
        incarnation: incarnation of the assigned partition; a recreated partition has another one (rule C7).
        generation: raised by every seek, and when fetched batches are discarded; a response to a fetch of an earlier
            generation is discarded.
        seeks: number of seeks of the application.
        high_watermark: the largest one received in this lineage, for a read_committed consumer the largest last stable
            offset; -1 before the first.
        error: ends the partition until the next seek.
        refusal: error of the last fetch, while it is retried.
        doubted_s: time of the first LOG_TRUNCATED of a leader in an epoch below `last_epoch`; None: none since records.
        retry_s: time, by time.monotonic(), before which the same leader gets no fetch.
        processed: `position` at the last request for more records: the application has processed the records before.
        processed_epoch: leader epoch of the record before `processed`; -1 if unknown.
        committed: offset that the application committed itself since the last seek; -1: none. Only an offset that
            `position` had reached.
        committed_epoch: leader epoch of that commit; -1 if unknown.
        began: the position of the first fetch.
        covered: no record from here to `position` was committed, in a transaction or without; a seek forward leaves
            earlier records uncommitted.
        paused: no records are returned, because the application paused the partition.
        withheld: no records are returned: the group has revoked the partition, `on_assigned` runs, or the cursor is no
            longer read.
        typed: reads the batches of a typed topic; None for a topic without a schema.
        wanted_version: version of the schema that the first batch has, and that `typed` must fetch first; 0: none.
    """

    def __init__(
        self,
        partition: TopicPartition,
        position: int,
        *,
        topic_id: str,
        incarnation: str,
        typed: BatchRows | None = None,
    ) -> None:
        self.partition = partition
        self.typed = typed
        self.wanted_version = 0
        self.topic_id = topic_id
        self.incarnation = incarnation
        self.generation = self.seeks = 0
        self.position = position
        self.fetch_offset = position
        self.last_epoch: int = NO_EPOCH
        self.high_watermark = -1
        self.error: TidemarkError | None = None
        self.refusal: TidemarkError | None = None
        self.doubted_s: float | None = None
        self.retry_s = 0.0
        self.buffered_bytes = 0
        self._batches: deque[Batch] = deque()
        self._position_epoch: int = NO_EPOCH
        self._is_bound = False
        """Whether `last_epoch` may be above the epoch of the record before, as `follows` states it."""
        self._bad_reads = 0
        self._lineage = 0
        self.began = self.covered = self.processed = position
        self.processed_epoch: int = NO_EPOCH
        self.committed: int = -1
        self.committed_epoch: int = NO_EPOCH
        self.paused = False
        self.withheld = False

    def seek(self, offset: int) -> None:
        """Continue at an offset, inclusive."""
        self.generation += 1
        self.seeks += 1
        self.covered = offset if self.covered >= self.position else min(self.covered, offset)
        self.position = offset
        self._position_epoch, self._is_bound = NO_EPOCH, False
        self.error = self.refusal = self.doubted_s = None
        self._bad_reads = 0
        self.committed = -1
        self.forget_buffer()
        self.settle()

    def return_to(self, offset: int) -> None:
        """Return records again that the application has got, and has not processed: no seek of the application."""
        error, committed, seeks = self.error, self.committed, self.seeks
        self.seek(offset)
        self.error, self.committed, self.seeks = error, committed, seeks

    def follows(self, epoch: int) -> None:
        """State the leader epoch of the record before `position`, or an upper bound of that epoch; -1: unknown.

        The next fetch checks that the log has this record (rule E4).
        """
        self.last_epoch = self._position_epoch = self.processed_epoch = epoch
        self._is_bound = True

    def lowers_epoch(self, truncated: TidemarkError) -> bool:
        """Whether the epoch of `follows` was only an upper bound, by a LOG_TRUNCATED; the next fetch has the log's."""
        end_offset = int(truncated.metadata.get("diverging_end_offset", -1))
        if not self._is_bound or end_offset < self.fetch_offset:
            return False
        self.last_epoch = self._position_epoch = int(truncated.metadata["diverging_epoch"])
        self._is_bound = False
        return True

    def settle(self) -> None:
        """Note that the application has processed all returned records."""
        self.processed, self.processed_epoch = self.position, self._position_epoch

    @property
    def position_epoch(self) -> int:
        """Leader epoch of the record before `position`; -1 if unknown."""
        return self._position_epoch

    def saw_high_watermark(self, high_watermark: int, lineage: int) -> int:
        """Note a high watermark; returns the largest one of its lineage. A smaller one is out of date (rule E6)."""
        if lineage != self._lineage:
            self._lineage, self.high_watermark = lineage, -1
        self.high_watermark = max(self.high_watermark, high_watermark)
        return self.high_watermark

    def forget_buffer(self) -> None:
        """Discard the batches read ahead."""
        self.wanted_version = 0
        self._batches.clear()
        self.buffered_bytes = 0
        self.fetch_offset = self.position
        self.last_epoch = self._position_epoch

    def take(self, data: bytes | memoryview, aborted: AbortedBatches = NONE_ABORTED) -> bool:
        """Append the result of a fetch at `fetch_offset`; returns whether it had new batches.

        If a batch has no records for the application, only its envelope is kept, since the position passes the batch.
        The offsets in a damaged header are unknown, so the batches after it are fetched again.
        """
        progress = False
        batches, damage = split_until_damage(data)
        for batch in batches:
            if batch.envelope.next_offset <= self.fetch_offset:
                continue
            kept = batch if has_records(batch.envelope, aborted) else Batch(batch.envelope, b"")
            self._batches.append(kept)
            self.buffered_bytes += len(kept.data)
            self.fetch_offset = batch.envelope.next_offset
            self.last_epoch = batch.envelope.leader_epoch
            self._is_bound = False
            progress = True
        if damage is not None and not progress:
            self._count_bad_read(placed(damage, self.partition, self.fetch_offset))
        return progress

    @property
    def has_rows(self) -> bool:
        """Whether `next_rows` may return rows or raise."""
        # `gives` comes last: most cursors of thousands are empty.
        return ((bool(self._batches) and not self.wanted_version) or self.error is not None) and self.gives

    @property
    def column_ids(self) -> tuple[int, ...]:
        """Columns to ask brokers for; empty: whole batches."""
        return () if self.typed is None else self.typed.column_ids

    @property
    def is_damaged(self) -> bool:
        """Whether the last batch was damaged and is fetched again."""
        return self._bad_reads > 0

    @property
    def gives(self) -> bool:
        """Whether buffered records may be returned."""
        return not self.paused and not self.withheld

    def next_rows(self) -> pa.RecordBatch | None:
        """Return the next buffered rows at or after `position`; None without any.

        The rows are in record.schema.OFFSET_SCHEMA, rows of a typed topic in the schema of `typed`.

        `position` stays: `advance` and `passed` move it. A damaged batch is fetched again a few times.

        Raises:
            TidemarkError: `error`, or CORRUPT_BATCH and similar errors of a batch that stays damaged.
        """
        while self._batches and not self.wanted_version:
            batch = self._batches[0]
            try:
                rows = self._rows_of(batch) if batch.data else None
            except UnknownVersionError as unknown:
                self.wanted_version = unknown.version
                return None
            except TidemarkError as error:
                self.forget_buffer()
                self._count_bad_read(placed(error, self.partition, batch.envelope))
                break
            if rows is not None and rows.num_rows:
                return rows
            all_covered, all_processed = self.covered >= self.position, self.processed == self.position
            self.passed()
            if all_covered:
                self.covered = self.position
            if all_processed:
                self.settle()
        if not self._batches and self.error is not None:
            raise copy(self.error)  # a copy, since one error raised repeatedly would collect tracebacks
        return None

    def _rows_of(self, batch: Batch) -> pa.RecordBatch:
        if self.typed is None:
            return _from(with_offsets(batch), self.position)
        return self.typed.rows(batch, self.partition.partition, self.position)

    def _count_bad_read(self, error: TidemarkError) -> None:
        self._bad_reads += 1
        self.generation += 1
        if self._bad_reads >= _BAD_READS_MAX or error.code is ErrorCode.INCOMPATIBLE_SCHEMA:
            self.error = error

    def advance(self, offset: int) -> None:
        """Note that rows of the first buffered batch were returned, up to `offset` (exclusive)."""
        self.position = offset
        self._position_epoch = self._batches[0].envelope.leader_epoch

    def passed(self) -> None:
        """Remove the first buffered batch, whose rows were all returned."""
        batch = self._batches.popleft()
        self.buffered_bytes -= len(batch.data)
        self.position = batch.envelope.next_offset
        self._position_epoch = batch.envelope.leader_epoch
        self._bad_reads = 0


def cursor_at(view: TopicView, where: TopicPartition, offset: int, typed: BatchRows | None) -> Cursor:
    """Make the cursor of a partition that a topic has now."""
    incarnation = view.partitions[where.partition].incarnation
    return Cursor(where, offset, topic_id=view.topic_id, incarnation=incarnation, typed=typed)


def _from(rows: pa.RecordBatch, start: int) -> pa.RecordBatch:
    """Return the rows from offset `start` on; offsets rise along the rows."""
    offsets: pa.Array[Any] = rows.column(4)
    if not rows.num_rows or offsets[0].as_py() >= start:
        return rows
    values: list[Any] = offsets.to_pylist()
    return rows.slice(next((index for index, offset in enumerate(values) if offset >= start), len(values)))
