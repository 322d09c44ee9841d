# SPDX-License-Identifier: Apache-2.0
"""Rows of an archive in the version and columns of a reader: matched by column ids, widened, with defaults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemark.client.tables.archive_files import (
    DELETED,
    HEADERS,
    OFFSET,
    TIMESTAMP,
    Archive,
    ArchiveFile,
    Footer,
    footer_of,
    opened_file,
)
from tidemark.client.typed.batch_rows import BatchRows
from tidemark.record.schema import HEADERS_TYPE
from tidemark.record.typed.batch import TypedRows

_BATCH_ROWS: Final = 1 << 16
_compute: Any = pc


class Held(NamedTuple):
    """The archived part of a partition: offsets from `start`, inclusive, to `last.end`, exclusive."""

    start: int
    last: Footer


def held_in(archive: Archive) -> dict[int, Held]:
    """The archived part of each partition now."""
    return {partition: Held(files[0].start, files[-1].footer()) for partition, files in archive.files().items()}


def archived_rows(archive: Archive, partition: int, start: int, end: int, typed: BatchRows) -> Iterator[pa.RecordBatch]:
    """The rows of [start, end) in order, each once, in the schema of `typed`.

    Raises:
        TidemarkError: INVALID_REQUEST: a file is not of an archive, or is damaged; INCOMPATIBLE_SCHEMA.
    """
    files = archive.files().get(partition, [])
    behind = [file.start for file in files[1:]] + [end]
    for file, following in zip(files, behind, strict=True):
        if following <= start or file.start >= end:
            continue
        with opened_file(file.path) as opened:
            yield from _rows_of(opened, footer_of(opened, file.path), start, end, typed)


def _rows_of(
    opened: pq.ParquetFile, footer: Footer, start: int, end: int, typed: BatchRows
) -> Iterator[pa.RecordBatch]:
    names = typed.stored_columns(footer.schema)
    groups = [index for index, low, high in _spans(opened, OFFSET) if high >= start and low < end]
    columns = [*names, OFFSET, TIMESTAMP, DELETED, *([HEADERS] if typed.has_headers else [])]
    for rows in opened.iter_batches(_BATCH_ROWS, row_groups=groups, columns=columns):
        found = _typed_rows(rows, names)
        projected = typed.archived(found, footer.schema, footer.partition, start, end)
        if projected.num_rows:
            yield projected


def _typed_rows(rows: pa.RecordBatch, names: list[str]) -> TypedRows:
    deleted: Any = rows.column(DELETED)
    has_headers = HEADERS in rows.schema.names
    return TypedRows(
        rows.select(names),
        deleted if deleted.true_count else None,
        None,
        lambda: rows.column(OFFSET),
        lambda: rows.column(TIMESTAMP),
        lambda: rows.column(HEADERS) if has_headers else pa.nulls(rows.num_rows, HEADERS_TYPE),
    )


def _spans(opened: pq.ParquetFile, name: str) -> Iterator[tuple[int, int, int]]:
    """Least and largest value of a system column in each row group, as the integers that Parquet stores."""
    place = opened.schema_arrow.names.index(name)
    paths = [opened.schema.column(index).path for index in range(len(opened.schema))]
    leaf = paths.index(opened.schema_arrow.names[place])
    for group in range(opened.num_row_groups):
        statistics: Any = opened.metadata.row_group(group).column(leaf).statistics
        yield group, statistics.min_raw, statistics.max_raw


def archived_offset_at(archive: Archive, partition: int, time_us: int) -> int | None:
    """Offset of the first archived row at or after a time, in microseconds since 1970; None if there is no such row."""
    found = (_offset_in(file, time_us) for file in archive.files().get(partition, []))
    return next((offset for offset in found if offset is not None), None)


def _offset_in(file: ArchiveFile, time_us: int) -> int | None:
    with pq.ParquetFile(file.path) as opened:
        for group, _, high_us in _spans(opened, TIMESTAMP):
            if high_us >= time_us:
                rows = opened.read_row_group(group, columns=[OFFSET, TIMESTAMP])
                times_us: Any = rows.column(TIMESTAMP).cast(pa.int64())
                offsets: Any = rows.column(OFFSET).filter(_compute.greater_equal(times_us, time_us))
                found: int = offsets[0].as_py()
                return found
    return None
