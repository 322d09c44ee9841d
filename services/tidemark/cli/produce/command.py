# SPDX-License-Identifier: Apache-2.0
"""`tidemark produce`: send lines, JSON lines, CSV rows or Parquet rows of stdin or of a file as records."""

from __future__ import annotations

import typer

from tidemark.cli.common.connection import need_bootstrap
from tidemark.cli.common.options import BootstrapOption, OutputOption, check_delimiter
from tidemark.cli.common.output import Output
from tidemark.cli.produce.options import InputFormat, Job


def produce(job: Job, bootstrap: BootstrapOption = "", output: OutputOption = Output.TEXT) -> None:
    """Send lines or rows as records, and wait until all are acknowledged.

    \b
    Lines are sent as they arrive, so a pipe may stay open. The extension of --file sets its format: .json, .jsonl,
    .ndjson, .csv or .parquet; for a pipe, use --format. A row or JSON line is sent as JSON, unless --value-column
    names the value. Malformed input ends the command with exit status 1; the error has the place and the number of
    records acknowledged before. On a terminal a line shows the progress, the rate, and records without acknowledgement.

    \b
    A topic with a schema gets rows: columns are matched by name, and a pipe has JSON lines. The first row that does not
    fit ends the command, unless --reject-file takes such rows, each with its line, column and reason.

    \b
    Examples:
      echo hello | tidemark produce greetings
      tidemark produce flights --file flights.tsv --key-separator ,
      tidemark produce flights --file flights.csv --key-column carrier --timestamp-column time_hour
      tail -f app.jsonl | tidemark produce logs --format json --key-column host
      tidemark produce flights -f flights.parquet --key-column carrier --codec zstd
      tidemark produce typed-flights --file flights.csv --reject-file rejected.jsonl
      tidemark consume a --until-end -o json | tidemark produce b --format json --key-column key --value-column value
    """
    addresses = need_bootstrap(bootstrap)
    _check_usage(job)
    # A late import: help and usage errors do not wait for the client's libraries.
    from tidemark.cli.produce.run import run

    run(addresses, job, output)


def _check_usage(job: Job) -> None:
    columns = {"--key-column": job.key, "--value-column": job.value, "--timestamp-column": job.timestamp}
    named = [option for option, given in columns.items() if given]
    if named and job.format is InputFormat.TEXT:
        raise typer.BadParameter("lines have no columns: add --format json, csv or parquet", param_hint=named[0])
    if job.key_separator and job.format is not InputFormat.TEXT:
        raise typer.BadParameter("only for lines: use --key-column, or add --format text", param_hint="--key-separator")
    check_delimiter(job.delimiter)
