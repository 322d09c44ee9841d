# SPDX-License-Identifier: Apache-2.0
"""Where a consumer is in one partition, and what was read ahead of it. No event loop, no clock.

Invariant: `position` <= the offsets buffered < `fetch_offset`, and the buffer holds every batch in between, so a
buffer that is thrown away is fetched again and nothing is skipped or given twice (rules K1, E4).
"""

from __future__ import annotations

from collections import deque
from copy import copy
from typing import Any, Final

import pyarrow as pa

from tidemark.model import NO_EPOCH, TidemarkError, TopicPartition
from tidemark.record.envelope import Batch, split_batches
from tidemark.record.payload import with_offsets

_BAD_READS_MAX: Final = 3


class Cursor:
    """One assigned partition.

    Attributes:
        position: offset of the next record the application gets.
        fetch_offset: offset of the next one to ask for.
        last_epoch: leader epoch of the record before `fetch_offset`, -1 when it is not known.
        topic_id, incarnation: what was assigned; a partition recreated under the same name is another one (rule C7).
        generation: raised by every seek: an answer to an earlier one's question is not used.
        high_watermark: the largest told in this lineage, -1 before the first.
        error: why nothing more comes, until the next seek.
        refusal: why the last fetch failed, while it is tried again.
        retry_s: on time.monotonic(), before which the same leader is left alone.
        processed: `position` when the application last asked for more: it is done with what lies before it.
        processed_epoch: leader epoch of the record before `processed`, -1 when it is not known.
        paused: nothing of it is given, because the application said so.
        withheld: nothing of it is given, because it is being given back to its group.
    """

    def __init__(self, partition: TopicPartition, position: int, *, topic_id: str, incarnation: str) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.incarnation = incarnation
        self.generation = 0
        self.position = position
        self.fetch_offset = position
        self.last_epoch: int = NO_EPOCH
        self.high_watermark = -1
        self.error: TidemarkError | None = None
        self.refusal: TidemarkError | None = None
        self.retry_s = 0.0
        self.buffered_bytes = 0
        self._batches: deque[Batch] = deque()
        self._position_epoch: int = NO_EPOCH
        self._bad_reads = 0
        self._lineage = 0
        self.processed = position
        self.processed_epoch: int = NO_EPOCH
        self.paused = False
        self.withheld = False

    def seek(self, offset: int) -> None:
        """Go on at an offset, inclusive."""
        self.generation += 1
        self.position = offset
        self._position_epoch = NO_EPOCH
        self.error = self.refusal = None
        self._bad_reads = 0
        self.forget_buffer()
        self.settle()

    def settle(self) -> None:
        """The application is done with all that it was given."""
        self.processed, self.processed_epoch = self.position, self._position_epoch

    @property
    def position_epoch(self) -> int:
        """Leader epoch of the record before `position`, -1 when it is not known."""
        return self._position_epoch

    def saw_high_watermark(self, high_watermark: int, lineage: int) -> int:
        """The largest seen in that lineage: an end smaller than it is an old leader's (rule E6)."""
        if lineage != self._lineage:
            self._lineage, self.high_watermark = lineage, -1
        self.high_watermark = max(self.high_watermark, high_watermark)
        return self.high_watermark

    def forget_buffer(self) -> None:
        """What was read ahead is fetched again."""
        self._batches.clear()
        self.buffered_bytes = 0
        self.fetch_offset = self.position
        self.last_epoch = self._position_epoch

    def take(self, data: bytes | memoryview) -> bool:
        """What a fetch at `fetch_offset` gave; whether that was progress.

        Raises:
            TidemarkError: INVALID_BATCH when the bytes are no batches.
        """
        progress = False
        for batch in split_batches(data):
            if batch.envelope.next_offset <= self.fetch_offset:
                continue
            self._batches.append(batch)
            self.buffered_bytes += len(batch.data)
            self.fetch_offset = batch.envelope.next_offset
            self.last_epoch = batch.envelope.leader_epoch
            progress = True
        return progress

    @property
    def has_rows(self) -> bool:
        """Whether something that may be given is buffered, or an error is to be raised."""
        return self.gives and (bool(self._batches) or self.error is not None)

    @property
    def is_damaged(self) -> bool:
        """What was fetched last could not be read, and is fetched again."""
        return self._bad_reads > 0

    @property
    def gives(self) -> bool:
        """Whether the application may have what is buffered."""
        return not self.paused and not self.withheld

    def next_rows(self) -> pa.RecordBatch | None:
        """The next buffered rows at or after `position`, in record.schema.OFFSET_SCHEMA; None: nothing is buffered.

        `position` stays: `advance` and `passed` move it. A batch that is damaged is fetched again a few times.

        Raises:
            TidemarkError: what ended the partition, or the damage.
        """
        while self._batches:
            batch = self._batches[0]
            try:
                rows = None if batch.envelope.is_control else _from(with_offsets(batch), self.position)
            except TidemarkError as error:
                self._bad_reads += 1
                self.forget_buffer()
                self.generation += 1
                if self._bad_reads >= _BAD_READS_MAX:
                    self.error = error
                break
            if rows is not None and rows.num_rows:
                return rows
            self.passed()
        if not self._batches and self.error is not None:
            raise copy(self.error)  # it is raised again and again, and would gather tracebacks
        return None

    def advance(self, offset: int) -> None:
        """Rows of the first buffered batch were given out, up to `offset` (exclusive)."""
        self.position = offset
        self._position_epoch = self._batches[0].envelope.leader_epoch

    def passed(self) -> None:
        """The first buffered batch was given out whole."""
        batch = self._batches.popleft()
        self.buffered_bytes -= len(batch.data)
        self.position = batch.envelope.next_offset
        self._position_epoch = batch.envelope.leader_epoch
        self._bad_reads = 0


def _from(rows: pa.RecordBatch, start: int) -> pa.RecordBatch:
    """The rows whose offset is at or after `start`; offsets rise along the rows."""
    offsets: pa.Array[Any] = rows.column(4)
    if not rows.num_rows or offsets[0].as_py() >= start:
        return rows
    values: list[Any] = offsets.to_pylist()
    return rows.slice(next((index for index, offset in enumerate(values) if offset >= start), len(values)))
