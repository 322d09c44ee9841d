# SPDX-License-Identifier: Apache-2.0
"""Flags, session, streams and exit statuses that the jobs share."""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from tidemark.client.metadata.bootstrap import BOOTSTRAP_VARIABLE
from tidemark.model import TidemarkError, decimal_number

from tidemark_spark.common_options import parse_whole
from tidemark_spark.compat import finish_available_now, prefer_unix_sockets
from tidemark_spark.progress import measured, read_bytes
from tidemark_spark.source import register

EXIT_FOUND: Final = 1
"""Exit status of a check with findings."""
EXIT_WRONG: Final = 2
"""Exit status for wrong arguments or a failed request."""

_EVENTS_S: Final = 30.0
"""Time limit for the last events of a query after its end, since Spark sends them from another thread."""

Run = Callable[[SparkSession, argparse.Namespace], int]


def job_parser(name: str, text: str, example: str) -> argparse.ArgumentParser:
    """A parser with an example at the end of its help."""
    return argparse.ArgumentParser(
        prog=f"{name}.py",
        description=text,
        epilog=f"example:\n{example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_bootstrap(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add `--bootstrap`, which every job has."""
    known = os.environ.get(BOOTSTRAP_VARIABLE)
    parser.add_argument(
        "--bootstrap",
        metavar="HOST:PORT[,HOST:PORT...]",
        default=known,
        required=required and known is None,
        help=f"any brokers of the cluster (default: {BOOTSTRAP_VARIABLE})",
    )


def whole(text: str) -> int:
    """The type of a flag that is a whole number from 0."""
    number = parse_whole(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from 0")
    return number


def whole_from_1(text: str) -> int:
    """The type of a flag that is a whole number from 1."""
    number = parse_whole(text)
    if not number:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from 1")
    return number


def amount(text: str) -> float:
    """The type of a flag that is a number from 0."""
    number = decimal_number(text)
    if number is None or number < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 0")
    return number


def add_stream(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a job that reads a topic as a stream."""
    parser.add_argument(
        "--every", metavar="INTERVAL", help='run continuously, e.g. "1 minute"; default: only current records'
    )
    parser.add_argument("--max-offsets", type=whole, metavar="N", help="records of a micro-batch at most (all)")
    parser.add_argument(
        "--starting", default="earliest", help="startingOffsets of the first run: earliest, latest or JSON (earliest)"
    )


def read_stream(spark: SparkSession, arguments: argparse.Namespace, **options: str) -> DataFrame:
    """Read --topic of --bootstrap as a stream, by the flags of `add_stream`."""
    asked = {
        "tidemark.bootstrap": arguments.bootstrap,
        "subscribe": arguments.topic,
        "startingOffsets": arguments.starting,
        **options,
    }
    finish_available_now(spark)
    if arguments.max_offsets is not None:
        asked["maxOffsetsPerTrigger"] = str(arguments.max_offsets)
    return measured(spark.readStream.format("tidemark").options(**asked).load())


def start_stream(writer: DataStreamWriter, every: str | None) -> StreamingQuery:
    """Trigger of a query: current records only, or continuously."""
    return (writer.trigger(availableNow=True) if every is None else writer.trigger(processingTime=every)).start()


class Totals(NamedTuple):
    """Input of one run of a query.

    Attributes:
        rows: number of records.
        size_bytes: size of their keys and values.
        late: groups of rows that Spark dropped, since the watermark had passed them.
    """

    rows: int = 0
    size_bytes: int = 0
    late: int = 0


class RowCounter(StreamingQueryListener):
    """Counts the input of a session's queries since the listener was added.

    A query's own `recentProgress` keeps only the last hundred micro-batches.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._totals: dict[str, Totals] = {}
        self._ended: set[str] = set()

    def totals(self, query: StreamingQuery) -> Totals:
        """Input of a run so far."""
        with self._changed:
            return self._totals.get(query.runId, Totals())

    def wait(self, query: StreamingQuery) -> Totals:
        """Wait until a query has ended and is counted completely; raises the error of the query."""
        query.awaitTermination()
        with self._changed:
            self._changed.wait_for(lambda: query.runId in self._ended, _EVENTS_S)
        return self.totals(query)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - these names are Spark's
        """Has no effect at the start of a query."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Count a micro-batch."""
        progress = json.loads(event.progress.json)
        run = str(progress["runId"])
        rows = sum(source["numInputRows"] for source in progress["sources"])
        late = sum(state.get("numRowsDroppedByWatermark", 0) for state in progress["stateOperators"])
        with self._changed:
            before = self._totals.get(run, Totals())
            size_bytes = before.size_bytes + (read_bytes(progress) or 0)
            self._totals[run] = Totals(before.rows + rows, size_bytes, before.late + late)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Note the end of a query; its count is complete."""
        with self._changed:
            self._ended.add(str(event.runId))
            self._changed.notify_all()


def run_stream(spark: SparkSession, start: Callable[[], StreamingQuery]) -> Totals:
    """Start a query and wait for its end; returns its input."""
    counter = RowCounter()
    spark.streams.addListener(counter)
    try:
        return counter.wait(start())
    finally:
        spark.streams.removeListener(counter)


def run_job(name: str, parser: argparse.ArgumentParser, run: Run, arguments: Sequence[str] | None = None) -> int:
    """Parse arguments, open a session (spark-submit configures it), and run; an unexpected error keeps its traceback.

    Returns:
        Exit status: 0, EXIT_FOUND, or EXIT_WRONG with a sentence on stderr.
    """
    parsed = parser.parse_args(arguments)
    spark = prefer_unix_sockets(SparkSession.builder.appName(f"tidemark {name}")).getOrCreate()
    register(spark)
    try:
        return run(spark, parsed)
    except Exception as error:
        sentence = refusal_of(error)
        if sentence is None:
            raise
        sys.stderr.write(f"{name}: {sentence}\n")
        return EXIT_WRONG
    finally:
        spark.stop()


def refusal_of(error: Exception) -> str | None:
    """The sentence for an error of the arguments, of a path or of the cluster; None for an unexpected error."""
    if isinstance(error, TidemarkError | ValueError | PySparkException):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    if isinstance(error, Py4JJavaError) and is_instance_of(
        SparkContext._gateway, error.java_exception, "java.io.IOException"
    ):
        return str(error.java_exception.getMessage())
    return None


def say(text: str) -> None:
    """Print a line of the report on stdout."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
