# SPDX-License-Identifier: Apache-2.0
"""`tidemark topic ...`: create, list, describe and delete topics; change their number of partitions."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tidemark.cli.common.confirmation import confirm
from tidemark.cli.common.options import (
    AdminOption,
    BootstrapOption,
    OutputOption,
    connect_admin,
    fits_int32,
    parse_configs,
)
from tidemark.cli.common.output import (
    Output,
    counted,
    describe_topic,
    error_json,
    print_error,
    print_json,
    print_line,
    print_warning,
    replication_factor,
    topic_json,
)
from tidemark.cli.topic.delete_records import delete_records
from tidemark.cli.topic.partitions import add_partitions, remove_partitions

topic_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Create, list, describe and delete topics.")
topic_app.command("add-partitions", short_help="Add partitions, up to TOTAL.")(add_partitions)
topic_app.command("remove-partitions", short_help="Remove the highest partitions.")(remove_partitions)
topic_app.command("delete-records", short_help="Delete the oldest records of a partition.")(delete_records)

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="1 to 249 letters, digits, '.', '_' or '-'.")]


@topic_app.command("create", short_help="Create a topic.")
def create(
    topic: TopicArgument,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", callback=fits_int32, help="Number of partitions.")
    ] = 1,
    replication_factor_: Annotated[
        int,
        typer.Option(
            "--replication-factor",
            "-r",
            callback=fits_int32,
            help="Replicas of each partition; 0: the cluster's default.",
        ),
    ] = 0,
    config: Annotated[
        list[str] | None, typer.Option("--config", "-c", metavar="KEY=VALUE", help="A topic setting; repeatable.")
    ] = None,
    validate_only: Annotated[
        bool, typer.Option("--validate-only", help="Check and show the topic, without creating it.")
    ] = False,
    bootstrap: BootstrapOption = "",
    admin: AdminOption = "",
    output: OutputOption = Output.TEXT,
) -> None:
    """Create a topic and wait until every partition has a leader.

    \b
    Examples:
      tidemark topic create greetings
      tidemark topic create flights --partitions 6 --replication-factor 3 \\
          --config min.insync.replicas=2 --config retention.ms=86400000
      tidemark topic create flights --partitions 6 --validate-only --output json
    """
    configs = parse_configs(config or [])
    with connect_admin(bootstrap, admin) as client:
        made = client.create_topic(
            topic,
            partitions=partitions,
            replication_factor=replication_factor_,
            configs=configs,
            validate_only=validate_only,
        )
    for warning in made.warnings:
        print_warning(warning)
    if output is Output.JSON:
        print_json({**topic_json(made), "created": not validate_only, "warnings": made.warnings})
        return
    verb, partitions_made = "would create" if validate_only else "created", counted(len(made.partitions), "partition")
    print_line(f"{verb} topic {made.topic}: {partitions_made}, replication factor {replication_factor(made)}")
    if validate_only:
        for line in describe_topic(made):
            print_line(line)


@topic_app.command("list")
def list_topics(bootstrap: BootstrapOption = "", admin: AdminOption = "", output: OutputOption = Output.TEXT) -> None:
    """List the names of all topics, one per line.

    \b
    Examples:
      tidemark topic list
      tidemark topic list --output json
    """
    with connect_admin(bootstrap, admin) as client:
        names = client.list_topics()
    if output is Output.JSON:
        print_json(names)
        return
    for name in names:
        print_line(name)


@topic_app.command("describe", short_help="Show partitions, leaders and replicas.")
def describe(
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC", help="Topics; default: all.")] = None,
    bootstrap: BootstrapOption = "",
    admin: AdminOption = "",
    output: OutputOption = Output.TEXT,
) -> None:
    """Show partitions, leaders, replicas and in-sync replicas of topics.

    \b
    Examples:
      tidemark topic describe flights
      tidemark topic describe flights --output json | jq '.[0].partitions[].leader'
    """
    with connect_admin(bootstrap, admin) as client:
        views = client.describe_topics(topics or [])
    refused = [view.error for view in views if view.error is not None]
    if output is Output.JSON:
        print_json(
            [
                topic_json(view) if view.error is None else {"topic": view.topic, "error": error_json(view.error)}
                for view in views
            ]
        )
    else:
        for view in views:
            if view.error is None:
                for line in describe_topic(view):
                    print_line(line)
    for error in refused:
        print_error(error)
    if refused:
        raise typer.Exit(1)


@topic_app.command("delete", short_help="Delete a topic with all its records.")
def delete(
    topic: TopicArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation on a terminal.")] = False,
    bootstrap: BootstrapOption = "",
    admin: AdminOption = "",
    output: OutputOption = Output.TEXT,
) -> None:
    """Delete a topic with all its records, and wait for the end of the deletion.

    \b
    Examples:
      tidemark topic delete greetings
      tidemark topic delete greetings --yes
    """
    if not yes and sys.stdin.isatty():
        confirm(f"Delete topic {topic} with all its records?")
    with connect_admin(bootstrap, admin) as client:
        client.delete_topic(topic)
    if output is Output.JSON:
        print_json({"topic": topic, "deleted": True})
    else:
        print_line(f"deleted topic {topic}")
