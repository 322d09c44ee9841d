# SPDX-License-Identifier: Apache-2.0
"""Records gathered into batches, and the handles that tell what became of them. No event loop: any thread may add."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator
from copy import copy
from typing import Any, Final

import pyarrow as pa

from tidemark.client.records import BatchMetadata, RecordMetadata
from tidemark.model import ErrorCode, TidemarkError, TopicPartition
from tidemark.record.payload import Headers, from_columns

RECORD_OVERHEAD_BYTES: Final = 21
"""What a record costs beside its key and value: offsets, timestamp, validity."""
BATCH_OVERHEAD_BYTES: Final = 640
"""What a batch costs beside its records: the envelope, Arrow's metadata, padding."""

_log = logging.getLogger("tidemark.client")


class PendingBatch:
    """Records of one partition on their way. Resolved once, with a base offset or an error.

    Attributes:
        opened_s, deadline_s: on time.monotonic(); after the deadline it is given up.
        rows: of a batch made of Arrow rows; set when the batch is built.
        data: the sealed batch; it carries its sequence.
        in_doubt: an attempt may have been appended without our hearing of it (rule P4); never taken back.
        refusal: why the last attempt failed.
        refused_in_company: that refusal was of all that went with it, and may be the fault of another.
        attempt: the attempt under way, None when every one is answered.
        home: the thread whose event loop resolves it, which must not wait for it; None: any may.
    """

    __slots__ = ("_callbacks", "_done", "_futures", "_lock", "_waiters", "append_time_us", "attempt", "base_offset", "base_sequence", "count", "data", "deadline_s", "error", "headers", "home", "in_doubt", "keys", "opened_s", "partition", "refusal", "refused_in_company", "rows", "size_bytes", "timestamps_us", "values")  # fmt: skip  # noqa: E501

    def __init__(
        self, partition: TopicPartition, *, opened_s: float, deadline_s: float, rows: pa.RecordBatch | None = None
    ) -> None:
        self.partition = partition
        self.opened_s = opened_s
        self.deadline_s = deadline_s
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.timestamps_us: list[int] = []
        self.headers: list[Headers | None] | None = None
        self.rows = rows
        self.count = 0 if rows is None else rows.num_rows
        self.size_bytes = 0 if rows is None else rows.nbytes
        self.data: bytes | None = None
        self.base_sequence = -1
        self.home: int | None = None
        self.in_doubt = False
        self.refusal: TidemarkError | None = None
        self.refused_in_company = False
        self.attempt: object | None = None
        self.base_offset = -1
        self.append_time_us = -1
        self.error: TidemarkError | None = None
        self._done = False
        self._lock = threading.Lock()
        self._waiters: list[threading.Event] = []
        self._futures: list[asyncio.Future[None]] = []
        self._callbacks: list[Callable[[], object]] = []

    def add(self, key: bytes | None, value: bytes | None, timestamp_us: int, headers: Headers | None) -> SendHandle:
        """Append a record; the caller holds the accumulator's lock."""
        index = self.count
        self.count = index + 1
        self.keys.append(key)
        self.values.append(value)
        self.timestamps_us.append(timestamp_us)
        if headers is not None and self.headers is None:
            self.headers = [None] * index
        if self.headers is not None:
            self.headers.append(headers)
        return SendHandle(self, index)

    def take_rows(self) -> pa.RecordBatch:
        """The rows, in record.schema.SCHEMA; no record is added any more."""
        if self.rows is None:
            keys = None if self.keys.count(None) == len(self.keys) else self.keys
            self.rows = from_columns(keys, self.values, self.timestamps_us, self.headers)
            self.keys, self.values, self.headers = [], [], None
        return self.rows

    @property
    def done(self) -> bool:
        """Whether it is resolved."""
        return self._done

    def resolve(self, base_offset: int, append_time_us: int, error: TidemarkError | None) -> None:
        """Tell everybody; the first resolution counts."""
        with self._lock:
            if self._done:
                return
            self.base_offset, self.append_time_us, self.error, self._done = base_offset, append_time_us, error, True
            waiters, futures, callbacks = self._waiters, self._futures, self._callbacks
            self._waiters, self._futures, self._callbacks = [], [], []
        self.rows = self.data = self.headers = None
        self.keys, self.values = [], []
        for waiter in waiters:
            waiter.set()
        for future in futures:
            _wake(future)
        for callback in callbacks:
            _call(callback)

    def wait(self, timeout_s: float | None) -> None:
        """Block until it is resolved; raises REQUEST_TIMED_OUT, and the batch goes on."""
        with self._lock:
            if self._done:
                return
            if timeout_s is None and self.home == threading.get_ident():
                raise TidemarkError(
                    ErrorCode.INVALID_REQUEST,
                    "result() would wait for ever on the event loop that has to resolve it: await the handle",
                )
            waiter = threading.Event()
            self._waiters.append(waiter)
        if not waiter.wait(timeout_s):
            raise TidemarkError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{self.partition}: not acknowledged within the {timeout_s} s you gave; it is still being tried",
            )

    def wait_async(self) -> Generator[Any, None, None]:
        """Await its resolution."""
        with self._lock:
            if self._done:
                return
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._futures.append(future)
        yield from future

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call back when resolved, on the client's event loop; here and now if it is."""
        with self._lock:
            if not self._done:
                self._callbacks.append(callback)
                return
        _call(callback)


def _call(callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception:  # noqa: BLE001 - it is the caller's code
        _log.exception("a callback of a send failed")


def _wake(future: asyncio.Future[None]) -> None:
    loop = future.get_loop()
    if not loop.is_closed():
        loop.call_soon_threadsafe(_finish, future)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class SendHandle:
    """One record's place in its batch: `await` it, or call `result`; it always resolves."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: PendingBatch, index: int) -> None:
        self._batch = batch
        self._index = index

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        yield from self._batch.wait_async()
        return self._outcome()

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record went; blocks up to `timeout` seconds. Not for the client's own event loop: await there.

        Raises:
            TidemarkError: why it was not acknowledged; REQUEST_TIMED_OUT when `timeout` was over first.
        """
        self._batch.wait(timeout)
        return self._outcome()

    def exception(self, timeout: float | None = None) -> TidemarkError | None:
        """Why the record was not acknowledged, None if it was; blocks as `result`."""
        self._batch.wait(timeout)
        return self._batch.error

    def done(self) -> bool:
        """Whether it is resolved."""
        return self._batch.done

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call back with this handle when it is resolved, on the client's event loop: do not block there.

        A callback made for a concurrent.futures.Future fits.
        """
        self._batch.when_done(lambda: callback(self))

    def _outcome(self) -> RecordMetadata:
        batch = self._batch
        if batch.error is not None:
            raise copy(batch.error)  # each handle its own: a shared one would gather the tracebacks of all
        offset = -1 if batch.base_offset < 0 else batch.base_offset + self._index
        timestamp_us = batch.timestamps_us[self._index] if batch.append_time_us < 0 else batch.append_time_us
        return RecordMetadata(batch.partition.topic, batch.partition.partition, offset, timestamp_us)


class TableHandle:
    """All batches of one table: `await` it, or call `result`."""

    __slots__ = ("_batches",)

    def __init__(self, batches: list[PendingBatch]) -> None:
        self._batches = batches

    def __await__(self) -> Generator[Any, None, list[BatchMetadata]]:
        for batch in self._batches:
            yield from batch.wait_async()
        return self._outcome()

    def result(self, timeout: float | None = None) -> list[BatchMetadata]:
        """Where each batch went; blocks up to `timeout` seconds for each.

        Raises:
            TidemarkError: why a batch was not acknowledged (others may have been).
        """
        for batch in self._batches:
            batch.wait(timeout)
        return self._outcome()

    def outcomes(self, timeout: float | None = None) -> tuple[list[BatchMetadata], list[tuple[int, TidemarkError]]]:
        """Where batches went, and of those that went nowhere how many rows each had and why; blocks as `result`."""
        for batch in self._batches:
            batch.wait(timeout)
        went = [batch for batch in self._batches if batch.error is None]
        return (
            [BatchMetadata(*batch.partition, batch.base_offset, batch.count) for batch in went],
            [(batch.count, batch.error) for batch in self._batches if batch.error is not None],
        )

    def done(self) -> bool:
        """Whether all are resolved."""
        return all(batch.done for batch in self._batches)

    def _outcome(self) -> list[BatchMetadata]:
        for batch in self._batches:
            if batch.error is not None:
                raise copy(batch.error)
        return [BatchMetadata(*batch.partition, batch.base_offset, batch.count) for batch in self._batches]
