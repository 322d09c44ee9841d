# SPDX-License-Identifier: Apache-2.0
"""Merges small files of the archive of a typed topic into larger ones; each row stays in exactly one valid file.

A merged file replaces its sources when its name appears. The sources stay for readers that started earlier, until a
later run deletes them. An Iceberg table of the archive then gets all merged files in one snapshot:

1. only a file that the table has unchanged may be merged;
2. the name of each merged file appears, so that readers of the archive use it;
3. a snapshot replaces the sources of all merged files; an earlier or later run may write this snapshot, too;
4. snapshots that were replaced long enough ago expire, and the files that no snapshot has are deleted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from tidemark.client.argument_types import integer, number, positive
from tidemark.client.tables.archive_files import (
    MERGING,
    Archive,
    ArchiveFile,
    Footer,
    opened_file,
    path_in,
    read_footer,
)
from tidemark.client.tables.archiver import row_groups, written
from tidemark.client.tables.iceberg import PublishedTable, published_tables
from tidemark.model import invalid_request

_BATCH_ROWS: Final = 1 << 16
_FEWEST: Final = 2


@dataclass(frozen=True)
class MergeTask:
    """Files to merge into one; may go to another process of this machine, or of one with the same file system.

    Attributes:
        root: directory of the archive.
        folder: directory of the run for files that are not complete.
        sources: paths of files that follow one another without a gap, in one version of the schema.
    """

    root: str
    folder: str
    sources: tuple[str, ...]


class Compacted(NamedTuple):
    """The numbers of files that a compaction merged and deleted.

    Attributes:
        sources: number of files that were merged.
        merged: number of files that they became.
        deleted: number of files that were deleted, since earlier runs had replaced them.
    """

    sources: int
    merged: int
    deleted: int


Run = Callable[[Iterable[MergeTask]], Iterable[int]]


def compact_archive(
    root: str,
    *,
    file_mib: int = 128,
    min_files: int = 4,
    grace_hours: float = 24.0,
    run: Run | None = None,
    catalog: Mapping[str, str] | None = None,
) -> Compacted:
    """Merge files of an archive that follow one another; may run at the same time as `archive_topic`.

    One compaction at a time.

    Files of different versions of the schema are not merged with each other, so no column is lost. A file of
    half of `file_mib` or more is not merged. An Iceberg table of the archive gets the merged files in one snapshot that
    changes no row. A file that another engine changed there stays, as all files do while delete files apply.

    Args:
        root: directory of an archive of `archive_topic`, on a mounted file system.
        file_mib: approximate size of a merged file at most.
        min_files: number of neighbouring files that are worth a merge; 2 at least.
        grace_hours: time for which replaced files stay for readers that started earlier. Then the snapshots of the
            Iceberg table that have them expire, unless a branch or a tag holds them.
        run: runs `merge` for each task, and yields the results; None: in turn, in this process.
        catalog: the catalog of the Iceberg table, as for `archive_topic`.

    Raises:
        ImportError: there is an Iceberg table, and pyiceberg is not installed.
        TidemarkError: INVALID_REQUEST: there is no archive, another compaction runs, a file is damaged, or the catalog
            lacks the Iceberg table. Also INVALID_REQUEST: other runs keep changing the table. Errors of the catalog are
            raised, too.
    """
    file_bytes, grace_s = positive("file_mib", file_mib) << 20, number("grace_hours", grace_hours) * 3600
    archive = Archive(root)
    if not archive.files():
        raise invalid_request(f"{archive.root} is not an archive of a topic with a schema")
    with archive.lease(MERGING), published_tables(archive, catalog) as tables:
        for table in tables:
            table.replace()
        folder = archive.new_folder(MERGING)
        among = [one.held() for one in tables]
        tasks = plan(archive, folder, file_bytes=file_bytes, min_files=integer("min_files", min_files), among=among)
        sources = sum(map(merge, tasks) if run is None else run(tasks))
        if tasks:
            for table in tables:
                table.replace()
        return Compacted(sources, len(tasks), _sweep(archive, grace_s, tables))


def plan(
    archive: Archive, folder: Path, *, file_bytes: int, min_files: int, among: Iterable[Collection[str]] = ()
) -> list[MergeTask]:
    """Tasks for the files that are worth a merge now, by partition and offset.

    Args:
        archive: the archive.
        folder: the directory of this run, by `Archive.new_folder`.
        file_bytes: approximate size of a merged file at most.
        min_files: number of neighbouring files that are worth a merge; 2 at least.
        among: keys of the files that each Iceberg table has.
    """
    held = list(among)
    tasks = []
    for files in archive.files().values():
        for group in _groups(files, file_bytes, held):
            if len(group) >= max(_FEWEST, min_files):
                paths = tuple(str(file.path) for file in group)
                tasks.append(MergeTask(str(archive.root), str(folder), paths))
    return tasks


def _groups(
    files: Iterable[ArchiveFile], file_bytes: int, held: Sequence[Collection[str]]
) -> Iterator[list[ArchiveFile]]:
    """Files that can be merged: they are adjacent, are in each table, and have at most the size limit together."""
    group: list[ArchiveFile] = []
    group_bytes, last = 0, None
    for file in files:
        size_bytes, footer = file.path.stat().st_size, file.footer()
        stays = size_bytes * 2 >= file_bytes or any(file.key not in keys for keys in held)
        if last is None or stays or group_bytes + size_bytes > file_bytes or not _follows(footer, last):
            yield group
            group, group_bytes = [], 0
        if not stays:
            group.append(file)
            group_bytes += size_bytes
        last = footer
    yield group


def _follows(footer: Footer, last: Footer) -> bool:
    same = footer._replace(start=last.start, end=last.end, end_epoch=last.end_epoch)
    return same == last and footer.start == last.end


def merge(task: MergeTask) -> int:
    """Write one merged file, which is valid as soon as it is complete; returns the number of its sources.

    Raises:
        TidemarkError: INVALID_REQUEST: a source is damaged, or the compaction has ended: another one may merge these
            files with others.
    """
    try:
        return _merge(task)
    except FileNotFoundError:
        if Path(task.folder).exists():
            raise
        raise invalid_request(f"this compaction of the archive {task.root} has ended before its task") from None


def _merge(task: MergeTask) -> int:
    archive = Archive(task.root)
    paths = [Path(source) for source in task.sources]
    last = read_footer(paths[-1])
    footer = read_footer(paths[0])._replace(end=last.end, end_epoch=last.end_epoch)
    path = path_in(Path(task.folder))
    with written(path, footer.schema) as file:
        for group in row_groups(_batches(paths)):
            file.write(group)
        file.end(footer)
    archive.add_merged(footer, path)
    return len(paths)


def _batches(paths: Iterable[Path]) -> Iterator[pa.RecordBatch]:
    """The rows of all files, which may be more than a process may have open."""
    for path in paths:
        with opened_file(path) as opened:
            try:
                yield from opened.iter_batches(_BATCH_ROWS)
            except pa.ArrowInvalid as error:
                raise invalid_request(f"{path} is damaged: {error}") from None


def _sweep(archive: Archive, grace_s: float, tables: Iterable[PublishedTable]) -> int:
    """Delete files that were replaced long enough ago and that no table has any more; returns their number."""
    until_s = time.time() - grace_s
    due = {file.key: file for file, merged in archive.replaced() if merged.path.stat().st_mtime <= until_s}
    for table in tables if due else ():
        for key in table.release(due, int(until_s * 1000)) & due.keys():
            del due[key]
    for file in due.values():
        file.path.unlink(missing_ok=True)
    return len(due)
