"""`tidemark consume`: prints committed records as they come."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable
from typing import Annotated, Protocol

import typer

from tidemark.cli.options import BootstrapOption, OutputOption, need_bootstrap
from tidemark.cli.output import Output
from tidemark.cli.records import Record, parse_start, record_json, record_text
from tidemark.model import ErrorCode, TidemarkError

_POLL_S_MAX = 1.0


class Sink(Protocol):
    """Where records go."""

    def show(self, record: Record) -> None:
        """Take a record."""

    def flush(self) -> None:
        """Let others see what was taken."""


class Source(Protocol):
    """Where records come from."""

    def poll(self, timeout_s: float) -> Iterable[Record]:
        """Records that are there, or come within `timeout_s`; maybe none."""


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="What to read.")],
    start: Annotated[
        str,
        typer.Option(
            "--from", metavar="WHERE", help="earliest, latest, offset:N or timestamp:ISO (UTC if it names no zone)."
        ),
    ] = "latest",
    max_records: Annotated[
        int | None, typer.Option("--max-records", "--max-messages", "-n", min=1, help="End after so many.")
    ] = None,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", min=0.001, help="End after so many seconds without a record.")
    ] = None,
    key_separator: Annotated[
        str, typer.Option("--key-separator", "-k", metavar="TEXT", help="Print KEY, this, VALUE; else VALUE alone.")
    ] = "",
    bootstrap: BootstrapOption = "",
    output: OutputOption = Output.TEXT,
) -> None:
    """Print records, one a line, until Ctrl-C, --max-records or --timeout.

    Status 1 if --timeout ended it before --max-records were there.

    \b
    Examples:
      tidemark consume greetings --from earliest
      tidemark consume flights --from offset:1000 --max-records 10 --output json | jq .value
      tidemark consume flights --from timestamp:2013-01-01T05:00:00Z --timeout 5
    """
    addresses = need_bootstrap(bootstrap)
    try:
        where = parse_start(start)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--from") from None
    # Only here: the client's libraries take longer to import than bad usage and help need.
    from tidemark.cli.topic_reader import TopicReader

    with contextlib.suppress(KeyboardInterrupt), TopicReader(addresses, topic, where) as source:
        copy(source, Printer(output, key_separator), max_records=max_records, timeout_s=timeout_s)


def copy(
    source: Source,
    sink: Sink,
    *,
    max_records: int | None,
    timeout_s: float | None,
    now_s: Callable[[], float] = time.monotonic,
) -> int:
    """Show records until there were `max_records`, or none came for `timeout_s`; gives their number.

    Raises:
        TidemarkError: REQUEST_TIMED_OUT when the time was over before the number was reached.
    """
    shown = 0
    last_s = now_s()
    while True:
        waited_s = now_s() - last_s
        left_s = _POLL_S_MAX if timeout_s is None else timeout_s - waited_s
        for record in source.poll(max(0.0, min(left_s, _POLL_S_MAX))):
            sink.show(record)
            shown += 1
            last_s = now_s()
            if shown == max_records:
                break
        sink.flush()
        if shown == max_records:
            return shown
        if timeout_s is not None and now_s() - last_s >= timeout_s:
            break
    if max_records is not None:
        raise TidemarkError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"{shown} of {max_records} records came; then none for {timeout_s:g} s",
            {"records": str(shown)},
        )
    return shown


class Printer:
    """Writes each record as one line on stdout."""

    def __init__(self, output: Output, key_separator: str) -> None:
        self._output = output
        self._key_separator = key_separator

    def show(self, record: Record) -> None:
        """The record's line."""
        if self._output is Output.JSON:
            line = json.dumps(record_json(record), ensure_ascii=False).encode()
        else:
            line = record_text(record, self._key_separator)
        sys.stdout.buffer.write(line + b"\n")

    def flush(self) -> None:
        """Whoever reads the other end sees what was shown."""
        sys.stdout.buffer.flush()
