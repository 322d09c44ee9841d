# SPDX-License-Identifier: Apache-2.0
"""Options of `tidemark consume`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from tidemark.cli.common import completion
from tidemark.cli.common.options import BootstrapOption
from tidemark.client.outputs.record_format import format_of
from tidemark.client.outputs.shape import Shape

CLIENT_ID: Final = "tidemark consume"
_DEADLINE_S: Final = 30.0
_CONNECT_S: Final = 1.0
"""A --timeout below this time is extended by up to half a second for the connection, to this time at most."""


class IsolationLevel(StrEnum):
    """Isolation levels of `tidemark consume`."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """The records to read, the end of reading, and the output."""

    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to read.", autocompletion=completion.topics)]
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="earliest, latest, offset:N or timestamp:ISO (default zone UTC).",
            show_default="latest; earliest with --until-end or --group",
        ),
    ] = None
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition",
            metavar="N",
            min=0,
            max=2**31 - 1,
            help="Only this partition.",
            show_default="all",
        ),
    ] = None
    count: Annotated[
        int | None,
        typer.Option("--count", "--max-records", "--max-messages", "-n", metavar="N", min=1, help="Records to read."),
    ] = None
    until_end: Annotated[bool, typer.Option("--until-end", help="End at the current ends of the partitions.")] = False
    timeout_s: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", min=0.001, help="End after this time without a record."),
    ] = None
    key_separator: Annotated[
        str,
        typer.Option("--key-separator", "-k", metavar="CHARS", help="text: print KEY, this and VALUE; default: VALUE."),
    ] = ""
    delimiter: Annotated[str, typer.Option("--delimiter", metavar="CHAR", help="csv: separator of cells.")] = ","
    strings: Annotated[bool, typer.Option("--strings", help="parquet: write keys and values as text, not bytes.")] = (
        False
    )
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns",
            metavar="NAMES",
            help="Of a typed topic: read these columns only, such as carrier,leg.origin,_offset.",
        ),
    ] = None
    schema_version: Annotated[
        int | None,
        typer.Option(
            "--schema-version",
            metavar="N",
            min=1,
            help="For a typed topic: print all rows in this version of the schema.",
            show_default="the newest",
        ),
    ] = None
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            metavar="FILE",
            dir_okay=False,
            help="Write to this file instead of stdout; replaces it.",
        ),
    ] = None
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="GROUP",
            help="Read as a member of this consumer group.",
            autocompletion=completion.groups,
        ),
    ] = None
    rack: Annotated[
        str,
        typer.Option(
            "--rack", envvar="TIDEMARK_RACK", metavar="RACK", help="Rack of this client, for follower fetching."
        ),
    ] = ""
    isolation_level: Annotated[
        IsolationLevel,
        typer.Option("--isolation-level", help="read_committed: omit records of transactions without a commit."),
    ] = IsolationLevel.READ_UNCOMMITTED
    bootstrap: BootstrapOption = ""
    output: Annotated[
        Shape | None,
        typer.Option(
            "--output",
            "--format",
            "-o",
            help="Format: lines of values, JSON lines, CSV, or Parquet.",
            show_default="by the extension of --file; otherwise text",
        ),
    ] = None

    @property
    def named_columns(self) -> list[str] | None:
        """The columns of a typed topic to read; None: all."""
        return None if self.columns is None else [name.strip() for name in self.columns.split(",") if name.strip()]

    @property
    def shape(self) -> Shape:
        """Output format: the given one, else from the extension of the file."""
        return Shape(format_of(self.file)) if self.output is None else self.output

    @property
    def patience_s(self) -> float:
        """Time limit for an answer of the brokers, and for a partition without a leader."""
        if self.timeout_s is None:
            return _DEADLINE_S
        return min(_DEADLINE_S, max(self.timeout_s, min(self.timeout_s + _CONNECT_S / 2, _CONNECT_S)))
