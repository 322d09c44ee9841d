# SPDX-License-Identifier: Apache-2.0
"""Copies records from a source to a sink, until an end condition of `consume`."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Final, Protocol

import pyarrow as pa

from tidemark.cli.common.output import counted
from tidemark.cli.common.process import give_up_output
from tidemark.cli.common.progress_line import ProgressLine
from tidemark.cli.consume.options import ConsumeOptions
from tidemark.client.outputs.record_rows import open_sink
from tidemark.client.outputs.sink import Sink
from tidemark.client.records import PartitionBatch
from tidemark.client.units import shown_bytes
from tidemark.model import ErrorCode, TidemarkError
from tidemark.runtime.interrupts import interrupts_held, signals_as_interrupt

_POLL_S_MAX: Final = 1.0


class Source(Protocol):
    """A source of records: topic_source.TopicReader or group_source.GroupSource."""

    def poll(self, timeout_s: float) -> Iterable[PartitionBatch]:
        """Rows that are available or arrive within `timeout_s`; may be empty."""

    @property
    def finished(self) -> bool:
        """Whether all ends are reached; always False for a source without ends."""

    @property
    def typed(self) -> pa.Schema | None:
        """Arrow schema of the rows of a typed topic, without dictionaries; None for a topic without a schema."""

    @property
    def lag(self) -> int:
        """Committed records that were not read yet, at the last fetch of the ends."""

    def wrote(self, batch: PartitionBatch) -> None:
        """Note, without a wait, that the sink has written and flushed this batch."""

    def commit_if_due(self) -> None:
        """Commit the written records, if it is time."""


class Reading:
    """Counts the copied records, for the progress line."""

    def __init__(self, *, show: bool = True) -> None:
        self.line = ProgressLine(self._text, show=show)
        self.records = 0
        self.bytes = 0
        self.lag = 0

    def read(self, batch: PartitionBatch, lag: int) -> None:
        """Count the records of a batch."""
        self.records += batch.rows.num_rows
        self.bytes += batch.rows.nbytes
        self.lag = lag

    def _text(self) -> str:
        seconds = self.line.elapsed_s
        return (
            f"{counted(self.records, 'record')}  {self.records / seconds:,.0f}/s  "
            f"{shown_bytes(self.bytes / seconds)}/s  {max(self.lag, 0)} left to read"
        )


def run(open_source: Callable[[], AbstractContextManager[Source]], options: ConsumeOptions) -> None:
    """Copy until an end condition, Ctrl-C, SIGTERM or SIGHUP; the output is complete in each case.

    Raises:
        TidemarkError: the errors of `copy`; STORAGE_ERROR if the file cannot be written.
    """
    file = options.file
    reading = Reading(show=file is not None or not sys.stdout.isatty())
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(reading.line)
            stack.enter_context(signals_as_interrupt())
            source = stack.enter_context(open_source())
            target = sys.stdout.buffer if file is None else stack.enter_context(file.open("wb"))
            sink = open_sink(target, options, source.typed)
            stack.callback(_close, sink, options)
            with contextlib.suppress(KeyboardInterrupt):
                copy(source, sink, options, reading=reading)
    except BrokenPipeError:  # the reader of the pipe closed it
        give_up_output()
    except OSError as error:
        sentence = f"{file or 'stdout'} cannot be written: {error.strerror}; {reading.records} records were read"
        raise TidemarkError(ErrorCode.STORAGE_ERROR, sentence) from error


def copy(
    source: Source,
    sink: Sink,
    ends: ConsumeOptions,
    *,
    reading: Reading,
    now_s: Callable[[], float] = time.monotonic,
) -> int:
    """Copy records until an end condition; returns their number.

    Raises:
        TidemarkError: REQUEST_TIMED_OUT if `timeout_s` passed before `count` records.
    """
    last_s = now_s()
    while True:
        waited_s = now_s() - last_s
        left_s = _POLL_S_MAX if ends.timeout_s is None else ends.timeout_s - waited_s
        for batch in source.poll(max(0.0, min(left_s, _POLL_S_MAX))):
            room = None if ends.count is None else ends.count - reading.records
            shown = batch if room is None else batch._replace(rows=batch.rows.slice(0, room))
            with _whole_writes(ends):
                sink.show(shown)
                sink.flush()
                source.wrote(shown)
                reading.read(shown, source.lag)
            last_s = now_s()
            if reading.records == ends.count:
                break
        source.commit_if_due()
        if reading.records == ends.count or source.finished:
            break
        if ends.timeout_s is not None and now_s() - last_s >= ends.timeout_s:
            if ends.count is None:
                break
            raise TidemarkError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{reading.records} of {ends.count} records arrived, then none for {ends.timeout_s:g} s",
                {"records": str(reading.records)},
            )
    return reading.records


def _whole_writes(options: ConsumeOptions) -> AbstractContextManager[None]:
    """Hold interrupts while a file is written: half a row group makes a Parquet file unreadable.

    A pipe is written without: its reader may stop reading.
    """
    return contextlib.nullcontext() if options.file is None else interrupts_held()


def _close(sink: Sink, options: ConsumeOptions) -> None:
    with contextlib.suppress(KeyboardInterrupt), _whole_writes(options):
        sink.close()
