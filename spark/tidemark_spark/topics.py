# SPDX-License-Identifier: Apache-2.0
"""Requests of the source to brokers: topics, offsets, and the rows of a task. Each call has a deadline."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from tidemark.client.consuming.range_reader import Position, RangeReader, RangeStart, StatedOffset
from tidemark.client.metadata.tls import Credentials
from tidemark.core.cluster_view import TopicView
from tidemark.model import NO_EPOCH, NO_LEADER, ErrorCode, TidemarkError, TopicPartition

from tidemark_spark.options import ReadOptions
from tidemark_spark.ranges import ByTime, OffsetRange, PartitionBounds, check_partitions
from tidemark_spark.reader_pool import ReaderPool
from tidemark_spark.rows import CREATE_TIME, LOG_APPEND_TIME
from tidemark_spark.stream_offsets import DataLossError

if TYPE_CHECKING:
    from tidemark.rpc.codecs.fetch import Fetched

    from tidemark_spark.typed.table import TypedTable

_log = logging.getLogger("tidemark.spark")

_GONE: Final = frozenset({ErrorCode.UNKNOWN_TOPIC, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_PARTITION})
_CUT: Final = frozenset({ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.LOG_TRUNCATED})
_BAD_READS_MAX: Final = 3
_TOGETHER_MAX: Final = 100
"""Largest number of ranges in one fetch."""
ADVICE: Final = "with failOnDataLoss=false the query skips, counts and logs such records"

_pool: Final = ReaderPool()


@dataclass(frozen=True, slots=True)
class Assignment:
    """One range of a task, with the ids of its topic and partition.

    Attributes:
        offsets: range of one partition.
        topic_id: uuid; a recreated topic has another uuid, and the read is refused.
        incarnation: uuid of the partition; a recreated partition has another uuid, and the read is refused.
        timestamp_type: CREATE_TIME or LOG_APPEND_TIME.
        last_epoch: highest leader epoch of the records before the range; -1: unknown.
        archive: directory of the archive that has the range; "": brokers have it.
    """

    offsets: OffsetRange
    topic_id: str
    incarnation: str
    timestamp_type: int
    last_epoch: int = NO_EPOCH
    archive: str = ""


def is_gone(error: TidemarkError) -> bool:
    """Whether the topic or partition of a request was deleted, or was created again.

    False if the user lacks the right DESCRIBE: brokers then answer as if the topic did not exist, and name the user.
    """
    return error.code in _GONE and "principal" not in error.metadata


def open_reader(options: ReadOptions) -> RangeReader:
    """Make a client of the brokers in the options, which connects at its first request."""
    credentials = Credentials(options.tls, options.token_file)
    return RangeReader(
        options.bootstrap,
        deadline_s=options.deadline_ms / 1000,
        rack=options.rack,
        tls=credentials,
        client_id=options.client_id,
        isolation_level=options.isolation_level,
    )


def lend_reader(options: ReadOptions) -> AbstractContextManager[RangeReader]:
    """An unused client of an earlier task of this process, if any; else as `open_reader`."""
    key = (
        options.bootstrap,
        options.deadline_ms,
        options.rack,
        options.tls,
        options.token_file,
        options.client_id,
        options.isolation_level,
    )
    return _pool.lend(key, lambda: open_reader(options))


def find_topics(
    reader: RangeReader, options: ReadOptions, warn: Callable[[str], None] = _log.warning
) -> dict[str, TopicView]:
    """Topics that the options select, by name, with all their partitions; raises TidemarkError, e.g. UNKNOWN_TOPIC.

    Args:
        reader: a client.
        options: options of the read.
        warn: logs that a pattern matches no topic.
    """
    if options.pattern is None:
        return _of_one_kind(options, reader.topics(sorted(options.topics)))
    found = find_existing(reader, options, warn)
    for name in [name for name, topic in found.items() if len(topic.partitions) < topic.count]:
        try:
            found[name] = reader.topics([name])[name]
        except TidemarkError as error:
            if not is_gone(error):
                raise
            del found[name]
    return found


def _of_one_kind(options: ReadOptions, found: Mapping[str, TopicView]) -> dict[str, TopicView]:
    """The topics; raises ValueError if a topic has a schema and the read returns bytes."""
    typed = [] if options.is_typed else sorted(name for name, topic in found.items() if topic.schema_version)
    if typed:
        raise ValueError(
            f"topic {typed[0]} has a schema, and this read gives bytes: read it alone, by load({typed[0]!r}) "
            "and without the options of values"
        )
    return dict(found)


def find_existing(
    reader: RangeReader, options: ReadOptions, warn: Callable[[str], None] = _log.warning
) -> dict[str, TopicView]:
    """Like `find_topics`, without missing topics; a topic that is being created may lack partitions."""
    found = reader.topics(None)
    chosen = options.chosen(found)
    if not chosen and options.pattern is not None:
        warn(options.no_match(found))
    return _of_one_kind(options, {name: found[name] for name in chosen})


def partitions_of(options: ReadOptions, topic: TopicView, *, strict: bool = True) -> list[TopicPartition]:
    """Selected partitions of a topic; raises ValueError for one that does not exist, unless `strict` is false."""
    wanted = options.topics.get(topic.topic)
    if strict:
        check_partitions("assign", topic.topic, wanted or (), topic.partitions)
    return [
        TopicPartition(topic.topic, index) for index in sorted(topic.partitions) if wanted is None or index in wanted
    ]


def find_bounds(
    reader: RangeReader, options: ReadOptions, topics: Mapping[str, TopicView]
) -> dict[str, dict[int, PartitionBounds]]:
    """Current bounds of all selected partitions, by two requests to each leader."""
    wanted = [where for topic in topics.values() for where in partitions_of(options, topic)]
    first = reader.offsets(dict.fromkeys(wanted, "earliest"))
    end = reader.offsets(dict.fromkeys(wanted, "latest"))
    bounds: dict[str, dict[int, PartitionBounds]] = {name: {} for name in topics}
    for where in wanted:
        bounds[where.topic][where.partition] = PartitionBounds(first[where].offset, *end[where])
    return bounds


def find_times(reader: RangeReader, wanted: set[tuple[str, int, int]]) -> ByTime:
    """First offset at or after each time, by (topic, partition, milliseconds since 1970); -1: all are older."""
    found: dict[tuple[str, int, int], int] = {}
    left = set(wanted)
    while left:  # a partition may have two times, but a request has only one time
        asked = {TopicPartition(topic, partition): time_ms for topic, partition, time_ms in left}
        positions: dict[TopicPartition, Position] = {where: time_ms * 1000 for where, time_ms in asked.items()}
        for where, stated in reader.offsets(positions).items():
            key = (where.topic, where.partition, asked[where])
            found[key] = stated.offset
            left.discard(key)
    return found


def find_latest(reader: RangeReader, wanted: list[TopicPartition]) -> dict[TopicPartition, StatedOffset]:
    """High watermarks, by one request to each leader."""
    return reader.offsets(dict.fromkeys(wanted, "latest"))


def find_earliest(reader: RangeReader, wanted: list[TopicPartition]) -> dict[TopicPartition, StatedOffset]:
    """Log start offsets, by one request to each leader."""
    return reader.offsets(dict.fromkeys(wanted, "earliest"))


def leader_of(topics: Mapping[str, TopicView], part: OffsetRange) -> int:
    """Broker id of the leader of a range; NO_LEADER if it is unknown."""
    topic = topics.get(part.topic)
    known = None if topic is None else topic.partitions.get(part.partition)
    return NO_LEADER if known is None else known.leader


def timestamp_type(topic: TopicView) -> int:
    """The clock of the topic's timestamps: CREATE_TIME or LOG_APPEND_TIME."""
    append_time = topic.configs.get("message.timestamp.type") == "LogAppendTime"
    return LOG_APPEND_TIME if append_time else CREATE_TIME


def read(
    options: ReadOptions, tasks: Sequence[Assignment], table: TypedTable | None = None
) -> Iterator[tuple[Assignment, pa.RecordBatch]]:
    """Rows of the ranges of one task: range by range, in order, each once.

    Records of bytes in record.schema.OFFSET_SCHEMA; rows of a typed topic in the form of `TypedTable.rows`.

    During a failover the read waits for the new leader. With failOnDataLoss=false deleted records are skipped, counted
    and logged. The first fetches of several ranges are one request.

    Raises:
        DataLossError: names the range and the loss.
        TidemarkError: REQUEST_TIMED_OUT, with the last refusal.
    """
    with lend_reader(options) as reader:
        for at in range(0, len(tasks), _TOGETHER_MAX):
            together = tasks[at : at + _TOGETHER_MAX]
            starts = [_start(one) for one in together]
            column_ids = () if table is None else table.rows.column_ids
            firsts = reader.fetch_together(starts, column_ids=column_ids) if len(together) > 1 else [None]
            for task, first in zip(together, firsts, strict=True):
                for found in _read_range(options, reader, task, first, table):
                    yield task, found


def _start(task: Assignment) -> RangeStart:
    part = task.offsets
    return RangeStart(part.topic, part.partition, part.start, task.topic_id, task.incarnation, task.last_epoch)


def _read_range(
    options: ReadOptions, reader: RangeReader, task: Assignment, first: Fetched | None, table: TypedTable | None
) -> Iterator[pa.RecordBatch]:
    part = task.offsets
    started_s = time.monotonic()
    position, end, last_epoch = part.start, part.end, task.last_epoch
    rows, skipped, size_bytes, bad_reads = 0, 0, 0, 0

    def passed(offset: int) -> None:
        nonlocal position, last_epoch
        position, last_epoch = offset, NO_EPOCH

    while position < end:
        try:
            for found in reader.read(
                part.topic,
                part.partition,
                position,
                end,
                topic_id=task.topic_id,
                incarnation=task.incarnation,
                last_epoch=last_epoch,
                first=first,
                typed=None if table is None else table.rows,
                passed=passed,
            ):
                yield found
                rows += found.num_rows
                size_bytes += found.get_total_buffer_size()
            break
        except TidemarkError as error:
            first = None
            if error.code is ErrorCode.CORRUPT_BATCH and bad_reads < _BAD_READS_MAX:
                bad_reads += 1
                continue
            if error.code not in _CUT and not is_gone(error):
                raise TidemarkError(error.code, f"{part}: {error.message}", error.metadata) from error
            if options.fail_on_data_loss:
                raise DataLossError(f"{part}: {error}; {ADVICE}") from error
            before, (position, end, last_epoch) = end - position, _continue(reader, part, position, end, error)
            skipped += before - (end - position)
            _log.warning("%s: %s; %d offsets are skipped", part, error, before - (end - position))
    took_s = time.monotonic() - started_s
    _log.info("read %s: %d rows, %d bytes in %.2f s, %d skipped", part, rows, size_bytes, took_s, skipped)


def _continue(
    reader: RangeReader, part: OffsetRange, position: int, end: int, error: TidemarkError
) -> tuple[int, int, int]:
    """Position after a loss: next offset, end, and the epoch before it."""
    if is_gone(error):
        return end, end, NO_EPOCH
    where = TopicPartition(part.topic, part.partition)
    if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
        first = reader.offsets({where: "earliest"})[where].offset
        return min(max(first, position), end), end, NO_EPOCH
    left = max(position, min(end, reader.offsets({where: "latest"})[where].offset))
    return position, left, NO_EPOCH
