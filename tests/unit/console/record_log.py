# SPDX-License-Identifier: Apache-2.0
"""A partition's log in memory, with the methods of `RangeReader` that the console uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from tidemark.client.consuming.range_reader import Bounds
from tidemark.console.queries.record_scan import Where
from tidemark.core.schemas.model import TopicSchema
from tidemark.record.envelope import Batch
from tidemark.record.schema import OFFSET_SCHEMA

WHERE = Where("flights", 0, "id of flights", "")


class FakeLog:
    """Records by offset; each read returns `rows_each` of them at a time.

    Attributes:
        reads: ranges that were read.
    """

    def __init__(self, rows_each: int = 4) -> None:
        self.rows: list[dict[str, Any]] = []
        self.start = 0
        self.end = 0
        self.reads: list[tuple[int, int]] = []
        self.versions: dict[int, TopicSchema] = {}
        self.typed_batches: list[Batch] = []
        self._rows_each = rows_each

    def add(self, value: bytes | None, key: bytes | None = None, headers: Any = None) -> None:
        """Append a record; its timestamp is 1000 times its offset, in microseconds."""
        row = {"key": key, "value": value, "timestamp": self.end * 1000, "headers": headers, "offset": self.end}
        self.rows.append(row)
        self.end += 1

    def bounds(self, topic: str, partitions: list[int]) -> Mapping[int, Bounds]:
        return dict.fromkeys(partitions, Bounds(self.start, self.end))

    def offset_for_timestamp(self, topic: str, partition: int, timestamp_us: int) -> int | None:
        return next((row["offset"] for row in self.rows if row["timestamp"] >= timestamp_us), None)

    def schemas(self, topic: str) -> dict[int, TopicSchema]:
        return self.versions

    def read(
        self, topic: str, partition: int, start: int, end: int, *, topic_id: str, incarnation: str, typed: Any
    ) -> Iterator[pa.RecordBatch]:
        self.reads.append((start, end))
        if typed is not None:
            yield from (typed.rows(batch, partition, start, end) for batch in self.typed_batches)
            return
        wanted = [row for row in self.rows if start <= row["offset"] < end]
        for first in range(0, len(wanted), self._rows_each):
            yield pa.RecordBatch.from_pylist(wanted[first : first + self._rows_each], schema=OFFSET_SCHEMA)
