"""`tidemark consume`: prints committed records as they come, or writes them to a file."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tidemark.cli.options import BootstrapOption, need_bootstrap
from tidemark.cli.records import parse_start


class Shape(StrEnum):
    """Form of the records."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="What to read.")],
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="earliest, latest, offset:N or timestamp:ISO (UTC if it names no zone).",
            show_default="latest; earliest with --until-end",
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "--max-records", "--max-messages", "-n", min=1, help="End after so many.")
    ] = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="End where the partitions end now; what comes later is not read.")
    ] = False,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", min=0.001, help="End after so many seconds without a record.")
    ] = None,
    key_separator: Annotated[
        str, typer.Option("--key-separator", "-k", metavar="TEXT", help="text: KEY, this, VALUE; else VALUE alone.")
    ] = "",
    delimiter: Annotated[str, typer.Option("--delimiter", metavar="CHAR", help="csv: between cells.")] = ",",
    strings: Annotated[bool, typer.Option("--strings", help="parquet: keys and values are text, not bytes.")] = False,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", dir_okay=False, help="Write here instead of on stdout; replaces it.")
    ] = None,
    rack: Annotated[
        str, typer.Option("--rack", envvar="TIDEMARK_RACK", help="Where this is: a replica in sync there is read from.")
    ] = "",
    bootstrap: BootstrapOption = "",
    output: Annotated[
        Shape, typer.Option("--output", "--format", "-o", help="Lines of values, JSON lines, CSV, or Parquet.")
    ] = Shape.TEXT,
) -> None:
    """Print records, one a line, until Ctrl-C, --count, --until-end or --timeout.

    \b
    Status 1 if --timeout ended it before --count were there. CSV and Parquet have the columns partition, offset,
    timestamp, key and value, Parquet headers too. On a terminal a line shows how much was read, how fast, and how many
    committed records are left to read.

    \b
    Examples:
      tidemark consume greetings --from earliest
      tidemark consume flights --from offset:1000 --count 10 --output json | jq .value
      tidemark consume flights --from timestamp:2013-01-01T05:00:00Z --timeout 5
      tidemark consume flights --until-end -o parquet --strings --file flights.parquet
      tidemark consume flights --until-end -o csv > flights.csv
      tidemark consume flights --rack eu-west-1a
    """
    addresses = need_bootstrap(bootstrap)
    try:
        where = parse_start(start if start is not None else "earliest" if until_end else "latest")
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--from") from None
    if len(delimiter.encode()) != 1:
        raise typer.BadParameter(f"{delimiter!r}: want one character", param_hint="--delimiter")
    if output is Shape.PARQUET and file is None and sys.stdout.isatty():
        raise typer.BadParameter("Parquet is nothing for a terminal: add --file, or a pipe", param_hint="--output")
    # Only here: the client's libraries take longer to import than bad usage and help need.
    from tidemark.cli.consume_run import Ends, run

    ends = Ends(count=count, timeout_s=timeout_s, until_end=until_end)
    layout = {"key_separator": key_separator, "delimiter": delimiter, "strings": strings}
    run(addresses, topic, where, ends, file, output.value, layout, rack=rack)
