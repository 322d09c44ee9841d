# SPDX-License-Identifier: Apache-2.0
"""The streaming reader: the driver determines the end of each micro-batch and plans its tasks; tasks are stateless.

A micro-batch needs one metadata request and one request to each leader, for any number of partitions.
"""

from __future__ import annotations

import functools
import logging
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType
from tidemark.client.consuming.range_reader import RangeReader, StatedOffset
from tidemark.core.cluster_view import TopicView
from tidemark.model import NO_EPOCH, TidemarkError, TopicPartition

from tidemark_spark import compat, topics
from tidemark_spark.options import ReadOptions
from tidemark_spark.plain_errors import plain_errors
from tidemark_spark.ranges import OffsetRange, check_named, pack, resolve, split, times_of
from tidemark_spark.reader import TidemarkInputPartition, check_schema, read_task
from tidemark_spark.rows import CREATE_TIME
from tidemark_spark.stream_offsets import (
    Available,
    DataLossError,
    Position,
    StreamOffset,
    TopicPosition,
    advance,
    check_cluster,
    clamp,
    deleted,
    first_start,
    from_json,
    is_cut,
    losses,
    truncated,
    waiting,
)
from tidemark_spark.topics import ADVICE, Assignment
from tidemark_spark.typed.topic import TypedTopic, check_same, check_version

if TYPE_CHECKING:
    from tidemark_spark.streams.group_progress import GroupProgress
    from tidemark_spark.typed.table import TypedTable

_log = logging.getLogger("tidemark.spark")

_NAMED_MAX: Final = 3
_WARNED_MAX: Final = 1000
_PATIENCE_S: Final = 1.0
_AGAIN_S: Final = 0.1
_UNKNOWN: Final = StreamOffset("", {})
"""Stands for the start of a query that may have a checkpoint."""


class _Whole(NamedTuple):
    """Range of a micro-batch in one partition, before the split into tasks."""

    offsets: OffsetRange
    topic_id: str
    end: Position
    epoch_before: int

    def begin_at(self, offset: int) -> _Whole | None:
        """The part from an offset on; None if it is empty."""
        part = self.offsets
        if offset <= part.start:
            return self
        if offset >= part.end:
            return None
        return self._replace(offsets=OffsetRange(part.topic, part.partition, offset, part.end), epoch_before=NO_EPOCH)

    def lacks(self, now: StatedOffset) -> bool:
        """Whether a log that ends here now was truncated below the end of the range."""
        return now.offset < self.offsets.end and now.leader_epoch > self.end.leader_epoch

    def end_at(self, offset: int) -> _Whole:
        """The part below an offset, perhaps empty."""
        part = self.offsets
        return self._replace(offsets=OffsetRange(part.topic, part.partition, part.start, max(part.start, offset)))


def _whole(start: StreamOffset, end: StreamOffset) -> dict[tuple[str, int], _Whole]:
    """Ranges between two offsets of a query, by topic and partition."""
    found: dict[tuple[str, int], _Whole] = {}
    for name, topic in end.topics.items():
        before = start.topics.get(name)
        for index, position in topic.partitions.items():
            known = None if before is None or before.topic_id != topic.topic_id else before.partitions.get(index)
            if known is not None and known.incarnation != position.incarnation:
                known = None
            first = (position.begin or 0) if known is None else known.offset
            if first < position.offset:
                epoch = NO_EPOCH if known is None else known.leader_epoch
                part = OffsetRange(name, index, first, position.offset)
                found[name, index] = _Whole(part, topic.topic_id, position, epoch)
    return found


class StreamPlanner:
    """The driver's part of a streaming query, for all versions of PySpark.

    Args:
        options: options of the read.
        topic: the typed topic that the query reads; None: a read of bytes.
    """

    def __init__(self, options: ReadOptions, topic: TypedTopic | None = None) -> None:
        self._options = options
        self._topic = topic
        self._reader: RangeReader | None = None
        self._group: GroupProgress | None = None
        self._topics: Mapping[str, TopicView] = {}
        self._latest: StreamOffset | None = None
        self._target: StreamOffset | None = None
        self._initial: StreamOffset | None = None
        self._stated: StreamOffset | None = None
        self._waiting_since_s: float | None = None
        self._some_are_gone = False
        self._warned: deque[str] = deque(maxlen=_WARNED_MAX)

    def __getstate__(self) -> dict[str, Any]:
        """State that is sent to tasks, without connections."""
        return {"_options": self._options, "_topic": self._topic}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_options"], state["_topic"])  # type: ignore[misc]

    def initial(self) -> StreamOffset:
        """Start of a query without a checkpoint."""
        options = self._options
        client = self._client()
        self._topics = topics.find_topics(client, options, self._warn)
        bounds = topics.find_bounds(client, options, self._topics)
        check_named(options.starting, bounds)
        by_time = topics.find_times(client, times_of(options, bounds))
        found: dict[str, TopicPosition] = {}
        for name, held in bounds.items():
            partitions = {
                index: Position(
                    resolve(options.starting, name, index, bound, by_time, strict=options.fail_on_data_loss),
                    bound.epoch,
                    self._topics[name].partitions[index].incarnation,
                )
                for index, bound in held.items()
            }
            found[name] = TopicPosition(self._topics[name].topic_id, partitions)
        self._initial = StreamOffset(client.cluster_id, found)
        return self._initial

    def next_end(self, start: StreamOffset | None, *, unlimited: bool) -> StreamOffset:
        """End of the next micro-batch; equal to the start while the query waits for more records.

        Args:
            start: end of the last micro-batch; None: PySpark does not pass it.
            unlimited: whether Spark wants all records, regardless of the options.

        Raises:
            CheckpointError: for a checkpoint of another cluster.
            DataLossError: if records were deleted before the query read them.
        """
        self._stated = self._next_end(start, unlimited=unlimited)
        return self._stated

    def _next_end(self, start: StreamOffset | None, *, unlimited: bool) -> StreamOffset:
        available = self._available(start)
        if start is None:
            return available.latest
        check_cluster(start, available.latest.cluster_id)
        gone = losses(start, available)
        began_s = time.monotonic()
        while gone and self._may_be_stale(start, available, time.monotonic() - began_s):
            time.sleep(_AGAIN_S)
            self._client().ask_another()
            available = self._available(start)
            gone = losses(start, available)
        if gone:
            self._note_losses(gone)
        if self._target is not None:
            available = Available(clamp(available.latest, self._target, start), available.log_starts)
        if not unlimited and self._target is None and self._should_wait(start, available):
            return start
        limit = None if unlimited else self._options.max_offsets
        return advance(start, available, limit, is_first=start == self._initial)

    def set_target(self) -> None:
        """Fix the current offsets as the end of the query, for availableNow triggers.

        Spark calls this before it states the start. If the options skip losses, a topic that was deleted since the last
        run is omitted; `initial` refuses a missing topic of a new query.
        """
        self._target = self._available(None if self._options.fail_on_data_loss else _UNKNOWN).latest

    def reported(self) -> StreamOffset | None:
        """Latest offsets at the last `next_end` or `set_target`."""
        return self._latest

    def plan(self, start: StreamOffset, end: StreamOffset) -> list[tuple[Assignment, ...]]:
        """Tasks of a micro-batch: always the same rows for the same offsets.

        Raises:
            DataLossError: if records of the micro-batch were deleted.
        """
        restarted = end != self._stated
        if not self._topics:
            self._topics = self._find_topics(start)
        if restarted:  # during a micro-batch, which an earlier process planned
            check_cluster(end, self._client().cluster_id)
        check_cluster(start, end.cluster_id)
        if start == self._initial:
            start = first_start(start, end)
        if self._topic is not None:
            check_same(self._topic, self._topics)
        gone = losses(start, Available(end)) if self._options.fail_on_data_loss else []
        if gone:  # PySpark does not always pass the start to `next_end`; here both offsets are known
            self._note_losses(gone)
        whole = self._without_deleted(_whole(start, end), start)
        if restarted:
            whole = self._without_truncated(whole, start)
        pieces = split([one.offsets for one in whole.values() if one.offsets.start < one.offsets.end], self._options)
        tasks = pack(pieces, self._options, functools.partial(topics.leader_of, self._topics))
        return [tuple(self._assignment(piece, whole[piece.topic, piece.partition]) for piece in task) for task in tasks]

    def done(self, offset: StreamOffset, *, idle: bool) -> None:
        """Commit to the group that the query has processed all records before an offset; `idle`: there are no newer
        records.
        """
        if self._group is not None:
            self._group.put(offset)
            if idle:
                self._group.settle()

    def stop(self) -> None:
        """Close the connections to brokers and the group, if any."""
        if self._group is not None:
            self._group.close()
            self._group = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    # -- topics and offsets --------------------------------------------------------------------------------------------

    def _available(self, start: StreamOffset | None) -> Available:
        until_s = time.monotonic() + self._options.deadline_ms / 1000
        while True:
            try:
                return self._asked(start)
            except TidemarkError as error:  # deleted after its name was found: find the names again
                self._check_may_continue(error, start)
                if time.monotonic() >= until_s:
                    raise
                _log.info("%s; fetching the metadata again", error)
                time.sleep(_AGAIN_S)
                self._client().ask_another()

    def _asked(self, start: StreamOffset | None) -> Available:
        client = self._client()
        self._topics = self._find_topics(start)
        if self._topic is not None and not self._options.goes_on:
            check_version(self._topic, self._topics)
        strict = start is None or self._options.fail_on_data_loss  # otherwise removed partitions are omitted
        found_topics = self._topics.values()
        wanted = [where for one in found_topics for where in topics.partitions_of(self._options, one, strict=strict)]
        latest = topics.find_latest(client, wanted)
        found: dict[str, dict[int, Position]] = {name: {} for name in self._topics}
        for where, stated in latest.items():
            incarnation = self._topics[where.topic].partitions[where.partition].incarnation
            found[where.topic][where.partition] = Position(stated.offset, stated.leader_epoch, incarnation)
        if start is not None:
            self._keep_uncommitted(start, found)
        self._latest = StreamOffset(
            client.cluster_id,
            {name: TopicPosition(self._topics[name].topic_id, partitions) for name, partitions in found.items()},
        )
        asked = [where for where in wanted if start is not None and self._needs_start(start, where)]
        earliest = topics.find_earliest(client, asked) if asked else {}
        return Available(
            self._latest, {(where.topic, where.partition): stated.offset for where, stated in earliest.items()}
        )

    def _keep_uncommitted(self, start: StreamOffset, found: dict[str, dict[int, Position]]) -> None:
        """Keep positions below which the query has read uncommitted records, in place of lower last stable offsets."""
        lower = {
            TopicPartition(name, index): known
            for name, partitions in found.items()
            for index, now in partitions.items()
            if (known := start.position(name, index)) is not None and is_cut(known, now)
        }
        for where, now in self._high_watermarks(lower).items():
            if now.offset >= lower[where].offset:
                found[where.topic][where.partition] = lower[where]

    def _high_watermarks(self, wanted: Collection[TopicPartition]) -> Mapping[TopicPartition, StatedOffset]:
        """The ends of logs, uncommitted records included: a lower one shows a truncation."""
        if not wanted:
            return {}
        with topics.open_reader(replace(self._options, isolation_level="read_uncommitted")) as client:
            return topics.find_latest(client, list(wanted))

    def _needs_start(self, start: StreamOffset, where: TopicPartition) -> bool:
        """Whether the log start offset is needed: for a new partition, and if deleted records are skipped."""
        return not self._options.fail_on_data_loss or start.position(where.topic, where.partition) is None

    def _find_topics(self, start: StreamOffset | None) -> Mapping[str, TopicView]:
        """Wait for a missing topic once, not in every micro-batch without it."""
        if not self._some_are_gone:
            try:
                return topics.find_topics(self._client(), self._options, self._warn)
            except TidemarkError as error:
                self._check_may_continue(error, start)
                self._warn(f"{error}; the query continues without the topic")
        found = topics.find_existing(self._client(), self._options, self._warn)
        self._some_are_gone = len(found) < len(self._options.topics)
        return found

    def _check_may_continue(self, error: TidemarkError, start: StreamOffset | None) -> None:
        """Raise the losses of a query that continues at `start`, unless its options skip them."""
        if start is None or not topics.is_gone(error):
            raise error
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{error}: it was deleted since the query began; {ADVICE}") from error

    def _may_be_stale(self, start: StreamOffset, available: Available, waited_s: float) -> bool:
        """Whether the metadata with losses may be stale: at first, and while brokers know a missing topic by its name.

        Raises the error of a missing topic that this user may not DESCRIBE any more: that topic is not lost.
        """
        if waited_s < _PATIENCE_S:
            return True
        if waited_s > self._options.deadline_ms / 1000:
            return False
        for name in sorted(start.topics.keys() - available.latest.topics.keys()):
            try:
                found = self._client().topics([name])[name]
            except TidemarkError as error:
                if not topics.is_gone(error):
                    raise
                continue
            if found.topic_id == start.topics[name].topic_id and self._options.chosen([name]):
                return True
        return False

    def _should_wait(self, start: StreamOffset, available: Available) -> bool:
        if not self._options.min_offsets:
            return False
        now_s = time.monotonic()
        count = waiting(start, available)
        if not count or count >= self._options.min_offsets:
            self._waiting_since_s = None
            return not count
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s
        if now_s - self._waiting_since_s >= self._options.max_delay_ms / 1000:
            self._waiting_since_s = None
            return False
        return True

    def _without_deleted(
        self, whole: dict[tuple[str, int], _Whole], start: StreamOffset
    ) -> dict[tuple[str, int], _Whole]:
        """Ranges without deleted records, computed before tasks run; raises DataLossError, or logs the loss."""
        if not whole:
            return whole
        try:
            earliest = topics.find_earliest(self._client(), [TopicPartition(*where) for where in whole])
        except TidemarkError as error:
            self._check_may_continue(error, start)
            return whole  # the tasks skip the partitions that were deleted
        starts = {where: earliest[TopicPartition(*where)].offset for where in whole}
        gone = [
            deleted(*where, one.offsets.start, starts[where])
            for where, one in whole.items()
            if starts[where] > one.offsets.start
        ]
        if gone:
            self._note_losses(gone)
        return {where: kept for where, one in whole.items() if (kept := one.begin_at(starts[where])) is not None}

    def _without_truncated(
        self, whole: dict[tuple[str, int], _Whole], start: StreamOffset
    ) -> dict[tuple[str, int], _Whole]:
        """Ranges without records that an unclean election removed since an earlier run of the query planned them."""
        known = {name: topic.topic_id for name, topic in self._topics.items()}
        same = [where for where, one in whole.items() if known.get(where[0]) == one.topic_id]
        try:
            latest = topics.find_latest(self._client(), [TopicPartition(*where) for where in same]) if same else {}
            lower = [where for where in same if whole[where].lacks(latest[TopicPartition(*where)])]
            ends = self._high_watermarks([TopicPartition(*where) for where in lower])
        except TidemarkError as error:
            self._check_may_continue(error, start)
            return whole  # the tasks skip the partitions that were deleted
        cut = {where: now for where in lower if whole[where].lacks(now := ends[TopicPartition(*where)])}
        if cut:
            self._note_losses([truncated(*where, whole[where].end, now) for where, now in cut.items()])
        return whole | {where: whole[where].end_at(now.offset) for where, now in cut.items()}

    def _note_losses(self, gone: list[str]) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{_enumerated(gone)}; {ADVICE}")
        fresh = [sentence for sentence in gone if sentence not in self._warned]
        if fresh:
            self._warned += fresh
            _log.warning("skipped: %s", _enumerated(fresh))

    def _warn(self, sentence: str) -> None:
        """Log a warning once, since Spark calls repeatedly without a change."""
        if sentence not in self._warned:
            self._warned.append(sentence)
            _log.warning("%s", sentence)

    def _assignment(self, piece: OffsetRange, whole: _Whole) -> Assignment:
        topic = self._topics.get(piece.topic)
        kind = CREATE_TIME if topic is None else topics.timestamp_type(topic)
        last_epoch = whole.epoch_before if piece.start == whole.offsets.start else whole.end.leader_epoch
        return Assignment(piece, whole.topic_id, whole.end.incarnation, kind, last_epoch)

    def _client(self) -> RangeReader:
        if self._reader is None:
            if self._options.group_id:
                from tidemark_spark.streams.group_progress import GroupProgress

                self._group = GroupProgress(self._options)
            self._reader = topics.open_reader(self._options)
        return self._reader


def _enumerated(sentences: Sequence[str]) -> str:
    more = len(sentences) - _NAMED_MAX
    return "; ".join(sentences[:_NAMED_MAX]) + (f"; and {more} more" if more > 0 else "")


class _Reader(compat.AvailableNow, DataSourceStreamReader):  # type: ignore[misc]
    """The part that does not depend on PySpark's version."""

    def __init__(self, options: ReadOptions, schema: StructType, table: TypedTable | None = None) -> None:
        if table is None:
            check_schema(schema, options.columns)
        self._options = options
        self._schema = schema
        self._table = table
        self._planner = StreamPlanner(options, None if table is None else table.topic)

    @plain_errors()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - these names are Spark's
        """Start of a query without a checkpoint."""
        return self._planner.initial().to_json()

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Tasks of a micro-batch."""
        return [TidemarkInputPartition(task) for task in self._planner.plan(from_json(start), from_json(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of one task."""
        return read_task(self._options, self._schema, partition, self._table)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the progress to the group, if any; the query continues only from Spark's checkpoint."""
        self._planner.done(from_json(end), idle=False)

    def stop(self) -> None:
        """Close the connections at the end of the query."""
        self._planner.stop()

    @plain_errors()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the current offsets as the end of the query."""
        self._planner.set_target()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """Limits of a micro-batch, from the options."""
        return compat.read_limit(self._options.max_offsets, self._options.min_offsets)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Latest offsets; Spark reports them with the query's position, and the difference is its lag."""
        found = self._planner.reported()
        return None if found is None else found.to_json()


class LimitedStreamReader(_Reader):
    """A streaming read, PySpark >= 4.2: Spark passes the end of the last micro-batch."""

    @plain_errors()
    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        """End of the next micro-batch."""
        begun = from_json(start)
        end = self._planner.next_end(begun, unlimited=compat.is_unlimited(limit))
        # Spark commits a micro-batch when it plans the next one, but the last micro-batch of a query is never
        # committed.
        self._planner.done(begun, idle=end == begun)
        return start if end == begun else end.to_json()


class PlainStreamReader(_Reader):
    """A streaming read, PySpark 4.0 and 4.1: only this process knows the end of the last micro-batch.

    A query without a checkpoint states its first end before its start, so the first micro-batch reads all records. A
    query with a checkpoint first gets an empty micro-batch at the end of the last one.
    """

    def __init__(self, options: ReadOptions, schema: StructType, table: TypedTable | None = None) -> None:
        super().__init__(options, schema, table)
        self._end: StreamOffset | None = None
        self._planned: StreamOffset | None = None

    @plain_errors()
    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        """End of the next micro-batch."""
        self._end = self._planner.next_end(self._end, unlimited=False)
        if self._planned is not None:
            self._planner.done(self._planned, idle=self._end == self._planned)
        return self._end.to_json()

    @plain_errors()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Start of a query without a checkpoint, not beyond the end that Spark received already."""
        found = self._planner.initial()
        return (found if self._end is None else clamp(found, self._end)).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Tasks of a micro-batch, which an earlier process may have planned."""
        self._end = self._planned = from_json(end)
        return super().partitions(start, end)


class RefusedStreamReader(compat.AvailableNow, DataSourceStreamReader):  # type: ignore[misc]
    """Raises the error in the options or the schema at every call.

    PySpark (4.0 to 4.3) hides an error of `streamReader` behind another error, since PySpark stops the missing reader.
    """

    def __init__(self, error: ValueError | TidemarkError) -> None:
        self._error = error

    @plain_errors()
    def refuse(self, *_: Any) -> Any:
        """Raise the error in the options or the schema."""
        raise self._error

    said: Any = refuse
    initialOffset = latestOffset = partitions = read = said  # noqa: N815 - these names are Spark's
    prepareForTriggerAvailableNow = getDefaultReadLimit = reportLatestOffset = commit = said  # noqa: N815

    def stop(self) -> None:
        """Has no effect, as there are no connections."""


def open_stream_reader(
    options: ReadOptions, schema: StructType, table: TypedTable | None = None
) -> DataSourceStreamReader:
    """The reader for the installed PySpark."""
    return (LimitedStreamReader if compat.HAS_READ_LIMITS else PlainStreamReader)(options, schema, table)
