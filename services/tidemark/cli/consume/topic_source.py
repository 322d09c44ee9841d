# SPDX-License-Identifier: Apache-2.0
"""All partitions of a topic as one source of records: committed ones only, in order within a partition (rule K1)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Self

from tidemark.cli.common.record_format import Start
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.client.records import PartitionBatch

_DEADLINE_S: Final = 30.0
_CONNECT_S: Final = 1.0
"""Whoever reads waits for less: connecting gets up to half a second more, and not more than this."""

_LOOK_AGAIN_S: Final = 0.1


class TopicReader:
    """Reads on from `start` whenever it is polled; a context manager.

    Args:
        bootstrap: addresses of brokers.
        topic: its name; raises UNKNOWN_TOPIC.
        start: where each partition begins. An offset that a partition has not reached yet is waited for, as is the
            next record where none is as young as a timestamp.
        until_end: read nothing that is committed later than now.
        rack: where this reader is; "": nowhere that brokers know of.
        timeout_s: so long whoever reads waits for records; None: for ever.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        start: Start,
        *,
        until_end: bool = False,
        rack: str = "",
        timeout_s: float | None = None,
    ) -> None:
        self._reader = RangeReader(bootstrap, deadline_s=patience_s(timeout_s), rack=rack)
        self._topic = topic
        try:
            self._view = self._reader.topics([topic])[topic]
            self._positions = {index: self._position(index, start) for index in sorted(self._view.partitions)}
            bounds = self._reader.bounds(topic, list(self._positions))
            self._ends = {index: one.latest for index, one in bounds.items()}
            self._until_end = until_end
        except BaseException:
            self._reader.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.close()

    @property
    def finished(self) -> bool:
        """Whether everything up to the ends was read; never where new records are read too."""
        return self._until_end and self.lag <= 0

    @property
    def lag(self) -> int:
        """Offsets between what was read and where the partitions ended when it was looked last."""
        return sum(max(self._ends[index] - position, 0) for index, position in self._positions.items())

    def poll(self, timeout_s: float) -> Iterator[PartitionBatch]:
        """What is committed and was not read yet; waits up to `timeout_s` for the first of it.

        Raises:
            TidemarkError: OFFSET_OUT_OF_RANGE when records at a position were deleted, UNKNOWN_TOPIC_ID when the
                topic was recreated, REQUEST_TIMED_OUT when a partition has no leader for long.
        """
        until_s = time.monotonic() + timeout_s
        while True:
            found = False
            for batch in self._committed():
                found = True
                yield batch
            left_s = until_s - time.monotonic()
            if found or left_s <= 0 or self.finished:
                return
            time.sleep(min(_LOOK_AGAIN_S, left_s))

    def wrote(self, batches: Sequence[PartitionBatch]) -> None:
        """Nobody remembers that: who reads again begins where it says."""

    def _committed(self) -> Iterator[PartitionBatch]:
        """From every position to the high watermark of now, or to the ends."""
        if not self._until_end:
            bounds = self._reader.bounds(self._topic, list(self._positions))
            self._ends = {index: one.latest for index, one in bounds.items()}
        for index, end in self._ends.items():
            if self._positions[index] >= end:
                continue
            batches = self._reader.read(
                self._topic,
                index,
                self._positions[index],
                end,
                topic_id=self._view.topic_id,
                incarnation=self._view.partitions[index].incarnation,
            )
            for rows in batches:
                offsets: Any = rows.column("offset")
                self._positions[index] = offsets[rows.num_rows - 1].as_py() + 1
                yield PartitionBatch(self._topic, index, rows)
            self._positions[index] = end

    def _position(self, partition: int, start: Start) -> int:
        if start.offset is not None:
            return start.offset
        if start.timestamp_us is not None:
            found = self._reader.offset_for_timestamp(self._topic, partition, start.timestamp_us)
            if found is not None:
                return found
        bounds = self._reader.bounds(self._topic, [partition])[partition]
        return bounds.earliest if start.position == "earliest" else bounds.latest


def patience_s(timeout_s: float | None) -> float:
    """So long brokers may be without an answer, or a partition without a leader."""
    if timeout_s is None:
        return _DEADLINE_S
    return min(_DEADLINE_S, max(timeout_s, min(timeout_s + _CONNECT_S / 2, _CONNECT_S)))
