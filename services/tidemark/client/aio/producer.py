# SPDX-License-Identifier: Apache-2.0
"""The async producer."""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Final, NamedTuple, Unpack

import pyarrow as pa

from tidemark.client.aio.transaction import Transaction
from tidemark.client.argument_types import check_names, key_and_value, seconds
from tidemark.client.lifecycle import INTERRUPTED_S, INTERRUPTIONS, TURN_S, Lifecycle
from tidemark.client.metadata.bootstrap import Bootstrap
from tidemark.client.metadata.cluster import Cluster
from tidemark.client.metadata.tls import Credentials
from tidemark.client.producing import dropped_producers, typed_format
from tidemark.client.producing import table as tables
from tidemark.client.producing.accumulator import Accumulator, as_bytes, checked_partition
from tidemark.client.producing.arguments import Timestamp, checked
from tidemark.client.producing.batching import SendHandle, TableHandle
from tidemark.client.producing.lanes import BytesLane, Lane, Lanes, RowLane
from tidemark.client.producing.metrics import ProducerMetrics
from tidemark.client.producing.partitioner import Partitioner, partition_of, partitions_of
from tidemark.client.producing.sender import Sender
from tidemark.client.producing.table import Frame
from tidemark.client.producing.typed_format import TypedFormat
from tidemark.client.producing.typed_formats import TypedFormats
from tidemark.client.serializers import Serializer, serializer_of
from tidemark.client.settings import ProducerOptions, producer_settings
from tidemark.client.transactions.coordinator import TransactionCoordinator
from tidemark.client.transactions.producer_transactions import ProducerTransactions
from tidemark.client.typed.topic_schemas import SchemaPendingError
from tidemark.core.cluster_view import TopicView
from tidemark.model import ErrorCode, TidemarkError, TopicPartition, invalid_request, unknown_partition
from tidemark.record.payload import Headers
from tidemark.rpc.security.paths import TlsFiles
from tidemark.rpc.security.token_source import TokenGiven
from tidemark.runtime.clock import timeout
from tidemark.runtime.slices import Pace

_TICK_SLACK_S: Final = 1.0
"""Time after the delivery timeout within which the sender fails expired batches."""
_START_S_MIN: Final = 0.7
"""Shortest time that `start` looks for a broker, for any delivery timeout."""
_OF_KEYS: Final = (bytes, type(None))
"""Types of keys that need no conversion."""
_OWN_ARGUMENTS: Final = ("bootstrap", "partitioner", "key_serializer", "value_serializer", "tls", "token_file")
_ARGUMENTS: Final = frozenset((*_OWN_ARGUMENTS, *ProducerOptions.__annotations__))


class TypedTable(NamedTuple):
    """Rows of a table that fit a schema version."""

    typed: TypedFormat
    batches: list[pa.RecordBatch]


class Producer(Lifecycle):
    """Sends records. With the defaults every in-sync replica acknowledges a record, and retries neither duplicate nor
    reorder records.

    async with Producer("127.0.0.1:9192") as producer:
        where = await (await producer.send("greetings", b"hello"))

    Args:
        bootstrap: "host:port[,host:port...]" of any brokers, or a list; None: TIDEMARK_BOOTSTRAP.
        partitioner: function of topic, key, value and number of partitions that returns the partition, from 0. None:
            murmur2 of the key, as Kafka's clients; records without a key go to any partition, batch by batch.
        key_serializer: "json", "text" or a function that makes bytes of the keys of `send` and `send_many`; None: keys
            are bytes. The partitioner gets the bytes.
        value_serializer: the same for values.
        tls: the TLS files; None: the files that the environment names (docs/security.md), or plain text.
        token_file: path of a file with a bearer token, or a callable that returns one; None: TIDEMARK_TOKEN_FILE.
        settings: acks, enable_idempotence, linger_ms, batch_bytes, max_in_flight, codec, delivery_timeout_ms,
            request_timeout_ms, buffer_bytes, client_id, transactional_id, transaction_timeout_ms;
            `client.settings.producer_settings` explains them. Names that end with _ms are in milliseconds, with _bytes
            in bytes.

    Raises:
        TidemarkError: INVALID_CONFIG, INVALID_ACKS, INVALID_TRANSACTIONAL_ID.
        TypeError: an argument has a wrong type or an unknown name.
    """

    def __init__(
        self,
        bootstrap: Bootstrap | None = None,
        *,
        partitioner: Partitioner | None = None,
        key_serializer: str | Serializer | None = None,
        value_serializer: str | Serializer | None = None,
        tls: TlsFiles | None = None,
        token_file: TokenGiven | None = None,
        **settings: Unpack[ProducerOptions],
    ) -> None:
        check_names("a Producer", settings, _ARGUMENTS)
        self.settings = producer_settings(**settings)
        if partitioner is not None and not callable(partitioner):
            raise TypeError(f"partitioner is {partitioner!r}, not a function")
        self._partitioner = partitioner
        self._key_serializer = serializer_of("key_serializer", key_serializer)
        self._value_serializer = serializer_of("value_serializer", value_serializer)
        self.serializes = key_serializer is not None or value_serializer is not None
        """Whether keys or values need `serialized`."""
        delivery_s = self.settings.delivery_timeout_ms / 1000
        self.cluster = Cluster(
            bootstrap,
            timeout_s=max(_START_S_MIN, delivery_s),
            tls=Credentials(tls, token_file),
            client_id=self.settings.client_id,
        )
        self.lanes = Lanes()
        self.cluster.listen(self.lanes.forget)
        self._formats = TypedFormats(self.cluster, self.lanes.forget)
        self._sender: Sender | None = None
        self._transactions: ProducerTransactions | None = None
        self._closing = asyncio.Lock()
        self._pace = Pace(TURN_S)
        self.reports_drop = True
        """Whether this object logs that it was dropped without `close`. The blocking producer logs the drop itself."""
        self._forgotten: weakref.finalize[[Sender], Producer] | None = None

    async def start(self) -> None:
        """Find a broker that answers; raises BROKER_NOT_AVAILABLE with the error of each address."""
        if self._sender is not None:
            return
        await self.cluster.start()
        self._sender = Sender(self.cluster, self.settings, typed=self._formats.now, partitioner=self._partitioner)
        self._sender.start()
        if self.settings.transactional_id:
            self._transactions = self._make_transactions(self._sender)
        if self.reports_drop:
            dropped_producers.add(self._sender)
            self._forgotten = weakref.finalize(self, dropped_producers.warn_and_end, self._sender)
            self._forgotten.atexit = False

    async def close(self, timeout_s: float | None = None) -> None:
        """Send buffered records and close; afterwards every handle has its outcome. Cancellation stops the sending.

        Args:
            timeout_s: time to send buffered records, in seconds; None: the delivery timeout.

        Example: `await producer.close(timeout_s=5)`
        """
        delivery_s = self.settings.delivery_timeout_ms / 1000
        timeout_s = delivery_s + _TICK_SLACK_S if timeout_s is None else seconds("timeout_s", timeout_s)
        async with self._closing:
            sender, self._sender = self._sender, None
            self.lanes.forget()
            transactions, self._transactions = self._transactions, None
            if self._forgotten is not None:
                self._forgotten.detach()
            async with contextlib.AsyncExitStack() as ending:  # a cancellation ends one wait, and skips no step
                ending.push_async_callback(self.cluster.close)
                ending.push_async_callback(self._formats.schemas.close)
                if sender is not None:
                    ending.push_async_callback(sender.stop)
                    with contextlib.suppress(TimeoutError):  # the remaining records fail at the stop
                        async with timeout(timeout_s):
                            await (sender.flush(later=True) if transactions is None else transactions.close())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(INTERRUPTED_S if isinstance(error, INTERRUPTIONS) else None)

    @property
    def sender(self) -> Sender:
        """The sender; raises CLIENT_CLOSED before the start and after the close."""
        if self._sender is None:
            raise TidemarkError(ErrorCode.CLIENT_CLOSED, "the producer is not started, or closed")
        return self._sender

    def transaction(self) -> Transaction:
        """Make a transaction; `async with` begins it, commits it at the end, and aborts it after an exception.

        Every record that is sent during a transaction belongs to it. One transaction of a producer is open at a time.

        Raises:
            TidemarkError: INVALID_TXN_STATE for a producer without transactional_id; CLIENT_CLOSED.

        Example: `async with producer.transaction(): await producer.send("orders", b"3 apples")`
        """
        self.sender  # noqa: B018 - raises when closed
        if self._transactions is None:
            raise TidemarkError(
                ErrorCode.INVALID_TXN_STATE, "this producer has no transactional_id: transactions need one"
            )
        return Transaction(self._transactions)

    def _make_transactions(self, sender: Sender) -> ProducerTransactions:
        settings = self.settings
        coordinator = TransactionCoordinator(
            self.cluster, settings.transactional_id, timeout_s=settings.delivery_timeout_ms / 1000
        )
        return ProducerTransactions(coordinator, sender, settings.transaction_timeout_ms)

    async def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers | None = None,
        timestamp_us: Timestamp | None = None,
        partition: int | None = None,
    ) -> SendHandle:
        """Add a record to its batch; waits while the buffer is full. `await` the handle for the record's outcome.

        Args:
            topic: name of the topic.
            value: bytes, or an argument of the value serializer; None for a tombstone. For a topic with a schema a
                mapping, a dataclass or a model, whose fields are the columns.
            key: bytes, or an argument of the key serializer; records with the same key go to the same partition, in
                order. A row of a topic with a schema has its key in its columns. The value None deletes a row of a
                typed topic, if the topic is compacted. `key` is then a mapping of the key columns, or the value of the
                only key column.
            headers: (name, value) pairs, or a mapping; names are text, values bytes or None.
            timestamp_us: microseconds since 1970, or a datetime with a time zone; None: now. In a topic with an event
                time the event time of the row is used.
            partition: index of the partition; None: the partitioner chooses.

        Raises:
            TypeError: an argument has a wrong type; no record is added.
            TidemarkError: SCHEMA_MISMATCH with topic, version and column; UNKNOWN_TOPIC, UNKNOWN_PARTITION,
                INVALID_TIMESTAMP; BATCH_TOO_LARGE for a record above 8 MiB; REQUEST_TIMED_OUT if the buffer stayed
                full for the delivery timeout; CLIENT_CLOSED. A serializer's error is raised unchanged.

        Example: `where = await (await producer.send("orders", b"3 apples", key=b"alice"))`
        """
        stamp_us, partition = checked(timestamp_us, partition)
        if time.perf_counter() > self._pace.until_s:
            await self._give_way()
        if self.serializes:
            key, value = self.serialized(key, value)
        lane = self.lanes.now.get(topic)
        if lane is not None and headers is None and stamp_us is None and partition is None:
            handle = lane.send(key, value)
            if handle is not None:
                return handle
        handle = self.send_now(topic, value, key, headers, stamp_us, partition)
        if handle is not None:
            return handle
        sender = self.sender
        count = await self.ready(topic, beyond=-1 if partition is None else partition)
        if sender.accumulator.is_full:
            await self._wait_for_room(sender)
        try:
            return self.add(topic, value, count, key, headers, stamp_us, partition)
        except TidemarkError as error:
            if not await self.has_newer_schema(topic, error):
                raise
        return self.add(topic, value, count, key, headers, stamp_us, partition)

    async def _give_way(self) -> None:
        """Let the sender run: an application that computes between its sends may leave it no turn."""
        with self.within_one_transaction():
            await self._pace.give_way()

    def serialized(self, key: Any, value: Any) -> tuple[bytes | None, bytes | None]:
        """Make the bytes of a key and a value; thread-safe."""
        if key is not None and self._key_serializer is not None:
            key = self._key_serializer(key)
        if value is not None and self._value_serializer is not None:
            value = self._value_serializer(value)
        return key, value

    def send_now(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        timestamp_us: int | None,
        partition: int | None,
    ) -> SendHandle | None:
        """Call `send` with checked arguments, on any thread, if `send` does not have to wait; otherwise return None,
        without an effect.

        A record that does not fit its schema waits, too, until the client has checked for a newer version.
        """
        lanes = self.lanes.now
        sender, view = self._sender, self.cluster.topic_now(topic)
        if sender is None or view is None:
            return None
        accumulator, count = sender.accumulator, view.count if view.partitions else 0
        self._open_lane(lanes, view, accumulator)
        if accumulator.is_full or count == 0 or (partition is not None and not 0 <= partition < count):
            return None
        try:
            typed = None if key is not None or type(value) is bytes else self._formats.current(topic, view.topic_id)
            if typed is not None and value is not None:
                row = typed.records.check(value)
                return accumulator.add_row(typed, row, partition, count, timestamp_us, headers)
            if partition is None:
                if self._partitioner is not None or type(key) not in _OF_KEYS:
                    return self.add(topic, value, count, key, headers, timestamp_us, None)
                if key is not None:
                    partition = partition_of(key, count)
            stamp_us = time.time_ns() // 1000 if timestamp_us is None else timestamp_us
            return accumulator.add(topic, partition, count, key, value, stamp_us, headers)
        except SchemaPendingError:
            return None
        except TidemarkError as error:
            if error.code is ErrorCode.SCHEMA_MISMATCH:
                return None
            raise

    def _open_lane(self, lanes: dict[str, Lane], view: TopicView, accumulator: Accumulator) -> None:
        """Add the topic's lane to `lanes`, which were the current ones before the view was read."""
        topic = view.topic
        if topic in lanes or self._partitioner is not None or not view.partitions:
            return
        if not view.schema_version:
            lanes[topic] = BytesLane(accumulator, topic, view.count)
            return
        typed = self._formats.current(topic, view.topic_id)
        if typed is not None:
            lanes[topic] = RowLane(accumulator, typed, view.count)

    async def send_many(self, topic: str, records: Iterable[tuple[Any, Any]]) -> list[SendHandle]:
        """Call `send` for each record; for a list of records of bytes in less than half the time.

        Args:
            topic: name of the topic.
            records: (key, value) pairs. Up to 1,000 records of a list get the same timestamp.

        Raises:
            TidemarkError: the errors of `send`; records before the refused record are sent.
            TypeError: the errors of `send`.

        Example: `handles = await producer.send_many("orders", [(b"alice", b"2 pears"), (b"bob", None)])`
        """
        if self.serializes or not isinstance(records, list | tuple):
            return [await self.send(topic, value, key=key) for key, value in map(key_and_value, records)]
        handles: list[SendHandle] = []
        while len(handles) < len(records):
            if self._pace.is_due:
                await self._give_way()
            lane = self.lanes.now.get(topic)
            if lane is not None:
                with contextlib.suppress(TypeError, ValueError):  # the record that is refused has an error below
                    lane.send_some(records, handles)
            if len(handles) < len(records):
                key, value = key_and_value(records[len(handles)])
                handles.append(await self.send(topic, value, key=key))
        return handles

    async def send_table(
        self,
        topic: str,
        table: Frame,
        *,
        key: str | None = "key",
        value: str | None = "value",
        timestamp: str | None = None,
        partition: int | None = None,
    ) -> TableHandle:
        """Send the rows of a table; waits while the buffer is full.

        Rows with a key go to the partition that `send` would choose, in order. Rows without a key are distributed
        slice by slice. A column `headers` is sent if the table has one. Text is sent as UTF-8.

        For a topic with a schema the columns of the table are those of the schema, by name; a value is cast if the cast
        loses nothing. A column that the table lacks is null, or has its default. A column `_headers` becomes the
        headers. A row whose `_deleted` is true deletes the earlier rows of its key, if the topic is compacted. All rows
        are checked before the first is sent.

        Args:
            topic: name of the topic.
            table: a table or record batch of pyarrow, or an object with Arrow's C stream protocol, such as a frame of
                pandas or polars.
            key: column of the keys; the default "key" may be missing; None: no keys. Not for a topic with a schema.
            value: column of the values; None: each value is its row as a JSON object, with all columns. Not for a topic
                with a schema.
            timestamp: column of the timestamps, which are of a timestamp type, or integers in microseconds since 1970;
                None: now. Not for a topic with an event time.
            partition: index of the partition of all rows; None: the partitioner chooses.

        Raises:
            TidemarkError: INVALID_PAYLOAD if `table` is not a table, or a named column is missing or cannot be
                converted. SCHEMA_MISMATCH with topic, version, column and row. INVALID_REQUEST for `key`, `value` or
                `timestamp` where the schema decides. UNKNOWN_TOPIC, UNKNOWN_PARTITION. REQUEST_TIMED_OUT if the buffer
                stayed full.
            TypeError: `partition` or a name has a wrong type.

        Example: `handle = await producer.send_table("orders", frame, key="customer", value=None)`
        """
        _, partition = checked(None, partition)
        count = await self.ready(topic, beyond=-1 if partition is None else partition)
        if partition is not None and not 0 <= partition < count:
            raise unknown_partition(topic, partition, count)
        typed = self._formats.now(topic)
        if typed is not None:
            if (key, value) != ("key", "value"):
                sentence = f"topic {topic} has a schema: the table's columns are its columns; omit key and value"
                raise invalid_request(sentence)
            sent = await self._typed_rows(topic, typed, table, timestamp)
            return await self._send_typed(topic, sent, count, partition)
        sender = self.sender
        batches = []
        for rows in tables.as_rows(table, key=key, value=value, timestamp=timestamp, now_us=_now_us()):
            parts = self._parts(topic, rows, count) if partition is None else [(partition, rows)]
            for target, part in parts:
                for piece in tables.slices(part, self.settings.batch_bytes):
                    if sender.accumulator.is_full:
                        await self._wait_for_room(sender)
                    index = sender.accumulator.sticky_partition(topic, count) if target is None else target
                    batches.append(sender.accumulator.add_rows(TopicPartition(topic, index), piece))
        return TableHandle(batches)

    async def _send_typed(self, topic: str, sent: TypedTable, count: int, partition: int | None) -> TableHandle:
        sender, now_us = self.sender, _now_us()
        pieces = [
            (target, piece)
            for rows in sent.batches
            for target, part in self._typed_parts(topic, sent.typed, rows, count, partition)
            for piece in typed_format.slices(part, self.settings.batch_bytes)
        ]
        batches = []
        for target, piece in pieces:
            if sender.accumulator.is_full:
                await self._wait_for_room(sender)
            index = sender.accumulator.sticky_partition(topic, count) if target is None else target
            where = TopicPartition(topic, index)
            batches.append(sender.accumulator.add_rows(where, piece, sent.typed, now_us))
        return TableHandle(batches)

    def metrics(self) -> ProducerMetrics:
        """Count acknowledged, failed and buffered records.

        Example: `producer.metrics().failed_records`
        """
        return self.sender.metrics()

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every record sent before is acknowledged or has failed.

        Args:
            timeout_s: time limit in seconds; None: the delivery timeout of the records bounds it.

        Raises:
            TidemarkError: REQUEST_TIMED_OUT after `timeout_s`, while the producer continues to send.

        Example: `await producer.flush(timeout_s=30)`
        """
        limit_s = None if timeout_s is None else seconds("timeout_s", timeout_s)
        try:
            async with timeout(limit_s):
                await self.sender.flush()
        except TimeoutError:
            raise TidemarkError(ErrorCode.REQUEST_TIMED_OUT, f"not flushed within {limit_s} s") from None

    async def ready(self, topic: str, *, beyond: int = -1) -> int:
        """Return the number of partitions, as `partition_count`, and learn the topic's schema if it has one."""
        with self.within_one_transaction():
            count = await self.partition_count(topic, beyond=beyond)
            await self._formats.schemas.load(topic, timeout_s=self.settings.request_timeout_ms / 1000)
        return count

    async def partition_count(self, topic: str, *, beyond: int = -1) -> int:
        """Return the number of partitions; waits for a short time if the number is not above `beyond`. Raises
        UNKNOWN_TOPIC.
        """
        timeout_s = self.settings.request_timeout_ms / 1000
        return await self.cluster.partition_count(topic, timeout_s=timeout_s, beyond=beyond)

    @contextlib.contextmanager
    def within_one_transaction(self) -> Iterator[None]:
        """Raise INVALID_TXN_STATE if a transaction begins while a send waits: the record is not of that transaction.

        Any thread may enter.
        """
        before = self.sender.transaction
        yield
        if self.sender.transaction is not before:
            raise TidemarkError(
                ErrorCode.INVALID_TXN_STATE,
                f"transactional id {self.settings.transactional_id!r}: the transaction ended while this send waited, "
                "and the record was not sent: complete every send within its transaction",
            )

    def add(
        self,
        topic: str,
        value: bytes | None,
        partitions: int,
        key: bytes | None,
        headers: Headers | None,
        timestamp_us: int | None,
        partition: int | None,
    ) -> SendHandle:
        """Add a record with checked arguments, without waiting; any thread may call it."""
        if type(key) not in _OF_KEYS and self._formats.now(topic) is None:  # else the key of a row, or a wrong argument
            key = as_bytes("key", key)
        if partition is None and self._partitioner is not None and self._formats.now(topic) is None:
            partition = self._partitioner(topic, key, value, partitions)
        if partition is None:
            if type(key) is bytes:
                partition = partition_of(key, partitions)
        else:
            partition = checked_partition(topic, partition, partitions)
        stamp_us = _now_us() if timestamp_us is None else timestamp_us
        return self.sender.accumulator.add(topic, partition, partitions, key, value, stamp_us, headers)

    def _parts(self, topic: str, rows: pa.RecordBatch, count: int) -> Iterable[tuple[int | None, pa.RecordBatch]]:
        if self._partitioner is None:
            return tables.by_partition(rows, count)
        keys, values = rows.column(0).to_pylist(), rows.column(1).to_pylist()
        chosen = [
            checked_partition(topic, self._partitioner(topic, key, value, count), count)
            for key, value in zip(keys, values, strict=True)
        ]
        return tables.by_target(rows, chosen)

    async def has_newer_schema(self, topic: str, error: TidemarkError) -> bool:
        """Whether a record that was refused may fit a version that this producer has just learned."""
        with self.within_one_transaction():
            return error.code is ErrorCode.SCHEMA_MISMATCH and await self._formats.schemas.look_for_newer(topic)

    async def _typed_rows(self, topic: str, typed: TypedFormat, table: Frame, timestamp: str | None) -> TypedTable:
        """The rows of a table in the newest version that the table fits."""
        try:
            return TypedTable(typed, typed.fit_table(table, timestamp))
        except TidemarkError as error:
            newer = await self.has_newer_schema(topic, error) and self._formats.now(topic)
            if not newer:
                raise
        return TypedTable(newer, newer.fit_table(table, timestamp))

    def _typed_parts(
        self, topic: str, typed: TypedFormat, rows: pa.RecordBatch, count: int, partition: int | None
    ) -> Iterable[tuple[int | None, pa.RecordBatch]]:
        if partition is not None:
            return [(partition, rows)]
        keys = typed.keys(rows)
        if self._partitioner is not None:
            of_rows = [None] * rows.num_rows if keys is None else keys.to_pylist()
            chosen = [checked_partition(topic, self._partitioner(topic, key, None, count), count) for key in of_rows]
            return tables.by_target(rows, chosen)
        if keys is None:
            return [(None, rows)]
        return tables.by_target_array(rows, partitions_of(keys, count))

    async def _wait_for_room(self, sender: Sender) -> None:
        timeout_s = self.settings.delivery_timeout_ms / 1000
        try:
            with self.within_one_transaction():
                async with timeout(timeout_s):
                    await sender.wait_for_room()
        except TimeoutError:
            raise sender.accumulator.no_room(timeout_s) from None


def _now_us() -> int:
    return time.time_ns() // 1000
