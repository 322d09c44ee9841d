# SPDX-License-Identifier: Apache-2.0
"""`tidemark group`: show consumer groups, reset their offsets, delete them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli.common import completion
from tidemark.cli.common.connection import need_bootstrap
from tidemark.cli.common.options import (
    BootstrapOption,
    Commands,
    DryRunOption,
    OutputOption,
    YesOption,
    confirm,
    parse_targets,
    refuse_json_question,
)
from tidemark.cli.common.output import Output, counted, print_json, print_line, print_table
from tidemark.client.outputs.record_format import parse_start

if TYPE_CHECKING:
    from tidemark.client.aio.groups import GroupDescription, GroupPartition
    from tidemark.client.sync.groups import Groups

group_app = Commands(help="Show consumer groups, reset their offsets, delete them.")

GroupsArgument = Annotated[
    list[str], typer.Argument(metavar="GROUP", help="Group ids.", autocompletion=completion.groups)
]
GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="Group id.", autocompletion=completion.groups)]


@group_app.command("list")
def list_groups(bootstrap: BootstrapOption = "", output: OutputOption = Output.TEXT) -> None:
    """List the groups of the cluster.

    \b
    Example:
      tidemark group list --output json | jq -r '.groups[].group'
    """
    with _connect(bootstrap) as groups:
        found, missing = groups.list_groups()
    if output is Output.JSON:
        print_json({"groups": [one._asdict() for one in found], "missing": [error.message for error in missing]})
    elif found:
        rows = [(one.group, one.state, one.members, one.coordinator_id) for one in found]
        print_table(("group", "state", "members", "coordinator"), rows)
    elif not missing:
        print_line("there is no consumer group")
    for error in missing:
        sys.stderr.write(f"some groups may be missing: {error.message}\n")


@group_app.command(short_help="Show offsets, lag and members of groups.")
def describe(
    groups: GroupsArgument,
    members: Annotated[bool, typer.Option("--members", help="Show members instead of offsets.")] = False,
    bootstrap: BootstrapOption = "",
    output: OutputOption = Output.TEXT,
) -> None:
    """Show committed offsets, lag and members of groups.

    \b
    All partitions are shown of each topic that the group reads: members subscribe to it, or it has a committed offset.
    The lag of a partition without a committed offset counts from the log start offset. An offset that an open
    transaction has written is pending: consumers of the group wait for the end of the transaction.

    \b
    Examples:
      tidemark group describe readers
      tidemark group describe readers --members
      tidemark group describe readers --output json | jq '.[0].lag'
    """
    with _connect(bootstrap) as client:
        found = client.describe_groups(groups)
    if output is Output.JSON:
        print_json([_description_json(one) for one in found])
        return
    for one in found:
        unknown = one.partitions_of_unknown_lag
        more = f", {counted(unknown, 'partition')} of unknown lag" if unknown else ""
        print_line(
            f"group {one.group}: {one.state}, {counted(len(one.members), 'member')}, lag {one.lag}{more}; "
            f"coordinator: broker {one.coordinator_id}"
        )
        if members:
            _print_members(one)
        else:
            _print_offsets(one)


@group_app.command("reset-offsets", short_help="Set the offsets of a group without members.")
def reset_offsets(
    group: GroupArgument,
    topics: Annotated[
        list[str],
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:PARTITION]",
            help="Topic or partition; repeatable.",
            autocompletion=completion.places,
        ),
    ],
    to: Annotated[
        str, typer.Option("--to", metavar="WHERE", help="earliest, latest, offset:N or timestamp:ISO (UTC by default).")
    ],
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    bootstrap: BootstrapOption = "",
    output: OutputOption = Output.TEXT,
) -> None:
    """Set the committed offsets of a group; its members must be stopped.

    \b
    An offset below the log start offset becomes the log start offset, one above the log end the log end.

    \b
    Examples:
      tidemark group reset-offsets readers --topic flights --to earliest --dry-run
      tidemark group reset-offsets readers --topic flights:0 --to offset:1000 --yes
      tidemark group reset-offsets readers --topic flights --to timestamp:2013-01-01T05:00:00Z
    """
    try:
        where = parse_start(to)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--to") from None
    refuse_json_question(output, yes=yes, dry_run=dry_run)
    names, partitions = parse_targets(topics)
    addresses = need_bootstrap(bootstrap)
    from tidemark.client.group.offset_reset import refusal_of, start_of

    with _connect(addresses) as client:
        plan = client.plan_reset(group, start_of(where), topics=names, partitions=partitions)
        if output is Output.TEXT:
            shown = [(str(one.partition), "-" if one.before < 0 else one.before, one.offset) for one in plan]
            print_table(("partition", "offset", "becomes"), shown)
        if not dry_run:
            if not yes:
                confirm(f"Set the offsets of group {group} in {counted(len(plan), 'partition')}?")
            refusal = refusal_of(client.set_offsets(group, plan), len(plan))
            if refusal is not None:
                raise refusal
    if output is Output.JSON:
        changes = [{**one.partition._asdict(), "before": one.before, "offset": one.offset} for one in plan]
        print_json({"group": group, "changed": not dry_run, "partitions": changes})
    elif not dry_run:
        print_line(f"group {group} has these offsets")


@group_app.command(short_help="Delete groups without members.")
def delete(
    groups: GroupsArgument,
    yes: YesOption = False,
    bootstrap: BootstrapOption = "",
    output: OutputOption = Output.TEXT,
) -> None:
    """Delete groups without members, with their committed offsets.

    \b
    Example:
      tidemark group delete readers writers --yes
    """
    refuse_json_question(output, yes=yes, options="--yes")
    groups = list(dict.fromkeys(groups))
    with _connect(bootstrap) as client:
        client.describe_groups(groups, offsets=False)  # for a missing group, the command ends here
        if not yes:
            confirm(f"Delete {', '.join(groups)} with all committed offsets?")
        deleted: list[str] = []
        try:
            for group in groups:
                client.delete(group)
                deleted.append(group)
                if output is Output.TEXT:
                    print_line(f"deleted group {group}")
        finally:
            if output is Output.JSON:
                print_json({"deleted": deleted})


def _connect(bootstrap: str) -> Groups:
    addresses = need_bootstrap(bootstrap)
    # A late import: help and usage errors do not wait for the client's libraries.
    from tidemark.client.sync.groups import Groups

    return Groups(addresses)


def _print_members(group: GroupDescription) -> None:
    rows = [
        (
            one.member_id,
            one.instance_id or "-",
            one.client_id or "-",
            one.host,
            one.state,
            one.member_epoch,
            ", ".join(str(where) for where in one.assigned) or "-",
        )
        for one in group.members
    ]
    print_table(("member", "instance", "client", "host", "state", "epoch", "reads"), rows)


def _print_offsets(group: GroupDescription) -> None:
    rows = [
        (
            str(one.partition),
            "-" if one.committed < 0 else one.committed,
            "?" if one.high_watermark < 0 else one.high_watermark,
            "?" if one.lag < 0 else one.lag,
            one.member_id or "-",
            _note(one),
        )
        for one in group.partitions
    ]
    print_table(("partition", "committed", "end", "lag", "member", ""), rows)


def _note(partition: GroupPartition) -> str:
    """The error of a partition, and its offsets in open transactions."""
    notes = [] if partition.error is None else [partition.error.message]
    notes += [
        f"{one.offset} pending in the transaction of producer {one.producer_id}, epoch {one.producer_epoch}"
        for one in partition.pending
    ]
    return "; ".join(notes)


def _description_json(group: GroupDescription) -> dict[str, object]:
    return {
        **group._asdict(),
        "lag": group.lag,
        "partitions_of_unknown_lag": group.partitions_of_unknown_lag,
        "members": [{**one._asdict(), "assigned": [str(where) for where in one.assigned]} for one in group.members],
        "partitions": [
            {
                **one._asdict(),
                **one.partition._asdict(),
                "error": None if one.error is None else {"code": str(one.error.code), "message": one.error.message},
                "pending": [pending._asdict() for pending in one.pending],
            }
            for one in group.partitions
        ],
    }
