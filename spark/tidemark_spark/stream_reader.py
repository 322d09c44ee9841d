# SPDX-License-Identifier: Apache-2.0
"""The streaming reader: on the driver it says how far each micro-batch goes, and plans its tasks; tasks are stateless.

One request for metadata and one to each leader make a micro-batch, however many partitions there are.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.core.cluster_view import TopicView
from tidemark.model import NO_EPOCH, TidemarkError, TopicPartition

from tidemark_spark import compat, topics
from tidemark_spark.options import ReadOptions
from tidemark_spark.ranges import OffsetRange, check_partitions, resolve, split, times_of
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
    from_json,
    losses,
    waiting,
)
from tidemark_spark.topics import ADVICE, Assignment

_log = logging.getLogger("tidemark.spark")

_TOLD_MAX: Final = 3
_PATIENCE_S: Final = 1.0
_AGAIN_S: Final = 0.1


class _Whole(NamedTuple):
    """What a micro-batch reads of one partition, before it is split."""

    offsets: OffsetRange
    topic_id: str
    end: Position
    epoch_before: int


class StreamPlanner:
    """The driver's half of a streaming query, whatever PySpark's version.

    Args:
        options: what was asked for.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._reader: RangeReader | None = None
        self._topics: Mapping[str, TopicView] = {}
        self._latest: StreamOffset | None = None
        self._target: StreamOffset | None = None
        self._waiting_since_s: float | None = None
        self._some_are_gone = False

    def __getstate__(self) -> dict[str, Any]:
        """What tasks are sent: connections stay here."""
        return {"_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_options"])  # type: ignore[misc]

    def initial(self) -> StreamOffset:
        """Where a query without a checkpoint begins."""
        options = self._options
        client = self._client()
        self._topics = topics.find_topics(client, options)
        bounds = topics.find_bounds(client, options, self._topics)
        by_time = topics.find_times(client, times_of(options, bounds))
        found: dict[str, TopicPosition] = {}
        for name, held in bounds.items():
            check_partitions(options.starting.name, name, options.starting.named().get(name, {}), held)
            partitions = {
                index: Position(
                    resolve(options.starting, name, index, bound, by_time, strict=options.fail_on_data_loss),
                    NO_EPOCH,
                    self._topics[name].partitions[index].incarnation,
                )
                for index, bound in held.items()
            }
            found[name] = TopicPosition(self._topics[name].topic_id, partitions)
        return StreamOffset(client.cluster_id, found)

    def next_end(self, start: StreamOffset | None, *, unlimited: bool) -> StreamOffset:
        """How far the next micro-batch goes; the start again while it is to wait.

        Args:
            start: the end of the one before; None: PySpark does not say.
            unlimited: whether Spark wants all there is, whatever the options say.

        Raises:
            CheckpointError: for a checkpoint of another cluster.
            DataLossError: when something that was to be read is gone.
        """
        available = self._available(start)
        if start is None:
            return available.latest
        check_cluster(start, available.latest.cluster_id)
        gone = losses(start, available)
        until_s = time.monotonic() + _PATIENCE_S
        while gone and time.monotonic() < until_s:  # a broker may have told old news: ask others before it counts
            time.sleep(_AGAIN_S)
            self._client().ask_another()
            available = self._available(start)
            gone = losses(start, available)
        if gone:
            self._note_loss(gone)
        if self._target is not None:
            available = Available(clamp(available.latest, self._target), available.log_starts)
        if not unlimited and self._target is None and self._should_wait(start, available):
            return start
        return advance(start, available, None if unlimited else self._options.max_offsets)

    def set_target(self) -> None:
        """From now on nothing is read beyond what there is now: for availableNow triggers."""
        self._target = self._available(None).latest

    def reported(self) -> StreamOffset | None:
        """What there was when the last micro-batch was planned."""
        return self._latest

    def plan(self, start: StreamOffset, end: StreamOffset) -> list[Assignment]:
        """The tasks of a micro-batch; the same for the same offsets, whenever it is asked."""
        if not self._topics:  # restarted in mid-batch: nothing was asked yet
            self._topics = self._find_topics(start)
            check_cluster(end, self._client().cluster_id)
        check_cluster(start, end.cluster_id)
        gone = losses(start, Available(end)) if self._options.fail_on_data_loss else []
        if gone:  # where PySpark does not tell `next_end` the start, this is the first to see both
            self._note_loss(gone)
        whole: dict[tuple[str, int], _Whole] = {}
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
                    whole[name, index] = _Whole(part, topic.topic_id, position, epoch)
        pieces = split([one.offsets for one in whole.values()], self._options)
        return [self._assignment(piece, whole[piece.topic, piece.partition]) for piece in pieces]

    def stop(self) -> None:
        """Close the connections."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    # -- what there is -------------------------------------------------------------------------------------------------

    def _available(self, start: StreamOffset | None) -> Available:
        until_s = time.monotonic() + self._options.deadline_ms / 1000
        while True:
            try:
                return self._asked(start)
            except TidemarkError as error:  # deleted after its name was found: the names are looked for again
                self._check_may_go_on(error, start)
                if time.monotonic() >= until_s:
                    raise
                _log.info("%s; what there is is asked for again", error)
                time.sleep(_AGAIN_S)
                self._client().ask_another()

    def _asked(self, start: StreamOffset | None) -> Available:
        client = self._client()
        self._topics = self._find_topics(start)
        wanted = [where for topic in self._topics.values() for where in topics.partitions_of(self._options, topic)]
        latest = topics.find_latest(client, wanted)
        found: dict[str, dict[int, Position]] = {name: {} for name in self._topics}
        for where, stated in latest.items():
            incarnation = self._topics[where.topic].partitions[where.partition].incarnation
            found[where.topic][where.partition] = Position(stated.offset, stated.leader_epoch, incarnation)
        self._latest = StreamOffset(
            client.cluster_id,
            {name: TopicPosition(self._topics[name].topic_id, partitions) for name, partitions in found.items()},
        )
        asked = [where for where in wanted if start is not None and self._needs_start(start, where)]
        earliest = topics.find_earliest(client, asked) if asked else {}
        return Available(
            self._latest, {(where.topic, where.partition): stated.offset for where, stated in earliest.items()}
        )

    def _needs_start(self, start: StreamOffset, where: TopicPartition) -> bool:
        """Whether its first offset matters: of a partition that is new here, and where what is gone is skipped."""
        return not self._options.fail_on_data_loss or start.position(where.topic, where.partition) is None

    def _find_topics(self, start: StreamOffset | None) -> Mapping[str, TopicView]:
        """What is gone is asked for patiently once, not in every micro-batch that does without it."""
        if not self._some_are_gone:
            try:
                return topics.find_topics(self._client(), self._options)
            except TidemarkError as error:
                self._check_may_go_on(error, start)
                _log.warning("%s; the query goes on without it", error)
        found = topics.find_existing(self._client(), self._options)
        self._some_are_gone = len(found) < len(self._options.topics)
        return found

    def _check_may_go_on(self, error: TidemarkError, start: StreamOffset | None) -> None:
        """Whether a query that goes on at `start` is to do so without what is gone; else raises what is wrong."""
        if error.code not in topics.GONE or start is None:
            raise error
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{error}: it was deleted since the query began; {ADVICE}") from error

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

    def _note_loss(self, gone: list[str]) -> None:
        told = "; ".join(gone[:_TOLD_MAX]) + (f"; and {len(gone) - _TOLD_MAX} more" if len(gone) > _TOLD_MAX else "")
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{told}; {ADVICE}")
        _log.warning("%d losses are skipped: %s", len(gone), told)

    def _assignment(self, piece: OffsetRange, whole: _Whole) -> Assignment:
        topic = self._topics.get(piece.topic)
        kind = CREATE_TIME if topic is None else topics.timestamp_type(topic)
        last_epoch = whole.epoch_before if piece.start == whole.offsets.start else whole.end.leader_epoch
        return Assignment(piece, whole.topic_id, whole.end.incarnation, kind, last_epoch)

    def _client(self) -> RangeReader:
        if self._reader is None:
            self._reader = topics.open_reader(self._options)
        return self._reader


class _Reader(compat.AvailableNow, DataSourceStreamReader):  # type: ignore[misc]
    """What does not depend on PySpark's version."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_schema(schema, options.columns)
        self._options = options
        self._schema = schema
        self._planner = StreamPlanner(options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - these names are Spark's
        """Where a query without a checkpoint begins."""
        return self._planner.initial().to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a micro-batch."""
        return [TidemarkInputPartition(task) for task in self._planner.plan(from_json(start), from_json(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return read_task(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: the checkpoint is Spark's, and brokers keep no position of a query."""

    def stop(self) -> None:
        """The query has ended."""
        self._planner.stop()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The query is to end with what there is now."""
        self._planner.set_target()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """What the options say of the size of a micro-batch."""
        return compat.read_limit(self._options.max_offsets, self._options.min_offsets)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """What there is, beside which progress shows where the query is: the difference is its lag."""
        found = self._planner.reported()
        return None if found is None else found.to_json()


class LimitedStreamReader(_Reader):
    """A streaming read, PySpark >= 4.2: Spark says where the last micro-batch ended."""

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        """How far the next micro-batch goes."""
        begun = from_json(start)
        end = self._planner.next_end(begun, unlimited=compat.is_unlimited(limit))
        return start if end == begun else end.to_json()


class PlainStreamReader(_Reader):
    """A streaming read, PySpark 4.0 and 4.1: only this process can remember where the last micro-batch ended.

    Spark asks for the first end of a run before any start, and whether there is a checkpoint cannot be told: the first
    micro-batch takes all there is.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._end: StreamOffset | None = None

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        """How far the next micro-batch goes."""
        self._end = self._planner.next_end(self._end, unlimited=False)
        return self._end.to_json()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a query without a checkpoint begins: not beyond the end that Spark has already, however little."""
        found = self._planner.initial()
        return (found if self._end is None else clamp(found, self._end)).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a micro-batch, perhaps of one that another process had planned."""
        self._end = from_json(end)
        return super().partitions(start, end)


class RefusedStreamReader(compat.AvailableNow, DataSourceStreamReader):  # type: ignore[misc]
    """Says at every call what was wrong with the options or the schema.

    PySpark (4.0 to 4.3) hides what a `streamReader` raises behind an error of its own: it stops a reader that it never
    got.
    """

    def __init__(self, error: ValueError) -> None:
        self._error = error

    def refuse(self, *_: Any) -> Any:
        """Raise it."""
        raise self._error

    said: Any = refuse
    initialOffset = latestOffset = partitions = read = said  # noqa: N815 - these names are Spark's
    prepareForTriggerAvailableNow = getDefaultReadLimit = reportLatestOffset = commit = said  # noqa: N815

    def stop(self) -> None:
        """There is nothing to close."""


def open_stream_reader(options: ReadOptions, schema: StructType) -> DataSourceStreamReader:
    """That of the PySpark that is there."""
    return (LimitedStreamReader if compat.HAS_READ_LIMITS else PlainStreamReader)(options, schema)
