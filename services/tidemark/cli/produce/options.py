# SPDX-License-Identifier: Apache-2.0
"""Options of `tidemark produce`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tidemark.cli.common import completion
from tidemark.client.outputs.record_format import format_of


class Acks(StrEnum):
    """Condition of the acknowledgement of a record."""

    NONE = "0"
    LEADER = "1"
    ALL = "all"


class InputFormat(StrEnum):
    """Formats of the input of `tidemark produce`."""

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


@dataclass(frozen=True, slots=True)
class Job:
    """Topic, input and producer of one command."""

    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="An existing topic.", autocompletion=completion.topics)]
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            metavar="FILE",
            exists=True,
            dir_okay=False,
            readable=True,
            help="Read this file instead of stdin.",
        ),
    ] = None
    input_format: Annotated[
        InputFormat | None,
        typer.Option(
            "--format",
            help="Input: lines, JSON lines, CSV with a header row, or Parquet.",
            show_default="by the extension of --file; otherwise text",
        ),
    ] = None
    key_separator: Annotated[
        str,
        typer.Option("--key-separator", "-k", metavar="CHARS", help="text: separator of key and value."),
    ] = ""
    key: Annotated[
        str, typer.Option("--key-column", metavar="NAME", help="Column, or member of the JSON object, of the key.")
    ] = ""
    value: Annotated[
        str, typer.Option("--value-column", metavar="NAME", help="Column of the value; default: the whole row as JSON.")
    ] = ""
    timestamp: Annotated[
        str,
        typer.Option(
            "--timestamp-column",
            metavar="NAME",
            help="Column of ISO times or numbers; default: time of sending. retention.ms deletes old records soon.",
        ),
    ] = ""
    timestamp_unit: Annotated[
        TimestampUnit, typer.Option("--timestamp-unit", help="Unit of numbers in the timestamp column, since 1970.")
    ] = TimestampUnit.US
    delimiter: Annotated[str, typer.Option("--delimiter", metavar="CHAR", help="csv: separator of cells.")] = ","
    strings: Annotated[bool, typer.Option("--strings", help="csv: all cells are text in the JSON, also numbers.")] = (
        False
    )
    count: Annotated[
        int | None, typer.Option("--count", "-n", metavar="N", min=1, help="Number of records to send.")
    ] = None
    reject_file: Annotated[
        Path | None,
        typer.Option(
            "--reject-file",
            metavar="FILE",
            dir_okay=False,
            help="For a typed topic: write rows that do not fit the schema to this file; send all other rows.",
        ),
    ] = None
    acks: AcksOption = Acks.ALL
    codec: CodecOption = Compression.NONE
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            min=0.001,
            max=86_400,
            help="Time until the acknowledgement of a record.",
        ),
    ] = 30.0

    @property
    def typed_format(self) -> InputFormat:
        """Format of the input of a typed topic: a pipe has JSON lines."""
        return InputFormat.JSON if self.input_format is None and self.file is None else self.format

    @property
    def format(self) -> InputFormat:
        """Format of the input: the given one, else from the extension of the file."""
        return InputFormat(format_of(self.file)) if self.input_format is None else self.input_format
