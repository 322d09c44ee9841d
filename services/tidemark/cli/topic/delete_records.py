# SPDX-License-Identifier: Apache-2.0
"""`tidemark topic delete-records`."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.common.confirmation import confirm, refuse_json_question
from tidemark.cli.common.options import AdminOption, BootstrapOption, OutputOption, connect_admin, fits_int32
from tidemark.cli.common.output import Output, print_json, print_line

_I64_MAX = (1 << 63) - 1


def delete_records(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic name.")],
    partition: Annotated[
        int, typer.Option("--partition", "-p", callback=fits_int32, help="Partition index, from 0.", show_default=False)
    ],
    before: Annotated[
        int,
        typer.Option(
            "--before",
            metavar="OFFSET",
            min=-1,
            max=_I64_MAX,
            help="First offset to keep; -1: delete all committed records.",
            show_default=False,
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")] = False,
    bootstrap: BootstrapOption = "",
    admin: AdminOption = "",
    output: OutputOption = Output.TEXT,
) -> None:
    """Delete the oldest records of a partition for ever, on all its replicas.

    \b
    Only committed records can be deleted: an OFFSET above the high watermark is OFFSET_OUT_OF_RANGE. A consumer whose
    position is below OFFSET gets OFFSET_OUT_OF_RANGE with the new log start offset.

    \b
    Examples:
      tidemark topic delete-records flights --partition 0 --before 123
      tidemark topic delete-records flights --partition 0 --before -1 --yes --output json
    """
    refuse_json_question(output, yes=yes, options="--yes")
    if not yes:
        which = "all committed records" if before < 0 else f"the records before offset {before}"
        confirm(f"Delete {which} of {topic}:{partition}?")
    with connect_admin(bootstrap, admin) as client:
        deleted = client.delete_records(topic, partition, before)
    if output is Output.JSON:
        print_json(
            {
                "topic": topic,
                "partition": partition,
                "low_watermark": deleted.low_watermark,
                "log_start_offset": deleted.log_start_offset,
                "behind": list(deleted.behind),
            }
        )
        return
    print_line(f"{topic}:{partition} starts at offset {deleted.log_start_offset}")
    if deleted.behind:
        brokers = ", ".join(str(broker) for broker in deleted.behind)
        print_line(f"not confirmed by broker {brokers}: unavailable or too slow, deletes them later")
