# SPDX-License-Identifier: Apache-2.0
"""The fast path of a record into an open batch, for one topic in its present state.

A lane takes a record whose batch is open and has room, which are nearly all. A lane reads no metadata, and is a single
function, since calls cost more than the work. The lane returns None for every other record, without an effect: the
accumulator takes these, opens batches, and raises all errors.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, Protocol

from tidemark.client.producing.accumulator import TYPED, Accumulator
from tidemark.client.producing.batching import RECORD_OVERHEAD_BYTES, SendHandle
from tidemark.client.producing.partitioner import hash_of
from tidemark.client.producing.typed_format import TypedFormat
from tidemark.client.typed.mismatches import MisfitError


class Lane(Protocol):
    """Appends records to open batches of one topic; any thread may call `send`."""

    def send(self, key: Any, value: Any) -> SendHandle | None:
        """Append a record without headers, of the partition that its key names, with the current time."""
        ...

    def send_some(self, records: Sequence[tuple[Any, Any]], handles: list[SendHandle]) -> None:
        """Append pairs of key and value, and add their handles to `handles`.

        Pairs that already have handles are skipped; ends before the first pair for which `send` returns None.
        """
        ...


_SOME: Final = 1000
"""Number of records that are appended while other threads wait for the lock."""


class Lanes:
    """The lanes of a producer. Refers to no producer.

    Attributes:
        now: lanes by topic. A caller reads this dict before the metadata from which it makes a lane. If the metadata
            change meanwhile, the lane goes into a dict that is no longer read.
    """

    def __init__(self) -> None:
        self.now: dict[str, Lane] = {}

    def forget(self, topic: str = "") -> None:
        """Forget all lanes, since metadata or the schema of a topic have changed, or the producer closes."""
        self.now = {}


class BytesLane:
    """The lane of a topic without a schema.

    Args:
        accumulator: has the batches.
        topic: name of the topic.
        partitions: number of its partitions.
    """

    def __init__(self, accumulator: Accumulator, topic: str, partitions: int) -> None:
        self._accumulator = accumulator
        self._topic = topic
        self._partitions = partitions
        self._places = [(topic, index) for index in range(partitions)]

    def send(self, key: Any, value: Any) -> SendHandle | None:
        """Append a record of bytes, as `Lane.send` states."""
        accumulator = self._accumulator
        if type(value) is not bytes or accumulator.buffered_bytes >= accumulator.buffer_bytes:
            return None
        size_bytes = RECORD_OVERHEAD_BYTES + len(value)
        if key is None:
            index = accumulator.sticky.get(self._topic, -1)
            if not 0 <= index < self._partitions:
                return None
        elif type(key) is bytes:
            size_bytes += len(key)
            index = hash_of(key) % self._partitions
        else:
            return None
        timestamp_us = time.time_ns() // 1000
        accumulator.lock.acquire()  # `with` costs 0.1 us more for each record
        try:
            batch = accumulator.open.get(self._places[index])
            if (
                batch is None
                or batch.headers is not None
                or batch.size_bytes + size_bytes > accumulator.rows_bytes
                or accumulator.refusal is not None
            ):
                return None
            batch.size_bytes += size_bytes
            accumulator.buffered_bytes += size_bytes
            batch.keys.append(key)
            batch.values.append(value)
            batch.timestamps_us.append(timestamp_us)
            handle = SendHandle()
            handle._batch, handle._index = batch, batch.count
            batch.count += 1
        finally:
            accumulator.lock.release()
        return handle

    def send_some(self, records: Sequence[tuple[Any, Any]], handles: list[SendHandle]) -> None:
        """Append records of bytes, as `Lane.send_some` states; takes the lock once."""
        accumulator, sticky = self._accumulator, self._accumulator.sticky.get(self._topic, -1)
        some = records[len(handles) : len(handles) + _SOME]
        timestamp_us = time.time_ns() // 1000
        with accumulator.lock:
            if accumulator.refusal is not None:
                return
            for key, value in some:
                if type(value) is not bytes or accumulator.buffered_bytes >= accumulator.buffer_bytes:
                    return
                size_bytes = RECORD_OVERHEAD_BYTES + len(value)
                index = sticky
                if key is not None:
                    if type(key) is not bytes:
                        return
                    size_bytes += len(key)
                    index = hash_of(key) % self._partitions
                if not 0 <= index < self._partitions:
                    return
                batch = accumulator.open.get(self._places[index])
                if batch is None or batch.headers is not None or batch.size_bytes + size_bytes > accumulator.rows_bytes:
                    return
                batch.size_bytes += size_bytes
                accumulator.buffered_bytes += size_bytes
                batch.keys.append(key)
                batch.values.append(value)
                batch.timestamps_us.append(timestamp_us)
                handle = SendHandle()
                handle._batch, handle._index = batch, batch.count
                batch.count += 1
                handles.append(handle)


class RowLane:
    """The lane of a topic with a schema.

    Args:
        accumulator: has the batches.
        typed: the newest version that is known.
        partitions: number of partitions.
    """

    def __init__(self, accumulator: Accumulator, typed: TypedFormat, partitions: int) -> None:
        self._accumulator = accumulator
        self._typed = typed
        self._topic = typed.topic
        self._rows = typed.records
        self._partitions = partitions
        self._places = [(typed.topic, index, TYPED) for index in range(partitions)]

    def send(self, key: Any, value: Any) -> SendHandle | None:
        """Append a row, as `Lane.send` states."""
        accumulator, rows = self._accumulator, self._rows
        if key is not None or value is None or accumulator.buffered_bytes >= accumulator.buffer_bytes:
            return None
        try:
            values, size_bytes = rows.fit(value)
        except MisfitError:
            return None
        chosen = rows.key_values(values)
        if chosen is None:
            index = accumulator.sticky.get(self._topic, -1)
            if not 0 <= index < self._partitions:
                return None
        else:
            hashed = self._typed.hashes.get(chosen)
            if hashed is None:
                return None
            index = hashed % self._partitions
        timestamp_us = None if self._typed.has_event_time else time.time_ns() // 1000
        accumulator.lock.acquire()  # `with` costs 0.1 us more for each record
        try:
            batch = accumulator.open.get(self._places[index])
            if (
                batch is None
                or batch.format is not self._typed
                or batch.headers is not None
                or batch.deleted is not None
                or batch.size_bytes + size_bytes > accumulator.rows_bytes
                or accumulator.refusal is not None
            ):
                return None
            batch.size_bytes += size_bytes
            accumulator.buffered_bytes += size_bytes
            batch.values += values
            if timestamp_us is not None:
                batch.timestamps_us.append(timestamp_us)
            handle = SendHandle()
            handle._batch, handle._index = batch, batch.count
            batch.count += 1
        finally:
            accumulator.lock.release()
        return handle

    def send_some(self, records: Sequence[tuple[Any, Any]], handles: list[SendHandle]) -> None:
        """Append rows, as `Lane.send_some` states."""
        for key, value in records[len(handles) : len(handles) + _SOME]:
            handle = self.send(key, value)
            if handle is None:
                return
            handles.append(handle)
