# SPDX-License-Identifier: Apache-2.0
"""`tidemark produce`: send lines, JSON lines, CSV rows or Parquet rows of stdin or of a file as records."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tidemark.cli.common.options import BootstrapOption, OutputOption, need_bootstrap
from tidemark.cli.common.output import Output


class Acks(StrEnum):
    """Condition of the acknowledgement of a record."""

    NONE = "0"
    LEADER = "1"
    ALL = "all"


class InputFormat(StrEnum):
    """Format of the input."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


class Compression(StrEnum):
    """Codec of the batches."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


class TimestampUnit(StrEnum):
    """Unit of numbers in the timestamp column, since 1970."""

    S = "s"
    MS = "ms"
    US = "us"


AcksOption = Annotated[
    Acks, typer.Option("--acks", help="Wait for no answer, the leader's log, or all in-sync replicas.")
]
CodecOption = Annotated[Compression, typer.Option("--codec", help="Compression of batches.")]
KeyColumnOption = Annotated[
    str, typer.Option("--key-column", metavar="NAME", help="Column, or member of the JSON object, of the key.")
]
ValueColumnOption = Annotated[
    str, typer.Option("--value-column", metavar="NAME", help="Column of the value; default: the whole row as JSON.")
]
TimestampColumnOption = Annotated[
    str,
    typer.Option(
        "--timestamp-column",
        metavar="NAME",
        help="Column of ISO times or numbers; default: time of sending. retention.ms deletes old records soon.",
    ),
]
TimestampUnitOption = Annotated[
    TimestampUnit, typer.Option("--timestamp-unit", help="Unit of numbers in the timestamp column, since 1970.")
]


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="An existing topic.")],
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", exists=True, dir_okay=False, readable=True, help="Read this instead of stdin."),
    ] = None,
    input_format: Annotated[
        InputFormat, typer.Option("--format", help="Input: lines, JSON lines, CSV with a header row, or Parquet.")
    ] = InputFormat.TEXT,
    key_separator: Annotated[
        str,
        typer.Option("--key-separator", "-k", metavar="TEXT", help="text: separator of key and value."),
    ] = "",
    key: KeyColumnOption = "",
    value: ValueColumnOption = "",
    timestamp: TimestampColumnOption = "",
    timestamp_unit: TimestampUnitOption = TimestampUnit.US,
    delimiter: Annotated[str, typer.Option("--delimiter", metavar="CHAR", help="csv: separator of cells.")] = ",",
    strings: Annotated[
        bool, typer.Option("--strings", help="csv: all cells are text in the JSON, also numbers.")
    ] = False,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Number of records to send.")] = None,
    acks: AcksOption = Acks.ALL,
    codec: CodecOption = Compression.NONE,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0.001, max=86_400, help="Seconds until the acknowledgement of a record.")
    ] = 30.0,
    bootstrap: BootstrapOption = "",
    output: OutputOption = Output.TEXT,
) -> None:
    """Send lines or rows as records, and wait until all are acknowledged.

    \b
    Lines are sent as they arrive, so a pipe may stay open. A row or JSON line is sent as JSON, unless --value-column
    names the value. Malformed input ends the command with exit status 1; the error has the place and the number of
    records acknowledged before. On a terminal a line shows the progress, the rate, and records without acknowledgement.

    \b
    Examples:
      echo hello | tidemark produce greetings
      tidemark produce flights --file flights.tsv --key-separator ,
      tidemark produce flights --file flights.csv --format csv --key-column carrier --timestamp-column time_hour
      tail -f app.jsonl | tidemark produce logs --format json --key-column host
      tidemark produce flights -f flights.parquet --format parquet --key-column carrier --codec zstd
      tidemark consume a --until-end -o json | tidemark produce b --format json --key-column key --value-column value
    """
    addresses = need_bootstrap(bootstrap)
    named = {"--key-column": key, "--value-column": value, "--timestamp-column": timestamp}
    _check_usage(input_format, [option for option, given in named.items() if given], key_separator, delimiter)
    # A late import: help and bad usage shall not wait for the client's libraries.
    from tidemark.cli.produce.inputs import Columns
    from tidemark.cli.produce.run import Job, run

    job = Job(
        topic=topic,
        file=file,
        input_format=input_format.value,
        columns=Columns(key or None, value or None, timestamp or None, timestamp_unit.value),
        key_separator=key_separator,
        delimiter=delimiter,
        strings=strings,
        count=count,
    )
    run(addresses, job, output, acks=acks.value, codec=codec.value, timeout_s=timeout_s)


def _check_usage(input_format: InputFormat, named: list[str], key_separator: str, delimiter: str) -> None:
    if named and input_format is InputFormat.TEXT:
        raise typer.BadParameter("lines have no columns: add --format json, csv or parquet", param_hint=named[0])
    if key_separator and input_format is not InputFormat.TEXT:
        raise typer.BadParameter("only for lines: use --key-column", param_hint="--key-separator")
    if len(delimiter.encode()) != 1:
        raise typer.BadParameter(f"{delimiter!r}: want one character", param_hint="--delimiter")
