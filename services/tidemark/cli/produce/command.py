# SPDX-License-Identifier: Apache-2.0
"""`tidemark produce`: lines, JSON lines, CSV rows or Parquet rows of stdin or of a file, each one a record."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tidemark.cli.common.options import BootstrapOption, OutputOption, need_bootstrap
from tidemark.cli.common.output import Output


class Acks(StrEnum):
    """Who must have a record before it counts as sent."""

    NONE = "0"
    LEADER = "1"
    ALL = "all"


class InputFormat(StrEnum):
    """What is read."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


class Compression(StrEnum):
    """How batches are compressed."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


class TimestampUnit(StrEnum):
    """What a number in the timestamp column counts since 1970."""

    S = "s"
    MS = "ms"
    US = "us"


AcksOption = Annotated[
    Acks, typer.Option("--acks", help="Wait for nobody, the leader's log, or every in-sync replica.")
]
CodecOption = Annotated[Compression, typer.Option("--codec", help="Compress batches with this.")]
KeyColumnOption = Annotated[
    str, typer.Option("--key-column", metavar="NAME", help="Column, or member of the JSON object, with the key.")
]
ValueColumnOption = Annotated[
    str, typer.Option("--value-column", metavar="NAME", help="With the value; else the whole row as JSON.")
]
TimestampColumnOption = Annotated[
    str,
    typer.Option(
        "--timestamp-column",
        metavar="NAME",
        help="With ISO times or numbers; else the time of sending. What is older than retention.ms goes soon.",
    ),
]
TimestampUnitOption = Annotated[
    TimestampUnit, typer.Option("--timestamp-unit", help="Of numbers in the timestamp column, since 1970.")
]


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where to; it must exist.")],
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", exists=True, dir_okay=False, readable=True, help="Read this instead of stdin."),
    ] = None,
    input_format: Annotated[
        InputFormat, typer.Option("--format", help="What is read: lines, JSON lines, CSV with a first row of names.")
    ] = InputFormat.TEXT,
    key_separator: Annotated[
        str, typer.Option("--key-separator", "-k", metavar="TEXT", help="text: KEY, this, VALUE; else VALUE alone.")
    ] = "",
    key: KeyColumnOption = "",
    value: ValueColumnOption = "",
    timestamp: TimestampColumnOption = "",
    timestamp_unit: TimestampUnitOption = TimestampUnit.US,
    delimiter: Annotated[str, typer.Option("--delimiter", metavar="CHAR", help="csv: between cells.")] = ",",
    strings: Annotated[
        bool, typer.Option("--strings", help="csv: every cell is text; else numbers become numbers in the JSON.")
    ] = False,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="End after so many records.")] = None,
    acks: AcksOption = Acks.ALL,
    codec: CodecOption = Compression.NONE,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0.001, max=86_400, help="Seconds until a record must be acknowledged.")
    ] = 30.0,
    bootstrap: BootstrapOption = "",
    output: OutputOption = Output.TEXT,
) -> None:
    """Send lines or rows as records, and wait until every one is acknowledged.

    \b
    Lines go as they come, so a pipe may stay open. A row, or a JSON line, is sent whole as JSON unless --value-column
    names what is sent of it. What cannot be a record ends it with status 1, and says its place and how many records
    before it are acknowledged. On a terminal a line shows how far it is, how fast, and what is not acknowledged yet.

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
    # Only here: the client's libraries take longer to import than bad usage and help need.
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
        raise typer.BadParameter("only lines have one: name a --key-column", param_hint="--key-separator")
    if len(delimiter.encode()) != 1:
        raise typer.BadParameter(f"{delimiter!r}: want one character", param_hint="--delimiter")
