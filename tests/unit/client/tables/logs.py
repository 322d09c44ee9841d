# SPDX-License-Identifier: Apache-2.0
"""Logs of one typed topic in memory, with the answers that brokers give a `RangeReader`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from tidemark.client.consuming.range_reader import Bounds, StatedOffset
from tidemark.client.producing.typed_format import TypedFormat
from tidemark.client.typed.batch_rows import BatchRows
from tidemark.core.cluster_view import PartitionView, TopicView
from tidemark.core.schemas.compatibility import Compatibility
from tidemark.core.schemas.ddl import draft_from_ddl
from tidemark.core.schemas.evolution import first_version, next_version
from tidemark.core.schemas.model import TopicSchema
from tidemark.model import BrokerId, ErrorCode, LeaderEpoch, TidemarkError, TopicPartition
from tidemark.record.envelope import Batch

from tests.unit.client.typed.samples import sealed

TOPIC = "flights"
NAME = "lake.flights"
NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)
FIRST = first_version(
    draft_from_ddl(
        "carrier STRING NOT NULL, delay INT, at TIMESTAMP NOT NULL, legs ARRAY<STRUCT<origin: STRING, miles: INT>>, "
        "PRIMARY KEY (carrier), EVENT_TIME (at)"
    )
)
SECOND = next_version(
    FIRST,
    draft_from_ddl(
        "airline STRING NOT NULL RENAMED FROM carrier, delay BIGINT, at TIMESTAMP NOT NULL, gate STRING DEFAULT '?', "
        "legs ARRAY<STRUCT<origin: STRING, miles: BIGINT>>, PRIMARY KEY (airline), EVENT_TIME (at)"
    ),
    Compatibility.BACKWARD,
)


def flights(first: int, count: int, name: str = "carrier") -> pa.Table:
    numbers = range(first, first + count)
    legs = [[{"origin": "EWR", "miles": number}] for number in numbers]
    times = [NOON + timedelta(minutes=number) for number in numbers]
    return pa.table({name: [f"c{number}" for number in numbers], "delay": list(numbers), "at": times, "legs": legs})


class Logs:
    """The partitions of a topic; a call like `RangeReader(...)` returns the log itself as reader."""

    def __init__(self, schema: TopicSchema, partitions: int = 1) -> None:
        self.versions = {schema.version: schema}
        self.topic_id = "one"
        self.incarnation = "first"
        self.starts = [0] * partitions
        self.batches: list[list[Batch]] = [[] for _ in range(partitions)]
        self.reads: list[tuple[int, int, int]] = []
        """Partition, start and end of each read."""
        self.epoch = 1
        self.last_epochs: list[int] = []
        """The epoch that each read states for the records before its start."""

    def __call__(self, *_: Any, **__: Any) -> Logs:
        return self

    def __enter__(self) -> Logs:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def append(self, partition: int, table: pa.Table) -> None:
        """Store rows in the newest version."""
        typed = TypedFormat(TOPIC, self.topic_id, self.versions[max(self.versions)])
        batch = sealed(typed, *typed.fit_table(table, None), base_offset=self.end(partition))
        self.batches[partition].append(batch)

    def evolve(self, schema: TopicSchema) -> None:
        self.versions[schema.version] = schema

    def end(self, partition: int) -> int:
        stored = self.batches[partition]
        return stored[-1].envelope.next_offset if stored else 0

    # -- RangeReader ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        pass

    def topics(self, names: Sequence[str]) -> Mapping[str, TopicView]:
        assert names == [TOPIC]
        broker, epoch = BrokerId(1), LeaderEpoch(1)
        parts = {
            index: PartitionView(index, broker, epoch, (broker,), (broker,), self.incarnation)
            for index in range(len(self.batches))
        }
        return {TOPIC: TopicView(TOPIC, self.topic_id, partitions=parts, schema_version=max(self.versions))}

    def bounds(self, topic: str, partitions: Sequence[int]) -> Mapping[int, Bounds]:
        return {index: Bounds(self.starts[index], self.end(index), self.epoch) for index in partitions}

    def schemas(self, topic: str, versions: Sequence[int] = ()) -> dict[int, TopicSchema]:
        return dict(self.versions)

    def offsets(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, StatedOffset]:
        return {where: StatedOffset(self._at(where.partition, stamp_us), 1) for where, stamp_us in positions.items()}

    def read(
        self, topic: str, partition: int, start: int, end: int, *, typed: BatchRows, last_epoch: int = -1, **_: Any
    ) -> Iterator[pa.RecordBatch]:
        self.reads.append((partition, start, end))
        self.last_epochs.append(last_epoch)
        if start < self.starts[partition]:
            raise TidemarkError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {start} was deleted")
        for batch in self.batches[partition]:
            if batch.envelope.base_offset < end and batch.envelope.next_offset > start:
                rows = typed.rows(batch, partition, start, end)
                if rows.num_rows:
                    yield rows

    def _at(self, partition: int, stamp_us: int) -> int:
        typed = BatchRows(TOPIC, self.versions, ["_offset", "_timestamp"])
        for batch in self.batches[partition]:
            for row in typed.rows(batch, partition, self.starts[partition]).to_pylist():
                if row["_timestamp"].timestamp() * 1_000_000 >= stamp_us:
                    return int(row["_offset"])
        return -1
