# SPDX-License-Identifier: Apache-2.0
"""A bounded read of a typed topic: partitions, offsets, columns; rows in the newest version of the schema."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from tidemark.client.argument_types import int64, integer, integers, texts
from tidemark.client.consuming.range_reader import Bounds, RangeReader, RangeStart
from tidemark.client.metadata.bootstrap import Bootstrap
from tidemark.client.metadata.tls import Credentials
from tidemark.client.records import Timestamp
from tidemark.client.tables.archive_rows import archived_offset_at, archived_rows
from tidemark.client.tables.read_ahead import one_behind_the_other
from tidemark.client.tables.seam import Part, Seam
from tidemark.client.typed.batch_rows import ALL_TIMES, BatchRows
from tidemark.core.cluster_view import TopicView
from tidemark.core.schemas.model import TopicSchema
from tidemark.model import TopicPartition, invalid_request, microseconds_of, unknown_partition
from tidemark.record.typed.batch import TimeRange
from tidemark.rpc.security.paths import TlsFiles
from tidemark.rpc.security.token_source import TokenGiven

Place = str | int | Timestamp | datetime | Mapping[int, int]
"""A start or an end: "earliest", "latest", an offset, a time, or offsets by partition. A time means the first row at
or after that time, or the end of the partition if there is no such row.
"""


class PartitionBounds(NamedTuple):
    """Partitions and offsets of wanted rows.

    Attributes:
        partitions: their indexes; None: any.
        start: first offset, inclusive.
        end: end offset, exclusive; None: any.
    """

    partitions: frozenset[int] | None = None
    start: int = 0
    end: int | None = None


class TableScan:
    """Looks up the ranges to read, once; each `batches` reads it. Used by one thread.

    Args:
        bootstrap: "host:port[,host:port...]" of any brokers; None: TIDEMARK_BOOTSTRAP.
        topic: name of a topic with a schema.
        start: first row, inclusive.
        end: last row, exclusive.
        partitions: indexes of partitions; None: all.
        history: directory of an archive of the topic: archived rows come from there; None: all rows from brokers.
        deadline_s: seconds that a request may take, with its retries.
        tls: the TLS files; None: files of the environment, or plain text.
        token_file: path of a file with a bearer token, or a callable that returns one; None: TIDEMARK_TOKEN_FILE.
        isolation_level: "read_committed": up to the last stable offset, without rows of aborted transactions.
        columns_only: look up the columns only: `batches` yields no rows.

    Raises:
        TidemarkError: UNKNOWN_TOPIC; UNKNOWN_PARTITION. INVALID_REQUEST: the topic has no schema, a position is
            invalid, or the archive is of another topic. OFFSET_OUT_OF_RANGE: rows between archive and log are missing.
    """

    def __init__(
        self,
        bootstrap: Bootstrap | None,
        topic: str,
        *,
        start: Place = "earliest",
        end: Place = "latest",
        partitions: Sequence[int] | None = None,
        history: str | os.PathLike[str] | None = None,
        deadline_s: float = 30.0,
        tls: TlsFiles | None = None,
        token_file: TokenGiven | None = None,
        isolation_level: str = "read_uncommitted",
        columns_only: bool = False,
    ) -> None:
        self.topic = topic
        credentials = Credentials(tls, token_file)
        self._reader = RangeReader(bootstrap, deadline_s=deadline_s, tls=credentials, isolation_level=isolation_level)
        try:
            self._parts: dict[int, list[Part]] = {}
            if not columns_only:
                self._find_rows(start, end, partitions, history)
            self.versions: dict[int, TopicSchema] = self._reader.schemas(
                topic
            )  # after the ends are known: then the schema has all versions
            if not self.versions:
                raise invalid_request(f"topic {topic} has no schema, so it has no columns: read it with a Consumer")
        except BaseException:
            self._reader.close()
            raise

    def _find_rows(
        self, start: Place, end: Place, partitions: Sequence[int] | None, history: str | os.PathLike[str] | None
    ) -> None:
        self._view: TopicView = self._reader.topics([self.topic])[self.topic]
        indexes = self._indexes(partitions)
        # made before the bounds are read, so the bounds are not below the ends of the archive
        self._seam = Seam(history, self._view, indexes)
        bounds = self._seam.bounds(self._reader.bounds(self.topic, indexes))
        begins = self._offsets("start", start, bounds)
        ends = self._offsets("end", end, bounds)
        self._parts = {
            index: self._seam.parts(index, begins[index], ends[index])
            for index in indexes
            if begins[index] < ends[index]
        }

    def __enter__(self) -> TableScan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; `batches` ends."""
        self._reader.close()

    def rows(
        self,
        columns: Sequence[str] | None,
        *,
        dictionaries: bool = True,
        version: int | None = None,
        times: TimeRange = ALL_TIMES,
    ) -> BatchRows:
        """Reads these columns in a version, by default the newest; None: all columns, without system columns.

        Brokers omit the columns of batches that have no timestamp in `times`; archived rows all come.
        """
        wanted = None if columns is None else texts("columns", columns)
        version = max(self.versions) if version is None else integer("version", version)
        return BatchRows(
            self.topic, self.versions, wanted, system=(), dictionaries=dictionaries, version=version, times=times
        )

    def narrow(self, bounds: PartitionBounds) -> None:
        """Restrict the read to these partitions and offsets."""
        narrowed: dict[int, list[Part]] = {}
        for index, parts in self._parts.items():
            if bounds.partitions is None or index in bounds.partitions:
                ends = [part.end if bounds.end is None else min(part.end, bounds.end) for part in parts]
                clipped = (
                    Part(max(part.start, bounds.start), end, part.is_archived)
                    for part, end in zip(parts, ends, strict=True)
                )
                narrowed[index] = [part for part in clipped if part.start < part.end]
        self._parts = narrowed

    def batches(self, typed: BatchRows) -> Iterator[pa.RecordBatch]:
        """Yield the rows, partition by partition, in the schema of `typed`; fetches of the next ones are in flight."""
        sources = [partial(self._of_part, index, part, typed) for index, parts in self._parts.items() for part in parts]
        yield from one_behind_the_other(sources)

    def _of_part(self, index: int, part: Part, typed: BatchRows) -> Iterator[pa.RecordBatch]:
        start, end, is_archived = part
        archive = self._seam.archive
        if is_archived and archive is not None:
            return archived_rows(archive, index, start, end, typed)
        return self._logged(index, start, end, typed)

    def _logged(self, index: int, begin: int, end: int, typed: BatchRows) -> Iterator[pa.RecordBatch]:
        where = RangeStart(self.topic, index, begin, self._view.topic_id, self._view.partitions[index].incarnation)
        return self._reader.read(
            *where[:3],
            end,
            topic_id=where.topic_id,
            incarnation=where.incarnation,
            last_epoch=self._seam.epoch_before(index, begin),
            typed=typed,
        )

    def _indexes(self, partitions: Sequence[int] | None) -> list[int]:
        known = self._view.partitions
        wanted = sorted(known) if partitions is None else sorted(set(integers("partitions", partitions)))
        for index in wanted:
            if index not in known:
                raise unknown_partition(self.topic, index, len(known))
        return wanted

    def _offsets(self, name: str, place: Place, bounds: Mapping[int, Bounds]) -> dict[int, int]:
        """The offset of a place in each partition; an end is not past the last committed row."""
        match place:
            case "earliest":
                return {index: bound.earliest for index, bound in bounds.items()}
            case "latest":
                return {index: bound.latest for index, bound in bounds.items()}
            case Mapping():
                given = {integer(name, index): integer(name, offset) for index, offset in place.items()}
                self._indexes(list(given))  # refuses an index that the topic lacks
                absent = {index: bound[name == "end"] for index, bound in bounds.items()}
                return {index: min(given.get(index, absent[index]), bounds[index].latest) for index in bounds}
            case Timestamp() | datetime():
                return self._at_time(name, place, bounds)
            case str():
                raise invalid_request(f'{name} is {place!r}: give "earliest", "latest", an offset or a time')
            case _:
                offset = integer(name, place)
                return {index: min(offset, bound.latest) for index, bound in bounds.items()}

    def _at_time(self, name: str, place: Timestamp | datetime, bounds: Mapping[int, Bounds]) -> dict[int, int]:
        if isinstance(place, datetime) and place.tzinfo is None:
            raise invalid_request(f"{name} is {place!r}, without a time zone: add one, for example with .astimezone()")
        given_us = place.us if isinstance(place, Timestamp) else microseconds_of(place)
        stamp_us = int64(f"the time of {name}", given_us)
        found = self._reader.offsets({TopicPartition(self.topic, index): stamp_us for index in bounds})
        offsets = {where.partition: stated.offset for where, stated in found.items()}
        logged = {i: bound.latest if offsets[i] < 0 else min(offsets[i], bound.latest) for i, bound in bounds.items()}
        return {index: min(offset, self._archived_at(index, stamp_us, offset)) for index, offset in logged.items()}

    def _archived_at(self, index: int, stamp_us: int, absent: int) -> int:
        if self._seam.archive is None:
            return absent
        found = archived_offset_at(self._seam.archive, index, stamp_us)
        return absent if found is None else found


def read_table(
    bootstrap: Bootstrap | None,
    topic: str,
    *,
    columns: Sequence[str] | None = None,
    start: Place = "earliest",
    end: Place = "latest",
    partitions: Sequence[int] | None = None,
    history: str | os.PathLike[str] | None = None,
    version: int | None = None,
    **options: Any,
) -> pa.RecordBatchReader:
    """Read a topic with a schema as Arrow record batches, in one version of the schema.

    The rows of a partition come in order. The reader holds connections until its end, or until it is closed.

    Args:
        bootstrap: "host:port[,host:port...]" of any brokers, or a list; None: TIDEMARK_BOOTSTRAP.
        topic: name of the topic.
        columns: names such as "delay", paths such as "leg.origin", and of `_key`, `_partition`, `_offset`,
            `_timestamp`, `_headers`, `_deleted`; brokers send these only. None: all columns of the schema.
        start: first row, inclusive: "earliest", an offset, offsets by partition, a datetime with a time zone, or a
            Timestamp.
        end: end of the rows, exclusive: "latest" (the rows that are committed now), or as `start`.
        partitions: indexes of partitions; None: all.
        history: directory of an archive of the topic, from `archive_topic`: archived rows come from there, all other
            rows from brokers, each once. "earliest" is then the first archived row.
        version: version of the schema: rows of every other version become rows of this one; None: the newest.
        options: deadline_s (seconds for one request with its retries, 30), tls, token_file. isolation_level:
            "read_committed" (up to the last stable offset, without rows of aborted transactions) or "read_uncommitted".

    Raises:
        TidemarkError: UNKNOWN_TOPIC, UNKNOWN_PARTITION; INVALID_REQUEST: no schema, no such column;
            UNKNOWN_SCHEMA_VERSION; REQUEST_TIMED_OUT with the last refusal, also if no broker answers. From the reader
            also OFFSET_OUT_OF_RANGE, CORRUPT_BATCH, INCOMPATIBLE_SCHEMA.
        TypeError: an argument has a wrong type.

    Example: `delays = read_table("127.0.0.1:9192", "flights", columns=["carrier", "delay"]).read_all()`
    """
    scan = TableScan(bootstrap, topic, start=start, end=end, partitions=partitions, history=history, **options)
    try:
        typed = scan.rows(columns, version=version)
    except BaseException:
        scan.close()
        raise
    return pa.RecordBatchReader.from_batches(typed.schema, _until_end(scan, typed))


def _until_end(scan: TableScan, typed: BatchRows) -> Iterator[pa.RecordBatch]:
    with contextlib.closing(scan):
        yield from scan.batches(typed)
