# SPDX-License-Identifier: Apache-2.0
"""Archives a typed topic to Parquet, each committed row once; a later run continues where the files end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.client.argument_types import positive
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.client.metadata.bootstrap import Bootstrap
from tidemark.client.metadata.tls import Credentials
from tidemark.client.tables.archive_files import (
    DELETED,
    HEADERS,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    Archive,
    Footer,
    check_partition,
    check_topic,
    parquet_schema,
)
from tidemark.client.tables.iceberg import check_place, publish
from tidemark.client.typed.batch_rows import BatchRows
from tidemark.core.cluster_view import TopicView
from tidemark.core.schemas.model import TopicSchema
from tidemark.core.schemas.text import from_text, to_text
from tidemark.model import NO_EPOCH, ErrorCode, TidemarkError, invalid_request

_ISOLATION_LEVEL: Final = "read_committed"
"""Isolation level of an archive: no later run removes a row of an aborted transaction."""
_SYSTEM: Final = (PARTITION, OFFSET, TIMESTAMP, HEADERS, DELETED)
_GROUP_ROWS: Final = 1 << 17
"""Rows of a row group at most; readers skip groups by the least and largest values of each column."""
_GROUP_BYTES: Final = 32 << 20
"""Largest size of a row group, in bytes of Arrow."""


@dataclass(frozen=True)
class ArchiveTask:
    """One partition of a run; may go to another process of this machine, or of one with the same file system.

    Attributes:
        root: directory of the archive.
        topic: name of the topic.
        topic_id: id that the topic must have.
        incarnation: incarnation that the partition must have.
        partition: index of the partition.
        start: first offset, inclusive.
        end: end offset, exclusive.
        version: version of the schema that the rows get: the newest.
        schemas: texts of all versions.
        file_bytes: approximate size of a file at most.
        last_epoch: upper bound of the leader epochs of the archived records before `start`; -1: unknown.
        end_epoch: upper bound of the leader epochs of the records before `end`; -1: unknown.
        deadline_s: seconds that a request may take, with its retries.
    """

    bootstrap: Bootstrap | None
    root: str
    topic: str
    topic_id: str
    incarnation: str
    partition: int
    start: int
    end: int
    version: int
    schemas: Mapping[int, str]
    file_bytes: int
    last_epoch: int = NO_EPOCH
    end_epoch: int = NO_EPOCH
    deadline_s: float = 30.0


Run = Callable[[Iterable[ArchiveTask]], Iterable[int]]


def archive_topic(
    bootstrap: Bootstrap | None,
    topic: str,
    root: str,
    *,
    file_mib: int = 128,
    skip_lost: bool = False,
    deadline_s: float = 30.0,
    run: Run | None = None,
    iceberg: str | None = None,
    catalog: Mapping[str, str] | None = None,
) -> int:
    """Archive the rows of a topic with a schema that are committed now and not archived yet.

    Rows get the newest version of the schema, with the columns `_partition`, `_offset`, `_timestamp`, `_headers` and
    `_deleted`. One run at a time writes an archive. TLS files and token come from the environment.

    Args:
        bootstrap: "host:port[,host:port...]" of any brokers, or a list; None: TIDEMARK_BOOTSTRAP.
        topic: name of the topic.
        root: directory of the archive, on a mounted file system; a new directory, or the directory of an earlier run.
        file_mib: approximate size of a file at most.
        skip_lost: continue after rows that retention deleted before they were archived.
        deadline_s: seconds that a request may take, with its retries.
        run: runs `write_partition` for each task, and yields the results; None: in turn, in this process.
        iceberg: "namespace.table": an Iceberg table that has the files, too; needs pyiceberg. None: no Iceberg table.
        catalog: properties of its pyiceberg catalog, such as {"type": "rest", "uri": "https://...", "token-file":
            "/run/secrets/token"}; None: SQLite, in the archive's directory.

    Returns:
        The number of rows that were archived.

    Raises:
        TidemarkError: UNKNOWN_TOPIC, REQUEST_TIMED_OUT. INVALID_REQUEST: no schema, the archive is of another topic,
            another run writes it, the Iceberg table has no namespace, or Iceberg does not read the path of the archive.
            OFFSET_OUT_OF_RANGE: retention deleted rows before they were archived. LOG_TRUNCATED: an unclean election
            removed archived rows; archive the topic to another directory.
    """
    file_bytes = positive("file_mib", file_mib) << 20
    archive = Archive(root)
    if iceberg is not None:
        check_place(archive, iceberg)
    with archive.lease():
        tasks = plan(archive, bootstrap, topic, file_bytes, skip_lost=skip_lost, deadline_s=deadline_s)
        rows = sum(map(write_partition, tasks) if run is None else run(tasks))
        if iceberg is not None:
            publish(archive, iceberg, catalog)
        return rows


def plan(
    archive: Archive, bootstrap: Bootstrap | None, topic: str, file_bytes: int, *, skip_lost: bool, deadline_s: float
) -> list[ArchiveTask]:
    """Tasks for committed rows that are not archived, by partition; the caller has the lease.

    Raises:
        TidemarkError: the errors of `archive_topic`.
    """
    ends = archive.ends()
    with RangeReader(bootstrap, deadline_s=deadline_s, isolation_level=_ISOLATION_LEVEL) as reader:
        view: TopicView = reader.topics([topic])[topic]
        check_topic(archive.root, ends, topic, view.topic_id)
        bounds = reader.bounds(topic, sorted(view.partitions))
        versions = reader.schemas(topic)  # after the ends are known: then the schema has all versions of the rows
    if not versions:
        raise invalid_request(f"topic {topic} has no schema, so it has no columns to archive")
    tasks = []
    for index, bound in sorted(bounds.items()):
        incarnation = view.partitions[index].incarnation
        archived = ends.get(index)
        start = bound.earliest
        if archived is not None:
            check_incarnation(archived, incarnation, bound.latest)
            if archived.end < bound.earliest and not skip_lost:
                raise TidemarkError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"{topic}-{index}: retention deleted the offsets {archived.end} to {bound.earliest - 1} before "
                    f"they were archived; skip them with skip_lost",
                )
            start = max(archived.end, bound.earliest)
        if start < bound.latest:
            texts = {version: to_text(schema) for version, schema in versions.items()}
            place = (str(archive.root), topic, view.topic_id, incarnation, index, start, bound.latest)
            last_epoch = archived.end_epoch if archived is not None and archived.end == start else NO_EPOCH
            epochs = last_epoch, bound.latest_epoch
            tasks.append(ArchiveTask(bootstrap, *place, max(versions), texts, file_bytes, *epochs, deadline_s))
    return tasks


def check_incarnation(archived: Footer, incarnation: str, latest: int) -> None:
    """Check that a partition continues where its archive ends.

    Raises:
        TidemarkError: INVALID_REQUEST: the partition was created again; OFFSET_OUT_OF_RANGE: the log ends before the
            archive does.
    """
    check_partition(archived, incarnation)
    where = f"{archived.topic}-{archived.partition}"
    if archived.end > latest:
        raise TidemarkError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{where}: the archive ends at offset {archived.end} and the log at {latest}: the log lost archived rows",
        )


def write_partition(task: ArchiveTask) -> int:
    """Write the files of one partition; each file is valid as soon as it is complete. Returns the number of rows.

    A task that runs again continues where its files end.
    """
    last = Archive(task.root).ends().get(task.partition)
    if last is not None and last.end > task.start:
        task = replace(task, start=last.end, last_epoch=last.end_epoch)
    if task.start >= task.end:
        return 0
    versions = {version: from_text(text) for version, text in task.schemas.items()}
    typed = BatchRows(task.topic, versions, system=_SYSTEM, dictionaries=False, version=task.version)
    credentials = Credentials(None, None)
    deadline_s, level = task.deadline_s, _ISOLATION_LEVEL
    with RangeReader(task.bootstrap, deadline_s=deadline_s, tls=credentials, isolation_level=level) as reader:
        batches = reader.read(
            task.topic,
            task.partition,
            task.start,
            task.end,
            topic_id=task.topic_id,
            incarnation=task.incarnation,
            last_epoch=task.last_epoch,
            typed=typed,
        )
        return write_batches(task, versions[task.version], batches)


def write_batches(task: ArchiveTask, schema: TopicSchema, batches: Iterable[pa.RecordBatch]) -> int:
    """Write rows, in the columns of `parquet_schema`, to files of about `file_bytes`. Returns the number of rows.

    A range without rows, such as of aborted transactions, gets a file without rows: it is archived, too.
    """
    archive = Archive(task.root)
    where = (task.topic, task.topic_id, task.incarnation, task.partition)
    footer = Footer(*where, task.start, task.end, schema, task.end_epoch)
    groups = row_groups(batches)
    total, group = 0, next(groups, None)
    while footer.start < task.end:
        path = archive.new_path()
        with written(path, schema) as file:
            size_bytes = 0
            while group is not None and size_bytes < task.file_bytes:
                size_bytes = file.write(group)
                total += group.num_rows
                behind = group.column(OFFSET)[-1].as_py() + 1
                group = next(groups, None)
            footer = footer._replace(end=task.end if group is None else behind)
            file.end(footer)
        archive.add(footer, path)
        footer = footer._replace(start=footer.end)
    return total


def row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows in tables that are row groups of a file; batches of producers are far smaller."""
    held: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        held.append(batch)
        rows, size_bytes = rows + batch.num_rows, size_bytes + batch.nbytes
        if rows >= _GROUP_ROWS or size_bytes >= _GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held, rows, size_bytes = [], 0, 0
    if rows:
        yield pa.Table.from_batches(held)


class WrittenFile:
    """A file that is being written."""

    def __init__(self, file: BinaryIO, schema: TopicSchema) -> None:
        self._file = file
        self._schema = parquet_schema(schema)
        self._writer = pq.ParquetWriter(file, self._schema, compression="zstd")

    def write(self, rows: pa.Table) -> int:
        """Write a row group; returns the size of the file so far, in bytes."""
        arrays: Any = rows.columns
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema), rows.num_rows)
        return self._file.tell()

    def end(self, footer: Footer) -> None:
        """Write the footer."""
        self._writer.add_key_value_metadata(footer.as_metadata())
        self.close()

    def close(self) -> None:
        """Close the file; no more rows can be written."""
        self._writer.close()


@contextlib.contextmanager
def written(path: Path, schema: TopicSchema) -> Iterator[WrittenFile]:
    """Create a file; an error deletes the file."""
    try:
        with path.open("wb") as file, contextlib.closing(WrittenFile(file, schema)) as found:
            yield found
    except BaseException:
        path.unlink(missing_ok=True)
        raise
