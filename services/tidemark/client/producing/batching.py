# SPDX-License-Identifier: Apache-2.0
"""Batches of records, and the handles of their outcomes. Needs no event loop: any thread may add records."""

from __future__ import annotations

import asyncio
import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from copy import copy
from typing import Any, Final, NamedTuple

import pyarrow as pa

from tidemark.client.argument_types import seconds
from tidemark.client.deprecations import timeout_of
from tidemark.client.lifecycle import interruptible
from tidemark.client.producing.batch_format import BYTES, BatchFormat, Sealing
from tidemark.client.records import BatchMetadata, RecordMetadata
from tidemark.model import ErrorCode, TidemarkError, TopicPartition, invalid_request
from tidemark.record.envelope import Codec
from tidemark.record.payload import Headers
from tidemark.rpc.channel import check_not_lost_by_fork

RECORD_OVERHEAD_BYTES: Final = 21
"""Bytes of a record in addition to its key and value: offsets, timestamp, validity."""
BATCH_OVERHEAD_BYTES: Final = 640
"""Bytes of a batch in addition to its records: the envelope, Arrow's metadata, padding."""
BATCH_BYTES_MAX: Final = 8 << 20
"""The largest value of max.message.bytes."""

_log = logging.getLogger("tidemark.client")


class Outcome(NamedTuple):
    """The outcome of `record_count` records, from index `first` of their batch."""

    first: int
    record_count: int
    base_offset: int
    append_time_us: int
    error: TidemarkError | None


class PendingBatch:
    """A batch of one partition without outcome. The batch is resolved once, with a base offset or an error.

    A batch that was split is resolved when all its pieces are; each piece has a separate outcome.

    Attributes:
        opened_s: time of the first record, by time.monotonic().
        deadline_s: time at which the batch expires, by time.monotonic().
        format: the format that turns records into bytes.
        values: of the records; for a typed topic, of each column, one record after another: no object for a record.
        deleted: for typed records, whether each deletes the earlier rows of its key; None: no record does.
        rows: Arrow rows of the batch; None until the batch is built, unless it was made of rows.
        data: the sealed batch, with its sequence; None until it is built.
        in_doubt: an attempt without a response may have been appended (rule P4); never false again.
        refusal: error of the last attempt.
        refused_in_company: `refusal` was for several batches of one request, so another one may have caused it.
        attempt: the attempt in flight; None if every attempt has its outcome.
        home: id of the thread whose event loop resolves the batch, so this thread must not wait for it; None: any
            thread may wait.
    """

    __slots__ = ("_callbacks", "_done", "_futures", "_lock", "_outcomes", "_waiters", "attempt", "base_sequence", "count", "data", "deadline_s", "deleted", "format", "headers", "home", "in_doubt", "keys", "opened_s", "partition", "refusal", "refused_in_company", "rows", "size_bytes", "timestamps_us", "values")  # fmt: skip  # noqa: E501

    def __init__(
        self,
        partition: TopicPartition,
        *,
        opened_s: float,
        deadline_s: float,
        rows: pa.RecordBatch | None = None,
        batch_format: BatchFormat = BYTES,
    ) -> None:
        self.partition = partition
        self.format = batch_format
        self.opened_s = opened_s
        self.deadline_s = deadline_s
        self.keys: list[bytes | None] = []
        self.values: list[Any] = []
        self.timestamps_us: list[int] = []
        self.headers: list[Headers | None] | None = None
        self.deleted: list[bool] | None = None
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
        self._outcomes: list[Outcome] = []
        self._done = False
        self._lock = threading.Lock()
        self._waiters: list[threading.Event] = []
        self._futures: list[asyncio.Future[None]] = []
        self._callbacks: list[Callable[[], object]] = []

    def add(self, key: bytes | None, value: Any, timestamp_us: int, headers: Headers | None) -> SendHandle:
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
        handle = SendHandle()  # class attributes as initial values: an __init__ would cost twice as much
        handle._batch, handle._index = self, index
        return handle

    def add_row(
        self, values: Sequence[Any], timestamp_us: int | None, headers: Headers | None, *, deletes: bool = False
    ) -> SendHandle:
        """Append a checked row of a typed topic, whose columns hold the key; a timestamp of None is among them, too."""
        index = self.count
        self.count = index + 1
        self.values += values
        if deletes and self.deleted is None:
            self.deleted = [False] * index
        if self.deleted is not None:
            self.deleted.append(deletes)
        if timestamp_us is not None:
            self.timestamps_us.append(timestamp_us)
        if headers is not None and self.headers is None:
            self.headers = [None] * index
        if self.headers is not None:
            self.headers.append(headers)
        handle = SendHandle()
        handle._batch, handle._index = self, index
        return handle

    def take_rows(self) -> pa.RecordBatch:
        """Return the rows, as the format has them; no record may be added afterwards."""
        if self.rows is None:
            self.rows = self.format.rows(self.keys, self.values, self.timestamps_us, self.headers, self.deleted)
            self.keys, self.values, self.headers = [], [], None
        return self.rows

    def build(self, codec: Codec, sealing: Sealing) -> None:
        """Make `data` of the records, which are discarded; no record may be added afterwards."""
        data = None
        if self.rows is None:
            data = self.format.build_few(
                self.keys, self.values, self.timestamps_us, self.headers, codec=codec, **sealing
            )
        if data is None:
            timestamp_us = self.timestamps_us[0] if self.timestamps_us else 0
            data = self.format.build(self.take_rows(), timestamp_us=timestamp_us, codec=codec, **sealing)
        self.data, self.rows = data, None
        self.keys, self.values, self.headers = [], [], None

    @property
    def done(self) -> bool:
        """Whether the batch has its outcome."""
        return self._done

    def resolve(self, base_offset: int, append_time_us: int, error: TidemarkError | None) -> None:
        """Set the outcome and notify waiters and callbacks; only the first call has an effect."""
        self.resolve_records(Outcome(0, self.count, base_offset, append_time_us, error))

    def resolve_records(self, outcome: Outcome) -> None:
        """Set the outcome of some records, each once; the last one is the outcome of the batch."""
        with self._lock:
            if self._done:
                return
            self._outcomes.append(outcome)
            self._done = sum(one.record_count for one in self._outcomes) == self.count
            if not self._done:
                return
            self._outcomes.sort()
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

    @property
    def outcomes(self) -> Sequence[Outcome]:
        """The outcomes of all records, in order, once the batch is done; more than one only if the batch was split."""
        return self._outcomes

    def outcome_of(self, index: int) -> Outcome:
        """Return the outcome of one record, once the batch is done."""
        return self._outcomes[bisect_right(self._outcomes, index, key=lambda one: one.first) - 1]

    def wait(self, timeout_s: float | None) -> None:
        """Block until the batch has its outcome; raises REQUEST_TIMED_OUT, while the producer continues to send it, and
        INVALID_REQUEST in a forked child.
        """
        if timeout_s is not None:
            timeout_s = seconds("timeout_s", timeout_s)
        self._check_not_forked()
        with self._lock:
            if self._done:
                return
            if timeout_s is None and self.home == threading.get_ident():
                raise invalid_request("result() would block the event loop that has to resolve it: await the handle")
            waiter = threading.Event()
            self._waiters.append(waiter)
        with interruptible():
            waited = waiter.wait(timeout_s)
        if not waited:
            raise TidemarkError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{self.partition}: not acknowledged within {timeout_s} s; the producer continues to retry",
            )

    def wait_async(self) -> Generator[Any, None, None]:
        """Wait for the outcome of the batch on the event loop; raises INVALID_REQUEST in a forked child."""
        self._check_not_forked()
        with self._lock:
            if self._done:
                return
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._futures.append(future)
        yield from future

    def _check_not_forked(self) -> None:
        if not self._done:
            check_not_lost_by_fork()  # the copy of a forked child never gets an outcome

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call `callback` on the client's event loop when the batch has its outcome; immediately if it has one now."""
        with self._lock:
            if not self._done:
                self._callbacks.append(callback)
                return
        _call(callback)


def _call(callback: Callable[[], object]) -> None:
    try:
        callback()
    except (Exception, asyncio.CancelledError, SystemExit):  # noqa: BLE001 - the application's code
        _log.exception("a callback of a send failed")


def _wake(future: asyncio.Future[None]) -> None:
    """Set the outcome of a future of any event loop: on its own loop at once, without a wake-up through a socket."""
    loop = future.get_loop()
    if loop is asyncio._get_running_loop():
        _finish(future)
    elif not loop.is_closed():
        loop.call_soon_threadsafe(_finish, future)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class SendHandle:
    """The handle of a sent record: `await` it, or call `result`. Every handle gets an outcome."""

    __slots__ = ("_batch", "_index")
    _batch: PendingBatch
    _index: int

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        yield from self._batch.wait_async()
        return self._outcome()

    def result(self, timeout_s: float | None = None, *, timeout: float | None = None) -> RecordMetadata:
        """Block until the record is acknowledged and return its partition, offset and timestamp.

        On the client's event loop, await the handle instead.

        Args:
            timeout_s: time limit in seconds; None: the delivery timeout of the producer bounds it.
            timeout: deprecated name of `timeout_s`.

        Raises:
            TidemarkError: the reason why the record was not acknowledged; REQUEST_TIMED_OUT after `timeout_s`.

        Example: `producer.send("orders", b"3 apples").result(timeout_s=10).offset`
        """
        self._batch.wait(timeout_of(timeout_s, timeout))
        return self._outcome()

    def exception(self, timeout_s: float | None = None, *, timeout: float | None = None) -> TidemarkError | None:
        """Return the reason why the record was not acknowledged, None if it was acknowledged; blocks as `result`."""
        self._batch.wait(timeout_of(timeout_s, timeout))
        return self._batch.outcome_of(self._index).error

    def done(self) -> bool:
        """Whether the record is acknowledged or has failed."""
        return self._batch.done

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call `callback` with this handle when the record is acknowledged or has failed.

        The callback runs on the client's event loop and must not block. Callbacks for concurrent.futures.Future fit.

        Raises:
            TypeError: `callback` is not a function.
        """
        if not callable(callback):
            raise TypeError(f"callback is {callback!r}, not a function")
        self._batch.when_done(lambda: callback(self))

    def _outcome(self) -> RecordMetadata:
        batch = self._batch
        first, _, base_offset, append_time_us, error = batch.outcome_of(self._index)
        if error is not None:
            raise copy(error)  # a copy for each handle: a shared error would collect the tracebacks of all handles
        offset = -1 if base_offset < 0 else base_offset + self._index - first
        timestamp_us = batch.timestamps_us[self._index] if append_time_us < 0 else append_time_us
        return RecordMetadata(batch.partition.topic, batch.partition.partition, offset, timestamp_us)


class TableHandle:
    """The handle of a sent table: `await` it, or call `result`."""

    __slots__ = ("_batches",)

    def __init__(self, batches: list[PendingBatch]) -> None:
        self._batches = batches

    def __await__(self) -> Generator[Any, None, list[BatchMetadata]]:
        for batch in self._batches:
            yield from batch.wait_async()
        return self._outcome()

    def result(self, timeout_s: float | None = None, *, timeout: float | None = None) -> list[BatchMetadata]:
        """Block until all batches are acknowledged and return partition, base offset and row count of each.

        Args:
            timeout_s: for each batch, in seconds; None: the delivery timeout of the producer bounds it.
            timeout: deprecated name of `timeout_s`.

        Raises:
            TidemarkError: the reason why a batch was not acknowledged; other batches may be acknowledged.

        Example: `producer.send_table("orders", frame).result(timeout_s=10)[0].record_count`
        """
        limit_s = timeout_of(timeout_s, timeout)
        for batch in self._batches:
            batch.wait(limit_s)
        return self._outcome()

    def outcomes(
        self, timeout_s: float | None = None, *, timeout: float | None = None
    ) -> tuple[list[BatchMetadata], list[tuple[int, TidemarkError]]]:
        """Return the acknowledged batches, and row count and error of each failed one; blocks as `result`.

        A batch that a broker refused for some of its rows counts as several: these rows failed, all other rows were
        sent again.
        """
        limit_s = timeout_of(timeout_s, timeout)
        for batch in self._batches:
            batch.wait(limit_s)
        outcomes = list(self._all_outcomes())
        return (
            [BatchMetadata(*where, one.base_offset, one.record_count) for where, one in outcomes if one.error is None],
            [(one.record_count, one.error) for _, one in outcomes if one.error is not None],
        )

    def done(self) -> bool:
        """Whether every batch is acknowledged or has failed."""
        return all(batch.done for batch in self._batches)

    def _all_outcomes(self) -> Iterator[tuple[TopicPartition, Outcome]]:
        return ((batch.partition, outcome) for batch in self._batches for outcome in batch.outcomes)

    def _outcome(self) -> list[BatchMetadata]:
        for _, outcome in self._all_outcomes():
            if outcome.error is not None:
                raise copy(outcome.error)
        return [
            BatchMetadata(*where, outcome.base_offset, outcome.record_count) for where, outcome in self._all_outcomes()
        ]
