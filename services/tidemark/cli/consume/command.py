# SPDX-License-Identifier: Apache-2.0
"""`tidemark consume`: print committed records, or write them to a file."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager

import typer

from tidemark.cli.common.connection import need_bootstrap
from tidemark.cli.common.options import check_delimiter
from tidemark.cli.consume.options import ConsumeOptions
from tidemark.client.outputs.record_format import Start, parse_start
from tidemark.client.outputs.shape import Shape


def consume(options: ConsumeOptions) -> None:
    """Print records, one per line, until Ctrl-C, --count, --until-end or --timeout.

    \b
    Exit status 1 if --timeout ends the command before --count. The extension of --file sets its format: .json, .jsonl,
    .ndjson, .csv or .parquet. CSV and Parquet have the columns partition, offset, timestamp, key and value; Parquet
    also has headers. If records go to a file or a pipe, a line on the terminal shows their number and rate. The line
    also shows the number of committed records left to read.

    \b
    A row of a topic with a schema is a JSON object in text, and in the value of JSON. CSV and Parquet have the topic's
    columns; --columns names columns, and brokers send these only. Lines have the newest version of the schema, CSV and
    Parquet the newest of the start; --schema-version names another.

    \b
    With --group the members of the group share the partitions. Offsets of printed records are committed every 5 s, when
    a partition is revoked, and at the end, also by Ctrl-C, SIGTERM, SIGHUP or --timeout. After a kill -9, records that
    were printed but not committed are printed again. A Parquet file is readable only when it is complete, so its
    offsets are committed at the end. --from applies only to partitions without a committed offset: tidemark group
    reset-offsets changes committed offsets.

    \b
    Examples:
      tidemark consume greetings --from earliest
      tidemark consume flights --partition 2 --from offset:1000 --count 10 --output json | jq .value
      tidemark consume flights --from timestamp:2013-01-01T05:00:00Z --timeout 5
      tidemark consume flights --until-end --strings --file flights.parquet
      tidemark consume flights --until-end -o csv > flights.csv
      tidemark consume flights --until-end --columns carrier,leg.origin,_offset --file legs.parquet
      tidemark consume flights --until-end --schema-version 1
      tidemark consume flights --rack eu-west-1a
      tidemark consume orders --group billing
      tidemark consume flights --group nightly --until-end --file new-flights.parquet
    """
    bootstrap, start = need_bootstrap(options.bootstrap), _checked(options)
    # A late import: help and usage errors do not wait for the client's libraries.
    from tidemark.cli.consume.run import Source, run
    from tidemark.cli.consume.topic_source import TopicReader

    def open_source() -> AbstractContextManager[Source]:
        if options.group is None:
            return TopicReader(bootstrap, options, start)
        from tidemark.cli.consume.group_source import GroupSource

        return GroupSource(bootstrap, options, options.group, start.position)

    run(open_source, options)


def _checked(options: ConsumeOptions) -> Start:
    """The start position; raises BadParameter for options that do not fit together."""
    default = "latest" if options.group is None and not options.until_end else "earliest"
    try:
        start = parse_start(default if options.start is None else options.start)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--from") from None
    if options.group is not None and not options.group.strip():
        raise typer.BadParameter("expected the id of a group, such as billing", param_hint="--group")
    if options.group is not None and options.start not in (None, "earliest", "latest"):
        raise typer.BadParameter(
            f"{options.start!r}: a group starts at its committed offsets, which tidemark group reset-offsets changes; "
            "expected earliest or latest, for partitions without a committed offset",
            param_hint="--from",
        )
    if options.group is not None and options.partition is not None:
        raise typer.BadParameter("the members of a group share all partitions", param_hint="--partition")
    check_delimiter(options.delimiter)
    if options.shape is Shape.PARQUET and options.file is None and sys.stdout.isatty():
        raise typer.BadParameter("Parquet needs a --file or a pipe, not a terminal", param_hint="--output")
    return start
