"""`tidemark produce`: lines of stdin or of a file, each one a record."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import Annotated, BinaryIO, Protocol

import typer

from tidemark.cli.options import BootstrapOption, OutputOption, need_bootstrap
from tidemark.cli.output import Output, counted, print_json, print_line
from tidemark.cli.records import read_records
from tidemark.model import TidemarkError


class Acks(StrEnum):
    """Who must have a record before it counts as sent."""

    NONE = "0"
    LEADER = "1"
    ALL = "all"


class Place(Protocol):
    """Where an acknowledged record is."""

    @property
    def partition(self) -> int:
        """Its partition."""


class Sent(Protocol):
    """A send that is done."""

    def result(self) -> Place:
        """Where the record went, or the TidemarkError why it did not."""


class Tally:
    """What became of the sends; told from the client's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.by_partition: Counter[int] = Counter()
        self.failed = 0
        self.first_error: TidemarkError | None = None

    def note(self, sent: Sent) -> None:
        """One send is done."""
        try:
            partition = sent.result().partition
        except TidemarkError as error:
            with self._lock:
                self.failed += 1
                self.first_error = self.first_error or error
        else:
            with self._lock:
                self.by_partition[partition] += 1

    @property
    def acknowledged(self) -> int:
        """Number of records."""
        return self.by_partition.total()


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where to; it must exist.")],
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", exists=True, dir_okay=False, readable=True, help="Read this instead of stdin."),
    ] = None,
    key_separator: Annotated[
        str, typer.Option("--key-separator", "-k", metavar="TEXT", help="A line is KEY, this, VALUE; else VALUE alone.")
    ] = "",
    acks: Annotated[
        Acks, typer.Option("--acks", help="Wait for nobody, the leader's log, or every in-sync replica.")
    ] = Acks.ALL,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0.001, max=86_400, help="Seconds until a record must be acknowledged.")
    ] = 30.0,
    bootstrap: BootstrapOption = "",
    output: OutputOption = Output.TEXT,
) -> None:
    """Send lines as records, and wait until every one is acknowledged.

    \b
    Examples:
      echo hello | tidemark produce greetings
      tidemark produce flights --file flights.tsv --key-separator ,
      printf 'AA=1\\nUA=2\\n' | tidemark produce counts --key-separator = --acks 1
    """
    addresses = need_bootstrap(bootstrap)
    if file is None:
        tally = _send(sys.stdin.buffer, topic, addresses, key_separator, acks, timeout_s)
    else:
        with file.open("rb") as lines:
            tally = _send(lines, topic, addresses, key_separator, acks, timeout_s)
    if output is Output.JSON:
        by_partition = {str(partition): tally.by_partition[partition] for partition in sorted(tally.by_partition)}
        print_json(
            {"topic": topic, "acknowledged": tally.acknowledged, "failed": tally.failed, "partitions": by_partition}
        )
    elif tally.first_error is None:
        print_line(f"sent {counted(tally.acknowledged, 'record')} to {topic}")
    if tally.first_error is not None:
        error = tally.first_error
        sentence = f"{tally.failed} records were not acknowledged, {tally.acknowledged} were: {error.message}"
        raise TidemarkError(error.code, sentence, error.metadata)


def _send(lines: BinaryIO, topic: str, bootstrap: str, key_separator: str, acks: Acks, timeout_s: float) -> Tally:
    """Every line; one that cannot be a record ends it, after the lines before it are sent."""
    # Only here: the client's libraries take longer to import than most commands to run.
    from tidemark.client import Producer

    tally = Tally()
    refused: TidemarkError | None = None
    with Producer(bootstrap, acks=acks.value, delivery_timeout_ms=max(1, int(timeout_s * 1000))) as producer:
        try:
            for record in read_records(lines, key_separator):
                producer.send(topic, record.value, key=record.key).add_done_callback(tally.note)
                if tally.first_error is not None:
                    break
        except TidemarkError as error:
            refused = error
        producer.flush()
    if refused is not None and tally.first_error is None:
        sentence = f"{refused.message}; the {tally.acknowledged} records before it are sent"
        raise TidemarkError(refused.code, sentence if tally.acknowledged else refused.message, refused.metadata)
    return tally
