# SPDX-License-Identifier: Apache-2.0
"""Gives the records of a started consumer to its application, and knows which of them the application has processed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from copy import copy
from typing import Any, TypeVar

from tidemark.client.consuming.fetcher import Fetcher
from tidemark.client.consuming.partition_cursor import Cursor
from tidemark.client.consuming.record_reader import RecordReader, WaitingRecords
from tidemark.client.consuming.typed_topics import TypedTopics
from tidemark.client.group.group_reader import GroupReader
from tidemark.client.records import ConsumerRecord, PartitionBatch
from tidemark.model import TopicPartition

_Found = TypeVar("_Found")


class Delivery:
    """Takes rows of the assigned partitions in turn.

    Args:
        fetcher: has the cursors with fetched rows.
        group: the group's reader; None: the application assigns partitions.
        topics: the schemas of typed topics.
        reader: makes records of rows.
        in_background: starts the lookup of a newer schema.

    Attributes:
        held: the cursor of the last returned records; None once the application polls again.
        passed: whether the last search for rows moved positions over markers or aborted records.
        given_records: number of returned records.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        group: GroupReader | None,
        topics: TypedTopics,
        reader: RecordReader,
        in_background: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self.held: Cursor | None = None
        self.passed = False
        self.given_records = 0
        self._fetcher = fetcher
        self._group = group
        self._topics = topics
        self._waiting = WaitingRecords(reader)
        self._turns: deque[Cursor] = deque()
        """Partitions that had rows when all were visited; a visit for each batch takes too long for thousands."""
        self._in_background = in_background

    def next_batch(self) -> PartitionBatch | None:
        """The next rows of one partition; None if none has rows."""
        self._waiting.forget()
        found = self._next_rows()
        if found is None:
            return None
        cursor, rows = found
        before_bytes = cursor.buffered_bytes
        cursor.passed()
        self.given_records += rows.num_rows
        self._give(cursor)
        self._fetcher.freed(before_bytes - cursor.buffered_bytes)
        return PartitionBatch(*cursor.partition, rows)

    def next_record(self) -> ConsumerRecord | None:
        """The next record; None if no partition has rows."""
        return self._take(self._waiting.take)

    def next_records(self, most: int) -> list[ConsumerRecord] | None:
        """At most that many records of one partition; None if no partition has rows."""
        return self._take(lambda: self._waiting.take_some(most))

    def next_of_held(self) -> ConsumerRecord | None:
        """The next record of the same batch, a short way of `done` and `next_record`; None if these are needed."""
        held, group = self.held, self._group
        if held is None:
            return None
        if group is not None:
            group.asked()
        record = None if self._fetcher.suspended else self._waiting.take_next(held)
        if record is not None and group is not None:
            group.gave(held.partition)
        return record

    def give_nothing(self) -> None:
        """The application gets no records, and works until it polls again."""
        if self._group is not None:
            self._group.gave(None)

    def done(self) -> None:
        """Mark the returned records as processed, since the application polls again."""
        if self.held is not None:
            self.held.settle()
            self.held = None
        if self._group is not None:
            self._group.asked()

    @property
    def wants_back(self) -> bool:
        """Whether the unprocessed of the last records should be given back with `give_back`; any thread may call."""
        held, group = self.held, self._group
        return held is None or held.withheld or held.paused or (group is not None and group.is_suspended)

    def give_back(self, partition: TopicPartition, offset: int) -> None:
        """Return to that offset: the application has processed the returned records only up to there."""
        cursor = self._fetcher.cursors.get(partition)
        if cursor is not None and cursor is self.held:
            self.held = None
            cursor.return_to(offset)
            self._fetcher.moved(cursor)
        if self._group is not None:
            self._group.asked()

    def _take(self, take: Callable[[], _Found]) -> _Found | None:
        waiting, fetcher = self._waiting, self._fetcher
        cursor = None if fetcher.suspended else waiting.cursor
        if cursor is None:
            self._topics.want(None)  # `poll` may have named columns
            found = self._next_rows()
            if found is None:
                waiting.forget()
                return None
            cursor, rows = found
            waiting.begin(cursor, rows)
            self.given_records += rows.num_rows
        before_bytes = cursor.buffered_bytes
        taken = take()
        self._give(cursor)
        if waiting.cursor is None:
            fetcher.freed(before_bytes - cursor.buffered_bytes)
        return taken

    def _give(self, cursor: Cursor) -> None:
        self.held = cursor
        if self._group is not None:
            self._group.gave(cursor.partition)

    def _next_rows(self) -> tuple[Cursor, Any] | None:
        """Take rows or the error of the next partition with either."""
        self.passed = False
        if self._group is not None and self._group.error is not None:
            raise copy(self._group.error)
        if self._fetcher.suspended:
            return None
        cursors = self._fetcher.cursors
        is_last = False
        while not is_last:
            if is_last := not self._turns:
                self._turns.extend(cursor for cursor in cursors.values() if cursor.has_rows)
            while self._turns:
                cursor = self._turns.popleft()
                if cursors.get(cursor.partition) is cursor and cursor.has_rows:
                    rows = self._take_turn(cursor)
                    if rows is not None:
                        return cursor, rows
        return None

    def _take_turn(self, cursor: Cursor) -> Any:
        """The next rows of a partition, which comes last then; None if it has only batches without records."""
        cursors = self._fetcher.cursors
        cursors[cursor.partition] = cursors.pop(cursor.partition)
        generation, known, position = cursor.generation, cursor.wanted_version, cursor.position
        rows = cursor.next_rows()
        self.passed |= cursor.position != position
        if cursor.wanted_version != known:
            self._in_background(self._topics.learn_version(cursor))
        if cursor.generation != generation:  # damaged: the fetch in flight starts after the damaged batch
            self._fetcher.moved(cursor)
        return rows
