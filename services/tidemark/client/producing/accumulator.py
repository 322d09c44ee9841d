# SPDX-License-Identifier: Apache-2.0
"""Open batches by partition, to which any thread may add, and the limit of buffered bytes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from copy import copy
from typing import Any, Final

import pyarrow as pa

from tidemark.client.argument_types import integer, pair
from tidemark.client.producing.batch_format import BYTES, BatchFormat
from tidemark.client.producing.batching import BATCH_OVERHEAD_BYTES, RECORD_OVERHEAD_BYTES, PendingBatch, SendHandle
from tidemark.client.producing.partitioner import Partitioner
from tidemark.client.producing.typed_format import TypedFormat
from tidemark.client.typed.record_rows import CheckedRow
from tidemark.client.typed.record_values import Deletion
from tidemark.client.typed.topic_schemas import TopicPendingError
from tidemark.model import ErrorCode, TidemarkError, TopicPartition, invalid_request, unknown_partition
from tidemark.record.payload import Headers

RECORD_BYTES_MAX: Final = 8 << 20
"""Largest record: the limit of a request, even if max.message.bytes of the topic is larger."""
TYPED: Final = "typed"


class Accumulator:
    """Gathers records into batches, which the sender takes.

    Invariant: `buffered_bytes` counts every added record whose batch has no outcome.

    Args:
        batch_bytes: a batch is closed before it would exceed this size.
        buffer_bytes: at this number of buffered bytes, `is_full` is true.
        delivery_timeout_s: time from the first record of a batch until the batch expires.
        wake: called on the adding thread when a batch was opened or closed.
        typed: the format of a topic with a schema, None for one without. The format is called for records that are not
            bytes, and when a batch is opened. So records of bytes have no additional cost.
        partitioner: chooses the partition of a typed record, by its key bytes; None: murmur2.
        is_led: whether a partition of a topic has a leader; any thread calls it.
    """

    def __init__(
        self,
        *,
        batch_bytes: int,
        buffer_bytes: int,
        delivery_timeout_s: float,
        wake: Callable[[], None],
        typed: Callable[[str], TypedFormat | None] = lambda topic: None,
        partitioner: Partitioner | None = None,
        is_led: Callable[[TopicPartition], bool] = lambda partition: True,
    ) -> None:
        self._typed = typed
        self._is_led = is_led
        self._partitioner = partitioner
        self.rows_bytes = max(1, batch_bytes - BATCH_OVERHEAD_BYTES)
        self.buffer_bytes = buffer_bytes
        self._delivery_timeout_s = delivery_timeout_s
        self._wake = wake
        self.home: int | None = None
        """Id of the thread that resolves the batches."""
        self.open: dict[tuple[Any, ...], PendingBatch] = {}
        """Open batches by (topic, index); of typed records by (topic, index, TYPED)."""
        self._closed_batches: deque[PendingBatch] = deque()
        self.sticky: dict[str, int] = {}
        self.lock = threading.Lock()
        self._room = threading.Condition(self.lock)
        self._ended = False
        self.refusal: TidemarkError | None = None
        """Raised by every call that adds records; a copy, since a shared error would collect tracebacks."""
        self.buffered_bytes = 0
        self.waited_s = 0.0
        """Time that all callers waited for a full buffer."""

    def add(
        self,
        topic: str,
        partition: int | None,
        partitions: int,
        key: Any,
        value: Any,
        timestamp_us: int,
        headers: Headers | None,
    ) -> SendHandle:
        """Append a record to the open batch of its partition; None: of the topic's sticky partition.

        Raises:
            TidemarkError: CLIENT_CLOSED, the error of `refuse`, BATCH_TOO_LARGE; SCHEMA_MISMATCH.
            TypeError: a key or value is neither bytes-like nor None, and the topic has no schema.
        """
        if type(value) is not bytes and value is not None:
            typed = self._typed(topic)
            if typed is not None:
                return self._add_typed(typed, partition, partitions, key, value, timestamp_us, headers)
            value = as_bytes(
                "value", value, f"; topic {topic} has no schema: give the producer a value_serializer, or encode it"
            )
        if type(key) is not bytes and key is not None:
            typed = None if value is not None else self._typed(topic)
            if typed is not None:
                row = typed.records.deletion(key, timestamp_us)
                return self.add_row(typed, row, partition, partitions, timestamp_us, headers)
            key = as_bytes("key", key)
        size_bytes = RECORD_OVERHEAD_BYTES
        if key is not None:
            size_bytes += len(key)
        if value is not None:
            size_bytes += len(value)
        if headers is not None:
            headers, headers_bytes = checked_headers(headers)
            size_bytes += headers_bytes
        if size_bytes > RECORD_BYTES_MAX:
            raise _too_large(size_bytes)
        self.lock.acquire()  # `with` costs 0.1 us more for each record
        try:
            if self.refusal is not None:
                raise copy(self.refusal)
            index = self.sticky.get(topic, -1) if partition is None else partition
            batch = self.open.get((topic, index))
            fresh = batch is None or index >= partitions or batch.size_bytes + size_bytes > self.rows_bytes
            if batch is None or fresh:
                self._check_bytes(topic)
                batch = self._batch_for(topic, partition, partitions, size_bytes)
            batch.size_bytes += size_bytes
            self.buffered_bytes += size_bytes
            handle = batch.add(key, value, timestamp_us, headers)
        finally:
            self.lock.release()
        if fresh:
            self._wake()
        return handle

    def _add_typed(
        self,
        typed: TypedFormat,
        partition: int | None,
        partitions: int,
        key: Any,
        record: Any,
        timestamp_us: int,
        headers: Headers | None,
    ) -> SendHandle:
        """Check a record against its schema version, and append the record to a batch of that version."""
        topic = typed.topic
        if key is not None:
            raise invalid_request(f"topic {topic} has a schema: a record's key is made of its key columns; omit key")
        return self.add_row(typed, typed.records.check(record), partition, partitions, timestamp_us, headers)

    def add_row(
        self,
        typed: TypedFormat,
        row: CheckedRow,
        partition: int | None,
        partitions: int,
        timestamp_us: int | None,
        headers: Headers | None,
    ) -> SendHandle:
        """Append a checked record to a batch of its version, as `add`; `timestamp_us` of None: now."""
        topic = typed.topic
        values, size_bytes = row
        if headers is not None:
            headers, headers_bytes = checked_headers(headers)
            size_bytes += headers_bytes
        if size_bytes > RECORD_BYTES_MAX:
            raise _too_large(size_bytes)
        if partition is None:
            if self._partitioner is None:
                partition = typed.partition_of(values, partitions)
            else:
                chosen = self._partitioner(topic, typed.records.key(values), None, partitions)
                partition = checked_partition(topic, chosen, partitions)
        timestamp_us = typed.time_of(timestamp_us)
        self.lock.acquire()  # `with` costs 0.1 us more for each record
        try:
            if self.refusal is not None:
                raise copy(self.refusal)
            index = self.sticky.get(topic, -1) if partition is None else partition
            batch = self.open.get((topic, index, TYPED))
            fresh = batch is None or batch.format is not typed or batch.size_bytes + size_bytes > self.rows_bytes
            if batch is None or fresh or index >= partitions:
                batch = self._batch_for(topic, partition, partitions, size_bytes, typed)
            batch.size_bytes += size_bytes
            self.buffered_bytes += size_bytes
            handle = batch.add_row(values, timestamp_us, headers, deletes=type(values) is Deletion)
        finally:
            self.lock.release()
        if fresh:
            self._wake()
        return handle

    def _check_bytes(self, topic: str) -> None:
        """Refuse a record of bytes, or a null, for a topic with a schema; called before a batch is opened."""
        try:
            typed = self._typed(topic)
        except TopicPendingError:
            return  # brokers refuse the batch if it does not fit
        if typed is not None:
            raise TidemarkError(
                ErrorCode.SCHEMA_MISMATCH,
                f"topic {topic} has a schema (version {typed.schema.version}), and the value is bytes or None. Send a "
                f"mapping, a dataclass or a model, from a producer without serializers. To delete a row, send None "
                f"with a mapping of its key columns as key",
                {"topic": topic, "version": str(typed.schema.version)},
            )

    def _batch_for(
        self,
        topic: str,
        partition: int | None,
        partitions: int,
        size_bytes: int,
        batch_format: BatchFormat = BYTES,
    ) -> PendingBatch:
        """Return an open batch with room for a record; closes a full batch and opens a new one if necessary."""
        kind = () if batch_format is BYTES else (TYPED,)
        index = self._sticky_partition(topic, partitions, kind) if partition is None else partition
        where = (topic, index, *kind)
        batch = self.open.get(where)
        if batch is not None and batch.format is not batch_format:
            self._closed_batches.append(self.open.pop(where))
            batch = None
        if batch is not None and batch.size_bytes + size_bytes > self.rows_bytes:
            self._closed_batches.append(self.open.pop(where))
            batch = None
            if partition is None:
                index = self._next_sticky(topic, partitions)
                where = (topic, index, *kind)
                batch = self.open.get(where)
        if batch is None:
            now_s = time.monotonic()
            batch = self.open[where] = PendingBatch(
                TopicPartition(topic, index),
                opened_s=now_s,
                deadline_s=now_s + self._delivery_timeout_s,
                batch_format=batch_format,
            )
            batch.home = self.home
        return batch

    def add_rows(
        self,
        partition: TopicPartition,
        rows: pa.RecordBatch,
        batch_format: BatchFormat = BYTES,
        timestamp_us: int | None = None,
    ) -> PendingBatch:
        """Make a batch of Arrow rows, after the records added to its partition.

        Args:
            partition: partition of the rows.
            rows: rows in the form of the batch format.
            batch_format: see BatchFormat.
            timestamp_us: timestamp of rows that have no timestamp, if the schema has no event time.
        """
        now_s = time.monotonic()
        batch = PendingBatch(
            partition,
            opened_s=now_s,
            deadline_s=now_s + self._delivery_timeout_s,
            rows=rows,
            batch_format=batch_format,
        )
        batch.timestamps_us = [] if timestamp_us is None else [timestamp_us]
        batch.home = self.home
        with self.lock:
            if self.refusal is not None:
                raise copy(self.refusal)
            for where in (partition, (*partition, TYPED)):
                before = self.open.pop(where, None)
                if before is not None:
                    self._closed_batches.append(before)
            self._closed_batches.append(batch)
            self.buffered_bytes += batch.size_bytes
        self._wake()
        return batch

    def sticky_partition(self, topic: str, partitions: int) -> int:
        """Return the next partition for a batch without keys."""
        with self.lock:
            return self._next_sticky(topic, partitions)

    def take_closed(self, is_due: Callable[[PendingBatch], bool]) -> list[PendingBatch]:
        """Remove and return the batches to send, in order: closed batches, and open ones that are due."""
        with self.lock:
            taken = list(self._closed_batches)
            self._closed_batches.clear()
            if self.open:
                due = [where for where, batch in self.open.items() if is_due(batch)]
                taken += [self.open.pop(where) for where in due]
        return taken

    def oldest_opened_s(self) -> float | None:
        """Return the time at which the oldest open batch was opened; None if no batch is open."""
        with self.lock:
            return min([batch.opened_s for batch in self.open.values()]) if self.open else None

    def end(self) -> None:
        """Refuse records from now on, and wake the threads that wait for room."""
        with self.lock:
            self._ended = True
            self.refusal = TidemarkError(ErrorCode.CLIENT_CLOSED, "this producer is closed")
            self._room.notify_all()

    def forget(self, topics: Iterable[str]) -> None:
        """Forget the partition of the last record without a key of topics that are idle."""
        with self.lock:
            for topic in topics:
                self.sticky.pop(topic, None)

    def refuse(self, error: TidemarkError) -> None:
        """Raise this error for every record from now on, until `admit`."""
        with self.lock:
            if not self._ended:
                self.refusal = error

    def admit(self) -> None:
        """Take records again after `refuse`, unless the producer is closed."""
        with self.lock:
            if not self._ended:
                self.refusal = None

    def release(self, size_bytes: int) -> None:
        """Subtract the bytes of a batch with an outcome."""
        with self.lock:
            self.buffered_bytes -= size_bytes
            self._room.notify_all()

    @property
    def is_full(self) -> bool:
        """Whether `buffer_bytes` or more are buffered."""
        return self.buffered_bytes >= self.buffer_bytes

    def wait_for_room(self, timeout_s: float) -> None:
        """Block until the buffer has room; raises REQUEST_TIMED_OUT. Not for the client's event loop."""
        began_s = time.monotonic()
        with self._room:
            there_is = self._room.wait_for(lambda: self._ended or not self.is_full, timeout_s)
            self.waited_s += time.monotonic() - began_s
        if not there_is:
            raise self.no_room(timeout_s)

    def no_room(self, timeout_s: float) -> TidemarkError:
        """Make the error of a send whose wait for room timed out."""
        return TidemarkError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"{self.buffer_bytes} bytes were buffered without acknowledgement for {timeout_s:.0f} s: "
            f"the cluster is too slow, or does not answer",
        )

    def _sticky_partition(self, topic: str, partitions: int, kind: tuple[str, ...]) -> int:
        partition = self.sticky.get(topic, -1)
        if 0 <= partition < partitions and (topic, partition, *kind) in self.open:
            return partition
        return self._next_sticky(topic, partitions)

    def _next_sticky(self, topic: str, partitions: int) -> int:
        """The next partition with a leader; the next one if none has a leader."""
        before = self.sticky.get(topic)
        following = hash((topic, id(self))) if before is None else before + 1
        candidates = ((following + step) % partitions for step in range(partitions))
        partition = next(
            (one for one in candidates if self._is_led(TopicPartition(topic, one))), following % partitions
        )
        self.sticky[topic] = partition
        return partition


def as_bytes(name: str, given: object, advice: str = "") -> bytes:
    """Copy a buffer, so that the caller may change it later; raises TypeError for any other type."""
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    hint = ": encode it, for example with .encode()" if isinstance(given, str) else advice
    raise TypeError(f"{name} is of type {type(given).__name__}, not bytes{hint}")


def checked_headers(headers: Headers) -> tuple[Headers, int]:
    """Copy a record's headers, so that the caller may change them later; returns them and their bytes.

    Raises:
        TypeError: for invalid headers.
    """
    pairs = headers.items() if hasattr(headers, "items") else headers
    copied: list[tuple[str, bytes | None]] = []
    total = 0
    for name, value in (pair(one, "headers are pairs of name and value, or a mapping") for one in pairs):
        if not isinstance(name, str) or not (value is None or isinstance(value, bytes)):
            raise TypeError(f"a header is (str, bytes or None), not ({type(name).__name__}, {type(value).__name__})")
        copied.append((name, value))
        total += len(name.encode()) + (0 if value is None else len(value)) + 8
    return copied, total


def checked_partition(topic: str, chosen: Any, partitions: int) -> int:
    """The result of a partitioner; raises TypeError, and UNKNOWN_PARTITION."""
    partition = integer("the partitioner's result", chosen)
    if not 0 <= partition < partitions:
        raise unknown_partition(topic, partition, partitions)
    return partition


def _too_large(size_bytes: int) -> TidemarkError:
    return TidemarkError(ErrorCode.BATCH_TOO_LARGE, f"the record has {size_bytes} bytes, more than {RECORD_BYTES_MAX}")
