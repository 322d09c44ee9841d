# SPDX-License-Identifier: Apache-2.0
"""`tidemark consume`: prints committed records as they come, or writes them to a file."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tidemark.cli.common.options import BootstrapOption, need_bootstrap
from tidemark.cli.common.record_format import parse_start


class Shape(StrEnum):
    """Form of the records."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


StartOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="WHERE",
        help="earliest, latest, offset:N or timestamp:ISO (UTC if it names no zone).",
        show_default="latest; earliest with --until-end or --group",
    ),
]
CountOption = Annotated[
    int | None, typer.Option("--count", "--max-records", "--max-messages", "-n", min=1, help="End after so many.")
]
UntilEndOption = Annotated[
    bool, typer.Option("--until-end", help="End where the partitions end now; what comes later is not read.")
]
TimeoutOption = Annotated[
    float | None, typer.Option("--timeout", min=0.001, help="End after so many seconds without a record.")
]
KeySeparatorOption = Annotated[
    str, typer.Option("--key-separator", "-k", metavar="TEXT", help="text: KEY, this, VALUE; else VALUE alone.")
]
DelimiterOption = Annotated[str, typer.Option("--delimiter", metavar="CHAR", help="csv: between cells.")]
StringsOption = Annotated[bool, typer.Option("--strings", help="parquet: keys and values are text, not bytes.")]
FileOption = Annotated[
    Path | None, typer.Option("--file", "-f", dir_okay=False, help="Write here instead of on stdout; replaces it.")
]
GroupOption = Annotated[
    str | None,
    typer.Option(
        "--group", "-g", metavar="NAME", help="Read as a member of this consumer group, which goes on next time."
    ),
]
RackOption = Annotated[
    str, typer.Option("--rack", envvar="TIDEMARK_RACK", help="Where this is: a replica in sync there is read from.")
]
ShapeOption = Annotated[
    Shape, typer.Option("--output", "--format", "-o", help="Lines of values, JSON lines, CSV, or Parquet.")
]


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="What to read.")],
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
    """Print records, one a line, until Ctrl-C, --count, --until-end or --timeout.

    \b
    Status 1 if --timeout ended it before --count were there. CSV and Parquet have the columns partition, offset,
    timestamp, key and value, Parquet headers too. On a terminal a line shows how much was read, how fast, and how many
    committed records are left to read.

    \b
    With --group the partitions are shared with the group's other members, and the group remembers what was printed:
    every 5 s, when another member takes a partition over, and at the end, also by Ctrl-C, SIGTERM or --timeout. What a
    kill -9 left uncommitted is printed again. Parquet can be read only once it is whole: it is committed at the end.
    --from is for partitions of which the group has read nothing yet: tidemark group reset-offsets moves it elsewhere.

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
    unless_told = "latest" if group is None and not until_end else "earliest"
    try:
        where = parse_start(unless_told if start is None else start)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--from") from None
    if group is not None:
        _check_group(group, start)
    if len(delimiter.encode()) != 1:
        raise typer.BadParameter(f"{delimiter!r}: want one character", param_hint="--delimiter")
    if output is Shape.PARQUET and file is None and sys.stdout.isatty():
        raise typer.BadParameter("Parquet is nothing for a terminal: add --file, or a pipe", param_hint="--output")
    # Only here: the client's libraries take longer to import than bad usage and help need.
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
            f"{start!r}: a group goes on where it is; move it with tidemark group reset-offsets, or say earliest or "
            "latest, for partitions of which it has read nothing yet",
            param_hint="--from",
        )
