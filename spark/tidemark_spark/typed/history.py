# SPDX-License-Identifier: Apache-2.0
"""The archived rows of a typed topic in a batch read: each archive file is a task, and the log has the later rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pyarrow as pa
from tidemark.client.consuming.range_reader import Bounds
from tidemark.client.tables.archive_files import Archive
from tidemark.client.tables.archive_rows import archived_rows
from tidemark.client.tables.seam import Seam
from tidemark.core.cluster_view import TopicView

from tidemark_spark.ranges import OffsetRange, PartitionBounds
from tidemark_spark.topics import Assignment
from tidemark_spark.typed.table import TypedTable


class History:
    """The archive of a topic at the time of planning; rows that are archived later come from the log.

    Args:
        root: directory of the archive, which the driver and all executors see at the same path.
        topic: the topic.
        indexes: the partitions that are read.

    Raises:
        TidemarkError: INVALID_REQUEST: the archive is of another topic.
    """

    def __init__(self, root: str, topic: TopicView, indexes: Collection[int]) -> None:
        self._root = root
        self._seam = Seam(root, topic, indexes)

    def bounds(self, logged: Mapping[int, PartitionBounds]) -> dict[int, PartitionBounds]:
        """The bounds of archive and log together; raises the errors of `Seam.bounds`."""
        found = self._seam.bounds({index: Bounds(one.start, one.end) for index, one in logged.items()})
        return {index: PartitionBounds(one.earliest, one.latest) for index, one in found.items()}

    def epoch_before(self, part: OffsetRange) -> int:
        """Upper bound of the leader epochs of the archived rows before a range of the log; -1: unknown."""
        return self._seam.epoch_before(part.partition, part.start)

    def divided(self, ranges: Sequence[OffsetRange]) -> tuple[list[OffsetRange], list[OffsetRange]]:
        """The parts in the archive, one for each file, and the parts in the log; raises the errors of `Seam.parts`."""
        archived: list[OffsetRange] = []
        logged: list[OffsetRange] = []
        files = Archive(self._root).files()
        for one in ranges:
            for start, end, is_archived in self._seam.parts(one.partition, one.start, one.end):
                if not is_archived:
                    logged.append(replace(one, start=start, end=end))
                    continue
                inner = [file.start for file in files[one.partition] if start < file.start < end]
                archived += [replace(one, start=low, end=high) for low, high in pairwise([start, *inner, end])]
        return archived, logged


def read_archived(ranges: Sequence[Assignment], table: TypedTable) -> Iterator[tuple[Assignment, pa.RecordBatch]]:
    """Rows of the ranges of one task, in order, each once; raises the errors of `archived_rows`."""
    for one in ranges:
        part = one.offsets
        for rows in archived_rows(Archive(one.archive), part.partition, part.start, part.end, table.rows):
            yield one, rows
