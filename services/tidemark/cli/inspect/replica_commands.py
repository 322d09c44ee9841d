# SPDX-License-Identifier: Apache-2.0
"""`tidemark replicas verify`: compare the replicas of partitions."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.common.options import BootstrapOption, Commands, JsonOption, OutputOption, fits_int32, need_bootstrap
from tidemark.cli.common.output import Output
from tidemark.cli.common.units import parse_rate

replicas_app = Commands(help="Compare the replicas of partitions.")


@replicas_app.callback()
def replicas() -> None:
    """Compare the replicas of partitions."""


@replicas_app.command(short_help="Compare all replicas while the cluster runs.")
def verify(
    topics: Annotated[
        list[str] | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only this topic; repeatable.")
    ] = None,
    partitions: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", help="Only this partition of the single --topic; repeatable."),
    ] = None,
    whole: Annotated[
        bool, typer.Option("--bytes", help="Compare the bytes too, not only lengths, fields and CRCs.")
    ] = False,
    throttle: Annotated[
        str, typer.Option("--throttle", metavar="RATE", help="Bytes of log read per second at most, such as 50MB.")
    ] = "",
    bootstrap: BootstrapOption = "",
    as_json: JsonOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Compare all replicas of partitions, below the high watermark, while the cluster runs.

    \b
    Each broker reads its replica and checks the CRC of each batch on its disk. The command compares envelopes and
    CRCs, or the records of a topic that was compacted. A replica that is unavailable or lags is reported, and is no
    error. Exit status 1 if any replicas differ: the line has the offset, the brokers and the next step.

    \b
    Examples:
      tidemark replicas verify
      tidemark replicas verify --topic flights --partition 0 --bytes
      tidemark replicas verify --throttle 50MB --json | jq 'select(.differences != [])'
    """
    addresses = need_bootstrap(bootstrap)
    if partitions and len(topics or ()) != 1:
        raise typer.BadParameter("--partition needs exactly one --topic", param_hint="--partition")
    for index in partitions or ():
        fits_int32(index)
    rate = parse_rate(throttle) if throttle else 0
    # A late import: help and bad usage shall not wait for the client's libraries.
    from tidemark.cli.inspect import replicas_verify

    shape = Output.JSON if as_json else output
    replicas_verify.run(addresses, topics or [], partitions or [], shape, whole=whole, throttle_bytes_per_s=rate)
