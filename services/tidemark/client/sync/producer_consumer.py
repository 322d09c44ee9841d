# SPDX-License-Identifier: Apache-2.0
"""The sync Producer and Consumer: the async ones on the process's background loop.

Records are added on the caller's own thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, TypeVar

from tidemark.client.aio.consumer import Consumer as AsyncConsumer
from tidemark.client.aio.consumer import Start
from tidemark.client.aio.producer import Producer as AsyncProducer
from tidemark.client.consuming.health import ConsumerMetrics, PartitionHealth
from tidemark.client.group.group_reader import HandOver
from tidemark.client.lifecycle import INTERRUPTED_S, INTERRUPTIONS
from tidemark.client.producing.batching import SendHandle, TableHandle
from tidemark.client.producing.metrics import ProducerMetrics
from tidemark.client.producing.partitioner import Partitioner
from tidemark.client.producing.table import Frame
from tidemark.client.records import ConsumerRecord, OffsetAndTimestamp, PartitionBatch, as_partition, records_of
from tidemark.client.sync.closing import START_S, Facade
from tidemark.client.sync.event_loop_thread import background_loop, forked
from tidemark.model import TopicPartition
from tidemark.record.payload import Headers

T = TypeVar("T")
HandedOver = Callable[[list[TopicPartition]], None]
"""Told of partitions that come or go."""

_CLOSE_SLACK_S: Final = 10.0


class Producer(Facade):
    """As `tidemark.client.aio.Producer`, for threads: `send` may be called from any of them.

    with Producer("127.0.0.1:9192") as producer:
        where = producer.send("greetings", b"hello", key=b"world").result()
    """

    def __init__(
        self, bootstrap: str | None = None, *, partitioner: Partitioner | None = None, **settings: Any
    ) -> None:
        self._producer = AsyncProducer(bootstrap, partitioner=partitioner, **settings)
        self._settings = self._producer.settings
        self._background = background_loop()
        try:
            self._background.call(self._producer.start(), START_S)
        except BaseException:
            self._background.call(self._producer.close())
            raise
        self._delivery_s = self._settings.delivery_timeout_ms / 1000

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp_us: int | None = None,
        partition: int | None = None,
    ) -> SendHandle:
        """Add a record to its batch, blocking while the buffer is full; the handle tells what became of it."""
        if self._background.forked:
            raise forked()
        producer = self._producer
        handle = producer.send_now(topic, value, key, headers, timestamp_us, partition)
        if handle is not None:
            return handle
        accumulator = producer.sender.accumulator
        beyond = -1 if partition is None else partition
        count = self._background.call(producer.partition_count(topic, beyond=beyond), self._delivery_s)
        if accumulator.is_full:
            accumulator.wait_for_room(self._delivery_s)
        return producer.add(topic, value, count, key, headers, timestamp_us, partition)

    def send_many(self, topic: str, records: Iterable[tuple[bytes | None, bytes | None]]) -> list[SendHandle]:
        """`send` for each (key, value)."""
        return [self.send(topic, value, key=key) for key, value in records]

    def send_table(
        self,
        topic: str,
        table: Frame,
        *,
        key: str | None = "key",
        value: str = "value",
        timestamp: str | None = None,
        partition: int | None = None,
    ) -> TableHandle:
        """As the async one, blocking while the buffer is full."""
        sending = self._producer.send_table(
            topic, table, key=key, value=value, timestamp=timestamp, partition=partition
        )
        return self._background.call(sending, self._delivery_s)

    def metrics(self) -> ProducerMetrics:
        """What was acknowledged, what failed, and what is under way."""
        return self._producer.metrics()

    def flush(self, timeout_s: float | None = None) -> None:
        """Until everything sent before is resolved, well or not; raises REQUEST_TIMED_OUT."""
        self._background.call(self._producer.flush(), timeout_s)

    def close(self, timeout_s: float | None = None) -> None:
        """Send what is left, for at most `timeout_s` (None: the delivery timeout); every handle is resolved afterwards.

        Ctrl-C ends it at once.
        """
        if self._ends_now():
            bound_s = self._delivery_s if timeout_s is None else timeout_s
            self._background.call(self._producer.close(timeout_s), bound_s + _CLOSE_SLACK_S)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(INTERRUPTED_S if isinstance(error, INTERRUPTIONS) else None)


def _on_a_thread(handler: HandedOver) -> HandOver:
    async def tell(partitions: list[TopicPartition]) -> None:
        await asyncio.to_thread(handler, partitions)

    return tell


class Consumer(Facade):
    """As `tidemark.client.aio.Consumer`, blocking; for one thread at a time.

    with Consumer("127.0.0.1:9192") as consumer:
        consumer.assign("greetings")
        for record in consumer:
            ...

    with Consumer("127.0.0.1:9192", group="readers") as consumer:
        consumer.subscribe(["greetings"])
        for record in consumer:
            ...  # when the next one is asked for, this one is done with, and committed within seconds
    """

    def __init__(self, bootstrap: str | None = None, *, group: str | None = None, **settings: Any) -> None:
        self._consumer = AsyncConsumer(bootstrap, group=group, **settings)
        self._call_s = 2 * self._consumer.settings.request_timeout_ms / 1000 + _CLOSE_SLACK_S
        self._batch: PartitionBatch | None = None
        """What is being iterated, with its rows from the first that was not given on."""
        self._records: list[ConsumerRecord] = []
        """The same rows, from the last to the next."""
        self._background = background_loop()
        try:
            self._background.call(self._consumer.start(), START_S)
        except BaseException:
            self._background.call(self._consumer.close())
            raise

    def assign(
        self, topic: str, partitions: Iterable[int] | None = None, start: Start = "earliest"
    ) -> list[TopicPartition]:
        """Read partitions of a topic (None: all it has now) from `start` on, beside what is assigned already."""
        assigned = self._background.call(self._consumer.assign(topic, partitions, start), self._call_s)
        self._forget(assigned)
        return assigned

    def subscribe(
        self,
        topics: Iterable[str],
        *,
        on_assigned: HandedOver | None = None,
        on_revoked: HandedOver | None = None,
        on_lost: HandedOver | None = None,
    ) -> None:
        """Share topics with the other members of the group; the callbacks run on another thread."""
        self._give_back()
        handlers = {"on_assigned": on_assigned, "on_revoked": on_revoked, "on_lost": on_lost}
        told = {name: _on_a_thread(handler) for name, handler in handlers.items() if handler is not None}
        self._background.call(self._consumer.subscribe(topics, **told), self._call_s)

    def commit(self, offsets: Mapping[TopicPartition | tuple[str, int], int] | None = None) -> None:
        """Have the group remember offsets (the next to read); None: of everything that was given."""
        self._give_back()
        self._background.call(self._consumer.commit(offsets), self._call_s)

    def committed(
        self, partitions: Iterable[TopicPartition | tuple[str, int]] | None = None
    ) -> dict[TopicPartition, int]:
        """What the group remembers of these (None: of all), without those it has read nothing of."""
        return self._background.call(self._consumer.committed(partitions), self._call_s)

    def pause(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Give nothing of these until `resume`; their positions stay."""
        self._give_back()
        self._do(lambda: self._consumer.pause(partitions))

    def resume(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Give them again."""
        self._do(lambda: self._consumer.resume(partitions))

    def lag(self) -> dict[TopicPartition, int]:
        """Records of each partition that were not given yet, as last heard from its leader; -1: nothing heard yet."""
        return self._do(self._consumer.lag)

    def health(self) -> dict[TopicPartition, PartitionHealth]:
        """What each partition waits for."""
        return self._do(self._consumer.health)

    def metrics(self) -> ConsumerMetrics:
        """What was given, and what is read ahead."""
        return self._do(self._consumer.metrics)

    @property
    def assignment(self) -> list[TopicPartition]:
        """What is read, by topic and index."""
        return self._do(lambda: self._consumer.assignment)

    def unassign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read these no more."""
        wanted = [as_partition(where) for where in partitions]

        async def unassign() -> None:
            self._consumer.unassign(wanted)

        self._background.call(unassign(), self._call_s)
        self._forget(wanted)

    def seek(self, partition: TopicPartition | tuple[str, int], start: Start) -> None:
        """Go on elsewhere in an assigned partition."""
        self._background.call(self._consumer.seek(partition, start), self._call_s)
        self._forget([as_partition(partition)])

    def position(self, partition: TopicPartition | tuple[str, int]) -> int:
        """Offset of the next record that is given."""
        if self._records and self._records[-1][:2] == as_partition(partition):
            return self._records[-1].offset

        async def position() -> int:
            return self._consumer.position(partition)

        return self._background.call(position(), self._call_s)

    def end_offsets(
        self, partitions: Iterable[TopicPartition | tuple[str, int]] | None = None
    ) -> dict[TopicPartition, int]:
        """High watermarks, exclusive (None: of what is assigned)."""
        return self._background.call(self._consumer.end_offsets(partitions), self._call_s)

    def offset_for_timestamp(
        self, partition: TopicPartition | tuple[str, int], timestamp_us: int
    ) -> OffsetAndTimestamp | None:
        """The first record at or after a time, microseconds since 1970; None when none is so young."""
        return self._background.call(self._consumer.offset_for_timestamp(partition, timestamp_us), self._call_s)

    def poll(self, timeout_s: float) -> PartitionBatch | None:
        """The next rows of some partition; None when none came within `timeout_s`."""
        if self._records and self._batch is not None:
            batch = self._batch
            rest = batch.rows.slice(batch.rows.num_rows - len(self._records))
            self._records, self._batch = [], None
            return batch._replace(rows=rest)
        return self._background.call(self._consumer.poll(timeout_s), timeout_s + _CLOSE_SLACK_S)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Records for ever, as they come."""
        return self

    def __next__(self) -> ConsumerRecord:
        if self._records and self._consumer.wants_back:
            self._give_back()
        while not self._records:
            self._batch = self.poll(START_S)
            if self._batch is not None:
                self._records = records_of(*self._batch)
                self._records.reverse()
        return self._records.pop()

    def close(self) -> None:
        """Stop fetching and close the connections. A member leaves its group, after a last commit."""
        if self._ends_now():
            self._give_back()
            self._background.call(self._consumer.close(), _CLOSE_SLACK_S)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not self._closed and not self._background.forked:
            self._give_back(from_last=True)
            self._do(self._consumer.not_done_with_last)
        self.close()

    def _do(self, act: Callable[[], T]) -> T:
        """On the event loop that the consumer lives on."""

        async def on_loop() -> T:
            return act()

        return self._background.call(on_loop(), self._call_s)

    def _give_back(self, *, from_last: bool = False) -> None:
        """The rows that were polled and not given on are read again by whoever reads that partition.

        Args:
            from_last: the one given last as well: the application failed on it.
        """
        batch, left = self._batch, len(self._records)
        self._records, self._batch = [], None
        if batch is None or not (left or from_last):
            return
        first = batch.rows.num_rows - left - from_last
        where, offset = TopicPartition(*batch[:2]), batch.rows.column("offset")[first].as_py()
        self._do(lambda: self._consumer.give_back(where, offset))

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        """What was polled of these is not given any more."""
        if self._records and self._records[-1][:2] in {tuple(where) for where in partitions}:
            self._records, self._batch = [], None
