# SPDX-License-Identifier: Apache-2.0
"""`tidemark replicas verify`: whether all replicas of a partition hold the same."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.common.options import BootstrapOption, JsonOption, OutputOption, fits_int32, need_bootstrap
from tidemark.cli.common.output import Output
from tidemark.cli.common.units import parse_rate

replicas_app = typer.Typer(help="Hold the replicas of partitions against one another.", no_args_is_help=True)


@replicas_app.callback()
def replicas() -> None:
    """Hold the replicas of partitions against one another."""


@replicas_app.command(short_help="Compare all replicas while the cluster runs.")
def verify(
    topics: Annotated[
        list[str] | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only this one; repeatable.")
    ] = None,
    partitions: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", help="Only this partition of the one --topic; repeatable."),
    ] = None,
    whole: Annotated[
        bool, typer.Option("--bytes", help="Fetch and compare bytes, not only lengths, fields and CRCs.")
    ] = False,
    throttle: Annotated[
        str, typer.Option("--throttle", metavar="RATE", help="So many bytes of log a second at most, such as 50MB.")
    ] = "",
    bootstrap: BootstrapOption = "",
    as_json: JsonOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Compare all replicas of partitions, below the high watermark, while the cluster runs.

    \b
    Every replica is read from the broker that holds it, which checks each batch's CRC on its disk. Envelopes and CRCs
    are compared, or the records where a topic has been compacted. A replica that is away or behind is said to be so,
    and is no error. Status 1 if any replicas differ: the line says the offset, the brokers and what to do next.

    \b
    Examples:
      tidemark replicas verify
      tidemark replicas verify --topic flights --partition 0 --bytes
      tidemark replicas verify --throttle 50MB --json | jq 'select(.differences != [])'
    """
    addresses = need_bootstrap(bootstrap)
    if partitions and len(topics or ()) != 1:
        raise typer.BadParameter("partitions are those of one topic: add --topic", param_hint="--partition")
    for index in partitions or ():
        fits_int32(index)
    rate = parse_rate(throttle) if throttle else 0
    # Only here: the client's libraries take longer to import than bad usage and help need.
    from tidemark.cli.inspect import replicas_verify
    from tidemark.cli.inspect.read_progress import ReadProgress

    shape = Output.JSON if as_json else output
    replicas_verify.run(addresses, topics or [], partitions or [], ReadProgress(rate), shape, whole=whole)
