# SPDX-License-Identifier: Apache-2.0
"""`tidemark topic ...`: create, describe and delete topics, their partitions (rules C4, C7) and oldest records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli.common.options import (
    Cluster,
    Commands,
    DryRunOption,
    TopicArgument,
    TopicConfigsOption,
    TopicsArgument,
    YesOption,
    confirm,
    fits_int32,
    parse_brokers,
    parse_configs,
    refuse_json_question,
)
from tidemark.cli.common.output import counted, error_json, print_json, print_line, print_warning, raise_all
from tidemark.cli.common.schema_source import KeyOptions, SchemaOption
from tidemark.cli.topic.partition import partition_json, print_partition
from tidemark.core.cluster_view import PartitionView, TopicView
from tidemark.core.schemas.model import TopicSchema
from tidemark.model import INT64_MAX, TidemarkError, TopicPartition, unknown_partition

if TYPE_CHECKING:
    from tidemark.client import AdminClient
    from tidemark.rpc.broker_log_dirs import BrokerLogDirs


topic_app = Commands(help="Create, list, describe and delete topics.")

NameArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="1 to 249 letters, digits, '.', '_' or '-'.")]
TotalOption = Annotated[
    int, typer.Option("--total", metavar="N", callback=fits_int32, help="New number of partitions.")
]


@topic_app.command("create", short_help="Create a topic.")
def create(
    topic: NameArgument,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", metavar="N", callback=fits_int32, help="Number of partitions.")
    ] = 1,
    replication_factor_: Annotated[
        int,
        typer.Option(
            "--replication-factor",
            "-r",
            metavar="N",
            callback=fits_int32,
            help="Replicas of each partition; 0: the cluster's default.",
        ),
    ] = 0,
    config: TopicConfigsOption = None,
    schema: SchemaOption = None,
    keys: KeyOptions = KeyOptions(),
    dry_run: DryRunOption = False,
    cluster: Cluster = Cluster(),
) -> None:
    """Create a topic and wait until every partition has a leader.

    With --schema the topic is typed: each record is a row of its columns. A topic without a schema cannot get one
    later.

    \b
    Examples:
      tidemark topic create greetings
      tidemark topic create flights --partitions 6 --replication-factor 3 \\
          --config min.insync.replicas=2 --config retention.ms=86400000
      tidemark topic create flights --schema "carrier STRING NOT NULL, delay INT, PRIMARY KEY (carrier)"
      tidemark topic create flights --schema flights.yaml --key carrier --event-time scheduled_at
      tidemark topic create flights --partitions 6 --dry-run --output json
    """
    configs = parse_configs(config or [])
    draft = keys.of_source(schema)
    with cluster.connect() as client:
        made = client.create_topic(
            topic,
            partitions=partitions,
            replication_factor=replication_factor_,
            configs=configs,
            schema=draft,
            validate_only=dry_run,
        )
    for warning in made.warnings:
        print_warning(warning)
    if cluster.json:
        print_json({**topic_json(made), "created": not dry_run, "warnings": made.warnings})
        return
    verb, partitions_made = "would create" if dry_run else "created", counted(len(made.partitions), "partition")
    print_line(f"{verb} topic {made.topic}: {partitions_made}, replication factor {replication_factor(made)}")
    if dry_run:
        print_topic(made)


@topic_app.command("list")
def list_topics(cluster: Cluster = Cluster()) -> None:
    """List the names of all topics, one per line.

    \b
    Examples:
      tidemark topic list
      tidemark topic list --output json
    """
    with cluster.connect() as client:
        names = client.list_topics()
    if cluster.json:
        print_json(names)
        return
    for name in names:
        print_line(name)


@topic_app.command("describe", short_help="Show partitions, leaders and replicas.")
def describe(
    topics: TopicsArgument = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition",
            metavar="N",
            min=0,
            max=2**31 - 1,
            help="Only this partition of the single TOPIC, with its logs and the last changes of its ISR.",
        ),
    ] = None,
    cluster: Cluster = Cluster(),
) -> None:
    """Show partitions, leaders, replicas and in-sync replicas of topics.

    \b
    With --partition the command also shows the log of each replica, and why brokers left the ISR or joined. Brokers
    have the last ten changes of each leadership in memory, since their start.

    \b
    Examples:
      tidemark topic describe flights
      tidemark topic describe flights --partition 0
      tidemark topic describe flights --output json | jq '.[0].partitions[].leader'
    """
    if partition is not None and len(topics or ()) != 1:
        raise typer.BadParameter("--partition needs exactly one TOPIC", param_hint="--partition")
    brokers: list[BrokerLogDirs] = []
    with cluster.connect() as client:
        views = client.describe_topics(topics or [])
        if partition is not None and views[0].error is None:
            views = [_with_partition(views[0], partition)]
            where = TopicPartition(views[0].topic, partition)
            brokers = client.describe_log_dirs(partitions=[where], include_isr_changes=True)
        schemas, unread = _newest_schemas(client, views)
    unread += [broker.error for broker in brokers if broker.error is not None]
    if cluster.json:
        print_json([_described_json(view, schemas.get(view.topic), brokers, partition) for view in views])
    else:
        for view in views:
            if view.error is None:
                print_topic(view, _schema_text(schemas.get(view.topic)))
                if partition is not None:
                    print_partition(view.partitions[partition], brokers)
    for error in unread:
        print_warning(error.message)
    for view in views:
        for one in _partitions(view):
            if one.state_unreadable:
                print_warning(_unreadable(f"{view.topic}:{one.partition}"))
    raise_all([view.error for view in views if view.error is not None])


@topic_app.command("add-partitions", short_help="Add partitions, up to TOTAL.")
def add_partitions(
    topic: TopicArgument,
    total: TotalOption,
    replicas: Annotated[
        list[str] | None,
        typer.Option("--replicas", metavar="1,2,0", help="Replicas of one new partition, in order; once for each."),
    ] = None,
    dry_run: DryRunOption = False,
    cluster: Cluster = Cluster(),
) -> None:
    """Add partitions to a topic until it has TOTAL, and wait until each has a leader.

    \b
    The new partitions are empty; their replicas are placed as for a new topic. The partition of a key depends on the
    number of partitions. So a later record may go to another partition than an earlier record with the same key. The
    command is idempotent.

    \b
    Examples:
      tidemark topic add-partitions flights --total 12
      tidemark topic add-partitions flights --total 12 --dry-run
      tidemark topic add-partitions flights --total 8 --replicas 1,2,0 --replicas 2,0,1
    """
    assignments = [parse_brokers([brokers]) for brokers in replicas or []]
    with cluster.connect() as client:
        view = client.create_partitions(topic, total, assignments=assignments, validate_only=dry_run)
    if cluster.json:
        print_json({**topic_json(view), "changed": not dry_run})
        return
    verb = "would have" if dry_run else "has"
    print_line(f"topic {topic} {verb} {counted(len(view.partitions), 'partition')}")
    if dry_run:
        print_topic(view)


@topic_app.command("remove-partitions", short_help="Remove the highest partitions.")
def remove_partitions(
    topic: TopicArgument,
    total: TotalOption,
    force: Annotated[bool, typer.Option("--force", help="Also remove partitions with records.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation before records are deleted.")] = False,
    dry_run: DryRunOption = False,
    cluster: Cluster = Cluster(),
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
        refuse_json_question(cluster.output, yes=yes, dry_run=dry_run)
    with cluster.connect() as client:
        if force and not (yes or dry_run):
            planned = client.delete_partitions(topic, total_count=total, validate_only=True)
            if planned.partitions:
                which = f"{counted(len(planned.partitions), 'partition')} of {topic}{_range(planned.partitions)}"
                confirm(f"Delete {which} with all their records?")
        removed = client.delete_partitions(topic, total_count=total, force=force, validate_only=dry_run)
    if cluster.json:
        print_json({**topic_json(removed.topic), "removed": list(removed.partitions), "changed": not dry_run})
        return
    verb = "would be removed from" if dry_run else "removed from"
    print_line(f"{counted(len(removed.partitions), 'partition')} {verb} topic {topic}{_range(removed.partitions)}")


@topic_app.command("delete-records", short_help="Delete the oldest records of a partition.")
def delete_records(
    topic: TopicArgument,
    partition: Annotated[
        int,
        typer.Option(
            "--partition", metavar="N", callback=fits_int32, help="Partition index, from 0.", show_default=False
        ),
    ],
    before: Annotated[
        int,
        typer.Option(
            "--before",
            metavar="OFFSET",
            min=-1,
            max=INT64_MAX,
            help="First offset to keep; -1: delete all committed records.",
            show_default=False,
        ),
    ],
    yes: YesOption = False,
    cluster: Cluster = Cluster(),
) -> None:
    """Delete the oldest records of a partition permanently, on all its replicas.

    \b
    Only committed records can be deleted: an OFFSET above the high watermark is OFFSET_OUT_OF_RANGE. A consumer whose
    position is below OFFSET gets OFFSET_OUT_OF_RANGE with the new log start offset.

    \b
    Examples:
      tidemark topic delete-records flights --partition 0 --before 123
      tidemark topic delete-records flights --partition 0 --before -1 --yes --output json
    """
    refuse_json_question(cluster.output, yes=yes, options="--yes")
    with cluster.connect() as client:
        if not yes:
            which = "all committed records" if before < 0 else f"the records before offset {before}"
            confirm(f"Delete {which} of {topic}:{partition}?")
        deleted = client.delete_records(topic, partition, before)
    if cluster.json:
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


@topic_app.command("delete", short_help="Delete a topic with all its records.")
def delete(
    topic: TopicArgument,
    yes: YesOption = False,
    cluster: Cluster = Cluster(),
) -> None:
    """Delete a topic with all its records, and wait for the end of the deletion.

    The command asks for confirmation. Without a terminal it changes nothing, unless --yes is given.

    \b
    Examples:
      tidemark topic delete greetings
      tidemark topic delete greetings --yes
    """
    refuse_json_question(cluster.output, yes=yes, options="--yes")
    with cluster.connect() as client:
        if not yes:
            confirm(f"Delete topic {topic} with all its records?")
        client.delete_topic(topic)
    if cluster.json:
        print_json({"topic": topic, "deleted": True})
    else:
        print_line(f"deleted topic {topic}")


def _with_partition(view: TopicView, partition: int) -> TopicView:
    """The topic with one of its partitions."""
    found = view.partitions.get(partition)
    if found is None:
        raise unknown_partition(view.topic, partition, len(view.partitions))
    return replace(view, partitions={partition: found}, partition_count=view.count)


def _described_json(
    view: TopicView, schema: TopicSchema | None, brokers: Sequence[BrokerLogDirs], partition: int | None
) -> Mapping[str, object]:
    if view.error is not None:
        return {"topic": view.topic, "error": error_json(view.error)}
    found = {**topic_json(view), **_schema_json(schema)}
    return found if partition is None else {**found, **partition_json(brokers)}


def _newest_schemas(
    client: AdminClient, views: Sequence[TopicView]
) -> tuple[dict[str, TopicSchema], list[TidemarkError]]:
    """The newest schema of each typed topic, and the errors of schemas that cannot be read."""
    found: dict[str, TopicSchema] = {}
    errors = []
    for view in views:
        if view.error is None and view.schema_version:
            try:
                found[view.topic] = client.describe_topic_schemas(view.topic).versions[-1].schema
            except TidemarkError as error:
                errors.append(error)
    return found, errors


def _schema_text(schema: TopicSchema | None) -> str:
    if schema is None:
        return ""
    key = ",".join(column.name for column in schema.key_columns) or "none"
    event_time = schema.event_time_column
    return f" Columns:{len(schema.columns)} Key:{key} EventTime:{event_time.name if event_time else 'none'}"


def _schema_json(schema: TopicSchema | None) -> Mapping[str, object]:
    if schema is None:
        return {}
    event_time = schema.event_time_column
    return {
        "columns": [column.name for column in schema.columns],
        "key": [column.name for column in schema.key_columns],
        "event_time": event_time.name if event_time else None,
    }


def print_topic(topic: TopicView, beside: str = "") -> None:
    """Print a topic in the form of Kafka's tools: a line for the topic, and a line for each partition.

    `beside`: facts about its schema, for the line of the topic.
    """
    configs = ",".join(f"{name}={value}" for name, value in sorted(topic.configs.items()))
    schema = f" SchemaVersion:{topic.schema_version}" if topic.schema_version else ""
    print_line(
        f"Topic:{topic.topic} PartitionCount:{topic.count} "
        f"ReplicationFactor:{replication_factor(topic)} Configs:{configs}{schema}{beside}"
    )
    for partition in _partitions(topic):
        replicas = ",".join(str(replica) for replica in partition.assigned_replicas)
        isr = ",".join(str(replica) for replica in partition.in_sync_replicas)
        leader = partition.leader if partition.leader >= 0 else "none"
        print_line(
            f"Topic: {topic.topic} Partition: {partition.partition} Leader: {leader} Replicas: {replicas} Isr: {isr}"
        )


def topic_json(topic: TopicView) -> Mapping[str, object]:
    """A topic as JSON; a partition without a leader has leader -1."""
    return {
        "topic": topic.topic,
        "topic_id": topic.topic_id,
        "partition_count": topic.count,
        "replication_factor": replication_factor(topic),
        "configs": dict(topic.configs),
        "schema_version": topic.schema_version,
        "partitions": [
            {
                "partition": partition.partition,
                "leader": partition.leader,
                "leader_epoch": partition.leader_epoch,
                "replicas": list(partition.assigned_replicas),
                "isr": list(partition.in_sync_replicas),
                "elr": list(partition.eligible_leader_replicas),
                "lineage": partition.lineage,
                **({"state_unreadable": True} if partition.state_unreadable else {}),
            }
            for partition in _partitions(topic)
        ],
    }


def _unreadable(partition: str) -> str:
    return (
        f"the leaderAndISR node of {partition} was damaged or deleted, so leader and ISR are not known. "
        f"The controller writes the node again once live replicas prove the content; otherwise run "
        f"tidemark elect --rebuild-state {partition}"
    )


def _range(partitions: tuple[int, ...]) -> str:
    if not partitions:
        return ""
    first, last = partitions[0], partitions[-1]
    return f" ({first})" if first == last else f" ({first} to {last})"


def replication_factor(topic: TopicView) -> int:
    """Replication factor of the first partition; partitions differ only during a reassignment."""
    partitions = _partitions(topic)
    return len(partitions[0].assigned_replicas) if partitions else 0


def _partitions(topic: TopicView) -> list[PartitionView]:
    return [topic.partitions[index] for index in sorted(topic.partitions)]
