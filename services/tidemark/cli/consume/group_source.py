# SPDX-License-Identifier: Apache-2.0
"""Source of `consume --group`: a member of a consumer group that commits the offsets of written records (G7)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, Self

import pyarrow as pa

from tidemark.cli.common.output import print_warning
from tidemark.cli.consume.options import CLIENT_ID, ConsumeOptions
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.client.metadata.cluster import CONNECT_TIMEOUT_S
from tidemark.client.outputs.shape import Shape
from tidemark.client.outputs.typed_rows import columns_to_read, next_offset, reader_of, version_to_read
from tidemark.client.records import PartitionBatch, offsets_of
from tidemark.client.sync.producer_consumer import Consumer
from tidemark.client.typed.batch_rows import BatchRows
from tidemark.model import TidemarkError, TopicPartition

COMMIT_INTERVAL_S: Final = 5.0
_Offsets = dict[TopicPartition | tuple[str, int], int]


class GroupSource:
    """Reads the assigned partitions of a topic; a context manager that commits and leaves the group at its end.

    The offsets of batches passed to `wrote` are committed every few seconds, on a revocation, and at the end, with the
    markers and aborted records after them. A Parquet file is readable only when it is complete, so its offsets are
    committed only at the end. With `until_end` the source is finished when the group has committed, or this member has
    read, all records below the current high watermarks. A Parquet file ends with the member's own partitions, since the
    other members may commit at their ends only.

    Raises:
        TidemarkError: UNKNOWN_TOPIC.
    """

    def __init__(self, bootstrap: str, options: ConsumeOptions, group: str, reset: str) -> None:
        # Raises for a missing topic; the group would wait for its creation.
        ends, self._typed = _look_up(bootstrap, options)
        self._columns = columns_to_read(options)
        self._ends = ends if options.until_end else None
        self._whole_at_end = options.shape is Shape.PARQUET
        self._written: _Offsets = {}
        """Offset after the last written record of each partition."""
        self._committed: _Offsets = {}
        """The last committed offset of each partition."""
        self._left: PartitionBatch | None = None
        """Polled records that are not written yet."""
        self._knows_left = True
        """Whether `_left` has all of them: not during a poll, nor after one that was interrupted."""
        self._commit_s = time.monotonic() + COMMIT_INTERVAL_S
        self._consumer = Consumer(
            bootstrap,
            group=group,
            offset_reset=reset,
            auto_commit_interval_ms=0,
            client_id=CLIENT_ID,
            rack=options.rack,
            isolation_level=options.isolation_level.value,
            request_timeout_ms=int(options.patience_s * 1000),
            schema_versions=self._versions(options),
        )
        try:
            self._consumer.subscribe([options.topic], on_revoked=self._on_revoked, on_lost=self._on_lost)
        except BaseException:
            self._consumer.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None or not self._whole_at_end:
                self._commit()
        finally:
            self._consumer.close()

    @property
    def finished(self) -> bool:
        """Whether the group has reached the ends; always False without `until_end`."""
        if self._ends is None:
            return False
        mine = {where: health.position for where, health in self._consumer.health().items() if where.partition >= 0}
        if any(position < self._ends.get(where, 0) for where, position in mine.items()):
            return False
        if mine and self._whole_at_end:
            return True
        others = self._ends.keys() - mine
        committed = self._consumer.committed(others)
        return all(committed.get(where, 0) >= self._ends[where] for where in others)

    @property
    def typed(self) -> pa.Schema | None:
        """Arrow schema of the rows of a typed topic; None for a topic without a schema."""
        return None if self._typed is None else self._typed.schema

    @property
    def lag(self) -> int:
        """Records of the assigned partitions that `poll` has not returned yet, as far as known."""
        return sum(max(0, behind) for behind in self._consumer.lag().values())

    def _versions(self, options: ConsumeOptions) -> dict[str, int]:
        """The schema version of the rows that the output needs."""
        version = None if self._typed is None else version_to_read(options, self._typed.target.version)
        return {} if version is None else {options.topic: version}

    def poll(self, timeout_s: float) -> Iterator[PartitionBatch]:
        """The next rows of one partition, if any arrive within `timeout_s`."""
        self._knows_left = False
        self._left = self._consumer.poll(timeout_s, self._columns)
        self._knows_left = True
        found = self._left
        if found is not None:
            yield found

    def wrote(self, batch: PartitionBatch) -> None:
        """Note a written batch for the next commit."""
        topic, partition, rows = batch
        if rows.num_rows:
            self._written[TopicPartition(topic, partition)] = next_offset(rows)
        if self._left is not None:
            rest = self._left.rows.slice(rows.num_rows)
            self._left = self._left._replace(rows=rest) if rest.num_rows else None

    def commit_if_due(self) -> None:
        """Commit the written records every few seconds; warns if the coordinator does not answer."""
        if not self._whole_at_end and time.monotonic() >= self._commit_s:
            self._commit_s = time.monotonic() + COMMIT_INTERVAL_S
            try:
                self._commit()
            except TidemarkError as error:  # the next commit includes these offsets
                print_warning(f"not committed yet: {error}")

    def _commit(self) -> None:
        offsets = self._offsets()
        if offsets:
            self._consumer.commit(offsets)
            self._committed |= offsets

    def _offsets(self) -> _Offsets:
        """The offsets to commit: of the next record that is not written, in each assigned partition."""
        positions: _Offsets = {
            where: one.position for where, one in self._consumer.health().items() if where.partition >= 0
        }
        found = dict(self._written)
        if self._knows_left:
            found |= positions
            if self._left is not None:
                found[TopicPartition(*self._left[:2])] = offsets_of(self._left.rows)[0].as_py()
        return {
            where: offset
            for where, offset in found.items()
            if where in positions and offset != self._committed.get(where)
        }

    def _on_revoked(self, partitions: list[TopicPartition]) -> None:
        offsets: _Offsets = {where: offset for where, offset in self._offsets().items() if where in partitions}
        self._on_lost(partitions)
        if offsets and not self._whole_at_end:
            try:
                self._consumer.commit(offsets)
            except TidemarkError as error:
                print_warning(f"the next member will read the last records again: {error}")

    def _on_lost(self, partitions: list[TopicPartition]) -> None:
        for where in partitions:
            self._written.pop(where, None)
            self._committed.pop(where, None)


def _look_up(bootstrap: str, options: ConsumeOptions) -> tuple[dict[TopicPartition, int], BatchRows | None]:
    """High watermarks of the partitions that have records; and the reader of a typed topic."""
    topic = options.topic
    level = options.isolation_level.value
    with RangeReader(
        bootstrap, deadline_s=options.patience_s, connect_timeout_s=CONNECT_TIMEOUT_S, isolation_level=level
    ) as reader:
        view = reader.topics([topic])[topic]
        bounds = reader.bounds(topic, sorted(view.partitions))
        typed = reader_of(options, reader.schemas(topic) if view.schema_version else {})
    ends = {TopicPartition(topic, index): one.latest for index, one in bounds.items() if one.earliest < one.latest}
    return ends, typed
