# SPDX-License-Identifier: Apache-2.0
"""Runs a benchmark: the topic, the worker processes, their progress and the result (as OpenMessaging's workloads).

A topic that the benchmark created is deleted at the end, even after an error.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing.process import BaseProcess
from typing import Final

import pyarrow as pa

from tidemark.cli.bench.histogram import Measured, share, together
from tidemark.cli.bench.options import Place, Target
from tidemark.cli.bench.workers import Reading, Tick, WorkerLinks, Workload, consume_worker, produce_worker
from tidemark.cli.common.connection import connect_admin, need_bootstrap
from tidemark.cli.common.options import parse_configs
from tidemark.cli.common.output import Output, counted, print_json, print_line, print_table
from tidemark.cli.common.progress_line import ProgressLine, bar
from tidemark.client import Consumer, Producer
from tidemark.client.units import shown_bytes
from tidemark.model import ErrorCode, TidemarkError, invalid_request
from tidemark.runtime.interrupts import signals_as_interrupt

_FILL_BYTES: Final = 4 << 20
_SLACK_S: Final = 180.0
"""Time of a worker to start, flush and end, beyond warm-up and duration."""
_PROGRESS_TIMEOUT_S: Final = 0.2


def run(workload: Workload, target: Target, place: Place) -> None:
    """Run the workload and print the result.

    Raises:
        TidemarkError: the first error of a worker; REQUEST_TIMED_OUT if records failed or did not arrive.
    """
    bootstrap, configs = need_bootstrap(place.bootstrap), parse_configs(target.configs or [])
    if workload.rate and workload.rate < workload.producers:
        raise invalid_request("--rate is less than one record a second for each producer")
    with signals_as_interrupt(), _topic(bootstrap, place.admin, target, configs) as topic:
        if workload.kind == "consume" and not target.topic:
            _fill(bootstrap, topic, workload)
        ends = _ends(bootstrap, topic)
        partitions = sorted(ends)
        measured = _Run(workload, bootstrap, topic, ends).run()
    _print(workload, topic, partitions, measured, Output.JSON if place.as_json else place.output)
    sys.stdout.flush()
    produced, consumed = measured.get("produce"), measured.get("consume")
    if produced is not None and produced.failed:
        sentence = f"{produced.failed} records were not acknowledged; the first: {produced.first_error}"
        raise TidemarkError(ErrorCode.REQUEST_TIMED_OUT, sentence)
    if produced is not None and consumed is not None and consumed.whole < produced.whole:
        missing = produced.whole - consumed.whole
        raise TidemarkError(ErrorCode.REQUEST_TIMED_OUT, f"{counted(missing, 'record')} did not arrive in time")


def _ends(bootstrap: str, topic: str) -> dict[int, int]:
    """The current end offset of each partition; raises UNKNOWN_TOPIC."""
    with Consumer(bootstrap) as consumer:
        consumer.assign(topic, start="latest")
        return {where.partition: end for where, end in consumer.end_offsets().items()}


@contextlib.contextmanager
def _topic(bootstrap: str, admin_address: str, target: Target, configs: Mapping[str, str]) -> Iterator[str]:
    if target.topic:
        yield target.topic
        return
    name = f"tidemark-bench-{uuid.uuid4().hex[:12]}"
    with connect_admin(bootstrap, admin_address) as admin:
        admin.create_topic(
            name, partitions=target.partitions, replication_factor=target.replication_factor, configs=configs
        )
        try:
            yield name
        finally:
            admin.delete_topic(name)


def _fill(bootstrap: str, topic: str, workload: Workload) -> None:
    """Produce the backlog with `send_table`."""
    rows = max(1, _FILL_BYTES // workload.message_bytes)
    chunk = pa.record_batch({"value": pa.array([os.urandom(workload.message_bytes) for _ in range(rows)], pa.binary())})
    written = 0

    def line() -> str:
        return f"{bar(written / workload.backlog_bytes)}  backlog: {shown_bytes(written)}"

    with ProgressLine(line), Producer(bootstrap, **workload.settings) as producer:
        while written < workload.backlog_bytes:
            rows = -(-(workload.backlog_bytes - written) // workload.message_bytes)
            part = chunk.slice(0, rows)
            producer.send_table(topic, part)
            written += part.num_rows * workload.message_bytes
        producer.flush()


class _Run:
    """The worker processes, from their start to their results."""

    def __init__(self, workload: Workload, bootstrap: str, topic: str, ends: Mapping[int, int]) -> None:
        self._workload = workload
        self._bootstrap = bootstrap
        self._topic = topic
        self._ends = ends
        self._partitions = sorted(ends)
        self._context = multiprocessing.get_context("spawn")  # a fork would lose the client's threads
        workers = workload.producers + min(workload.consumers, len(ends))
        self._links = WorkerLinks(self._context.Queue(), self._context.Barrier(workers), self._context.Event())
        self._processes: list[BaseProcess] = []
        self._results: dict[str, list[Measured]] = {}
        self._records: dict[tuple[str, int], int] = {}
        """Number of records so far, by kind and process id of the worker."""
        self._error: TidemarkError | None = None
        self._line = ProgressLine(self._text)

    def run(self) -> dict[str, Measured]:
        """Run the workers; returns their merged results by kind of worker."""
        try:
            with self._line:
                for process in self._workers():
                    self._processes.append(process)
                    process.start()
                self._listen()
        finally:
            for process in self._processes:
                if process.is_alive():
                    process.terminate()
                process.join()
        if self._error is not None:
            raise self._error
        return {kind: together(parts) for kind, parts in self._results.items()}

    def _workers(self) -> Iterator[BaseProcess]:
        work = self._workload
        consumers = min(work.consumers, len(self._partitions))
        for number in range(consumers):
            mine = tuple(self._partitions[number::consumers])
            until = (
                {index: self._ends[index] for index in mine if self._ends[index]} if work.kind == "consume" else None
            )
            reading = Reading(self._bootstrap, self._topic, mine, until, work.span)
            yield self._context.Process(target=consume_worker, args=(reading, self._links), daemon=True)
        for number in range(work.producers):
            keys = share(work.keys, work.producers, number)
            load = replace(work, rate=work.rate / work.producers, keys=keys)
            args = (self._bootstrap, self._topic, load, self._links)
            yield self._context.Process(target=produce_worker, args=args, daemon=True)

    def _listen(self) -> None:
        """Receive progress until every worker is done, one fails, or the time limit is over."""
        work = self._workload
        until_s = time.monotonic() + work.span.warm_up_s + work.span.duration_s + _SLACK_S
        producers = work.producers
        left = len(self._processes)
        while left and self._error is None:
            try:
                tick: Tick = self._links.progress.get(timeout=_PROGRESS_TIMEOUT_S)
            except queue.Empty:
                dead = [process for process in self._processes if process.exitcode not in (None, 0)]
                if dead or time.monotonic() > until_s:
                    why = f"ended with status {dead[0].exitcode}" if dead else "did not end in time"
                    self._error = TidemarkError(ErrorCode.INTERNAL, f"workers of the benchmark {why}")
                continue
            if tick.error is not None:
                self._error = tick.error
            elif tick.done is not None:
                self._results.setdefault(tick.kind, []).append(tick.done)
                left -= 1
                producers -= tick.kind == "produce"
                if not producers:
                    self._links.producers_done.set()
            else:
                self._records[tick.kind, tick.worker] = tick.records

    def _text(self) -> str:
        whole_s = self._workload.span.warm_up_s + self._workload.span.duration_s
        records_of = dict(self._records)  # a copy: the main thread changes the original
        done = {
            kind: sum(records for (mine, _), records in records_of.items() if mine == kind)
            for kind in ("produce", "consume")
        }
        shown = "  ".join(f"{kind}: {records:,} records" for kind, records in done.items() if records)
        return f"{bar(self._line.elapsed_s / whole_s)}  {shown or 'starting'}"


def _print(
    workload: Workload, topic: str, partitions: Sequence[int], measured: Mapping[str, Measured], output: Output
) -> None:
    produced, consumed = measured.get("produce"), measured.get("consume")
    if output is Output.JSON:
        print_json(
            {
                "benchmark": workload.kind,
                "topic": topic,
                "partitions": len(partitions),
                "producers": workload.producers,
                "consumers": min(workload.consumers, len(partitions)),
                "message_bytes": workload.message_bytes,
                "rate": workload.rate,
                "keys": workload.keys,
                "bulk": workload.bulk,
                "warm_up_s": workload.span.warm_up_s,
                "duration_s": workload.span.duration_s,
                "settings": workload.settings,
                **{kind: _json(one) for kind, one in (("produce", produced), ("consume", consumed)) if one is not None},
            }
        )
        return
    print_line(
        f"{workload.kind}: {counted(workload.producers, 'producer')}, {counted(workload.consumers, 'consumer')}, "
        f"{counted(len(partitions), 'partition')}, {workload.message_bytes} bytes a record, "
        f"{f'{workload.rate:,.0f} records/s' if workload.rate else 'no rate limit'}, "
        f"{workload.span.duration_s:g} s after {workload.span.warm_up_s:g} s"
    )
    kinds = [(name, one) for name, one in (("produced", produced), ("consumed", consumed)) if one is not None]
    print_table(
        ("", "records", "records/s", "bytes/s", "failed"),
        [
            (name, one.records, f"{one.records_per_s:,.0f}", f"{shown_bytes(one.bytes_per_s)}/s", one.failed or "-")
            for name, one in kinds
        ],
    )
    timed = [
        (name, one.latencies.summary_ms())
        for name, one in (("until acknowledged", produced), ("until consumed", consumed))
        if one is not None and one.latencies.count
    ]
    if timed:
        columns = list(timed[0][1])
        print_table(
            ("latency, ms", *columns), [(name, *(f"{one[column]:.2f}" for column in columns)) for name, one in timed]
        )


def _json(measured: Measured) -> Mapping[str, object]:
    return {
        "records": measured.records,
        "bytes": measured.size_bytes,
        "seconds": round(measured.seconds, 3),
        "records_per_s": round(measured.records_per_s, 1),
        "bytes_per_s": round(measured.bytes_per_s, 1),
        "failed": measured.failed,
        **({"latency_ms": dict(measured.latencies.summary_ms())} if measured.latencies.count else {}),
    }
