# SPDX-License-Identifier: Apache-2.0
"""Offset, lag and bytes of a streaming query by partition, from the progress that Spark reports."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from tidemark_spark.stream_offsets import CheckpointError, StreamOffset, from_json

_log = logging.getLogger("tidemark.spark.progress")
_MEASURE: Final = "tidemark_read"
"""Name of the observation that `measured` adds; unique in a query."""


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """One partition after a micro-batch.

    Attributes:
        topic: topic name.
        partition: partition index.
        offset: offset of the next record to read.
        read_offsets: number of offsets of the micro-batch; None for the first micro-batch of a query, since Spark does
            not report its start.
        lag_offsets: number of later offsets when the micro-batch was planned; None with PySpark 4.0 and 4.1, which do
            not report them.
        skipped_offsets: number of offsets deleted before the query could read them, since its start.
        newly_skipped_offsets: those of this micro-batch; 0 for the first micro-batch of a query.
    """

    topic: str
    partition: int
    offset: int
    read_offsets: int | None
    lag_offsets: int | None
    skipped_offsets: int
    newly_skipped_offsets: int = 0


def measured(table: DataFrame) -> DataFrame:
    """The same rows, with the bytes of keys and values counted, for `read_bytes` and the listener.

    Args:
        table: result of readStream; only key and value columns of text or binary are counted.
    """
    kinds = dict(table.dtypes)
    sizes = [F.octet_length(name) for name in ("key", "value") if kinds.get(name) in ("string", "binary")]
    size: Any = F.lit(0)
    for one in sizes:
        size = size + F.coalesce(one, F.lit(0))
    return table.observe(_MEASURE, F.sum(size.cast("long")).alias("bytes"))


def read_bytes(progress: Mapping[str, Any]) -> int | None:
    """Bytes that a micro-batch read; None if its table is not `measured`.

    Args:
        progress: progress of the micro-batch, Spark's JSON parsed.
    """
    measure = (progress.get("observedMetrics") or {}).get(_MEASURE)
    return None if measure is None else int(measure.get("bytes") or 0)


def partition_progress(source: Mapping[str, Any]) -> list[PartitionProgress]:
    """Partitions of one entry of `sources` in a progress; empty for a source other than tidemark."""
    end = _offset(source.get("endOffset"))
    if end is None:
        return []
    start, latest = _offset(source.get("startOffset")), _offset(source.get("latestOffset"))
    return list(_partitions(start, end, latest))


def _partitions(
    start: StreamOffset | None, end: StreamOffset, latest: StreamOffset | None
) -> Iterator[PartitionProgress]:
    for name, topic in end.topics.items():
        for index, position in topic.partitions.items():
            before = None if start is None else start.position(name, index)
            there = None if latest is None else latest.position(name, index)
            first = position.begin if before is None else before.offset
            yield PartitionProgress(
                name,
                index,
                position.offset,
                None if start is None or first is None else max(0, position.offset - first),
                None if there is None else max(0, there.offset - position.offset),
                position.skipped,
                0 if before is None else max(0, position.skipped - before.skipped),
            )


def _offset(value: Any) -> StreamOffset | None:
    """An offset from a progress, as an object or as text."""
    try:
        return from_json(json.loads(value) if isinstance(value, str) else value)
    except (CheckpointError, json.JSONDecodeError):
        return None


class TidemarkListener(StreamingQueryListener):
    """Logs the progress of a session's queries, by topic, and keeps the last progress of each partition.

    spark.streams.addListener(TidemarkListener()). Lines go to the logger tidemark.spark.progress. At INFO there is a
    line for each topic and micro-batch, with the partition of the largest lag. At DEBUG there is a line for each
    partition.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[str, list[PartitionProgress]] = {}
        self._bytes: dict[str, int] = {}

    def partitions(self, query_id: str) -> list[PartitionProgress]:
        """Each partition of a query after its last micro-batch."""
        with self._lock:
            return list(self._last.get(query_id, ()))

    def bytes_read(self, query_id: str) -> int:
        """Bytes of keys and values that a query has read since this listener was added, if its table is `measured`."""
        with self._lock:
            return self._bytes.get(query_id, 0)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - these names are Spark's
        """Do nothing at the start of a query."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Log and keep the progress of a micro-batch."""
        progress = json.loads(event.progress.json)
        found = [one for source in progress.get("sources", ()) for one in partition_progress(source)]
        if not found:
            return
        size_bytes = read_bytes(progress)
        query_id = str(progress["id"])
        with self._lock:
            self._last[query_id] = found
            self._bytes[query_id] = self._bytes.get(query_id, 0) + (size_bytes or 0)
        batch = f"query {progress.get('name') or query_id}, batch {progress['batchId']}"
        for topic in sorted({one.topic for one in found}):
            _tell(batch, topic, [one for one in found if one.topic == topic])
        if size_bytes is not None:
            _log.info("%s: %d bytes read", batch, size_bytes)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Drop the progress of a query that ended."""
        with self._lock:
            self._last.pop(str(event.id), None)
            self._bytes.pop(str(event.id), None)


def _tell(query: str, topic: str, partitions: list[PartitionProgress]) -> None:
    for one in partitions:
        _log.debug(
            "%s: %s-%d is at offset %d, %s read, %s behind, %d skipped",
            query,
            topic,
            one.partition,
            one.offset,
            one.read_offsets,
            one.lag_offsets,
            one.skipped_offsets,
        )
    last = max(partitions, key=lambda one: one.lag_offsets or 0)
    _log.info(
        "%s: topic %s, %d partitions: %d offsets read, %d behind, most of them %s-%d with %d; %d skipped so far",
        query,
        topic,
        len(partitions),
        sum(one.read_offsets or 0 for one in partitions),
        sum(one.lag_offsets or 0 for one in partitions),
        topic,
        last.partition,
        last.lag_offsets or 0,
        sum(one.skipped_offsets for one in partitions),
    )
