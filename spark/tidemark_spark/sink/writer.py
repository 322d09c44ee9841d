# SPDX-License-Identifier: Apache-2.0
"""Writers of format("tidemark"): one idempotent producer for each attempt of a task, with Arrow as input (rule P1).

A task is done when all its rows are acknowledged. In a transaction (rule X16) its rows are pending until the driver
commits the producers that the messages of the tasks name. Rows of a failed attempt never count. Without a transaction
these rows stay in the topic: at least once.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType
from tidemark.client.consuming.range_reader import RangeReader
from tidemark.client.metadata.tls import Credentials
from tidemark.model import ErrorCode, TidemarkError

from tidemark_spark import compat
from tidemark_spark.plain_errors import plain_errors
from tidemark_spark.sink.compat import StreamWriterBase
from tidemark_spark.sink.options import WriteOptions, check_columns, looks_like_bytes, parse_write_options
from tidemark_spark.sink.rows import destined
from tidemark_spark.transactions.driver import begin_batch, begin_micro_batch, end_batch, end_micro_batch, give_up
from tidemark_spark.transactions.members import Membership, WriteTransaction
from tidemark_spark.transactions.notes import forget, note, noted
from tidemark_spark.typed.topic import TypedTopic, with_schema
from tidemark_spark.typed.writes import TIMESTAMP, check_table, parted

if TYPE_CHECKING:
    from tidemark.client import TableHandle

    from tidemark_spark.sink.task_producer import TaskProducer

_log = logging.getLogger("tidemark.spark")

CHUNK_BYTES: Final = 4 << 20
"""Size of a task's input that is split by topic and partition together; large, so that each of many partitions gets
a full batch.
"""


@dataclass
class Written:
    """Offsets of a task's records in one partition; records of other producers may lie between.

    Attributes:
        first, last: offsets of the first and last record, both inclusive; -1 with acks=0, which has no answer.
        records: number of records.
    """

    first: int
    last: int
    records: int


@dataclass
class TidemarkCommitMessage(WriterCommitMessage):
    """Acknowledged records of one task, by topic and partition, and the task's part in the transaction, if any.

    `topic_ids` are the ids of the topics that the task has written to, by name.
    """

    written: dict[tuple[str, int], Written] = field(default_factory=dict)
    size_bytes: int = 0
    membership: Membership | None = None
    topic_ids: dict[str, str] = field(default_factory=dict)


@plain_errors()
def open_writer(options: Any, schema: StructType, *, overwrite: bool) -> DataSourceWriter:
    """Create a batch writer; checks options, columns and topic here, in the driver.

    Raises:
        ValueError: for wrong options or columns.
        TidemarkError: UNKNOWN_TOPIC; REQUEST_TIMED_OUT or, without the option `topic`, BROKER_NOT_AVAILABLE, with
            the cause for each address.
    """
    if overwrite:
        raise ValueError('a log is only appended to: mode("overwrite") is not supported, take mode("append")')
    parsed = parse_write_options(options)
    topic, topic_id = _target(schema, parsed)
    return TidemarkWriter(parsed, topic, begin_batch(parsed), topic_id)


@plain_errors()
def open_stream_writer(options: Any, schema: StructType, *, overwrite: bool) -> TidemarkStreamWriter:
    """Create a writer of micro-batches; Spark calls this for each of them, before its tasks and before its commit.

    Raises:
        ValueError: for wrong options or columns.
        TidemarkError: the errors of `open_writer`, if the write is transactional or the topic has a schema.
    """
    if overwrite:
        raise ValueError('outputMode("complete") is not supported: a log is appended to; take "update" or "append"')
    parsed = parse_write_options(options)
    if compat.commits_micro_batches():
        return TidemarkStreamWriter(parsed, schema)
    topic, topic_id = None, ""
    if looks_like_bytes(schema, parsed):
        check_columns(schema, parsed)
    else:
        topic, topic_id = _target(schema, parsed)
    transaction = begin_micro_batch(parsed)
    if transaction is not None:
        note(parsed.transactions, transaction)
    return TidemarkStreamWriter(parsed, schema, topic, transaction, topic_id)


def _target(schema: StructType, options: WriteOptions) -> tuple[TypedTopic | None, str]:
    """The schema of the topic after the check of the table (None for a topic of bytes), and the id of the topic; "" if
    each row names its topic.

    Raises:
        ValueError: for columns that do not fit.
        TidemarkError: UNKNOWN_TOPIC; REQUEST_TIMED_OUT with the cause for each address.
    """
    if options.topic is None:
        check_columns(schema, options)
        return None, ""
    credentials = Credentials(options.tls, options.token_file)
    with RangeReader(options.bootstrap, deadline_s=options.deadline_ms / 1000, tls=credentials) as reader:
        view = reader.topics([options.topic])[options.topic]
        topic = with_schema(reader, view)
    if topic is not None:
        check_table(schema, topic)
    else:
        check_columns(schema, options)
    return topic, view.topic_id


class TidemarkWriter(DataSourceArrowWriter):
    """Writes one table in a batch write."""

    def __init__(
        self,
        options: WriteOptions,
        topic: TypedTopic | None = None,
        transaction: WriteTransaction | None = None,
        topic_id: str = "",
    ) -> None:
        self._options = options
        self._topic = topic
        self._transaction = transaction
        self._topic_id = topic_id

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write the record batches of one attempt of a task."""
        return write_task(self._options, iterator, self._topic, self._transaction, self._topic_id)

    @plain_errors()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the transaction, if any, and log the result."""
        check_topics(messages)
        already = end_batch(self._options, _memberships(messages), self._transaction)
        _log.info("%s%s", _ALREADY if already else "", summary(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort the transaction, and log the failure of a task; without a transaction, rows of other tasks stay in
        the topic.
        """
        give_up(self._options, self._transaction)
        undone = "is not undone" if self._transaction is None else "is aborted"
        _log.warning("the write failed and %s; completed before: %s", undone, summary(messages))


class TidemarkStreamWriter(StreamWriterBase):
    """Writes micro-batches. A micro-batch that is repeated after a restart is written again; in transactions it counts
    once.

    Spark commits by a writer of another process. That writer knows the transaction by the messages of the tasks, or by
    its note.
    """

    def __init__(
        self,
        options: WriteOptions,
        schema: StructType,
        topic: TypedTopic | None = None,
        transaction: WriteTransaction | None = None,
        topic_id: str = "",
    ) -> None:
        super().__init__(schema)
        self._options = options
        self._topic = topic
        self._transaction = transaction
        self._topic_id = topic_id

    def write_arrow(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one attempt of a task."""
        return write_task(self._options, iterator, self._topic, self._transaction, self._topic_id)

    @plain_errors()
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit the micro-batch, if it is in a transaction, and log the result."""
        check_topics(messages)
        already = end_micro_batch(self._options, _memberships(messages), batchId)
        forget(self._options.transactions)
        _log.info("micro-batch %d: %s%s", batchId, _ALREADY if already else "", summary(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Abort the transaction, and log the failure of a task; Spark repeats the micro-batch after a restart."""
        membership = next((one for one in _memberships(messages) if one is not None), None)
        give_up(self._options, noted(self._options.transactions) if membership is None else membership.transaction)
        forget(self._options.transactions)
        _log.warning("micro-batch %d failed; completed before: %s", batchId, summary(messages))


def check_topics(messages: Sequence[WriterCommitMessage | None]) -> None:
    """Check that all tasks of a write have written to the same topic of each name; raises UNKNOWN_TOPIC_ID."""
    ids: dict[str, str] = {}
    for message in messages:
        for name, topic_id in message.topic_ids.items() if isinstance(message, TidemarkCommitMessage) else ():
            if ids.setdefault(name, topic_id) != topic_id:
                why = f"topic {name} was deleted and created again during the write: write all rows again"
                raise TidemarkError(ErrorCode.UNKNOWN_TOPIC_ID, why)


_ALREADY: Final = "committed before, so the rows of this repetition do not count: "


def _memberships(messages: Sequence[WriterCommitMessage | None]) -> list[Membership | None]:
    """Transactions of the tasks that completed."""
    return [message.membership for message in messages if isinstance(message, TidemarkCommitMessage)]


@plain_errors()
def write_task(
    options: WriteOptions,
    batches: Iterable[pa.RecordBatch],
    topic: TypedTopic | None = None,
    transaction: WriteTransaction | None = None,
    topic_id: str = "",
) -> TidemarkCommitMessage:
    """Write rows in order, and wait until all are acknowledged.

    `topic_id` is the id of the topic that the driver found; "": any.

    Raises:
        TidemarkError: error of the first batch that was not acknowledged within the delivery timeout; PRODUCER_FENCED:
            another driver has begun since; UNKNOWN_TOPIC_ID: a topic was deleted and created again during the write.
        ValueError: for a row without a topic, or a header without a name.
    """
    message = TidemarkCommitMessage()
    with contextlib.ExitStack() as stack:
        check: Callable[[], None] = _nothing
        if transaction is not None:
            from tidemark_spark.transactions.task import keeping

            message.membership = Membership(transaction)
            check = stack.enter_context(keeping(options, transaction)).check
        chunks = _chunks(batches)
        first = next(chunks, None)
        if first is not None:
            producer = stack.enter_context(_producer(options, message))
            parts = _parts(options, itertools.chain([first], chunks), topic, check)
            _write(producer, parts, message, topic_id)
        check()
    return message


def _nothing() -> None:
    pass


def _producer(options: WriteOptions, message: TidemarkCommitMessage) -> TaskProducer:
    """The producer of a task; in a transaction a new member, which the message then names."""
    if message.membership is None:
        # not in the driver, where Spark starts a process for each micro-batch
        from tidemark_spark.sink.task_producer import TaskProducer

        return TaskProducer(options.bootstrap, tls=options.tls, token_file=options.token_file, **options.settings)
    from tidemark_spark.transactions.task import MemberProducer

    transaction = message.membership.transaction
    settings = {**options.settings, "transactional_id": transaction.transactional_id}
    producer = MemberProducer(options.bootstrap, tls=options.tls, token_file=options.token_file, **settings)
    try:
        message.membership = Membership(transaction, producer.join(transaction.generation))
    except BaseException:
        producer.close()
        raise
    return producer


Part = tuple[str, int | None, pa.RecordBatch | pa.Table, str | None]
"""Topic, partition, rows and the column of their timestamps."""


def _write(producer: TaskProducer, parts: Iterable[Part], message: TidemarkCommitMessage, topic_id: str) -> None:
    """Send the rows, and note them in the message when they are acknowledged."""
    under_way: deque[TableHandle] = deque()
    for name, partition, rows, timestamp in parts:
        if name not in message.topic_ids:
            message.topic_ids[name] = producer.pin(name, topic_id)
        message.size_bytes += rows.nbytes
        under_way.append(producer.send_table(name, rows, timestamp=timestamp, partition=partition))
        while under_way and under_way[0].done():
            _note(message, under_way.popleft())
    while under_way:
        _note(message, under_way.popleft())


def _parts(
    options: WriteOptions,
    chunks: Iterable[list[pa.RecordBatch]],
    topic: TypedTopic | None,
    check: Callable[[], None],
) -> Iterator[Part]:
    for chunk in chunks:
        check()
        yield from _parts_of_chunk(options, chunk, topic)


def _parts_of_chunk(options: WriteOptions, chunk: list[pa.RecordBatch], topic: TypedTopic | None) -> Iterator[Part]:
    if topic is None:
        for name, partition, rows in destined(chunk, options.topic, time.time_ns() // 1000):
            yield name, partition, rows, "timestamp"
        return
    for partition, table in parted(chunk):
        stamped = TIMESTAMP in table.column_names
        if stamped and topic.schema.event_time is not None:
            table, stamped = table.drop_columns([TIMESTAMP]), False
        yield topic.name, partition, table, TIMESTAMP if stamped else None


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    chunk: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        if batch.num_rows:
            chunk.append(batch)
            size_bytes += batch.nbytes
        if size_bytes >= CHUNK_BYTES:
            yield chunk
            chunk, size_bytes = [], 0
    if chunk:
        yield chunk


def _note(message: TidemarkCommitMessage, handle: TableHandle) -> None:
    """Wait until the table's batches are acknowledged or failed; bounded by the delivery timeout."""
    for topic, partition, base_offset, count in handle.result():
        last = -1 if base_offset < 0 else base_offset + count - 1
        before = message.written.get((topic, partition))
        if before is None:
            message.written[topic, partition] = Written(base_offset, last, count)
        else:
            before.first, before.last = min(before.first, base_offset), max(before.last, last)
            before.records += count


def summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    """Result of the tasks by partition, in one sentence."""
    done = [message for message in messages if isinstance(message, TidemarkCommitMessage)]
    total: dict[tuple[str, int], Written] = {}
    for message in done:
        for where, written in message.written.items():
            before = total.setdefault(where, Written(written.first, written.last, 0))
            before.first, before.last = min(before.first, written.first), max(before.last, written.last)
            before.records += written.records
    records = sum(written.records for written in total.values())
    places = ", ".join(
        f"{topic}-{partition}: {written.records} in offsets {written.first} to {written.last}"
        for (topic, partition), written in sorted(total.items())
    )
    size_bytes = sum(message.size_bytes for message in done)
    return f"{len(done)} tasks wrote {records} records, {size_bytes} bytes" + (f" ({places})" if places else "")
