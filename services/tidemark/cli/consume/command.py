# SPDX-License-Identifier: Apache-2.0
"""`tidemark consume`: print committed records, or write them to a file."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tidemark.cli.common.options import BootstrapOption, check_delimiter, need_bootstrap
from tidemark.cli.common.record_format import parse_start


class Shape(StrEnum):
    """Output format of the records."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


StartOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="WHERE",
        help="earliest, latest, offset:N or timestamp:ISO (default zone UTC).",
        show_default="latest; earliest with --until-end or --group",
    ),
]
CountOption = Annotated[
    int | None,
    typer.Option("--count", "--max-records", "--max-messages", "-n", min=1, help="Records to read."),
]
UntilEndOption = Annotated[bool, typer.Option("--until-end", help="End at the current ends of the partitions.")]
TimeoutOption = Annotated[
    float | None, typer.Option("--timeout", min=0.001, help="End after this time (seconds) without a record.")
]
KeySeparatorOption = Annotated[
    str, typer.Option("--key-separator", "-k", metavar="TEXT", help="text: print KEY, this and VALUE; default: VALUE.")
]
DelimiterOption = Annotated[str, typer.Option("--delimiter", metavar="CHAR", help="csv: separator of cells.")]
StringsOption = Annotated[bool, typer.Option("--strings", help="parquet: write keys and values as text, not bytes.")]
FileOption = Annotated[
    Path | None, typer.Option("--file", "-f", dir_okay=False, help="Write to this file instead of stdout; replaces it.")
]
GroupOption = Annotated[
    str | None,
    typer.Option("--group", "-g", metavar="NAME", help="Read as a member of this consumer group."),
]
RackOption = Annotated[
    str, typer.Option("--rack", envvar="TIDEMARK_RACK", help="Rack of this client, for follower fetching.")
]
ShapeOption = Annotated[
    Shape, typer.Option("--output", "--format", "-o", help="Format: lines of values, JSON lines, CSV, or Parquet.")
]


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to read.")],
    start: StartOption = None,
    count: CountOption = None,
    until_end: UntilEndOption = False,
    timeout_s: TimeoutOption = None,
    key_separator: KeySeparatorOption = "",
    delimiter: DelimiterOption = ",",
    strings: StringsOption = False,
    file: FileOption = None,
    group: GroupOption = None,
    rack: RackOption = "",
    bootstrap: BootstrapOption = "",
    output: ShapeOption = Shape.TEXT,
) -> None:
    """Print records, one per line, until Ctrl-C, --count, --until-end or --timeout.

    \b
    Exit status 1 if --timeout ends the command before --count. CSV and Parquet have the columns partition, offset,
    timestamp, key and value; Parquet also has headers. If records go to a file or a pipe, a line on the terminal shows
    their number and rate, and the number of committed records left to read.

    \b
    With --group the members of the group share the partitions. Offsets of printed records are committed every 5 s, when
    a partition is revoked, and at the end, also by Ctrl-C, SIGTERM or --timeout. After a kill -9, records that were
    printed but not committed are printed again. A Parquet file is readable only when it is complete, so its offsets are
    committed at the end. --from applies only to partitions without a committed offset: tidemark group reset-offsets
    changes committed offsets.

    \b
    Examples:
      tidemark consume greetings --from earliest
      tidemark consume flights --from offset:1000 --count 10 --output json | jq .value
      tidemark consume flights --from timestamp:2013-01-01T05:00:00Z --timeout 5
      tidemark consume flights --until-end -o parquet --strings --file flights.parquet
      tidemark consume flights --until-end -o csv > flights.csv
      tidemark consume flights --rack eu-west-1a
      tidemark consume orders --group billing
      tidemark consume flights --group nightly --until-end -o parquet --file new-flights.parquet
    """
    addresses = need_bootstrap(bootstrap)
    default = "latest" if group is None and not until_end else "earliest"
    try:
        where = parse_start(default if start is None else start)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--from") from None
    if group is not None:
        _check_group(group, start)
    check_delimiter(delimiter)
    if output is Shape.PARQUET and file is None and sys.stdout.isatty():
        raise typer.BadParameter("Parquet needs a --file or a pipe, not a terminal", param_hint="--output")
    # A late import: help and bad usage shall not wait for the client's libraries.
    from tidemark.cli.consume.run import Ends, Source, run
    from tidemark.cli.consume.topic_source import TopicReader, patience_s

    def open_source() -> AbstractContextManager[Source]:
        if group is None:
            return TopicReader(addresses, topic, where, until_end=until_end, rack=rack, timeout_s=timeout_s)
        from tidemark.cli.consume.group_source import GroupSource

        return GroupSource(
            addresses,
            topic,
            group,
            where.position,
            until_end=until_end,
            whole_at_end=output is Shape.PARQUET,
            rack=rack,
            patience_s=patience_s(timeout_s),
        )

    ends = Ends(count=count, timeout_s=timeout_s, until_end=until_end)
    layout = {"key_separator": key_separator, "delimiter": delimiter, "strings": strings}
    run(open_source, ends, file, output.value, layout)


def _check_group(group: str, start: str | None) -> None:
    if not group.strip():
        raise typer.BadParameter("want the id of a group, such as billing", param_hint="--group")
    if start not in (None, "earliest", "latest"):
        raise typer.BadParameter(
            f"{start!r}: a group starts at its committed offsets, which tidemark group reset-offsets changes; want "
            "earliest or latest, for partitions without a committed offset",
            param_hint="--from",
        )
