# SPDX-License-Identifier: Apache-2.0
"""`tidemark topic add-partitions|remove-partitions`: change the number of partitions of a topic (rules C4, C7)."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.common.confirmation import confirm, refuse_json_question
from tidemark.cli.common.options import AdminOption, BootstrapOption, OutputOption, connect_admin, fits_int32
from tidemark.cli.common.output import Output, counted, describe_topic, print_json, print_line, topic_json
from tidemark.cli.reassign.plan_view import parse_brokers

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic name.")]
TotalOption = Annotated[int, typer.Option("--total", callback=fits_int32, help="New number of partitions.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Check and show the result; change nothing.")]


def add_partitions(
    topic: TopicArgument,
    total: TotalOption,
    replicas: Annotated[
        list[str] | None,
        typer.Option("--replicas", metavar="1,2,0", help="Replicas of one new partition, in order; once for each."),
    ] = None,
    dry_run: DryRunOption = False,
    bootstrap: BootstrapOption = "",
    admin: AdminOption = "",
    output: OutputOption = Output.TEXT,
) -> None:
    """Add partitions to a topic until it has TOTAL, and wait until each has a leader.

    \b
    The new partitions are empty; their replicas are placed as for a new topic. A later record may go to another
    partition than an earlier record with the same key, since the partition of a key depends on the number of
    partitions. The command is idempotent.

    \b
    Examples:
      tidemark topic add-partitions flights --total 12
      tidemark topic add-partitions flights --total 12 --dry-run
      tidemark topic add-partitions flights --total 8 --replicas 1,2,0 --replicas 2,0,1
    """
    assignments = [parse_brokers([brokers]) for brokers in replicas or []]
    with connect_admin(bootstrap, admin) as client:
        view = client.create_partitions(topic, total, assignments=assignments, validate_only=dry_run)
    if output is Output.JSON:
        print_json({**topic_json(view), "changed": not dry_run})
        return
    verb = "would have" if dry_run else "has"
    print_line(f"topic {topic} {verb} {counted(len(view.partitions), 'partition')}")
    if dry_run:
        for line in describe_topic(view):
            print_line(line)


def remove_partitions(
    topic: TopicArgument,
    total: TotalOption,
    force: Annotated[bool, typer.Option("--force", help="Also remove partitions with records.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation before records are deleted.")] = False,
    dry_run: DryRunOption = False,
    bootstrap: BootstrapOption = "",
    admin: AdminOption = "",
    output: OutputOption = Output.TEXT,
) -> None:
    """Remove the highest partitions of a topic until it has TOTAL, and wait for the end of the deletion.

    \b
    A partition first refuses produce, and is removed only if it is empty. Otherwise the answer is PARTITION_NOT_EMPTY,
    and the partition stays: wait until retention has deleted its records, or give --force. Consumers of a removed
    partition get an error. A partition that is added later with the same index is new, and starts at offset 0.

    \b
    Examples:
      tidemark topic remove-partitions flights --total 4
      tidemark topic remove-partitions flights --total 4 --dry-run
      tidemark topic remove-partitions flights --total 4 --force --yes
    """
    if force:
        refuse_json_question(output, yes=yes, dry_run=dry_run)
    with connect_admin(bootstrap, admin) as client:
        if force and not (yes or dry_run):
            planned = client.delete_partitions(topic, total_count=total, validate_only=True)
            if planned.partitions:
                which = f"{counted(len(planned.partitions), 'partition')} of {topic}{_range(planned.partitions)}"
                confirm(f"Delete {which} with all their records?")
        removed = client.delete_partitions(topic, total_count=total, force=force, validate_only=dry_run)
    if output is Output.JSON:
        print_json({**topic_json(removed.topic), "removed": list(removed.partitions), "changed": not dry_run})
        return
    verb = "would be removed from" if dry_run else "removed from"
    print_line(f"{counted(len(removed.partitions), 'partition')} {verb} topic {topic}{_range(removed.partitions)}")


def _range(partitions: tuple[int, ...]) -> str:
    if not partitions:
        return ""
    first, last = partitions[0], partitions[-1]
    return f" ({first})" if first == last else f" ({first} to {last})"
