# SPDX-License-Identifier: Apache-2.0
"""Source of committed records from all partitions of a topic, or one, in order within each partition (rule K1)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, Self

import pyarrow as pa

from tidemark.cli.common.output import print_warning
from tidemark.cli.consume.options import CLIENT_ID, ConsumeOptions
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.client.metadata.cluster import CONNECT_TIMEOUT_S
from tidemark.client.outputs.record_format import Start
from tidemark.client.outputs.typed_rows import next_offset, reader_of
from tidemark.client.records import PartitionBatch
from tidemark.model import NO_EPOCH, ErrorCode, TidemarkError, unknown_partition

_RETRY_S: Final = 0.1


class TopicReader:
    """Reads from `start` on, with each poll; a context manager. Raises UNKNOWN_TOPIC and UNKNOWN_PARTITION.

    The reader waits for an offset that a partition has not reached yet. If all records are older than a timestamp, it
    waits for the next record. With `until_end`, records that are committed after the start are not read, and an offset
    that no partition has reached is OFFSET_OUT_OF_RANGE.
    """

    def __init__(self, bootstrap: str, options: ConsumeOptions, start: Start) -> None:
        topic = options.topic
        self._reader = RangeReader(
            bootstrap,
            deadline_s=options.patience_s,
            connect_timeout_s=CONNECT_TIMEOUT_S,
            rack=options.rack,
            client_id=CLIENT_ID,
            isolation_level=options.isolation_level.value,
        )
        self._topic = topic
        try:
            self._view = self._reader.topics([topic])[topic]
            self._positions = {index: self._position(index, start) for index in self._chosen(options.partition)}
            bounds = self._reader.bounds(topic, list(self._positions))
            self._bounds = bounds
            self._epochs = {at: one.latest_epoch for at, one in bounds.items() if one.latest == self._positions[at]}
            """Upper bounds of the leader epochs of the records before the positions, if known."""
            if start.offset is not None:
                self._begin_at_log_starts({index: one.earliest for index, one in bounds.items()})
                if options.until_end:
                    self._check_ends({index: one.latest for index, one in bounds.items()}, start.offset)
            self._until_end = options.until_end
            versions = self._reader.schemas(topic) if self._view.schema_version else {}
            self._typed = reader_of(options, versions)
        except BaseException:
            self._reader.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    @property
    def finished(self) -> bool:
        """Whether the ends are reached; always False without `until_end`."""
        return self._until_end and self.lag <= 0

    @property
    def typed(self) -> pa.Schema | None:
        """Arrow schema of the rows of a typed topic; None for a topic without a schema."""
        return None if self._typed is None else self._typed.schema

    @property
    def lag(self) -> int:
        """Offsets between the positions and the ends, at the last fetch of the ends."""
        return sum(max(self._bounds[index].latest - position, 0) for index, position in self._positions.items())

    def poll(self, timeout_s: float) -> Iterator[PartitionBatch]:
        """The next committed records; waits up to `timeout_s` for the first.

        Raises:
            TidemarkError: OFFSET_OUT_OF_RANGE if records at a position were deleted. UNKNOWN_TOPIC_ID if the topic was
                recreated. LOG_TRUNCATED after an unclean election. REQUEST_TIMED_OUT if a partition has no leader for
                a long time.
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
            time.sleep(min(_RETRY_S, left_s))

    def wrote(self, batch: PartitionBatch) -> None:
        """Do nothing: without a group, no offset is committed."""

    def commit_if_due(self) -> None:
        """Do nothing, as `wrote`."""

    def _committed(self) -> Iterator[PartitionBatch]:
        """Read each partition from its position to the current high watermark, or to its end."""
        if not self._until_end:
            self._bounds = self._reader.bounds(self._topic, list(self._positions))
        for index, (_, end, end_epoch) in self._bounds.items():
            if self._positions[index] >= end:
                continue
            batches = self._reader.read(
                self._topic,
                index,
                self._positions[index],
                end,
                topic_id=self._view.topic_id,
                incarnation=self._view.partitions[index].incarnation,
                last_epoch=self._epochs.get(index, NO_EPOCH),
                typed=self._typed,
            )
            for rows in batches:
                self._positions[index] = next_offset(rows)
                yield PartitionBatch(self._topic, index, rows)
            self._positions[index], self._epochs[index] = end, end_epoch

    def _begin_at_log_starts(self, starts: dict[int, int]) -> None:
        """Move positions up to the log starts, unless each partition has lost the record of its position.

        The command has one offset for all partitions, and their log starts differ.
        """
        late = {index: start for index, start in starts.items() if start > self._positions[index]}
        if len(late) == len(starts):
            return
        for index, start in late.items():
            print_warning(f"{self._topic}:{index} is read from offset {start}: earlier records were deleted")
        self._positions |= late

    def _check_ends(self, ends: dict[int, int], offset: int) -> None:
        """Refuse an offset that no partition has reached: its records were lost, or the offset is wrong."""
        if all(end < offset for end in ends.values()):
            index, end = max(ends.items(), key=lambda one: one[1])
            raise TidemarkError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self._topic}:{index} ends at offset {end}, before offset {offset}: there is nothing to read. An "
                "unclean election may have removed records, or the topic was created again",
                {"high_watermark": str(end)},
            )

    def _chosen(self, partition: int | None) -> list[int]:
        known = sorted(self._view.partitions)
        if partition is None:
            return known
        if partition not in known:
            raise unknown_partition(self._topic, partition, len(known))
        return [partition]

    def _position(self, partition: int, start: Start) -> int:
        if start.offset is not None:
            return start.offset
        if start.timestamp_us is not None:
            found = self._reader.offset_for_timestamp(self._topic, partition, start.timestamp_us)
            if found is not None:
                return found
        bounds = self._reader.bounds(self._topic, [partition])[partition]
        return bounds.earliest if start.position == "earliest" else bounds.latest
