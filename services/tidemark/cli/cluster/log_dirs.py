# SPDX-License-Identifier: Apache-2.0
"""`tidemark log-dirs ...`: show log directories, and move replicas between directories of a broker (rule M3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidemark.cli.common import completion
from tidemark.cli.common.options import Cluster, Commands, DryRunOption, OnlyTopicsOption, fits_int32, parse_targets
from tidemark.cli.common.output import error_json, name_of, print_json, print_line, print_table, raise_all
from tidemark.cli.common.units import parse_rate
from tidemark.cli.reassign.copy_time import warn_of_long_copy
from tidemark.cli.reassign.log_dirs import FoundReplica, PlaceState, follow_places, found_json, look, placed
from tidemark.client.units import shown_bytes
from tidemark.core.reassignment.log_dir_placement import ReplicaLogDir
from tidemark.model import BrokerId

if TYPE_CHECKING:
    from tidemark.rpc.broker_log_dirs import BrokerLogDirs
    from tidemark.rpc.log_dirs import LogDirectoryContent, ReplicaOnDisk

_COLUMNS: Final = ("broker", "directory", "state", "total", "free", "replicas", "bytes")
_REPLICA_COLUMNS: Final = ("broker", "directory", "partition", "is", "bytes", "lag")

log_dirs_app = Commands(
    help="""Show log directories, and move replicas between log directories of one broker.

\b
A broker with several disks has a log directory on each (log.dirs). When one of them is nearly full:
  tidemark log-dirs describe                                    free space
  tidemark log-dirs describe --broker 1 --replicas              replicas of each log directory
  tidemark log-dirs move orders:0 --broker 1 --to /disk2 --wait
The replica serves clients during the copy. tidemark reassign moves replicas between brokers, with log_dirs into
chosen log directories.
""",
)


@log_dirs_app.command("describe", short_help="Show space, state and replicas of log directories.")
def describe(
    brokers: Annotated[
        list[int] | None,
        typer.Option(
            "--broker", metavar="N", help="A broker; repeatable; default: all.", autocompletion=completion.brokers
        ),
    ] = None,
    topics: OnlyTopicsOption = None,
    replicas: Annotated[bool, typer.Option("--replicas", help="Also list the replicas.")] = False,
    cluster: Cluster = Cluster(),
) -> None:
    """Show space, state and replicas of log directories; exit status 1 if a broker does not answer.

    \b
    The lag of a follower is the number of offsets below the high watermark that its log lacks; a leader has 0.
    "future" in the column "is" marks the copy of a log directory move. The lag of a copy is the number of offsets not
    copied yet.

    \b
    Examples:
      tidemark log-dirs describe
      tidemark log-dirs describe --broker 1 --topic orders --replicas
      tidemark log-dirs describe --output json | jq '.[].log_dirs[] | select(.free_bytes < 1e9) | .path'
    """
    with cluster.connect() as client:
        found = client.describe_log_dirs([fits_int32(broker) for broker in brokers or ()], topics=topics or ())
    if cluster.json:
        print_json([_broker_json(broker) for broker in found])
    else:
        if any(broker.log_dirs for broker in found):
            print_table(_COLUMNS, [_row(broker, one) for broker in found for one in _by_path(broker)])
        if replicas:
            print_table(
                _REPLICA_COLUMNS,
                [
                    _replica_row(broker, one, replica)
                    for broker in found
                    for one in _by_path(broker)
                    for replica in sorted(one.replicas, key=lambda replica: replica.partition)
                ],
            )
        for broker in found:
            for one in _by_path(broker):
                if one.error is not None:
                    print_line(f"broker {broker.broker_id}, {one.path}: {one.error.message}")
    raise_all([broker.error for broker in found if broker.error is not None])


@log_dirs_app.command("move", short_help="Move a replica to another directory of its broker.")
def move(
    target: Annotated[
        str,
        typer.Argument(metavar="TOPIC:PARTITION", help="Partition of the replica.", autocompletion=completion.places),
    ],
    broker: Annotated[
        int,
        typer.Option(
            "--broker",
            metavar="N",
            callback=fits_int32,
            help="Broker of the replica.",
            show_default=False,
            autocompletion=completion.brokers,
        ),
    ],
    to: Annotated[
        str,
        typer.Option("--to", metavar="DIR", help="Path or uuid of the target directory.", show_default=False),
    ],
    throttle: Annotated[
        str,
        typer.Option(
            "--throttle", metavar="RATE", help="Bytes copied per second at most, such as 50MB; default: the setting."
        ),
    ] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Show the progress until the end.")] = False,
    dry_run: DryRunOption = False,
    cluster: Cluster = Cluster(),
) -> None:
    """Move a replica into another log directory of its broker.

    \b
    The broker copies the log in the background, under a throttle, and the replica serves clients. At the end the copy
    replaces the replica, and the old log is deleted. To cancel the move, name the current log directory of the replica.
    The move continues after Ctrl-C, and after a restart of the broker.

    \b
    Examples:
      tidemark log-dirs move orders:0 --broker 1 --to /disk2 --wait
      tidemark log-dirs move orders:0 --broker 1 --to /disk2 --throttle 50MB
      tidemark log-dirs move orders:0 --broker 1 --to /disk1      (current directory: cancels)
    """
    rate = parse_rate(throttle) if throttle else 0
    topics, partitions = parse_targets([target])
    if topics:
        raise typer.BadParameter(f"{target!r}: expected TOPIC:PARTITION, such as orders:0")
    place = ReplicaLogDir(BrokerId(broker), partitions[0], to)
    with cluster.connect() as client:
        (answer,) = client.alter_replica_log_dirs([place], throttle_bytes_per_s=rate, validate_only=dry_run)
        if answer.error is not None:
            raise answer.error
        (found,) = look(client, [place])
        if found.state is not PlaceState.THERE and found.bytes_total is not None:
            warn_of_long_copy(f"the replica has {shown_bytes(found.bytes_total)}", found.bytes_total, rate)
        error = None
        if wait and not dry_run:
            ((found, error),) = follow_places(client, [place], silent=cluster.json)
    if cluster.json:
        print_json({**found_json(found), "noted": not dry_run, "error": error_json(error)})
    elif not wait or dry_run:
        print_line(_noted(found, dry_run=dry_run))
    if error is not None:
        raise error


def _noted(found: FoundReplica, *, dry_run: bool) -> str:
    name = name_of(found.place.partition)
    if found.state is PlaceState.THERE:
        return f"{name} is {placed(found)}" + ("" if dry_run else "; a move to another log directory is cancelled")
    if dry_run:
        return f"{name} {placed(found)} would move to {found.target}"
    return f"{name} {placed(found)} moves to {found.target}; tidemark log-dirs describe --replicas shows the progress"


def _by_path(broker: BrokerLogDirs) -> Sequence[LogDirectoryContent]:
    return sorted(broker.log_dirs, key=lambda one: one.path)


def _row(broker: BrokerLogDirs, one: LogDirectoryContent) -> tuple[object, ...]:
    return (
        broker.broker_id,
        one.path,
        "online" if one.error is None else "offline",
        _size(one.total_bytes),
        _size(one.free_bytes),
        len(one.replicas),
        shown_bytes(sum(max(0, replica.size_bytes) for replica in one.replicas)),
    )


def _replica_row(broker: BrokerLogDirs, one: LogDirectoryContent, replica: ReplicaOnDisk) -> tuple[object, ...]:
    return (
        broker.broker_id,
        one.path,
        name_of(replica.partition),
        _role(replica),
        _size(replica.size_bytes),
        replica.offset_lag,
    )


def _role(replica: ReplicaOnDisk) -> str:
    if replica.offline:
        return "offline"
    if replica.future:
        return "future"
    return "leader" if replica.leader else "follower"


def _size(count: int) -> str:
    return shown_bytes(None if count < 0 else count)


def _broker_json(broker: BrokerLogDirs) -> Mapping[str, object]:
    return {
        "broker_id": broker.broker_id,
        "error": error_json(broker.error),
        "log_dirs": [
            {
                "directory_id": one.directory_id,
                "path": one.path,
                "error": error_json(one.error),
                "total_bytes": None if one.total_bytes < 0 else one.total_bytes,
                "free_bytes": None if one.free_bytes < 0 else one.free_bytes,
                "replicas": [
                    {
                        **replica.partition._asdict(),
                        "size_bytes": None if replica.size_bytes < 0 else replica.size_bytes,
                        "offset_lag": replica.offset_lag,
                        "leader": replica.leader,
                        "future": replica.future,
                        "offline": replica.offline,
                    }
                    for replica in sorted(one.replicas, key=lambda replica: replica.partition)
                ],
            }
            for one in _by_path(broker)
        ],
    }
