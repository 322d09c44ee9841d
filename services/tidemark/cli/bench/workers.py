# SPDX-License-Identifier: Apache-2.0
"""Worker processes of a benchmark, each with one producer or one consumer.

A barrier starts all workers together, so every consumer reads before the first record is sent. The latency of a record
counts from the time at which the record was due. So the delay of a busy process is part of the latency.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.cli.bench.histogram import Measured
from tidemark.cli.bench.options import Span
from tidemark.client import Consumer, Producer
from tidemark.model import TidemarkError
from tidemark.record.schema import TIMESTAMP_TYPE
from tidemark.runtime.imports import refuse_import

START_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.2
_REPORT_INTERVAL_S: Final = 0.5
_PAUSE_S: Final = 0.0005
_VALUES: Final = 64
_BURST: Final = 200
"""Records sent at most between two readings of the clock."""
_DRAIN_S: Final = 5.0
_GATHER_S: Final = 0.02
"""Time that a table waits for more due records, since each table becomes a separate batch."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The load of a benchmark, or the share of one producer in it.

    Attributes:
        rate: records per second of all producers; 0: no limit.
        keys: number of distinct keys; 0: none.
        bulk: send tables of records without keys, instead of single records.
        settings: arguments of client.Producer.
    """

    kind: str
    span: Span
    message_bytes: int
    settings: dict[str, Any]
    producers: int = 0
    consumers: int = 0
    rate: float = 0.0
    keys: int = 0
    bulk: bool = False
    backlog_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """Task of one consumer; `until` has the end offset (exclusive) of each partition, None: until `producers_done`."""

    bootstrap: str
    topic: str
    partitions: tuple[int, ...]
    until: dict[int, int] | None
    span: Span


class Tick(NamedTuple):
    """Progress of a worker (its process id); the last message of a worker has `done`."""

    kind: str
    worker: int
    records: int
    done: Measured | None = None
    error: TidemarkError | None = None


class WorkerLinks(NamedTuple):
    """Links between workers and their parent: queue of `Tick`s, start barrier, event that all producers are done."""

    progress: Any
    start: Any
    producers_done: Any


def produce_worker(bootstrap: str, topic: str, load: Workload, links: WorkerLinks) -> None:
    """Entry point of a producer's process."""
    _work("produce", links, lambda: (_produce_tables if load.bulk else _produce)(bootstrap, topic, load, links))


def consume_worker(reading: Reading, links: WorkerLinks) -> None:
    """Entry point of a consumer's process."""
    _work("consume", links, lambda: _consume(reading, links))


def _work(kind: str, links: WorkerLinks, work: Callable[[], Measured]) -> None:
    for number in (signal.SIGINT, signal.SIGHUP):  # they reach the parent too, which ends its workers
        signal.signal(number, signal.SIG_IGN)
    refuse_import("pandas")
    try:
        measured = work()
    except TidemarkError as error:
        with contextlib.suppress(Exception):
            links.start.abort()
        links.progress.put(Tick(kind, os.getpid(), 0, Measured(), error))
    else:
        links.progress.put(Tick(kind, os.getpid(), 0, measured))


class _Progress:
    """The clock of a producer, started together with all workers; counts acknowledgements in the client's thread."""

    def __init__(self, load: Workload, links: WorkerLinks) -> None:
        links.start.wait(START_TIMEOUT_S)
        self._load = load
        self._links = links
        self.start_s, self.start_us = time.perf_counter(), time.time_ns() // 1000
        self._reported_s = self.start_s
        self._from_s = self.start_s + load.span.warm_up_s
        self.end_s = self._from_s + load.span.duration_s
        self.measured = Measured(seconds=load.span.duration_s)

    def report(self, now_s: float, *, idle: bool) -> None:
        """Report to the parent at intervals; pause while no record is due."""
        if now_s - self._reported_s >= _REPORT_INTERVAL_S:
            self._reported_s = now_s
            self._links.progress.put(Tick("produce", os.getpid(), self.measured.whole))
        if idle:
            time.sleep(_PAUSE_S)

    def note(self, due_s: float, handle: Any) -> None:
        error = handle.exception()
        if error is not None:
            self.fail(1, error)
        else:
            self.add(1, due_s)

    def fail(self, count: int, error: TidemarkError) -> None:
        self.measured.failed += count
        self.measured.first_error = self.measured.first_error or str(error)

    def add(self, count: int, due_s: float) -> None:
        now_s = time.perf_counter()
        measured = self.measured
        measured.whole += count
        if self._from_s <= now_s < self.end_s:
            measured.records += count
            measured.size_bytes += self._load.message_bytes * count
        if self._from_s <= due_s < self.end_s:
            measured.latencies.add((now_s - due_s) * 1e6, count)


def _produce(bootstrap: str, topic: str, load: Workload, links: WorkerLinks) -> Measured:
    values = itertools.cycle([os.urandom(load.message_bytes) for _ in range(_VALUES)])
    keys = itertools.cycle([b"%d" % number for number in range(load.keys)] if load.keys else [None])
    with Producer(bootstrap, **load.settings) as producer:
        progress = _Progress(load, links)
        note, start_s, start_us = progress.note, progress.start_s, progress.start_us
        sent = 0
        while (now_s := time.perf_counter()) < progress.end_s:
            due = int((now_s - start_s) * load.rate) - sent if load.rate else _BURST
            for _ in range(min(due, _BURST)):
                due_s = start_s + sent / load.rate if load.rate else time.perf_counter()
                stamp_us = start_us + int((due_s - start_s) * 1e6)
                handle = producer.send(topic, next(values), key=next(keys), timestamp_us=stamp_us)
                handle.add_done_callback(partial(note, due_s))
                sent += 1
            progress.report(now_s, idle=due <= 0)
        producer.flush()
    return progress.measured


def _produce_tables(bootstrap: str, topic: str, load: Workload, links: WorkerLinks) -> Measured:
    rows = max(1, load.settings["batch_bytes"] // load.message_bytes)
    values = pa.array([os.urandom(load.message_bytes) for _ in range(rows)], pa.binary())
    sending: deque[tuple[Any, float]] = deque()
    with Producer(bootstrap, **load.settings) as producer:
        progress = _Progress(load, links)
        start_s = sent_s = progress.start_s
        sent = 0
        while (now_s := time.perf_counter()) < progress.end_s:
            due = min(int((now_s - start_s) * load.rate) - sent, rows) if load.rate else rows
            if 0 < due < rows and now_s - sent_s < _GATHER_S:
                due = 0
            if due > 0:
                sent_s = now_s
                due_s = start_s + sent / load.rate if load.rate else now_s
                stamps = pa.repeat(pa.scalar(progress.start_us + int((due_s - start_s) * 1e6), TIMESTAMP_TYPE), due)
                columns: list[pa.Array[Any]] = [values.slice(0, due), stamps]
                table = pa.RecordBatch.from_arrays(columns, names=["value", "timestamp"])
                sending.append((producer.send_table(topic, table, timestamp="timestamp"), due_s))
                sent += due
            _reap(sending, progress)
            progress.report(now_s, idle=due <= 0)
        while sending:
            sending[0][0].outcomes()
            _reap(sending, progress)
    return progress.measured


def _reap(sending: deque[tuple[Any, float]], progress: _Progress) -> None:
    """Count the tables that are done, in the order in which they were sent."""
    while sending and sending[0][0].done():
        handle, due_s = sending.popleft()
        went, refused = handle.outcomes()
        progress.add(sum(batch.record_count for batch in went), due_s)
        for count, error in refused:
            progress.fail(count, error)


def _consume(reading: Reading, links: WorkerLinks) -> Measured:
    measured = Measured()
    until, span = dict(reading.until or {}), reading.span
    with Consumer(reading.bootstrap) as consumer:
        consumer.assign(reading.topic, reading.partitions, "earliest" if reading.until is not None else "latest")
        links.start.wait(START_TIMEOUT_S)
        start_s = reported_s = time.perf_counter()
        from_s, from_us = start_s + span.warm_up_s, time.time_ns() // 1000 + int(span.warm_up_s * 1e6)
        to_s = from_s + span.duration_s
        last_s = from_s
        while (now_s := time.perf_counter()) < (to_s if reading.until is not None else to_s + _DRAIN_S):
            if reading.until is not None and not until:
                break
            batch = consumer.poll(_POLL_S)
            if batch is None:
                if reading.until is None and now_s >= to_s and links.producers_done.is_set():
                    break
                continue
            now_s = time.perf_counter()
            measured.whole += batch.rows.num_rows
            if from_s <= now_s < to_s:
                measured.records += batch.rows.num_rows
                measured.size_bytes += payload_bytes(batch.rows)
                last_s = now_s
            if reading.until is None:
                _note_latencies(measured, batch.rows, from_us, from_us + int(span.duration_s * 1e6))
            else:
                _cross_off(until, batch.partition, batch.rows)
            if now_s - reported_s >= _REPORT_INTERVAL_S:
                reported_s = now_s
                links.progress.put(Tick("consume", os.getpid(), measured.whole))
        measured.seconds = (last_s if reading.until is not None else to_s) - from_s
    return measured


def payload_bytes(rows: pa.RecordBatch) -> int:
    """Bytes of the keys and values of a batch."""
    total = 0
    for name in ("key", "value"):
        column: Any = rows.column(name)
        total += pc.sum(pc.binary_length(column)).as_py() or 0
    return total


def _note_latencies(measured: Measured, rows: pa.RecordBatch, from_us: int, to_us: int) -> None:
    """Add the latencies of records that were due in [from_us, to_us)."""
    now_us = time.time_ns() // 1000
    stamps: list[Any] = rows.column("timestamp").cast(pa.int64()).to_pylist()
    for stamp_us in stamps:
        if from_us <= stamp_us < to_us:
            measured.latencies.add(now_us - stamp_us)


def _cross_off(until: dict[int, int], partition: int, rows: pa.RecordBatch) -> None:
    offsets: Any = rows.column("offset")
    if partition in until and offsets[rows.num_rows - 1].as_py() + 1 >= until[partition]:
        del until[partition]
