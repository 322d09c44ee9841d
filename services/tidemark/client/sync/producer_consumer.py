# SPDX-License-Identifier: Apache-2.0
"""The sync Producer and Consumer.

The producer adds records on the caller's thread. All other work is done on the event-loop thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, TypeVar, Unpack

from tidemark.client.aio.consumer import Consumer as AsyncConsumer
from tidemark.client.aio.producer import Producer as AsyncProducer
from tidemark.client.argument_types import key_and_value, partition_of, positive, seconds, texts
from tidemark.client.consuming.health import PartitionHealth, before
from tidemark.client.group.group_reader import RebalanceCallback, in_callback
from tidemark.client.group.settings import ConsumerAndGroupOptions
from tidemark.client.lifecycle import INTERRUPTED_S, INTERRUPTIONS
from tidemark.client.metadata.bootstrap import Bootstrap
from tidemark.client.producing.arguments import Timestamp, checked
from tidemark.client.producing.batching import SendHandle
from tidemark.client.producing.metrics import ProducerMetrics
from tidemark.client.producing.partitioner import Partitioner
from tidemark.client.records import ConsumerRecord, PartitionBatch, offsets_of
from tidemark.client.serializers import Deserializer, Serializer
from tidemark.client.settings import ProducerOptions
from tidemark.client.sync import unclosed
from tidemark.client.sync.event_loop_thread import forked
from tidemark.client.sync.forwarding import START_S, SyncClient, blocking, documented_as, iterating, on_loop
from tidemark.client.sync.transaction import Transaction
from tidemark.model import TidemarkError, TopicPartition
from tidemark.record.payload import Headers
from tidemark.rpc.security.paths import TlsFiles
from tidemark.rpc.security.token_source import TokenGiven

T = TypeVar("T")
BlockingRebalanceCallback = Callable[[list[TopicPartition]], None]
"""A callback of `Consumer.subscribe`: takes the partitions that were assigned, revoked or lost."""

_CLOSE_SLACK_S: Final = 10.0


class Producer(SyncClient[AsyncProducer]):
    """Sends records; `tidemark.client.aio.Producer` for threads. Any thread may call any method.

    With the defaults every in-sync replica acknowledges a record, and retries neither duplicate nor reorder records.

    with Producer("127.0.0.1:9192") as producer:
        where = producer.send("greetings", b"hello", key=b"world").result()

    Args:
        bootstrap: "host:port[,host:port...]" of any brokers, or a list; None: TIDEMARK_BOOTSTRAP.
        partitioner: function of topic, key, value and number of partitions that returns the partition, from 0. None:
            murmur2 of the key, as Kafka's clients; records without a key go to any partition, batch by batch.
        key_serializer: "json", "text" or a function that makes bytes of the keys of `send` and `send_many`; None: keys
            are bytes. The partitioner gets the bytes.
        value_serializer: the same for values.
        tls: the TLS files; None: those that the environment names (docs/security.md), or plain text.
        token_file: path of a file with a bearer token, or a callable that returns one; None: TIDEMARK_TOKEN_FILE.
        settings: acks, enable_idempotence, linger_ms, batch_bytes, max_in_flight, codec, delivery_timeout_ms,
            request_timeout_ms, buffer_bytes, client_id, transactional_id, transaction_timeout_ms;
            `client.settings.producer_settings` explains them. Names that end with _ms are in milliseconds, with _bytes
            in bytes.

    Raises:
        TidemarkError: INVALID_CONFIG, INVALID_ACKS, INVALID_TRANSACTIONAL_ID; BROKER_NOT_AVAILABLE with the error of
            each address.
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
        producer = AsyncProducer(
            bootstrap,
            partitioner=partitioner,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
            tls=tls,
            token_file=token_file,
            **settings,
        )
        producer.reports_drop = False
        self._delivery_s = producer.settings.delivery_timeout_ms / 1000
        self._lanes = producer.lanes
        super().__init__(producer, call_s=self._delivery_s)
        unclosed.add(producer, self._background)
        # Without a reference to this object: an object that is not closed can be collected.
        self._forgotten = weakref.finalize(self, unclosed.warn_and_close, producer)
        self._forgotten.atexit = False

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers | None = None,
        timestamp_us: Timestamp | None = None,
        partition: int | None = None,
    ) -> SendHandle:
        """Add a record to its batch; blocks while the buffer is full. The handle's `result()` waits for its outcome.

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

        Example: `producer.send("orders", b"3 apples", key=b"alice").result(timeout_s=10).offset`
        """
        if self._background.forked:
            raise forked()
        producer = self._client
        if producer.serializes:
            key, value = producer.serialized(key, value)
        if headers is None and timestamp_us is None and partition is None:
            lane = self._lanes.now.get(topic)
            if lane is not None:
                handle = lane.send(key, value)
                if handle is not None:
                    return handle
        stamp_us, partition = checked(timestamp_us, partition)
        handle = producer.send_now(topic, value, key, headers, stamp_us, partition)
        if handle is not None:
            return handle
        accumulator = producer.sender.accumulator
        beyond = -1 if partition is None else partition
        with producer.within_one_transaction():
            count = self._background.call(producer.ready(topic, beyond=beyond), self._delivery_s)
            if accumulator.is_full:
                accumulator.wait_for_room(self._delivery_s)
        try:
            return producer.add(topic, value, count, key, headers, stamp_us, partition)
        except TidemarkError as error:
            if not self._background.call(producer.has_newer_schema(topic, error), self._delivery_s):
                raise
        return producer.add(topic, value, count, key, headers, stamp_us, partition)

    @documented_as(AsyncProducer.send_many)
    def send_many(self, topic: str, records: Iterable[tuple[Any, Any]]) -> list[SendHandle]:
        if self._background.forked:
            raise forked()
        if self._client.serializes or not isinstance(records, list | tuple):
            return [self.send(topic, value, key=key) for key, value in map(key_and_value, records)]
        handles: list[SendHandle] = []
        while len(handles) < len(records):
            lane = self._lanes.now.get(topic)
            if lane is not None:
                with contextlib.suppress(TypeError, ValueError):  # the record that is refused has an error below
                    lane.send_some(records, handles)
            if len(handles) < len(records):
                key, value = key_and_value(records[len(handles)])
                handles.append(self.send(topic, value, key=key))
        return handles

    send_table = blocking(AsyncProducer.send_table, bounded=False)

    def transaction(self) -> Transaction:
        """Make a transaction; `with` begins it, commits it at the end, and aborts it after an exception.

        Every record that is sent meanwhile, by any thread, belongs to it. One transaction of a producer is open at a
        time.

        Raises:
            TidemarkError: INVALID_TXN_STATE for a producer without transactional_id; CLIENT_CLOSED.

        Example: `with producer.transaction(): producer.send("orders", b"3 apples")`
        """
        if self._background.forked:
            raise forked()
        return Transaction(self._client.transaction(), self._background, 2 * self._delivery_s + _CLOSE_SLACK_S)

    @documented_as(AsyncProducer.metrics)
    def metrics(self) -> ProducerMetrics:
        return self._client.metrics()

    flush = blocking(AsyncProducer.flush, bounded=False)

    def close(self, timeout_s: float | None = None) -> None:
        """Send buffered records and close; afterwards every handle has its outcome. Ctrl-C stops the sending.

        Args:
            timeout_s: time to send buffered records, in seconds; None: the delivery timeout.

        Example: `producer.close(timeout_s=5)`
        """
        if timeout_s is not None:
            seconds("timeout_s", timeout_s)
        if self._closes_now():
            self._forgotten.detach()
            unclosed.remove(self._client)
            bound_s = self._delivery_s if timeout_s is None else timeout_s
            self._background.call(self._client.close(timeout_s), bound_s + _CLOSE_SLACK_S)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(INTERRUPTED_S if isinstance(error, INTERRUPTIONS) else None)


def _on_a_thread(callback: BlockingRebalanceCallback) -> RebalanceCallback:
    async def run(partitions: list[TopicPartition]) -> None:
        await asyncio.to_thread(callback, partitions)

    return run


class Consumer(SyncClient[AsyncConsumer]):
    """Reads committed records; `tidemark.client.aio.Consumer` for threads. Only one thread at a time may use it.

    Records of one partition come in order, each once; partitions take turns. After OFFSET_OUT_OF_RANGE, LOG_TRUNCATED
    or UNKNOWN_TOPIC_ID every read raises the error again, until the application seeks or assigns that partition again.

    with Consumer("127.0.0.1:9192") as consumer:
        consumer.assign("greetings")
        for record in consumer:
            ...

    with Consumer("127.0.0.1:9192", group="readers") as consumer:
        consumer.subscribe(["greetings"])
        for record in consumer:
            ...  # asking for the next record marks this one as processed; it is committed within seconds

    Args:
        bootstrap: "host:port[,host:port...]" of any brokers, or a list; None: TIDEMARK_BOOTSTRAP.
        group: id of the consumer group, for `subscribe` and `commit`; None: the application keeps offsets.
        key_deserializer: "json", "text" or a function that reads the bytes of the keys of iterated records; None: keys
            are bytes.
        value_deserializer: the same for values.
        value_class: dataclass or model of which the values of a topic with a schema are instances; None: dicts.
        tls: the TLS files; None: those that the environment names (docs/security.md), or plain text.
        token_file: path of a file with a bearer token, or a callable that returns one; None: TIDEMARK_TOKEN_FILE.
        settings: fetch_max_wait_ms, max_bytes, max_partition_bytes, read_ahead_bytes, request_timeout_ms,
            out_of_range, rack, client_id, isolation_level, schema_versions (`client.settings.consumer_settings`
            explains); for a group instance_id, assignor, auto_commit_interval_ms, rebalance_timeout_ms,
            max_poll_interval_ms, offset_reset (`client.group.settings.group_settings`). Names end with their units.

    Raises:
        TidemarkError: INVALID_CONFIG, INVALID_GROUP_ID; BROKER_NOT_AVAILABLE with the error of each address.
        TypeError: an argument has a wrong type or an unknown name, or needs a group.
    """

    def __init__(
        self,
        bootstrap: Bootstrap | None = None,
        *,
        group: str | None = None,
        key_deserializer: str | Deserializer | None = None,
        value_deserializer: str | Deserializer | None = None,
        value_class: type | None = None,
        tls: TlsFiles | None = None,
        token_file: TokenGiven | None = None,
        **settings: Unpack[ConsumerAndGroupOptions],
    ) -> None:
        consumer = AsyncConsumer(
            bootstrap,
            group=group,
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
            value_class=value_class,
            tls=tls,
            token_file=token_file,
            **settings,
        )
        self._batch: PartitionBatch | None = None
        """The batch that is being iterated; only the iterating thread changes it, and a close."""
        self._records: list[ConsumerRecord] = []
        """Records of `_batch` that were not returned, from the last to the next."""
        self._asked = False
        """Whether the application waits for a record: then all records returned before are processed."""
        self._last = 0
        """Number of records that the application got last."""
        super().__init__(consumer, call_s=2 * consumer.settings.request_timeout_ms / 1000 + _CLOSE_SLACK_S)
        self._forgotten = weakref.finalize(self, unclosed.warn_and_leave, consumer, self._background)
        self._forgotten.atexit = False

    assign = blocking(AsyncConsumer.assign)
    unassign = on_loop(AsyncConsumer.unassign)
    seek = blocking(AsyncConsumer.seek)
    seek_to_committed = blocking(AsyncConsumer.seek_to_committed)

    @documented_as(AsyncConsumer.subscribe)
    def subscribe(
        self,
        topics: Iterable[str],
        *,
        on_assigned: BlockingRebalanceCallback | None = None,
        on_revoked: BlockingRebalanceCallback | None = None,
        on_lost: BlockingRebalanceCallback | None = None,
    ) -> None:
        self._give_back_unless_in_callback()
        callbacks = {"on_assigned": on_assigned, "on_revoked": on_revoked, "on_lost": on_lost}
        given = {name: _on_a_thread(callback) for name, callback in callbacks.items() if callback is not None}
        self._background.call(self._client.subscribe(topics, **given), self._call_s)

    @documented_as(AsyncConsumer.commit)
    def commit(self, offsets: Mapping[TopicPartition | tuple[str, int], int] | None = None) -> None:
        waiting = self._records[-1:] if offsets is None and not in_callback() else []
        work = self._client.commit_before(waiting[0]) if waiting else self._client.commit(offsets)
        self._background.call(work, self._call_s)

    committed = blocking(AsyncConsumer.committed)

    @documented_as(AsyncConsumer.pause)
    def pause(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        self._give_back_unless_in_callback()
        self._do(lambda: self._client.pause(partitions))

    resume = on_loop(AsyncConsumer.resume)
    metrics = on_loop(AsyncConsumer.metrics)
    end_offsets = blocking(AsyncConsumer.end_offsets)
    offset_for_timestamp = blocking(AsyncConsumer.offset_for_timestamp)

    @documented_as(AsyncConsumer.lag)
    def lag(self) -> dict[TopicPartition, int]:
        def found() -> dict[TopicPartition, int]:
            lags = self._client.lag()
            return lags | {where: lags[where] + left for where, left in self._left(lags) if lags[where] >= 0}

        return self._do(found)

    @documented_as(AsyncConsumer.health)
    def health(self) -> dict[TopicPartition, PartitionHealth]:
        def found() -> dict[TopicPartition, PartitionHealth]:
            healths = self._client.health()
            return healths | {where: before(healths[where], left) for where, left in self._left(healths)}

        return self._do(found)

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read, by topic and index.

        Example: `len(consumer.assignment)`
        """
        return self._do(lambda: self._client.assignment)

    @documented_as(AsyncConsumer.position)
    def position(self, partition: TopicPartition | tuple[str, int]) -> int:
        next_record = self._next_waiting()
        if next_record is not None and next_record[:2] == partition_of("partition", partition):
            return next_record.offset
        return self._do(lambda: self._client.position(partition))

    @documented_as(AsyncConsumer.poll)
    def poll(self, timeout_s: float, columns: Iterable[str] | None = None) -> PartitionBatch | None:
        until_s = time.monotonic() + seconds("timeout_s", timeout_s)
        if self._records and (columns is not None or self._client.wants_back):
            self._give_back()
        if self._records and self._batch is not None:
            batch, waiting = self._batch, self._records
            rest = batch.rows.slice(batch.rows.num_rows - len(waiting))
            self._asked, self._last = False, len(waiting)  # the batch stays: the application may fail on the rest
            self._client.works_on(waiting[-1])
            self._records = []
            return batch._replace(rows=rest)
        self._batch = None
        self._client.works_on(None)
        while True:
            found = self._take(timeout_s, columns)
            if found is None or not self._client.wants_back:
                return found
            self._give_back_from(found, 0)  # a callback has moved or paused the partition meanwhile
            timeout_s = max(0.0, until_s - time.monotonic())

    def _take(self, timeout_s: float, columns: Iterable[str] | None) -> PartitionBatch | None:
        """Poll; rows that come with an interrupt of this thread are read again."""
        taken: list[PartitionBatch] = []

        async def take() -> PartitionBatch | None:
            found = await self._client.poll(timeout_s, columns)
            taken[:] = () if found is None else (found,)
            return found

        try:
            return self._background.call(take(), timeout_s + _CLOSE_SLACK_S)
        except BaseException:
            for batch in taken:
                self._give_back_from(batch, 0)
            raise

    @documented_as(AsyncConsumer.poll_records)
    def poll_records(self, timeout_s: float, max_records: int = 500) -> list[ConsumerRecord]:
        most = positive("max_records", max_records)
        self._asked = True
        while self._has_records(timeout_s):
            waiting = self._records
            records = self._client.reader.next_of(waiting, most) if waiting else []
            if records and waiting is self._records:  # as in `__next__`
                self._asked, self._last = False, len(records)
                self._client.works_on(records[0])
                del waiting[-len(records) :]
                return records
        return []

    @documented_as(AsyncConsumer.batches)
    def batches(self, columns: Iterable[str] | None = None) -> Iterator[PartitionBatch]:
        wanted = None if columns is None else texts("columns", columns)
        self._give_back()
        return self._batches(wanted)

    _batches = iterating(AsyncConsumer.batches, not_given=lambda consumer, batch: consumer._give_back_from(batch, 0))

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Return records without end, as they arrive."""
        return self

    def __next__(self) -> ConsumerRecord:
        self._asked = True
        while True:
            while not self._has_records(START_S):
                pass
            waiting = self._records
            record = waiting[-1] if waiting else None
            if record is not None and self._client.reader.deserializes:
                record = self._client.reader.deserialized(record)  # an error does not change the position
            if record is not None and waiting is self._records:  # else a callback has given the records back
                self._asked, self._last = False, 1  # set first: then an interruption repeats a record, and skips none
                self._client.works_on(record)
                waiting.pop()
                return record

    def _has_records(self, timeout_s: float) -> bool:
        """Whether records of a polled batch are left; polls after the last one."""
        if self._records and self._client.wants_back:
            self._give_back()
        if not self._records:
            # An interrupted poll returns no record of the batch: the member may have lost its partition meanwhile.
            self._batch = None
            batch = self.poll(timeout_s)
            if batch is not None:
                self._records, self._batch = self._records_of(batch), batch
                if self._client.wants_back:  # a callback has moved or paused the partition meanwhile
                    self._give_back()
        return bool(self._records)

    def _records_of(self, batch: PartitionBatch) -> list[ConsumerRecord]:
        """The records of a polled batch, the last one first; an error sets the position back to its first row."""
        try:
            return self._client.reader.records_in(batch)[::-1]
        except TidemarkError:
            self._give_back_from(batch, 0)
            raise

    def close(self) -> None:
        """Stop fetching and close the connections. A member of a group commits and leaves the group."""
        if self._closes_now():
            self._forgotten.detach()
            self._give_back(from_last=in_callback())
            if in_callback():  # the iterating thread may hold records that no one has processed
                self._do(self._client.not_done_with_last)
            self._background.call(self._client.close(), self._call_s)  # `on_revoked` may commit

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not self._closed and not self._background.forked:
            self._give_back(from_last=True)
            self._do(self._client.not_done_with_last)
        self.close()

    def _positions(self) -> Mapping[TopicPartition | tuple[str, int], int]:
        """The `position` of each assigned partition, at one time: partitions may leave between two calls."""
        client = self._client
        found = self._do(lambda: {where: client.position(where) for where in client.assignment})
        here = self._next_waiting()
        return {
            where: here.offset if here is not None and here[:2] == where else position
            for where, position in found.items()
        }

    def _do(self, act: Callable[[], T]) -> T:
        async def on_event_loop() -> T:
            return act()

        return self._background.call(on_event_loop(), self._call_s)

    def _next_waiting(self) -> ConsumerRecord | None:
        """The next record of the polled batch; None if its partition has left or moved since. Any thread may call."""
        waiting = self._records[-1:]
        return waiting[0] if waiting and waiting[0][:2] == self._client.held_partition else None

    def _left(self, assigned: Container[TopicPartition]) -> list[tuple[TopicPartition, int]]:
        """The partition of the polled batch, and its offsets from the next record to the position of the async client;
        on the event loop.
        """
        here = self._next_waiting()
        if here is None or (where := TopicPartition(*here[:2])) not in assigned:
            return []
        return [(where, self._client.position(where) - here.offset)]

    def _give_back_unless_in_callback(self) -> None:
        """Not in a callback: the thread that iterates the records runs meanwhile, and returns them on request."""
        if not in_callback():
            self._give_back()

    def _give_back(self, *, from_last: bool = False) -> None:
        """Set the position back to the first polled record that was not returned.

        Args:
            from_last: set the position back to the last returned records if the application failed on them.
        """
        batch, left = self._batch, len(self._records)
        self._records, self._batch = [], None
        self._client.works_on(None)
        if batch is not None and (left or from_last):
            last = self._last if from_last and not self._asked else 0
            self._give_back_from(batch, max(0, batch.rows.num_rows - left - last))

    def _give_back_from(self, batch: PartitionBatch, row: int) -> None:
        """Set the position back to a row of a polled batch, or past its last row."""
        offsets = offsets_of(batch.rows)
        offset = offsets[row].as_py() if row < len(offsets) else offsets[-1].as_py() + 1
        self._do(lambda: self._client.give_back(TopicPartition(*batch[:2]), offset))
