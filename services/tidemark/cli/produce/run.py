# SPDX-License-Identifier: Apache-2.0
"""Sends the input of `produce` with `send_table`, chunk by chunk, and counts the acknowledgements."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, Final

import pyarrow as pa
import typer

from tidemark.cli.common.output import Output, counted, print_json, print_line
from tidemark.cli.common.progress_line import ProgressLine, bar
from tidemark.cli.produce.inputs import Columns, csv_chunks, json_chunks, parquet_chunks, text_chunks
from tidemark.cli.produce.old_timestamps import OldTimestamps
from tidemark.cli.produce.options import Job
from tidemark.cli.produce.typed_inputs import TIMESTAMP
from tidemark.cli.produce.typed_run import TypedJob, typed_job
from tidemark.client import Producer, TableHandle
from tidemark.client.units import shown_bytes
from tidemark.model import TidemarkError
from tidemark.record.schema import TIMESTAMP_TYPE
from tidemark.runtime.interrupts import signals_as_interrupt

_CLIENT_ID: Final = "tidemark produce"
_INTERRUPTED: Final = 130
"""Exit status that shells use for Ctrl-C; also after SIGTERM."""
_FLUSH_S: Final = 1.0
"""Time limit for acknowledgements after Ctrl-C or SIGTERM."""


class Tally:
    """Counts acknowledged and failed records; drops each handle that is done."""

    def __init__(self) -> None:
        self._sending: deque[TableHandle] = deque()
        self.by_partition: Counter[int] = Counter()
        self.sent = 0
        self.failed = 0
        self.first_error: TidemarkError | None = None

    def add(self, sending: TableHandle, count: int) -> None:
        """Add a table of `count` records in flight."""
        self._sending.append(sending)
        self.sent += count

    def reap(self, *, everything: bool = False) -> None:
        """Count and drop the tables whose outcome is known; with `everything`, wait for the outcomes of all tables."""
        while self._sending and (everything or self._sending[0].done()):
            went, refused = self._sending.popleft().outcomes()
            for batch in went:
                self.by_partition[batch.partition] += batch.record_count
            for count, error in refused:
                self.failed += count
                self.first_error = self.first_error or error

    @property
    def acknowledged(self) -> int:
        """Number of acknowledged records."""
        return self.by_partition.total()


def run(bootstrap: str, job: Job, output: Output) -> None:
    """Send the input and print the result.

    Raises:
        TidemarkError: the first error, with the numbers of acknowledged and failed records.
    """
    tally = Tally()
    interrupted = False
    refused: TidemarkError | None = None
    typed: TypedJob | None = None
    seen = _Seen(job, tally)
    old = OldTimestamps(job.timestamp_unit.value)
    with contextlib.ExitStack() as stack:
        stack.enter_context(signals_as_interrupt())
        stack.enter_context(seen.line)
        source = stack.enter_context(job.file.open("rb")) if job.file is not None else sys.stdin.buffer
        timeout_ms = max(1, int(job.timeout_s * 1000))
        with Producer(
            bootstrap, acks=job.acks, codec=job.codec, delivery_timeout_ms=timeout_ms, client_id=_CLIENT_ID
        ) as producer:
            try:
                typed = typed_job(bootstrap, job, stack)
                found = chunks(job, source) if typed is None else typed.batches(source)
                for rows in limited(found, job.count):
                    times = rows if typed is None else typed.times(rows)
                    if times is not None:
                        old.look_at(times)
                    send(producer, job.topic, rows, tally) if typed is None else send_typed(
                        producer, job.topic, rows, tally
                    )
                    seen.read(rows, source)
                    if tally.first_error is not None:
                        break
                producer.flush()
            except KeyboardInterrupt:
                interrupted = True
                producer.close(_FLUSH_S)
            except TidemarkError as error:
                refused = error
                producer.flush()
        tally.reap(everything=True)
    _report(job, output, tally, refused, 0 if typed is None else typed.rejects.count)
    if interrupted:
        raise typer.Exit(_INTERRUPTED)


def chunks(job: Job, source: BinaryIO) -> Iterator[pa.RecordBatch]:
    """Rows of the input, by its format."""
    columns = Columns(job.key or None, job.value or None, job.timestamp or None, job.timestamp_unit.value)
    match job.format.value:
        case "json":
            return json_chunks(source, columns)
        case "csv":
            return csv_chunks(source, columns, delimiter=job.delimiter, strings=job.strings)
        case "parquet":
            return parquet_chunks(source, columns)
        case _:
            return text_chunks(source, job.key_separator)


def limited(rows: Iterable[pa.RecordBatch], count: int | None) -> Iterator[pa.RecordBatch]:
    """The first `count` rows; None: all."""
    left = count
    for chunk in rows:
        if left is None:
            yield chunk
            continue
        yield chunk.slice(0, min(left, chunk.num_rows))
        left -= chunk.num_rows
        if left <= 0:
            return


def send(producer: Any, topic: str, rows: pa.RecordBatch, tally: Tally) -> None:
    """Send rows in SCHEMA; rows without a timestamp get the current time."""
    if rows.column(2).null_count:
        now_us = time.time_ns() // 1000
        stamps = pa.repeat(pa.scalar(now_us, TIMESTAMP_TYPE), rows.num_rows)
        rows = rows.set_column(2, rows.schema.field(2), stamps)
    tally.add(producer.send_table(topic, rows, timestamp="timestamp"), rows.num_rows)
    tally.reap()


def send_typed(producer: Any, topic: str, rows: pa.RecordBatch, tally: Tally) -> None:
    """Send rows of a typed topic, with timestamps if they have them."""
    timestamp = TIMESTAMP if TIMESTAMP in rows.schema.names else None
    tally.add(producer.send_table(topic, rows, timestamp=timestamp), rows.num_rows)
    tally.reap()


class _Seen:
    """Counts the input for the progress line, which is hidden while records are typed at the terminal."""

    def __init__(self, job: Job, tally: Tally) -> None:
        self.line = ProgressLine(self._text, show=job.file is not None or not sys.stdin.isatty())
        self._tally = tally
        self._file_bytes = job.file.stat().st_size if job.file is not None else 0
        self._bytes = 0
        self._position = 0

    def read(self, rows: pa.RecordBatch, source: BinaryIO) -> None:
        self._bytes += rows.nbytes
        if self._file_bytes and not source.closed:
            self._position = source.tell()

    def _text(self) -> str:
        seconds = self.line.elapsed_s
        part = f"{bar(self._position / self._file_bytes)}  " if self._file_bytes else ""
        waiting = self._tally.sent - self._tally.acknowledged - self._tally.failed
        return (
            f"{part}{counted(self._tally.acknowledged, 'record')}  {self._tally.acknowledged / seconds:,.0f}/s  "
            f"{shown_bytes(self._bytes / seconds)}/s  {waiting} not acknowledged yet"
        )


def _before(count: int) -> str:
    return "the record before it is" if count == 1 else f"the {count} records before it are"


def _report(job: Job, output: Output, tally: Tally, refused: TidemarkError | None, rejected: int) -> None:
    error = tally.first_error
    if output is Output.JSON:
        by_partition = {str(partition): tally.by_partition[partition] for partition in sorted(tally.by_partition)}
        print_json(
            {
                "topic": job.topic,
                "acknowledged": tally.acknowledged,
                "failed": tally.failed,
                "partitions": by_partition,
                **({} if job.reject_file is None else {"rejected": rejected}),
            }
        )
    elif error is None and refused is None:
        beside = "" if job.reject_file is None else f"; {counted(rejected, 'row')} that did not fit: {job.reject_file}"
        print_line(f"sent {counted(tally.acknowledged, 'record')} to {job.topic}{beside}")
    if error is not None:
        failed = "1 record was" if tally.failed == 1 else f"{tally.failed} records were"
        sentence = f"{failed} not acknowledged, {tally.acknowledged} were: {error.message}"
        raise TidemarkError(error.code, sentence, error.metadata)
    if refused is not None:
        sentence = f"{refused.message}; {_before(tally.acknowledged)} sent"
        raise TidemarkError(refused.code, sentence if tally.acknowledged else refused.message, refused.metadata)
