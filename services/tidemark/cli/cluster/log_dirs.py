# SPDX-License-Identifier: Apache-2.0
"""`tidemark log-dirs ...`: what lies on the disks of brokers, and replicas moved between those of one (rule M3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidemark.cli.common.options import AdminOption, BootstrapOption, OutputOption, connect_admin, fits_int32
from tidemark.cli.common.output import Output, error_json, print_json, print_line, print_table
from tidemark.cli.common.partition_targets import parse_targets
from tidemark.cli.common.units import parse_rate, shown_bytes
from tidemark.cli.reassign.log_dir_status import FoundReplica, PlaceFollower, PlaceState, look, placed
from tidemark.cli.reassign.log_dirs import copying_goes_on, found_json
from tidemark.cli.reassign.progress_view import MoveView, name_of
from tidemark.cli.reassign.submit import raise_all
from tidemark.core.reassignment.log_dir_placement import ReplicaLogDir
from tidemark.model import BrokerId, TidemarkError

if TYPE_CHECKING:
    from tidemark.rpc.broker_log_dirs import BrokerLogDirs
    from tidemark.rpc.log_dirs import LogDirectoryContent, ReplicaOnDisk

_COLUMNS: Final = ("broker", "directory", "state", "total", "free", "replicas", "bytes")
_REPLICA_COLUMNS: Final = ("broker", "directory", "partition", "is", "bytes", "lag")

log_dirs_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Look at the log directories of brokers, and move replicas between those of one broker.

\b
A broker with several disks has a log directory on each (log.dirs). When one fills up while another has room:
  tidemark log-dirs describe                                    how full they are
  tidemark log-dirs describe --broker 1 --replicas              what lies where
  tidemark log-dirs move orders:0 --broker 1 --to /disk2 --wait
The replica goes on serving while it is copied. To move replicas between brokers, into directories of your choice,
give log_dirs to tidemark reassign.
""",
)


@log_dirs_app.callback()
def log_dirs() -> None:
    """Look at the log directories of brokers, and move replicas between those of one broker."""


@log_dirs_app.command("describe", short_help="How full log directories are, and what lies where.")
def describe(
    brokers: Annotated[
        list[int] | None, typer.Option("--broker", metavar="N", help="Which broker; may be repeated; else all.")
    ] = None,
    topics: Annotated[
        list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Count only its replicas; may be repeated.")
    ] = None,
    replicas: Annotated[bool, typer.Option("--replicas", help="List the replicas too.")] = False,
    bootstrap: BootstrapOption = "",
    admin: AdminOption = "",
    output: OutputOption = Output.TEXT,
) -> None:
    """How full the log directories are, whether they are online, and what lies in them; exit status 1 if a broker does
    not answer.

    \b
    Of each replica: how many bytes it has, and its lag: records below the high watermark that it lacks. A replica that
    "is" future is a copy on its way into the directory; its lag is what it still lacks of the replica.

    \b
    Examples:
      tidemark log-dirs describe
      tidemark log-dirs describe --broker 1 --topic orders --replicas
      tidemark log-dirs describe --output json | jq '.[].log_dirs[] | select(.free_bytes < 1e9) | .path'
    """
    with connect_admin(bootstrap, admin) as client:
        found = client.describe_log_dirs([fits_int32(broker) for broker in brokers or ()], topics=topics or ())
    if output is Output.JSON:
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
    silent = [broker.error for broker in found if broker.error is not None]
    if silent:
        raise_all(silent)


@log_dirs_app.command("move", short_help="Move a replica to another directory of its broker.")
def move(
    target: Annotated[str, typer.Argument(metavar="TOPIC:PARTITION", help="Whose replica.")],
    broker: Annotated[
        int, typer.Option("--broker", metavar="N", callback=fits_int32, help="On which broker.", show_default=False)
    ],
    to: Annotated[
        str, typer.Option("--to", metavar="DIR", help="Path or uuid of a log directory of it.", show_default=False)
    ],
    throttle: Annotated[
        str,
        typer.Option(
            "--throttle", metavar="RATE", help="What copying may write in a second, such as 50MB; else as it is set."
        ),
    ] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Show how far it is until it is there.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, change nothing.")] = False,
    bootstrap: BootstrapOption = "",
    admin: AdminOption = "",
    output: OutputOption = Output.TEXT,
) -> None:
    """Move a replica into another log directory of its broker.

    \b
    It is copied in the background, under a throttle, and goes on serving; at the end the copy takes its place and the
    old one is deleted. A move under way is given up by naming the directory that the replica lies in now. It goes on
    when you press Ctrl-C, and when the broker is started again.

    \b
    Examples:
      tidemark log-dirs move orders:0 --broker 1 --to /disk2 --wait
      tidemark log-dirs move orders:0 --broker 1 --to /disk2 --throttle 50MB
      tidemark log-dirs move orders:0 --broker 1 --to /disk1      (where it lies: gives the move up)
    """
    rate = parse_rate(throttle) if throttle else 0
    topics, partitions = parse_targets([target])
    if topics:
        raise typer.BadParameter(f"{target!r}: want TOPIC:PARTITION, such as orders:0")
    place = ReplicaLogDir(BrokerId(broker), partitions[0], to)
    with connect_admin(bootstrap, admin) as client:
        (answer,) = client.alter_replica_log_dirs([place], throttle_bytes_per_s=rate, validate_only=dry_run)
        if answer.error is not None:
            raise answer.error
        (found,) = look(client, [place])
        error = None
        if wait and not dry_run:
            follower = PlaceFollower(client)
            try:
                with MoveView(silent=output is Output.JSON, ends=follower.ends) as view:
                    ((found, error),) = follower.follow([place], view)
            except KeyboardInterrupt:
                raise copying_goes_on() from None
    if output is Output.JSON:
        print_json({**found_json(found), "noted": not dry_run, "error": None if error is None else error_json(error)})
    elif not wait or dry_run:
        print_line(_noted(found, dry_run=dry_run))
    if error is not None:
        raise error


def _noted(found: FoundReplica, *, dry_run: bool) -> str:
    name = name_of(found.place.partition)
    if found.state is PlaceState.THERE:
        return f"{name} is {placed(found)}" + ("" if dry_run else "; a move into another directory is given up")
    if dry_run:
        return f"{name} {placed(found)} would be moved into {found.target}"
    return f"{name} {placed(found)} is moved into {found.target}; tidemark log-dirs describe --replicas shows how far"


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
        "error": _error_or_null(broker.error),
        "log_dirs": [
            {
                "directory_id": one.directory_id,
                "path": one.path,
                "error": _error_or_null(one.error),
                "total_bytes": None if one.total_bytes < 0 else one.total_bytes,
                "free_bytes": None if one.free_bytes < 0 else one.free_bytes,
                "replicas": [
                    {
                        "topic": replica.partition.topic,
                        "partition": replica.partition.partition,
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


def _error_or_null(error: TidemarkError | None) -> Mapping[str, object] | None:
    return None if error is None else error_json(error)
