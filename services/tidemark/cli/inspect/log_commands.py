# SPDX-License-Identifier: Apache-2.0
"""`tidemark log dump|verify`: what lies in log directories, looked at from outside of any broker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidemark.cli.common.options import JsonOption, OutputOption
from tidemark.cli.common.output import Output

_I64_MAX = (1 << 63) - 1

log_app = typer.Typer(help="Look into log directories: what is in them, and whether it is whole.", no_args_is_help=True)


@log_app.command(short_help="Print batches or records of a log's files.")
def dump(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A segment or another file of a log, or a directory.")],
    replica: Annotated[
        str, typer.Argument(metavar="REPLICA", help="Which one, as TOPIC-PARTITION, where PATH is a log directory.")
    ] = "",
    records: Annotated[bool, typer.Option("--records", "-r", help="The records instead of the batches.")] = False,
    start: Annotated[int, typer.Option("--from", metavar="OFFSET", min=0, help="First offset.")] = 0,
    end: Annotated[
        int, typer.Option("--to", metavar="OFFSET", min=0, help="Last offset.", show_default=False)
    ] = _I64_MAX,
    verify: Annotated[
        bool, typer.Option("--verify", help="Decode every payload too, and end with status 1 if anything is wrong.")
    ] = False,
    as_json: JsonOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Print what a log's files hold; nothing is written or locked, so a broker may have them open.

    \b
    A batch is a line with its place, offsets, leader epoch, size and producer; what is no batch is a line that begins
    with BAD. Lengths and CRCs are always checked. An index, a checkpoint, leader-epoch-checkpoint, a producer snapshot,
    empty-replicas and the .json files come as tables.

    \b
    Examples:
      tidemark log dump data/flights-0
      tidemark log dump data flights-0 --records --from 1000 --to 1020
      tidemark log dump data/flights-0/00000000000000000000.log --verify --json | jq .leader_epoch
      tidemark log dump data/flights-0/00000000000000000000.index
      tidemark log dump data/replication-offset-checkpoint
    """
    if end < start:
        raise typer.BadParameter(f"--to {end} is below --from {start}", param_hint="--to")
    # Only here: bad usage and help do without the libraries that read batches.
    from tidemark.cli.inspect import log_dump

    shape = Output.JSON if as_json else output
    log_dump.run(path, replica, log_dump.Wanted(start, end, records, verify), shape)


@log_app.command(short_help="Check everything in log directories.")
def verify(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="Log directories, or the directories of single replicas.")
    ],
    deep: Annotated[bool, typer.Option("--deep", help="Decode every payload too; several times slower.")] = False,
    compacted: Annotated[
        list[str] | None,
        typer.Option("--compacted", metavar="TOPIC", help="It was compacted once, so holes are no error; repeatable."),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="A broker has DIR open though it cannot be seen: in another container.")
    ] = False,
    as_json: JsonOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Check everything in log directories: CRCs, offsets, indexes, epochs, checkpoints, small files.

    \b
    Nothing is written, locked or repaired, and a broker may run: what it is just writing is no error. Every error is
    a line with its file, byte and offset, and what to do next; then comes a table. Status 1 if there is any error.
    What a broker has set aside or is deleting is looked at too, and listed.

    \b
    Examples:
      tidemark log verify /var/lib/tidemark/data
      tidemark log verify data/flights-0 data/flights-1 --deep
      tidemark log verify data --json | jq '.directories[].replicas[].findings[]'
    """
    # Only here: bad usage and help do without the libraries that read batches.
    from tidemark.cli.inspect import log_verify
    from tidemark.storage.inspect.directory_verification import Options

    options = Options(deep=deep, compacted=frozenset(compacted or ()), live=live)
    log_verify.run(directories, options, Output.JSON if as_json else output)
