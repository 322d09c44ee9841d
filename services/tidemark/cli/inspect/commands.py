# SPDX-License-Identifier: Apache-2.0
"""`tidemark log dump|verify`: read log directories without a broker; `tidemark replicas verify`: compare replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidemark.cli.common.connection import need_bootstrap
from tidemark.cli.common.options import (
    BootstrapOption,
    Commands,
    JsonOption,
    OnlyTopicsOption,
    OutputOption,
    fits_int32,
)
from tidemark.cli.common.output import Output
from tidemark.cli.common.units import parse_rate
from tidemark.model import INT64_MAX

log_app = Commands(help="Print and check the files of log directories.")
replicas_app = Commands(help="Compare the replicas of partitions.")


@log_app.command(short_help="Print batches or records of a log's files.")
def dump(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A segment or another file of a log; or a directory.")],
    replica: Annotated[
        str, typer.Argument(metavar="REPLICA", help="TOPIC-PARTITION, if PATH is a log directory.")
    ] = "",
    records: Annotated[bool, typer.Option("--records", help="Print records instead of batches.")] = False,
    committed: Annotated[
        bool,
        typer.Option("--committed", help="Omit deleted records, markers, and transactions without a commit."),
    ] = False,
    start: Annotated[int, typer.Option("--from", metavar="OFFSET", min=0, help="First offset.")] = 0,
    end: Annotated[
        int, typer.Option("--to", metavar="OFFSET", min=0, help="Last offset.", show_default=False)
    ] = INT64_MAX,
    verify: Annotated[
        bool, typer.Option("--verify", help="Also decode every payload; exit status 1 for any damage.")
    ] = False,
    schemas: Annotated[
        list[Path] | None,
        typer.Option(
            "--schema",
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="A version of a typed topic's schema, for its rows; repeatable.",
        ),
    ] = None,
    as_json: JsonOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Print the contents of a log's files. The command writes and locks nothing, so a broker may have the files open.

    \b
    A batch is a line with its position, offsets, leader epoch, size and producer. Bytes that are not a valid batch are
    a line that begins with BAD. Lengths and CRCs are always checked. An index, a checkpoint, leader-epoch-checkpoint,
    a producer snapshot, empty-replicas and the .json files are printed as tables. Batches of a typed topic name the
    version of its schema; rows need --schema, a file of tidemark schema show TOPIC --version N --format stored.

    \b
    Examples:
      tidemark log dump data/flights-0
      tidemark log dump data typed-flights-0 --records --schema v1.json --schema v2.json
      tidemark log dump data flights-0 --records --from 1000 --to 1020
      tidemark log dump data flights-0 --records --committed --json
      tidemark log dump data/flights-0/00000000000000000000.log --verify --json | jq .leader_epoch
      tidemark log dump data/flights-0/00000000000000000000.index
      tidemark log dump data/replication-offset-checkpoint
    """
    if end < start:
        raise typer.BadParameter(f"--to {end} is below --from {start}", param_hint="--to")
    # A late import: help and usage errors do not wait for the libraries that read batches.
    from tidemark.cli.inspect import log_dump

    shape = Output.JSON if as_json else output
    readers = log_dump.readers_of(schemas or [])
    log_dump.run(path, replica, log_dump.Wanted(start, end, records, verify, readers, committed), shape)


@log_app.command("verify", short_help="Check all files of log directories.")
def verify_log(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="Log directories, or directories of single replicas.")
    ],
    deep: Annotated[bool, typer.Option("--deep", help="Also decode every payload; several times slower.")] = False,
    compacted: Annotated[
        list[str] | None,
        typer.Option("--compacted", metavar="TOPIC", help="A topic that was compacted: holes are not errors."),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="A broker in another container has DIR open.")] = False,
    as_json: JsonOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Check all files of log directories: CRCs, offsets, indexes, leader epochs, checkpoints, small files.

    \b
    The command writes, locks and repairs nothing. A broker may run: an append in flight is not an error. Each error is
    a line with its file, byte, offsets and next step; then follows a table. Exit status 1 if there is any error.
    Logs that a broker set aside or is deleting are checked and listed too.

    \b
    Examples:
      tidemark log verify /var/lib/tidemark/data
      tidemark log verify data/flights-0 data/flights-1 --deep
      tidemark log verify data --json | jq '.directories[].replicas[].findings[]'
    """
    # A late import: help and usage errors do not wait for the libraries that read batches.
    from tidemark.cli.inspect import log_verify
    from tidemark.storage.inspect.directory_verification import Options

    options = Options(deep=deep, compacted=frozenset(compacted or ()), live=live)
    log_verify.run(directories, options, Output.JSON if as_json else output)


@replicas_app.callback()
def replicas() -> None:
    """Compare the replicas of partitions."""


@replicas_app.command("verify", short_help="Compare all replicas while the cluster runs.")
def verify_replicas(
    topics: OnlyTopicsOption = None,
    partitions: Annotated[
        list[int] | None,
        typer.Option("--partition", metavar="N", help="Only this partition of the single --topic; repeatable."),
    ] = None,
    whole: Annotated[
        bool, typer.Option("--bytes", help="Compare the bytes too, not only lengths, fields and CRCs.")
    ] = False,
    throttle: Annotated[
        str, typer.Option("--throttle", metavar="RATE", help="Bytes of log read per second at most, such as 50MB.")
    ] = "",
    repair: Annotated[
        bool, typer.Option("--repair", help="Have brokers fetch damaged batches from other replicas first.")
    ] = False,
    bootstrap: BootstrapOption = "",
    as_json: JsonOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Compare all replicas of partitions, below the high watermark, while the cluster runs.

    \b
    Each broker reads its replica and checks the CRC of each batch on its disk. The command compares envelopes and
    CRCs, or the records of a topic that was compacted. A replica that is unavailable or lags is reported, but is
    not an error. Exit status 1 if any replicas differ: the line has the offset, the brokers and the next step.

    \b
    Examples:
      tidemark replicas verify
      tidemark replicas verify --topic flights --partition 0 --bytes
      tidemark replicas verify --topic flights --repair
      tidemark replicas verify --throttle 50MB --json | jq 'select(.differences != [])'
    """
    addresses = need_bootstrap(bootstrap)
    if partitions and len(topics or ()) != 1:
        raise typer.BadParameter("--partition needs exactly one --topic", param_hint="--partition")
    for index in partitions or ():
        fits_int32(index)
    rate = parse_rate(throttle) if throttle else 0
    # A late import: help and usage errors do not wait for the client's libraries.
    from tidemark.cli.inspect import replicas_verify

    shape = Output.JSON if as_json else output
    replicas_verify.run(
        addresses,
        topics or [],
        partitions or [],
        shape,
        whole=whole,
        throttle_bytes_per_s=rate,
        repair=repair,
    )
