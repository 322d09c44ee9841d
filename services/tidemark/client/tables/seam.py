# SPDX-License-Identifier: Apache-2.0
"""The offset at which the archive ends and the log begins, in each partition; archived rows come from the archive."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import NamedTuple

from tidemark.client.consuming.range_reader import Bounds
from tidemark.client.tables.archive_files import Archive, check_topic
from tidemark.client.tables.archive_rows import Held, held_in
from tidemark.client.tables.archiver import check_incarnation
from tidemark.core.cluster_view import TopicView
from tidemark.model import NO_EPOCH, ErrorCode, TidemarkError


class Part(NamedTuple):
    """Offsets of one partition that come from the archive, or from the log: [start, end)."""

    start: int
    end: int
    is_archived: bool


class Seam:
    """The present archived part of a topic; make an instance before the lookup of the log's bounds.

    Args:
        history: directory of an archive of the topic; None: no row is archived.
        topic: the topic, with its partitions.
        indexes: the partitions that are read.

    Attributes:
        archive: the archive; None: the topic has no archive.
        held: the archived part of each partition, if not empty.

    Raises:
        TidemarkError: INVALID_REQUEST: the archive is of another topic.
    """

    def __init__(self, history: str | os.PathLike[str] | None, topic: TopicView, indexes: Collection[int]) -> None:
        self._topic = topic
        self._log_starts: dict[int, int] = {}
        self.archive = None if history is None else Archive(history)
        self.held: Mapping[int, Held] = {}
        if self.archive is not None:
            self.held = {index: found for index, found in held_in(self.archive).items() if index in indexes}
            ends = {index: one.last for index, one in self.held.items()}
            check_topic(self.archive.root, ends, topic.topic, topic.topic_id)

    def bounds(self, logged: Mapping[int, Bounds]) -> dict[int, Bounds]:
        """The bounds of archive and log together.

        Raises:
            TidemarkError: INVALID_REQUEST: a partition was created again, or the directory has no archive;
                OFFSET_OUT_OF_RANGE: the log lost archived rows.
        """
        self._log_starts = {index: bound.earliest for index, bound in logged.items()}
        if self.archive is not None and not self.held:
            self._check_archive(self.archive)
        found = dict(logged)
        for index, held in self.held.items():
            check_incarnation(held.last, self._topic.partitions[index].incarnation, found[index].latest)
            found[index] = Bounds(min(held.start, found[index].earliest), found[index].latest)
        return found

    def _check_archive(self, archive: Archive) -> None:
        """Refuse a directory without the rows that the log no longer has, or without any rows: the path is probably
        wrong.
        """
        lost = [index for index, start in self._log_starts.items() if start > 0]
        if archive.root.is_dir() and (not lost or archive.files()):
            return
        more = f", and the log of {self._topic.topic}-{lost[0]} lost its first rows" if lost else ""
        raise TidemarkError(
            ErrorCode.INVALID_REQUEST,
            f"{archive.root} has no archive of topic {self._topic.topic}{more}: give the directory of archive_topic",
            {"topic": self._topic.topic},
        )

    def parts(self, index: int, begin: int, end: int) -> list[Part]:
        """The parts of a range of one partition, in order, none empty.

        Raises:
            TidemarkError: OFFSET_OUT_OF_RANGE: some rows are no longer in the archive or the log.
        """
        held = self.held.get(index)
        if held is None:
            parts = [Part(begin, end, False)]
        else:
            seams = begin, max(begin, min(held.start, end)), max(begin, min(held.last.end, end)), end
            triples = zip(seams, seams[1:], (False, True, False), strict=False)
            parts = [Part(start, stop, is_archived) for start, stop, is_archived in triples if start < stop]
        if self.archive is not None:
            for part in parts:
                self._check(index, part)
        return parts

    def epoch_before(self, index: int, start: int) -> int:
        """Upper bound of the leader epochs of the archived rows before `start`, where the log begins; -1: unknown."""
        held = self.held.get(index)
        return held.last.end_epoch if held is not None and held.last.end == start else NO_EPOCH

    def _check(self, index: int, part: Part) -> None:
        first = self._log_starts[index]
        if part.is_archived or part.start >= first:
            return
        assert self.archive is not None, "without an archive a range begins in the log"
        raise TidemarkError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{self._topic.topic}-{index}: the offsets {part.start} to {min(part.end, first) - 1} are not in the "
            f"archive {self.archive.root}, and retention deleted them from the log",
        )
