# SPDX-License-Identifier: Apache-2.0
"""Compares the archive of a typed topic with its log, column by column: one Spark task for each file.

The rows of a file are compared with the rows of the log in the version of the file. So columns that were dropped since
are compared, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from tidemark.client.consuming.range_reader import Bounds, RangeReader
from tidemark.client.metadata.bootstrap import Bootstrap
from tidemark.client.tables.archive_files import Archive, Footer, check_partition, check_topic
from tidemark.client.tables.archive_rows import archived_rows
from tidemark.client.typed.batch_rows import BatchRows
from tidemark.core.cluster_view import TopicView
from tidemark.core.schemas.text import from_text, to_text

from tidemark_spark.jobs.audit_findings import DIFFERS, LOST, NOT_ARCHIVED, NOT_IN_TOPIC_BUT_ARCHIVED, TWICE

_DEADLINE_S: Final = 60.0
_OFFSET: Final = "_offset"
_SYSTEM: Final = (_OFFSET, "_timestamp", "_headers", "_deleted")
STRETCH: Final = "problem string, topic string, partition int, first bigint, last bigint, records bigint"


class Stretch(NamedTuple):
    """A range of offsets with one problem: a row of STRETCH; both ends are inclusive."""

    problem: str
    topic: str
    partition: int
    first: int
    last: int
    records: int


@dataclass(frozen=True)
class FileTask:
    """One file of an archive for one Spark task.

    Attributes:
        bootstrap: see `RangeReader`.
        root: directory of the archive.
        topic: name of the topic.
        partition: index of the partition.
        start: first offset of the file, inclusive.
        end: end offset of its rows, exclusive.
        following: first offset of the next file; the end of the last file.
        log: bounds of the log, by the last stable offset.
        version: version of the rows in the file.
        schemas: texts of all versions.
        is_compacted: whether the topic is compacted: it has holes, and the archive may have rows there.
    """

    bootstrap: Bootstrap | None
    root: str
    topic: str
    partition: int
    start: int
    end: int
    following: int
    log: Bounds
    version: int
    schemas: Mapping[int, str]
    is_compacted: bool


def archive_stretches(
    spark: SparkSession, bootstrap: Bootstrap | None, topic: str, root: str, *, is_compacted: bool
) -> DataFrame:
    """Compare the archive with the topic, from the archive's first offset to its last; the result is in STRETCH.

    Rows that retention deleted from the topic are only checked for gaps and duplicates. Rows that are not archived yet
    are not findings.

    Raises:
        TidemarkError: INVALID_REQUEST: the archive is of another topic, or of an earlier incarnation.
    """
    archive = Archive(root)
    footers = {partition: [file.footer() for file in files] for partition, files in archive.files().items()}
    with RangeReader(bootstrap, deadline_s=_DEADLINE_S, isolation_level="read_committed") as reader:
        view = reader.topics([topic])[topic]
        _check_same(archive, footers, view)
        logs = dict(reader.bounds(topic, sorted(footers)))  # after the files: an offset beyond them is a mismatch
        schemas = reader.schemas(topic)
    texts = {version: to_text(schema) for version, schema in schemas.items()}
    tasks: list[FileTask] = []
    found: list[Stretch] = []
    for partition, parts in footers.items():
        behind = [footer.start for footer in parts[1:]] + [parts[-1].end]
        for footer, following in zip(parts, behind, strict=True):
            place = (
                bootstrap,
                str(archive.root),
                topic,
                partition,
                footer.start,
                min(footer.end, following),
                following,
            )
            tasks.append(FileTask(*place, logs[partition], footer.schema.version, texts, is_compacted))
        found += _between(parts, logs[partition], is_compacted=is_compacted)
    compared = spark.sparkContext.parallelize(tasks, len(tasks)).flatMap(lambda task: list(stretches(task)))
    return spark.createDataFrame(compared.union(spark.sparkContext.parallelize(found, 1)), STRETCH)


def _check_same(archive: Archive, footers: Mapping[int, Sequence[Footer]], view: TopicView) -> None:
    check_topic(archive.root, {partition: parts[-1] for partition, parts in footers.items()}, view.topic, view.topic_id)
    for partition, parts in footers.items():
        known = view.partitions.get(partition)
        check_partition(parts[-1], "" if known is None else known.incarnation)


def _between(parts: Sequence[Footer], log: Bounds, *, is_compacted: bool) -> Iterator[Stretch]:
    """Problems by the names and footers of the files of one partition."""
    first = parts[0]
    for footer, following in pairwise(parts):
        if following.start < footer.end:
            yield _stretch(TWICE, first, following.start, min(footer.end, following.end))
        elif not is_compacted and footer.end < min(following.start, log.earliest):
            yield _stretch(LOST, first, footer.end, min(following.start, log.earliest))
    if not is_compacted and parts[-1].end < log.earliest:
        yield _stretch(LOST, first, parts[-1].end, log.earliest)


def _stretch(problem: str, where: Footer, start: int, end: int) -> Stretch:
    return Stretch(problem, where.topic, where.partition, start, end - 1, end - start)


def stretches(task: FileTask) -> Iterator[Stretch]:
    """Problems of the rows of one file and of the same offsets in the log, and of those up to the next file."""
    versions = {version: from_text(text) for version, text in task.schemas.items()}
    with RangeReader(task.bootstrap, deadline_s=_DEADLINE_S, isolation_level="read_committed") as reader:

        def logged(start: int, end: int, typed: BatchRows) -> pa.Table:
            low, high = max(start, task.log.earliest), min(end, task.log.latest)
            rows = reader.read(task.topic, task.partition, low, high, typed=typed) if low < high else ()
            return pa.Table.from_batches(list(rows), typed.schema)

        typed = BatchRows(task.topic, versions, system=_SYSTEM, dictionaries=False, version=task.version)
        archived = archived_rows(Archive(task.root), task.partition, task.start, task.end, typed)
        position = task.start
        while position < task.end:
            rows = next(archived, None)
            end = task.end if rows is None else rows.column(_OFFSET)[-1].as_py() + 1
            table = pa.Table.from_batches([] if rows is None else [rows], typed.schema)
            there = logged(position, end, typed)
            found = compared(table, there, log_start=task.log.earliest, is_compacted=task.is_compacted)
            for problem, offsets in found.items():
                yield from _stretches(task, problem, offsets)
            position = max(end, position + 1)
        if task.end < task.following:
            there = logged(task.end, task.following, BatchRows(task.topic, versions, [_OFFSET, "_deleted"]))
            yield from _stretches(task, NOT_ARCHIVED, _offsets(there))


def _stretches(task: FileTask, problem: str, offsets: Sequence[int]) -> Iterator[Stretch]:
    for first, last in _runs(offsets):
        yield Stretch(problem, task.topic, task.partition, first, last, last - first + 1)


def compared(archived: pa.Table, logged: pa.Table, *, log_start: int, is_compacted: bool) -> dict[str, list[int]]:
    """Compare archived with logged rows; returns the offsets of each problem. Pure.

    Args:
        archived: rows in the order of offsets, with `_offset`.
        logged: rows of the log with the same columns and offsets.
        log_start: offsets below are in the archive only.
        is_compacted: whether the log may lack rows.
    """
    ours, theirs = _offsets(archived), _offsets(logged)
    found: dict[str, list[int]] = {}
    if ours != theirs:
        copies, there = Counter(ours), set(theirs)
        found[TWICE] = [offset for offset, count in copies.items() if count > 1]
        found[NOT_ARCHIVED] = [offset for offset in theirs if offset not in copies]
        if not is_compacted:
            found[NOT_IN_TOPIC_BUT_ARCHIVED] = [one for one in copies if one >= log_start and one not in there]
        places = {offset: place for place, offset in enumerate(ours)}
        both = [offset for offset in theirs if offset in places]
        at = {offset: place for place, offset in enumerate(theirs)}
        archived = archived.take([places[offset] for offset in both])
        logged = logged.take([at[offset] for offset in both])
        ours = both
    unequal: set[int] = set()
    for name in archived.column_names:
        mine, other = archived.column(name), logged.column(name)
        if not mine.equals(other):
            unequal |= {place for place, pair in enumerate(_texts(mine, other)) if pair[0] != pair[1]}
    found[DIFFERS] = [ours[place] for place in sorted(unequal)]
    return {problem: offsets for problem, offsets in found.items() if offsets}


def _offsets(table: pa.Table) -> list[int]:
    found: Any = table.column(_OFFSET)
    return list(found.to_pylist())


def _texts(mine: Any, other: Any) -> Iterator[tuple[str, str]]:
    """Each pair of values as texts: for Arrow, a NaN is not equal to itself."""
    return zip(map(repr, mine.to_pylist()), map(repr, other.to_pylist()), strict=True)


def _runs(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of rising offsets without a hole."""
    for _, run in groupby(enumerate(offsets), lambda one: one[1] - one[0]):
        found = [offset for _, offset in run]
        yield found[0], found[-1]
